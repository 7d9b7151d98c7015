"""Presents a plan and decides nothing: sections, tables, export, pictures."""

from __future__ import annotations

from pdmodel.report.document import Document, Record, Section, Table
from pdmodel.report.export import plan_to_dict, to_csv, to_json, to_markdown
from pdmodel.report.grid import to_text
from pdmodel.report.text import plan_document

__all__ = [
    "Document",
    "Record",
    "Section",
    "Table",
    "plan_document",
    "plan_to_dict",
    "to_csv",
    "to_json",
    "to_markdown",
    "to_text",
]
