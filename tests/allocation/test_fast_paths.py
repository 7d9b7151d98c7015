import dataclasses

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case, random_decode, random_lanes
from test_programs import one_collective, with_decode

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import bound_prices, certified, lower_bound, single_port, suffix_scan
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.errors import InputError
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import AFTER_PREFILL, RESIDUAL_EDF, STRICT, UNMANAGED, PlanPolicy

ABOVE = 1e-8


def cases(seed, count, **kinds):
    for k in range(count):
        case = random_case(np.random.default_rng([seed, k]), **kinds)
        yield case, AllocationData.from_dict(case)


def test_the_lower_bound_is_never_above_the_optimum():
    tight, positive = 0, 0
    for _, data in cases(41, 250):
        floor = lower_bound(data)
        assert floor.cost == max(floor.sends, floor.loads)
        if floor.cost > 0:  # no optimum is below nothing
            optimum = solve_elastic(data).objective
            assert floor.cost <= optimum * (1 + ABOVE) + ABOVE
            positive += optimum > 1e-3
            tight += optimum > 1e-3 and floor.cost >= optimum * (1 - 1e-6)
    assert positive > 80
    assert tight > 0.4 * positive


def test_the_lower_bound_with_decode_lanes():
    for seed in range(40):
        rng = np.random.default_rng([42, seed])
        case = random_case(rng)
        data = with_decode(AllocationData.from_dict(case), random_decode(rng, case["ports"]))
        assert lower_bound(data).cost <= solve_elastic(data).objective * (1 + ABOVE) + ABOVE


def test_loads_and_gates_by_hand():
    """5 bytes due by phase 1 behind a full collective on a port of 10 byte/s: 0.5 s; then 4 bytes sent: 0.4 s."""
    load = {"name": "l", "kind": "load", "routes": [{"e": 1}], "release": [[0, 5.0]], "due": [[1, 5.0]], "price": 9.0}
    send = {"name": "s", "kind": "send", "routes": [{"e": 1}], "release": [[2, 4.0]], "due": [[2, 4.0]], "price": 1.5}
    phases = [{"duration": 1.0, "bytes": {"e": 10.0}}, {"duration": 1.0, "bytes": {"e": 10.0}}]
    case = {"ports": {"e": {"capacity": 10.0, "guard": 0.0}}, "phases": phases, "lane_price": 2.0}
    case["flows"] = [load, send]
    floor = lower_bound(AllocationData.from_dict(case))
    assert floor.loads == pytest.approx(2.0 * 0.5 + 1.5 * 0.4)
    assert floor.sends == pytest.approx(1.5 * 0.4)
    assert elastic_cost(case) == pytest.approx(floor.cost)
    send["release"] = [[0, 4.0]]  # sold in the wait at 2/10 or in the tail at 1.5/10
    assert lower_bound(AllocationData.from_dict(case)).sends == pytest.approx(0.6)
    case["lane_price"] = 1.0  # now the gated wait is cheaper
    assert lower_bound(AllocationData.from_dict(case)).sends == pytest.approx(0.4)


def test_room_before_the_release_of_a_load_does_not_help():
    """Phase 0 is idle, but the load is released after it: 6 bytes due by phase 2, 2 fit beside phase 1."""
    load = {"name": "l", "kind": "load", "routes": [{"e": 1}], "release": [[1, 6.0]], "due": [[2, 6.0]], "price": 9.0}
    phases = [{"duration": 1.0, "bytes": {}}, {"duration": 1.0, "bytes": {"e": 8.0}}, {"duration": 1.0, "bytes": {}}]
    case = {"ports": {"e": {"capacity": 10.0, "guard": 0.0}}, "phases": phases, "lane_price": 2.0, "flows": [load]}
    assert lower_bound(AllocationData.from_dict(case)).loads == pytest.approx(2.0 * 0.4)
    assert elastic_cost(case) == pytest.approx(2.0 * 0.4)
    load["release"] = [[0, 6.0]]
    assert lower_bound(AllocationData.from_dict(case)).cost == 0.0


def test_prices_that_rise_along_the_lane():
    for seed in range(60):
        rng = np.random.default_rng([46, seed])
        data = AllocationData.from_dict(random_case(rng))
        prices = np.sort(rng.uniform(0.5, 6.0, len(data.lanes[0].phases)))
        data = dataclasses.replace(data, phase_price_per_s=(prices,))
        assert lower_bound(data).cost <= solve_elastic(data).objective * (1 + ABOVE) + ABOVE
    load = {"name": "l", "kind": "load", "routes": [{"e": 1}], "release": [[0, 15.0]], "due": [[1, 15.0]], "price": 1.0}
    case = one_collective() | {"phases": [{"duration": 1.0, "bytes": {"e": 5.0}}] * 2, "flows": [load]}
    data = dataclasses.replace(AllocationData.from_dict(case), phase_price_per_s=(np.array([1.0, 4.0]),))
    assert solve_elastic(data).objective == pytest.approx(1.0)  # stretch phase 0 rather than wait before phase 1
    assert lower_bound(data).cost == pytest.approx(1.0)


def test_flows_that_can_avoid_a_port_do_not_count_on_it():
    case = one_collective()
    case["ports"]["other"] = {"capacity": 1.0, "guard": 0.0}
    assert lower_bound(AllocationData.from_dict(case)).cost == pytest.approx(0.3)
    case["flows"][0]["routes"].append({"other": 1})
    assert lower_bound(AllocationData.from_dict(case)).cost == 0.0
    assert solve_elastic(AllocationData.from_dict(case)).objective == pytest.approx(
        2 / 11
    )  # 1 byte beside, 2 over both
    case["flows"][0]["routes"][1] = {"other": 1, "e": 1}
    assert lower_bound(AllocationData.from_dict(case)).cost == pytest.approx(0.3)


def test_a_certified_rule_is_optimal():
    certificates = 0
    for _, data in cases(43, 100):
        floor = lower_bound(data).cost
        for policy in (STRICT, RESIDUAL_EDF):
            cost = simulate(data, policy).cost
            if certified(data, cost, floor):
                certificates += 1
                assert cost == pytest.approx(solve_elastic(data).objective, rel=1e-7, abs=1e-9)
    assert certificates > 65


def test_the_certificate_is_narrow():
    data = AllocationData.from_dict(one_collective())
    assert certified(data, 0.3, 0.3)
    assert not certified(data, 0.3 * (1 + 1e-8), 0.3)
    assert certified(data, 1e-12, 0.0)
    assert not certified(data, 1e-11, 0.0)


def test_several_requests_on_one_lane_are_bounded_by_their_own():
    for seed in range(60):
        rng = np.random.default_rng([44, seed])
        case = random_case(rng, phases=(4, 9))
        data = AllocationData.from_dict(case)
        first = max(1, len(case["phases"]) // 2)
        data = two_requests(data, first, *rng.choice([0.3, 1.0, 4.0], 2))
        floor = lower_bound(data).cost
        for policy in (STRICT, RESIDUAL_EDF, UNMANAGED, AFTER_PREFILL):
            assert floor <= simulate(data, policy).cost * (1 + 1e-9) + 1e-9


def two_requests(data, first, price_a, price_b):
    """Phases before ``first`` become request A's, the rest B's; each flow goes to a request that can hold it."""
    (lane,), (whole,) = data.lanes, data.requests
    count = len(lane.phases)
    names = ["A" if i < first else "B" for i in range(count)]
    phases = tuple(dataclasses.replace(p, request=name) for p, name in zip(lane.phases, names, strict=True))
    flows = []
    for n, flow in enumerate(data.flows):
        mine = "A" if n % 2 == 0 else "B"
        low, high = (0, first) if mine == "A" else (first, count)
        if flow.kind == "send":
            due = ((high, flow.volume_bytes),)
            release = tuple((min(max(k, low), high), size) for k, size in flow.release)
        else:
            due = tuple((min(max(k, low), high - 1), size) for k, size in flow.due)
            release = ((low, flow.volume_bytes),)
        flows.append(dataclasses.replace(flow, request=mine, release=release, due=due))
    base = data.lane_price_per_s[0] + whole.price_per_s
    requests = (
        dataclasses.replace(whole, name="A", last_phase=first - 1, price_per_s=float(price_a)),
        dataclasses.replace(whole, name="B", first_phase=first, price_per_s=float(price_b)),
    )
    prices = np.full(count, base + price_b)
    prices[:first] += price_a
    return dataclasses.replace(
        data,
        lanes=(dataclasses.replace(lane, phases=phases),),
        flows=tuple(flows),
        requests=requests,
        lane_price_per_s=np.array([base]),
        phase_price_per_s=(prices,),
    )


def test_single_port_is_the_program():
    applied = 0
    for _, data in cases(45, 80, loads=False, ports=(1, 2)):
        closed, solved = single_port(data), solve_elastic(data)
        assert closed is not None
        assert closed.objective == pytest.approx(solved.objective, rel=1e-8, abs=1e-9)
        assert closed.shadow_price == pytest.approx(solved.shadow_price, rel=1e-6, abs=1e-9)
        assert simulate(data, PlanPolicy(closed.schedule)).cost == pytest.approx(closed.objective, rel=1e-6, abs=1e-9)
        applied += closed.objective > 1e-3
    assert applied > 22


def test_single_port_of_a_class_of_ranks():
    """Four ranks with a port each are one port."""
    names = [f"gpu{k}" for k in range(4)]
    base = one_collective()
    case = {
        "ports": dict.fromkeys(names, base["ports"]["e"]),
        "phases": [{"duration": 1.0, "bytes": dict.fromkeys(names, 10.0)}],
        "lane_price": 2.0,
        "flows": [{**base["flows"][0], "name": n, "routes": [{n: 1}], "price": 0.25} for n in names],
    }
    closed = single_port(AllocationData.from_dict(case))
    assert closed.objective == pytest.approx(0.3)
    assert closed.shadow_price == pytest.approx(np.full(4, 0.13 / 4))
    case["flows"][0] |= {"release": [[0, 2.0]], "due": [[1, 2.0]]}
    assert single_port(AllocationData.from_dict(case)) is None  # rank 0 differs: two kinds of ports


def test_where_the_closed_form_does_not_apply():
    case = one_collective()
    load = {**case["flows"][0], "kind": "load", "release": [[0, 3.0]], "due": [[0, 3.0]]}
    assert single_port(AllocationData.from_dict(case | {"flows": [load]})) is None
    assert single_port(AllocationData.from_dict(case | {"flows": []})) is None
    assert single_port(AllocationData.from_dict(random_lanes(np.random.default_rng(0)))) is None
    decode = [(1.0, {"e": 1.0})]
    assert single_port(with_decode(AllocationData.from_dict(case), decode)) is None
    with pytest.raises(InputError, match="one prefill lane, not 2"):
        lower_bound(AllocationData.from_dict(random_lanes(np.random.default_rng(0))))
    assert lower_bound(AllocationData.from_dict(case | {"flows": []})).cost == 0.0


def test_suffix_scan_buys_from_the_cheapest_later_seller():
    scan = suffix_scan(
        released=np.array([[6.0], [2.0], [1.0]]),
        room=np.array([[1.0], [1.0]]),
        price=np.array([[3.0], [1.0]]),
        tail_price_per_byte=np.array([2.0]),
    )
    assert scan.need[:, 0].tolist() == [1.0, 2.0, 7.0]  # from the end backwards
    assert scan.seller[:, 0].tolist() == [2, 1, 1]  # the tail, then phase 1
    assert scan.cost.tolist() == [1 * 2.0 + 1 * 1.0 + 5 * 1.0]


def test_prices_of_a_certified_answer_are_those_of_the_program():
    """By hand, and against the duals of program E where one port binds."""
    case = one_collective()
    data = AllocationData.from_dict(case)
    step = 1e-5
    wider = {**case, "ports": {"e": {**case["ports"]["e"], "capacity": case["ports"]["e"]["capacity"] * (1 + step)}}}
    lower = lower_bound(AllocationData.from_dict(wider)).cost
    expected = (lower_bound(data).cost - lower) / (step * case["ports"]["e"]["capacity"])
    assert expected > 0
    np.testing.assert_allclose(bound_prices(data), [expected], rtol=1e-3)
    compared = 0
    for seed in range(200):
        data = AllocationData.from_dict(random_case(np.random.default_rng([77, seed])))
        floor = lower_bound(data).cost
        if len(data.ports) > 1 or floor <= 1e-6:
            continue
        optimum, prices = solve_elastic(data), bound_prices(data)
        if abs(optimum.objective - floor) <= 1e-9 * floor:
            wide = dataclasses.replace(
                data,
                ports=(
                    dataclasses.replace(
                        data.ports[0], capacity_bytes_per_s=data.ports[0].capacity_bytes_per_s * (1 + step)
                    ),
                ),
            )
            saved = (optimum.objective - solve_elastic(wide).objective) / (step * data.capacity[0])
            assert prices[0] == pytest.approx(saved, rel=1e-2, abs=1e-9)
            compared += 1
    assert compared >= 10
