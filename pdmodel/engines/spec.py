"""What a serving engine does with KV: when it sends, in which pieces, from which ranks, and which knobs it has."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, Literal, Self, TypeVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from pdmodel.spec import SourceKind, Spec

Value = TypeVar("Value")


class Mode(StrEnum):
    """Who drives a transfer: the prefill side writes (push) or the decode side reads (pull). Ports are the same."""

    PUSH = "push"
    PULL = "pull"


class ReleaseAfter(StrEnum):
    """The event after which the KV that it made may be sent, earliest first."""

    KV_WRITE = "kv_write"
    ATTENTION = "attention"
    LAYER = "layer"
    CHUNK = "chunk"
    PREFILL = "prefill"


class Piece(StrEnum):
    """What the engine submits in one go: the least that it can hold back."""

    LAYER = "layer"
    CHUNK = "chunk"
    REQUEST = "request"


class RouteRule(StrEnum):
    """Which NICs a rank uses.

    nearest: one of the nearest. stripe: equal shares of its bytes on every NIC. random, round_robin: equal shares on
    all that are equally near (the same as a fluid: a slice that is given to a NIC stays there, so the slowest path
    holds up the sum). weighted: shares in proportion to what each path carries. rail: the NIC of the same index on
    both sides.
    """

    NEAREST = "nearest"
    STRIPE = "stripe"
    RANDOM = "random"
    ROUND_ROBIN = "round_robin"
    WEIGHTED = "weighted"
    RAIL = "rail"


class LatentSource(StrEnum):
    """Who sends the latent of MLA, which every prefill rank holds: one rank to each destination, or all in shards."""

    ONE_RANK = "one_rank"
    TOKEN_SHARDS = "token_shards"


class ContextSenders(StrEnum):
    """Who sends when every context-parallel rank holds all KV: rank 0 alone, or each an equal share."""

    FIRST = "first"
    ALL = "all"


class Steers(StrEnum):
    """What of a plan a knob acts on."""

    RELEASE = "release"
    PIECE_SIZE = "piece_size"
    PARALLEL_TRANSFERS = "parallel_transfers"
    IN_FLIGHT_BYTES = "in_flight_bytes"
    NIC_LIST = "nic_list"
    NIC_CLASS = "nic_class"
    RATE_CAP = "rate_cap"
    CLASS_WEIGHT = "class_weight"
    SENDERS = "senders"
    LAYOUT = "layout"
    LEASE = "lease"
    COLLECTIVE = "collective"
    PCIE = "pcie"


class EngineSource(Spec):
    """Where facts about an engine were read."""

    kind: SourceKind
    ref: str


class Fact(Spec, Generic[Value]):
    """A value and the id of its source."""

    value: Value
    source: str


class Knob(Spec):
    """One thing that can be set. ``side``: P, D or both; ``process``: engine, transfer engine, NIC, host."""

    name: str
    unit: str
    default: str
    side: Literal["P", "D", "both"]
    process: Literal["engine", "transfer_engine", "collectives", "nic", "host"]
    maps_to: Steers
    effect: str
    source: str


class Posting(Spec):
    """How the transfer engine cuts and posts: what is out of the engine's hands once submitted, and how long it takes.

    Bytes in flight per NIC pair are at most slice * work requests * queue pairs.
    """

    request_overhead_us: Fact[NonNegativeFloat]
    descriptor_us: Fact[NonNegativeFloat]
    slice_bytes: Fact[PositiveInt]
    work_requests: Fact[PositiveInt]
    queue_pairs: Fact[PositiveInt]
    detection_us: Fact[NonNegativeFloat]

    @property
    def in_flight_bytes(self) -> int:
        """Bytes per NIC pair that cannot be recalled."""
        return self.slice_bytes.value * self.work_requests.value * self.queue_pairs.value


class EngineSpec(Spec):
    """One engine with its transfer backend."""

    schema_version: Literal[1]
    name: str
    summary: str
    found_in: tuple[str, ...]
    sources: dict[str, EngineSource]
    mode: Fact[Mode]
    release_after: Fact[ReleaseAfter]
    early_send: Fact[bool]
    load_ahead: Fact[bool]
    route_rule: Fact[RouteRule]
    latent_source: Fact[LatentSource]
    context_senders: Fact[ContextSenders]
    threads: Fact[PositiveInt]
    page_tokens: Fact[PositiveInt]
    piece: Fact[Piece]
    lease_s: Fact[NonNegativeInt] | None = None
    posting: Posting
    knobs: tuple[Knob, ...] = ()

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        named = [(name, fact.source) for name, fact in self if isinstance(fact, Fact)]
        named += [(f"posting.{name}", fact.source) for name, fact in self.posting if isinstance(fact, Fact)]
        named += [(f"knobs.{knob.name}", knob.source) for knob in self.knobs]
        for name, source in named:
            if source not in self.sources:
                message = f"{name} names the source {source!r}, which is not in sources"
                raise ValueError(message)
        return self


class HostKnobs(Spec):
    """Knobs of NIC, fabric, PCIe and collectives, whatever the engine."""

    schema_version: Literal[1]
    sources: dict[str, EngineSource]
    knobs: tuple[Knob, ...]
