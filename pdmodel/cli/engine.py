"""``pdmodel engine``: what serving engines and their transfer engines do with KV."""

from __future__ import annotations

from typing import Annotated

import typer

from pdmodel.cli.options import (
    DebugOption,
    FormatOption,
    NoColourOption,
    OutputOption,
    ScenarioArgument,
    resolved_format,
)

app = typer.Typer(
    no_args_is_help=True,
    help="List and show engines, plan one scenario under several of them; print their JSON Schema.",
)


@app.command("list", epilog="Example: pdmodel engine list")
def list_all(
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """List the shipped engines: who drives a transfer, when KV leaves and in which pieces, layout, page (tokens)."""
    from pdmodel.cli.render import deliver
    from pdmodel.engines.catalog import list_engines, load_engine
    from pdmodel.report.engines import engine_list

    deliver(engine_list([load_engine(name) for name in list_engines()]), resolved_format(form, output), output)


@app.command("show", epilog="Example: pdmodel engine show sglang_mooncake")
def show(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="Name of a shipped engine (pdmodel engine list), or a path.")
    ],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show an engine: its facts and its backend's with their sources, and what can be set."""
    from pdmodel.cli.render import deliver
    from pdmodel.engines.catalog import load_engine
    from pdmodel.report.engines import engine_document

    deliver(engine_document(load_engine(engine)), resolved_format(form, output), output)


@app.command("compare", epilog="Example: pdmodel engine compare agentic_turn_pcie --engines sglang_mooncake,vllm_nixl")
def compare(
    scenario: ScenarioArgument,
    *,
    engines: Annotated[
        str | None,
        typer.Option(
            "--engines",
            metavar="A,B,...",
            help="Names or paths of engines, separated by commas. Default: all that are shipped.",
            show_default=False,
        ),
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Plan a scenario under several engines: descriptors, TTFT, stall (s), cost (GPU·s), and what can be applied."""
    from pdmodel.cli.progress import busy
    from pdmodel.cli.render import deliver
    from pdmodel.report.files import check_target

    if output is not None:
        check_target(output)
    named = None if engines is None else [part.strip() for part in engines.split(",")]
    with busy(f"planning {scenario}") as tell:
        from pdmodel.comparison import compare_engines
        from pdmodel.report.engines import comparison_document
        from pdmodel.resolve import read_scenario

        rows = compare_engines(scenario, named, progress=tell)
        title = read_scenario(scenario)[0].name
    deliver(comparison_document(title, rows), resolved_format(form, output), output)


@app.command("schema", epilog="Example: pdmodel engine schema --output engine.schema.json")
def schema(*, output: OutputOption = None, debug: DebugOption = False, no_colour: NoColourOption = False) -> None:
    """Print the JSON Schema of engine files."""
    from pdmodel.cli.render import deliver_schema
    from pdmodel.engines.spec import EngineSpec

    deliver_schema(EngineSpec.json_schema(), output)
