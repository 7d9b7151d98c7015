"""Start-up and plan times of the command line, as ratios to a bare interpreter in the same run.

    python benchmarks/bench_plan.py [SCENARIO ...] [--runs 5]

Every figure is of a fresh process: wall time and processor time (the least of the runs: other work disturbs that least)
and peak resident memory, read from the kernel when the process ends. On a busy machine trust the processor time.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HELP_TARGET_S, FAST_TARGET_S, FLAGSHIP_TARGET_S, PEAK_TARGET_MB = 0.3, 1.0, 2.5, 600.0
FLAGSHIP = "agentic_turn_pcie"
TARGETS_S = {FLAGSHIP: FLAGSHIP_TARGET_S, "agentic_tiers": 5.0, "recompute_wins": 5.0}
FAST_PATHS = {"bound", "no_shared_port", "certified", "closed_form"}


class Measured(NamedTuple):
    """Least wall and processor time [s], peak resident memory [MB], exit code and output of the last run."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    code: int
    output: str


def measure(command: Sequence[str], runs: int) -> Measured:
    """Run ``command`` ``runs`` times after one unmeasured warm-up (byte code, page cache)."""
    walls, busy, peaks, code, output = [], [], [], 0, ""
    for run in range(runs + 1):
        with tempfile.TemporaryFile() as out:
            start = time.perf_counter()
            # Standard error of a command that fails is for the reader of the benchmark.
            actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
            child = os.posix_spawnp(command[0], list(command), os.environ, file_actions=actions)
            _, status, usage = os.wait4(child, 0)
            wall = time.perf_counter() - start
            out.seek(0)
            code, output = os.waitstatus_to_exitcode(status), out.read().decode()
        if run:
            walls.append(wall)
            busy.append(usage.ru_utime + usage.ru_stime)
            peaks.append(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)
    return Measured(min(walls), min(busy), max(peaks), code, output)


def row(name: str, measured: Measured, bare: Measured, target_s: float | None = None, note: str = "") -> str:
    """One line of the table."""
    target = "" if target_s is None else f"{target_s:.1f}"
    over = " OVER" if target_s is not None and measured.wall_s > target_s else ""
    over += " OVER MEMORY" if measured.peak_mb > PEAK_TARGET_MB else ""
    times = f"{measured.wall_s:8.3f} {measured.cpu_s:8.3f} {measured.wall_s / bare.wall_s:8.1f}"
    return f"{name:34} {times} {measured.peak_mb:8.0f} {target:>7}  {note}{over}".rstrip()


def plan_row(scenario: str, pdmodel: str, bare: Measured, runs: int) -> str:
    """Plan one scenario and say by which path it was answered."""
    measured = measure([pdmodel, "plan", scenario, "--format", "json"], runs)
    name = Path(scenario).stem
    if measured.code:
        return row(name, measured, bare, note=f"exit code {measured.code}")
    plan = json.loads(measured.output)
    path = plan["solver"]["path"]
    fast = path in FAST_PATHS and not plan["reuse"]  # several splits of a prefix are several plans
    target = FAST_TARGET_S if fast else TARGETS_S.get(name)
    return row(name, measured, bare, target, f"{plan['verdict']['kind']}, {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="names or paths (default: all shipped)")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each command")
    arguments = parser.parse_args()
    shipped = sorted(str(path) for path in (Path(__file__).parent.parent / "scenarios").glob("*.json"))
    pdmodel = str(Path(sys.executable).with_name("pdmodel"))

    bare = measure([sys.executable, "-c", "pass"], arguments.runs)
    print(f"{'':34} {'wall s':>8} {'cpu s':>8} {'x bare':>8} {'peak MB':>8} {'target':>7}")
    print(row("python -c pass", bare, bare))
    for library in ("numpy", "pydantic", "typer", "cvxpy"):
        print(row(f"import {library}", measure([sys.executable, "-c", f"import {library}"], arguments.runs), bare))
    print(row("import pdmodel", measure([sys.executable, "-c", "import pdmodel"], arguments.runs), bare))
    shown = measure([pdmodel, "--help"], arguments.runs)
    print(row("pdmodel --help", shown, bare, HELP_TARGET_S, f"exit code {shown.code}" if shown.code else ""))
    for scenario in arguments.scenarios or shipped:
        print(plan_row(scenario, pdmodel, bare, arguments.runs), flush=True)


if __name__ == "__main__":
    main()
