"""A box's collective constants from measured tables of it: how many lines, how good, what becomes of the old ones.

Pure: tables and a profile in, constants and errors out. The fit of given lines is `pdmodel.costs.calibration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, sqrt
from statistics import mean

import numpy as np

from pdmodel.costs.calibration import CollectiveRow, Fit, Shape, fit_branches
from pdmodel.costs.collectives import collective
from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.protocol import fastest_branch, wire_factor
from pdmodel.costs.collectives.scaling import RELATIVES, ring_latency_us
from pdmodel.costs.collectives.wire import payload_per_rank, wire_per_byte
from pdmodel.costs.switching import settle
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.constants import (
    Algorithm,
    BoundBy,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    Implementation,
    MeasuredPoint,
    Protocol,
)
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.units import GB, GIB, KIB, MIB, US

_O = CollectiveOperation
# Repeated runs of one size differ by this much; a fit closer than that is luck.
NOISE = 0.005
# Measured lines of LL are at most this share of Simple's bandwidth (0.33 to 0.65 on PCIe; the code's bound is 1/2).
LL_SHARE = 0.7
# The latency of a table that begins above this size is not measured.
LATENCY_BYTES = 64 * KIB
# Lines of a table on one node; between nodes one more, as algorithms change with the size there.
MOST_LINES = 3
# Growth, as a power of the size, by which a step must fall short of its neighbours for NCCL to have jumped there.
LEAST_DIP = 0.15
# The least bandwidth that a level line is given: at 8 KiB, where such lines end, it is a microsecond.
FLAT_GB_PER_S = 10
# With fewer sizes none is held out.
LEAST_HELD_OUT = 6
# Below this share of every port a collective needs a reason.
EXPLAINED_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Band:
    """Sizes above ``above_bytes``, up to ``to_bytes``."""

    name: str
    above_bytes: float
    to_bytes: float

    def holds(self, size_bytes: float) -> bool:
        """Whether a size is in it."""
        return self.above_bytes < size_bytes <= self.to_bytes


BANDS = (
    Band("to 4 KiB", 0, 4 * KIB),
    Band("8-256 KiB", 4 * KIB, 256 * KIB),
    Band("0.5-4 MiB", 256 * KIB, 4 * MIB),
    Band("above 4 MiB", 4 * MIB, inf),
)


@dataclass(frozen=True)
class MeasuredTable:
    """What was measured of one operation among ``ranks`` GPUs on ``nodes`` nodes.

    ``rows`` out of place (in place where there is nothing else), ``repeats`` the same calls in place: their difference
    is the noise of the table.
    """

    operation: CollectiveOperation
    ranks: int
    nodes: int
    rows: tuple[CollectiveRow, ...]
    repeats: tuple[CollectiveRow, ...] = ()

    @cached_property
    def times(self) -> Mapping[float, float]:
        """Time of each size, rising: both places settled, which leaves out the hiccups of one [byte] -> [s]."""
        found: dict[float, list[float]] = {}
        for row in (*self.rows, *self.repeats):
            found.setdefault(row.size_bytes, []).append(row.time_s)
        return {size: settle(found[size]) for size in sorted(found)}

    @property
    def sizes(self) -> list[float]:
        """Sizes, each once, rising [byte]."""
        return list(self.times)

    def part(self, sizes: Iterable[float]) -> tuple[CollectiveRow, ...]:
        """The settled rows of some sizes."""
        return tuple(CollectiveRow(self.operation, self.ranks, size, self.times[size]) for size in sizes)


@dataclass(frozen=True, slots=True)
class BandErrors:
    """Mean relative errors in one band of sizes; None where nothing falls into it.

    ``fit`` on all rows, ``held_out`` of the sizes that the fit of the others did not see, ``worst`` of those,
    ``before`` of the old profile, ``noise`` between in place and out of place.
    """

    band: str
    sizes: int
    fit: float | None
    held_out: float | None
    worst: float | None
    before: float | None
    noise: float | None


@dataclass(frozen=True, slots=True)
class TableCalibration:
    """New constants of one table, their errors, and what should be known about them."""

    table: MeasuredTable
    constants: CollectiveConstants
    bands: tuple[BandErrors, ...]
    overall: BandErrors
    before: CollectiveConstants | None
    notes: tuple[str, ...]


# ---- the fit ---------------------------------------------------------------------------------------------------------


def fit_table(rows: Sequence[CollectiveRow], most: int) -> Fit:
    """The number of lines that a table bears, where NCCL jumps from one to another, and those lines.

    Equation: the k <= ``most`` lines and at most one jump of least n ln(max(e, e_0)) + (k + j) ln n, with e the mean
    relative error of `fit_branches` with k lines on n sizes, on either side of the jump if there is one (j = 1), and
    e_0 = `NOISE`: BIC for errors of Laplace's distribution, two parameters a line. Jumps are tried where the time grows
    less from one size to the next than around (`_dips`): NCCL leaves a protocol later than lines cross.

    Parameters: ``rows`` of one operation and number of ranks, one a size; ``most`` >= 1 lines.
    Returns: `Fit`; after a jump branches have ``from_bytes``, before it ``max_bytes``.
    Raises: `InputError` with fewer than two sizes.
    Validity: one jump a table.
    Source: Schwarz 1978 for the criterion; own fit. Protocols are named by `named_branches`.
    """
    ordered = sorted(rows, key=lambda row: row.size_bytes)
    tried = [(0, fit) for fit in _smooth_fits(ordered, most)]
    if most > 1:
        tried += [(1, _jump(ordered, cut, most)) for cut in _dips(ordered)]

    def criterion(jumps: int, fit: Fit) -> float:
        return len(ordered) * log(max(fit.mean_error, NOISE)) + (len(fit.branches) + jumps) * log(len(ordered))

    return min(tried, key=lambda found: criterion(*found))[1]


def _smooth_fits(rows: Sequence[CollectiveRow], most: int) -> list[Fit]:
    # A level stretch has no slope to speak of; what no link of today carries would only look like one.
    fastest = max(2 * max(row.size_bytes / row.time_s for row in rows) / GB, FLAT_GB_PER_S)
    shape = Shape(Protocol.SIMPLE, Algorithm.RING, None, fastest)
    return [fit_branches(rows, [shape] * count) for count in range(1, most + 1) if count == 1 or len(rows) >= 3 * count]


def _dips(rows: Sequence[CollectiveRow]) -> list[int]:
    """Where the time grows less than around: the row after each, the deepest first, at most four."""
    size, time = np.array([row.size_bytes for row in rows]), np.array([row.time_s for row in rows])
    if size.size < 6:
        return []
    growth = np.diff(np.log(time)) / np.diff(np.log(size))
    depth = (growth[:-2] + growth[2:]) / 2 - growth[1:-1]
    deepest = np.argsort(-depth)[:4]
    return [int(k) + 2 for k in deepest if depth[k] > LEAST_DIP and 2 <= k + 2 <= size.size - 2]


def _jump(rows: Sequence[CollectiveRow], cut: int, most: int) -> Fit:
    """Lines on either side of a jump half way, on a logarithmic scale, between two sizes."""
    left, right = (fit_table(part, most - 1) for part in (rows[:cut], rows[cut:]))
    at = round(sqrt(float(rows[cut - 1].size_bytes) * float(rows[cut].size_bytes)))
    before = [branch.model_copy(update={"max_bytes": branch.max_bytes or at - 1}) for branch in left.branches]
    after = [branch.model_copy(update={"from_bytes": branch.from_bytes or at}) for branch in right.branches]
    share = cut / len(rows)
    error = share * left.mean_error + (1 - share) * right.mean_error
    return Fit((*before, *after), error, max(left.max_error, right.max_error), len(rows))


def named_branches(
    branches: Sequence[Branch], algorithm: Algorithm, *, nvlink: bool, small: bool
) -> tuple[Branch, ...]:
    """The lines with the protocols that they must be of.

    The last is Simple. LL are all up to the last one whose bandwidth is at most `LL_SHARE` of the last line's; what
    lies between is LL128 on NVLink and Simple on PCIe, where there is no LL128.

    Parameters: ``branches`` by size; ``small`` whether small messages are in the table: without them LL was not seen.
    Source: NCCL 2.30.7 src/graph/tuning.cc, src/device/prims_ll.h; measured shares: see `LL_SHARE`.
    """
    last = len(branches) - 1
    slow = [k for k in range(last) if branches[k].bandwidth_gb_per_s <= LL_SHARE * branches[last].bandwidth_gb_per_s]
    ll = max(slow, default=-1) if small else -1
    named = []
    for k, branch in enumerate(branches):
        between = Protocol.LL128 if nvlink and small else Protocol.SIMPLE
        protocol = Protocol.LL if k <= ll else Protocol.SIMPLE if k == last else between
        named.append(branch.model_copy(update={"protocol": protocol, "algorithm": algorithm}))
    return tuple(named)


def _algorithm(table: MeasuredTable, bandwidth_gb_per_s: float, box: Box) -> Algorithm:
    """Pairs for an all-to-all; NVLS where a ring would need more than the NVLink of a GPU; else the ring."""
    if table.operation is _O.ALL_TO_ALL:
        return Algorithm.PAIRWISE
    nvlink = box.profile.links.nvlink
    if nvlink is not None and table.nodes == 1 and table.operation is _O.ALL_REDUCE and table.ranks > 2:
        ring = payload_per_rank(table.operation, Algorithm.RING, table.ranks) * bandwidth_gb_per_s
        return Algorithm.NVLS if ring > nvlink.egress_gb_per_s.value else Algorithm.RING
    return Algorithm.RING


def _with_latency(branches: tuple[Branch, ...], table: MeasuredTable, box: Box) -> tuple[Branch, ...]:
    """A line from NCCL's own latency to the first size, where the table begins so late that it shows no latency."""
    first = table.sizes[0]
    if first <= LATENCY_BYTES:
        return branches
    alpha_us = ring_latency_us(table.operation, Protocol.LL, table.ranks, nvlink=box.has_nvlink)
    start_s = float(predict(branches, np.array([first]))[0][0])
    if branches[0].alpha_us <= alpha_us or start_s <= alpha_us * US:
        return branches
    bandwidth = first / (start_s - alpha_us * US) / GB
    line = branches[0].model_copy(update={"alpha_us": alpha_us, "bandwidth_gb_per_s": float(f"{bandwidth:.4g}")})
    return (line, *branches)


def _kept_table(branches: Sequence[Branch], rows: Sequence[CollectiveRow]) -> tuple[MeasuredPoint, ...]:
    """The points of the table where passing through them predicts a size that is left out better than the lines do."""
    sizes, times = np.array([row.size_bytes for row in rows]), np.array([row.time_s for row in rows])
    points = [
        MeasuredPoint(size_bytes=int(row.size_bytes), time_us=float(f"{row.time_s / US:.5g}"))
        for row in sorted(rows, key=lambda row: row.size_bytes)
    ]
    if len(points) < MOST_LINES * 2:
        return ()
    bent = np.array(
        [predict(branches, sizes[k : k + 1], [*points[:k], *points[k + 1 :]])[0][0] for k in range(1, len(points) - 1)]
    )
    straight = predict(branches, sizes[1:-1])[0]
    errors = [np.abs(found / times[1:-1] - 1).mean() for found in (bent, straight)]
    return tuple(points) if errors[0] < errors[1] else ()


def fitted(rows: Sequence[CollectiveRow], table: MeasuredTable, box: Box) -> tuple[tuple[Branch, ...], Fit]:
    """Named lines through ``rows`` of a table, and the fit that they come from."""
    fit = fit_table(rows, MOST_LINES if table.nodes == 1 else MOST_LINES + 1)
    algorithm = _algorithm(table, fit.branches[-1].bandwidth_gb_per_s, box)
    small = min(row.size_bytes for row in rows) <= LATENCY_BYTES
    named = named_branches(fit.branches, algorithm, nvlink=box.has_nvlink and table.nodes == 1, small=small)
    return named, fit


def calibrate_table(
    table: MeasuredTable, box: Box, source: str, before: CollectiveConstants | None = None
) -> TableCalibration:
    """Constants of one table: `fitted` lines, and the points themselves where they predict better (`MeasuredPoint`).

    Parameters: ``box`` whose profile has the old constants, if any; ``source`` id of the new ones; ``before`` the old
    entry that they replace.
    Returns: `TableCalibration`; every second size, from the second on, is held out for the errors, none for the fit.
    Raises: `InputError` for fewer than two sizes.
    """
    sizes = table.sizes
    if len(sizes) < 2:
        raise InputError(f"{len(sizes)} size of {table.operation.value}", expected="at least 2, better 20: -b 8 -e 1G")
    rows = table.part(sizes)
    branches, fit = fitted(rows, table, box)
    whole = _with_latency(branches, table, box)
    points = _kept_table(whole, rows)
    constants = CollectiveConstants(
        operation=table.operation,
        ranks=table.ranks,
        nodes=table.nodes,
        branches=whole,
        table=points,
        source=source,
        mean_error=round(fit.mean_error, 4),
        max_error=round(fit.max_error, 4),
    )
    notes = []
    if len(whole) > len(branches):
        notes.append("no size up to 64 KiB: NCCL's own latency is taken for small messages; measure with -b 8")
    if len(sizes) < LEAST_HELD_OUT:
        notes.append(f"{len(sizes)} sizes only: none is held out, and protocols cannot be told apart")
    bands = _errors(table, branches, box)
    return TableCalibration(table, constants, bands[:-1], bands[-1], before, tuple(notes))


# ---- errors ----------------------------------------------------------------------------------------------------------


def _errors(table: MeasuredTable, branches: Sequence[Branch], box: Box) -> tuple[BandErrors, ...]:
    """Errors by band, and over all sizes as the last."""
    sizes = table.sizes
    held: dict[float, float] = {}
    if len(sizes) >= LEAST_HELD_OUT:
        seen = table.part(sizes[0::2])
        lines, _ = fitted(seen, table, box)
        held = _off(table, sizes[1::2], predict(lines, np.array(sizes[1::2]), _kept_table(lines, seen))[0])
    own = _off(table, sizes, predict(branches, np.array(sizes))[0])
    before, noise = _before(table, box), _noise(table)
    return tuple(_band(band, own, held, before, noise) for band in (*BANDS, Band("all", 0, inf)))


def _off(table: MeasuredTable, sizes: Sequence[float], times_s: Iterable[float]) -> dict[float, float]:
    return {size: abs(float(time) / table.times[size] - 1) for size, time in zip(sizes, times_s, strict=True)}


def _noise(table: MeasuredTable) -> dict[float, float]:
    out = {row.size_bytes: row.time_s for row in table.rows}
    pairs = [row for row in table.repeats if row.size_bytes in out]
    return {row.size_bytes: abs(row.time_s / out[row.size_bytes] - 1) for row in pairs}


def _before(table: MeasuredTable, box: Box) -> dict[float, float]:
    """Errors of what the profile said until now."""
    if table.nodes > 1 or table.ranks > box.gpu_count or not box.profile.collectives:
        return {}
    gpus = range(table.ranks)
    try:
        times = [collective(table.operation.value, size, gpus, box).time_s for size in table.sizes]
    except CoverageError:
        return {}
    return _off(table, table.sizes, times)


def _band(
    band: Band, own: dict[float, float], held: dict[float, float], before: dict[float, float], noise: dict[float, float]
) -> BandErrors:
    def inside(errors: dict[float, float]) -> list[float]:
        return [error for size, error in errors.items() if band.holds(size)]

    def average(errors: dict[float, float]) -> float | None:
        return mean(found) if (found := inside(errors)) else None

    return BandErrors(
        band=band.name,
        sizes=len(inside(own)),
        fit=average(own),
        held_out=average(held),
        worst=max(inside(held), default=None),
        before=average(before),
        noise=average(noise),
    )


# ---- the profile's list ----------------------------------------------------------------------------------------------


def superseded(
    profile: HardwareProfile, new: Sequence[CollectiveConstants], own_sources: Iterable[str]
) -> tuple[CollectiveConstants, ...]:
    """Entries of the profile that measurements of the very machine put out of date.

    NCCL's, on one box, of operations for which ``new`` gives the same or a relative from which they follow, unless they
    come from logs of this machine themselves (``own_sources``); and what ``new`` gives again.
    """
    mine = set(own_sources)
    measured = {entry.operation for entry in new if entry.nodes == 1}
    again = {(entry.operation, entry.ranks, entry.nodes) for entry in new}
    return tuple(
        entry
        for entry in profile.collectives
        if entry.implementation is Implementation.NCCL
        and (
            (entry.operation, entry.ranks, entry.nodes) in again
            or (
                entry.nodes == 1
                and entry.source not in mine
                and measured & {entry.operation, *RELATIVES.get(entry.operation, ())}
            )
        )
    )


def derived_operations(new: Sequence[CollectiveConstants]) -> tuple[CollectiveOperation, ...]:
    """Operations that will follow from the new entries because none of them is about these."""
    measured = {entry.operation for entry in new if entry.nodes == 1}
    exchange = {_O.DISPATCH, _O.COMBINE}
    return tuple(
        operation
        for operation, relatives in RELATIVES.items()
        if operation not in measured and operation not in exchange and measured & set(relatives)
    )


# ---- ports -----------------------------------------------------------------------------------------------------------


def largest_rates(box: Box, table: TableCalibration) -> dict[str, float]:
    """What the calibrated collective puts on each port at most, over the measured sizes.

    Equation: max over S of W_e f S / t(S), W_e the wire bytes per byte on port e, f the protocol's wire factor.

    Returns: port to rate [byte/s]; empty for several nodes, or where no formula has the wire bytes.
    """
    constants = table.constants
    if constants.nodes > 1 or constants.ranks > box.gpu_count:
        return {}
    rates: dict[str, float] = {}
    gpus = tuple(range(constants.ranks))
    try:
        # What lies far above the largest size belongs to it: its rate is that of the last line.
        for size in [*table.table.sizes, GIB]:
            time_s, branch = fastest_branch(constants.branches, size, constants.table)
            wire = wire_per_byte(box, gpus, constants.operation, branch.algorithm)
            scale = size * wire_factor(branch.protocol) / time_s
            for port, share in wire.ports.items():
                rates[port] = max(rates.get(port, 0.0), share * scale)
    except CoverageError:
        return {}
    return rates


def fullest(box: Box, rates: dict[str, float]) -> tuple[str, float]:
    """The port of the highest rate over capacity, and that share; ("", 0) where there is none."""
    shares = {port: rate / box.port_index[port].capacity_bytes_per_s for port, rate in rates.items()}
    port = max(shares, key=shares.__getitem__, default="")
    return port, shares.get(port, 0.0)


def explained(table: TableCalibration, bound_by: BoundBy, reason: str) -> TableCalibration:
    """The table's constants with why they leave the ports as they do."""
    constants = table.constants.model_copy(update={"bound_by": bound_by, "reason": reason})
    return replace(table, constants=constants)
