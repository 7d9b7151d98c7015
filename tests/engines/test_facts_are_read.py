"""No fact of an engine's file does nothing: each is read on the way to an answer, or is one of those that are shown."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdmodel.engines.catalog import load_engine
from pdmodel.engines.spec import EngineSpec, Fact, Piece
from pdmodel.planner import plan

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
