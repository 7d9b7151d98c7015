"""Engines for reading: what each does with KV, what can be set, and a scenario under several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.inputs import list_document
from pdmodel.report.words import NOTHING, number, size, time_unit

if TYPE_CHECKING:
    from pdmodel.comparison import Compared
    from pdmodel.engines.spec import EngineSpec

_SUFFIXES = {"_us": "us", "_s": "s", "_bytes": "bytes", "_tokens": "tokens"}


def engine_list(engines: Sequence[EngineSpec]) -> Document:
    """The shipped engines, one a line."""
    rows = [{"name": engine.name, **_conduct(engine), "summary": engine.summary} for engine in engines]
    heads = ["name", "backend", "mode", "KV", "sent after", "piece", "layout", ">page"]
    keys = ("name", "backend", "mode", "through", "release_after", "piece", "layout", "page_tokens")
    cells = [[str(row[key]) for key in keys] for row in rows]
    bullets = tuple(f"{engine.name}: {engine.summary}" for engine in engines)
    return list_document("engine", "Engines", rows, table(heads, cells), bullets)


def _conduct(engine: EngineSpec) -> dict[str, Any]:
    return {
        "backend": engine.backend.name,
        "mode": engine.mode.value.value,
        "through": engine.through.value.value,
        "release_after": engine.release_after.value.value,
        "piece": engine.piece.value.value,
        "layout": engine.layout.value.value,
        "page_tokens": engine.page_tokens.value,
    }


def engine_document(engine: EngineSpec) -> Document:
    """An engine: every fact with where it was read, what can be set, and the sources."""
    facts = {
        name: {"value": _plain(fact.value), "kind": source.kind.value, "source": fact.source, "note": fact.note}
        for name, (fact, source) in engine.facts.items()
    }
    sources = {**engine.backend.sources, **engine.sources}
    knobs = [knob.model_dump(mode="json") for knob in engine.all_knobs]
    in_flight = engine.posting.in_flight_bytes
    content = {
        "name": engine.name,
        "summary": engine.summary,
        "found_in": list(engine.found_in),
        "backend": {
            "name": engine.backend.name,
            "summary": engine.backend.summary,
            "found_in": list(engine.backend.found_in),
        },
        "facts": facts,
        "in_flight_bytes": in_flight,
        "knobs": knobs,
        "sources": {name: source.model_dump(mode="json") for name, source in sources.items()},
    }
    sections = (
        Section("Engine", bullets=(f"backend {engine.backend.name}: {engine.backend.summary}", *engine.found_in)),
        Section(
            "Facts", table=_facts_table(facts), note=f"In flight for each pair of NICs: {size(in_flight)} at most."
        ),
        Section("What can be set", table=_knobs_table(knobs)),
        Section(
            "Sources", bullets=tuple(f"{name} ({source.kind.value}): {source.ref}" for name, source in sources.items())
        ),
    )
    records = [Record("facts", {"fact": name, **fact}) for name, fact in facts.items()]
    records += [Record("knobs", knob) for knob in knobs]
    return Document(engine.name, engine.summary, sections, content, tuple(records))


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _facts_table(facts: Mapping[str, Mapping[str, Any]]) -> Any:
    rows = []
    for name, fact in facts.items():
        unit = next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")
        if name.endswith("messages_per_s"):
            unit = "1/s"
        rows.append([name, _shown(fact["value"]), unit, fact["kind"], fact["source"], fact["note"] or NOTHING])
    return table(["fact", "value", "unit", "kind", "source", "~note"], rows)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _knobs_table(knobs: Sequence[Mapping[str, Any]]) -> Any:
    rows = [
        [
            knob["name"],
            f"{knob['default']} ({knob['unit']})",
            knob["side"],
            knob["maps_to"].replace("_", " "),
            knob["effect"] + (f" ({knob['note']})" if knob["note"] else ""),
        ]
        for knob in knobs
    ]
    return table(["name", "default", "side", "acts on", "~effect"], rows)


def comparison_document(scenario: str, rows: Sequence[Compared]) -> Document:
    """A scenario under several engines, a row for each."""
    content = [_compared(row) for row in rows]
    done = [row for row in content if not row["refused"]]
    refused = tuple(f"{row['engine']}: {row['refused']}" for row in content if row["refused"])
    return Document(
        f"{scenario} under {len(content)} engine{'s' * (len(content) != 1)}",
        "",
        (
            *([_sent(done), _planned(done)] if done else []),
            *([Section("Cannot run it", bullets=refused)] if refused else []),
        ),
        {"scenario": scenario, "engines": content},
        tuple(Record("engines", row) for row in content),
    )


def _sent(rows: Sequence[Mapping[str, Any]]) -> Section:
    cells = [
        [
            row["engine"],
            row["mode"],
            row["release_after"],
            row["piece"],
            row["layout"],
            str(row["page_tokens"]),
            f"{row['descriptors']:,}",
            row["bound_by"],
        ]
        for row in rows
    ]
    heads = ["engine", "mode", "after", "piece", "layout", ">page", ">descriptors", "bound by"]
    note = "Descriptors of all sends. Bound by: what the sends of a request take longest for, each request alone."
    return Section("How KV is sent", table=table(heads, cells), note=note)


def _planned(rows: Sequence[Mapping[str, Any]]) -> Section:
    unit = time_unit(row["ttft_unmanaged_s"] for row in rows)
    cells = [
        [
            row["engine"],
            *(unit(row[key]) for key in ("ttft_unmanaged_s", "ttft_plan_s", "decode_stall_s", "control_s")),
            number(row["cost_unmanaged"]),
            number(row["cost_plan"]),
            row["verdict"].replace("_", " "),
            f"{row['applicable']} ({number(row['applicable_cost'])})",
        ]
        for row in rows
    ]
    heads = ["engine", ">TTFT", ">planned", ">stall", ">control", ">cost", ">planned", "verdict", "can be applied"]
    note = (
        f"Times of the worst request [{unit.name}], costs [GPU·s]: unmanaged, then planned. Stall: what decode waits "
        "for KV under the plan, the control plane's messages included. Can be applied: the plan, or the cheapest "
        "policy that needs no gate which the engine lacks, and its cost."
    )
    return Section("What comes of it", table=table(heads, cells), note=note)


def _compared(row: Compared) -> dict[str, Any]:
    found = row.found
    keys = (
        "descriptors",
        "bound_by",
        "port",
        "ttft_unmanaged_s",
        "ttft_plan_s",
        "decode_stall_s",
        "control_s",
        "verdict",
        "plan_is",
        "cost_unmanaged",
        "cost_plan",
        "applicable",
        "applicable_cost",
    )
    return {
        "engine": row.engine.name,
        **_conduct(row.engine),
        **{key: None if found is None else getattr(found, key) for key in keys},
        "refused": row.refused,
    }
