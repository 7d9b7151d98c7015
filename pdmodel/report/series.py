"""Rates over time for pictures: exact means over bins of a recorded replay, and the window worth a closer look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdmodel.errors import PdmodelError
from pdmodel.timeline.phases import FloatArray, PhaseKind
from pdmodel.units import format_seconds

if TYPE_CHECKING:
    from pdmodel.answer import Plan

MOST_STEPS = 360
"""More steps than this cannot be told apart on paper."""
LEAST_PHASES, LEAST_LAYERS = 8, 16


@dataclass(frozen=True, slots=True)
class Steps:
    """A function of time, constant between edges: ``edges_s`` (n+1,), ``values`` (n, ...)."""

    edges_s: FloatArray
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, what it shows, and the bins to use where it holds too many breakpoints to be drawn."""

    start_s: float
    end_s: float
    title: str
    bins_s: FloatArray
    bin_words: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The segments of a replay as arrays: times (n,) [s], rates per port (n, P) and flow (n, F) [byte/s]."""

    start_s: FloatArray
    end_s: FloatArray
    critical: FloatArray
    kv: FloatArray
    flow: FloatArray

    @classmethod
    def of(cls, plan: Plan) -> Recorded:
        """The recording inside a plan; `PdmodelError` where its replay was not recorded."""
        segments = [segment for segment in plan.replay.segments if segment.end_s > segment.start_s]
        if not segments:
            raise PdmodelError("the plan's replay was not recorded, so there is nothing to plot")
        return cls(
            np.array([segment.start_s for segment in segments]),
            np.array([segment.end_s for segment in segments]),
            np.array([segment.critical for segment in segments]),
            np.array([segment.kv for segment in segments]),
            np.array([segment.flow_rate for segment in segments]),
        )

    def cuts(self, window: Window) -> FloatArray:
        """All breakpoints in the window, or its bins where those are too many."""
        inside = (self.end_s > window.start_s) & (self.start_s < window.end_s)
        cuts = np.unique(np.concatenate([self.start_s[inside], self.end_s[inside], [window.start_s, window.end_s]]))
        cuts = cuts[(cuts >= window.start_s) & (cuts <= window.end_s)]
        return window.bins_s if len(cuts) > MOST_STEPS else cuts

    def steps(self, values: FloatArray, window: Window) -> Steps:
        """``values`` (n, ...) over the window: exact where few breakpoints lie in it, else means over its bins."""
        cuts = self.cuts(window)
        return Steps(cuts, binned(self.start_s, self.end_s, values, cuts))


def binned(start_s: FloatArray, end_s: FloatArray, values: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Mean of a step function over bins, exactly.

    Parameters
    ----------
    start_s, end_s: stretches in order, shape (n,), not overlapping [s]; between them the function is zero.
    values: its value on each, shape (n,) or (n, k).
    edges_s: bins, shape (m+1,) [s].

    Returns
    -------
    Means, shape (m,) or (m, k); 0 over a bin of no length.

    """
    flat = values.reshape(len(start_s), -1)
    times = np.stack([start_s, end_s], axis=1).ravel()
    area = np.concatenate([np.zeros((1, flat.shape[1])), np.cumsum(flat * (end_s - start_s)[:, None], axis=0)])
    at_times = np.repeat(area, 2, axis=0)[1:-1]
    at_edges = np.stack([np.interp(edges_s, times, column) for column in at_times.T], axis=1)
    width = np.diff(edges_s)[:, None]
    mean = np.divide(np.diff(at_edges, axis=0), width, out=np.zeros((len(width), flat.shape[1])), where=width > 0)
    return mean.reshape(len(edges_s) - 1, *values.shape[1:])


def whole_run(plan: Plan, recorded: Recorded) -> Window:
    """From the start to the last byte; bins of whole layers, so that bursts and bins make no beat."""
    start, end = float(recorded.start_s[0]), float(recorded.end_s[-1])
    lane = max(range(len(plan.data.lanes)), key=lambda k: len(plan.data.lanes[k].phases))
    # What is outside the layers is too short for a bin of its own, so it goes with the layer before.
    first = [i for i in _layer_starts(plan, lane) if i == 0 or plan.data.lanes[lane].phases[i].layer >= 0]
    starts = plan.replay.lanes[lane].start_s[first]
    if len(starts) < LEAST_LAYERS:
        bins = np.linspace(start, end, MOST_STEPS)
        return Window(start, end, "whole run", bins, f"means over {format_seconds(float(bins[1] - bins[0]))}")
    every = -(-len(starts) // MOST_STEPS)
    inner = np.append(starts[::every], plan.replay.lanes[lane].end_s[-1])
    width = float(np.median(np.diff(inner)))
    before, after = np.arange(start, inner[0], width), np.arange(inner[-1] + width, end, width)
    bins = np.unique(np.concatenate([before, inner, after, [end]]))
    words = "means over each layer" if every == 1 else f"means over {every} layers"
    return Window(start, end, "whole run", bins, words)


def closest_look(plan: Plan, recorded: Recorded, ports: Sequence[int]) -> Window | None:
    """Two layers in a row in which critical traffic and KV meet most on ``ports``; None where all can be seen anyway.

    Where a layer has few phases, more layers, so that several bursts are seen.
    """
    best, best_score = None, -1.0
    meeting = _meeting(recorded, ports)
    for lane, outcome in enumerate(plan.replay.lanes):
        first = _layer_starts(plan, lane)
        count = max(2, -(-LEAST_PHASES * len(first) // len(plan.data.lanes[lane].phases)))
        if len(first) < 4 * count:
            continue
        edges = np.append(outcome.start_s[first], outcome.end_s[-1])
        area = np.append(0.0, np.cumsum(binned(recorded.start_s, recorded.end_s, meeting, edges) * np.diff(edges)))
        scores = area[count:] - area[:-count]
        # What is outside the layers (embedding, logits) is not what a closer look is for.
        outside = np.append(0, np.cumsum([plan.data.lanes[lane].phases[i].layer < 0 for i in first]))
        scores[outside[count:] > outside[:-count]] = -1.0
        # Among equals the middle one: the first and the last layers are special.
        ties = np.flatnonzero(scores >= scores.max() * (1 - 1e-6))
        k = int(ties[len(ties) // 2])
        if scores[k] > best_score:
            start, end = float(edges[k]), float(edges[k + count])
            title = _window_title(plan, lane, first[k], first[k + count - 1])
            best = Window(start, end, title, np.linspace(start, end, MOST_STEPS), "means over short bins")
            best_score = float(scores[k])
    return best


def _meeting(recorded: Recorded, ports: Sequence[int]) -> FloatArray:
    """How much critical traffic and KV meet in each segment: on one port; where they never do, at one time."""
    critical, kv = recorded.critical[:, ports], recorded.kv[:, ports]
    together: FloatArray = np.minimum(critical, kv).sum(axis=1)
    at_once: FloatArray = np.minimum(critical.sum(axis=1), kv.sum(axis=1))
    return together if together.any() else at_once


def _layer_starts(plan: Plan, lane: int) -> list[int]:
    """The first phase of each pass over a layer."""
    keys = [(phase.request, phase.chunk, phase.layer) for phase in plan.data.lanes[lane].phases]
    return [i for i, key in enumerate(keys) if i == 0 or keys[i - 1] != key]


def _window_title(plan: Plan, lane: int, first: int, last: int) -> str:
    begin, end = plan.data.lanes[lane].phases[first], plan.data.lanes[lane].phases[last]
    where = plan.data.lanes[lane].name
    if begin.request not in {"", where}:
        where += f", {begin.request}"
    joint = "and" if end.layer == begin.layer + 1 else "to"
    return f"{where}, chunk {begin.chunk}, layers {begin.layer} {joint} {end.layer}"


def collective_share(plan: Plan, lane: int, edges_s: FloatArray) -> FloatArray:
    """Share of each bin in which the lane runs a collective or fused phase, shape (m,) [-]."""
    outcome = plan.replay.lanes[lane]
    running = np.array([phase.kind is not PhaseKind.COMPUTE for phase in plan.data.lanes[lane].phases], dtype=float)
    real = outcome.end_s > outcome.start_s
    return binned(outcome.start_s[real], outcome.end_s[real], running[real], edges_s)
