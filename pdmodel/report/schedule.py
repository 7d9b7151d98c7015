"""The schedule for reading: a digest (what rate during which kind of phase) and all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pdmodel.answer import Rule, ScheduleRow
from pdmodel.report.document import Section, table
from pdmodel.report.words import (
    NOTHING,
    Unit,
    gb_per_s,
    group,
    merged_name,
    name_pattern,
    seconds,
    span,
    time_unit,
)
from pdmodel.units import format_bytes

if TYPE_CHECKING:
    from pdmodel.answer import Plan

SAME_RATE = 0.03
"""Rates that differ by less are one rate to whoever sets it."""


def rates_section(plan: Plan) -> Section:
    """The rate of each kind of transfer in each kind of phase, and which of the four rules that is."""
    title = "What to set: rates"
    if not plan.schedule:
        return Section(title, text=("No rates to set: transfers run as they are released.",))
    kinds = {flow.name: flow.kind for flow in plan.flows}
    parts = group(plan.schedule, lambda row: (_kind([row], kinds), during(row), row.rule))
    alike = [found for same in group(parts, lambda rows: (_kind(rows, kinds), rows[0].rule)) for found in _merged(same)]
    alike.sort(key=lambda parts: (_kind(parts[0], kinds), list(Rule).index(parts[0][0].rule)))
    count = Counter(_kind(found[0], kinds) for found in alike)
    rows = [_digest_row(found, _kind(found[0], kinds), count) for found in alike]
    head = ["transfers", "rule", ">GB/s each", ">time", ">in all", "~during"]
    holds_s = sum(row.hold_s * _layers(row) for row in _once_a_phase(plan.schedule))
    note = f"{len(plan.schedule)} rows in the schedule: --full-schedule."
    if holds_s > 0:
        note = f"Deliberate pauses (holds): {seconds(holds_s)} in all. " + note
    return Section(title, table=table(head, rows), note=note)


def schedule_section(plan: Plan) -> Section:
    """Every row: run-length over equal layers, times within one phase; what is the same everywhere is said once."""
    unit = time_unit([row.duration_s for row in plan.schedule])
    places = {(row.lane, row.request) for row in plan.schedule}
    one_route = len({(row.flow, row.route) for row in plan.schedule}) == len({row.flow for row in plan.schedule})
    alike = group(
        plan.schedule,
        lambda row: (name_pattern(row.flow), name_pattern(row.route), _place(row), *_row_cells(row, unit)),
    )
    rows = []
    for found in alike:
        where, rates = _row_cells(found[0], unit)
        place = [] if len(places) == 1 else [_place(found[0])]
        route = [] if one_route else [merged_name([row.route for row in found])]
        rows.append([*place, *where, merged_name([row.flow for row in found]), *route, *rates])
    head = [] if len(places) == 1 else ["lane, request"]
    head += [">chunk", ">layers", "during", "transfer"] + ([] if one_route else ["route"]) + [">GB/s"]
    head += [f">{name} [{unit.name}]" for name in ("offset", "for", "hold")] + ["rule"]
    note = "Offset, duration and hold are those of one phase, equal in all of these layers. Hold: a deliberate pause; "
    note += "in a wait, the wait. Alike transfers share a line" + ("; routes are listed above." if one_route else ".")
    text = (f"All rows: {_place(plan.schedule[0])}.",) if len(places) == 1 else ()
    return Section("Schedule", text=text, table=table(head, rows), note=note)


def _place(row: ScheduleRow) -> str:
    return row.lane if row.request in {"", row.lane} else f"{row.lane}, {row.request}"


def during(row: ScheduleRow) -> str:
    """The phase kind in words: the operation, the wait before it, or the time after the prefill."""
    if row.slot == "tail":
        return "after the prefill"
    return f"wait before {row.operation}" if row.slot == "wait" else row.operation


def _row_cells(row: ScheduleRow, unit: Unit) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the row applies, and what it says."""
    where = (
        NOTHING if row.slot == "tail" else str(row.chunk),
        _layer_span(row),
        during(row),
    )
    times = (unit(row.offset_s), unit(row.duration_s), unit(row.hold_s))
    return where, (gb_per_s(row.rate_bytes_per_s), *times, row.rule.name.lower())


def _layers(row: ScheduleRow) -> int:
    return row.last_layer - row.first_layer + 1


def _layer_span(row: ScheduleRow) -> str:
    if row.first_layer < 0:
        return NOTHING
    return span(row.first_layer, row.last_layer, lambda layer: str(int(layer)))


def _kind(rows: Sequence[ScheduleRow], kinds: Mapping[str, str]) -> str:
    return kinds.get(rows[0].flow, rows[0].flow)


def _range(rows: Sequence[ScheduleRow]) -> tuple[float, float]:
    """Lowest and highest rate [byte/s]."""
    rates = [row.rate_bytes_per_s for row in rows]
    return min(rates), max(rates)


def _merged(parts: Sequence[list[ScheduleRow]]) -> list[list[list[ScheduleRow]]]:
    """Kinds of phase with about the same rates together: they are one thing to set."""
    found: list[list[list[ScheduleRow]]] = []
    for part in parts:
        for known in found:
            pairs = zip(_range(known[0]), _range(part), strict=True)
            if all(abs(a - b) <= SAME_RATE * max(a, b) for a, b in pairs):
                known.append(part)
                break
        else:
            found.append([part])
    return found


def _digest_row(parts: list[list[ScheduleRow]], kind: str, count: Mapping[str, int]) -> list[str]:
    """One line for rows of one kind of transfer at one rate; ``parts`` are those of one kind of phase each."""
    rows = [row for part in parts for row in part]
    time_s: dict[str, float] = {}
    for row in rows:
        time_s[row.flow] = time_s.get(row.flow, 0.0) + row.duration_s * _layers(row)
    size_bytes = sum(row.rate_bytes_per_s * row.duration_s * _layers(row) for row in rows)
    return [
        f"{len(time_s)} x {kind}",
        rows[0].rule.value,
        span(*_range(rows), gb_per_s),
        seconds(max(time_s.values())),
        format_bytes(size_bytes),
        "throughout" if count[kind] == 1 else ", ".join(during(part[0]) for part in parts),
    ]


def _once_a_phase(rows: tuple[ScheduleRow, ...]) -> list[ScheduleRow]:
    """One row for each phase: the hold belongs to the phase, whatever the number of flows and pieces in it.

    In a wait, ``hold_s`` is the whole wait, and most of that is not deliberate.
    """
    alike = group(
        [row for row in rows if row.slot == "phase"],
        lambda row: (row.lane, row.slot, row.request, row.chunk, row.operation, row.first_layer),
    )
    return [max(found, key=lambda row: row.hold_s) for found in alike]
