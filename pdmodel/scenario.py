"""What the user asks: who serves which LLM on what, which requests come, and how KV travels.

This is the file as written; `pdmodel.resolve` looks every name up and checks that the parts fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.kv_layout import Order, Pages, Split
from pdmodel.costs.kv_tiers import Prefetch as Prefetch  # noqa: PLC0414 (a word of the scenario)
from pdmodel.costs.moe import EpExchange
from pdmodel.engines.spec import ContextSenders, LoadBy, ReleaseAfter, RouteRule
from pdmodel.hardware.ports import PortKind
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.operators import CpLayout
from pdmodel.spec import Spec
from pdmodel.workload.request import CacheTier

Name = Annotated[str, Field(min_length=1, pattern=r"^[^/\s][^/]*$")]
MOST_TOKENS = 10**9
"""More than any context; a slip of the keyboard is refused by its own key, before it is multiplied."""
Tokens = Annotated[PositiveInt, Field(le=MOST_TOKENS)]
Count = Annotated[PositiveInt, Field(le=10**6)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Gpus = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)]


def _is_count(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= MOST_TOKENS and value == int(value)


class AllReduce(StrEnum):
    """Which all-reduce runs. vLLM and SGLang switch their own off on more than two PCIe-only GPUs.

    ``pcie_push``, ``pcie_pull``: kernels made for those, by writes to or loads from peers; their times are assumed.
    """

    NCCL = "nccl"
    VLLM_CUSTOM = "vllm_custom"
    PCIE_PUSH = "pcie_push"
    PCIE_PULL = "pcie_pull"


class FirstTokenBy(StrEnum):
    """Who returns the first token: the prefill side, or the decode side after one step more."""

    PREFILL = "prefill"
    DECODE = "decode"


class PrefillSpec(Spec):
    """The prefill node: one box with ``instances`` instances, each a lane.

    ``gpus``: for each instance its GPUs in rank order (rank = cp_rank * tp_size + tp_rank), which is also ring order;
    in order when left out. ``chunk_tokens``: tokens per chunk; the whole prompt in one chunk when left out.
    ``memory_fraction``: of a GPU's memory, for weights and KV; 0.9 when left out.
    """

    hardware: str
    engine: str
    tp_size: Count
    cp_size: Count = 1
    ep_size: Count = 1
    instances: Count = 1
    gpus: tuple[Gpus, ...] | None = None
    chunk_tokens: Tokens | None = None
    memory_fraction: Fraction | None = None
    all_reduce: AllReduce = AllReduce.NCCL
    cp_exchange: CpExchange = CpExchange.ALL_GATHER
    cp_split: CpLayout = CpLayout.ZIGZAG
    ep_exchange: EpExchange = EpExchange.ALL_REDUCE


class DecodeSpec(Spec):
    """The decode node: one box with one instance. One step serves ``max_running_requests`` of ``context_tokens``.

    ``dcp_size``: TP ranks that share the tokens of the KV heads that each would keep, by ``dcp_split``.
    """

    hardware: str
    tp_size: Count
    ep_size: Count = 1
    dcp_size: Count = 1
    dcp_split: Literal[Split.TOKEN_CYCLIC, Split.PAGE_CYCLIC] = Split.TOKEN_CYCLIC
    gpus: Gpus | None = None
    max_running_requests: Count = 32
    context_tokens: Tokens = 8192
    memory_fraction: Fraction | None = None
    all_reduce: AllReduce = AllReduce.NCCL
    ep_exchange: EpExchange = EpExchange.ALL_REDUCE


class NetworkSpec(Spec):
    """Between the boxes. ``fabric_gbit_per_s``: what the fabric carries in all (non-blocking when left out).

    ``nic_gbit_per_s``: a slower line rate of every NIC than the profile's; what is achieved of it stays in proportion.
    """

    fabric_gbit_per_s: PositiveFloat | None = None
    nic_gbit_per_s: PositiveFloat | None = None


class RequestSpec(Spec):
    """One request. ``cached_tokens`` of ``input_tokens`` lie in ``cached_in``: one tier, or tokens by tier.

    ``user_price_gpus``: what its user's waiting costs [GPU·s per s]; decode GPUs / max_running_requests if left out.
    """

    name: Name
    arrival_ms: NonNegativeFloat = 0.0
    input_tokens: Tokens
    cached_tokens: NonNegativeInt = 0
    cached_in: CacheTier | dict[CacheTier, NonNegativeInt] = CacheTier.HOST_MEMORY
    instance: NonNegativeInt = 0
    user_price_gpus: NonNegativeFloat | None = None

    @field_validator("cached_in", mode="before")
    @classmethod
    def _tier_or_tokens_of_each(cls, found: Any) -> Any:
        tiers = [tier.value for tier in CacheTier]
        wrong = ""
        if isinstance(found, Mapping):
            bad = [f"{tier}: {size}" for tier, size in found.items() if tier not in tiers or not _is_count(size)]
            wrong = f"found {bad[0]!r}; " if bad else ""
            fine = not bad
        else:
            fine = found in tiers
        if not fine:
            message = f'{wrong}expected one of {", ".join(tiers)}, or tokens of each, such as {{"host_memory": 8192}}'
            raise ValueError(message)
        return found

    @field_validator("cached_tokens")
    @classmethod
    def _something_is_new(cls, cached: int, others: ValidationInfo) -> int:
        prompt = others.data.get("input_tokens")
        if prompt is not None and cached >= prompt:
            message = f"at least one of the {prompt} input tokens must be new"
            raise ValueError(message)
        return cached


class Through(StrEnum):
    """Direct: from GPU to GPU. Store: put into a KV store, and got from there."""

    DIRECT = "direct"
    STORE = "store"


class StorePlace(StrEnum):
    """Where the store keeps objects: memory of the prefill node, of the decode node, or of other nodes."""

    PREFILL_HOST = "prefill_host"
    DECODE_HOST = "decode_host"
    REMOTE = "remote"


class StoreSpec(Spec):
    """The KV store (L3): a shipped backend or a path to one, where its objects lie, how many copies a put makes."""

    backend: str = "mooncake_store"
    place: StorePlace = StorePlace.REMOTE
    replicas: Count | None = None
    lease_s: PositiveFloat | None = None


class WritePolicy(StrEnum):
    """When new KV is copied to host memory: when its prefill ends, on its second use, or when it is evicted."""

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class Reuse(StrEnum):
    """Load all that is cached, or as much of it as is worth loading (the rest is computed again)."""

    LOAD = "load"
    BEST = "best"


class CacheSpec(Spec):
    """The tiers of the prefix cache. ``write_policy`` None: new KV is not written anywhere.

    ``write_to``: the last tier that new KV is copied to. ``host_memory_gib``: of all sockets together, for KV.
    ``load_by``: who copies between host memory and HBM, where it is not as the engine does.
    """

    prefetch: Prefetch = Prefetch.TIMEOUT
    write_policy: WritePolicy | None = None
    write_to: Literal[CacheTier.HOST_MEMORY, CacheTier.STORE] = CacheTier.HOST_MEMORY
    host_memory_gib: PositiveFloat | None = None
    load_by: LoadBy | None = None
    reuse: Reuse = Reuse.LOAD


class TransferSpec(Spec):
    """How KV travels; what is left out is what the engine does.

    ``nics``, ``decode_nics``: NICs in use on either side (all when left out). ``alternative_nics``: further NICs of the
    source that a plan may choose; simple policies follow ``route_rule``. ``layout``, ``page_tokens``: of both sides,
    unless the decode side has its own. ``pages``: those of a request lie one behind the other (so where left out), or
    none touch. ``staging_tokens``: packed into a buffer of so many tokens before they are sent; 0: not packed.
    ``cross_layer``: a page holds all layers. ``posting_threads``: that post one request.
    """

    through: Through | None = None
    layout: Order | None = None
    decode_layout: Order | None = None
    page_tokens: Count | None = None
    decode_page_tokens: Count | None = None
    pages: Pages | None = None
    staging_tokens: Annotated[NonNegativeInt, Field(le=MOST_TOKENS)] | None = None
    cross_layer: bool | None = None
    posting_threads: Count | None = None

    release_after: ReleaseAfter | None = None
    early_send: bool | None = None
    route_rule: RouteRule | None = None
    context_senders: ContextSenders | None = None
    nics: Gpus | None = None
    decode_nics: Gpus | None = None
    alternative_nics: NonNegativeInt = 1


class PriceSpec(Spec):
    """What a second costs [GPU·s per s], where it is not the number of GPUs that lose it."""

    prefill_gpus: NonNegativeFloat | None = None
    decode_gpus: NonNegativeFloat | None = None
    user_gpus: NonNegativeFloat | None = None


class SharingSpec(Spec):
    """How the ports share, where it was measured (else a band is replayed).

    ``kv_weight``: KV's weight against critical traffic. ``interference``: speed lost per share of KV below saturation.
    """

    kv_weight: Annotated[float, Field(ge=1e-6, le=1e6)] = 1.0
    interference: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Scenario(Spec):
    """The whole file. ``guards_gb_per_s``: guard by kind of port instead of the profile's default."""

    schema_version: Literal[1]
    name: Name
    purpose: str = ""
    expected_verdict: Literal["infeasible", "no_shared_port", "headroom", "contended", "uncertain"] | None = None
    llm: str
    weight_dtype: WeightDtype | None = None
    kv_dtype: KvDtype = KvDtype.BF16
    prefill: PrefillSpec
    decode: DecodeSpec
    network: NetworkSpec = NetworkSpec()
    requests: Annotated[tuple[RequestSpec, ...], Field(min_length=1)]
    transfer: TransferSpec = TransferSpec()
    cache: CacheSpec = CacheSpec()
    store: StoreSpec | None = None
    prices: PriceSpec = PriceSpec()
    sharing: SharingSpec | None = None
    guards_gb_per_s: dict[PortKind, NonNegativeFloat] = Field(default_factory=dict)
    kv_slack: NonNegativeFloat = 0.05
    first_token_by: FirstTokenBy = FirstTokenBy.PREFILL
