"""What a program sees of ports, routes and flows: one of each class, and only the ports that matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import Classes
from pdmodel.allocation.data import AllocationData
from pdmodel.timeline.phases import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Network:
    """One route, flow and port of each class.

    ``consumption`` (R', P') [-] is what the members of a route class together put on the port per byte that each of
    them moves. ``ports``, ``routes``, ``flows`` are the representatives' places in the record; ``route_flow`` (R',) the
    place of a route's flow in ``flows``, and ``per_flow`` (R',) how many routes of the class that flow has. ``always``
    (P',): ports that matter without any KV.
    """

    classes: Classes
    consumption: FloatArray
    ports: IntArray
    routes: IntArray
    flows: IntArray
    route_flow: IntArray
    per_flow: FloatArray
    always: NDArray[np.bool_]

    def part(self, kept: NDArray[np.bool_]) -> Network:
        """The network without the flows that ``kept`` (F',) leaves out, their routes, and ports of theirs alone."""
        if kept.all():
            return self
        routes = kept[self.route_flow]
        ports = self.always | (self.consumption[routes] > 0).any(axis=0)
        place = np.cumsum(kept) - 1
        return replace(
            self,
            consumption=self.consumption[routes][:, ports],
            ports=self.ports[ports],
            routes=self.routes[routes],
            flows=self.flows[kept],
            route_flow=place[self.route_flow[routes]],
            per_flow=self.per_flow[routes],
            always=self.always[ports],
        )

    def spread_routes(self, reduced: FloatArray) -> FloatArray:
        """Values per route class, shape (R', ...), to values per route of the record, shape (R, ...)."""
        return np.asarray(reduced[self.classes.route])

    def spread_flows(self, reduced: FloatArray) -> FloatArray:
        """Values per flow class, shape (F', ...), to values per flow of the record, shape (F, ...)."""
        return np.asarray(reduced[self.classes.flow])

    def spread_prices(self, reduced: FloatArray) -> FloatArray:
        """Prices per port class, shape (P',), to prices per port, shape (P,): a class's price is its members' sum."""
        size = np.bincount(self.classes.port, minlength=1)
        of_class = np.zeros(len(size))
        of_class[self.classes.port[self.ports]] = reduced
        return np.asarray((of_class / np.maximum(size, 1))[self.classes.port])


def network(data: AllocationData, classes: Classes) -> Network:
    """The network of classes; ports without KV are left out unless critical traffic alone overfills them."""
    ports, routes, flows = (first_of(classes.port), first_of(classes.route), first_of(classes.flow))
    summed = np.zeros((len(routes), len(data.ports)))
    np.add.at(summed, classes.route, data.consumption)
    overfull = _overfull(data)
    used = (summed > 0).any(axis=0) | overfull
    ports = ports[used[ports]]
    of_flow = np.zeros((len(routes), len(data.flows)))
    np.add.at(of_flow, (classes.route, data.route_flow), 1.0)
    place = np.zeros(len(data.flows), dtype=np.int64)
    place[flows] = np.arange(len(flows))
    return Network(
        classes=classes,
        consumption=summed[:, ports],
        ports=ports,
        routes=routes,
        flows=flows,
        route_flow=place[data.route_flow[routes]],
        per_flow=of_flow[np.arange(len(routes)), data.route_flow[routes]],
        always=overfull[ports],
    )


def _overfull(data: AllocationData) -> NDArray[np.bool_]:
    """Ports on which decode lanes and a phase ask for more than there is, without any KV, shape (P,)."""
    full = np.zeros(len(data.ports), dtype=bool)
    if data.decode_lanes:
        steady = data.decode_rate.sum(axis=0)
        full |= steady > data.idle_usable
        for rate, usable in zip(data.critical_rate, data.lane_usable, strict=True):
            full |= (rate + steady > usable).any(axis=0)
    return full


def first_of(classes: IntArray) -> IntArray:
    """The first member of each class, in order of class."""
    return np.unique(classes, return_index=True)[1].astype(np.int64)


def port_rows(
    consumption: FloatArray, entry_route: IntArray, entry_slot: IntArray, always: NDArray[np.bool_] | None = None
) -> tuple[Any, IntArray]:
    """The sparse matrix of KV bytes per port and slot, and which (slot, port) each row is.

    ``consumption`` (R, P) [-]; entries are the columns: route and slot of each variable. Returns a CSR matrix of shape
    (rows, entries) and an array (rows, 2) of (slot, port); combinations that no entry can use have no row, unless
    ``always`` (S, P) says so.
    """
    import scipy.sparse as sp

    count_ports = consumption.shape[1]
    crossing, ports = np.nonzero(consumption)
    weight = consumption[crossing, ports]
    first = np.searchsorted(crossing, np.arange(consumption.shape[0] + 1))
    length = np.diff(first)[entry_route]
    column = np.repeat(np.arange(len(entry_route)), length)
    within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    place = first[entry_route][column] + within
    key = entry_slot[column] * count_ports + ports[place]
    extra = np.zeros(0, dtype=np.int64) if always is None else np.flatnonzero(always)
    kept, row = np.unique(np.concatenate([key, extra]), return_inverse=True)
    row = row.reshape(-1)[: len(key)]
    matrix = sp.csr_array((weight[place], (row, column)), shape=(len(kept), len(entry_route)))
    return matrix, np.stack([kept // count_ports, kept % count_ports], axis=1)
