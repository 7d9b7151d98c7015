"""Memory pools as rows of both programs, and what a schedule may not overfill."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_programs import elastic_cost, random_case, random_lanes, residual_cost, volume, with_memory, with_writebacks
from test_collapse import ranks
from test_programs import close, one_collective, with_decode
from test_schedule import moved
from test_writebacks import back, in_bytes_and_backs

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import single_port
from pdmodel.allocation.limits import Excess
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.errors import InputError
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import PlanPolicy


def unlimited(case):
    return {key: part for key, part in case.items() if key != "memory"}


def limited_case(seed):
    rng = np.random.default_rng([91, seed])
    case = random_case(rng)
    if seed % 2:
        case = with_writebacks(case, rng)
    return with_memory(case, share=float(rng.choice([-0.1, 0.0, 0.05, 0.2, 0.5])))


@pytest.mark.parametrize("seed", range(30))
def test_random_cases_agree_with_plain_matrices(seed):
    case = limited_case(seed)
    data = AllocationData.from_dict(case)
    for solve, plain in ((solve_elastic, elastic_cost), (solve_residual, residual_cost)):
        solution, expected = solve(data), plain(case)
        assert close(solution.objective, expected)
        assert solution.memory_excess_bytes.sum() == pytest.approx(expected.memory, rel=1e-6, abs=1e-6)


def test_the_random_cases_bind():
    costs = {"dearer": 0, "too much": 0}
    for seed in range(30):
        case = limited_case(seed)
        with_it = elastic_cost(case)
        costs["dearer"] += with_it.memory < 1e-6 and with_it > elastic_cost(unlimited(case)) + 1e-3
        costs["too much"] += with_it.memory > 1e-3
    assert min(costs.values()) >= 4


@pytest.mark.parametrize("seed", range(8))
def test_beside_decode_lanes(seed):
    case = limited_case(seed)
    decode = [(0.5, {name: port["capacity"] * 0.5 for name, port in case["ports"].items()})]
    data = with_decode(AllocationData.from_dict(case), decode)
    assert close(solve_elastic(data).objective, elastic_cost(case, decode))
    assert close(solve_residual(data).objective, residual_cost(case, decode))


@pytest.mark.parametrize("seed", range(10))
def test_several_lanes_share_a_pool(seed):
    rng = np.random.default_rng([92, seed])
    case = random_lanes(rng)
    sends = [flow for flow in case["flows"] if flow["kind"] == "send"] or case["flows"]
    appears = [[k, size, flow["lane"]] for flow in sends for k, size in flow["release"]]
    appears += [[k, 1e-6, n] for n, lane in enumerate(case["lanes"]) for k in range(len(lane["phases"]) + 1)]
    capacity = 0.6 * sum(map(volume, sends))
    moved_by = {flow["name"]: -1.0 for flow in sends}
    case["memory"] = {"hbm": {"capacity": capacity, "appears": appears, "moved": moved_by}}
    solution, expected = solve_residual(AllocationData.from_dict(case)), residual_cost(case)
    assert close(solution.objective, expected)
    assert solution.memory_excess_bytes[0] == pytest.approx(expected.memory, rel=1e-6, abs=1e-6)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(seed=st.integers(0, 10_000), exponent=st.sampled_from([-6, 6]))
def test_the_unit_of_bytes_does_not_matter(seed, exponent):
    rng = np.random.default_rng([93, seed])
    case, factor = with_memory(random_case(rng)), 10.0**exponent
    other = in_bytes_and_backs(case, factor)
    pool = case["memory"]["hbm"]
    other["memory"] = {
        "hbm": pool
        | {key: pool[key] * factor for key in ("capacity", "base")}
        | {"appears": [[k, x * factor] for k, x in pool["appears"]]}
    }
    for solve in (solve_elastic, solve_residual):
        here, there = solve(AllocationData.from_dict(case)), solve(AllocationData.from_dict(other))
        assert there.objective == pytest.approx(here.objective, rel=1e-7, abs=1e-9)
        assert there.memory_excess_bytes / factor == pytest.approx(here.memory_excess_bytes, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_keeps_to_its_memory_and_replays(seed):
    """Slot by slot, moved bytes as the slot ends and what appears as the next one starts."""
    case = limited_case(seed)
    data = AllocationData.from_dict(case)
    solution = solve_elastic(data)
    size, _ = moved(data, solution.schedule)
    pool, count = case["memory"]["hbm"], len(case["phases"])
    sent = np.array([size[data.route_flow == f].sum(axis=0) for f in range(len(data.flows))]).cumsum(axis=1)
    appeared = np.zeros(2 * count + 1)
    for k, amount in pool["appears"]:
        appeared[2 * k :] += amount
    level = pool["base"] + np.append(appeared[1:], appeared[-1]) + data.pool_weight[0] @ sent
    assert (level <= pool["capacity"] * (1 + 1e-6) + solution.memory_excess_bytes[0] + 1e-6).all()
    replay = simulate(data, PlanPolicy(solution.schedule))
    assert replay.cost == pytest.approx(solution.objective, rel=1e-6, abs=1e-9)


def drained(capacity=6.0, **more):
    """Chunks of 4 bytes at 0, 1, 2 s of compute; 3 byte/s leave; a send is done when all is gone."""
    flow = {"name": "s", "kind": "send", "routes": [{"e": 1}], "release": [[k, 4.0] for k in range(3)], "price": 1.0}
    flow["quantum"] = 6.0
    phases = [{"duration": 1.0, "bytes": {}} for _ in range(3)]
    pool = {"capacity": capacity, "appears": flow["release"], "moved": {"s": -1.0}}
    case = {"ports": {"e": {"capacity": 3.0}}, "phases": phases, "lane_price": 5.0, "memory": {"hbm": pool}}
    return case | {"flows": [flow | {"due": [[3, 12.0]]}]} | more


def test_by_hand():
    """At 1 s 1 byte is left of 4, 5 with the next chunk; at 2 s 2 are left, 6 with the last one: it just fits."""
    free = solve_elastic(AllocationData.from_dict(unlimited(drained())))
    assert free.objective == pytest.approx(1.0)  # 3 bytes in the tail
    assert solve_elastic(AllocationData.from_dict(drained())).objective == pytest.approx(1.0)
    tight = solve_elastic(AllocationData.from_dict(drained(5.0)))
    assert tight.objective == pytest.approx(5.0 / 3 + 2.0 / 3)  # a pause of 1/3 s before the last chunk
    assert tight.elastic.prefill_slowdown_s == pytest.approx(1.0 / 3)
    assert tight.memory_excess_bytes == pytest.approx([0.0])
    little = solve_elastic(AllocationData.from_dict(drained(3.0)))
    assert little.memory_excess_bytes == pytest.approx([1.0])  # a chunk is 4 bytes
    fixed = solve_residual(AllocationData.from_dict(drained(5.0) | {"tail": [0.5, 0.5, 1.0]}))
    assert fixed.memory_excess_bytes == pytest.approx([1.0])  # the clock does not wait


@pytest.mark.parametrize("solve", [solve_elastic, solve_residual])
def test_memory_that_appears_between_releases(solve):
    """6 of "o" and 6 of "s" released at 0, 3 byte/s; at 2 s 3 more bytes appear where only "s" makes room."""
    one = {"kind": "send", "routes": [{"e": 1}], "release": [[0, 6.0]], "due": [[3, 6.0]], "quantum": 3.0}
    pool = {"capacity": 6.0, "appears": [[0, 6.0], [2, 3.0]], "moved": {"s": -1.0}}
    flows = [one | {"name": "o", "price": 2.0}, one | {"name": "s", "price": 0.5}]
    data = AllocationData.from_dict(drained() | {"flows": flows, "memory": {"hbm": pool}, "tail": [1.0, 2.0]})
    solution = solve(data)
    assert solution.memory_excess_bytes == pytest.approx([0.0], abs=1e-8)
    early = sum(p.rates[1] * p.duration_s for p in solution.schedule.pieces if p.slot <= 3)
    assert early >= 3.0 - 1e-6
    unlimited_ = dataclasses.replace(data, memory=())
    assert solution.objective == pytest.approx(solve(unlimited_).objective)


@pytest.mark.parametrize("seed", [4, 7, 11, 13, 27])
def test_the_price_of_what_is_too_much_does_not_matter(seed, monkeypatch):
    """A price below what a byte is worth is found out, and the least that is too much is looked for."""
    case = limited_case(seed)
    data = AllocationData.from_dict(case)
    dear = [solve(data) for solve in (solve_elastic, solve_residual)]
    cheap = functools.partial(Excess, price=1e-4)
    monkeypatch.setattr("pdmodel.allocation.limits.Excess", cheap)
    for solve, one in zip((solve_elastic, solve_residual), dear, strict=True):
        assert solve(data).objective == pytest.approx(one.objective, rel=1e-6, abs=1e-8)
        assert solve(data).memory_excess_bytes == pytest.approx(one.memory_excess_bytes, rel=1e-6, abs=1e-6)


def test_a_pool_that_cannot_overflow_is_no_row():
    roomy = AllocationData.from_dict(drained(12.0))
    assert len(roomy.tight_pools) == 0
    assert len(AllocationData.from_dict(drained(11.9)).tight_pools) == 1
    assert single_port(AllocationData.from_dict(drained(11.9))) is None
    assert single_port(roomy) is not None
    free = AllocationData.from_dict(unlimited(drained()))
    for solve in (solve_elastic, solve_residual):
        assert solve(roomy).variables == solve(free).variables
        assert solve(roomy).memory_excess_bytes.tolist() == [0.0]


def host(capacity, *, length=1.0):
    """A store fills host memory at 8 byte/s, host memory fills HBM at 4; both before the last of 4 phases."""
    fetch = {"name": "fetch", "kind": "load", "routes": [{"net": 1}], "release": [[0, 12.0]], "due": [[3, 12.0]]}
    load = {"name": "load", "kind": "load", "routes": [{"pcie": 1}], "release": [[0, 12.0]], "due": [[3, 12.0]]}
    pool = {"capacity": capacity, "appears": [[k, 0.0] for k in range(4)], "moved": {"fetch": 1.0, "load": -1.0}}
    flows = [flow | {"price": 1.0, "quantum": 6.0} for flow in (fetch, load)]
    case = {"ports": {"net": {"capacity": 8.0}, "pcie": {"capacity": 4.0}}, "flows": flows, "memory": {"host": pool}}
    return case | {"phases": [{"duration": length, "bytes": {}} for _ in range(4)], "lane_price": 1.0, "tail": [4.0]}


@pytest.mark.parametrize("solve", [solve_elastic, solve_residual])
@pytest.mark.parametrize(("capacity", "rates"), [(24.0, [8.0, 4.0]), (5.0, [8.0, 4.0, 0.0]), (2.0, [6.0, 4.0, 2.0])])
def test_what_fills_memory_is_not_pulled_forward_beyond_it(solve, capacity, rates):
    data = AllocationData.from_dict(host(capacity))
    solution = solve(data)
    assert solution.objective == pytest.approx(0.0, abs=1e-9)
    filled = [0.0] * 4
    for piece in solution.schedule.pieces:
        if piece.slot % 2:
            filled[piece.slot // 2] += piece.rates[0] * piece.duration_s
    assert filled[: len(rates)] == pytest.approx(rates)
    assert solution.memory_excess_bytes.max() == pytest.approx(0.0, abs=1e-9)


def test_writebacks_that_make_room_are_planned():
    """HBM is freed by the write-back alone: without it the last chunk has no place."""
    case = drained(9.0)
    case["flows"].append(back([[0, 4.0]], times=2.0))
    case["memory"]["hbm"]["moved"] = {"back": -1.0}
    for solve, plain in ((solve_elastic, elastic_cost), (solve_residual, residual_cost)):
        whole = case | {"tail": [2.0, 4.0]}
        solution = solve(AllocationData.from_dict(whole))
        assert close(solution.objective, plain(whole))
        assert solution.memory_excess_bytes == pytest.approx([0.0], abs=1e-8)
        early = sum(p.rates[1] * p.duration_s for p in solution.schedule.pieces if p.slot < 5)
        assert early >= 3.0 - 1e-9
    own_tail = solve_residual(AllocationData.from_dict(case))
    assert own_tail.memory_excess_bytes == pytest.approx([0.0], abs=1e-8)


def test_writebacks_that_fill_a_pool_for_good():
    case = one_collective() | {"memory": {"host": {"capacity": 4.0, "base": 1.0, "moved": {"back": 1.0}}}}
    case["flows"].append(back([[0, 5.0]]))
    for solve in (solve_elastic, solve_residual):
        assert solve(AllocationData.from_dict(case)).memory_excess_bytes == pytest.approx([2.0])


# ---- ranks ---------------------------------------------------------------------------------------------------------
def ranks_with_memory(seed, count=4, unlike=False):
    case = ranks(np.random.default_rng([94, seed]), count)
    case["memory"] = {}
    for k in range(count):
        send = case["flows"][2 * k]
        send |= {"release": [[i, 4 * x] for i, x in send["release"]], "due": [[i, 4 * x] for i, x in send["due"]]}
        capacity = max(x for _, x in send["release"]) * (1.02 if unlike and k == 1 else 1.05)
        grows = [*send["release"], *([i, 1e-3] for i in range(len(case["phases"]) + 1))]
        case["memory"][f"hbm{k}"] = {"capacity": capacity, "appears": grows, "moved": {send["name"]: -1.0}}
    loads = {f"load{k}": 1.0 for k in range(count)}
    case["memory"]["host"] = {"capacity": 1.0, "base": 0.5, "appears": [[0, 1.0]], "moved": loads}
    return case


@pytest.mark.parametrize("solve", [solve_elastic, solve_residual])
@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_ranks_with_memory_of_their_own(seed, unlike, solve):
    case = ranks_with_memory(seed, unlike=unlike)
    data = AllocationData.from_dict(case)
    classes = collapse(data, data.flow_quantum_bytes)
    assert len(set(classes.pool.tolist())) == (4 if unlike else 2)  # rank 1 is alone, 0 its neighbour, 2 and 3, host
    collapsed, whole = solve(data), solve(data, symmetric=False)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-7)
    assert collapsed.memory_excess_bytes == pytest.approx(whole.memory_excess_bytes, rel=1e-6, abs=1e-6)
    assert collapsed.objective == pytest.approx(
        (elastic_cost if solve is solve_elastic else residual_cost)(case), rel=1e-6
    )
    assert collapsed.variables < whole.variables


def test_rows_of_memory_cost_something_on_ranks():
    dearer = [
        elastic_cost(ranks_with_memory(seed)) - elastic_cost(unlimited(ranks_with_memory(seed))) for seed in range(4)
    ]
    assert max(dearer) > 1e-2


def test_a_flow_that_is_not_there():
    data = AllocationData.from_dict(drained())
    (pool,) = data.memory
    wrong = dataclasses.replace(data, memory=(dataclasses.replace(pool, moved={"zz": 1.0}),))
    with pytest.raises(InputError, match="memory pool 'hbm': there is no flow 'zz'"):
        solve_elastic(wrong)
