"""The engines that are shipped, and those that a user brings as a file."""

from __future__ import annotations

import os
from pathlib import Path

from pdmodel.engines.spec import EngineSpec, HostKnobs
from pdmodel.resources import names, resolve


def list_engines() -> list[str]:
    """Names of the shipped engines."""
    return names("engines")


def load_engine(name_or_path: str | os.PathLike[str]) -> EngineSpec:
    """An engine by name or path; `InputError` for an unknown name or a file that is not an engine."""
    return EngineSpec.load(resolve("engines", name_or_path))


def host_knobs() -> HostKnobs:
    """What can be set on NIC, fabric, PCIe and collectives, whatever the engine."""
    return HostKnobs.load(Path(__file__).with_name("host_knobs.json"))
