"""The hardware profiles that ship with pdmodel, and any that a user names by path."""

from __future__ import annotations

import os

from pdmodel import resources
from pdmodel.hardware.profile import HardwareProfile


def list_profiles() -> list[str]:
    """The names of the known profiles, sorted."""
    return resources.names("hardware_profiles")


def load_profile(name_or_path: str | os.PathLike[str]) -> HardwareProfile:
    """The profile that a name or a path means; `InputError` where there is none or it does not hold."""
    return HardwareProfile.load(resources.resolve("hardware_profiles", name_or_path))
