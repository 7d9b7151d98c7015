"""Options that several commands share, declared once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """Forms of the same content."""

    RICH = "rich"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


@dataclass
class State:
    """What holds for the whole run of the program."""

    debug: bool = False
    colour: bool = True


state = State()


def reset() -> None:
    """As at the start of the program: no traceback, colour unless NO_COLOR is set or the terminal is dumb."""
    state.debug = False
    state.colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _set_debug(value: bool) -> bool:
    state.debug = state.debug or value
    return value


def _set_no_colour(value: bool) -> bool:
    state.colour = state.colour and not value
    return value


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="Form of the result. Default: by the ending of --output (.json, .csv, .md), else rich.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the result to FILE instead of stdout.", show_default=False
    ),
]
ScenarioArgument = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="Name of a shipped scenario (pdmodel scenario list), or a path.")
]
FilesArgument = Annotated[list[str], typer.Argument(metavar="FILE...", help="Paths, or names of shipped files.")]
FullOption = Annotated[
    bool, typer.Option("--full", metavar="", help="Every row of every table: ports, transfers, policies.")
]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", callback=_set_debug, is_eager=True, metavar="", help="Show the traceback of an error."),
]
NoColourOption = Annotated[
    bool,
    typer.Option(
        "--no-color",
        callback=_set_no_colour,
        is_eager=True,
        metavar="",
        help="No colour (as NO_COLOR=1 in the environment).",
    ),
]


def resolved_format(form: Format | None, output: Path | None) -> Format:
    """The form that was asked for, or the one that the file's ending says.

    >>> resolved_format(None, Path("plan.json")).value, resolved_format(None, None).value
    ('json', 'rich')
    """
    if form is not None:
        return form
    endings = {".json": Format.JSON, ".csv": Format.CSV, ".md": Format.MARKDOWN}
    return endings.get(output.suffix.lower(), Format.RICH) if output else Format.RICH
