"""What a Hugging Face config leaves to the defaults of its ``model_type``.

Source of every entry: the defaults of the configuration class of that name in Hugging Face transformers 4.5x and 5.x;
where there is none, the configuration class beside the published checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Defaults of one ``model_type``.

    ``gated_mlp``: gate, up and down matrices. ``qkv_bias``, ``qk_norm``, ``tied_embeddings``: used where the config is
    silent. ``window``: ``sliding_window`` has a meaning. ``opt_in_window``: only where ``use_sliding_window`` is true.
    ``silent_window``: the window that an absent ``sliding_window`` means. ``pattern``: kinds of layers that repeat
    where no field lists them, L local (window), C chunked, G global. ``head_dim``: what an absent ``head_dim`` means;
    else hidden_size / heads. ``kv_heads_required``: an absent ``num_key_value_heads`` does not mean MHA.
    ``experts_in_intermediate_size``: ``intermediate_size`` is the width of an expert. ``every_layer_moe``: experts in
    every layer where no field says otherwise. ``dense_beside_experts``: a dense MLP of ``intermediate_size`` runs
    beside the experts of each layer. ``state``: kind of the recurrent layers, a key of `hf_states.STATE_FIELDS`.
    ``output_gate``: a gate scales the attention's output. ``shares_last``: the last ``num_kv_shared_layers`` layers
    keep no keys. ``compressed``: compressed attention (CSA, HCA, CSA2). ``uncounted``: matrices that parameters leave
    out, in words. ``silent``: sizes that published configs of it leave out, and what that means.
    """

    gated_mlp: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    window: bool = False
    opt_in_window: bool = False
    silent_window: int | None = None
    pattern: str = ""
    head_dim: int | None = None
    kv_heads_required: bool = False
    experts_in_intermediate_size: bool = False
    every_layer_moe: bool = False
    dense_beside_experts: bool = False
    state: str | None = None
    output_gate: bool = False
    shares_last: bool = False
    compressed: bool = False
    uncounted: str = ""
    silent: tuple[tuple[str, int], ...] = ()


UNKNOWN_FAMILY = Family(kv_heads_required=True)
"""For a ``model_type`` that is not listed: nothing that caches follow from is taken from a default."""

_QWEN2 = Family(qkv_bias=True, window=True, opt_in_window=True, kv_heads_required=True)
_QWEN3 = Family(qk_norm=True, window=True, opt_in_window=True, kv_heads_required=True)
_MIXTRAL = Family(window=True, kv_heads_required=True, experts_in_intermediate_size=True)
_QWEN3_DENSE = Family(qk_norm=True, window=True, opt_in_window=True, kv_heads_required=True, head_dim=128)
_QWEN3_HYBRID = Family(qk_norm=True, kv_heads_required=True, head_dim=256, state="gated_delta", output_gate=True)
_GEMMA = Family(tied_embeddings=True, kv_heads_required=True, head_dim=256)
_PER_LAYER = "embeddings per layer"
_GEMMA3N = Family(
    qk_norm=True,
    tied_embeddings=True,
    window=True,
    pattern="LLLLG",
    kv_heads_required=True,
    head_dim=256,
    shares_last=True,
    uncounted=_PER_LAYER,
)
_GEMMA4 = Family(
    qk_norm=True,
    tied_embeddings=True,
    window=True,
    silent_window=512,
    pattern="LLLLLG",
    kv_heads_required=True,
    head_dim=256,
    dense_beside_experts=True,
    every_layer_moe=True,
    shares_last=True,
    uncounted=_PER_LAYER,
)
_GEMMA3 = Family(
    qk_norm=True,
    tied_embeddings=True,
    window=True,
    silent_window=4096,
    pattern="LLLLLG",
    kv_heads_required=True,
    head_dim=256,
    silent=(("num_attention_heads", 8), ("num_key_value_heads", 4), ("vocab_size", 262208)),
)
_COMPRESSED = Family(kv_heads_required=True, every_layer_moe=True, compressed=True)
_LIGHTNING = Family(kv_heads_required=True, experts_in_intermediate_size=True, state="lightning")
_NEMOTRON_H = Family(gated_mlp=False, kv_heads_required=True, state="mamba2")
_BAMBA = Family(kv_heads_required=True, experts_in_intermediate_size=True, state="mamba2")
_MIMO = Family(window=True, kv_heads_required=True)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "yi": Family(),
    "mistral": Family(window=True, silent_window=4096, kv_heads_required=True),
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen3": _QWEN3_DENSE,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3_DENSE,
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
    "phi3": Family(window=True),
    "phimoe": Family(window=True, kv_heads_required=True, experts_in_intermediate_size=True),
    "gemma": _GEMMA,
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
    "falcon": Family(gated_mlp=False, kv_heads_required=True, tied_embeddings=True),
    "cohere": Family(tied_embeddings=True),
    "seed_oss": Family(kv_heads_required=True, qkv_bias=True, head_dim=128),
    "smollm3": Family(window=True, opt_in_window=True, kv_heads_required=True, tied_embeddings=True),
    "exaone4": Family(qk_norm=True, window=True, kv_heads_required=True),
    "starcoder2": Family(gated_mlp=False, qkv_bias=True, window=True, kv_heads_required=True, tied_embeddings=True),
    "nemotron": Family(gated_mlp=False),
    "phi": Family(gated_mlp=False, qkv_bias=True),
    "llama4": Family(pattern="CCCG", kv_heads_required=True, experts_in_intermediate_size=True),
    "gpt_oss": Family(
        window=True,
        silent_window=128,
        pattern="LG",
        kv_heads_required=True,
        experts_in_intermediate_size=True,
        head_dim=64,
    ),
    "gemma2": Family(
        tied_embeddings=True, window=True, silent_window=4096, pattern="LG", kv_heads_required=True, head_dim=256
    ),
    "gemma3": _GEMMA3,
    "gemma3n": _GEMMA3N,
    "gemma4": _GEMMA4,
    "cohere2": Family(tied_embeddings=True, window=True, silent_window=4096, pattern="LLLG", kv_heads_required=True),
    "ministral": Family(window=True, kv_heads_required=True),
    "ministral3": Family(kv_heads_required=True),
    "mistral3": Family(window=True, kv_heads_required=True),
    "mistral4": Family(),
    "deepseek_v32": Family(),
    "glm_moe_dsa": Family(),
    "deepseek_v4": _COMPRESSED,
    "deepseek_v41": _COMPRESSED,
    "kimi_linear": Family(state="kda"),
    "kimi_k25": Family(),
    "qwen3_next": _QWEN3_HYBRID,
    "qwen3_5": _QWEN3_HYBRID,
    "qwen3_5_moe": _QWEN3_HYBRID,
    "minimax": _LIGHTNING,
    "minimax_m1": _LIGHTNING,
    "minimax_text_01": _LIGHTNING,
    "bailing_moe_linear": Family(kv_heads_required=True, qk_norm=True, state="lightning"),
    "jamba": Family(kv_heads_required=True, experts_in_intermediate_size=True, state="mamba1"),
    "bamba": _BAMBA,
    "nemotron_h": _NEMOTRON_H,
    "granitemoehybrid": _BAMBA,
    "lfm2": Family(qk_norm=True, kv_heads_required=True, tied_embeddings=True, state="short_conv"),
    "lfm2_moe": Family(qk_norm=True, kv_heads_required=True, tied_embeddings=True, state="short_conv"),
    "nemotron-nas": Family(),
    "deci": Family(),
    "gpt_oss_puzzle": Family(window=True, experts_in_intermediate_size=True),
    "mimo_v2_flash": _MIMO,
    "mimo_v2": _MIMO,
    "step3p5": Family(window=True),
}

# Kinds whose configs can look plain although the attention is not.
REFUSED_FAMILIES: dict[str, str] = {
    "gpt_neo": "local attention on every other layer",
    "longcat_flash": "two attention blocks per layer",
    "zamba": "attention blocks that layers share",
    "zamba2": "attention blocks that layers share",
    "falcon_h1": "attention and Mamba side by side",
    "mamba": "Mamba layers alone",
    "mamba2": "Mamba layers alone",
    "falcon_mamba": "Mamba layers alone",
    "recurrent_gemma": "recurrent layers",
    "rwkv": "recurrent layers",
    "mllama": "cross-attention layers",
    "step3": "multi-matrix factorised attention",
}
