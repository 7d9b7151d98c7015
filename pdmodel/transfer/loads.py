"""Load flows: the cached prefix on its way into HBM, layer by layer before the attention that needs it."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.hardware.routes import host_to_gpu
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.marks import ChunkMarks, Steps, layers_kv
from pdmodel.transfer.sends import source_layout, splits
from pdmodel.workload.request import Request


def loads(
    resolved: ResolvedScenario, request: Request, lane: str, placement: Placement, chunks: Sequence[ChunkMarks]
) -> list[Flow]:
    if not request.cached_tokens:
        return []
    box = resolved.prefill_box
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    held = {heads: source_layout(resolved, heads).holdings() for heads in splits(kv)}
    found = []
    for rank, gpu in enumerate(placement.gpus):
        shares = {heads: holdings[rank].heads_share * holdings[rank].tokens_share for heads, holdings in held.items()}
        due, release = _load_steps(
            chunks[0], [part.cached_bytes(request.cached_tokens) * shares.get(part.heads, 0.0) for part in kv]
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
                routes=(host_to_gpu(box, gpu),),
                release=release,
                due=due,
            )
        )
    return found


def _load_steps(chunk: ChunkMarks, sizes: Sequence[float]) -> tuple[Steps, Steps]:
    """Dues of the layers that keep something, at their attention, and releases on demand: when the one before ends."""
    due, release, start = [], [], chunk.start
    for layer, marks in chunk.layers.items():
        if sizes[layer]:
            due.append((marks.attention, sizes[layer]))
            release.append((start, sizes[layer]))
        start = marks.end
    return tuple(due), tuple(release)
