"""Load flows: the cached prefix on its way into HBM, layer by layer before the attention that needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdmodel.costs.kv_store import objects_of
from pdmodel.hardware.routes import host_to_gpu
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.marks import ChunkMarks, LayerKv, Steps, layers_kv
from pdmodel.transfer.sends import source_layout, splits
from pdmodel.workload.request import Request

Shares = Mapping[int | None, float]
"""What a rank holds of the KV of each way of splitting it (None: latents) [-]."""


def loads(
    resolved: ResolvedScenario, request: Request, lane: str, placement: Placement, chunks: Sequence[ChunkMarks]
) -> list[Flow]:
    """Load flows of a request, one per prefill rank: all of its prefix that is not in HBM, from its socket's memory.

    What the store has is in host memory when the first chunk starts: the phase before it waits for that. Released when
    the chunk starts, as the engine looks for what it can load when it schedules the request; or, by an engine that
    loads on demand, layer by layer.
    """
    if not request.loaded_tokens:
        return []
    box = resolved.prefill_box
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    found = []
    for rank, gpu in enumerate(placement.gpus):
        shares = rank_shares(resolved, kv, rank)
        due, release = _load_steps(
            chunks[0], [part.cached_bytes(request.loaded_tokens) * shares.get(part.heads, 0.0) for part in kv]
        )
        if resolved.engine.load_ahead.value:
            release = ((chunks[0].start, sum(size for _, size in due)),)
        if not due:
            continue
        found.append(
            Flow(
                name=f"{request.name}/load/{box.node}{gpu}",
                kind=FlowKind.LOAD,
                request=request.name,
                lane=lane,
                source=box.port_name(box.socket(box.gpu(gpu)), "host_memory"),
                destination=box.port_name(box.gpu(gpu)),
                routes=(host_to_gpu(box, gpu, by_kernel=resolved.loads_by_kernel),),
                release=release,
                due=due,
            )
        )
    return found


def rank_shares(resolved: ResolvedScenario, kv: Sequence[LayerKv], rank: int) -> Shares:
    """What a prefill rank holds when the prefill has ended, copies of heads and of tokens included."""
    found = {}
    for heads in splits(kv):
        holding = source_layout(resolved, heads).holdings()[rank]
        found[heads] = holding.heads_share * holding.tokens_share
    return found


def prefix_bytes(kv: Sequence[LayerKv], shares: Shares, tokens: int) -> float:
    """The last ``tokens`` of the cached prefix on a rank, and its windows and states, which lie with them [byte]."""
    return sum(part.cached_bytes(tokens) * shares.get(part.heads, 0.0) for part in kv) if tokens else 0.0


def page_bytes(resolved: ResolvedScenario, kv: Sequence[LayerKv], shares: Shares) -> float:
    """A page of a rank, all layers [byte]."""
    return resolved.page_tokens * sum(part.bytes_per_token * shares.get(part.heads, 0.0) for part in kv)


def object_bytes(resolved: ResolvedScenario, kv: Sequence[LayerKv], shares: Shares) -> float:
    """One object of a store, in the mean: a page of a rank, all layers, or as the connector cuts it [byte]."""
    if resolved.store is None:
        return 0.0
    kinds = [part.heads for part in kv if part.bytes_per_token and shares.get(part.heads)]
    return page_bytes(resolved, kv, shares) / max(1, objects_of(kinds, resolved.store.page_objects))


def _load_steps(chunk: ChunkMarks, sizes: Sequence[float]) -> tuple[Steps, Steps]:
    """Dues of the layers that keep something, at their attention, and releases on demand: when the one before ends."""
    due, release, start = [], [], chunk.start
    for layer, marks in chunk.layers.items():
        if sizes[layer]:
            due.append((marks.attention, sizes[layer]))
            release.append((start, sizes[layer]))
        start = marks.end
    return tuple(due), tuple(release)
