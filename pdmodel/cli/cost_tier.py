"""``pdmodel cost kv-tier``: what a cached prefix takes from each tier, and whether it is worth loading."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

if TYPE_CHECKING:
    from pdmodel.timeline.breakdown import Setting
    from pdmodel.timeline.prefix_tiers import Prefix, PrefixStudy

NAME = "kv-tier"
EPILOG = (
    "Examples: pdmodel cost kv-tier --llm qwen3-235b-a22b-fp8 --hardware rtx_pro_6000_wrx90_two_roots --prefill "
    "tp=8,ep=8 --cached 62k --new 2k\n\n"
    "pdmodel cost kv-tier --llm llama-3.1-70b --hardware h100_8nic --prefill tp=8 --cached 8k --new 512 --store 3fs"
)
MOST_CHUNKS = 10_000
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)(k?)", flags=re.IGNORECASE)


def _option(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


LlmOption = Annotated[str, _option("--llm", "LLM", "Name of a shipped LLM, or a path to config.json.")]
HardwareOption = Annotated[str, _option("--hardware", "BOX", "Name of a known profile, or a path.")]
PrefillOption = Annotated[str, _option("--prefill", "DEGREES", "Prefill ranks: tp=8, or tp=4,cp=2, or tp=8,ep=8.")]
CachedOption = Annotated[str, _option("--cached", "TOKENS", "Tokens of the cached prefix: 63488, or 62k (x 1024).")]
NewOption = Annotated[str, _option("--new", "TOKENS", "Tokens after it, which are computed in any case.")]
TierOption = Annotated[
    str | None, _option("--tier", "NAME", "Only this tier: hbm, host_memory or store. Default: each in turn.")
]
StoreOption = Annotated[
    str, _option("--store", "BACKEND", "mooncake_store, mooncake_store_tcp, 3fs, nixl_gds, file, or a path.")
]
PrefetchOption = Annotated[
    str, _option("--prefetch", "POLICY", "best_effort, wait_complete or timeout: how a request waits for the store.")
]
QueueOption = Annotated[float, _option("--queue-ms", "MS", "How long the request waits for its turn anyway.")]
LeaseOption = Annotated[float | None, _option("--lease-s", "S", "Lease of the store. Default: the backend's.")]
KvOption = Annotated[str, _option("--kv-dtype", "NAME", "bf16, fp16, fp8 or fp8_ds_mla.")]
PageOption = Annotated[int | None, _option("--page-tokens", "N", "Tokens of a page. Default: the engine's.")]
ChunkOption = Annotated[int, _option("--chunk-tokens", "N", "Tokens of a prefill chunk, for the hand-over.")]
LoadByOption = Annotated[
    str | None, _option("--load-by", "NAME", "From host memory by copy_engine or kernel. Default: as the engine does.")
]
EngineOption = Annotated[str, _option("--engine", "ENGINE", "Engine of the direct hand-over: its pages and set-up.")]


def kv_tier(
    *,
    llm: LlmOption,
    hardware: HardwareOption,
    prefill: PrefillOption,
    cached: CachedOption,
    new: NewOption,
    tier: TierOption = None,
    store: StoreOption = "mooncake_store",
    prefetch: PrefetchOption = "timeout",
    queue_ms: QueueOption = 0.0,
    lease_s: LeaseOption = None,
    kv: KvOption = "bf16",
    page_tokens: PageOption = None,
    chunk_tokens: ChunkOption = 8192,
    engine: EngineOption = "sglang_mooncake",
    load_by: LoadByOption = None,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Load a cached prefix or compute it again: time by tier, break-even, best split, prefetch, store or direct."""
    from pdmodel.cli.render import deliver
    from pdmodel.cli.sizes import choice
    from pdmodel.costs.kv_tiers import Prefetch
    from pdmodel.report.files import check_target
    from pdmodel.timeline.prefix_tiers import PrefixStudy
    from pdmodel.workload.request import CacheTier

    if output is not None:
        check_target(output)
    for option, value in (("--page-tokens", page_tokens), ("--chunk-tokens", chunk_tokens)):
        _least(option, value, 1)
    _least("--queue-ms", queue_ms, 0)
    policy = choice(prefetch, [each.value for each in Prefetch], "--prefetch")
    only = tier and choice(tier, [each.value for each in CacheTier], "--tier")
    tokens = tokens_of(cached, "--cached"), tokens_of(new, "--new")
    if sum(tokens) > MOST_CHUNKS * chunk_tokens:
        _too_many_chunks(sum(tokens), chunk_tokens)
    asked = _asked(tokens, page_tokens, chunk_tokens, (store, engine, load_by), queue_ms, lease_s)
    study = PrefixStudy(_setting(llm, hardware, prefill, kv), asked)
    facts = {
        "llm": study.setting.arch.name,
        "hardware": study.setting.box.profile.name,
        "prefill": prefill,
        "cached_tokens": asked.cached_tokens,
        "new_tokens": asked.new_tokens,
        "page_tokens": asked.page_tokens,
        "chunk_tokens": asked.chunk_tokens,
        "kv_dtype": study.setting.kv_dtype.value,
        "store": asked.backend.name,
        "load_by": asked.loader.value,
    } | ({"queue_s": asked.queue_s} if asked.queue_s else {})
    deliver(_document(study, facts, only, policy), resolved_format(form, output), output)


def tokens_of(text: str, option: str) -> int:
    """A number of tokens; ``k`` is 1024 of them.

    Raises: `InputError` for anything but a positive, whole number.

    >>> tokens_of("62k", "--cached"), tokens_of("512", "--new"), tokens_of("1.5K", "--new")
    (63488, 512, 1536)
    """
    from pdmodel.cli.cost_kv import MOST_TOKENS
    from pdmodel.errors import InputError

    found = _TOKENS.fullmatch(text.strip())
    value = float(found[1]) * (1024 if found[2] else 1) if found else 0.0
    if not 1 <= value <= MOST_TOKENS or value != int(value):
        expected = f"a positive number of tokens such as 512 or 62k, at most {MOST_TOKENS}"
        raise InputError(f"found {text[:40]!r}", path=option, expected=expected)
    return int(value)


def _least(option: str, value: float | None, least: float) -> None:
    from pdmodel.errors import InputError

    if value is not None and not (least <= value < float("inf")):
        raise InputError(f"found {value:g}", path=option, expected=f"{least:g} or more")


def _too_many_chunks(tokens: int, chunk_tokens: int) -> None:
    from pdmodel.errors import InputError

    least = -(-tokens // MOST_CHUNKS)
    raise InputError(f"found {chunk_tokens}", path="--chunk-tokens", expected=f"{least} or more for {tokens} tokens")


def _asked(  # noqa: PLR0917 (options of the command)
    tokens: tuple[int, int],
    page_tokens: int | None,
    chunk_tokens: int,
    names: tuple[str, str, str | None],
    queue_ms: float,
    lease_s: float | None,
) -> Prefix:
    from pdmodel.cli.sizes import choice
    from pdmodel.costs.kv_store import backend_constants
    from pdmodel.engines.catalog import load_engine
    from pdmodel.engines.spec import LoadBy
    from pdmodel.engines.stores import load_store
    from pdmodel.errors import InputError
    from pdmodel.timeline.prefix_tiers import Prefix
    from pdmodel.units import MS

    if lease_s is not None and not 0 < lease_s < float("inf"):
        raise InputError(f"found {lease_s:g}", path="--lease-s", expected="a positive number of seconds")
    by = None if names[2] is None else LoadBy(choice(names[2], [each.value for each in LoadBy], "--load-by"))
    backend, engine = load_store(names[0]), load_engine(names[1])
    page = page_tokens or engine.page_tokens.value
    constants = backend_constants(backend, lease_s)
    return Prefix(*tokens, page, chunk_tokens, backend, constants, engine, queue_ms * MS, load_by=by)


def _setting(llm: str, hardware: str, prefill: str, kv: str) -> Setting:
    from pdmodel.cli.cost_kv import degrees
    from pdmodel.cli.sizes import choice
    from pdmodel.costs.context_parallel import CpExchange, check_context_parallel
    from pdmodel.costs.moe import EpExchange
    from pdmodel.errors import InputError
    from pdmodel.hardware.catalog import load_profile
    from pdmodel.hardware.topology import Box
    from pdmodel.llm.catalog import load_llm
    from pdmodel.llm.dtypes import KvDtype
    from pdmodel.llm.kv_cache import kv_bytes_per_token
    from pdmodel.parallelism import Parallelism, place
    from pdmodel.resolve import check_degrees
    from pdmodel.timeline.breakdown import Setting

    arch, box = load_llm(llm), Box(load_profile(hardware), "P")
    kv_dtype = KvDtype(choice(kv, [each.value for each in KvDtype], "--kv-dtype"))
    asked = degrees(prefill, "--prefill", ("tp", "cp", "ep"))
    parallelism = Parallelism(asked["tp"], asked["cp"], asked["ep"])
    try:
        kv_bytes_per_token(arch, kv_dtype)
        if parallelism.cp_size > 1:
            check_context_parallel(arch, CpExchange.ALL_GATHER)
        check_degrees(parallelism, arch, EpExchange.ALL_REDUCE)
        (placement,) = place(parallelism, 1, box.gpu_count, None)
    except InputError as error:
        path = "--kv-dtype" if "KV dtype" in error.message else "--prefill"
        raise type(error)(error.message, path=path, expected=error.expected, nearest=error.nearest) from None
    return Setting(arch, box, placement, kv_dtype=kv_dtype)


def _document(study: PrefixStudy, facts: dict[str, Any], only: str | None, policy: str) -> Any:
    from pdmodel.costs.kv_tiers import Prefetch
    from pdmodel.report.tier_costs import kv_tier_document
    from pdmodel.workload.request import CacheTier

    shown = [CacheTier(only)] if only else list(CacheTier)
    stored = CacheTier.STORE in shown
    tiers = [study.tier(each) for each in shown]
    times = {
        "hbm_s": study.new_s,
        "recompute_s": study.recompute_s,
        "recompute_all_s": study.recompute_all_s,
        "equation_2_bytes_per_s": study.simple_break_even(),
        "lease_s": lease if math.isfinite(lease := study.asked.constants.lease_s) else None,
        "lease_read_s": study.lease_read_s if stored else None,
    }
    prefetches = [study.prefetch(each) for each in Prefetch] if stored else []
    hand_overs = study.hand_over() if stored else None
    return kv_tier_document(facts, times, tiers, prefetches, policy, hand_overs, study.asked.backend)
