"""Program R: many lanes and requests on the fixed clock without KV.

KV takes the residual; where that is not enough it may overdraw critical traffic, at the price of the delayed phases, or
be late, at the price of the waiting requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import collapse, no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.leases import outlasted
from pdmodel.allocation.limits import FixedLease, MemoryRow, excess_of, too_much
from pdmodel.allocation.memory import PoolRoom, spread_excess
from pdmodel.allocation.network import Network, network, port_rows
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward
from pdmodel.allocation.residual import (
    ResidualForm,
    clock_appearances,
    clock_curves,
    clock_ends,
    first_quantum,
    residual_form,
    tail_intervals,
)
from pdmodel.allocation.scaling import Scale, scale_of
from pdmodel.allocation.schedule import Schedule, empty_schedule, residual_schedule
from pdmodel.allocation.solution import Solution, SolvePath, Status
from pdmodel.allocation.solver import solve_limited
from pdmodel.allocation.tail import tail_in_turn
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
from pdmodel.allocation.writebacks import has_writebacks, in_program, with_rest
from pdmodel.timeline.phases import FloatArray, IntArray

#: Re-solves with a better quantum, at most.
RE_SOLVES = 2
#: The smallest quantum, relative to the flow's volume.
LEAST_QUANTUM = 1e-3


@dataclass(frozen=True, slots=True)
class Variables:
    """Bytes y per entry, bytes sent so far c, lateness w, overdraft o, delay per phase, loss per decode lane.

    ``rows`` (rows, 2) are the (slot, port) of port rows, ``overdrawn`` those that have an overdraft, ``delayed`` the
    (pooled) phases that have a delay. ``overfull`` per memory pool class and ``overdue`` per lease: what is too much.
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
    overfull: Any
    overdue: Any

    @property
    def count(self) -> int:
        """Number of scalars."""
        every = [self.sent, self.state, self.late, self.overdraft, self.delay, self.decode_loss]
        return sum(int(v.size) for v in (*every, self.overfull, self.overdue) if v is not None)


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
        return _nothing_to_send(data, quantum)
    net = network(data, collapse(data, quantum) if symmetric else no_collapse(data))
    kept = in_program(data, net, by_the_end=data.tail_s is not None)
    part = net.part(kept)
    form = residual_form(data, part, quantum)
    optimum = _optimum(scale_of(data), part, form)
    excess = form.pools.least + optimum.overfull_bytes
    size_bytes = _spread(data, net, kept, form, replace(optimum, overfull_bytes=excess))
    stretch, routes = _interval_stretch(data, form, optimum.over, optimum.delay), net.spread_routes(size_bytes)
    late, overdue = np.zeros(len(net.flows)), np.zeros(len(net.flows))
    late[kept] = optimum.late_bytes
    if len(form.leases.flow):
        overdue[kept] = outlasted(part, form.leases, size_bytes[kept[net.route_flow]], clock_ends(data))
    return Solution(
        path=SolvePath.PROGRAM_R,
        status=optimum.status,
        objective=optimum.cost,
        schedule=residual_schedule(data, routes, stretch, tail_intervals(data)),
        in_turn=_in_turn(data, routes, stretch),
        shadow_price=part.spread_prices(optimum.price),
        gap=optimum.gap,
        wall_s=time.perf_counter() - began,
        variables=optimum.variables,
        quantum_bytes=quantum,
        late_bytes=net.spread_flows(late),
        memory_excess_bytes=spread_excess(data, net, excess),
        lease_excess_s=net.spread_flows(overdue),
    )


def _nothing_to_send(data: AllocationData, quantum: FloatArray) -> Solution:
    return Solution(
        SolvePath.PROGRAM_R,
        Status.OPTIMAL,
        0.0,
        empty_schedule(data),
        np.zeros(len(data.ports)),
        quantum_bytes=quantum,
        late_bytes=np.zeros(len(data.flows)),
        memory_excess_bytes=np.zeros(len(data.memory)),
        lease_excess_s=np.zeros(len(data.flows)),
    )


@dataclass(frozen=True, slots=True)
class _Optimum:
    """The answer of the reduced program in SI units.

    ``sent`` (R', S), ``over`` (S, P') [bytes], ``delay`` (N,), ``loss`` (D, S) [s], ``late_bytes`` (F',), cost and
    ``price`` (P',); ``overfull_bytes`` (Q',): what was too much.
    """

    sent: FloatArray
    over: FloatArray
    delay: FloatArray
    loss: FloatArray
    late_bytes: FloatArray
    cost: float
    price: FloatArray
    overfull_bytes: FloatArray
    status: Status = Status.OPTIMAL
    gap: float = 0.0
    variables: int = 0


def _optimum(scale: Scale, net: Network, form: ResidualForm) -> _Optimum:
    """Solve the program in the units of ``scale``."""
    slots, count = len(form.length_s), len(form.decode)
    over, delay, loss = np.zeros_like(form.room), np.zeros(len(form.delay_price)), np.zeros((count, slots))
    if not form.upper.any():
        nothing = np.zeros((len(net.routes), slots)), over, delay, loss, np.zeros(len(net.flows))
        return _Optimum(*nothing, 0.0, np.zeros(len(net.ports)), np.zeros(len(form.pools.least)))
    scaled = form.scaled(scale)
    entries = open_entries(scaled.lower, scaled.upper, scaled.step, net.route_flow)
    variables, moved, ports, others = build(net, scaled, entries)
    excess = excess_of((variables.overfull, variables.overdue), scaled.pools.room, scaled.upper)
    terms = (moved, ports, *others)
    solved = solve_limited(terms, excess, "program R", variables=variables.count)
    duals = saving_duals(moved, ports.matrix, ports.room, solved.duals)
    saved = sum(term.worth(duals) for term in terms)
    if variables.overdraft is not None:
        slot, port = variables.rows[variables.overdrawn].T
        over[slot, port] = np.clip(variables.overdraft.value, 0.0, None) * scale.size_bytes
        delay[variables.delayed] = np.clip(variables.delay.value, 0.0, None) * scale.time_s
    if variables.decode_loss is not None:
        loss = np.asarray(variables.decode_loss.value).reshape(count, slots) * scale.time_s
    return _Optimum(
        sent=entries.table(variables.sent.value, len(net.routes), slots) * scale.size_bytes,
        over=over,
        delay=delay,
        loss=loss,
        late_bytes=_late_bytes(scaled, variables) * scale.size_bytes,
        cost=solved.objective * scale.cost,
        price=np.asarray(saved) * scale.cost / scale.rate_bytes_per_s,
        overfull_bytes=too_much(variables.overfull, len(form.pools.least), excess) * scale.size_bytes,
        status=solved.status,
        gap=solved.gap,
        variables=variables.count,
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
        overfull=one_each(len(form.pools.least) if len(form.pools.room) else 0, "overfull"),
        overdue=one_each(len(form.leases.flow), "overdue"),
    )
    steps = form.lower.shape[1]
    moved = CumulativeBytes(net, entries, form.step, steps, v.sent, v.state)
    ports = ResidualPort(form, rows, matrix, overdrawn, v.sent, v.overdraft, v.decode_loss)
    others: list[Term] = []
    if v.late is not None:
        others.append(Lateness(form, points, v.state, v.late))
    if v.overdraft is not None:
        others.append(CriticalDelay(form, rows, overdrawn, v.overdraft, v.delay, delayed))
    if v.decode_loss is not None:
        others.append(DecodeLoss(form.length_s, form.decode_price, delayed[:0], None, v.decode_loss))
    if v.overfull is not None:
        others.append(MemoryRow(form.pools, steps, v.state, v.overfull))
    if v.overdue is not None:
        others.append(FixedLease(form.leases, form.lease_step, form.upper[:, -1], v.state, v.overdue))
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


def _spread(
    data: AllocationData, net: Network, kept: NDArray[np.bool_], form: ResidualForm, optimum: _Optimum
) -> FloatArray:
    """Bytes per route class and interval (R', J), slots spread over their intervals, bytes pulled forward.

    What the program left out waits after the tail, and moves into the gaps that are left.
    """
    share, slot_of = form.share, form.slot_of
    idle = np.tile(data.idle_usable - data.decode_rate.sum(axis=0), (len(share) - len(data.interval_s), 1))
    length = np.concatenate([data.interval_s, tail_intervals(data)])
    room = np.maximum(np.concatenate([data.clock_residual, idle]), 0.0)[:, net.ports] * length[:, None]
    planned = np.isin(net.ports, net.part(kept).ports)
    room[:, planned] = ((form.room + optimum.over)[slot_of] + optimum.loss.T[slot_of] @ form.decode) * share[:, None]
    size = optimum.sent[:, slot_of] * share
    released, appeared = clock_curves(data, net)[0], clock_appearances(data, net)
    if has_writebacks(data):
        size = with_rest(data, net, size, kept)
        room = np.concatenate([room, np.full((1, len(net.ports)), np.inf)])
        released = np.concatenate([released, data.volume_bytes[net.flows][:, None]], axis=1)
        appeared = np.concatenate([appeared, appeared[:, -1:]], axis=1)
    pools = PoolRoom.of(data, net, appeared, size, optimum.overfull_bytes)
    order = earliest_due_first(data, net.flows)
    return pull_forward(size, room, released=released, net=net, order=order, pools=pools)[:, : len(share)]


def _in_turn(data: AllocationData, size_bytes: FloatArray, stretch: FloatArray) -> Schedule | None:
    """The schedule of bytes per route (R, J) and stretch (L, J), but for what is left when all lanes are over."""
    clock, sent = len(data.interval_s), np.zeros(len(data.flows))
    np.add.at(sent, data.route_flow, size_bytes[:, :clock].sum(axis=1))
    found = None if data.tail_s is not None else tail_in_turn(data, data.volume_bytes - sent)
    if found is None:
        return None
    length, sizes = found
    still = np.zeros((len(stretch), len(length)))
    return residual_schedule(
        data,
        np.concatenate([size_bytes[:, :clock], sizes], axis=1),
        np.concatenate([stretch[:, :clock], still], axis=1),
        length,
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
        total = np.bincount(pool, weight, minlength=len(delay)).astype(float)[pool]
        stretch[lane, running] = np.divide(delay[pool] * weight, total, out=np.zeros_like(total), where=total > 0)
    return stretch
