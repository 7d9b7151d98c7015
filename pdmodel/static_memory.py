"""GPU memory before anything moves: what weights leave for KV, what a sequence takes of it, and whether that fits."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.kv_layout import Split
from pdmodel.errors import InputError
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.kv_cache import kv_sequence_bytes_rank
from pdmodel.scenario import DecodeSpec, PrefillSpec, Scenario
from pdmodel.units import GIB
from pdmodel.workload.request import Request

MEMORY_FRACTION = 0.9
"""Of a GPU's memory, for weights and KV, where a scenario does not say: vLLM's gpu_memory_utilization (assumed)."""


def usable_bytes(part: PrefillSpec | DecodeSpec, box: Box) -> float:
    """What weights and KV may take of a GPU [byte]."""
    return box.profile.gpu.memory_gib.value * GIB * (part.memory_fraction or MEMORY_FRACTION)


def kv_pool_bytes(part: PrefillSpec | DecodeSpec, arch: Architecture, box: Box) -> float:
    """What a GPU of one side has for KV: its share of the memory, less the weights; below 0 where these do not fit
    [byte].
    """
    return usable_bytes(part, box) - arch.weights_bytes_per_rank(part.tp_size, part.ep_size)


def decode_sequence_bytes(spec: Scenario, arch: Architecture, tokens: int, page_tokens: int) -> float:
    """What a sequence of so many tokens takes of a decode GPU, of the fullest where several share the tokens [byte]."""
    ranks = spec.decode.dcp_size
    if ranks > 1:
        piece = 1 if spec.decode.dcp_split is Split.TOKEN_CYCLIC else page_tokens
        tokens = min(tokens, -(-tokens // (piece * ranks)) * piece)
    return kv_sequence_bytes_rank(arch, tokens, spec.kv_dtype, spec.decode.tp_size)


def check_memory(
    spec: Scenario, arch: Architecture, boxes: tuple[Box, Box], requests: Sequence[Request], page_tokens: int
) -> None:
    """Weights and KV of the largest prompt (prefill), or of all running requests (decode), must fit one GPU.

    ``boxes``: of the prefill and of the decode side; ``page_tokens``: of the decode side.

    Raises `InputError` with the key that is to blame: `memory_fraction` where a whole GPU would do.
    """
    tokens = max(request.input_tokens for request in requests)
    running, context = spec.decode.max_running_requests, spec.decode.context_tokens
    _check(spec.prefill, arch, boxes[0], ("prefill", "tp_size", tokens), _prompt_bytes(spec, arch, tokens))
    kv = running * decode_sequence_bytes(spec, arch, context, page_tokens)
    _check(spec.decode, arch, boxes[1], ("decode", "max_running_requests", running * context), kv)


def _prompt_bytes(spec: Scenario, arch: Architecture, tokens: int) -> float:
    """What a prompt takes of a prefill GPU."""
    prefill = spec.prefill
    shards = prefill.tp_size * (prefill.cp_size if prefill.cp_exchange is CpExchange.ULYSSES else 1)
    if prefill.cp_exchange is CpExchange.RING:
        tokens = -(-tokens // prefill.cp_size)
    return kv_sequence_bytes_rank(arch, tokens, spec.kv_dtype, shards)


def _check(
    part: PrefillSpec | DecodeSpec, arch: Architecture, box: Box, where: tuple[str, str, int], kv_bytes: float
) -> None:
    side, blamed, tokens = where
    usable, memory = usable_bytes(part, box), box.profile.gpu.memory_gib.value * GIB
    weights = arch.weights_bytes_per_rank(part.tp_size, part.ep_size)
    if weights + kv_bytes <= usable:
        return
    key = blamed if weights <= usable else "tp_size"
    if part.memory_fraction is not None and weights + kv_bytes <= memory:
        key = "memory_fraction"
    share = f"memory_fraction {part.memory_fraction or MEMORY_FRACTION:g} of the {memory / GIB:.1f} GiB"
    raise InputError(
        f"{arch.name} needs {weights / GIB:.1f} GiB of weights and {kv_bytes / GIB:.1f} GiB of KV "
        f"({tokens} tokens) on each GPU",
        path=f"{side}.{key}",
        expected=f"at most {usable / GIB:.1f} GiB, {share} of {box.profile.name}",
    )
