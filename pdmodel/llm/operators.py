"""What one rank computes and reads in a layer: FLOP and HBM bytes of every operation, from the architecture alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture, MoeSpec
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kinds import MlaSpec
from pdmodel.llm.kv_cache import kv_bytes_per_token_layer

EXPERT_SKEW: Final = 1 / 3
"""Default of ``expert_skew``: 1.3, 1.6, 2.0 times the mean load on the fullest of 2, 4, 8 ranks.

It describes the synthetic routing (power law of exponent 1.2) of aiconfigurator 0.12.0's MoE tables, for 128 experts.
"""

_ACTIVATION_BYTES: Final = 2  # activations are 16 bits wide on every path; FP8 GEMMs quantise on the way in


class OperationKind(StrEnum):
    """Which formula prices an operation."""

    GEMM = "gemm"
    PREFILL_ATTENTION = "prefill_attention"
    DECODE_ATTENTION = "decode_attention"
    MOE = "moe"
    ELEMENTWISE = "elementwise"


class Stage(StrEnum):
    """Part of a pass, in order; collectives and KV releases fall between stages.

    The KV of a chunk is written at the end of ``qkv``. A CP exchange follows ``qkv`` and the TP collectives follow
    ``o_proj`` and ``mlp`` | ``experts``. The dispatch to expert-parallel ranks follows ``router``, the combine
    ``experts``; ``shared_expert`` may run beside them.
    """

    EMBEDDING = "embedding"
    QKV = "qkv"
    ATTENTION = "attention"
    O_PROJ = "o_proj"
    MLP = "mlp"
    ROUTER = "router"
    SHARED_EXPERT = "shared_expert"
    EXPERTS = "experts"
    LOGITS = "logits"


class CpLayout(StrEnum):
    """Which tokens of a chunk a context-parallel rank takes: two mirrored pieces, or one contiguous piece."""

    ZIGZAG = "zigzag"
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel on one rank: ``flop`` [FLOP, 1 MAC = 2] and ``size_bytes`` moved from and to HBM [byte], per call.

    ``dtype`` (of weights) and ``kv_dtype`` decide peaks and constants. ``m``, ``n``, ``k``: of a GEMM, its rows,
    columns and depth; of routed experts, token-expert pairs, hidden size and width of an expert on this rank; of
    attention, m queries; of an elementwise kernel, m tokens. ``weight_bytes``: the part of ``size_bytes`` that is
    weights. ``tokens``: of routed experts, all tokens that were gathered for them. ``context_tokens``: of attention,
    the keys that a query sees at most. ``experts``: whose weights are read.
    """

    stage: Stage
    name: str
    kind: OperationKind
    flop: float
    size_bytes: float
    m: float
    n: float = 0.0
    k: float = 0.0
    dtype: WeightDtype = WeightDtype.BF16
    kv_dtype: KvDtype = KvDtype.BF16
    weight_bytes: float = 0.0
    tokens: float = 0.0
    context_tokens: float = 0.0
    experts: float = 0.0


def causal_pairs(new_tokens: float, past_tokens: float) -> float:
    """Query-key pairs that a causal mask keeps: q p + q (q + 1) / 2 for q new tokens after p past ones [count].

    >>> causal_pairs(3, 2)
    12.0
    """
    return new_tokens * past_tokens + new_tokens * (new_tokens + 1) / 2


def experts_touched(experts: float, top_k: float, tokens: float) -> float:
    """Expected number of distinct experts that ``tokens`` tokens reach: E (1 - (1 - k/E)^t).

    Parameters
    ----------
    experts: E, experts to choose from [count].
    top_k: k, experts per token [count].
    tokens: t [count].

    Returns
    -------
    experts [count], between k and E for t >= 1.

    Valid for uniform, independent routing; skewed routing touches fewer. Source: expectation of the union of t random
    k-subsets.

    >>> round(experts_touched(128, 8, 1), 6), round(experts_touched(128, 8, 64), 1)
    (8.0, 125.9)

    """
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))


def _gemm(
    stage: Stage, name: str, shape: tuple[float, float, float], dtype: WeightDtype, *, copies: float = 1.0
) -> Operation:
    """``copies`` GEMMs (m, k) x (k, n) in one kernel: 2 m n k FLOP each; weights, input and output once."""
    m, n, k = shape
    # An FP8 GEMM reads its input as FP8; everything else moves 16-bit activations.
    input_bytes = 1 if dtype in (WeightDtype.FP8, WeightDtype.FP8_BLOCK) else _ACTIVATION_BYTES
    weights = copies * k * n * dtype.bytes_per_parameter
    return Operation(
        stage=stage,
        name=name,
        kind=OperationKind.GEMM,
        flop=copies * 2.0 * m * n * k,
        size_bytes=weights + copies * (m * k * input_bytes + m * n * _ACTIVATION_BYTES),
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        weight_bytes=weights,
    )


def _elementwise(stage: Stage, name: str, tokens: float, bytes_per_token: float) -> Operation:
    return Operation(stage, name, OperationKind.ELEMENTWISE, 0.0, tokens * bytes_per_token, m=tokens)


def _norm(arch: Architecture, stage: Stage, name: str, tokens: float) -> Operation:
    """Residual add and RMS norm in one kernel: read input and residual, write both."""
    return _elementwise(stage, name, tokens, 4 * arch.hidden_size * _ACTIVATION_BYTES)


def embedding(arch: Architecture, tokens: float) -> tuple[Operation, ...]:
    """Look-up of the token embeddings on one rank (vocabulary-parallel): one row read, one written per token."""
    return (_elementwise(Stage.EMBEDDING, "embedding", tokens, 2 * arch.hidden_size * _ACTIVATION_BYTES),)


def logits(arch: Architecture, rows: float, tp_size: int = 1) -> tuple[Operation, ...]:
    """Final norm and output head for the tokens that are sampled from (one a request), vocabulary over TP ranks."""
    return (
        _norm(arch, Stage.LOGITS, "final_norm", rows),
        _gemm(Stage.LOGITS, "logits", (rows, arch.vocab_size / tp_size, arch.hidden_size), arch.dtypes.other),
    )


def local_kv_heads(arch: Architecture, tp_size: int) -> int:
    """KV heads that one TP rank holds: kv_heads / tp, at least one (replicated) [count]."""
    return max(1, arch.kv_heads // tp_size)


def _check(arch: Architecture, tp_size: int, ep_size: int) -> None:
    if tp_size < 1 or arch.heads % tp_size:
        raise InputError(f"tp_size {tp_size} does not divide the {arch.heads} heads of {arch.name}")
    if arch.mla is None and arch.kv_heads % tp_size and tp_size % arch.kv_heads:
        raise InputError(f"tp_size {tp_size} neither divides nor is a multiple of the {arch.kv_heads} KV heads")
    if ep_size < 1 or (arch.moe is not None and arch.moe.experts % ep_size):
        experts = arch.moe.experts if arch.moe else 0
        raise InputError(f"ep_size {ep_size} does not divide the {experts} experts of {arch.name}")


def _gqa_qkv(arch: Architecture, tokens: float, tp_size: int, kv_dtype: KvDtype, *, fused: bool) -> list[Operation]:
    """Projection; then queries and keys are normalised (where the LLM does) and rotated, and the cache is written.

    ``fused``: in one kernel, as in the graphs that engines replay at decode; else a kernel each.
    """
    heads, kv_heads = arch.heads // tp_size, local_kv_heads(arch, tp_size)
    width = (heads + 2 * kv_heads) * arch.head_dim
    rotated = (heads + kv_heads) * arch.head_dim
    written = 2 * kv_heads * arch.head_dim
    rotation = 2 * rotated * _ACTIVATION_BYTES
    cache_write = written * (_ACTIVATION_BYTES + kv_dtype.bytes_per_element)
    projection = _gemm(Stage.QKV, "qkv", (tokens, width, arch.hidden_size), arch.dtypes.attention)
    if fused:
        return [projection, _elementwise(Stage.QKV, "rope_kv_write", tokens, rotation + cache_write)]
    norm = [
        _elementwise(Stage.QKV, name, tokens, 2 * count * arch.head_dim * _ACTIVATION_BYTES)
        for name, count in (("q_norm", heads), ("k_norm", kv_heads))
        if arch.qk_norm
    ]
    rope = _elementwise(Stage.QKV, "rope", tokens, rotation)
    return [projection, *norm, rope, _elementwise(Stage.QKV, "kv_write", tokens, cache_write)]


def _mla_down_and_query(
    arch: Architecture, mla: MlaSpec, tokens: float, tp_size: int, kv_dtype: KvDtype
) -> list[Operation]:
    """Projections to the latents (whole on every rank), their norm, queries, then rotation and cache write fused."""
    heads, dtype = arch.heads // tp_size, arch.dtypes.attention
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    down = latent + (mla.q_lora_rank or 0)
    normed = 2 * (mla.kv_lora_rank + (mla.q_lora_rank or 0)) * _ACTIVATION_BYTES
    rotated = (heads + 1) * mla.qk_rope_head_dim
    written = latent * _ACTIVATION_BYTES + kv_bytes_per_token_layer(arch, kv_dtype)
    return [
        _gemm(Stage.QKV, "latents", (tokens, down, arch.hidden_size), dtype),
        _elementwise(Stage.QKV, "latent_norm", tokens, normed),
        _gemm(Stage.QKV, "queries", (tokens, query, mla.q_lora_rank or arch.hidden_size), dtype),
        _elementwise(Stage.QKV, "rope_kv_write", tokens, 2 * rotated * _ACTIVATION_BYTES + written),
    ]


def _prefill_attention(arch: Architecture, q: float, p: float, tp_size: int, kv_dtype: KvDtype) -> list[Operation]:
    """Causal attention of q queries over p + q keys: 2 FLOP per pair, head and (key + value) width.

    MLA expands the latents of all p + q tokens to keys and values first (not absorbed), every chunk anew.
    """
    heads = arch.heads // tp_size
    flop = 2.0 * causal_pairs(q, p) * heads * (arch.head_dim + arch.v_head_dim)
    operations = []
    if arch.mla is not None:
        width = heads * (arch.mla.qk_nope_head_dim + arch.mla.v_head_dim)
        rank = arch.mla.kv_lora_rank
        operations.append(_gemm(Stage.ATTENTION, "expand_latents", (p + q, width, rank), arch.dtypes.attention))
        kv_heads = heads
    else:
        kv_heads = local_kv_heads(arch, tp_size)
    key_bytes = kv_heads * (arch.head_dim + arch.v_head_dim) * kv_dtype.bytes_per_element
    query_bytes = heads * (arch.head_dim + arch.v_head_dim) * _ACTIVATION_BYTES
    operations.append(
        Operation(
            stage=Stage.ATTENTION,
            name="attention",
            kind=OperationKind.PREFILL_ATTENTION,
            flop=flop,
            size_bytes=(p + q) * key_bytes + q * query_bytes,
            m=q,
            kv_dtype=kv_dtype,
            context_tokens=p + q,
        )
    )
    return operations


def _decode_attention(
    arch: Architecture, batch: float, context: float, tp_size: int, kv_dtype: KvDtype
) -> list[Operation]:
    """One query per request over ``context`` keys; MLA absorbed: scores and sums stay in the latent space."""
    heads = arch.heads // tp_size
    if arch.mla is None:
        width = local_kv_heads(arch, tp_size) * (arch.head_dim + arch.v_head_dim) * kv_dtype.bytes_per_element
        flop = 2.0 * batch * context * heads * (arch.head_dim + arch.v_head_dim)
        return [_decode_operation(flop, batch, context, batch * context * width, kv_dtype)]
    mla = arch.mla
    dtype = arch.dtypes.attention
    flop = 2.0 * batch * context * heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
    cache = batch * context * kv_bytes_per_token_layer(arch, kv_dtype)
    rank, nope, value = mla.kv_lora_rank, mla.qk_nope_head_dim, mla.v_head_dim
    return [
        _gemm(Stage.ATTENTION, "absorb_queries", (batch, rank, nope), dtype, copies=heads),
        _decode_operation(flop, batch, context, cache, kv_dtype),
        _gemm(Stage.ATTENTION, "expand_values", (batch, value, rank), dtype, copies=heads),
    ]


def _decode_operation(flop: float, batch: float, context: float, cache_bytes: float, kv_dtype: KvDtype) -> Operation:
    return Operation(
        stage=Stage.ATTENTION,
        name="attention",
        kind=OperationKind.DECODE_ATTENTION,
        flop=flop,
        size_bytes=cache_bytes,
        m=batch,
        kv_dtype=kv_dtype,
        context_tokens=context,
    )


def _output(arch: Architecture, tokens: float, tp_size: int) -> Operation:
    width = arch.heads // tp_size * arch.v_head_dim
    return _gemm(Stage.O_PROJ, "o_proj", (tokens, arch.hidden_size, width), arch.dtypes.attention)


def _gated(arch: Architecture, stage: Stage, tokens: float, width: float, dtype: WeightDtype) -> list[Operation]:
    """An MLP of the rank's ``width``: up (and gate), activation, down."""
    up = 2 if arch.gated_mlp else 1
    return [
        _gemm(stage, "gate_up" if up == 2 else "up", (tokens, up * width, arch.hidden_size), dtype),
        _elementwise(stage, "activation", tokens, (up + 1) * width * _ACTIVATION_BYTES),
        _gemm(stage, "down", (tokens, arch.hidden_size, width), dtype),
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
        return [
            _norm(arch, Stage.MLP, "mlp_norm", tokens),
            *_gated(arch, Stage.MLP, tokens, arch.intermediate_size / ranks.tp_size, arch.dtypes.mlp),
        ]
    operations = [
        _norm(arch, Stage.ROUTER, "mlp_norm", tokens),
        _gemm(Stage.ROUTER, "router", (tokens, moe.experts, arch.hidden_size), arch.dtypes.other),
    ]
    if moe.shared_intermediate_size:
        width = moe.shared_intermediate_size / ranks.tp_size
        operations += _gated(arch, Stage.SHARED_EXPERT, tokens, width, arch.dtypes.shared_expert)
    return [*operations, _experts(arch, moe, tokens, ranks)]


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
    width = moe.intermediate_size / max(1, ranks.tp_size // ep_size)
    fullness = fullest_rank(moe, ep_size, ranks.expert_skew)
    pairs = gathered * moe.top_k / ep_size * fullness
    touched = experts_touched(moe.experts, moe.top_k * fullness, gathered) / ep_size
    matrices = 3 if arch.gated_mlp else 2
    weights = touched * matrices * arch.hidden_size * width * arch.dtypes.experts.bytes_per_parameter
    activations = pairs * (2 * arch.hidden_size + 2 * matrices * width) * _ACTIVATION_BYTES
    return Operation(
        stage=Stage.EXPERTS,
        name="experts",
        kind=OperationKind.MOE,
        flop=2.0 * matrices * pairs * arch.hidden_size * width,
        size_bytes=weights + activations,
        m=pairs,
        n=arch.hidden_size,
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
    if arch.mla is not None:
        qkv = _mla_down_and_query(arch, arch.mla, tokens, tp_size, kv_dtype)
    else:
        qkv = _gqa_qkv(arch, tokens, tp_size, kv_dtype, fused=False)
    attention: list[Operation] = []
    for queries, past in cp_pieces(new_tokens, past_tokens, cp_size, cp_layout):
        attention += _prefill_attention(arch, queries, past, tp_size, kv_dtype)
    return (
        _norm(arch, Stage.QKV, "attention_norm", tokens),
        *qkv,
        *attention,
        _output(arch, tokens, tp_size),
        *_mlp(arch, layer, tokens, _Ranks(tp_size, ep_size, expert_skew)),
    )


def cp_pieces(
    new_tokens: float, past_tokens: float, cp_size: int, layout: CpLayout = CpLayout.ZIGZAG
) -> tuple[tuple[float, float], ...]:
    """(queries, keys before them) of the attention calls of the slowest CP rank.

    Zigzag: pieces i and 2cp-1-i of 2cp; every rank has the same sum, rank 0's pieces are returned. Contiguous: the
    last piece, which sees (2 - 1/cp) times the mean number of pairs when nothing is past.

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
    kv_dtype: KvDtype = KvDtype.BF16,
    expert_skew: float = EXPERT_SKEW,
) -> tuple[Operation, ...]:
    """Operations of one layer for one decode step on one rank, in order.

    ``batch`` requests of the rank's TP group produce one token each; ``context_tokens`` keys are attended to in the
    mean, the new one included. Other arguments and errors as in `prefill_layer`.
    """
    _check(arch, tp_size, ep_size)
    tokens = float(batch)
    if arch.mla is not None:
        qkv = _mla_down_and_query(arch, arch.mla, tokens, tp_size, kv_dtype)
    else:
        qkv = _gqa_qkv(arch, tokens, tp_size, kv_dtype, fused=True)
    return (
        _norm(arch, Stage.QKV, "attention_norm", tokens),
        *qkv,
        *_decode_attention(arch, tokens, context_tokens, tp_size, kv_dtype),
        _output(arch, tokens, tp_size),
        *_mlp(arch, layer, tokens, _Ranks(tp_size, ep_size, expert_skew)),
    )
