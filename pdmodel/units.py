"""Units: SI inside, human units in files and on screens; a name ends with its unit (``_s``, ``_bytes``)."""

from __future__ import annotations

from collections.abc import Sequence

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
GBIT_PER_S = 1e9 / 8
US, MS = 1e-6, 1e-3


def format_bytes(size_bytes: float) -> str:
    """Decimal bytes with three significant digits.

    >>> format_bytes(12.6e9), format_bytes(0)
    ('12.6 GB', '0 B')
    """
    for unit, scale in (("TB", TB), ("GB", GB), ("MB", MB), ("kB", KB)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.3g} {unit}"
    return f"{size_bytes:.3g} B"


def format_rate(rate_bytes_per_s: float) -> str:
    """A rate in GB/s (1e9 byte/s).

    >>> format_rate(53.9e9)
    '53.9 GB/s'
    """
    return f"{rate_bytes_per_s / GB:.3g} GB/s"


def format_seconds(time_s: float) -> str:
    """A time with the unit that reads best.

    >>> format_seconds(0.2135), format_seconds(2.5e-5), format_seconds(0.0)
    ('214 ms', '25 us', '0 ms')
    """
    if time_s == 0:
        return "0 ms"
    if abs(time_s) >= 1:
        return f"{time_s:.3f} s"
    if abs(time_s) >= 1e-4:
        milli = time_s / MS
        return f"{milli:.0f} ms" if abs(milli) >= 100 else f"{milli:.3g} ms"
    return f"{time_s / US:.3g} us"


def format_count(count: float) -> str:
    """A number of things, three significant digits, in words where it is large.

    >>> format_count(1.71e6), format_count(13300), format_count(12)
    ('1.71 million', '13300', '12')
    """
    for word, scale in (("billion", 1e9), ("million", 1e6)):
        if count >= scale:
            return f"{count / scale:.3g} {word}"
    return f"{count:.0f}" if count >= 100 else f"{count:.3g}"


def format_ranges(values: Sequence[int]) -> str:
    """Numbers in order, neighbours as a range.

    >>> format_ranges([4, 0, 1, 2])
    '0-2,4'
    """
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
