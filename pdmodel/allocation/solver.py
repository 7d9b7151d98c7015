"""Build a cvxpy problem from terms, solve it, and map what the solver says to pdmodel's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdmodel.allocation.solution import Status
from pdmodel.allocation.terms import Term
from pdmodel.errors import SolverError
from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class Solved:
    """A solved program in its own units: objective, duals by constraint name, status."""

    objective: float
    duals: Mapping[str, FloatArray]
    status: Status


def solve_terms(terms: Sequence[Term], name: str) -> Solved:
    """Minimise the terms' cost subject to their constraints. Raises `SolverError` unless an optimum is found."""
    import cvxpy as cp

    constraints: dict[str, Any] = {}
    for term in terms:
        constraints |= term.constraints()
    objective = sum((cost for term in terms if not isinstance(cost := term.cost(), float)), 0.0)
    problem = cp.Problem(cp.Minimize(objective), list(constraints.values()))
    try:
        problem.solve(solver=cp.HIGHS, highs_options={"solver": "ipm"})
    except cp.error.SolverError as error:
        raise SolverError(f"{name}: the solver failed: {error}") from None
    if problem.status not in tuple(Status):
        raise SolverError(
            f"{name}: the solver ended with {problem.status!r} on {problem.size_metrics.num_scalar_variables} variables"
        )
    duals = {key: np.atleast_1d(c.dual_value) for key, c in constraints.items()}
    return Solved(float(problem.value), duals, Status(problem.status))
