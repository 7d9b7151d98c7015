"""``pdmodel verify``: the published tables, run again on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from pdmodel.cli.options import (
    DebugOption,
    FormatOption,
    FullOption,
    NoColourOption,
    OutputOption,
    resolved_format,
)

EPILOG = """[b]Exit codes[/b]: 0 every limit is kept, 6 a limit is broken (the errors are printed all the same).

[b]Examples[/b]: pdmodel verify

pdmodel verify collectives step_times --format json"""


def verify(
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE...]", help="Tables to run; all when left out.", show_default=False),
    ] = None,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    full: FullOption = False,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Run every published table again and print errors by table and size, with limit and source."""
    from pdmodel.cli.progress import busy
    from pdmodel.cli.render import deliver
    from pdmodel.report.files import check_target
    from pdmodel.report.validation import broken_limits, validation_document

    if output is not None:
        check_target(output)
    with busy("published tables") as tell:
        from pdmodel import verification

        results = verification.verify(tuple(tables or ()), progress=tell)
    deliver(validation_document(results, full=full), resolved_format(form, output), output)
    broken = broken_limits(results)
    if broken:
        from pdmodel.errors import VerificationError

        count = "1 limit is" if len(broken) == 1 else f"{len(broken)} limits are"
        raise VerificationError(f"{count} broken, first: {broken[0]}")
