"""Sizes, ranks and lists as they are typed: ``1024,1MiB``, ``1KiB:64MiB:x2``, ``0,1,4-7``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdmodel.errors import InputError, nearest

UNITS = {"": 1, "B": 1} | {
    f"{letter}{ending}": base**power
    for power, letters in enumerate(("kK", "M", "G", "T"), start=1)
    for letter in letters
    for ending, base in (("iB", 1024), ("B", 1000))
}
"""Bytes of each unit: binary ones as nccl-tests counts, decimal ones by their own name."""

MOST_SIZES = 100_000
_SIZE = re.compile(r"(?P<count>[+-]?\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*(?P<unit>[A-Za-z]*)")
_EXAMPLE = "sizes such as 1024, 4MiB or 1KiB:64MiB:x2, with commas between them"


def parse_size_bytes(text: str) -> int:
    """One size [byte].

    Raises: `InputError` for what is no size, no whole number of bytes, or not positive.

    >>> parse_size_bytes("1024"), parse_size_bytes("4MiB"), parse_size_bytes("1.5kB")
    (1024, 4194304, 1500)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(f"{text.strip()!r} is no size", path="--sizes", expected=_EXAMPLE)
    if found["unit"] not in UNITS:
        raise InputError(
            f"{text.strip()!r} has no known unit",
            path="--sizes",
            expected="B, KiB, MiB, GiB (powers of 1024) or kB, MB, GB (powers of 1000)",
            nearest=f"{found['unit'].upper()}iB" if found["unit"].upper() in {"K", "M", "G"} else None,
        )
    size = float(found["count"]) * UNITS[found["unit"]]
    if size <= 0 or size != int(size):
        raise InputError(f"found {text.strip()!r}", path="--sizes", expected="a positive, whole number of bytes")
    return int(size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in the order given [byte]; ``a:b``, ``a:b:xF`` and ``a:b:+STEP`` are ranges, both ends included.

    Raises: `InputError` for a malformed size or range, and for more than `MOST_SIZES`.

    >>> parse_sizes("512,1KiB:8KiB:x2"), parse_sizes("1MiB:2MiB:+512KiB")
    ((512, 1024, 2048, 4096, 8192), (1048576, 1572864, 2097152))
    """
    sizes: list[int] = []
    for part in text.split(","):
        for size in _range(part) if ":" in part else [parse_size_bytes(part)]:
            sizes.append(size)
            if len(sizes) > MOST_SIZES:
                raise InputError(f"more than {MOST_SIZES} sizes", path="--sizes", expected="a wider step")
    return tuple(sizes)


def _range(text: str) -> Iterator[int]:
    parts = text.split(":")
    step = parts[2].strip() if len(parts) == 3 else "x2"
    if len(parts) > 3 or step[:1] not in {"x", "+"}:
        raise InputError(
            f"{text.strip()!r} is no range", path="--sizes", expected="FROM:TO, FROM:TO:x2 or FROM:TO:+1MiB"
        )
    size, last = parse_size_bytes(parts[0]), parse_size_bytes(parts[1])
    if last < size:
        raise InputError(f"{text.strip()!r} ends below its start", path="--sizes", expected="the smaller size first")
    factor, add = 1, 0
    if step[0] == "+":
        add = parse_size_bytes(step[1:])
    elif step[1:].isdigit() and int(step[1:]) > 1:
        factor = int(step[1:])
    else:
        raise InputError(f"the step of {text.strip()!r}", path="--sizes", expected="x2, x4, ... or +SIZE")
    while size <= last:
        yield size
        size = size * factor + add


def parse_indices(text: str, option: str) -> tuple[int, ...]:
    """Numbers and ranges of numbers, in the order given.

    >>> parse_indices("0,2,5-7", "--gpus")
    (0, 2, 5, 6, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"found {part.strip()!r}", path=option, expected="numbers such as 0,1,2,3 or 0-3")
        end = int(last) if dash else int(first)
        if not int(first) <= end < int(first) + 4096:
            raise InputError(f"found {part.strip()!r}", path=option, expected="the smaller number first")
        found += range(int(first), end + 1)
    return tuple(found)


def choice(word: str, legal: list[str], option: str) -> str:
    """``word`` in lower case where it is one of ``legal``; else `InputError` with them and the nearest."""
    wanted = word.strip().lower()
    if wanted in legal:
        return wanted
    raise InputError(
        f"unknown {option.lstrip('-')} {word!r}",
        path=option if option.startswith("-") else None,
        expected="one of " + ", ".join(legal),
        nearest=nearest(wanted, legal),
    )
