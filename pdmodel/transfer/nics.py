"""Routes of a scenario: the engine's rule for NICs, and the further ones that a plan may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdmodel.costs.nic_choice import End, Way, kv_ways, nic_order
from pdmodel.engines.spec import RouteRule
from pdmodel.resolve import ResolvedScenario

__all__ = ["NicLists", "Routes", "nic_order"]


@dataclass(frozen=True, slots=True)
class NicLists:
    """NICs listed by hand, by GPU of either side; a GPU that is not here has the scenario's."""

    prefill: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    decode: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class Routes:
    """Ways from GPU to GPU by the engine's rule, with the further NICs that a plan may choose; each walked once.

    ``rule``: another rule than the scenario's. ``lists``: NICs by hand; there are then no further ones.
    """

    def __init__(
        self, resolved: ResolvedScenario, rule: RouteRule | None = None, lists: NicLists | None = None
    ) -> None:
        self._resolved = resolved
        self._rule = rule or resolved.route_rule
        self._capacity = {port.name: port.capacity_bytes_per_s for port in resolved.ports}
        self._lists = lists
        self._known: dict[tuple[int, int], tuple[Way, ...]] = {}

    @property
    def capacity(self) -> dict[str, float]:
        """Capacity of every port by name [byte/s]."""
        return self._capacity

    def between(self, source: int, target: int) -> tuple[Way, ...]:
        """Ways and the share of the bytes that simple policies put on each."""
        if (source, target) not in self._known:
            self._known[source, target] = self._walk(source, target)
        return self._known[source, target]

    def _walk(self, source: int, target: int) -> tuple[Way, ...]:
        resolved, transfer = self._resolved, self._resolved.spec.transfer
        lists = self._lists or NicLists()
        ours, theirs = lists.prefill.get(source), lists.decode.get(target)
        return kv_ways(
            End(resolved.prefill_box, source, ours or resolved.nics, listed=bool(ours) or transfer.nics is not None),
            End(
                resolved.decode_box,
                target,
                theirs or resolved.decode_nics,
                listed=bool(theirs) or transfer.decode_nics is not None,
            ),
            self._rule,
            self._capacity,
            fabric=resolved.fabric,
            further=0 if resolved.routes_fixed or self._lists is not None else transfer.alternative_nics,
        )
