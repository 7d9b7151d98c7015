"""The one place where data become dimensionless.

Solvers compare residuals with absolute tolerances, so bytes and bytes per second in the 1e10s must not reach them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.transfer.flows import FlowKind


@dataclass(frozen=True, slots=True)
class Scale:
    """Units that a program is solved in: time [s], rate [byte/s] and price [GPU·s per s]."""

    time_s: float
    rate_bytes_per_s: float
    price: float

    @property
    def size_bytes(self) -> float:
        """Unit of bytes."""
        return self.time_s * self.rate_bytes_per_s

    @property
    def cost(self) -> float:
        """Unit of the objective [GPU·s]."""
        return self.time_s * self.price


def scale_of(data: AllocationData) -> Scale:
    r"""Units in which the numbers of a record are near one.

    .. math:: \hat t = \sum_i \tau_i / n, \quad \hat r = \max_e C_e / \max(1, \max_p m_{p,e}), \quad
              \hat p = \max_i \pi_i

    A port that small pieces cross many times a byte (posting, messages) is as fast as what gets through it; write-backs
    do not count, so that a plan is the same with and without them.
    Time falls back to the time of all bytes at the largest capacity when all phases last 0 s; a unit that would be 0 is
    1. Source: dimensional analysis; all three are invariants of the record, so the scaled program is the same for
    bytes in any unit.
    """
    durations = np.concatenate([*data.duration_s, np.zeros(0)])
    waited_for = np.array([flow.kind is not FlowKind.WRITEBACK for flow in data.flows], dtype=bool)[data.route_flow]
    crossings = data.consumption[waited_for].max(axis=0, initial=1.0)
    rate = float((data.capacity / crossings).max(initial=0.0)) or 1.0
    time = float(durations.mean()) if durations.size and durations.any() else float(data.volume_bytes.sum()) / rate
    prices = [0.0, *(float(p.max(initial=0.0)) for p in data.phase_price_per_s), *data.flow_price_per_s.tolist()]
    return Scale(time or 1.0, rate, max(prices) or 1.0)
