"""The KV path of a plan for reading: what is loaded and what is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdmodel.report.document import Section, table
from pdmodel.report.words import group, merged_name, number, percent, seconds
from pdmodel.units import format_bytes

if TYPE_CHECKING:
    from pdmodel.answer import MemoryResult, Plan, ReuseResult


def kv_path_sections(plan: Plan) -> list[Section]:
    """What there is to say of the KV path, each part where it has something to say."""
    return [_reuse(plan.reuse)] if plan.reuse else []


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


def _reuse(found: Sequence[ReuseResult]) -> Section:
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
