"""A hand-over of KV for reading: pairs, bytes, descriptors, where the time goes, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING, gb_per_s, group, merged_sentences, number, percent, seconds, size

if TYPE_CHECKING:
    from pdmodel.costs.kv_layout import Fix, HandOver, Pair

_TERMS = {
    "setup_s": ("set-up", "t0, software of one request"),
    "bandwidth_s": ("bandwidth", "bytes of the fullest port over its capacity"),
    "descriptors_s": ("descriptors", "posting by the busiest sender"),
    "messages_s": ("messages", "work requests over the NIC's message rate"),
    "staging_s": ("staging", "packing of the first and unpacking of the last chunk"),
}


def kv_transfer_document(facts: Mapping[str, Any], found: HandOver, fixes: Sequence[Fix], best: Fix | None) -> Document:
    """One hand-over; ``facts`` are what was asked, ``best`` is the fix to take, or None."""
    terms = {name: getattr(found.terms, name) for name in _TERMS}
    sizes = [pair.size_bytes for pair in found.pairs]
    content: dict[str, Any] = {
        **facts,
        "pairs": len(found.pairs),
        "senders": found.senders,
        "bytes": found.size_bytes,
        "bytes_per_pair": max(sizes),
        "descriptors": found.descriptors,
        "run_bytes": found.run_bytes,
        "time_s": found.terms.time_s,
        "terms": terms,
        "bound_by": found.terms.bound_by.value,
        "port": found.path.port,
        "port_bytes_per_s": found.path.bytes_per_s,
        "fix": None if best is None else _fix_row(best, found),
        "fixes": [_fix_row(fix, found) for fix in fixes],
        "per_pair": [_pair_row(pair) for pair in found.pairs],
        "hazards": [*found.path.hazards],
    }
    flat = {key: value for key, value in content.items() if not isinstance(value, list | dict)}
    records = [Record("kv_transfer", {**flat, **terms})]
    records += [Record("fixes", row) for row in content["fixes"]]
    records += [Record("per_pair", row) for row in content["per_pair"]]
    sections = [_terms_section(found, terms), _pairs_section(found), _fixes_section(found, fixes, best)]
    if found.path.hazards:
        sections.append(Section("Hazards", bullets=tuple(merged_sentences(found.path.hazards))))
    title = f"KV of {facts['tokens']} tokens of {facts['llm']}: {facts['prefill']} to {facts['decode']}"
    subtitle = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if key not in _IN_TITLE)
    return Document(title, subtitle, tuple(sections), content, tuple(records))


_IN_TITLE = {"llm", "tokens", "prefill", "decode"}


def _pair_row(pair: Pair) -> dict[str, Any]:
    return {
        "source_rank": pair.source_rank,
        "destination_rank": pair.destination_rank,
        "bytes": pair.size_bytes,
        "descriptors": pair.descriptors,
    }


def _fix_row(fix: Fix, now: HandOver) -> dict[str, Any]:
    return {
        "lever": fix.lever.value,
        "what": fix.what,
        "time_s": fix.result.terms.time_s,
        "saved_s": now.terms.time_s - fix.result.terms.time_s,
        "bound_by": fix.result.terms.bound_by.value,
    }


def _terms_section(found: HandOver, terms: Mapping[str, float]) -> Section:
    total = found.terms.time_s
    rows = [
        [name, seconds(terms[key]), percent(terms[key] / total), detail]
        for key, (name, detail) in _TERMS.items()
        if terms[key] > 0 or key != "staging_s"
    ]
    rows.append(["time", seconds(total), "100 %", f"bound by {found.terms.bound_by.value}"])
    note = (
        "Bandwidth, descriptors and messages run at once: the slowest counts. "
        f"Fullest port: {found.path.port}, {gb_per_s(found.path.bytes_per_s)} GB/s."
    )
    return Section("Where the time goes", table=table(["term", ">time", ">share", "~what"], rows), note=note)


def _pairs_section(found: HandOver) -> Section:
    alike = group(found.pairs, lambda pair: (pair.size_bytes, pair.descriptors))
    rows = [
        [
            str(len(same)),
            size(same[0].size_bytes),
            f"{same[0].descriptors:,}",
            size(same[0].size_bytes / same[0].descriptors),
            ", ".join(f"{pair.source_rank}>{pair.destination_rank}" for pair in same[:4])
            + (", ..." if len(same) > 4 else ""),
        ]
        for same in alike
    ]
    text = (
        f"{size(found.size_bytes)} between {len(found.pairs)} pairs from {found.senders} senders, in "
        f"{found.descriptors:,} descriptors of {size(round(found.run_bytes))} on average."
    )
    head = [">pairs", ">bytes each", ">descriptors each", ">run", "such as"]
    return Section("Pairs of ranks", text=(text,), table=table(head, rows))


def _fixes_section(found: HandOver, fixes: Sequence[Fix], best: Fix | None) -> Section:
    now = found.terms.time_s
    helpful = [fix for fix in fixes if now - fix.result.terms.time_s > 0.01 * now]
    rows = [
        [
            fix.lever.value + (" *" if fix is best else ""),
            fix.what,
            seconds(fix.result.terms.time_s),
            number(now / fix.result.terms.time_s),
            fix.result.terms.bound_by.value,
        ]
        for fix in helpful
    ]
    if best is None:
        text = "No change saves a tenth of the time."
    else:
        text = f"Cheapest fix: {best.lever.value} ({best.what}), {seconds(now)} to {seconds(best.result.terms.time_s)}."
    head = ["change", "~what", ">time", ">times faster", "then bound by"]
    return Section(
        "What would shorten it",
        text=(text,),
        table=table(head, rows or [[NOTHING] * len(head)]),
        note="*: the first, in order of effort, that takes at most 1.5 times what the best one takes.",
    )
