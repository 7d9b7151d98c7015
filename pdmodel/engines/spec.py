"""What a serving engine does with KV: when it sends, in which pieces, from which ranks, and which knobs it has.

A *backend* (the transfer engine) cuts and posts what it is given and picks NICs; an *engine* (the serving engine) says
what it is given, when, and in which layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pdmodel.errors import InputError
from pdmodel.resources import resolve
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


class KvPath(StrEnum):
    """Direct: from GPU to GPU. Store: put into a KV store by the prefill side, and got by the decode side."""

    DIRECT = "direct"
    STORE = "store"


class Preallocate(StrEnum):
    """When the decode side takes memory for a request: before its prefill starts, when its transfer starts, never."""

    START = "start"
    TRANSFER = "transfer"
    NONE = "none"


class LoadBy(StrEnum):
    """Who copies between host memory and HBM: the copy engine, or a kernel on SMs."""

    COPY_ENGINE = "copy_engine"
    KERNEL = "kernel"


class PageOrder(StrEnum):
    """Order inside a page of one layer: nhd tokens outside, heads inside; hnd the other way round."""

    NHD = "nhd"
    HND = "hnd"


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
    ORDER = "order"
    ADMISSION = "admission"
    LOADS = "loads"
    PREFETCH = "prefetch"
    WRITE_POLICY = "write_policy"
    COLLECTIVE = "collective"
    PCIE = "pcie"


class Sets(StrEnum):
    """The fact that a knob sets, where a plan may want another value of it."""

    RELEASE_AFTER = "release_after"
    EARLY_SEND = "early_send"


class EngineSource(Spec):
    """Where facts about an engine were read."""

    kind: SourceKind
    ref: str


class Fact(Spec, Generic[Value]):
    """A value and the id of its source; ``note``: another reading, where sources disagree."""

    value: Value
    source: str
    note: str = ""


class Knob(Spec):
    """One thing that can be set. ``side``: P, D or both; ``process``: whose setting it is; ``sets``: which fact."""

    name: str
    unit: str
    default: str
    side: Literal["P", "D", "both"]
    process: Literal["engine", "transfer_engine", "store", "collectives", "nic", "host"]
    maps_to: Steers
    effect: str
    source: str
    note: str = ""
    sets: Sets | None = None


class Posting(Spec):
    """How a transfer engine cuts and posts: what is out of its hands once submitted, and how long it takes.

    ``request_overhead_us``: t0 of one request. ``descriptor_us``: of one thread. A rest of up to ``slice_bytes`` +
    ``fragment_bytes`` goes out whole. ``messages_per_s``: what one queue pair takes. Bytes in flight per NIC pair are
    at most slice * work requests * queue pairs. ``detection_us``: to see that a burst has ended.
    """

    request_overhead_us: Fact[NonNegativeFloat]
    descriptor_us: Fact[NonNegativeFloat]
    slice_bytes: Fact[PositiveInt]
    fragment_bytes: Fact[NonNegativeInt]
    work_requests: Fact[PositiveInt]
    queue_pairs: Fact[PositiveInt]
    messages_per_s: Fact[PositiveFloat]
    detection_us: Fact[NonNegativeFloat]

    @property
    def in_flight_bytes(self) -> int:
        """Bytes per NIC pair that cannot be recalled."""
        return self.slice_bytes.value * self.work_requests.value * self.queue_pairs.value

    @property
    def nic_messages_per_s(self) -> float:
        """Work requests that a NIC takes from one peer."""
        return self.queue_pairs.value * self.messages_per_s.value


class Priorities(Spec):
    """Classes that a transfer engine keeps among its own transfers; it sees no others, collectives among them.

    Strict order of ``levels``; what waits for ``promotion_us`` moves up one. ``slot_us``: processes of one host take
    turns by level. ``deadlines``: the earliest deadline first, inside a level.
    """

    levels: Fact[PositiveInt]
    promotion_us: Fact[NonNegativeFloat]
    slot_us: Fact[NonNegativeFloat]
    deadlines: Fact[bool]


class TransferBackend(Spec):
    """A transfer engine. ``routes_fixed``: it picks the NIC itself, so that a plan may not."""

    schema_version: Literal[1]
    name: str
    summary: str
    found_in: tuple[str, ...]
    sources: dict[str, EngineSource]
    posting: Posting
    route_rule: Fact[RouteRule]
    routes_fixed: Fact[bool]
    priorities: Priorities | None = None
    knobs: tuple[Knob, ...] = ()

    @model_validator(mode="after")
    def _sources_exist(self) -> Self:
        _check_sources(_facts(self), self.knobs, self.sources)
        return self


class Overrides(Spec):
    """Facts of the backend that differ in this engine."""

    route_rule: Fact[RouteRule] | None = None
    request_overhead_us: Fact[NonNegativeFloat] | None = None
    detection_us: Fact[NonNegativeFloat] | None = None


class Control(Spec):
    """Messages around a transfer, which no schedule changes.

    ``handshake_us``: before the prefill, which hides it. ``hand_over_us``: after the last byte, until the decode side
    may schedule the request. ``sequential_receive``: a decode rank takes from one prefill rank after the other.
    """

    handshake_us: Fact[NonNegativeFloat]
    hand_over_us: Fact[NonNegativeFloat]
    sequential_receive: Fact[bool]


def _by_name(given: object) -> object:
    """A backend that is named is read from its file."""
    if not isinstance(given, str):
        return given
    try:
        path = resolve("backends", given)
    except InputError as error:  # of this key in the engine's file; what is wrong inside a backend is of its own file
        if error.file is None:
            raise error.located(path="backend") from None
        expected = "a path from the engine's folder or from here, or a name"
        raise InputError(f"{given}: {error.message}", path="backend", expected=expected) from None
    return TransferBackend.load(path)


class EngineSpec(Spec):
    """One serving engine; its ``backend`` is the name or path of a transfer engine, or written out.

    ``parallel_transfers``: requests of an instance that are sent to one decode instance at the same time.
    ``posting_threads``: of one request.
    ``staging_tokens``, ``staging_bytes``: packed into a buffer of this size before the wire; both 0: not packed.
    ``reserved_tokens``: memory that the decode side keeps free for each running request.
    ``load_by``: what copies between host memory and HBM. ``page_objects``: that its connector to a store makes of a
    page of a rank with KV heads, where they are not as many as the storage backend says.
    """

    schema_version: Literal[1]
    name: str
    summary: str
    found_in: tuple[str, ...]
    sources: dict[str, EngineSource]
    backend: Annotated[TransferBackend, BeforeValidator(_by_name, json_schema_input_type=str | TransferBackend)]
    overrides: Overrides = Overrides()
    mode: Fact[Mode]
    through: Fact[KvPath]
    release_after: Fact[ReleaseAfter]
    piece: Fact[Piece]
    early_send: Fact[bool]
    load_ahead: Fact[bool]
    load_by: Fact[LoadBy]
    latent_source: Fact[LatentSource]
    context_senders: Fact[ContextSenders]
    parallel_transfers: Fact[PositiveInt]
    posting_threads: Fact[PositiveInt]
    page_tokens: Fact[PositiveInt]
    layout: Fact[PageOrder]
    cross_layer: Fact[bool]
    staging_tokens: Fact[NonNegativeInt]
    staging_bytes: Fact[NonNegativeInt]
    preallocate: Fact[Preallocate]
    reserved_tokens: Fact[NonNegativeInt]
    control: Control
    lease_s: Fact[NonNegativeInt] | None = None
    page_objects: Fact[PositiveInt] | None = None
    knobs: tuple[Knob, ...] = ()

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        _check_sources(_facts(self), self.knobs, self.sources)
        if self.staging_tokens.value and self.staging_bytes.value:
            message = "staging_tokens and staging_bytes are both given: a buffer has one size"
            raise ValueError(message)
        ours, theirs = {knob.name for knob in self.knobs}, {knob.name for knob in self.backend.knobs}
        if twice := sorted(ours & theirs):
            message = f"the knob {twice[0]!r} is the backend's ({self.backend.name}) already"
            raise ValueError(message)
        return self

    @cached_property
    def posting(self) -> Posting:
        """How the backend posts under this engine."""
        given = {
            name: fact
            for name in ("request_overhead_us", "detection_us")
            if (fact := getattr(self.overrides, name)) is not None
        }
        return self.backend.posting.model_copy(update=given)

    @property
    def route_rule(self) -> Fact[RouteRule]:
        """Which NICs simple policies use."""
        return self.overrides.route_rule or self.backend.route_rule

    @property
    def routes_fixed(self) -> Fact[bool]:
        """Whether a plan has to leave the choice of NICs to the backend."""
        return self.backend.routes_fixed

    @property
    def all_knobs(self) -> tuple[Knob, ...]:
        """Knobs of the engine and of its backend."""
        return (*self.knobs, *self.backend.knobs)

    @property
    def facts(self) -> Mapping[str, tuple[Fact[Any], EngineSource]]:
        """Every fact by its name (``posting.slice_bytes``), with its source; the engine's word before the backend's."""
        found = {name: (fact, self.backend.sources[fact.source]) for name, fact in _facts(self.backend)}
        for name, fact in _facts(self):
            short = name.removeprefix("overrides.")
            key = f"posting.{short}" if f"posting.{short}" in found else short
            found[key] = (fact, self.sources[fact.source])
        return found


def _facts(part: Spec, prefix: str = "") -> Iterable[tuple[str, Fact[Any]]]:
    """Facts of a spec and of the blocks inside it, but for those of another file."""
    for name in type(part).model_fields:  # a cached property is no field, but would be among iter(part)
        value = getattr(part, name)
        if isinstance(value, Fact):
            yield prefix + name, value
        elif isinstance(value, Posting | Priorities | Overrides | Control):
            yield from _facts(value, f"{prefix}{name}.")


def _check_sources(
    facts: Iterable[tuple[str, Fact[Any]]], knobs: Iterable[Knob], sources: Mapping[str, EngineSource]
) -> None:
    named = [(name, fact.source) for name, fact in facts] + [(f"knobs.{knob.name}", knob.source) for knob in knobs]
    for name, source in named:
        if source not in sources:
            message = f"{name} names the source {source!r}, which is not in sources"
            raise ValueError(message)


class HostKnobs(Spec):
    """Knobs of NIC, fabric, PCIe and collectives, whatever the engine."""

    schema_version: Literal[1]
    sources: dict[str, EngineSource]
    knobs: tuple[Knob, ...]
