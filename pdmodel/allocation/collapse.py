"""Collapse: flows and ports that no program can tell apart become one class each.

Classes are the coarsest equitable partition of the graph of ports, routes, flows, late groups and the memory pools that
may overflow (colour refinement, edges weighted by multiplicity). Averaging a solution over such classes keeps it
feasible and costs the same, because every port of a class sees the same bytes from every class of routes; so a program
with one variable per class has the same optimum. Source: M. Grohe, K. Kersting, M. Mladenov, E. Selman, "Dimension
reduction via colour refinement", ESA 2014, theorem 4.1 (fractional automorphisms of linear programs).
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
    """The class of each port (P,), route (R,), flow (F,), late group (G,) and tight pool (Q,) of a record."""

    port: IntArray
    route: IntArray
    flow: IntArray
    group: IntArray
    pool: IntArray


def late_groups(data: AllocationData) -> tuple[IntArray, FloatArray]:
    """The group of each flow (F,), numbered in order of first flow, and the price of each group (G,) [GPU·s per s]."""
    number: dict[str, int] = {}
    group = np.array([number.setdefault(name, len(number)) for name in data.late_group], dtype=np.int64)
    price = np.zeros(len(number))
    np.maximum.at(price, group, data.flow_price_per_s)
    return group, price


def no_collapse(data: AllocationData) -> Classes:
    """Everything alone in its class."""
    sizes = (data.ports, data.routes, data.flows, set(data.late_group), data.tight_pools)
    return Classes(*(np.arange(len(part)) for part in sizes))


def collapse(data: AllocationData, quantum: FloatArray) -> Classes:
    """The classes of a record; ``quantum`` (F,) [bytes] is what program R divides lateness by (any value for E)."""
    group, group_price = late_groups(data)
    late = np.round(group_price / (group_price.max(initial=0.0) or 1.0), DIGITS).tolist()
    colours = [
        _number(part)
        for part in (
            _port_colours(data),
            [()] * len(data.routes),
            _flow_colours(data, quantum),
            late,
            _pool_colours(data),
        )
    ]
    count = 0
    graph = _Graph.of(data, group.tolist())
    while count != (count := sum(len(set(part)) for part in colours)):
        colours = graph.refined(colours)
    return Classes(*(np.array(part, dtype=np.int64) for part in colours))


@dataclass(frozen=True, slots=True)
class _Graph:
    """Edges (route, port, multiplicity) and (flow, pool, weight); flow of each route, group of each flow."""

    crossings: list[tuple[int, int, float]]
    kept: list[tuple[int, int, float]]
    route_flow: list[int]
    flow_group: list[int]

    @classmethod
    def of(cls, data: AllocationData, flow_group: list[int]) -> _Graph:
        """The graph of a record."""
        weight = data.pool_weight[data.tight_pools].T if len(data.tight_pools) else np.zeros((0, 0))
        return cls(_edges(data.consumption), _edges(weight), data.route_flow.tolist(), flow_group)

    def refined(self, colours: Sequence[list[int]]) -> list[list[int]]:
        """Colours of ports, routes, flows, groups and pools told apart by those of their neighbours."""
        port, route, flow, late, pool = colours
        ports_of: list[list[tuple[int, float]]] = [[] for _ in route]
        routes_of: list[list[tuple[int, float]]] = [[] for _ in port]
        for r, p, weight in self.crossings:
            ports_of[r].append((port[p], weight))
            routes_of[p].append((route[r], weight))
        of_flow: list[list[int]] = [[] for _ in flow]
        of_group: list[list[int]] = [[] for _ in late]
        for r, f in enumerate(self.route_flow):
            of_flow[f].append(route[r])
        for f, g in enumerate(self.flow_group):
            of_group[g].append(flow[f])
        pools_of: list[list[tuple[int, float]]] = [[] for _ in flow]
        flows_of: list[list[tuple[int, float]]] = [[] for _ in pool]
        for f, q, weight in self.kept:
            pools_of[f].append((pool[q], weight))
            flows_of[q].append((flow[f], weight))
        return [
            _number([(port[p], tuple(sorted(routes_of[p]))) for p in range(len(port))]),
            _number([(route[r], flow[self.route_flow[r]], tuple(sorted(ports_of[r]))) for r in range(len(route))]),
            _number(
                [
                    (flow[f], late[self.flow_group[f]], tuple(sorted(of_flow[f])), tuple(sorted(pools_of[f])))
                    for f in range(len(flow))
                ]
            ),
            _number([(late[g], tuple(sorted(of_group[g]))) for g in range(len(late))]),
            _number([(pool[q], tuple(sorted(flows_of[q]))) for q in range(len(pool))]),
        ]


def _edges(weight: FloatArray) -> list[tuple[int, int, float]]:
    """The entries of a table that are not zero, with their row and column."""
    rounded = np.round(weight, DIGITS)
    row, column = np.nonzero(rounded)
    return list(zip(row.tolist(), column.tolist(), rounded[row, column].tolist(), strict=True))


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
    """Kind, lane, arrival, curves, quantum and lease."""
    unit = data.volume_bytes.max(initial=0.0) or 1.0

    def rounded(pairs: Sequence[tuple[int, float]]) -> Hashable:
        return tuple((k, round(size_bytes / unit, DIGITS)) for k, size_bytes in pairs)

    return [
        (
            flow.kind,
            flow.lane,
            data.arrival_s.get((flow.lane, flow.request), 0.0),
            rounded(flow.release),
            rounded(flow.due),
            round(float(q) / unit, DIGITS),
            -1.0 if flow.lease_s is None else flow.lease_s,
        )
        for flow, q in zip(data.flows, quantum, strict=True)
    ]


def _pool_colours(data: AllocationData) -> list[Hashable]:
    """Room, and what appears when, in each pool that may overflow."""
    colours: list[Hashable] = []
    for q in data.tight_pools:
        pool = data.memory[q]
        unit = pool.capacity_bytes or 1.0
        appears: dict[tuple[str, int, float], float] = {}
        for lane, k, request, size_bytes in pool.appears:
            key = lane, k, data.arrival_s.get((lane, request), 0.0)
            appears[key] = appears.get(key, 0.0) + size_bytes
        curve = tuple(sorted((key, round(size_bytes / unit, DIGITS)) for key, size_bytes in appears.items()))
        colours.append((pool.capacity_bytes, round(pool.base_bytes / unit, DIGITS), curve))
    return colours
