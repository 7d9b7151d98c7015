"""The schedule as an engine can apply it: read off a recorded replay, phase by phase, run-length over equal layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Rule, ScheduleRow
from pdmodel.hardware.ports import PortKind
from pdmodel.nic_lists import main_route
from pdmodel.replay.outcome import Replay
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind

RATE_DIGITS = 4
NEGLIGIBLE = 1e-9
SLOTS = ("wait", "phase", "tail")
ORDER = {rule: k for k, rule in enumerate(Rule)}


@dataclass(slots=True)
class _Stretch:
    """One flow's bytes in one slot of its lane, and the slot that they fell into; grows as segments are read."""

    lane: int
    index: int
    slot: str
    flow: int
    size_bytes: float
    start_s: float
    end_s: float
    slot_start_s: float
    rule: Rule


def schedule_rows(data: AllocationData, replay: Replay) -> tuple[ScheduleRow, ...]:
    """Rows of (lane, phase, flow): the mean rate while the flow moves, and which of the four rules that is.

    Parameters
    ----------
    data: the record that was replayed.
    replay: a replay of it with recorded segments.

    Returns
    -------
    Rows in order of lane, phase and flow; equal rows of layers that follow each other are one row.

    """
    routes = [main_route(data, replay, flow).name for flow in range(len(data.flows))]
    rows = [_row(data, replay, stretch, routes[stretch.flow]) for stretch in _stretches(data, replay)]
    return tuple(_run_length(rows))


def _stretches(data: AllocationData, replay: Replay) -> list[_Stretch]:
    found: dict[tuple[int, int, str, int], _Stretch] = {}
    locate = [_Locator(data, replay, lane) for lane in range(len(data.lanes))]
    route_ports = _flow_ports(data)
    for segment in replay.segments:
        length = segment.end_s - segment.start_s
        full = segment.critical + segment.kv >= _usable(data, segment.critical) * (1 - 1e-6)
        for flow in np.flatnonzero(segment.flow_rate > 0):
            lane = int(data.flow_lane[flow])
            index, slot, slot_start = locate[lane].at(0.5 * (segment.start_s + segment.end_s))
            lost = slot == "phase" and replay.lanes[lane].loss_s[index] > NEGLIGIBLE * data.duration_s[lane][index]
            shared = (segment.critical > 0) & route_ports[flow]
            rule = _rule(bool(shared.any()), bool((shared & full).any()), lost)
            key = (lane, index, slot, int(flow))
            size = float(segment.flow_rate[flow]) * length
            known = found.get(key)
            if known is None:
                found[key] = _Stretch(*key[:3], int(flow), size, segment.start_s, segment.end_s, slot_start, rule)
                continue
            known.size_bytes += size
            known.end_s = segment.end_s
            if ORDER[rule] > ORDER[known.rule]:
                known.rule = rule
    return sorted(found.values(), key=lambda s: (s.lane, s.index, SLOTS.index(s.slot), s.flow))


def throttled_nic_rate(data: AllocationData, replay: Replay) -> float:
    """The most that one NIC sends while a port that its sends share with a collective is full; 0 if none is [byte/s].

    A cap on a NIC's traffic class holds all its sends together, so this is their sum, not the rate of one flow. What
    fills the wire itself needs no cap and does not count.
    """
    wires = [e for e, port in enumerate(data.ports) if port.kind is PortKind.NIC_TX]
    sends = np.array([flow.kind is FlowKind.SEND for flow in data.flows], dtype=bool)
    most, crosses = 0.0, _flow_ports(data)
    for segment in replay.segments:
        full = segment.critical + segment.kv >= _usable(data, segment.critical) * (1 - 1e-6)
        held = sends & (segment.flow_rate > 0) & (crosses & full & (segment.critical > 0)).any(axis=1)
        for e in wires:
            rate = float(segment.kv[e]) if (held & crosses[:, e]).any() else 0.0
            most = max(most, rate if rate < 0.99 * data.capacity[e] else 0.0)
    return most


class _Locator:
    """Which slot of a lane a moment falls into."""

    def __init__(self, data: AllocationData, replay: Replay, lane: int) -> None:
        self.start, self.end = replay.lanes[lane].start_s, replay.lanes[lane].end_s
        self.count = len(data.lanes[lane].phases)

    def at(self, time_s: float) -> tuple[int, str, float]:
        index = int(np.searchsorted(self.end, time_s, side="right"))
        if index >= self.count:
            return self.count, "tail", float(self.end[-1]) if self.count else 0.0
        if time_s < self.start[index]:
            return index, "wait", float(self.end[index - 1]) if index else 0.0
        return index, "phase", float(self.start[index])


def _flow_ports(data: AllocationData) -> NDArray[np.bool_]:
    """Whether a flow may cross a port by any of its routes, shape (F, P)."""
    crosses = np.zeros((len(data.flows), len(data.ports)), dtype=bool)
    np.logical_or.at(crosses, data.route_flow, data.consumption > 0)
    return crosses


def _usable(data: AllocationData, critical: FloatArray) -> FloatArray:
    return np.where(
        critical > 0, np.minimum(data.capacity, np.maximum(data.capacity - data.guard, critical)), data.capacity
    )


def _rule(shared: bool, full: bool, lost: bool) -> Rule:
    if not shared:
        return Rule.IDLE
    if lost:
        return Rule.OVERDRAFT
    return Rule.CONTENDED if full else Rule.HEADROOM


def _row(data: AllocationData, replay: Replay, stretch: _Stretch, route: str) -> ScheduleRow:
    lane, outcome, flow = data.lanes[stretch.lane], replay.lanes[stretch.lane], data.flows[stretch.flow]
    inside = stretch.index < len(lane.phases)
    phase = lane.phases[min(stretch.index, len(lane.phases) - 1)]
    hold = 0.0
    if inside:
        hold = float(outcome.hold_s[stretch.index]) if stretch.slot == "phase" else float(outcome.wait_s[stretch.index])
    duration = stretch.end_s - stretch.start_s
    return ScheduleRow(
        lane=lane.name,
        slot=stretch.slot,
        request=phase.request if inside else flow.request,
        chunk=phase.chunk if inside else -1,
        operation=phase.operation if inside else "",
        first_layer=phase.layer if inside else -1,
        last_layer=phase.layer if inside else -1,
        flow=flow.name,
        route=route,
        rate_bytes_per_s=stretch.size_bytes / duration,
        offset_s=stretch.start_s - stretch.slot_start_s,
        duration_s=duration,
        hold_s=hold,
        rule=stretch.rule,
    )


def _run_length(rows: list[ScheduleRow]) -> Iterator[ScheduleRow]:
    """Merge rows of layers l, l + 1, ... that agree in everything else to ``RATE_DIGITS`` digits."""
    open_rows: dict[tuple[object, ...], ScheduleRow] = {}
    order: list[tuple[object, ...]] = []
    done: dict[tuple[object, ...], list[ScheduleRow]] = {}
    for row in rows:
        key: tuple[object, ...] = (row.lane, row.slot, row.request, row.chunk, row.operation, row.flow)
        known = open_rows.get(key)
        if known is not None and row.first_layer == known.last_layer + 1 and _alike(known, row):
            open_rows[key] = replace(known, last_layer=row.last_layer)
            continue
        if known is None:
            order.append(key)
        else:
            done.setdefault(key, []).append(known)
        open_rows[key] = row
    for key in order:
        yield from done.get(key, ())
        yield open_rows[key]


def _alike(a: ScheduleRow, b: ScheduleRow) -> bool:
    def close(x: float, y: float) -> bool:
        return abs(x - y) <= 10.0**-RATE_DIGITS * max(abs(x), abs(y), 1e-9)

    return (
        a.rule is b.rule
        and a.route == b.route
        and close(a.rate_bytes_per_s, b.rate_bytes_per_s)
        and close(a.duration_s, b.duration_s)
        and close(a.offset_s, b.offset_s)
        and close(a.hold_s, b.hold_s)
    )
