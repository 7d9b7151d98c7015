"""The one record that programs, fast paths and replay all read: SI units, uncollapsed, frozen arrays.

Everything is derived here once: usable capacity, residual, consumption per route, prices per phase.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, Route
from pdmodel.timeline.capacity import usable_capacity
from pdmodel.timeline.phases import (
    Clock,
    DecodeLane,
    FloatArray,
    IntArray,
    Lane,
    Timeline,
)
from pdmodel.transfer.flows import Flow, FlowKind, MemoryPool, Transfers
from pdmodel.workload.prices import Prices

__all__ = ["AllocationData", "Prices", "RequestData", "usable_capacity"]

#: Breakpoints closer than this share of the clock are one.
CUT = 1e-12


@dataclass(frozen=True, slots=True)
class RequestData:
    """One request on its lane: phases ``first_phase`` to ``last_phase`` (inclusive) and lambda [GPU·s per s]."""

    name: str
    lane: int
    first_phase: int
    last_phase: int
    price_per_s: float


@dataclass(frozen=True)
class AllocationData:
    """The record. Ports are in order of ``ports``; lane, flow and request arrays follow their tuples.

    ``lane_price_per_s`` is pi per lane; ``phase_price_per_s[l]`` is pi_i = pi + sum of lambda over the requests of the
    lane whose prefill ends at or after phase i. ``flow_price_per_s`` and ``flow_quantum_bytes`` (nan: none) are what
    program R charges lateness with, by ``late_group`` (flows of one group share one lateness). ``tail_s`` is the tail's
    interval lengths of program R, or None (R computes it). ``memory``: the pools that KV fills.
    """

    ports: tuple[Port, ...]
    lanes: tuple[Lane, ...]
    decode_lanes: tuple[DecodeLane, ...]
    clock: Clock
    flows: tuple[Flow, ...]
    requests: tuple[RequestData, ...]
    lane_price_per_s: FloatArray
    phase_price_per_s: tuple[FloatArray, ...]
    decode_price_per_s: FloatArray
    flow_price_per_s: FloatArray
    flow_quantum_bytes: FloatArray
    late_group: tuple[str, ...]
    tail_s: FloatArray | None = None
    memory: tuple[MemoryPool, ...] = ()

    # ---- building -------------------------------------------------------------------------------------------------
    @classmethod
    def build(cls, timeline: Timeline, transfers: Transfers | Sequence[Flow], prices: Prices) -> Self:
        """The record of a timeline, its transfers (or flows alone) and what a second costs."""
        if not isinstance(transfers, Transfers):
            transfers = Transfers(tuple(transfers))
        flows = transfers.flows
        requests = _requests(timeline.lanes, prices.requests)
        lane_price = np.array([prices.lanes[lane.name] for lane in timeline.lanes], dtype=float)
        phase_price = tuple(
            _phase_prices(len(lane.phases), lane_price[k], [r for r in requests if r.lane == k])
            for k, lane in enumerate(timeline.lanes)
        )
        lane_index = {lane.name: k for k, lane in enumerate(timeline.lanes)}
        flow_price, group = [], []
        for flow in flows:
            if flow.kind is FlowKind.LOAD:
                first_gate = min(k for k, _ in flow.due)
                flow_price.append(float(phase_price[lane_index[flow.lane]][first_gate]))
                group.append(f"loads:{flow.lane}")
            elif flow.kind is FlowKind.WRITEBACK:
                flow_price.append(0.0)
                group.append(f"writebacks:{flow.lane}")
            else:
                flow_price.append(prices.requests[flow.request])
                group.append(f"sends:{flow.request}")
        return cls(
            ports=(*timeline.ports, *transfers.ports),
            lanes=timeline.lanes,
            decode_lanes=timeline.decode_lanes,
            clock=_cut(timeline.clock, _early_arrivals(timeline.lanes, transfers)),
            flows=tuple(flows),
            requests=requests,
            lane_price_per_s=lane_price,
            phase_price_per_s=phase_price,
            decode_price_per_s=np.array(
                [prices.decode_lanes[lane.name] for lane in timeline.decode_lanes], dtype=float
            ),
            flow_price_per_s=np.array(flow_price, dtype=float),
            flow_quantum_bytes=np.full(len(flows), np.nan),
            late_group=tuple(group),
            memory=transfers.memory,
        )

    @classmethod
    def from_dict(cls, case: Mapping[str, Any]) -> Self:
        """An abstract case: ports, one lane (``phases`` + ``lane_price``) or several (``lanes``), flows, tail.

        ``ports`` {name: {capacity, guard}}; ``phases`` [{duration, bytes: {port: bytes}}] in order; ``lanes``
        [{price, phases: [{start, end, duration, bytes}]}]; ``flows`` [{name, kind, routes: [{port: multiplicity}],
        release: [[k, bytes]], due: [[k, bytes]], price, quantum, lane?, lease?}], a write-back without due and price;
        ``memory`` {name: {capacity, base?, appears: [[k, bytes, lane?]], moved: {flow: weight}}}; ``tail`` [interval
        lengths]. Any consistent units. All sends of a case are one request whose price is the sum; ``price`` of a lane
        is its pi_i. Further keys are notes. Raises `InputError` with the path of what is missing or out of range.
        """
        from pdmodel.allocation.abstract import AbstractCase

        parsed = AbstractCase.parse(case)
        prices = [lane.price for lane in parsed.all_lanes]
        lanes, flows = parsed.timeline_lanes(), parsed.all_flows()
        waiting = [
            sum(raw.price for raw in parsed.flows if raw.lane == k and raw.kind is FlowKind.SEND)
            for k in range(len(lanes))
        ]
        quantum = [np.nan if raw.quantum is None else raw.quantum for raw in parsed.flows]
        return cls(
            ports=parsed.all_ports(),
            lanes=lanes,
            decode_lanes=(),
            clock=parsed.clock(),
            flows=flows,
            requests=tuple(
                RequestData(lane.name, k, 0, len(lane.phases) - 1, waiting[k]) for k, lane in enumerate(lanes)
            ),
            lane_price_per_s=np.array(prices, dtype=float) - np.array(waiting, dtype=float),
            phase_price_per_s=tuple(
                np.full(len(lane.phases), price) for lane, price in zip(lanes, prices, strict=True)
            ),
            decode_price_per_s=np.zeros(0),
            flow_price_per_s=np.array([raw.price for raw in parsed.flows], dtype=float),
            flow_quantum_bytes=np.array(quantum, dtype=float),
            late_group=tuple(flow.name for flow in flows),
            tail_s=None if parsed.tail is None else np.array(parsed.tail, dtype=float),
            memory=parsed.all_pools(),
        )

    def only_lane(self, lane: int) -> AllocationData:
        """One lane alone on the box, its flows and requests with it, no guard: a relaxation of the whole record."""
        name = self.lanes[lane].name
        mine = [f for f, flow in enumerate(self.flows) if flow.lane == name]
        return replace(
            self,
            ports=tuple(replace(port, guard_bytes_per_s=0.0) for port in self.ports),
            lanes=(self.lanes[lane],),
            decode_lanes=(),
            clock=Clock(self.clock.edges_s, self.clock.phase[[lane]], self.clock.speed[[lane]]),
            flows=tuple(self.flows[f] for f in mine),
            requests=tuple(replace(request, lane=0) for request in self.requests if request.lane == lane),
            lane_price_per_s=self.lane_price_per_s[[lane]],
            phase_price_per_s=(self.phase_price_per_s[lane],),
            decode_price_per_s=np.zeros(0),
            flow_price_per_s=self.flow_price_per_s[mine],
            flow_quantum_bytes=self.flow_quantum_bytes[mine],
            late_group=tuple(self.late_group[f] for f in mine),
            memory=tuple(_of_lane(pool, name, {self.flows[f].name for f in mine}) for pool in self.memory),
        )

    # ---- index and arrays ------------------------------------------------------------------------------------------
    @cached_property
    def port_index(self) -> dict[str, int]:
        """Port name to its place in ``ports``."""
        return {port.name: k for k, port in enumerate(self.ports)}

    @cached_property
    def lane_index(self) -> dict[str, int]:
        """Lane name to its place in ``lanes``."""
        return {lane.name: k for k, lane in enumerate(self.lanes)}

    @cached_property
    def capacity(self) -> FloatArray:
        """C, shape (P,) [byte/s]."""
        return np.array([port.capacity_bytes_per_s for port in self.ports], dtype=float)

    @cached_property
    def guard(self) -> FloatArray:
        """Epsilon, shape (P,) [byte/s]."""
        return np.array([port.guard_bytes_per_s for port in self.ports], dtype=float)

    @cached_property
    def duration_s(self) -> tuple[FloatArray, ...]:
        """Tau per lane, shapes (n_l,) [s]."""
        return tuple(np.array([phase.duration_s for phase in lane.phases], dtype=float) for lane in self.lanes)

    @cached_property
    def critical_bytes(self) -> tuple[FloatArray, ...]:
        """B per lane, shapes (n_l, P) [bytes]."""
        out = []
        for lane in self.lanes:
            table = np.zeros((len(lane.phases), len(self.ports)))
            for i, phase in enumerate(lane.phases):
                for name, size_bytes in phase.wire_bytes.items():
                    table[i, self.port_index[name]] = size_bytes
            out.append(table)
        return tuple(out)

    @cached_property
    def critical_rate(self) -> tuple[FloatArray, ...]:
        """A = b/tau at full speed per lane, shapes (n_l, P) [byte/s]."""
        return tuple(
            np.divide(b, tau[:, None], out=np.zeros_like(b), where=tau[:, None] > 0)
            for b, tau in zip(self.critical_bytes, self.duration_s, strict=True)
        )

    @cached_property
    def decode_rate(self) -> FloatArray:
        """Mean critical demand of each decode lane, shape (D, P) [byte/s]."""
        table = np.zeros((len(self.decode_lanes), len(self.ports)))
        for d, lane in enumerate(self.decode_lanes):
            for name, rate in lane.mean_bytes_per_s.items():
                table[d, self.port_index[name]] = rate
        return table

    @cached_property
    def lane_usable(self) -> tuple[FloatArray, ...]:
        """Usable capacity while lane l runs phase i, decode lanes beside it, no other: shapes (n_l, P) [byte/s]."""
        steady = self.decode_rate.sum(axis=0)
        return tuple(usable_capacity(self.capacity, self.guard, rate + steady) for rate in self.critical_rate)

    @cached_property
    def idle_usable(self) -> FloatArray:
        """Usable capacity while no lane runs (decode lanes only): waits and tail, shape (P,) [byte/s]."""
        return usable_capacity(self.capacity, self.guard, self.decode_rate.sum(axis=0))

    @cached_property
    def arrival_s(self) -> dict[tuple[str, str], float]:
        """When each request, named by its lane and itself, arrives [s]."""
        found: dict[tuple[str, str], float] = {}
        for lane in self.lanes:
            for phase in lane.phases:
                found.setdefault((lane.name, phase.request), phase.not_before_s)
        return found

    # ---- the fixed clock -------------------------------------------------------------------------------------------
    @cached_property
    def interval_s(self) -> FloatArray:
        """Lengths of the clock's intervals, shape (J,) [s]."""
        return np.diff(self.clock.edges_s)

    @cached_property
    def clock_full_rate(self) -> FloatArray:
        """Critical demand at full speed of what runs in interval j, decode lanes included, shape (J, P) [byte/s]."""
        return self._on_clock(achieved=False)

    @cached_property
    def clock_rate(self) -> FloatArray:
        """Critical bandwidth B achieved in interval j without KV, decode lanes included, shape (J, P) [byte/s]."""
        return self._on_clock(achieved=True)

    @cached_property
    def clock_usable(self) -> FloatArray:
        """Usable capacity in interval j, shape (J, P) [byte/s]."""
        return usable_capacity(self.capacity, self.guard, self.clock_full_rate)

    @cached_property
    def clock_residual(self) -> FloatArray:
        """Residual S in interval j, shape (J, P) [byte/s]."""
        return np.maximum(self.clock_usable - self.clock_rate, 0.0)

    def _on_clock(self, *, achieved: bool) -> FloatArray:
        total = np.tile(self.decode_rate.sum(axis=0), (len(self.interval_s), 1))
        for rate, phase, speed in zip(self.critical_rate, self.clock.phase, self.clock.speed, strict=True):
            running = phase >= 0
            total[running] += rate[phase[running]] * (speed[running, None] if achieved else 1.0)
        return total

    # ---- flows -----------------------------------------------------------------------------------------------------
    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """All routes of all flows, in order: the columns of every program."""
        return tuple(route for flow in self.flows for route in flow.routes)

    @cached_property
    def route_flow(self) -> IntArray:
        """The flow of each route, shape (R,)."""
        return np.array([f for f, flow in enumerate(self.flows) for _ in flow.routes], dtype=np.int64)

    @cached_property
    def consumption(self) -> FloatArray:
        """m: bytes on a port per byte moved on a route, shape (R, P) [-]."""
        table = np.zeros((len(self.routes), len(self.ports)))
        for r, route in enumerate(self.routes):
            for name, multiplicity in route.ports.items():
                table[r, self.port_index[name]] += multiplicity
        return table

    @cached_property
    def volume_bytes(self) -> FloatArray:
        """Bytes of each flow, shape (F,)."""
        return np.array([flow.volume_bytes for flow in self.flows], dtype=float)

    @cached_property
    def flow_lane(self) -> IntArray:
        """The lane of each flow, shape (F,)."""
        return np.array([self.lane_index[flow.lane] for flow in self.flows], dtype=np.int64)

    # ---- memory ----------------------------------------------------------------------------------------------------
    @cached_property
    def pool_weight(self) -> FloatArray:
        """What one byte moved of a flow adds to a pool, shape (Q, F) [-]; `InputError` for a flow that is not there."""
        place = {flow.name: f for f, flow in enumerate(self.flows)}
        table = np.zeros((len(self.memory), len(self.flows)))
        for q, pool in enumerate(self.memory):
            for name, weight in pool.moved.items():
                if name not in place:
                    raise InputError(f"memory pool {pool.name!r}: there is no flow {name!r}")
                table[q, place[name]] = weight
        return table

    @cached_property
    def tight_pools(self) -> IntArray:
        """Places of the pools that could overflow: all that appears and flows in, and nothing out, is too much."""
        full = [pool.base_bytes + sum(max(size_bytes, 0.0) for *_, size_bytes in pool.appears) for pool in self.memory]
        most = np.array(full) + np.maximum(self.pool_weight, 0.0) @ self.volume_bytes
        return np.flatnonzero(most > np.array([pool.capacity_bytes for pool in self.memory]))


def _early_arrivals(lanes: Sequence[Lane], transfers: Transfers) -> list[float]:
    """Arrivals of requests that have bytes released, or memory taken, at a phase before their own first one [s]."""
    first: dict[tuple[str, str], tuple[int, float]] = {}
    for lane in lanes:
        for i, phase in enumerate(lane.phases):
            first.setdefault((lane.name, phase.request), (i, phase.not_before_s))
    steps = [(flow.lane, flow.request, k) for flow in transfers.flows for k, _ in flow.release]
    steps += [(lane_name, request, k) for pool in transfers.memory for lane_name, k, request, _ in pool.appears]
    found = [(*first.get((lane_name, request), (0, 0.0)), k) for lane_name, request, k in steps]
    return sorted({arrival for i, arrival, k in found if k < i})


def _cut(clock: Clock, times: Sequence[float]) -> Clock:
    """The same clock with more breakpoints."""
    edges = clock.edges_s
    slack = CUT * float(edges[-1] - edges[0])
    new = [t for t in times if edges[0] < t < edges[-1] and np.abs(edges - t).min() > slack]
    if not new:
        return clock
    cut = np.sort(np.concatenate([edges, new]))
    of = np.searchsorted(edges, cut[:-1], side="right") - 1
    return Clock(cut, clock.phase[:, of], clock.speed[:, of])


def _of_lane(pool: MemoryPool, lane: str, flows: Collection[str]) -> MemoryPool:
    """What one lane and its flows have in a pool."""
    moved = {name: weight for name, weight in pool.moved.items() if name in flows}
    return replace(pool, appears=tuple(one for one in pool.appears if one[0] == lane), moved=moved)


def _requests(lanes: Sequence[Lane], prices: Mapping[str, float]) -> tuple[RequestData, ...]:
    found = []
    for k, lane in enumerate(lanes):
        span: dict[str, list[int]] = {}
        for i, phase in enumerate(lane.phases):
            span.setdefault(phase.request, [i, i])[1] = i
        found += [RequestData(name, k, first, last, prices[name]) for name, (first, last) in span.items()]
    return tuple(found)


def _phase_prices(count: int, lane_price: float, requests: Sequence[RequestData]) -> FloatArray:
    price = np.full(count, lane_price)
    for request in requests:
        price[: request.last_phase + 1] += request.price_per_s
    return price
