"""Load or recompute: how much of each cached prefix is worth loading, every split held against the others in GPU·s."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.residual import clock_bounds
from pdmodel.answer import ReuseResult
from pdmodel.choose import Choice, choose, cost_floor
from pdmodel.costs.fullest_port import fullest_port
from pdmodel.later import Later
from pdmodel.nic_lists import NicChoice, nic_choice
from pdmodel.nic_plan import is_cheaper, on_list
from pdmodel.record import listed_record, scenario_record
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import RESIDUAL_EDF, STRICT
from pdmodel.resolve import MOST_PASSES, ResolvedScenario
from pdmodel.scenario import Reuse
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.flows import FlowKind
from pdmodel.transfer.nics import NicLists
from pdmodel.workload.request import CacheTier, Request

MOST_SPLITS: Final = 24
"""Splits of one request that are looked at in one pass."""
MOST_PLANNED: Final = 3
"""Of these, the splits that are planned in one pass."""
CLEARLY: Final = 0.05
"""Share of the total that must be won before somebody who did not ask is told."""
QUICK_PASSES: Final = 1000
"""Passes through a layer whose timeline is built and replayed in well under a second."""
RULES: Final = (STRICT, RESIDUAL_EDF)
MOST_PASSES_OVER_REQUESTS: Final = 3
NEAR: Final = 1e-3
"""A split is good enough where no other can save more than this share of the total."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scenario with its prefixes cut, planned: ``base`` [GPU·s] is what it costs before any delay.

    ``nics``: what other NICs than the engine's are worth to the plan, where that was looked at.
    """

    resolved: ResolvedScenario
    timeline: Timeline
    data: AllocationData
    choice: Choice
    base: float
    nics: NicChoice | None = None

    @property
    def lists(self) -> NicLists | None:
        """The NICs that the plan is made for, where they are a list."""
        return None if self.nics is None else self.nics.lists

    @property
    def total(self) -> float:
        """All that it costs [GPU·s]: comparable between candidates."""
        return self.base + self.choice.replay.cost

    @property
    def fits(self) -> bool:
        """Whether the memory holds it at every moment."""
        return all(pool.fits for pool in self.choice.memory)


@dataclass(frozen=True, slots=True)
class Decided:
    """The candidate of least total cost, and how it was decided (nothing to say where all is loaded as it is told)."""

    best: Candidate
    rows: tuple[ReuseResult, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Point:
    """A split that was looked at [GPU·s]: base, a bound of the total, the total under the better of two simple rules.

    ``by_rule`` is infinite where the bound was enough; ``planned``: where it was planned.
    """

    base: float
    bound: float
    by_rule: float = math.inf
    planned: Candidate | None = None

    @property
    def total(self) -> float:
        return self.by_rule if self.planned is None else min(self.by_rule, self.planned.total)


Say = Callable[[str], None]


def decide(
    resolved: ResolvedScenario, measured: tuple[float, float] | None = None, progress: Say | None = None
) -> Decided:
    """Load all that is cached, or where the scenario asks for the best, as much of each prefix as is worth it.

    Parameters
    ----------
    resolved: the scenario; ``cache.reuse`` says which of the two.
    measured: as `choose`.
    progress: told what is being done.

    Returns
    -------
    The planned scenario; with ``reuse: best`` a row for each request and tier, else a note where computing (half of) a
    prefix again would clearly be cheaper.

    Raises
    ------
    As `scenario_record` and `choose`.

    Notes
    -----
    A prefix is split in order of tiers: its first tokens are used as they are cached, the rest is computed again. One
    request at a time, the others as they were last, until a pass changes nothing: what two requests would only win
    together is not found.

    """
    say = progress or _quiet
    best = _planned(resolved, measured, say)
    if resolved.spec.cache.reuse is Reuse.LOAD:
        best = _with_nics(best, measured, say)
        return Decided(best, notes=_hints(best, measured))
    searches: dict[str, _Search] = {}
    wanted = [request for request in resolved.requests if least_split(resolved, request) < request.cached_tokens]
    for _ in range(MOST_PASSES_OVER_REQUESTS):
        before = best
        for request in wanted:
            search = _Search(best, request, measured, say)
            best = search.run()
            searches[request.name] = search
        if best is before or len(wanted) == 1:
            break
    best = _with_nics(best, measured, say)
    return Decided(best, tuple(row for request in wanted for row in _rows(searches[request.name], best)))


def base_cost(data: AllocationData) -> float:
    r"""What a record costs before any delay [GPU·s].

    .. math:: \sum_l \pi_l T_l + \sum_r \lambda_r (E_r - a_r)

    T_l: time that lane l computes on the clock without KV [s]; E_r: end of request r's prefill there, a_r: its arrival
    [s]. With the cost of a replay, which counts the delays against that clock, this is the whole cost of serving the
    requests, so scenarios that compute different parts of the same prompts can be compared. What the decode side does
    is the same in all of them.
    """
    running = (data.clock.phase >= 0) @ data.interval_s
    bounds = clock_bounds(data)
    waited = [
        float(bounds[one.lane][1][one.last_phase]) - data.lanes[one.lane].phases[one.first_phase].not_before_s
        for one in data.requests
    ]
    prices = [one.price_per_s for one in data.requests]
    return float(data.lane_price_per_s @ running) + float(np.dot(prices, waited))


def least_split(resolved: ResolvedScenario, request: Request) -> int:
    """Tokens of a cached prefix that are used whatever they cost: those in HBM, and what is too long to compute.

    A timeline holds `MOST_PASSES` passes through a layer.
    """
    chunk = resolved.spec.prefill.chunk_tokens
    longest = request.input_tokens if chunk is None else chunk * (MOST_PASSES // resolved.arch.layers)
    return min(request.cached_tokens, max(request.cached_by(CacheTier.HBM), request.input_tokens - longest, 0))


def with_split(resolved: ResolvedScenario, request: Request, split: int) -> ResolvedScenario:
    """The scenario with the first ``split`` tokens of a request's cached prefix used, the rest computed again.

    ``request`` says what is cached, whatever ``resolved`` now uses of it.
    """
    requests = tuple(request.keeping(split) if one.name == request.name else one for one in resolved.requests)
    return replace(resolved, requests=requests)


def _planned(resolved: ResolvedScenario, measured: tuple[float, float] | None, say: Say) -> Candidate:
    timeline, data = scenario_record(resolved)
    return Candidate(resolved, timeline, data, choose(data, measured, say), base_cost(data))


def _with_nics(found: Candidate, measured: tuple[float, float] | None, say: Say) -> Candidate:
    """With what its NICs are worth; planned again on the best list of NICs where that is cheaper than the plan."""
    resolved, timeline, choice = found.resolved, found.timeline, found.choice
    rules = Later.of(resolved).without_gates(choice.policies, choice.broken)
    nics = nic_choice(resolved, timeline, found.data, choice, rules)
    if nics is None or nics.listed is None or not is_cheaper(nics, choice):
        return replace(found, nics=nics)
    say("planning on a list of NICs")
    data = listed_record(resolved, timeline, nics.listed.lists)
    nics, choice = on_list(resolved, nics, choice, data, choose(data, measured, say))
    return replace(found, data=data, choice=choice, nics=nics)


def _hints(now: Candidate, measured: tuple[float, float] | None) -> tuple[str, ...]:
    """Prefixes that would better be computed again, the whole or the second half: looked at where it costs little.

    Computing more takes at least as long, so no more can be won than what the delays cost.
    """
    if now.choice.replay.cost < CLEARLY * now.total:
        return ()
    found = []
    for request in now.resolved.requests:
        search = _Search(now, request, measured, _quiet)
        least, cached = search.least, request.cached_tokens
        chunk = now.resolved.spec.prefill.chunk_tokens or request.input_tokens
        passes = now.resolved.arch.layers * (request.input_tokens // chunk)
        if least == cached or passes > QUICK_PASSES:
            continue
        splits = {least, max(least, search.page(cached / 2))}
        costs = {split: search.look(split, (1 - CLEARLY) * now.total).total for split in splits}
        split = min(costs, key=lambda split: costs[split])
        if costs[split] < (1 - CLEARLY) * now.total:
            found.append(
                f"{request.name}: computing {cached - split} of {cached} cached tokens again would cost "
                f"{costs[split]:.3g} GPU·s in all instead of {now.total:.3g}: see cache.reuse best"
            )
    return tuple(found)


class _Search:
    """The splits of one request, the others left as they are.

    Tier boundaries first; then the interval between two known splits whose bound is least is halved, until none can
    beat the best by more than `NEAR`. The bound of [a, b] is the base cost at b (fewer tokens to compute) and the
    lesser floor of the two ends: it holds where that floor changes one way in between. Splits are held against each
    other under simple rules; the best of them are planned.
    """

    def __init__(self, now: Candidate, request: Request, measured: tuple[float, float] | None, say: Say) -> None:
        self.request, self.measured, self.say = request, measured, say
        self.now, self.step = now, now.resolved.page_tokens
        self.least = least_split(now.resolved, request)
        self.used = used_tokens(now.resolved, request)
        self.points: dict[int, _Point] = {}

    def run(self) -> Candidate:
        """The best candidate; whatever was looked at stays in ``points``."""
        self.points[self.used] = replace(self._point(self.now.data, 0.0), planned=self.now)
        self._halve()
        best, programs = self.now, 0
        for split in sorted(self.points, key=lambda split: (self.points[split].total, -split)):
            point = self.points[split]
            # Planning may win more for a split that is dearer under simple rules, but no more than its bound allows.
            hopeless = best.fits and point.bound >= best.total * (1 - NEAR)
            if point.planned is not None or hopeless or programs == MOST_PLANNED:
                continue
            self.say(f"{self.request.name}: planning with {split} of {self.request.cached_tokens} cached tokens loaded")
            found = _planned(with_split(self.now.resolved, self.request, split), self.measured, _quiet)
            self.points[split] = replace(point, planned=found)
            programs += 1
            # Of equals the one that computes less.
            if found.fits and (not best.fits or found.total < best.total * (1 - 1e-9)):
                best = found
        return best

    def _halve(self) -> None:
        ends, at = {self.least, self.used, self.request.cached_tokens}, 0
        for tier in CacheTier:
            at += self.request.cached_by(tier)
            ends.add(max(at, self.least))
        splits = sorted(ends)
        for split in splits:
            # What is told of the two ends is a cost, not a bound.
            self.look(split, math.inf if split in {self.least, self.request.cached_tokens} else self._to_beat)
        heap = [self._interval(a, b) for a, b in pairwise(splits)]
        heapq.heapify(heap)
        while heap and len(self.points) < MOST_SPLITS:
            bound, a, b = heapq.heappop(heap)
            if bound >= self._to_beat:
                break
            middle = self.page((a + b) / 2)
            if a < middle < b:
                self.look(middle, self._to_beat)
                for one, two in ((a, middle), (middle, b)):
                    heapq.heappush(heap, self._interval(one, two))

    def _interval(self, a: int, b: int) -> tuple[float, int, int]:
        one, two = self.points[a], self.points[b]
        return two.base + min(one.bound - one.base, two.bound - two.base), a, b

    def page(self, tokens: float) -> int:
        """The nearest number of whole pages, in tokens."""
        return round(tokens / self.step) * self.step

    @property
    def _to_beat(self) -> float:
        """What a split must cost less than to be worth a replay [GPU·s]."""
        return min(point.total for point in self.points.values()) * (1 - NEAR)

    def look(self, split: int, to_beat: float) -> _Point:
        """Bound a split, and replay it under simple rules where that bound is below ``to_beat`` [GPU·s]."""
        if split not in self.points:
            self.say(f"{self.request.name}: {split} of {self.request.cached_tokens} cached tokens loaded")
            data = scenario_record(with_split(self.now.resolved, self.request, split))[1]
            self.points[split] = self._point(data, to_beat)
        return self.points[split]

    def _point(self, data: AllocationData, to_beat: float) -> _Point:
        kv_weight, interference = self.measured or (1.0, 0.0)
        base = base_cost(data)
        bound = base + cost_floor(data)
        if bound >= to_beat:
            return _Point(base, bound)
        costs = [simulate(data, rule, kv_weight=kv_weight, interference=interference).cost for rule in RULES]
        return _Point(base, bound, base + min(costs))


def _quiet(_: str) -> None:
    """Say nothing."""


def used_tokens(resolved: ResolvedScenario, request: Request) -> int:
    """Tokens of a request's cached prefix that a scenario uses."""
    return next(one.cached_tokens for one in resolved.requests if one.name == request.name)


def _rows(search: _Search, best: Candidate) -> list[ReuseResult]:
    """One row for each tier of the request's prefix."""
    request, found, at = search.request, [], 0
    used = used_tokens(best.resolved, request)
    whole, none = search.points[request.cached_tokens], search.points[search.least]
    for tier in CacheTier:
        cached = request.cached_by(tier)
        start, at = at, at + cached
        if not cached:
            continue
        loaded = min(max(used - start, 0), cached)
        before, after = (
            scenario_record(with_split(best.resolved, request, max(split, search.least)))[1] for split in (start, at)
        )
        found.append(
            ReuseResult(
                request=request.name,
                tier=tier.value,
                cached_tokens=cached,
                loaded_tokens=loaded,
                recomputed_tokens=cached - loaded,
                load_s=_load_s(after, before),
                recompute_s=_computing_s(before) - _computing_s(after),
                cost_load_all=whole.total,
                cost_recompute_all=none.total,
                cost_best=best.total,
                splits=len(search.points),
                planned=sum(point.planned is not None for point in search.points.values()),
            )
        )
    return found


def _load_s(data: AllocationData, before: AllocationData) -> float:
    """What the loads of one record take longer than those of another on any port, by the engine's own routes [s]."""
    moved = [
        (route, sign * share * flow.volume_bytes)
        for sign, one in ((1.0, data), (-1.0, before))
        for flow in one.flows
        if flow.kind is FlowKind.LOAD
        for share, route in zip(flow.split, flow.routes, strict=True)
    ]
    capacity = {port.name: port.capacity_bytes_per_s for one in (before, data) for port in one.ports}
    return max(0.0, fullest_port(moved, capacity).time_s)


def _computing_s(data: AllocationData) -> float:
    """Time that the lanes compute on the clock without KV [s]."""
    return float(((data.clock.phase >= 0) @ data.interval_s).sum())
