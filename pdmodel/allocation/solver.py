"""Build a cvxpy problem from terms, solve it, and map what the solver says to pdmodel's words.

HiGHS gives exact objectives and few non-zero rates: its simplex is two to three times as fast as its interior point
(with crossover to a vertex) on programs of up to some thousand variables, and up to twice as slow on large contended
ones. Clarabel (interior point) is some three times as fast on large programs, to about 1e-9 of the cost. HiGHS and
Clarabel stand by for each other. Memory and leases yield where they must, so every program has an optimum: a solver
that says otherwise has lost its way among figures of very different size, and the next one is asked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from pdmodel.allocation.limits import NONE, Excess
from pdmodel.allocation.solution import Status
from pdmodel.allocation.terms import Term
from pdmodel.errors import SolverError
from pdmodel.timeline.phases import FloatArray

#: Absolute tolerance on scaled data, where a typical figure is near one.
TOLERANCE = 1e-9
#: Number of variables up to which an exact vertex is worth its time (a second or two).
VERTEX_LIMIT = 30_000
#: Number of variables up to which HiGHS uses its simplex.
SIMPLEX_LIMIT = 10_000
#: Iterations of the simplex per variable after which another algorithm is tried; most programs need less than three.
MOST_ITERATIONS = 30


@dataclass(frozen=True, slots=True)
class Solved:
    """A solved program in its own units: objective, duals by constraint name, status, relative duality gap."""

    objective: float
    duals: Mapping[str, FloatArray]
    status: Status
    gap: float


def highs_options(variables: int) -> Mapping[str, Any]:
    """Options of HiGHS for a program with so many variables."""
    return {
        "solver": "simplex" if variables <= SIMPLEX_LIMIT else "ipm",
        "primal_feasibility_tolerance": TOLERANCE,
        "dual_feasibility_tolerance": TOLERANCE,
        "simplex_iteration_limit": MOST_ITERATIONS * variables + 1000,
    }


def _attempts(variables: int) -> list[tuple[str, dict[str, Any]]]:
    """Solvers and their options in the order in which they are tried.

    Where an exact vertex is worth its time, HiGHS is asked twice: the simplex without presolve and at the tolerances
    that it was made for takes longer, and loses its way last.
    """
    import cvxpy as cp

    highs = (cp.HIGHS, {"highs_options": dict(highs_options(variables))})
    plain = (cp.HIGHS, {"highs_options": {"solver": "simplex", "presolve": "off"}})
    clarabel = (cp.CLARABEL, {"tol_feas": TOLERANCE, "tol_gap_abs": TOLERANCE, "tol_gap_rel": TOLERANCE})
    return [highs, plain, clarabel] if variables <= VERTEX_LIMIT else [clarabel, highs, plain]


def assemble(terms: Sequence[Term]) -> tuple[Any, dict[str, Any]]:
    """The cvxpy problem of terms, and its constraints by name."""
    import cvxpy as cp

    constraints: dict[str, Any] = {}
    for term in terms:
        constraints |= term.constraints()
    objective = sum(cost for term in terms if (cost := term.cost()) is not None)
    return cp.Problem(cp.Minimize(objective), list(constraints.values())), constraints


def solve_terms(terms: Sequence[Term], name: str, variables: int) -> Solved:
    """Minimise the terms' cost subject to their constraints.

    HiGHS goes first up to `VERTEX_LIMIT` variables, Clarabel beyond; the next one where one finds no accurate optimum.
    Beyond that limit what misses the tolerance slightly is an answer too: the other solver may take minutes, and every
    answer is replayed. Raises `SolverError` unless an optimum is found.
    """
    import cvxpy as cp

    problem, constraints = assemble(terms)
    _silence_banner()
    said: list[str] = []
    for solver, options in _attempts(variables):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the status says whether a solution is inaccurate
                problem.solve(solver=solver, **options)
        except cp.error.SolverError as error:
            said.append(f"{solver}: {error}")
            continue
        rough = (said or variables > VERTEX_LIMIT) and problem.status in tuple(Status)
        if problem.status == Status.OPTIMAL or rough:
            duals = {key: np.atleast_1d(c.dual_value) for key, c in constraints.items()}
            return Solved(float(problem.value), duals, Status(problem.status), _gap(problem))
        said.append(f"{solver}: {problem.status}")
    raise SolverError(f"{name} has no optimum: {'; '.join(said)}")


def solve_limited(terms: Sequence[Term], excess: Excess | None, name: str, variables: int) -> Solved:
    """`solve_terms` with memory and leases that yield only where they must.

    At the price of ``excess`` first: if nothing is too much then, the price did not matter. Else the least that is too
    much is found by itself, and the cost is minimised with that much allowed. The objective is without that price.
    Beyond `VERTEX_LIMIT` variables the first answer stays, and its gap is what the solver's is of the cost alone.
    """
    if excess is None:
        return solve_terms(terms, name, variables)
    solved = solve_terms((*terms, excess), name, variables)
    cost = solved.objective - float(excess.cost().value)
    if excess.total <= NONE * excess.unit:
        return replace(solved, objective=cost)
    if variables > VERTEX_LIMIT:
        gap = solved.gap * abs(solved.objective) / cost if cost > 0 else 1.0
        return replace(solved, objective=cost, gap=min(gap, 1.0))
    solve_terms((*(Constraints(term) for term in terms), replace(excess, price=1.0)), name, variables)
    most = excess.total * (1.0 + TOLERANCE) + TOLERANCE
    return solve_terms((*terms, replace(excess, price=0.0, most=most)), name, variables)


@dataclass(frozen=True)
class Constraints(Term):
    """The constraints of a term without its cost."""

    equation = ""
    term: Term

    def constraints(self) -> Mapping[str, Any]:
        """Those of the term."""
        return self.term.constraints()


def _gap(problem: Any) -> float:
    """Relative duality gap that HiGHS reports, else what Clarabel was told to reach."""
    info = problem.solver_stats.extra_stats
    error = getattr(info, "primal_dual_objective_error", None)
    return TOLERANCE if error is None else float(error)


@cache
def _silence_banner() -> None:
    """HiGHS prints a banner to the standard output when its first object is made; nothing but answers goes there."""
    import highspy

    try:
        kept = os.dup(1)
    except OSError:  # no standard output
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
