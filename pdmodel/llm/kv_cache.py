"""Bytes of KV cache and of recurrent state: what a transfer has to move, and what a sequence keeps."""

from __future__ import annotations

from fractions import Fraction

from pdmodel.errors import CoverageError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.kinds import LayerKind, Mixer

_COMPRESSED_SCALE = 64  # values of a compressed FP8 entry that share one scale of a byte


def is_latent(arch: Architecture) -> bool:
    """Whether some layer keeps one latent per token, equal on all TP ranks, and not split by heads."""
    return any(mixer.is_latent for mixer in arch.distinct_mixers())


def entry_bytes(mixer: Mixer, kv_dtype: KvDtype | str = KvDtype.BF16) -> int:
    """Bytes of one token's keys and values (or latent) in a layer, over all heads, where the layer keeps it.

    Full, window, chunked: H_kv (d + d_v) b. Latent: (r_kv + d_rope) b, whatever ``num_key_value_heads`` says;
    ``fp8_ds_mla``: r_kv FP8 values, one FP32 scale per 128 of them, d_rope values of 16 bits. Compressed: c b, one
    shared key and value; ``fp8_ds_mla``: c - d_rope FP8 values, a scale byte per 64 of them and one more, d_rope values
    of 16 bits. Linear and none: 0.

    Parameters
    ----------
    mixer: of the layer.
    kv_dtype: storage of the cache; it does not follow from the dtype of the weights.

    Returns
    -------
    bytes per token that is kept [byte]; the keys of an indexer are left out.

    Raises
    ------
    CoverageError: ``fp8_ds_mla`` for a layer without latents.

    Sources: vLLM v0.11 ``FullAttentionSpec``/``MLAAttentionSpec`` page sizes; DeepSeek-V2, arXiv 2405.04434, table 1;
    aiconfigurator 0.12.0 (NVIDIA, Apache-2.0), DeepSeek-V4's cache per sequence.

    """
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    packed = dtype is KvDtype.FP8_DS_MLA
    if mixer.kind in (LayerKind.NONE, LayerKind.LINEAR):
        return 0
    if mixer.mla is not None:
        rank, rope = mixer.mla.kv_lora_rank, mixer.mla.qk_rope_head_dim
        return rank + 4 * (rank // 128) + 2 * rope if packed else (rank + rope) * dtype.bytes_per_element
    if mixer.compression is not None:
        rope = mixer.compression.qk_rope_head_dim
        plain = mixer.head_dim - rope
        return plain + plain // _COMPRESSED_SCALE + 1 + 2 * rope if packed else mixer.head_dim * dtype.bytes_per_element
    if packed:
        raise CoverageError("KV dtype 'fp8_ds_mla' is a layout of latents; a layer here has none", expected="fp8")
    return mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim) * dtype.bytes_per_element


def growing_bytes(mixer: Mixer, kv_dtype: KvDtype | str = KvDtype.BF16) -> float:
    """Bytes that a token adds to a layer for good, in a sequence longer than any window.

    Full: one entry. Latent: one entry and the indexer's key, where the layer owns keys. Compressed: 1/m of an entry
    and of a key, where the layer owns them. Window, chunked, linear, none, shared caches: 0.

    Parameters, Raises: as `entry_bytes`.
    Returns: [byte]; a whole number wherever m divides the sizes.
    Validity: entries that are not full yet are counted in part.
    Source: as `entry_bytes`; DeepSeek-V4's per-layer formula in aiconfigurator 0.12.0.
    """
    size = entry_bytes(mixer, kv_dtype)
    if not mixer.stores or mixer.kind in (LayerKind.WINDOW, LayerKind.CHUNKED):
        return 0
    keys = mixer.indexer.key_bytes if mixer.indexer is not None and mixer.indexer.owner else 0
    if mixer.compression is None:
        return size + keys
    if mixer.compression.ratio == 0 or not mixer.compression.owner:
        return 0
    exact = Fraction(size + keys, mixer.compression.ratio)
    return exact.numerator if exact.denominator == 1 else float(exact)


def constant_bytes(mixer: Mixer, kv_dtype: KvDtype | str = KvDtype.BF16, tokens: float | None = None) -> float:
    """Bytes that a layer keeps of a sequence beside what grows: its window, its state, unfinished entries.

    Window, chunked, compressed: min(n, w) entries, and the compressor's running sums. Linear: the state.

    Parameters
    ----------
    mixer, kv_dtype: as `entry_bytes`; states have dtypes of their own.
    tokens: n of the sequence [count]; None: beyond every window.

    Returns
    -------
    [byte]; 0 for an empty sequence.

    Raises: as `entry_bytes`. Validity: an engine that gives back what has left the window; one without hybrid caches
    keeps n entries. Source: as `entry_bytes`; vLLM v0.11 ``SlidingWindowSpec``, ``ChunkedLocalAttentionSpec``,
    ``MambaSpec``.

    """
    if tokens == 0 or not mixer.stores:
        return 0
    held: float = 0
    if mixer.window is not None:
        held = entry_bytes(mixer, kv_dtype) * (mixer.window if tokens is None else min(tokens, mixer.window))
    if mixer.compression is not None:
        held += mixer.compression.state_bytes
    return held + (mixer.state.size_bytes if mixer.state is not None else 0)


def kv_bytes_per_token_layer(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16, layer: int = 0) -> float:
    """Bytes that one token adds to layer ``layer`` for good, over all heads [byte]; see `growing_bytes`."""
    return growing_bytes(arch.mixer(layer), _known(arch, kv_dtype))


def kv_bytes_per_layer(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16) -> tuple[float, ...]:
    """`kv_bytes_per_token_layer` of every layer [byte]."""
    dtype = _known(arch, kv_dtype)
    return tuple(growing_bytes(arch.mixer(layer), dtype) for layer in range(arch.layers))


def kv_bytes_per_token(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16) -> float:
    """Bytes that one token adds to all layers for good, multi-token-prediction layers left out [byte]."""
    return sum(kv_bytes_per_layer(arch, kv_dtype))


def kv_constant_bytes(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16, tokens: float | None = None) -> float:
    """Bytes that a sequence of ``tokens`` keeps beside what grows, all layers [byte]; see `constant_bytes`."""
    dtype = _known(arch, kv_dtype)
    return sum(constant_bytes(arch.mixer(layer), dtype, tokens) for layer in range(arch.layers))


def kv_sequence_bytes(arch: Architecture, tokens: float, kv_dtype: KvDtype | str = KvDtype.BF16) -> float:
    """All that a sequence of ``tokens`` keeps, all layers: n times what grows, and `kv_constant_bytes` [byte]."""
    return tokens * kv_bytes_per_token(arch, kv_dtype) + kv_constant_bytes(arch, kv_dtype, tokens)


def kv_sequence_bytes_rank(arch: Architecture, tokens: float, kv_dtype: KvDtype | str, shards: int) -> float:
    """What one of ``shards`` head shards keeps of a sequence of ``tokens``; each copy of a head counts.

    Equation: per layer, all of it for latents, else 1 / min(shards, heads of the layer's cache).

    Parameters: ``tokens`` n >= 0 [count]; ``shards`` >= 1, dividing or a multiple of each layer's heads [-].
    Returns: [byte].
    Raises: as `entry_bytes`.
    Validity: as `constant_bytes`. Source: as `entry_bytes`.
    """
    dtype = _known(arch, kv_dtype)
    total = 0.0
    for layer in range(arch.layers):
        mixer = arch.mixer(layer)
        held = tokens * growing_bytes(mixer, dtype) + constant_bytes(mixer, dtype, tokens)
        total += held / min(shards, mixer.cache_heads or 1)
    return total


def _known(arch: Architecture, kv_dtype: KvDtype | str) -> KvDtype:
    """The dtype, checked against every kind of layer of the LLM."""
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    if dtype is KvDtype.FP8_DS_MLA and not all(
        mixer.is_latent or entry_bytes(mixer) == 0 for mixer in arch.distinct_mixers()
    ):
        raise CoverageError(f"KV dtype 'fp8_ds_mla' is a layout of latents; {arch.name} has none", expected="fp8")
    return dtype
