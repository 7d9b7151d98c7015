"""From what happened in a replay to times and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pdmodel.replay.activities import Stage
from pdmodel.replay.moments import Moments
from pdmodel.replay.outcome import LaneOutcome, Replay, Segment
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind
from pdmodel.units import format_seconds

LEASE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Mark:
    """Where everything was when the last send so far was delivered: (phase, work left or nan) per lane.

    ``route_bytes`` is empty where there are no write-backs: then all bytes have been moved.
    """

    now_s: float
    lanes: list[tuple[int, float]]
    decode_loss_s: list[float]
    route_bytes: list[float]


class Ledger:
    """What a replay writes down: per lane and phase, per flow and route, per decode lane."""

    def __init__(self, phases: list[int], decode_lanes: int, begin_s: float) -> None:
        self.start_s = [[math.nan] * n for n in phases]
        self.end_s_of = [[math.nan] * n for n in phases]
        self.loss_s = [[0.0] * n for n in phases]
        self.hold_s = [[0.0] * n for n in phases]
        self.wait_s = [[0.0] * n for n in phases]
        self.decode_loss_s = [0.0] * decode_lanes
        self.finish_s: list[float] = []
        self.route_bytes: list[float] = []
        self.segments: list[Segment] = []
        self.mark: Mark | None = None
        self.begin_s = begin_s
        self.end_s = begin_s
        self.events = 0
        self.starved = False
        self.given_up = False
        """It costs too much already."""
        self.stuck = False
        """Only write-backs are left, and nothing moves them."""
        self.solved = 0
        self.progressive = 0


@dataclass(slots=True)
class _Times:
    """Per request."""

    prefill_s: list[float] = field(default_factory=list)
    decode_stall_s: list[float] = field(default_factory=list)
    user_delay_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)


def measured(stage: Stage, policy: str, ledger: Ledger) -> Replay:
    """The replay of a ledger; see `Replay` for what each figure is."""
    data = stage.data
    lanes = tuple(
        LaneOutcome(*(np.array(part, dtype=float) for part in parts))
        for parts in zip(ledger.start_s, ledger.end_s_of, ledger.loss_s, ledger.hold_s, ledger.wait_s, strict=True)
    )
    finish = np.array(ledger.finish_s, dtype=float)
    if ledger.starved or ledger.stuck or ledger.given_up:
        finish[np.isnan(finish)] = np.inf
    writeback = np.array(stage.is_writeback, dtype=bool)
    slowdown = np.array(
        [float(np.sum(lane.loss_s + lane.hold_s - base)) for lane, base in zip(lanes, stage.loss_s, strict=True)]
    )
    stall = np.array([float(np.sum(lane.wait_s)) for lane in lanes])
    times = _request_times(stage, lanes, finish)
    lost = _expired(stage, lanes, finish)
    decode_loss = np.array(ledger.decode_loss_s) - stage.decode_base_loss_s
    delay = np.array(times.user_delay_s)
    starved = ledger.starved or ledger.given_up or not np.all(np.isfinite(delay))
    cost = math.inf
    if not starved:
        waiting = np.array([request.price_per_s for request in data.requests])
        cost = float(
            data.lane_price_per_s @ (slowdown + stall) + waiting @ delay + data.decode_price_per_s @ decode_loss
        )
    return Replay(
        policy=policy,
        lanes=lanes,
        flow_finish_s=finish,
        prefill_s=np.array(times.prefill_s),
        prefill_slowdown_s=slowdown,
        load_stall_s=stall,
        decode_stall_s=np.array(times.decode_stall_s),
        user_delay_s=delay,
        ttft_s=np.array(times.ttft_s),
        decode_loss_s=decode_loss,
        cost=cost,
        kv_bytes=_kv_bytes(stage, ledger),
        critical_bytes=_critical_bytes(stage, ledger),
        end_s=math.inf if starved else _end_s(ledger, lanes, finish[~writeback]),
        events=ledger.events,
        diagnostics=(*_diagnostics(ledger, starved), *(text for _, text in lost)),
        segments=tuple(ledger.segments),
        expired=tuple(name for name, _ in lost),
        writeback_end_s=float(finish[writeback].max()) if writeback.any() else None,
        route_bytes=np.array(ledger.route_bytes, dtype=float),
    )


def _end_s(ledger: Ledger, lanes: tuple[LaneOutcome, ...], wanted: FloatArray) -> float:
    """When lanes, sends and loads are over [s]; ``wanted`` are the times of sends and loads, nan where none moved."""
    ends = [float(lane.end_s[-1]) for lane in lanes if len(lane.end_s)]
    return max(ledger.begin_s, *ends, float(wanted[~np.isnan(wanted)].max(initial=ledger.begin_s)))


def _expired(stage: Stage, lanes: tuple[LaneOutcome, ...], finish: FloatArray) -> list[tuple[str, str]]:
    """Flows whose last byte came more than their lease after their first release: name, and the figures in words."""
    found = []
    moments = Moments(stage.data, lanes)
    for f, flow in enumerate(stage.data.flows):
        if flow.lease_s is None or np.isnan(finish[f]):
            continue
        first = min((k for k, size in flow.release if size > 0), default=0)
        took = finish[f] - moments.at(int(stage.data.flow_lane[f]), first, flow.request)
        if not took <= flow.lease_s * (1 + LEASE_ROUNDING) + stage.snap_s:
            when = f"{format_seconds(float(took))} after its release" if np.isfinite(took) else "never"
            text = f"the lease of {flow.name} expires: its last byte comes {when}, {format_seconds(flow.lease_s)} are"
            found.append((flow.name, f"{text} allowed"))
    return found


def _kv_bytes(stage: Stage, ledger: Ledger) -> FloatArray:
    """Bytes of sends and loads on each port, and of write-backs until the last send was delivered, shape (P,)."""
    data, moved = stage.data, np.array(ledger.route_bytes)
    if not len(data.routes):
        return np.zeros(len(data.ports))
    if ledger.mark is not None and ledger.mark.route_bytes:
        writeback = np.array(stage.is_writeback)[data.route_flow]
        moved = np.where(writeback, ledger.mark.route_bytes, moved)
    return np.asarray(moved @ data.consumption)


def _diagnostics(ledger: Ledger, starved: bool) -> tuple[str, ...]:
    found = []
    if ledger.given_up:
        found.append("given up: it costs too much already")
    elif starved:
        found.append("KV starves: critical traffic never leaves it any capacity")
    if ledger.stuck:
        found.append("write-backs are never over: critical traffic leaves them no capacity")
    if ledger.progressive:
        found.append(f"sharing by progressive filling in {ledger.progressive} of {ledger.solved} states")
    return tuple(found)


def _delays(stage: Stage, k: int, lane: LaneOutcome) -> FloatArray:
    r"""Delay of the end of each phase against the clock without KV, shape (n,) [s].

    Summed from losses, holds and waits, never a difference of clocks:
    :math:`d_i = \max(d_{i-1}, s_i) - \max(0, s_i) + W_i + loss_i + hold_i - loss^{no kv}_i`, where :math:`s_i` is the
    slack, arrival of the phase's request less the end of phase i - 1 on the clock without KV.
    """
    gain = lane.wait_s + lane.loss_s + lane.hold_s - stage.loss_s[k]
    earliest = np.array(stage.critical.not_before_s[k])
    if not len(gain):
        return gain
    slack = np.concatenate([[-math.inf], earliest[1:] - stage.end_s[k][:-1]])
    if np.all(slack <= -np.abs(np.cumsum(gain)).max(initial=0.0)):
        return np.asarray(np.cumsum(gain))
    delay, now = np.zeros(len(gain)), 0.0
    for i in range(len(gain)):
        now = max(now, float(slack[i])) - max(0.0, float(slack[i])) + float(gain[i])
        delay[i] = now
    return delay


def _request_times(stage: Stage, lanes: tuple[LaneOutcome, ...], finish: FloatArray) -> _Times:
    data, times = stage.data, _Times()
    delays = [_delays(stage, k, lane) for k, lane in enumerate(lanes)]
    last_send = [-math.inf] * len(data.requests)
    for f, flow in enumerate(data.flows):
        if flow.kind is FlowKind.SEND and not math.isnan(finish[f]):
            q = stage.request_of_flow[f]
            last_send[q] = max(last_send[q], float(finish[f]))
    for request, sent in zip(data.requests, last_send, strict=True):
        lane, first, last = lanes[request.lane], request.first_phase, request.last_phase
        stall = sent - float(lane.end_s[last])
        # Bytes that leave as the prefill ends are not late; a prefill that never ends keeps its nan out of this.
        stall = 0.0 if stall <= stage.snap_s else stall
        prefill = float(lane.end_s[last] - lane.start_s[first])
        arrival = stage.critical.not_before_s[request.lane][first]
        ended = not math.isnan(prefill)
        times.prefill_s.append(prefill if ended else math.inf)
        times.decode_stall_s.append(stall)
        times.user_delay_s.append(float(delays[request.lane][last]) + stall if ended else math.inf)
        times.ttft_s.append(float(lane.end_s[last]) - arrival + stall if ended else math.inf)
    return times


def _critical_bytes(stage: Stage, ledger: Ledger) -> FloatArray:
    """Critical bytes on each port until the last send was delivered (without sends: in all), shape (P,)."""
    data = stage.data
    mark = ledger.mark
    until = mark.now_s if mark else ledger.end_s
    decode_loss = mark.decode_loss_s if mark else ledger.decode_loss_s
    total = np.zeros(len(data.ports))
    for k, (table, scale) in enumerate(zip(data.critical_bytes, stage.work_scale, strict=True)):
        share = scale.copy()
        if mark is not None:
            phase, left = mark.lanes[k]
            share[phase + 1 :] = 0.0
            if phase < len(share):
                work = stage.critical.work_s[k][phase]
                begun = not math.isnan(left) and work > 0
                share[phase] *= 1.0 - left / work if begun else 0.0
        total += share @ table
    for d, lost in enumerate(decode_loss):
        total += data.decode_rate[d] * (until - ledger.begin_s - lost)
    return total
