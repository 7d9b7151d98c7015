"""Flows side by side on ports, replayed: the rates that the package's own sharing rule gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.hardware.ports import Port, Route
from pdmodel.replay import simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import FloatArray, Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

_BYTES = 1e9


@dataclass(frozen=True, slots=True)
class Side:
    """One flow: its routes, the share of its bytes that each gets, and whether its due comes before the others'."""

    routes: tuple[Route, ...]
    split: tuple[float, ...] = (1.0,)
    urgent: bool = False


@dataclass(frozen=True)
class Together:
    """Rates of flows of equal size that start at once [byte/s].

    ``at_once``: while all of them run, shape (F,). ``alone_s``: when each has ended, shape (F,) [s], of `size_bytes`.
    """

    at_once: FloatArray
    finish_s: FloatArray
    size_bytes: float = field(default=_BYTES)

    @property
    def each(self) -> FloatArray:
        """Bytes of each flow over its own time, shape (F,) [byte/s]."""
        return np.asarray(self.size_bytes / self.finish_s)

    @property
    def total(self) -> float:
        """All bytes over the time of the last flow [byte/s]."""
        return float(self.size_bytes * len(self.finish_s) / self.finish_s.max())


def together(sides: Sequence[Side], ports: Sequence[Port], policy: str = "unmanaged") -> Together:
    """Replay flows of equal size that start at once, nothing else on the ports.

    Equation: none; shares are those of `pdmodel.timeline.sharing`, event by event.

    Parameters: ``sides`` one per flow; ``ports`` that their routes cross; ``policy`` a simple policy of the replay:
    under `residual_edf` urgent flows are served first.
    Returns: `Together`.
    Raises: `InputError` for a route over an unknown port, or an unknown policy.
    Validity: fluid flows, ports that lose nothing where flows meet.
    Source: `pdmodel.replay.simulate`.
    """
    replay = simulate(record_of(sides, ports), policy, record=True)
    return Together(replay.segments[0].flow_rate, replay.flow_finish_s)


def record_of(sides: Sequence[Side], ports: Sequence[Port]) -> AllocationData:
    """The record that `together` replays: requests of next to no length, so that urgent flows are due first."""
    requests = [name for name in ("urgent", "patient") if any(side.urgent is (name == "urgent") for side in sides)]
    phases = tuple(Phase(name, PhaseKind.COMPUTE, 1e-9, request=name) for name in requests)
    lanes = (Lane("lane", phases),)
    flows = [
        Flow(
            f"flow{k}",
            FlowKind.SEND,
            "urgent" if side.urgent else "patient",
            "lane",
            f"from{k}",
            f"to{k}",
            side.routes,
            ((0, _BYTES),),
            ((1 if side.urgent else len(phases), _BYTES),),
            side.split,
        )
        for k, side in enumerate(sides)
    ]
    timeline = Timeline(tuple(ports), lanes, (), run_clock(ports, lanes, ()))
    prices = Prices({"lane": 1.0}, dict.fromkeys(requests, 1.0), {})
    return AllocationData.build(timeline, flows, prices)
