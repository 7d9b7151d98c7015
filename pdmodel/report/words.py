"""Words of the report: numbers with units, ranges, and names of alike things merged into one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pdmodel.units import GB, GIB, KIB, MIB, MS, format_bytes, format_ranges, format_seconds

Item = TypeVar("Item")

NOTHING = "-"
_DIGITS = re.compile(r"(\d+)")
_PORT = re.compile(r"\b[A-Z]/[\w/]+")


def seconds(time_s: float | None) -> str:
    """A time, or a dash.

    >>> seconds(0.0417), seconds(None)
    ('41.7 ms', '-')
    """
    return NOTHING if time_s is None else format_seconds(time_s)


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit for a whole column: called with a time it gives the bare number."""

    name: str
    scale_s: float

    def __call__(self, time_s: float) -> str:
        """The time as a bare number of this unit."""
        return number(time_s / self.scale_s)


def time_unit(times_s: Iterable[float]) -> Unit:
    """Seconds where a time is 10 s or longer, else milliseconds.

    >>> time_unit([0.21, 1.3])(0.2135)
    '214'
    """
    return Unit("s", 1.0) if max(times_s, default=0.0) >= 10 else Unit("ms", MS)


def percent(share: float | None) -> str:
    """A share in per cent, three digits at most.

    >>> percent(0.313), percent(0.0042), percent(None)
    ('31 %', '0.42 %', '-')
    """
    if share is None:
        return NOTHING
    value = share * 100
    if value == 0 or abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.2g} %"


def number(value: float | None) -> str:
    """A bare number, three significant digits, no exponent between 1e-4 and 1e6.

    >>> number(0.02871), number(0.0), number(1234567.0)
    ('0.0287', '0', '1.23e+06')
    """
    return NOTHING if value is None else f"{value:.3g}" if abs(value) < 1000 or abs(value) >= 1e6 else f"{value:.0f}"


def gb_per_s(rate_bytes_per_s: float) -> str:
    """A rate as a bare number of GB/s.

    >>> gb_per_s(6.666e9)
    '6.67'
    """
    return number(rate_bytes_per_s / GB)


def size(size_bytes: float) -> str:
    """A size of message: in powers of 1024 where that is a whole number, as such sizes are chosen, else decimal.

    >>> size(4194304), size(1536), size(3e6)
    ('4 MiB', '1.54 kB', '3 MB')
    """
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes / scale:.0f} {unit}"
    return format_bytes(size_bytes)


def span(low: float, high: float, write: Callable[[float], str]) -> str:
    """A range, or one value where both ends are written alike.

    >>> span(1e9, 2e9, gb_per_s), span(1e9, 1.0001e9, gb_per_s)
    ('1 .. 2', '1')
    """
    first, last = write(low), write(high)
    return first if first == last else f"{first} .. {last}"


def merged_name(names: Sequence[str]) -> str:
    """One name for several that differ in their numbers only.

    >>> merged_name(["P/gpu0/egress", "P/gpu1/egress", "P/gpu2/egress", "P/gpu5/egress"])
    'P/gpu[0-2,5]/egress'
    """
    parts = [_DIGITS.split(name) for name in names]
    if len({name_pattern(name) for name in names}) > 1:
        return f"{names[0]} (+{len(names) - 1} like it)"
    merged = [sorted({part[k] for part in parts}, key=_natural) for k in range(len(parts[0]))]
    return "".join(
        found[0] if len(found) == 1 else f"[{format_ranges([int(text) for text in found])}]" for found in merged
    )


def name_pattern(name: str) -> str:
    """The name with its numbers taken out: names with one pattern can be merged.

    >>> name_pattern("P/gpu12/egress")
    'P/gpu#/egress'
    """
    return _DIGITS.sub("#", name)


def merged_sentences(sentences: Sequence[str]) -> list[str]:
    """Sentences that differ only in the numbers of the ports that they name, as one; other numbers are left alone.

    >>> merged_sentences(["P/gpu0 is far from P/nic1", "P/gpu2 is far from P/nic1", "2 GB/s on P/gpu0"])
    ['P/gpu[0,2] is far from P/nic1', '2 GB/s on P/gpu0']
    >>> merged_sentences(["P/nic0 is far from P/gpu1", "P/nic1 is far from P/gpu0"])
    ['P/nic0 is far from P/gpu1', 'P/nic1 is far from P/gpu0']
    """

    def pattern(sentence: str) -> str:
        return _PORT.sub(lambda found: name_pattern(found.group()), sentence)

    return [text for found in group(sentences, pattern) for text in _folded(found)]


def _folded(sentences: Sequence[str]) -> list[str]:
    """Sentences of one pattern: one for each set of them whose ports are all combinations of what its columns name."""
    ports = [tuple(_PORT.findall(sentence)) for sentence in sentences]
    columns = len(ports[0])
    if len(sentences) == 1 or math.prod(len(set(column)) for column in zip(*ports, strict=True)) == len(set(ports)):
        return [_merged_sentence(sentences, ports)]
    # Not all combinations occur: fold the last column alone, so that no pair is named that nobody found.
    alike = group(range(len(sentences)), lambda i: ports[i][: columns - 1])
    return [_merged_sentence([sentences[i] for i in found], [ports[i] for i in found]) for found in alike]


def _merged_sentence(sentences: Sequence[str], ports: Sequence[tuple[str, ...]]) -> str:
    parts = _PORT.split(sentences[0])
    names = [merged_name(list(dict.fromkeys(column))) for column in zip(*ports, strict=True)]
    return "".join(part + name for part, name in zip(parts, [*names, ""], strict=True))


def group(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Items with equal keys together, groups in order of first appearance."""
    found: dict[Hashable, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return list(found.values())


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (-1, text)
