"""Host memory that the prefix cache fills (L2), socket by socket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.flows import Flow, FlowKind, MemoryKind, MemoryPool
from pdmodel.transfer.loads import prefix_bytes, rank_shares
from pdmodel.transfer.marks import layers_kv
from pdmodel.transfer.memory import pool_bytes
from pdmodel.units import GIB
from pdmodel.workload.request import CacheTier

HICACHE_RATIO = 2.0
"""Host pool over the GPUs' KV pool: SGLang's ``--hicache-ratio`` by default (assumed of other engines)."""


def host_pools(resolved: ResolvedScenario, flows: Sequence[Flow]) -> tuple[MemoryPool, ...]:
    """L2 of every socket of the prefill box into which something moves.

    What requests find there is there from the start; prefetches and write-backs add to it and nothing leaves: evictions
    of what no request here uses are not followed. Each rank has its own pool in its GPU's socket, so a socket has as
    large a part of the whole as it has ranks. A chain into the store passes through and stays.
    """
    box = resolved.prefill_box
    moved: dict[str, dict[str, float]] = defaultdict(dict)
    for flow in flows:
        into = _socket_filled(flow, resolved)
        if into is not None:
            moved[into][flow.name] = 1.0
    if not moved:
        return ()
    ranks, base = _ranks(resolved), _base(resolved)
    whole = host_bytes(resolved)
    return tuple(
        MemoryPool(
            name=box.port_name(socket, "kv"),
            kind=MemoryKind.HOST,
            capacity_bytes=whole * ranks[socket] / sum(ranks.values()),
            base_bytes=base.get(socket, 0.0),
            appears=(),
            moved=moved[socket],
            held_until_done=False,
        )
        for socket in sorted(moved)
    )


def host_bytes(resolved: ResolvedScenario) -> float:
    """What all sockets together have for KV: as the scenario says, else `HICACHE_RATIO` KV pools of its GPUs [byte]."""
    given = resolved.spec.cache.host_memory_gib
    if given is not None:
        return given * GIB
    return HICACHE_RATIO * pool_bytes(resolved, "prefill") * sum(_ranks(resolved).values())


def host_memory_notes(resolved: ResolvedScenario, pools: Sequence[MemoryPool]) -> tuple[str, ...]:
    """What the pools assume, in words."""
    if resolved.spec.cache.host_memory_gib is not None or not any(pool.kind is MemoryKind.HOST for pool in pools):
        return ()
    size = host_bytes(resolved) / GIB
    return (f"host memory for KV: {size:.0f} GiB, {HICACHE_RATIO:g} times the GPUs' KV pool (--hicache-ratio)",)


def _ranks(resolved: ResolvedScenario) -> dict[str, int]:
    """Prefill ranks whose pool lies in each socket."""
    box, found = resolved.prefill_box, defaultdict[str, int](int)
    for placement in resolved.prefill:
        for gpu in placement.gpus:
            found[box.socket(box.gpu(gpu))] += 1
    return found


def _base(resolved: ResolvedScenario) -> dict[str, float]:
    """What requests find in host memory, by socket [byte]."""
    box, found = resolved.prefill_box, defaultdict[str, float](float)
    for request in resolved.requests:
        tokens = request.cached_by(CacheTier.HOST_MEMORY)
        kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
        if request.cached_by(CacheTier.STORE):
            kv = tuple(part.scaled(1.0, 0.0) for part in kv)
        for rank, gpu in enumerate(resolved.prefill[request.instance].gpus):
            found[box.socket(box.gpu(gpu))] += prefix_bytes(kv, rank_shares(resolved, kv, rank), tokens)
    return found


def _socket_filled(flow: Flow, resolved: ResolvedScenario) -> str | None:
    """The socket whose L2 a flow fills."""
    box = resolved.prefill_box
    if flow.kind is FlowKind.WRITEBACK:
        return box.socket(flow.source.removeprefix(f"{box.node}/"))
    if flow.kind is FlowKind.LOAD and flow.destination.endswith("/host_memory"):
        return flow.destination.removeprefix(f"{box.node}/").removesuffix("/host_memory")
    return None
