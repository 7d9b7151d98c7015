"""The main flow on one screen: scenario -> timeline -> flows -> record -> choose -> verdict -> Plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Applicable, Enforceability, Plan, ScheduleRow, Setting, Verdict, VerdictKind
from pdmodel.enforce import (
    applicable,
    enforceability,
    phase_bursts,
    send_order,
    settings,
)
from pdmodel.engines.catalog import host_knobs
from pdmodel.evidence import (
    assumed_of,
    bound_of,
    flows_of,
    hazards_of,
    missed_deadlines,
    policies_of,
    ports_of,
    provenance_of,
    references_of,
    release_note,
    times_of,
)
from pdmodel.kv_evidence import (
    control_note,
    controls_of,
    hand_offs_of,
    lease_note,
    memory_of,
    with_fix,
)
from pdmodel.later import Later
from pdmodel.nic_lists import Listed, nic_settings, nic_weights, saved_by_list, with_nics
from pdmodel.nic_plan import shortfall_of
from pdmodel.pacing import schedule_rows, throttled_nic_rate
from pdmodel.record import earliest_record, scenario_record
from pdmodel.replay import engine
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import Policy, QueuePolicy
from pdmodel.resolve import ResolvedScenario, load_scenario, resolve_scenario
from pdmodel.reuse import Candidate, Decided, decide
from pdmodel.scenario import Scenario
from pdmodel.timeline import residual
from pdmodel.timeline.build import timeline as build_timeline
from pdmodel.timeline.phases import Timeline
from pdmodel.timeline.residual import PiecewiseConstant
from pdmodel.transfer.breakdown import transfer_breakdown
from pdmodel.transfer.prefetch import settled
from pdmodel.verdict import judge, no_kv_prefill_s, price_of_prefill

ScenarioLike = str | os.PathLike[str] | Scenario | ResolvedScenario
"""Name of a shipped scenario, path of a file, a scenario as written, or a resolved one."""


def plan(scenario: ScenarioLike, *, progress: Callable[[str], None] | None = None) -> Plan:
    """Plan the KV transfers of a scenario and say whether planning them is worth it.

    Parameters
    ----------
    scenario: name of a shipped scenario, path of a scenario file, a `Scenario` as written, or a resolved one.
    progress: told what is being done, for long work.

    Raises
    ------
    InputError, CoverageError: something in the files is wrong or not covered. SolverError: no optimum.

    """
    resolved = _resolved(scenario)
    sharing = resolved.spec.sharing
    measured = None if sharing is None else (sharing.kv_weight, sharing.interference)
    return answer(decide(resolved, measured, progress))


def simulate(
    what: ScenarioLike | AllocationData,
    policy: Policy | str,
    *,
    kv_weight: float = 1.0,
    interference: float = 0.0,
    jitter: tuple[float, int] | None = None,
    record: bool = False,
) -> Replay:
    """Replay a scenario (as `plan` takes it) or a record under a policy; see `pdmodel.replay.engine.simulate`."""
    if not isinstance(what, AllocationData):
        what = scenario_record(_resolved(what))[1]
    return engine.simulate(what, policy, kv_weight=kv_weight, interference=interference, jitter=jitter, record=record)


def residual_bandwidth(what: ScenarioLike | Timeline, port: str) -> PiecewiseConstant:
    """What collectives leave of a port over time, of a scenario or its timeline; see `timeline.residual`."""
    timeline = what if isinstance(what, Timeline) else build_timeline(_resolved(what))
    return residual.residual_bandwidth(timeline, port)


def answer(decided: Decided) -> Plan:
    """The chosen candidate with its verdict and its evidence."""
    found = decided.best
    resolved, timeline, data, choice = found.resolved, found.timeline, found.data, found.choice
    control, memory = controls_of(resolved, data), memory_of(resolved, choice.memory)
    slack_s = resolved.spec.kv_slack * no_kv_prefill_s(data)
    bound, eager = bound_of(data, choice), earliest_record(resolved, timeline, found.lists)
    shortfall = shortfall_of(resolved, timeline, eager, slack_s, found.lists)
    transfer_times = transfer_breakdown(resolved)
    verdict = judge(
        data,
        shortfall=shortfall,
        slack_s=slack_s,
        bound=bound,
        band=choice.band,
        best_rule=choice.best_rule.policy,
        best_rule_cost=choice.best_rule.cost,
        plan_is=choice.solver.rule or "plan",
    )
    pacing = _pacing(found, verdict)
    return Plan(
        scenario=resolved.spec.name,
        purpose=resolved.spec.purpose,
        verdict=with_fix(pacing.verdict, shortfall, transfer_times),
        bound=bound,
        times=times_of(data, choice.replay, control),
        policies=policies_of(choice, control, pacing.listed),
        references=references_of(choice, control),
        ports=ports_of(data, choice),
        flows=flows_of(data, choice.replay),
        schedule=pacing.schedule,
        settings=pacing.settings,
        enforceability=pacing.enforceability,
        applicable=pacing.applicable,
        solver=choice.solver,
        assumed=assumed_of(data, timeline, resolved, choice),
        hazards=hazards_of(data, timeline, resolved, choice),
        warnings=(
            *timeline.warnings,
            *release_note(resolved, eager, choice),
            *lease_note(resolved, float(choice.replay.decode_stall_s.max(initial=0.0))),
            *control_note(control, slack_s),
            *choice.warnings,
            *decided.notes,
        ),
        provenance=provenance_of(resolved),
        data=data,
        replay=choice.replay,
        missed_deadlines=missed_deadlines(data, choice.replay, slack_s),
        reuse=decided.rows,
        transfer_times=transfer_times,
        memory=memory,
        hand_offs_in_flight=hand_offs_of(resolved),
    )


@dataclass(frozen=True, slots=True)
class _Pacing:
    """The schedule, what to set for it, who can hold KV back, what can be applied today, and what NICs are worth."""

    schedule: tuple[ScheduleRow, ...]
    settings: tuple[Setting, ...]
    enforceability: tuple[Enforceability, ...]
    applicable: Applicable
    verdict: Verdict
    listed: Listed | None


def _pacing(found: Candidate, verdict: Verdict) -> _Pacing:
    data, choice, engine, nics = found.data, found.choice, found.resolved.engine, found.nics
    cost, prefill = choice.replay.cost, price_of_prefill(data)
    rows, bursts = schedule_rows(data, choice.replay), phase_bursts(data, engine)
    judged = enforceability(bursts, engine)
    later = Later.of(found.resolved)
    rules = later.without_gates(choice.policies, choice.broken)
    gates = (*judged, *send_order(data, engine))
    knobs: tuple[Setting, ...] = ()
    if verdict.kind not in (VerdictKind.HEADROOM, VerdictKind.NO_SHARED_PORT):
        knobs = settings(
            rows,
            bursts,
            judged,
            engine=engine,
            host=host_knobs(),
            policy=choice.policy if isinstance(choice.policy, QueuePolicy) else None,
            nic_rate_bytes_per_s=throttled_nic_rate(data, choice.replay),
            later=later,
        )
    return _Pacing(
        schedule=rows,
        settings=(*nic_settings(nics, engine, rules), *knobs),
        enforceability=(*gates, *nic_weights(nics, cost, prefill)),
        applicable=applicable(
            choice.policies, choice.policy, cost, gates, prefill, later=later, broken=choice.broken, nics=nics
        ),
        verdict=with_nics(verdict, nics, saved_by_list(nics, rules), prefill),
        listed=None if nics is None else nics.listed,
    )


def _resolved(scenario: ScenarioLike) -> ResolvedScenario:
    """What it means, with what a prefetch does not bring in time computed again."""
    if isinstance(scenario, Scenario):
        scenario = resolve_scenario(scenario)
    return settled(scenario if isinstance(scenario, ResolvedScenario) else load_scenario(scenario))
