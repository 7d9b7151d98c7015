"""Program R: many lanes and requests on the fixed clock without KV."""

from __future__ import annotations

import time

import numpy as np

from pdmodel.allocation.collapse import no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import network, port_rows
from pdmodel.allocation.residual import first_quantum, residual_form
from pdmodel.allocation.scaling import scale_of
from pdmodel.allocation.solution import Solution, SolvePath
from pdmodel.allocation.solver import solve_terms
from pdmodel.allocation.terms import (
    CriticalDelay,
    CumulativeBytes,
    DecodeLoss,
    Lateness,
    ResidualPort,
    Term,
    late_points,
    open_entries,
)
from pdmodel.timeline.phases import FloatArray


def solve_residual(data: AllocationData, quantum: FloatArray | None = None) -> Solution:
    """Solve program R of a record; ``quantum`` (F,) [bytes] normalises lateness (None: the record's, else first)."""
    import cvxpy as cp

    began = time.perf_counter()
    net = network(data, no_collapse(data))
    scale = scale_of(data)
    form = residual_form(data, net, first_quantum(data) if quantum is None else quantum).scaled(scale)
    count = len(form.interval_s)
    step = np.arange(count)
    entries = open_entries(form.lower, form.upper, step, net.route_flow)
    matrix, rows = port_rows(net.consumption, entries.route, entries.slot)
    overdrawn = np.flatnonzero(form.overdraft[rows[:, 0], rows[:, 1]] > 0)
    delayed = np.unique(form.delay_phase[np.isin(form.delay_interval, rows[overdrawn, 0])])
    points = late_points(form)
    sent = cp.Variable(len(entries.slot), nonneg=True, name="sent")
    state = cp.Variable(form.lower.size, bounds=[form.lower.reshape(-1), form.upper.reshape(-1)], name="state")
    late = cp.Variable(len(points.weight), nonneg=True, name="late")
    limit = form.overdraft[rows[overdrawn, 0], rows[overdrawn, 1]]
    overdraft = cp.Variable(len(overdrawn), bounds=[0.0, limit], name="overdraft") if len(overdrawn) else None
    delay = cp.Variable(len(delayed), nonneg=True, name="delay") if len(overdrawn) else None
    loss = cp.Variable(len(form.decode) * count, nonneg=True, name="decode_loss") if len(form.decode) else None
    terms: list[Term] = [
        CumulativeBytes(net, entries, step, count, sent, state),
        ResidualPort(form, rows, matrix, overdrawn, sent, overdraft, loss),
        Lateness(form, points, state, late),
    ]
    if overdraft is not None:
        terms.append(CriticalDelay(form, rows, overdrawn, overdraft, delay, delayed))
    if loss is not None:
        terms.append(DecodeLoss(form.interval_s, form.decode_price, step[:0], None, loss))
    solved = solve_terms(terms, "program R")
    return Solution(
        path=SolvePath.PROGRAM_R,
        status=solved.status,
        objective=solved.objective * scale.cost,
        schedule=None,
        shadow_price=np.zeros(len(data.ports)),
        wall_s=time.perf_counter() - began,
        variables=len(entries.slot) + form.lower.size + len(overdrawn) + len(delayed) + len(points.weight),
    )
