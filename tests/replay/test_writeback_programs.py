"""Program E with write-backs, leases and memory against its own replay and against every policy."""

import math

import pytest
from hypothesis import given, settings
from test_replay_lanes import prefills_and_a_decode_lane
from test_replay_properties import close
from test_writebacks import with_write_backs

from pdmodel.allocation.program_e import solve_elastic
from pdmodel.replay import SENDS_FIRST, SIMPLE, plan, simulate

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


@settings(max_examples=40)
@given(prefills_and_a_decode_lane(("send", "load", "writeback")))
def test_the_same_with_a_decode_lane(data) -> None:
    solution = solve_elastic(data)
    tolerance = 1e-6 * max(solution.objective, 1e-2)
    for policy in RULES:
        replay = simulate(data, policy)
        # The program moves all bytes, if need be at the decode lane's cost; a rule may leave write-backs for ever.
        assert replay.cost >= solution.objective - tolerance or replay.writeback_end_s == math.inf, policy.name
    assert solution.schedule is not None
    assert simulate(data, plan(solution.schedule)).cost == pytest.approx(solution.objective, abs=tolerance)
