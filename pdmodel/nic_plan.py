"""A plan on a list of NICs, where a rule over the list is cheaper than the plan on the NICs that it may use."""

from __future__ import annotations

from dataclasses import replace

from pdmodel.allocation.data import AllocationData
from pdmodel.choose import Choice
from pdmodel.nic_lists import NAME, NicChoice, uses
from pdmodel.record import earliest_record
from pdmodel.replay.policies import UNMANAGED, QueuePolicy
from pdmodel.resolve import ResolvedScenario
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.nics import NicLists
from pdmodel.verdict import Shortfall, port_shortfall


def is_cheaper(nics: NicChoice | None, choice: Choice) -> bool:
    """Whether the best list costs less than the plan, which may not use all of its NICs."""
    return nics is not None and nics.listed is not None and nics.listed.replay.cost < (1 - 1e-9) * choice.replay.cost


def on_list(
    resolved: ResolvedScenario, nics: NicChoice, was: Choice, data: AllocationData, choice: Choice
) -> tuple[NicChoice, Choice]:
    """The plan of a list's record, held against what was tried without the list.

    Parameters
    ----------
    resolved: the scenario.
    nics: what its NICs are worth to the plan ``was``.
    data, choice: the record of the best list, and what was chosen there: no dearer than the list under its rule.

    Returns
    -------
    What its NICs are worth to the new plan, and that plan beside the policies and references of ``was``. A rule that is
    the plan is called `nic_list`; its gap is that of the list's record.

    """
    policy, solver, broken = choice.policy, choice.solver, dict(was.broken)
    reason = choice.broken.get(policy.name)
    if isinstance(policy, QueuePolicy):
        name = NAME if policy is UNMANAGED else f"{NAME}+{policy.name}"
        policy, solver = (
            replace(policy, name=name),
            replace(solver, path=f"policy:{name}", status="accepted", rule=name),
        )
    if reason is not None:
        broken[policy.name] = reason
    contests = tuple(replace(before, plan=now.plan) for before, now in zip(was.band, choice.band, strict=True))
    ours, theirs, equal, steady = uses(resolved, data, choice)
    gain = nics.gain + was.replay.cost - choice.replay.cost
    found = replace(nics, gain=gain, prefill=ours, decode=theirs, equal=equal, steady=steady, is_plan=True)
    return found, replace(
        choice,
        policy=policy,
        solver=solver,
        policies=was.policies,
        references=was.references,
        unmanaged=was.unmanaged,
        band=contests,
        broken=broken,
    )


def shortfall_of(
    resolved: ResolvedScenario, timeline: Timeline, eager: AllocationData, slack_s: float, lists: NicLists | None
) -> Shortfall | None:
    """The port that makes a scenario infeasible.

    Parameters
    ----------
    resolved, timeline: the scenario.
    eager: its record as early as can be (`earliest_record`), on the NICs of ``lists`` where they are given.
    slack_s: lateness that is accepted [s].
    lists: the NICs that the plan is made for. What they cannot carry, those of the scenario might: both must fail.

    Returns
    -------
    A port of ``eager``, or None.

    """
    found = port_shortfall(eager, slack_s)
    if found is None or lists is None:
        return found
    return found if port_shortfall(earliest_record(resolved, timeline), slack_s) is not None else None
