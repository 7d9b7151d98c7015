"""Solve times of the two programs on synthetic one-lane records.

    python benchmarks/bench_allocation.py      ratios, in one run
    pytest benchmarks/bench_allocation.py      statistics of pytest-benchmark

Targets: time grows at most with the 1.5th power of the number of intervals (500 to 4,500); from 1,000 intervals on,
cvxpy takes at most 1.3 times what HiGHS takes on the same matrices, and 50 ms; 94 layers x 8 chunks with 4 classes of
ranks take at most 5 s. Times are of the processor, which other work disturbs less than the wall; the least of the runs
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from allocation_cases import record

from pdmodel.allocation import program_e, program_r
from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.elastic import elastic_form
from pdmodel.allocation.network import network
from pdmodel.allocation.residual import first_quantum, residual_form
from pdmodel.allocation.scaling import scale_of
from pdmodel.allocation.solution import Solution
from pdmodel.allocation.solver import VERTEX_LIMIT, assemble, highs_options, solve_terms
from pdmodel.allocation.terms import Term, open_entries

LAYERS = 125  # 4 phases a layer and chunk: 500 intervals a chunk
SIZES = (1, 2, 4, 9)
LARGEST = {"layers": 94, "chunks": 8, "classes": 4}
PRESSURES = (1.0, 4.0)
GROWTH_TARGET, RAW_TARGET, OVERHEAD_S, LARGEST_TARGET_S = 1.5, 1.3, 0.05, 5.0
PROGRAMS: dict[str, Callable[[AllocationData], Solution]] = {
    "E": program_e.solve_elastic,
    "R": program_r.solve_residual,
}


def cpu_s(work: Callable[[], object], runs: int = 2) -> float:
    """The least processor time of some runs [s]."""
    times = []
    for _ in range(runs):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def terms_of(name: str, data: AllocationData) -> Callable[[], list[Term]]:
    """Builds the terms of a program anew: forms, variables, matrices."""

    def build() -> list[Term]:
        net = network(data, collapse(data, first_quantum(data)))
        if name == "E":
            form = elastic_form(data, net).scaled(scale_of(data))
            entries = open_entries(form.lower, form.upper, form.step, net.route_flow)
            _, moved, ports, others = program_e.build(net, form, entries)
            return [moved, ports, *others]
        slow = residual_form(data, net, first_quantum(data)).scaled(scale_of(data))
        entries = open_entries(slow.lower, slow.upper, slow.step, net.route_flow)
        _, moved_r, ports_r, others_r = program_r.build(net, slow, entries)
        return [moved_r, ports_r, *others_r]

    return build


def raw_highs(terms: list[Term]) -> Callable[[], float]:
    """The same program as matrices, handed to HiGHS without cvxpy."""
    import cvxpy as cp
    import highspy

    problem, _ = assemble(terms)
    given = problem.get_problem_data(cp.HIGHS)[0]
    matrix, bound, equal = given["A"].tocsc(), given["b"], given["dims"].zero

    def run() -> float:
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = matrix.shape
        lp.col_cost_ = given["c"]
        lp.col_lower_, lp.col_upper_ = given["lower_bounds"], given["upper_bounds"]
        lp.row_lower_ = np.concatenate([bound[:equal], np.full(len(bound) - equal, -np.inf)])
        lp.row_upper_ = bound
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        for option, value in highs_options(matrix.shape[1]).items():
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        return float(solver.getInfo().objective_function_value)

    return run


def show_growth() -> None:
    for name, solve in PROGRAMS.items():
        for pressure in PRESSURES:
            sizes, times = [], []
            for chunks in SIZES:
                data = record(LAYERS, chunks, pressure=pressure)
                sizes.append(len(data.interval_s))
                times.append(cpu_s(lambda data=data, solve=solve: solve(data)))
            power = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
            listed = ", ".join(f"{n}: {t:.2f} s" for n, t in zip(sizes, times, strict=True))
            mark = "" if power <= GROWTH_TARGET else f"  ABOVE {GROWTH_TARGET}"
            print(f"program {name}, pressure {pressure:g}: time ~ n^{power:.2f} ({listed}){mark}", flush=True)


def show_ratio() -> None:
    for name, solve in PROGRAMS.items():
        for chunks in SIZES[1:]:
            data = record(LAYERS, chunks)
            build, size = terms_of(name, data), min(solve(data).variables, VERTEX_LIMIT)
            through_cvxpy = cpu_s(lambda build=build, name=name, size=size: solve_terms(build(), name, size))
            alone = cpu_s(raw_highs(build()))
            ratio = through_cvxpy / alone
            mark = "" if through_cvxpy <= RAW_TARGET * alone + OVERHEAD_S else f"  ABOVE {RAW_TARGET}"
            print(
                f"program {name}, {len(data.interval_s)} intervals: {through_cvxpy:.2f} s = {ratio:.2f} x HiGHS{mark}"
            )


def show_largest() -> None:
    for pressure in (*PRESSURES, 20.0):
        data = record(**LARGEST, pressure=pressure)
        began = time.perf_counter()
        solution = program_e.solve_elastic(data)
        wall = time.perf_counter() - began
        mark = "" if wall <= LARGEST_TARGET_S else f"  ABOVE {LARGEST_TARGET_S:g}"
        print(f"94 layers x 8 chunks, pressure {pressure:g}: {wall:.2f} s wall, {solution.variables} variables{mark}")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("chunks", SIZES[:3])
def test_solve(benchmark, name, chunks):
    data = record(LAYERS, chunks)
    assert benchmark.pedantic(PROGRAMS[name], (data,), rounds=3).objective > 0


def test_largest(benchmark):
    data = record(**LARGEST, pressure=PRESSURES[-1])
    assert benchmark.pedantic(program_e.solve_elastic, (data,), rounds=2).objective > 0


if __name__ == "__main__":
    program_e.solve_elastic(record(4, 1))  # imports
    show_growth()
    show_ratio()
    show_largest()
