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
class Elastic:
    """Times of program E's stretched clock [s]: sums of T - tau and of W, the tail, and loss per decode lane (D,)."""

    prefill_slowdown_s: float
    load_stall_s: float
    tail_s: float
    decode_loss_s: FloatArray


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: ``objective`` [GPU·s, or the units of an abstract case], the schedule, prices of ports.

    ``shadow_price`` shape (P,): what one more byte/s of capacity on the port would save [GPU·s per byte/s].
    ``gap`` is the relative duality gap (0 for closed forms). ``variables`` counts those of the solved, reduced program.
    ``elastic`` are the times of program E and of its closed form. ``in_turn``: the schedule of program R with another
    tail, in which requests are served one after another; which is better, a replay says. ``quantum_bytes``,
    ``late_bytes`` shape (F,): what program R divided lateness by, and the bytes of a flow that it leaves unsent at a
    due time, at most. ``memory_excess_bytes`` shape (Q,): by how much the program overfills a pool at most, because
    nothing else was possible; ``lease_excess_s`` shape (F,): by how much a flow outlasts its lease for that reason.
    None where no program was solved.
    """

    path: SolvePath
    status: Status
    objective: float
    schedule: Schedule | None
    shadow_price: FloatArray
    gap: float = 0.0
    wall_s: float = 0.0
    variables: int = 0
    elastic: Elastic | None = None
    in_turn: Schedule | None = None
    quantum_bytes: FloatArray | None = None
    late_bytes: FloatArray | None = None
    memory_excess_bytes: FloatArray | None = None
    lease_excess_s: FloatArray | None = None
