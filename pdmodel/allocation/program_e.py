"""Program E: one prefill lane on its stretched clock, exact.

The prefill may be slowed (T_i >= tau_i), may wait at gates (W_i >= 0) and leave KV for a tail; rates are free inside a
phase, so no policy does better on one lane with one request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdmodel.allocation.collapse import collapse, no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.elastic import ElasticAnswer, ElasticForm, elastic_form, postpone_holds
from pdmodel.allocation.network import Network, network, port_rows
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward, released_by_slot
from pdmodel.allocation.scaling import scale_of
from pdmodel.allocation.schedule import elastic_schedule, empty_schedule
from pdmodel.allocation.solution import Elastic, Solution, SolvePath, Status
from pdmodel.allocation.solver import solve_terms
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
from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class Variables:
    """Bytes y per entry, bytes sent so far c, stretch X per stretched slot, loss delta per decode lane and slot."""

    sent: Any
    state: Any
    stretch: Any
    decode_loss: Any

    @property
    def count(self) -> int:
        """Number of scalars."""
        return sum(int(v.size) for v in (self.sent, self.state, self.stretch, self.decode_loss) if v is not None)


def solve_elastic(data: AllocationData, *, symmetric: bool = True) -> Solution:
    """Solve program E of a record with one prefill lane.

    Parameters
    ----------
    data: the record. Its decode lanes give way at their price; requests share one tail.
    symmetric: solve for one member of each class of ranks (same answer, fewer variables).

    Returns
    -------
    The optimum: objective, a schedule that replays to the same numbers, and prices of ports.

    Raises
    ------
    InputError: not exactly one lane, or a load due before it is released. SolverError: no optimum was found.

    """
    began = time.perf_counter()
    if not data.volume_bytes.any():
        return _nothing_to_send(data)
    net = network(data, collapse(data, data.volume_bytes) if symmetric else no_collapse(data))
    scale, form = scale_of(data), elastic_form(data, net)
    scaled = form.scaled(scale)
    entries = open_entries(scaled.lower, scaled.upper, scaled.step, net.route_flow)
    variables, moved, ports, others = build(net, scaled, entries)
    terms = (moved, ports, *others)
    solved = solve_terms(terms, "program E", variables=variables.count)
    slots = len(form.tau_s)
    sent = entries.table(variables.sent.value, len(net.routes), slots) * scale.size_bytes
    stretch = np.zeros(slots)
    stretch[form.stretch] = np.clip(variables.stretch.value, 0.0, None) * scale.time_s
    loss = np.zeros((len(form.decode), slots))
    if variables.decode_loss is not None:
        loss = np.clip(variables.decode_loss.value, 0.0, None).reshape(loss.shape) * scale.time_s
    answer = postpone_holds(form, net, ElasticAnswer(sent, stretch, loss))
    length, size_bytes, decode_loss = _spread(data, net, form, answer)
    duals = saving_duals(moved, ports.matrix, ports.room, solved.duals)
    saved = sum(term.worth(duals) for term in terms)
    return Solution(
        path=SolvePath.PROGRAM_E,
        status=solved.status,
        objective=solved.objective * scale.cost,
        schedule=elastic_schedule(data, length, size_bytes, decode_loss),
        shadow_price=net.spread_prices(np.asarray(saved)) * scale.cost / scale.rate_bytes_per_s,
        gap=solved.gap,
        wall_s=time.perf_counter() - began,
        variables=variables.count,
        elastic=elastic_times(data, length, decode_loss),
    )


def build(
    net: Network, form: ElasticForm, entries: Entries
) -> tuple[Variables, CumulativeBytes, StretchedPort, list[Term]]:
    """Variables and terms of program E: what is minimised and under which constraints, at one glance."""
    import cvxpy as cp

    slots, stretched = len(form.tau_s), np.flatnonzero(form.stretch)
    matrix, rows = port_rows(net.consumption, entries.route, entries.slot, form.overfull)
    v = Variables(
        sent=cp.Variable(len(entries.slot), nonneg=True, name="sent"),
        state=cp.Variable(form.lower.size, bounds=state_bounds(form.lower, form.upper), name="state"),
        stretch=cp.Variable(len(stretched), nonneg=True, name="stretch"),
        decode_loss=cp.Variable(len(form.decode) * slots, nonneg=True, name="loss") if len(form.decode) else None,
    )
    moved = CumulativeBytes(net, entries, form.step, form.lower.shape[1], v.sent, v.state)
    ports = StretchedPort(form, rows, matrix, stretched, v.sent, v.stretch, v.decode_loss)
    others: list[Term] = [StretchCost(form, stretched, v.stretch)]
    if v.decode_loss is not None:
        others.append(DecodeLoss(form.tau_s, form.decode_price, stretched, v.stretch, v.decode_loss))
    return v, moved, ports, others


def elastic_times(data: AllocationData, length_s: FloatArray, decode_loss_s: FloatArray) -> Elastic:
    """Sums over the slots of one lane, lengths (2n + 1,) [s]."""
    return Elastic(
        prefill_slowdown_s=float((length_s[1::2] - data.duration_s[0]).sum()),
        load_stall_s=float(length_s[:-1:2].sum()),
        tail_s=float(length_s[-1]),
        decode_loss_s=decode_loss_s.sum(axis=1),
    )


def _spread(
    data: AllocationData, net: Network, form: ElasticForm, answer: ElasticAnswer
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lengths (2n + 1,), bytes per route (R, 2n + 1) and decode losses (D, 2n + 1), bytes pulled forward."""
    tau, count = data.duration_s[0], len(data.duration_s[0])
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
    room = usable * length[:, None] - (length - decode_loss).T @ form.decode
    room[1::2] -= data.critical_bytes[0][:, net.ports]
    released = released_by_slot(data, net, length)
    order = earliest_due_first(data, net.flows)
    size = pull_forward(size, room, released=released, net=net, order=order)
    return length, net.spread_routes(size), decode_loss


def _nothing_to_send(data: AllocationData) -> Solution:
    return Solution(
        SolvePath.PROGRAM_E,
        Status.OPTIMAL,
        0.0,
        empty_schedule(data),
        np.zeros(len(data.ports)),
        elastic=Elastic(0.0, 0.0, 0.0, np.zeros(len(data.decode_lanes))),
    )
