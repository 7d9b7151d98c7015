"""Documents as lines of text: tables laid out by hand, so that numbers and names stay whole."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from enum import StrEnum

from pdmodel.report.document import Column, Document, Section, Table

INDENT, GAP = "  ", "  "
LEAST_PROSE, LEAST_NAME = 18, 8
_PIECES = re.compile(r"[^/_,>+]+[/_,>+]*|[/_,>+]+")


class Style(StrEnum):
    """What a line is; a terminal may show it in its own way."""

    TITLE = "title"
    HEADING = "heading"
    VERDICT = "verdict"
    HEAD = "head"
    BODY = "body"
    NOTE = "note"


def lines(document: Document, width: int) -> Iterator[tuple[Style, str]]:
    """The document line by line, none longer than ``width`` unless a table cannot be made so narrow."""
    yield Style.TITLE, document.title
    for line in _sentence(document.subtitle, width):
        yield Style.BODY, line
    for section in document.sections:
        yield Style.BODY, ""
        yield Style.HEADING, section.title
        for style, line in _section(section, width - len(INDENT)):
            yield style, INDENT + line


def to_text(document: Document, width: int = 100) -> str:
    """The document as plain text."""
    return "\n".join(line.rstrip() for _, line in lines(document, width)) + "\n"


def layout(content: Table, width: int) -> tuple[list[str], list[str]]:
    """Lines of the heading and of the body.

    >>> head, body = layout(Table((Column("port"), Column("GB/s", numeric=True)), (("P/nic0/tx", "48"),)), 40)
    >>> head, body
    (['port       GB/s'], ['P/nic0/tx    48'])
    """
    widths = _widths(content, width - len(GAP) * (len(content.columns) - 1))
    head = _row([column.title for column in content.columns], content.columns, widths, bottom=True)
    return head, [line for row in content.rows for line in _row(row, content.columns, widths)]


def _section(section: Section, width: int) -> Iterator[tuple[Style, str]]:
    for k, text in enumerate(section.text):
        style = Style.VERDICT if section.title == "Verdict" and k == 0 else Style.BODY
        for line in _sentence(text, width):
            yield style, line
    if section.table is not None:
        head, body = layout(section.table, width)
        for line in head:
            yield Style.HEAD, line
        for line in body:
            yield Style.BODY, line
    for text in section.bullets:
        for line in _sentence(text, width, "- ", "  "):
            yield Style.BODY, line
    for line in _sentence(section.note, width):
        yield Style.NOTE, line


def _sentence(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)


def _widths(content: Table, width: int) -> list[int]:
    """Natural widths; where they do not fit, headings give way first, then sentences, names, pairs of numbers."""
    columns = content.columns
    cells = [[row[c] for row in content.rows] for c in range(len(columns))]
    longest = [max((len(cell) for cell in column), default=0) for column in cells]
    natural = [max(cell, len(column.title)) for cell, column in zip(longest, columns, strict=True)]
    if sum(natural) <= width:
        return natural
    heads = [_longest_word([column.title]) for column in columns]
    widths = [max(cell, head) for cell, head in zip(longest, heads, strict=True)]
    for least, eligible in (
        ([LEAST_PROSE] * len(columns), [column.prose for column in columns]),
        ([LEAST_NAME] * len(columns), [not column.numeric for column in columns]),
        ([_longest_word(column) for column in cells], [column.numeric for column in columns]),
    ):
        for _ in range(max(0, sum(widths) - width)):
            room = [(w, c) for c, w in enumerate(widths) if eligible[c] and w > max(least[c], heads[c])]
            if room:
                widths[max(room)[1]] -= 1
    return _spread(widths, columns, width)


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)


def _spread(widths: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """Give what is left to the headings, so that the highest of them takes as few lines as can be."""
    for lines in range(1, max((len(column.title.split()) for column in columns), default=0)):
        wanted = [max(w, _heading_width(column.title, lines)) for w, column in zip(widths, columns, strict=True)]
        if sum(wanted) <= width:
            return wanted
    return widths


def _heading_width(title: str, most_lines: int) -> int:
    """The least width in which the heading takes no more than so many lines."""
    least = _longest_word([title])
    return next((width for width in range(least, len(title)) if len(_wrap(title, width)) <= most_lines), len(title))


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], *, bottom: bool = False) -> list[str]:
    """One row as lines; ``bottom``: shorter cells stand on the last line, as headings do."""
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(len(cell) for cell in wrapped)
    stacked = []
    for cell, column, width in zip(wrapped, columns, widths, strict=True):
        blank = [""] * (height - len(cell))
        padded = blank + cell if bottom else cell + blank
        stacked.append([line.rjust(width) if column.numeric else line.ljust(width) for line in padded])
    return [GAP.join(parts).rstrip() for parts in zip(*stacked, strict=True)]


def _wrap(text: str, width: int) -> list[str]:
    """Break at blanks; a word longer than the width after one of ``/ _ , > +``, and where that fails anywhere.

    >>> _wrap("wait before all_reduce", 15), _wrap("P/gpu0/egress", 8), _wrap("abcdef", 4)
    (['wait before', 'all_reduce'], ['P/gpu0/', 'egress'], ['abcd', 'ef'])
    """
    if len(text) <= width:
        return [text]
    found, line = [], ""
    for word in text.split():
        for k, piece in enumerate([word] if len(word) <= width else _PIECES.findall(word)):
            joint = " " if k == 0 and line else ""
            if line and len(line) + len(joint) + len(piece) > width:
                found.append(line)
                line, joint = "", ""
            line += joint + piece
            while len(line) > width:
                found.append(line[:width])
                line = line[width:]
    return [*found, line] if line else found
