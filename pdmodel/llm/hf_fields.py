"""Typed look-ups in the section of a Hugging Face config that describes the language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pdmodel.errors import InputError, nearest

# Where multi-modal configs nest the language model, in the order in which they are looked for.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# What such configs may leave on the top level although it holds for the language model.
_INHERITED = frozenset({"tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "compression_config"})
# No count in a config comes near it; a slip is refused by its own key, not by what it is multiplied into.
LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class ConfigSection:
    """One JSON object of a config with the place it came from, for messages.

    ``prefix`` is its JSON path with a dot, or "". ``outer`` holds the top-level values that it inherits, ``silent``
    what an absent key means for its ``model_type``.
    """

    values: Mapping[str, Any]
    outer: Mapping[str, Any]
    file: str
    prefix: str = ""
    silent: Mapping[str, int] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """``model_type`` without the suffix of nested sections, lower case; "" when there is none."""
        found = self.values.get("model_type", "")
        return found.lower().removesuffix("_text") if isinstance(found, str) else ""

    def path(self, key: str) -> str:
        """The JSON path of ``key``, where it was found."""
        inherited = key not in self.values and key in self.outer
        return key if inherited else f"{self.prefix}{key}"

    def get(self, key: str) -> Any:
        """The value, or None when it is absent or null."""
        found = self.values.get(key)
        if found is None and key in _INHERITED:
            return self.outer.get(key)
        return self.silent.get(key) if found is None and key not in self.values else found

    def present(self, *keys: str) -> str | None:
        """The first of ``keys`` with a value that is not null."""
        return next((key for key in keys if self.get(key) is not None), None)

    def error(self, key: str, message: str, *, expected: str | None = None) -> InputError:
        """An `InputError` located at ``key``."""
        return InputError(message, file=self.file, path=self.path(key), expected=expected)

    def integer(self, *keys: str, minimum: int = 1, maximum: int = LARGEST) -> int:
        """The integer under the first of ``keys`` that is given; `InputError` where none is."""
        key = self.present(*keys)
        if key is None:
            raise InputError(
                "missing key" if keys[0] not in self.values else "found null",
                file=self.file,
                path=self.path(keys[0]),
                expected=f"an integer >= {minimum}" + (f" (or under {', '.join(keys[1:])})" if keys[1:] else ""),
                nearest=nearest(keys[0], [key for key in self.values if key not in keys]),
            )
        found = self.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or found < minimum:
            raise self.error(key, f"found {found!r}", expected=f"an integer >= {minimum}")
        if found > maximum:
            shown = str(found) if found < 10**15 else "a number of more than 15 digits"
            raise self.error(key, f"found {shown}", expected=f"at most {maximum}")
        return found

    def optional_integer(self, *keys: str, minimum: int = 0) -> int | None:
        """The integer under the first of ``keys`` that is given, else None."""
        return self.integer(*keys, minimum=minimum) if self.present(*keys) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """The Boolean under ``key``; ``default`` where it is absent or null."""
        found = self.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.error(key, f"found {found!r}", expected="true or false")
        return found

    def integers(self, key: str) -> tuple[int, ...]:
        """The list of integers under ``key``; () where it is absent or null."""
        found = self.get(key)
        if found is None:
            return ()
        if not isinstance(found, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in found):
            raise self.error(key, f"found {found!r}", expected="a list of integers")
        return tuple(found)


def text_section(raw: Mapping[str, Any], file: str) -> ConfigSection:
    """The section that describes the language model: the config itself, or what a multi-modal config nests."""
    for key in _NESTED:
        nested = raw.get(key)
        if isinstance(nested, dict) and "num_hidden_layers" not in raw:
            inner = nested.get("text_config")
            if isinstance(inner, dict) and "num_hidden_layers" not in nested:
                return ConfigSection(inner, raw, file, f"{key}.text_config.")
            return ConfigSection(nested, raw, file, f"{key}.")
    return ConfigSection(raw, {}, file)
