"""What one rank computes and reads in a layer: FLOP and HBM bytes of every operation, from the architecture alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture, MoeSpec
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kinds import LayerKind
from pdmodel.llm.mixing import decode_mixing, prefill_mixing
from pdmodel.llm.operation import (
    ACTIVATION_BYTES,
    Operation,
    OperationKind,
    Stage,
    causal_pairs,
    elementwise,
    experts_touched,
    gemm,
    norm,
)

__all__ = [
    "EXPERT_SKEW",
    "CpLayout",
    "Operation",
    "OperationKind",
    "Stage",
    "causal_pairs",
    "cp_pieces",
    "decode_layer",
    "embedding",
    "experts_touched",
    "fullest_rank",
    "logits",
    "prefill_layer",
]

EXPERT_SKEW: Final = 1 / 3
"""Default of ``expert_skew``: 1.3, 1.6, 2.0 times the mean load on the fullest of 2, 4, 8 ranks.

It describes the synthetic routing (power law of exponent 1.2) of aiconfigurator 0.12.0's MoE tables, for 128 experts.
"""


class CpLayout(StrEnum):
    """Which tokens of a chunk a context-parallel rank takes: two mirrored pieces, one contiguous piece, or every C-th
    token or page.
    """

    ZIGZAG = "zigzag"
    CONTIGUOUS = "contiguous"
    TOKEN_CYCLIC = "token_cyclic"
    PAGE_CYCLIC = "page_cyclic"


def embedding(arch: Architecture, tokens: float) -> tuple[Operation, ...]:
    """Look-up of the token embeddings on one rank (vocabulary-parallel): one row read, one written per token."""
    return (elementwise(Stage.EMBEDDING, "embedding", tokens, 2 * arch.hidden_size * ACTIVATION_BYTES),)


def logits(arch: Architecture, rows: float, tp_size: int = 1) -> tuple[Operation, ...]:
    """Final norm and output head for the tokens that are sampled from (one a request), vocabulary over TP ranks."""
    return (
        norm(arch, Stage.LOGITS, "final_norm", rows),
        gemm(Stage.LOGITS, "logits", (rows, arch.vocab_size / tp_size, arch.hidden_size), arch.dtypes.other),
    )


def _check(arch: Architecture, tp_size: int, ep_size: int) -> None:
    for mixer in arch.distinct_mixers():
        if tp_size < 1 or mixer.heads % tp_size:
            raise InputError(f"tp_size {tp_size} does not divide the {mixer.heads} heads of {arch.name}")
        heads = mixer.cache_heads
        if heads and heads % tp_size and tp_size % heads:
            raise InputError(f"tp_size {tp_size} neither divides nor is a multiple of the {heads} KV heads")
    if ep_size < 1 or (arch.moe is not None and arch.moe.experts % ep_size):
        experts = arch.moe.experts if arch.moe else 0
        raise InputError(f"ep_size {ep_size} does not divide the {experts} experts of {arch.name}")


def _gated(arch: Architecture, stage: Stage, tokens: float, width: float, dtype: WeightDtype) -> list[Operation]:
    """An MLP of the rank's ``width``: up (and gate), activation, down."""
    up = 2 if arch.gated_mlp else 1
    return [
        gemm(stage, "gate_up" if up == 2 else "up", (tokens, up * width, arch.hidden_size), dtype),
        elementwise(stage, "activation", tokens, (up + 1) * width * ACTIVATION_BYTES),
        gemm(stage, "down", (tokens, arch.hidden_size, width), dtype),
    ]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """How one rank's share of a layer is cut."""

    tp_size: int
    ep_size: int
    expert_skew: float


def _mlp(arch: Architecture, layer: int, tokens: float, ranks: _Ranks) -> list[Operation]:
    moe = arch.moe
    if moe is None or layer not in moe.layers:
        dense = arch.mlp_width(layer)
        if dense == 0:
            return []
        return [
            norm(arch, Stage.MLP, "mlp_norm", tokens),
            *_gated(arch, Stage.MLP, tokens, dense / ranks.tp_size, arch.dtypes.mlp),
        ]
    operations = [
        norm(arch, Stage.ROUTER, "mlp_norm", tokens),
        gemm(Stage.ROUTER, "router", (tokens, moe.experts, arch.hidden_size), arch.dtypes.other),
    ]
    if moe.shared_intermediate_size:
        width = moe.shared_intermediate_size / ranks.tp_size
        operations += _gated(arch, Stage.SHARED_EXPERT, tokens, width, arch.dtypes.shared_expert)
    operations.append(_experts(arch, moe, tokens, ranks))
    if moe.latent_size:
        # Down to the latents before the dispatch, whole on every rank, and up after the combine.
        down = gemm(Stage.ROUTER, "expert_down", (tokens, moe.latent_size, arch.hidden_size), arch.dtypes.shared_expert)
        up = gemm(Stage.EXPERTS, "expert_up", (tokens, arch.hidden_size, moe.latent_size), arch.dtypes.shared_expert)
        operations = [*operations[:2], down, *operations[2:], up]
    return operations


def fullest_rank(moe: MoeSpec, ep_size: int, expert_skew: float = EXPERT_SKEW) -> float:
    """How many times the mean load the fullest of ``ep_size`` ranks serves: ep^skew, at most E/k [-].

    Source: as `EXPERT_SKEW`.
    """
    mean_times: float = float(ep_size) ** expert_skew
    return min(mean_times, moe.experts / moe.top_k)


def _experts(arch: Architecture, moe: MoeSpec, tokens: float, ranks: _Ranks) -> Operation:
    """The routed experts of the fullest rank as one grouped GEMM.

    ``tokens`` are those of the rank's TP group. With ep <= tp the group's experts lie on ep parts, each expert cut
    into tp/ep; with ep > tp the experts spread over ep/tp TP groups, whose tokens come together. In the mean a rank
    serves gathered x k / ep pairs; the fullest one ep^skew times as many, as its experts are that more popular.
    """
    ep_size = ranks.ep_size
    gathered = tokens * max(1.0, ep_size / ranks.tp_size)
    hidden = moe.width(arch.hidden_size)
    width = moe.intermediate_size / max(1, ranks.tp_size // ep_size)
    fullness = fullest_rank(moe, ep_size, ranks.expert_skew)
    pairs = gathered * moe.top_k / ep_size * fullness
    touched = experts_touched(moe.experts, moe.top_k * fullness, gathered) / ep_size
    matrices = 3 if arch.gated_mlp else 2
    weights = touched * matrices * hidden * width * arch.dtypes.experts.bytes_per_parameter
    activations = pairs * (2 * hidden + 2 * matrices * width) * ACTIVATION_BYTES
    return Operation(
        stage=Stage.EXPERTS,
        name="experts",
        kind=OperationKind.MOE,
        flop=2.0 * matrices * pairs * hidden * width,
        size_bytes=weights + activations,
        m=pairs,
        n=hidden,
        k=width,
        dtype=arch.dtypes.experts,
        weight_bytes=weights,
        tokens=gathered,
        experts=touched,
    )


def prefill_layer(
    arch: Architecture,
    layer: int,
    new_tokens: int,
    past_tokens: int = 0,
    *,
    tp_size: int = 1,
    cp_size: int = 1,
    ep_size: int = 1,
    kv_dtype: KvDtype = KvDtype.BF16,
    cp_layout: CpLayout = CpLayout.ZIGZAG,
    expert_skew: float = EXPERT_SKEW,
) -> tuple[Operation, ...]:
    """Operations of one layer for one prefill chunk on the slowest rank, in order.

    Parameters
    ----------
    arch, layer: the LLM and a 0-based layer.
    new_tokens, past_tokens: tokens that the chunk computes, and tokens before it whose KV is there [count].
    tp_size: ranks that share heads and MLP widths; kv_heads below it are replicated.
    cp_size: ranks that share the chunk's tokens; each attends to the whole context.
    ep_size: ranks over which the experts spread.
    kv_dtype: storage of the cache.
    cp_layout: zigzag gives every rank the same number of pairs; contiguous makes the last rank slowest.
    expert_skew: 0 for balanced routing; the fullest of ep ranks serves ep^skew times the mean.

    Raises
    ------
    InputError: tp_size does not divide the heads, or ep_size the experts.

    """
    _check(arch, tp_size, ep_size)
    tokens = new_tokens / cp_size
    pieces = cp_pieces(new_tokens, past_tokens, cp_size, cp_layout)
    mixing = prefill_mixing(arch, arch.mixer(layer), tokens, pieces, tp_size=tp_size, kv_dtype=kv_dtype)
    return _layer(arch, layer, tokens, mixing, _Ranks(tp_size, ep_size, expert_skew))


def _layer(
    arch: Architecture, layer: int, tokens: float, mixing: Sequence[Operation], ranks: _Ranks
) -> tuple[Operation, ...]:
    before = [] if arch.mixer(layer).kind is LayerKind.NONE else [norm(arch, Stage.QKV, "attention_norm", tokens)]
    return (*before, *mixing, *_mlp(arch, layer, tokens, ranks))


def cp_pieces(
    new_tokens: float, past_tokens: float, cp_size: int, layout: CpLayout = CpLayout.ZIGZAG
) -> tuple[tuple[float, float], ...]:
    """(queries, keys before them) of the attention calls of the slowest CP rank.

    Zigzag: pieces i and 2cp-1-i of 2cp; every rank has the same sum, rank 0's pieces are returned. Contiguous: the
    last piece, which sees (2 - 1/cp) times the mean number of pairs when nothing is past. Cyclic splits are as even as
    zigzag (but for a page of queries), and read as much.

    >>> cp_pieces(8, 0, 2, CpLayout.ZIGZAG), cp_pieces(8, 0, 2, CpLayout.CONTIGUOUS)
    (((2.0, 0.0), (2.0, 6.0)), ((4.0, 4.0),))
    """
    if cp_size == 1:
        return ((new_tokens, past_tokens),)
    if layout is CpLayout.CONTIGUOUS:
        piece = new_tokens / cp_size
        return ((piece, past_tokens + new_tokens - piece),)
    piece = new_tokens / (2 * cp_size)
    return ((piece, past_tokens + 0.0), (piece, past_tokens + new_tokens - piece))


def decode_layer(
    arch: Architecture,
    layer: int,
    batch: int,
    context_tokens: float,
    *,
    tp_size: int = 1,
    ep_size: int = 1,
    dcp_size: int = 1,
    kv_dtype: KvDtype = KvDtype.BF16,
    expert_skew: float = EXPERT_SKEW,
) -> tuple[Operation, ...]:
    """Operations of one layer for one decode step on one rank, in order.

    ``batch`` requests of the rank's TP group produce one token each; ``context_tokens`` keys are attended to in the
    mean, the new one included. ``dcp_size`` TP ranks share them (`pdmodel.llm.mixing.decode_mixing`). Other arguments
    and errors as in `prefill_layer`.
    """
    _check(arch, tp_size, ep_size)
    tokens = float(batch)
    mixing = decode_mixing(
        arch, arch.mixer(layer), tokens, context_tokens, tp_size=tp_size, kv_dtype=kv_dtype, dcp_size=dcp_size
    )
    return _layer(arch, layer, tokens, mixing, _Ranks(tp_size, ep_size, expert_skew))
