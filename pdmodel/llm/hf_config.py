"""Read the architecture of an LLM from its published Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.architecture import Architecture, AttentionKind, MlaSpec, MoeSpec
from pdmodel.llm.hf_families import UNKNOWN_FAMILY, Family
from pdmodel.llm.hf_fields import ConfigSection, text_section
from pdmodel.llm.hf_quantization import weight_dtypes
from pdmodel.llm.hf_unsupported import family_of, refuse_unsupported
from pdmodel.spec import read_json

_LAYERS = ("num_hidden_layers", "num_layers")
_MOST_LAYERS = 10_000
_KV_HEADS = ("num_key_value_heads", "num_kv_heads")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token")


def read_hf_config(path: Path, name: str | None = None) -> Architecture:
    """The architecture in the config file at ``path``.

    Raises
    ------
    InputError: file, JSON path, what was found and what is legal, for a file that is missing, malformed or does not
        agree with itself.
    CoverageError: the same, for a kind of attention or of weights that no formula covers.

    """
    return architecture_from_config(read_json(path), name=name or _name_of(path), file=str(path))


def _name_of(path: Path) -> str:
    stem = path.name.removesuffix(".json").removesuffix(".config")
    return path.parent.name if stem == "config" and path.parent.name else stem


def architecture_from_config(raw: Mapping[str, Any], *, name: str, file: str = "") -> Architecture:
    """The architecture in a config that is already parsed; errors as in `read_hf_config`."""
    section = text_section(raw, file)
    refuse_unsupported(section)
    family = family_of(section) or UNKNOWN_FAMILY
    layers = section.integer(*_LAYERS, maximum=_MOST_LAYERS)
    hidden = section.integer("hidden_size")
    heads = section.integer("num_attention_heads")
    _check_per_layer_lists(section, layers)
    mla = _mla(section)
    kv_heads = heads if mla else _kv_heads(section, heads, family)
    head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else _head_dim(section, hidden, heads, family)
    moe = _moe(section, layers, family)
    all_moe = moe is not None and len(moe.layers) == layers
    intermediate = section.optional_integer("intermediate_size") if all_moe else section.integer("intermediate_size")
    bias = section.flag("attention_bias", default=False) or section.flag("use_bias", default=False)
    return Architecture(
        name=name,
        layers=layers,
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=mla.v_head_dim if mla else head_dim,
        attention=AttentionKind.MLA if mla else AttentionKind.GQA,
        intermediate_size=intermediate or 0,
        vocab_size=section.integer("vocab_size"),
        dtypes=weight_dtypes(section, layers),
        mla=mla,
        moe=moe,
        tied_embeddings=section.flag("tie_word_embeddings", default=family.tied_embeddings),
        qk_norm=section.flag("use_qk_norm", default=family.qk_norm),
        qkv_bias=bias or section.flag("qkv_bias", default=family.qkv_bias),
        output_bias=bias and section.family not in ("glm4_moe",),
        gated_mlp=family.gated_mlp,
        mtp_layers=_mtp_layers(section),
        max_context_tokens=section.optional_integer("max_position_embeddings"),
        file=file,
    )


def _check_per_layer_lists(section: ConfigSection, layers: int) -> None:
    for key in ("layer_types", "attn_type_list", "mlp_layer_types"):
        found = section.values.get(key)
        if isinstance(found, list) and found and len(found) != layers:
            raise section.error(key, f"found {len(found)} entries", expected=f"{layers}, one a layer")


def _mtp_layers(section: ConfigSection) -> int:
    modules = section.optional_integer("num_nextn_predict_layers", "num_mtp_modules") or 0
    return modules if section.flag("use_mtp", default=True) else 0


def _mla(section: ConfigSection) -> MlaSpec | None:
    """The latent attention, or None where keys and values are cached; ``num_key_value_heads`` plays no role in it."""
    if section.get("kv_lora_rank") is None or not section.flag("use_mla", default=True):
        return None
    return MlaSpec(
        q_lora_rank=section.optional_integer("q_lora_rank", minimum=1),
        kv_lora_rank=section.integer("kv_lora_rank"),
        qk_nope_head_dim=section.integer("qk_nope_head_dim"),
        qk_rope_head_dim=section.integer("qk_rope_head_dim"),
        v_head_dim=section.integer("v_head_dim"),
    )


def _kv_heads(section: ConfigSection, heads: int, family: Family) -> int:
    key = section.present(*_KV_HEADS)
    if key is None and not family.kv_heads_required:
        return heads
    kv_heads = section.integer(*_KV_HEADS)
    if heads % kv_heads:
        raise section.error(
            key or _KV_HEADS[0], f"found {kv_heads}", expected=f"a divisor of num_attention_heads ({heads})"
        )
    return kv_heads


def _head_dim(section: ConfigSection, hidden: int, heads: int, family: Family) -> int:
    """An explicit ``head_dim`` wins; then the family's; then hidden_size / heads, which must be whole."""
    head_dim = section.optional_integer("head_dim", minimum=1) or family.head_dim
    if head_dim is None:
        if hidden % heads:
            raise section.error(
                "head_dim", "missing key", expected=f"an integer, as {heads} heads do not divide hidden_size {hidden}"
            )
        head_dim = hidden // heads
    v_head_dim = section.optional_integer("v_head_dim", minimum=1)
    if v_head_dim not in (None, head_dim):
        raise CoverageError(
            f"found {v_head_dim}: unequal widths of keys and values are not supported",
            file=section.file,
            path=section.path("v_head_dim"),
            expected=f"head_dim ({head_dim})",
        )
    return head_dim


def _moe(section: ConfigSection, layers: int, family: Family) -> MoeSpec | None:
    if not section.optional_integer(*_EXPERTS):
        return None
    experts = section.integer(*_EXPERTS)
    top_k = section.integer(*_TOP_K)
    if top_k > experts:
        key = section.present(*_TOP_K) or _TOP_K[0]
        raise section.error(key, f"found {top_k}", expected=f"at most the number of experts ({experts})")
    moe_layers = _moe_layers(section, layers)
    if not moe_layers:
        return None
    in_mlp_width = family.experts_in_intermediate_size or section.present(*_EXPERTS) == "num_local_experts"
    intermediate = section.integer("moe_intermediate_size", *(("intermediate_size",) if in_mlp_width else ()))
    shared, gated = _shared_experts(section, intermediate)
    return MoeSpec(experts, top_k, intermediate, moe_layers, shared, gated)


def _shared_experts(section: ConfigSection, intermediate: int) -> tuple[int, bool]:
    """Width of all shared experts together, and whether a gate scales their output (Qwen2-MoE)."""
    explicit = section.optional_integer("shared_expert_intermediate_size", "shared_intermediate_size")
    if explicit is not None:
        return explicit, explicit > 0 and section.get("shared_expert_intermediate_size") is not None
    count = section.optional_integer("n_shared_experts", "num_shared_experts") or 0
    return count * intermediate, False


def _moe_layers(section: ConfigSection, layers: int) -> frozenset[int]:
    """0-based layers with routed experts.

    ``mlp_layer_types`` or a list in ``moe_layer_freq`` say it outright. DeepSeek's way: layers from
    ``first_k_dense_replace`` on, every ``moe_layer_freq``-th. Qwen's: every ``decoder_sparse_step``-th, counted from
    1, but for ``mlp_only_layers``. Else all.
    """
    kinds = section.values.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        return frozenset(index for index, kind in enumerate(kinds) if kind != "dense")
    if isinstance(section.get("moe_layer_freq"), list):
        frequency = section.integers("moe_layer_freq")
        if len(frequency) != layers:
            raise section.error("moe_layer_freq", f"found {len(frequency)} entries", expected=f"{layers}, one a layer")
        return frozenset(index for index, flag in enumerate(frequency) if flag)
    if section.present("n_routed_experts", "first_k_dense_replace"):
        first = section.integer("first_k_dense_replace", minimum=0)
        step = section.optional_integer("moe_layer_freq", minimum=1) or 1
        return frozenset(layer for layer in range(first, layers) if layer % step == 0)
    step = section.optional_integer("decoder_sparse_step") or 1
    dense = frozenset(section.integers("mlp_only_layers"))
    return frozenset(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)
