"""Single costs for reading: a collective with its terms, an expert-parallel exchange, a step operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import (
    NOTHING,
    gb_per_s,
    group,
    merged_name,
    merged_sentences,
    name_pattern,
    number,
    percent,
    seconds,
    size,
)
from pdmodel.timeline.breakdown import Group
from pdmodel.units import MS, US

if TYPE_CHECKING:
    from pdmodel.costs.collectives import CollectiveCost
    from pdmodel.costs.collectives.selected import Selected
    from pdmodel.costs.moe_layer import MoeLayer
    from pdmodel.costs.terms import Terms
    from pdmodel.hardware.constants import Branch
    from pdmodel.hardware.topology import Box
    from pdmodel.llm.architecture import Architecture
    from pdmodel.timeline.breakdown import StepBreakdown, StepRow


# ---- a collective ----------------------------------------------------------------------------------------------------
def collective_document(terms: Sequence[Terms], branches: Sequence[Branch], gpus: Sequence[int], box: Box) -> Document:
    """One collective at several sizes. ``branches`` are the lines that the box has for it."""
    rows = [_collective_row(found, gpus, box) for found in terms]
    cost = terms[0].cost
    title = f"{cost.operation.value} among {cost.ranks} GPUs of {box.profile.name}"
    implementation = "" if cost.implementation.value == "nccl" else f", {cost.implementation.value}"
    sections = [_sizes_section(rows), *([_lines_section(branches)] if branches else [])]
    sections += _selector_sections(rows)
    sections += _wire_sections(rows)
    sections += _remarks(
        [text for found in terms for text in (*found.cost.warnings, *found.cost.hazards)],
        [text for found in terms for text in found.cost.notes],
    )
    subtitle = f"Ring order {','.join(map(str, gpus))}{implementation}. S is the size as nccl-tests prints it."
    return Document(title, subtitle, tuple(sections), rows, tuple(Record("collective", row) for row in rows))


def _collective_row(found: Terms, gpus: Sequence[int], box: Box) -> dict[str, Any]:
    return {
        **cost_row(found.cost, box),
        "alpha_s": found.alpha_s,
        "bandwidth_bytes_per_s": found.bandwidth_bytes_per_s,
        "table_factor": found.table_factor,
        "selector": _selector(found.selected),
        "own_time_s": found.cost.own_time_s,
        "raised": found.cost.raised,
        "gpus": [*gpus],
    }


def _selector(found: Selected | None) -> dict[str, Any] | None:
    """NCCL's own choice as JSON holds it; None where its graph of the box is not known."""
    if found is None:
        return None
    return {
        "algorithm": found.algorithm.value,
        "protocol": found.protocol.value,
        "estimate_s": found.estimate_s,
        "nccl_version": found.version,
        "notes": [*found.notes],
    }


def cost_row(cost: CollectiveCost, box: Box) -> dict[str, Any]:
    """A cost as JSON holds it; ports under their names without the node."""
    return {
        "operation": cost.operation.value,
        "implementation": cost.implementation.value,
        "ranks": cost.ranks,
        "size_bytes": cost.size_bytes,
        "time_s": cost.time_s,
        "algorithm": cost.algorithm,
        "protocol": cost.protocol,
        "busbw_bytes_per_s": cost.busbw_bytes_per_s,
        "wire_bytes_per_port": {port.removeprefix(box.node + "/"): found for port, found in cost.wire_bytes.items()},
        "source": cost.source.value,
        "notes": [*cost.notes],
        "warnings": [*cost.warnings],
        "hazards": [*cost.hazards],
    }


def _sizes_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    head = ["size", ">time", "algorithm", "protocol", ">busbw [GB/s]", ">alpha", ">S/B", "source"]
    cells = []
    for row in rows:
        rate = row["bandwidth_bytes_per_s"]
        cells.append(
            [
                size(row["size_bytes"]),
                seconds(row["time_s"]) + ("*" if row["raised"] else ""),
                row["algorithm"],
                row["protocol"],
                gb_per_s(row["busbw_bytes_per_s"]),
                seconds(row["alpha_s"]),
                seconds(row["size_bytes"] / rate) if rate else NOTHING,
                row["source"],
            ]
        )
    notes = []
    if any(row["raised"] for row in rows):
        notes.append("*: raised, a port needs longer than alpha + S/B.")
    if any(abs(row["table_factor"] - 1) > 1e-3 for row in rows):
        notes.append("The box's measured table bends the line between its points (table_factor in JSON).")
    return Section("Time = alpha + S/B", table=table(head, cells), note=" ".join(notes))


def _lines_section(branches: Sequence[Branch]) -> Section:
    rows = [
        [
            branch.algorithm.value,
            branch.protocol.value,
            number(branch.alpha_us),
            number(branch.bandwidth_gb_per_s),
            size(branch.max_bytes) if branch.max_bytes else NOTHING,
        ]
        for branch in branches
    ]
    head = ["algorithm", "protocol", ">alpha [us]", ">B [GB/s]", ">up to"]
    return Section("Branches; the fastest one counts", table=table(head, rows))


def _selector_sections(rows: Sequence[Mapping[str, Any]]) -> list[Section]:
    """What NCCL would take at each size, where that is known."""
    known = [(row, row["selector"]) for row in rows if row["selector"]]
    if not known:
        return []
    cells = [
        [size(row["size_bytes"]), choice["algorithm"], choice["protocol"], seconds(choice["estimate_s"])]
        for row, choice in known
    ]
    head = ["size", "algorithm", "protocol", ">NCCL's estimate"]
    note = " ".join(
        [
            f"Cost form and constants of NCCL {known[0][1]['nccl_version']}, the box's graph and overrides.",
            "The estimate is made for choosing, it is no prediction.",
            *(f"{text}." for text in known[0][1]["notes"]),
        ]
    )
    return [Section("What NCCL takes", table=table(head, cells), note=note)]


def _wire_sections(rows: Sequence[Mapping[str, Any]]) -> list[Section]:
    """The bytes of the largest call by port, with the share of its time that the port needs."""
    largest = max(rows, key=lambda row: row["size_bytes"])
    wire = largest["wire_bytes_per_port"]
    if not wire:
        return []
    alike = group(wire.items(), lambda item: (name_pattern(item[0]), round(item[1])))
    cells = [
        [
            merged_name([port for port, _ in found]),
            size(round(found[0][1])),
            f"{found[0][1] / largest['size_bytes']:.3g}",
            gb_per_s(found[0][1] / largest["time_s"]),
        ]
        for found in alike
    ]
    head = ["port", ">bytes", ">per byte of S", ">mean [GB/s]"]
    title = f"Bytes on the wire at {size(largest['size_bytes'])}"
    note = "Payload, flags of the protocol and read requests; ports that carry alike share a line."
    return [Section(title, table=table(head, cells), note=note)]


def _remarks(warnings: Iterable[str], notes: Iterable[str]) -> list[Section]:
    found = []
    for title, texts in (("Warnings", warnings), ("Notes", notes)):
        once = list(dict.fromkeys(texts))
        if once:
            shown = merged_sentences(once[:6])
            if len(once) > 6:
                shown.append(f"... and {len(once) - 6} more like these")
            found.append(Section(title, bullets=tuple(shown)))
    return found


# ---- a step ----------------------------------------------------------------------------------------------------------
def step_document(title: str, facts: Mapping[str, Any], step: StepBreakdown, box: Box) -> Document:
    """A prefill pass or decode step, operation by operation; ``facts`` are what was asked."""
    rows = [_step_row(row, box) for row in step.rows]
    groups = [{"group": key.value, "time_s": time_s} for key, time_s in step.by_group().items()]
    content = {
        **facts,
        "time_s": step.time_s,
        "source": step.source.value,
        "groups": groups,
        "cpu_launch_s": step.by_group()[Group.CPU],
        "kernel_overhead_s": step.kernel_overhead_s,
        "operations": rows,
        "notes": [*step.notes],
        "warnings": [*step.warnings],
        "hazards": [*step.hazards],
    }
    records = [Record("step", {key: value for key, value in content.items() if not isinstance(value, list)})]
    records += [Record("groups", row) for row in groups] + [Record("operations", row) for row in rows]
    sections = (
        _groups_section(step),
        _operations_section(step),
        *_remarks([*step.warnings, *step.hazards], step.notes),
    )
    return Document(
        title, ", ".join(f"{key} {value}" for key, value in facts.items()), sections, content, tuple(records)
    )


def _step_row(row: StepRow, box: Box) -> dict[str, Any]:
    return {
        "group": row.group.value,
        "name": row.name,
        "count": row.count,
        "time_s": row.time_s,
        "total_s": row.total_s,
        "bound_by": row.bound_by.value,
        "source": row.source.value,
        "compute_s": row.compute_s,
        "memory_s": row.memory_s,
        "overhead_s": row.overhead_s,
        "flop": row.flop,
        "hbm_bytes": row.hbm_bytes,
        "wire_bytes_per_port": {port.removeprefix(box.node + "/"): found for port, found in row.wire_bytes.items()},
        "detail": row.detail,
    }


def _groups_section(step: StepBreakdown) -> Section:
    rows = [
        [group.value, number(time_s / MS), percent(time_s / step.time_s)] for group, time_s in step.by_group().items()
    ]
    rows.append(["step", number(step.time_s / MS), "100 %"])
    cpu = step.by_group()[Group.CPU]
    note = (
        f"CPU and launch: {seconds(cpu)} that the GPU does not hide. Inside the kernels' own times, launch, prologue "
        f"and tail are {seconds(step.kernel_overhead_s)}."
    )
    return Section("Time by group", table=table(["group", ">time [ms]", ">share"], rows), note=note)


def _operations_section(step: StepBreakdown) -> Section:
    rows = [
        [
            row.group.value,
            row.name,
            str(row.count),
            number(row.time_s / US),
            number(row.total_s / MS),
            percent(row.total_s / step.time_s),
            row.bound_by.value,
            row.detail or NOTHING,
            row.source.value,
        ]
        for row in step.rows
    ]
    head = ["group", "operation", ">count", ">each [us]", ">total [ms]", ">share", "bound by", "~by", "source"]
    return Section("Operations of the slowest rank", table=table(head, rows))


# ---- an expert-parallel exchange -------------------------------------------------------------------------------------
def moe_document(arch: Architecture, exchange: str, layer: MoeLayer, box: Box) -> Document:
    """One MoE layer's exchange: what routing expects, and each part with its time and wire bytes."""
    rows = [{"part": part, **cost_row(cost, box)} for part, cost in layer.parts.items()]
    facts = _moe_facts(arch, exchange, layer)
    head = ["part", "operation", ">bytes a rank", ">time", "algorithm", "protocol", ">busbw [GB/s]", "source"]
    times = [
        [
            row["part"],
            row["operation"],
            size(row["size_bytes"]),
            seconds(row["time_s"]),
            row["algorithm"],
            row["protocol"],
            gb_per_s(row["busbw_bytes_per_s"]),
            row["source"],
        ]
        for row in rows
    ]
    note = "The all-reduce after the block, which TP has anyway." if exchange == "all_reduce" else ""
    sections = [_routing_section(facts), Section("Exchange", table=table(head, times), note=note)]
    for row in rows:
        wire = [replace(section, title=f"{row['part']}: {section.title}") for section in _wire_sections([row])]
        sections += wire
    sections += _remarks(
        [text for cost in layer.parts.values() for text in (*cost.warnings, *cost.hazards)],
        [text for cost in layer.parts.values() for text in cost.notes],
    )
    title = f"{exchange} of {arch.name} among {layer.ranks} GPUs of {box.profile.name}"
    records = (Record("routing", facts), *(Record("parts", row) for row in rows))
    return Document(title, "One MoE layer.", tuple(sections), {**facts, "parts": rows}, records)


def _moe_facts(arch: Architecture, exchange: str, layer: MoeLayer) -> dict[str, Any]:
    routing = layer.routing
    facts: dict[str, Any] = {
        "llm": arch.name,
        "exchange": exchange,
        "ranks": layer.ranks,
        "tokens_per_rank": int(routing.tokens),
        "experts": routing.experts,
        "top_k": routing.top_k,
        "distinct_ranks": layer.distinct_ranks,
        "experts_touched": layer.experts_touched,
        "experts_touched_per_rank": layer.experts_touched_rank,
        "copies_per_token": layer.copies,
        "dispatch_row_bytes": routing.dispatch_row_bytes,
        "combine_row_bytes": routing.combine_row_bytes,
        "time_s": sum(cost.time_s for cost in layer.parts.values()),
    }
    if layer.fused is not None:
        facts |= {
            "compute_s": layer.compute_s,
            "kernel_s": layer.fused.time_s,
            "exposed_s": layer.fused.exposed_s,
            "tail_s": layer.fused.tail_s,
        }
    return facts


def _routing_section(facts: Mapping[str, Any]) -> Section:
    words = {
        "tokens_per_rank": "tokens of a rank before dispatch",
        "distinct_ranks": "ranks that a token's experts lie on, expected (its own included)",
        "experts_touched": "experts that some token visits, expected",
        "experts_touched_per_rank": "of these on one rank",
        "copies_per_token": "copies of a token that are handed over (own rank included)",
        "dispatch_row_bytes": "bytes of a token on its way out",
        "combine_row_bytes": "bytes of a token on its way back",
        "time_s": "exchange, all parts",
        "compute_s": "experts' own compute",
        "kernel_s": "the fused kernel",
        "exposed_s": "of it exchange that compute does not hide",
        "tail_s": "of it the reduction at the end",
    }
    rows = []
    for key, value in facts.items():
        shown = seconds(value) if key.endswith("_s") else f"{value:.4g}" if isinstance(value, float) else str(value)
        rows.append([words.get(key, key.replace("_", " ")), shown])
    note = "Every expert alike and tokens independent; real routing touches fewer experts and fills one rank more."
    return Section("Routing of one layer", table=table(["what", ">value"], rows), note=note)
