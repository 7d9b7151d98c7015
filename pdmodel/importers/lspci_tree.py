"""The drawing of ``lspci -tv``: which device hangs on which bus, told by columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ROOT = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_DEVICE = re.compile(r"([0-9a-f]{2}\.[0-9a-f])", re.IGNORECASE)
_BELOW = re.compile(r"-\[(?:([0-9a-f]{4,8}):)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", re.IGNORECASE)
_BRANCH = re.compile(r"[ |]*?([+\\])-")
_MOST_COLUMNS = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A device of the drawing: its bus id, the bridge above (None on a root bus), its root bus, its description."""

    bus: str
    parent: str | None
    root: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where devices of a branch hang: domain, bus, bridge above, root bus; None before a root bus was named."""

    domain: str
    bus: str
    parent: str | None
    root: str


def is_drawing(line: str) -> bool:
    """Whether the line is of such a drawing."""
    return re.match(r"[\s|]*(?:-|\\-|\+-)", line) is not None and (
        _ROOT.search(line) is not None or re.search(r"[+\\]-[0-9a-f]{2}\.[0-9a-f]", line) is not None
    )


def drawn(lines: Sequence[tuple[int, str]]) -> Iterator[Drawn]:
    """The devices of a drawing; what cannot be placed is left out."""
    branches: dict[int, _Place | None] = {}
    for number, raw in lines:
        line = raw.expandtabs(8)[:_MOST_COLUMNS]
        if not is_drawing(line):
            continue
        yield from _of_line(number, line, branches)


def _of_line(number: int, line: str, branches: dict[int, _Place | None]) -> Iterator[Drawn]:
    first = re.search(r"[-+\\]", line)
    if first is None:
        return
    position, place = first.start(), None
    mark = _BRANCH.match(line)
    if mark is not None:
        # A further branch: what hangs here is told by the column of its mark.
        position = mark.start(1)
        place = branches.get(position)
        for column in [column for column in branches if column > position]:
            del branches[column]
        position += 1
    while position < len(line):
        found = _ROOT.match(line, position)
        if found is not None:
            domain = found[1].lower()[-4:]
            place = _Place(domain, found[2].lower(), None, f"{domain}:{found[2].lower()}")
            position = found.end()
            continue
        device = _DEVICE.match(line, position)
        if device is not None and place is not None:
            bus = f"{place.domain}:{place.bus}:{device[1].lower()}"
            below = _BELOW.match(line, device.end())
            if below is None:
                yield Drawn(bus, place.parent, place.root, line[device.end() :].strip(), number)
                return
            yield Drawn(bus, place.parent, place.root, "", number)
            place = _Place((below[1] or place.domain).lower()[-4:], below[2].lower(), bus, place.root)
            position = below.end()
            continue
        if line[position] == "+":
            branches[position] = place
        elif line[position] not in "-\\":
            return
        position += 1
