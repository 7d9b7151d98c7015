"""Tables of perftest: ``ib_write_bw``, ``ib_read_bw``, ``ib_send_bw`` (and the ``_lat`` programs, kept aside)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pdmodel.errors import InputError
from pdmodel.importers.topo_codes import lines_of

_PROGRAM = re.compile(r"\bib_(write|read|send)_(bw|lat)\b")
_TEST = re.compile(r"\b(?:RDMA_)?(Write|Read|Send)\s+(Bidirectional\s+)?(?:Post List\s+)?(BW|Latency) Test")
_HEADER = re.compile(r"#bytes\s+#iterations\s+BW\s*peak\s*\[([^\]]{1,12})\]\s+BW\s*(?:average|avg)\s*\[([^\]]{1,12})\]")
_LATENCY = re.compile(r"#bytes\s+#iterations\s+t_min")
_ROW = re.compile(r"\s*([0-9]{1,12})\s+([0-9]{1,12})\s+([0-9.]{1,16})\s+([0-9.]{1,16})(?:\s+([0-9.]{1,16}))?\b.*")
_POINT = re.compile(
    r"ib_(write|read|send)_bw\b(.{0,80}?)\b([0-9]{1,12}) B\b.{0,30}?"
    r"([0-9]+\.[0-9]+)(?: peak)? ?/ ?([0-9]+\.[0-9]+)(?: avg)? ([KMG]i?[Bb]/s(?:ec)?)(?:, ([0-9.]{1,12}) Mpps)?"
)
_DEVICE = re.compile(
    r"Device\s*:\s*([A-Za-z][\w.-]{1,40})|(?:^|\s)-d\s+([A-Za-z][\w.-]{1,40})|--ib-dev[= ]([\w.-]{1,40})"
)
_QPS = re.compile(r"Number of qps\s*:\s*([0-9]{1,5})|(?:^|\s)-q[ =]?([0-9]{1,5})\b|--qp=([0-9]{1,5})")
_MTU = re.compile(r"Mtu\s*:\s*([0-9]{3,4})|\bMTU ([0-9]{3,4})\b")
_LINK = re.compile(r"Link type\s*:\s*(\w+)")
_CUDA = re.compile(r"--use_cuda|--use_cuda_dmabuf|CUDA device|cuDeviceGet|initializing CUDA|use_rocm", re.IGNORECASE)
_BOTH = re.compile(r"(?:^|\s)(?:-b|--bidirectional)(?:\s|$)")

# Bytes a second of a unit as perftest prints it: its MB are 2^20 bytes (newer versions write MiB), its Gb 10^9 bits.
_UNITS = {"gb": 1e9 / 8, "mb": 2.0**20, "mib": 2.0**20, "kb": 2.0**10, "gib": 2.0**30}
LARGE_BYTES = 65536
"""Messages from here on show the bandwidth of a NIC rather than its message rate."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size: ``bytes_per_s`` is the average, of both directions together in a bidirectional table."""

    line: int
    size_bytes: int
    bytes_per_s: float
    messages_per_s: float | None


@dataclass(frozen=True, slots=True)
class BandwidthTable:
    """A table: ``operation`` is write, read or send (empty where nothing tells); ``gpu``: GPU memory took part."""

    line: int
    operation: str
    rows: tuple[Row, ...]
    bidirectional: bool
    gpu: bool
    device: str
    qps: int | None
    mtu: int | None

    @property
    def best(self) -> Row:
        """The fastest of the large messages, of all where there are none."""
        large = [row for row in self.rows if row.size_bytes >= LARGE_BYTES]
        return max(large or self.rows, key=lambda row: row.bytes_per_s)


@dataclass(frozen=True, slots=True)
class PerftestLog:
    """A file with at least one table of bandwidths."""

    file: str
    tables: tuple[BandwidthTable, ...]
    link_type: str
    warnings: tuple[str, ...]


@dataclass
class _Facts:
    """What was said since the last table."""

    operation: str = ""
    bidirectional: bool = False
    gpu: bool = False
    device: str = ""
    qps: int | None = None
    mtu: int | None = None


@dataclass
class _Reader:
    file: str
    facts: _Facts = field(default_factory=_Facts)
    tables: list[BandwidthTable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    head: tuple[int, float] | None = None
    latency: int = 0
    link_type: str = ""
    warnings: list[str] = field(default_factory=list)

    def read(self, number: int, line: str) -> None:
        header = _HEADER.search(line)
        if header is not None:
            self.close()
            unit = _unit(header[2])
            if unit is None:
                self.warnings.append(f"line {number}: unit {header[2]!r} is not known: table left out")
            self.head = None if unit is None else (number, unit)
        elif _LATENCY.search(line):
            self.close()
            self.head, self.latency = None, number
        elif self.head is not None and (row := _ROW.fullmatch(line)) is not None:
            self._row(number, row)
        else:
            self._fact(number, line)

    def _row(self, number: int, found: re.Match[str]) -> None:
        if self.head is None:
            return
        rate, messages = _real(found[4]), _real(found[5] or "")
        size = int(found[1])
        if rate is None or rate <= 0 or size <= 0:
            self.warnings.append(f"line {number}: no bandwidth in the row: left out")
            return
        value = rate * self.head[1]
        counted = size * messages * 1e6 if messages else None
        if counted is not None and messages is not None and messages >= 0.01 and not 0.9 < value / counted < 1.1:
            self.warnings.append(
                f"line {number}: {value / 1e9:.4g} GB/s, but {messages:g} million messages of {size} B are "
                f"{counted / 1e9:.4g} GB/s: a wrong unit, or other lines between them"
            )
        self.rows.append(Row(number, size, value, messages * 1e6 if messages else None))

    def _fact(self, number: int, line: str) -> None:
        point = _POINT.search(line)
        if point is not None and (unit := _unit(point[6])) is not None:
            self.close()
            self._command(line)
            messages = _real(point[7] or "")
            row = Row(number, int(point[3]), float(point[5]) * unit, messages * 1e6 if messages else None)
            self.rows, self.head = [row], (number, unit)
            self.close()
            return
        self._command(line)

    def _command(self, line: str) -> None:
        facts = self.facts
        test, program = _TEST.search(line), _PROGRAM.search(line)
        if (test is not None or program is not None) and self.rows:
            self.close()
            facts = self.facts
        if test is not None:
            facts.operation, facts.bidirectional = test[1].lower(), facts.bidirectional or bool(test[2])
        elif program is not None:
            facts.operation = program[1]
            facts.bidirectional = _BOTH.search(line) is not None
        facts.gpu = facts.gpu or _CUDA.search(line) is not None
        facts.device = _first(_DEVICE, line) or facts.device
        facts.qps = _count(_QPS, line) or facts.qps
        facts.mtu = _count(_MTU, line) or facts.mtu
        if (found := _LINK.search(line)) is not None:
            self.link_type = self.link_type or found[1]

    def close(self) -> None:
        if self.rows and self.head is not None:
            facts = self.facts
            table = BandwidthTable(
                self.head[0],
                facts.operation,
                tuple(self.rows),
                facts.bidirectional,
                facts.gpu,
                facts.device,
                facts.qps,
                facts.mtu,
            )
            self.tables.append(table)
            self.facts = _Facts(device=facts.device, mtu=facts.mtu)
        self.rows, self.head = [], None


def parse(text: str, file: str) -> PerftestLog:
    """Read a log, with whatever stands around it.

    Returns: `PerftestLog` with at least one row. Raises: `InputError` where there is no table of bandwidths.
    """
    reader = _Reader(file)
    last = 1
    for number, line in enumerate(lines_of(text), start=1):
        last = number
        reader.read(number, line)
    reader.close()
    if not reader.tables:
        what = "only latencies" if reader.latency else "no table '#bytes #iterations BW peak[..] BW average[..]'"
        raise InputError(
            what, file=file, path=f"line {reader.latency or last}", expected="the output of ib_write_bw or ib_read_bw"
        )
    return PerftestLog(
        file, tuple(reader.tables), reader.link_type, tuple(dict.fromkeys([*reader.warnings, *_remarks(reader.tables)]))
    )


def _remarks(tables: Sequence[BandwidthTable]) -> Iterator[str]:
    for table in tables:
        if not table.operation:
            yield f"line {table.line}: which program it was is not told: taken as ib_write_bw"
        if table.best.size_bytes < LARGE_BYTES:
            yield f"line {table.line}: no message of {LARGE_BYTES} B or more: this shows message rate, not bandwidth"
        if table.qps == 1:
            yield f"line {table.line}: one queue pair: several may be faster"


def _unit(text: str) -> float | None:
    return _UNITS.get(text.lower().split("/")[0].strip())


def _first(pattern: re.Pattern[str], line: str) -> str:
    found = pattern.search(line)
    return next((part for part in found.groups() if part), "") if found is not None else ""


def _count(pattern: re.Pattern[str], line: str) -> int | None:
    word = _first(pattern, line)
    return int(word) if word else None


def _real(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text) else None
