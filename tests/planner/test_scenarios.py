"""Every shipped scenario from file to answer."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pdmodel import choose
from pdmodel.answer import Rule
from pdmodel.planner import plan
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import AFTER_PREFILL
from pdmodel.report.export import plan_to_dict
from pdmodel.resolve import read_scenario
from pdmodel.resources import names
from pdmodel.verdict import shares_port

SCENARIOS = names("scenarios")


@cache
def planned(name):
    return plan(name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_verdict_is_the_expected_one(name):
    spec, _ = read_scenario(name)
    found = planned(name)
    assert spec.expected_verdict is not None
    assert found.verdict.kind.value == spec.expected_verdict, found.verdict.text


@pytest.mark.parametrize("name", SCENARIOS)
def test_plan_costs_no_more_than_any_policy(name):
    found = planned(name)
    mine = next(policy.cost for policy in found.policies if policy.name == "plan")
    assert all(mine <= policy.cost * (1 + 1e-9) + 1e-12 for policy in found.policies)
    assert {"unmanaged", "strict", "after_prefill", "residual_edf", "plan"} <= {p.name for p in found.policies}
    assert {"no_kv", "bytes_over_bandwidth"} == {p.name for p in found.references}


@pytest.mark.parametrize("name", SCENARIOS)
def test_bytes_are_conserved_and_no_port_overflows(name):
    found = planned(name)
    data, replay = found.data, found.replay
    moved = sum(segment.flow_rate * (segment.end_s - segment.start_s) for segment in replay.segments)
    np.testing.assert_allclose(moved, data.volume_bytes, rtol=1e-9)
    for segment in replay.segments:
        assert (segment.critical + segment.kv <= data.capacity * (1 + 1e-9)).all()
    assert all(0 <= port.utilisation <= 1 + 1e-9 for port in found.ports)


@pytest.mark.parametrize("name", SCENARIOS)
def test_schedule_rows_hold_all_bytes(name):
    """Run-length over equal layers loses nothing."""
    found = planned(name)
    total = sum(
        row.rate_bytes_per_s * row.duration_s * (row.last_layer - row.first_layer + 1) for row in found.schedule
    )
    assert total == pytest.approx(found.data.volume_bytes.sum(), rel=1e-3)


@pytest.mark.parametrize("name", SCENARIOS)
def test_json_is_whole_and_plain(name):
    found = plan_to_dict(planned(name))
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["verdict"]["kind"] == found["verdict"]["kind"]
    for key in ("schema_version", "bound", "times", "policies", "references", "ports", "flows", "schedule", "solver"):
        assert key in again
    for key in ("assumed", "hazards", "provenance"):
        assert key in again


@pytest.mark.parametrize("name", SCENARIOS)
def test_answer_is_the_same_twice(name):
    first, second = plan_to_dict(planned(name)), plan_to_dict(plan(name))
    for found in (first, second):
        found["solver"].pop("wall_s")
    assert first == second


def one_lane(name):
    data = planned(name).data
    return len(data.lanes) == 1 and len(data.requests) == 1 and shares_port(data)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "slow_nic_infeasible"])
def test_program_e_bounds_every_policy_on_one_lane(name):
    if not one_lane(name):
        pytest.skip("program E is for one lane with one request")
    from pdmodel.allocation.program_e import solve_elastic

    found = planned(name)
    optimum = solve_elastic(found.data)
    floor = optimum.objective
    assert all(floor <= policy.cost * (1 + 1e-6) + 1e-9 for policy in found.policies)
    from pdmodel.replay.policies import PlanPolicy

    again = simulate(found.data, PlanPolicy(optimum.schedule))
    assert again.cost == pytest.approx(floor, rel=1e-6, abs=1e-9)


def test_urgent_user_overdrafts():
    """The fourth rule: A's last KV is worth B's collectives."""
    found = planned("urgent_user")
    cost = {policy.name: policy.cost for policy in found.policies}
    assert cost["plan"] < cost["strict"]
    assert any(row.rule is Rule.OVERDRAFT and row.flow.startswith("A/send") for row in found.schedule)


def test_every_simple_rule_competes(monkeypatch):
    late = replace(AFTER_PREFILL, name="late_and_strict", critical_first=True)
    monkeypatch.setattr(choose, "SIMPLE", (*choose.SIMPLE, late))
    found = plan("rtx_pro_6000_qwen3_32b_tp4")
    assert [policy.name for policy in found.policies if policy.name == late.name] == [late.name]


def test_what_is_not_proved_is_not_called_optimal():
    for name in SCENARIOS:
        solver = planned(name).solver
        assert solver.status in {"optimal", "optimal_inaccurate", "accepted"}
        if solver.status == "optimal":
            assert solver.gap <= 1e-6 or solver.path == "certified"
        else:
            assert solver.status != "accepted" or solver.path in {"bound", "no_shared_port", f"policy:{solver.rule}"}
