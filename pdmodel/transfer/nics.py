"""Which NICs a GPU's KV takes: the engine's rule, and the further ones that a plan may choose."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.engines.spec import RouteRule
from pdmodel.errors import InputError
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import kv_route
from pdmodel.hardware.topology import Box
from pdmodel.resolve import ResolvedScenario


class Routes:
    """Routes from GPU to GPU by the engine's rule, with the further NICs that a plan may choose; each walked once."""

    def __init__(self, resolved: ResolvedScenario) -> None:
        self._resolved = resolved
        self._known: dict[tuple[int, int], tuple[tuple[Route, ...], tuple[float, ...]]] = {}

    def between(self, source: int, target: int) -> tuple[tuple[Route, ...], tuple[float, ...]]:
        """Routes and the share of the bytes that simple policies put on each."""
        if (source, target) not in self._known:
            self._known[source, target] = self._walk(source, target)
        return self._known[source, target]

    def _walk(self, source: int, target: int) -> tuple[tuple[Route, ...], tuple[float, ...]]:
        resolved = self._resolved
        ours = nic_order(resolved.prefill_box, source, resolved.nics)
        theirs = nic_order(resolved.decode_box, target, resolved.decode_nics)
        if resolved.route_rule is RouteRule.STRIPE:
            count = max(len(resolved.nics), len(resolved.decode_nics))
            ends = [
                (resolved.nics[k % len(resolved.nics)], resolved.decode_nics[k % len(resolved.decode_nics)])
                for k in range(count)
            ]
            split = [1.0 / count] * count
        else:
            ends = [(nic, theirs[0]) for nic in ours[: 1 + resolved.spec.transfer.alternative_nics]]
            split = [1.0] + [0.0] * (len(ends) - 1)
        walked = tuple(
            kv_route(resolved.prefill_box, source, nic, resolved.decode_box, peer, target, fabric=resolved.fabric)
            for nic, peer in ends
        )
        return walked, tuple(split)


def nic_order(box: Box, gpu: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """NICs from near to far; among equally near ones GPUs take turns, so that a tie does not load one NIC alone.

    Raises
    ------
    InputError: no NIC is allowed.

    """
    if not allowed:
        raise InputError("no NIC is left to send with", expected="at least one")
    element = box.gpu(gpu)
    far = {nic: (box.distance(element, box.nic(nic)).rank, len(box.climb(box.nic(nic)))) for nic in allowed}
    found: list[int] = []
    for rank in sorted(set(far.values())):
        tie = [nic for nic in allowed if far[nic] == rank]
        turn = gpu % len(tie)
        found += tie[turn:] + tie[:turn]
    return tuple(found)
