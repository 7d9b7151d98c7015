"""pdmodel: how KV-cache transfers live together with tensor-, context- and expert-parallel traffic."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdmodel.allocation.data import AllocationData as AllocationData
    from pdmodel.allocation.program_e import solve_elastic as solve_elastic
    from pdmodel.allocation.program_r import solve_residual as solve_residual
    from pdmodel.answer import Plan as Plan
    from pdmodel.hardware.catalog import load_profile as load_profile
    from pdmodel.llm.catalog import load_llm as load_llm
    from pdmodel.planner import plan as plan
    from pdmodel.planner import residual_bandwidth as residual_bandwidth
    from pdmodel.planner import simulate as simulate
    from pdmodel.replay.outcome import Replay as Replay
    from pdmodel.resolve import load_scenario as load_scenario
    from pdmodel.scenario import Scenario as Scenario
    from pdmodel.timeline.residual import PiecewiseConstant as PiecewiseConstant

__version__ = "0.1.0"

#: Public names and the module that each is imported from when it is first used.
_PUBLIC = {
    "AllocationData": "pdmodel.allocation.data",
    "PiecewiseConstant": "pdmodel.timeline.residual",
    "Plan": "pdmodel.answer",
    "Replay": "pdmodel.replay.outcome",
    "Scenario": "pdmodel.scenario",
    "load_llm": "pdmodel.llm.catalog",
    "load_profile": "pdmodel.hardware.catalog",
    "load_scenario": "pdmodel.resolve",
    "plan": "pdmodel.planner",
    "residual_bandwidth": "pdmodel.planner",
    "simulate": "pdmodel.planner",
    "solve_elastic": "pdmodel.allocation.program_e",
    "solve_residual": "pdmodel.allocation.program_r",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
