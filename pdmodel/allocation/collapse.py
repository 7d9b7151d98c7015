"""Collapse: flows and ports that no program can tell apart become one class each.

Classes are the coarsest equitable partition of the graph of ports, routes, flows and late groups (colour refinement,
edges weighted by multiplicity). Averaging a solution over such classes keeps it feasible and costs the same, because
every port of a class sees the same bytes from every class of routes; so a program with one variable per class has the
same optimum. Source: M. Grohe, K. Kersting, M. Mladenov, E. Selman, "Dimension reduction via colour refinement",
ESA 2014, theorem 4.1 (fractional automorphisms of linear programs).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.timeline.phases import FloatArray, IntArray

#: Digits of a figure, relative to the largest of its kind, that must agree between members of a class.
DIGITS = 12


@dataclass(frozen=True, slots=True)
class Classes:
    """The class of each port (P,), route (R,), flow (F,) and late group (G,) of a record."""

    port: IntArray
    route: IntArray
    flow: IntArray
    group: IntArray


def late_groups(data: AllocationData) -> tuple[IntArray, FloatArray]:
    """The group of each flow (F,), numbered in order of first flow, and the price of each group (G,) [GPU·s per s]."""
    number: dict[str, int] = {}
    group = np.array([number.setdefault(name, len(number)) for name in data.late_group], dtype=np.int64)
    price = np.zeros(len(number))
    np.maximum.at(price, group, data.flow_price_per_s)
    return group, price


def no_collapse(data: AllocationData) -> Classes:
    """Every port, route, flow and group alone in its class."""
    groups = len(set(data.late_group))
    return Classes(
        np.arange(len(data.ports)), np.arange(len(data.routes)), np.arange(len(data.flows)), np.arange(groups)
    )


def collapse(data: AllocationData, quantum: FloatArray) -> Classes:
    """The classes of a record; ``quantum`` (F,) [bytes] is what program R divides lateness by (any value for E)."""
    group, group_price = late_groups(data)
    port = _number(_port_colours(data))
    flow = _number(_flow_colours(data, quantum))
    late = _number(np.round(group_price / (group_price.max(initial=0.0) or 1.0), DIGITS).tolist())
    route = [0] * len(data.routes)
    multiplicity = np.round(data.consumption, DIGITS)
    crossing, crossed = np.nonzero(multiplicity)
    edges = list(zip(crossing.tolist(), crossed.tolist(), multiplicity[crossing, crossed].tolist(), strict=True))
    route_flow, flow_group = data.route_flow.tolist(), group.tolist()
    count = 0
    while count != (count := len({*port}) + len({*route}) + len({*flow}) + len({*late})):
        ports_of: list[list[tuple[int, float]]] = [[] for _ in route]
        routes_of: list[list[tuple[int, float]]] = [[] for _ in port]
        for r, p, weight in edges:
            ports_of[r].append((port[p], weight))
            routes_of[p].append((route[r], weight))
        of_flow: list[list[int]] = [[] for _ in flow]
        of_group: list[list[int]] = [[] for _ in late]
        for r, f in enumerate(route_flow):
            of_flow[f].append(route[r])
        for f, g in enumerate(flow_group):
            of_group[g].append(flow[f])
        route, port, flow, late = (
            _number([(route[r], flow[route_flow[r]], tuple(sorted(ports_of[r]))) for r in range(len(route))]),
            _number([(port[p], tuple(sorted(routes_of[p]))) for p in range(len(port))]),
            _number([(flow[f], late[flow_group[f]], tuple(sorted(of_flow[f]))) for f in range(len(flow))]),
            _number([(late[g], tuple(sorted(of_group[g]))) for g in range(len(late))]),
        )
    return Classes(*(np.array(part, dtype=np.int64) for part in (port, route, flow, late)))


def _number(colours: Sequence[Hashable]) -> list[int]:
    """Equal colours get equal numbers, in order of first appearance."""
    number: dict[Hashable, int] = {}
    return [number.setdefault(colour, len(number)) for colour in colours]


def _port_colours(data: AllocationData) -> list[Hashable]:
    """Capacity, guard and critical demand over all phases; usable capacity follows from them."""
    unit = data.capacity.max(initial=0.0) or 1.0
    tables = [data.capacity[None, :], data.guard[None, :], data.decode_rate, *data.critical_rate]
    figures = np.round(np.concatenate(tables) / unit, DIGITS) + 0.0  # + 0.0: no minus zeros among the bytes
    columns = np.ascontiguousarray(figures.T)
    return [column.tobytes() for column in columns]


def _flow_colours(data: AllocationData, quantum: FloatArray) -> list[Hashable]:
    """Kind, lane, curves and quantum."""
    unit = data.volume_bytes.max(initial=0.0) or 1.0

    def rounded(pairs: Sequence[tuple[int, float]]) -> Hashable:
        return tuple((k, round(size_bytes / unit, DIGITS)) for k, size_bytes in pairs)

    return [
        (flow.kind, flow.lane, rounded(flow.release), rounded(flow.due), round(float(q) / unit, DIGITS))
        for flow, q in zip(data.flows, quantum, strict=True)
    ]
