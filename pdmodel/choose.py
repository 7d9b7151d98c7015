"""Candidates (fast paths, programs, policies), each replayed; the least cost is the plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pdmodel.allocation.bound import LossBound, lanes_meet, loss_bound
from pdmodel.allocation.course import Course
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import bound_prices, certified, lower_bound, single_port
from pdmodel.allocation.solution import Solution, SolvePath
from pdmodel.answer import SolverResult
from pdmodel.errors import SolverError
from pdmodel.replay.engine import simulate
from pdmodel.replay.memory import PoolTrace, memory_trace
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import (
    BYTES_OVER_BANDWIDTH,
    NO_KV,
    RESIDUAL_EDF,
    SENDS_FIRST,
    SIMPLE,
    STRICT,
    UNMANAGED,
    PlanPolicy,
    Policy,
)
from pdmodel.replay.search import UNKNOWN, Band, band, best_cap
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind
from pdmodel.units import format_seconds
from pdmodel.verdict import WORTH, Contest, price_of_prefill, shares_port

ON_TIME = 1e-9
QUICK_INTERVALS = 30_000
"""Intervals times routes up to which program R takes a few tenths of a second."""
LARGE_INTERVALS = 200_000
"""Intervals times routes beyond which program R takes some ten seconds: one round of it at most, and none for a mere
pause of a lane for which program E has an answer."""
PROVED = 1e-6
"""An answer without a solver is called optimal where it is this close to a lower bound, as a share of its cost."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan (a schedule or a simple rule), its recorded replay, and everything it was held against.

    ``memory``: the pools over time under the plan. ``broken``: of each candidate, by name, that does not fit its
    memory, lets a lease expire or never ends its write-backs, why. ``warnings``: the leases that the plan cannot keep,
    and programs that found no optimum.
    """

    policy: Policy
    replay: Replay
    solver: SolverResult
    shadow_price: FloatArray | None
    loss: LossBound
    lower_bound: float
    policies: tuple[tuple[Policy, Replay], ...]
    references: tuple[Replay, ...]
    unmanaged: Band
    band: tuple[Contest, ...]
    memory: tuple[PoolTrace, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def best_rule(self) -> Replay:
        """The cheapest policy that needs no plan, `unmanaged` aside; of equally cheap ones the first.

        One that fits its memory and keeps its leases, if there is one.
        """
        rules = [pair for pair in self.policies if pair[1].policy != UNMANAGED.name]
        return _least([pair for pair in rules if pair[1].policy not in self.broken] or rules)[1]

    @property
    def overfull(self) -> tuple[PoolTrace, ...]:
        """The pools that the plan does not fit."""
        return tuple(pool for pool in self.memory if not pool.fits)


@dataclass(frozen=True, slots=True)
class _Found:
    """What answers: a path, with the best schedule found where there is one; ``failed``: programs without an optimum.

    Without a path no program has an optimum, and the simple rules are all there is.
    """

    path: SolvePath | None
    solution: Solution | None = None
    failed: tuple[str, ...] = ()


def choose(
    data: AllocationData,
    measured: tuple[float, float] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """The plan of a record.

    Parameters
    ----------
    data: the record.
    measured: (kv_weight, interference) of the ports, where they were measured; else a band is replayed.
    progress: told what is being done, for long work.

    Returns
    -------
    The candidate of least replayed cost at fair arbitration, or at what was measured.

    Raises
    ------
    SolverError: no program has an optimum, and KV starves under every simple rule.

    """
    started = time.perf_counter()
    say, centre = progress or (lambda _: None), measured or (1.0, 0.0)
    points = UNKNOWN if measured is None else (measured,)
    say("replaying simple rules")
    unmanaged = band(data, UNMANAGED, points)
    floor = cost_floor(data)
    little = unmanaged.unfavourable.replay.cost - floor < WORTH * price_of_prefill(data)
    tried = _simple(data, unmanaged.at(*centre), centre, with_cap=not little)
    found = _fast_path(data, tried, floor, little=little)
    candidates: list[tuple[Policy, Replay]] = list(tried)
    if found is not None and found.solution is not None:
        candidates.append(_planned(data, found.solution, centre))
    keeps = Keeps(data, centre)
    # Memory and leases bind where what is cheapest breaks them: the programs have rows for them.
    if found is None or keeps.reason(*_least(candidates)):
        say("solving the program")
        found, planned = _program(data, keeps, tried)
        candidates += planned
    policy, replay = keeps.best(candidates)
    say("replaying the band")
    recorded = replay if replay.segments else _replay(data, policy, centre, record=True)
    mine = unmanaged if policy is UNMANAGED else band(data, policy, points, {centre: recorded})
    return Choice(
        policy=policy,
        replay=recorded,
        solver=_solver_result(found, policy, replay, floor=floor, wall_s=time.perf_counter() - started),
        shadow_price=_shadow_price(data, found),
        loss=loss_bound(data),
        lower_bound=floor,
        policies=tuple(tried),
        references=tuple(_replay(data, reference, centre) for reference in (NO_KV, BYTES_OVER_BANDWIDTH)),
        unmanaged=unmanaged,
        band=_contests(unmanaged, mine),
        memory=memory_trace(data, recorded),
        broken={p.name: reason for p, r in (*tried, (policy, replay)) if (reason := keeps.reason(p, r))},
        warnings=(*_lost(data, recorded), *found.failed),
    )


def _contests(unmanaged: Band, mine: Band) -> tuple[Contest, ...]:
    """What sending at will and the plan cost at each point of the band."""
    return tuple(
        Contest(u.kv_weight, u.interference, u.replay.cost, p.replay.cost)
        for u, p in zip(unmanaged.points, mine.points, strict=True)
    )


class Keeps:
    """Whether candidates keep to limits that cost nothing until they are broken.

    Memory before leases, leases before write-backs that are never over.
    """

    def __init__(self, data: AllocationData, centre: tuple[float, float]) -> None:
        self.centre = centre
        self._data = data
        self._overfull: dict[int, str] = {}

    def reason(self, policy: Policy, replay: Replay) -> str:
        """What the candidate breaks, on one line; empty if nothing."""
        stuck = "write-backs are never over" if replay.writeback_end_s == math.inf else ""
        return "; ".join(part for part in (self._memory(policy, replay), *_lost(self._data, replay), stuck) if part)

    def best(self, candidates: Sequence[tuple[Policy, Replay]]) -> tuple[Policy, Replay]:
        """The cheapest of those that break least; one under which KV starves is the last of all."""
        rank = [
            (math.isinf(r.cost), bool(self._memory(p, r)), bool(r.expired), r.writeback_end_s == math.inf)
            for p, r in candidates
        ]
        return _least([pair for pair, mine in zip(candidates, rank, strict=True) if mine == min(rank)])

    def _memory(self, policy: Policy, replay: Replay) -> str:
        if not self._data.memory:
            return ""
        if id(replay) not in self._overfull:
            pools = memory_trace(self._data, replay)
            if not all(pool.fits for pool in pools) and not replay.segments:
                # An upper bound does not fit: look closely.
                pools = memory_trace(self._data, _replay(self._data, policy, self.centre, record=True))
            over = [pool.text for pool in pools if not pool.fits]
            more = f" and {len(over) - 1} more" if len(over) > 1 else ""
            self._overfull[id(replay)] = f"{over[0]}{more}" if over else ""
        return self._overfull[id(replay)]


def _lost(data: AllocationData, replay: Replay) -> tuple[str, ...]:
    """Leases that a replay does not keep, on one line."""
    if not replay.expired:
        return ()
    first, others = replay.expired[0], len(replay.expired) - 1
    lease = next(flow.lease_s for flow in data.flows if flow.name == first)
    more = f" and {others} more" if others else ""
    return (f"the lease of {first} ({format_seconds(lease or 0.0)}){more} cannot be kept",)


def cost_floor(data: AllocationData) -> float:
    """A cost that no schedule undercuts [GPU·s].

    The certificate's lower bound on one lane. Several lanes whose critical traffic meets nowhere add up, each alone on
    the box and without a guard (dropping the others' traffic only helps). Zero where lanes meet.
    """
    if len(data.lanes) == 1:
        return lower_bound(data).cost
    if lanes_meet(data):
        return 0.0
    return sum(lower_bound(data.only_lane(k)).cost for k in range(len(data.lanes)))


def _simple(
    data: AllocationData, unmanaged: Replay, centre: tuple[float, float], *, with_cap: bool
) -> list[tuple[Policy, Replay]]:
    """The simple rules, replayed; a static cap is searched for where there is something to win."""
    tried: list[tuple[Policy, Replay]] = [(UNMANAGED, unmanaged)]
    writes_back = any(flow.kind is FlowKind.WRITEBACK for flow in data.flows)
    rules = [rule for rule in SIMPLE if rule is not UNMANAGED] + ([SENDS_FIRST] if writes_back else [])
    tried += [(rule, _replay(data, rule, centre)) for rule in rules]
    if with_cap:
        cap = best_cap(data, unmanaged, kv_weight=centre[0], interference=centre[1]).policy
        if cap is not None:
            tried.append((cap, _replay(data, cap, centre)))
    return tried


def _fast_path(
    data: AllocationData, tried: Sequence[tuple[Policy, Replay]], floor: float, *, little: bool
) -> _Found | None:
    """Whether something simpler than a program answers, and what; ``little``: there is next to nothing to win."""
    by_name = {replay.policy: replay for _, replay in tried}
    if not shares_port(data):
        edf = by_name[RESIDUAL_EDF.name]
        on_time = edf.decode_stall_s.max(initial=0.0) + edf.load_stall_s.max(initial=0.0) <= ON_TIME
        # Rules follow the engine's routes and dues; where there are others, or several requests, a plan may win
        # although nobody is preferred.
        one_way = all(len(flow.routes) == 1 for flow in data.flows)
        no_choice = _equal_prices(data) and one_way and len(data.requests) == 1
        return _Found(SolvePath.NO_SHARED_PORT) if little or on_time or no_choice else None
    if little:
        return _Found(SolvePath.BOUND)
    if len(data.lanes) != 1:
        return None
    if any(certified(data, by_name[rule.name].cost, floor) for rule in (STRICT, RESIDUAL_EDF)):
        return _Found(SolvePath.CERTIFIED)
    if len(data.requests) != 1:
        return None
    closed = single_port(data)
    return _Found(SolvePath.CLOSED_FORM, closed) if closed is not None else None


def _equal_prices(data: AllocationData) -> bool:
    prices = data.flow_price_per_s[[flow.kind is not FlowKind.WRITEBACK for flow in data.flows]]
    return bool(np.ptp(prices) <= 1e-12 * prices.max(initial=0.0)) if len(prices) else True


def _program(
    data: AllocationData, keeps: Keeps, tried: Sequence[tuple[Policy, Replay]]
) -> tuple[_Found, list[tuple[Policy, Replay]]]:
    """The schedules of the programs, replayed, and the best of them.

    Program E on one lane, with several requests for the best course found. Program R where there are more lanes or E
    has no optimum, and beside E for several requests where `_worth_residual` says so.
    """
    found: list[Solution] = []
    planned: list[tuple[Policy, Replay]] = []
    failed: list[str] = []

    def take(*solutions: Solution) -> float:
        found.extend(solutions)
        planned.extend(_planned(data, one, keeps.centre) for one in solutions)
        return min(replay.cost for _, replay in planned[-len(solutions) :])

    if len(data.lanes) == 1:
        try:
            take(_elastic(data, tried))
        except SolverError as error:
            failed.append(str(error))
    if not planned or (len(data.requests) > 1 and _worth_residual(data, keeps, planned[0])):
        try:
            _residual(data, take)
        except SolverError as error:
            failed.append(str(error))
    if not planned:
        if all(math.isinf(replay.cost) for _, replay in tried):
            raise SolverError("; ".join(failed))
        return _Found(None, failed=(f"{'; '.join(failed)}: the plan is the best of the simple rules",)), []
    best = keeps.best(planned)
    solution = next(solution for solution, pair in zip(found, planned, strict=True) if pair is best)
    return _Found(solution.path, solution, tuple(failed)), planned


def _size(data: AllocationData) -> int:
    """Intervals times routes."""
    return len(data.interval_s) * len(data.routes)


def _worth_residual(data: AllocationData, keeps: Keeps, elastic: tuple[Policy, Replay]) -> bool:
    """Whether program R may add to what program E found for several requests, and is worth its time.

    It may where a lane pauses for an arrival, unless R is large, where what E found breaks a limit, and where R takes
    next to no time.
    """
    pauses = has_pauses(data) and _size(data) <= LARGE_INTERVALS
    return _size(data) <= QUICK_INTERVALS or pauses or bool(keeps.reason(*elastic))


def _residual(data: AllocationData, take: Callable[..., float]) -> None:
    """Rounds of program R while they help, handed to ``take``, which says what they cost; one round where it is large.

    A round without an optimum ends them, an error only where it is the first one.
    """
    from pdmodel.allocation.program_r import quantum_rounds

    least = math.inf
    try:
        for solution in quantum_rounds(data):
            in_turn = () if solution.in_turn is None else (replace(solution, schedule=solution.in_turn),)
            cost = take(solution, *in_turn)
            if not cost < least or _size(data) > LARGE_INTERVALS:
                break
            least = cost
    except SolverError:
        if math.isinf(least):
            raise


def _elastic(data: AllocationData, tried: Sequence[tuple[Policy, Replay]]) -> Solution:
    """Program E on one lane; with several requests the search over courses begins with those of the simple rules."""
    from pdmodel.allocation.program_e import solve_elastic

    if len(data.requests) == 1:
        return solve_elastic(data)
    from pdmodel.allocation.courses import best_course

    cheap = sorted((replay for _, replay in tried), key=lambda replay: replay.cost)
    return best_course(data, list(dict.fromkeys(course_of(data, replay) for replay in cheap)))


def has_pauses(data: AllocationData) -> bool:
    """Whether a lane that has begun waits for a request to arrive: program E knows no such pause."""
    for phase in data.clock.phase:
        running = np.flatnonzero(phase >= 0)
        if len(running) and (phase[running[0] : running[-1]] < 0).any():
            return True
    return False


def course_of(data: AllocationData, replay: Replay) -> Course:
    """The course of a replay of one lane: a request has begun where it has arrived.

    It is done where the first phase starts once its last byte is there.
    """
    lane, phases = replay.lanes[0], data.lanes[0].phases
    if math.isinf(replay.cost):  # KV starves: as if nothing were sent before the tail
        ends = (len(phases),) * len(data.requests)
        return Course(ends, tuple(request.first_phase for request in data.requests))
    slack = 1e-9 * replay.end_s
    waits = np.concatenate([lane.start_s[:1], lane.end_s])
    done, begun = [], []
    for request, stall_s in zip(data.requests, replay.decode_stall_s, strict=True):
        sent_s = lane.end_s[request.last_phase] + max(float(stall_s), 0.0)
        done.append(max(int(np.searchsorted(lane.start_s, sent_s - slack)), request.last_phase + 1))
        arrival_s = phases[request.first_phase].not_before_s
        begun.append(min(int(np.searchsorted(waits, arrival_s - slack)), request.first_phase))
    return Course(tuple(done), tuple(begun))


def _planned(data: AllocationData, solution: Solution, centre: tuple[float, float]) -> tuple[Policy, Replay]:
    if solution.schedule is None:
        message = "a program gave no schedule"
        raise RuntimeError(message)
    policy = PlanPolicy(solution.schedule)
    return policy, _replay(data, policy, centre, record=True)


def _least(candidates: Sequence[tuple[Policy, Replay]]) -> tuple[Policy, Replay]:
    """The cheapest; of equally cheap ones the first, so that what needs no setting is preferred."""
    least = min(replay.cost for _, replay in candidates)
    tolerance = 1e-9 * abs(least) + 1e-15
    return next(pair for pair in candidates if pair[1].cost <= least + tolerance)


def _replay(data: AllocationData, policy: Policy, centre: tuple[float, float], *, record: bool = False) -> Replay:
    kv_weight, interference = centre
    return simulate(data, policy, kv_weight=kv_weight, interference=interference, record=record)


def _shadow_price(data: AllocationData, found: _Found) -> FloatArray | None:
    """Prices of the program, or of the bound that certifies; None where nothing was solved."""
    if found.solution is not None:
        return found.solution.shadow_price
    if found.path is not SolvePath.CERTIFIED:
        return None
    if len(data.lanes) == 1:
        return bound_prices(data)
    return np.asarray(np.sum([bound_prices(data.only_lane(k)) for k in range(len(data.lanes))], axis=0))


def _solver_result(found: _Found, policy: Policy, replay: Replay, *, floor: float, wall_s: float) -> SolverResult:
    """How the plan was found. What a program says of itself is not what a rule that beats it is worth."""
    solution, rule = found.solution, "" if isinstance(policy, PlanPolicy) else policy.name
    if solution is not None and not rule:
        gap, status = solution.gap, solution.status.value
        return SolverResult(solution.path.value, status, solution.objective, gap, wall_s, solution.variables)
    bound = max(floor, _bound(solution, len(replay.prefill_s)))
    gap = max(0.0, replay.cost - bound) / replay.cost if replay.cost > 0 else 0.0
    proved = found.path is SolvePath.CERTIFIED or gap <= PROVED
    path = found.path.value if solution is None and found.path else f"policy:{rule}"
    variables = 0 if solution is None else solution.variables
    status = "optimal" if proved else "accepted"
    return SolverResult(path, status, replay.cost, gap, wall_s, variables, rule)


def _bound(solution: Solution | None, requests: int) -> float:
    """What program E and its closed form prove of one request; with more they hold for one course alone."""
    proves = solution is not None and solution.path in {SolvePath.PROGRAM_E, SolvePath.CLOSED_FORM} and requests == 1
    return solution.objective if solution is not None and proves else 0.0
