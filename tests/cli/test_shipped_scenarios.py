"""The whole program on shipped scenarios: every form, the picture, the promises of the JSON."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdmodel.report.export import PLAN_KEYS
from pdmodel.resources import names

Program = Callable[..., Any]
FLAGSHIP, SEED = "agentic_turn_pcie", "seed_h200_nvlink"
PATHS = {"bound", "no_shared_port", "certified", "closed_form", "program_e", "program_r"}


@pytest.mark.parametrize("name", names("scenarios"))
def test_json(pdmodel: Program, name: str, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    run = pdmodel("plan", name, "--format", "json", "--plot", str(picture))
    assert (run.code, run.err) == (0, "")
    content = json.loads(run.out)
    assert tuple(content) == PLAN_KEYS
    assert content["scenario"] == name
    assert content["solver"]["path"] in PATHS or content["solver"]["path"].startswith("policy:")
    by_name = {policy["name"]: policy for policy in content["policies"]}
    assert {"unmanaged", "strict", "plan"} <= by_name.keys()
    assert not {policy["name"] for policy in content["references"]} & by_name.keys()
    plan = by_name["plan"]
    assert all(plan["cost"] <= policy["cost"] * (1 + 1e-9) + 1e-12 for policy in content["policies"])
    for key in ("ttft_s", "decode_stall_s", "load_stall_s", "prefill_slowdown_s"):
        assert plan[key] == content["times"][key]
    assert all(0 <= port["utilisation"] <= 1 + 1e-9 for port in content["ports"])
    moved = {flow["name"]: 0.0 for flow in content["flows"]}
    for row in content["schedule"]:
        layers = row["last_layer"] - row["first_layer"] + 1
        moved[row["flow"]] += row["rate_bytes_per_s"] * row["duration_s"] * layers
    for flow in content["flows"]:
        assert moved[flow["name"]] == pytest.approx(flow["bytes"], rel=2e-3), flow["name"]
    text = picture.read_text()
    assert name in text
    assert "capacity" in text


def test_forms_agree(pdmodel: Program) -> None:
    content = json.loads(pdmodel("plan", FLAGSHIP, "--format", "json").out)
    rows = list(csv.DictReader(io.StringIO(pdmodel("plan", FLAGSHIP, "--format", "csv").out)))
    costs = {row["name"]: float(row["cost"]) for row in rows if row["section"] == "policies"}
    assert costs == {policy["name"]: policy["cost"] for policy in content["policies"]}
    text, markdown = pdmodel("plan", FLAGSHIP).out, pdmodel("plan", FLAGSHIP, "--format", "markdown").out
    for shown in (text, markdown):
        assert content["verdict"]["kind"].upper() in shown
        assert "P/switch[0-1]/down" in shown


def test_text_fits_a_hundred_columns(pdmodel: Program) -> None:
    for name in (FLAGSHIP, SEED):
        run = pdmodel("plan", name, "--full", "--full-schedule")
        assert max(len(line) for line in run.out.splitlines()) <= 100


def test_the_answer_comes_first(pdmodel: Program) -> None:
    """Verdict, times, ports and rates on a screen of 50 lines."""
    lines = pdmodel("plan", FLAGSHIP).out.splitlines()[:50]
    for title in ("Verdict", "Times", "Ports", "What to set: rates"):
        assert title in lines


def test_the_process_itself(tmp_path: Path) -> None:
    code = "import sys; from pdmodel.cli.main import main; sys.exit(main())"
    words = ["plan", FLAGSHIP, "--output", str(tmp_path / "plan.json")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "plan.json").read_text())["scenario"] == FLAGSHIP


def test_a_fast_path_imports_no_solver() -> None:
    code = (
        "import json, sys\nfrom pdmodel.cli.main import main\nmain(['plan', sys.argv[1], '--format', 'json'])\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, SEED], capture_output=True, text=True, check=True)
    path = json.loads(done.stdout)["solver"]["path"]
    assert path in {"bound", "no_shared_port", "certified", "closed_form"}
    assert not {"cvxpy", "scipy", "pandas", "matplotlib"} & set(done.stderr.split())
