"""``pdmodel import hf-config``: what the config of an LLM, or of each of several, says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format
from pdmodel.errors import InputError

EPILOG = "Example: pdmodel import hf-config config.json --format json"


def hf_config(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="config.json of an LLM on Hugging Face.")],
    *,
    kv_dtype: Annotated[
        str, typer.Option("--kv-dtype", metavar="DTYPE", help="How keys and values are stored: bf16, fp8, fp8_ds_mla.")
    ] = "bf16",
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show an LLM: layers by kind, KV bytes per token, bytes that a sequence keeps besides, parameters.

    One FILE is shown whole, several as a table. Exit code 3 if any is refused: the field that is not understood is
    named.
    """
    from pdmodel.cli.render import deliver
    from pdmodel.importers.hf_config import read_config
    from pdmodel.llm.dtypes import KvDtype
    from pdmodel.report.llms import config_document, config_table

    try:
        dtype = KvDtype.parse(kv_dtype)
    except InputError as error:
        raise error.located(path="--kv-dtype") from None
    if len(files) == 1:
        deliver(config_document(read_config(files[0], dtype)), resolved_format(form, output), output)
        return
    found, refused = [], []
    for file in files:
        try:
            found.append(read_config(file, dtype))
        except InputError as error:
            refused.append((str(file), str(error)))
    deliver(config_table(found, refused), resolved_format(form, output), output)
    for _, reason in refused:
        sys.stderr.write(f"pdmodel: {reason}\n")
    if refused:
        raise typer.Exit(InputError.exit_code)
