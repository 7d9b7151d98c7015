"""The sample plan of the report's tests, and the program run inside this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


@pytest.fixture
def pdmodel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Run the program with the given words; the terminal is 100 columns wide and dumb."""
    from pdmodel.cli.main import main

    for name, value in (("COLUMNS", "100"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> Run:
        code = main(words)
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return run
