"""Send flows: who sends what to whom from prefill to decode, released as the engine releases it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.kv_layout import Cache, caches, pairs, staging_s
from pdmodel.costs.nic_choice import Way
from pdmodel.errors import CoverageError
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.layout import exchange_of, source_layout
from pdmodel.transfer.marks import ChunkMarks, LayerKv, Steps, layers_kv, release_steps
from pdmodel.transfer.nics import Routes
from pdmodel.transfer.posting import Pieces, Posting
from pdmodel.units import GB
from pdmodel.workload.request import CacheTier, Request

__all__ = ["Part", "Parts", "parts_of", "sends", "source_layout", "splits", "staging_latency_s"]

Part = tuple[int | None, bool]
"""Heads that something is split by (None: latents), and whether every token adds to it."""


def splits(kv: Sequence[LayerKv]) -> tuple[int | None, ...]:
    """The ways in which layers that keep something are split over ranks, each once; None: not at all."""
    return tuple(dict.fromkeys(part.heads for part in kv if part.bytes_per_token or part.constant_bytes))


@dataclass(frozen=True, slots=True)
class Parts:
    """What one rank sends to another: its share of each part of the KV [-], and how it is cut."""

    source_rank: int
    destination_rank: int
    shares: tuple[tuple[Part, float], ...]
    pieces: Pieces


def parts_of(resolved: ResolvedScenario, request: Request) -> tuple[Parts, ...]:
    """Every (source rank, destination rank) with traffic of a request, from `pdmodel.costs.kv_layout`."""
    exchange = exchange_of(resolved, request)
    kept: dict[Part, list[Cache]] = defaultdict(list)
    for cache in caches(resolved.arch, request.input_tokens, resolved.spec.kv_dtype):
        kept[cache.heads, cache.grows].append(cache)
    shares: dict[tuple[int, int], list[tuple[Part, float]]] = defaultdict(list)
    pieces: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for part, group in kept.items():
        total = sum(cache.size_bytes for cache in group)
        try:
            found = pairs(exchange, group)
        except CoverageError as error:
            raise error.located(path="transfer.cross_layer") from None
        for pair in found:
            key = pair.source_rank, pair.destination_rank
            shares[key].append((part, pair.size_bytes / total))
            pieces[key] += pair.pieces
    order = sorted(shares, key=lambda key: (key[1], key[0]))
    return tuple(Parts(*key, tuple(shares[key]), Pieces(tuple(pieces[key]))) for key in order)


def staging_latency_s(resolved: ResolvedScenario, request: Request) -> float:
    """What packing the first chunk and unpacking the last add after the bytes [s]; 0 where nothing is packed."""
    if not resolved.staging_tokens:
        return 0.0
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for part in parts_of(resolved, request):
        sent[part.source_rank] += part.pieces.size_bytes
        received[part.destination_rank] += part.pieces.size_bytes
    chunks = -(-request.input_tokens // resolved.staging_tokens)
    memory = min(box.profile.gpu.hbm_gb_per_s.value for box in (resolved.prefill_box, resolved.decode_box)) * GB
    return staging_s(max(sent.values()), max(received.values()), chunks, memory)


def sends(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    routes: Routes,
    posting: Posting,
) -> list[Flow]:
    """Send flows of a request, one per (source rank, destination rank).

    Where the backend picks the NICs itself, one per NIC too, so that no plan moves bytes from one to another.
    """
    tokens = [new for new, _ in request.chunks(resolved.spec.prefill.chunk_tokens)]
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    curves: dict[tuple[tuple[Part, float], ...], Steps] = {}
    found: list[Flow] = []
    for part in parts_of(resolved, request):
        if part.shares not in curves:
            shares = dict(part.shares)
            curves[part.shares] = release_steps(
                chunks,
                tokens,
                request.cached_tokens,
                [one.scaled(shares.get((one.heads, True), 0.0), shares.get((one.heads, False), 0.0)) for one in kv],
                resolved.release_after,
                early_send=resolved.early_send,
                resident_tokens=request.cached_by(CacheTier.HBM),
            )
        release = curves[part.shares]
        source, target = placement.gpus[part.source_rank], resolved.decode.gpus[part.destination_rank]
        ways = routes.between(source, target)
        flow = Flow(
            name=f"{request.name}/send/{resolved.prefill_box.node}{source}>{resolved.decode_box.node}{target}",
            kind=FlowKind.SEND,
            request=request.name,
            lane=lane,
            source=resolved.prefill_box.port_name(resolved.prefill_box.gpu(source)),
            destination=resolved.decode_box.port_name(resolved.decode_box.gpu(target)),
            routes=tuple(posting.charged(way.route, source, target, part.pieces) for way in ways),
            release=release,
            due=((chunks[-1].end, sum(size for _, size in release)),),
            split=tuple(way.share for way in ways),
        )
        if flow.volume_bytes > 0:
            found += _by_route(flow, ways) if resolved.routes_fixed and len(ways) > 1 else [flow]
    return found


def _by_route(flow: Flow, ways: Sequence[Way]) -> Iterator[Flow]:
    """The flow cut into one per route, by its split."""
    for way, route, share in zip(ways, flow.routes, flow.split, strict=True):
        if share > 0:
            yield replace(
                flow,
                name=f"{flow.name}/nic{way.nic}>{way.peer}",
                routes=(route,),
                release=tuple((k, size * share) for k, size in flow.release),
                due=tuple((k, size * share) for k, size in flow.due),
                split=(1.0,),
            )
