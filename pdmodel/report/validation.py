"""The published tables and how near they are met, for reading."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING

if TYPE_CHECKING:
    from pdmodel.verification import BandResult, TableResult

_EVIDENCE = {
    "fitted": "fitted to the same measurements",
    "foretold": "foretold, nothing was fitted to it",
    "exact": "follows from a definition",
}
MOST_SOURCES = 5
HEAD = ["table", "~rows of", "size", ">rows", ">mean", ">limit", ">worst", ">limit", "kept"]


def validation_document(results: Sequence[TableResult], *, full: bool = False) -> Document:
    """Errors by table, group and band of size, then what each table is and where it comes from.

    ``full``: the worst row of every line as well.
    """
    cells = [[result.table.name, *_cells(band)] for result in results for band in result.bands]
    count, rows = len(results), sum(band.rows for result in results for band in result.bands)
    kept = all(result.within for result in results)
    verdict = "every limit is kept" if kept else f"limits that are broken: {len(broken_limits(results))}"
    sections = [
        Section(
            "Errors",
            text=(f"{count} tables, {rows} figures: {verdict}.",),
            table=table(HEAD, cells),
            note="Relative errors, |predicted / published - 1|; rounding of the published figure is no error.",
        ),
        Section("Tables", bullets=tuple(_about(result) for result in results)),
    ]
    if full:
        sections.insert(1, _worst_section(results))
    reasons = [
        f"{result.table.name}, {_group(band)}: {band.reason}"
        for result in results
        for band in result.bands
        if band.reason
    ]
    if reasons:
        sections.append(Section("Why some limits are wide", bullets=tuple(dict.fromkeys(reasons))))
    content = {"within_limits": kept, "tables": [_content(result) for result in results]}
    records = [Record(result.table.name, _fields(band)) for result in results for band in result.bands]
    return Document("Published tables", "", tuple(sections), content, tuple(records))


def broken_limits(results: Sequence[TableResult]) -> list[str]:
    """One sentence for each group that breaks its limit."""
    return [
        f"{result.table.name}, {_group(band)}{', ' + band.band if band.band else ''}: mean {_share(band.mean)} "
        f"(limit {_share(band.mean_limit)}), worst {_share(band.worst)} (limit {_share(band.worst_limit)}) "
        f"at {band.worst_row}"
        for result in results
        for band in result.bands
        if not band.within
    ]


def _cells(band: BandResult) -> list[str]:
    kept = ("yes" if band.within else "NO") if band.limited else NOTHING
    return [
        _group(band),
        band.band or NOTHING,
        str(band.rows),
        _share(band.mean),
        _share(band.mean_limit),
        _share(band.worst),
        _share(band.worst_limit),
        kept,
    ]


def _group(band: BandResult) -> str:
    return ", ".join(band.keys.values()) or "all"


def _share(value: float | None) -> str:
    """Per cent with one digit behind the point, so that small errors and limits can be compared.

    >>> _share(0.0123), _share(None)
    ('1.2 %', '-')
    """
    return NOTHING if value is None else f"{value * 100:.1f} %"


def _about(result: TableResult) -> str:
    # A remark in brackets at the end tells rows of one source apart.
    sources = list(dict.fromkeys(re.sub(r" \(.*\)$", "", source) for source in result.sources))
    more = f"; and {len(sources) - MOST_SOURCES} more" if len(sources) > MOST_SOURCES else ""
    evidence = _EVIDENCE[result.table.evidence.value]
    return f"{result.table.name}: {result.table.what} ({evidence}). Source: {'; '.join(sources[:MOST_SOURCES])}{more}"


def _worst_section(results: Sequence[TableResult]) -> Section:
    rows = [
        [result.table.name, _group(band), band.band or NOTHING, _share(band.worst), band.worst_row]
        for result in results
        for band in result.bands
    ]
    return Section("Worst rows", table=table(["table", "~rows of", "size", ">worst", "~row"], rows))


def _fields(band: BandResult) -> dict[str, Any]:
    return {
        "group": _group(band),
        "band": band.band,
        "rows": band.rows,
        "mean": band.mean,
        "mean_limit": band.mean_limit,
        "worst": band.worst,
        "worst_limit": band.worst_limit,
        "worst_row": band.worst_row,
        "within": band.within,
    }


def _content(result: TableResult) -> dict[str, Any]:
    return {
        "name": result.table.name,
        "what": result.table.what,
        "evidence": result.table.evidence.value,
        "sources": [*result.sources],
        "within_limits": result.within,
        "bands": [{"keys": {**band.keys}, **_fields(band)} for band in result.bands],
    }
