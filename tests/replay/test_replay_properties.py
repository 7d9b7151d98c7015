"""What holds for every replay, on random abstract cases."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_oracle import cases, elastic

from pdmodel.allocation.bound import loss_bound
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import certified, lower_bound
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.replay import SIMPLE, plan, simulate
from pdmodel.timeline.capacity import usable_capacity

ORACLE = Path(__file__).parents[3] / "shared/data/oracles/allocation_cases.json"
ONE_BY_ONE = settings(max_examples=60)


def close(a: float, b: float, scale: float, relative: float = 1e-6) -> bool:
    return abs(a - b) <= relative * max(abs(a), abs(b)) + 1e-9 * scale


def size_of(case) -> float:
    """A cost of the order of what the case could cost: sets what counts as zero."""
    moved = sum(size for flow in case["flows"] for _, size in flow["release"])
    return case["lane_price"] * (sum(phase["duration"] for phase in case["phases"]) + moved / 8.0)


def check_segments(data: AllocationData, replay) -> None:
    """Bytes of flows and ports add up, and no port carries more than it can."""
    moved, crossed = np.zeros(len(data.flows)), np.zeros(len(data.ports))
    for segment in replay.segments:
        length = segment.end_s - segment.start_s
        moved += segment.flow_rate * length
        crossed += segment.kv * length
        # Usable capacity depends on who runs; with one lane that is the guard's C - eps, or the collective's own need.
        assert np.all(segment.critical + segment.kv <= data.capacity * (1 + 1e-9))
    assert moved == pytest.approx(data.volume_bytes, rel=1e-9)
    assert crossed == pytest.approx(replay.kv_bytes, rel=1e-9)


def check_usable(data: AllocationData, replay) -> None:
    """With one lane the usable capacity of every moment is known from the phase that runs."""
    (lane,) = replay.lanes
    for segment in replay.segments:
        middle = (segment.start_s + segment.end_s) / 2
        running = np.flatnonzero((lane.start_s <= middle) & (middle < lane.end_s - lane.hold_s))
        demand = data.critical_rate[0][running[0]] if len(running) else np.zeros(len(data.ports))
        usable = usable_capacity(data.capacity, data.guard, demand)
        assert np.all(segment.critical + segment.kv <= usable * (1 + 1e-9))
        assert np.all(segment.critical <= demand * (1 + 1e-9))


@ONE_BY_ONE
@given(cases(), st.sampled_from([*SIMPLE, "bytes_over_bandwidth"]))
def test_bytes_are_conserved_and_ports_hold(case, policy) -> None:
    data = AllocationData.from_dict(case)
    replay = simulate(data, policy, record=True)
    assert np.all(np.isfinite(replay.flow_finish_s))
    if policy != "bytes_over_bandwidth":
        check_segments(data, replay)
        check_usable(data, replay)
    expected = sum(
        size * np.array([flow["routes"][0].get(name, 0) for name in case["ports"]])
        for flow in case["flows"]
        for _, size in flow["release"]
    )
    assert replay.kv_bytes == pytest.approx(expected, rel=1e-9)


@ONE_BY_ONE
@given(cases())
def test_the_elastic_program_bounds_every_policy_and_is_reached_by_its_own_plan(case) -> None:
    data = AllocationData.from_dict(case)
    optimum, schedule = elastic(case)
    for policy in SIMPLE:
        cost = simulate(data, policy).cost
        assert cost >= optimum or close(cost, optimum, size_of(case)), policy.name
    replay = simulate(data, plan(schedule), record=True)
    assert close(replay.cost, optimum, size_of(case))
    check_segments(data, replay)
    check_usable(data, replay)


@settings(max_examples=30)
@given(cases())
def test_the_packages_own_program_agrees_and_its_plan_keeps_its_word(case) -> None:
    data = AllocationData.from_dict(case)
    optimum, _ = elastic(case)
    solution = solve_elastic(data)
    assert close(solution.objective, optimum, size_of(case))
    assert solution.schedule is not None
    assert close(simulate(data, plan(solution.schedule)).cost, optimum, size_of(case))


def test_a_pause_before_a_gate_that_is_met_within_rounding_is_kept() -> None:
    # A pause costs 1 a second, the tail 1.5: the last sends leave in a pause before phase 6, whose loads are there but
    # for 1e-15 bytes that the program leaves over.
    load = {"name": "f2", "kind": "load", "routes": [{"e0": 1}, {"e2": 1}], "price": 0.5}
    sends = [
        {"name": "f0", "release": [[0, 0.5], [1, 30.0]], "due": [[7, 30.5]], "price": 0.5},
        {"name": "f1", "release": [[0, 0.5], [1, 0.5], [3, 0.5]], "due": [[7, 1.5]], "price": 1.0},
    ]
    case = {
        "ports": {name: {"capacity": size} for name, size in (("e0", 8.0), ("e1", 8.0), ("e2", 25.0))},
        "phases": [{"duration": duration, "bytes": {}} for duration in (*[0.2] * 6, 0.5)],
        "lane_price": 1.0,
        "flows": [
            *({**one, "kind": "send", "routes": [{"e0": 1}]} for one in sends),
            {**load, "release": [[0, 31.0]], "due": [[0, 0.5], [1, 0.5], [6, 30.0]]},
        ],
    }
    data = AllocationData.from_dict(case)
    solution = solve_elastic(data)
    assert simulate(data, plan(solution.schedule)).cost == pytest.approx(solution.objective, rel=1e-6)


@settings(max_examples=150)
@given(cases())
def test_the_certificate_is_never_wrong(case) -> None:
    data = AllocationData.from_dict(case)
    optimum, _ = elastic(case)
    floor = lower_bound(data).cost
    assert floor <= optimum or close(floor, optimum, size_of(case))
    for policy in ("strict", "residual_edf"):
        cost = simulate(data, policy).cost
        if certified(data, cost, floor):
            assert close(cost, optimum, size_of(case))


@ONE_BY_ONE
@given(cases())
def test_slowdown_stays_within_the_bound(case) -> None:
    data = AllocationData.from_dict(case)
    most = loss_bound(data).loss_max_s
    assert most is not None
    for policy in SIMPLE:
        assert simulate(data, policy).prefill_slowdown_s[0] <= most * (1 + 1e-9) + 1e-9


@ONE_BY_ONE
@given(cases(), st.sampled_from([1e-6, 1e6]))
def test_the_scale_of_bytes_does_not_matter(case, factor) -> None:
    data, scaled = AllocationData.from_dict(case), AllocationData.from_dict(in_bytes(case, factor))
    for policy in SIMPLE:
        one, other = simulate(data, policy), simulate(scaled, policy)
        assert close(one.cost, other.cost, size_of(case), 1e-9)
        assert one.ttft_s == pytest.approx(other.ttft_s, rel=1e-9)
        assert one.kv_bytes * factor == pytest.approx(other.kv_bytes, rel=1e-9)


def in_bytes(case, factor):
    return {
        **case,
        "ports": {name: {key: value * factor for key, value in port.items()} for name, port in case["ports"].items()},
        "phases": [
            {**phase, "bytes": {name: size * factor for name, size in phase["bytes"].items()}}
            for phase in case["phases"]
        ],
        "flows": [
            {
                **flow,
                "release": [[k, size * factor] for k, size in flow["release"]],
                "due": [[k, size * factor] for k, size in flow["due"]],
            }
            for flow in case["flows"]
        ],
    }


@ONE_BY_ONE
@given(cases())
def test_cost_is_lane_price_times_delay_plus_tail(case) -> None:
    # With one lane and one request: every second of delay costs lane_price, every second of tail what the sends cost.
    data = AllocationData.from_dict(case)
    for policy in SIMPLE:
        replay = simulate(data, policy)
        delay = replay.lanes[0].end_s[-1] - sum(phase["duration"] for phase in case["phases"])
        waiting = sum(flow["price"] for flow in case["flows"] if flow["kind"] == "send")
        expected = case["lane_price"] * delay + waiting * replay.decode_stall_s[0]
        assert close(replay.cost, expected, size_of(case), 1e-9)


@ONE_BY_ONE
@given(cases(), st.sampled_from([0.05, 0.2]), st.integers(0, 3))
def test_jitter_moves_no_bytes_and_costs_nothing_without_kv(case, sigma, seed) -> None:
    data = AllocationData.from_dict(case)
    assert simulate(data, "no_kv", jitter=(sigma, seed)).cost == pytest.approx(0.0, abs=1e-9)
    _, schedule = elastic(case)
    for policy in (*SIMPLE, plan(schedule)):
        replay = simulate(data, policy, jitter=(sigma, seed), record=True)
        check_segments(data, replay)
        assert np.all(np.isfinite(replay.ttft_s))


@pytest.mark.skipif(not ORACLE.is_file(), reason="the reference cases are not beside the repository")
def test_reference_cases() -> None:
    for case in json.loads(ORACLE.read_text()):
        data = AllocationData.from_dict(case)
        optimum, schedule = elastic(case)
        assert close(optimum, case["optimum_e"], size_of(case)), case["name"]
        assert close(simulate(data, plan(schedule)).cost, case["optimum_e"], size_of(case)), case["name"]
        for policy in SIMPLE:
            cost = simulate(data, policy).cost
            assert cost >= optimum or close(cost, optimum, size_of(case)), (case["name"], policy.name)
