"""Constants from measurements: rows of a collective's table in, branches of its time out.

Pure functions: nothing is written; a command line may write what they return into a profile.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

import numpy as np
import numpy.typing as npt

from pdmodel.costs.collectives.bandwidth import busbw_factor
from pdmodel.errors import InputError
from pdmodel.hardware.constants import (
    Algorithm,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    Implementation,
    Protocol,
)
from pdmodel.units import GB, MS, US

FloatArray = npt.NDArray[np.float64]

# A fitted bandwidth above this is a flat line whose slope is noise; it keeps S/B finite.
_FLAT_BYTES_PER_S = 1e16


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measured point: ``size_bytes`` as nccl-tests prints it, ``time_s`` of one call."""

    operation: CollectiveOperation
    ranks: int
    size_bytes: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What a branch to be fitted is: protocol, algorithm and, if its code has one, the largest size it serves.

    ``fastest_gb_per_s``: no larger B is believed, as a port could not carry it; few rows alone would not say so.
    """

    protocol: Protocol
    algorithm: Algorithm
    max_bytes: int | None = None
    fastest_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Branches and their relative errors on the rows they were fitted to."""

    branches: tuple[Branch, ...]
    mean_error: float
    max_error: float
    points: int


def robust_line(
    size_bytes: FloatArray,
    time_s: FloatArray,
    *,
    least_alpha_s: float = 0.0,
    fastest_bytes_per_s: float = _FLAT_BYTES_PER_S,
) -> tuple[float, float]:
    """The line alpha + S / B of least mean relative error.

    Equation: min over alpha >= alpha_0 > 0 and B <= B_0 of mean_i |alpha + S_i/B - t_i| / t_i. A least-absolute-
    deviations line with two parameters passes through two of the points, or has one parameter at its limit and passes
    through one, so all candidates are tried: exact, and not moved by outliers.

    Parameters: ``size_bytes`` (n,) [byte]; ``time_s`` (n,) [s]; both positive, n >= 1. ``least_alpha_s`` alpha_0 (a
    thousandth of the least time if that is more) [s]; ``fastest_bytes_per_s`` B_0 [byte/s].
    Returns: alpha [s], B [byte/s].
    Source: linear programming (a basic optimal solution of the L1 problem); own derivation.

    >>> sizes = np.array([1e3, 1e6, 2e6])
    >>> alpha, bandwidth = robust_line(sizes, 1e-5 + sizes / 1e10)
    >>> round(alpha * 1e6, 6), round(bandwidth / 1e9, 6)
    (10.0, 10.0)
    """
    first, second = np.triu_indices(size_bytes.size, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (time_s[second] - time_s[first]) / (size_bytes[second] - size_bytes[first])
    alpha = time_s[first] - slope * size_bytes[first]
    steepest = np.full(time_s.size, 1 / fastest_bytes_per_s)
    floor = max(float(time_s.min()) * 1e-3, least_alpha_s)
    corner = [floor], [1 / fastest_bytes_per_s]
    slope = np.concatenate([slope, steepest, (time_s - floor) / size_bytes, corner[1]])
    alpha = np.concatenate([alpha, time_s - steepest * size_bytes, np.full(time_s.size, floor), corner[0]])
    legal = np.isfinite(slope) & (slope >= 1 / fastest_bytes_per_s) & (alpha >= floor)
    slope, alpha = slope[legal], alpha[legal]
    predicted = alpha[:, None] + slope[:, None] * size_bytes[None, :]
    error = np.abs(predicted / time_s - 1).mean(axis=1)
    best = int(error.argmin())
    return float(alpha[best]), float(1 / slope[best])


def predicted_s(branches: Sequence[Branch], size_bytes: FloatArray) -> FloatArray:
    """Least over the branches that a size allows of alpha + S/B; ``size_bytes`` (n,) [byte] -> (n,) [s]."""
    times = np.full((len(branches), size_bytes.size), np.inf)
    for k, branch in enumerate(branches):
        limit = np.inf if branch.max_bytes is None else branch.max_bytes
        allowed = size_bytes <= limit
        times[k, allowed] = branch.alpha_us * US + size_bytes[allowed] / (branch.bandwidth_gb_per_s * GB)
    return np.asarray(times.min(axis=0), dtype=np.float64)


def relative_errors(branches: Sequence[Branch], rows: Iterable[CollectiveRow]) -> FloatArray:
    """|predicted / measured - 1| of each row, (n,) [-]."""
    listed = list(rows)
    size = np.array([row.size_bytes for row in listed], dtype=np.float64)
    time = np.array([row.time_s for row in listed], dtype=np.float64)
    return np.asarray(np.abs(predicted_s(branches, size) / time - 1), dtype=np.float64)


def _branch(shape: Shape, line: tuple[float, float]) -> Branch:
    # Four significant digits: more would claim what a measurement with 1 % noise cannot give.
    alpha, bandwidth = (float(f"{value:.4g}") for value in (line[0] / US, line[1] / GB))
    return Branch(
        protocol=shape.protocol,
        algorithm=shape.algorithm,
        alpha_us=alpha,
        bandwidth_gb_per_s=bandwidth,
        max_bytes=shape.max_bytes,
    )


def _cuts(size_bytes: FloatArray, shapes: Sequence[Shape]) -> Iterable[tuple[int, ...]]:
    """Every way to hand consecutive rows to the shapes; a shape with ``max_bytes`` ends exactly there."""
    count = size_bytes.size
    fixed = [None if s.max_bytes is None else int((size_bytes <= s.max_bytes).sum()) for s in shapes[:-1]]
    for inner in combinations(range(2, count - 1), len(shapes) - 1):
        cut = (0, *inner, count)
        if min(np.diff(cut)) >= 2 and all(want is None or want == got for want, got in zip(fixed, inner, strict=True)):
            yield cut


def fit_branches(rows: Iterable[CollectiveRow], shapes: Sequence[Shape]) -> Fit:
    """Branches, small messages first, whose minimum has the least mean relative error on the rows.

    Equation: t(S) = min_k (alpha_k + S / B_k) with alpha_1 <= alpha_2 <= ... (a protocol for larger messages never
    starts sooner). Every split of the sorted sizes into consecutive groups of two or more is tried; each group gets its
    `robust_line`; the split whose *minimum over branches* is best on all rows wins. Rows of equal size count once, with
    their median.

    Parameters: ``rows`` of one operation and one number of ranks; ``shapes`` K of them, small messages first.
    Returns: `Fit` with K branches.
    Raises: `InputError` with fewer than 2 K sizes, or a size or time that is not positive.
    Validity: a minimum of rising lines cannot fall when the size grows; tables that do (NCCL stays with LL beyond the
    crossing) keep an error there.
    Source: protocols as NCCL 2.30 src/graph/tuning.cc names them; the fit is our own.
    """
    by_size: dict[float, list[float]] = {}
    for row in rows:
        if row.size_bytes <= 0 or row.time_s <= 0:
            raise InputError(f"a row with size {row.size_bytes:g} B and time {row.time_s:g} s", expected="positive")
        by_size.setdefault(row.size_bytes, []).append(row.time_s)
    if len(by_size) < 2 * len(shapes):
        raise InputError(
            f"{len(by_size)} sizes cannot fix {len(shapes)} branches", expected=f"at least {2 * len(shapes)} sizes"
        )
    size = np.array(sorted(by_size), dtype=np.float64)
    time = np.array([median(by_size[s]) for s in sorted(by_size)], dtype=np.float64)
    lines: dict[tuple[int, int, float, float], tuple[float, float]] = {}
    best: Fit | None = None
    for cut in _cuts(size, shapes):
        branches: list[Branch] = []
        for shape, (low, high) in zip(shapes, pairwise(cut), strict=True):
            least = branches[-1].alpha_us * US if branches else 0.0
            fastest = _FLAT_BYTES_PER_S if shape.fastest_gb_per_s is None else shape.fastest_gb_per_s * GB
            key = (low, high, least, fastest)
            if key not in lines:
                lines[key] = robust_line(
                    size[low:high], time[low:high], least_alpha_s=least, fastest_bytes_per_s=fastest
                )
            branches.append(_branch(shape, lines[key]))
        error = np.abs(predicted_s(branches, size) / time - 1)
        if best is None or error.mean() < best.mean_error:
            best = Fit(tuple(branches), float(error.mean()), float(error.max()), size.size)
    if best is None:
        raise InputError("no split of the sizes agrees with the branches' max_bytes")
    return best


def fit_collective(
    rows: Iterable[CollectiveRow],
    operation: CollectiveOperation,
    ranks: int,
    shapes: Sequence[Shape],
    *,
    source: str,
    implementation: Implementation = Implementation.NCCL,
) -> CollectiveConstants:
    """Constants of one operation among ``ranks`` GPUs from the rows that are about it (others are ignored)."""
    fit = fit_branches((row for row in rows if row.operation is operation and row.ranks == ranks), shapes)
    return CollectiveConstants(
        operation=operation,
        implementation=implementation,
        ranks=ranks,
        branches=fit.branches,
        source=source,
        mean_error=round(fit.mean_error, 4),
        max_error=round(fit.max_error, 4),
    )


def leave_one_size_out(rows: Iterable[CollectiveRow], shapes: Sequence[Shape]) -> FloatArray:
    """Relative error of every size when it is predicted from the others, (n,) [-]: what an unseen size will have."""
    listed = sorted(rows, key=lambda row: row.size_bytes)
    errors = []
    for size in sorted({row.size_bytes for row in listed}):
        kept = fit_branches([row for row in listed if row.size_bytes != size], shapes)
        left = [row for row in listed if row.size_bytes == size]
        errors.append(float(relative_errors(kept.branches, left).mean()))
    return np.array(errors, dtype=np.float64)


# --------------------------------------------------------------------------------------------------------------------
# Tables


def _operation(name: str) -> CollectiveOperation:
    return CollectiveOperation("all_to_all" if name in {"alltoall", "all_to_all"} else name)


def aiconfigurator_rows(lines: Iterable[str], select: Mapping[str, str]) -> list[CollectiveRow]:
    """Rows of an aiconfigurator table (``nccl_perf`` or ``custom_allreduce_perf``) as CSV text.

    There ``message_size`` counts elements of two bytes (half, bfloat16) and ``latency`` is in ms. Only rows whose
    columns equal ``select`` are read, e.g. {"nccl_dtype": "half"} or {"backend": "vllm_graph"}.
    """
    rows = []
    for record in csv.DictReader(lines):
        if any(record.get(column) != value for column, value in select.items()):
            continue
        dtype = record.get("nccl_dtype") or record.get("allreduce_dtype") or ""
        width = {"half": 2, "bfloat16": 2, "float16": 2, "int8": 1}.get(dtype)
        if width is None:
            raise InputError(f"found dtype {dtype!r}", expected="half, float16, bfloat16 or int8")
        rows.append(
            CollectiveRow(
                _operation(record["op_name"]),
                int(record["num_gpus"]),
                float(record["message_size"]) * width,
                float(record["latency"]) * MS,
            )
        )
    return rows


def nccl_tests_rows(lines: Iterable[str], places: Sequence[str] = ("out", "unknown")) -> list[CollectiveRow]:
    """Rows of a table with columns collective, n_ranks, size_bytes, time_us, place (out-of-place by default)."""
    return [
        CollectiveRow(
            _operation(record["collective"]),
            int(record["n_ranks"]),
            float(record["size_bytes"]),
            float(record["time_us"]) * US,
        )
        for record in csv.DictReader(lines)
        if record["place"] in places and float(record["size_bytes"]) > 0
    ]


def busbw_row(operation: CollectiveOperation, ranks: int, size_bytes: float, busbw_bytes_per_s: float) -> CollectiveRow:
    """A row from a published busbw: t = factor * S / busbw, the factor as nccl-tests has it."""
    time_s = busbw_factor(operation, ranks) * size_bytes / busbw_bytes_per_s
    return CollectiveRow(operation, ranks, size_bytes, time_s)
