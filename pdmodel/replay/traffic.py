"""KV as queues: what simple policies serve."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Hashable
from typing import Protocol

from pdmodel.replay.activities import NO_GATE, Piece, Stage
from pdmodel.replay.policies import QueuePolicy
from pdmodel.replay.rates import Demand, Rates, Stream
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind

NOTHING = -1


class Traffic(Protocol):
    """What the engine asks of KV, whatever the policy."""

    events: int
    activities: int
    sent: bool
    """Whether a send was finished since the last `advance` began."""
    wanted: int
    """Sends and loads that are not finished: write-backs alone keep nobody waiting."""
    finish_s: list[float]
    route_bytes: list[float]

    def enter(self, lane: int, slot: int, now: float) -> None:
        """A lane enters a slot (see `Schedule`): releases, planned rates."""

    def gate_open(self, lane: int, phase: int) -> bool:
        """Whether the loads that gate the phase are there."""

    def key(self) -> Hashable:
        """What the rates depend on."""

    def demand(self) -> Demand:
        """Who is live, for the rates."""

    def next_event(self, rates: Rates, now: float) -> float:
        """Time until the traffic changes by itself [s]."""

    def advance(self, step: float, rates: Rates, now: float) -> None:
        """Move bytes for ``step`` seconds, until ``now``, and settle what is done."""

    def pending(self) -> bool:
        """Whether bytes are still to be moved."""

    def flow_rates(self, rates: Rates, into: FloatArray) -> None:
        """Add the rate of every flow [byte/s] to ``into``, shape (F,)."""

    def holds(self, lane: int, slot: int) -> float:
        """Deliberate pause at the end of a slot [s]."""


class _Parcel:
    """Bytes of one flow in one queue; comparable by order of service."""

    __slots__ = ("crossing", "flow", "gate", "lane", "left", "order", "route", "units")

    def __init__(self, order: tuple[int, int], piece: Piece, route: int, crossing: int, size: float) -> None:
        self.order = order
        self.flow, self.lane, self.gate = piece.flow, piece.lane, piece.gate
        self.route, self.crossing = route, crossing
        self.left, self.units = size, 1

    def __lt__(self, other: _Parcel) -> bool:
        return self.order < other.order


class QueueTraffic:
    """Queues of (source and its queue, destination, crossing), or of one copy engine; each live one is one activity.

    Pieces inside go first in, first out, or earliest due first; consecutive ones of one flow that gate nothing are one
    parcel, as only the last byte matters.
    """

    def __init__(self, stage: Stage, policy: QueuePolicy | None) -> None:
        """``policy`` None: every flow alone, the reference ``bytes_over_bandwidth``."""
        self.stage = stage
        self.policy = policy
        self.edf = policy is not None and policy.earliest_due_first
        self.events = 0
        self.sent = False
        self.finish_s = [math.nan] * len(stage.data.flows)
        self.route_bytes = [0.0] * len(stage.data.routes)
        self.snap_s = stage.snap_s
        self.place = self._places()
        self.activities = max((a for routes in self.place for *_, a, _ in routes), default=-1) + 1
        # In order of submission a queue is a deque; earliest due first, a heap. The head is at 0 in both.
        self.queue: list[list[_Parcel] | deque[_Parcel]] = [[] if self.edf else deque() for _ in range(self.activities)]
        self.head: list[int] = [NOTHING] * self.activities
        self.live: list[int] = []
        self.submitted = 0
        self.is_send = [flow.kind is FlowKind.SEND for flow in stage.data.flows]
        self.flow_left = [0] * len(stage.data.flows)
        self.deferring = policy is not None and policy.writebacks_last
        self.deferred: dict[int, list[Piece]] = {}
        self.gate_left: list[dict[int, int]] = [{} for _ in stage.data.lanes]
        self.release: list[dict[int, list[Piece]]] = [{} for _ in stage.data.lanes]
        self.late: list[tuple[float, int, Piece]] = []
        self._plan_releases()
        unfinished = [f for f, left in enumerate(self.flow_left) if left and not stage.is_writeback[f]]
        self.wanted = len(unfinished)
        self.unfinished_of = Counter(stage.request_of_flow[f] for f in unfinished)

    def _places(self) -> list[list[tuple[int, float, int, int]]]:
        """Per flow: (route, share of the flow, activity, crossing)."""
        stage, number, places, route = self.stage, dict[Hashable, int](), [], 0
        for f, flow in enumerate(stage.data.flows):
            mine = []
            for k, way in enumerate(flow.routes):
                crossing = stage.route_crossing[route]
                key: Hashable = (flow.source, flow.queue, flow.destination, crossing)
                if self.policy is None:
                    key = (f, k)
                elif way.fifo and way.device:
                    key = way.device
                if flow.split[k] > 0:
                    mine.append((route, flow.split[k], number.setdefault(key, len(number)), crossing))
                route += 1
            places.append(mine)
        return places

    def _plan_releases(self) -> None:
        after = self.policy is not None and self.policy.after_prefill
        for piece in self.stage.pieces:
            units = len(self.place[piece.flow])
            self.flow_left[piece.flow] += units
            if piece.gate != NO_GATE:
                gates = self.gate_left[piece.lane]
                gates[piece.gate] = gates.get(piece.gate, 0) + units
            when = piece.release
            if after and self.is_send[piece.flow]:
                request = self.stage.data.requests[self.stage.request_of_flow[piece.flow]]
                when = max(when, request.last_phase + 1)
            self.release[piece.lane].setdefault(when, []).append(piece)

    def enter(self, lane: int, slot: int, now: float) -> None:
        """Release what the end of the phase before the slot releases."""
        if slot % 2 == 0:
            for piece in self.release[lane].pop(slot // 2, ()):
                if piece.arrival_s > now + self.snap_s:
                    heapq.heappush(self.late, (piece.arrival_s, self.submitted, piece))
                    self.submitted += 1
                else:
                    self._submit(piece)

    def _submit(self, piece: Piece) -> None:
        if self.deferring and self._defer(piece):
            return
        self.events += 1
        for route, part, a, crossing in self.place[piece.flow]:
            self.submitted += 1
            size = piece.size_bytes * part
            queue = self.queue[a]
            last = queue[-1] if queue else None
            if (
                last is not None
                and last.flow == piece.flow
                and last.gate == piece.gate == NO_GATE
                and last.route == route
                and (not self.edf or len(queue) == 1)
            ):
                last.left += size
                last.units += 1
                continue
            parcel = _Parcel((piece.due_rank if self.edf else 0, self.submitted), piece, route, crossing, size)
            if isinstance(queue, deque):
                queue.append(parcel)
            else:
                heapq.heappush(queue, parcel)
            if queue[0] is parcel:
                self._lead(a)

    def _defer(self, piece: Piece) -> bool:
        """Put a write-back aside while a send or load of its request is unfinished."""
        request = self.stage.request_of_flow[piece.flow]
        if not self.stage.is_writeback[piece.flow] or request < 0 or not self.unfinished_of[request]:
            return False
        self.deferred.setdefault(request, []).append(piece)
        return True

    def _lead(self, a: int) -> None:
        """The head of a queue has changed."""
        if not self.queue[a]:
            self.head[a] = NOTHING
            self.live.remove(a)
            return
        if self.head[a] == NOTHING:
            self.live.append(a)
        parcel = self.queue[a][0]
        self.head[a] = parcel.crossing + len(self.stage.crossings) * parcel.order[0]

    def gate_open(self, lane: int, phase: int) -> bool:
        """Pieces of earlier gates are there: their phases have run."""
        return not self.gate_left[lane].get(phase)

    def key(self) -> Hashable:
        """The heads of the queues."""
        return tuple(self.head)

    def demand(self) -> Demand:
        """Live queues in tiers."""
        streams = [Stream(a, self.queue[a][0].crossing, math.inf) for a in sorted(self.live)]
        if self.policy is None:
            return Demand(alone=streams)
        if not self.policy.critical_first:
            return Demand(beside=streams)
        if not self.edf:
            return Demand(after=[streams] if streams else [])
        tiers: dict[int, list[Stream]] = {}
        for stream in streams:
            tiers.setdefault(self.queue[stream.activity][0].order[0], []).append(stream)
        return Demand(after=[tiers[rank] for rank in sorted(tiers)])

    def next_event(self, rates: Rates, now: float) -> float:
        """Until the first head is through, or the next request arrives."""
        first = self.late[0][0] - now if self.late else math.inf
        kv = rates.kv
        for a in self.live:
            if kv[a] > 0:
                took = self.queue[a][0].left / kv[a]
                first = min(took, first)
        return first

    def advance(self, step: float, rates: Rates, now: float) -> None:
        """Move bytes; a head that is through within rounding is through."""
        self.sent = False
        kv, snap = rates.kv, self.snap_s
        through = []
        for a in self.live:
            rate = kv[a]
            if rate > 0:
                parcel = self.queue[a][0]
                moved = rate * step
                left = parcel.left - moved
                if left <= rate * snap:
                    self.route_bytes[parcel.route] += parcel.left
                    through.append(a)
                else:
                    self.route_bytes[parcel.route] += moved
                    parcel.left = left
        for a in through:
            self._through(a, now)
        while self.late and self.late[0][0] <= now + snap:
            self._submit(heapq.heappop(self.late)[2])

    def _through(self, a: int, now: float) -> None:
        queue = self.queue[a]
        parcel = queue.popleft() if isinstance(queue, deque) else heapq.heappop(queue)
        self.events += 1
        if parcel.gate != NO_GATE:
            self.gate_left[parcel.lane][parcel.gate] -= parcel.units
        self.flow_left[parcel.flow] -= parcel.units
        if not self.flow_left[parcel.flow]:
            self._finished(parcel.flow, now)
        self._lead(a)

    def _finished(self, flow: int, now: float) -> None:
        self.finish_s[flow] = now
        if self.stage.is_writeback[flow]:
            return
        self.wanted -= 1
        self.sent = self.sent or self.is_send[flow]
        request = self.stage.request_of_flow[flow]
        self.unfinished_of[request] -= 1
        if not self.unfinished_of[request]:
            for piece in self.deferred.pop(request, ()):
                self._submit(piece)

    def pending(self) -> bool:
        """Queues, or pieces yet to be released."""
        return bool(self.live or self.late or self.deferred)

    def flow_rates(self, rates: Rates, into: FloatArray) -> None:
        """Each live queue moves bytes of its head's flow."""
        for a in self.live:
            into[self.queue[a][0].flow] += rates.kv[a]

    def holds(self, lane: int, slot: int) -> float:
        """Simple policies never pause."""
        return 0.0


class NoTraffic(QueueTraffic):
    """No KV at all."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, None)
        self.wanted = 0
        self.release = [{} for _ in stage.data.lanes]
        self.gate_left = [{} for _ in stage.data.lanes]
