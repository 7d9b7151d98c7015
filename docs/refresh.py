"""Output of pdmodel that pages quote: ``python docs/refresh.py [PAGE ...]`` makes it again, writes it into the pages.

A quoted block stands between ``<!-- quote: NAME -->`` and ``<!-- end -->``. The tests run the same commands and
compare: the words must be the same, numbers may differ by a per cent.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pdmodel.engines.stores import list_stores, load_store
from pdmodel.hardware.catalog import load_profile
from pdmodel.verification import BandResult, read_tables
from pdmodel.verification.results import compare, evaluate

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "validation.md",
    ROOT / "docs" / "compute.md",
    ROOT / "docs" / "calibrate.md",
    ROOT / "docs" / "own_machine.md",
    ROOT / "docs" / "engines.md",
    ROOT / "docs" / "kv_tiers.md",
    ROOT / "docs" / "kv_transfer.md",
)
MEASURED_BOXES = ("rtx_pro_6000_server", "l40s_pcie_gen4", "h100_8nic", "h200_nvlink_2nic", "b200_8nic")
BLOCK = re.compile(r"(<!-- quote: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(<!-- end -->)", flags=re.DOTALL)
FLAGSHIP = "agentic_turn_pcie"


def run(*arguments: str, folder: Path = ROOT) -> str:
    """What ``pdmodel`` with these arguments prints where there is no terminal."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"NO_COLOR": "1"}
    command = [sys.executable, "-c", "from pdmodel.cli.main import main; raise SystemExit(main())", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


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


def compute_constants() -> str:
    """The fitted constants of compute, a table per kind of kernel."""
    text = []
    for part in ("gemm", "prefill_attention", "decode_attention", "moe"):
        rows: list[dict[str, str]] = []
        for name in MEASURED_BOXES:
            for dtype, constants in getattr(load_profile(name).compute, part).items():
                values = constants.model_dump(exclude_none=True, exclude={"source"})
                rows.append({"box": name, "dtype": dtype, **_flat(values)})
        names = list(dict.fromkeys(key for row in rows for key in row))
        names = [key for key in names if not key.endswith("_error")] + ["mean_error", "held_out_error"]
        text += [f"**{part}**", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        text += ["| " + " | ".join(row.get(key, "–") for key in names) + " |" for row in rows] + [""]
    return "\n".join(text)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested constants as columns; a constant that is not in use is a dash."""
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            found |= _flat(value, f"{name}.")
        else:
            found[name] = f"{value:.3g}" if value else "0"
    return found


@cache
def _calibrated() -> tuple[str, str, str]:
    """The report of a calibration, and verdict and times of the flagship before it and after it."""
    log = ROOT / "tests" / "data" / "nccl_tests" / "all_reduce_8x_rtx_pro_6000.log"
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "all_reduce.log").write_bytes(log.read_bytes())
        words = ("calibrate", "nccl-tests", "all_reduce.log", "--profile", "rtx_pro_6000_wrx90_two_roots")
        report = run(*words, "-o", "my_box.json", folder=folder)
        scenario = json.loads((ROOT / "scenarios" / f"{FLAGSHIP}.json").read_text(encoding="utf-8"))
        scenario["name"] = "my_turn"
        scenario["prefill"]["hardware"] = scenario["decode"]["hardware"] = "my_box.json"
        (folder / "my_turn.json").write_text(json.dumps(scenario), encoding="utf-8")
        after = run("plan", "my_turn.json", folder=folder)
    return f"```text\n$ pdmodel {' '.join(words)} -o my_box.json\n{report}```\n", run("plan", FLAGSHIP), after


def calibration_report() -> str:
    """What a calibration prints."""
    return _calibrated()[0]


def calibration_plans() -> str:
    """Verdict and times of one scenario before and after the calibration."""
    _, before, after = _calibrated()
    shown = []
    for command, text in ((FLAGSHIP, before), ("my_turn.json", after)):
        start, stop = text.index("Verdict\n"), text.index("\nPorts\n")
        shown.append(f"```text\n$ pdmodel plan {command}\n...\n{text[start:stop].rstrip()}\n```\n")
    return "\n".join(shown)


OWN_FILES = ROOT / "tests" / "data" / "own_machine"
OWN_MACHINE = {
    "own-topology": "import topo topo.txt",
    "own-trace": "import trace trace.jsonl --cache-blocks 200",
    "own-box": "hardware build --topo topo.txt --nccl-tests all_reduce.log --perftest ib_write_bw.txt --nics 2@200 "
    "-o my_box.json",
    "own-scenario": "scenario init --hardware my_box.json --llm config.json --prefill tp=4 --decode tp=4 "
    "--trace trace.jsonl --percentiles 50,90 --cache-blocks 200 -o my_turn.json",
    "own-plan": "plan my_turn.json",
}


@cache
def own_machine() -> dict[str, str]:
    """What the commands from files to a plan print, one after the other in one folder."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for file in OWN_FILES.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        return {key: run(*words.split(), folder=folder) for key, words in OWN_MACHINE.items()}


def own(name: str) -> Callable[[], str]:
    """One of these commands with what it prints; of a box and a plan, what comes first and what is assumed."""

    def quoted() -> str:
        text = own_machine()[name]
        if name == "own-box":
            text = text[: text.index("\nTo know\n")]
        if name == "own-plan":
            first, assumed = text.partition("\nPorts\n")[0], text.index("\nAssumed inputs that matter\n")
            text = f"{first}\n...\n{text[assumed:].partition(chr(10) * 2)[0]}\n...\n"
        return f"```text\n$ pdmodel {OWN_MACHINE[name]}\n{text.rstrip()}\n```\n"

    return quoted


def far_nics() -> str:
    """Verdict, times and the list to set of a scenario whose plan uses other NICs than the engine does."""
    text, shown = run("plan", "far_nics"), []
    for start, stop in (("Verdict\n", "  Bound:"), ("Times\n", "  no_kv"), ("What to set: knobs\n", "\n\n")):
        part = text[text.index(start) :]
        shown.append(part[: part.index(stop)].rstrip())
    return "```text\n$ pdmodel plan far_nics\n...\n" + "\n...\n".join(shown) + "\n```\n"


KV_TIERS = {
    "kv-tier-agentic": "cost kv-tier --llm qwen3-235b-a22b-fp8 --hardware rtx_pro_6000_wrx90_two_roots "
    "--prefill tp=8,ep=8 --cached 62k --new 2k",
    "kv-tier-recompute": "cost kv-tier --llm qwen3-8b --hardware rtx_pro_6000_server --prefill tp=1 --cached 32k "
    "--new 1k --store mooncake_store_tcp --tier store",
}


def kv_tiers(name: str) -> Callable[[], str]:
    """One of these commands with what it prints."""
    return lambda: f"```text\n$ pdmodel {KV_TIERS[name]}\n{run(*KV_TIERS[name].split()).rstrip()}\n```\n"


def store_backends() -> str:
    """The shipped storage backends: what limits them, calls, objects, leases, and which of it is assumed."""
    lines = [
        "| backend | reads, writes [GB/s] | query, put calls [us] | object got, put [us] | pages of a call "
        "| objects of a page | lease [s] | assumed |",
        "|---" * 8 + "|",
    ]
    for store in map(load_store, list_stores()):
        rates = [str(each.value) if each else "ports" for each in (store.read_gb_per_s, store.write_gb_per_s)]
        cells = [
            store.name,
            ", ".join(rates),
            f"{store.query_rpc_us.value:g}, {store.put_rpc_us.value:g}",
            f"{store.object_get_us.value:g}, {store.object_put_us.value:g}",
            f"{store.batch_pages.value}",
            f"{store.page_objects.value}",
            f"{store.lease_s.value:g}" if store.lease_s else "–",
            ", ".join(f"`{name}`" for name in store.assumed) or "–",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def engine_list() -> str:
    """The shipped engines, one a line."""
    text = run("engine", "list")
    return f"```text\n$ pdmodel engine list\n{text[: text.index('  - ')].rstrip()}\n```\n"


def engine_compare() -> str:
    """The flagship scenario under every shipped engine."""
    return f"```text\n$ pdmodel engine compare {FLAGSHIP}\n{run('engine', 'compare', FLAGSHIP).rstrip()}\n```\n"


def engine_mismatch() -> str:
    """Four prefill ranks and eight decode ranks under engines that lay pages out differently."""
    engines = "sglang_mooncake,vllm_mooncake,vllm_nixl,tensorrt_llm"
    scenario = json.loads((ROOT / "scenarios" / "rtx_pro_6000_qwen3_32b_tp4.json").read_text(encoding="utf-8"))
    scenario["name"], scenario["decode"]["tp_size"] = "tp4_to_tp8", 8
    with TemporaryDirectory() as name:
        (Path(name) / "tp4_to_tp8.json").write_text(json.dumps(scenario), encoding="utf-8")
        words = ("engine", "compare", "tp4_to_tp8.json", "--engines", engines)
        text = run(*words, folder=Path(name))
    return f"```text\n$ pdmodel {' '.join(words)}\n{text.rstrip()}\n```\n"


QUOTES: dict[str, Callable[[], str]] = {
    "engine-mismatch": engine_mismatch,
    "engine-list": engine_list,
    "engine-compare": engine_compare,
    **{name: kv_tiers(name) for name in KV_TIERS},
    "far-nics": far_nics,
    "store-backends": store_backends,
    "calibration-report": calibration_report,
    "calibration-plans": calibration_plans,
    "first-screen": first_screen,
    "scenarios": scenarios,
    "published-tables": published_tables,
    "collective-errors": collective_errors,
    "compute-constants": compute_constants,
    **{name: own(name) for name in OWN_MACHINE},
}


def refreshed(page: str) -> str:
    """The page with every quoted block as it is now."""
    return BLOCK.sub(lambda found: found[1] + QUOTES[found["name"]]() + found[4], page)


if __name__ == "__main__":
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
