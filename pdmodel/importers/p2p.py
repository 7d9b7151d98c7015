"""Copies between GPUs and host, measured: ``p2pBandwidthLatencyTest`` and ``nvbandwidth`` (text and JSON)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pdmodel.errors import InputError
from pdmodel.importers.topo_codes import lines_of

_DEVICE = re.compile(r"Device:?\s+([0-9]{1,3})[,:]\s+([^,(\t]{1,80})")
_CANNOT = re.compile(r"Device=([0-9]{1,3}) (CANNOT|CAN) Access Peer Device=([0-9]{1,3})")
_TITLE = re.compile(r"(Uni|Bi)directional P2P=(Enabled|Disabled) Bandwidth|P2P=(Enabled|Disabled) Latency")
_CONNECT = re.compile(r"P2P Connectivity Matrix")
_RUNNING = re.compile(r"Running ([a-z0-9_]{3,80})\.?")
_WAIVED = re.compile(r"\b(?:WAIVED|Waived)\b")
_HEADER = re.compile(r"\s*(?:[DGC]\\?[DP]U?\s+)?[0-9]{1,3}(?:\s+[0-9]{1,3})*\s*")
_NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,6})?|N/A|nan|inf", re.IGNORECASE)
MOST_GPUS = 128


class Path(StrEnum):
    """Between what the bytes go."""

    GPU_TO_GPU = "gpu_to_gpu"
    HOST_TO_GPU = "host_to_gpu"
    GPU_TO_HOST = "gpu_to_host"


class Measure(StrEnum):
    """What the figures are: GB/s one way, GB/s of both ways together, microseconds, or whether peers can be reached."""

    ONE_WAY = "one_way"
    BOTH_WAYS = "both_ways"
    LATENCY = "latency"
    CONNECTIVITY = "connectivity"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix: ``cells`` by (row, column), N/A left out; ``p2p``: P2P was on; ``copy_engine``: no kernel copies."""

    title: str
    line: int
    path: Path
    measure: Measure
    cells: Mapping[tuple[int, int], float]
    p2p: bool | None = None
    copy_engine: bool = True
    write: bool = True

    @property
    def between(self) -> dict[tuple[int, int], float]:
        """Cells of two different devices."""
        return {pair: value for pair, value in self.cells.items() if pair[0] != pair[1]}


@dataclass(frozen=True, slots=True)
class P2pLog:
    """A file: GPUs by index as it names them, matrices, and pairs (from, to) that cannot reach each other."""

    file: str
    program: str
    gpus: Mapping[int, str]
    matrices: tuple[Matrix, ...]
    refused: tuple[tuple[int, int], ...]
    warnings: tuple[str, ...]

    @property
    def gpu_count(self) -> int:
        """GPUs that the file has: named, or in a matrix between GPUs."""
        pairs = [pair for one in self.matrices if one.path is Path.GPU_TO_GPU for pair in one.cells]
        columns = [pair[1] for one in self.matrices if one.path is not Path.GPU_TO_GPU for pair in one.cells]
        return max([*self.gpus, *columns, *(index for pair in pairs for index in pair)], default=-1) + 1

    def find(self, path: Path, measure: Measure) -> tuple[Matrix, ...]:
        """Matrices of one kind."""
        return tuple(one for one in self.matrices if one.path is path and one.measure is measure)


@dataclass
class _Open:
    """The matrix that is being read."""

    title: str
    line: int
    path: Path
    measure: Measure
    p2p: bool | None
    copy_engine: bool
    write: bool
    columns: tuple[int, ...] = ()
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)

    def fresh(self) -> _Open:
        """The same kind of matrix, empty: the latency of the CPU follows that of the GPU under one title."""
        return _Open(self.title, self.line, self.path, self.measure, self.p2p, self.copy_engine, self.write)


@dataclass
class _Reader:
    gpus: dict[int, str] = field(default_factory=dict)
    matrices: list[Matrix] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    current: _Open | None = None
    program: str = ""

    def read(self, number: int, line: str) -> None:
        title = self._titled(number, line)
        if title is not None:
            self.close()
            self.current = title
        elif (found := _CANNOT.search(line)) is not None:
            if found[2] == "CANNOT":
                self.refused.append((int(found[1]), int(found[3])))
        elif self.current is not None and _HEADER.fullmatch(line) and not self._is_row(line):
            self._header(line)
        elif self.current is not None and self.current.columns and self._is_row(line):
            self._row(number, line)
        elif self.current is not None and _WAIVED.search(line):
            self.warnings.append(f"line {number}: {self.current.title} was waived: not run on this machine")
            self.current = None
        elif (found := _DEVICE.search(line)) is not None:
            self.gpus.setdefault(int(found[1]), found[2].strip())

    def _titled(self, number: int, line: str) -> _Open | None:
        if (found := _TITLE.search(line)) is not None:
            self.program = self.program or "p2pBandwidthLatencyTest"
            state = found[2] or found[3]
            measure = Measure.LATENCY if found[3] else Measure.ONE_WAY if found[1] == "Uni" else Measure.BOTH_WAYS
            title = line.strip(" #*`")[:80]
            return _Open(title, number, Path.GPU_TO_GPU, measure, state == "Enabled", True, "Read" not in line)
        if _CONNECT.search(line) is not None:
            self.program = self.program or "p2pBandwidthLatencyTest"
            return _Open("P2P Connectivity Matrix", number, Path.GPU_TO_GPU, Measure.CONNECTIVITY, None, True, True)
        if (found := _RUNNING.search(line)) is not None:
            self.program = "nvbandwidth"
            self.close()
            return _nvbandwidth(found[1], number)
        return None

    def _is_row(self, line: str) -> bool:
        words = line.split()
        if self.current is None or not self.current.columns or len(words) < 2 or not words[0].isdigit():
            return False
        numbers = all(_NUMBER.fullmatch(word) for word in words)
        return numbers and (len(words) == len(self.current.columns) + 1 or "." in line or "N/A" in line)

    def _header(self, line: str) -> None:
        if self.current is None:
            return
        if self.current.cells:
            following = self.current.fresh()
            self.close()
            self.current = following
        columns = tuple(int(word) for word in line.split() if word.isdigit())
        if self.current is not None and len(columns) <= MOST_GPUS and len(set(columns)) == len(columns):
            self.current.columns = columns

    def _row(self, number: int, line: str) -> None:
        current = self.current
        if current is None:
            return
        words = line.split()
        row, values = int(words[0]), words[1:]
        if len(values) != len(current.columns):
            self.warnings.append(
                f"line {number}: {len(values)} values under {len(current.columns)} columns: row {row} left out"
            )
            return
        if row in current.rows or row >= MOST_GPUS:
            self.warnings.append(f"line {number}: row {row} is there twice: left out")
            return
        current.rows.add(row)
        for column, word in zip(current.columns, values, strict=True):
            if word[0].isdigit():
                current.cells[row, column] = float(word)

    def close(self) -> None:
        current, self.current = self.current, None
        if current is None or not current.cells:
            return
        missing = [k for k in current.columns if k not in current.rows]
        if current.path is Path.GPU_TO_GPU and missing:
            self.warnings.append(f"line {current.line}: {current.title}: no row {', '.join(map(str, missing))}")
        self.matrices.append(
            Matrix(
                current.title, current.line, current.path, current.measure, dict(current.cells), current.p2p,
                current.copy_engine, current.write,
            )
        )  # fmt: skip


def _nvbandwidth(name: str, number: int) -> _Open | None:
    """The kind of a test by its name; None for one that no profile needs (all-to-host, multinode, local copies)."""
    if name.startswith(("all_to", "one_to", "host_to_all", "multinode", "device_local", "host_device_lat")):
        return None
    start = {
        "host_to_device": Path.HOST_TO_GPU,
        "device_to_host": Path.GPU_TO_HOST,
        "device_to_device": Path.GPU_TO_GPU,
    }
    path = next((kind for begin, kind in start.items() if name.startswith(begin)), None)
    if path is None:
        return None
    # Host copies with traffic in the other direction print the one direction; between GPUs the total comes last.
    both = "bidirectional" in name
    measure = Measure.LATENCY if "latency" in name else Measure.BOTH_WAYS if both else Measure.ONE_WAY
    peer = True if path is Path.GPU_TO_GPU else None
    return _Open(name, number, path, measure, peer, name.endswith("_ce"), "read" not in name)


def parse(text: str, file: str) -> P2pLog:
    """Read a log, with whatever stands around it.

    Returns: `P2pLog` with at least one matrix. Raises: `InputError` where no matrix with a whole row is in the text.
    """
    reader = _Reader()
    if text.lstrip()[:1] == "{":
        _read_json(text, file, reader)
    else:
        last = 1
        for number, line in enumerate(lines_of(text), start=1):
            last = number
            reader.read(number, line.strip("`").lstrip("#> "))
        reader.close()
        if not reader.matrices and not reader.refused:
            raise InputError(
                "no matrix with a whole row",
                file=file,
                path=f"line {last}",
                expected="the output of p2pBandwidthLatencyTest or nvbandwidth",
            )
    refused = tuple(sorted({*_closed(reader.matrices), *reader.refused}))
    return P2pLog(
        file, reader.program or "p2pBandwidthLatencyTest", reader.gpus, tuple(reader.matrices), refused,
        tuple(dict.fromkeys([*reader.warnings, *_remarks(reader.matrices, refused)])),
    )  # fmt: skip


def _closed(matrices: Sequence[Matrix]) -> Iterator[tuple[int, int]]:
    for one in matrices:
        if one.measure is Measure.CONNECTIVITY:
            yield from (pair for pair, value in one.between.items() if value == 0)


def _remarks(matrices: Sequence[Matrix], refused: Sequence[tuple[int, int]]) -> Iterator[str]:
    if refused:
        yield f"{len(refused)} pairs without P2P: their copies are staged through host memory"
    for one in matrices:
        cells = one.between
        if one.measure is not Measure.ONE_WAY or one.path is not Path.GPU_TO_GPU:
            continue
        uneven = [
            (pair, value, cells[pair[::-1]]) for pair, value in cells.items()
            if pair[0] < pair[1] and pair[::-1] in cells
            and max(value, cells[pair[::-1]]) > 1.2 * min(value, cells[pair[::-1]])
        ]  # fmt: skip
        if uneven:
            (row, column), there, back = uneven[0]
            yield (
                f"line {one.line}: {row} to {column} {there:g} GB/s, back {back:g}: not symmetric ({len(uneven)} pairs)"
            )


def _read_json(text: str, file: str, reader: _Reader) -> None:
    """``nvbandwidth -j``."""
    try:
        raw = json.loads(text)
        cases = raw["nvbandwidth"]["testcases"]
        pairs = [(str(case["name"]), case) for case in cases]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(
            "is JSON, but not of nvbandwidth", file=file, expected='{"nvbandwidth": {"testcases": [...]}}'
        ) from None
    reader.program = "nvbandwidth"
    listed = raw["nvbandwidth"].get("GPU Device List")
    for entry in listed if isinstance(listed, list) else ():
        if (found := re.match(r"([0-9]{1,3}): ([^(]{1,80})", str(entry))) is not None:
            reader.gpus.setdefault(int(found[1]), found[2].strip())
    for name, case in pairs:
        opened, rows = _nvbandwidth(name, 1), case.get("bandwidth_matrix")
        if opened is None or not isinstance(rows, list):
            continue
        for i, row in enumerate(rows[:MOST_GPUS]):
            opened.rows.add(i)
            for k, value in enumerate(row[:MOST_GPUS] if isinstance(row, list) else ()):
                if _NUMBER.fullmatch(str(value)) and str(value)[0].isdigit():
                    opened.cells[i, k] = float(str(value))
        reader.current = opened
        reader.close()
    if not reader.matrices:
        raise InputError("no matrix of a test that ran", file=file, expected="the output of nvbandwidth -j")
