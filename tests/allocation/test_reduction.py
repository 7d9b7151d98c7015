import dataclasses

import numpy as np
import pytest
from plain_programs import elastic_cost, layered_case, residual_cost

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import PlanPolicy


@pytest.mark.parametrize("seed", range(25))
def test_merged_phases_have_the_same_optimum(seed):
    case = layered_case(np.random.default_rng([71, seed]))
    data = AllocationData.from_dict(case)
    solution = solve_elastic(data)
    assert solution.objective == pytest.approx(elastic_cost(case), rel=1e-6, abs=1e-9)
    assert simulate(data, PlanPolicy(solution.schedule)).cost == pytest.approx(solution.objective, rel=1e-6, abs=1e-9)
    assert solve_residual(data).objective == pytest.approx(residual_cost(case), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(15))
def test_merged_phases_of_several_lanes_have_the_same_optimum(seed):
    case = layered_case(np.random.default_rng([72, seed]), lanes=2)
    assert solve_residual(AllocationData.from_dict(case)).objective == pytest.approx(
        residual_cost(case), rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize("seed", range(25))
def test_phases_that_another_lane_cuts_are_delayed_by_themselves(seed):
    """Sends so dear that collectives are overdrawn before anything is late; each crosses one port."""
    rng = np.random.default_rng([73, seed])
    case = layered_case(rng, lanes=2)
    for flow in case["flows"]:
        end, port = len(case["lanes"][flow["lane"]]["phases"]), rng.choice(["a", "b"])
        release = [[k, 2 * size] for k, size in flow["release"]]
        total = sum(size for _, size in release)
        flow |= {"kind": "send", "routes": [{port: 1.0}], "quantum": 0.05 * flow["quantum"]}
        flow |= {"release": release, "due": [[end, total]]}
    data = AllocationData.from_dict(case)
    assert solve_residual(data).objective == pytest.approx(residual_cost(case), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(15))
def test_phases_of_different_price_stay_apart(seed):
    rng = np.random.default_rng([74, seed])
    case = layered_case(rng)
    prices = np.where(np.arange(len(case["phases"])) < 6, 6.0, 1.0)
    for phase, price in zip(case["phases"], prices, strict=True):
        phase["price"] = float(price)
    for flow in case["flows"]:
        total = sum(size for _, size in flow["release"])
        flow |= {"kind": "send", "release": [[0, 2 * total]], "due": [[len(prices), 2 * total]]}
        flow |= {"quantum": 0.05 * flow["quantum"]}
    data = dataclasses.replace(AllocationData.from_dict(case), phase_price_per_s=(prices,))
    assert solve_residual(data).objective == pytest.approx(residual_cost(case), rel=1e-6, abs=1e-9)
    assert solve_elastic(data).objective == pytest.approx(elastic_cost(case), rel=1e-6, abs=1e-9)


def layers(count):
    """Sends released at the start and the end of ``count`` equal layers that fill the port to four fifths."""
    phases = [{"duration": 0.5, "bytes": {}}, {"duration": 0.25, "bytes": {"e": 2.0}}] * count
    flow = {"name": "f", "kind": "send", "routes": [{"e": 1}], "price": 1.0, "quantum": 1.0}
    flow |= {"release": [[0, 7.2 * count], [2 * count, 1.0]], "due": [[2 * count, 7.2 * count + 1.0]]}
    return {"ports": {"e": {"capacity": 10.0}}, "phases": phases, "lane_price": 5.0, "flows": [flow]}


def test_the_size_of_a_program_does_not_grow_with_equal_layers():
    few, many = (AllocationData.from_dict(layers(count)) for count in (3, 60))
    assert solve_elastic(many).variables == solve_elastic(few).variables < 10
    assert solve_residual(many).variables == solve_residual(few).variables < 60


def test_bytes_of_merged_phases_leave_as_early_as_they_can():
    solution = solve_elastic(AllocationData.from_dict(layers(3)))
    assert solution.objective == pytest.approx((1.0 + 3 * (7.2 - 5.5)) / 10)  # 5.5 bytes fit into a layer
    rates = [(piece.slot, float(piece.rates[0])) for piece in solution.schedule.pieces]
    for slot, rate in rates:
        assert rate == pytest.approx(10.0 if slot == 12 or slot % 4 == 1 else 2.0)  # tail and compute: all of the port
    slack = AllocationData.from_dict(layers(3) | {"ports": {"e": {"capacity": 40.0}}})
    used = [piece.slot for piece in solve_elastic(slack).schedule.pieces]
    assert used == [1, 3, 12]  # 20 + 1.6 bytes in the first compute phase and collective; the last byte in the tail
