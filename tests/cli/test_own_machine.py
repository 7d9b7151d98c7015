"""The commands of docs/own_machine.md, walked in this process: files -> box -> scenario -> plan."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdmodel.hardware.catalog import load_profile
from pdmodel.resolve import load_scenario

Program = Callable[..., Any]
ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "data" / "own_machine"
PAGE = (ROOT / "docs" / "own_machine.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in FILES.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands() -> list[list[str]]:
    return [line.split() for line in re.findall(r"^\$ pdmodel (.+)$", PAGE, flags=re.MULTILINE)]


def test_the_page_goes_from_files_to_a_plan() -> None:
    assert [words[0] for words in commands()] == ["import", "hardware", "import", "scenario", "plan"]


def test_every_command_of_the_page_works(pdmodel: Program, folder: Path) -> None:
    for words in commands():
        run = pdmodel(*words)
        assert (run.code, run.err) == (0, ""), words
        assert run.out

    box = load_profile("my_box.json")
    assert (box.gpu.count, box.gpu.name, box.links.nvlink) == (4, "L40S", None)
    assert box.nics is not None
    assert (box.nics.count, box.nics.line_rate_gbit_per_s.value) == (2, 200)
    # Pairs of GPUs under a switch with a NIC, as topo.txt has it.
    switches = [(tuple(switch.gpus), switch.name) for switch in box.tree.switches]
    assert [gpus for gpus, _ in switches] == [(0, 1), (2, 3)]
    assert list(box.nics.attached_to) == [name for _, name in switches]
    assert box.nics.achievable_gb_per_s.value == pytest.approx(194.27 / 8, rel=0.01)
    assert box.kind_of(box.nics.achievable_gb_per_s.source).value == "measured"
    assert [one.ranks for one in box.collectives if one.operation.value == "all_reduce"] == [4]

    resolved = load_scenario("my_turn.json")
    assert (resolved.arch.layers, resolved.arch.kv_heads) == (40, 8)
    assert [request.name for request in resolved.requests] == ["p50", "p90"]

    plan = json.loads(pdmodel("plan", "my_turn.json", "--format", "json").out)
    # KV of both prompts: layers x 2 x heads x head_dim x 2 bytes a token, nothing lost on the way.
    tokens = sum(request.input_tokens for request in resolved.requests)
    sent = sum(flow["bytes"] for flow in plan["flows"] if flow["kind"] == "send")
    assert sent == pytest.approx(tokens * 40 * 2 * 8 * 128 * 2)
    loads = sum(flow["bytes"] for flow in plan["flows"] if flow["kind"] == "load")
    assert loads == pytest.approx(sum(request.cached_tokens for request in resolved.requests) * 40 * 2 * 8 * 128 * 2)
    # No file says how fast the links of the GPUs are, so the plan must say that it assumed that.
    assert any(sentence.startswith("P/gpu0/egress") for sentence in plan["assumed"])
    assert not any("nic0" in sentence for sentence in plan["assumed"])


def test_the_folder_can_be_moved(pdmodel: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in commands()[:-1]:
        pdmodel(*words)
    monkeypatch.chdir(ROOT)
    assert pdmodel("scenario", "validate", str(folder / "my_turn.json")).code == 0
    moved = folder.rename(folder.parent / "moved")
    assert pdmodel("plan", str(moved / "my_turn.json")).code == 0
