"""What a command prints: one document, written as text, JSON, CSV or Markdown with the same content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title (with the unit), whether it holds numbers, whether it holds sentences.

    Where the width is short, sentences are wrapped first.
    """

    title: str
    numeric: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are printed, row by row."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part: sentences, then a table, then a list; ``note`` is the small print below."""

    title: str
    text: tuple[str, ...] = ()
    table: Table | None = None
    bullets: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the CSV form: the part it belongs to and its fields, SI units in the names."""

    section: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """``sections`` are for reading, ``content`` is the JSON form (an object or a list), ``records`` the CSV form."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    content: Mapping[str, Any] | Sequence[Any]
    records: tuple[Record, ...] = field(default=())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; a title that starts with ``>`` is a column of numbers, with ``~`` one of sentences.

    >>> table(["port", ">GB/s"], [["P/gpu0/egress", "54"]]).columns[1]
    Column(title='GB/s', numeric=True, prose=False)
    """
    return Table(
        tuple(Column(title.lstrip(">~"), title.startswith(">"), title.startswith("~")) for title in columns),
        tuple(tuple(row) for row in rows),
    )
