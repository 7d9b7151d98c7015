"""KV under a schedule: planned rates by phase, and a backlog of what did not leave as planned."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from pdmodel.allocation.schedule import Piece as Stretch
from pdmodel.allocation.schedule import Schedule
from pdmodel.simulate.activities import NO_GATE, Piece, Stage
from pdmodel.simulate.rates import Demand, Rates, Stream
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind

IDLE = -1
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
    """The schedule of one lane: where it is in the current slot."""

    slots: dict[int, list[Stretch]]
    planned: dict[int, list[tuple[int, float]]]
    """Per flow: (slot, bytes planned from that slot on), in order of slots."""
    slot: int = -1
    start_s: float = 0.0
    stretches: list[Stretch] = field(default_factory=list)
    place: int = 0
    running: bool = False
    name: int = IDLE
    rates: list[tuple[int, float]] = field(default_factory=list)
    left: dict[int, float] = field(default_factory=dict)

    def edge_s(self) -> float:
        """When the current stretch ends, or the next one begins."""
        if self.place == len(self.stretches):
            return math.inf
        stretch = self.stretches[self.place]
        return self.start_s + stretch.offset_s + (stretch.duration_s if self.running else 0.0)


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
        self.rate_names = _rate_names(schedule)
        self.desks = [self._desk(k) for k in range(len(data.lanes))]

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
        slots: dict[int, list[Stretch]] = {}
        for stretch in self.schedule.pieces:
            if stretch.lane == lane and stretch.duration_s > 0:
                slots.setdefault(stretch.slot, []).append(stretch)
        planned: dict[int, list[tuple[int, float]]] = {}
        totals = np.zeros(len(self.accounts))
        for slot in sorted(slots, reverse=True):
            slots[slot].sort(key=lambda one: one.offset_s)
            for stretch in slots[slot]:
                np.add.at(totals, self.flow_of, stretch.rates * stretch.duration_s)
            for f in np.flatnonzero(totals).tolist():
                planned.setdefault(f, []).append((slot, float(totals[f])))
        for steps in planned.values():
            steps.reverse()
        return _Desk(slots, planned)

    # ---- slots -----------------------------------------------------------------------------------------------------
    def enter(self, lane: int, slot: int, now: float) -> None:
        """Close the slot before, release what this one releases, begin its stretches."""
        desk = self.desks[lane]
        self._close(desk)
        for stretch in desk.stretches[desk.place :]:
            self._to_backlog(stretch)
        desk.slot, desk.start_s, desk.place = slot, now, 0
        desk.stretches = desk.slots.get(slot, [])
        self.waiting.pop(lane, None)
        if slot % 2 == 0:
            for piece in self.release[lane].pop(slot // 2, ()):
                if piece.arrival_s > now + self.snap_s:
                    self.postponed += 1
                    heapq.heappush(self.late, (piece.arrival_s, self.postponed, piece))
                else:
                    self._release(piece)
        self._turn(desk, now)

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
        steps = desk.planned.get(flow, [])
        place = bisect.bisect_left(steps, desk.slot, key=itemgetter(0))
        planned = steps[place][1] if place < len(steps) else 0.0
        excess = account.rest - planned - sum(self.backlog[r] for r in account.routes)
        if excess > account.scrap:
            for r, part in zip(account.routes, account.split, strict=True):
                self.backlog[r] += excess * part

    def _turn(self, desk: _Desk, now: float) -> None:
        """Begin or end stretches whose time has come."""
        while desk.edge_s() <= now + self.snap_s:
            self.events += 1
            if desk.running:
                self._close(desk)
                continue
            stretch = desk.stretches[desk.place]
            desk.running = True
            desk.name = self.rate_names[id(stretch)]
            desk.rates = [(r, float(stretch.rates[r])) for r in np.flatnonzero(stretch.rates > 0).tolist()]
            desk.left = {r: rate * stretch.duration_s for r, rate in desk.rates}

    def _close(self, desk: _Desk) -> None:
        """End the stretch that runs; what it did not move is late."""
        if desk.running:
            for r, left in desk.left.items():
                self._late(r, left)
            desk.running, desk.name, desk.rates, desk.left = False, IDLE, [], {}
            desk.place += 1

    def _to_backlog(self, stretch: Stretch) -> None:
        for r in np.flatnonzero(stretch.rates > 0).tolist():
            self._late(r, float(stretch.rates[r]) * stretch.duration_s)

    def _late(self, route: int, size: float) -> None:
        account = self.accounts[self.flow_of[route]]
        if abs(size) > account.scrap:
            self.backlog[route] += size
        else:
            # Rounding of a program or of the clock: it counts as moved, so that bytes add up.
            size = min(size, account.rest)
            account.moved += size
            self.route_bytes[route] += size

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
        desk = self.desks[lane]
        coming = dict(desk.left)
        for stretch in desk.stretches[desk.place + desk.running :]:
            for r in np.flatnonzero(stretch.rates > 0).tolist():
                coming[r] = coming.get(r, 0.0) + float(stretch.rates[r]) * stretch.duration_s
        for f, need in short:
            account = self.accounts[f]
            missing = min(need - account.moved, account.rest)
            missing -= sum(max(self.backlog[r], 0.0) + coming.get(r, 0.0) for r in account.routes)
            if missing > account.scrap:
                for r, part in zip(account.routes, account.split, strict=True):
                    self.backlog[r] += missing * part

    def _due(self, flow: int) -> int:
        account = self.accounts[flow]
        last = len(account.due) - 1
        while account.next < last and account.due[account.next][0] <= account.moved + account.scrap:
            account.next += 1
        return account.due[account.next][1] if last >= 0 else 0

    def _served(self) -> tuple[list[tuple[int, float]], list[tuple[int, int]]]:
        """Planned (route, rate) and late (route, rank of due) that have bytes to move."""
        planned = [
            (r, rate)
            for desk in self.desks
            for r, rate in desk.rates
            if not self._empty(self.accounts[self.flow_of[r]])
        ]
        late = [
            (r, self._due(self.flow_of[r]))
            for r, left in enumerate(self.backlog)
            if left > 0 and not self._empty(self.accounts[self.flow_of[r]])
        ]
        return planned, late

    @staticmethod
    def _empty(account: _Account) -> bool:
        return account.done or account.rest <= account.scrap * 1e-3

    def key(self) -> Hashable:
        """Planned rates by name, and the backlogs."""
        empty = tuple(f for f, account in enumerate(self.accounts) if self._empty(account))
        late = tuple((r, self._due(self.flow_of[r])) for r, left in enumerate(self.backlog) if left > 0)
        return tuple(desk.name for desk in self.desks), empty, late

    def demand(self) -> Demand:
        """Planned rates first; the backlog last, earliest due first."""
        planned, late = self._served()
        crossing = self.stage.route_crossing
        tiers: dict[int, list[Stream]] = {}
        for r, rank in late:
            tiers.setdefault(rank, []).append(Stream(self.routes + r, crossing[r], math.inf))
        return Demand(
            first=[Stream(r, crossing[r], rate) for r, rate in planned],
            after=[tiers[rank] for rank in sorted(tiers)],
        )

    def _rate(self, account: _Account, rates: Rates) -> float:
        return sum(rates.kv[r] + rates.kv[self.routes + r] for r in account.routes)

    # ---- time ------------------------------------------------------------------------------------------------------
    def next_event(self, rates: Rates, now: float) -> float:
        """Until a stretch begins or ends, a backlog or a flow runs out, a gate is met, a request arrives."""
        first = self.late[0][0] - now if self.late else math.inf
        for desk in self.desks:
            first = min(first, desk.edge_s() - now)
        for account in self.accounts:
            rate = self._rate(account, rates)
            if rate > 0:
                first = min(first, account.rest / rate)
        for r, left in enumerate(self.backlog):
            rate = rates.kv[self.routes + r]
            if rate > 0:
                first = min(first, left / rate)
        for short in self.waiting.values():
            for f, need in short:
                rate = self._rate(self.accounts[f], rates)
                if rate > 0 and need > self.accounts[f].moved:
                    first = min(first, (need - self.accounts[f].moved) / rate)
        return first

    def advance(self, step: float, rates: Rates, now: float) -> None:
        """Move bytes, then turn stretches, finish flows and let late requests in."""
        self.sent = False
        for desk in self.desks:
            for r, _ in desk.rates:
                moved = self._move(r, rates.kv[r], step)
                desk.left[r] -= moved
        for r, left in enumerate(self.backlog):
            rate = rates.kv[self.routes + r]
            if rate > 0:
                self._move(r, rate, step)
                rest = left - rate * step
                self.backlog[r] = rest if rest > rate * self.snap_s else 0.0
                self.events += self.backlog[r] == 0.0
        for desk in self.desks:
            self._turn(desk, now)
        for f, account in enumerate(self.accounts):
            self._finish(f, account, now)
        while self.late and self.late[0][0] <= now + self.snap_s:
            self._release(heapq.heappop(self.late)[2])

    def _move(self, route: int, rate: float, step: float) -> float:
        account = self.accounts[self.flow_of[route]]
        moved = min(rate * step, account.rest)
        account.moved += moved
        self.route_bytes[route] += moved
        return moved

    def _finish(self, flow: int, account: _Account, now: float) -> None:
        if account.done or account.steps or account.moved < account.volume - account.scrap:
            return
        # The last rounding goes where most of the flow went.
        widest = max(account.routes, key=lambda r: self.route_bytes[r])
        self.route_bytes[widest] += account.volume - account.moved
        account.moved, account.done = account.volume, True
        for r in account.routes:
            self.backlog[r] = 0.0
        self.finish_s[flow] = now
        self.events += 1
        self.sent = self.sent or account.send

    def pending(self) -> bool:
        """Whether released bytes are still here."""
        return bool(self.late) or any(not account.done and account.rest > 0 for account in self.accounts)

    def flow_rates(self, rates: Rates, into: FloatArray) -> None:
        """Planned and late bytes of each flow."""
        for f, account in enumerate(self.accounts):
            into[f] += self._rate(account, rates)


def _rate_names(schedule: Schedule) -> dict[int, int]:
    """Stretches with equal rates (12 digits) share a name, so that their rates are solved once."""
    if not schedule.pieces:
        return {}
    table = np.array([piece.rates for piece in schedule.pieces], dtype=float)
    size = np.abs(table).max(initial=0.0)
    digits = np.round(table / size, 12) if size > 0 else table
    names = np.unique(digits, axis=0, return_inverse=True)[1].reshape(-1)
    return {id(piece): int(name) for piece, name in zip(schedule.pieces, names, strict=True)}
