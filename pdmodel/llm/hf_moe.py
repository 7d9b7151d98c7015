"""Routed experts in Hugging Face configs: how many, how wide, in which layers, and what runs beside them."""

from __future__ import annotations

from collections.abc import Mapping

from pdmodel.llm.architecture import MoeSpec
from pdmodel.llm.hf_families import Family
from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.hf_words import EXPERTS, fitted

_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "experts_per_token")


def read_moe(section: ConfigSection, words: tuple[str, ...], family: Family) -> MoeSpec | None:
    """The routed experts, or None where the config has none; ``words`` are the kinds of the layers."""
    if not section.optional_integer(*_EXPERTS) or not section.flag("enable_moe_block", default=True):
        return None
    experts = section.integer(*_EXPERTS)
    top_k = section.integer(*_TOP_K)
    if top_k > experts:
        key = section.present(*_TOP_K) or _TOP_K[0]
        raise section.error(key, f"found {top_k}", expected=f"at most the number of experts ({experts})")
    if experts == 1 and top_k == 1:
        return None
    routed = frozenset(layer for layer, word in enumerate(words) if word == EXPERTS)
    moe_layers = routed or _moe_layers(section, len(words), family)
    if not moe_layers:
        return None
    in_mlp_width = family.experts_in_intermediate_size or section.present(*_EXPERTS) == "num_local_experts"
    intermediate = section.integer("moe_intermediate_size", *(("intermediate_size",) if in_mlp_width else ()))
    shared, gated = _shared_experts(section, intermediate)
    if family.dense_beside_experts:
        shared = section.integer("intermediate_size")
    if section.family == "llama4":
        shared = intermediate  # one shared expert, as wide as a routed one
    latent = section.optional_integer("moe_latent_size", minimum=1)
    return MoeSpec(experts, top_k, intermediate, moe_layers, shared, gated, latent)


def block_experts(found: Mapping[int, tuple[int, int, int, int]]) -> tuple[MoeSpec | None, tuple[str, ...]]:
    """Experts that ``block_configs`` gives layer by layer as one record: their mean number, with a note."""
    if not found:
        return None, ()
    counts = [entry[0] for entry in found.values()]
    top_k, intermediate, shared = (max(entry[part] for entry in found.values()) for part in (1, 2, 3))
    note = f"layers have {min(counts)} to {max(counts)} experts: parameters and costs count the mean"
    mean = max(round(sum(counts) / len(counts)), top_k)
    return MoeSpec(mean, top_k, intermediate, frozenset(found), shared), (note,) if len(set(counts)) > 1 else ()


def _shared_experts(section: ConfigSection, intermediate: int) -> tuple[int, bool]:
    """Width of all shared experts together, and whether a gate scales their output (Qwen2-MoE)."""
    explicit = section.optional_integer(
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
    )
    if explicit is not None:
        return explicit, explicit > 0 and section.get("shared_expert_intermediate_size") is not None
    count = section.optional_integer("n_shared_experts", "num_shared_experts") or 0
    return count * intermediate, False


def _moe_layers(section: ConfigSection, layers: int, family: Family) -> frozenset[int]:
    """0-based layers with routed experts.

    ``mlp_layer_types``, a list in ``moe_layer_freq``, ``moe_layers`` or ``moe_layers_enum`` say it outright. DeepSeek's
    way: layers from ``first_k_dense_replace`` on, every ``moe_layer_freq``-th. Llama 4: every
    ``interleave_moe_layer_step``-th, Qwen: every ``decoder_sparse_step``-th, counted from 1, but for
    ``mlp_only_layers``. Jamba: ``expert_layer_period`` and offset. Else all.
    """
    listed = _listed(section, layers)
    if listed is not None:
        return listed
    if section.present("num_dense_layers"):
        return frozenset(range(section.integer("num_dense_layers", minimum=0), layers))
    if section.present("n_routed_experts", "first_k_dense_replace") and not family.every_layer_moe:
        first = section.integer("first_k_dense_replace", minimum=0)
        step = section.optional_integer("moe_layer_freq", minimum=1) or 1
        return frozenset(layer for layer in range(first, layers) if layer % step == 0)
    if section.present("expert_layer_period"):
        period, offset = section.integer("expert_layer_period"), section.optional_integer("expert_layer_offset") or 0
        return frozenset(layer for layer in range(layers) if layer % period == offset)
    step = section.optional_integer("interleave_moe_layer_step", "decoder_sparse_step") or 1
    dense = frozenset(section.integers("mlp_only_layers"))
    return frozenset(layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _listed(section: ConfigSection, layers: int) -> frozenset[int] | None:
    """Layers given one by one, by flags or by their numbers; those of prediction layers are left out."""
    kinds = section.values.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        words = fitted(section, "mlp_layer_types", kinds, layers)
        return frozenset(index for index, word in enumerate(words) if word != "dense")
    if isinstance(section.get("moe_layer_freq"), list):
        flags = fitted(section, "moe_layer_freq", section.integers("moe_layer_freq"), layers)
        return frozenset(index for index, flag in enumerate(flags) if flag)
    numbers = section.get("moe_layers_enum")
    if isinstance(numbers, str) and numbers:
        parts = numbers.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise section.error("moe_layers_enum", f"found {numbers[:40]!r}", expected="numbers of layers with commas")
        return frozenset(layer for part in parts if (layer := int(part)) < layers)
    found = section.integers("moe_layers")
    return frozenset(layer for layer in found if 0 <= layer < layers) if found else None
