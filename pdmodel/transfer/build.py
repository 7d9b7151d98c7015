"""Flows of a scenario: what is sent and loaded, on which routes, released and due at which phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdmodel.engines.spec import ReleaseAfter, RouteRule
from pdmodel.errors import InputError
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import host_to_gpu, kv_route
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.kv_cache import constant_bytes, growing_bytes
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.timeline.phases import Lane, Timeline
from pdmodel.transfer.flows import Flow, FlowKind, Transfers
from pdmodel.transfer.layout import SourceLayout, pairs
from pdmodel.workload.request import Request

Steps = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class LayerMarks:
    """Phase indices of one layer of one chunk: where its attention starts, and the phases after which it is done.

    Where compute was not cut before the attention, the mark is the start of the phase that holds it: early by the
    projections of one layer, never late.
    """

    attention: int
    after_attention: int
    end: int


@dataclass(slots=True)
class ChunkMarks:
    """Phase indices of one chunk: first phase, the one after the last, and its layers."""

    start: int
    end: int
    layers: dict[int, LayerMarks] = field(default_factory=dict)


def build_transfers(resolved: ResolvedScenario, timeline: Timeline) -> Transfers:
    """Flows of a scenario, the resources that they use beside the ports of the boxes, and the memory that they fill."""
    return Transfers(build_flows(resolved, timeline))


def build_flows(resolved: ResolvedScenario, timeline: Timeline) -> tuple[Flow, ...]:
    """All loads and sends of a scenario, request by request.

    A load flow per prefill rank with a cached prefix: released when the request starts, layer by layer in order, due at
    the attention of each layer. A send flow per (source rank, destination rank): new tokens released as the engine
    releases them; cached tokens at the attention of their layer (`early_send`) or with the first chunk's; due when the
    request's prefill ends on the clock without KV.
    """
    found: list[Flow] = []
    routes = _Routes(resolved)
    marks_of = {lane.name: phase_marks(lane) for lane in timeline.lanes}
    for instance, (lane_name, placement) in enumerate(zip(resolved.lane_names, resolved.prefill, strict=True)):
        marks = marks_of.get(lane_name, {})
        for request in resolved.requests_of(instance):
            chunks = marks[request.name]
            found += _loads(resolved, request, lane_name, placement, chunks)
            found += _sends(resolved, request, lane_name, placement, chunks, routes=routes)
    return tuple(found)


def phase_marks(lane: Lane) -> Mapping[str, Sequence[ChunkMarks]]:
    """Where the chunks and layers of each request lie among the phases of a lane."""
    found: dict[str, list[ChunkMarks]] = {}
    for i, phase in enumerate(lane.phases):
        if phase.chunk < 0:
            continue
        chunks = found.setdefault(phase.request, [])
        if len(chunks) <= phase.chunk:
            chunks.append(ChunkMarks(i, i + 1))
        chunk = chunks[phase.chunk]
        chunk.end = i + 1
        if phase.layer < 0:
            continue
        known = chunk.layers.get(phase.layer)
        if "attention" in phase.operation.split("+"):
            chunk.layers[phase.layer] = LayerMarks(i, i + 1, i + 1)
        elif known is not None:
            chunk.layers[phase.layer] = LayerMarks(known.attention, known.after_attention, i + 1)
    return found


@dataclass(frozen=True, slots=True)
class LayerKv:
    """What a sequence keeps in one layer: per token for good, and beside that [byte]; who shares it.

    ``heads``: that head shards split it by, None for latents. ``constant_bytes`` of a prompt and of its cached prefix:
    windows, states, unfinished entries.
    """

    bytes_per_token: float
    constant_bytes: float
    cached_constant_bytes: float
    heads: int | None

    def scaled(self, share: float) -> LayerKv:
        """A share of it."""
        return replace(
            self,
            bytes_per_token=self.bytes_per_token * share,
            constant_bytes=self.constant_bytes * share,
            cached_constant_bytes=self.cached_constant_bytes * share,
        )

    def cached_bytes(self, tokens: int) -> float:
        """All that a cached prefix of so many tokens keeps in the layer [byte]."""
        return tokens * self.bytes_per_token + self.cached_constant_bytes


def layers_kv(arch: Architecture, kv_dtype: str, request: Request) -> tuple[LayerKv, ...]:
    """What the request keeps in each layer when its prefill has ended."""
    found = []
    for layer in range(arch.layers):
        mixer = arch.mixer(layer)
        found.append(
            LayerKv(
                growing_bytes(mixer, kv_dtype),
                constant_bytes(mixer, kv_dtype, request.input_tokens),
                constant_bytes(mixer, kv_dtype, request.cached_tokens),
                mixer.cache_heads,
            )
        )
    return tuple(found)


def release_steps(
    chunks: Sequence[ChunkMarks],
    new_tokens: Sequence[int],
    cached_tokens: int,
    kv: Sequence[LayerKv],
    release_after: ReleaseAfter,
    *,
    early_send: bool,
) -> Steps:
    """(phase, bytes) at which KV may leave, phases rising [byte].

    Parameters
    ----------
    chunks: marks of the request's chunks, in order.
    new_tokens: tokens computed in each chunk.
    cached_tokens: tokens loaded before the first chunk's attention, layer by layer.
    kv: what this flow carries of each layer. Windows and states are complete, and released, with the last chunk.
    release_after: the event that releases new tokens (and cached ones, without ``early_send``, with the first chunk).
    early_send: cached tokens of a layer are released at its attention in the first chunk, which their load gates.

    Returns
    -------
    Steps; "phase k" means the start of phase k, which is the end of phase k - 1.

    """
    steps: dict[int, float] = {}

    def add(phase: int, size: float) -> None:
        if size:
            steps[phase] = steps.get(phase, 0.0) + size

    for number, (chunk, tokens) in enumerate(zip(chunks, new_tokens, strict=True)):
        last = number == len(chunks) - 1
        for layer, marks in chunk.layers.items():
            part = kv[layer]
            phase = {
                ReleaseAfter.KV_WRITE: marks.attention,
                ReleaseAfter.ATTENTION: marks.after_attention,
                ReleaseAfter.LAYER: marks.end,
                ReleaseAfter.CHUNK: chunk.end,
                ReleaseAfter.PREFILL: chunks[-1].end,
            }[release_after]
            add(phase, tokens * part.bytes_per_token)
            if number == 0:
                add(marks.attention if early_send else phase, cached_tokens * part.bytes_per_token)
            if last:
                # A state is what it is after the layer's scan, not when its inputs are written.
                add(marks.after_attention if phase == marks.attention else phase, part.constant_bytes)
    return tuple(sorted(steps.items()))


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


def _splits(kv: Sequence[LayerKv]) -> tuple[int | None, ...]:
    """The ways in which layers that keep something are split over ranks, each once; None: not at all."""
    return tuple(dict.fromkeys(part.heads for part in kv if part.bytes_per_token or part.constant_bytes))


def _loads(
    resolved: ResolvedScenario, request: Request, lane: str, placement: Placement, chunks: Sequence[ChunkMarks]
) -> list[Flow]:
    if not request.cached_tokens:
        return []
    box = resolved.prefill_box
    kv = layers_kv(resolved.arch, resolved.spec.kv_dtype, request)
    held = {heads: source_layout(resolved, heads).holdings() for heads in _splits(kv)}
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


def _sends(
    resolved: ResolvedScenario,
    request: Request,
    lane: str,
    placement: Placement,
    chunks: Sequence[ChunkMarks],
    *,
    routes: _Routes,
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
    for heads in _splits(kv):
        for pair in pairs(source_layout(resolved, heads), resolved.decode.parallelism.tp_size):
            shares = found.setdefault((pair.source_rank, pair.destination_rank), {})
            shares[heads] = shares.get(heads, 0.0) + pair.share
    return found


class _Routes:
    """Routes from GPU to GPU by the engine's rule, with the further NICs that a plan may choose; each walked once."""

    def __init__(self, resolved: ResolvedScenario) -> None:
        self._resolved = resolved
        self._known: dict[tuple[int, int], tuple[tuple[Route, ...], tuple[float, ...]]] = {}

    def between(self, source: int, target: int) -> tuple[tuple[Route, ...], tuple[float, ...]]:
        """Routes and the share of the bytes that simple policies put on each."""
        if (source, target) not in self._known:
            self._known[source, target] = self._walk(source, target)
        return self._known[source, target]

    def _walk(self, source: int, target: int) -> tuple[tuple[Route, ...], tuple[float, ...]]:
        resolved = self._resolved
        ours = nic_order(resolved.prefill_box, source, resolved.nics)
        theirs = nic_order(resolved.decode_box, target, resolved.decode_nics)
        if resolved.route_rule is RouteRule.STRIPE:
            count = max(len(resolved.nics), len(resolved.decode_nics))
            ends = [
                (resolved.nics[k % len(resolved.nics)], resolved.decode_nics[k % len(resolved.decode_nics)])
                for k in range(count)
            ]
            split = [1.0 / count] * count
        else:
            ends = [(nic, theirs[0]) for nic in ours[: 1 + resolved.spec.transfer.alternative_nics]]
            split = [1.0] + [0.0] * (len(ends) - 1)
        walked = tuple(
            kv_route(resolved.prefill_box, source, nic, resolved.decode_box, peer, target, fabric=resolved.fabric)
            for nic, peer in ends
        )
        return walked, tuple(split)


def nic_order(box: Box, gpu: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """NICs from near to far; among equally near ones GPUs take turns, so that a tie does not load one NIC alone.

    Raises
    ------
    InputError: no NIC is allowed.

    """
    if not allowed:
        raise InputError("no NIC is left to send with", expected="at least one")
    element = box.gpu(gpu)
    far = {nic: (box.distance(element, box.nic(nic)).rank, len(box.climb(box.nic(nic)))) for nic in allowed}
    found: list[int] = []
    for rank in sorted(set(far.values())):
        tie = [nic for nic in allowed if far[nic] == rank]
        turn = gpu % len(tie)
        found += tie[turn:] + tie[:turn]
    return tuple(found)
