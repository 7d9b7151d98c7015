import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case, random_decode, random_lanes, residual_cost

import pdmodel
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import next_quantum, quantum_rounds, solve_residual
from pdmodel.allocation.residual import first_quantum, tail_intervals
from pdmodel.errors import InputError, SolverError
from pdmodel.timeline.phases import DecodeLane

ORACLE = Path(__file__).parents[2].parent / "shared" / "data" / "oracles" / "allocation_cases.json"


def close(value, expected):
    return value == pytest.approx(expected, rel=1e-6, abs=1e-9)


def with_decode(data, decode):
    lanes = tuple(DecodeLane(f"decode{k}", 0.02, rates, rates) for k, (_, rates) in enumerate(decode))
    return dataclasses.replace(data, decode_lanes=lanes, decode_price_per_s=np.array([price for price, _ in decode]))


@pytest.fixture(scope="module")
def oracle_cases():
    if not ORACLE.exists():
        pytest.skip(f"reference cases are not beside the repository: {ORACLE.name}")
    return json.loads(ORACLE.read_text())


@pytest.mark.parametrize("place", range(60))
def test_reference_cases(oracle_cases, place):
    case = oracle_cases[place]
    data = AllocationData.from_dict(case)
    assert close(pdmodel.solve_elastic(data).objective, case["optimum_e"])
    assert close(pdmodel.solve_residual(data).objective, case["optimum_r"])


@pytest.mark.parametrize("seed", range(30))
def test_random_cases_agree_with_plain_matrices(seed):
    case = random_case(np.random.default_rng([7, seed]))
    data = AllocationData.from_dict(case)
    assert close(solve_elastic(data).objective, elastic_cost(case))
    assert close(solve_residual(data).objective, residual_cost(case))


def test_the_random_cases_cost_something():
    costs = [elastic_cost(random_case(np.random.default_rng([7, seed]))) for seed in range(30)]
    assert sum(cost > 1e-3 for cost in costs) > 15


@pytest.mark.parametrize("seed", range(20))
def test_decode_lanes_agree_with_plain_matrices(seed):
    rng = np.random.default_rng([8, seed])
    case = random_case(rng)
    decode = random_decode(rng, case["ports"])
    data = with_decode(AllocationData.from_dict(case), decode)
    assert close(solve_elastic(data).objective, elastic_cost(case, decode))
    assert close(solve_residual(data).objective, residual_cost(case, decode))


@pytest.mark.parametrize("seed", range(20))
def test_several_lanes_and_late_groups_agree_with_plain_matrices(seed):
    rng = np.random.default_rng([9, seed])
    case = random_lanes(rng, lanes=int(rng.integers(2, 4)))
    groups = rng.integers(0, 2, len(case["flows"])).tolist()
    quantum = rng.uniform(0.1, 2.0, len(groups)) * [flow["quantum"] for flow in case["flows"]]
    data = dataclasses.replace(AllocationData.from_dict(case), late_group=tuple(f"g{g}" for g in groups))
    assert close(solve_residual(data, quantum).objective, residual_cost(case, groups=groups, quantum=quantum))


@pytest.mark.parametrize("seed", range(10))
def test_prices_that_fall_along_the_lane(seed):
    rng = np.random.default_rng([10, seed])
    case = random_case(rng)
    prices = np.sort(rng.uniform(1.0, 6.0, len(case["phases"])))[::-1]
    for phase, price in zip(case["phases"], prices, strict=True):
        phase["price"] = float(price)
    data = dataclasses.replace(AllocationData.from_dict(case), phase_price_per_s=(prices,))
    assert close(solve_elastic(data).objective, elastic_cost(case))
    assert close(solve_residual(data).objective, residual_cost(case))


def one_collective(price=1.0, send=3.0):
    """One port of 10 byte/s, full for 1 s; 3 bytes released at its start, due at its end."""
    flow = {
        "name": "f",
        "kind": "send",
        "routes": [{"e": 1}],
        "release": [[0, send]],
        "due": [[1, send]],
        "price": price,
    }
    phases = [{"duration": 1.0, "bytes": {"e": 10.0}}]
    return {"ports": {"e": {"capacity": 10.0, "guard": 0.0}}, "phases": phases, "lane_price": 2.0, "flows": [flow]}


def test_by_hand():
    data = AllocationData.from_dict(one_collective())
    solution = solve_elastic(data)
    assert solution.objective == pytest.approx(0.3)  # 3 bytes in the tail at 10 byte/s, 1 a second
    assert (solution.elastic.tail_s, solution.elastic.prefill_slowdown_s) == pytest.approx((0.3, 0.0))
    assert solution.shadow_price == pytest.approx([0.3 / 10 + 1.0 / 10])  # a wider tail, and room beside the collective
    dear = solve_elastic(AllocationData.from_dict(one_collective(price=5.0)))
    assert dear.objective == pytest.approx(0.6)  # dearer than the lane: stretch the collective instead
    assert (dear.elastic.tail_s, dear.elastic.prefill_slowdown_s) == pytest.approx((0.0, 0.3))


def test_shadow_prices_are_savings_per_capacity():
    checked = 0
    for seed in range(16):
        case = random_case(np.random.default_rng([12, seed]), ports=(2, 4))
        for solve in (solve_elastic, solve_residual):
            at = solve(AllocationData.from_dict(case))
            for e, port in enumerate(case["ports"].values()):
                if at.objective == 0:
                    continue  # nothing to save
                kept, step = port["capacity"], 1e-4 * port["capacity"]
                costs = []
                for sign in (-1, 1):
                    port["capacity"] = kept + sign * step
                    costs.append(solve(AllocationData.from_dict(case)).objective)
                port["capacity"] = kept
                less, more = (costs[0] - at.objective) / step, (at.objective - costs[1]) / step
                if abs(less - more) < 1e-3 * abs(less) and less > 1e-9:  # no kink within the step
                    assert at.shadow_price[e] == pytest.approx(less, rel=2e-3)
                    checked += 1
    assert checked > 15


def test_rounds_shrink_the_quantum_to_what_is_late():
    case = one_collective(send=30.0)
    case["phases"].append({"duration": 1.2, "bytes": {}})
    case["flows"][0] |= {"due": [[2, 30.0]], "quantum": None}
    data = AllocationData.from_dict(case)
    rounds = list(quantum_rounds(data))
    assert rounds[0].quantum_bytes == [15.0]
    assert first_quantum(data) == [15.0]
    assert rounds[0].late_bytes == pytest.approx([18.0])  # 12 leave beside the compute
    assert rounds[1].quantum_bytes == pytest.approx([9.0])
    assert len(rounds) == 2  # the same bytes are late: nothing to try again
    assert rounds[1].objective == pytest.approx(1.8, rel=0.1)  # area / (U/2) is the time of the last byte at full rate
    assert rounds[1].objective != pytest.approx(rounds[0].objective, rel=0.1)
    on_time = solve_residual(
        AllocationData.from_dict(one_collective(send=1e-6) | {"phases": [{"duration": 1.0, "bytes": {}}]})
    )
    assert next_quantum(data, on_time) is None


def test_the_tail_holds_everything():
    tail = tail_intervals(AllocationData.from_dict(one_collective(send=30.0)))
    assert len(tail) == 12
    assert tail.sum() == pytest.approx(1.05 * 3.0)
    assert tail[1:] / tail[:-1] == pytest.approx(np.full(11, 1.6))


def test_what_a_program_refuses(monkeypatch):
    with pytest.raises(InputError, match="one prefill lane, not 2"):
        solve_elastic(AllocationData.from_dict(random_lanes(np.random.default_rng(0))))
    case = one_collective()
    case["flows"][0] |= {"kind": "load", "release": [[0, 3.0]], "due": [[0, 3.0]]}
    data = AllocationData.from_dict(case)
    late = dataclasses.replace(data, flows=(dataclasses.replace(data.flows[0], release=((1, 3.0),)),))
    with pytest.raises(InputError, match="due before its bytes are released"):
        solve_elastic(late)
    import cvxpy

    def fail(*_, **__):
        raise cvxpy.error.SolverError("out of order")

    monkeypatch.setattr(cvxpy.Problem, "solve", fail)
    with pytest.raises(SolverError, match=r"program E has no optimum.*out of order"):
        solve_elastic(AllocationData.from_dict(one_collective()))


def test_nothing_to_send():
    data = AllocationData.from_dict(one_collective() | {"flows": []})
    for solution in (solve_elastic(data), solve_residual(data)):
        assert solution.objective == 0.0
        assert solution.schedule.pieces == ()


@pytest.fixture
def without_highs(monkeypatch):
    import cvxpy

    plain, used = cvxpy.Problem.solve, []

    def solve(self, solver, **options):
        if solver != cvxpy.CLARABEL:
            raise cvxpy.error.SolverError("not today")
        used.append(solver)
        return plain(self, solver=solver, **options)

    monkeypatch.setattr(cvxpy.Problem, "solve", solve)
    return used


def test_the_standby_solver_agrees(without_highs):
    case = random_case(np.random.default_rng([7, 5]))
    assert elastic_cost(case) > 0.1
    assert solve_elastic(AllocationData.from_dict(case)).objective == pytest.approx(elastic_cost(case), rel=1e-7)
    assert without_highs == ["CLARABEL"]


def test_large_programs_go_to_the_faster_solver(monkeypatch, without_highs):
    case = random_case(np.random.default_rng([7, 5]))
    monkeypatch.setattr("pdmodel.allocation.solver.VERTEX_LIMIT", 0)
    solution = solve_residual(AllocationData.from_dict(case))
    assert without_highs == ["CLARABEL"]
    assert solution.objective == pytest.approx(residual_cost(case), rel=1e-7)


def test_a_large_program_has_one_solve_even_if_it_misses_the_tolerance_slightly(monkeypatch):
    import cvxpy

    plain, used = cvxpy.Problem.solve, []

    def solve(self, solver, **options):
        used.append(solver)
        value = plain(self, solver=solver, **options)
        self._status = "optimal_inaccurate"
        return value

    case = one_collective(send=6.0, price=1.0)
    case["flows"][0] |= {"lease": 0.5}
    exact = solve_elastic(AllocationData.from_dict(case))
    assert exact.lease_excess_s[0] > 0.0
    monkeypatch.setattr(cvxpy.Problem, "solve", solve)
    monkeypatch.setattr("pdmodel.allocation.solver.VERTEX_LIMIT", 0)
    rough = solve_elastic(AllocationData.from_dict(case))
    assert (used, rough.status) == (["CLARABEL"], "optimal_inaccurate")
    assert rough.lease_excess_s == pytest.approx(exact.lease_excess_s, rel=1e-4)
    assert rough.objective == pytest.approx(exact.objective, rel=1e-4)
    assert rough.gap > 1e-9


def test_nothing_is_printed():
    """In a process of its own: the solver's banner comes once."""
    script = (
        "from test_programs import *\n"
        "for solve in (solve_elastic, solve_residual): solve(AllocationData.from_dict(one_collective()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
