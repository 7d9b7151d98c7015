"""A Hugging Face ``config.json`` as one file says it: layers by kind, what they keep, parameters, what was inferred."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.hf_config import architecture_from_config, config_name
from pdmodel.llm.kinds import Mixer
from pdmodel.llm.kv_cache import constant_bytes, entry_bytes, growing_bytes, kv_bytes_per_layer
from pdmodel.spec import read_json

_QUANTISATION = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True)
class KindOfLayer:
    """Layers that keep the same: how many, what they are, and bytes of each with the KV dtype [byte].

    ``growing_bytes`` a token adds for good; ``entry_bytes`` it takes while it is kept; ``constant_bytes`` a long
    sequence keeps besides.
    """

    mixer: Mixer
    count: int
    growing_bytes: float
    entry_bytes: float
    constant_bytes: float


@dataclass(frozen=True, slots=True)
class LlmFindings:
    """What one config says. ``per_layer``: bytes that a token adds to each layer for good [byte]."""

    arch: Architecture
    kv_dtype: KvDtype
    per_layer: tuple[float, ...]
    kinds: tuple[KindOfLayer, ...]
    warnings: tuple[str, ...]

    @property
    def bytes_per_token(self) -> float:
        """Bytes that a token adds for good, all layers [byte]."""
        return sum(self.per_layer)

    @property
    def constant_bytes(self) -> float:
        """Bytes that a long sequence keeps besides, all layers [byte]."""
        return sum(kind.count * kind.constant_bytes for kind in self.kinds)


def read_config(path: Path, kv_dtype: KvDtype | str = KvDtype.BF16) -> LlmFindings:
    """Read the config at ``path`` (or ``config.json`` in that folder).

    Weights stored in a way that is not known do not matter to the KV: they are taken as unquantised, with a warning.

    Raises
    ------
    InputError: a file that is missing, malformed, or does not agree with itself; JSON path and what is legal.
    CoverageError: the same for an architecture or a field that is not understood, by its name.

    """
    path = path / "config.json" if path.is_dir() else path
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    raw, warnings = read_json(path), []
    try:
        arch = architecture_from_config(raw, name=config_name(path), file=str(path))
    except InputError as error:
        if not any(key in (error.path or "") for key in _QUANTISATION):
            raise
        inner = {key: value for key, value in raw.items() if key not in _QUANTISATION}
        for key, value in inner.items():
            if isinstance(value, dict):
                inner[key] = {name: part for name, part in value.items() if name not in _QUANTISATION}
        arch = architecture_from_config(inner, name=config_name(path), file=str(path))
        warnings.append(f"{error.path}: {error.message}; bytes of weights are those of unquantised ones")
    return LlmFindings(arch, dtype, kv_bytes_per_layer(arch, dtype), _kinds(arch, dtype), (*warnings, *arch.notes))


def _kinds(arch: Architecture, dtype: KvDtype) -> tuple[KindOfLayer, ...]:
    counts: dict[Mixer, int] = {}
    for layer in range(arch.layers):
        mixer = arch.mixer(layer)
        counts[mixer] = counts.get(mixer, 0) + 1
    return tuple(
        KindOfLayer(mixer, count, growing_bytes(mixer, dtype), entry_bytes(mixer, dtype), constant_bytes(mixer, dtype))
        for mixer, count in counts.items()
    )
