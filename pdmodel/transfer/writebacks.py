"""Write-back flows: KV on its way out of HBM into host memory, and from there into the store. Nobody waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import gpu_to_host, merge
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import LoadBy, WritePolicy
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.loads import Shares, page_bytes, rank_shares
from pdmodel.transfer.marks import ChunkMarks, LayerKv, layers_kv
from pdmodel.transfer.store import StoreWays
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
    box = resolved.prefill_box
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    start = chunks[0].start if policy is WritePolicy.WRITE_BACK else chunks[-1].end
    tokens, states = _written(request, policy)
    found = []
    for rank, gpu in enumerate(placement.gpus):
        for end, shares, route in _parts(resolved, kv, rank, gpu, ways):
            size = sum(
                (tokens * part.bytes_per_token + (part.constant_bytes if states else 0.0)) * shares.get(part.heads, 0.0)
                for part in kv
            )
            if not size:
                continue
            home = box.port_name(box.socket(box.gpu(gpu)), "host_memory")
            found.append(
                Flow(
                    name=f"{request.name}/writeback/{box.node}{gpu}>{end}",
                    kind=FlowKind.WRITEBACK,
                    request=request.name,
                    lane=lane,
                    source=box.port_name(box.gpu(gpu)),
                    destination=home if end == "host" else box.port_name("store"),
                    routes=(route,),
                    release=((start, size),),
                    due=(),
                )
            )
    return found


def _written(request: Request, policy: WritePolicy) -> tuple[int, bool]:
    """Tokens that are written, and whether windows and states go with them."""
    return {
        WritePolicy.WRITE_THROUGH: (request.new_tokens, True),
        WritePolicy.WRITE_THROUGH_SELECTIVE: (request.cached_by(CacheTier.HBM), False),
        WritePolicy.WRITE_BACK: (request.new_tokens + request.loaded_tokens, True),
    }[policy]


def _parts(
    resolved: ResolvedScenario, kv: Sequence[LayerKv], rank: int, gpu: int, ways: StoreWays | None
) -> Iterator[tuple[str, Shares, Route]]:
    """(where it ends, what of the KV goes there, the way) of a rank's write-backs."""
    box = resolved.prefill_box
    shares = rank_shares(resolved, kv, rank)
    copy = gpu_to_host(box, gpu, by_kernel=resolved.spec.cache.load_by is LoadBy.KERNEL)
    to_store = resolved.spec.cache.write_to is CacheTier.STORE
    stored = {heads: share for heads, share in shares.items() if to_store and _stores(resolved, heads, rank)}
    kept = {heads: share for heads, share in shares.items() if heads not in stored}
    if kept:
        yield "host", kept, copy
    if stored and ways is not None:
        yield "store", stored, merge(copy, ways.backup(gpu, page_bytes(resolved, kv, stored)))


def _stores(resolved: ResolvedScenario, heads: int | None, rank: int) -> bool:
    """Whether a rank writes what it holds of a kind of KV into the store."""
    part = resolved.spec.prefill
    cp_rank, tp_rank = divmod(rank, part.tp_size)
    tokens_differ = part.cp_exchange is CpExchange.RING
    if heads is None:
        return tp_rank == 0 and (cp_rank == 0 or tokens_differ)
    return cp_rank == 0 or tokens_differ or part.cp_exchange is CpExchange.ULYSSES
