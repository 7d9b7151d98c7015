"""The engines and transfer backends that are shipped, and those that a user brings as a file."""

from __future__ import annotations

import os
from pathlib import Path

from pdmodel.engines.spec import EngineSpec, HostKnobs, TransferBackend
from pdmodel.errors import InputError
from pdmodel.resources import names, resolve
from pdmodel.spec import read_json


def list_engines() -> list[str]:
    """Names of the shipped engines."""
    return names("engines")


def load_engine(name_or_path: str | os.PathLike[str]) -> EngineSpec:
    """An engine by name or path, with its backend; a backend's path is looked for beside the engine's file first.

    Raises
    ------
    InputError: an unknown name, or a file that is not an engine or not a backend.

    """
    path = resolve("engines", name_or_path)
    raw = read_json(path)
    backend = raw.get("backend")
    if isinstance(backend, str) and backend.endswith(".json") and (beside := path.parent / backend).is_file():
        raw["backend"] = str(beside)
    try:
        return EngineSpec.parse(raw, file=str(path))
    except InputError as error:
        raise error.located(file=str(path)) from None


def list_backends() -> list[str]:
    """Names of the shipped transfer backends."""
    return names("backends")


def load_backend(name_or_path: str | os.PathLike[str]) -> TransferBackend:
    """A transfer backend by name or path; `InputError` for an unknown name or a file that is not a backend."""
    return TransferBackend.load(resolve("backends", name_or_path))


def host_knobs() -> HostKnobs:
    """What can be set on NIC, fabric, PCIe and collectives, whatever the engine."""
    return HostKnobs.load(Path(__file__).with_name("host_knobs.json"))
