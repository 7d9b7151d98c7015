"""The record of a resolved scenario: its timeline, its transfers and its prices together."""

from __future__ import annotations

from dataclasses import replace

from pdmodel.allocation.data import AllocationData
from pdmodel.engines.spec import ReleaseAfter
from pdmodel.errors import InputError
from pdmodel.resolve import ResolvedScenario, prices
from pdmodel.timeline.build import timeline as build_timeline
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.flows import Transfers
from pdmodel.transfer.nics import NicLists
from pdmodel.transfer.prefetch import is_prefetch


def scenario_record(resolved: ResolvedScenario) -> tuple[Timeline, AllocationData]:
    """The timeline of a scenario and its record; `InputError` names the scenario's file where no formula covers it."""
    try:
        timeline = build_timeline(resolved)
        return timeline, AllocationData.build(timeline, build_transfers(resolved, timeline), prices(resolved))
    except InputError as error:
        raise error.located(file=resolved.file) from None


def listed_record(resolved: ResolvedScenario, timeline: Timeline, lists: NicLists) -> AllocationData:
    """The record of a scenario whose sends use the NICs of a list alone."""
    return AllocationData.build(timeline, build_transfers(resolved, timeline, lists), prices(resolved))


def earliest_record(resolved: ResolvedScenario, timeline: Timeline, lists: NicLists | None = None) -> AllocationData:
    """The record with every flow released when its bytes exist: what the ports allow, whatever the engine does.

    ``lists``: other NICs than the scenario's for sends. Without prefetches from a store: a request waits for them by
    its own policy, so the clock without them is no due time of theirs. Memory is left out.
    """
    transfer = resolved.spec.transfer.model_copy(update={"release_after": ReleaseAfter.KV_WRITE, "early_send": True})
    eager = replace(resolved, spec=resolved.spec.model_copy(update={"transfer": transfer}))
    found = build_transfers(eager, timeline, lists)
    flows = tuple(flow for flow in found.flows if not is_prefetch(flow))
    return AllocationData.build(timeline, Transfers(flows, found.ports), prices(eager))
