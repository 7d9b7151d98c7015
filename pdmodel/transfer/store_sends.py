"""Send flows through a store: put by the prefill side when a chunk is whole, got by the decode side behind that."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.fullest_port import fullest_port
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import merge
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.timeline.clock import phase_times
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.loads import object_bytes, rank_shares
from pdmodel.transfer.marks import ChunkMarks, LayerKv, Steps, layers_kv, release_steps
from pdmodel.transfer.sends import Part, parts_of
from pdmodel.transfer.store import Asking, StoreWays
from pdmodel.workload.request import CacheTier, Request


@dataclass(frozen=True, slots=True)
class _Got:
    """What one decode rank gets of what one prefill rank put. ``put_share``: of these bytes, those put for it alone.

    ``label``: of what is in the store already. ``release`` and ``size_bytes`` of the flow, once they are known.
    """

    source_rank: int
    destination_rank: int
    shares: Mapping[Part, float]
    put_share: float
    put_object_bytes: float
    get_object_bytes: float
    name: str
    label: str = ""
    release: Steps = ()
    size_bytes: float = 0.0


def store_sends(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    ways: StoreWays,
    timeline: Timeline,
) -> list[Flow]:
    """Send flows of a request through the store, one per (rank that puts, rank that gets).

    Objects are pages of all layers, so nothing is put before its chunk ends. What the store has already is got and not
    put: the tokens cached there, and every cached token where new KV is written into it. A byte that several decode
    ranks get is put once: copies of KV heads share their put, a latent is put by rank 0 alone.

    The lease of a flow: from its first release to its last on the clock without KV, and one lease for each batch of the
    last chunk, as each batch asks for its own.
    """
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    start_s = _starts(timeline, lane)
    box, other, gpus = resolved.prefill_box, resolved.decode_box, placement.gpus
    gots = [
        replace(got, label=label, put_share=0.0 if label else got.put_share, size_bytes=size, release=release)
        for got in _gets(resolved, request, kv)
        for label, release in _releases(resolved, request, chunks, _of(kv, got.shares))
        if (size := sum(step for _, step in release))
    ]
    return [
        Flow(
            name=f"{request.name}/send/{box.node}{gpus[got.source_rank]}"
            f">{other.node}{resolved.decode.gpus[got.destination_rank]}{got.name}{got.label}",
            kind=FlowKind.SEND,
            request=request.name,
            lane=lane,
            source=box.port_name("store") if got.label else box.port_name(box.gpu(gpus[got.source_rank])),
            destination=other.port_name(other.gpu(resolved.decode.gpus[got.destination_rank])),
            routes=(_chain(*((put, get) if got.put_share else (get,))),),
            release=got.release,
            due=((chunks[-1].end, got.size_bytes),),
            lease_s=_lease_s(ways, got, start_s),
        )
        for got, put, get in zip(gots, *_routes(resolved, gpus, gots, ways), strict=True)
    ]


def _routes(
    resolved: ResolvedScenario, gpus: Sequence[int], gots: Sequence[_Got], ways: StoreWays
) -> tuple[list[Route], list[Route]]:
    """Ways of the puts and of the gets, with the time of the clients."""
    puts, gets = [], []
    for got in gots:
        source, target, size = gpus[got.source_rank], resolved.decode.gpus[got.destination_rank], got.size_bytes
        put, get = ways.put_and_get(source, target, got.put_share)
        objects = got.put_object_bytes
        puts.append(Asking(resolved.prefill_box, source, put, size, objects, put=True, share=got.put_share))
        gets.append(Asking(resolved.decode_box, target, get, size, got.get_object_bytes, put=False))
    return ways.in_series(puts), ways.in_series(gets)


def _chain(*legs: Route) -> Route:
    """A put and the get that follows it (or the get alone), as one fluid flow."""
    # Each copy engine on the way is one stage of a fluid, not a queue of its own.
    return replace(merge(*legs, name=">store>".join(leg.name for leg in legs)), fifo=False)


def forwarded_s(resolved: ResolvedScenario, request: Request) -> float:
    """What it costs that a batch is put as a whole before it can be got.

    Equation: min(p, g), p and g: time of the last batch of every rank on the fullest port of the puts, and of the gets:
    n equal pieces through two stages take n max(p, g) + min(p, g), of which the fluid has the first.

    Parameters: a scenario whose KV goes through a store, and one of its requests.
    Returns: [s].
    Validity: nothing else on the ports.
    Source: `pdmodel.costs.kv_store.flow_shop_s` with equal pieces.
    """
    ways = StoreWays.of(resolved)
    if ways is None:
        return 0.0
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    *_, (last, _) = request.chunks(resolved.spec.prefill.chunk_tokens)
    tokens = min(last, resolved.page_tokens * ways.store.batch_pages)
    gots = []
    for got in _gets(resolved, request, kv):
        size = tokens * sum(one.bytes_per_token for one in _of(kv, got.shares))
        gots.append(replace(got, size_bytes=size))
    sizes = [got.size_bytes for got in gots]
    legs = _routes(resolved, resolved.prefill[request.instance].gpus, gots, ways)
    return min(fullest_port(zip(routes, sizes, strict=True), ways.capacity).time_s for routes in legs)


def _gets(resolved: ResolvedScenario, request: Request, kv: Sequence[LayerKv]) -> Iterator[_Got]:
    parts = parts_of(resolved, request)
    taken: dict[tuple[int, int | None], float] = defaultdict(float)
    for part in parts:
        for (heads, grows), share in part.shares:
            if grows or not _grows(kv, heads):
                taken[0 if heads is None else part.source_rank, heads] += share
    for part in parts:
        kinds = dict.fromkeys(heads for (heads, _), _ in part.shares)
        for heads in kinds:
            rank = 0 if heads is None else part.source_rank
            held = rank_shares(resolved, kv, rank)
            yield _Got(
                source_rank=rank,
                destination_rank=part.destination_rank,
                shares={key: share for key, share in part.shares if key[0] == heads},
                put_share=min(1.0, held[heads] / taken[rank, heads]),
                put_object_bytes=object_bytes(resolved, kv, {heads: held[heads]}),
                get_object_bytes=object_bytes(resolved, kv, {heads: dict(part.shares).get((heads, True), 0.0)}),
                name="" if len(kinds) == 1 else f"/{'latent' if heads is None else f'{heads}_heads'}",
            )


def _grows(kv: Sequence[LayerKv], heads: int | None) -> bool:
    return any(part.bytes_per_token and part.heads == heads for part in kv)


def _of(kv: Sequence[LayerKv], shares: Mapping[Part, float]) -> list[LayerKv]:
    return [one.scaled(shares.get((one.heads, True), 0.0), shares.get((one.heads, False), 0.0)) for one in kv]


def _releases(
    resolved: ResolvedScenario, request: Request, chunks: Sequence[ChunkMarks], kv: Sequence[LayerKv]
) -> Iterator[tuple[str, Steps]]:
    """What is put and got, and under a label of its own what is only got."""
    cache = resolved.spec.cache
    all_stored = cache.write_policy is not None and cache.write_to is CacheTier.STORE
    stored = request.cached_tokens if all_stored else request.cached_by(CacheTier.STORE)
    tokens = [new for new, _ in request.chunks(resolved.spec.prefill.chunk_tokens)]
    resident = 0 if all_stored else request.cached_by(CacheTier.HBM)
    early, after = resolved.early_send, resolved.release_after
    put = request.cached_tokens - stored
    yield "", release_steps(chunks, tokens, put, kv, after, early_send=early, resident_tokens=resident)
    growing = [replace(one, constant_bytes=0.0) for one in kv]
    none = [0] * len(tokens)
    yield "/stored", release_steps(chunks, none, stored, growing, after, early_send=early, resident_tokens=stored)


def _starts(timeline: Timeline, lane: str) -> list[float]:
    """When each phase of a lane starts on the clock without KV, and when the last one ends [s]."""
    k = next(k for k, one in enumerate(timeline.lanes) if one.name == lane)
    start, end, _ = phase_times(timeline.clock, k, [phase.not_before_s for phase in timeline.lanes[k].phases])
    return [*start.tolist(), float(end[-1])]


def _lease_s(ways: StoreWays, got: _Got, start_s: Sequence[float]) -> float | None:
    if math.isinf(ways.store.lease_s):
        return None
    last, size = got.release[-1]
    objects = math.ceil(size / got.get_object_bytes) if got.get_object_bytes else 1
    batches = math.ceil(objects / ways.store.constants.batch_objects)
    return start_s[last] - start_s[got.release[0][0]] + batches * ways.store.lease_s
