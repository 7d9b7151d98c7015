"""Plans of tiers: the elastic optimum and its replay, what write-backs cost, loading against computing, the store."""

from functools import cache
from typing import Any

import pytest

from pdmodel.allocation.program_e import solve_elastic
from pdmodel.answer import Plan
from pdmodel.planner import plan, scenario_record
from pdmodel.replay import engine
from pdmodel.replay.policies import plan as plan_policy
from pdmodel.transfer.prefetch import settled

FIRST = {
    "name": "first",
    "input_tokens": 65_536,
    "cached_tokens": 61_440,
    "cached_in": {"hbm": 8_192, "host_memory": 36_864, "store": 16_384},
}


@cache
def planned(name: str) -> Plan:
    return plan(name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache": {"load_by": "kernel"}},
        {"transfer": {"through": "store"}},
        {"store": {"backend": "3fs"}, "cache": {"write_policy": "write_back", "write_to": "host_memory"}},
    ],
)
def test_one_turn_is_planned_as_it_replays(variant, changes: dict[str, Any]) -> None:
    data = scenario_record(settled(variant("agentic_tiers", {"requests": [FIRST], **changes})))[1]
    optimum = solve_elastic(data)
    assert engine.simulate(data, plan_policy(optimum.schedule)).cost == pytest.approx(optimum.objective, rel=1e-9)
    for policy in ("unmanaged", "strict", "residual_edf", "after_prefill"):
        assert optimum.objective <= engine.simulate(data, policy).cost * (1 + 1e-9)


def test_write_backs_cost_queues_something_and_the_earliest_due_first_nothing(variant) -> None:
    with_them, without = (
        scenario_record(settled(variant("agentic_tiers", changes)))[1]
        for changes in ({}, {"cache": {"write_policy": None}})
    )
    dear, cheap = (
        {policy: engine.simulate(data, policy).cost for policy in ("unmanaged", "strict", "residual_edf")}
        for data in (with_them, without)
    )
    assert dear["unmanaged"] > 1.02 * cheap["unmanaged"] and dear["strict"] > 1.02 * cheap["strict"]
    assert dear["residual_edf"] == pytest.approx(cheap["residual_edf"], rel=1e-3)
    assert dear["residual_edf"] < 0.6 * dear["unmanaged"]


def test_a_slow_store_is_computed_again_and_host_memory_is_loaded(variant) -> None:
    rows = {row.tier: row for row in planned("recompute_wins").reuse}
    assert rows["host_memory"].recomputed_tokens == 0 and rows["store"].recomputed_tokens == 16_384
    # 16,384 tokens of 192,512 B, each head twice, at 1.95 GB/s, and two objects of each of 256 pages
    assert rows["store"].load_s == pytest.approx(2 * 16_384 * 192_512 / 1.95e9 + 2 * 256 * 9.3e-6)
    assert rows["store"].load_s > 1.5 * rows["store"].recompute_s
    best = rows["store"].cost_best
    assert best < 0.8 * rows["store"].cost_load_all and best < 0.8 * rows["store"].cost_recompute_all
    fast = plan(variant("recompute_wins", {"store": {"backend": "mooncake_store"}}))
    assert all(row.recomputed_tokens == 0 for row in fast.reuse)


def test_the_way_through_a_store_loses_its_overlap() -> None:
    direct, stored = planned("rtx_pro_6000_qwen3_235b"), planned("rtx_pro_6000_qwen3_235b_store")
    everything = 2 * 32_768 * 192_512 / 46e9  # both prompts through one NIC of the decode side
    objects_s = 2 * 2_048 * 9.3e-6  # of both prompts, pages of 16 tokens, on each of its ranks
    wait = stored.times.decode_stall_s - stored.times.control_s
    assert wait == pytest.approx(everything + objects_s, rel=1e-6)
    # Directly only the last of four chunks is left, of both prompts; 2 ms of handshake are in no stall.
    left = direct.times.decode_stall_s - (direct.times.control_s - 2e-3)
    assert left == pytest.approx(everything / 4, rel=1e-6)


def test_what_a_prefetch_leaves_is_said_once(variant) -> None:
    short = {"name": "short", "input_tokens": 300, "cached_tokens": 100, "cached_in": "store"}
    found = plan(variant("agentic_tiers", {"requests": [short]}))
    said = [text for text in found.warnings if "are computed again" in text]
    assert said == ["short: 100 of 100 tokens in the store are computed again: less than 256 are not worth a prefetch"]
    assert len(set(found.warnings)) == len(found.warnings)
