"""Configs that say the common sizes in words of their own, put into the common ones."""

from __future__ import annotations

from dataclasses import replace

from pdmodel.llm.hf_fields import ConfigSection

_FALCON = ("falcon", "refinedweb", "refinedwebmodel")
# Read here, or without a meaning for caches, weights and FLOP.
_FALCON_ONLY = frozenset(
    {
        "multi_query",
        "new_decoder_architecture",
        "num_kv_heads",
        "ffn_hidden_size",
        "bias",
        "alibi",
        "parallel_attn",
        "activation",
        "num_ln_in_parallel_attn",
        "apply_residual_connection_post_layernorm",
        "layer_norm_epsilon",
    }
)


def in_common_words(section: ConfigSection) -> ConfigSection:
    """The section with the names that all readers know.

    Falcon: ``num_kv_heads`` counts only where ``new_decoder_architecture`` is true; else ``multi_query`` means one KV
    head, and without it every head has its own. Source: transformers 4.5x, FalconConfig and FalconAttention.

    Raises: `InputError` for a size that is missing or not legal, with its JSON path.
    """
    if section.family not in _FALCON:
        return section
    heads = section.integer("num_attention_heads", "n_head")
    if section.flag("new_decoder_architecture", default=False):
        kv_heads = section.integer("num_kv_heads") if section.present("num_kv_heads") else heads
    else:
        kv_heads = 1 if section.flag("multi_query", default=True) else heads
    values = {key: value for key, value in section.values.items() if key not in _FALCON_ONLY}
    values |= {
        "model_type": _FALCON[0],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": section.optional_integer("ffn_hidden_size", minimum=1)
        or 4 * section.integer("hidden_size"),
        "use_bias": section.flag("bias", default=False),
    }
    return replace(section, values=values)
