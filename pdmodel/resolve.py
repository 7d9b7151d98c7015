"""From the scenario as written to what it means: names looked up, ranks placed, parts checked against each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pdmodel.costs.collectives.pcie import check_pcie_kernel
from pdmodel.costs.context_parallel import CpExchange, check_context_parallel
from pdmodel.costs.decode_context import EXCHANGE_NOTE, check_decode_context
from pdmodel.costs.kv_layout import Order, Pages, staged_tokens
from pdmodel.costs.moe import EpExchange
from pdmodel.engines.catalog import load_engine
from pdmodel.engines.spec import ContextSenders, EngineSpec, LatentSource, ReleaseAfter, RouteRule
from pdmodel.engines.stores import StoreBackend, load_store
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Implementation
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.kv_cache import is_latent, kv_sequence_bytes_rank
from pdmodel.parallelism import Parallelism, Placement, check_parallelism, place
from pdmodel.resources import resolve
from pdmodel.scenario import RequestSpec, Scenario, Through
from pdmodel.spec import SourceKind
from pdmodel.static_memory import check_memory
from pdmodel.tiers import Store, find_store, loads_by_kernel, tier_notes
from pdmodel.units import GB, GBIT_PER_S
from pdmodel.workload.prices import Prices
from pdmodel.workload.request import CacheTier, Request

PREFILL_NODE, DECODE_NODE = "P", "D"
FP8_BLOCK = 128
MOST_PASSES = 50_000
"""Layers times chunks of all requests: 128k tokens in chunks of 512 through 94 layers are half of it."""


@dataclass(frozen=True, slots=True)
class ResolvedScenario:
    """A scenario whose names are found and whose parts fit.

    ``prefill`` has one placement per instance, ``decode`` is the one decode instance. ``requests`` are in order of
    instance and arrival. ``nics`` are those in use on either side. ``ports`` are those of both boxes and the fabric,
    with the scenario's own guards and NIC rate. ``prefetch_settled``: tokens that a prefetch does not bring in time are
    among the new ones (`pdmodel.transfer.prefetch.settled`).
    """

    spec: Scenario
    file: str
    arch: Architecture
    engine: EngineSpec
    prefill_box: Box
    decode_box: Box
    prefill: tuple[Placement, ...]
    decode: Placement
    requests: tuple[Request, ...]
    nics: tuple[int, ...]
    decode_nics: tuple[int, ...]
    fabric: Port | None
    ports: tuple[Port, ...]
    store: Store | None = None
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    prefetch_settled: bool = False

    @property
    def through(self) -> Through:
        """Directly, or through a store."""
        return through_of(self.spec, self.engine)

    @property
    def release_after(self) -> ReleaseAfter:
        """When KV may leave: the scenario's word, else the engine's; an object of a store is whole after its chunk."""
        given = self.spec.transfer.release_after or self.engine.release_after.value
        whole = self.through is Through.DIRECT or given is ReleaseAfter.PREFILL
        return given if whole else ReleaseAfter.CHUNK

    @property
    def early_send(self) -> bool:
        """Whether cached layers may leave as soon as they are loaded."""
        given = self.spec.transfer.early_send
        return self.engine.early_send.value if given is None else given

    @property
    def route_rule(self) -> RouteRule:
        """How simple policies choose NICs."""
        return self.spec.transfer.route_rule or self.engine.route_rule.value

    @property
    def context_senders(self) -> ContextSenders:
        """Which context-parallel ranks send when all hold the same KV."""
        return self.spec.transfer.context_senders or self.engine.context_senders.value

    @property
    def latent_source(self) -> LatentSource:
        """Which ranks send the latent of MLA."""
        return self.engine.latent_source.value

    @property
    def layout(self) -> Order:
        """What lies next to one another in a page of the prefill side."""
        return self.spec.transfer.layout or Order(self.engine.layout.value.value)

    @property
    def decode_layout(self) -> Order:
        """The same of the decode side."""
        return self.spec.transfer.decode_layout or self.layout

    @property
    def page_tokens(self) -> int:
        """Tokens of a page of the prefill side."""
        return self.spec.transfer.page_tokens or self.engine.page_tokens.value

    @property
    def decode_page_tokens(self) -> int:
        """The same of the decode side."""
        return decode_page_tokens(self.spec, self.engine)

    @property
    def pages(self) -> Pages:
        """Whether the pages of a request lie one behind the other."""
        return self.spec.transfer.pages or Pages.CONSECUTIVE

    @property
    def staging_tokens(self) -> int:
        """Tokens that are packed into one buffer before they are sent; 0: sent from where they lie."""
        given = self.spec.transfer.staging_tokens
        if given is not None:
            return given
        shards = self.spec.prefill.tp_size
        per_token = kv_sequence_bytes_rank(self.arch, 1024, self.spec.kv_dtype, shards) / 1024
        return staged_tokens(self.engine, per_token)

    @property
    def cross_layer(self) -> bool:
        """Whether a page holds all layers."""
        given = self.spec.transfer.cross_layer
        return self.engine.cross_layer.value if given is None else given

    @property
    def loads_by_kernel(self) -> bool:
        """Whether a kernel on SMs copies between host memory and HBM, not the copy engine."""
        return loads_by_kernel(self.spec, self.engine)

    @property
    def posting_threads(self) -> int:
        """Threads of a rank that post one request."""
        return self.spec.transfer.posting_threads or self.engine.posting_threads.value

    @property
    def routes_fixed(self) -> bool:
        """Whether the backend picks the NICs itself, so that a plan may not."""
        return self.engine.routes_fixed.value

    @property
    def lane_names(self) -> tuple[str, ...]:
        """One lane per prefill instance."""
        return tuple(f"prefill{k}" for k in range(len(self.prefill)))

    @property
    def decode_lane_name(self) -> str:
        """The decode instance's lane."""
        return "decode0"

    def requests_of(self, instance: int) -> tuple[Request, ...]:
        """The requests of one instance in order of arrival."""
        return tuple(request for request in self.requests if request.instance == instance)


def read_scenario(name_or_path: str | os.PathLike[str]) -> tuple[Scenario, str]:
    """The scenario as written, and the file that it came from."""
    path = resolve("scenarios", name_or_path)
    return Scenario.load(path), str(path)


def load_scenario(name_or_path: str | os.PathLike[str]) -> ResolvedScenario:
    """A scenario by name or path, looked up and checked; `InputError` for whatever does not fit."""
    return resolve_scenario(*read_scenario(name_or_path))


def resolve_scenario(spec: Scenario, file: str = "") -> ResolvedScenario:
    """Look up every name of ``spec`` and check the parts against each other.

    Raises
    ------
    InputError with ``file``, JSON path, what was found and what is legal.

    """
    with _at(file, "llm"):
        arch = with_weights(load_llm(_beside(spec.llm, file)), spec.weight_dtype)
    with _at(file, "prefill.engine"):
        engine = load_engine(_beside(spec.prefill.engine, file))
    with _at(file, "prefill.hardware"):
        prefill_box = Box(load_profile(_beside(spec.prefill.hardware, file)), PREFILL_NODE)
    with _at(file, "decode.hardware"):
        decode_box = Box(load_profile(_beside(spec.decode.hardware, file)), DECODE_NODE)
    with _at(file, "prefill"):
        prefill = _place_prefill(spec, arch, prefill_box)
    with _at(file, "decode"):
        decode = _place_decode(spec, arch, decode_box)
    for side, all_reduce, box in (
        ("prefill", spec.prefill.all_reduce, prefill_box),
        ("decode", spec.decode.all_reduce, decode_box),
    ):
        with _at(file, f"{side}.all_reduce"):
            check_pcie_kernel(box.profile, Implementation(all_reduce.value))
    with _at(file, "transfer"):
        nics = _nics(spec.transfer.nics, prefill_box, "nics")
        decode_nics = _nics(spec.transfer.decode_nics, decode_box, "decode_nics")
    with _at(file, "requests"):
        requests = _requests(spec)
    through = through_of(spec, engine)
    with _at(file, ""):
        store = find_store(spec, through, engine, lambda name: _backend(name, file))
    with _at(file, "prefill.chunk_tokens"):
        _check_passes(spec, arch, requests)
    with _at(file, "network"):
        fabric = _fabric(spec)
        ports = _ports(spec, prefill_box, decode_box, fabric)
    with _at(file, ""):
        check_memory(spec, arch, (prefill_box, decode_box), requests, decode_page_tokens(spec, engine))
    return ResolvedScenario(
        spec=spec,
        file=file,
        arch=arch,
        engine=engine,
        prefill_box=prefill_box,
        decode_box=decode_box,
        prefill=prefill,
        decode=decode,
        requests=requests,
        nics=nics,
        decode_nics=decode_nics,
        fabric=fabric,
        ports=ports,
        store=store,
        assumed=(*tier_notes(spec, store, through, engine), *([EXCHANGE_NOTE] if spec.decode.dcp_size > 1 else ())),
    )


def through_of(spec: Scenario, engine: EngineSpec) -> Through:
    """Directly, or through a store: the scenario's word, else the engine's."""
    return spec.transfer.through or Through(engine.through.value.value)


def decode_page_tokens(spec: Scenario, engine: EngineSpec) -> int:
    """Tokens of a page of the decode side: its own, the prefill side's, or the engine's."""
    return spec.transfer.decode_page_tokens or spec.transfer.page_tokens or engine.page_tokens.value


def prices(resolved: ResolvedScenario) -> Prices:
    """What a second costs: GPUs of the lane; decode GPUs over running requests per user; GPUs of the decode lane."""
    spec, decode_gpus = resolved.spec, resolved.decode.parallelism.ranks
    user = spec.prices.user_gpus
    if user is None:
        user = decode_gpus / spec.decode.max_running_requests
    lane = spec.prices.prefill_gpus
    decode = spec.prices.decode_gpus
    return Prices(
        lanes={
            name: placement.parallelism.ranks if lane is None else lane
            for name, placement in zip(resolved.lane_names, resolved.prefill, strict=True)
        },
        requests={
            request.name: user if request.user_price_gpus is None else request.user_price_gpus
            for request in resolved.requests
        },
        decode_lanes={resolved.decode_lane_name: decode_gpus if decode is None else decode},
    )


def _beside(name: str, file: str) -> str:
    """What a scenario names: a relative path is looked for beside the scenario, then in the working directory.

    Raises
    ------
    InputError: a path (a slash in it, or ``.json`` at its end) at which there is nothing.

    """
    if "/" not in name and not name.endswith(".json"):
        return name
    path = Path(name).expanduser()
    found = next((place for place in (Path(file).parent / path, path) if place.exists()), None)
    if found is None:
        raise InputError(f"{name}: no such file", expected="a path from the scenario's folder or from here, or a name")
    return str(found)


def _backend(name: str, file: str) -> StoreBackend:
    """The storage backend that a scenario names; what is wrong with the name is told with its key."""
    with _at(file, "store.backend"):
        return load_store(_beside(name, file))


@contextmanager
def _at(file: str, path: str) -> Iterator[None]:
    """Say where in the scenario an error of a lower room belongs; errors inside another file stay as they are."""
    try:
        yield
    except InputError as error:
        if error.file:
            raise
        where = ".".join(part for part in (path, error.path) if part)
        raise type(error)(
            error.message, file=file, path=where or None, expected=error.expected, nearest=error.nearest
        ) from None


def with_weights(arch: Architecture, weights: WeightDtype | None) -> Architecture:
    """The LLM with its weights stored in another way; norms, router, embedding and head stay as they are."""
    if weights is None:
        return arch
    block = (FP8_BLOCK, FP8_BLOCK) if weights is WeightDtype.FP8_BLOCK else None
    dtypes = replace(arch.dtypes, attention=weights, mlp=weights, experts=weights, shared_expert=weights, block=block)
    return replace(arch, dtypes=dtypes)


def _place_prefill(spec: Scenario, arch: Architecture, box: Box) -> tuple[Placement, ...]:
    part = spec.prefill
    parallelism = Parallelism(part.tp_size, part.cp_size, part.ep_size)
    over_cp = part.cp_exchange is CpExchange.ULYSSES
    if over_cp and part.cp_size > 1 and is_latent(arch):
        raise CoverageError(
            "ulysses shards KV heads, and a latent has none", path="cp_exchange", expected="all_gather or ring"
        )
    if part.cp_size > 1:
        with _at("", "cp_size"):
            check_context_parallel(arch, part.cp_exchange)
    check_degrees(parallelism, arch, part.ep_exchange, heads_over_cp=over_cp)
    return place(parallelism, part.instances, box.gpu_count, part.gpus)


def _place_decode(spec: Scenario, arch: Architecture, box: Box) -> Placement:
    part = spec.decode
    parallelism = Parallelism(part.tp_size, 1, part.ep_size, part.dcp_size)
    check_degrees(parallelism, arch, part.ep_exchange, heads_over_cp=False)
    with _at("", "dcp_size"):
        check_decode_context(arch, part.tp_size, part.dcp_size)
    try:
        (placement,) = place(parallelism, 1, box.gpu_count, None if part.gpus is None else (part.gpus,))
    except InputError as error:
        path = "gpus" if error.path == "gpus.0" else error.path
        raise InputError(error.message, path=path, expected=error.expected) from None
    return placement


def check_degrees(
    parallelism: Parallelism, arch: Architecture, exchange: EpExchange, *, heads_over_cp: bool = False
) -> None:
    """Refuse degrees that the LLM cannot be cut by, or that its expert exchange does not fit; key as path."""
    block = arch.dtypes.block[0] if arch.dtypes.block else None
    check_parallelism(parallelism, arch, heads_over_cp=heads_over_cp, weight_block=block)
    if arch.moe is None:
        return
    if exchange is EpExchange.ALL_REDUCE:
        if parallelism.tp_size % parallelism.ep_size:
            raise InputError(
                f"all_reduce sums over a TP group of {parallelism.tp_size}, experts lie on {parallelism.ep_size} ranks",
                path="ep_size",
                expected=f"a divisor of tp_size {parallelism.tp_size}, or another ep_exchange",
            )
    elif parallelism.ep_size != parallelism.ranks:
        raise InputError(
            f"{exchange.value} moves tokens between {parallelism.ranks} ranks, experts lie on {parallelism.ep_size}",
            path="ep_size",
            expected=f"{parallelism.ranks}, or ep_exchange all_reduce",
        )


def _nics(given: Sequence[int] | None, box: Box, key: str) -> tuple[int, ...]:
    if box.nic_count == 0:
        raise InputError(f"{box.profile.name} has no NIC, so KV cannot leave it", path=key, expected="a box with NICs")
    if given is None:
        return tuple(range(box.nic_count))
    for nic in given:
        if not 0 <= nic < box.nic_count:
            raise InputError(f"found NIC {nic}", path=key, expected=f"0 to {box.nic_count - 1} of {box.profile.name}")
    if len(set(given)) != len(given):
        raise InputError("a NIC is listed twice", path=key, expected="each NIC once")
    return tuple(given)


def _requests(spec: Scenario) -> tuple[Request, ...]:
    found: list[Request] = []
    for k, part in enumerate(spec.requests):
        if any(part.name == request.name for request in found):
            raise InputError(f"a second request called {part.name!r}", path=f"{k}.name", expected="each name once")
        if part.instance >= spec.prefill.instances:
            raise InputError(
                f"found instance {part.instance}",
                path=f"{k}.instance",
                expected=f"0 to {spec.prefill.instances - 1} (prefill.instances is {spec.prefill.instances})",
            )
        found.append(
            Request(
                name=part.name,
                arrival_s=part.arrival_ms * 1e-3,
                input_tokens=part.input_tokens,
                cached_tokens=part.cached_tokens,
                cached_in=_tiers(part, k),
                instance=part.instance,
                user_price_gpus=part.user_price_gpus,
            )
        )
    return tuple(sorted(found, key=lambda request: (request.instance, request.arrival_s)))


def _tiers(part: RequestSpec, number: int) -> Mapping[CacheTier, int]:
    """Tokens of the cached prefix by tier, nearest first."""
    if isinstance(part.cached_in, CacheTier):
        return {part.cached_in: part.cached_tokens} if part.cached_tokens else {}
    total = sum(part.cached_in.values())
    if total != part.cached_tokens:
        raise InputError(
            f"the tiers hold {total} tokens, cached_tokens is {part.cached_tokens}",
            path=f"{number}.cached_in",
            expected="tiers that add up to cached_tokens",
        )
    return {tier: part.cached_in[tier] for tier in CacheTier if part.cached_in.get(tier)}


def _check_passes(spec: Scenario, arch: Architecture, requests: Sequence[Request]) -> None:
    """A slip in ``chunk_tokens`` must not fill the memory with phases."""
    chunks = sum(-(-request.new_tokens // (spec.prefill.chunk_tokens or request.new_tokens)) for request in requests)
    if chunks * arch.layers > MOST_PASSES:
        raise InputError(
            f"{chunks} chunks of {arch.layers} layers",
            expected=f"at most {MOST_PASSES} passes through a layer in all: larger chunks, or fewer tokens",
        )


def _fabric(spec: Scenario) -> Port | None:
    given = spec.network.fabric_gbit_per_s
    if given is None:
        return None
    return Port(
        "fabric",
        PortKind.FABRIC,
        given * GBIT_PER_S,
        source=SourceKind.ASSUMED,
        note="the scenario's fabric_gbit_per_s",
    )


def _ports(spec: Scenario, prefill_box: Box, decode_box: Box, fabric: Port | None) -> tuple[Port, ...]:
    found = []
    for box in (prefill_box, decode_box):
        share = _nic_share(spec, box)
        for port in box.ports:
            if share is not None and port.kind in (PortKind.NIC_TX, PortKind.NIC_RX):
                port = replace(  # noqa: PLW2901
                    port,
                    capacity_bytes_per_s=port.capacity_bytes_per_s * share,
                    guard_bytes_per_s=port.guard_bytes_per_s * share,
                    source=SourceKind.ASSUMED,
                    note="the scenario's nic_gbit_per_s",
                )
            found.append(port)
    if fabric is not None:
        found.append(fabric)
    guards = spec.guards_gb_per_s
    return tuple(
        replace(port, guard_bytes_per_s=guards[port.kind] * GB) if port.kind in guards else port for port in found
    )


def _nic_share(spec: Scenario, box: Box) -> float | None:
    given, nics = spec.network.nic_gbit_per_s, box.profile.nics
    if given is None or nics is None:
        return None
    line = nics.line_rate_gbit_per_s.value
    if given > line:
        raise InputError(
            f"found {given:g}", path="nic_gbit_per_s", expected=f"at most the {line:g} Gbit/s of {box.profile.name}"
        )
    return given / line
