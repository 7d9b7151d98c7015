"""Which kind each layer is, in words, from whichever field of a Hugging Face config says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.hf_families import Family
from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.kinds import LayerKind

FULL, WINDOW, CHUNKED, LINEAR, COMPRESSED = (
    LayerKind.FULL.value,
    LayerKind.WINDOW.value,
    LayerKind.CHUNKED.value,
    LayerKind.LINEAR.value,
    LayerKind.COMPRESSED.value,
)
NOTHING, EXPERTS, MLP = "nothing", "experts", "mlp"
"""Words of layers that mix no tokens: none at all, routed experts alone, a dense MLP alone."""

_LAYER_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "full": FULL,
    "global_attention": FULL,
    "sliding_attention": WINDOW,
    "sliding_window": WINDOW,
    "local_attention": WINDOW,
    "chunked_attention": CHUNKED,
    "linear_attention": LINEAR,
    "mamba": LINEAR,
    "mamba2": LINEAR,
    "conv": LINEAR,
    "kda": LINEAR,
    "compressed_sparse_attention": COMPRESSED,
    "heavily_compressed_attention": COMPRESSED,
    "moe": EXPERTS,
    "mlp": MLP,
    "no_op": NOTHING,
}
_LETTERS = {"M": LINEAR, "*": FULL, "E": EXPERTS, "-": MLP}
_PATTERN = {"L": WINDOW, "C": CHUNKED, "G": FULL}
# Prediction layers that lists may have at their end.
_TAILS = ("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", "mtp_transformer_layers")
LISTS = ("hybrid_override_pattern", "layers_block_type", "layer_types", "block_configs", "compress_ratios")
"""Fields with an entry per layer, in the order in which they stand in for an absent ``num_hidden_layers``."""


@dataclass(frozen=True, slots=True)
class Words:
    """A word per layer, the field that they come from ("" where nothing says so), and what was inferred."""

    words: tuple[str, ...]
    field: str = ""
    notes: tuple[str, ...] = ()


def fitted(section: ConfigSection, key: str, found: Sequence[Any], layers: int, spare: int = 0) -> tuple[Any, ...]:
    """The entries of the LLM's own layers; at the end a list may have some for prediction layers, or ``spare`` ones."""
    extra = max([spare, *(section.optional_integer(tail) or 0 for tail in _TAILS)])
    if not layers <= len(found) <= layers + extra:
        raise section.error(key, f"found {len(found)} entries", expected=f"{layers}, one a layer")
    return tuple(found[:layers])


def layer_words(section: ConfigSection, layers: int, family: Family) -> Words:
    """The kind of every layer. `CoverageError` names the field, and the word in it, that is not understood."""
    for key, reader in _READERS.items():
        if _active(section.values.get(key)):
            return Words(reader(section, key, layers), key)
    if family.pattern or _active(section.values.get("sliding_window_pattern")):
        return _patterned(section, layers, family)
    return _windows(section, layers, family)


def _active(value: Any) -> bool:
    return value not in (None, False, 0, "", [], {})


def _letters(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    found = section.values[key]
    if not isinstance(found, str):
        raise section.error(key, f"found {found!r}", expected="a word of a letter per layer")
    return tuple(_word(section, key, letter, _LETTERS) for letter in fitted(section, key, found, layers))


def _typed(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    found = section.values[key]
    if not isinstance(found, list):
        raise section.error(key, f"found {found!r}", expected="a list of kinds, one a layer")
    return tuple(_word(section, key, kind, _LAYER_TYPES) for kind in fitted(section, key, found, layers))


def _word(section: ConfigSection, key: str, found: Any, known: dict[str, str]) -> str:
    if not isinstance(found, str) or found not in known:
        raise CoverageError(
            f"found {found!r}: a kind of layer that is not supported",
            file=section.file,
            path=section.path(key),
            expected="one of " + ", ".join(known),
        )
    return known[found]


def _flags(zero: str, one: str) -> Any:
    def read(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
        found = fitted(section, key, section.integers(key), layers)
        wrong = next((flag for flag in found if flag not in (0, 1)), None)
        if wrong is not None:
            raise section.error(key, f"found {wrong}", expected="0 or 1 for every layer")
        return tuple(one if flag else zero for flag in found)

    return read


def _ratios(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    # One to three draft layers stand behind the LLM's own.
    return (COMPRESSED,) * len(fitted(section, key, section.integers(key), layers, spare=3))


def _linear_config(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    """Kimi Linear: ``full_attn_layers`` and ``kda_layers`` list layers, counted from 1."""
    raw = section.values[key]
    if not isinstance(raw, dict):
        raise section.error(key, f"found {raw!r}", expected="an object")
    inner = ConfigSection(raw, {}, section.file, section.path(key) + ".")
    full, linear = set(inner.integers("full_attn_layers")), set(inner.integers("kda_layers"))
    if full & linear or full | linear != set(range(1, layers + 1)):
        raise inner.error(
            "full_attn_layers", f"{len(full)} full and {len(linear)} linear layers", expected=f"1 to {layers} once each"
        )
    return tuple(FULL if layer in full else LINEAR for layer in range(1, layers + 1))


def _interval(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    step = section.integer(key)
    return tuple(LINEAR if (layer + 1) % step else FULL for layer in range(layers))


def _groups(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    """Ring-linear: the last layer of each group, and what is left behind the last whole group, is softmax attention."""
    size = section.integer(key)
    whole = layers // size * size
    return tuple(FULL if (layer + 1) % size == 0 or layer >= whole else LINEAR for layer in range(layers))


def _indices(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    full = set(section.integers(key))
    wrong = next((layer for layer in sorted(full) if not 0 <= layer < layers), None)
    if wrong is not None:
        raise section.error(key, f"found {wrong}", expected=f"layers from 0 to {layers - 1}")
    return tuple(FULL if layer in full else LINEAR for layer in range(layers))


def _period(section: ConfigSection, key: str, layers: int) -> tuple[str, ...]:
    period, offset = section.integer(key), section.optional_integer("attn_layer_offset") or 0
    return tuple(FULL if layer % period == offset else LINEAR for layer in range(layers))


_READERS = {
    "compress_ratios": _ratios,
    "hybrid_override_pattern": _letters,
    "layers_block_type": _typed,
    "hybrid_layer_pattern": _flags(FULL, WINDOW),
    "linear_attn_config": _linear_config,
    "layer_types": _typed,
    "attn_type_list": _flags(LINEAR, FULL),
    "full_attention_interval": _interval,
    "layer_group_size": _groups,
    "attn_layer_indices": _indices,
    "attn_layer_period": _period,
}


def _patterned(section: ConfigSection, layers: int, family: Family) -> Words:
    """A pattern that repeats: in the config as letters or as the length of a group that ends with a global layer."""
    if "C" in family.pattern:
        return _chunked(section, layers)
    notes: tuple[str, ...] = ()
    key = section.present("sliding_window_pattern", "_sliding_window_pattern") or ""
    found = section.get(key) if key else None
    if "sliding_window" in section.values and section.get("sliding_window") is None:
        return Words((FULL,) * layers, "sliding_window")
    if isinstance(found, str) and found and set(found) <= set("LG"):
        cycle = found
    elif isinstance(found, int) and not isinstance(found, bool) and found > 0:
        cycle = "L" * (found - 1) + "G"
    elif found is not None:
        raise section.error(key, f"found {found!r}", expected="letters L and G, or the length of a group")
    else:
        key, cycle = "model_type", family.pattern
        notes = (f"no field lists the kinds of layers: {cycle} (local, global) repeats, as {section.family} has it",)
    return Words(tuple(_PATTERN[cycle[layer % len(cycle)]] for layer in range(layers)), key, notes)


def _chunked(section: ConfigSection, layers: int) -> Words:
    """Llama 4: layers without rotary embedding are global, by list or every ``no_rope_layer_interval``-th."""
    if not _active(section.values.get("attention_chunk_size")):
        return Words((FULL,) * layers)
    rotary = section.integers("no_rope_layers")
    if rotary:
        flags = fitted(section, "no_rope_layers", rotary, layers)
        return Words(tuple(CHUNKED if flag else FULL for flag in flags), "no_rope_layers")
    step = section.optional_integer("no_rope_layer_interval", minimum=1)
    notes = () if step else ("no field lists the kinds of layers: every 4th is global, as llama4 has it",)
    step = step or 4
    return Words(
        tuple(CHUNKED if (layer + 1) % step else FULL for layer in range(layers)), "attention_chunk_size", notes
    )


def _windows(section: ConfigSection, layers: int, family: Family) -> Words:
    """A window on all layers or on those from ``max_window_layers`` on; none where it is switched off."""
    full = (FULL,) * layers
    notes: tuple[str, ...] = ()
    window = section.get("sliding_window")
    if "sliding_window" not in section.values and family.silent_window is not None:
        window = family.silent_window
        notes = (f"sliding_window is absent: {window}, as {section.family} has it",)
    if not _active(window) or section.get("use_sliding_window") is False:
        return Words(full)
    if isinstance(window, bool) or not isinstance(window, int):
        raise section.error("sliding_window", f"found {window!r}", expected="an integer or null")
    limit = section.get("max_position_embeddings")
    if isinstance(limit, int) and window >= limit:
        return Words(full)
    if not family.window:
        raise CoverageError(
            f"found {window}: not supported (what it means for model_type {section.family!r} is not known)",
            file=section.file,
            path=section.path("sliding_window"),
            expected="null, or layer_types",
        )
    if not family.opt_in_window:
        return Words((WINDOW,) * layers, "sliding_window", notes)
    if section.get("use_sliding_window") is None:
        return Words(full)
    first = section.optional_integer("max_window_layers")
    first = layers if first is None else min(first, layers)
    return Words((FULL,) * first + (WINDOW,) * (layers - first), "max_window_layers")
