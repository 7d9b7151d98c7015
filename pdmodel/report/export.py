"""A plan, or any document, as JSON, CSV and Markdown. Keys and their order are part of the interface."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, Table

if TYPE_CHECKING:
    from pdmodel.answer import Plan

PLAN_KEYS = (
    "schema_version",
    "scenario",
    "purpose",
    "verdict",
    "bound",
    "times",
    "missed_deadlines",
    "policies",
    "references",
    "ports",
    "flows",
    "reuse",
    "transfer_times",
    "memory",
    "hand_offs_in_flight",
    "schedule",
    "settings",
    "enforceability",
    "applicable",
    "solver",
    "assumed",
    "hazards",
    "warnings",
    "provenance",
)
"""Every key of the JSON form, in order: all fields of `Plan` but the evidence (``data``, ``replay``)."""

_SINGLE = ("schema_version", "scenario", "purpose", "hand_offs_in_flight")
_TEXT_LISTS = ("missed_deadlines", "assumed", "hazards", "warnings")


def plain(value: Any) -> Any:
    """``value`` as JSON holds it: dicts, lists, str, int, float, bool, None. Numbers that are not finite become None.

    >>> plain({"a": (1.0, float("inf"))})
    {'a': [1.0, None]}
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    return [plain(item) for item in value]


def _number(value: numbers.Real) -> int | float | None:
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON holds it: SI units, stable keys, all rows."""
    return {key: plain(getattr(plan, key)) for key in PLAN_KEYS}


def plan_records(plan: Plan) -> tuple[Record, ...]:
    """The plan as rows: one for each policy, port, flow, ... and one for each part that is a single object."""
    records = [Record("plan", {key: plain(getattr(plan, key)) for key in _SINGLE})]
    for key in PLAN_KEYS:
        if key in _SINGLE:
            continue
        value = plain(getattr(plan, key))
        if key == "provenance":
            records += [Record(key, {"name": name, "text": text}) for name, text in value.items()]
        elif key in _TEXT_LISTS:
            records += [Record(key, {"text": text}) for text in value]
        else:
            records += [Record(key, row) for row in (value if isinstance(value, list) else [value])]
    return tuple(records)


def to_json(content: Mapping[str, Any] | Sequence[Any]) -> str:
    """JSON text, two spaces a level, non-ASCII letters as they are, a newline at the end."""
    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(records: tuple[Record, ...]) -> str:
    """One table: a row a record, ``section`` first, then the union of all fields in order of first appearance.

    Fields that a record lacks, or that are None, are empty. A list inside a field is joined with ``;``.
    """
    columns = list(dict.fromkeys(name for record in records for name in record.fields))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["section", *columns])
    for record in records:
        writer.writerow([record.section, *(_cell(record.fields.get(name)) for name in columns)])
    return buffer.getvalue()


def to_markdown(document: Document) -> str:
    """GitHub-flavoured Markdown: a heading a section, pipe tables, lists."""
    parts = [f"# {document.title}"]
    if document.subtitle:
        parts.append(document.subtitle)
    parts += [_markdown_section(section) for section in document.sections]
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ";".join(_cell(item) for item in value)
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if isinstance(value, float) else str(value)


def _markdown_section(section: Section) -> str:
    parts = [f"## {section.title}", *section.text]
    if section.table is not None:
        parts.append(_markdown_table(section.table))
    if section.bullets:
        parts.append("\n".join(f"- {_escape(line)}" for line in section.bullets))
    if section.note:
        parts.append(f"*{section.note}*")
    return "\n\n".join(parts)


def _markdown_table(content: Table) -> str:
    lines = [
        [_escape(column.title) for column in content.columns],
        ["---:" if column.numeric else "---" for column in content.columns],
        *([_escape(cell) for cell in row] for row in content.rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
