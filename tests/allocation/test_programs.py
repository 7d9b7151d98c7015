import json
from pathlib import Path

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case, residual_cost

import pdmodel
from pdmodel.allocation.data import AllocationData

ORACLE = Path(__file__).parents[2].parent / "shared" / "data" / "oracles" / "allocation_cases.json"


def close(value, expected):
    return value == pytest.approx(expected, rel=1e-6, abs=1e-9)


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
    assert close(pdmodel.solve_elastic(data).objective, elastic_cost(case))
    assert close(pdmodel.solve_residual(data).objective, residual_cost(case))


def test_the_random_cases_cost_something():
    costs = [elastic_cost(random_case(np.random.default_rng([7, seed]))) for seed in range(30)]
    assert sum(cost > 1e-3 for cost in costs) > 15
