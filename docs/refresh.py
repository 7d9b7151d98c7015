"""Output of pdmodel that pages quote: ``python docs/refresh.py`` runs the commands again and writes what they print.

A quoted block stands between ``<!-- quote: NAME -->`` and ``<!-- end -->``. The tests run the same commands and
compare: the words must be the same, numbers may differ by a per cent.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- quote: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(<!-- end -->)", flags=re.DOTALL)
FLAGSHIP = "agentic_turn_pcie"


def run(*arguments: str) -> str:
    """What ``pdmodel`` with these arguments prints where there is no terminal."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"NO_COLOR": "1"}
    command = [sys.executable, "-c", "from pdmodel.cli.main import main; raise SystemExit(main())", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def first_screen() -> str:
    """The flagship's answer up to what it assumes."""
    lines = run("plan", FLAGSHIP).splitlines()
    stop = next(k for k, line in enumerate(lines) if line.startswith("Assumed inputs"))
    shown = "\n".join(lines[:stop]).rstrip()
    return f"```text\n$ pdmodel plan {FLAGSHIP}\n{shown}\n```\n"


def scenarios() -> str:
    """A table of the shipped scenarios with their verdicts."""
    rows = ["| scenario | what it shows | verdict |", "|---|---|---|"]
    for path in sorted((ROOT / "scenarios").glob("*.json")):
        plan = json.loads(run("plan", path.stem, "--format", "json"))
        verdict = plan["verdict"]["text"].partition(":")[2].strip() or plan["verdict"]["text"]
        purpose = json.loads(path.read_text(encoding="utf-8"))["purpose"]
        rows.append(f"| [{path.stem}](scenarios/{path.name}) | {purpose} | **{plan['verdict']['kind']}**: {verdict} |")
    return "\n".join(rows) + "\n"


QUOTES: dict[str, Callable[[], str]] = {"first-screen": first_screen, "scenarios": scenarios}


def refreshed(page: str) -> str:
    """The page with every quoted block as it is now."""
    return BLOCK.sub(lambda found: found[1] + QUOTES[found["name"]]() + found[4], page)


if __name__ == "__main__":
    for path in (ROOT / "README.md",):
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
