"""Program E of several requests: for each one, the phase or the part of the tail by which its sends are over.

What a user waits for is the last byte, and that is not convex in what is sent when; once it is fixed where the last
byte leaves, it is linear. So a course is fixed, and program E finds the best schedule that keeps to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pdmodel.allocation.data import AllocationData, RequestData
from pdmodel.allocation.schedule import Schedule
from pdmodel.timeline.phases import FloatArray, Lane, Phase, PhaseKind
from pdmodel.transfer.flows import Flow, FlowKind


@dataclass(frozen=True, slots=True)
class Course:
    r"""Where the requests of the one lane of a record are done: arrays of places, shape (Q,).

    Place k < n is the wait before phase k, n + j is part j of the tail. ``done``: the sends of a request are over when
    that place ends, so it costs

    .. math:: \lambda_r \Big( \sum_{i = last_r + 1}^{done_r - 1} T_i + \sum_{k = last_r + 1}^{done_r} W_k \Big)

    beside what delays its prefill. ``begun``: nothing of it moves before that place, as it has not arrived.
    """

    done: tuple[int, ...]
    begun: tuple[int, ...]

    def extended(self, data: AllocationData) -> AllocationData:
        """The record with a phase of 0 s between the parts of the tail."""
        (lane,) = data.lanes
        last = lane.phases[-1]
        more = max(0, *self.done) - len(lane.phases)
        if more <= 0:
            return data
        marks = [
            Phase(f"{last.id}:{j}", PhaseKind.COMPUTE, 0.0, request=last.request, not_before_s=last.not_before_s)
            for j in range(more)
        ]
        count = len(lane.phases)
        flows = tuple(
            replace(flow, due=tuple((k + more if k >= count else k, size) for k, size in flow.due))
            for flow in data.flows
        )
        price = (np.concatenate([data.phase_price_per_s[0], np.zeros(more)]),)
        lanes = (Lane(lane.name, (*lane.phases, *marks), lane.gpus),)
        return replace(data, lanes=lanes, flows=flows, phase_price_per_s=price)

    def applied(self, extended: AllocationData) -> AllocationData:
        """An extended record whose sends are due where they are to be over, at the prices of what passes until then."""
        place = {request.name: q for q, request in enumerate(extended.requests)}
        price = extended.phase_price_per_s[0] + self._waiting(extended, waits=False)
        last = len(extended.lanes[0].phases)
        flows = tuple(self._flow(flow, place.get(flow.request, -1), last) for flow in extended.flows)
        return replace(extended, flows=flows, phase_price_per_s=(price,))

    def wait_price_per_s(self, extended: AllocationData) -> FloatArray:
        """Price of the wait before each phase, shape (n,) [GPU·s per s]."""
        return extended.phase_price_per_s[0] + self._waiting(extended, waits=True)

    def sure_cost(self, extended: AllocationData) -> float:
        """What the phases between the end of each prefill and ``done`` cost by their own time [GPU·s]."""
        return float(self._waiting(extended, waits=False) @ extended.duration_s[0])

    def _waiting(self, extended: AllocationData, *, waits: bool) -> FloatArray:
        """Lambda of the requests that are computed and not done, per phase or the wait before it, shape (n,)."""
        price = np.zeros(len(extended.lanes[0].phases))
        for request, done in zip(extended.requests, self.done, strict=True):
            if sends(extended, request):
                price[request.last_phase + 1 : done + waits] += request.price_per_s
        return price

    def _flow(self, flow: Flow, request: int, last: int) -> Flow:
        if request < 0:
            return flow
        begun, done = self.begun[request], self.done[request]
        if any(k < begun for k, _ in flow.release):
            flow = replace(flow, release=tuple((max(k, begun), size) for k, size in flow.release))
        if flow.kind is FlowKind.SEND and done < last:
            return replace(flow, kind=FlowKind.LOAD, due=((done, flow.volume_bytes),))
        return flow


def sends(data: AllocationData, request: RequestData) -> bool:
    """Whether a request has anything to send."""
    lane = data.lanes[request.lane].name
    return any(
        flow.kind is FlowKind.SEND and flow.lane == lane and flow.request == request.name and flow.volume_bytes > 0
        for flow in data.flows
    )


def shortest_first(data: AllocationData, requests: Sequence[int]) -> list[int]:
    r"""Requests in order of price per bottleneck time, the dearest first; of equals the first.

    .. math:: \lambda_r / \max_e \sum_{f \in r} V_f m_{p(f),e} / \hat C_e

    p(f) is the route of f with the least bottleneck time. On one port this order has the least sum of priced ends.
    Source: W. E. Smith, "Various optimizers for single-stage production", Naval Research Logistics 3 (1956).
    """
    per_byte = data.consumption / data.idle_usable
    worst = per_byte.max(axis=1, initial=0.0)
    took = np.zeros((len(data.requests), len(data.ports)))
    place = {(data.lanes[request.lane].name, request.name): q for q, request in enumerate(data.requests)}
    for f, flow in enumerate(data.flows):
        if flow.kind is FlowKind.SEND and (flow.lane, flow.request) in place:
            of_flow = np.flatnonzero(data.route_flow == f)
            best = of_flow[np.argmin(worst[of_flow])]
            took[place[flow.lane, flow.request]] += flow.volume_bytes * per_byte[best]
    time = took.max(axis=1, initial=0.0)
    return sorted(requests, key=lambda q: (-data.requests[q].price_per_s / time[q] if time[q] > 0 else -np.inf, q))


def folded(schedule: Schedule, length_s: FloatArray, count: int) -> Schedule:
    """A schedule of an extended lane as one of a lane of ``count`` phases: all parts of the tail are its tail.

    ``length_s`` are those of the extended lane's slots [s].
    """
    tail = 2 * count
    begins = np.concatenate([[0.0], np.cumsum(length_s[tail:])])
    pieces = tuple(
        replace(piece, slot=tail, offset_s=float(begins[piece.slot - tail]) + piece.offset_s)
        if piece.slot > tail
        else piece
        for piece in schedule.pieces
    )
    return Schedule(pieces, (schedule.phase_hold_s[0][:count],), (schedule.wait_hold_s[0][:count],))
