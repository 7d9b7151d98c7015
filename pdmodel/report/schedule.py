"""The schedule for reading: a digest (what rate during which kind of phase) and all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdmodel.report.document import Section, table
from pdmodel.report.words import NOTHING, Unit, gb_per_s, group, merged_name, name_pattern, seconds, span, time_unit
from pdmodel.units import format_bytes

if TYPE_CHECKING:
    from pdmodel.answer import Plan, ScheduleRow


def rates_section(plan: Plan) -> Section:
    """The rate of each kind of transfer in each kind of phase, and which of the four rules that is."""
    title = "What to set: rates"
    if not plan.schedule:
        return Section(title, text=("No rates to set: transfers run as they are released.",))
    kinds = {flow.name: flow.kind for flow in plan.flows}
    alike = group(plan.schedule, lambda row: (kinds.get(row.flow, row.flow), during(row), row.rule))
    rows = [_digest_row(rows, kinds.get(rows[0].flow, rows[0].flow)) for rows in alike]
    head = ["during", "transfers", "rule", ">rate of each [GB/s]", ">time", ">bytes in all"]
    holds_s = sum(row.hold_s * _layers(row) for row in _once_a_phase(plan.schedule))
    note = f"{len(plan.schedule)} rows in the schedule: --full-schedule."
    if holds_s > 0:
        note = f"Deliberate pauses (holds): {seconds(holds_s)} in all. " + note
    return Section(title, table=table(head, rows), note=note)


def schedule_section(plan: Plan) -> Section:
    """Every row: run-length over equal layers, times within one phase."""
    unit = time_unit([row.duration_s for row in plan.schedule])
    alike = group(plan.schedule, lambda row: (name_pattern(row.flow), name_pattern(row.route), *_row_cells(row, unit)))
    rows = []
    for found in alike:
        where, rates = _row_cells(found[0], unit)
        transfers = [merged_name([row.flow for row in found]), merged_name([row.route for row in found])]
        rows.append([*where, *transfers, *rates])
    head = ["lane, request", ">chunk", ">layers", "during", "transfer", "route", ">GB/s"]
    head += [f">{name} [{unit.name}]" for name in ("offset", "for", "hold")] + ["rule"]
    note = "Offset, duration and hold are those of one phase, equal in all of these layers. Hold: a deliberate pause; "
    note += "in a wait, the wait. Alike transfers share a line."
    return Section("Schedule", table=table(head, rows), note=note)


def during(row: ScheduleRow) -> str:
    """The phase kind in words: the operation, the wait before it, or the time after the prefill."""
    if row.slot == "tail":
        return "after the prefill"
    return f"wait before {row.operation}" if row.slot == "wait" else row.operation


def _row_cells(row: ScheduleRow, unit: Unit) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the row applies, and what it says."""
    where = (
        row.lane if row.request in {"", row.lane} else f"{row.lane} {row.request}",
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


def _digest_row(rows: list[ScheduleRow], kind: str) -> list[str]:
    rates = [row.rate_bytes_per_s for row in rows]
    time_s: dict[str, float] = {}
    for row in rows:
        time_s[row.flow] = time_s.get(row.flow, 0.0) + row.duration_s * _layers(row)
    size_bytes = sum(row.rate_bytes_per_s * row.duration_s * _layers(row) for row in rows)
    return [
        during(rows[0]),
        f"{len(time_s)} x {kind}",
        rows[0].rule.value,
        span(min(rates), max(rates), gb_per_s),
        seconds(max(time_s.values())),
        format_bytes(size_bytes),
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
