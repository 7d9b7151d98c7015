"""The columns after a matrix: CPU lists and NUMA nodes. Cells may be empty, cut, or run into each other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pdmodel.importers.findings import listed
from pdmodel.importers.topo_blocks import TAB_STOP, Block, Header, Row
from pdmodel.importers.topo_codes import is_gpu

_LIST = re.compile(r"[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*")
_SUFFIX = re.compile(r"NUMA(?:\s+node)?\s*[:=]?\s*([0-9]+)", re.IGNORECASE)
_LONGEST_CUT = 6
"""Entries after which the driver cuts a list of single cores."""


@dataclass(slots=True)
class Affinities:
    """By GPU: the CPU list, the NUMA nodes of its CPU, the NUMA node of its own memory; None where not known."""

    cpu: dict[str, str | None] = field(default_factory=dict)
    numa: dict[str, str | None] = field(default_factory=dict)
    gid: dict[str, str | None] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def affinities_of(block: Block, *, cut: str | None) -> Affinities:
    """The affinities of the GPUs of a matrix; ``cut``: the label of a row in which the text ends without a line end."""
    found = Affinities()
    names = [name for name, _ in block.header.trailing]
    for row in block.rows.values():
        if is_gpu(row.label) and (names or row.rest):
            _read(row, block.header, found)
    if cut is not None and is_gpu(cut):
        _doubt_last(cut, names, found, complete=block.complete)
    _split_glued(found, has_numa="numa" in names)
    _remarks(found, has_numa="numa" in names)
    return found


def _read(row: Row, header: Header, found: Affinities) -> None:
    suffix = _SUFFIX.search(" ".join(word for word, _ in row.rest))
    names = [name for name, _ in header.trailing]
    if suffix is not None:
        found.numa[row.label] = suffix.group(1)
        return
    if not names:
        return
    cells = _by_position(row, names) if row.tabs else _by_offset(row, header)
    if cells is None:
        found.warnings.append(f"the cells after the matrix in row {row.label} cannot be told apart")
        cells = {}
    for name, column in (("cpu", found.cpu), ("numa", found.numa), ("gid", found.gid)):
        if name in names:
            column[row.label] = _value(cells.get(name, ""), row.label, name, found)


def _value(cell: str, label: str, name: str, found: Affinities) -> str | None:
    if not cell or cell.upper() == "N/A":
        return None
    if _LIST.fullmatch(cell) is None and name != "cpu":
        found.warnings.append(f"{cell[:30]!r} in row {label} is no NUMA node")
        return None
    if _LIST.fullmatch(cell) is None:
        found.warnings.append(f"{cell[:30]!r} in row {label} is no list of CPUs")
        return None
    return cell


def _by_position(row: Row, names: Sequence[str]) -> dict[str, str]:
    """Cells of a row with tabs; the driver prints an empty one before the GPU NUMA ID."""
    cells = [cell for cell, _ in row.rest]
    while cells and not cells[-1]:
        cells.pop()
    found = dict(zip(names, cells, strict=False))
    if names[-1] == "gid" and len(cells) > len(names):
        found["gid"] = cells[-1]
    return found


def _by_offset(row: Row, header: Header) -> dict[str, str] | None:
    """Cells of a row without tabs; where some are empty, by where the words stand. None where that is not certain."""
    names = [name for name, _ in header.trailing]
    words = [word for word, _ in row.rest]
    starts = [offset for _, offset in row.rest]
    if len(words) >= len(names):
        return dict(zip(names, words, strict=False))
    bases = {header.trailing[0][1], _next_stop(row.start)}
    possible = list(itertools.combinations(range(len(names)), len(words)))
    printed = [
        chosen
        for chosen in possible
        if any(_expanded(words, [names[k] for k in chosen], names, base) == starts for base in bases)
    ]
    # Not expanded tabs: columns of fixed width, in which a word begins below its heading.
    below = [
        chosen
        for chosen in possible
        if all(abs(header.trailing[k][1] - start) <= 1 for k, start in zip(chosen, starts, strict=True))
    ]
    # Cells that ran into each other: it is certain only whether the first column is filled.
    first = [chosen for chosen in possible if chosen and (chosen[0] == 0) == (starts[0] in bases)]
    for fitting in (printed, below, first):
        readings = [{names[k]: word for k, word in zip(chosen, words, strict=True)} for chosen in fitting]
        values = {tuple(sorted((key, word) for key, word in one.items() if word.upper() != "N/A")) for one in readings}
        if len(values) == 1:
            return readings[0]
    return None


def _expanded(words: Sequence[str], filled: Sequence[str], names: Sequence[str], base: int) -> list[int]:
    """Offsets of the words if the row had been printed with tabs, two of them before the GPU NUMA ID."""
    left = dict(zip(filled, words, strict=True))
    starts, position = [], base
    for name in names:
        if name == "gid" and len(names) > 1:
            position = _next_stop(position)
        word = left.get(name, "")
        if word:
            starts.append(position)
        position = _next_stop(position + len(word))
    return starts


def _next_stop(offset: int) -> int:
    return (offset // TAB_STOP + 1) * TAB_STOP


def _doubt_last(label: str, names: Sequence[str], found: Affinities, *, complete: bool) -> None:
    """The last value of a text without a line end may be the beginning of a longer one.

    It is dropped unless the matrix is complete and no other row speaks against it.
    """
    columns = {"cpu": found.cpu, "numa": found.numa, "gid": found.gid}
    given = [name for name in names if columns[name].get(label) is not None]
    if not given:
        return
    column = columns[given[-1]]
    value = str(column[label])
    others = [other for key, other in column.items() if key != label and other is not None]
    later = [columns[name] for name in names[names.index(given[-1]) + 1 :]]
    missing = any(other is not None for one in later for other in one.values())
    if value in others and complete and not missing:
        return
    remark = f"row {label} ends in {value!r}, which may be cut"
    if complete and not missing and not any(other.startswith(value) for other in others):
        found.warnings.append(remark)
    else:
        column[label] = None
        found.warnings.append(remark)


def _split_glued(found: Affinities, *, has_numa: bool) -> None:
    """NUMA nodes that stand directly behind a CPU list, as when a cell fills its width; and what is only doubtful."""
    if not has_numa:
        return
    clean = {(cpu, found.numa.get(gpu)) for gpu, cpu in found.cpu.items() if cpu and found.numa.get(gpu)}
    for gpu, cpu in found.cpu.items():
        if cpu is None or found.numa.get(gpu) is not None or "-" not in cpu:
            continue
        neighbours = {(left, numa) for left, numa in clean if numa is not None and cpu == left + numa}
        possible = neighbours or set(_halves(cpu))
        if len(possible) == 1:
            how = "as in a neighbouring row" if neighbours else "assumed: its ranges are then equally long"
            found.cpu[gpu], found.numa[gpu] = possible.pop()
            found.warnings.append(
                f"{gpu}: CPU list and NUMA node run into each other ({cpu}), read as {found.cpu[gpu]} and "
                f"{found.numa[gpu]} ({how})"
            )
        elif _jumps(cpu):
            found.cpu[gpu] = None
            found.warnings.append(
                f"CPU list and NUMA node of {gpu} may run into each other ({cpu}) and cannot be split"
            )


def _ranges(cpu: str) -> list[tuple[int, int]]:
    parts = [part.partition("-") for part in cpu.split(",")]
    return [(int(low), int(high or low)) for low, _, high in parts]


def _jumps(cpu: str) -> bool:
    """Whether the last range is out of proportion: several, of which the last is longer than the first."""
    ranges = _ranges(cpu)
    return len(ranges) > 1 and ranges[-1][1] - ranges[-1][0] > ranges[0][1] - ranges[0][0]


def _halves(cpu: str) -> Iterator[tuple[str, str]]:
    """Ways to take one or two digits off the end so that the first and the last range are equally long."""
    if not _jumps(cpu):
        return
    for digits in (1, 2):
        left, numa = cpu[:-digits], cpu[-digits:]
        if left[-1:].isdigit() and numa.isdigit():
            ranges = _ranges(left)
            if ranges[-1][1] - ranges[-1][0] == ranges[0][1] - ranges[0][0] and str(int(numa)) == numa:
                yield left, numa


def _remarks(found: Affinities, *, has_numa: bool) -> None:
    cut = [gpu for gpu, cpu in found.cpu.items() if cpu is not None and _is_cut_list(cpu)]
    if cut:
        found.warnings.append(f"the driver cuts lists of single CPUs at {_LONGEST_CUT}: {found.cpu[cut[0]]} is not all")
    for what, column, asked in (("CPU list", found.cpu, True), ("NUMA affinity", found.numa, has_numa)):
        without = [gpu for gpu, value in column.items() if value is None]
        if without and asked:
            whose = "any GPU" if len(without) == len(column) else listed(without)
            found.warnings.append(f"no {what} is given for {whose}")


def _is_cut_list(cpu: str) -> bool:
    parts = cpu.split(",")
    return len(parts) == _LONGEST_CUT and "-" not in cpu and int(parts[1]) - int(parts[0]) > 1
