"""Program E: one prefill lane on its stretched clock, exact.

The prefill may be slowed (T_i >= tau_i), may wait at gates (W_i >= 0) and leave KV for a tail; rates are free inside a
phase, so no policy does better on one lane with one request. One corner is left out: where decode lanes fill a port, so
that write-backs over it can never move beside them, the program moves them in time and pays for it; a policy that never
writes back does not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import collapse, no_collapse
from pdmodel.allocation.course import Course, folded
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.elastic import ElasticAnswer, ElasticForm, elastic_form, postpone_holds
from pdmodel.allocation.limits import MemoryRow, StretchedLease, excess_of, too_much
from pdmodel.allocation.memory import PoolRoom, appearances, spread_excess
from pdmodel.allocation.network import Network, network, port_rows
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward, released_by_slot
from pdmodel.allocation.scaling import Scale, scale_of
from pdmodel.allocation.schedule import elastic_schedule, empty_schedule
from pdmodel.allocation.solution import Elastic, Solution, SolvePath, Status
from pdmodel.allocation.solver import solve_limited
from pdmodel.allocation.terms import (
    CumulativeBytes,
    DecodeLoss,
    Entries,
    StretchCost,
    StretchedPort,
    Term,
    open_entries,
    saving_duals,
    state_bounds,
)
from pdmodel.allocation.writebacks import has_writebacks, in_program, with_rest
from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class Variables:
    """Bytes y per entry, bytes sent so far c, stretch X per stretched slot, loss delta per decode lane and slot.

    ``overfull`` per pool class and ``overdue`` per lease: what is too much.
    """

    sent: Any
    state: Any
    stretch: Any
    decode_loss: Any
    overfull: Any
    overdue: Any

    @property
    def count(self) -> int:
        """Number of scalars."""
        every = (self.sent, self.state, self.stretch, self.decode_loss, self.overfull, self.overdue)
        return sum(int(v.size) for v in every if v is not None)


@dataclass(frozen=True, slots=True)
class _Optimum:
    """The answer of the reduced program, its cost, prices of ports (P',), and what was too much, all in SI units."""

    answer: ElasticAnswer
    cost: float
    price: FloatArray
    overfull_bytes: FloatArray
    overdue_s: FloatArray
    status: Status = Status.OPTIMAL
    gap: float = 0.0
    variables: int = 0


def solve_elastic(data: AllocationData, *, symmetric: bool = True, course: Course | None = None) -> Solution:
    """Solve program E of a record with one prefill lane.

    Parameters
    ----------
    data: the record. Its decode lanes give way at their price. Write-backs that have to wait move after the tail, for
        nothing; a lease counts until the flow's last gate, or the end of the tail.
    symmetric: solve for one member of each class of ranks (same answer, fewer variables).
    course: where the sends of each request are over, and what may have begun; without it, all requests share one tail.

    Returns
    -------
    The optimum (of the schedules that keep to ``course``): objective, a schedule that replays to the same numbers, and
    prices of ports. What moves after the tail is in no slot of the schedule.

    Raises
    ------
    InputError: not exactly one lane, or a load due before it is released. SolverError: no optimum was found.

    """
    began = time.perf_counter()
    if not data.volume_bytes.any():
        return _nothing_to_send(data)
    count, whole, wait_price, sure = len(data.duration_s[0]), data, None, 0.0
    if course is not None:
        whole = course.extended(data)
        wait_price, sure, data = course.wait_price_per_s(whole), course.sure_cost(whole), course.applied(whole)
    net = network(data, collapse(data, data.volume_bytes) if symmetric else no_collapse(data))
    kept = in_program(data, net)
    part = net.part(kept)
    form = elastic_form(data, part, wait_price)
    if data.volume_bytes[part.flows].any():
        optimum = _optimum(scale_of(data), part, form)
    else:
        optimum = _only_writebacks(part, form)
    excess = form.pools.least + optimum.overfull_bytes
    length, size_bytes, decode_loss = _spread(data, net, kept, form, replace(optimum, overfull_bytes=excess))
    overdue = np.zeros(len(net.flows))
    np.maximum.at(overdue, np.flatnonzero(kept)[form.leases.flow], optimum.overdue_s)
    return Solution(
        path=SolvePath.PROGRAM_E,
        status=optimum.status,
        objective=optimum.cost + sure,
        schedule=folded(elastic_schedule(whole, length, size_bytes, decode_loss), length, count),
        shadow_price=part.spread_prices(optimum.price),
        gap=optimum.gap,
        wall_s=time.perf_counter() - began,
        variables=optimum.variables,
        elastic=elastic_times(data, length, decode_loss, count),
        memory_excess_bytes=spread_excess(data, net, excess),
        lease_excess_s=net.spread_flows(overdue),
    )


def _optimum(scale: Scale, net: Network, form: ElasticForm) -> _Optimum:
    """Solve the program in the units of ``scale``."""
    scaled = form.scaled(scale)
    entries = open_entries(scaled.lower, scaled.upper, scaled.step, net.route_flow)
    variables, moved, ports, others = build(net, scaled, entries)
    excess = excess_of((variables.overfull, variables.overdue), scaled.pools.room, scaled.upper)
    terms = (moved, ports, *others)
    solved = solve_limited(terms, excess, "program E", variables=variables.count)
    slots = len(form.tau_s)
    sent = entries.table(variables.sent.value, len(net.routes), slots) * scale.size_bytes
    stretch = np.zeros(slots)
    stretch[form.stretch] = np.clip(variables.stretch.value, 0.0, None) * scale.time_s
    loss = np.zeros((len(form.decode), slots))
    if variables.decode_loss is not None:
        loss = np.clip(variables.decode_loss.value, 0.0, None).reshape(loss.shape) * scale.time_s
    duals = saving_duals(moved, ports.matrix, ports.room, solved.duals)
    saved = sum(term.worth(duals) for term in terms)
    return _Optimum(
        answer=postpone_holds(form, net, ElasticAnswer(sent, stretch, loss)),
        cost=solved.objective * scale.cost,
        price=np.asarray(saved) * scale.cost / scale.rate_bytes_per_s,
        overfull_bytes=too_much(variables.overfull, len(form.pools.least), excess) * scale.size_bytes,
        overdue_s=too_much(variables.overdue, len(form.leases.flow), excess) * scale.time_s,
        status=solved.status,
        gap=solved.gap,
        variables=variables.count,
    )


def _only_writebacks(net: Network, form: ElasticForm) -> _Optimum:
    """Nothing that anyone waits for: the clock stays as it is."""
    slots = len(form.tau_s)
    still = ElasticAnswer(np.zeros((len(net.routes), slots)), np.zeros(slots), np.zeros((len(form.decode), slots)))
    nothing = np.zeros(len(form.pools.least)), np.zeros(len(form.leases.flow))
    return _Optimum(still, 0.0, np.zeros(len(net.ports)), *nothing)


def build(
    net: Network, form: ElasticForm, entries: Entries
) -> tuple[Variables, CumulativeBytes, StretchedPort, list[Term]]:
    """Variables and terms of program E: what is minimised and under which constraints, at one glance."""
    import cvxpy as cp

    def one_each(count: int, name: str) -> Any:
        return cp.Variable(count, nonneg=True, name=name) if count else None

    slots, steps, stretched = len(form.tau_s), form.lower.shape[1], np.flatnonzero(form.stretch)
    matrix, rows = port_rows(net.consumption, entries.route, entries.slot, form.overfull)
    v = Variables(
        sent=cp.Variable(len(entries.slot), nonneg=True, name="sent"),
        state=cp.Variable(form.lower.size, bounds=state_bounds(form.lower, form.upper), name="state"),
        stretch=cp.Variable(len(stretched), nonneg=True, name="stretch"),
        decode_loss=one_each(len(form.decode) * slots, "loss"),
        overfull=one_each(len(form.pools.least) if len(form.pools.room) else 0, "overfull"),
        overdue=one_each(len(form.leases.flow), "overdue"),
    )
    moved = CumulativeBytes(net, entries, form.step, steps, v.sent, v.state)
    ports = StretchedPort(form, rows, matrix, stretched, v.sent, v.stretch, v.decode_loss)
    others: list[Term] = [StretchCost(form, stretched, v.stretch)]
    if v.decode_loss is not None:
        others.append(DecodeLoss(form.tau_s, form.decode_price, stretched, v.stretch, v.decode_loss))
    if v.overfull is not None:
        others.append(MemoryRow(form.pools, steps, v.state, v.overfull))
    if v.overdue is not None:
        others.append(StretchedLease(form.leases, form.step, stretched, v.stretch, v.overdue))
    return v, moved, ports, others


def elastic_times(data: AllocationData, length_s: FloatArray, decode_loss_s: FloatArray, count: int) -> Elastic:
    """Sums over the slots of one lane, lengths (2n + 1,) [s]; from phase ``count`` on all is tail."""
    return Elastic(
        prefill_slowdown_s=float((length_s[1::2] - data.duration_s[0]).sum()),
        load_stall_s=float(length_s[: 2 * count : 2].sum()),
        tail_s=float(length_s[2 * count :: 2].sum()),
        decode_loss_s=decode_loss_s.sum(axis=1),
    )


def _spread(
    data: AllocationData, net: Network, kept: NDArray[np.bool_], form: ElasticForm, optimum: _Optimum
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lengths (2n + 1,), bytes per route (R, 2n + 1) and decode losses (D, 2n + 1), bytes pulled forward.

    What the program left out waits after the tail, and moves into the gaps that are left.
    """
    tau, count, answer = data.duration_s[0], len(data.duration_s[0]), optimum.answer
    waits = np.flatnonzero(form.wait_slot >= 0)
    wait_slot = form.wait_slot[waits]

    def over_slots(values: FloatArray) -> FloatArray:
        out = np.zeros((*values.shape[:-1], 2 * count + 1))
        out[..., 1::2] = values[..., form.phase_slot] * form.phase_share
        out[..., 2 * waits] = values[..., wait_slot]
        out[..., -1] = values[..., -1]
        return out

    length, size, decode_loss = over_slots(answer.stretch), over_slots(answer.sent), over_slots(answer.loss)
    length[1::2] += tau
    usable = np.tile(data.idle_usable[net.ports], (2 * count + 1, 1))
    usable[1::2] = data.lane_usable[0][:, net.ports]
    room = usable * length[:, None] - (length - decode_loss).T @ data.decode_rate[:, net.ports]
    room[1::2] -= data.critical_bytes[0][:, net.ports]
    released = released_by_slot(data, net, length)
    if has_writebacks(data):
        size = with_rest(data, net, size, kept)
        room = np.concatenate([room, np.full((1, len(net.ports)), np.inf)])
        released = np.concatenate([released, data.volume_bytes[net.flows][:, None]], axis=1)
    appeared = appearances(data, net, lambda _, k, __: 2 * k, size.shape[1])
    pools = PoolRoom.of(data, net, appeared, size, optimum.overfull_bytes)
    order = earliest_due_first(data, net.flows)
    size = pull_forward(size, room, released=released, net=net, order=order, pools=pools)
    return length, net.spread_routes(size[:, : 2 * count + 1]), decode_loss


def _nothing_to_send(data: AllocationData) -> Solution:
    return Solution(
        SolvePath.PROGRAM_E,
        Status.OPTIMAL,
        0.0,
        empty_schedule(data),
        np.zeros(len(data.ports)),
        elastic=Elastic(0.0, 0.0, 0.0, np.zeros(len(data.decode_lanes))),
        memory_excess_bytes=np.zeros(len(data.memory)),
        lease_excess_s=np.zeros(len(data.flows)),
    )
