"""What the command line adds to the planning: start-up of every command, imports, and each form of the result.

    python benchmarks/bench_cli.py [SCENARIO] [--runs 5]

Start-up is of fresh processes and compared with a bare interpreter in the same run; the forms of the result are drawn
from one plan in this process, each after one unmeasured run (imports, fonts).
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_plan import FLAGSHIP, HELP_TARGET_S, measure, row

COMMANDS = (
    ("--version",),
    ("--help",),
    ("plan", "--help"),
    ("scenario", "list"),
    ("hardware", "list"),
    ("llm", "list"),
    ("hardware", "schema"),
)


def import_times(command: tuple[str, ...], most: int = 8) -> list[tuple[float, str]]:
    """The packages that ``command`` imports, by cumulative time [s]; a package is counted where it is outermost."""
    code = f"from pdmodel.cli.main import main; main({list(command)!r})"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, float] = {}
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[1].strip().isdigit():
            name = parts[2].strip()
            if "." not in name:
                found[name] = int(parts[1]) * 1e-6
    return sorted(((seconds, name) for name, seconds in found.items()), reverse=True)[:most]


def median_s(work: Callable[[], object], runs: int) -> float:
    work()
    walls = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        walls.append(time.perf_counter() - start)
    return statistics.median(walls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="?", default=FLAGSHIP, help=f"name or path (default: {FLAGSHIP})")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each")
    arguments = parser.parse_args()
    pdmodel = str(Path(sys.executable).with_name("pdmodel"))

    bare = measure([sys.executable, "-c", "pass"], arguments.runs)
    print(f"{'fresh process':34} {'wall s':>8} {'cpu s':>8} {'x bare':>8} {'peak MB':>8} {'target':>7}")
    print(row("python -c pass", bare, bare))
    for words in COMMANDS:
        shown = measure([pdmodel, *words], arguments.runs)
        target = HELP_TARGET_S if words[-1] == "--help" else None
        print(row("pdmodel " + " ".join(words), shown, bare, target, f"exit code {shown.code}" if shown.code else ""))

    print("\nimports of pdmodel --help, cumulative [ms]:")
    for seconds, name in import_times(("--help",)):
        print(f"  {name:30} {seconds * 1e3:8.1f}")

    from pdmodel.planner import plan
    from pdmodel.report import plan_document, to_csv, to_json, to_markdown, to_text
    from pdmodel.report.plot import picture

    answer = plan(arguments.scenario)
    document = plan_document(answer)
    everything = plan_document(answer, full=True, full_schedule=True)
    print(
        f"\nforms of {answer.scenario} ({len(answer.schedule)} rows of schedule, "
        f"{len(answer.replay.segments)} segments) [ms]:"
    )
    forms: tuple[tuple[str, Callable[[], object]], ...] = (
        ("document", lambda: plan_document(answer)),
        ("text", lambda: to_text(document)),
        ("text, everything", lambda: to_text(everything)),
        ("json", lambda: to_json(document.content)),
        ("csv", lambda: to_csv(document.records)),
        ("markdown, everything", lambda: to_markdown(everything)),
        ("png", lambda: picture(answer, "png")),
        ("svg", lambda: picture(answer, "svg")),
    )
    for name, work in forms:
        print(f"  {name:30} {median_s(work, arguments.runs) * 1e3:8.1f}")


if __name__ == "__main__":
    main()
