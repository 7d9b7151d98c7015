"""``pdmodel calibrate nccl-tests`` from the log to a plan with the new profile."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "importers"))
from made_logs import SIZES, made_log

from pdmodel.costs.collectives import collective
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm
from pdmodel.planner import plan

Program = Callable[..., Any]
LOG = Path(__file__).parent.parent / "data" / "nccl_tests" / "all_reduce_8x_rtx_pro_6000.log"
BOX = "rtx_pro_6000_wrx90_two_roots"
SCENARIO = "agentic_turn_pcie"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "my_box.json"


def test_a_shipped_box_is_calibrated_shown_and_valid(pdmodel: Program, new: Path) -> None:
    run = pdmodel("calibrate", "nccl-tests", str(LOG), "--profile", BOX, "-o", str(new))
    assert (run.code, run.err) == (0, "")
    for words in ("Errors by size", "above 4 MiB", "Constants", "What changed", "derived from what was measured"):
        assert words in run.out
    assert json.loads(new.read_text())["name"] == "my_box"
    assert pdmodel("hardware", "validate", str(new)).code == 0
    shown = pdmodel("hardware", "show", str(new))
    assert "nccl_tests_all_reduce_8 (measured)" in shown.out
    assert LOG.name in shown.out


def test_the_report_in_every_form(pdmodel: Program, new: Path) -> None:
    words = ("calibrate", "nccl-tests", str(LOG), "--profile", BOX)
    content = json.loads(pdmodel(*words, "--format", "json").out)
    assert content["output"] is None
    assert not new.exists()
    (entry,) = content["collectives"]
    assert [band["band"] for band in entry["errors"]] == ["to 4 KiB", "8-256 KiB", "0.5-4 MiB", "above 4 MiB", "all"]
    assert all(band["held_out"] < 0.02 for band in entry["errors"])
    assert content["profile"]["collectives"]
    rows = list(csv.DictReader(io.StringIO(pdmodel(*words, "--format", "csv").out)))
    assert {row["section"] for row in rows} >= {"errors", "branches", "times"}
    assert "| all_reduce among 8 |" in pdmodel(*words, "--format", "markdown").out


def test_a_box_from_the_header_alone(pdmodel: Program, new: Path, tmp_path: Path) -> None:
    log = tmp_path / "ar.log"
    log.write_text(made_log(gpu="NVIDIA L40S", ranks=4, time_s=lambda size: 2e-5 + size / 9e9))
    assert pdmodel("calibrate", "nccl-tests", str(log), "-o", str(new)).code == 0
    assert pdmodel("hardware", "validate", str(new)).code == 0
    scenario = json.loads((Path(__file__).parents[2] / "scenarios" / f"{SCENARIO}.json").read_text())
    for side in ("prefill", "decode"):
        scenario[side] |= {"hardware": str(new), "tp_size": 4, "ep_size": 1}
        scenario[side].pop("gpus", None)
    scenario |= {"llm": "qwen3-32b", "requests": [{"name": "turn", "input_tokens": 4096}]}
    scenario["decode"]["max_running_requests"] = 4
    scenario.pop("expected_verdict", None)
    path = tmp_path / "turn.json"
    path.write_text(json.dumps(scenario))
    run = pdmodel("plan", str(path))
    assert run.code == 0, run.err
    assert "assumed" in run.out


def test_a_plan_before_and_after(pdmodel: Program, new: Path, tmp_path: Path) -> None:
    assert pdmodel("calibrate", "nccl-tests", str(LOG), "--profile", BOX, "-o", str(new)).code == 0
    scenario = json.loads((Path(__file__).parents[2] / "scenarios" / f"{SCENARIO}.json").read_text())
    scenario["prefill"]["hardware"] = scenario["decode"]["hardware"] = str(new)
    path = tmp_path / "turn.json"
    path.write_text(json.dumps(scenario))
    before, after = plan(SCENARIO), plan(str(path))
    # Without KV the prefill is longer by what its all-reduces are longer: two a layer and one for the embedding.
    arch, turn = load_llm(scenario["llm"]), scenario["requests"][0]
    size = (turn["input_tokens"] - turn["cached_tokens"]) * arch.hidden_size * 2
    boxes = [Box(load_profile(name), "P") for name in (BOX, str(new))]
    old, now = (collective("all_reduce", size, range(8), box).time_s for box in boxes)

    def alone(found: Any) -> float:
        return next(one.prefill_s for one in found.references if one.name == "no_kv")

    assert now > 1.2 * old
    assert alone(after) - alone(before) == pytest.approx((2 * arch.layers + 1) * (now - old), rel=0.01)


def test_mistakes_are_one_line_and_leave_nothing(pdmodel: Program, new: Path, tmp_path: Path) -> None:
    text = LOG.read_text()
    log = tmp_path / "bad.log"
    cases = {
        text.replace("RTX PRO 6000", "L40S"): "--force",
        text.replace("values : 0 OK", "values : 2 FAILED"): "a wrong run is no measurement",
        "nothing\n": "no data rows",
    }
    for content, message in cases.items():
        log.write_text(content)
        run = pdmodel("calibrate", "nccl-tests", str(log), "--profile", BOX, "-o", str(new))
        assert (run.code, run.out) == (3, "")
        assert run.err.count("\n") == 1
        assert run.err.startswith(f"pdmodel: {log}: line ")
        assert message in run.err
        assert not new.exists()
    assert pdmodel("calibrate", "nccl-tests", str(tmp_path / "no.log")).code == 3
    assert pdmodel("calibrate", "nccl-tests", str(log), "--collective", "all_reduc").err.endswith("'all_reduce'?\n")
    assert pdmodel("calibrate", "nccl-tests", str(tmp_path)).code == 3


def test_a_log_is_not_written_over(pdmodel: Program, tmp_path: Path) -> None:
    log = tmp_path / "ar.log"
    log.write_text(LOG.read_text())
    run = pdmodel("calibrate", "nccl-tests", str(log), "--profile", BOX, "-o", str(log))
    assert run.code == 2
    assert log.read_text() == LOG.read_text()


def test_force_and_words_for_what_a_log_does_not_tell(pdmodel: Program, new: Path, tmp_path: Path) -> None:
    log = tmp_path / "bare.log"
    rows = [line for line in made_log(ranks=4, sizes=SIZES).splitlines() if line.split()[:1][0].isdigit()]
    log.write_text("\n".join(rows[:20]))
    words = ("calibrate", "nccl-tests", str(log), "-o", str(new))
    assert pdmodel(*words).code == 3
    assert pdmodel(*words, "--ranks", "4", "--nodes", "1", "--gpu", "NVIDIA L40S").code == 0
    assert json.loads(new.read_text())["gpu"]["count"] == 4
    log.write_text(LOG.read_text().replace("RTX PRO 6000", "L40S"))
    run = pdmodel("calibrate", "nccl-tests", str(log), "--profile", BOX, "-o", str(new), "--force")
    assert run.code == 0
    assert "forced: " in run.out
