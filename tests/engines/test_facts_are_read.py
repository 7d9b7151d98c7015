"""No fact of an engine's file does nothing: each is read on the way to an answer, or is one of those that are shown."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdmodel.engines.catalog import load_engine
from pdmodel.engines.spec import EngineSpec, Fact, LoadBy, Piece, Preallocate, ReleaseAfter
from pdmodel.planner import plan
from pdmodel.report.export import plan_to_dict
from pdmodel.resources import resolve

SHOWN_ONLY = {"priorities.slot_us"}
"""Turns that processes of a host take: a plan has one process."""

TWO = [{"name": name, "input_tokens": 4096, "cached_tokens": 1024} for name in ("a", "b")]
TURNS = {"requests": TWO, "cache": {"write_policy": "write_through"}}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Which facts (by identity) have had their value asked for."""
    seen: set[int] = set()
    found = Fact.__getattribute__

    def watched(self: Any, name: str) -> Any:
        if name == "value":
            seen.add(id(self))
        return found(self, name)

    monkeypatch.setattr(Fact, "__getattribute__", watched)
    yield seen


def facts_read(variant: Any, monkeypatch: pytest.MonkeyPatch, read: set[int], engine: EngineSpec) -> set[str]:
    """Names of the facts that a plan of two requests, with loads and write-backs, asks for."""
    monkeypatch.setattr("pdmodel.resolve.load_engine", lambda _: engine)
    resolved = variant("rtx_pro_6000_qwen3_32b_tp4", TURNS)
    read.clear()
    plan(resolved)
    return {name for name, (fact, _) in engine.facts.items() if id(fact) in read}


CHANGED = {
    "control.handshake_us": 50_000,
    "control.hand_over_us": 50_000,
    "posting.request_overhead_us": 50_000,
    "posting.descriptor_us": 500,
    "release_after": ReleaseAfter.PREFILL,
    "load_ahead": False,
    "load_by": LoadBy.KERNEL,
    "staging_tokens": 1024,
    "page_tokens": 16,
    "preallocate": Preallocate.NONE,
}
"""Another value of facts that an answer hangs on, of an engine that sends layer by layer."""


@pytest.mark.parametrize("name", CHANGED)
def test_another_value_is_another_answer(variant: Any, name: str) -> None:
    """Being read is not enough: what the file says must get as far as the answer."""
    raw = json.loads(resolve("engines", "mooncake_te").read_text())
    raw["backend"] = json.loads(resolve("backends", "mooncake_te").read_text())
    answers = []
    for value in (None, CHANGED[name]):
        if value is not None:
            part = raw["backend"] if name.startswith("posting.") else raw
            *blocks, key = name.split(".")
            for block in blocks:
                part = part[block]
            part[key]["value"] = value
        with_turns = TURNS | {"requests": [dict(one, arrival_ms=k * 5000) for k, one in enumerate(TWO)]}
        resolved = variant("rtx_pro_6000_qwen3_32b_tp4", with_turns)
        found = plan_to_dict(plan(replace(resolved, engine=EngineSpec.model_validate(raw))))
        answers.append({key: part for key, part in found.items() if key not in {"solver", "provenance"}})
    assert answers[0] != answers[1]


def test_every_fact_is_read_on_the_way_to_a_plan(variant: Any, monkeypatch: pytest.MonkeyPatch, read: set[int]) -> None:
    tent, nixl = load_engine("mooncake_tent"), load_engine("vllm_nixl")
    by_chunk = tent.model_copy(update={"piece": tent.piece.model_copy(update={"value": Piece.CHUNK})})
    engines = (tent, by_chunk, nixl, load_engine("tensorrt_llm"))
    every = set().union(*(set(engine.facts) for engine in engines))
    assert {"lease_s", "parallel_transfers", "control.sequential_receive", "priorities.slot_us"} <= every
    found = set().union(*(facts_read(variant, monkeypatch, read, engine) for engine in engines))
    assert every - found == SHOWN_ONLY
    page = (Path(__file__).resolve().parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")
    shown = next(line for line in page.splitlines() if line.startswith("Shown only"))
    assert all(f"`{name}`" in shown for name in SHOWN_ONLY)
    named = set(re.findall(r"`([\w.]+)`", page))
    facts = {name.split(".")[0] for name in every} - {"posting", "priorities", "control"}
    assert facts <= named
