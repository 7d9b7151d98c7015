"""What a Hugging Face config leaves to the defaults of its ``model_type``.

Source of every entry: the defaults of the configuration class of that name in Hugging Face transformers 4.5x.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of one ``model_type``.

    ``gated_mlp``: gate, up and down matrices. ``qkv_bias``, ``qk_norm``, ``tied_embeddings``: used where the config is
    silent. ``opt_in_window``: ``sliding_window`` counts only where ``use_sliding_window`` is true. ``silent_window``:
    the window that an absent ``sliding_window`` means. ``head_dim``: what an absent ``head_dim`` means; else
    hidden_size / heads. ``kv_heads_required``: an absent ``num_key_value_heads`` does not mean MHA.
    ``experts_in_intermediate_size``: ``intermediate_size`` is the width of an expert.
    """

    gated_mlp: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    opt_in_window: bool = False
    silent_window: int | None = None
    head_dim: int | None = None
    kv_heads_required: bool = False
    experts_in_intermediate_size: bool = False


UNKNOWN_FAMILY = Family(kv_heads_required=True)
"""For a ``model_type`` that is not listed: nothing that caches follow from is taken from a default."""

_QWEN2 = Family(qkv_bias=True, opt_in_window=True, kv_heads_required=True)
_QWEN3 = Family(qk_norm=True, opt_in_window=True, kv_heads_required=True)
_MIXTRAL = Family(kv_heads_required=True, experts_in_intermediate_size=True)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "yi": Family(),
    "mistral": Family(silent_window=4096, kv_heads_required=True),
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen3": Family(qk_norm=True, opt_in_window=True, kv_heads_required=True, head_dim=128),
    "qwen3_moe": _QWEN3,
    "qwen3_vl": Family(qk_norm=True, opt_in_window=True, kv_heads_required=True, head_dim=128),
    "qwen3_vl_moe": _QWEN3,
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "kimi_k2": Family(),
    "glm4_moe": Family(kv_heads_required=True),
    "glm4_moe_lite": Family(),
    "glm4": Family(kv_heads_required=True, head_dim=128),
    "glm": Family(kv_heads_required=True, head_dim=128),
    "minimax_m2": Family(kv_heads_required=True, experts_in_intermediate_size=True, qk_norm=True),
    "bailing_moe": Family(),
    "bailing_moe_v2": Family(),
    "ernie4_5": Family(kv_heads_required=True),
    "dots1": Family(qk_norm=True),
    "phi3": Family(),
    "phimoe": Family(kv_heads_required=True, experts_in_intermediate_size=True),
    "gemma": Family(tied_embeddings=True, kv_heads_required=True, head_dim=256),
    "granite": Family(),
    "granitemoe": Family(experts_in_intermediate_size=True),
    "olmo": Family(),
    "olmo2": Family(qk_norm=True),
    "olmoe": Family(qk_norm=True, experts_in_intermediate_size=True),
    "internlm": Family(),
    "internlm2": Family(),
    "internlm3": Family(kv_heads_required=True),
    "baichuan": Family(),
    "stablelm": Family(),
    "cohere": Family(tied_embeddings=True),
    "seed_oss": Family(kv_heads_required=True, qkv_bias=True, head_dim=128),
    "smollm3": Family(opt_in_window=True, kv_heads_required=True, tied_embeddings=True),
    "exaone4": Family(qk_norm=True, kv_heads_required=True),
    "starcoder2": Family(gated_mlp=False, qkv_bias=True, kv_heads_required=True, tied_embeddings=True),
    "nemotron": Family(gated_mlp=False),
    "phi": Family(gated_mlp=False, qkv_bias=True),
}

# Kinds whose configs can look plain although the attention is not.
REFUSED_FAMILIES: dict[str, str] = {
    "llama4": "chunked attention on three layers of four",
    "gpt_oss": "sliding-window attention on every other layer",
    "gemma2": "sliding-window attention on every other layer",
    "gemma3": "sliding-window attention on five layers of six",
    "gemma3n": "sliding-window attention and shared caches",
    "gemma4": "sliding-window attention and unequal heads",
    "cohere2": "sliding-window attention on three layers of four",
    "gpt_neo": "local attention on every other layer",
    "deepseek_v32": "the DSA indexer's keys",
    "deepseek_v4": "compressed attention (CSA, HCA)",
    "glm_moe_dsa": "the DSA indexer's keys",
    "longcat_flash": "two attention blocks per layer",
    "kimi_linear": "linear attention",
    "qwen3_next": "gated-delta linear attention",
    "qwen3_5": "gated-delta linear attention",
    "qwen3_5_moe": "gated-delta linear attention",
    "minimax": "lightning linear attention",
    "minimax_m1": "lightning linear attention",
    "minimax_text_01": "lightning linear attention",
    "bailing_moe_linear": "linear attention",
    "jamba": "Mamba layers",
    "bamba": "Mamba layers",
    "zamba": "Mamba layers",
    "zamba2": "Mamba layers",
    "falcon_h1": "Mamba layers",
    "nemotron_h": "Mamba layers",
    "granitemoehybrid": "Mamba layers",
    "mamba": "Mamba layers",
    "mamba2": "Mamba layers",
    "falcon_mamba": "Mamba layers",
    "recurrent_gemma": "recurrent layers",
    "rwkv": "recurrent layers",
    "lfm2": "convolution layers",
    "lfm2_moe": "convolution layers",
    "mllama": "cross-attention layers",
    "nemotron-nas": "attention that differs by layer",
    "deci": "attention that differs by layer",
    "step3": "multi-matrix factorised attention",
    "mimo_v2_flash": "sliding-window attention and unequal K and V widths",
}
