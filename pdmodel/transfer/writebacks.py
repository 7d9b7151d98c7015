"""Write-back flows: KV on its way out of HBM into host memory, and from there into the store. Nobody waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import gpu_to_host, merge
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import WritePolicy
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.loads import Shares, object_bytes, rank_shares
from pdmodel.transfer.marks import ChunkMarks, LayerKv, layers_kv
from pdmodel.transfer.store import Asking, StoreWays
from pdmodel.workload.request import CacheTier, Request


def writebacks(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    ways: StoreWays | None,
) -> list[Flow]:
    """Write-back flows of a request, by the scenario's policy.

    write_through: new tokens with windows and states, released when the prefill ends, as a chunk that another one
    follows does not count as a use. write_through_selective: what is used for the second time, the tokens found in HBM
    (new ones are used for the first time, what was loaded lies lower already); released then too. write_back: as many
    bytes as enter HBM, pushed out of a full pool; released when the request starts.

    A rank copies what it holds into its own host memory. Into the store goes every byte once, but for copies of KV
    heads, as keys name the rank: of a latent, and of tokens that all CP ranks hold, rank 0's. The copy into the store
    is one fluid flow with the copy into host memory before it.

    Source: SGLang 0.5.23 (HiCache), hiradix_cache.py: _inc_hit_count, write_through_threshold 1 and 2, evict;
    managers/cache_controller.py: backup_skip.
    """
    policy = resolved.spec.cache.write_policy
    if policy is None:
        return []
    start = chunks[0].start if policy is WritePolicy.WRITE_BACK else chunks[-1].end
    return [_flow(resolved, request, lane, start, part) for part in _copied(resolved, request, placement, ways)]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank writes to one end."""

    end: str
    gpu: int
    size_bytes: float
    route: Route


def _copied(
    resolved: ResolvedScenario, request: Request, placement: Placement, ways: StoreWays | None
) -> Iterator[_Part]:
    """What each rank copies into host memory alone, and what goes on from there into the store."""
    kv, box = layers_kv(resolved.arch, resolved.spec.kv_dtype, request), resolved.prefill_box
    backups = []
    for rank, gpu in enumerate(placement.gpus):
        shares = rank_shares(resolved, kv, rank)
        stored = {heads: share for heads, share in shares.items() if _is_stored(resolved, heads, rank)}
        kept = {heads: share for heads, share in shares.items() if heads not in stored}
        size = _size(resolved, request, kv, kept)
        if size:
            yield _Part("host", gpu, size, _copy(resolved, gpu))
        size = _size(resolved, request, kv, stored)
        if size and ways is not None:
            backups.append(Asking(box, gpu, ways.backup(gpu), size, object_bytes(resolved, kv, stored), put=True))
    if ways is not None:
        for one, route in zip(backups, ways.in_series(backups), strict=True):
            yield _Part("store", one.gpu, one.size_bytes, merge(_copy(resolved, one.gpu), route))


def _flow(resolved: ResolvedScenario, request: Request, lane: str, start: int, part: _Part) -> Flow:
    box = resolved.prefill_box
    home = box.port_name(box.socket(box.gpu(part.gpu)), "host_memory")
    return Flow(
        name=f"{request.name}/writeback/{box.node}{part.gpu}>{part.end}",
        kind=FlowKind.WRITEBACK,
        request=request.name,
        lane=lane,
        source=box.port_name(box.gpu(part.gpu)),
        destination=home if part.end == "host" else box.port_name("store"),
        routes=(part.route,),
        release=((start, part.size_bytes),),
        due=(),
    )


def _copy(resolved: ResolvedScenario, gpu: int) -> Route:
    return gpu_to_host(resolved.prefill_box, gpu, by_kernel=resolved.loads_by_kernel)


def _size(resolved: ResolvedScenario, request: Request, kv: Sequence[LayerKv], shares: Shares) -> float:
    """What the policy writes of these shares of the KV [byte]."""
    policy = resolved.spec.cache.write_policy
    if policy is None:
        return 0.0
    tokens, states = _written(request, policy)
    return sum(
        (tokens * part.bytes_per_token + (part.constant_bytes if states else 0.0)) * shares.get(part.heads, 0.0)
        for part in kv
    )


def _written(request: Request, policy: WritePolicy) -> tuple[int, bool]:
    """Tokens that are written, and whether windows and states go with them."""
    return {
        WritePolicy.WRITE_THROUGH: (request.new_tokens, True),
        WritePolicy.WRITE_THROUGH_SELECTIVE: (request.cached_by(CacheTier.HBM), False),
        WritePolicy.WRITE_BACK: (request.new_tokens + request.loaded_tokens, True),
    }[policy]


def _is_stored(resolved: ResolvedScenario, heads: int | None, rank: int) -> bool:
    """Whether a rank writes what it holds of a kind of KV into the store."""
    if resolved.spec.cache.write_to is not CacheTier.STORE:
        return False
    part = resolved.spec.prefill
    cp_rank, tp_rank = divmod(rank, part.tp_size)
    tokens_differ = part.cp_exchange is CpExchange.RING
    if heads is None:
        return tp_rank == 0 and (cp_rank == 0 or tokens_differ)
    return cp_rank == 0 or tokens_differ or part.cp_exchange is CpExchange.ULYSSES
