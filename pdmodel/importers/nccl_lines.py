"""Lines of nccl-tests logs: what launchers and terminals put around them, headings, rows, and nothing else."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.importers.nccl_log import Collective, Device, Place, Row
from pdmodel.importers.text_bytes import ESCAPES

# mpirun --tag-output, srun --label, containers and pdsh; a time stamp before any of them.
_STAMP = r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+)?"
_PREFIX = re.compile(
    rf"^\s*{_STAMP}(?P<who>\[[\w.,-]*\d\](?:<std(?:out|err)>)?:?|<std(?:out|err)>:?|\d+:|[A-Za-z][\w./-]*\d[\w./-]*(?::|\s*\|))(?=[\s#]|$)"
)
_STAMPED = re.compile(r"^\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*\s+")
_LEFT_OUT = re.compile(
    r"^[\s#|]*(?:\[?\.{3,}\]?|…|⋮|[<\[(.…\s]*\b(?:snip|omitted|truncated|elided)\b.*)[\s|]*$", re.IGNORECASE
)
_ROW = re.compile(r"[# ]*[0-9]{1,18} +[0-9]{1,18} +\S")
_RANK = re.compile(
    r"\bRank\s+(?P<rank>[0-9]{1,6})\s+(?:Group\s+[0-9]+\s+)?Pid\s+[0-9]+\s+on\s+(?P<host>\S+)"
    r"\s+device\s+(?P<device>[0-9]{1,4})"
    r"\s+\[(?P<bus>[^\]]*)\]\s*(?P<gpu>.*\S)?"
)
_PROGRAM = re.compile(r"(?<![A-Za-z0-9])([a-z_]+?)_perf(?:_mpi)?\b")
_PROGRAMS = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "alltoallv": Collective.ALL_TO_ALL,
    "sendrecv": Collective.SEND_RECV,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "hypercube": Collective.HYPERCUBE,
}
# Bytes of an element; names as nccl-tests prints them, old ones included.
TYPES = {
    **dict.fromkeys(("int8", "uint8", "char", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("double", "float64", "int64", "uint64"), 8),
}
# Largest difference that old versions pass as rounding. nccl-tests 2.0 src/common.cu, deltaMaxValue.
_TOLERANCE = {"half": 1e-2, "float16": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "float32": 1e-5}
_ALIASES = {"bytes": "size", "n": "count", "elements": "count", "op": "redop", "wrong": "#wrong", "res": "error"}
_NOT_MEASURED = {"n/a", "na", "nan", "-", "inf"}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "ns": 1e-9}


@dataclass(frozen=True, slots=True)
class Line:
    """A line without what the launcher put before it; ``who`` is that, and keeps the output of ranks apart."""

    number: int
    who: str
    text: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table by name, in order; the places' own ones come once each, or only once for one place."""

    line: int
    names: tuple[str, ...]

    @property
    def place(self) -> int:
        """Where the first time stands."""
        return self.names.index("time")

    @property
    def per_place(self) -> tuple[str, ...]:
        """The columns of one place."""
        names = self.names[self.place :]
        return names if names.count("time") == 1 else names[: names.index("time", 1)]


def cleaned(number: int, text: str) -> Line:
    r"""A line without control sequences and prefixes.

    >>> cleaned(1, "[1,0]<stdout>:#  size count\r").text, cleaned(2, " 0:      1024   256").who
    ('#  size count', '0:')
    """
    text = ESCAPES.sub("", text).replace("\xa0", " ").replace("\ufeff", "").replace("\t", " ").strip("\r\n\x00")
    found = _PREFIX.match(text)
    if found:
        return Line(number, found["who"].strip(), text[found.end() :].strip())
    return Line(number, "", _STAMPED.sub("", text).strip())


def program_in(text: str) -> Collective | None:
    """The program of nccl-tests that a line names.

    >>> program_in("# Collective test starting: alltoall_perf").value
    'all_to_all'
    """
    for found in _PROGRAM.finditer(text):
        if found[1] in _PROGRAMS:
            return _PROGRAMS[found[1]]
    return None


def left_out(text: str) -> bool:
    """Whether the line stands for others that somebody removed."""
    return bool(_LEFT_OUT.match(text))


def device_in(line: Line) -> Device | None:
    """A ``Rank`` line."""
    found = _RANK.search(line.text)
    if found is None:
        return None
    return Device(
        line.number, int(found["rank"]), found["host"], int(found["device"]), found["bus"], found["gpu"] or ""
    )


def columns_in(line: Line) -> Columns | None:
    """A heading that names the columns."""
    words = line.text.lower().replace("# wrong", "#wrong").lstrip("# ").split()
    names = tuple(_ALIASES.get(word, word) for word in words)
    if len(names) < 4 or names[0] != "size" or "time" not in names:
        return None
    return Columns(line.number, names)


def time_unit_in(text: str) -> str | None:
    """The unit of time that the second line of a heading names."""
    if "(GB/s)" not in text and "(us)" not in text:
        return None
    found = re.search(r"\((us|ms|ns|s)\)", text)
    return found[1] if found else None


def looks_like_row(text: str) -> bool:
    """Whether the line begins as a row does: two whole numbers and a data type."""
    return bool(_ROW.match(text)) and text.lstrip("# ").split()[2].lower() in TYPES


def guessed_columns(line: Line) -> Columns | None:
    """Columns of a row under no heading, from how many values it has and where words stand among them."""
    words = line.text.lstrip("# ").split()
    rest = len(words) - 3
    lead = ["size", "count", "type"]
    if rest > 0 and not _is_value(words[3]):
        lead.append("redop")
        rest -= 1
    place = ["time", "algbw", "busbw"]
    root = {4: [], 5: ["root"], 6: [], 7: ["root"], 8: [], 9: ["root"]}
    if rest not in root or (rest in {4, 5} and len(lead) == 3):
        return None
    lead += root[rest]
    each = place if rest in {6, 7} else [*place, "#wrong"]
    return Columns(line.number, (*lead, *each, *(each if rest > 5 else ())))


def _is_value(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return word.lower() in _NOT_MEASURED
    return True


def row_of(line: Line, columns: Columns, unit_s: float, file: str) -> Row:
    """A row under its columns.

    Parameters: ``unit_s`` the unit of the printed times [s].
    Raises: `InputError` for a value that is none, a wrong result, a time that is not positive.
    """
    words = line.text.lstrip("# ").split()
    at = {name: words[k] for k, name in reversed(list(enumerate(columns.names[: columns.place])))}
    width, first = len(columns.per_place), columns.place
    size, dtype = int(at["size"]), at.get("type", "").lower()
    groups = [words[k : k + width] for k in range(first, len(words), width)]
    places = [_place(line, dict(zip(columns.per_place, group, strict=False)), dtype, unit_s, file) for group in groups]
    if size > 0:
        for place in places:
            _check_time(line, place, file)
    return Row(
        line=line.number,
        size_bytes=size,
        count=int(at["count"]),
        type=dtype,
        redop=at.get("redop"),
        root=_root(at.get("root")),
        out_of_place=places[0] if places else None,
        in_place=places[1] if len(places) > 1 else None,
    )


def _root(word: str | None) -> int | None:
    return int(word) if word is not None and re.fullmatch(r"-?[0-9]{1,9}", word) else None


def _place(line: Line, words: dict[str, str], dtype: str, unit_s: float, file: str) -> Place | None:
    where = f"line {line.number}"
    time = _number(words.get("time", "-"), where, "time", file)
    if time is None:
        return None
    algbw, busbw = (_number(words.get(name, "-"), where, name, file) for name in ("algbw", "busbw"))
    wrong: int | None = None
    if "#wrong" in words:
        value = _number(words["#wrong"], where, "#wrong", file)
        wrong = None if value is None else int(value)
    elif "error" in words:
        value = _number(words["error"], where, "error", file)
        wrong = None if value is None else int(value > _TOLERANCE.get(dtype, 0.0))
    if wrong:
        what = f"{wrong} wrong values" if "#wrong" in words else f"an error of {words['error']}"
        raise InputError(
            f"{what}: a wrong run is no measurement; find out why and measure again",
            file=file,
            path=where,
            expected="#wrong of 0" if "#wrong" in words else "rounding alone",
        )
    return Place(time * unit_s, None if algbw is None else algbw * 1e9, None if busbw is None else busbw * 1e9, wrong)


def _number(word: str, where: str, name: str, file: str) -> float | None:
    if word.lower() in _NOT_MEASURED:
        return None
    try:
        value = float(word)
    except ValueError:
        raise InputError(f"found {word!r} as {name}", file=file, path=where, expected="a number or N/A") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"found {word!r} as {name}", file=file, path=where, expected="a number from 0 on")
    return value


def _check_time(line: Line, place: Place | None, file: str) -> None:
    if place is not None and place.time_s <= 0:
        raise InputError(
            "a time of 0", file=file, path=f"line {line.number}", expected="a positive time, as bytes were moved"
        )


def unit_s(unit: str | None) -> float:
    """A unit of time as seconds; nccl-tests prints microseconds."""
    return _TIME_UNITS[unit or "us"]
