"""Collapse: flows and ports that no program can tell apart become one class each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.timeline.phases import IntArray


@dataclass(frozen=True, slots=True)
class Classes:
    """The class of each port (P,), route (R,), flow (F,) and late group (G,) of a record."""

    port: IntArray
    route: IntArray
    flow: IntArray
    group: IntArray


def no_collapse(data: AllocationData) -> Classes:
    """Every port, route, flow and group alone in its class."""
    groups = len(set(data.late_group))
    return Classes(
        np.arange(len(data.ports)), np.arange(len(data.routes)), np.arange(len(data.flows)), np.arange(groups)
    )
