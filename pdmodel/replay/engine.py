"""The replay: lanes and KV, event by event, at rates that are constant in between."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.errors import InputError
from pdmodel.replay.activities import Stage, stage_of
from pdmodel.replay.measure import Ledger, Mark, measured
from pdmodel.replay.outcome import Replay, Segment
from pdmodel.replay.planned import PlannedTraffic
from pdmodel.replay.policies import NO_KV, PlanPolicy, Policy, QueuePolicy, policy_named
from pdmodel.replay.rates import RateRule, Rates
from pdmodel.replay.traffic import NoTraffic, QueueTraffic, Traffic
from pdmodel.timeline.critical import IDLE
from pdmodel.timeline.phases import FloatArray

ABSENT, WAIT, WAIT_HOLD, RUN, HOLD, DONE = range(6)


def simulate(
    data: AllocationData,
    policy: Policy | str,
    *,
    kv_weight: float = 1.0,
    interference: float = 0.0,
    jitter: tuple[float, int] | None = None,
    record: bool = False,
    most: float = math.inf,
) -> Replay:
    """Replay a record under a policy.

    Parameters
    ----------
    data: the record.
    policy: an object of `pdmodel.replay.policies`, or the name of a simple policy or reference.
    kv_weight: what KV's weights are multiplied with where it shares with critical traffic [-].
    interference: kappa; x <= 1 - kappa u_e on each port that a collective uses, u_e = KV's share of its usable
        capacity [-].
    jitter: (sigma, seed): durations times lognormal(sigma) with mean 1 per (lane, phase), the same draws for every
        policy; a phase keeps its consumption a = b / tau, so its bytes grow with it. Dues are those of the clock
        without KV under the same draws.
    record: keep every stretch of constant rates in ``segments``.
    most: once what the lanes have lost is certain to cost more [GPU·s], the rest is not replayed.

    Returns
    -------
    Replay. If KV starves for ever (decode lanes that leave nothing, say), or the replay was given up, its times and
    cost are infinite and ``diagnostics`` says so.

    Raises
    ------
    InputError: unknown policy or cap target; weights out of range.

    """
    if not kv_weight > 0 or not 0 <= interference < 1:
        raise InputError(
            f"kv_weight {kv_weight}, interference {interference}", expected="kv_weight > 0 and 0 <= interference < 1"
        )
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    stage = stage_of(data, jitter)
    limit = chosen.cap if isinstance(chosen, QueuePolicy) else None
    run = _Run(stage, _traffic(stage, chosen), RateRule(stage, kv_weight, interference, limit), record, most)
    return measured(stage, chosen.name, run.play())


def _traffic(stage: Stage, policy: Policy) -> Traffic:
    if isinstance(policy, PlanPolicy):
        return PlannedTraffic(stage, policy.schedule)
    if isinstance(policy, QueuePolicy):
        return QueueTraffic(stage, policy)
    return NoTraffic(stage) if policy == NO_KV else QueueTraffic(stage, None)


class _LaneRun:
    """Where one lane is."""

    __slots__ = ("base_s", "count", "earliest", "left", "mode", "phase", "signature", "work")

    def __init__(self, work: list[float], signature: list[int], earliest: list[float]) -> None:
        self.work, self.signature, self.earliest = work, signature, earliest
        self.count = len(work)
        self.phase = 0
        self.mode = ABSENT
        self.left = 0.0
        self.base_s = earliest[0] if earliest else 0.0

    @property
    def work_left(self) -> float:
        """Of the phase [s]; nan before it starts."""
        if self.mode == RUN:
            return self.left
        return 0.0 if self.mode == HOLD else math.nan


class _Run:
    """One replay under way."""

    def __init__(self, stage: Stage, traffic: Traffic, rule: RateRule, record: bool, most: float) -> None:
        critical = stage.critical
        self.stage, self.traffic, self.rule = stage, traffic, rule
        self.lanes = [
            _LaneRun(*lane) for lane in zip(critical.work_s, critical.signature, critical.not_before_s, strict=True)
        ]
        self.now = min((lane.base_s for lane in self.lanes), default=0.0)
        self.ledger = Ledger([lane.count for lane in self.lanes], len(critical.decode_rows), self.now)
        self.rates: dict[Hashable, Rates] = {}
        self.loads: dict[Hashable, tuple[FloatArray, FloatArray]] = {}
        self.record = record
        self.lanes_left = len(self.lanes)
        self.has_writebacks = any(stage.is_writeback)
        self.price = stage.data.lane_price_per_s.tolist()
        # Where lanes slow one another down without KV, what they lose here is not all KV's.
        self.most = math.inf if critical.collide or min(self.price, default=0.0) < 0 else most
        self.lost = 0.0

    def play(self) -> Ledger:
        """Run to the end, or to where nothing moves any more."""
        lanes, traffic, ledger = self.lanes, self.traffic, self.ledger
        for k in range(len(lanes)):
            self._settle(k)
        while True:
            if not self.lanes_left:
                if not traffic.pending():
                    break
                if ledger.mark is None and not traffic.wanted:
                    self._mark()
            key = (tuple([lane.signature[lane.phase] if lane.mode == RUN else IDLE for lane in lanes]), traffic.key())
            rates = self.rates.get(key)
            if rates is None:
                rates = self.rates[key] = self.rule.rates(key[0], traffic.demand(), traffic.activities)
            step = traffic.next_event(rates, self.now)
            for lane, speed in zip(lanes, rates.lane, strict=True):
                step = min(step, self._lane_event(lane, speed))
            if step == math.inf:
                ledger.starved = bool(self.lanes_left or traffic.wanted)
                ledger.stuck = not ledger.starved
                break
            step = max(step, 0.0)
            if self.record:
                self._segment(key, rates, step)
            self._advance(rates, step)
            if self.lost > self.most:
                ledger.given_up = True
                break
        ledger.end_s = self.now
        ledger.events += traffic.events
        ledger.finish_s, ledger.route_bytes = traffic.finish_s, traffic.route_bytes
        ledger.solved, ledger.progressive = self.rule.counts.solved, self.rule.counts.progressive
        return ledger

    def _lane_event(self, lane: _LaneRun, speed: float) -> float:
        """Time until the lane changes by itself [s]."""
        if lane.mode == RUN:
            return lane.left / speed if speed > 0 else math.inf
        if lane.mode in {HOLD, WAIT_HOLD}:
            return lane.left
        if lane.mode in {ABSENT, WAIT} and lane.base_s > self.now + self.stage.snap_s:
            return lane.base_s - self.now
        return math.inf

    def _advance(self, rates: Rates, step: float) -> None:
        ledger, snap = self.ledger, self.stage.snap_s
        self.now += step
        self.traffic.advance(step, rates, self.now)
        for d, speed in enumerate(rates.decode):
            ledger.decode_loss_s[d] += (1.0 - speed) * step
        for k, lane in enumerate(self.lanes):
            if lane.mode == RUN:
                speed = rates.lane[k]
                lane.left -= speed * step
                if speed < 1.0:
                    ledger.loss_s[k][lane.phase] += (1.0 - speed) * step
                if lane.left <= snap * speed:
                    lane.left = 0.0
            elif lane.mode in {HOLD, WAIT_HOLD}:
                lane.left -= step
                if lane.left <= snap:
                    lane.left = 0.0
        for k, lane in enumerate(self.lanes):
            if lane.mode != DONE and (lane.left == 0.0 or lane.mode == WAIT):
                self._settle(k)
        if self.traffic.sent:
            self._mark()

    def _mark(self) -> None:
        self.ledger.mark = Mark(
            self.now,
            [(lane.phase, lane.work_left) for lane in self.lanes],
            list(self.ledger.decode_loss_s),
            list(self.traffic.route_bytes) if self.has_writebacks else [],
        )

    def _settle(self, k: int) -> None:
        """Take the lane through everything that happens now."""
        lane, ledger, now = self.lanes[k], self.ledger, self.now
        while lane.mode != DONE:
            i = lane.phase
            if lane.mode == ABSENT:
                if lane.base_s > now + self.stage.snap_s:
                    return
                self._enter_wait(k)
            elif lane.mode == WAIT:
                if lane.base_s > now + self.stage.snap_s or not self.traffic.gate_open(k, i):
                    return
                self._pause(k, WAIT_HOLD)
            elif lane.left > 0.0:
                return
            elif lane.mode == WAIT_HOLD:
                ledger.start_s[k][i] = now
                ledger.wait_s[k][i] = max(now - lane.base_s, 0.0)
                self.lost += self.price[k] * ledger.wait_s[k][i]
                ledger.events += ledger.wait_s[k][i] > self.stage.snap_s
                lane.mode, lane.left = RUN, lane.work[i]
                self.traffic.enter(k, 2 * i + 1, now)
            elif lane.mode == RUN:
                self._pause(k, HOLD)
                ledger.hold_s[k][i] = lane.left
            else:
                ledger.end_s_of[k][i] = now
                self.lost += self.price[k] * (ledger.loss_s[k][i] + ledger.hold_s[k][i])
                ledger.events += 1
                lane.phase += 1
                self._enter_wait(k)

    def _enter_wait(self, k: int) -> None:
        """Slot 2i: the wait before phase i; after the last phase, the tail."""
        lane = self.lanes[k]
        if lane.phase == lane.count:
            lane.mode = DONE
            self.lanes_left -= 1
        else:
            lane.mode, lane.left = WAIT, math.inf
            lane.base_s = max(self.now, lane.earliest[lane.phase])
        self.traffic.enter(k, 2 * lane.phase, self.now)

    def _pause(self, k: int, mode: int) -> None:
        lane = self.lanes[k]
        slot = 2 * lane.phase + (mode == HOLD)
        lane.mode, lane.left = mode, self.traffic.holds(k, slot)

    def _segment(self, key: Hashable, rates: Rates, step: float) -> None:
        if step <= 0:
            return
        known = self.loads.get(key)
        if known is None:
            known = self.loads[key] = self._loads(rates)
        flow_rate = np.zeros(len(self.stage.data.flows))
        self.traffic.flow_rates(rates, flow_rate)
        self.ledger.segments.append(Segment(self.now, self.now + step, *known, flow_rate))

    def _loads(self, rates: Rates) -> tuple[FloatArray, FloatArray]:
        """Critical and KV rates per port, (P,) each [byte/s]; the same wherever the key of the rates comes back."""
        data, critical, ports = self.stage.data, self.stage.critical, len(self.stage.data.ports)
        taken, kv = np.zeros(ports), np.zeros(ports)
        place = [data.port_index[name] for name in critical.names]
        running = [
            (critical.rows[lane.signature[lane.phase]], speed)
            for lane, speed in zip(self.lanes, rates.lane, strict=True)
            if lane.mode == RUN
        ]
        for row, speed in [*running, *zip(critical.decode_rows, rates.decode, strict=True)]:
            for e, need, _ in row:
                taken[place[e]] += need * speed
        for stream in self.traffic.demand().streams:
            for e, need, _ in self.stage.crossings[stream.crossing].ports:
                kv[place[e]] += need * rates.kv[stream.activity]
        taken.flags.writeable = kv.flags.writeable = False
        return taken, kv
