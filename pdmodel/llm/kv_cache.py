"""Bytes of KV cache per token: what a transfer has to move."""

from __future__ import annotations

from pdmodel.errors import CoverageError
from pdmodel.llm.architecture import Architecture, AttentionKind
from pdmodel.llm.dtypes import KvDtype


def is_latent(arch: Architecture) -> bool:
    """Whether the cache is one latent per token, equal on all TP ranks, and not split by heads."""
    return arch.attention is AttentionKind.MLA


def kv_bytes_per_token_layer(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16) -> int:
    """Bytes that one token adds to the cache of one layer, over all heads.

    GQA: 2 H_kv d b. MLA: (r_kv + d_rope) b, whatever ``num_key_value_heads`` says; ``fp8_ds_mla``: r_kv FP8 values,
    one FP32 scale per 128 of them, d_rope values of 16 bits.

    Parameters
    ----------
    arch: the LLM.
    kv_dtype: storage of the cache; it does not follow from the dtype of the weights.

    Returns
    -------
    bytes per token and layer [byte].

    Raises
    ------
    CoverageError: ``fp8_ds_mla`` for an LLM without latents.

    Sources: vLLM v0.11 ``FullAttentionSpec``/``MLAAttentionSpec`` page sizes; DeepSeek-V2, arXiv 2405.04434, table 1.

    """
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    width = dtype.bytes_per_element
    if arch.mla is not None:
        if dtype is KvDtype.FP8_DS_MLA:
            return arch.mla.kv_lora_rank + 4 * (arch.mla.kv_lora_rank // 128) + 2 * arch.mla.qk_rope_head_dim
        return (arch.mla.kv_lora_rank + arch.mla.qk_rope_head_dim) * width
    if dtype is KvDtype.FP8_DS_MLA:
        raise CoverageError(f"KV dtype 'fp8_ds_mla' is a layout of latents; {arch.name} has none", expected="fp8")
    return 2 * arch.kv_heads * arch.head_dim * width


def kv_bytes_per_token(arch: Architecture, kv_dtype: KvDtype | str = KvDtype.BF16) -> int:
    """Bytes that one token adds to the caches of all layers, multi-token-prediction layers left out [byte]."""
    return arch.layers * kv_bytes_per_token_layer(arch, kv_dtype)
