"""Errors of the published tables by group and band of size, held against their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from pdmodel.errors import InputError
from pdmodel.verification.checks import CHECKS
from pdmodel.verification.tables import BAND, Comparison, PublishedTable, read_rows, read_tables


@dataclass(frozen=True, slots=True)
class BandResult:
    """Errors of one group of rows in one band of size, relative [-]; limits None where there is none."""

    keys: Mapping[str, str]
    band: str
    rows: int
    mean: float
    worst: float
    worst_row: str
    mean_limit: float | None
    worst_limit: float | None
    within: bool
    reason: str = ""

    @property
    def limited(self) -> bool:
        """Whether anything limits it."""
        return self.mean_limit is not None or self.worst_limit is not None


@dataclass(frozen=True, slots=True)
class TableResult:
    """One table: what it is, where its figures come from, its errors."""

    table: PublishedTable
    sources: tuple[str, ...]
    bands: tuple[BandResult, ...]

    @property
    def within(self) -> bool:
        """Whether every limit is kept."""
        return all(band.within for band in self.bands)


def verify(
    names: Sequence[str] = (), folder: Path | None = None, progress: Callable[[str], None] | None = None
) -> tuple[TableResult, ...]:
    """Run the published tables again.

    Parameters: ``names`` of the tables, none for all; ``folder`` of the tables, None for the shipped one; ``progress``
    is told what is being done.
    Returns: one `TableResult` for each table; nothing is raised for a limit that is broken.
    Raises: `InputError` for an unknown name, a missing file or column, or a check that does not exist.
    """
    results = []
    for table in read_tables(tuple(names), folder):
        if progress is not None:
            progress(f"{table.name}: {table.what}")
        results.append(evaluate(table, compare(table, folder)))
    return tuple(results)


def compare(table: PublishedTable, folder: Path | None = None) -> tuple[Comparison, ...]:
    """Every figure of a table with its prediction."""
    if table.check not in CHECKS:
        raise InputError(
            f"table {table.name!r} asks for {table.check!r}", expected="one of the checks " + ", ".join(CHECKS)
        )
    rows = read_rows(table, folder)
    try:
        return tuple(CHECKS[table.check](table, rows))
    except KeyError as missing:
        raise InputError(f"table {table.name!r} lacks {missing}", file=table.file) from None


def evaluate(table: PublishedTable, comparisons: Iterable[Comparison]) -> TableResult:
    """Errors by group and band, groups in order of first appearance, bands in order of size."""
    found = list(comparisons)
    groups: dict[tuple[str, ...], dict[str, list[Comparison]]] = {}
    for one in found:
        key = tuple(one.keys[column] for column in table.group_by)
        groups.setdefault(key, {}).setdefault(table.band(one.size_bytes), []).append(one)
    order = [table.band(end) for end in table.bands_bytes]
    bands = [
        _band(table, dict(zip(table.group_by, key, strict=True)), band, mine)
        for key, by_band in groups.items()
        for band, mine in sorted(
            by_band.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)
        )
    ]
    return TableResult(table, tuple(dict.fromkeys(one.source for one in found)), tuple(bands))


def _band(table: PublishedTable, keys: dict[str, str], band: str, found: Sequence[Comparison]) -> BandResult:
    errors = [one.error for one in found]
    worst = max(range(len(found)), key=errors.__getitem__)
    limit = table.limit({**keys, BAND: band})
    mean_limit, worst_limit = (limit.mean, limit.worst) if limit else (None, None)
    own = [one.limit for one in found if one.limit is not None]
    within = (
        (mean_limit is None or mean(errors) <= mean_limit)
        and (worst_limit is None or errors[worst] <= worst_limit)
        and all(one.limit is None or error <= one.limit for one, error in zip(found, errors, strict=True))
    )
    if own:
        worst_limit = max(own) if worst_limit is None else min(worst_limit, max(own))
    return BandResult(
        keys=keys,
        band=band,
        rows=len(found),
        mean=mean(errors),
        worst=errors[worst],
        worst_row=found[worst].row,
        mean_limit=mean_limit,
        worst_limit=worst_limit,
        within=within,
        reason=limit.reason if limit else "",
    )
