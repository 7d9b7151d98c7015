"""How activities share full ports: bottleneck max-min fairness, the rule of the clock and of every replay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.timeline.phases import FloatArray

TOLERANCE = 1e-12
LONGEST_SEARCH = 100
"""Sweeps before progressive filling takes over."""

Entry = tuple[int, float, float]
"""Port, consumption per unit of speed, weight."""
Row = tuple[Entry, ...]
"""What one activity consumes: ports in ascending order, each with a positive consumption."""


@dataclass(slots=True)
class SharingCounts:
    """How often the rule was solved, and how often sweeps did not settle and progressive filling answered."""

    solved: int = 0
    progressive: int = 0


def share(demand: FloatArray, limit: FloatArray, weight: FloatArray, capacity: FloatArray) -> FloatArray:
    r"""Speeds of activities under bottleneck max-min sharing.

    .. math:: x_a = \min(limit_a, \min_{e\ full} w_{a,e} \theta_e / a_{a,e}),\quad
              \sum_a a_{a,e} x_a = \hat C_e \text{ on full ports, } \le \hat C_e \text{ elsewhere}

    Sweeps over the ports, in the order of the columns, from theta = infinity until no level moves by more than 1e-12
    (relative; from infinite to finite is a move). After 100 sweeps progressive filling of x_a max_e(a_{a,e} / w_{a,e})
    answers instead.

    Parameters
    ----------
    demand: a, consumption of each activity on each port at unit speed, shape (A, P) [byte/s], or [-] per byte/s of KV.
    limit: greatest speed of each activity, shape (A,); 1 for critical traffic, infinite for KV.
    weight: w, shares of a full port, shape (A, P) [-], positive where demand is.
    capacity: usable capacity, shape (P,) [byte/s].

    Returns
    -------
    x, shape (A,): speeds [-], or rates [byte/s] of KV. An activity without demand runs at its limit.

    Notes
    -----
    Valid for non-negative demand and capacity. With equal weights and consumptions of 0 or 1 this is max-min fairness
    (Bertsekas and Gallager, Data Networks, section 6.5.2); per-port weights and consumptions make it the bottleneck
    fairness of Bonald and Roberts, Multi-resource fairness, 2015.

    """
    rows = [
        tuple((int(e), float(demand[a, e]), float(weight[a, e])) for e in np.flatnonzero(demand[a]))
        for a in range(len(limit))
    ]
    return np.array(share_rows(rows, [float(x) for x in limit], [float(c) for c in capacity]), dtype=float)


def share_rows(
    rows: Sequence[Row], limit: Sequence[float], capacity: Sequence[float], counts: SharingCounts | None = None
) -> list[float]:
    """`share` on sparse rows: the form that replay calls, without arrays, as a handful of activities is live at once.

    ``rows`` as `Row`; ``limit`` one speed per row; ``capacity`` indexed by the ports of the rows [byte/s]. Ports are
    swept in ascending order. ``counts``, if given, is updated.
    """
    if counts is not None:
        counts.solved += 1
    if len(rows) == 1:
        return [_alone(rows[0], limit[0], capacity)]
    columns: dict[int, list[tuple[int, int, float, float]]] = {}
    wanted: dict[int, float] = {}
    for a, row in enumerate(rows):
        for j, (e, need, weight) in enumerate(row):
            columns.setdefault(e, []).append((a, j, need, weight))
            wanted[e] = wanted.get(e, 0.0) + need * limit[a]
    # A port that the limits alone cannot fill is never full.
    tight = [(e, capacity[e], columns[e]) for e in sorted(columns) if wanted[e] > capacity[e] * (1 + TOLERANCE)]
    if not tight:
        return list(limit)
    speed = _sweep(rows, limit, tight)
    if speed is None:
        if counts is not None:
            counts.progressive += 1
        speed = _fill(rows, limit, tight)
    return speed


def _alone(row: Row, limit: float, capacity: Sequence[float]) -> float:
    for e, need, _ in row:
        if need * limit > capacity[e] * (1 + TOLERANCE):
            limit = capacity[e] / need
    return limit


def _sweep(
    rows: Sequence[Row],
    limit: Sequence[float],
    tight: Sequence[tuple[int, float, list[tuple[int, int, float, float]]]],
) -> list[float] | None:
    """Speeds once the levels of the ports agree, or None after too many sweeps."""
    speed = list(limit)
    bound = [[math.inf] * len(row) for row in rows]
    level = [math.inf] * len(tight)
    for _ in range(LONGEST_SEARCH):
        settled = True
        for k, (_e, capacity, column) in enumerate(tight):
            wanted, total = [], 0.0
            for a, j, need, weight in column:
                # What the activity would do without this port: its speed, unless this port is what holds it.
                free, own = speed[a], bound[a]
                if own[j] <= free:
                    mine, own[j] = own[j], math.inf
                    free = min(limit[a], *own)
                    own[j] = mine
                wanted.append((need * free, weight, free))
                total += need * free
            found = math.inf
            if total > capacity * (1 + TOLERANCE):
                found = _level(wanted, capacity)
            old = level[k]
            if found != old and (math.isinf(old) or abs(found - old) > TOLERANCE * old):
                settled = False
            level[k] = found
            for (a, j, need, weight), (_, _, free) in zip(column, wanted, strict=True):
                held = weight * found / need
                bound[a][j] = held
                speed[a] = held if held < free else free
        if settled:
            return speed
    return None


def _level(wanted: Iterable[tuple[float, float, float]], capacity: float) -> float:
    """Theta of one full port: sum_a min(wanted_a, w_a theta) = capacity, for (wanted, weight, anything) triples."""
    ordered = sorted(wanted, key=lambda one: one[0] / one[1])
    weights = sum(one[1] for one in ordered)
    left = capacity
    for need, weight, _ in ordered:
        if need * weights > left * weight:
            break
        left -= need
        weights -= weight
    return max(left, 0.0) / weights if weights > 0 else math.inf


def _fill(
    rows: Sequence[Row],
    limit: Sequence[float],
    tight: Sequence[tuple[int, float, list[tuple[int, int, float, float]]]],
) -> list[float]:
    """Progressive filling: x_a max_e(a_{a,e} / w_{a,e}) rises alike for all until a limit or a port stops some."""
    slope = [max((need / weight for _, need, weight in row), default=0.0) for row in rows]
    speed = list(limit)
    rising = {a for a, s in enumerate(slope) if s > 0}
    while rising:
        height, stops = min((limit[a] * slope[a], -1 - a) for a in rising)
        for k, (_e, capacity, column) in enumerate(tight):
            gain = sum(need / slope[a] for a, _, need, _ in column if a in rising)
            if gain > 0:
                spent = sum(need * speed[a] for a, _, need, _ in column if a not in rising)
                height, stops = min((height, stops), (max(capacity - spent, 0.0) / gain, k))
        stopped = {-1 - stops} if stops < 0 else {a for a, *_ in tight[stops][2] if a in rising}
        for a in stopped:
            speed[a] = min(limit[a], height / slope[a])
        rising -= stopped
    return speed
