"""Slots: the parts of a pass, compute or exchange, and the collectives of one instance priced once each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pdmodel.costs.collectives import CollectiveCost, collective
from pdmodel.hardware.ports import Port
from pdmodel.hardware.topology import Box
from pdmodel.parallelism import Placement
from pdmodel.spec import SourceKind, weakest
from pdmodel.timeline.phases import PhaseKind
from pdmodel.units import format_bytes, format_rate, format_seconds

#: Capacities derived from the same constants as a collective's time meet it exactly; a hair is no violation.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Slot:
    """A phase before it knows its layer: duration [s] and bytes per port [byte]. Equal layers share one slot.

    ``detail``: algorithm and protocol of an exchange, of the first one where there are several.
    """

    operation: str
    kind: PhaseKind
    duration_s: float
    source: SourceKind
    wire_bytes: Mapping[str, float] = field(default_factory=dict)
    input_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    detail: str = ""


def merged(slots: Iterable[Slot], cut_before: frozenset[str]) -> tuple[Slot, ...]:
    """Adjacent compute slots as one, except before the operations at which something is released or gated."""
    found: list[Slot] = []
    for slot in slots:
        last = found[-1] if found else None
        computes = last is not None and last.kind is slot.kind is PhaseKind.COMPUTE
        if last is None or not computes or slot.operation in cut_before:
            found.append(slot)
            continue
        total = last.duration_s + slot.duration_s
        # As everywhere: a part of less than 5 % does not decide how good a sum is.
        sources = [part.source for part in (last, slot) if part.duration_s >= 0.05 * total]
        found[-1] = Slot(f"{last.operation}+{slot.operation}", PhaseKind.COMPUTE, total, weakest(*sources))
    return tuple(found)


class Exchanges:
    """The collectives of one instance on its box.

    Groups of one kind (the TP groups of all CP ranks, say) run at the same time: their bytes add up, the slowest one
    gives the time, and the time is raised where a port that they share needs longer. ``warnings``, ``assumed`` and
    ``hazards`` collect what the costs say about themselves.
    """

    def __init__(self, box: Box, placement: Placement, ports: Sequence[Port], all_reduce: str) -> None:
        self.box, self.placement, self.all_reduce = box, placement, all_reduce
        self.warnings: dict[str, None] = {}
        self.assumed: dict[str, None] = {}
        self.hazards: dict[str, None] = {}
        self._ports = {port.name: port for port in ports}
        self._known: dict[tuple[str, str, float], Slot] = {}

    def over_tp(self, name: str, operation: str, size_bytes: float) -> Slot:
        """One collective of ``size_bytes`` in every TP group at the same time."""
        key = (name, operation, size_bytes)
        if key not in self._known:
            implementation = self.all_reduce if operation == "all_reduce" else "nccl"
            costs = [
                collective(operation, size_bytes, group, self.box, implementation) for group in self.placement.tp_groups
            ]
            self._known[key] = self.together(name, costs)
        return self._known[key]

    def together(self, name: str, costs: Sequence[CollectiveCost]) -> Slot:
        """Collectives of several groups that run at the same time, as one slot."""
        for cost in costs:
            self.remember(cost)
        wire, links = add_up([(cost.wire_bytes, cost.input_links) for cost in costs])
        own = max(cost.time_s for cost in costs)
        duration, source = self.raised(name, own, wire, weakest(*(cost.source for cost in costs)))
        detail = f"{costs[0].algorithm}, {costs[0].protocol}"
        return Slot(name, PhaseKind.COLLECTIVE, duration, source, wire, links, detail)

    def remember(self, cost: CollectiveCost) -> None:
        """Keep what a cost warns of and assumes."""
        self.warnings.update(dict.fromkeys(cost.warnings))
        self.hazards.update(dict.fromkeys(cost.hazards))
        self.assumed.update(dict.fromkeys(cost.notes))

    def raised(
        self, name: str, own_s: float, wire: Mapping[str, float], source: SourceKind
    ) -> tuple[float, SourceKind]:
        """Critical traffic never exceeds a port: tau >= max_e b_e / C_e, with a warning where that raises it."""
        slowest, needed = None, 0.0
        for port, size in wire.items():
            time_s = size / self._ports[port].capacity_bytes_per_s
            if time_s > needed:
                slowest, needed = self._ports[port], time_s
        if slowest is None or needed <= own_s * (1 + TOLERANCE):
            return own_s, source
        text = (
            f"{name}: its constants say {format_seconds(own_s)}, but {slowest.name} "
            f"({format_rate(slowest.capacity_bytes_per_s)}) needs {format_seconds(needed)} for "
            f"{format_bytes(wire[slowest.name])}; raised to that"
        )
        self.warnings[text] = None
        return needed, weakest(source, slowest.source)


def add_up(
    parts: Iterable[tuple[Mapping[str, float], Mapping[str, tuple[str, ...]]]],
) -> tuple[dict[str, float], dict[str, tuple[str, ...]]]:
    """Wire bytes and input links of several exchanges together."""
    wire: dict[str, float] = {}
    links: dict[str, tuple[str, ...]] = {}
    for sizes, found in parts:
        for port, size in sizes.items():
            wire[port] = wire.get(port, 0.0) + size
        for port, names in found.items():
            links[port] = tuple(dict.fromkeys((*links.get(port, ()), *names)))
    return wire, links
