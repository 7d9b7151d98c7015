"""Output of pdmodel that pages quote: ``python docs/refresh.py`` makes it again and writes it into the pages.

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

from pdmodel.verification import BandResult, read_tables
from pdmodel.verification.results import compare, evaluate

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "validation.md")
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


def published_tables() -> str:
    """Errors of every published table by group and size, with the limits, and where each table comes from."""
    _, _, text = run("verify", "--format", "markdown").partition("\n\n")
    return text.replace("## ", "### ").strip() + "\n"


def collective_errors() -> str:
    """Errors of collectives, by box, implementation and operation and by size of the message."""
    (table,) = read_tables(("collectives",))
    finer = table.model_copy(update={"group_by": ("profile", "implementation", "operation"), "limits": ()})
    names = [finer.band(size) for size in (*finer.bands_bytes, finer.bands_bytes[-1] + 1)]
    found: dict[tuple[str, ...], dict[str, BandResult]] = {}
    for band in evaluate(finer, compare(finer)).bands:
        found.setdefault(tuple(band.keys.values()), {})[band.band] = band
    lines = [
        "| box | implementation | operation | rows | " + " | ".join(names) + " | worst |",
        "|---" * (5 + len(names)) + "|",
    ]
    for key, bands in sorted(found.items()):
        means = [f"{bands[name].mean:.1%}" if name in bands else "–" for name in names]
        rows, worst = sum(band.rows for band in bands.values()), max(band.worst for band in bands.values())
        lines.append("| " + " | ".join([*key, str(rows), *means, f"{worst:.1%}"]) + " |")
    return "\n".join(lines) + "\n"


QUOTES: dict[str, Callable[[], str]] = {
    "first-screen": first_screen,
    "scenarios": scenarios,
    "published-tables": published_tables,
    "collective-errors": collective_errors,
}


def refreshed(page: str) -> str:
    """The page with every quoted block as it is now."""
    return BLOCK.sub(lambda found: found[1] + QUOTES[found["name"]]() + found[4], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
