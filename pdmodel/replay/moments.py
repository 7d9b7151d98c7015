"""When things happen on a replay's clock: "the start of phase k" as flows and memory mean it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.replay.outcome import LaneOutcome


class Moments:
    """The end of phase k - 1 (of nothing: when the lane begins), and not before the request's arrival."""

    def __init__(self, data: AllocationData, lanes: Sequence[LaneOutcome]) -> None:
        self._ends = [
            np.concatenate([[lane.phases[0].not_before_s if lane.phases else 0.0], outcome.end_s])
            for lane, outcome in zip(data.lanes, lanes, strict=True)
        ]
        self._arrival = {
            (request.lane, request.name): data.lanes[request.lane].phases[request.first_phase].not_before_s
            for request in data.requests
        }

    def at(self, lane: int, phase: int, request: str) -> float:
        """The start of a phase for a request [s]; nan where the lane never came so far."""
        return float(np.maximum(self._ends[lane][phase], self._arrival.get((lane, request), -np.inf)))
