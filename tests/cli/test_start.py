"""Starting up: what is imported, what help says, what the version is."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion

from pdmodel import __version__

HEAVY = {"cvxpy", "highspy", "scipy", "pandas", "matplotlib", "numpy", "pydantic"}
COMMANDS = [
    ("--help",),
    ("plan", "--help"),
    ("scenario", "-h"),
    ("scenario", "list", "-h"),
    ("scenario", "show", "-h"),
    ("scenario", "validate", "-h"),
    ("scenario", "schema", "-h"),
    ("hardware", "-h"),
    ("hardware", "list", "-h"),
    ("hardware", "show", "-h"),
    ("hardware", "validate", "-h"),
    ("hardware", "schema", "-h"),
    ("llm", "-h"),
    ("llm", "list", "-h"),
    ("llm", "show", "-h"),
    ("engine", "-h"),
    ("engine", "list", "-h"),
    ("engine", "show", "-h"),
    ("engine", "compare", "-h"),
    ("engine", "schema", "-h"),
    ("cost", "-h"),
    ("cost", "collective", "-h"),
    ("cost", "moe", "-h"),
    ("cost", "step", "-h"),
    ("verify", "--help"),
    ("import", "-h"),
    ("import", "topo", "-h"),
]


def imported(*words: str) -> set[str]:
    code = f"""
import sys
from pdmodel.cli.main import main
try:
    main({list(words)!r})
finally:
    print(*sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "words", [("--help",), ("plan", "--help"), ("cost", "-h"), ("cost", "step", "-h"), ("verify", "-h"), ("--version",)]
)
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    # Typer itself uses pydantic to read the options of a command.
    assert imported(*words).isdisjoint(HEAVY - ({"pydantic"} if words[0] in {"plan", "cost", "verify"} else set()))


def test_commands_without_a_plan_need_no_solver() -> None:
    assert imported("llm", "list").isdisjoint(HEAVY - {"numpy", "pydantic"})


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_ends_well_and_gives_an_example(pdmodel: Callable[..., object], words: tuple[str, ...]) -> None:
    run = pdmodel(*words)
    assert (run.code, run.err) == (0, "")
    assert "Usage: pdmodel" in run.out
    if len(words) == 3 or words[0] in {"plan", "verify", "--help"}:
        assert "Example" in run.out


@pytest.mark.parametrize("words", [("--help",), ("plan", "--help")], ids=" ".join)
def test_help_text(pdmodel: Callable[..., object], words: tuple[str, ...], snapshot: SnapshotAssertion) -> None:
    # A line is padded to the width with blanks, which say nothing.
    assert "\n".join(line.rstrip() for line in pdmodel(*words).out.splitlines()) == snapshot


def test_help_of_plan_lists_the_exit_codes(pdmodel: Callable[..., object]) -> None:
    text = " ".join(pdmodel("plan", "--help").out.split())
    for words in (
        "0 ok",
        "1 unexpected",
        "2 usage",
        "3 invalid input",
        "4 deadlines missed under --strict",
        "5 solver",
    ):
        assert words in text


def test_version(pdmodel: Callable[..., object]) -> None:
    run = pdmodel("--version")
    assert (run.code, run.out) == (0, f"pdmodel {__version__}\n")


def test_no_words_print_help(pdmodel: Callable[..., object]) -> None:
    for words in ((), ("scenario",)):
        run = pdmodel(*words)
        assert run.code == 2
        assert "Usage: pdmodel" in run.out + run.err


def test_installed_program() -> None:
    from pathlib import Path

    program = Path(sys.executable).with_name("pdmodel")
    if not program.exists():
        pytest.skip("pdmodel is not installed as a program here")
    done = subprocess.run([program, "plan", "no_such_scenario"], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("pdmodel: unknown scenario 'no_such_scenario'")
    assert done.stderr.count("\n") == 1
