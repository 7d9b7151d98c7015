"""How much of a lane's compute rests on constants that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator

from pdmodel.costs.step import PassCost, StageCost
from pdmodel.spec import SourceKind


class ComputeEvidence:
    """Time of all passes of a lane by kind of operation, and the part of it whose constants are assumed [s]."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.assumed_s: dict[str, float] = {}

    def add(self, cost: PassCost) -> None:
        """Count one pass."""
        for stage, count in _stages(cost):
            self.total_s += count * stage.time_s
            for timed in stage.operations:
                if timed.estimate.source is SourceKind.ASSUMED:
                    kind = timed.operation.kind.value
                    self.assumed_s[kind] = self.assumed_s.get(kind, 0.0) + count * timed.estimate.value

    def notes(self, box: str) -> list[str]:
        """What to tell the reader, in words; nothing where every constant has a source."""
        if not self.assumed_s:
            return []
        parts = [f"{kind} {time_s / self.total_s:.0%}" for kind, time_s in sorted(self.assumed_s.items())]
        return [f"compute constants of {box}, as shares of the prefill's compute: {', '.join(parts)}"]


def _stages(cost: PassCost) -> Iterator[tuple[StageCost, int]]:
    """Each stage of a pass once, and how often it occurs."""
    yield cost.embedding, 1
    for moe, layer in {layer.moe: layer for layer in cost.layers}.items():
        count = sum(other.moe == moe for other in cost.layers)
        for stage in layer.stages:
            yield stage, count
    if cost.logits is not None:
        yield cost.logits, 1
