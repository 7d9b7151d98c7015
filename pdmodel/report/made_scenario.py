"""A scenario that was just written, for reading: what serves what, which values nobody gave, what comes next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING, number

if TYPE_CHECKING:
    from pdmodel.importers.make_scenario import MadeScenario

MOST_SHOWN = 10


def _cached(request: Mapping[str, Any]) -> str:
    """Cached tokens, by tier where the file says so."""
    where = request.get("cached_in", "")
    if isinstance(where, Mapping):
        return ", ".join(f"{tokens} {tier}" for tier, tokens in where.items())
    return f"{request.get('cached_tokens', 0)} {where}".strip()


def made_document(made: MadeScenario, output: Path) -> Document:
    """What was written where, and what was chosen for the user."""
    raw = made.raw
    chosen = {one.key: one for one in made.chosen}
    rows = [["llm", str(raw["llm"]), "given"]]
    for side in ("prefill", "decode", "transfer", "cache", "store"):
        for key, value in raw.get(side, {}).items():
            own = chosen.pop(f"{side}.{key}", None)
            rows.append([f"{side}.{key}", str(value), own.why if own else "given"])
    rows += [[one.key, NOTHING if one.value is None else str(one.value), one.why] for one in chosen.values()]
    requests = [
        [
            one["name"],
            number(one.get("arrival_ms", 0.0)),
            str(one.get("instance", 0)),
            str(one["input_tokens"]),
            _cached(one),
        ]
        for one in raw["requests"]
    ]
    more = len(requests) - MOST_SHOWN
    head = ["request", ">arrival [ms]", ">instance", ">input tokens", ">cached"]
    sections = (
        Section("Scenario", table=table(["key", "~value", "~from"], rows)),
        Section("Requests", table=table(head, requests[:MOST_SHOWN]), note=f"{more} more." if more > 0 else ""),
        Section("Next", text=(f"pdmodel plan {output}",)),
    )
    content = {
        "output": str(output),
        "chosen": [{"key": one.key, "value": one.value, "why": one.why} for one in made.chosen],
        "scenario": raw,
    }
    records = [Record("scenario", {"key": row[0], "value": row[1], "from": row[2]}) for row in rows]
    records += [Record("requests", dict(one)) for one in raw["requests"]]
    return Document(f"Scenario: {raw['name']}", f"Written to {output}.", sections, content, tuple(records))
