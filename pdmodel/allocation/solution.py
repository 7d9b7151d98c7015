"""What a program or a fast path answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdmodel.allocation.schedule import Schedule
from pdmodel.timeline.phases import FloatArray


class SolvePath(StrEnum):
    """How the answer was found."""

    BOUND = "bound"
    NO_SHARED_PORT = "no_shared_port"
    CERTIFIED = "certified"
    CLOSED_FORM = "closed_form"
    PROGRAM_E = "program_e"
    PROGRAM_R = "program_r"


class Status(StrEnum):
    """Outcome of a solve. Both are answers; anything else is a `SolverError`."""

    OPTIMAL = "optimal"
    OPTIMAL_INACCURATE = "optimal_inaccurate"


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: ``objective`` [GPU·s, or the units of an abstract case], the schedule, prices of ports.

    ``shadow_price`` shape (P,): what one more byte/s of capacity on the port would save [GPU·s per byte/s].
    ``gap`` is the relative duality gap (0 for closed forms). ``variables`` counts those of the solved, reduced program.
    """

    path: SolvePath
    status: Status
    objective: float
    schedule: Schedule | None
    shadow_price: FloatArray
    gap: float = 0.0
    wall_s: float = 0.0
    variables: int = 0
