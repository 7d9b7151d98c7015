"""Read the architecture of an LLM from its published Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture, AttentionKind, MoeSpec
from pdmodel.llm.hf_blocks import read_blocks
from pdmodel.llm.hf_families import UNKNOWN_FAMILY, Family
from pdmodel.llm.hf_fields import ConfigSection, text_section
from pdmodel.llm.hf_mixers import Layers, plain_attention, read_mixers
from pdmodel.llm.hf_moe import block_experts, read_moe
from pdmodel.llm.hf_names import in_common_words
from pdmodel.llm.hf_quantization import weight_dtypes
from pdmodel.llm.hf_unsupported import family_of, refuse_not_understood, refuse_unsupported
from pdmodel.llm.hf_words import LISTS, MLP, Words, fitted, layer_words
from pdmodel.llm.kinds import LayerKind, Mixer
from pdmodel.spec import read_json

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer")
_MOST_LAYERS = 10_000


def read_hf_config(path: Path, name: str | None = None) -> Architecture:
    """The architecture in the config file at ``path``.

    Raises
    ------
    InputError: file, JSON path, what was found and what is legal, for a file that is missing, malformed or does not
        agree with itself.
    CoverageError: the same, for a kind of attention or of weights that no formula covers.

    """
    return architecture_from_config(read_json(path), name=name or config_name(path), file=str(path))


def config_name(path: Path) -> str:
    """What an LLM is called whose config lies at ``path``: the file's name, or its folder's for ``config.json``."""
    stem = path.name.removesuffix(".json").removesuffix(".config")
    return path.parent.name if stem == "config" and path.parent.name else stem


def architecture_from_config(raw: Mapping[str, Any], *, name: str, file: str = "") -> Architecture:
    """The architecture in a config that is already parsed; errors as in `read_hf_config`."""
    section = in_common_words(text_section(raw, file))
    refuse_unsupported(section)
    family = family_of(section)
    if family is not None:
        return _architecture(replace(section, silent=dict(family.silent)), family, name)
    try:
        return _architecture(section, UNKNOWN_FAMILY, name)
    except InputError as error:
        text = f"{error.message} (model_type {section.family!r} is not known)"
        message = error.message if "model_type" in error.message else text
        raise type(error)(
            message, file=error.file, path=error.path, expected=error.expected, nearest=error.nearest
        ) from None


def _architecture(section: ConfigSection, family: Family, name: str) -> Architecture:
    layers, hidden = _layer_count(section), section.integer("hidden_size")
    words = layer_words(section, layers, family)
    experts: MoeSpec | None
    if section.get("block_configs"):
        found, widths, experts = _from_blocks(section, words, family, hidden)
    else:
        found = read_mixers(section, words, family, hidden)
        experts = read_moe(section, words.words, family)
        widths = _mlp_widths(section, words.words, family, experts)
    refuse_not_understood(section, found.mixers)
    main = next((mixer for mixer in found.mixers if mixer.heads and mixer.state is None), found.mixers[0])
    alike = all(mixer == main for mixer in found.mixers) and main == Mixer(
        LayerKind.LATENT if main.mla else LayerKind.FULL,
        main.heads,
        main.kv_heads,
        main.head_dim,
        main.v_head_dim,
        mla=main.mla,
    )
    dense = [width for layer, width in enumerate(widths) if experts is None or layer not in experts.layers]
    bias = section.flag("attention_bias", default=False) or section.flag("use_bias", default=False)
    return Architecture(
        name=name,
        layers=layers,
        hidden_size=hidden,
        heads=main.heads,
        kv_heads=main.kv_heads,
        head_dim=main.head_dim,
        v_head_dim=main.v_head_dim,
        attention=AttentionKind.MLA if main.mla else AttentionKind.GQA,
        intermediate_size=next((width for width in dense if width), 0) or _width_beside(section),
        vocab_size=section.integer("vocab_size"),
        dtypes=weight_dtypes(section, layers),
        mla=main.mla,
        moe=experts,
        tied_embeddings=section.flag("tie_word_embeddings", default=family.tied_embeddings),
        qk_norm=section.flag("use_qk_norm", default=family.qk_norm),
        qkv_bias=bias or section.flag("use_qkv_bias", default=section.flag("qkv_bias", default=family.qkv_bias)),
        output_bias=bias and section.family not in ("glm4_moe",),
        gated_mlp=family.gated_mlp,
        mtp_layers=_mtp_layers(section),
        max_context_tokens=section.optional_integer("max_position_embeddings"),
        mixers=() if alike else found.mixers,
        mlp_widths=() if len(set(dense)) <= 1 and all(dense) else tuple(widths),
        residual_streams=section.optional_integer("hc_mult", minimum=1) or 1,
        notes=(*found.notes, *_notes(section, family, layers)),
        file=section.file,
    )


def _layer_count(section: ConfigSection) -> int:
    """Layers by number; where that is absent, by a list that has an entry per layer."""
    if section.present(*_LAYERS) is None:
        for key in LISTS:
            found = section.get(key)
            if isinstance(found, list | str) and found:
                return min(len(found), _MOST_LAYERS)
    return section.integer(*_LAYERS, maximum=_MOST_LAYERS)


def _from_blocks(
    section: ConfigSection, words: Words, family: Family, hidden: int
) -> tuple[Layers, tuple[int, ...], MoeSpec | None]:
    raw = section.get("block_configs")
    if not isinstance(raw, list):
        raise section.error("block_configs", f"found {raw!r}", expected="a list with an object per layer")
    fitted(section, "block_configs", raw, len(words.words))
    plain = plain_attention(section, family, hidden)
    blocks = read_blocks(section, plain, words.words, section.optional_integer("sliding_window", minimum=1), hidden)
    moe, notes = block_experts(blocks.experts)
    return Layers(blocks.mixers, (*words.notes, *notes)), blocks.widths, moe


def _mlp_widths(section: ConfigSection, words: tuple[str, ...], family: Family, moe: MoeSpec | None) -> tuple[int, ...]:
    """Width of every layer's dense MLP: 0 where it routes to experts, or where the word says it has none."""
    routed = frozenset() if moe is None else moe.layers
    # Layers of Nemotron-H do one thing each: mix tokens, route to experts, or apply an MLP.
    alone = family.state == "mamba2" and not family.gated_mlp
    per_layer = section.get("intermediate_size")
    if isinstance(per_layer, list):
        listed = fitted(section, "intermediate_size", section.integers("intermediate_size"), len(words))
        return tuple(0 if layer in routed else width for layer, width in enumerate(listed))
    dense = [layer for layer, word in enumerate(words) if layer not in routed and (not alone or word == MLP)]
    if not dense:
        return (0,) * len(words)
    width = section.integer("intermediate_size_mlp", "intermediate_size", "shared_intermediate_size")
    if family.experts_in_intermediate_size and moe is None and section.optional_integer("shared_intermediate_size"):
        width = section.integer("shared_intermediate_size")
    widths = [width if layer in set(dense) else 0 for layer in range(len(words))]
    shared = section.optional_integer("num_kv_shared_layers") if family.shares_last else 0
    if shared and section.flag("use_double_wide_mlp", default=False):
        widths[-shared:] = [2 * width for width in widths[-shared:]]
    return tuple(widths)


def _width_beside(section: ConfigSection) -> int:
    """``intermediate_size`` where no layer has a dense MLP: kept as a fact."""
    found = section.get("intermediate_size")
    return (section.optional_integer("intermediate_size") or 0) if not isinstance(found, list) else 0


def _notes(section: ConfigSection, family: Family, layers: int) -> tuple[str, ...]:
    notes = []
    if family_of(section) is None:
        notes.append(f"model_type {section.family!r} is not known: read by its fields alone")
    left_out = [f"{key} {value}" for key, value in family.silent if key not in section.values]
    if left_out:
        notes.append(f"left out, so as {section.family} has it: {', '.join(left_out)}")
    if _mtp_layers(section):
        notes.append(f"{_mtp_layers(section)} multi-token-prediction layers are left out of layers, parameters and KV")
    uncounted = (
        [family.uncounted] if family.uncounted and section.optional_integer("hidden_size_per_layer_input") else []
    )
    uncounted += ["n-gram tables (Engram)"] if section.get("engram_layer_ids") else []
    if uncounted:
        notes.append(f"parameters leave out {' and '.join(uncounted)}")
    for key in LISTS:
        found = section.get(key)
        if isinstance(found, list | str) and len(found) > layers:
            notes.append(f"{key} has {len(found)} entries: those after the {layers} layers are left out")
    return tuple(notes)


def _mtp_layers(section: ConfigSection) -> int:
    modules = section.optional_integer("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers") or 0
    return modules if section.flag("use_mtp", default=True) else 0
