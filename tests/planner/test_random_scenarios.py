"""Legal scenarios drawn at random: every one has an answer, and the answer agrees with itself."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from pdmodel.answer import Plan, VerdictKind
from pdmodel.choose import cost_floor
from pdmodel.errors import CoverageError
from pdmodel.hardware.catalog import load_profile
from pdmodel.planner import plan
from pdmodel.replay.engine import simulate
from pdmodel.report.export import plan_to_dict
from pdmodel.resolve import ResolvedScenario, resolve_scenario
from pdmodel.resources import names
from pdmodel.scenario import Scenario

DENSE, EXPERTS = ("qwen3-8b", "llama-3.1-8b", "llama-2-7b"), ("qwen3-30b-a3b",)
EXCHANGES = ("all_gather_reduce_scatter", "all_to_all", "dedup")


def drawn(seed: int) -> ResolvedScenario:
    """A small scenario that uses a few of everything that a file may say."""
    r = random.Random(seed)
    llm, box, other = r.choice(DENSE + EXPERTS), r.choice(names("hardware_profiles")), names("hardware_profiles")
    tp = r.choice((1, 2, 4))
    cp = r.choice((1, 1, 2))
    instances = r.choice((1, 1, 2)) if tp * cp <= 4 else 1
    exchange = r.choice(("all_reduce", *EXCHANGES)) if llm in EXPERTS else "all_reduce"
    prefill = {
        "hardware": box,
        "engine": r.choice(names("engines")),
        "tp_size": tp,
        "cp_size": cp,
        "ep_size": tp * cp if exchange != "all_reduce" else 1,
        "instances": instances,
        "all_reduce": r.choice(("nccl", "vllm_custom")),
        "cp_exchange": r.choice(("all_gather", "ring", "ulysses")),
        "ep_exchange": exchange,
        "chunk_tokens": r.choice((None, 1024)),
    }
    decode = {
        "hardware": r.choice((box, r.choice(other))),
        "tp_size": r.choice((1, 2, 4, 8)) if llm in DENSE else 4,
        "max_running_requests": r.choice((1, 4)),
        "context_tokens": 512,
    }
    requests = []
    for k in range(r.choice((1, 1, 1, 2))):
        tokens = r.choice((1, 7, 1000, 2048))
        cached = r.choice((0, 0, tokens // 2, tokens - 1))
        requests.append(
            {
                "name": f"r{k}",
                "arrival_ms": r.choice((0, 0.5)),
                "input_tokens": tokens,
                "cached_tokens": cached,
                "instance": r.randrange(instances),
                "user_price_gpus": r.choice((None, 0, 8)),
            }
        )
    raw = {
        "schema_version": 1,
        "name": f"drawn{seed}",
        "llm": llm,
        "kv_dtype": r.choice(("bf16", "fp8")),
        "prefill": prefill,
        "decode": decode,
        "requests": requests,
        "network": {"fabric_gbit_per_s": r.choice((None, None, 10))},
        "transfer": {
            "route_rule": r.choice((None, "nearest", "stripe")),
            "release_after": r.choice((None, "kv_write", "layer", "prefill")),
            "nics": r.choice((None, [load_profile(box).nics.count - 1])),
        },
        "prices": r.choice(({}, {"prefill_gpus": 0}, {"user_gpus": 0, "decode_gpus": 0, "prefill_gpus": 0})),
        "kv_slack": r.choice((0, 0.05)),
        "first_token_by": r.choice(("prefill", "decode")),
    }
    return resolve_scenario(Scenario.parse(raw | kv_path(r, requests, raw["transfer"])), f"drawn{seed}.json")


def kv_path(r: random.Random, requests: list[dict[str, object]], transfer: dict[str, object]) -> dict[str, object]:
    """Tiers, store and layouts, drawn after everything else."""
    for request in requests:
        cached = int(request["cached_tokens"])  # type: ignore[call-overload]
        first, second = sorted(r.randint(0, cached) for _ in range(2))
        request["cached_in"] = r.choice(
            ("host_memory", "store", {"hbm": first, "host_memory": second - first, "store": cached - second})
        )
    layouts = {
        "layout": r.choice((None, "nhd", "hnd")),
        "page_tokens": r.choice((None, 1, 16, 256)),
        "staging_tokens": r.choice((None, 0, 512)),
        "cross_layer": r.choice((None, True)),
    }
    policy = r.choice((None, "write_through", "write_through_selective", "write_back"))
    deep = policy in {"write_through", "write_through_selective"} and r.random() < 0.5
    return {
        "transfer": transfer | {key: value for key, value in layouts.items() if value is not None},
        "cache": {
            "write_policy": policy,
            "write_to": "store" if deep else "host_memory",
            "prefetch": r.choice(("best_effort", "wait_complete", "timeout")),
            "load_by": r.choice(("copy_engine", "kernel")),
            "reuse": r.choice(("load", "load", "best")),
        },
        "store": {
            "backend": r.choice(("mooncake_store", "mooncake_store_tcp", "3fs")),
            "place": r.choice(("prefill_host", "decode_host", "remote")),
            "lease_s": r.choice((None, 1e-4, 5.0)),
        },
    }


def check_evidence(found: Plan) -> None:
    data, replay = found.data, found.replay
    json.dumps(plan_to_dict(found), allow_nan=False)
    moved = sum((s.flow_rate * (s.end_s - s.start_s) for s in replay.segments), np.zeros(len(data.flows)))
    np.testing.assert_allclose(moved, data.volume_bytes, rtol=1e-7)
    for segment in replay.segments:
        assert (segment.critical + segment.kv <= data.capacity * (1 + 1e-7)).all()
    rows = sum(r.rate_bytes_per_s * r.duration_s * (r.last_layer - r.first_layer + 1) for r in found.schedule)
    assert rows == pytest.approx(data.volume_bytes.sum(), rel=1e-3)
    assert simulate(data, "no_kv").cost <= 1e-9


def check_costs(found: Plan) -> None:
    mine = next(policy.cost for policy in found.policies if policy.name == "plan")
    assert math.isfinite(mine)
    assert all(mine <= policy.cost * (1 + 1e-9) + 1e-12 for policy in found.policies)
    assert cost_floor(found.data) <= mine * (1 + 1e-7) + 1e-10
    if found.solver.rule:
        assert found.solver.objective == pytest.approx(mine, rel=1e-9, abs=1e-12)
    if found.verdict.kind is VerdictKind.CONTENDED:
        unmanaged = next(policy for policy in found.policies if policy.name == "unmanaged")
        assert unmanaged.cost > mine


@pytest.mark.parametrize("seed", range(28))
def test_every_legal_scenario_has_an_answer_that_agrees_with_itself(seed: int) -> None:
    try:
        found = plan(drawn(seed))
    except CoverageError as error:
        assert error.file == f"drawn{seed}.json"
        return
    check_evidence(found)
    check_costs(found)


def test_the_floor_holds_where_a_pause_lies_between_requests() -> None:
    """The first turn's late loads delay nobody who comes half a second later."""
    box = {"hardware": "rtx_5090_direct", "tp_size": 2}
    raw = {
        "schema_version": 1,
        "name": "pause",
        "llm": "qwen3-8b",
        "kv_dtype": "fp8",
        "prefill": {**box, "engine": "layerwise"},
        "decode": {**box, "tp_size": 8, "max_running_requests": 16},
        "requests": [
            {"name": "turn", "input_tokens": 65536, "cached_tokens": 65535, "user_price_gpus": 0},
            {"name": "later", "input_tokens": 1024, "arrival_ms": 500, "user_price_gpus": 8},
        ],
        "prices": {"decode_gpus": 0},
    }
    found = plan(resolve_scenario(Scenario.parse(raw), "pause.json"))
    assert found.verdict.kind is not VerdictKind.NO_SHARED_PORT
    cheapest = min(policy.cost for policy in found.policies)
    assert 0 < cost_floor(found.data) <= cheapest * (1 + 1e-9)


def test_a_plan_chooses_the_second_nic_where_nothing_but_kv_is_in_the_way() -> None:
    """One GPU, nearest NIC by rule: the other NIC halves what is sent after the prefill."""
    raw = {
        "schema_version": 1,
        "name": "two_nics",
        "llm": "qwen3-8b",
        "prefill": {"hardware": "h200_nvlink_2nic", "engine": "vllm_nixl", "tp_size": 1},
        "decode": {"hardware": "h200_nvlink_2nic", "tp_size": 8, "max_running_requests": 1},
        "requests": [{"name": "r", "input_tokens": 2048}],
        "network": {"nic_gbit_per_s": 50},
        "transfer": {"route_rule": "nearest"},
    }
    found = plan(resolve_scenario(Scenario.parse(raw), "two_nics.json"))
    cost = {policy.name: policy.cost for policy in found.policies}
    assert cost["plan"] < 0.6 * cost["residual_edf"]


@pytest.mark.parametrize("name", ["agentic_turn_one_switch", "rtx5090_staged"])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_times_do_not_depend_on_the_unit_of_bytes(name: str, scale: float) -> None:
    """Ports and payloads scaled alike change no policy's times."""
    data = plan(name).data
    scaled = replace(
        data,
        ports=tuple(
            replace(
                port,
                capacity_bytes_per_s=port.capacity_bytes_per_s * scale,
                guard_bytes_per_s=port.guard_bytes_per_s * scale,
            )
            for port in data.ports
        ),
        lanes=tuple(
            replace(
                lane,
                phases=tuple(
                    replace(phase, wire_bytes={port: size * scale for port, size in phase.wire_bytes.items()})
                    for phase in lane.phases
                ),
            )
            for lane in data.lanes
        ),
        decode_lanes=tuple(
            replace(lane, mean_bytes_per_s={port: rate * scale for port, rate in lane.mean_bytes_per_s.items()})
            for lane in data.decode_lanes
        ),
        flows=tuple(
            replace(
                flow,
                release=tuple((k, size * scale) for k, size in flow.release),
                due=tuple((k, size * scale) for k, size in flow.due),
            )
            for flow in data.flows
        ),
    )
    for policy in ("unmanaged", "strict", "residual_edf"):
        before, after = simulate(data, policy), simulate(scaled, policy)
        assert after.cost == pytest.approx(before.cost, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(after.ttft_s, before.ttft_s, rtol=1e-6)
