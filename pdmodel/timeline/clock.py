"""The clock without KV: the lanes' critical phases alone, gates open, no holds, with the sharing rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.hardware.ports import Port
from pdmodel.timeline.critical import IDLE, CriticalTraffic, critical_traffic
from pdmodel.timeline.phases import Clock, DecodeLane, FloatArray, IntArray, Lane

SNAP = 1e-12
"""Times closer than this share of the whole clock are one time: no interval is made of rounding errors."""


def run_clock(ports: Sequence[Port], lanes: Sequence[Lane], decode_lanes: Sequence[DecodeLane] = ()) -> Clock:
    r"""Run critical phases without KV.

    A lane runs its phases one after another, each not before its ``not_before_s``; speed x divides its duration:
    :math:`T_i = \tau_i / x_i` while x is constant. Speeds come from `pdmodel.timeline.sharing.share` at the usable
    capacity of what is active; without two lanes (or a lane and a decode lane) on one port they are 1.

    Parameters
    ----------
    ports: every port that a phase or a decode lane names.
    lanes: prefill lanes.
    decode_lanes: endless activities at their mean demand.

    Returns
    -------
    Clock with edges (J+1,) [s] and phase, speed (L, J); -1 and 0 where a lane runs nothing. Phases of duration zero
    take no interval.

    Raises
    ------
    InputError: a phase names a port that is not there.

    """
    return clock_of(critical_traffic(ports, lanes, decode_lanes))


def clock_of(critical: CriticalTraffic) -> Clock:
    """`run_clock` on critical traffic that is already in the numbering of the sharing rule."""
    return _collisions(critical) if critical.collide else _apart(critical)


def phase_times(clock: Clock, lane: int, not_before_s: Sequence[float]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Start, end and loss of speed of the phases of a lane on the clock, shapes (n,) [s].

    Loss is the integral of (1 - x) dt; that of a speed within 1e-9 of 1 is none. A phase without an interval (duration
    zero) starts and ends where the phase before it ended, or when its request arrives (``not_before_s``, one per
    phase).
    """
    phase, count = clock.phase[lane], len(not_before_s)
    running = np.flatnonzero(phase >= 0)
    index = phase[running]
    start, end, loss = np.full(count, np.nan), np.full(count, np.nan), np.zeros(count)
    places, first = np.unique(index, return_index=True)
    last = len(index) - 1 - np.unique(index[::-1], return_index=True)[1]
    start[places] = clock.edges_s[running[first]]
    end[places] = clock.edges_s[running[last] + 1]
    slow = 1.0 - clock.speed[lane, running]
    slow[slow < 1e-9] = 0.0
    np.add.at(loss, index, slow * np.diff(clock.edges_s)[running])
    for i in np.flatnonzero(np.isnan(start)).tolist():
        start[i] = end[i] = max(float(end[i - 1]) if i else -math.inf, not_before_s[i])
    return start, end, loss


def _apart(critical: CriticalTraffic) -> Clock:
    """Lanes that never meet: cumulative sums."""
    spans: list[tuple[FloatArray, FloatArray]] = []
    paces: list[FloatArray] = []
    for signature, work, earliest in zip(critical.signature, critical.work_s, critical.not_before_s, strict=True):
        # Alone, a phase is slower than its own time only if it wants more than a port has.
        alone = {s: critical.speeds([s])[0][0] for s in set(signature)}
        pace = np.array([alone[s] for s in signature], dtype=float)
        took = np.array(work, dtype=float) / pace
        done = np.cumsum(took)
        # start_i = max(end_{i-1}, earliest_i): the latest arrival so far shifts everything after it.
        shift = np.maximum.accumulate(np.array(earliest, dtype=float) - (done - took))
        spans.append((done - took + shift, done + shift))
        paces.append(pace)
    edges = _merged(np.concatenate([time for span in spans for time in span]) if spans else np.zeros(0))
    phase = np.full((len(spans), max(len(edges) - 1, 0)), -1, dtype=np.int64)
    speed = np.zeros(phase.shape)
    middle = (edges[:-1] + edges[1:]) / 2
    for k, ((start, end), pace) in enumerate(zip(spans, paces, strict=True)):
        if len(start):
            at = np.searchsorted(end, middle, side="right")
            inside = (at < len(start)) & (start[np.minimum(at, len(start) - 1)] <= middle)
            phase[k, inside] = at[inside]
            speed[k, inside] = pace[at[inside]]
    return Clock(edges, phase, speed)


def _merged(times: FloatArray) -> FloatArray:
    edges = np.unique(times)
    if len(edges) < 2:
        return edges if len(edges) else np.zeros(1)
    apart = np.diff(edges) > SNAP * max(abs(float(edges[-1])), float(edges[-1] - edges[0]))
    return np.concatenate([edges[:1], edges[1:][apart]])


@dataclass(slots=True)
class _Cursor:
    """Where a lane is: the phase it runs, or waits to start, and its work left [s]."""

    signature: Sequence[int]
    work_s: Sequence[float]
    not_before_s: Sequence[float]
    phase: int = 0
    left_s: float = 0.0
    running: bool = False

    @property
    def ended(self) -> bool:
        return self.phase == len(self.work_s)

    @property
    def active(self) -> int:
        return self.signature[self.phase] if self.running else IDLE

    def begin(self, now_s: float) -> None:
        """Start what may start; phases of duration zero end at once."""
        while not self.running and not self.ended and self.not_before_s[self.phase] <= now_s:
            self.left_s = self.work_s[self.phase]
            self.running = self.left_s > 0
            self.phase += not self.running

    def work(self, done_s: float, snap_s: float) -> None:
        """Work on the phase; what is left of it within ``snap_s`` is rounding."""
        if self.running:
            self.left_s -= done_s
            if self.left_s <= snap_s:
                self.running = False
                self.phase += 1


def _collisions(critical: CriticalTraffic) -> Clock:
    """Lanes that meet: event by event."""
    lanes = [
        _Cursor(signature, work, earliest)
        for signature, work, earliest in zip(critical.signature, critical.work_s, critical.not_before_s, strict=True)
    ]
    now = min((lane.not_before_s[0] for lane in lanes if not lane.ended), default=0.0)
    latest = max((time for lane in lanes for time in lane.not_before_s), default=0.0)
    snap = SNAP * (sum(sum(lane.work_s) for lane in lanes) + latest)
    known: dict[tuple[int, ...], list[float]] = {}
    edges: list[float] = [now]
    phases: list[list[int]] = []
    speeds: list[list[float]] = []
    while True:
        for lane in lanes:
            lane.begin(now + snap)
        arrivals = [lane.not_before_s[lane.phase] - now for lane in lanes if not lane.running and not lane.ended]
        key = tuple(lane.active for lane in lanes)
        if key not in known:
            known[key] = critical.speeds(key)[0]
        speed = known[key]
        ends = [lane.left_s / x for lane, x in zip(lanes, speed, strict=True) if lane.running and x > 0]
        step = min(arrivals + ends, default=math.inf)
        if math.isinf(step):
            break
        now += step
        edges.append(now)
        phases.append([lane.phase if lane.running else -1 for lane in lanes])
        speeds.append([x if lane.running else 0.0 for lane, x in zip(lanes, speed, strict=True)])
        for lane, x in zip(lanes, speed, strict=True):
            lane.work(step * x, snap * x)
    phase: IntArray = np.array(phases, dtype=np.int64).reshape(len(phases), len(lanes)).T
    return Clock(np.array(edges), phase, np.array(speeds, dtype=float).reshape(len(phases), len(lanes)).T)
