"""The program ``pdmodel``: commands, global options, and how errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from pdmodel import __version__
from pdmodel.cli import calibrate, cost, engine, hardware, importing, llm, plan, scenario, verify
from pdmodel.cli.options import DebugOption, NoColourOption, reset, state
from pdmodel.errors import PdmodelError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

app = typer.Typer(
    name="pdmodel",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: pdmodel plan agentic_turn_pcie",
)
app.command("plan", rich_help_panel="Planning", epilog=plan.EPILOG)(plan.plan)
app.add_typer(cost.app, name="cost", rich_help_panel="Costs")
app.command("verify", rich_help_panel="Costs", epilog=verify.EPILOG)(verify.verify)
app.add_typer(calibrate.app, name="calibrate", rich_help_panel="Costs")
app.add_typer(scenario.app, name="scenario", rich_help_panel="Inputs")
app.add_typer(hardware.app, name="hardware", rich_help_panel="Inputs")
app.add_typer(llm.app, name="llm", rich_help_panel="Inputs")
app.add_typer(engine.app, name="engine", rich_help_panel="Inputs")
app.add_typer(importing.app, name="import", rich_help_panel="Inputs")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"pdmodel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Print the version and exit."),
    ] = False,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Plan KV-cache transfers around collective traffic in prefill/decode-disaggregated LLM serving."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; exit code 0 ok, 1 unexpected, 2 usage, 3 input, 4 deadlines, 5 solver, 6 published tables."""
    reset()
    with suppress(AttributeError):
        # A letter that the terminal cannot show must not end the program.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        words = None if arguments is None else list(arguments)
        code = int(app(args=words, prog_name="pdmodel", standalone_mode=False) or 0)
        return _fail("interrupted", code) if code == INTERRUPTED else code
    except TyperException as error:
        return _usage(error)
    except PdmodelError as error:
        return _fail(str(error), error.exit_code)
    except Abort:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence()
        return 0
    except Exception as error:  # the last resort: one line, the traceback on request
        return _fail(f"unexpected {type(error).__name__}: {error} (--debug shows the traceback)", 1)


def _usage(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "pdmodel"
    text = error.format_message().replace("Value error, ", "")
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(text, err=True)
        return 2
    return _fail(f"{' '.join(text.split()).rstrip('.')}; see '{command} --help'", error.exit_code)


def _fail(text: str, code: int) -> int:
    if state.debug:
        import traceback

        traceback.print_exc()
    with suppress(BrokenPipeError):
        sys.stderr.write("pdmodel: " + " ".join(text.split("\n")) + "\n")
    return code


def _silence() -> None:
    """Nobody reads any more: what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
