"""The one writer: a document to stdout or to a file, as text, JSON, CSV or Markdown."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdmodel.cli.options import Format, state
from pdmodel.errors import PdmodelError

if TYPE_CHECKING:
    from pdmodel.answer import Plan
    from pdmodel.report.document import Document

PLAIN_WIDTH, LEAST_WIDTH = 100, 60
"""Columns where there is no terminal to ask; the fewest that tables are laid out for."""


def deliver(document: Document, form: Format, output: Path | None, *, picture: tuple[Plan, Path] | None = None) -> None:
    """Write the document where it was asked for, and the plan's picture: all drawn before any is written."""
    from pdmodel.report.files import write_whole

    image = b""
    if picture is not None:
        from pdmodel.report.plot import picture as draw

        plan, path = picture
        image = draw(plan, path.suffix.lower().removeprefix("."))
    if output is not None:
        write_whole(output, rendered(document, form).encode())
    if picture is not None:
        write_whole(picture[1], image)
    if output is None:
        show(document, form)


def deliver_schema(schema: Mapping[str, Any], output: Path | None) -> None:
    """Write a JSON Schema."""
    from pdmodel.report.export import to_json
    from pdmodel.report.files import write_whole

    text = to_json(schema)
    if output is None:
        write_stdout(text)
    else:
        write_whole(output, text.encode())


def rendered(document: Document, form: Format, width: int = PLAIN_WIDTH) -> str:
    """The document as text in the given form, without colour."""
    if form is Format.RICH:
        from pdmodel.report.grid import to_text

        return to_text(document, width)
    from pdmodel.report.export import to_csv, to_json, to_markdown

    if form is Format.JSON:
        return to_json(document.content)
    return to_csv(document.records) if form is Format.CSV else to_markdown(document)


def show(document: Document, form: Format) -> None:
    """Write the document to stdout; in colour only on a terminal that wants it."""
    terminal = sys.stdout.isatty()
    width = max(LEAST_WIDTH, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if _sized(terminal) else PLAIN_WIDTH
    if form is Format.RICH and terminal and state.colour:
        write_stdout(_coloured(document, width))
    else:
        write_stdout(rendered(document, form, width))


def write_stdout(text: str) -> None:
    """Write and flush; a reader that has gone away is not an error, a full disk is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard()
    except OSError as error:
        _discard()
        raise PdmodelError(f"standard output cannot be written ({error.strerror})") from None


def _discard() -> None:
    """What is still buffered would be flushed, and fail, once more at exit: let it go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sized(terminal: bool) -> bool:
    return terminal or bool(os.environ.get("COLUMNS"))


def _coloured(document: Document, width: int) -> str:
    import io

    from rich.console import Console
    from rich.text import Text

    from pdmodel.report.grid import Style, lines

    styles = {
        Style.TITLE: "bold",
        Style.HEADING: "bold cyan",
        Style.VERDICT: "bold",
        Style.HEAD: "underline",
        Style.NOTE: "dim",
    }
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, force_terminal=True, color_system="standard", legacy_windows=False)
    for style, line in lines(document, width):
        console.print(Text(line, style=styles.get(style, "")), soft_wrap=True)
    return buffer.getvalue()
