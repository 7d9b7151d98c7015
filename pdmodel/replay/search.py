"""Replays by the dozen: the band of a policy, and the static cap that serves best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.bound import shared_ports
from pdmodel.allocation.data import AllocationData
from pdmodel.hardware.ports import PortKind
from pdmodel.replay.engine import simulate
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import UNMANAGED, Policy, QueuePolicy, cap, policy_named
from pdmodel.replay.rates import BULK

UNKNOWN = tuple((weight, kappa) for kappa in (0.0, 0.1) for weight in (0.5, 1.0, 2.0))
"""(kv_weight, interference) where neither was measured."""
COARSE = (0.8, 0.5, 0.25, 0.1)
ROUNDS = 2
GAIN = 1e-9
"""A cap that saves less than this share of the cost saves nothing."""


@dataclass(frozen=True, slots=True)
class BandPoint:
    """One replay of a band, and the unknowns that it was run with."""

    kv_weight: float
    interference: float
    replay: Replay


@dataclass(frozen=True, slots=True)
class Band:
    """A policy over what nobody has measured: how ports arbitrate, and how much traffic interferes below saturation."""

    policy: str
    points: tuple[BandPoint, ...]

    @property
    def favourable(self) -> BandPoint:
        """The least cost."""
        return min(self.points, key=lambda point: point.replay.cost)

    @property
    def unfavourable(self) -> BandPoint:
        """The greatest cost."""
        return max(self.points, key=lambda point: point.replay.cost)

    def at(self, kv_weight: float, interference: float) -> Replay:
        """The replay at one point."""
        return next(
            point.replay for point in self.points if point.kv_weight == kv_weight and point.interference == interference
        )


def band(
    data: AllocationData,
    policy: Policy | str = UNMANAGED,
    points: Sequence[tuple[float, float]] = UNKNOWN,
    at_hand: Mapping[tuple[float, float], Replay] | None = None,
) -> Band:
    """Replay a policy over (kv_weight, interference), by default over {1/2, 1, 2} x {0, 0.1}.

    Weights matter where KV and critical traffic share a tier; a policy that serves one before the other has one replay
    for all weights. Where no port carries both, nothing of this matters, and one replay is all. ``at_hand`` are the
    replays of this policy that are known already.
    """
    chosen = policy_named(policy) if isinstance(policy, str) else policy
    weighed = isinstance(chosen, QueuePolicy) and not chosen.critical_first
    meets = bool(shared_ports(data).any())

    def alike(point: tuple[float, float]) -> tuple[float, float]:
        return point[0] if weighed and meets else 1.0, point[1] if meets else 0.0

    known = {alike(point): replay for point, replay in (at_hand or {}).items()}
    found = []
    for weight, kappa in points:
        key = alike((weight, kappa))
        if key not in known:
            known[key] = simulate(data, chosen, kv_weight=key[0], interference=key[1])
        found.append(BandPoint(weight, kappa, known[key]))
    return Band(chosen.name, tuple(found))


@dataclass(frozen=True, slots=True)
class CapTarget:
    """Where a cap could sit: NICs or ports, the rate that their KV could have at most, and whether a NIC can do it."""

    names: tuple[str, ...]
    full_bytes_per_s: float
    needs_engine_throttle: bool


@dataclass(frozen=True, slots=True)
class CapSearch:
    """The best static cap, or None: no static cap helps.

    ``tried`` are (target, rate [byte/s], cost), the cost infinite where it was seen to exceed an earlier one.
    """

    policy: QueuePolicy | None
    replay: Replay
    tried: tuple[tuple[str, float, float], ...]


def best_cap(
    data: AllocationData, unmanaged: Replay | None = None, *, kv_weight: float = 1.0, interference: float = 0.0
) -> CapSearch:
    """Search one static rate for KV: 8 coarse replays on the two busiest kinds of port, 8 around the best of them.

    Rates are shares of what KV could have there at most. The same cap is set on every port (or NIC) of a kind, as a
    ring moves at the pace of its slowest port. ``unmanaged``, if given, is that policy's replay: a cap has to beat it.
    """
    base = unmanaged or simulate(data, UNMANAGED, kv_weight=kv_weight, interference=interference)
    tried: list[tuple[float, CapTarget, float, QueuePolicy, Replay]] = []

    def attempt(target: CapTarget, part: float) -> None:
        rate = part * target.full_bytes_per_s
        policy = cap(target.names, rate, needs_engine_throttle=target.needs_engine_throttle)
        least = min((one[0] for one in tried), default=math.inf)
        replay = simulate(data, policy, kv_weight=kv_weight, interference=interference, most=least)
        tried.append((replay.cost, target, part, policy, replay))

    for target in cap_targets(data):
        for part in COARSE:
            attempt(target, part)
    if not tried:
        return CapSearch(None, base, ())
    target = min(tried, key=lambda one: one[0])[1]
    for _ in range(ROUNDS):
        for part in _between(sorted((part, cost) for cost, other, part, *_ in tried if other is target)):
            attempt(target, part)
    cost, target, _, policy, replay = min(tried, key=lambda one: one[0])
    listed = tuple((", ".join(t.names), part * t.full_bytes_per_s, c) for c, t, part, _, _ in tried)
    if not cost < base.cost * (1 - GAIN):
        return CapSearch(None, base, listed)
    return CapSearch(policy, replay, listed)


def _between(tried: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Four rates around the cheapest of (rate, cost) in order of rate: two on the way to each neighbour."""
    place = min(range(len(tried)), key=lambda k: tried[k][1])
    best = tried[place][0]
    low = tried[place - 1][0] if place else 0.0
    high = tried[place + 1][0] if place + 1 < len(tried) else 1.0
    steps = (
        best - 2 * (best - low) / 3,
        best - (best - low) / 3,
        best + (high - best) / 3,
        best + 2 * (high - best) / 3,
    )
    return tuple(step for step in steps if step > 0)


def cap_targets(data: AllocationData, most: int = 2) -> tuple[CapTarget, ...]:
    """The kinds of port with the largest V m / C-hat among those that carry critical bytes and KV.

    C-hat is the least usable capacity over the lanes' phases; requests of reads do not count. Ports of one kind and
    node (the first part of their names) are one target, abstract ports each their own. If all their KV is moved by
    NICs, the NICs are the target: a NIC can cap a traffic class.
    """
    critical = sum((table.sum(axis=0) for table in data.critical_bytes), np.zeros(len(data.ports)))
    critical = critical + data.decode_rate.sum(axis=0)
    split = np.array([part for flow in data.flows for part in flow.split], dtype=float)
    if not len(split):
        return ()
    crossing = (split * data.volume_bytes[data.route_flow])[:, None] * data.consumption
    usable = np.minimum(data.idle_usable, np.min([table.min(axis=0) for table in data.lane_usable], axis=0))
    crossing[data.consumption < BULK] = 0.0
    busy = crossing.sum(axis=0) / usable
    groups: dict[tuple[str, str], list[int]] = {}
    for e, port in enumerate(data.ports):
        if critical[e] > 0 and busy[e] > 0:
            kind = (port.name.split("/")[0], port.kind.value)
            groups.setdefault((port.name, "") if port.kind is PortKind.ABSTRACT else kind, []).append(e)
    ranked = sorted(groups.values(), key=lambda group: -max(busy[e] for e in group))
    found: list[CapTarget] = []
    for group in ranked:
        target = _target(data, group)
        if all(target.names != other.names for other in found):
            found.append(target)
    return tuple(found[:most])


def _target(data: AllocationData, group: Sequence[int]) -> CapTarget:
    names = [data.ports[e].name for e in group]
    routes = [route for route in data.routes if any(route.ports.get(name, 0.0) >= BULK for name in names)]
    if all(route.device and not route.fifo for route in routes):
        devices = tuple(sorted({route.device for route in routes}))
        full = max(
            min(data.ports[data.port_index[name]].capacity_bytes_per_s / m for name, m in route.ports.items() if m > 0)
            for route in routes
        )
        return CapTarget(devices, full, needs_engine_throttle=False)
    return CapTarget(tuple(names), max(float(data.capacity[e]) for e in group), needs_engine_throttle=True)
