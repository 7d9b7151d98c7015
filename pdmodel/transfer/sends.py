"""Send flows: who sends what to whom from prefill to decode, released as the engine releases it."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.layout import SourceLayout, pairs
from pdmodel.transfer.marks import ChunkMarks, LayerKv, Steps, layers_kv, release_steps
from pdmodel.transfer.nics import Routes
from pdmodel.workload.request import CacheTier, Request


def source_layout(resolved: ResolvedScenario, heads: int | None) -> SourceLayout:
    """How the prefill side holds what ``heads`` split (None: latents), and who of it sends."""
    part = resolved.spec.prefill
    return SourceLayout(
        tp_size=part.tp_size,
        cp_size=part.cp_size,
        exchange=part.cp_exchange,
        kv_heads=heads,
        senders=resolved.context_senders,
        latent_source=resolved.latent_source,
    )


def splits(kv: Sequence[LayerKv]) -> tuple[int | None, ...]:
    """The ways in which layers that keep something are split over ranks, each once; None: not at all."""
    return tuple(dict.fromkeys(part.heads for part in kv if part.bytes_per_token or part.constant_bytes))


def sends(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    routes: Routes,
) -> list[Flow]:
    tokens = [new for new, _ in request.chunks(resolved.spec.prefill.chunk_tokens)]
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    curves: dict[tuple[tuple[int | None, float], ...], Steps] = {}
    found = []
    for (source_rank, target_rank), shares in _shares(resolved, kv).items():
        key = tuple(shares.items())
        if key not in curves:
            curves[key] = release_steps(
                chunks,
                tokens,
                request.cached_tokens,
                [part.scaled(shares.get(part.heads, 0.0)) for part in kv],
                resolved.release_after,
                early_send=resolved.early_send,
                resident_tokens=request.cached_by(CacheTier.HBM),
            )
        release = curves[key]
        source, target = placement.gpus[source_rank], resolved.decode.gpus[target_rank]
        ways, split = routes.between(source, target)
        found.append(
            Flow(
                name=f"{request.name}/send/{resolved.prefill_box.node}{source}>{resolved.decode_box.node}{target}",
                kind=FlowKind.SEND,
                request=request.name,
                lane=lane,
                source=resolved.prefill_box.port_name(resolved.prefill_box.gpu(source)),
                destination=resolved.decode_box.port_name(resolved.decode_box.gpu(target)),
                routes=ways,
                release=release,
                due=((chunks[-1].end, sum(size for _, size in release)),),
                split=split,
            )
        )
    return found


def _shares(resolved: ResolvedScenario, kv: Sequence[LayerKv]) -> dict[tuple[int, int], dict[int | None, float]]:
    """Of each (source rank, destination rank): its share of what each way of splitting splits."""
    found: dict[tuple[int, int], dict[int | None, float]] = {}
    for heads in splits(kv):
        for pair in pairs(source_layout(resolved, heads), resolved.decode.parallelism.tp_size):
            shares = found.setdefault((pair.source_rank, pair.destination_rank), {})
            shares[heads] = shares.get(heads, 0.0) + pair.share
    return found
