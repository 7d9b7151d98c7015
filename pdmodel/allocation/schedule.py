"""A schedule: what an engine can apply, indexed by phase and not only by clock."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class Piece:
    """Constant rates over one stretch of one slot of a lane.

    Slots of a lane with n phases: ``2*i`` is the wait before phase i, ``2*i + 1`` is phase i, ``2*n`` is the tail.
    ``offset_s`` counts from the start of the slot. ``rates`` are those of the flows of this lane, shape (R,) over
    `AllocationData.routes` [byte/s] (zero for routes of other lanes).
    """

    lane: int
    slot: int
    offset_s: float
    duration_s: float
    rates: FloatArray


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pieces in order of (lane, slot, offset), and the holds: deliberate pauses, per lane.

    ``phase_hold_s[l]`` shape (n_l,): T_i - tau_i / x_i at the planned rates. ``wait_hold_s[l]`` shape (n_l,): the wait
    before phase i less the time until its gate is met.
    """

    pieces: tuple[Piece, ...]
    phase_hold_s: tuple[FloatArray, ...]
    wait_hold_s: tuple[FloatArray, ...]
