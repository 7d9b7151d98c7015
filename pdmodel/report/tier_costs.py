"""A cached prefix for reading: what each tier takes to load, what computing again takes, prefetch, and hand-over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.engines.spec import LoadBy
from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING, gb_per_s, merged_sentences, percent, seconds, time_unit
from pdmodel.units import format_bytes

if TYPE_CHECKING:
    from pdmodel.costs.kv_store import ThroughStore
    from pdmodel.engines.stores import StoreBackend
    from pdmodel.timeline.prefix_tiers import HandOvers, PrefetchTime, TierTime

_IN_TITLE = {"llm", "hardware", "cached_tokens", "new_tokens"}


def kv_tier_document(  # noqa: PLR0917 (the parts of the page, in order)
    facts: Mapping[str, Any],
    times: Mapping[str, float | None],
    tiers: Sequence[TierTime],
    prefetches: Sequence[PrefetchTime],
    chosen: str,
    hand_overs: HandOvers | None,
    backend: StoreBackend,
) -> Document:
    """One prefix; ``times``: of computing, break-even of equation 2, leases; ``chosen``: the policy asked for."""
    tier_rows = [_tier_row(tier, times) for tier in tiers]
    prefetch_rows = [_prefetch_row(one, chosen) for one in prefetches]
    ways = [] if hand_overs is None else _way_rows(hand_overs)
    content: dict[str, Any] = {
        **facts,
        **times,
        "tiers": tier_rows,
        "prefetch": prefetch_rows,
        "hand_over": None if hand_overs is None else {**_paths(hand_overs), "ways": ways},
        "assumed": list(backend.assumed),
    }
    flat = {key: value for key, value in content.items() if not isinstance(value, list | dict)}
    records = [Record("kv_tier", flat)]
    for name, rows in (("tiers", tier_rows), ("prefetch", prefetch_rows), ("hand_over", ways)):
        records += [Record(name, row) for row in rows]
    sections = [_tiers_section(tier_rows, times)]
    if prefetches:
        sections.append(_prefetch_section(prefetch_rows, times, backend.name))
    if hand_overs is not None:
        sections.append(_ways_section(hand_overs, ways, backend.name))
    hazards = merged_sentences([text for tier in tiers for text in tier.hazards]) + _lost_leases(times)
    if hazards:
        sections.append(Section("Hazards", bullets=tuple(dict.fromkeys(hazards))))
    words = ", ".join(_plain(name) for name in backend.assumed)
    assumed = [f"{backend.name}: {words}"] if words and (prefetches or hand_overs) else []
    if facts["load_by"] == LoadBy.KERNEL:
        assumed.append("the kernels that load take no SMs from the forward pass")
    if assumed:
        sections.append(Section("Assumed", bullets=tuple(assumed)))
    title = f"{facts['cached_tokens']:,} cached and {facts['new_tokens']:,} new tokens of {facts['llm']}"
    told = [f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if key not in _IN_TITLE]
    return Document(title, ", ".join([str(facts["hardware"]), *told]), tuple(sections), content, tuple(records))


def _plain(name: str) -> str:
    return name.removesuffix("_us").removesuffix("_gb_per_s").replace("_rpc", " calls").replace("_", " ")


# ---- tiers -----------------------------------------------------------------------------------------------------------
def _tier_row(tier: TierTime, times: Mapping[str, float | None]) -> dict[str, Any]:
    best = tier.best
    return {
        "tier": tier.tier.value,
        "bytes": tier.size_bytes,
        "rate_bytes_per_s": None if math.isinf(tier.rate_bytes_per_s) else tier.rate_bytes_per_s,
        "port": tier.port,
        "control_s": tier.control_s,
        "load_s": tier.load_s,
        "exposed_s": tier.exposed_s,
        "prefill_s": tier.done_s,
        "break_even_bytes_per_s": tier.break_even_bytes_per_s,
        "better": "load" if tier.done_s <= (times["recompute_all_s"] or 0.0) else "recompute",
        "best_loaded_tokens": best.loaded_tokens,
        "best_s": best.time_s,
    }


def _tiers_section(rows: Sequence[Mapping[str, Any]], times: Mapping[str, float | None]) -> Section:
    unit = time_unit([row[name] for row in rows for name in ("load_s", "prefill_s", "best_s")])
    cells = [
        [
            row["tier"].replace("_", " "),
            NOTHING if row["rate_bytes_per_s"] is None else gb_per_s(row["rate_bytes_per_s"]),
            *(unit(row[name]) for name in ("load_s", "exposed_s", "prefill_s")),
            _rate(row["break_even_bytes_per_s"]),
            row["better"],
            f"{row['best_loaded_tokens']:,}",
            unit(row["best_s"]),
        ]
        for row in rows
    ]
    text = (
        f"{format_bytes(rows[0]['bytes'])} of KV on all ranks. Computing the prefix again adds "
        f"{seconds(times['recompute_s'])} to the {seconds(times['hbm_s'])} of the new tokens."
    )
    simple = times["equation_2_bytes_per_s"]
    peak = (
        "equation 2 of Mooncake (FAST 2025) does not describe this LLM"
        if simple is None
        else f"equation 2 of Mooncake (FAST 2025), at the peak of the GPUs: {gb_per_s(simple)} GB/s"
    )
    limits = ", ".join(f"{row['tier'].replace('_', ' ')} by {row['port']}" for row in rows if row["port"])
    head = ["tier", ">GB/s", ">load", ">exposed", ">prefill", ">pays from GB/s", "better"]
    return Section(
        "Where the prefix lies",
        text=(text,),
        table=table([*head, ">best split", ">takes"], cells),
        note=f"Times in {unit.name}. load: the whole prefix alone"
        f"{f' (limited: {limits})' if limits else ''}; exposed: what of it compute does not hide; pays from: the "
        f"tier's rate at which loading all and computing all take the same ({peak}); best split: tokens loaded, the "
        "rest computed.",
    )


def _rate(rate_bytes_per_s: float | None) -> str:
    if rate_bytes_per_s is None:
        return "never"
    return "always" if rate_bytes_per_s == 0 else gb_per_s(rate_bytes_per_s)


# ---- prefetch --------------------------------------------------------------------------------------------------------
def _prefetch_row(one: PrefetchTime, chosen: str) -> dict[str, Any]:
    return {
        "policy": one.policy.value,
        "chosen": one.policy.value == chosen,
        "fetched_tokens": one.fetched.tokens,
        "ready_s": one.fetched.ready_s,
        "wait_s": one.fetched.wait_s,
        "allowed_s": None if math.isinf(one.fetched.allowed_s) else one.fetched.allowed_s,
        "prefill_end_s": one.done_s,
    }


def _lost_leases(times: Mapping[str, float | None]) -> list[str]:
    read, lease = times["lease_read_s"], times["lease_s"]
    if read is None or lease is None or read < lease:
        return []
    return [f"lease_expired: a batch is read in {seconds(read)}, and its lease ends after {seconds(lease)}: it fails"]


def _prefetch_section(rows: Sequence[Mapping[str, Any]], times: Mapping[str, float | None], store: str) -> Section:
    cells = [
        [
            row["policy"] + (" *" if row["chosen"] else ""),
            f"{row['fetched_tokens']:,}",
            "never" if row["allowed_s"] is None else seconds(row["allowed_s"]),
            seconds(row["wait_s"]),
            seconds(row["prefill_end_s"]),
        ]
        for row in rows
    ]
    lease = "and nothing expires" if times["lease_s"] is None else f"its lease is {seconds(times['lease_s'])}"
    return Section(
        f"Prefetch from {store}",
        table=table(["policy", ">tokens fetched", ">cut off after", ">request waits", ">prefill ends"], cells),
        note="Times from the arrival, queue included. What is not fetched is computed again. *: asked for. A batch is "
        f"read in {seconds(times['lease_read_s'])}, {lease}.",
    )


# ---- hand-over -------------------------------------------------------------------------------------------------------
_WAYS = {
    "by_layer_s": "direct, layer by layer",
    "by_chunk_s": "direct, chunk by chunk",
    "forwarded_s": "store, each chunk got once it is put",
    "after_put_s": "store, got when all is put",
}
_PARTS = {
    "lost_overlap_s": "gets that wait for the last put",
    "second_copy_s": "whole chunks, moved twice",
    "control_s": "calls and objects",
}


def _way_rows(found: HandOvers) -> list[dict[str, Any]]:
    def row(name: str, kind: str) -> dict[str, Any]:
        def figure(one: ThroughStore) -> float:
            value = float(getattr(one, name))
            return one.exposed_s(value) if kind == "way" else value

        return {"name": name, "kind": kind, "fresh_s": figure(found.fresh), "reused_s": figure(found.reused)}

    return [
        *(row(name, "way") for name in _WAYS),
        row("store_costs_s", "store_costs"),
        *(row(name, "part") for name in _PARTS),
    ]


def _paths(found: HandOvers) -> dict[str, Any]:
    named = {"direct": found.direct, "put": found.put, "get": found.get}
    told: dict[str, Any] = {"bytes": found.size_bytes}
    for name, path in named.items():
        told |= {f"{name}_bytes_s": path.time_s, f"{name}_port": path.port}
    for name, one in (("fresh", found.fresh), ("reused", found.reused)):
        told |= {
            f"{name}_prefill_s": one.prefill_s,
            f"{name}_put_calls": one.puts.calls,
            f"{name}_get_calls": one.gets.calls,
        }
    return told


def _ways_section(found: HandOvers, rows: Sequence[Mapping[str, Any]], store: str) -> Section:
    total = next(row for row in rows if row["kind"] == "store_costs")
    cells = []
    for row in rows:
        name = row["name"]
        if row["kind"] == "way":
            words = _WAYS[name]
        else:
            words = "the store costs" if row["kind"] == "store_costs" else f"  {_PARTS[name]}"
        cells.append([words, seconds(row["fresh_s"]), seconds(row["reused_s"])])
    share = total["reused_s"] and next(row for row in rows if row["name"] == "lost_overlap_s")["reused_s"]
    text = (
        f"{format_bytes(found.size_bytes)} to a decode side like this box: what is left to wait for when the prefill "
        f"has ended. With the prefix in the store, {store} makes it {seconds(total['reused_s'])} longer than a direct "
        f"write, {percent(max(0.0, share) / total['reused_s'] if total['reused_s'] > 0 else 0.0)} of that because "
        "the gets do not go beside compute."
    )
    limits = f"Direct: {found.direct.port}. Put: {found.put.port}. Get: {found.get.port}."
    calls = (
        f"Calls of a rank, put and get: {found.fresh.puts.calls} and {found.fresh.gets.calls}; with the prefix stored "
        f"{found.reused.puts.calls} and {found.reused.gets.calls}."
    )
    return Section(
        "To the decode side, directly or through the store",
        text=(text,),
        table=table(["way", ">computed afresh", ">prefix in the store"], cells),
        note=f"Slowest port. {limits} {calls}",
    )
