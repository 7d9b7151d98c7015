"""Load or recompute: against every split, and against sums that do not use the clock without KV."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from pdmodel.planner import plan
from pdmodel.record import scenario_record
from pdmodel.resolve import ResolvedScenario, resolve_scenario
from pdmodel.reuse import NEAR, base_cost, decide, least_split, with_split
from pdmodel.scenario import Reuse, Scenario
from pdmodel.workload.request import CacheTier, Request


def scenario(box: str, tp_size: int, *requests: dict[str, object], **more: object) -> ResolvedScenario:
    """All heads have keys and values of their own: much KV for little compute."""
    raw = {
        "schema_version": 1,
        "name": "reuse",
        "llm": "llama-2-7b",
        "prefill": {"hardware": box, "engine": "sglang_mooncake", "tp_size": tp_size},
        "decode": {"hardware": box, "tp_size": tp_size, "max_running_requests": 2},
        "requests": [{"name": f"r{k}", **one} for k, one in enumerate(requests)],
        "cache": {"reuse": "best"},
    }
    return resolve_scenario(Scenario.parse(raw | more), "reuse.json")


CASES = {
    # One NIC's socket loads for all ranks of fast GPUs; slow GPUs load for nothing.
    "between": ("h200_nvlink_2nic", 4, {"input_tokens": 1280, "cached_tokens": 1152}),
    "load": ("l40s_pcie_gen4", 4, {"input_tokens": 1280, "cached_tokens": 1152}),
    "with_hbm": (
        "h200_nvlink_2nic",
        4,
        {"input_tokens": 1280, "cached_tokens": 1152, "cached_in": {"hbm": 500, "host_memory": 652}},
    ),
}


@cache
def decided(case: str):
    return decide(scenario(*CASES[case]))


def all_splits(resolved: ResolvedScenario, request: Request) -> dict[int, float]:
    """The whole cost of every split at a page, each planned on its own."""
    least, step = least_split(resolved, request), resolved.page_tokens
    splits = {least, request.cached_tokens, *range(-(-least // step) * step, request.cached_tokens, step)}
    return {split: planned(with_split(resolved, request, split)) for split in splits}


def planned(resolved: ResolvedScenario) -> float:
    """The whole cost of a scenario that uses all of its prefixes."""
    cache = resolved.spec.cache.model_copy(update={"reuse": Reuse.LOAD})
    return decide(replace(resolved, spec=resolved.spec.model_copy(update={"cache": cache}))).best.total


@pytest.mark.parametrize("case", CASES)
def test_no_split_is_better_than_the_one_that_is_found(case):
    resolved = scenario(*CASES[case])
    (request,) = resolved.requests
    costs = all_splits(resolved, request)
    best = decided(case).best
    assert best.total == pytest.approx(costs[best.resolved.requests[0].cached_tokens])
    assert best.total <= min(costs.values()) * (1 + NEAR)
    row = decided(case).rows[-1]
    least = least_split(resolved, request)
    for cost, split in ((row.cost_load_all, 1152), (row.cost_recompute_all, least)):
        assert costs[split] * (1 - 1e-9) <= cost <= costs[split] * 1.01


def test_where_loading_is_dear_part_of_it_is_computed():
    (row,) = decided("between").rows
    assert 0 < row.loaded_tokens < row.cached_tokens == row.loaded_tokens + row.recomputed_tokens
    assert row.cost_best < row.cost_load_all * 0.95
    assert row.cost_best < row.cost_recompute_all


def test_where_computing_is_dear_all_is_loaded():
    (row,) = decided("load").rows
    assert (row.loaded_tokens, row.recomputed_tokens) == (1152, 0)
    assert row.recompute_s > 10 * row.load_s
    assert (row.splits, row.planned) == (2, 1)  # the bounds of both ends were enough


def test_what_is_in_hbm_is_used_whatever_it_costs():
    hbm, host = decided("with_hbm").rows
    assert (hbm.tier, hbm.loaded_tokens, hbm.load_s) == ("hbm", 500, 0.0)
    assert host.loaded_tokens + host.recomputed_tokens == 652
    assert host.cost_best == hbm.cost_best


@pytest.mark.parametrize("case", CASES)
def test_the_whole_cost_is_what_prefill_and_user_take(case):
    """pi (prefill + wait for loads) + lambda (time to the first token) + the decode side's loss, from one replay."""
    best = decided(case).best
    data, replay = best.data, best.choice.replay
    busy = sum(float(lane.end_s[-1] - lane.start_s[0] + lane.wait_s[0]) for lane in replay.lanes)
    users = sum(one.price_per_s * ttft for one, ttft in zip(data.requests, replay.ttft_s, strict=True))
    expected = float(data.lane_price_per_s[0]) * busy + users + float(data.decode_price_per_s @ replay.decode_loss_s)
    assert best.total == pytest.approx(expected, rel=1e-9)


def test_the_base_counts_idle_lanes_for_nothing_and_waiting_users_from_their_arrival():
    one = {"input_tokens": 512, "cached_tokens": 0}
    alone, late = (
        scenario("h200_nvlink_2nic", 4, *requests)
        for requests in ((one,), (one | {"arrival_ms": 0.0}, one | {"arrival_ms": 5000.0}))
    )
    single, both = (base_cost(scenario_record(found)[1]) for found in (alone, late))
    assert both == pytest.approx(2 * single)


def test_several_requests_are_decided_one_at_a_time():
    requests = [
        {"input_tokens": 1280, "cached_tokens": 1152},
        {"input_tokens": 640, "cached_tokens": 512, "arrival_ms": 1.0},
    ]
    resolved = scenario("h200_nvlink_2nic", 4, *requests)
    found = decide(resolved)
    assert [row.request for row in found.rows] == ["r0", "r1"]
    assert found.best.total <= min(row.cost_load_all for row in found.rows) * (1 + 1e-12)
    # No change of one request alone is better.
    for request in resolved.requests:
        other = planned(with_split(found.best.resolved, request, request.cached_tokens))
        assert found.best.total <= other * (1 + NEAR)


def test_load_decides_nothing_and_tells_where_computing_is_clearly_cheaper():
    resolved = scenario(*CASES["between"], cache={"reuse": "load"})
    found = decide(resolved)
    assert found.rows == ()
    assert found.best.resolved is resolved
    (note,) = found.notes
    assert note.startswith("r0: computing 576 of 1152 cached tokens again would cost ")
    assert plan(resolved).reuse == ()
    assert note in plan(resolved).warnings
    assert decide(scenario(*CASES["load"], cache={"reuse": "load"})).notes == ()


def test_the_first_tokens_stay_in_order_of_tiers():
    resolved = scenario(
        "h200_nvlink_2nic",
        4,
        {
            "input_tokens": 1280,
            "cached_tokens": 1152,
            "cached_in": {"hbm": 100, "host_memory": 452, "store": 600},
        },
        store={"backend": "mooncake_store"},
    )
    (request,) = resolved.requests
    (cut,) = with_split(resolved, request, 300).requests
    assert [cut.cached_by(tier) for tier in CacheTier] == [100, 200, 0]
    assert cut.new_tokens == 980
    (none,) = with_split(resolved, request, 0).requests
    assert [none.cached_by(tier) for tier in CacheTier] == [0, 0, 0]


def test_what_is_too_long_for_a_timeline_is_not_computed_again():
    small = {"hardware": "h200_nvlink_2nic", "engine": "sglang_mooncake", "tp_size": 4, "chunk_tokens": 1}
    resolved = scenario("", 4, {"input_tokens": 4000, "cached_tokens": 3990}, prefill=small, decode=small_decode())
    (request,) = resolved.requests
    assert least_split(resolved, request) == 4000 - 50_000 // 32


def small_decode() -> dict[str, object]:
    return {"hardware": "h200_nvlink_2nic", "tp_size": 4, "max_running_requests": 2}


def test_the_plan_carries_the_rows():
    found = plan(scenario(*CASES["between"]))
    assert found.reuse == decided("between").rows
    assert np.isclose(found.times.prefill_no_kv_s, float(decided("between").best.data.duration_s[0].sum()))


def test_a_slow_store_is_computed_again_and_host_memory_loaded(variant):
    """16,384 tokens in two copies at 1.95 GB/s take 3.2 s; computing them takes two thirds of that."""
    hbm, host, store = plan(variant("recompute_wins")).reuse
    assert (hbm.tier, hbm.loaded_tokens, hbm.load_s) == ("hbm", 4096, 0.0)
    assert (host.tier, host.loaded_tokens, host.recomputed_tokens) == ("host_memory", 8192, 0)
    assert (store.tier, store.loaded_tokens, store.recomputed_tokens) == ("store", 0, 16384)
    # 4 KV heads on 8 ranks: each is there twice; keys and values of 256 pages are objects of their own.
    bytes_s, objects_s = 2 * 16_384 * 94 * 2 * 4 * 128 * 2 / 1.95e9, 2 * 256 * 9.3e-6
    assert store.load_s == pytest.approx(bytes_s + objects_s, rel=1e-6)
    assert store.recompute_s < 0.7 * store.load_s
    assert host.cost_best < 0.7 * host.cost_load_all
    assert host.cost_best < 0.8 * host.cost_recompute_all
