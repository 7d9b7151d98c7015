"""How much of a lane's compute rests on constants that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator

from pdmodel.costs.step import PassCost, StageCost
from pdmodel.llm.architecture import MoeSpec
from pdmodel.llm.operators import EXPERT_SKEW, OperationKind, fullest_rank
from pdmodel.spec import SourceKind


class ComputeEvidence:
    """Time of all passes by kind of operation, the part of it whose constants are assumed, and routed experts [s]."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self.experts_s = 0.0
        self.assumed_s: dict[str, float] = {}

    def add(self, cost: PassCost) -> None:
        """Count one pass."""
        for stage, count in _stages(cost):
            self.total_s += count * stage.time_s
            for timed in stage.operations:
                if timed.operation.kind is OperationKind.MOE:
                    self.experts_s += count * timed.estimate.value
                if timed.estimate.source is SourceKind.ASSUMED:
                    kind = timed.operation.kind.value
                    self.assumed_s[kind] = self.assumed_s.get(kind, 0.0) + count * timed.estimate.value

    def notes(self, box: str) -> list[str]:
        """What to tell the reader, in words; nothing where every constant has a source."""
        if not self.assumed_s:
            return []
        parts = [f"{kind} {time_s / self.total_s:.0%}" for kind, time_s in sorted(self.assumed_s.items())]
        return [f"compute constants of {box}, as shares of the prefill's compute: {', '.join(parts)}"]

    def routing_notes(self, moe: MoeSpec | None, prefill_ep: int, decode_ep: int) -> list[str]:
        """How uneven routing is taken to be over the ranks of either side; nothing without expert parallelism."""
        if moe is None or max(prefill_ep, decode_ep) == 1:
            return []
        sides = [
            f"of {ranks} {side} ranks {fullest_rank(moe, ranks, EXPERT_SKEW):.1f} x"
            for side, ranks in (("prefill", prefill_ep), ("decode", decode_ep))
            if ranks > 1
        ]
        text = f"expert routing: the fullest rank serves more than the mean, {', '.join(sides)} (ranks^(1/3))"
        share = f"; experts are {self.experts_s / self.total_s:.0%} of the prefill's compute" if self.total_s else ""
        return [text + share]


def _stages(cost: PassCost) -> Iterator[tuple[StageCost, int]]:
    """Each stage of a pass once, and how often it occurs."""
    yield cost.embedding, 1
    for layer, count in cost.kinds():
        for stage in layer.stages:
            yield stage, count
    if cost.logits is not None:
        yield cost.logits, 1
