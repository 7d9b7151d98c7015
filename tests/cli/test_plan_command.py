import csv
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sample_plan import sample_plan
from syrupy.assertion import SnapshotAssertion

from pdmodel.answer import Plan
from pdmodel.errors import CoverageError, DeadlineError, InputError, SolverError
from pdmodel.report import plan_to_dict

PLAN = sample_plan()
Program = Callable[..., "types.SimpleNamespace"]


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A planner that answers with the sample, whatever the scenario; a name that is an error is raised."""
    stand_in = types.ModuleType("pdmodel.planner")

    def plan(scenario: str, progress: Callable[[str], None]) -> Plan:
        return replace(PLAN, scenario=scenario)

    stand_in.plan = plan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pdmodel.planner", stand_in)
    monkeypatch.setattr(sys.modules["pdmodel"], "planner", stand_in, raising=False)
    return stand_in


def failing(planner: types.ModuleType, error: Exception) -> None:
    def plan(scenario: str, progress: Callable[[str], None]) -> Plan:
        raise error

    planner.plan = plan  # type: ignore[attr-defined]


def test_text(pdmodel: Program, snapshot: SnapshotAssertion) -> None:
    run = pdmodel("plan", "sample")
    assert (run.code, run.err) == (0, "")
    assert run.out == snapshot


def test_json_is_the_whole_plan(pdmodel: Program) -> None:
    run = pdmodel("plan", "sample", "--format", "json")
    assert json.loads(run.out) == plan_to_dict(PLAN)


def test_csv_and_markdown(pdmodel: Program) -> None:
    rows = list(csv.DictReader(io.StringIO(pdmodel("plan", "sample", "--format", "csv").out)))
    assert {"verdict", "policies", "ports", "flows", "schedule"} <= {row["section"] for row in rows}
    assert pdmodel("plan", "sample", "--format", "markdown").out.startswith("# pdmodel plan: sample\n")


def test_full_and_full_schedule_add_rows(pdmodel: Program) -> None:
    short = pdmodel("plan", "sample").out
    assert "P/gpu1/ingress" not in short
    assert "\nSchedule\n" not in short
    assert "P/gpu1/ingress" in pdmodel("plan", "sample", "--full").out
    assert "\nSchedule\n" in pdmodel("plan", "sample", "--full-schedule").out


@pytest.mark.parametrize(
    ("name", "start"), [("a.json", "{\n"), ("a.csv", "section,"), ("a.md", "# "), ("a.txt", "pdmodel plan: sample\n")]
)
def test_output_form_follows_the_ending(pdmodel: Program, tmp_path: Path, name: str, start: str) -> None:
    run = pdmodel("plan", "sample", "--output", str(tmp_path / name))
    assert (run.code, run.out, run.err) == (0, "", "")
    assert (tmp_path / name).read_text().startswith(start)


def test_format_wins_over_the_ending(pdmodel: Program, tmp_path: Path) -> None:
    pdmodel("plan", "sample", "--format", "csv", "--output", str(tmp_path / "a.json"))
    assert (tmp_path / "a.json").read_text().startswith("section,")


def test_plot_beside_the_result(pdmodel: Program, tmp_path: Path) -> None:
    run = pdmodel("plan", "sample", "--format", "json", "--plot", str(tmp_path / "a.svg"))
    assert json.loads(run.out)["scenario"] == "sample"
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


def test_strict_passes_and_fails(pdmodel: Program, planner: types.ModuleType) -> None:
    assert pdmodel("plan", "sample", "--strict").code == 0
    late = replace(PLAN, missed_deadlines=("send/rank0 ends 3 ms late", "send/rank1 ends 2 ms late"))
    planner.plan = lambda scenario, progress: late  # type: ignore[attr-defined]
    assert pdmodel("plan", "sample").code == 0
    run = pdmodel("plan", "sample", "--strict")
    assert run.code == DeadlineError.exit_code == 4
    assert "Missed deadlines" in run.out
    assert run.err == "pdmodel: sample: 2 deadlines missed, first: send/rank0 ends 3 ms late\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("plan",), 2, "Missing argument 'SCENARIO'; see 'pdmodel plan --help'"),
        (("plan", "a", "b"), 2, "Got unexpected extra argument(s) (b); see 'pdmodel plan --help'"),
        (("plan", "a", "--formt", "x"), 2, "No such option: --formt"),
        (("plan", "a", "--format", "xml"), 2, "Invalid value for '--format': 'xml' is not one of"),
        (("plan", "a", "--output"), 2, "requires an argument"),
        (("plann", "a"), 2, "No such command 'plann'"),
        (("plan", "a", "--plot", "a.pdf"), 3, "a.pdf: cannot draw a .pdf; expected one of .png, .svg"),
        (("plan", "a", "--plot", "a"), 3, "a: cannot draw a file without an ending; expected one of .png, .svg"),
        (("plan", "a", "--plot", "no/a.svg"), 3, "no/a.svg: no such folder"),
        (("plan", "a", "--output", "no/a.json"), 3, "no/a.json: no such folder"),
        (("plan", "a", "--output", "."), 3, ".: is a folder; expected a file name"),
        (("plan", "a", "--output", "x.svg", "--plot", "x.svg"), 2, "--output and --plot name the same file"),
    ],
)
def test_one_line_an_error(
    pdmodel: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run = pdmodel(*words)
    assert run.code == code
    assert run.out == ""
    assert run.err.startswith("pdmodel: ")
    assert run.err.count("\n") == 1
    assert message in run.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            InputError("found 3", file="s.json", path="prefill.tp_size", expected="a divisor of 64 heads"),
            3,
            "pdmodel: s.json: prefill.tp_size: found 3; expected a divisor of 64 heads\n",
        ),
        (
            CoverageError("sliding window is not covered", file="c.json"),
            3,
            "pdmodel: c.json: sliding window is not covered\n",
        ),
        (SolverError("the solver says:\nunbounded"), 5, "pdmodel: the solver says: unbounded\n"),
        (
            ZeroDivisionError("division by zero"),
            1,
            "pdmodel: unexpected ZeroDivisionError: division by zero (--debug shows the traceback)\n",
        ),
        (KeyboardInterrupt(), 130, "pdmodel: interrupted\n"),
    ],
)
def test_errors_of_the_planner(
    pdmodel: Program, planner: types.ModuleType, tmp_path: Path, error: Exception, code: int, line: str
) -> None:
    failing(planner, error)
    run = pdmodel("plan", "a", "--output", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg"))
    assert (run.code, run.out, run.err) == (code, "", line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("--debug", "plan", "a"), ("plan", "a", "--debug")])
def test_debug_shows_the_traceback(pdmodel: Program, planner: types.ModuleType, words: tuple[str, ...]) -> None:
    failing(planner, InputError("bad", file="f"))
    run = pdmodel(*words)
    assert run.code == 3
    assert run.err.startswith("Traceback")
    assert run.err.endswith("pdmodel: f: bad\n")
    assert "Traceback" not in pdmodel("plan", "a").err, "the next run starts afresh"


def test_paths_are_checked_before_the_work(pdmodel: Program, planner: types.ModuleType) -> None:
    failing(planner, AssertionError("the work was begun"))
    assert pdmodel("plan", "a", "--output", "no/such/a.json").code == 3
    assert pdmodel("plan", "a", "--plot", "no/such/a.svg").code == 3


def test_a_failing_picture_leaves_no_result_behind(pdmodel: Program, planner: types.ModuleType, tmp_path: Path) -> None:
    unrecorded = replace(PLAN, replay=replace(PLAN.replay, segments=()))
    planner.plan = lambda scenario, progress: unrecorded  # type: ignore[attr-defined]
    run = pdmodel("plan", "a", "--output", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg"))
    assert run.code == 1
    assert "not recorded" in run.err
    assert not list(tmp_path.iterdir())


def test_width_follows_columns(pdmodel: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    from pdmodel.cli.options import Format
    from pdmodel.cli.render import show
    from pdmodel.report import plan_document

    buffer = io.StringIO()
    monkeypatch.setattr(sys, "stdout", buffer)
    show(plan_document(PLAN), Format.RICH)
    assert "strict 0.0062." in next(line for line in buffer.getvalue().splitlines() if "CONTENDED" in line)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown_on_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    from pdmodel.cli.options import Format, reset
    from pdmodel.cli.render import show
    from pdmodel.report import plan_document

    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    reset()
    buffer = Terminal()
    monkeypatch.setattr(sys, "stdout", buffer)
    show(plan_document(PLAN), Format.RICH)
    return buffer.getvalue()


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    assert "\x1b" not in shown_on_terminal(monkeypatch, COLUMNS="100", **environment)


def test_colour_on_a_terminal_changes_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    coloured = shown_on_terminal(monkeypatch, TERM="xterm", COLUMNS="100")
    plain = shown_on_terminal(monkeypatch, NO_COLOR="1", COLUMNS="100")
    assert "\x1b[1m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_sign_of_life_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from pdmodel.cli import progress

    monkeypatch.setattr(progress, "DELAY_S", 0.01)
    for stream, expected in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.busy("planning a") as tell:
            tell("program R")
            time.sleep(0.3)
        assert ("planning a: program R" in stream.getvalue()) is expected


def test_a_reader_that_leaves_is_no_error() -> None:
    code = (
        "import sys\nfrom pdmodel.cli.main import main\nsys.exit(main(['llm', 'show', 'qwen3-8b', '--format', 'json']))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line() -> None:
    code = "import sys\nfrom pdmodel.cli.main import main\nsys.exit(main(['llm', 'list']))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "pdmodel: standard output cannot be written (No space left on device)\n"
