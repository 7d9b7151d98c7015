"""The KV path of a plan for reading: what is loaded and what is computed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdmodel.report.document import Section, table
from pdmodel.report.words import group, merged_name, number, percent, seconds, time_unit
from pdmodel.units import format_bytes, format_count

if TYPE_CHECKING:
    from pdmodel.answer import MemoryResult, Plan, ReuseResult
    from pdmodel.transfer.breakdown import TransferTime


def transfer_section(plan: Plan, *, full: bool) -> Section | None:
    """Where the time of the request goes whose hand-over takes longest, or of all."""
    times = plan.transfer_times
    if not times:
        return None
    shown = list(times) if full else [max(times, key=lambda one: one.time_s)]
    unit = time_unit([one.time_s for one in shown])
    rows = [
        [
            one.request,
            *(unit(term) for term in (one.bandwidth_s, one.descriptors_s, one.messages_s)),
            *(unit(term) for term in (one.setup_s, one.staging_s, one.control_s, one.time_s)),
        ]
        for one in shown
    ]
    terms = ("bandwidth", "descriptors", "messages", "set-up", "staging", "control", "in all")
    head = ["request", *(f">{term}" for term in terms)]
    note = f"Terms in {unit.name}, alone on the ports, all of it ready; of bandwidth, descriptors and messages the "
    note += "slowest counts."
    if len(shown) < len(times):
        note += f" {len(times) - len(shown)} more requests: --full."
    return Section(
        "Where the transfer time goes", table=table(head, rows), bullets=tuple(_bound(one) for one in shown), note=note
    )


def _bound(one: TransferTime) -> str:
    where = f" ({one.port})" if one.bound_by == "bandwidth" else ""
    text = f"{one.request}: {format_bytes(one.bytes)} in {format_count(one.descriptors)} descriptors of "
    text += f"{format_bytes(one.run_bytes)}, bound by {one.bound_by}{where}; "
    if one.fix_time_s is None:
        return text + "no change of layout, posting or NICs saves a tenth of it"
    return text + f"cheapest fix: {one.fix}, {seconds(one.fix_time_s)} instead of {seconds(one.time_s)}"


def memory_section(plan: Plan, *, full: bool) -> Section | None:
    """What KV fills of each pool of memory at the most; alike pools share a line."""
    if not plan.memory:
        return None
    cells = [[one] for one in plan.memory] if full else group(plan.memory, lambda one: (one.kind, *_pool_cells(one)))
    cells.sort(key=lambda found: -found[0].peak_bytes / found[0].capacity_bytes)
    rows = [[merged_name([one.pool for one in found]), *_pool_cells(found[0])] for found in cells]
    head = ["pool", ">capacity", ">most", ">full", ">at", "~when"]
    note = "KV alone: the capacity is without the weights."
    if plan.hand_offs_in_flight is not None:
        note += f" Decode has room for {plan.hand_offs_in_flight} hand-offs of the longest prompt at once."
    return Section("Memory", table=table(head, rows), note=note)


def _pool_cells(one: MemoryResult) -> list[str]:
    share = percent(one.peak_bytes / one.capacity_bytes)
    return [format_bytes(one.capacity_bytes), format_bytes(one.peak_bytes), share, seconds(one.peak_s), one.at]


def reuse_section(plan: Plan) -> Section | None:
    """What is loaded of each prefix and what is computed again, tier by tier."""
    found = plan.reuse
    if not found:
        return None
    rows = [
        [
            one.request,
            one.tier,
            str(one.cached_tokens),
            str(one.loaded_tokens),
            str(one.recomputed_tokens),
            seconds(one.load_s),
            seconds(one.recompute_s),
        ]
        for one in found
    ]
    head = ["request", "tier", ">cached", ">loaded", ">recomputed", ">load", ">recompute"]
    bullets = tuple(_weighed(tiers[0]) for tiers in group(found, lambda one: one.request))
    note = "Tokens; load: alone on the fullest port; recompute: what it adds to the prefill."
    return Section("Load or recompute", table=table(head, rows), bullets=bullets, note=note)


def _weighed(one: ReuseResult) -> str:
    return (
        f"{one.request}: {number(one.cost_best)} GPU·s in all, delays included; {number(one.cost_load_all)} with the "
        f"whole prefix loaded, {number(one.cost_recompute_all)} with nothing of it ({one.splits} splits looked at, "
        f"{one.planned} planned)"
    )
