"""Errors of the collectives on what was not fitted, beside three baselines on the same points.

``python benchmarks/heldout_collectives.py [--write]`` prints the tables that docs/collectives.md quotes, or writes them
there; the public tables lie beside the repository (see `collective_boxes`). Baselines: NCCL's own tuner, one
alpha-beta line, straight interpolation of the fitted points on logarithmic axes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import heldout_exchanges as exchanges
import numpy as np
from collective_boxes import AICONFIGURATOR, DATA, NCCL_TESTS, Table, aiconfigurator, nccl_tests
from heldout_exchanges import markdown, percent

from pdmodel.costs.calibration import FloatArray, robust_line
from pdmodel.costs.collectives.graphs import switched
from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.scaling import between, carry_over
from pdmodel.costs.collectives.selector import select
from pdmodel.costs.collectives.wire import wire_per_byte
from pdmodel.costs.switching import fit_switched
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import CollectiveConstants
from pdmodel.hardware.constants import CollectiveOperation as O
from pdmodel.hardware.topology import Box

# Boxes whose tree a shipped profile describes; the capacity of its root complexes is the rate of the all-reduce alone.
PROFILES = {"rtx_pro_6000_server__nccl-2.29.2": "rtx_pro_6000_server"}
PAGE = Path(__file__).resolve().parents[1] / "docs" / "collectives.md"
LARGE = 4 << 20
SMALL = 256 << 10


@dataclass(frozen=True)
class Errors:
    """Mean relative errors on the held-out points, and what each baseline has there."""

    table: Table
    ours: FloatArray
    lines: FloatArray
    tuner: FloatArray | None
    alpha_beta: FloatArray
    log_log: FloatArray
    sizes: FloatArray

    def row(self) -> list[str]:
        large = self.sizes > LARGE
        return [
            self.table.name.partition("__")[0],
            f"{self.table.operation.value}, {self.table.ranks}",
            percent(self.ours),
            percent(self.ours[large]),
            percent(self.lines),
            "–" if self.tuner is None else percent(self.tuner),
            percent(self.alpha_beta),
            percent(self.log_log),
        ]


HEAD = ["table", "operation, ranks", "pdmodel", "above 4 MiB", "lines alone", "NCCL's tuner", "alpha-beta", "log-log"]


def relative(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    return np.abs(predicted / measured - 1)


def fitted(table: Table, sizes: FloatArray, times: FloatArray, *, carry: bool) -> CollectiveConstants:
    return fit_switched(sizes, times, table.operation, table.ranks, table.situation, source="table", carry_table=carry)


def held_out(table: Table) -> Errors:
    """Constants from every second size, the first included; the others predicted."""
    (sizes, times, _), (left, _, wanted) = table.part(0), table.part(1)
    constants = fitted(table, sizes, times, carry=True)
    line = robust_line(sizes, times)
    known = table.situation
    return Errors(
        table,
        relative(predict(constants.branches, left, constants.table)[0], wanted),
        relative(predict(constants.branches, left)[0], wanted),
        None if known is None else relative(select(table.operation, left, known).estimate_s, wanted),
        relative(line[0] + left / line[1], wanted),
        relative(np.exp(np.interp(np.log(left), np.log(sizes), np.log(times))), wanted),
        left,
    )


def nccl_tests_errors() -> list[Errors]:
    return [held_out(table) for table in map(nccl_tests, NCCL_TESTS) if table.sizes.size >= 12]


def aiconfigurator_errors() -> list[Errors]:
    return [held_out(table) for name in AICONFIGURATOR for table in aiconfigurator(name).values()]


def limit(table: Table) -> float:
    """What the target allows: 5 %, or 1.5 times the disagreement of the two places."""
    return max(0.05, 1.5 * (table.disagreement or 0.0))


def nccl_tests_text() -> str:
    found = nccl_tests_errors()
    kept = sum(one.ours.mean() <= limit(one.table) for one in found)
    large = [one.ours[one.sizes > LARGE].mean() for one in found if (one.sizes > LARGE).any()]
    best = sum(one.ours.mean() <= one.log_log.mean() for one in found)
    text = markdown(
        [*HEAD, "allowed", "kept"],
        [
            [*one.row(), f"{limit(one.table):.1%}", "yes" if one.ours.mean() <= limit(one.table) else "no"]
            for one in found
        ],
    )
    return text + (
        f"\n{kept} of {len(found)} tables within what is allowed; above 4 MiB at most 3 % on "
        f"{sum(value <= 0.03 for value in large)} of {len(large)}; no worse than log-log on {best}.\n"
    )


def aiconfigurator_text() -> str:
    found = aiconfigurator_errors()
    within = sum(one.ours.mean() <= 1.3 * one.log_log.mean() for one in found)
    better = sum(one.ours.mean() < one.log_log.mean() for one in found)
    text = markdown(HEAD, [one.row() for one in found])
    means = []
    for operation in dict.fromkeys(one.table.operation for one in found):
        own = [one for one in found if one.table.operation is operation]
        erratic = [one for one in own if not (one.table.name.startswith("l40s") and one.table.ranks == 8)]
        columns = [
            f"{np.mean([getattr(one, name).mean() for one in own]):.1%}"
            for name in ("ours", "tuner", "alpha_beta", "log_log")
        ]
        means.append([operation.value, *columns, f"{np.mean([one.ours.mean() for one in erratic]):.1%}"])
    text += f"\n{within} of {len(found)} tables at most 1.3 times log-log, {better} better than it.\n\n"
    text += markdown(
        ["mean of tables", "pdmodel", "NCCL's tuner", "alpha-beta", "log-log", "without L40S n = 8"], means
    )
    worst = sorted(
        ((float(e), one, int(s)) for one in found for e, s in zip(one.ours, one.sizes, strict=True)),
        key=lambda item: -item[0],
    )[:8]
    names = [
        f"{one.table.name.partition('__')[0]} {one.table.operation.value} n = {one.table.ranks} at {size:,} B: {e:.0%}"
        for e, one, size in worst
    ]
    return text + "\nWorst points: " + "; ".join(names) + ".\n"


# ---- carried over --------------------------------------------------------------------------------------------------
def carried_text() -> str:
    """All-reduce alone calibrated; the other operations of the same box and number of ranks predicted."""
    rows: list[list[str]] = []
    for name in AICONFIGURATOR:
        tables = aiconfigurator(name)
        for ranks in (2, 4, 8):
            known = tables[O.ALL_REDUCE, ranks]
            cells = [carried(known, tables[op, ranks]) for op in (O.ALL_GATHER, O.REDUCE_SCATTER, O.ALL_TO_ALL)]
            rows.append([name.partition("__")[0], str(ranks), *cells, "–"])
    base = nccl_tests("rtx2080tix2_pcie3_shm_all_reduce")
    cells = [
        carried(base, nccl_tests(f"rtx2080tix2_pcie3_shm_{what}"), staged=True) if what else "–"
        for what in ("all_gather", "", "alltoall", "broadcast")
    ]
    rows.append(["rtx2080tix2_pcie3_shm", "2", *cells])
    return markdown(["box", "ranks", "all_gather", "reduce_scatter", "all_to_all", "broadcast"], rows)


def carried(known: Table, wanted: Table, *, staged: bool = False) -> str:
    """Lines of the all-reduce brought over; where the box's tree is known its ports set a lower limit to the time."""
    assert known.situation is not None
    constants = fitted(known, known.sizes, known.fitted, carry=False)
    staged = staged or known.name.startswith("l40s")
    lines = carry_over(constants, wanted.operation, wanted.ranks, nvlink=known.situation.nvlink, staged=staged)
    lines = switched(lines, wanted.operation, known.situation)
    times = predict(lines, wanted.sizes)[0]
    profile = PROFILES.get(known.name)
    if profile is not None:
        box = Box(load_profile(profile), "P")
        algorithm = lines[-1].algorithm
        slowest = wire_per_byte(box, tuple(range(wanted.ranks)), wanted.operation, algorithm).slowest(box)[1]
        times = np.maximum(times, slowest * wanted.sizes)
    return percent(relative(times, wanted.wanted))


def between_text() -> str:
    """Two and eight ranks calibrated, four predicted."""
    rows = []
    for name in AICONFIGURATOR:
        tables = aiconfigurator(name)
        cells = []
        for operation in (O.ALL_REDUCE, O.ALL_GATHER, O.REDUCE_SCATTER, O.ALL_TO_ALL):
            low, high, wanted = (tables[operation, n] for n in (2, 8, 4))
            ends = [fitted(table, table.sizes, table.fitted, carry=False) for table in (low, high)]
            lines = between(ends[0], ends[1], 4)
            assert wanted.situation is not None
            if lines is None:
                lines = carry_over(ends[1], operation, 4, nvlink=wanted.situation.nvlink)
            lines = switched(lines, operation, wanted.situation)
            cells.append(percent(relative(predict(lines, wanted.sizes)[0], wanted.wanted)))
        rows.append([name.partition("__")[0], *cells])
    return markdown(["box", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"], rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "nccl-tests": nccl_tests_text,
    "aiconfigurator": aiconfigurator_text,
    "carried": carried_text,
    "between": between_text,
    "uncalibrated": exchanges.uncalibrated_text,
    "switches": exchanges.switches_text,
    "constants": exchanges.constants_text,
    "nodes": exchanges.nodes_text,
    "deepep": exchanges.deepep_text,
    "calls": exchanges.calls_text,
    "fused": exchanges.fused_text,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/collectives.md")
    wanted = parser.parse_args()
    if not DATA.is_dir():
        raise SystemExit(f"the public tables are not at {DATA}")
    texts = {name: make() for name, make in SECTIONS.items()}
    if not wanted.write:
        for name, text in texts.items():
            print(f"## {name}\n\n{text}")
        return
    page = PAGE.read_text(encoding="utf-8")
    for name, text in texts.items():
        start, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(start)
        page = before + start + text + end + rest.partition(end)[2]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
