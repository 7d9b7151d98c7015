"""Branches whose ranges are NCCL's own choice: lines fitted inside them, and the measured points they pass through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pdmodel.costs.calibration import CollectiveRow, robust_line
from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.selector import Situation, switches
from pdmodel.costs.collectives.selector.availability import PEER_OPERATIONS
from pdmodel.costs.collectives.selector.tuner import select
from pdmodel.errors import InputError
from pdmodel.hardware.constants import (
    Algorithm,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    MeasuredPoint,
    Protocol,
)
from pdmodel.units import GB, US

FloatArray = npt.NDArray[np.float64]
# Two measurements of one size (in place and out of place) further apart than this: one of them met a hiccup.
HICCUP = 0.10


def settle(times_s: Sequence[float]) -> float:
    """One time out of several measurements of one size.

    Equation: their geometric mean, or the least where the greatest is more than 10 % above it (hiccups only add time).

    >>> settle([1.0, 1.0]), settle([1.0, 2.0])
    (1.0, 1.0)
    """
    least = min(times_s)
    if max(times_s) > least * (1 + HICCUP):
        return least
    return float(np.exp(np.mean(np.log(times_s))))


def points_of(
    rows: Iterable[CollectiveRow], operation: CollectiveOperation, ranks: int
) -> tuple[FloatArray, FloatArray]:
    """Sizes (n,) [byte], rising, and one settled time (n,) [s] for each, of one operation and number of ranks.

    Raises: `InputError` if there is no such row, or a size or time that is not positive.
    """
    by_size: dict[float, list[float]] = {}
    for row in rows:
        if row.operation is operation and row.ranks == ranks:
            if row.size_bytes <= 0 or row.time_s <= 0:
                raise InputError(f"a row with size {row.size_bytes:g} B and time {row.time_s:g} s", expected="positive")
            by_size.setdefault(row.size_bytes, []).append(row.time_s)
    if not by_size:
        raise InputError(f"no row of {operation.value} among {ranks} ranks")
    sizes = np.array(sorted(by_size))
    return sizes, np.array([settle(by_size[size]) for size in sizes])


def without_hiccups(times_s: FloatArray) -> FloatArray:
    """Times of one protocol, sizes rising, without single ones that a hiccup made longer.

    Equation: t_i, or the least of the later t where t_i is more than 10 % above it: a larger message by the same
    protocol takes no less time, and hiccups only add.

    Parameters and returns: (n,) [s].
    Source: own definition.

    >>> without_hiccups(np.array([7.0, 17.0, 7.0, 8.0, 7.9])).tolist()
    [7.0, 7.0, 7.0, 8.0, 7.9]
    """
    least = np.minimum.accumulate(times_s[::-1])[::-1]
    return np.where(times_s > least * (1 + HICCUP), least, times_s)


def _plain(operation: CollectiveOperation) -> tuple[tuple[float, Algorithm, Protocol], ...]:
    algorithm = Algorithm.PAIRWISE if operation in PEER_OPERATIONS else Algorithm.RING
    return ((0.0, algorithm, Protocol.SIMPLE),)


def _ranges(
    operation: CollectiveOperation, situation: Situation | None, sizes: FloatArray
) -> list[tuple[float, Algorithm, Protocol]]:
    """NCCL's ranges that hold a size each; the first begins at 0. On NVLink all-to-all changes without a mark."""
    smooth = situation is None or (operation in PEER_OPERATIONS and situation.nvlink)
    marks = _plain(operation) if situation is None or smooth else switches(operation, situation)
    edges = [mark for mark, _, _ in marks] + [np.inf]
    held = [m for m, (low, high) in zip(marks, pairwise(edges), strict=True) if ((sizes >= low) & (sizes < high)).any()]
    return [(0.0, held[0][1], held[0][2]), *held[1:]]


def _line(
    sizes: FloatArray,
    times: FloatArray,
    nominal: tuple[float, float] | None,
) -> tuple[float, float]:
    """Alpha [s] and B [byte/s] of one range; one point alone scales NCCL's own line through it."""
    if sizes.size > 1:
        return robust_line(sizes, times)
    alpha, bandwidth = (float(times[0]) / 2, 2 * float(sizes[0] / times[0])) if nominal is None else nominal
    scale = float(times[0]) / (alpha + float(sizes[0]) / bandwidth)
    return alpha * scale, bandwidth / scale


def _nominal(operation: CollectiveOperation, situation: Situation | None, size: float) -> tuple[float, float] | None:
    """NCCL's own latency [s] and bandwidth [byte/s] of what it takes at a size."""
    if situation is None:
        return None
    taken = select(operation, np.array([size]), situation).at(0)
    return taken.latency_us * US, taken.bandwidth_gb_per_s * GB


def fit_switched(
    sizes_bytes: FloatArray,
    times_s: FloatArray,
    operation: CollectiveOperation,
    ranks: int,
    situation: Situation | None,
    *,
    source: str,
    carry_table: bool = True,
) -> CollectiveConstants:
    """Constants whose branches change where NCCL's own choice does.

    Equation: the ranges of `switches`; in each the line of least mean relative error (`robust_line`), one point alone
    scaling NCCL's line; with ``carry_table`` the measured points themselves (`without_hiccups` where ranges are known),
    which the lines are bent through.

    Parameters: ``sizes_bytes``, ``times_s`` (n,) of one operation and number of ranks, sizes rising; ``situation`` what
    NCCL's choice depends on, its graph above all; None where that is not known: one range.
    Returns: `CollectiveConstants`, its errors those on the points as given.
    Raises: `InputError` as `points_of` and `switches`.
    Validity: the graph's bandwidth is NCCL's (a profile's ``nccl`` section), not the wires'.
    Source: own fit on NCCL 2.30.7's ranges; errors on sizes left out in docs/collectives.md.
    """
    ranges = _ranges(operation, situation, sizes_bytes)
    edges = [mark for mark, _, _ in ranges] + [np.inf]
    branches = []
    given, times_s = times_s, times_s.copy()
    for k, (low, high) in enumerate(pairwise(edges)):
        own = (sizes_bytes >= low) & (sizes_bytes < high)
        if situation is not None:
            times_s[own] = without_hiccups(times_s[own])
        middle = float(sizes_bytes[own][0])
        alpha, bandwidth = _line(sizes_bytes[own], times_s[own], _nominal(operation, situation, middle))
        branches.append(
            Branch(
                protocol=ranges[k][2],
                algorithm=ranges[k][1],
                alpha_us=float(f"{alpha / US:.5g}"),
                bandwidth_gb_per_s=float(f"{bandwidth / GB:.5g}"),
                from_bytes=round(low) if k else None,
                max_bytes=None if np.isinf(high) else round(high) - 1,
            )
        )
    table = tuple(
        MeasuredPoint(size_bytes=int(size), time_us=float(f"{time / US:.5g}"))
        for size, time in zip(sizes_bytes, times_s, strict=True)
    )
    carried = table if carry_table else ()
    error = np.abs(predict(branches, sizes_bytes, carried)[0] / given - 1)
    return CollectiveConstants(
        operation=operation,
        ranks=ranks,
        branches=tuple(branches),
        table=carried,
        source=source,
        mean_error=round(float(error.mean()), 4),
        max_error=round(float(error.max()), 4),
    )
