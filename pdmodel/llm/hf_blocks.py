"""``block_configs`` of LLMs found by architecture search (Nemotron-NAS, Puzzle): every layer described on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.hf_words import WINDOW
from pdmodel.llm.kinds import LayerKind, Mixer

_MULTIPLE = 256  # widths from ffn_mult are rounded up to it
_ATTENTION = frozenset({"no_op", "replace_with_linear", "n_heads_in_group", "num_key_value_heads", "window_length"})
_FFN = frozenset({"no_op", "replace_with_linear", "ffn_mult", "intermediate_size", "moe", "hidden_act", "gated"})
_MOE = frozenset(
    {"num_local_experts", "num_experts_per_tok", "expert_intermediate_dim", "shared_expert_intermediate_dim"}
)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A mixer and a dense width per layer, and the experts where there are: number, per token, width, shared width."""

    mixers: tuple[Mixer, ...]
    widths: tuple[int, ...]
    experts: dict[int, tuple[int, int, int, int]]


def read_blocks(
    section: ConfigSection, plain: Mixer, words: tuple[str, ...], window: int | None, hidden: int
) -> Blocks:
    """What every layer is: ``plain`` with its own KV heads and window, or nothing.

    Parameters
    ----------
    section: with ``block_configs``.
    plain: full attention as the other fields have it.
    words: kinds of the layers by other fields; ``window`` is used for those of them that are windowed.
    hidden: hidden size.

    Raises
    ------
    CoverageError: naming the key of the entry that is not understood.

    """
    mixers, widths, experts = [], [], {}
    for layer, (raw, word) in enumerate(zip(section.values["block_configs"], words, strict=True)):
        place = f"block_configs.{layer}"
        attention, ffn = (_part(section, raw, place, key) for key in ("attention", "ffn"))
        mixers.append(_mixer(attention, plain, window if word == WINDOW else None))
        moe = ffn.get("moe")
        if isinstance(moe, dict):
            part = _checked(ConfigSection(moe, {}, section.file, f"{ffn.prefix}moe."), _MOE)
            experts[layer] = (
                part.integer("num_local_experts"),
                part.integer("num_experts_per_tok"),
                part.integer("expert_intermediate_dim"),
                part.optional_integer("shared_expert_intermediate_dim") or 0,
            )
        widths.append(0 if layer in experts else _width(ffn, section, hidden))
    return Blocks(tuple(mixers), tuple(widths), experts)


def _part(section: ConfigSection, raw: Any, place: str, key: str) -> ConfigSection:
    found = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(found, dict):
        raise CoverageError(
            f"found {found!r}: not understood",
            file=section.file,
            path=section.path("block_configs") if found is None else f"{section.prefix}{place}.{key}",
            expected=f"an object {key!r} for every layer",
        )
    return _checked(
        ConfigSection(found, {}, section.file, f"{section.prefix}{place}.{key}."),
        _ATTENTION if key == "attention" else _FFN,
    )


def _checked(part: ConfigSection, known: frozenset[str]) -> ConfigSection:
    for key, value in part.values.items():
        if key not in known and value not in (None, False, 0, "", [], {}):
            raise CoverageError(f"found {value!r}: not understood", file=part.file, path=part.path(key))
    return part


def _mixer(part: ConfigSection, plain: Mixer, window: int | None) -> Mixer:
    if part.flag("no_op", default=False) or part.flag("replace_with_linear", default=False):
        return Mixer(LayerKind.NONE)
    group = part.optional_integer("n_heads_in_group", minimum=1)
    kv_heads = part.optional_integer("num_key_value_heads", minimum=1)
    if kv_heads is None:
        kv_heads = plain.kv_heads if group is None else plain.heads // group
    if plain.heads % kv_heads:
        raise part.error("num_key_value_heads", f"found {kv_heads}", expected=f"a divisor of {plain.heads} heads")
    window = part.optional_integer("window_length", minimum=1) or window
    kind = LayerKind.FULL if window is None else LayerKind.WINDOW
    return replace(plain, kind=kind, kv_heads=kv_heads, window=window)


def _width(part: ConfigSection, section: ConfigSection, hidden: int) -> int:
    """Width of a dense MLP: given, or ceil of 2/3 ffn_mult hidden to 256 (vLLM, nemotron_nas.py)."""
    if part.flag("no_op", default=False):
        return 0
    given = part.optional_integer("intermediate_size", minimum=1)
    if given is not None:
        return given
    times = part.get("ffn_mult")
    if isinstance(times, bool) or not isinstance(times, int | float) or not 0 < times < _MULTIPLE:
        if part.flag("replace_with_linear", default=False):
            return 0
        return section.integer("intermediate_size")
    return -(-int(2 * times * hidden / 3) // _MULTIPLE) * _MULTIPLE
