"""``pdmodel scenario init``: a scenario from a box, an LLM, degrees of parallelism and a prompt or a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli.import_trace import BlockOption, CacheOption
from pdmodel.cli.options import DebugOption, Format, NoColourOption

if TYPE_CHECKING:
    from pdmodel.importers.make_scenario import Wanted, Wish

EPILOG = """[b]Examples[/b]: pdmodel scenario init --hardware h100_8nic --llm qwen3-235b-a22b-fp8
--prefill tp=2,cp=2,ep=4 --decode tp=8,ep=8 --isl 32768 -o turn.json

pdmodel scenario init --hardware my_box.json --llm config.json --prefill tp=4 --decode tp=4
--trace conversation_trace.jsonl --percentiles 50,99 -o typical.json"""

HardwareOption = Annotated[
    str, typer.Option("--hardware", metavar="BOX", help="The prefill box: a name (pdmodel hardware list) or a path.")
]
DecodeHardwareOption = Annotated[
    str | None,
    typer.Option("--decode-hardware", metavar="BOX", help="The decode box. Default: as prefill.", show_default=False),
]
LlmOption = Annotated[
    str, typer.Option("--llm", metavar="LLM", help="A name (pdmodel llm list), or the path of a config.json.")
]
PrefillOption = Annotated[
    str,
    typer.Option(
        "--prefill", metavar="tp=N,...", help="tp, cp, ep, chunk, instances, or any key of prefill: tp=2,cp=2,ep=4."
    ),
]
DecodeOption = Annotated[
    str,
    typer.Option(
        "--decode", metavar="tp=N,...", help="tp, ep, running, context, or any key of decode: tp=8,ep=8,running=64."
    ),
]
IslOption = Annotated[
    int | None,
    typer.Option("--isl", min=1, metavar="TOKENS", help="Input tokens, a request per instance.", show_default=False),
]
OslOption = Annotated[
    int | None,
    typer.Option("--osl", min=0, metavar="TOKENS", help="Output tokens: half count as context.", show_default=False),
]
CachedOption = Annotated[
    int | None,
    typer.Option("--cached", min=0, metavar="TOKENS", help="Input tokens that are cached.", show_default=False),
]
CachedInOption = Annotated[
    str | None,
    typer.Option(
        "--cached-in",
        metavar="TIER",
        help="hbm, host_memory or store; with --isl also tokens of each: hbm=8192,store=4096. Default: host_memory.",
        show_default=False,
    ),
]
TransferOption = Annotated[
    str | None,
    typer.Option(
        "--transfer",
        metavar="KEY=VALUE,...",
        help="Any key of transfer: layout=hnd,page_tokens=16,route_rule=stripe,nics=0+2,through=store.",
        show_default=False,
    ),
]
TierOption = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="KEY=VALUE,...",
        help="Any key of cache: write_policy=write_through,prefetch=timeout,reuse=best.",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="KEY=VALUE,...",
        help="Any key of store: backend=mooncake_store,place=remote,replicas=2.",
        show_default=False,
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Requests of a trace instead of --isl.", show_default=False),
]
PercentilesOption = Annotated[
    str | None,
    typer.Option(
        "--percentiles",
        metavar="50,90,99",
        help="From the trace, the requests with prompts of these percentiles, all at once. Default: 50,90,99.",
        show_default=False,
    ),
]
FirstOption = Annotated[
    int | None,
    typer.Option("--first", min=1, metavar="N", help="The first N of the trace, as they came.", show_default=False),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="ENGINE", help="Name or path of an engine. Default: sglang_mooncake.", show_default=False
    ),
]
ChunkOption = Annotated[
    int | None,
    typer.Option("--chunk", min=1, metavar="TOKENS", help="Tokens of a prefill chunk.", show_default=False),
]
InstancesOption = Annotated[
    int | None,
    typer.Option("--instances", min=1, metavar="N", help="Prefill instances in the box.", show_default=False),
]
KvOption = Annotated[
    str | None, typer.Option("--kv-dtype", metavar="DTYPE", help="How KV is stored. Default: bf16.", show_default=False)
]
WeightOption = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype",
        metavar="DTYPE",
        help="How weights are stored, as fp8_block. Default: as the LLM's file says.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Name of the scenario. Default: the file's.", show_default=False),
]
NewOption = Annotated[Path, typer.Option("--output", "-o", metavar="SCENARIO.json", help="Write the scenario here.")]
ReportFormatOption = Annotated[Format, typer.Option("--format", help="Form of the report on stdout.")]


def init(
    *,
    hardware: HardwareOption,
    llm: LlmOption,
    prefill: PrefillOption,
    decode: DecodeOption,
    output: NewOption,
    isl: IslOption = None,
    osl: OslOption = None,
    cached: CachedOption = None,
    cached_in: CachedInOption = None,
    trace: TraceOption = None,
    percentiles: PercentilesOption = None,
    first: FirstOption = None,
    block_tokens: BlockOption = 512,
    cache_blocks: CacheOption = None,
    chunk: ChunkOption = None,
    instances: InstancesOption = None,
    engine: EngineOption = None,
    transfer: TransferOption = None,
    cache: TierOption = None,
    store: StoreOption = None,
    decode_hardware: DecodeHardwareOption = None,
    weight_dtype: WeightOption = None,
    kv_dtype: KvOption = None,
    name: NameOption = None,
    form: ReportFormatOption = Format.RICH,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Write a scenario: looked up, placed and its timeline built before the file is; what was chosen is listed."""
    from pdmodel.importers.make_scenario import Wish, degrees, part, tiers
    from pdmodel.report.files import check_target

    _check_requests(isl, (osl, cached), trace, (percentiles, first))
    check_target(output)
    pairs = (("chunk_tokens", chunk), ("instances", instances))
    side = {key: value for key, value in pairs if value is not None} | degrees(prefill, "prefill")
    lies_in = None if cached_in is None else tiers(cached_in)
    cached = _sum_of(lies_in, cached, trace)
    wish = Wish(
        hardware=hardware,
        llm=llm,
        prefill=side,
        decode=degrees(decode, "decode"),
        requests=_traced(trace, percentiles, first, block_tokens, cache_blocks)
        if trace is not None
        else _alike(isl or 1, osl or 0, cached or 0, side.get("instances")),
        decode_hardware=decode_hardware,
        engine=engine,
        name=name,
        kv_dtype=kv_dtype,
        weight_dtype=weight_dtype,
        cached_in=lies_in,
        transfer={} if transfer is None else part(transfer, "transfer"),
        cache={} if cache is None else part(cache, "cache"),
        store={} if store is None else part(store, "store"),
    )
    _write(wish, trace, output, form)


def _write(wish: Wish, trace: Path | None, output: Path, form: Format) -> None:
    """Check the scenario, write it, and say what was written."""
    from pdmodel.cli.progress import busy
    from pdmodel.cli.render import show
    from pdmodel.importers.make_scenario import inputs_of, make_scenario
    from pdmodel.report.export import to_json
    from pdmodel.report.files import write_whole
    from pdmodel.report.made_scenario import made_document

    with busy("checking the scenario") as tell:
        made = make_scenario(wish, output, tell)
    if output.resolve() in {path.resolve() for path in inputs_of(wish, [] if trace is None else [trace])}:
        raise typer.BadParameter("--output is one of the inputs")
    write_whole(output, to_json(made.raw).encode())
    show(made_document(made, output), form)


def _sum_of(lies_in: str | dict[str, object] | None, cached: int | None, trace: Path | None) -> int | None:
    """Cached tokens: of all tiers where these are given, else as they are given."""
    if not isinstance(lies_in, dict):
        return cached
    if trace is not None:
        raise typer.BadParameter("--cached-in with tokens goes with --isl; a trace has its own numbers")
    if not all(isinstance(tokens, int) for tokens in lies_in.values()):
        raise typer.BadParameter("--cached-in takes whole numbers of tokens")
    total = sum(tokens for tokens in lies_in.values() if isinstance(tokens, int))
    if cached not in (None, total):
        raise typer.BadParameter(f"--cached is {cached}, the tiers of --cached-in hold {total}")
    return total


def _check_requests(
    isl: int | None,
    fresh: tuple[int | None, int | None],
    trace: Path | None,
    picked: tuple[str | None, int | None],
) -> None:
    if (isl is None) == (trace is None):
        raise typer.BadParameter("give --isl TOKENS or --trace FILE, one of them")
    if trace is not None and any(value is not None for value in fresh):
        raise typer.BadParameter("--osl and --cached go with --isl; a trace has its own")
    if trace is None and any(value is not None for value in picked):
        raise typer.BadParameter("--percentiles and --first go with --trace")
    if None not in picked:
        raise typer.BadParameter("give --percentiles or --first, not both")


def _alike(isl: int, osl: int, cached: int, instances: object) -> tuple[Wanted, ...]:
    """One request, or one for each of several instances."""
    from pdmodel.importers.make_scenario import MOST_REQUESTS, Wanted

    if not isinstance(instances, int) or not 1 < instances <= MOST_REQUESTS:
        return (Wanted("turn", isl, cached, osl),)
    return tuple(Wanted(f"turn{k}", isl, cached, osl) for k in range(instances))


def _traced(
    path: Path, percentiles: str | None, first: int | None, block_tokens: int, cache_blocks: int | None
) -> tuple[Wanted, ...]:
    from pdmodel.cli.progress import bar
    from pdmodel.importers.make_scenario import at_percentiles, first_requests
    from pdmodel.importers.traces import read_trace

    with bar(f"reading {path.name}") as tell:
        found = read_trace(path, block_tokens=block_tokens, cache_blocks=cache_blocks, progress=tell)
    if first is not None:
        return first_requests(found.trace, first)
    return at_percentiles(found.trace, percentiles or "50,90,99")
