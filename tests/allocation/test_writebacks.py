"""Write-backs: nobody waits for them, they take what is left, and they cost nothing."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_programs import elastic_cost, random_case, residual_cost, volume, with_writebacks
from test_collapse import ranks
from test_programs import close, one_collective, with_decode
from test_scaling import in_bytes
from test_schedule import moved

from pdmodel.allocation.bound import loss_bound
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import bound_prices, lower_bound, single_port
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import quantum_rounds, solve_residual
from pdmodel.allocation.residual import tail_intervals
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import PlanPolicy


def back(release, port="e", name="back", times=1.0):
    return {"name": name, "kind": "writeback", "routes": [{port: times}], "release": release}


def without(case):
    return {**case, "flows": [flow for flow in case["flows"] if flow["kind"] != "writeback"]}


@pytest.mark.parametrize("seed", range(20))
def test_random_cases_agree_with_plain_matrices(seed):
    rng = np.random.default_rng([81, seed])
    case = with_writebacks(random_case(rng), rng)
    data = AllocationData.from_dict(case)
    assert close(solve_elastic(data).objective, elastic_cost(case))
    assert close(solve_elastic(data).objective, elastic_cost(without(case)))
    assert close(solve_residual(data).objective, residual_cost(case))


@pytest.mark.parametrize("seed", range(10))
def test_beside_decode_lanes(seed):
    """A write-back that no port lets through beside a decode lane takes from it, or slows the prefill."""
    rng = np.random.default_rng([82, seed])
    case = with_writebacks(random_case(rng), rng)
    full = seed % 2
    decode = [(0.7, {name: port["capacity"] * (1.0 if full else 0.4) for name, port in case["ports"].items()})]
    for port in case["ports"].values():
        port["guard"] = 0.0 if full else port["guard"]
    data = with_decode(AllocationData.from_dict(case), decode)
    assert close(solve_elastic(data).objective, elastic_cost(case, decode))
    assert close(solve_residual(data).objective, residual_cost(case, decode))
    if full:
        assert solve_elastic(data).objective > elastic_cost(without(case), decode) + 1e-3


@settings(deadline=None, max_examples=20, derandomize=True)
@given(seed=st.integers(0, 10_000), exponent=st.sampled_from([-6, 0, 6]))
def test_they_cost_nothing_and_every_byte_has_its_place(seed, exponent):
    rng = np.random.default_rng([83, seed])
    case = in_bytes_and_backs(with_writebacks(random_case(rng), rng), 10.0**exponent)
    case.pop("tail")
    with_them, alone = AllocationData.from_dict(case), AllocationData.from_dict(without(case))
    backs = np.array([flow.kind == "writeback" for flow in with_them.flows])
    for solve in (solve_elastic, solve_residual):
        here, there = solve(with_them), solve(alone)
        assert here.objective == pytest.approx(there.objective, rel=1e-9, abs=1e-12)
        sent = sum((p.rates * p.duration_s for p in here.schedule.pieces), np.zeros(len(with_them.routes)))
        of_flow = np.bincount(with_them.route_flow, sent, minlength=len(backs))
        assert of_flow[~backs] == pytest.approx(with_them.volume_bytes[~backs], rel=1e-9)
        assert (of_flow[backs] <= with_them.volume_bytes[backs] * (1 + 1e-9)).all()
    plan, planned = (solve_elastic(data) for data in (alone, with_them))
    first, _ = moved(alone, plan.schedule)
    both, lasts = moved(with_them, planned.schedule)
    own = ~backs[with_them.route_flow]
    assert both[own] == pytest.approx(first, rel=1e-9, abs=1e-9 * alone.volume_bytes.max())  # none is displaced
    usable = np.tile(with_them.idle_usable, (len(lasts), 1))
    usable[1::2] = with_them.lane_usable[0]
    critical = np.zeros_like(usable)
    critical[1::2] = with_them.critical_bytes[0]
    load = both.T @ with_them.consumption + critical
    assert (load <= usable * lasts[:, None] * (1 + 1e-9) + 1e-9 * with_them.volume_bytes.max())[lasts > 0].all()


def in_bytes_and_backs(case, factor):
    """The case with every figure in bytes multiplied, write-backs included."""
    filled = [{**{"due": [], "quantum": 1.0}, **flow} for flow in case["flows"]]
    return in_bytes({**case, "flows": filled}, factor)


@pytest.mark.parametrize("seed", range(15))
def test_a_plan_of_e_replays_to_its_numbers(seed):
    rng = np.random.default_rng([84, seed])
    data = AllocationData.from_dict(with_writebacks(random_case(rng), rng))
    solution = solve_elastic(data)
    replay = simulate(data, PlanPolicy(solution.schedule))
    assert replay.cost == pytest.approx(solution.objective, rel=1e-6, abs=1e-9)
    assert np.isfinite(replay.flow_finish_s).all()


def test_gaps_are_used_after_the_sends():
    """1 s of compute, a full collective of 1 s, 3 bytes to send in its tail: write-backs take what is left of each."""
    case = one_collective()
    case["phases"].insert(0, {"duration": 1.0, "bytes": {}})
    case["flows"][0] |= {"release": [[0, 6.0], [2, 3.0]], "due": [[2, 9.0]]}
    case["flows"].append(back([[0, 7.0], [2, 5.0]]))
    data = AllocationData.from_dict(case)
    for solve in (solve_elastic, solve_residual):
        solution = solve(data)
        early = {p.slot: p.rates.tolist() for p in solution.schedule.pieces if p.slot < 4}
        assert early[1] == pytest.approx([6.0, 4.0])
        assert set(early) == {1}  # the collective fills the port
    solution = solve_elastic(data)
    assert solution.objective == pytest.approx(0.3)
    assert [(p.slot, p.rates.tolist()) for p in solution.schedule.pieces][-1] == (4, pytest.approx([10.0, 0.0]))
    assert solution.elastic.tail_s == pytest.approx(0.3)


def test_only_writebacks():
    case = one_collective() | {"flows": [back([[0, 3.0], [1, 40.0]])]}
    case["phases"].append({"duration": 0.5, "bytes": {}})
    data = AllocationData.from_dict(case)
    for solve in (solve_elastic, solve_residual):
        solution = solve(data)
        assert solution.objective == pytest.approx(0.0, abs=1e-12)
        assert {p.slot: p.rates.tolist() for p in solution.schedule.pieces} == {3: [pytest.approx(10.0)]}
    assert len(list(quantum_rounds(data))) == 1
    assert lower_bound(data).cost == 0.0
    assert not bound_prices(data).any()
    assert single_port(data) is None
    assert simulate(data, PlanPolicy(solve_elastic(data).schedule)).cost == pytest.approx(0.0, abs=1e-12)


def test_bounds():
    """They may slow a collective, so the loss counts them; the lower bound does not."""
    case = one_collective()
    more = AllocationData.from_dict({**case, "flows": [*case["flows"], back([[0, 5.0]])]})
    alone = AllocationData.from_dict(case)
    assert loss_bound(alone).loss_max_s == pytest.approx(0.3)
    assert loss_bound(more).loss_max_s == pytest.approx(0.8)
    assert loss_bound(more).kv_to_critical_ratio == pytest.approx(0.8)
    assert lower_bound(more) == lower_bound(alone)
    assert bound_prices(more) == pytest.approx(bound_prices(alone))
    assert tail_intervals(more).sum() == tail_intervals(alone).sum()
    given = AllocationData.from_dict({**case, "flows": [*case["flows"], back([[0, 5.0]])], "tail": [0.2, 0.6]})
    sent = sum(p.rates * p.duration_s for p in solve_residual(given).schedule.pieces)
    assert sent == pytest.approx([3.0, 5.0])  # a given tail must hold everything


def test_a_tail_that_is_given_may_be_short():
    """10 bytes fit into it; 3 to send and 8 to write back take 1 from the collective: 0.1 s at 2 a second."""
    case = one_collective(price=0.5) | {"tail": [1.0]}
    case["flows"][0] |= {"quantum": 3.0}
    case["flows"].append(back([[0, 8.0]]))
    solution = solve_residual(AllocationData.from_dict(case))
    assert close(solution.objective, residual_cost(case))
    assert solution.objective > residual_cost(without(case)) + 0.02


def test_one_lane_keeps_its_own():
    rng = np.random.default_rng(85)
    case = with_writebacks(random_case(rng), rng)
    case |= {"memory": {"host": {"capacity": 1.0, "appears": [[0, 2.0], [1, 3.0]], "moved": {"back0": 1.0}}}}
    data = AllocationData.from_dict(case).only_lane(0)
    assert [flow.name for flow in data.flows if flow.kind == "writeback"] == ["back0", "back1"]
    assert (data.memory[0].moved, len(data.memory[0].appears)) == ({"back0": 1.0}, 2)
    other = dataclasses.replace(data, lanes=(dataclasses.replace(data.lanes[0], name="other"),))
    assert other.only_lane(0).flows == ()
    assert (other.only_lane(0).memory[0].moved, other.only_lane(0).memory[0].appears) == ({}, ())


def test_ranks_write_back_alike():
    case = ranks(np.random.default_rng(86), 4)
    case["flows"] += [back([[0, 9.0]], f"gpu{k}", f"back{k}") for k in range(4)]
    data = AllocationData.from_dict(case)
    assert volume(case["flows"][-1]) == 9.0
    for solve in (solve_elastic, solve_residual):
        collapsed, whole = solve(data), solve(data, symmetric=False)
        assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)
        assert collapsed.variables < 0.5 * whole.variables
        sent = sum(p.rates * p.duration_s for p in collapsed.schedule.pieces)
        assert np.ptp(sent[-4:]) <= 1e-9 * sent.max()
