"""``pdmodel scenario``: the files that say what is asked."""

from __future__ import annotations

import typer

from pdmodel.cli import scenario_init
from pdmodel.cli.options import (
    DebugOption,
    FilesArgument,
    FormatOption,
    NoColourOption,
    OutputOption,
    ScenarioArgument,
    resolved_format,
)

app = typer.Typer(no_args_is_help=True, help="Make, list, show and check scenarios; print their JSON Schema.")
app.command("init", epilog=scenario_init.EPILOG)(scenario_init.init)


@app.command("list", epilog="Example: pdmodel scenario list --format json")
def list_all(
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """List the shipped scenarios with their purpose and expected verdict."""
    from pdmodel.cli.render import deliver
    from pdmodel.report.inputs import scenario_list
    from pdmodel.resolve import read_scenario
    from pdmodel.resources import names

    found = [read_scenario(name)[0] for name in names("scenarios")]
    deliver(scenario_list(found), resolved_format(form, output), output)


@app.command("show", epilog="Example: pdmodel scenario show agentic_turn_pcie")
def show(
    scenario: ScenarioArgument,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show a scenario key by key, defaults filled in; JSON prints a file that is valid again."""
    from pdmodel.cli.render import deliver
    from pdmodel.report.inputs import scenario_document
    from pdmodel.resolve import read_scenario

    deliver(scenario_document(*read_scenario(scenario)), resolved_format(form, output), output)


@app.command("validate", epilog="Example: pdmodel scenario validate agentic_turn_pcie scenarios/my_box.json")
def validate(
    files: FilesArgument,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Check scenarios, everything they name included: one line for each problem, exit code 3 if there are any."""
    from pdmodel.cli.checking import check_files
    from pdmodel.record import scenario_record
    from pdmodel.resolve import load_scenario
    from pdmodel.scenario import Scenario

    def load(name: str) -> object:
        return scenario_record(load_scenario(name))

    check_files("scenarios", files, (Scenario, load), resolved_format(form, output), output)


@app.command("schema", epilog="Example: pdmodel scenario schema --output scenario.schema.json")
def schema(*, output: OutputOption = None, debug: DebugOption = False, no_colour: NoColourOption = False) -> None:
    """Print the JSON Schema of scenario files."""
    from pdmodel.cli.render import deliver_schema
    from pdmodel.scenario import Scenario

    deliver_schema(Scenario.json_schema(), output)
