"""What every test shares: hypothesis without time limits (two cores stall now and then), changed scenarios."""

import copy
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import settings

from pdmodel.resolve import ResolvedScenario, resolve_scenario
from pdmodel.resources import resolve
from pdmodel.scenario import Scenario
from pdmodel.spec import read_json

settings.register_profile("patient", deadline=None)
# The same examples on every run where a run decides; new ones wherever people work.
settings.register_profile("decisive", deadline=None, derandomize=True)
settings.load_profile("decisive" if os.environ.get("CI") else "patient")

Variant = Callable[..., ResolvedScenario]


def merge(base: Any, changes: Any) -> Any:
    """``changes`` laid over ``base``, object by object; None takes a key away; lists are replaced."""
    if not isinstance(base, dict) or not isinstance(changes, Mapping):
        return copy.deepcopy(changes)
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


@pytest.fixture(scope="session")
def variant() -> Variant:
    """``variant(name, {...})``: a shipped scenario with changes laid over it, resolved."""

    def make(name: str, changes: Mapping[str, Any] | None = None) -> ResolvedScenario:
        raw = merge(read_json(resolve("scenarios", name)), changes or {})
        return resolve_scenario(Scenario.parse(raw, file=f"{name}.json"), f"{name}.json")

    return make
