"""Matrices in a text: a header of labels, rows of codes, and whatever stands around and between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdmodel.importers.topo_codes import (
    begins_code,
    code_of,
    is_ellipsis,
    is_gpu,
    is_label,
    is_numbered_nic,
    may_leave_out,
)

_HEADER = re.compile(r"(?<![\w.:/-])GPU0(?=[\s|]|$)")
_TRAILING = re.compile(
    r"(?P<cpu>CPU\s+Affinity)|(?P<gid>GPU\s+NUMA\s+ID)|(?P<numa>NUMA(?:\s+(?:Affinity|Node))?)", re.I
)
# What quotes, prompts, log writers and launchers put before a line: no letters, or a word that ends in a mark.
_BEFORE = re.compile(r"[^A-Za-z]*|\S*[:|\]>#*-]")
_WORD = re.compile(r"[^\s#>|*\"'`]+")  # without the marks that may be glued to a label
TAB_STOP = 8


@dataclass(frozen=True, slots=True)
class Header:
    """The labels of a matrix and the columns after it: names (cpu, numa, gid) with the offset where each begins."""

    line: int
    labels: tuple[str, ...]
    offsets: tuple[int, ...]
    trailing: tuple[tuple[str, int], ...]
    elided: bool


@dataclass(slots=True)
class Row:
    """One row as it stands: a cell for each column of the header, None where it is missing or no code.

    ``rest``: what follows the matrix: cells split at tabs, or words with their offsets; ``start``: the offset at
    which the last code ended. ``problem``: why the row is not whole; ``short``: cells stand one after the other, but
    are too few; ``moved``: they do not stand where they belong.
    """

    label: str
    line: int
    cells: list[str | None]
    rest: list[tuple[str, int]] = field(default_factory=list)
    tabs: bool = False
    start: int = 0
    problem: str = ""
    elided: bool = False
    short: bool = False
    moved: bool = False

    @property
    def whole(self) -> bool:
        """Whether every cell is there."""
        return None not in self.cells


@dataclass(slots=True)
class Block:
    """A header with the rows below it.

    ``elided``: the first line where rows or cells were left out: dots alone, or words to that effect between two rows;
    ``doubt``: such words behind the last row, where they may as well say that the rest was cut.
    """

    header: Header
    rows: dict[str, Row] = field(default_factory=dict)
    strays: list[Row] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    elided: int | None = None
    doubt: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of columns, then those of rows that have no column."""
        return (*self.header.labels, *(label for label in self.rows if label not in self.header.labels))

    @property
    def complete(self) -> bool:
        """Whether every row that the header announces is there and whole."""
        return all(label in self.rows and self.rows[label].whole for label in self.labels)


def blocks_of(lines: Sequence[str], *, ended: bool) -> tuple[list[Block], list[int]]:
    """The matrices of a text, and the lines of rows that stand below no header.

    ``ended``: whether the last line ends with a line end; if not, its last word may be cut.
    """
    blocks: list[Block] = []
    headless: list[int] = []
    last = max((k for k, line in enumerate(lines) if line.strip()), default=-1)
    for k, line in enumerate(lines):
        current = blocks[-1] if blocks else None
        row = None if current is None else _row(line, k + 1, current.header, cut=k == last and not ended)
        header = None if row is not None else _header(line, k + 1)
        if row is not None and current is not None:
            _take(current, row)
        elif header is not None:
            blocks.append(Block(header))
        elif current is None and _is_headless_row(line):
            headless.append(k + 1)
        elif current is not None and may_leave_out(line):
            current.doubt = current.doubt or k + 1
            if current.elided is None and all(map(is_ellipsis, line.split())):
                current.elided = k + 1
    for block in blocks:
        _doubt_short_rows(block)
    return [block for block in blocks if block.rows] or blocks[-1:], headless


def _take(block: Block, row: Row) -> None:
    if block.elided is None and (row.elided or (block.doubt is not None and block.rows)):
        block.elided = row.line if row.elided else block.doubt
    if row.label in block.rows:
        known = block.rows[row.label]
        if row.cells != known.cells:
            block.repeated.append(row.label)
        if row.whole and not known.whole:
            block.rows[row.label] = row
    else:
        block.rows[row.label] = row


def _doubt_short_rows(block: Block) -> None:
    """Only the last row can have been cut at its end; elsewhere a cell is missing from the middle of a short row."""
    last = max((row.line for row in block.rows.values()), default=0)
    for row in block.rows.values():
        if row.moved or (row.short and (row.line < last or row.rest)):
            row.cells = [None] * len(row.cells)


def _header(line: str, number: int) -> Header | None:
    """The header in a line: labels from GPU0 on, then names of further columns; prose may stand before it."""
    line = _table_row(line).expandtabs(TAB_STOP)
    found = _HEADER.search(line)
    if found is None:
        return None
    labels: list[str] = []
    offsets: list[int] = []
    elided = False
    end = len(line)
    for word in re.finditer(r"\S+", line[found.start() :]):
        if is_ellipsis(word.group()):
            elided = True
        elif is_label(word.group()) and word.group() not in labels:
            labels.append(word.group())
            offsets.append(found.start() + word.start())
        else:
            if code_of(word.group()) is not None:
                return None  # the row of GPU0
            end = found.start() + word.start()
            break
    trailing = tuple((str(name.lastgroup), name.start()) for name in _TRAILING.finditer(line, end))
    return Header(number, tuple(labels), tuple(offsets), trailing, elided)


def _table_row(line: str) -> str:
    """A row of a Markdown table as one with tabs."""
    stripped = line.strip()
    if stripped.startswith("|") and stripped.endswith("|") and stripped.count("|") > 2:
        return "\t".join(cell.strip() for cell in stripped.strip("|").split("|"))
    return line


def _is_headless_row(line: str) -> bool:
    words = line.split()
    return len(words) > 1 and is_gpu(words[0]) and all(code_of(word) is not None for word in words[1:3])


def _label_in(line: str, header: Header) -> re.Match[str] | None:
    """The label that a row begins with, after what may stand before it."""
    for word in _WORD.finditer(line):
        text = word.group()
        if text in header.labels or is_gpu(text) or is_numbered_nic(text):
            return word
        if not _BEFORE.fullmatch(text):
            return None
    return None


def _row(line: str, number: int, header: Header, *, cut: bool) -> Row | None:
    """The row that a line is, or None."""
    line = _table_row(line)
    label = _label_in(line, header)
    if label is None:
        return None
    after = line[label.end() :]
    first = after.split()[:1]
    if not first:
        # A label alone is a row that was cut behind it; one of GPU0 may also be a header of a box with one GPU.
        if label.group() == "GPU0" and (number != header.line + 1 or len(header.labels) == 1):
            return None
        return Row(label.group(), number, [None] * len(header.labels), problem="has no cells")
    if not begins_code(first[0]) and (not is_ellipsis(first[0]) or any(map(is_gpu, after.split()))):
        return None
    row = _by_tabs(after, label.group(), number, header)
    if row is None:
        before = len(line[: label.end()].expandtabs(TAB_STOP))
        row = _by_blanks(line.expandtabs(TAB_STOP), before, label.group(), number, header)
    if cut and not row.rest:
        _forget_last(row)
    _check_diagonal(row, header)
    return row


def _by_tabs(after: str, label: str, number: int, header: Header) -> Row | None:
    """A row split at its tabs, so that empty cells stay empty; None where blanks stand between cells too."""
    if "\t" not in after:
        return None
    parts = after.split("\t")
    if not parts[0].strip():
        parts = parts[1:]
    width = len(header.labels)
    cells = [part.strip() for part in parts[:width]]
    if any(len(cell.split()) > 1 for cell in cells):
        return None
    while cells and not cells[-1] and len(parts) <= width:
        cells.pop()
    row = Row(label, number, [code_of(cell) for cell in cells], tabs=True)
    row.rest = [(part.strip(), -1) for part in parts[width:]]
    _note_odd(row, cells)
    _fill(row, len(cells), width)
    if "" in cells:
        # The driver prints none: a cell is missing on the left of it, or this one is.
        row.problem, row.moved = "has an empty cell", True
    if any(code_of(part) is not None for part, _ in row.rest):
        row.problem = "has more cells than the header has columns"
    return row


def _by_blanks(line: str, begin: int, label: str, number: int, header: Header) -> Row:
    """A row split at blanks; where cells are missing, the offsets of the header's labels place them."""
    words = [(word.group(), begin + word.start()) for word in re.finditer(r"\S+", line[begin:])]
    width = len(header.labels)
    count = next(
        (k for k, (word, _) in enumerate(words) if code_of(word) is None and not is_ellipsis(word)), len(words)
    )
    if count < min(width, len(words)) and not _is_affinity(words[count][0]):
        count = min(width, len(words))
    codes = words[: min(count, width)]
    row = Row(label, number, [code_of(word) for word, _ in codes])
    row.rest = words[len(codes) :]
    row.start = codes[-1][1] + len(codes[-1][0]) if codes else begin
    _note_odd(row, [word for word, _ in codes])
    if len(codes) < width and not _plausible(row, header):
        _place(row, codes, header)
    else:
        _fill(row, len(codes), width)
    if row.rest and code_of(row.rest[0][0]) is not None:
        row.problem = "has more cells than the header has columns"
    return row


def _is_affinity(word: str) -> bool:
    return word[:1].isdigit() or word.upper() in {"N/A", "NUMA"}


def _note_odd(row: Row, words: Sequence[str]) -> None:
    row.elided = any(is_ellipsis(word) for word in words)
    odd = [word for word in words if word and code_of(word) is None and not is_ellipsis(word)]
    if odd:
        row.problem = f"has {odd[0][:20]!r}, which is no code"
        # What belongs behind the matrix stands in it: a cell is missing on the left.
        row.moved = any(map(_is_affinity, odd))


def _fill(row: Row, found: int, width: int) -> None:
    if found < width:
        row.short = True
        row.problem = row.problem or f"ends after {found} of {width} cells"
        row.cells += [None] * (width - len(row.cells))


def _plausible(row: Row, header: Header) -> bool:
    """Whether a short row was cut at its end: its X, if it got that far, stands in its own column."""
    if row.rest or row.label not in header.labels:
        return False
    own = header.labels.index(row.label)
    return "X" not in row.cells if own >= len(row.cells) else row.cells[own] == "X"


def _place(row: Row, codes: Sequence[tuple[str, int]], header: Header) -> None:
    """Cells under the label that each stands below, where that is certain for all of them."""
    cells: list[str | None] = [None] * len(header.labels)
    for word, offset in codes:
        near = [k for k, start in enumerate(header.offsets) if abs(start - offset) <= 1]
        if len(near) != 1 or cells[near[0]] is not None:
            row.cells, row.problem = [None] * len(header.labels), "lacks cells in its middle"
            return
        cells[near[0]] = code_of(word)
    row.cells, row.problem = cells, f"has {len(codes)} of {len(cells)} cells"


def _forget_last(row: Row) -> None:
    """The last word of a file without a line end may be the beginning of another: NV1 of NV18."""
    known = [k for k, cell in enumerate(row.cells) if cell is not None]
    if known and str(row.cells[known[-1]]).startswith("NV"):
        row.cells[known[-1]] = None
        row.problem = row.problem or "ends in a cell that may be cut"


def _check_diagonal(row: Row, header: Header) -> None:
    """X stands in a row's own column and nowhere else; if not, cells have moved and none of them is believed."""
    own = header.labels.index(row.label) if row.label in header.labels else None
    stands = [k for k, cell in enumerate(row.cells) if cell == "X"]
    if own is None:
        if stands:
            row.problem = f"is of a device without a column, with its X below {header.labels[stands[0]]}"
            row.cells = [None] * len(row.cells)
        return
    moved = [k for k in stands if k != own]
    if moved:
        row.problem = f"has its X in the column of {header.labels[moved[0]]}: cells have moved"
    elif row.cells[own] is not None and row.cells[own] != "X":
        row.problem = f"has {row.cells[own]} where its X should be: cells have moved"
    elif "more cells" not in row.problem:
        return
    row.cells = [None] * len(row.cells)
