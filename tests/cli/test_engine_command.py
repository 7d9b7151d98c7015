"""``pdmodel engine``: list, show, compare, schema."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from pdmodel.cli.options import Format
from pdmodel.cli.render import rendered
from pdmodel.comparison import Compared, UnderEngine
from pdmodel.engines.catalog import list_engines, load_engine
from pdmodel.report.engines import comparison_document
from pdmodel.resources import resolve

Program = Callable[..., Any]
SCENARIO = "rtx_pro_6000_qwen3_32b_tp4"
MISMATCHED = UnderEngine(
    descriptors=1_710_000,
    bound_by="descriptors",
    port="P/gpu0/posting",
    ttft_unmanaged_s=5.48,
    ttft_plan_s=5.31,
    decode_stall_s=5.02,
    control_s=0.00384,
    verdict="infeasible",
    plan_is="residual_edf",
    cost_unmanaged=4.13,
    cost_plan=4.02,
    applicable="after_prefill",
    applicable_cost=4.1,
)
STAGED = UnderEngine(
    descriptors=1_504,
    bound_by="bandwidth",
    port="D/nic0/rx",
    ttft_unmanaged_s=0.28,
    ttft_plan_s=0.27,
    decode_stall_s=0.177,
    control_s=0.168,
    verdict="no_shared_port",
    plan_is="unmanaged",
    cost_unmanaged=0.0202,
    cost_plan=0.0202,
    applicable="unmanaged",
    applicable_cost=0.0202,
)


def compared() -> list[Compared]:
    return [
        Compared(load_engine("sglang_mooncake"), MISMATCHED),
        Compared(load_engine("tensorrt_llm"), STAGED),
        Compared(load_engine("vllm_mooncake_store"), None, "turn.json: store: the prefill node has no room for it"),
    ]


# ---- list and show ---------------------------------------------------------------------------------------------------


def test_list(pdmodel: Program, snapshot: SnapshotAssertion) -> None:
    run = pdmodel("engine", "list")
    assert run.code == 0
    assert run.out == snapshot


def test_list_in_every_form(pdmodel: Program) -> None:
    rows = json.loads(pdmodel("engine", "list", "--format", "json").out)["engine"]
    assert [row["name"] for row in rows] == list_engines()
    assert {row["backend"] for row in rows} == {load_engine(name).backend.name for name in list_engines()}
    table = csv.DictReader(io.StringIO(pdmodel("engine", "list", "--format", "csv").out))
    assert [row["name"] for row in table] == list_engines()
    text = pdmodel("engine", "list", "--format", "markdown").out
    assert all(f"| {name} |" in text for name in list_engines())


@pytest.mark.parametrize("name", ["sglang_mooncake", "mooncake_tent"])
def test_show(pdmodel: Program, snapshot: SnapshotAssertion, name: str) -> None:
    run = pdmodel("engine", "show", name)
    assert run.code == 0
    assert run.out == snapshot


@pytest.mark.parametrize("name", list_engines())
def test_show_says_where_every_fact_is_from(pdmodel: Program, name: str) -> None:
    found = json.loads(pdmodel("engine", "show", name, "--format", "json").out)
    engine = load_engine(name)
    assert {fact: (row["value"], row["source"]) for fact, row in found["facts"].items()} == {
        fact: (getattr(given.value, "value", given.value), given.source) for fact, (given, _) in engine.facts.items()
    }
    assert all(found["sources"][row["source"]]["kind"] == row["kind"] for row in found["facts"].values())
    assert [knob["name"] for knob in found["knobs"]] == [knob.name for knob in engine.all_knobs]
    assert found["in_flight_bytes"] == engine.posting.in_flight_bytes


def test_show_as_csv_has_facts_and_knobs(pdmodel: Program) -> None:
    text = pdmodel("engine", "show", "vllm_nixl", "--format", "csv").out
    assert "posting.descriptor_us,3.4,derived,descriptors" in text
    assert "kv_lease_duration" in text


def test_a_readings_that_disagree_are_shown(pdmodel: Program) -> None:
    text = " ".join(pdmodel("engine", "show", "sglang_mooncake").out.split())
    assert "earlier descriptions read as opt-in" in text


def test_show_an_engine_of_ones_own(pdmodel: Program, tmp_path: Path) -> None:
    raw = json.loads(resolve("engines", "vllm_nixl").read_text())
    raw["name"] = "mine"
    (tmp_path / "mine.json").write_text(json.dumps(raw))
    run = pdmodel("engine", "show", str(tmp_path / "mine.json"))
    assert run.code == 0 and run.out.startswith("mine\n")


def test_show_what_is_no_engine(pdmodel: Program, tmp_path: Path) -> None:
    run = pdmodel("engine", "show", "vllm")
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: unknown engine 'vllm'; expected a path, or one of layerwise, ")
    (tmp_path / "x.json").write_text("{}")
    run = pdmodel("engine", "show", str(tmp_path / "x.json"))
    assert run.code == 3 and "missing key" in run.err and run.err.count("\n") == 1


def test_schema(pdmodel: Program) -> None:
    schema = json.loads(pdmodel("engine", "schema").out)
    assert {"backend", "control", "staging_bytes"} <= set(schema["properties"])
    assert {"type": "string"} in schema["properties"]["backend"]["anyOf"]


# ---- compare ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [Format.RICH, Format.MARKDOWN])
def test_comparison(snapshot: SnapshotAssertion, form: Format) -> None:
    assert rendered(comparison_document("turn", compared()), form) == snapshot


def test_comparison_where_nothing_runs_has_no_table() -> None:
    document = comparison_document("turn", compared()[-1:])
    assert [section.title for section in document.sections] == ["Cannot run it"]
    assert document.title == "turn under 1 engine"


def test_compare(pdmodel: Program) -> None:
    words = ("engine", "compare", SCENARIO, "--engines", "layerwise, vllm_nixl")
    run = pdmodel(*words)
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith(f"{SCENARIO} under 2 engines\n")
    assert all(len(line) <= 100 for line in run.out.splitlines())
    found = json.loads(pdmodel(*words, "--format", "json").out)
    assert [row["engine"] for row in found["engines"]] == ["layerwise", "vllm_nixl"]
    assert found["scenario"] == SCENARIO
    rows = list(csv.DictReader(io.StringIO(pdmodel(*words, "--format", "csv").out)))
    assert [float(row["ttft_plan_s"]) for row in rows] == [row["ttft_plan_s"] for row in found["engines"]]


def test_compare_into_a_file(pdmodel: Program, tmp_path: Path) -> None:
    target = tmp_path / "engines.json"
    run = pdmodel("engine", "compare", SCENARIO, "--engines", "vllm_nixl", "-o", str(target))
    assert (run.code, run.out) == (0, "")
    assert json.loads(target.read_text())["engines"][0]["engine"] == "vllm_nixl"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nope",), "unknown scenario 'nope'"),
        ((SCENARIO, "--engines", "vlm_nixl"), "did you mean 'vllm_nixl'?"),
        ((SCENARIO, "--engines", "vllm_nixl,vllm_nixl"), "'vllm_nixl' is named twice"),
        ((SCENARIO, "--engines", "vllm_nixl,"), "unknown engine ''"),
        ((SCENARIO, "--engines", "vllm_nixl", "-o", "/no/such/folder/x.json"), "/no/such/folder"),
    ],
)
def test_compare_what_cannot_be(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel("engine", "compare", *words)
    assert (run.code, run.out) == (3, "")
    assert message in run.err and run.err.startswith("pdmodel: ") and run.err.count("\n") == 1
