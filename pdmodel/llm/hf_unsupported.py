"""Kinds of attention that have no formula here are refused by the name of the field that reveals them."""

from __future__ import annotations

import re
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.hf_families import FAMILIES, REFUSED_FAMILIES, UNKNOWN_FAMILY, Family
from pdmodel.llm.hf_fields import ConfigSection

# Field -> what it says about the cache; refused when its value is neither null, false, 0 nor empty.
_REFUSED_FIELDS: dict[str, str] = {
    "compress_ratios": "compressed attention (CSA, HCA)",
    "hybrid_layer_pattern": "a hybrid of full and sliding-window layers",
    "attention_chunk_size": "chunked attention",
    "chunk_attn": "chunked attention",
    "hybrid_override_pattern": "a hybrid of attention and Mamba layers",
    "layers_block_type": "a hybrid of attention and other layers",
    "attn_layer_indices": "a hybrid of attention and other layers",
    "attn_layer_period": "a hybrid of attention and other layers",
    "full_attention_interval": "a hybrid of full and linear attention",
    "layer_group_size": "a hybrid of full and linear attention",
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": "linear attention",
    "linear_num_value_heads": "linear attention",
    "linear_key_head_dim": "linear attention",
    "mamba_num_heads": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "mamba_n_heads": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "state_size": "Mamba layers",
    "conv_L_cache": "convolution layers",
    "index_head_dim": "the DSA indexer's keys",
    "index_n_heads": "the DSA indexer's keys",
    "index_topk": "the DSA indexer's keys",
    "sparse_config": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "dual_chunk_attention_config": "dual chunk attention",
    "num_kv_shared_layers": "caches shared between layers",
    "use_cla": "caches shared between layers",
    "cla_share_factor": "caches shared between layers",
    "kv_sharing_map": "caches shared between layers",
    "block_configs": "attention that differs by layer",
    "num_key_value_heads_per_layer": "attention that differs by layer",
    "num_attention_groups": "factorised attention with shared keys and values",
    "global_head_dim": "heads that differ between layers",
    "num_global_key_value_heads": "heads that differ between layers",
    "swa_head_dim": "heads that differ between layers",
    "swa_num_key_value_heads": "heads that differ between layers",
    "attention_k_eq_v": "keys and values from one projection",
    "attn_output_gate": "an output gate in the attention",
    "cross_attention_layers": "cross-attention layers",
    "is_encoder_decoder": "an encoder-decoder",
    "attention_types": "local attention",
    "attn_config": "attention described in a nested section",
    "ffn_config": "an MLP described in a nested section",
    "multi_query": "multi-query attention in another notation",
    "multi_query_attention": "multi-query attention in another notation",
    "moe_latent_size": "experts on a latent of the hidden state",
}

_FULL = frozenset({"full_attention", "attention", "full"})
# Names that hint at a cache or attention of another kind.
_SUSPICIOUS = re.compile(
    r"sliding|window|swa_|chunk|linear_|mamba|ssm|conv|compress|sparse_att|^index|_pattern|layer_types|block_type"
    r"|attn_type|lora_rank|kv_|_kv|head_dim|heads|hybrid|recurr|lightning|kv_share|cross_att|latent|delta|gated_att"
)
# Fields that are read, or that change neither caches nor weights nor FLOP.
_UNDERSTOOD = frozenset(
    """
    model_type architectures num_hidden_layers num_layers n_layer hidden_size num_attention_heads num_key_value_heads
    num_kv_heads head_dim v_head_dim qk_head_dim qk_nope_head_dim qk_rope_head_dim q_lora_rank kv_lora_rank use_mla
    intermediate_size vocab_size tie_word_embeddings torch_dtype dtype quantization_config compression_config
    n_routed_experts num_experts num_local_experts num_experts_per_tok num_experts_per_token moe_intermediate_size
    n_shared_experts num_shared_experts shared_expert_intermediate_size shared_intermediate_size first_k_dense_replace
    moe_layer_freq decoder_sparse_step mlp_only_layers mlp_layer_types layer_types sliding_window use_sliding_window
    max_window_layers sliding_window_pattern _sliding_window_pattern attn_type_list use_qk_norm qk_norm
    num_nextn_predict_layers mtp_transformer_layers num_mtp_modules use_mtp qkv_bias attention_bias attention_out_bias
    mlp_bias use_bias max_position_embeddings _source
    attention_dropout hidden_act hidden_activation initializer_range rms_norm_eps layer_norm_eps norm_eps use_cache
    rope_theta rope_scaling rope_parameters rope_interleave rotary_dim partial_rotary_factor rope_type pretraining_tp
    bos_token_id eos_token_id pad_token_id unk_token_id transformers_version auto_map output_router_logits
    router_aux_loss_coef aux_loss_alpha seq_aux norm_topk_prob n_group topk_group topk_method scoring_func
    routed_scaling_factor ep_size qk_norm_type use_routing_bias router_jitter_noise shared_moe_mode _name_or_path
    chunk_size_feed_forward add_cross_attention cross_attention_hidden_size is_decoder tie_encoder_decoder
    resid_pdrop embd_pdrop attn_pdrop hidden_dropout residual_dropout attn_implementation _attn_implementation
    original_max_position_embeddings attention_multiplier embedding_multiplier residual_multiplier logits_scaling
    logit_scale use_parallel_residual hidden_dropout_prob lm_head_bias no_rope_layers no_rope_layer_interval
    image_token_id video_token_id vision_start_token_id vision_end_token_id vision_config vision_token_id
    tokenizer_class torchscript return_dict output_attentions output_hidden_states use_return_dict
    scale_fmt moe_router_enable_expert_bias norm_type layernorm_epsilon
    """.split()  # noqa: SIM905 - a hundred quoted words read worse
)


def _active(value: Any) -> bool:
    return value not in (None, False, 0, "", [], {})


def _refuse(section: ConfigSection, key: str, kind: str, expected: str | None = None) -> CoverageError:
    found = section.get(key)
    shown = repr(found) if not isinstance(found, list | dict) else f"a {type(found).__name__} of {len(found)}"
    shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
    return CoverageError(
        f"found {shown}: not supported ({kind})", file=section.file, path=section.path(key), expected=expected
    )


def family_of(section: ConfigSection) -> Family | None:
    """The defaults of the section's ``model_type``, or None for one that is not known here."""
    return FAMILIES.get(section.family)


def refuse_unsupported(section: ConfigSection) -> None:
    """Pass only configs whose every layer is full attention with one cache layout that a formula here covers.

    Raises
    ------
    CoverageError: naming the field, for sliding-window, chunked, linear, Mamba, compressed, indexed, cross- and shared
        attention, heads that differ between layers, unequal K and V widths; for a ``model_type`` that is not known,
        any field that is not understood.

    """
    if section.family in REFUSED_FAMILIES:
        _refuse_family(section)
    for key, kind in _REFUSED_FIELDS.items():
        value = section.values.get(key)
        if _active(value) and not (key == "cla_share_factor" and value == 1):
            raise _refuse(section, key, kind)
    _refuse_mixed_layers(section)
    _refuse_window(section)
    if section.get("kv_lora_rank") is None and _active(section.get("q_lora_rank")):
        raise _refuse(section, "q_lora_rank", "a query latent without kv_lora_rank")
    known = family_of(section) is not None
    for key, value in section.values.items():
        if key in _UNDERSTOOD or not _active(value) or key.endswith("_token_id"):
            continue
        if not known:
            raise _refuse(section, key, f"a field not understood for model_type {section.family!r}")
        if _SUSPICIOUS.search(key):
            raise _refuse(section, key, "a field not understood that may change the cache")


def _refuse_family(section: ConfigSection) -> None:
    """Name the field that reveals the kind where there is one, else ``model_type``."""
    kind = REFUSED_FAMILIES[section.family]
    revealing = next((key for key in _REFUSED_FIELDS if _active(section.values.get(key))), None)
    if revealing is None and _active(section.values.get("layer_types")):
        _refuse_mixed_layers(section)
    if revealing is None and _active(section.values.get("attn_type_list")):
        revealing = "attn_type_list"
    if revealing is not None:
        raise _refuse(section, revealing, kind)
    raise _refuse(section, "model_type", kind)


def _refuse_mixed_layers(section: ConfigSection) -> None:
    types = section.values.get("layer_types")
    if _active(types):
        if not isinstance(types, list):
            raise section.error("layer_types", f"found {types!r}", expected="a list of attention kinds")
        other = next((kind for kind in types if kind not in _FULL), None)
        if other is not None:
            raise CoverageError(
                f"found {other!r}: not supported (only full attention is)",
                file=section.file,
                path=section.path("layer_types"),
                expected="'full_attention' for every layer",
            )
    list_kinds = section.values.get("attn_type_list")
    if _active(list_kinds) and (not isinstance(list_kinds, list) or any(kind != 1 for kind in list_kinds)):
        raise _refuse(section, "attn_type_list", "linear attention", "1 for every layer")


def _refuse_window(section: ConfigSection) -> None:
    """Refuse a window that some layer applies; accept one that is switched off or never shorter than the context."""
    family = family_of(section) or UNKNOWN_FAMILY
    window = section.values.get("sliding_window")
    if "sliding_window" not in section.values and "layer_types" not in section.values:
        window = family.silent_window
        if window is not None:
            raise CoverageError(
                f"missing key: for {section.family} it means a sliding window of {window}: not supported",
                file=section.file,
                path=section.path("sliding_window"),
                expected="null for full attention",
            )
    if not _active(window) or section.values.get("use_sliding_window") is False:
        return
    if isinstance(window, bool) or not isinstance(window, int):
        raise section.error("sliding_window", f"found {window!r}", expected="an integer or null")
    if _active(section.values.get("layer_types")):
        return  # every entry is full attention: checked before
    if family.opt_in_window:
        if section.values.get("use_sliding_window") is None:
            return
        first, layers = section.values.get("max_window_layers"), section.values.get("num_hidden_layers")
        if isinstance(first, int) and isinstance(layers, int) and first >= layers:
            return
    limit = section.values.get("max_position_embeddings")
    if isinstance(limit, int) and window >= limit:
        return
    raise _refuse(section, "sliding_window", "sliding-window attention", "null, or use_sliding_window false")
