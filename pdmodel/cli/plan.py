"""``pdmodel plan``: the answer to one scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli.options import (
    DebugOption,
    FormatOption,
    FullOption,
    NoColourOption,
    OutputOption,
    ScenarioArgument,
    resolved_format,
)

if TYPE_CHECKING:
    from pdmodel.answer import Plan

EPILOG = """[b]Units[/b]: sizes in decimal bytes, rates in GB/s (1e9 byte/s), cost in GPU·s; JSON and CSV in SI units.

[b]Exit codes[/b]: 0 ok, 1 unexpected, 2 usage, 3 invalid input, 4 deadlines missed under --strict, 5 solver.

[b]Examples[/b]: pdmodel plan agentic_turn_pcie

pdmodel plan scenarios/seed_h200_nvlink.json --format json --output plan.json --plot plan.svg"""


def plan(
    scenario: ScenarioArgument,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw ports (GB/s) and transfers over time (ms) into FILE.png or FILE.svg.",
            show_default=False,
        ),
    ] = None,
    full: FullOption = False,
    full_schedule: Annotated[
        bool, typer.Option("--full-schedule", metavar="", help="Print every row of the schedule, not only the digest.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", metavar="", help="Exit with 4 where the plan misses a deadline, after printing it."),
    ] = False,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Allocate bandwidth for a scenario and print verdict, times, ports, what to set, and what that rests on."""
    from pdmodel.cli.render import deliver
    from pdmodel.report.files import check_target

    if plot is not None:
        from pdmodel.report.plot import check_plot_path

        check_plot_path(plot)
    if output is not None:
        check_target(output)
    if plot is not None and output is not None and plot.resolve() == output.resolve():
        raise typer.BadParameter("--output and --plot name the same file")
    answer = _planned(scenario)
    from pdmodel.report.text import plan_document

    document = plan_document(answer, full=full, full_schedule=full_schedule)
    deliver(document, resolved_format(form, output), output, picture=None if plot is None else (answer, plot))
    if strict and answer.missed_deadlines:
        from pdmodel.errors import DeadlineError

        count = len(answer.missed_deadlines)
        raise DeadlineError(
            f"{answer.scenario}: {count} deadline{'s' * (count > 1)} missed, first: {answer.missed_deadlines[0]}"
        )


def _planned(scenario: str) -> Plan:
    from pdmodel.cli.progress import busy

    with busy(f"planning {scenario}") as tell:
        from pdmodel import planner

        return planner.plan(scenario, progress=tell)
