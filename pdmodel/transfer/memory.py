"""GPU memory that KV fills and leaves: on the prefill side until it is delivered, on the decode side from when it is
reserved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pdmodel.engines.spec import Preallocate
from pdmodel.errors import InputError
from pdmodel.hardware.topology import Box
from pdmodel.resolve import ResolvedScenario
from pdmodel.static_memory import MEMORY_FRACTION, decode_sequence_bytes, kv_pool_bytes
from pdmodel.transfer.flows import Flow, FlowKind, MemoryKind, MemoryPool
from pdmodel.transfer.layout import source_layout
from pdmodel.transfer.marks import ChunkMarks, LayerKv, layers_kv
from pdmodel.workload.request import Request

Appears = tuple[str, int, str, float]
Marks = Mapping[str, Mapping[str, Sequence[ChunkMarks]]]


def gpu_pools(resolved: ResolvedScenario, marks: Marks, flows: Sequence[Flow]) -> tuple[MemoryPool, ...]:
    """Memory of every GPU that KV of the scenario lies on.

    Prefill: the cached prefix, windows and states are there from the request's first phase on, new tokens from the
    start of their chunk (engines reserve a chunk's pages before its pass). Decode: what the running requests hold is
    there always; a request's own memory from its first phase on (`Preallocate.START`) or from its first send.

    Both are free when all sends of the request are over: on the decode side because the request that was delivered then
    takes the place of one that is finished (assumed: a full batch in a steady state).
    """
    sent: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        if flow.kind is FlowKind.SEND:
            sent[flow.lane, flow.request].append(flow)
    return (*_prefill(resolved, marks, sent), *_decode(resolved, marks, sent))


def pool_bytes(resolved: ResolvedScenario, side: str) -> float:
    """What a GPU of one side ("prefill", "decode") has for KV: its share of the memory, less the weights [byte]."""
    part = resolved.spec.prefill if side == "prefill" else resolved.spec.decode
    box = resolved.prefill_box if side == "prefill" else resolved.decode_box
    return kv_pool_bytes(part, resolved.arch, box)


def running_bytes(resolved: ResolvedScenario) -> float:
    """What the running requests hold of a decode GPU, with the tokens that the engine keeps free for each [byte]."""
    part = resolved.spec.decode
    tokens = part.context_tokens + resolved.engine.reserved_tokens.value
    return part.max_running_requests * decode_bytes(resolved, tokens)


def decode_bytes(resolved: ResolvedScenario, tokens: int) -> float:
    """What a sequence of so many tokens takes of a decode GPU, the fullest [byte]."""
    return decode_sequence_bytes(resolved.spec, resolved.arch, tokens, resolved.decode_page_tokens)


def hand_offs_in_flight(pool: float, running: float, sequence: float) -> int:
    """Hand-offs that a decode instance can take at once beside its running requests.

    Equation: floor((pool - running) / sequence); with running requests as long as the sequence,
    floor(pool/sequence) - running requests.

    Parameters: ``pool``, ``running``, ``sequence`` > 0: all [byte], or all [token].
    Returns: [-], 0 or more.
    Raises: `InputError` for a sequence of nothing.
    Validity: memory of a request is reserved as a whole before it is received.
    Source: aiconfigurator pull request 1380 (headroom = pool tokens // sequence - max_num_seqs).

    >>> hand_offs_in_flight(1_000_000, 32 * 20_000, 20_000), 1_000_000 // 20_000 - 32
    (18, 18)
    """
    if sequence <= 0:
        raise InputError(f"a sequence of {sequence:g}", expected="a positive size")
    return max(0, math.floor((pool - running) / sequence))


def hand_off_cap(resolved: ResolvedScenario) -> int:
    """`hand_offs_in_flight` of a scenario, for its longest prompt."""
    longest = max(request.input_tokens for request in resolved.requests)
    return hand_offs_in_flight(pool_bytes(resolved, "decode"), running_bytes(resolved), decode_bytes(resolved, longest))


def memory_notes(resolved: ResolvedScenario) -> tuple[str, ...]:
    """What the pools assume, in words."""
    sides = (("prefill", resolved.spec.prefill), ("decode", resolved.spec.decode))
    silent = [side for side, part in sides if part.memory_fraction is None]
    notes = (
        [f"{MEMORY_FRACTION:.0%} of a GPU's memory is for weights and KV ({' and '.join(silent)})"] if silent else []
    )
    return (*notes, "a delivered request takes the decode memory of one that is finished")


def _pool(box: Box, gpu: int, kind: MemoryKind, sizes: tuple[float, float], found: _Filled) -> MemoryPool:
    name = box.port_name(box.gpu(gpu), "hbm")
    return MemoryPool(name, kind, sizes[0], sizes[1], tuple(found.appears), dict(found.moved))


class _Filled:
    """What fills one pool, and what empties it."""

    def __init__(self) -> None:
        self.appears: list[Appears] = []
        self.moved: dict[str, float] = {}

    def add(self, steps: Sequence[Appears], sent: Sequence[Flow]) -> None:
        """A request: all that appears leaves with its sends, in proportion."""
        self.appears += steps
        held, volume = sum(size for *_, size in steps), sum(flow.volume_bytes for flow in sent)
        for flow in sent:
            self.moved[flow.name] = -held / volume


def _prefill(
    resolved: ResolvedScenario, marks: Marks, sent: Mapping[tuple[str, str], Sequence[Flow]]
) -> Iterator[MemoryPool]:
    capacity = pool_bytes(resolved, "prefill")
    for instance, (lane, placement) in enumerate(zip(resolved.lane_names, resolved.prefill, strict=True)):
        requests = [
            (request, layers_kv(resolved.arch, resolved.spec.kv_dtype, request))
            for request in resolved.requests_of(instance)
        ]
        for rank, gpu in enumerate(placement.gpus):
            found = _Filled()
            for request, kv in requests:
                steps = _held(resolved, request, kv, rank, (lane, marks[lane][request.name]))
                found.add(steps, sent[lane, request.name])
            if found.appears:
                yield _pool(resolved.prefill_box, gpu, MemoryKind.PREFILL_HBM, (capacity, 0.0), found)


def _held(
    resolved: ResolvedScenario,
    request: Request,
    kv: Sequence[LayerKv],
    rank: int,
    where: tuple[str, Sequence[ChunkMarks]],
) -> list[Appears]:
    """What a prefill rank holds of a request, chunk by chunk."""
    lane, chunks = where
    heads = {part.heads for part in kv if part.bytes_per_token or part.constant_bytes}
    share = {one: source_layout(resolved, one).holdings()[rank].share for one in heads}
    per_token = sum(part.bytes_per_token * share.get(part.heads, 0.0) for part in kv)
    constant = sum(part.constant_bytes * share.get(part.heads, 0.0) for part in kv)
    found = []
    for number, (new, before) in enumerate(request.chunks(resolved.spec.prefill.chunk_tokens)):
        size = new * per_token + (before * per_token + constant if number == 0 else 0.0)
        found.append((lane, chunks[number].start, request.name, size))
    return found


def _decode(
    resolved: ResolvedScenario, marks: Marks, sent: Mapping[tuple[str, str], Sequence[Flow]]
) -> Iterator[MemoryPool]:
    early = resolved.engine.preallocate.value
    if early is Preallocate.NONE:
        return
    sizes = pool_bytes(resolved, "decode"), running_bytes(resolved)
    found = _Filled()
    for instance, lane in enumerate(resolved.lane_names):
        for request in resolved.requests_of(instance):
            mine = sent[lane, request.name]
            start = marks[lane][request.name][0].start
            if early is Preallocate.TRANSFER:
                start = min((k for flow in mine for k, _ in flow.release), default=start)
            found.add([(lane, start, request.name, decode_bytes(resolved, request.input_tokens))], mine)
    for gpu in resolved.decode.gpus:
        yield _pool(resolved.decode_box, gpu, MemoryKind.DECODE_HBM, sizes, found)
