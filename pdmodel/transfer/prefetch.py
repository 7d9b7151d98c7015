"""Prefetches: from the store into host memory before a request starts, and how much of it a request waits for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pdmodel.costs.fullest_port import fullest_port
from pdmodel.costs.kv_tiers import PREFETCH_THRESHOLD_TOKENS, Fetched, fetched_tokens
from pdmodel.costs.kv_tiers import Prefetch as Policy
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Prefetch
from pdmodel.timeline.build import timeline
from pdmodel.timeline.clock import phase_times
from pdmodel.timeline.phases import Clock, Lane
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.loads import object_bytes, prefix_bytes, rank_shares
from pdmodel.transfer.marks import ChunkMarks, LayerKv, layers_kv
from pdmodel.transfer.store import Asking, StoreWays
from pdmodel.workload.request import CacheTier, Request


def prefetches(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    ways: StoreWays | None,
) -> list[Flow]:
    """Prefetch flows of a request, one per prefill rank, which reads what it holds into its own host memory.

    Released when the request arrives, while others still run; due at the phase before its first chunk. Every rank reads
    the latent of MLA, as its host pool is its own: only writes are made once. The lease: every batch of pages asks for
    one of its own, so at an even rate the whole may take as many leases as it has batches.
    Source: SGLang 0.5.23 (HiCache), managers/cache_controller.py: prefetch_thread_func, backup_skip.
    """
    tokens = request.cached_by(CacheTier.STORE)
    if not tokens or ways is None:
        return []
    box = resolved.prefill_box
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    lease_s = ways.store.lease_s * math.ceil(tokens / (resolved.page_tokens * ways.store.batch_pages))
    asked = _asked(resolved, placement, kv, ways, tokens)
    return [
        Flow(
            name=f"{request.name}/prefetch/{box.node}{one.gpu}",
            kind=FlowKind.LOAD,
            request=request.name,
            lane=lane,
            source=box.port_name("store"),
            destination=box.port_name(box.socket(box.gpu(one.gpu)), "host_memory"),
            routes=(route,),
            release=((0, one.size_bytes),),
            due=((chunks[0].start - 1, one.size_bytes),),
            lease_s=None if math.isinf(lease_s) else lease_s,
        )
        for one, route in zip(asked, ways.in_series(asked), strict=True)
    ]


def _asked(
    resolved: ResolvedScenario, placement: Placement, kv: Sequence[LayerKv], ways: StoreWays, tokens: int
) -> list[Asking]:
    """What each rank fetches of the last ``tokens`` of a prefix."""
    found = []
    for rank, gpu in enumerate(placement.gpus):
        shares = rank_shares(resolved, kv, rank)
        size = prefix_bytes(kv, shares, tokens)
        if size:
            objects = object_bytes(resolved, kv, shares)
            found.append(Asking(resolved.prefill_box, gpu, ways.fetch(gpu), size, objects, put=False))
    return found


def is_prefetch(flow: Flow) -> bool:
    """Whether a flow goes from the store into host memory."""
    return flow.kind is FlowKind.LOAD and flow.destination.endswith("/host_memory")


# ---- how much a request waits for ------------------------------------------------------------------------------------
def settled(resolved: ResolvedScenario) -> ResolvedScenario:
    """The scenario with what a prefetch will not have brought computed again, and a warning that says so.

    Equation: `fetched_tokens`, with the rate of the path alone and, as the wait that the request has anyway, the time
    from its arrival to the end of the request before it on the clock without KV.

    Parameters
    ----------
    resolved: a scenario as it was looked up; one that was settled stays as it is.

    Returns
    -------
    The scenario; ``cached_tokens`` of a request grow no larger.

    Notes
    -----
    Valid for prefetches that have the path to themselves: one that is held up waits longer here, where the engine would
    cut it off and compute more. Waits for the prefetches of earlier requests are left out.
    Source: SGLang 0.5.23 (HiCache), hiradix_cache.py: can_terminate_prefetch.

    """
    ways = StoreWays.of(resolved)
    wanted = [request for request in resolved.requests if request.cached_by(CacheTier.STORE)]
    if ways is None or not wanted or resolved.prefetch_settled:
        return resolved
    alone = {request.name: _fetched(resolved, request, ways, 0.0) for request in wanted}
    known, found = _cut(resolved, alone), alone
    in_doubt = resolved.spec.cache.prefetch is not Prefetch.WAIT_COMPLETE and any(
        fetched.tokens < _whole(resolved, request)
        for request, fetched in ((request, alone[request.name]) for request in wanted)
    )
    # What one request computes again moves the start of the next: requests settle one after another.
    for _ in range(len(resolved.requests) if in_doubt else 0):
        queue_s = queueing_s(known)
        found = {request.name: _fetched(resolved, request, ways, queue_s[request.name]) for request in wanted}
        before, known = known, _cut(resolved, found)
        if known.requests == before.requests:
            break
    return replace(known, warnings=(*resolved.warnings, *_warnings(resolved, found)), prefetch_settled=True)


def queueing_s(resolved: ResolvedScenario) -> Mapping[str, float]:
    """How long each request waits for those before it on its lane, on the clock without KV [s]."""
    built = timeline(resolved)
    return {request.name: 0.0 for request in resolved.requests} | waits_s(built.lanes, built.clock)


def waits_s(lanes: Sequence[Lane], clock: Clock) -> dict[str, float]:
    """`queueing_s` of lanes and their clock, by request [s]."""
    waits: dict[str, float] = {}
    for k, lane in enumerate(lanes):
        start = phase_times(clock, k, [phase.not_before_s for phase in lane.phases])[0]
        first: dict[str, int] = {}
        for i, phase in enumerate(lane.phases):
            first.setdefault(phase.request, i)
        waits |= {name: max(0.0, float(start[i]) - lane.phases[i].not_before_s) for name, i in first.items()}
    return waits


def fetch_alone_s(resolved: ResolvedScenario, request: Request) -> float:
    """What a request's prefetch takes alone, without its calls; 0 where nothing is fetched [s]."""
    ways, tokens = StoreWays.of(resolved), request.cached_by(CacheTier.STORE)
    if ways is None or not tokens:
        return 0.0
    rate, per_token = _path(resolved, request, ways)
    return tokens * per_token / rate


def _whole(resolved: ResolvedScenario, request: Request) -> int:
    page = resolved.page_tokens
    return request.cached_by(CacheTier.STORE) // page * page


def _fetched(resolved: ResolvedScenario, request: Request, ways: StoreWays, queue_s: float) -> Fetched:
    rate, per_token = _path(resolved, request, ways)
    return fetched_tokens(
        Policy(resolved.spec.cache.prefetch.value),
        request.cached_by(CacheTier.STORE),
        resolved.page_tokens,
        per_token,
        rate,
        setup_s=ways.store.constants.query_rpc_s,
        queue_s=queue_s,
        batch_pages=ways.store.batch_pages,
    )


def _path(resolved: ResolvedScenario, request: Request, ways: StoreWays) -> tuple[float, float]:
    """What all ranks of a request fetch together: their rate alone [byte/s], and bytes of a token [byte]."""
    kv = [part.scaled(1.0, 0.0) for part in layers_kv(resolved.arch, resolved.spec.kv_dtype, request)]
    asked = _asked(resolved, resolved.prefill[request.instance], kv, ways, resolved.page_tokens)
    total = sum(one.size_bytes for one in asked)
    moved = [(route, one.size_bytes) for one, route in zip(asked, ways.in_series(asked), strict=True)]
    return total / fullest_port(moved, ways.capacity).time_s, total / resolved.page_tokens


def _cut(resolved: ResolvedScenario, found: Mapping[str, Fetched]) -> ResolvedScenario:
    """Tokens of the store that are not fetched are the last of the prefix: they are computed."""

    def one(request: Request) -> Request:
        if request.name not in found:
            return request
        return request.keeping(request.cached_tokens - request.cached_by(CacheTier.STORE) + found[request.name].tokens)

    return replace(resolved, requests=tuple(one(request) for request in resolved.requests))


def _warnings(resolved: ResolvedScenario, found: Mapping[str, Fetched]) -> list[str]:
    policy = resolved.spec.cache.prefetch.value
    said = []
    for request in resolved.requests:
        if request.name not in found:
            continue
        fetched, stored = found[request.name], request.cached_by(CacheTier.STORE)
        left = stored - fetched.tokens
        if not left:
            continue
        whole = _whole(resolved, request)
        if fetched.tokens == whole:
            why = f"a page of {resolved.page_tokens} tokens is stored whole or not at all"
        elif whole < PREFETCH_THRESHOLD_TOKENS:
            why = f"less than {PREFETCH_THRESHOLD_TOKENS} are not worth a prefetch"
        else:
            why = f"{policy} waits {fetched.allowed_s:.3g} s from its arrival"
        said.append(f"{request.name}: {left} of {stored} tokens in the store are computed again: {why}")
    return said
