"""The shipped LLMs, and how a name or a path becomes an architecture."""

from __future__ import annotations

import os
from pathlib import Path

from pdmodel.llm.architecture import Architecture
from pdmodel.llm.hf_config import read_hf_config
from pdmodel.resources import names, resolve


def list_llms() -> list[str]:
    """Names of the shipped LLMs, sorted."""
    return names("llms")


def load_llm(name_or_path: str | os.PathLike[str]) -> Architecture:
    """The architecture of a shipped LLM, or of the Hugging Face ``config.json`` at a path (or in that folder).

    Raises
    ------
    InputError: unknown name (with the nearest one), no such file, or what `read_hf_config` finds wrong.
    CoverageError: a kind of attention or of weights that no formula covers.

    """
    path = resolve("llms", name_or_path)
    if path.is_dir():
        path = path / "config.json"
    shipped = path.parent == resolve("llms", list_llms()[0]).parent
    return read_hf_config(path, name=Path(path).stem if shipped else None)
