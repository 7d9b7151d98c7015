"""``validate``: all problems of all files, not only the first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pdmodel.cli.options import Format
from pdmodel.errors import InputError

if TYPE_CHECKING:
    from pdmodel.spec import Spec

INVALID = InputError.exit_code


def check_files(
    kind: str,
    files: Sequence[str],
    how: tuple[type[Spec], Callable[[str], object]],
    form: Format,
    output: Path | None,
) -> None:
    """Print what is wrong with ``files``, on stderr line by line and as the result; exit with 3 if anything is.

    ``how``: the spec that a file must fit, and the loader that checks what it means.
    """
    from pdmodel.cli.render import deliver
    from pdmodel.report.inputs import problems_document

    checked = [(file, _problems(kind, file, *how)) for file in files]
    problems = [problem for _, found in checked for problem in found]
    for problem in problems:
        sys.stderr.write(f"pdmodel: {problem}\n")
    if form is Format.RICH:
        checked = [(file, found) for file, found in checked if not found]
    if checked:
        deliver(problems_document(checked), form, output)
    if problems:
        raise typer.Exit(INVALID)


def _problems(kind: str, file: str, spec: type[Spec], load: Callable[[str], object]) -> list[InputError]:
    """Keys and values first, all of them; what they mean only where those hold, up to the first error."""
    from pdmodel.resources import resolve
    from pdmodel.spec import read_json

    try:
        path = resolve(kind, file)
        problems = spec.problems(read_json(path), file=str(path))
        if not problems:
            load(str(path))
    except InputError as error:
        return [error]
    return problems
