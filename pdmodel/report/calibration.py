"""A calibration for reading: which logs, how good the fit is by size, the constants, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING, number, percent, seconds, size

if TYPE_CHECKING:
    from pdmodel.costs.box_calibration import TableCalibration
    from pdmodel.hardware.constants import CollectiveConstants
    from pdmodel.importers.nccl_calibration import Calibration, Measured


def calibration_document(found: Calibration, logs: Sequence[Measured], output: Path | None) -> Document:
    """The report of one calibration; ``output`` is where the profile is written, if it is."""
    sections = [
        _logs_section(logs),
        _errors_section(found.tables),
        _constants_section(found.tables),
        *_changes_sections(found),
    ]
    remarks = [*found.warnings, *(f"{_name(one.constants)}: {note}" for one in found.tables for note in one.notes)]
    remarks += [
        f"{_name(one.constants)} leaves its ports below 80 % (bound_by {one.constants.bound_by.value}): "
        f"{one.constants.reason}"
        for one in found.tables
        if one.constants.bound_by is not None
    ]
    if remarks:
        sections.append(Section("To know", bullets=tuple(dict.fromkeys(remarks))))
    base = found.base or "a box made from the log's header"
    there = "not written: give --output NEW.json" if output is None else f"written to {output}"
    subtitle = f"From {base}; {there}."
    next_steps = None if output is None else f"pdmodel hardware show {output}"
    if next_steps:
        sections.append(Section("Next", text=(next_steps, f'in a scenario: "hardware": "{output}"')))
    return Document(
        f"Calibration: {found.profile.name}", subtitle, tuple(sections), _content(found, logs, output), _records(found)
    )


def _name(constants: CollectiveConstants) -> str:
    nodes = f" on {constants.nodes} nodes" if constants.nodes > 1 else ""
    return f"{constants.operation.value} among {constants.ranks}{nodes}"


def _logs_section(logs: Sequence[Measured]) -> Section:
    rows = [
        [
            item.log.file,
            one.collective.value if one.collective else NOTHING,
            str(one.ranks),
            str(one.nodes or NOTHING),
            str(len(one.rows)),
            item.log.nccl_version or NOTHING,
            item.log.date or NOTHING,
            item.sha256[:12],
        ]
        for item in logs
        for one in item.log.tables
    ]
    head = ["file", "collective", ">ranks", ">nodes", ">rows", "NCCL", "date", "sha256"]
    return Section("Logs", table=table(head, rows))


def _errors_section(tables: Sequence[TableCalibration]) -> Section:
    rows = [
        [
            _name(one.constants),
            band.band,
            str(band.sizes),
            *(percent(error) for error in (band.held_out, band.worst, band.fit, band.noise, band.before)),
        ]
        for one in tables
        for band in (*one.bands, one.overall)
        if band.sizes
    ]
    head = ["collective", "sizes", ">number", ">held out", ">worst", ">fit", ">in/out of place", ">old profile"]
    note = (
        "Mean relative errors of the time. Held out: every second size, predicted from the others (worst: the largest "
        "of these). Fit: lines through all sizes. In/out of place: how far the two runs of the log differ."
    )
    return Section("Errors by size", table=table(head, rows), note=note)


def _constants_section(tables: Sequence[TableCalibration]) -> Section:
    rows = []
    for one in tables:
        for branch in one.constants.branches:
            low = size(branch.from_bytes) if branch.from_bytes else NOTHING
            high = size(branch.max_bytes + 1) if branch.max_bytes else NOTHING
            rows.append(
                [
                    _name(one.constants),
                    branch.algorithm.value,
                    branch.protocol.value,
                    number(branch.alpha_us),
                    number(branch.bandwidth_gb_per_s),
                    low,
                    high,
                ]
            )
    head = ["collective", "algorithm", "protocol", ">alpha [us]", ">B [GB/s]", ">from", ">below"]
    kept = [_name(one.constants) for one in tables if one.constants.table]
    note = "Time = alpha + S/B of the branch that is fastest where it is allowed; B is algbw."
    if kept:
        note += f" The measured points are kept as well, and the lines bent through them: {', '.join(kept)}."
    return Section("Constants", table=table(head, rows), note=note)


def _changes_sections(found: Calibration) -> Iterator[Section]:
    text = [f"{change.what}: {change.before} -> {change.after}" for change in found.changes]
    new = {(one.constants.operation, one.constants.ranks, one.constants.nodes) for one in found.tables}
    gone = [entry for entry in found.dropped if (entry.operation, entry.ranks, entry.nodes) not in new]
    if gone:
        names = ", ".join(_name(entry) for entry in gone)
        text.append(f"no longer in the profile, as they are not of this machine (--keep keeps them): {names}")
    if found.derived:
        names = ", ".join(operation.value for operation in found.derived)
        text.append(f"derived from what was measured: {names}; logs of these make them measured")
    rows = [
        [
            f"{one.operation.value} among {one.ranks}",
            size(one.size_bytes),
            seconds(one.before_s),
            seconds(one.after_s),
            f"{one.after_s / one.before_s:.2f}",
            one.source,
        ]
        for one in found.times
    ]
    if rows or text:
        head = ["collective", ">size", ">before", ">now", ">ratio", "source"]
        yield Section("What changed", table=table(head, rows) if rows else None, bullets=tuple(text))


def _content(found: Calibration, logs: Sequence[Measured], output: Path | None) -> dict[str, Any]:
    return {
        "name": found.profile.name,
        "base": found.base or None,
        "output": None if output is None else str(output),
        "logs": [
            {
                "file": item.log.file,
                "sha256": item.sha256,
                "nccl_version": item.log.nccl_version,
                "nccl_tests_version": item.log.tests_version,
                "date": item.log.date,
                "tables": len(item.log.tables),
            }
            for item in logs
        ],
        "collectives": [
            {
                **one.constants.model_dump(mode="json"),
                "errors": [*one.bands, one.overall],
                "notes": one.notes,
            }
            for one in found.tables
        ],
        "dropped": [entry.model_dump(mode="json") for entry in found.dropped],
        "derived": [operation.value for operation in found.derived],
        "changes": found.changes,
        "times": found.times,
        "warnings": found.warnings,
        "profile": found.raw,
    }


def _records(found: Calibration) -> tuple[Record, ...]:
    records = []
    for one in found.tables:
        key = {"operation": one.constants.operation.value, "ranks": one.constants.ranks, "nodes": one.constants.nodes}
        for band in (*one.bands, one.overall):
            errors = {
                "band": band.band,
                "sizes": band.sizes,
                "held_out": band.held_out,
                "worst": band.worst,
                "fit": band.fit,
                "noise": band.noise,
                "before": band.before,
            }
            records.append(Record("errors", {**key, **errors}))
        records += [Record("branches", {**key, **b.model_dump(mode="json")}) for b in one.constants.branches]
    for time in found.times:
        times = {"size_bytes": time.size_bytes, "before_s": time.before_s, "after_s": time.after_s}
        records.append(Record("times", {"operation": time.operation.value, "ranks": time.ranks, **times}))
    records += [Record("changes", {"text": f"{one.what}: {one.before} -> {one.after}"}) for one in found.changes]
    return (*records, *(Record("warnings", {"text": text}) for text in found.warnings))
