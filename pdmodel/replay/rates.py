"""Rates of everything that is live: tiers of activities, each sharing what the tiers above leave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pdmodel.errors import InputError
from pdmodel.hardware.ports import SOFTWARE_PORTS
from pdmodel.replay.activities import Stage
from pdmodel.replay.policies import Cap
from pdmodel.timeline.critical import IDLE
from pdmodel.timeline.sharing import TOLERANCE, Row, SharingCounts, share_rows

BULK = 0.5
"""Multiplicity from which a route's bytes themselves cross a port; below are the requests of its reads (h/r <= 0.2)."""


class Stream(NamedTuple):
    """A live KV activity: its place among the traffic's activities, its crossing, the rate it wants [byte/s]."""

    activity: int
    crossing: int
    limit: float


@dataclass(slots=True)
class Demand:
    """Who is live, in order of service: ``first``, then critical traffic with ``beside``, then each of ``after``.

    ``alone`` are served as if nobody else were there.
    """

    first: list[Stream] = field(default_factory=list)
    beside: list[Stream] = field(default_factory=list)
    after: list[list[Stream]] = field(default_factory=list)
    alone: list[Stream] = field(default_factory=list)

    def key(self) -> Hashable:
        """What the rates depend on."""
        return tuple(self.first), tuple(self.beside), tuple(map(tuple, self.after)), tuple(self.alone)

    @property
    def streams(self) -> list[Stream]:
        """All of them."""
        return [*self.first, *self.beside, *(one for tier in self.after for one in tier), *self.alone]


@dataclass(slots=True)
class Rates:
    """Speeds of lanes and decode lanes [-] and rates of activities [byte/s]."""

    lane: list[float]
    decode: list[float]
    kv: list[float]


class RateRule:
    """Solves demands for rates: sharing rule, tiers, caps, interference.

    ``kv_weight`` multiplies the weights of KV. Interference ``kappa`` lowers critical speed afterwards:
    x <= 1 - kappa u_e on each port that the activity uses, u_e = KV's share of the usable capacity. KV does not get
    what critical traffic loses by it: interference is capacity that goes to waste.
    """

    def __init__(self, stage: Stage, kv_weight: float, kappa: float, cap: Cap | None) -> None:
        self.critical = stage.critical
        self.crossings = stage.crossings
        self.kv_weight = kv_weight
        self.kappa = kappa
        self.counts = SharingCounts()
        counted = {port.name for port in stage.data.ports if port.kind in SOFTWARE_PORTS}
        self.software = {e for e, name in enumerate(self.critical.names) if name in counted}
        self.known: dict[Hashable, Rates] = {}
        self.cap_rows: list[Row] = [() for _ in stage.crossings]
        self.cap_rate: list[float] = []
        if cap is not None:
            self._add_caps(stage, cap)

    def _add_caps(self, stage: Stage, cap: Cap) -> None:
        """A cap is one more port, with the cap as its capacity, that only KV crosses."""
        ports = len(stage.critical.capacity)
        rows: list[dict[int, float]] = [{} for _ in stage.crossings]
        for k, target in enumerate(cap.targets):
            hit = False
            for r, route in enumerate(stage.data.routes):
                need = 1.0 if route.device == target else route.ports.get(target, 0.0)
                if need >= BULK:
                    hit = True
                    rows[stage.route_crossing[r]][ports + k] = need
            if not hit:
                legal = {name for route in stage.data.routes for name in (*route.ports, route.device) if name}
                raise InputError(
                    f"cap on {target!r}, which no KV crosses", expected=f"one of {', '.join(sorted(legal))}"
                )
        self.cap_rows = [tuple((e, need, 1.0) for e, need in row.items()) for row in rows]
        self.cap_rate = [cap.rate_bytes_per_s] * len(cap.targets)

    def rates(self, signatures: tuple[int, ...], demand: Demand, activities: int) -> Rates:
        """Rates while lanes run ``signatures`` and KV wants ``demand``; each combination is solved once."""
        key = (signatures, demand.key())
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._solve(signatures, demand, activities)
        return found

    def _solve(self, signatures: Sequence[int], demand: Demand, activities: int) -> Rates:
        critical = self.critical.active(signatures)
        usable = self.critical.usable(critical) + self.cap_rate
        left = list(usable)
        kv = [0.0] * activities
        if demand.first:
            self._tier([], demand.first, left, kv)
        speeds = self._tier(critical, demand.beside, left, kv)
        for tier in demand.after:
            self._tier([], tier, left, kv)
        for stream in demand.alone:
            ports = self.crossings[stream.crossing].ports
            wires = [(e, m) for e, m, _ in ports if e not in self.software] or [(e, m) for e, m, _ in ports]
            kv[stream.activity] = min(self.critical.capacity[e] / m for e, m in wires)
        if self.kappa > 0:
            self._interfere(critical, speeds, demand, kv, usable)
        found = iter(speeds)
        lane = [1.0 if s == IDLE else next(found) for s in signatures]
        return Rates(lane, list(found), kv)

    def _tier(
        self, critical: Sequence[Row], streams: Sequence[Stream], left: list[float], kv: list[float]
    ) -> list[float]:
        """Share ``left`` among critical activities and streams, take from it, fill ``kv``, return critical speeds."""
        rows = [*critical, *self._kv_rows(streams)]
        if not rows:
            return []
        limits = [1.0] * len(critical) + [stream.limit for stream in streams]
        speeds = share_rows(rows, limits, left, self.counts)
        for row, speed in zip(rows, speeds, strict=True):
            for e, need, _ in row:
                rest = left[e] - need * speed
                # What is left within rounding is nothing: no trickle that takes for ever.
                left[e] = rest if rest > TOLERANCE * left[e] else 0.0
        for stream, speed in zip(streams, speeds[len(critical) :], strict=True):
            kv[stream.activity] = speed
        return speeds[: len(critical)]

    def _kv_rows(self, streams: Sequence[Stream]) -> list[Row]:
        """Rows of KV activities: an input link counts once, however many activities stand behind it."""
        behind: dict[tuple[int, str], int] = {}
        for stream in streams:
            for e, _, links in self.crossings[stream.crossing].ports:
                for link in links:
                    behind[e, link] = behind.get((e, link), 0) + 1
        rows = []
        for stream in streams:
            ports = self.crossings[stream.crossing].ports
            row = [
                (e, m, self.kv_weight * (sum(1.0 / behind[e, link] for link in links) if links else 1.0))
                for e, m, links in ports
            ]
            rows.append((*row, *self.cap_rows[stream.crossing]))
        return rows

    def _interfere(
        self,
        critical: Sequence[Row],
        speeds: list[float],
        demand: Demand,
        kv: Sequence[float],
        usable: Sequence[float],
    ) -> None:
        if demand.alone:
            return
        used = [0.0] * len(usable)
        for stream in demand.streams:
            for e, m, _ in self.crossings[stream.crossing].ports:
                used[e] += m * kv[stream.activity]
        for k, row in enumerate(critical):
            worst = max((used[e] / usable[e] for e, _, _ in row), default=0.0)
            speeds[k] = min(speeds[k], 1.0 - self.kappa * worst)
