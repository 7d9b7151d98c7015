"""What a table of nccl-tests is about, read off its own figures: collective, ranks, nodes, units."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from pathlib import PurePath
from statistics import mean, median

from pdmodel.errors import InputError
from pdmodel.importers.nccl_lines import TYPES
from pdmodel.importers.nccl_log import Collective, Device, Note, Place, Row

_C = Collective
# Collectives whose count is that of one rank's part while size is that of all parts.
_PARTS = {_C.ALL_GATHER, _C.REDUCE_SCATTER, _C.ALL_TO_ALL, _C.GATHER, _C.SCATTER, _C.HYPERCUBE}
_REDUCTIONS = {_C.ALL_REDUCE, _C.REDUCE_SCATTER, _C.REDUCE}
# Printed bandwidths have two decimals; figures below this [byte/s] say too little about ratios.
_TELLING = 1e9
_HALF_DIGIT = 0.0051e9
# Beyond this, two decimals of busbw say nothing about the number of ranks.
_MOST_RANKS = 8192
# Words that file names use, for collectives that their rows cannot tell apart.
_WORDS = {"allgather": _C.ALL_GATHER, "alltoall": _C.ALL_TO_ALL, "gather": _C.GATHER, "scatter": _C.SCATTER}
_UNIT_SLIP = {1e-3: "the times look like milliseconds", 1e3: "the times look like nanoseconds", 1e-6: "seconds"}


@dataclass(frozen=True, slots=True)
class Found:
    """Something read off a table, in words where it was read, and what was noticed."""

    value: int | None
    source: str
    notes: tuple[Note, ...] = ()


def parts(row: Row) -> float | None:
    """Size over the bytes that ``count`` elements take: 1, or the number of ranks where count is of one rank's part."""
    width = TYPES.get(row.type)
    return row.size_bytes / (row.count * width) if width and row.count else None


# ---- units -----------------------------------------------------------------------------------------------------------


def check_units(rows: Sequence[Row], ranks: int | None, file: str) -> tuple[tuple[Row, ...], tuple[Note, ...]]:
    """Hold printed algbw against size / time; rows that contradict themselves are dropped.

    Equation: algbw = S/t; old versions print S/n/t or S (n-1)/n/t for collectives of parts.

    Raises: `InputError` where most rows disagree: a unit is not what the heading says.
    """
    ratios = [(row, place, _ratio(row, place)) for row in rows for place in row.places]
    telling = [(row, place, ratio) for row, place, ratio in ratios if ratio is not None]
    if not telling:
        return tuple(rows), ()
    middle = median(ratio for _, _, ratio in telling)
    shares = {1.0: ""}
    if ranks and ranks > 1 and (parts(telling[0][0]) or 1) > 1.5:
        shares |= {1 / ranks: f"1/{ranks}", (ranks - 1) / ranks: f"{ranks - 1}/{ranks}"}
    near = next((share for share in shares if abs(middle / share - 1) < 0.03), None)
    if near is None:
        raise _unit_error(telling, middle, file)
    off = [item for item in telling if abs(item[2] / near - 1) > _tolerance(item[1])]
    bad = {row.line for row, _, _ in off}
    notes = []
    if near != 1.0:
        text = f"this version prints algbw of {shares[near]} of the size; bandwidths are taken from size and time"
        notes.append(Note(telling[0][0].line, text))
    if len(bad) > len(rows) / 4:
        raise _unit_error(off, median(ratio for _, _, ratio in off), file)
    notes += [Note(line, "algbw is not size / time: row dropped") for line in sorted(bad)]
    return tuple(row for row in rows if row.line not in bad), tuple(notes)


def _ratio(row: Row, place: Place) -> float | None:
    if place.algbw_bytes_per_s is None or place.time_s <= 0 or row.size_bytes == 0:
        return None
    own = row.size_bytes / place.time_s
    return place.algbw_bytes_per_s / own if max(place.algbw_bytes_per_s, own) >= _TELLING else None


def _tolerance(place: Place) -> float:
    return 0.03 + 2 * _HALF_DIGIT / max(place.algbw_bytes_per_s or 0.0, _HALF_DIGIT)


def _unit_error(telling: Sequence[tuple[Row, Place, float]], middle: float, file: str) -> InputError:
    row, place, _ = next((item for item in reversed(telling) if abs(item[2] - middle) < 0.1 * middle), telling[-1])
    printed, own = (place.algbw_bytes_per_s or 0.0) / 1e9, row.size_bytes / place.time_s / 1e9
    slip = next((text for factor, text in _UNIT_SLIP.items() if abs(middle / factor - 1) < 0.1), "a unit differs")
    return InputError(
        f"algbw is printed as {printed:g} GB/s, but {row.size_bytes} B in {place.time_s * 1e6:g} us "
        f"are {own:.4g} GB/s: {slip}",
        file=file,
        path=f"line {row.line}",
        expected="size in bytes, time in the unit of the heading, algbw in GB/s",
    )


# ---- collective ------------------------------------------------------------------------------------------------------


def collectives_of(
    rows: Sequence[Row], named: Collective | None, file: str, *, by_user: bool = False
) -> tuple[tuple[Collective, ...], str]:
    """What the rows can be of, and how that is known.

    Raises: `InputError` where the program that the log names cannot have printed such rows.
    """
    possible = _possible(rows)
    if named is not None:
        if named not in possible and not (by_user and named in _loosely(rows)):
            row = rows[-1]
            raise InputError(
                f"the log is said to be of {named.value}, but redop {row.redop or 'absent'}, root "
                f"{'absent' if row.root is None else row.root} and a count of {row.count} for {row.size_bytes} B are "
                "of " + " or ".join(one.value for one in possible),
                file=file,
                path=f"line {row.line}",
                expected="one collective a table",
            )
        return (named,), "given by hand" if by_user else "the program's name"
    if len(possible) == 1:
        return possible, "redop, root and count"
    stem = re.sub(r"[^a-z]", "", PurePath(file).stem.lower())
    hinted = [one for word, one in _WORDS.items() if word in stem and one in possible]
    if len(hinted) == 1:
        return tuple(hinted), "the file's name"
    return possible, "redop, root and count, which several collectives share"


def _loosely(rows: Sequence[Row]) -> tuple[Collective, ...]:
    """What redop and root leave open."""
    reduces = rows[-1].redop not in {None, "none"}
    return tuple(one for one in _C if (one in _REDUCTIONS) == reduces or rows[-1].redop is None)


def _possible(rows: Sequence[Row]) -> tuple[Collective, ...]:
    row = rows[-1]
    share = parts(row)
    split = share is not None and share > 1.5
    rooted = row.root is not None and row.root >= 0
    if row.redop not in {None, "none"}:
        return (_C.REDUCE,) if rooted else (_C.REDUCE_SCATTER if split else _C.ALL_REDUCE,)
    if rooted:
        return (_C.GATHER, _C.SCATTER) if split else (_C.BROADCAST,)
    if not split:
        return (_C.SEND_RECV,) if row.redop == "none" else (_C.SEND_RECV, _C.BROADCAST)
    # An all-to-all is never checked in place; an all-gather is wherever it is checked at all.
    both = [one for one in rows if one.out_of_place and one.in_place and one.out_of_place.wrong is not None]
    if both and all(one.in_place is not None and one.in_place.wrong is None for one in both):
        return (_C.ALL_TO_ALL,)
    if both or (row.redop is None and _same_bandwidths(rows)):
        return (_C.ALL_GATHER,)
    return (_C.ALL_GATHER, _C.ALL_TO_ALL)


def _same_bandwidths(rows: Sequence[Row]) -> bool:
    """Old all-gathers print busbw = algbw; an all-to-all never did."""
    return all(place.algbw_bytes_per_s == place.busbw_bytes_per_s for row in rows for place in row.places)


# ---- ranks and nodes -------------------------------------------------------------------------------------------------


def ranks_of(
    rows: Sequence[Row], collective: Collective | None, devices: Sequence[Device], threads: int | None, file: str
) -> Found:
    """How many ranks took part: from ``Rank`` lines, count against size, busbw against algbw, in this order.

    Parameters: ``threads`` nThread x nGpus of the header, the ranks of one process.
    Raises: `InputError` where they contradict each other.
    """
    by_figures = _by_parts(rows, file) or _by_bandwidths(rows, collective)
    if devices:
        top = max(devices, key=lambda device: device.rank)
        count = top.rank + 1
        if by_figures is not None and not by_figures[0]:
            raise InputError(
                f"rank {top.rank} is listed (line {top.line}), but {by_figures[1]}",
                file=file,
                path=f"line {rows[0].line}",
                expected="the columns that the heading names, in each row",
            )
        if by_figures is not None and count not in by_figures[0]:
            low, high = by_figures[0][0], by_figures[0][-1]
            several = str(low) if low == high else f"{low} to {high}"
            raise InputError(
                f"rank {top.rank} is listed, but {by_figures[1]} is that of {several} ranks",
                file=file,
                path=f"line {top.line}",
                expected=f"the header of the run that printed the table from line {rows[0].line} on, or --ranks",
            )
        return Found(count, "Rank lines" if len(devices) == count else f"the last Rank line (line {top.line})")
    if by_figures is not None and len(by_figures[0]) == 1:
        return Found(by_figures[0][0], by_figures[1])
    if by_figures is not None and threads and threads in by_figures[0]:
        return Found(threads, "nThread x nGpus")
    if by_figures is None and threads and threads > 1 and collective is not None:
        return Found(threads, "nThread x nGpus")
    why = "no Rank line, no row with enough digits of busbw and algbw"
    if by_figures is not None:
        why = (
            f"{by_figures[1]} fits {by_figures[0][0]} to {by_figures[0][-1]} ranks" if by_figures[0] else by_figures[1]
        )
    return Found(None, why)


def ranks_by_hand(ranks: int, rows: Sequence[Row], read: Callable[[], Found]) -> Found:
    """Ranks that the user says; what the log says instead (``read``) is noticed."""
    try:
        own = read()
    except InputError:  # it contradicts itself, which is why the user says it
        own = Found(None, "")
    found = Found(ranks, "given by hand")
    if own.value in {None, ranks}:
        return found
    text = f"{ranks} ranks are taken, as given by hand; the log tells of {own.value} ({own.source})"
    return replace(found, notes=(Note(rows[0].line, text),))


def _by_parts(rows: Sequence[Row], file: str) -> tuple[tuple[int, ...], str] | None:
    """Where count is of one rank's part: size over count is n. Rows must agree."""
    found: dict[int, int] = {}
    for row in rows:
        share = parts(row)
        if share is None:
            continue
        if abs(share - round(share)) > 1e-9 * share or share < 1:
            raise InputError(
                f"a count of {row.count} {row.type} does not go into {row.size_bytes} B",
                file=file,
                path=f"line {row.line}",
                expected="size = count x bytes of the type (x ranks, where count is of one rank's part)",
            )
        found.setdefault(round(share), row.line)
    if len(found) > 1:
        one, two = list(found.items())[:2]
        raise InputError(
            f"size over count is {one[0]} in line {one[1]} and {two[0]} here: two collectives, or two numbers of ranks",
            file=file,
            path=f"line {two[1]}",
            expected="one run a table",
        )
    ranks = next(iter(found), 1)
    return ((ranks,), "size over count") if ranks > 1 else None


def _by_bandwidths(rows: Sequence[Row], collective: Collective | None) -> tuple[tuple[int, ...], str] | None:
    """busbw/algbw of an all-reduce is 2(n-1)/n: the numbers n that most of the telling rows allow."""
    if collective is not Collective.ALL_REDUCE:
        return None
    places = [place for row in rows for place in row.places if (place.algbw_bytes_per_s or 0) >= _TELLING]
    if not places:
        return None
    sharpest = max(places, key=lambda place: place.algbw_bytes_per_s or 0.0)
    ratio = (sharpest.busbw_bytes_per_s or 0.0) / (sharpest.algbw_bytes_per_s or 1.0)
    words = f"busbw / algbw = {ratio:.4g}"
    votes: dict[int, int] = {}
    for place in places:
        for ranks in _allowed(place):
            votes[ranks] = votes.get(ranks, 0) + 1
    best = max(votes.values(), default=0)
    if best < 0.7 * len(places):
        return (), f"{words} is 2(n-1)/n for no number of ranks"
    return tuple(sorted(ranks for ranks, count in votes.items() if count == best)), words


def _allowed(place: Place) -> range:
    """Numbers of ranks whose 2(n-1)/n is busbw / algbw within their last digits."""
    algbw, busbw = place.algbw_bytes_per_s or 0.0, place.busbw_bytes_per_s or 0.0
    low, high = (busbw - _HALF_DIGIT) / (algbw + _HALF_DIGIT), (busbw + _HALF_DIGIT) / (algbw - _HALF_DIGIT)
    most = _MOST_RANKS if high >= 2 else floor(min(2 / (2 - high), _MOST_RANKS))
    least = max(1, ceil(2 / (2 - low))) if low < 2 else _MOST_RANKS + 1
    return range(least, most + 1)


def nodes_of(devices: Sequence[Device], ranks: int | None) -> Found:
    """How many nodes: hosts of ``Rank`` lines; where lines are left out, ranks over the devices of a node."""
    if not devices or ranks is None:
        return Found(None, "no Rank lines")
    hosts = dict.fromkeys(device.host for device in devices)
    if len({device.rank for device in devices}) == ranks:
        places = {(device.host, device.bus, device.device) for device in devices}
        per_host = len(places) / len(hosts)
        if len(hosts) == 1 and len(places) < ranks and len(places) > 1 and ranks % len(places) == 0:
            text = f"host {next(iter(hosts))!r} has {len(places)} GPUs, but {ranks} ranks: several nodes of one name"
            return Found(ranks // len(places), "repeated devices", (Note(devices[0].line, text),))
        return Found(len(hosts), f"hosts of the Rank lines ({per_host:g} GPUs each)")
    per_node = max(device.device for device in devices) + 1
    shown = f"{len(devices)} of {ranks} Rank lines" if len(devices) < ranks else f"{len(devices)} Rank lines"
    note = Note(devices[0].line, f"{shown}: {per_node} GPUs a node by the device numbers")
    return Found(max(len(hosts), ceil(ranks / per_node)), "device numbers", (note,))


def check_average(rows: Sequence[Row], average: float | None, line: int, zeros: int) -> tuple[Note, ...]:
    """The log's own mean busbw against that of its rows: another one means that rows are missing, or foreign.

    Parameters: ``zeros`` rows of size 0, which count with a busbw of 0.
    """
    busbws = [place.busbw_bytes_per_s for row in rows for place in row.places if place.busbw_bytes_per_s is not None]
    if average is None or not busbws:
        return ()
    per_row = 2 if any(row.in_place for row in rows) else 1
    own = mean([*busbws, *[0.0] * (zeros * per_row)]) / 1e9
    if abs(own - average) <= 0.02 * max(own, average) + 0.01:
        return ()
    text = f"the log's mean busbw is {average:g} GB/s, that of its rows {own:.4g}: rows are missing or of another run"
    return (Note(line, text),)
