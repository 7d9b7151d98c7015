"""``pdmodel llm``: what is known of LLMs."""

from __future__ import annotations

from typing import Annotated

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

app = typer.Typer(no_args_is_help=True, help="List and show LLMs: parameters, weights, KV bytes per token.")


@app.command("list", epilog="Example: pdmodel llm list")
def list_all(
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """List the shipped LLMs with parameters, weights (GiB) and KV (bytes per token)."""
    from pdmodel.cli.render import deliver
    from pdmodel.llm.catalog import list_llms, load_llm
    from pdmodel.report.llms import llm_list

    deliver(llm_list([load_llm(name) for name in list_llms()]), resolved_format(form, output), output)


@app.command("show", epilog="Example: pdmodel llm show qwen3-235b-a22b-fp8")
def show(
    llm: Annotated[
        str,
        typer.Argument(
            metavar="LLM", help="Name of a shipped LLM (pdmodel llm list), or a path to a Hugging Face config.json."
        ),
    ],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show an LLM: its shape, parameters, weights (GiB) and KV bytes per token for each way to store them."""
    from pdmodel.cli.render import deliver
    from pdmodel.llm.catalog import load_llm
    from pdmodel.report.llms import llm_document

    deliver(llm_document(load_llm(llm)), resolved_format(form, output), output)
