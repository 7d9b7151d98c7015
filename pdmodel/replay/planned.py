"""KV under a schedule: planned rates by phase, and a backlog of what did not leave as planned."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from pdmodel.allocation.schedule import Piece as Stretch
from pdmodel.allocation.schedule import Schedule
from pdmodel.replay.activities import NO_GATE, Piece, Stage
from pdmodel.replay.rates import Demand, Rates, Stream
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind

IDLE = -1
EMPTY = 1e-3
"""Share of a flow's scrap below which nothing of it is here to be moved."""
SCRAP = 1e-9
"""Share of a flow's bytes below which what a program left over is rounding: it counts as moved."""


@dataclass(slots=True)
class _Account:
    """The bytes of one flow: bytes are fungible, a gate is met by how many there are."""

    volume: float
    scrap: float
    split: tuple[float, ...]
    routes: range
    send: bool
    released: float = 0.0
    moved: float = 0.0
    done: bool = False
    due: list[tuple[float, int]] = field(default_factory=list)
    """(cumulative bytes, rank of their due), in order; ``next`` is the first that is not moved."""
    next: int = 0
    gate: dict[int, float] = field(default_factory=dict)
    """Cumulative bytes that must be there before a phase starts."""
    steps: int = 0

    @property
    def rest(self) -> float:
        return self.released - self.moved


@dataclass(slots=True)
class _Desk:
    """The schedule of one lane, and where it is in the current slot.

    ``order`` are the slots that have stretches; ``planned[k]`` is what each flow is to move from slot ``order[k]`` on.
    """

    slots: dict[int, list[Stretch]]
    order: list[int]
    planned: FloatArray
    slot: int = -1
    start_s: float = 0.0
    stretches: list[Stretch] = field(default_factory=list)
    place: int = 0
    running: bool = False
    name: int = IDLE
    left: dict[int, float] = field(default_factory=dict)
    edge_s: float = math.inf
    """When the current stretch ends, or the next one begins."""

    def planned_from(self, slot: int, flow: int) -> float:
        """Bytes of a flow planned from a slot on."""
        place = bisect.bisect_left(self.order, slot)
        return float(self.planned[place, flow]) if place < len(self.order) else 0.0

    @property
    def begun(self) -> bool:
        """Whether a stretch of this slot runs or has ended."""
        return self.running or self.place > 0

    def find_edge(self) -> None:
        """To be called whenever ``place`` or ``running`` changes."""
        self.edge_s = math.inf
        if self.place < len(self.stretches):
            stretch = self.stretches[self.place]
            self.edge_s = self.start_s + stretch.offset_s + (stretch.duration_s if self.running else 0.0)


@dataclass(frozen=True, slots=True)
class _View:
    """What moves at given rates: (route, flow, rate) by plan and from the backlog, and (flow, rate)."""

    planned: tuple[tuple[int, int, float], ...]
    late: tuple[tuple[int, int, float], ...]
    flows: tuple[tuple[int, float], ...]


class PlannedTraffic:
    """Every route is two activities: what the plan moves on it now, and its backlog."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self.stage = stage
        self.schedule = schedule
        data = stage.data
        self.events = 0
        self.sent = False
        self.routes = len(data.routes)
        self.activities = 2 * self.routes
        self.finish_s = [math.nan] * len(data.flows)
        self.route_bytes = [0.0] * self.routes
        self.flow_of = [int(f) for f in data.route_flow]
        self.snap_s = stage.snap_s
        self.accounts = self._accounts()
        self.backlog = [0.0] * self.routes
        self.waiting: dict[int, list[tuple[int, float]]] = {}
        self.gates: list[dict[int, list[tuple[int, float]]]] = [{} for _ in data.lanes]
        for f, account in enumerate(self.accounts):
            for phase, need in account.gate.items():
                self.gates[int(data.flow_lane[f])].setdefault(phase, []).append((f, need))
        self.release: list[dict[int, list[Piece]]] = [{} for _ in data.lanes]
        for piece in stage.pieces:
            self.release[piece.lane].setdefault(piece.release, []).append(piece)
        self.late: list[tuple[float, int, Piece]] = []
        self.postponed = 0
        self.empty = [True] * len(data.flows)
        self.behind: list[int] = []
        self.changed: list[int] = []
        self.views: dict[int, _View] = {}
        self.name_of, self.rates_of = _rate_names(schedule)
        self.desks = [self._desk(k) for k in range(len(data.lanes))]
        self.desk_of = [self.desks[int(data.flow_lane[f])] for f in self.flow_of]
        self.held = _waiting_for_room(stage)
        self.wanted = sum(
            bool(account.steps) and not back for account, back in zip(self.accounts, stage.is_writeback, strict=True)
        )

    def _accounts(self) -> list[_Account]:
        data, first, accounts = self.stage.data, 0, []
        for flow in data.flows:
            routes = range(first, first + len(flow.routes))
            first += len(flow.routes)
            volume = flow.volume_bytes
            accounts.append(_Account(volume, SCRAP * volume, flow.split, routes, flow.kind is FlowKind.SEND))
        for piece in sorted(self.stage.pieces, key=lambda one: (one.flow, one.due_rank)):
            account = accounts[piece.flow]
            total = (account.due[-1][0] if account.due else 0.0) + piece.size_bytes
            if account.due and account.due[-1][1] == piece.due_rank:
                account.due.pop()
            account.due.append((total, piece.due_rank))
            account.steps += 1
            if piece.gate != NO_GATE:
                account.gate[piece.gate] = total
        return accounts

    def _desk(self, lane: int) -> _Desk:
        mine = [one for one in self.schedule.pieces if one.lane == lane and one.duration_s > 0]
        mine.sort(key=lambda one: (one.slot, one.offset_s))
        slots: dict[int, list[Stretch]] = {}
        for stretch in mine:
            slots.setdefault(stretch.slot, []).append(stretch)
        sizes = np.zeros((len(slots), len(self.accounts)))
        owner = np.eye(len(self.accounts))[self.flow_of]
        if mine:
            moved = np.array([one.rates for one in mine]) * np.array([one.duration_s for one in mine])[:, None]
            row = np.repeat(np.arange(len(slots)), [len(stretches) for stretches in slots.values()])
            np.add.at(sizes, row, moved @ owner)
        return _Desk(slots, list(slots), np.cumsum(sizes[::-1], axis=0)[::-1])

    # ---- slots -----------------------------------------------------------------------------------------------------
    def enter(self, lane: int, slot: int, now: float) -> None:
        """Close the slot before, release what this one releases, begin its stretches."""
        desk = self.desks[lane]
        self._close(desk)
        for stretch in desk.stretches[desk.place :]:
            self._to_backlog(stretch)
        desk.slot, desk.start_s, desk.place = slot, now, 0
        desk.stretches = desk.slots.get(slot, [])
        desk.find_edge()
        self.waiting.pop(lane, None)
        if slot % 2 == 0:
            for piece in self.release[lane].pop(slot // 2, ()):
                if piece.arrival_s > now + self.snap_s:
                    self.postponed += 1
                    heapq.heappush(self.late, (piece.arrival_s, self.postponed, piece))
                else:
                    self._release(piece)
        self._turn(desk, now)
        self._finish_changed(now)

    def _release(self, piece: Piece) -> None:
        self.events += 1
        account = self.accounts[piece.flow]
        account.steps -= 1
        account.released += piece.size_bytes
        if not account.steps:
            account.released = account.volume
        self._unplanned(piece.flow)

    def _unplanned(self, flow: int) -> None:
        """Bytes that are there and in no stretch to come are late already: to the backlog, by the engine's split."""
        account, desk = self.accounts[flow], self.desks[int(self.stage.data.flow_lane[flow])]
        coming = desk.planned_from(desk.slot + desk.begun, flow)
        if desk.begun:
            left = self._left_in_slot(desk)
            coming += sum(left.get(r, 0.0) for r in account.routes)
        excess = account.rest - coming - sum(self.backlog[r] for r in account.routes)
        if excess > account.scrap:
            self._owe_split(account, excess)
        self.empty[flow] = account.rest <= account.scrap * EMPTY

    def _owe_split(self, account: _Account, size: float) -> None:
        for r, part in zip(account.routes, account.split, strict=True):
            if part > 0:
                self._owe(r, size * part)

    def _owe(self, route: int, size: float) -> None:
        if self.backlog[route] == 0.0:
            bisect.insort(self.behind, route)
        self.backlog[route] += size

    def _settled(self, route: int) -> None:
        self.backlog[route] = 0.0
        self.behind.remove(route)

    def _turn(self, desk: _Desk, now: float) -> None:
        """Begin or end stretches whose time has come."""
        while desk.edge_s <= now + self.snap_s:
            self.events += 1
            if desk.running:
                self._close(desk)
                continue
            stretch = desk.stretches[desk.place]
            desk.running = True
            desk.name = self.name_of[id(stretch)]
            desk.left = {r: rate * stretch.duration_s for r, rate in self.rates_of[desk.name]}
            desk.find_edge()

    def _close(self, desk: _Desk) -> None:
        """End the stretch that runs; what it did not move is late."""
        if desk.running:
            for r, left in desk.left.items():
                self._late(r, left)
            desk.running, desk.name, desk.left = False, IDLE, {}
            desk.place += 1
            desk.find_edge()

    def _to_backlog(self, stretch: Stretch) -> None:
        for r, rate in self.rates_of[self.name_of[id(stretch)]]:
            self._late(r, rate * stretch.duration_s)

    def _late(self, route: int, size: float) -> None:
        flow = self.flow_of[route]
        account = self.accounts[flow]
        if size > account.scrap:
            self._owe(route, size)
        else:
            # Rounding of a program or of the clock: it counts as moved, so that bytes add up.
            size = min(size, account.rest)
            account.moved += size
            self.route_bytes[route] += size
            self.changed.append(flow)

    def holds(self, lane: int, slot: int) -> float:
        """The schedule's pause at the end of a slot."""
        hold = self.schedule.phase_hold_s if slot % 2 else self.schedule.wait_hold_s
        pause = float(hold[lane][slot // 2])
        return pause if pause > self.snap_s else 0.0

    # ---- gates, rates ----------------------------------------------------------------------------------------------
    def gate_open(self, lane: int, phase: int) -> bool:
        """Whether enough bytes of every load are there."""
        short = [
            (f, need)
            for f, need in self.gates[lane].get(phase, ())
            if self.accounts[f].moved < need - self.accounts[f].scrap
        ]
        if short:
            self.waiting[lane] = short
            self._fetch(lane, short)
        else:
            self.waiting.pop(lane, None)
        return not short

    def _fetch(self, lane: int, short: list[tuple[int, float]]) -> None:
        """Bytes that a lane waits for and that no stretch of this slot brings are late, whatever is planned later."""
        coming = self._left_in_slot(self.desks[lane])
        for f, need in short:
            account = self.accounts[f]
            missing = min(need - account.moved, account.rest)
            missing -= sum(self.backlog[r] + coming.get(r, 0.0) for r in account.routes)
            if missing > account.scrap:
                self._owe_split(account, missing)

    def _left_in_slot(self, desk: _Desk) -> dict[int, float]:
        """Bytes per route that the current slot of a lane is still to move by plan."""
        coming = dict(desk.left)
        for stretch in desk.stretches[desk.place + desk.running :]:
            for r, rate in self.rates_of[self.name_of[id(stretch)]]:
                coming[r] = coming.get(r, 0.0) + rate * stretch.duration_s
        return coming

    def _due(self, flow: int) -> int:
        account = self.accounts[flow]
        last = len(account.due) - 1
        while account.next < last and account.due[account.next][0] <= account.moved + account.scrap:
            account.next += 1
        return account.due[account.next][1] if last >= 0 else 0

    def key(self) -> Hashable:
        """Planned rates by name, and the backlogs."""
        late = tuple([(r, self._due(self.flow_of[r])) for r in self.behind])
        # Write-backs are let go one after another: how many are held says which.
        return tuple([desk.name for desk in self.desks]), tuple(self.empty), late, len(self.held)

    def demand(self) -> Demand:
        """Planned rates first; the backlog last, earliest due first."""
        crossing = self.stage.route_crossing
        planned = [
            Stream(r, crossing[r], rate)
            for desk in self.desks
            if desk.running
            for r, rate in self.rates_of[desk.name]
            if not self.empty[self.flow_of[r]]
        ]
        tiers: dict[int, list[Stream]] = {}
        for r in self.behind:
            flow = self.flow_of[r]
            if not self.empty[flow] and flow not in self.held:
                rank = self._due(flow)
                tiers.setdefault(rank, []).append(Stream(self.routes + r, crossing[r], math.inf))
        return Demand(first=planned, after=[tiers[rank] for rank in sorted(tiers)])

    def _view(self, rates: Rates) -> _View:
        """Rates are solved once and live as long as the replay, so what they move is worked out once, too."""
        view = self.views.get(id(rates))
        if view is None:
            moving = [(r, self.flow_of[r % self.routes], rate) for r, rate in enumerate(rates.kv) if rate > 0]
            total: dict[int, float] = {}
            for _, f, rate in moving:
                total[f] = total.get(f, 0.0) + rate
            view = self.views[id(rates)] = _View(
                tuple(one for one in moving if one[0] < self.routes),
                tuple((r - self.routes, f, rate) for r, f, rate in moving if r >= self.routes),
                tuple(total.items()),
            )
        return view

    # ---- time ------------------------------------------------------------------------------------------------------
    def next_event(self, rates: Rates, now: float) -> float:
        """Until a stretch begins or ends, a backlog or a flow runs out, a gate is met, a request arrives."""
        view = self._view(rates)
        first = self.late[0][0] - now if self.late else math.inf
        for desk in self.desks:
            first = min(first, desk.edge_s - now)
        for f, rate in view.flows:
            account = self.accounts[f]
            first = min(first, (account.released - account.moved) / rate)
        for r, _, rate in view.late:
            first = min(first, self.backlog[r] / rate)
        for short in self.waiting.values():
            flows = dict(view.flows)
            for f, need in short:
                missing = need - self.accounts[f].moved
                if missing > 0 and f in flows:
                    first = min(first, missing / flows[f])
        return first

    def advance(self, step: float, rates: Rates, now: float) -> None:
        """Move bytes, then turn stretches, finish flows and let late requests in."""
        self.sent = False
        view = self._view(rates)
        for r, f, rate in view.planned:
            self.desk_of[r].left[r] -= self._move(r, f, rate * step)
        for r, f, rate in view.late:
            self._move(r, f, rate * step)
            self.backlog[r] -= rate * step
            if self.backlog[r] <= rate * self.snap_s:
                self._settled(r)
                self.events += 1
        for desk in self.desks:
            self._turn(desk, now)
        for f, _ in view.flows:
            self._finish(f, now)
        self._finish_changed(now)
        while self.late and self.late[0][0] <= now + self.snap_s:
            self._release(heapq.heappop(self.late)[2])

    def _move(self, route: int, flow: int, size: float) -> float:
        account = self.accounts[flow]
        size = min(size, account.released - account.moved)
        account.moved += size
        self.route_bytes[route] += size
        return size

    def _finish_changed(self, now: float) -> None:
        for f in self.changed:
            self._finish(f, now)
        self.changed.clear()

    def _finish(self, flow: int, now: float) -> None:
        account = self.accounts[flow]
        if not account.done and not account.steps and account.moved >= account.volume - account.scrap:
            # The last rounding goes where most of the flow went.
            widest = max(account.routes, key=lambda r: self.route_bytes[r])
            self.route_bytes[widest] += account.volume - account.moved
            account.moved, account.done = account.volume, True
            for r in account.routes:
                if self.backlog[r]:
                    self._settled(r)
            self.finish_s[flow] = now
            self.events += 1
            for other in [f for f, drains in self.held.items() if drains == {flow}]:
                del self.held[other]
            for drains in self.held.values():
                drains.discard(flow)
            self.wanted -= not self.stage.is_writeback[flow]
            self.sent = self.sent or account.send
        self.empty[flow] = account.done or account.rest <= account.scrap * EMPTY

    def pending(self) -> bool:
        """Whether released bytes are still here."""
        return bool(self.late) or any(not account.done and account.rest > 0 for account in self.accounts)

    def flow_rates(self, rates: Rates, into: FloatArray) -> None:
        """Planned and late bytes of each flow."""
        for f, rate in self._view(rates).flows:
            into[f] += rate


def _waiting_for_room(stage: Stage) -> dict[int, set[int]]:
    """Write-backs that no plan places yet wait where they fill memory that may overflow: for these flows.

    Those are all that make room in that memory, and a plan counts on that order. A write-back that makes room elsewhere
    does not wait, so that none waits for another that waits.
    """
    data = stage.data
    if not data.memory or not any(stage.is_writeback):
        return {}
    weight = np.where(data.volume_bytes > 0, data.pool_weight[data.tight_pools], 0.0)
    drains, fills = weight < 0, weight > 0
    held = {}
    for f in np.flatnonzero(np.array(stage.is_writeback) & fills.any(axis=0) & ~drains.any(axis=0)).tolist():
        awaited = set(np.flatnonzero(drains[fills[:, f]].any(axis=0)).tolist())
        if awaited:
            held[f] = awaited
    return held


def _rate_names(schedule: Schedule) -> tuple[dict[int, int], list[list[tuple[int, float]]]]:
    """The name of each stretch's rates, and the (route, rate) of each name.

    Rates of one lane that agree in 12 digits of the greatest have one name, so that they are solved once. Dust of two
    lanes agrees in none, but is of different flows.
    """
    if not schedule.pieces:
        return {}, []
    table = np.array([piece.rates for piece in schedule.pieces], dtype=float)
    size = np.abs(table).max(initial=0.0)
    digits = np.round(table / size, 12) if size > 0 else table
    lane = np.array([piece.lane for piece in schedule.pieces], dtype=float)[:, None]
    _, first, names = np.unique(np.hstack([lane, digits]), axis=0, return_index=True, return_inverse=True)
    rates = [[(r, rate) for r, rate in enumerate(table[k].tolist()) if rate > 0] for k in first.tolist()]
    return {id(piece): name for piece, name in zip(schedule.pieces, names.reshape(-1).tolist(), strict=True)}, rates
