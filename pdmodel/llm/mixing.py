"""What one rank computes and reads to mix the tokens of a layer, kind by kind, from the architecture alone.

Formulas: full attention and MLA as published; windows and blocks are full attention over fewer pairs; DSA, compressed
and recurrent layers count the work of their definitions, and are priced by the nearest kernel whose constants are known
(`Operation.basis` says how near).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kinds import Compression, Indexer, LayerKind, Mixer, MlaSpec, State
from pdmodel.llm.kv_cache import entry_bytes
from pdmodel.llm.operation import (
    ACTIVATION_BYTES,
    Operation,
    OperationKind,
    Stage,
    causal_pairs,
    chunked_pairs,
    elementwise,
    gemm,
    window_pairs,
)
from pdmodel.spec import SourceKind

Pieces = Sequence[tuple[float, float]]
"""(queries, keys before them) of the attention calls of a rank."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One layer on one rank: ``tokens`` rows of the projections, 1/``tp_size`` of the heads."""

    arch: Architecture
    mixer: Mixer
    tokens: float
    tp_size: int
    kv_dtype: KvDtype

    @property
    def heads(self) -> int:
        """Query heads of the rank [count]."""
        return self.mixer.heads // self.tp_size

    @property
    def kv_heads(self) -> int:
        """KV heads that the rank holds: kv_heads / tp, at least one (replicated) [count]."""
        return max(1, self.mixer.kv_heads // self.tp_size)

    @property
    def dtype(self) -> WeightDtype:
        """Storage of the projections."""
        return self.arch.dtypes.attention

    def product(self, stage: Stage, name: str, columns: float, depth: float) -> Operation:
        """A projection of the rank's tokens."""
        return gemm(stage, name, (self.tokens, columns, depth), self.dtype)


def prefill_mixing(
    arch: Architecture, mixer: Mixer, tokens: float, pieces: Pieces, *, tp_size: int, kv_dtype: KvDtype
) -> list[Operation]:
    """Projections, attention (or scan) and output projection of a prefill chunk on the slowest rank, in order.

    Parameters: ``tokens`` of the rank's projections [count]; ``pieces`` its calls of attention; ``tp_size`` divides the
    heads.
    Returns: operations of the stages qkv, attention, o_proj; none for a layer that mixes no tokens.
    Raises: `CoverageError` for a KV dtype that the kind has no layout for.
    Validity: as the module says. Source: DeepSeek-V2, arXiv 2405.04434 (MLA); DeepSeek-V3.2 report (DSA); arXiv
    2609.19969 (compressed); Dao and Gu 2024, arXiv 2405.21060 (chunked scans).
    """
    part = _Part(arch, mixer, tokens, tp_size, kv_dtype)
    if mixer.kind is LayerKind.NONE:
        return []
    if mixer.state is not None:
        return _recurrent(part, mixer.state, _scan(part, mixer.state, sum(queries for queries, _ in pieces)))
    if mixer.mla is not None:
        before = _latents(part, mixer.mla)
        core = [
            operation
            for piece in pieces
            for operation in (
                _expanded(part, mixer.mla, *piece)
                if mixer.indexer is None
                else _sparse_latent(part, mixer.mla, mixer.indexer, *piece)
            )
        ]
    elif mixer.compression is not None:
        before = _compressed_projections(part, mixer.compression)
        core = [operation for piece in pieces for operation in _compressed_prefill(part, mixer.compression, *piece)]
    else:
        before = _projections(part, fused=False)
        core = [_softmax(part, *piece) for piece in pieces]
    return [*before, *core, *_output(part)]


def decode_mixing(
    arch: Architecture,
    mixer: Mixer,
    batch: float,
    context_tokens: float,
    *,
    tp_size: int,
    kv_dtype: KvDtype,
    dcp_size: int = 1,
) -> list[Operation]:
    """The same for one decode step: ``batch`` requests of one token, each with ``context_tokens`` in the mean.

    ``dcp_size`` D TP ranks share the tokens of the heads that each of them would keep: each answers the queries of all
    D for 1/D of the tokens, and corrects what it found by what the others found. Full attention and latents alone.

    Other parameters, Returns, Raises, Validity, Source: as `prefill_mixing`.
    """
    part = _Part(arch, mixer, batch, tp_size, kv_dtype)
    if mixer.kind is LayerKind.NONE:
        return []
    if mixer.state is not None:
        return _recurrent(part, mixer.state, _update(part, mixer.state))
    if mixer.mla is not None:
        core = _absorbed(part, mixer.mla, mixer.indexer, context_tokens, dcp_size)
        before = _latents(part, mixer.mla)
    elif mixer.compression is not None:
        before = _compressed_projections(part, mixer.compression)
        core = _compressed_decode(part, mixer.compression, context_tokens)
    else:
        before, core = _projections(part, fused=True), _softmax_step(part, context_tokens, dcp_size)
    return [*before, *core, *_output(part)]


# ---- keys and values of heads ----------------------------------------------------------------------------------------
def _projections(part: _Part, *, fused: bool) -> list[Operation]:
    """Projection; then queries and keys are normalised (where the LLM does) and rotated, and the cache is written.

    ``fused``: in one kernel, as in the graphs that engines replay at decode; else a kernel each. A layer that reads the
    cache of another has queries alone.
    """
    mixer, heads = part.mixer, part.heads
    kv_heads = part.kv_heads if mixer.stores else 0
    cached = kv_heads * (mixer.head_dim + (0 if mixer.one_projection else mixer.v_head_dim))
    width = heads * mixer.head_dim * (2 if mixer.output_gate else 1) + cached
    rotation = 2 * (heads + kv_heads) * mixer.head_dim * ACTIVATION_BYTES
    written = kv_heads * (mixer.head_dim + mixer.v_head_dim)
    cache_write = written * (ACTIVATION_BYTES + part.kv_dtype.bytes_per_element)
    projection = part.product(Stage.QKV, "qkv", width, part.arch.hidden_size)
    if fused:
        return [projection, elementwise(Stage.QKV, "rope_kv_write", part.tokens, rotation + cache_write)]
    norm = [
        elementwise(Stage.QKV, name, part.tokens, 2 * count * mixer.head_dim * ACTIVATION_BYTES)
        for name, count in (("q_norm", heads), ("k_norm", kv_heads))
        if part.arch.qk_norm and count
    ]
    write = [elementwise(Stage.QKV, "kv_write", part.tokens, cache_write)] if written else []
    return [projection, *norm, elementwise(Stage.QKV, "rope", part.tokens, rotation), *write]


def _softmax(part: _Part, queries: float, past: float) -> Operation:
    """Causal attention: 2 FLOP per pair, head and (key + value) width, over what the layer's kind lets a query see."""
    mixer = part.mixer
    width = mixer.head_dim + mixer.v_head_dim
    pairs, seen = causal_pairs(queries, past), past + queries
    if mixer.window is not None:
        count = chunked_pairs if mixer.kind is LayerKind.CHUNKED else window_pairs
        pairs, seen = count(queries, past, mixer.window), min(past, mixer.window) + queries
    return Operation(
        stage=Stage.ATTENTION,
        name="attention",
        kind=OperationKind.PREFILL_ATTENTION,
        flop=2.0 * pairs * part.heads * width,
        size_bytes=width * (seen * part.kv_heads * part.kv_dtype.bytes_per_element + queries * part.heads * 2),
        m=queries,
        kv_dtype=part.kv_dtype,
        context_tokens=seen,
        pairs=0.0 if mixer.window is None else pairs,
        basis=SourceKind.MEASURED if mixer.window is None else SourceKind.DERIVED,
    )


def _softmax_step(part: _Part, context: float, dcp_size: int) -> list[Operation]:
    """One query per request over the keys that it sees; within blocks half of one in the mean."""
    mixer = part.mixer
    seen = context
    if mixer.window is not None and context > mixer.window:
        seen = (mixer.window + 1) / 2 if mixer.kind is LayerKind.CHUNKED else mixer.window
    seen /= dcp_size
    width = mixer.head_dim + mixer.v_head_dim
    cache = part.tokens * seen * part.kv_heads * width * part.kv_dtype.bytes_per_element
    basis = SourceKind.MEASURED if mixer.window is None else SourceKind.DERIVED
    flop = 2.0 * part.tokens * seen * part.heads * dcp_size * width
    return [_step(part, flop, seen, cache, basis=basis), *_corrected(part, mixer.v_head_dim, dcp_size)]


def _corrected(part: _Part, width: int, dcp_size: int) -> list[Operation]:
    """What a part of the tokens gives, weighed by its share of the softmax: outputs of ``width`` are read and written.

    Source: vLLM v1/attention/ops/common.py, correct_attn_out.
    """
    if dcp_size == 1:
        return []
    moved = 2 * part.heads * dcp_size * width * ACTIVATION_BYTES
    return [elementwise(Stage.ATTENTION, "correct_parts", part.tokens, moved)]


def _step(
    part: _Part, flop: float, seen: float, cache_bytes: float, *, basis: SourceKind, name: str = "attention"
) -> Operation:
    return Operation(
        stage=Stage.ATTENTION,
        name=name,
        kind=OperationKind.DECODE_ATTENTION,
        flop=flop,
        size_bytes=cache_bytes,
        m=part.tokens,
        kv_dtype=part.kv_dtype,
        context_tokens=seen,
        basis=basis,
    )


def _call(
    part: _Part, name: str, queries: float, pairs: float, *, flop_per_pair: float, size_bytes: float
) -> Operation:
    """Attention over chosen pairs at prefill, priced as dense attention over as many."""
    return Operation(
        stage=Stage.ATTENTION,
        name=name,
        kind=OperationKind.PREFILL_ATTENTION,
        flop=pairs * flop_per_pair,
        size_bytes=size_bytes,
        m=queries,
        kv_dtype=part.kv_dtype,
        context_tokens=pairs / queries,
        pairs=pairs,
        basis=SourceKind.ASSUMED,
    )


# ---- latents ---------------------------------------------------------------------------------------------------------
def _latents(part: _Part, mla: MlaSpec) -> list[Operation]:
    """Projections to the latents (whole on every rank), their norm, queries, then rotation and cache write fused."""
    latent = mla.kv_lora_rank + mla.qk_rope_head_dim
    query = part.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    normed = 2 * (mla.kv_lora_rank + (mla.q_lora_rank or 0)) * ACTIVATION_BYTES
    rotated = (part.heads + 1) * mla.qk_rope_head_dim
    written = latent * ACTIVATION_BYTES + entry_bytes(part.mixer, part.kv_dtype)
    hidden = part.arch.hidden_size
    return [
        part.product(Stage.QKV, "latents", latent + (mla.q_lora_rank or 0), hidden),
        elementwise(Stage.QKV, "latent_norm", part.tokens, normed),
        part.product(Stage.QKV, "queries", query, mla.q_lora_rank or hidden),
        elementwise(Stage.QKV, "rope_kv_write", part.tokens, 2 * rotated * ACTIVATION_BYTES + written),
        *_index_projections(part, mla.q_lora_rank or hidden),
    ]


def _index_projections(part: _Part, query_depth: int) -> list[Operation]:
    """Queries, weights and keys of the indexer, whole on every rank: its picks are for all heads."""
    indexer = part.mixer.indexer
    if indexer is None or not indexer.picks:
        return []
    return [
        part.product(Stage.QKV, "index_queries", indexer.heads * indexer.head_dim, query_depth),
        part.product(Stage.QKV, "index_keys", indexer.heads + part.mixer.index_columns, part.arch.hidden_size),
    ]


def _expanded(part: _Part, mla: MlaSpec, queries: float, past: float) -> list[Operation]:
    """MLA at prefill: the latents of all tokens are expanded to keys and values (not absorbed), every chunk anew."""
    width = part.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    expand = gemm(Stage.ATTENTION, "expand_latents", (past + queries, width, mla.kv_lora_rank), part.dtype)
    sizes = part.heads * (part.mixer.head_dim + part.mixer.v_head_dim)
    attention = Operation(
        stage=Stage.ATTENTION,
        name="attention",
        kind=OperationKind.PREFILL_ATTENTION,
        flop=2.0 * causal_pairs(queries, past) * sizes,
        size_bytes=sizes * ((past + queries) * part.kv_dtype.bytes_per_element + queries * ACTIVATION_BYTES),
        m=queries,
        kv_dtype=part.kv_dtype,
        context_tokens=past + queries,
    )
    return [expand, attention]


def _absorption(part: _Part, mla: MlaSpec, rows: float) -> tuple[Operation, Operation]:
    """Queries into the latent space, and sums out of it."""
    rank, nope, value = mla.kv_lora_rank, mla.qk_nope_head_dim, mla.v_head_dim
    return (
        gemm(Stage.ATTENTION, "absorb_queries", (rows, rank, nope), part.dtype, copies=part.heads),
        gemm(Stage.ATTENTION, "expand_values", (rows, value, rank), part.dtype, copies=part.heads),
    )


def _sparse_latent(part: _Part, mla: MlaSpec, indexer: Indexer, queries: float, past: float) -> list[Operation]:
    """DSA at prefill: index scores of all pairs where the layer picks, then absorbed attention over the picked ones."""
    into, out = _absorption(part, mla, queries)
    pairs = window_pairs(queries, past, indexer.top_k)
    entry = entry_bytes(part.mixer, part.kv_dtype)
    flop = 2.0 * part.heads * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
    core = _call(part, "attention", queries, pairs, flop_per_pair=flop, size_bytes=(past + queries) * entry)
    return [*_index_scores(part, indexer, queries, past, 1), into, core, out]


def _index_scores(part: _Part, indexer: Indexer, queries: float, past: float, ratio: int) -> list[Operation]:
    if not indexer.picks:
        return []
    pairs = causal_pairs(queries, past) / ratio
    size = (past + queries) / ratio * indexer.key_bytes
    flop = 2.0 * indexer.heads * indexer.head_dim
    return [_call(part, "index_scores", queries, pairs, flop_per_pair=flop, size_bytes=size)]


def _absorbed(part: _Part, mla: MlaSpec, indexer: Indexer | None, context: float, dcp_size: int) -> list[Operation]:
    """MLA at decode, absorbed: scores and sums stay in the latent space. DSA reads all index keys and the picked."""
    into, out = _absorption(part, mla, part.tokens)
    seen = (context if indexer is None else min(context, float(indexer.top_k))) / dcp_size
    flop = 2.0 * part.tokens * seen * part.heads * dcp_size * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim)
    cache = part.tokens * seen * entry_bytes(part.mixer, part.kv_dtype)
    basis = SourceKind.MEASURED if indexer is None else SourceKind.ASSUMED
    core = _step(part, flop, seen, cache, basis=basis)
    return [*_index_step(part, indexer, context, 1), into, core, *_corrected(part, mla.kv_lora_rank, dcp_size), out]


def _index_step(part: _Part, indexer: Indexer | None, context: float, ratio: int) -> list[Operation]:
    if indexer is None or not indexer.picks:
        return []
    keys = part.tokens * context / ratio
    flop = 2.0 * keys * indexer.heads * indexer.head_dim
    return [_step(part, flop, context / ratio, keys * indexer.key_bytes, basis=SourceKind.ASSUMED, name="index_scores")]


# ---- compressed ------------------------------------------------------------------------------------------------------
def _compressed_projections(part: _Part, compression: Compression) -> list[Operation]:
    """Latent of the queries, the shared entry, the compressor's sums (whole on every rank), queries, cache write."""
    entry = part.mixer.head_dim
    down = compression.q_lora_rank + entry + part.mixer.compressor_columns
    rotated = (part.heads + 1) * compression.qk_rope_head_dim
    written = entry * ACTIVATION_BYTES + entry_bytes(part.mixer, part.kv_dtype)
    return [
        part.product(Stage.QKV, "latents", down, part.arch.hidden_size),
        elementwise(Stage.QKV, "latent_norm", part.tokens, 2 * (compression.q_lora_rank + entry) * ACTIVATION_BYTES),
        part.product(Stage.QKV, "queries", part.heads * entry, compression.q_lora_rank),
        elementwise(Stage.QKV, "rope_kv_write", part.tokens, 2 * rotated * ACTIVATION_BYTES + written),
        *_index_projections(part, compression.q_lora_rank),
    ]


def _compressed_prefill(part: _Part, compression: Compression, queries: float, past: float) -> list[Operation]:
    """Window and compressed entries in one attention: 4 FLOP per pair, head and value of an entry.

    Of n/m entries a query sees all, or the K that the indexer picks.
    """
    mixer, ratio = part.mixer, compression.ratio
    pairs = window_pairs(queries, past, mixer.window or 1)
    entries = float(min(past, mixer.window or 1) + queries)
    before: list[Operation] = []
    if ratio:
        seen = causal_pairs(queries, past)
        if mixer.indexer is not None:
            seen = window_pairs(queries, past, mixer.indexer.top_k * ratio)
            before = _index_scores(part, mixer.indexer, queries, past, ratio)
        pairs += seen / ratio
        entries += (past + queries) / ratio
    size = entries * entry_bytes(mixer, part.kv_dtype)
    flop = 4.0 * part.heads * mixer.head_dim
    return [*before, _call(part, "attention", queries, pairs, flop_per_pair=flop, size_bytes=size)]


def _compressed_decode(part: _Part, compression: Compression, context: float) -> list[Operation]:
    mixer, ratio = part.mixer, compression.ratio
    seen = min(context, float(mixer.window or 1))
    if ratio:
        entries = context / ratio
        seen += entries if mixer.indexer is None else min(entries, float(mixer.indexer.top_k))
    flop = 4.0 * part.tokens * seen * part.heads * mixer.head_dim
    size = part.tokens * seen * entry_bytes(mixer, part.kv_dtype)
    index = _index_step(part, mixer.indexer, context, ratio) if ratio else []
    return [*index, _step(part, flop, seen, size, basis=SourceKind.ASSUMED)]


# ---- recurrent -------------------------------------------------------------------------------------------------------
def _recurrent(part: _Part, state: State, core: list[Operation]) -> list[Operation]:
    """Input projection, convolution, the scan or update, output projection; all split by heads."""
    hidden, tp_size = part.arch.hidden_size, part.tp_size
    channels = state.in_columns / tp_size
    inner = state.inner_parameters / hidden / tp_size
    return [
        part.product(Stage.QKV, "state_in", channels, hidden),
        *([part.product(Stage.QKV, "state_gates", inner, hidden)] if inner else []),
        elementwise(Stage.ATTENTION, "state_conv", part.tokens, 2 * channels * ACTIVATION_BYTES),
        *core,
        part.product(Stage.O_PROJ, "o_proj", hidden, state.out_rows / tp_size),
    ]


def _scan(part: _Part, state: State, queries: float) -> list[Operation]:
    """Chunked scan at prefill: 4 q H d_k d_v to and from the state, 2 q C H (d_k + d_v) inside chunks of C tokens."""
    if not state.matrix_bytes:
        return []
    heads = state.heads / part.tp_size
    across = 4.0 * queries * heads * state.key_dim * state.value_dim
    inside = 2.0 * queries * state.scan_chunk * heads * (state.key_dim + state.value_dim)
    moved = 2 * state.matrix_bytes / part.tp_size + queries * state.in_columns / part.tp_size * ACTIVATION_BYTES
    pairs = queries * state.scan_chunk
    return [_call(part, "scan", queries, pairs, flop_per_pair=(across + inside) / pairs, size_bytes=moved)]


def _update(part: _Part, state: State) -> list[Operation]:
    """One step: the state of every request is read, multiplied, and written."""
    if not state.matrix_bytes:
        return []
    flop = 4.0 * part.tokens * state.heads / part.tp_size * state.key_dim * state.value_dim
    size = 2.0 * part.tokens * state.matrix_bytes / part.tp_size
    return [_step(part, flop, 0.0, size, basis=SourceKind.ASSUMED, name="state_update")]


def _output(part: _Part) -> list[Operation]:
    """Gate of the output where there is one, and its projection; in groups of low rank for compressed attention."""
    mixer, hidden = part.mixer, part.arch.hidden_size
    width = part.heads * mixer.v_head_dim
    if mixer.compression is not None:
        groups, rank = mixer.compression.o_groups, mixer.compression.o_lora_rank
        shape = (part.tokens, rank, mixer.heads * mixer.v_head_dim / groups)
        return [
            gemm(Stage.O_PROJ, "o_groups", shape, part.dtype, copies=groups / part.tp_size),
            part.product(Stage.O_PROJ, "o_proj", hidden, groups * rank / part.tp_size),
        ]
    gate = [elementwise(Stage.O_PROJ, "output_gate", part.tokens, 3 * width * ACTIVATION_BYTES)]
    return [*(gate if mixer.output_gate else []), part.product(Stage.O_PROJ, "o_proj", hidden, width)]
