"""Programs with write-backs, leases and memory against their own replay and against every policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_memory_traces import filled
from test_replay_lanes import check_ends, check_gates, prefills_and_a_decode_lane
from test_replay_properties import close
from test_writebacks_replayed import flow, phase, record, with_write_backs

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import quantum_rounds
from pdmodel.replay import SENDS_FIRST, SIMPLE, memory_trace, plan, simulate
from pdmodel.transfer.flows import FlowKind, MemoryKind, MemoryPool

RULES = (*SIMPLE, SENDS_FIRST)


def size_of(data) -> float:
    moved = float(data.volume_bytes.sum())
    return float(data.phase_price_per_s[0][0]) * (float(data.duration_s[0].sum()) + moved / 8.0)


@settings(max_examples=60)
@given(with_write_backs())
def test_the_elastic_program_bounds_every_policy_and_its_plan_keeps_its_word(data) -> None:
    solution = solve_elastic(data)
    assert solution.schedule is not None
    replay = simulate(data, plan(solution.schedule))
    assert close(replay.cost, solution.objective, size_of(data))
    assert replay.writeback_end_s is not None
    for policy in RULES:
        cost = simulate(data, policy).cost
        assert cost >= solution.objective or close(cost, solution.objective, size_of(data)), policy.name


@st.composite
def with_limits(draw):
    """The same with a pool that frees byte by byte and leases: limits that a replay may break."""
    data = draw(with_write_backs())
    moved = {one.name: draw(st.sampled_from([1.0, -1.0])) for one in data.flows}
    lane, request = data.lanes[0].name, data.requests[0].name
    appears = tuple((lane, k, request, size) for one in data.flows if moved[one.name] < 0 for k, size in one.release)
    capacity = draw(st.sampled_from([0.4, 0.7, 0.9])) * max(float(data.volume_bytes.sum()), 1.0)
    pool = MemoryPool("pool", MemoryKind.HOST, capacity, 0.0, appears, moved, held_until_done=False)
    lease = st.sampled_from([None, None, 0.4, 2.0, 6.0])
    flows = tuple(one if one.kind is FlowKind.WRITEBACK else replace(one, lease_s=draw(lease)) for one in data.flows)
    return replace(data, flows=flows, memory=(pool,))


@settings(max_examples=60)
@given(with_limits())
def test_where_limits_can_be_kept_the_plan_keeps_them_and_bounds_what_keeps_them(data) -> None:
    solution = solve_elastic(data)
    possible = not solution.memory_excess_bytes.any() and not solution.lease_excess_s.any()
    assert solution.schedule is not None
    for policy in (plan(solution.schedule), *RULES):
        replay = simulate(data, policy, record=True)
        keeps = all(pool.fits for pool in memory_trace(data, replay)) and not replay.expired
        if policy not in RULES and possible:
            assert close(replay.cost, solution.objective, size_of(data))
            assert keeps
        if policy in RULES and keeps:
            assert replay.cost >= solution.objective or close(replay.cost, solution.objective, size_of(data))


def test_a_write_back_that_fills_memory_waits_for_the_one_that_makes_room() -> None:
    # Both are left to what comes after the schedule; side by side they would hold 43.4 bytes at once.
    flows = [
        {"name": "out", "routes": [{"e": 2}], "release": [[0, 30.0]]},
        {"name": "in", "routes": [{"e": 1}], "release": [[0, 30.0]]},
    ]
    case = {
        "ports": {"e": {"capacity": 8.0}},
        "phases": [{"duration": 0.2, "bytes": {}}],
        "lane_price": 1.0,
        "flows": [{**one, "kind": "writeback"} for one in flows],
        "memory": {"pool": {"capacity": 42.0, "appears": [[0, 30.0]], "moved": {"out": -1.0, "in": 1.0}}},
    }
    data = AllocationData.from_dict(case)
    solution = solve_elastic(data)
    replay = simulate(data, plan(solution.schedule), record=True)
    assert replay.flow_finish_s == pytest.approx([7.5, 11.25])
    assert memory_trace(data, replay)[0].peak_bytes == pytest.approx(30.0)
    assert not memory_trace(data, simulate(data, "unmanaged", record=True))[0].fits


@settings(max_examples=40)
@given(prefills_and_a_decode_lane(("send", "load", "writeback"), demands=(4.0, 6.0)))
def test_the_same_beside_a_decode_lane_that_leaves_room(data) -> None:
    solution = solve_elastic(data)
    tolerance = 1e-6 * max(solution.objective, 1e-2)
    for policy in RULES:
        assert simulate(data, policy).cost >= solution.objective - tolerance, policy.name
    assert solution.schedule is not None
    assert simulate(data, plan(solution.schedule)).cost == pytest.approx(solution.objective, abs=tolerance)


@settings(max_examples=15)
@given(filled())
def test_plans_of_the_residual_program_move_everything(data) -> None:
    for solution in quantum_rounds(data):
        assert solution.schedule is not None
        replay = simulate(data, plan(solution.schedule), record=True)
        assert np.all(np.isfinite(replay.flow_finish_s))
        check_gates(data, replay)
        check_ends(data, replay)


def test_a_lane_of_phases_of_no_duration_has_a_residual_program() -> None:
    send = flow("send", "send", ((0, 5.0),), ((1, 5.0),))
    (solution, *_) = quantum_rounds(record([phase("r", 0.0)], [send]))
    assert solution.schedule is not None
