"""``pdmodel cost kv-transfer``: what handing KV from one layout to another takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdmodel.costs.kv_layout import Cache, Exchange, HandOver, Path, Setting
    from pdmodel.engines.spec import EngineSpec
    from pdmodel.hardware.topology import Box

NAME = "kv-transfer"
EPILOG = (
    "Examples: pdmodel cost kv-transfer --llm qwen3-32b --prefill tp=4 --decode tp=8 --tokens 32768 --layout nhd\n\n"
    "pdmodel cost kv-transfer --llm deepseek-v3 --prefill tp=8 --decode tp=8,dcp=8 --tokens 65536 --hardware b200_8nic"
)
ULYSSES = "ulysses"
MOST_TOKENS = 10**7
"""More than any context; token-cyclic ranks are counted token by token."""
MOST_RANKS = 1024


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


LlmOption = Annotated[
    str, _option("--llm", "LLM", "Name of a shipped LLM (pdmodel llm list), or a path to config.json.")
]
PrefillOption = Annotated[str, _option("--prefill", "DEGREES", "Prefill ranks: tp=4 or tp=4,cp=2.")]
DecodeOption = Annotated[str, _option("--decode", "DEGREES", "Decode ranks: tp=8 or tp=8,dcp=8 (dcp divides tp).")]
TokensOption = Annotated[int, _option("--tokens", "N", "Tokens of the sequence.")]
PageOption = Annotated[int | None, _option("--page-tokens", "N", "Tokens of a page. Default: the engine's.")]
LayoutOption = Annotated[
    str | None, _option("--layout", "NAME", "Order inside a page: nhd (tokens) or hnd (heads). Default: the engine's.")
]
DecodeLayoutOption = Annotated[
    str | None, _option("--decode-layout", "NAME", "The same on the decode side, if it differs.")
]
CpSplitOption = Annotated[
    str,
    _option(
        "--cp-split",
        "NAME",
        "Tokens of the cp ranks: whole (all-gathered), contiguous, zigzag, token_cyclic, page_cyclic; ulysses shares "
        "the heads.",
    ),
]
DcpSplitOption = Annotated[str, _option("--dcp-split", "NAME", "Tokens of the dcp ranks: token_cyclic or page_cyclic.")]
StagedOption = Annotated[
    int | None,
    _option(
        "--staged", "TOKENS", "Pack into a buffer of so many tokens before sending; 0: do not. Default: the engine's."
    ),
]
ScatteredOption = Annotated[bool, _option("--scattered", "", "No two pages lie side by side. Default: all do.")]
CrossLayerOption = Annotated[bool, _option("--cross-layer", "", "A page holds all layers (cross-layer blocks).")]
GatherOption = Annotated[bool, _option("--gather", "", "Decode ranks take a part of what they share, then gather.")]
CopiesOption = Annotated[
    str | None,
    _option(
        "--copies",
        "NAME",
        "Sender among equal copies: spread, cyclic, first, proportional, shares. Default: the engine's.",
    ),
]
ThreadsOption = Annotated[
    int | None, _option("--threads", "N", "Threads that post one request. Default: the engine's.")
]
KvOption = Annotated[str, _option("--kv-dtype", "NAME", "bf16, fp16, fp8 or fp8_ds_mla.")]
EngineOption = Annotated[str, _option("--engine", "ENGINE", "Name of a shipped engine, or a path.")]
HardwareOption = Annotated[
    str | None, _option("--hardware", "BOX", "Box of both sides. Default: a NIC of 48.9 GB/s for each rank.")
]
DecodeHardwareOption = Annotated[
    str | None, _option("--decode-hardware", "BOX", "Box of the decode side, if it differs.")
]


def kv_transfer(
    *,
    llm: LlmOption,
    prefill: PrefillOption,
    decode: DecodeOption,
    tokens: TokensOption,
    page_tokens: PageOption = None,
    layout: LayoutOption = None,
    decode_layout: DecodeLayoutOption = None,
    cp_split: CpSplitOption = "whole",
    dcp_split: DcpSplitOption = "token_cyclic",
    staged: StagedOption = None,
    scattered: ScatteredOption = False,
    cross_layer: CrossLayerOption = False,
    gather: GatherOption = False,
    copies: CopiesOption = None,
    threads: ThreadsOption = None,
    kv: KvOption = "bf16",
    engine: EngineOption = "sglang_mooncake",
    hardware: HardwareOption = None,
    decode_hardware: DecodeHardwareOption = None,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Pairs, bytes, descriptors and time of handing one sequence over, and the cheapest fix."""
    from pdmodel.cli.render import deliver
    from pdmodel.costs.kv_layout import caches, cheapest, fixes, staged_tokens
    from pdmodel.engines.catalog import load_engine
    from pdmodel.llm.catalog import load_llm
    from pdmodel.llm.kv_cache import kv_sequence_bytes_rank
    from pdmodel.report.files import check_target
    from pdmodel.report.kv_costs import kv_transfer_document

    if output is not None:
        check_target(output)
    _positive({"--tokens": tokens, "--page-tokens": page_tokens, "--staged": staged or None, "--threads": threads})
    _at_most({"--tokens": tokens, "--page-tokens": page_tokens, "--staged": staged, "--threads": threads}, MOST_TOKENS)
    spec, arch = load_engine(engine), load_llm(llm)
    threads = threads or spec.posting_threads.value
    layout = layout or spec.layout.value.value
    words = {"layout": layout, "decode_layout": decode_layout, "cp_split": cp_split, "dcp_split": dcp_split}
    exchange = _exchange(spec, (prefill, decode), words, page_tokens, copies)
    if staged is None:
        per_token = kv_sequence_bytes_rank(arch, 1024, kv, degrees(prefill, "--prefill", ("tp", "cp"))["tp"]) / 1024
        staged = staged_tokens(spec, per_token)
    cross_layer = cross_layer or spec.cross_layer.value
    exchange = _with_flags(exchange, staged, scattered=scattered, cross_layer=cross_layer, gather=gather)
    kept = caches(arch, tokens, kv)
    setting = _setting(spec, threads, (hardware, decode_hardware or hardware), exchange)
    found = _hand_over(exchange, kept, setting)
    changes = fixes(exchange, kept, setting)
    facts = {"llm": arch.name, "tokens": tokens, "prefill": prefill, "decode": decode}
    facts |= _facts(exchange, spec, words, hardware, threads)
    document = kv_transfer_document(facts, found, changes, cheapest(found, changes))
    deliver(document, resolved_format(form, output), output)


def _hand_over(exchange: Exchange, kept: Sequence[Cache], setting: Setting) -> HandOver:
    from pdmodel.costs.kv_layout import hand_over
    from pdmodel.errors import CoverageError

    try:
        return hand_over(exchange, kept, setting)
    except CoverageError as error:
        raise error.located(path="--cross-layer") from None


def _positive(values: dict[str, int | None]) -> None:
    from pdmodel.errors import InputError

    for option, value in values.items():
        if value is not None and value < 1:
            raise InputError(f"found {value}", path=option, expected="a positive number")


def _at_most(values: dict[str, int | None], most: int) -> None:
    from pdmodel.errors import InputError

    for option, value in values.items():
        if value is not None and value > most:
            raise InputError(f"found {value}", path=option, expected=f"at most {most}")


def degrees(text: str, option: str, known: tuple[str, ...]) -> dict[str, int]:
    """``tp=4,cp=2`` as numbers; what is not named is 1.

    Raises: `InputError` for an unknown degree, one that is given twice, and for anything but a positive number.

    >>> degrees("tp=4", "--prefill", ("tp", "cp"))
    {'tp': 4, 'cp': 1}
    """
    from pdmodel.errors import InputError, nearest

    found = dict.fromkeys(known, 1)
    seen: set[str] = set()
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in known or name in seen:
            raise InputError(
                f"found {part.strip()!r}",
                path=option,
                expected=f"{' and '.join(f'{key}=N' for key in known)}, each once",
                nearest=nearest(name, known),
            )
        if not value.isdecimal() or not 1 <= int(value) <= 4096:
            raise InputError(f"found {part.strip()!r}", path=option, expected="a number from 1 to 4096")
        seen.add(name)
        found[name] = int(value)
    return found


def _exchange(
    engine: EngineSpec,
    sides: tuple[str, str],
    words: dict[str, str | None],
    page_tokens: int | None,
    copies: str | None,
) -> Exchange:
    from pdmodel.cli.sizes import choice
    from pdmodel.costs.kv_layout import CopySender, Exchange, Order, Placement, Split
    from pdmodel.engines.spec import LatentSource
    from pdmodel.errors import InputError

    orders = [order.value for order in Order]
    ours = Order(choice(str(words["layout"]), orders, "--layout"))
    theirs = Order(choice(words["decode_layout"] or ours.value, orders, "--decode-layout"))
    splits = [split.value for split in Split]
    cp_split = choice(str(words["cp_split"]), [*splits, ULYSSES], "--cp-split")
    dcp_split = choice(str(words["dcp_split"]), splits[1:], "--dcp-split")
    one, two = degrees(sides[0], "--prefill", ("tp", "cp")), degrees(sides[1], "--decode", ("tp", "dcp"))
    if two["tp"] % two["dcp"]:
        raise InputError(f"found {sides[1]!r}", path="--decode", expected="dcp that divides tp")
    if one["tp"] * one["cp"] > MOST_RANKS or two["tp"] > MOST_RANKS:
        side, text = ("--decode", sides[1]) if two["tp"] > MOST_RANKS else ("--prefill", sides[0])
        raise InputError(f"found {text!r}", path=side, expected=f"at most {MOST_RANKS} ranks")
    page = page_tokens or engine.page_tokens.value
    if cp_split == ULYSSES:
        source = Placement(one["tp"] * one["cp"], page_tokens=page, order=ours, ulysses=one["cp"])
    else:
        source = Placement(one["tp"], one["cp"], Split(cp_split), page, ours)
    parts = two["dcp"]
    target = Placement(two["tp"] // parts, parts, Split(dcp_split) if parts > 1 else Split.WHOLE, page, theirs)
    shares = engine.latent_source.value is LatentSource.TOKEN_SHARDS
    rule, latents = CopySender.CYCLIC, CopySender.SHARES if shares else CopySender.PROPORTIONAL
    if copies is not None:
        rule = latents = CopySender(choice(copies, [each.value for each in CopySender], "--copies"))
    return Exchange(source, target, rule, latents, engine.context_senders.value)


def _with_flags(exchange: Exchange, staged: int, *, scattered: bool, cross_layer: bool, gather: bool) -> Exchange:
    from pdmodel.costs.kv_layout import Pages

    pages = Pages.SCATTERED if scattered else Pages.CONSECUTIVE
    return replace(exchange, pages=pages, layers_together=cross_layer, gather=gather, chunk_tokens=staged or None)


def _setting(engine: EngineSpec, threads: int, hardware: tuple[str | None, str | None], exchange: Exchange) -> Setting:
    from pdmodel.costs.kv_layout import Setting, engine_constants, engine_slicing, even_path
    from pdmodel.errors import InputError
    from pdmodel.units import GB

    constants, slicing = engine_constants(engine, threads), engine_slicing(engine)
    one, two = hardware
    if one is None and two is not None:
        raise InputError("needs --hardware", path="--decode-hardware", expected="both, or --hardware alone")
    if one is None or two is None:
        found = Setting(even_path(), constants, slicing, mode=engine.mode.value)
    else:
        boxes, paths = _boxes(engine, (one, two), exchange)
        memory = min(box.profile.gpu.hbm_gb_per_s.value for box in boxes) * GB
        found = Setting(paths[0][1], constants, slicing, memory, engine.mode.value, paths[1:])
    in_turn = engine.control.sequential_receive.value
    return replace(found, receiving="D/rank{}/receiving".format) if in_turn else found


def _boxes(
    engine: EngineSpec, hardware: tuple[str, str], exchange: Exchange
) -> tuple[tuple[Box, Box], tuple[tuple[str, Path], ...]]:
    """Both boxes, and the paths between them: by the engine's rule, then by others."""
    from pdmodel.costs.kv_layout import box_choices, box_path
    from pdmodel.errors import InputError
    from pdmodel.hardware.catalog import load_profile
    from pdmodel.hardware.topology import Box

    boxes = Box(load_profile(hardware[0]), "P"), Box(load_profile(hardware[1]), "D")
    for box, place, option in zip(
        boxes, (exchange.source, exchange.destination), ("--prefill", "--decode"), strict=True
    ):
        if place.ranks > box.gpu_count:
            raise InputError(
                f"{place.ranks} ranks on the {box.gpu_count} GPUs of {box.profile.name}", path=option, expected="fewer"
            )
    rule = engine.route_rule.value
    return boxes, (("", box_path(*boxes, rule)), *box_choices(*boxes, rule))


def _facts(
    exchange: Exchange, engine: EngineSpec, words: dict[str, str | None], hardware: str | None, threads: int
) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "layout": exchange.source.order.value,
        "decode_layout": exchange.destination.order.value,
        "page_tokens": exchange.source.page_tokens,
        "pages": exchange.pages.value,
        "engine": engine.name,
        "threads": threads,
        "copies": exchange.copies.value,
        "latent_copies": (exchange.latent_copies or exchange.copies).value,
        "hardware": hardware or "one NIC a rank",
    }
    if exchange.source.ranks > exchange.source.shards or exchange.source.ulysses > 1:
        facts |= {"cp_split": words["cp_split"], "context_senders": exchange.context_senders.value}
    if exchange.destination.parts > 1:
        facts["dcp_split"] = words["dcp_split"]
    if exchange.chunk_tokens is not None:
        facts["staged_tokens"] = exchange.chunk_tokens
    return facts | {
        name: True for name, on in (("cross_layer", exchange.layers_together), ("gather", exchange.gather)) if on
    }
