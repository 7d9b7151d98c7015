"""A schedule: what an engine can apply, indexed by phase and not only by clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind

if TYPE_CHECKING:
    from pdmodel.allocation.data import AllocationData

#: A hold shorter than this share of its slot is rounding, not a pause.
HOLD_ROUNDING = 1e-9
#: A gate that lacks less than this share of its flow's bytes is open.
GATE_ROUNDING = 1e-9


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


def empty_schedule(data: AllocationData) -> Schedule:
    """No bytes planned, no holds."""
    return Schedule(
        (), tuple(np.zeros(len(t)) for t in data.duration_s), tuple(np.zeros(len(t)) for t in data.duration_s)
    )


def elastic_schedule(
    data: AllocationData, length_s: FloatArray, size_bytes: FloatArray, decode_loss_s: FloatArray | None = None
) -> Schedule:
    r"""The schedule of one lane whose slots have given lengths and bytes.

    .. math:: hold_i = T_i - \tau_i / x_i, \quad x_i = \min_{e: a_e > 0} (\hat C_e - \sum m y / T_i - B_{D,e}) / a_e

    Parameters
    ----------
    data: a record with one lane of n phases.
    length_s: T, W and tail, shape (2n + 1,) [s].
    size_bytes: bytes of each route in each slot, shape (R, 2n + 1).
    decode_loss_s: loss of each decode lane in each slot, shape (D, 2n + 1) [s]; none without decode lanes.

    """
    safe = np.where(length_s > 0, length_s, 1.0)
    rates = np.where(length_s > 0, size_bytes / safe, 0.0)
    pieces = tuple(
        Piece(0, s, 0.0, float(length_s[s]), np.ascontiguousarray(rates[:, s]))
        for s in np.flatnonzero((rates > 0).any(axis=0)).tolist()
    )
    tau, demand = data.duration_s[0], data.critical_rate[0]
    room = data.lane_usable[0] - rates[:, 1::2].T @ data.consumption
    if decode_loss_s is not None and len(decode_loss_s):
        room -= (1.0 - decode_loss_s / safe)[:, 1::2].T @ data.decode_rate
    speed = np.divide(room, demand, out=np.full_like(demand, np.inf), where=demand > 0).min(axis=1, initial=1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        hold = np.where(tau > 0, length_s[1::2] - tau / speed, length_s[1::2])
    hold = np.where(hold > HOLD_ROUNDING * length_s[1::2], hold, 0.0)
    return Schedule(pieces, (hold,), (_wait_holds(data, length_s, size_bytes, rates),))


def _wait_holds(data: AllocationData, length_s: FloatArray, size_bytes: FloatArray, rates: FloatArray) -> FloatArray:
    """What is left of each wait once the last load that gates its phase is there, shape (n,) [s]."""
    count = len(data.duration_s[0])
    met = np.zeros(count)
    for f, flow in enumerate(data.flows):
        if flow.kind is not FlowKind.LOAD:
            continue
        mine = data.route_flow == f
        sent = np.cumsum(size_bytes[mine].sum(axis=0))
        rate = rates[mine].sum(axis=0)
        owed = 0.0
        for k, part in sorted(flow.due):
            owed += part
            if k < count and length_s[2 * k] > 0:
                missing = owed - (sent[2 * k - 1] if k else 0.0)
                # Rounding left over by a program opens no gate: a replay finds it open, and needs the whole pause.
                wanted = missing > GATE_ROUNDING * flow.volume_bytes and rate[2 * k] > 0
                met[k] = max(met[k], missing / rate[2 * k] if wanted else 0.0)
    hold = length_s[:-1:2] - np.clip(met, 0.0, length_s[:-1:2])
    return np.where(hold > HOLD_ROUNDING * length_s[:-1:2], hold, 0.0)


def residual_schedule(
    data: AllocationData, size_bytes: FloatArray, stretch_s: FloatArray, tail: FloatArray
) -> Schedule:
    """The schedule of lanes on the fixed clock: no holds; a piece lasts as long as its interval of a delayed phase.

    Parameters
    ----------
    data: the record.
    size_bytes: bytes of each route in each interval of the clock and the tail, shape (R, J).
    stretch_s: what critical delay adds to each lane's interval, shape (L, J) [s].
    tail: lengths of the tail's intervals, shape (J - clock intervals,) [s].

    """
    length = np.concatenate([data.interval_s, tail])
    pieces: list[Piece] = []
    lane_of_route = data.flow_lane[data.route_flow]
    for lane in range(len(data.lanes)):
        slots = _clock_slots(data, lane, len(tail))
        lasts = length + stretch_s[lane]
        mine = np.where((lane_of_route == lane)[:, None], size_bytes, 0.0)
        begins = np.concatenate([[0.0], np.cumsum(lasts)[:-1]])
        first = np.concatenate([[True], slots[1:] != slots[:-1]])
        offset = begins - np.maximum.accumulate(np.where(first, begins, 0.0))
        pieces += [
            Piece(lane, int(slots[j]), float(offset[j]), float(lasts[j]), mine[:, j] / lasts[j])
            for j in np.flatnonzero((mine > 0).any(axis=0) & (lasts > 0)).tolist()
        ]
    return Schedule(tuple(pieces), *((tuple(np.zeros(len(t)) for t in data.duration_s),) * 2))


def _clock_slots(data: AllocationData, lane: int, tail: int) -> FloatArray:
    """The slot that a lane is in during each interval of the clock and the tail, shape (J,)."""
    phase, count = data.clock.phase[lane], len(data.lanes[lane].phases)
    slots = np.full(len(phase) + tail, 2 * count)
    ahead = 2 * count
    for j in range(len(phase) - 1, -1, -1):
        slots[j] = ahead if phase[j] < 0 else 2 * phase[j] + 1
        if phase[j] >= 0:
            ahead = 2 * int(phase[j])
    return slots
