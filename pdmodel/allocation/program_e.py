"""Program E: one prefill lane on its stretched clock, exact."""

from __future__ import annotations

import time

import numpy as np

from pdmodel.allocation.collapse import no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.elastic import elastic_form
from pdmodel.allocation.network import network, port_rows
from pdmodel.allocation.scaling import scale_of
from pdmodel.allocation.solution import Solution, SolvePath
from pdmodel.allocation.solver import solve_terms
from pdmodel.allocation.terms import (
    CumulativeBytes,
    DecodeLoss,
    StretchCost,
    StretchedPort,
    Term,
    open_entries,
)


def solve_elastic(data: AllocationData) -> Solution:
    """Solve program E of a record with one prefill lane."""
    import cvxpy as cp

    began = time.perf_counter()
    net = network(data, no_collapse(data))
    scale = scale_of(data)
    form = elastic_form(data, net).scaled(scale)
    entries = open_entries(form.lower, form.upper, form.step, net.route_flow)
    slots, steps = len(form.tau_s), form.lower.shape[1]
    matrix, rows = port_rows(net.consumption, entries.route, entries.slot)
    stretched = np.flatnonzero(form.stretch)
    sent = cp.Variable(len(entries.slot), nonneg=True, name="sent")
    state = cp.Variable(form.lower.size, bounds=[form.lower.reshape(-1), form.upper.reshape(-1)], name="state")
    stretch = cp.Variable(len(stretched), nonneg=True, name="stretch")
    loss = cp.Variable(len(form.decode) * slots, nonneg=True, name="decode_loss") if len(form.decode) else None
    terms: list[Term] = [
        CumulativeBytes(net, entries, form.step, steps, sent, state),
        StretchedPort(form, rows, matrix, stretched, sent, stretch, loss),
        StretchCost(form, stretched, stretch),
    ]
    if loss is not None:
        terms.append(DecodeLoss(form.tau_s, form.decode_price, stretched, stretch, loss))
    solved = solve_terms(terms, "program E")
    return Solution(
        path=SolvePath.PROGRAM_E,
        status=solved.status,
        objective=solved.objective * scale.cost,
        schedule=None,
        shadow_price=np.zeros(len(data.ports)),
        wall_s=time.perf_counter() - began,
        variables=len(entries.slot) + form.lower.size + len(stretched),
    )
