"""Fields and families that no reader understands are refused by the name of the field that reveals them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.hf_families import FAMILIES, REFUSED_FAMILIES, UNKNOWN_FAMILY, Family
from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.hf_states import STATE_FIELDS
from pdmodel.llm.kinds import LayerKind, Mixer

# Field -> what it says about the cache; refused when its value is neither null, false, 0 nor empty.
_REFUSED_FIELDS: dict[str, str] = {
    "chunk_attn": "chunked attention in another notation",
    "sparse_config": "sparse attention",
    "sparse_attention_config": "sparse attention",
    "dual_chunk_attention_config": "dual chunk attention",
    "use_cla": "caches shared between layers",
    "cla_share_factor": "caches shared between layers",
    "kv_sharing_map": "caches shared between layers",
    "num_key_value_heads_per_layer": "attention that differs by layer",
    "cross_attention_layers": "cross-attention layers",
    "is_encoder_decoder": "an encoder-decoder",
    "attention_types": "local attention",
    "attn_config": "attention described in a nested section",
    "ffn_config": "an MLP described in a nested section",
    "multi_query": "multi-query attention in another notation",
    "multi_query_attention": "multi-query attention in another notation",
}

# Names that hint at a cache or attention of another kind.
_SUSPICIOUS = re.compile(
    r"sliding|window|swa_|chunk|linear_|mamba|ssm|conv|compress|sparse_att|^index|_pattern|layer_types|block_type"
    r"|attn_type|attn_layer|layer_group|lora_rank|kv_|_kv|head_dim|heads|hybrid|recurr|lightning|kv_share|cross_att|latent|delta|gated_att|output_gate|k_eq_v|attention_other|block_configs|full_attention_interval"
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
    hybrid_override_pattern layers_block_type block_configs compress_ratios hybrid_layer_pattern n_layer
    attention_head_dim moe_latent_size moe_num_experts moe_top_k top_k_experts experts_per_token share_expert_dim
    moe_layers_enum moe_shared_expert_intermediate_size moe_layers interleave_moe_layer_step intermediate_size_mlp
    enable_moe_block expert_layer_period expert_layer_offset num_dense_layers expert_dtype hc_mult
    hc_eps hc_sinkhorn_iters mtp_num_hidden_layers mtp_hybrid_override_pattern mtp_layers_block_type use_double_wide_mlp
    hidden_size_per_layer_input vocab_size_per_layer_input moe_shared_expert_overlap
    num_nextn_predict_layers mtp_transformer_layers num_mtp_modules use_mtp qkv_bias attention_bias attention_out_bias
    mlp_bias use_bias use_qkv_bias cla_share_factor max_position_embeddings _source
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

_BY_KIND: dict[LayerKind, frozenset[str]] = {
    kind: frozenset(words.split())
    for kind, words in {
        LayerKind.WINDOW: "sliding_window_size swa_num_attention_heads swa_num_key_value_heads swa_head_dim "
        "swa_v_head_dim swa_rope_theta add_swa_attention_sink_bias attention_other_setting attention_chunk_size "
        "num_attention_groups",
        LayerKind.CHUNKED: "attention_chunk_size attn_temperature_tuning attn_scale floor_scale",
        LayerKind.COMPRESSED: "compress_rope_theta compress_rates o_groups o_lora_rank num_hash_layers "
        "kv_source_layer_ids index_source_layer_ids candidate_source_layer_id candidate_topk_blocks "
        "candidate_block_size index_topk index_head_dim index_n_heads",
        LayerKind.LINEAR: "mla_use_nope",
    }.items()
}
_INDEXER = frozenset(
    """
    index_head_dim index_n_heads index_topk indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset
    indexer_rope_interleave index_share_for_mtp_iteration use_index_cache
    """.split()  # noqa: SIM905 - as above
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
    """Refuse what no reader understands by the field that reveals it.

    Raises
    ------
    CoverageError: naming the field, for cross-, sparse and encoder-decoder attention, caches that layers share in
        other ways than a reader knows, and attention in nested sections.

    """
    if section.family in REFUSED_FAMILIES:
        raise _refuse(section, "model_type", REFUSED_FAMILIES[section.family])
    for key, kind in _REFUSED_FIELDS.items():
        value = section.values.get(key)
        off = key == "cla_share_factor" and (value == 1 or section.values.get("use_cla") is False)
        if _active(value) and not off:
            raise _refuse(section, key, kind)
    if section.get("kv_lora_rank") is None and _active(section.get("q_lora_rank")):
        compressed = _active(section.get("compress_ratios")) or _active(section.get("compress_rates"))
        if not compressed:
            raise _refuse(section, "q_lora_rank", "a query latent without kv_lora_rank")


def refuse_not_understood(section: ConfigSection, mixers: Sequence[Mixer]) -> None:
    """Refuse a field that may change the cache and that no layer's kind explains.

    Raises
    ------
    CoverageError: naming the field; for a ``model_type`` that is not known, any field that is not understood.

    """
    family = family_of(section)
    understood = _UNDERSTOOD | _explained(mixers, family or UNKNOWN_FAMILY)
    for key, value in section.values.items():
        if key in understood or not _active(value) or key.endswith("_token_id"):
            continue
        if family is None:
            raise _refuse(section, key, f"a field not understood for model_type {section.family!r}")
        if _SUSPICIOUS.search(key):
            raise _refuse(section, key, "a field not understood that may change the cache")


def _explained(mixers: Sequence[Mixer], family: Family) -> frozenset[str]:
    """The fields that the kinds of layers that were found account for."""
    found: set[str] = set()
    kinds = {mixer.kind for mixer in mixers}
    for kind in kinds:
        found |= _BY_KIND.get(kind, frozenset())
    if LayerKind.LINEAR in kinds and family.state is not None:
        found |= STATE_FIELDS[family.state]
    if any(mixer.indexer is not None for mixer in mixers):
        found |= _INDEXER
    if LayerKind.CHUNKED not in kinds and family.pattern == "CCCG":
        found |= _BY_KIND[LayerKind.CHUNKED]
    if family.output_gate:
        found.add("attn_output_gate")
    if family.shares_last:
        found.add("num_kv_shared_layers")
    if family.dense_beside_experts:
        found |= {"global_head_dim", "num_global_key_value_heads", "attention_k_eq_v"}
    return frozenset(found)
