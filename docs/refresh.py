"""Output of pdmodel that pages quote: ``python docs/refresh.py`` makes it again and writes it into the pages.

A quoted block stands between ``<!-- quote: NAME -->`` and ``<!-- end -->``. The tests run the same commands and
compare: the words must be the same, numbers may differ by a per cent.
"""

import csv
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

from pdmodel.costs.collectives import collective
from pdmodel.costs.step import decode_step, prefill_pass
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype

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


def published(name: str) -> Iterator[dict[str, str]]:
    """The rows of a table of published figures."""
    with (ROOT / "tests" / "published" / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def collective_errors() -> str:
    """Errors of collectives, by box and operation and by size of the message."""
    errors: dict[tuple[str, ...], tuple[list[float], list[float], list[float]]] = defaultdict(lambda: ([], [], []))
    boxes: dict[str, Box] = {}
    for row in published("collectives"):
        box = boxes.setdefault(row["profile"], Box(load_profile(row["profile"]), "P"))
        size = float(row["size_bytes"])
        cost = collective(row["operation"], size, range(int(row["ranks"])), box, row["implementation"])
        band = 0 if size <= 1 << 16 else 1 if size <= 1 << 22 else 2
        key = row["profile"], row["implementation"], row["operation"]
        errors[key][band].append(abs(cost.time_s / (float(row["time_us"]) * 1e-6) - 1))
    head = "| box | implementation | operation | rows | mean up to 64 KiB | up to 4 MiB | above | worst above |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for key, bands in sorted(errors.items()):
        means = [f"{mean(band):.1%}" if band else "–" for band in bands]
        worst = f"{max(bands[2]):.1%}" if bands[2] else "–"
        lines.append("| " + " | ".join([*key, str(sum(map(len, bands))), *means, worst]) + " |")
    return "\n".join(lines) + "\n"


def step_errors() -> str:
    """Errors of the compute time of whole passes, by kind of LLM, data type and phase."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in published("step_times"):
        arch, profile = load_llm(row["llm"]), load_profile(row["profile"])
        weights = WeightDtype(row["weight_dtype"])
        stored = {"attention": weights, "mlp": weights, "experts": weights, "shared_expert": weights}
        arch = replace(arch, dtypes=replace(arch.dtypes, **stored, other=WeightDtype.BF16, block=None))
        cut = {"tp_size": int(row["tp"]), "ep_size": int(row["ep"]), "kv_dtype": KvDtype(row["kv_dtype"])}
        if row["phase"] == "prefill":
            cost = prefill_pass(arch, profile, int(row["new_tokens"]), **cut)
        else:
            cost = decode_step(arch, profile, int(row["batch"]), int(row["context_tokens"]), **cut)
        kind = "mixture of experts" if arch.moe else "dense"
        errors[kind, row["weight_dtype"], row["phase"]].append(abs(cost.time_s * 1e3 / float(row["compute_ms"]) - 1))
    lines = ["| LLM | weights | phase | rows | mean | worst |", "|---|---|---|---|---|---|"]
    for key, found in sorted(errors.items()):
        lines.append("| " + " | ".join([*key, str(len(found)), f"{mean(found):.1%}", f"{max(found):.1%}"]) + " |")
    return "\n".join(lines) + "\n"


QUOTES: dict[str, Callable[[], str]] = {
    "first-screen": first_screen,
    "scenarios": scenarios,
    "collective-errors": collective_errors,
    "step-errors": step_errors,
}


def refreshed(page: str) -> str:
    """The page with every quoted block as it is now."""
    return BLOCK.sub(lambda found: found[1] + QUOTES[found["name"]]() + found[4], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
