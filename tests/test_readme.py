"""What the pages quote is what pdmodel prints and computes."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def refresh_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules["refresh"] = script
    spec.loader.exec_module(script)
    return script


REFRESH = refresh_script()
QUOTED = {
    found["name"]: found["text"] for page in REFRESH.PAGES for found in REFRESH.BLOCK.finditer(page.read_text("utf-8"))
}


def test_every_quote_is_used() -> None:
    assert QUOTED.keys() == REFRESH.QUOTES.keys()


@pytest.mark.parametrize("name", sorted(REFRESH.QUOTES))
def test_quotes_are_current(name: str) -> None:
    now, quoted = REFRESH.QUOTES[name](), QUOTED[name]
    hint = "run `make docs` and read what has changed"
    # Column widths may follow the digits, so runs of blanks and rules count as one.
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (now, quoted)]
    assert words[0] == words[1], hint
    assert [float(number) for number in NUMBER.findall(quoted)] == pytest.approx(
        [float(number) for number in NUMBER.findall(now)], rel=0.01, abs=1e-3
    ), hint
