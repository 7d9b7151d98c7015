"""Single costs for reading: a collective with its terms, an expert-parallel exchange, a step operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    seconds,
    size,
)

if TYPE_CHECKING:
    from pdmodel.costs.collectives import CollectiveCost
    from pdmodel.costs.terms import Terms
    from pdmodel.hardware.constants import Branch
    from pdmodel.hardware.topology import Box


# ---- a collective ----------------------------------------------------------------------------------------------------
def collective_document(terms: Sequence[Terms], branches: Sequence[Branch], gpus: Sequence[int], box: Box) -> Document:
    """One collective at several sizes. ``branches`` are the lines that the box has for it."""
    rows = [_collective_row(found, gpus, box) for found in terms]
    cost = terms[0].cost
    title = f"{cost.operation.value} among {cost.ranks} GPUs of {box.profile.name}"
    implementation = "" if cost.implementation.value == "nccl" else f", {cost.implementation.value}"
    sections = [_sizes_section(rows), *([_lines_section(branches)] if branches else [])]
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
        "own_time_s": found.cost.own_time_s,
        "raised": found.cost.raised,
        "gpus": [*gpus],
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
    raised = any(row["raised"] for row in rows)
    note = "*: raised, a port needs longer than alpha + S/B." if raised else ""
    return Section("Time = alpha + S/B", table=table(head, cells), note=note)


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
