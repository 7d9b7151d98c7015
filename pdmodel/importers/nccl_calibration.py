"""From logs of nccl-tests to a profile with constants of the very machine: does the log fit, what changes, why.

The fit is `pdmodel.costs.box_calibration`; this decides which rows go into it and what becomes of the profile's file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

from pdmodel.costs.box_calibration import (
    MeasuredTable,
    TableCalibration,
    calibrate_table,
    derived_operations,
    superseded,
)
from pdmodel.costs.calibration import CollectiveRow
from pdmodel.costs.collectives import collective
from pdmodel.costs.collectives.scaling import carry_over
from pdmodel.errors import InputError
from pdmodel.hardware.constants import CollectiveConstants, CollectiveOperation
from pdmodel.hardware.gpu_facts import gpu_facts, same_gpu
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.importers.explain import Change, explain_ports
from pdmodel.importers.minimal_box import minimal_box
from pdmodel.importers.nccl_log import NcclTestsLog, Table
from pdmodel.units import KIB, MIB, format_bytes

Progress = Callable[[str], None]

SOURCE_PREFIX = "nccl_tests"
"""Ids of sources that name a log of the machine itself begin with this."""

# A table that ends below this does not show a bandwidth.
LEAST_LARGEST_BYTES = MIB
SHOWN_BYTES = (4 * KIB, 256 * KIB, 4 * MIB, 256 * MIB)
"""Sizes at which the old and the new profile are held against each other; the third for what is derived."""

# Sizes further apart than this, with rows left out between them, hide a whole branch.
WIDEST_GAP = 64


@dataclass(frozen=True, slots=True)
class Measured:
    """A log and what identifies its file."""

    log: NcclTestsLog
    sha256: str


@dataclass(frozen=True, slots=True)
class TimeChange:
    """Time of one collective by the old profile and by the new one."""

    operation: CollectiveOperation
    ranks: int
    size_bytes: float
    before_s: float
    after_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """``raw`` is the new profile as its file holds it; ``dropped`` are the entries it no longer has.

    ``base`` is the name of the old one, empty where the box was made from the logs; ``times`` hold both against each
    other, measured collectives first, then those that follow from them.
    """

    raw: Mapping[str, Any]
    profile: HardwareProfile
    base: str
    tables: tuple[TableCalibration, ...]
    dropped: tuple[CollectiveConstants, ...]
    derived: tuple[CollectiveOperation, ...]
    changes: tuple[Change, ...]
    times: tuple[TimeChange, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A table that is to be used, with all that a fit needs known."""

    file: str
    table: Table
    operation: CollectiveOperation
    ranks: int
    nodes: int


def calibrate(
    logs: Sequence[Measured],
    base: Mapping[str, Any] | None,
    *,
    name: str,
    gpu: str | None = None,
    force: bool = False,
    keep: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """New constants for a box from logs of it.

    Parameters
    ----------
    logs: read logs, at least one.
    base: the profile that is to be calibrated, as its file holds it; None: a minimal box from the logs' headers.
    name: of the new profile.
    gpu: what the GPUs are, for logs that do not name them.
    force: take a log although its GPU or its number of ranks is not the box's.
    keep: keep the old profile's entries of other collectives instead of deriving them from the measured ones.
    progress: called with what is being done.

    Returns
    -------
    `Calibration`

    Raises
    ------
    InputError: a log that does not tell its collective or ranks, does not fit the box, or shows too little.

    """
    warnings = [f"{item.log.file}: {note}" for item in logs for note in item.log.notes]
    gpu = _one_gpu(logs, force=force, warnings=warnings) or gpu
    parts = [part for item in logs for table in item.log.tables if (part := _part(item.log, table, warnings))]
    if not parts:
        raise InputError("no table of a collective that a profile can hold", file=logs[0].log.file)
    raw = copy.deepcopy(dict(base)) if base is not None else _minimal(name, gpu, parts, warnings)
    old = HardwareProfile.parse(raw)
    parts = [_fitting(part, old, gpu, force=force, warnings=warnings, given=base is not None) for part in parts]
    raw["name"] = name
    tables = [_calibrated(group, logs, old, raw, progress) for group in _groups(parts)]
    tables = [_brought(table, old, warnings) for table in tables]
    dropped = _entries(raw, old, [table.constants for table in tables], keep=keep)
    changes: list[Change] = []
    tables = explain_ports(raw, tables, changes, warnings, given=base is not None)
    profile = HardwareProfile.parse(raw)
    derived = () if keep else derived_operations([table.constants for table in tables])
    return Calibration(
        raw=raw,
        profile=profile,
        base=old.name if base is not None else "",
        tables=tuple(tables),
        dropped=dropped,
        derived=derived,
        changes=tuple(changes),
        times=tuple(_times(old, profile, tables, derived)) if base is not None else (),
        warnings=tuple(dict.fromkeys(warnings)),
    )


# ---- what of the logs is used ----------------------------------------------------------------------------------------


def _one_gpu(logs: Sequence[Measured], *, force: bool, warnings: list[str]) -> str | None:
    """The GPU of the logs, one for all."""
    first: tuple[str, str] | None = None
    for item in logs:
        for table in item.log.tables:
            for device in table.devices:
                if first is None:
                    first = (device.gpu, item.log.file)
                elif not same_gpu(device.gpu, first[0]):
                    problem = InputError(
                        f"GPU {device.gpu!r}",
                        file=item.log.file,
                        path=f"line {device.line}",
                        expected=f"{first[0]!r} as in {first[1]}: logs of one kind of GPU, or --force",
                    )
                    if not force:
                        raise problem
                    warnings.append(f"forced: {problem}")
                    return first[0]
    return first[0] if first else None


def _part(log: NcclTestsLog, table: Table, warnings: list[str]) -> _Part | None:
    where = f"line {table.rows[0].line}"
    if table.collective is None:
        could = " or ".join(one.value for one in table.collectives)
        raise InputError(
            f"the table can be of {could}",
            file=log.file,
            path=where,
            expected="--collective NAME: the log does not say",
        )
    try:
        operation = CollectiveOperation(table.collective.value)
    except ValueError:
        warnings.append(f"{log.file}: {where}: {table.collective.value} is not in any profile: table left out")
        return None
    if table.ranks is None:
        raise InputError(
            f"the number of ranks is not in the log ({table.ranks_from})",
            file=log.file,
            path=where,
            expected="--ranks N",
        )
    if table.ranks < 2:
        raise InputError(
            "one rank: nothing was sent",
            file=log.file,
            path=where,
            expected="a run of several ranks (-g N, or a build with MPI=1 under mpirun)",
        )
    if table.shared_gpus:
        one, two = table.shared_gpus[0]
        raise InputError(
            f"ranks {one.rank} and {two.rank} share GPU {one.bus}: that measures no link",
            file=log.file,
            path=f"line {two.line}",
            expected="a GPU for each rank",
        )
    _check_left_out(log.file, table)
    return _Part(log.file, table, operation, table.ranks, table.nodes or 0)


def _check_left_out(file: str, table: Table) -> None:
    rows = sorted(table.rows, key=lambda row: row.size_bytes)
    for one, two in pairwise(rows):
        if table.left_out and two.size_bytes > WIDEST_GAP * one.size_bytes:
            raise InputError(
                f"rows are left out between {one.size_bytes} B and {two.size_bytes} B: what runs there cannot be told",
                file=file,
                path=f"line {table.left_out[0]}",
                expected="the whole table",
            )


def _minimal(name: str, gpu: str | None, parts: Sequence[_Part], warnings: list[str]) -> dict[str, Any]:
    for part in parts:
        line = f"line {part.table.line}"
        if not gpu:
            raise InputError(
                "no Rank line names the GPUs", file=part.file, path=line, expected="--profile BOX, or --gpu NAME"
            )
        if not part.nodes:
            raise InputError(
                f"no Rank line says on how many nodes the {part.ranks} ranks are",
                file=part.file,
                path=line,
                expected="--profile BOX, or --nodes N",
            )
    if gpu_facts(gpu or "") is None:
        warnings.append(f"no data sheet of {gpu!r} is known: memory, peaks and links are placeholders to be corrected")
    return minimal_box(name, gpu or "", max(ceil(part.ranks / part.nodes) for part in parts))


# ---- does it fit -----------------------------------------------------------------------------------------------------


def _fitting(
    part: _Part, profile: HardwareProfile, gpu: str | None, *, force: bool, warnings: list[str], given: bool
) -> _Part:
    """The part with its nodes settled; `InputError` where the box cannot have run it, a warning under ``force``."""
    if given:
        _check_gpu(part, profile, gpu, force=force, warnings=warnings)
    count, nodes = profile.gpu.count, part.nodes
    if nodes == 0:
        nodes = 1
        if part.ranks > count:
            nodes = ceil(part.ranks / count)
            _refuse(part, f"{part.ranks} ranks, and the log names no nodes", profile, force=force, warnings=warnings)
            warnings.append(f"{part.file}: taken as {nodes} nodes of {count} GPUs")
    elif ceil(part.ranks / nodes) > count:
        where = f" on {nodes} nodes" if nodes > 1 else ""
        _refuse(part, f"{part.ranks} ranks{where}", profile, force=force, warnings=warnings)
    if nodes > 1:
        warnings.append(
            f"{part.file}: {part.operation.value} among {part.ranks} on {nodes} nodes is kept with its nodes; "
            "plans of one box do not use it"
        )
    return _Part(part.file, part.table, part.operation, part.ranks, nodes)


def _refuse(part: _Part, what: str, profile: HardwareProfile, *, force: bool, warnings: list[str]) -> None:
    line = part.table.devices[-1].line if part.table.devices else part.table.rows[0].line
    problem = InputError(
        what,
        file=part.file,
        path=f"line {line}",
        expected=f"at most the {profile.gpu.count} GPUs of {profile.name}; another --profile, --nodes N, or --force",
    )
    if not force:
        raise problem
    warnings.append(f"forced: {problem}")


def _check_gpu(part: _Part, profile: HardwareProfile, gpu: str | None, *, force: bool, warnings: list[str]) -> None:
    if gpu is None:
        warnings.append(f"{part.file}: names no GPU; taken to be of {profile.name}")
        return
    if same_gpu(gpu, profile.gpu.name, profile.gpu.memory_gib.value):
        return
    line = part.table.devices[0].line if part.table.devices else part.table.rows[0].line
    problem = InputError(
        f"GPU {gpu!r}",
        file=part.file,
        path=f"line {line}",
        expected=f"{profile.gpu.name!r} as in {profile.name}; another --profile, or --force",
    )
    if not force:
        raise problem
    warnings.append(f"forced: {problem}")


# ---- fits and entries ------------------------------------------------------------------------------------------------


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    found: dict[tuple[str, int, int], list[_Part]] = {}
    for part in parts:
        found.setdefault((part.operation.value, part.ranks, part.nodes), []).append(part)
    return [found[key] for key in sorted(found)]


def _calibrated(
    group: Sequence[_Part],
    logs: Sequence[Measured],
    old: HardwareProfile,
    raw: dict[str, Any],
    progress: Progress | None,
) -> TableCalibration:
    first = group[0]
    if progress is not None:
        progress(f"{first.operation.value} among {first.ranks}")
    largest, line, file = max((row.size_bytes, row.line, part.file) for part in group for row in part.table.rows)
    if largest < LEAST_LARGEST_BYTES:
        raise InputError(
            f"the largest size is {largest} B: that shows latency, no bandwidth",
            file=file,
            path=f"line {line}",
            expected="sizes up to 1 MiB at least, in this log or in one beside it: -b 8 -e 1G -f 2",
        )
    source = _add_source(raw, group, logs)
    table = MeasuredTable(
        first.operation,
        first.ranks,
        first.nodes,
        tuple(row for part in group for row in _rows(part, second=False)),
        tuple(row for part in group for row in _rows(part, second=True)),
    )
    key = (first.operation, first.ranks, first.nodes)
    before = [entry for entry in old.collectives if (entry.operation, entry.ranks, entry.nodes) == key]
    known = next((entry for entry in before if entry.implementation.value == "nccl"), None)
    try:
        return calibrate_table(table, Box(old, "box"), source, known)
    except InputError as error:
        raise error.located(file=first.file, path=f"line {first.table.rows[0].line}") from None


def _rows(part: _Part, *, second: bool) -> list[CollectiveRow]:
    found = []
    for row in part.table.rows:
        places = row.places
        if len(places) > int(second):
            found.append(CollectiveRow(part.operation, part.ranks, float(row.size_bytes), places[int(second)].time_s))
    return found


def _add_source(raw: dict[str, Any], group: Sequence[_Part], logs: Sequence[Measured]) -> str:
    """The logs of one operation as a source of the profile; returns its id."""
    first = group[0]
    files = dict.fromkeys(part.file for part in group)
    used = [item for item in logs if item.log.file in files]
    refs = [f"nccl-tests log {_base_name(item.log.file)}, sha256 {item.sha256}" for item in used]
    rows = [row for part in group for row in part.table.rows]
    low, high = min(row.size_bytes for row in rows), max(row.size_bytes for row in rows)
    where = f" on {first.nodes} nodes" if first.nodes > 1 else ""
    words = [
        f"{first.operation.value} among {first.ranks}{where}, {len(rows)} rows of {rows[0].type} from "
        f"{format_bytes(low)} to {format_bytes(high)}",
        _said("NCCL", [item.log.nccl_version for item in used]),
        _said("nccl-tests", [item.log.tests_version for item in used]),
        _said("date", [item.log.date for item in used]),
        *dict.fromkeys(f"GPU {name}" for part in group for name in part.table.gpu_names),
        f"ranks from {first.table.ranks_from}",
    ]
    base = f"{SOURCE_PREFIX}_{first.operation.value}_{first.ranks}" + (f"x{first.nodes}" if first.nodes > 1 else "")
    raw["sources"] = {key: value for key, value in raw["sources"].items() if key != base}
    raw["sources"][base] = {"kind": "measured", "ref": "; ".join(refs), "note": "; ".join(words)}
    return base


def _base_name(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]


def _said(what: str, values: Sequence[str | None]) -> str:
    known = list(dict.fromkeys(value for value in values if value))
    return f"{what} {', '.join(known)}" if known else f"{what} not in the log"


def _brought(table: TableCalibration, profile: HardwareProfile, warnings: list[str]) -> TableCalibration:
    """A forced table of more ranks on one node than the box has, brought down to what it has."""
    constants, count = table.constants, profile.gpu.count
    if constants.nodes > 1 or constants.ranks <= count:
        if constants.nodes > 1 and constants.ranks > count * constants.nodes:
            raise InputError(
                f"{constants.ranks} ranks on {constants.nodes} nodes do not go into {profile.name} ({count} GPUs)",
                expected="another --profile",
            )
        return table
    if count < 2:
        raise InputError(f"{profile.name} has one GPU: no collective runs in it", expected="another --profile")
    nvlink = profile.links.nvlink is not None
    branches = carry_over(constants, constants.operation, count, nvlink=nvlink)
    warnings.append(
        f"forced: {constants.operation.value} among {constants.ranks} brought to the {count} GPUs of the box"
    )
    update = {"branches": branches, "ranks": count, "table": ()}
    notes = (*table.notes, f"brought from {constants.ranks} to {count} ranks")
    return replace(table, constants=constants.model_copy(update=update), notes=notes)


def _entries(
    raw: dict[str, Any], old: HardwareProfile, new: Sequence[CollectiveConstants], *, keep: bool
) -> tuple[CollectiveConstants, ...]:
    """Write the new entries into ``raw``; returns the old ones that are gone, those replaced among them."""
    mine = {entry.source for entry in old.collectives if entry.source.startswith(SOURCE_PREFIX)}
    every = {entry.source for entry in old.collectives}
    gone = superseded(old, new, every if keep else mine)
    keys = {(entry.operation, entry.implementation, entry.ranks, entry.nodes) for entry in gone}
    kept = [
        raw_entry
        for raw_entry, entry in zip(raw.get("collectives", []), old.collectives, strict=True)
        if (entry.operation, entry.implementation, entry.ranks, entry.nodes) not in keys
    ]
    raw["collectives"] = kept + [entry_of(entry) for entry in new]
    used = {entry["source"] for entry in raw["collectives"]}
    raw["sources"] = {
        key: value for key, value in raw["sources"].items() if key in used or not key.startswith(f"{SOURCE_PREFIX}_")
    }
    return gone


def _times(
    old: HardwareProfile,
    new: HardwareProfile,
    tables: Sequence[TableCalibration],
    derived: Sequence[CollectiveOperation],
) -> Iterator[TimeChange]:
    """What the change means in time, at a few sizes."""
    here = [table.constants for table in tables if table.constants.nodes == 1]
    cases: list[tuple[CollectiveOperation, int, Sequence[float]]]
    cases = [(entry.operation, entry.ranks, SHOWN_BYTES) for entry in here]
    cases += [(operation, max(entry.ranks for entry in here), SHOWN_BYTES[2:3]) for operation in derived if here]
    boxes = Box(old, "box"), Box(new, "box")
    for operation, ranks, sizes in cases:
        for size in sizes:
            before, after = (collective(operation.value, size, range(ranks), box) for box in boxes)
            yield TimeChange(operation, ranks, size, before.time_s, after.time_s, after.source.value)


def entry_of(constants: CollectiveConstants) -> dict[str, Any]:
    """An entry as a file holds it: no keys that say what is taken for granted."""
    return constants.model_dump(mode="json", exclude_defaults=True)
