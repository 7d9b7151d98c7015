"""``pdmodel import trace``: what a recorded workload says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

EPILOG = """[b]Traces[/b]: Mooncake (JSON lines), Azure 2023 and 2024 (CSV), BurstGPT (CSV).

[b]Examples[/b]: pdmodel import trace conversation_trace.jsonl --cache-blocks 10000

pdmodel import trace AzureLLMInferenceTrace_conv.csv --format json"""

BlockOption = Annotated[int, typer.Option("--block-tokens", min=1, help="Tokens of a block that hash_ids number.")]
CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache-blocks",
        min=1,
        metavar="N",
        help="Blocks that the prefix cache holds, least recently used first out. Default: nothing is evicted.",
        show_default=False,
    ),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", metavar="", help="Refuse the file at the first malformed line.")
]


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recorded workload.")],
    *,
    block_tokens: BlockOption = 512,
    cache_blocks: CacheOption = None,
    strict: StrictOption = False,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Read a trace: requests, rate, percentiles of tokens, prefix hits, what is malformed."""
    from pdmodel.cli.progress import bar
    from pdmodel.cli.render import deliver
    from pdmodel.importers.traces import read_trace
    from pdmodel.report.trace import trace_document
    from pdmodel.workload.trace import summary

    with bar(f"reading {file.name}") as tell:
        found = read_trace(file, block_tokens=block_tokens, cache_blocks=cache_blocks, strict=strict, progress=tell)
    deliver(trace_document(found, summary(found.trace)), resolved_format(form, output), output)
