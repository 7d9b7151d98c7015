"""Times of one entry of a profile at many sizes at once: its branches, and the measured points it may carry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pdmodel.errors import InputError
from pdmodel.hardware.constants import Branch, MeasuredPoint
from pdmodel.units import GB, US

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]


def lines_s(branches: Sequence[Branch], sizes_bytes: FloatArray) -> tuple[FloatArray, IndexArray]:
    """Least of the lines that each size allows, and which branch it is.

    Equation: t = min over k with from_k <= S <= max_k of alpha_k + S / B_k; where no branch allows a size, the one
    whose range is nearest.

    Parameters: ``branches`` K of them; ``sizes_bytes`` (m,) [byte].
    Returns: times (m,) [s], index of the branch (m,).
    Validity: sizes inside those fitted; outside, the last line goes on.
    Source: as `pdmodel.costs.collectives.protocol.fastest_branch`, which is this for one size.
    """
    alpha = np.array([branch.alpha_us * US for branch in branches])[:, None]
    slope = np.array([1 / (branch.bandwidth_gb_per_s * GB) for branch in branches])[:, None]
    times = alpha + slope * sizes_bytes[None, :]
    limited = [k for k, b in enumerate(branches) if b.max_bytes is not None or b.from_bytes is not None]
    if limited:
        low = np.array([float(branch.from_bytes or 0) for branch in branches])[:, None]
        high = np.array([np.inf if branch.max_bytes is None else branch.max_bytes for branch in branches])[:, None]
        inside = (sizes_bytes >= low) & (sizes_bytes <= high)
        lost = ~inside.any(axis=0)
        if lost.any():
            size = sizes_bytes[lost]
            away = np.maximum(low - size, size - high)
            inside[:, lost] = away == away.min(axis=0)
        times = np.where(inside, times, np.inf)
    index = times.argmin(axis=0)
    return np.take_along_axis(times, index[None, :], axis=0)[0], index


def table_ratio(
    branches: Sequence[Branch], table: Sequence[MeasuredPoint], sizes_bytes: FloatArray, index: IndexArray
) -> FloatArray:
    """What bends a branch's line so that it passes through the measured points which that branch serves.

    Equation: ln r(S) = linear interpolation over ln S of ln(t_i / line(S_i)) between neighbours of one branch; beyond
    its first and last point r is theirs; 1 for a branch without points.

    Parameters: ``index`` (m,) the branch of each size, from `lines_s`.
    Returns: (m,) [-].
    Validity: a jump between branches stays where the branches put it; nothing is interpolated across it.
    Source: own definition. Straight log-log interpolation of the table is the case of a line t ~ S; the line carries
    the bend between alpha and S/B that it misses (docs/collectives.md holds both against sizes left out).
    """
    ratio = np.ones_like(sizes_bytes)
    points = np.array([point.size_bytes for point in table], dtype=np.float64)
    measured = np.array([point.time_us * US for point in table])
    line, served = lines_s(branches, points)
    logs = np.log(measured / line)
    for k in range(len(branches)):
        own, wanted = served == k, index == k
        if own.any() and wanted.any():
            ratio[wanted] = np.exp(np.interp(np.log(sizes_bytes[wanted]), np.log(points[own]), logs[own]))
    return ratio


def predict(
    branches: Sequence[Branch], sizes_bytes: FloatArray, table: Sequence[MeasuredPoint] = ()
) -> tuple[FloatArray, IndexArray]:
    """Time of a collective at many sizes, and the branch that runs at each.

    Equation: t = line of the branch (`lines_s`) times r (`table_ratio`; 1 without a table).

    Parameters: ``branches`` of one operation, implementation and number of ranks; ``sizes_bytes`` (m,) > 0 [byte], as
    nccl-tests prints them; ``table`` measured points of the same.
    Returns: times (m,) [s], index into ``branches`` (m,).
    Raises: `InputError` if a size is not positive or no branch reaches it.
    Validity: idle ports; the ports' own limits are put on by `pdmodel.costs.collectives.collective`.
    Source: constants from the profile of the box.
    """
    if not branches:
        raise InputError("no branch for the collective", expected="at least one")
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    if not (sizes > 0).all():
        raise InputError(f"a collective of {float(sizes.min()):g} bytes", expected="a positive size")
    if all(branch.max_bytes is not None and branch.max_bytes < sizes.max(initial=0.0) for branch in branches):
        raise InputError(f"no branch serves {float(sizes.max()):g} bytes", expected="a branch without max_bytes")
    times, index = lines_s(branches, sizes)
    if table:
        times = times * table_ratio(branches, table, sizes, index)
    return times, index
