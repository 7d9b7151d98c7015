"""Memory over time: what KV fills in each pool under a replay, and when it is most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.errors import InputError
from pdmodel.replay.moments import Moments
from pdmodel.replay.outcome import Replay
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import MemoryKind, MemoryPool
from pdmodel.units import format_bytes, format_seconds

ROUNDING = 1e-9
"""Share of a pool's capacity that a peak may exceed it by."""


@dataclass(frozen=True, slots=True)
class PoolTrace:
    """One pool over time: ``bytes`` at ``times_s``, linear in between; two points of one time are a jump.

    ``at`` says in words where the peak is. Not ``exact``: the replay was not recorded, and the trace is an upper bound
    (bytes that fill count from their release on, bytes that leave when their flow is done).
    """

    name: str
    kind: MemoryKind
    capacity_bytes: float
    peak_bytes: float
    peak_s: float
    at: str
    times_s: FloatArray
    bytes: FloatArray
    exact: bool

    @property
    def fits(self) -> bool:
        """Whether the peak is within the capacity."""
        return self.peak_bytes <= self.capacity_bytes * (1 + ROUNDING)

    @property
    def text(self) -> str:
        """Pool, peak, capacity and when, on one line."""
        most = "" if self.exact else "at most "
        return (
            f"{self.name} holds {most}{format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)} at "
            f"{format_seconds(self.peak_s)} ({self.at})"
        )


def memory_trace(data: AllocationData, replay: Replay) -> tuple[PoolTrace, ...]:
    r"""What each pool of the record holds under a replay.

    .. math:: M(t) = base + \sum_{appeared} bytes + \sum_{f: w_f > 0} w_f c_f(t) - freed(t)

    c_f are the bytes that the flow has moved. With ``held_until_done`` the bytes :math:`|w_f| V_f` of a request's
    flows of negative weight are freed together, when the last of them is done; else byte by byte as they leave.

    Parameters
    ----------
    data: the record, with ``memory``.
    replay: a replay of it; with ``segments`` the traces are exact, without them upper bounds.

    Returns
    -------
    One trace per pool, in order. Flows that a replay never moved fill nothing and free nothing.

    Raises
    ------
    InputError: a pool names a flow or a lane that the record has not.

    """
    if not data.memory:
        return ()
    for pool in data.memory:
        unknown = [lane for lane, *_ in pool.appears if lane not in data.lane_index]
        if unknown:
            raise InputError(f"memory pool {pool.name!r}: there is no lane {unknown[0]!r}")
    progress = _Progress(data, replay)
    return tuple(
        _trace(data, replay, pool, weight, progress) for pool, weight in zip(data.memory, data.pool_weight, strict=True)
    )


class _Progress:
    """Bytes moved so far by sums of flows: linear between ``edges_s`` where a replay was recorded."""

    def __init__(self, data: AllocationData, replay: Replay) -> None:
        self.moments = Moments(data, replay.lanes)
        segments = replay.segments
        self.recorded = bool(segments)
        if self.recorded:
            self.edges_s = np.array([segments[0].start_s, *(segment.end_s for segment in segments)])
            self._rate = np.array([segment.flow_rate for segment in segments])
            self._length = np.array([segment.end_s - segment.start_s for segment in segments])

    def weighed(self, weight: FloatArray) -> FloatArray:
        """Sum of weights times bytes moved at each edge, shape (S + 1,) [bytes]; ``weight`` shape (F,)."""
        return np.concatenate([[0.0], np.cumsum((self._rate @ weight) * self._length)])


def _trace(
    data: AllocationData, replay: Replay, pool: MemoryPool, weight: FloatArray, progress: _Progress
) -> PoolTrace:
    jumps = _jumps(data, replay, pool, weight, progress)
    edges, level = np.zeros(0), np.zeros(0)
    smooth = np.where((weight > 0) | (not pool.held_until_done), weight, 0.0)
    if progress.recorded and smooth.any():
        edges, level = progress.edges_s, progress.weighed(smooth)
    times, held = _joined(edges, level, np.array(jumps, dtype=float).reshape(-1, 2))
    held += pool.base_bytes
    top = int(np.argmax(held))
    return PoolTrace(
        name=pool.name,
        kind=pool.kind,
        capacity_bytes=pool.capacity_bytes,
        peak_bytes=float(held[top]),
        peak_s=float(times[top]),
        at=_where(data, replay, pool, weight, float(times[top])),
        times_s=times,
        bytes=held,
        exact=progress.recorded or not weight.any(),
    )


def _jumps(
    data: AllocationData, replay: Replay, pool: MemoryPool, weight: FloatArray, progress: _Progress
) -> list[tuple[float, float]]:
    """(time, bytes) of what comes or goes at once."""
    at, finish = progress.moments.at, replay.flow_finish_s
    jumps = [(at(data.lane_index[lane], k, request), size) for lane, k, request, size in pool.appears]
    done: dict[tuple[str, str], tuple[float, float]] = {}
    for f in np.flatnonzero(weight).tolist():
        flow, size = data.flows[f], float(weight[f] * data.volume_bytes[f])
        if weight[f] < 0 and pool.held_until_done:
            last, freed = done.get((flow.lane, flow.request), (-math.inf, 0.0))
            # nan, a flow that never moved, is never done.
            ended = math.inf if np.isnan(finish[f]) else float(finish[f])
            done[flow.lane, flow.request] = (max(last, ended), freed + size)
        elif not progress.recorded and weight[f] < 0:
            jumps.append((float(finish[f]), size))
        elif not progress.recorded and not np.isnan(finish[f]):
            lane = int(data.flow_lane[f])
            jumps += [(at(lane, k, flow.request), float(weight[f]) * part) for k, part in flow.release]
    return [(time, size) for time, size in (*jumps, *done.values()) if math.isfinite(time)]


def _joined(edges: FloatArray, level: FloatArray, jumps: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Points of the sum of a piecewise linear curve and of jumps (time, bytes): one point a time, two at a jump."""
    jumps = jumps[np.argsort(jumps[:, 0], kind="stable")]
    total = np.concatenate([[0.0], np.cumsum(jumps[:, 1])])
    times = np.unique(np.concatenate([edges, jumps[:, 0]]))
    if not len(times):
        return np.zeros(1), np.zeros(1)
    smooth = np.interp(times, edges, level) if len(edges) else np.zeros(len(times))
    before = smooth + total[np.searchsorted(jumps[:, 0], times, side="left")]
    after = smooth + total[np.searchsorted(jumps[:, 0], times, side="right")]
    points = np.stack([before, after], axis=1).reshape(-1)
    keep = np.stack([np.ones(len(times), dtype=bool), before != after], axis=1).reshape(-1)
    return np.repeat(times, 2)[keep], points[keep]


def _where(data: AllocationData, replay: Replay, pool: MemoryPool, weight: FloatArray, time_s: float) -> str:
    """What the pool's lanes do at a time."""
    moving = [data.flows[f].lane for f in np.flatnonzero(weight).tolist()]
    names = dict.fromkeys([lane for lane, *_ in pool.appears] + moving)
    words = []
    for name in names:
        lane = data.lane_index[name]
        phases, outcome = data.lanes[lane].phases, replay.lanes[lane]
        i = int(np.searchsorted(outcome.end_s, time_s, side="right"))
        if i >= len(phases):
            text = "after the last prefill"
        elif time_s < outcome.start_s[i]:
            text = f"before {phases[i].request}" if i == 0 or phases[i - 1].request != phases[i].request else ""
            text = text or f"{phases[i].request} waits for its prefix"
        else:
            phase = phases[i]
            parts = [phase.request, f"chunk {phase.chunk}"] + ([f"layer {phase.layer}"] if phase.layer >= 0 else [])
            text = ", ".join([*parts, phase.operation] if phase.operation else parts)
        words.append(f"{name}: {text}" if len(data.lanes) > 1 else text)
    return "; ".join(words)
