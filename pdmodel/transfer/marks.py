"""What a request leaves behind at each phase: where chunks and layers lie on a lane, and what a layer keeps of KV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdmodel.engines.spec import ReleaseAfter
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.kv_cache import constant_bytes, growing_bytes
from pdmodel.timeline.phases import Lane
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

    def scaled(self, growing: float, constant: float) -> LayerKv:
        """A share of what every token adds to, and one of the rest."""
        return replace(
            self,
            bytes_per_token=self.bytes_per_token * growing,
            constant_bytes=self.constant_bytes * constant,
            cached_constant_bytes=self.cached_constant_bytes * constant,
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
    resident_tokens: int = 0,
) -> Steps:
    """(phase, bytes) at which KV may leave, phases rising [byte].

    Parameters
    ----------
    chunks: marks of the request's chunks, in order.
    new_tokens: tokens computed in each chunk.
    cached_tokens: tokens of the cached prefix, all tiers.
    kv: what this flow carries of each layer. Windows and states are complete, and released, with the last chunk.
    release_after: the event that releases new tokens (and cached ones, without ``early_send``, with the first chunk).
    early_send: cached tokens of a layer are released at its attention in the first chunk, which their load gates.
    resident_tokens: cached tokens that are in HBM when the request starts; with ``early_send`` released then.

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
                loaded = cached_tokens - resident_tokens
                add(chunk.start if early_send else phase, resident_tokens * part.bytes_per_token)
                add(marks.attention if early_send else phase, loaded * part.bytes_per_token)
            if last:
                # A state is what it is after the layer's scan, not when its inputs are written.
                add(marks.after_attention if phase == marks.attention else phase, part.constant_bytes)
    return tuple(sorted(steps.items()))
