"""Logs of nccl-tests, whatever their version and whoever printed around them: text in, tables of rows out.

Columns are found by the heading's names, rows by their two whole numbers and data type. Facts come from the header
where there is one, else from the figures themselves (see `pdmodel.importers.nccl_facts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from pdmodel.errors import InputError
from pdmodel.importers import nccl_facts as facts
from pdmodel.importers import nccl_lines as lines
from pdmodel.importers.nccl_log import Collective, Device, NcclTestsLog, Note, Row, Table
from pdmodel.importers.text_bytes import text_of

Progress = Callable[[str], None]

_LIBRARY = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)|nccl-library=([0-9]{4,6})", re.IGNORECASE)
_TESTS = re.compile(r"nccl-tests version (\d+(?:\.\d+)+)", re.IGNORECASE)
_HEADER = re.compile(r"nThread ([0-9]{1,4}) nGpus ([0-9]{1,4})")
_SUMMARY = re.compile(r"Avg bus bandwidth\s*:\s*([0-9]+(?:\.[0-9]+)?)")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*([0-9]{1,18})")
_DATE = re.compile(
    r"\b(20\d\d-[01]\d-[0-3]\d(?:[T ][0-2]\d:[0-5]\d(?::[0-5]\d)?)?"
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d "
    r"[0-2]\d:[0-5]\d:[0-5]\d (?:\w+ )?20\d\d)\b"
)
_OTHERS = {
    "P2P (Peer-to-Peer) GPU Bandwidth": "p2pBandwidthLatencyTest",
    "P2P Connectivity Matrix": "p2pBandwidthLatencyTest",
    "P2P=Enabled Bandwidth": "p2pBandwidthLatencyTest",
    "P2P=Disabled": "p2pBandwidthLatencyTest",
    "nvbandwidth Version": "nvbandwidth",
    "#bytes     #iterations": "perftest",
    "BW average[": "perftest",
}
_PROGRESS_LINES = 10_000


@dataclass
class _Block:
    """A table while it is read."""

    line: int
    columns: lines.Columns | None
    devices: list[Device]
    threads: int | None
    named: Collective | None
    unit: str | None = None
    rows: list[Row] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)
    cut: list[tuple[int, str]] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    average: tuple[int, float] | None = None


@dataclass
class _Stream:
    """What one process printed so far: the facts of its current run, and its tables."""

    devices: list[Device] = field(default_factory=list)
    threads: int | None = None
    named: Collective | None = None
    blocks: list[_Block] = field(default_factory=list)
    fresh: bool = True

    def begin(self) -> None:
        """A new run: its header counts, the last one's does not."""
        if not self.fresh:
            self.devices, self.threads, self.named, self.fresh = [], None, None, True


@dataclass
class _Reader:
    file: str
    streams: dict[str, _Stream] = field(default_factory=dict)
    library: str | None = None
    tests: str | None = None
    date: str | None = None
    other: tuple[int, str] | None = None
    last: str = ""

    def stream(self, who: str) -> _Stream:
        # Some lines of a header may lack the prefix that the others have: then they belong to whoever printed before.
        self.last = who or self.last
        return self.streams.setdefault(who, _Stream())

    def read(self, line: lines.Line) -> None:
        text = line.text
        stream = self.stream(line.who)
        if lines.looks_like_row(text):
            self._row(line, stream)
        elif (columns := lines.columns_in(line)) is not None:
            self._heading(line, stream, columns)
        elif lines.left_out(text):
            if stream.blocks and (stream.blocks[-1].columns or stream.blocks[-1].rows):
                stream.blocks[-1].left_out.append(line.number)
        elif (device := lines.device_in(line)) is not None:
            stream.begin()
            stream.devices.append(device)
        else:
            self._fact(line, stream)

    def _heading(self, line: lines.Line, stream: _Stream, columns: lines.Columns) -> None:
        if "count" not in columns.names or "type" not in columns.names:
            missing = "count" if "count" not in columns.names else "type"
            raise InputError(
                f"the heading has no column {missing!r}",
                file=self.file,
                path=f"line {line.number}",
                expected="the columns of nccl-tests: size count type [redop] [root] time algbw busbw ...",
            )
        stream.blocks.append(_Block(line.number, columns, stream.devices, stream.threads, stream.named))
        stream.fresh = False

    def _row(self, line: lines.Line, stream: _Stream) -> None:
        if not stream.blocks:
            stream.blocks.append(_Block(line.number, None, stream.devices, stream.threads, stream.named))
        stream.fresh = False
        block = stream.blocks[-1]
        words = len(line.text.lstrip("# ").split())
        columns = block.columns or lines.guessed_columns(line)
        if columns is None or words != len(columns.names):
            wanted = "the columns of nccl-tests" if columns is None else f"{len(columns.names)} columns"
            block.cut.append((line.number, f"{words} values where {wanted} belong"))
            return
        row = lines.row_of(line, columns, lines.unit_s(block.unit), self.file)
        if row.size_bytes == 0:
            block.zeros.append(line.number)
        elif not row.places:
            block.cut.append((line.number, "no time: N/A"))
        else:
            block.rows.append(row)

    def _fact(self, line: lines.Line, stream: _Stream) -> None:
        text = line.text
        if (found := _LIBRARY.search(text)) is not None:
            self.library = self.library or found[1] or _version(found[2])
        if (found := _TESTS.search(text)) is not None:
            self.tests = self.tests or found[1]
        if self.date is None and (found := _DATE.search(text)) is not None:
            self.date = found[1]
        if self.other is None:
            self.other = next(((line.number, name) for mark, name in _OTHERS.items() if mark in text), None)
        if (found := _HEADER.search(text)) is not None:
            stream.begin()
            stream.threads = int(found[1]) * int(found[2])
        if (program := lines.program_in(text)) is not None:
            if "concluded" not in text:
                stream.begin()
                stream.named = program
            elif stream.blocks and stream.blocks[-1].named is None:
                stream.blocks[-1].named = program
        if stream.blocks:
            self._end(line, stream.blocks[-1])

    def _end(self, line: lines.Line, block: _Block) -> None:
        if not block.rows and (unit := lines.time_unit_in(line.text)) is not None:
            block.unit = unit
        if (found := _SUMMARY.search(line.text)) is not None:
            block.average = block.average or (line.number, float(found[1]))
        if (found := _BOUNDS.search(line.text)) is not None and int(found[1]):
            raise InputError(
                f"{found[1]} out-of-bounds values: a wrong run is no measurement; find out why and measure again",
                file=self.file,
                path=f"line {line.number}",
                expected="Out of bounds values : 0 OK",
            )


def decoded(content: bytes, file: str) -> str:
    """The text of a log file; `InputError` for a file that is no text."""
    return text_of(content, file, expected="a log of nccl-tests")


def parse(
    text: str,
    file: str,
    *,
    collective: Collective | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    progress: Progress | None = None,
) -> NcclTestsLog:
    """Read a log.

    Parameters
    ----------
    text: the whole log.
    file: its name, for errors; it also decides between an all-gather and an all-to-all where nothing else does.
    collective, ranks, nodes: what the log does not tell, or tells wrongly, for all of its tables.
    progress: called with what is being done.

    Returns
    -------
    `NcclTestsLog` with at least one table of at least one row.

    Raises
    ------
    InputError: with the line: no rows, wrong results, columns that are missing or contradict each other.

    """
    reader = _Reader(file)
    # A file of the old Macintosh kind has carriage returns alone.
    for number, raw in enumerate(text.split("\n" if "\n" in text else "\r"), start=1):
        if progress is not None and number % _PROGRESS_LINES == 0:
            progress(f"{file}: line {number}")
        reader.read(lines.cleaned(number, raw))
    blocks = [block for stream in reader.streams.values() for block in _with_header(stream, reader)]
    full = [block for block in blocks if block.rows]
    if not full:
        raise _nothing(reader, blocks, text.count("\n") + 1)
    notes: list[Note] = []
    tables = [_table(block, (collective, ranks, nodes), file, notes) for block in full]
    return NcclTestsLog(
        file, tuple(tables), reader.library, reader.tests, reader.date, tuple(sorted(notes, key=lambda n: n.line))
    )


def _version(number: str) -> str:
    """NCCL's own number of a version, 22907, as 2.29.7."""
    value = int(number)
    major = 10_000 if value >= 10_000 else 1_000
    return f"{value // major}.{value % major // 100}.{value % 100}"


def _with_header(stream: _Stream, reader: _Reader) -> Sequence[_Block]:
    """Tables whose prefix the header lacks take the facts of the lines without one."""
    bare = reader.streams.get("", _Stream())
    for block in stream.blocks:
        block.devices = block.devices or bare.devices
        block.threads = block.threads or bare.threads
        block.named = block.named or bare.named
    return stream.blocks


def _nothing(reader: _Reader, blocks: Sequence[_Block], last: int) -> InputError:
    """Why there is no row."""
    zeros = [line for block in blocks for line in block.zeros]
    cut = [found for block in blocks for found in block.cut]
    if cut:
        line, what = cut[0]
        more = f", and so in all {len(cut)} rows" if len(cut) > 1 else ""
        what = f"no usable row: {what}{more}"
    elif zeros:
        line, what = zeros[0], "no data rows but those of size 0; use a larger -b (at least 4 bytes a rank)"
    elif reader.other is not None:
        line, program = reader.other
        what = f"no data rows: this is the output of {program}"
    elif blocks:
        line, what = blocks[0].line, "no data rows below the heading"
    else:
        line, what = last, "no data rows to the end of the file, and no heading 'size count type ... time algbw busbw'"
    return InputError(what, file=reader.file, path=f"line {line}", expected="the output of nccl-tests, whole")


def _table(
    block: _Block, given: tuple[Collective | None, int | None, int | None], file: str, notes: list[Note]
) -> Table:
    """The table with what it is about."""
    kind, ranks, nodes = given
    rows = tuple(block.rows)
    if block.average is not None:
        notes += facts.check_average(rows, block.average[1], block.average[0], len(block.zeros))
    notes += [Note(line, f"{what}: row dropped") for line, what in block.cut]
    if block.zeros:
        several = ", ".join(str(line) for line in block.zeros[1:])
        more = f" (and in line {several})" if several else ""
        notes.append(Note(block.zeros[0], f"size 0{more}: dropped; nothing was moved"))
    notes += [Note(line, "rows are left out here") for line in block.left_out]
    collectives, collective_from = facts.collectives_of(rows, kind or block.named, file, by_user=kind is not None)
    sure = collectives[0] if len(collectives) == 1 else None
    read = partial(facts.ranks_of, rows, sure, block.devices, block.threads, file)
    found = read() if ranks is None else facts.ranks_by_hand(ranks, rows, read)
    rows, unit_notes = facts.check_units(rows, found.value, file)
    where = facts.nodes_of(block.devices, found.value) if nodes is None else facts.Found(nodes, "given by hand")
    if found.value is not None and where.value is None and found.value == block.threads:
        where = facts.Found(1, "all ranks in one process")
    notes += [*found.notes, *unit_notes, *where.notes, *_repeats(rows)]
    checked = any(place.wrong is not None for row in rows for place in row.places)
    if not checked:
        notes.append(Note(rows[0].line, "results were not checked in this run (no #wrong)"))
    return Table(
        line=block.line,
        rows=rows,
        collectives=collectives,
        collective_from=collective_from,
        ranks=found.value,
        ranks_from=found.source,
        nodes=where.value,
        nodes_from=where.source,
        devices=tuple(block.devices),
        checked=checked,
        left_out=tuple(block.left_out),
    )


def _repeats(rows: Sequence[Row]) -> list[Note]:
    """Sizes that come twice with times that no repetition explains: two jobs in one file."""
    first: dict[tuple[int, int | None], Row] = {}
    found = []
    for row in rows:
        one = first.setdefault((row.size_bytes, row.root), row)
        times = sorted(r.places[0].time_s for r in (one, row))
        if one is not row and times[1] > 2 * times[0]:
            text = f"{row.size_bytes} B also stand in line {one.line} with another time (x{times[1] / times[0]:.1f})"
            found.append(Note(row.line, f"{text}: two jobs in one file?"))
    return found[:3]
