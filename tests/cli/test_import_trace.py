"""``pdmodel import trace`` in every form, its refusals, and its bar."""

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdmodel.cli import progress

Program = Callable[..., Any]

ROWS = [
    {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [0, 1]},
    {"timestamp": 1000, "input_length": 2048, "output_length": 30, "hash_ids": [0, 1, 2, 3]},
    {"timestamp": 4000, "input_length": 1024, "output_length": 20, "hash_ids": [0, 1]},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{broken\n")
    return path


def test_figures_as_json(pdmodel: Program, trace: Path) -> None:
    run = pdmodel("import", "trace", str(trace), "--format", "json")
    assert (run.code, run.err) == (0, "")
    found = json.loads(run.out)
    assert (found["status"], found["format"], found["requests"]) == ("partial", "mooncake", 3)
    assert (found["duration_s"], found["requests_per_s"]) == (4.0, 0.75)
    assert found["input_tokens"] == {
        "mean": pytest.approx(4096 / 3),
        "p50": 1024,
        "p90": 2048,
        "p99": 2048,
        "max": 2048,
    }
    assert found["cached_tokens"]["max"] == 1024
    assert found["hit_rate"] == pytest.approx((1024 + 1023) / 4096)
    assert found["malformed"] == 1
    assert found["malformed_lines"][0]["line"] == 4
    assert found["warnings"] == ["1 of 4 lines are malformed and left out"]


def test_a_smaller_cache_and_other_blocks(pdmodel: Program, trace: Path) -> None:
    words = ("import", "trace", str(trace), "--format", "json")
    small = json.loads(pdmodel(*words, "--cache-blocks", "1").out)
    assert small["hit_rate"] == pytest.approx((512 + 512) / 4096)
    other = json.loads(pdmodel(*words, "--block-tokens", "256").out)
    assert any("a block for every 256 input tokens: --block-tokens 512 would fit" in text for text in other["warnings"])


def test_the_same_for_readers_and_spreadsheets(pdmodel: Program, trace: Path, tmp_path: Path) -> None:
    text = pdmodel("import", "trace", str(trace)).out
    for words in ("mooncake", "0.75 requests/s", "50 % of the input tokens", "malformed JSON", "--strict refuses"):
        assert words in text
    rows = list(csv.DictReader(io.StringIO(pdmodel("import", "trace", str(trace), "--format", "csv").out)))
    assert {row["section"] for row in rows} == {"trace", "tokens", "malformed", "warnings"}
    assert pdmodel("import", "trace", str(trace), "-o", str(tmp_path / "out.md")).out == ""
    assert "| cached |" in (tmp_path / "out.md").read_text()


def test_refusals_are_one_line_and_exit_code_3(pdmodel: Program, trace: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    cases = {
        ("--strict", str(trace)): f"{trace}: line 4: malformed JSON",
        (str(empty),): f"{empty}: is empty",
        (str(tmp_path),): "is a folder",
        (str(tmp_path / "nothing.csv"),): "no such file",
    }
    for words, message in cases.items():
        run = pdmodel("import", "trace", *words)
        assert (run.code, run.out) == (3, "")
        assert message in run.err
        assert run.err.count("\n") == 1
    assert pdmodel("import", "trace", str(trace), "--cache-blocks", "0").code == 2


def test_a_bar_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress, "BAR_DELAY_S", 0.0)
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.bar("reading [odd] name") as tell:
        tell(5_000_000, 20_000_000)
        for _ in range(2000):
            if "5.0/20.0" in screen.getvalue():
                break
            time.sleep(0.005)
    assert "5.0/20.0" in screen.getvalue()
    assert "reading [odd] name" in screen.getvalue()
    silent = io.StringIO()
    monkeypatch.setattr(sys, "stderr", silent)
    with progress.bar("reading") as tell:
        tell(1, 2)
    assert silent.getvalue() == ""
