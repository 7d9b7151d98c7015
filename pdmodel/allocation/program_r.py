"""Program R: many lanes and requests on the fixed clock without KV.

KV takes the residual; where that is not enough it may overdraw critical traffic, at the price of the delayed phases, or
be late, at the price of the waiting requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdmodel.allocation.collapse import collapse, no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import Network, network, port_rows
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward
from pdmodel.allocation.residual import ResidualForm, first_quantum, residual_form, tail_intervals
from pdmodel.allocation.scaling import Scale, scale_of
from pdmodel.allocation.schedule import Schedule, empty_schedule, residual_schedule
from pdmodel.allocation.solution import Solution, SolvePath, Status
from pdmodel.allocation.solver import solve_terms
from pdmodel.allocation.terms import (
    CriticalDelay,
    CumulativeBytes,
    DecodeLoss,
    Entries,
    Lateness,
    LatePoints,
    ResidualPort,
    Term,
    late_points,
    open_entries,
    saving_duals,
    state_bounds,
)
from pdmodel.timeline.phases import FloatArray, IntArray

#: Re-solves with a better quantum, at most.
RE_SOLVES = 2
#: The smallest quantum, relative to the flow's volume.
LEAST_QUANTUM = 1e-3


@dataclass(frozen=True, slots=True)
class Variables:
    """Bytes y per entry, bytes sent so far c, lateness w, overdraft o, delay per phase, loss per decode lane.

    ``rows`` (rows, 2) are the (slot, port) of port rows, ``overdrawn`` those that have an overdraft, ``delayed`` the
    (pooled) phases that have a delay.
    """

    sent: Any
    state: Any
    late: Any
    overdraft: Any
    delay: Any
    decode_loss: Any
    rows: IntArray
    overdrawn: IntArray
    delayed: IntArray
    points: LatePoints

    @property
    def count(self) -> int:
        """Number of scalars."""
        every = (self.sent, self.state, self.late, self.overdraft, self.delay, self.decode_loss)
        return sum(int(v.size) for v in every if v is not None)


def solve_residual(data: AllocationData, quantum: FloatArray | None = None, *, symmetric: bool = True) -> Solution:
    """Solve program R of a record.

    Parameters
    ----------
    data: the record.
    quantum: bytes that lateness of each flow is divided by, shape (F,); by default `first_quantum`.
    symmetric: solve for one member of each class of ranks (same answer, fewer variables).

    Returns
    -------
    The optimum of the program. Its times are promises on the fixed clock: replay the schedule.

    Raises
    ------
    SolverError: no optimum was found.

    """
    began = time.perf_counter()
    quantum = first_quantum(data) if quantum is None else quantum
    if not data.volume_bytes.any():
        nothing = np.zeros(len(data.flows))
        path, schedule, prices = SolvePath.PROGRAM_R, empty_schedule(data), np.zeros(len(data.ports))
        return Solution(path, Status.OPTIMAL, 0.0, schedule, prices, quantum_bytes=quantum, late_bytes=nothing)
    net = network(data, collapse(data, quantum) if symmetric else no_collapse(data))
    scale, form = scale_of(data), residual_form(data, net, quantum)
    scaled = form.scaled(scale)
    entries = open_entries(scaled.lower, scaled.upper, scaled.step, net.route_flow)
    variables, moved, ports, others = build(net, scaled, entries)
    terms = (moved, ports, *others)
    solved = solve_terms(terms, "program R", variables=variables.count)
    sent = entries.table(variables.sent.value, len(net.routes), len(form.length_s)) * scale.size_bytes
    duals = saving_duals(moved, ports.matrix, ports.room, solved.duals)
    saved = sum(term.worth(duals) for term in terms)
    return Solution(
        path=SolvePath.PROGRAM_R,
        status=solved.status,
        objective=solved.objective * scale.cost,
        schedule=_schedule(data, net, form, variables, sent, scale=scale),
        shadow_price=net.spread_prices(np.asarray(saved)) * scale.cost / scale.rate_bytes_per_s,
        gap=solved.gap,
        wall_s=time.perf_counter() - began,
        variables=variables.count,
        quantum_bytes=quantum,
        late_bytes=net.spread_flows(_late_bytes(scaled, variables) * scale.size_bytes),
    )


def build(
    net: Network, form: ResidualForm, entries: Entries
) -> tuple[Variables, CumulativeBytes, ResidualPort, list[Term]]:
    """Variables and terms of program R: what is minimised and under which constraints, at one glance."""
    import cvxpy as cp

    def one_each(count: int, name: str) -> Any:
        return cp.Variable(count, nonneg=True, name=name) if count else None

    matrix, rows = port_rows(net.consumption, entries.route, entries.slot)
    limit = form.overdraft[rows[:, 0], rows[:, 1]]
    overdrawn = np.flatnonzero(limit > 0)
    delayed = np.unique(form.delay_phase[np.isin(form.delay_slot, rows[overdrawn, 0])])
    points = late_points(form)
    v = Variables(
        sent=one_each(len(entries.slot), "sent"),
        state=cp.Variable(form.lower.size, bounds=state_bounds(form.lower, form.upper), name="state"),
        late=one_each(len(points.weight), "late"),
        overdraft=cp.Variable(len(overdrawn), bounds=[0.0, limit[overdrawn]], name="overdraft")
        if len(overdrawn)
        else None,
        delay=one_each(len(delayed), "delay"),
        decode_loss=one_each(len(form.decode) * len(form.length_s), "loss"),
        rows=rows,
        overdrawn=overdrawn,
        delayed=delayed,
        points=points,
    )
    moved = CumulativeBytes(net, entries, form.step, form.lower.shape[1], v.sent, v.state)
    ports = ResidualPort(form, rows, matrix, overdrawn, v.sent, v.overdraft, v.decode_loss)
    others: list[Term] = []
    if v.late is not None:
        others.append(Lateness(form, points, v.state, v.late))
    if v.overdraft is not None:
        others.append(CriticalDelay(form, rows, overdrawn, v.overdraft, v.delay, delayed))
    if v.decode_loss is not None:
        others.append(DecodeLoss(form.length_s, form.decode_price, delayed[:0], None, v.decode_loss))
    return v, moved, ports, others


def next_quantum(data: AllocationData, solution: Solution) -> FloatArray | None:
    r"""The quantum of the next round, shape (F,) [bytes]; None when no flow is late or nothing changes.

    .. math:: q_f = \max(U_f / 2, 10^{-3} V_f)

    U is what the solution leaves unsent at the due time: with q = U / 2, the area of lateness over q is the time until
    the last byte, if it leaves at a constant rate. Flows that are on time keep theirs.
    """
    if solution.quantum_bytes is None or solution.late_bytes is None:
        return None
    late = solution.late_bytes > LEAST_QUANTUM * LEAST_QUANTUM * data.volume_bytes
    better = np.maximum(solution.late_bytes / 2, LEAST_QUANTUM * data.volume_bytes)
    following = np.where(late, better, solution.quantum_bytes)
    return None if np.allclose(following, solution.quantum_bytes, rtol=1e-6, atol=0.0) else following


def quantum_rounds(data: AllocationData) -> Iterator[Solution]:
    """Program R with the first quantum, then at most two better ones; the caller replays each and keeps the best."""
    quantum: FloatArray | None = None
    for _ in range(1 + RE_SOLVES):
        solution = solve_residual(data, quantum)
        yield solution
        quantum = next_quantum(data, solution)
        if quantum is None:
            return


def _late_bytes(form: ResidualForm, v: Variables) -> FloatArray:
    """Bytes of each flow class that are due and not sent, at most over the steps of its due curve, shape (F',)."""
    state = np.asarray(v.state.value).reshape(form.lower.shape)
    before = np.concatenate([np.zeros((len(state), 1)), state[:, :-1]], axis=1)
    jump = np.diff(form.due, axis=1, prepend=0.0) > 0
    return np.asarray(np.where(jump, np.clip(form.due - before, 0.0, None), 0.0).max(axis=1))


def _schedule(
    data: AllocationData, net: Network, form: ResidualForm, v: Variables, sent: FloatArray, *, scale: Scale
) -> Schedule:
    """Spread slots over their intervals, pull bytes forward, and lengthen intervals of delayed phases."""
    slots = len(form.length_s)
    over = np.zeros_like(form.room)
    delay = np.zeros(len(form.delay_price))
    if v.overdraft is not None:
        slot, port = v.rows[v.overdrawn].T
        over[slot, port] = np.clip(v.overdraft.value, 0.0, None) * scale.size_bytes
        delay[v.delayed] = np.clip(v.delay.value, 0.0, None) * scale.time_s
    room = form.room + over
    if v.decode_loss is not None:
        room += np.asarray(v.decode_loss.value).reshape(-1, slots).T @ form.decode * scale.time_s
    share, slot_of = form.share, form.slot_of
    order = earliest_due_first(data, net.flows)
    size = pull_forward(
        sent[:, slot_of] * share,
        room[slot_of] * share[:, None],
        released=form.released,
        net=net,
        order=order,
    )
    return residual_schedule(
        data, net.spread_routes(size), _interval_stretch(data, form, over, delay), tail_intervals(data)
    )


def _interval_stretch(data: AllocationData, form: ResidualForm, over: FloatArray, delay: FloatArray) -> FloatArray:
    """What each lane's phase delay adds to its intervals (L, J) [s], shared out by overdraft per interval."""
    clock = data.clock.phase.shape[1]
    stretch = np.zeros((len(data.lanes), len(form.slot_of)))
    offset = np.cumsum([0, *(len(lane.phases) for lane in data.lanes)])
    for lane in range(len(data.lanes)):
        running = np.flatnonzero(data.clock.phase[lane] >= 0)
        pool = form.pool[offset[lane] + data.clock.phase[lane, running]]
        slot = form.slot_of[:clock][running]
        spent = np.where(form.uses[pool], over[slot] / form.usable[slot], 0.0).max(axis=1, initial=0.0)
        weight = spent * form.share[:clock][running]
        total = np.bincount(pool, weight, minlength=len(delay))[pool]
        stretch[lane, running] = np.divide(delay[pool] * weight, total, out=np.zeros_like(total), where=total > 0)
    return stretch
