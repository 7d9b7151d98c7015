"""Terms for memory and leases. Both yield where they must: what is too much is a variable, kept at its least.

A fixed clock may leave no other choice, and a plan that does not fit should say by how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdmodel.allocation.leases import FixedLeases, StretchedLeases
from pdmodel.allocation.memory import PoolRows
from pdmodel.allocation.terms import Term
from pdmodel.timeline.phases import FloatArray, IntArray

#: Share of the largest figure below which what is too much is rounding.
NONE = 1e-8
#: Scaled price of what is too much: above what a byte or a second is worth in most programs (checked after a solve).
EXCESS_PRICE = 1e4


@dataclass(frozen=True)
class MemoryRow(Term):
    """What is in a pool when a step ends and the next one starts fits into it."""

    equation = r"M^{base}_q + A_{q,k+1} + \sum_f w_{q,f} c_{f,k} \le M_q + x_q, \qquad x_q \ge 0"
    rows: PoolRows
    steps: int
    state: Any
    excess: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per pool and step where it may overflow; ``excess`` is what comes on top of ``least``."""
        import scipy.sparse as sp

        rows, count = self.rows, len(self.rows.room)
        at, flow = np.nonzero(rows.weight[rows.pool])
        column = flow * self.steps + rows.step[at]
        shape = (count, rows.weight.shape[1] * self.steps)
        level = sp.csr_array((rows.weight[rows.pool[at], flow], (at, column)), shape=shape)
        over = sp.csr_array((np.ones(count), (np.arange(count), rows.pool)), shape=(count, len(rows.least)))
        return {"memory": level @ self.state - over @ self.excess <= rows.room + rows.least[rows.pool]}


@dataclass(frozen=True)
class StretchedLease(Term):
    """The stretched clock runs no longer than the lease from the first release to where the flow must be done."""

    equation = r"\sum_{s \in [first_f, last_f]} T_s \le \ell_f + z_f, \qquad c_{f,last_f} = V_f, \qquad z_f \ge 0"
    leases: StretchedLeases
    step: IntArray
    stretched: IntArray
    stretch: Any
    excess: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per lease; bounds of the state see to the bytes."""
        import scipy.sparse as sp

        step = self.step[self.stretched]
        inside = (self.leases.first[:, None] <= step) & (step <= self.leases.last[:, None])
        return {"lease": sp.csr_array(inside.astype(float)) @ self.stretch - self.excess <= self.leases.left_s}


@dataclass(frozen=True)
class FixedLease(Term):
    """All bytes of a flow are there by the last interval that its lease covers."""

    equation = r"c_{f,k(f)} + z_f \ge V_f, \qquad z_f \ge 0"
    leases: FixedLeases
    step: IntArray
    volume: FloatArray
    state: Any
    excess: Any

    def constraints(self) -> Mapping[str, Any]:
        """One row per lease; ``step`` (M,) is the one that the lease's interval is in, ``volume`` (F',)."""
        column = self.leases.flow * (self.state.size // len(self.volume)) + self.step
        return {"lease": self.state[column] + self.excess >= self.volume[self.leases.flow]}


@dataclass(frozen=True)
class Excess(Term):
    """Memory and leases that do not suffice, at a price; ``most`` bounds their sum, ``unit`` is a large figure."""

    equation = r"P \Big( \sum_q x_q + \sum_f z_f \Big)"
    over: tuple[Any, ...]
    unit: float
    price: float = EXCESS_PRICE
    most: float | None = None

    def constraints(self) -> Mapping[str, Any]:
        """At most so much, where that is known."""
        return {} if self.most is None else {"excess": self._sum() <= self.most}

    def cost(self) -> Any:
        """Price times what is too much."""
        return self.price * self._sum() if self.price else None

    def _sum(self) -> Any:
        import cvxpy as cp

        return sum(cp.sum(x) for x in self.over)

    @property
    def total(self) -> float:
        """What is too much, after a solve."""
        return float(sum(np.clip(x.value, 0.0, None).sum() for x in self.over))


def excess_of(variables: Sequence[Any], *figures: FloatArray) -> Excess | None:
    """The penalty on variables that are there (not None); ``figures`` are what they are measured by."""
    over = tuple(v for v in variables if v is not None)
    return Excess(over, max(1.0, *(float(np.abs(part).max(initial=0.0)) for part in figures))) if over else None


def too_much(variable: Any, count: int, excess: Excess | None) -> FloatArray:
    """The values of a variable of ``count`` places; none where there is no variable, or next to nothing."""
    if variable is None or excess is None:
        return np.zeros(count)
    values = np.clip(np.asarray(variable.value, dtype=float), 0.0, None)
    return np.where(values > NONE * excess.unit, values, 0.0)
