"""From words to mixers: the sizes of every layer's attention, window, indexer, compression or state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.hf_families import Family
from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.hf_states import read_state, state_element_bytes
from pdmodel.llm.hf_words import CHUNKED, COMPRESSED, EXPERTS, FULL, LINEAR, MLP, NOTHING, WINDOW, Words, fitted
from pdmodel.llm.kinds import Compression, Indexer, LayerKind, Mixer, MlaSpec

_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "num_attention_groups")
_OVERLAP_RATIO, _SPARSE_RATIOS = 4, (0, 4, 128)
_RATE_NAMES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


@dataclass(frozen=True, slots=True)
class Layers:
    """A mixer per layer, and what was inferred."""

    mixers: tuple[Mixer, ...]
    notes: tuple[str, ...]


def read_mla(section: ConfigSection) -> MlaSpec | None:
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


def read_mixers(section: ConfigSection, words: Words, family: Family, hidden: int) -> Layers:
    """A mixer for every word.

    Raises
    ------
    InputError: a size that is missing or not legal, with its JSON path.
    CoverageError: naming the field, a kind whose sizes no field gives.

    """
    layers = len(words.words)
    if COMPRESSED in words.words:
        if not family.compressed:
            raise _unsized(section, words, "compressed layers")
        return _compressed(section, words, layers)
    notes = list(words.notes)
    found = {
        word: _mixer(section, words, word, family=family, hidden=hidden, notes=notes)
        for word in dict.fromkeys(words.words)
    }
    mixers = [found[word] for word in words.words]
    indexer = _indexer(section, layers) if any(mixer.mla is not None for mixer in mixers) else None
    if indexer is not None:
        mixers = [
            replace(mixer, indexer=part) if mixer.mla is not None else mixer
            for mixer, part in zip(mixers, indexer, strict=True)
        ]
    shared = section.optional_integer("num_kv_shared_layers") if family.shares_last else None
    if shared:
        if shared >= layers:
            raise section.error("num_kv_shared_layers", f"found {shared}", expected=f"less than {layers} layers")
        mixers[layers - shared :] = [replace(mixer, stores=False) for mixer in mixers[layers - shared :]]
    return Layers(tuple(mixers), tuple(notes))


def _mixer(section: ConfigSection, words: Words, word: str, *, family: Family, hidden: int, notes: list[str]) -> Mixer:
    if word in (NOTHING, EXPERTS, MLP):
        return Mixer(LayerKind.NONE)
    if word == LINEAR:
        return _linear(section, words, family, hidden, notes)
    mla = read_mla(section)
    heads = section.integer("num_attention_heads")
    if mla is not None:
        if word != FULL:
            raise _unsized(section, words, f"{word} layers of latents")
        return Mixer(
            LayerKind.LATENT, heads, heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim, mla=mla
        )
    plain = plain_attention(section, family, hidden)
    if word == FULL:
        return _global(section, plain, family, notes)
    if word == CHUNKED:
        return replace(plain, kind=LayerKind.CHUNKED, window=section.integer("attention_chunk_size"))
    return _windowed(section, words, plain, family)


def _unsized(section: ConfigSection, words: Words, what: str) -> CoverageError:
    key = words.field or "model_type"
    found = section.get(key)
    shown = f"a {type(found).__name__} of {len(found)}" if isinstance(found, list | dict) else repr(found)
    return CoverageError(
        f"found {shown}: not supported ({what}, whose sizes are not understood for model_type {section.family!r})",
        file=section.file,
        path=section.path(key),
    )


def plain_attention(section: ConfigSection, family: Family, hidden: int) -> Mixer:
    """Full attention with the heads that the config gives for all layers."""
    heads = section.integer("num_attention_heads")
    head_dim = _head_dim(section, hidden, heads, family)
    values = section.optional_integer("v_head_dim", minimum=1) or head_dim
    return Mixer(
        LayerKind.FULL,
        heads,
        _kv_heads(section, heads, family),
        head_dim,
        values,
        output_gate=section.flag("attn_output_gate", default=family.output_gate),
    )


def _kv_heads(section: ConfigSection, heads: int, family: Family) -> int:
    key = section.present(*_KV_HEADS)
    if key is None and not family.kv_heads_required:
        return heads
    kv_heads = section.integer(*_KV_HEADS)
    return _dividing(section, key or _KV_HEADS[0], kv_heads, heads)


def _dividing(section: ConfigSection, key: str, kv_heads: int, heads: int) -> int:
    if heads % kv_heads:
        raise section.error(key, f"found {kv_heads}", expected=f"a divisor of num_attention_heads ({heads})")
    return kv_heads


def _head_dim(section: ConfigSection, hidden: int, heads: int, family: Family) -> int:
    """An explicit ``head_dim`` wins; then the family's; then hidden_size / heads, which must be whole."""
    head_dim = section.optional_integer("head_dim", "attention_head_dim", minimum=1) or family.head_dim
    if head_dim is None:
        if hidden % heads:
            raise section.error(
                "head_dim", "missing key", expected=f"an integer, as {heads} heads do not divide hidden_size {hidden}"
            )
        head_dim = hidden // heads
    return head_dim


def _global(section: ConfigSection, plain: Mixer, family: Family, notes: list[str]) -> Mixer:
    """Gemma 4: global layers have heads of their own, and keys and values from one projection."""
    if not family.dense_beside_experts:
        return plain
    width = section.optional_integer("global_head_dim", minimum=1) or plain.head_dim
    key = "num_global_key_value_heads"
    kv_heads = section.optional_integer(key, minimum=1) or plain.kv_heads
    one = section.flag("attention_k_eq_v", default=False)
    if one:
        notes.append("attention_k_eq_v: keys are normalised and rotated after the projection, so both are kept")
    return replace(
        plain,
        kv_heads=_dividing(section, key, kv_heads, plain.heads),
        head_dim=width,
        v_head_dim=width,
        one_projection=one,
    )


def _windowed(section: ConfigSection, words: Words, plain: Mixer, family: Family) -> Mixer:
    """Heads of windowed layers may differ from those of full ones (``swa_*``, ``attention_other_setting``)."""
    if section.present("sliding_window", "sliding_window_size") is None:
        window = family.silent_window
    else:
        window = section.integer("sliding_window", "sliding_window_size")
    if window is None:
        raise _unsized(section, words, "sliding-window layers without sliding_window")
    other = section.get("attention_other_setting")
    if isinstance(other, dict):
        inner = ConfigSection(other, {}, section.file, section.path("attention_other_setting") + ".")
        heads = inner.integer("num_attention_heads")
        kv_heads = _dividing(inner, "num_attention_groups", inner.integer("num_attention_groups"), heads)
        width = inner.optional_integer("head_dim", "attention_head_dim", minimum=1) or plain.head_dim
        plain = replace(plain, heads=heads, kv_heads=kv_heads, head_dim=width, v_head_dim=width)
    heads = section.optional_integer("swa_num_attention_heads", minimum=1) or plain.heads
    kv_heads = section.optional_integer("swa_num_key_value_heads", minimum=1) or plain.kv_heads
    head_dim = section.optional_integer("swa_head_dim", minimum=1)
    values = section.optional_integer("swa_v_head_dim", minimum=1) or head_dim or plain.v_head_dim
    limit = section.get("max_position_embeddings")
    whole = isinstance(limit, int) and window >= limit
    return replace(
        plain,
        kind=LayerKind.FULL if whole else LayerKind.WINDOW,
        heads=heads,
        kv_heads=_dividing(section, "swa_num_key_value_heads", kv_heads, heads),
        head_dim=head_dim or plain.head_dim,
        v_head_dim=values,
        window=None if whole else window,
    )


def _linear(section: ConfigSection, words: Words, family: Family, hidden: int, notes: list[str]) -> Mixer:
    if family.state is None:
        raise _unsized(section, words, "linear or recurrent layers")
    state = read_state(family.state, section, hidden)
    if state.matrix_bytes and not state_element_bytes(section)[1]:
        notes.append("the recurrent state is kept in FP32 (no field says so)")
    return Mixer(LayerKind.LINEAR, heads=state.heads, state=state)


def _indexer(section: ConfigSection, layers: int) -> tuple[Indexer, ...] | None:
    """DSA: an indexer a layer; layers that share the picks of an earlier one keep no keys.

    ``indexer_types`` (full, shared) says it outright; else ``index_topk_pattern`` (F, S); else every
    ``index_topk_freq``-th layer from ``index_skip_topk_offset`` picks, and those before it. A key is head_dim FP8
    values and an FP32 scale per 128 of them. Source: vLLM, SGLang (glm_moe_dsa), transformers 5.x, GlmMoeDsaConfig.
    """
    if not section.optional_integer("index_topk"):
        return None
    width = section.integer("index_head_dim")
    full = Indexer(section.integer("index_n_heads"), width, section.integer("index_topk"), width + 4 * -(-width // 128))
    shared = replace(full, owner=False, picks=False)
    key = section.present("indexer_types", "index_topk_pattern")
    if key is not None:
        found = section.get(key)
        if not isinstance(found, list | str):
            raise section.error(key, f"found {found!r}", expected="full or shared for every layer")
        words = {"full": full, "F": full, "shared": shared, "S": shared}
        entries = fitted(section, key, found, layers)
        wrong = next((entry for entry in entries if not isinstance(entry, str) or entry not in words), None)
        if wrong is not None:
            raise CoverageError(
                f"found {wrong!r}: not supported", file=section.file, path=section.path(key), expected="full or shared"
            )
        return tuple(words[entry] for entry in entries)
    step = section.optional_integer("index_topk_freq", minimum=1) or 1
    first = section.optional_integer("index_skip_topk_offset")
    first = 2 if first is None else first
    return tuple(full if max(layer - first + 1, 0) % step == 0 else shared for layer in range(layers))


def _compressed(section: ConfigSection, words: Words, layers: int) -> Layers:
    """DeepSeek-V4 (CSA of ratio 4 with an indexer, HCA of 128, windows alone) and V4.1 (CSA2: sources and users).

    Running sums of an entry of c values: 2 r c FP32, twice that where windows overlap (ratio 4), and the indexer's.
    Source: aiconfigurator 0.12.0 (NVIDIA, Apache-2.0), DeepSeek-V4's cache per sequence; V4.1: arXiv 2609.19969,
    section 2.2, and the fields ``kv_source_layer_ids``, ``index_source_layer_ids``.
    """
    ratios = _compress_ratios(section, words, layers)
    sources = section.get("kv_source_layer_ids")
    notes = list(words.notes)
    if sources is not None:
        notes.append(
            "FP4 index keys with a scale byte per 32 values; sums of unfinished entries as DeepSeek-V4 has them"
        )
    owners = set(section.integers("kv_source_layer_ids")) if sources is not None else set(range(layers))
    pickers = set(section.integers("index_source_layer_ids")) if sources is not None else set(range(layers))
    heads, entry = section.integer("num_attention_heads"), section.integer("head_dim")
    window = section.integer("sliding_window")
    kv_heads = section.integer("num_key_value_heads")
    if kv_heads != 1:
        raise CoverageError(
            f"found {kv_heads}: not supported",
            file=section.file,
            path=section.path("num_key_value_heads"),
            expected="1",
        )
    mixers = []
    for layer, ratio in enumerate(ratios):
        sparse = ratio > 0 and (sources is not None or ratio == _OVERLAP_RATIO)
        overlap = sources is None and ratio == _OVERLAP_RATIO
        owner = layer in owners and ratio > 0
        indexer = None
        if sparse:
            width = section.integer("index_head_dim")
            indexer = Indexer(
                section.integer("index_n_heads"),
                width,
                section.integer("index_topk"),
                width // 2 + (width // 32 if sources is not None else 0),
                owner=owner,
                picks=layer in pickers,
            )
        sums = 2 * ratio * (2 if overlap else 1) * 4 if owner and ratio > 1 else 0
        compression = Compression(
            ratio,
            owner,
            sums * (entry + (indexer.head_dim if overlap and indexer is not None else 0)),
            overlap,
            section.integer("q_lora_rank"),
            section.integer("qk_rope_head_dim"),
            section.integer("o_groups"),
            section.integer("o_lora_rank"),
        )
        mixers.append(
            Mixer(LayerKind.COMPRESSED, heads, 1, entry, entry, window, indexer=indexer, compression=compression)
        )
    return Layers(tuple(mixers), tuple(notes))


def _compress_ratios(section: ConfigSection, words: Words, layers: int) -> tuple[int, ...]:
    key = "compress_ratios"
    if words.field == key:
        ratios = fitted(section, key, section.integers(key), layers, spare=3)
    else:
        key, rates = words.field, section.get("compress_rates")
        rates = rates if isinstance(rates, dict) else _RATE_NAMES
        kinds = fitted(section, key, section.get(key), layers)
        ratios = tuple(
            rates.get(kind, 0) if word == COMPRESSED else 0 for kind, word in zip(kinds, words.words, strict=True)
        )
        if any(word not in (COMPRESSED, WINDOW) for word in words.words):
            raise _unsized(section, words, "compressed layers among others")
    known = section.get("kv_source_layer_ids") is not None
    wrong = next((ratio for ratio in ratios if _bad_ratio(ratio, known=known)), None)
    if wrong is not None:
        raise CoverageError(
            f"found {wrong!r}: not supported",
            file=section.file,
            path=section.path(key),
            expected="one of " + ", ".join(map(str, _SPARSE_RATIOS)),
        )
    return ratios


def _bad_ratio(ratio: Any, *, known: bool) -> bool:
    if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio < 0:
        return True
    return not known and ratio not in _SPARSE_RATIOS
