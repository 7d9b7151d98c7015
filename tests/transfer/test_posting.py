"""Posting threads and message rates as ports: they hold a transfer up exactly as the law of a transfer says."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.costs.kv_layout import caches, completion_s, engine_constants, engine_slicing, hand_over, route_path
from pdmodel.costs.kv_layout.timing import Setting
from pdmodel.hardware.ports import REFERENCE_BYTES, PortKind, Route
from pdmodel.planner import simulate
from pdmodel.replay.policies import PlanPolicy
from pdmodel.resolve import prices
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.flows import FlowKind
from pdmodel.transfer.layout import exchange_of
from pdmodel.transfer.nics import Routes
from pdmodel.transfer.posting import never_binds
from pdmodel.transfer.sends import parts_of

ALONE = {"tp_size": 4, "cp_size": 1, "ep_size": 1, "instances": 1, "gpus": None, "ep_exchange": "all_reduce"}


def mismatch(transfer: dict[str, Any] | None = None, tokens: int = 4096, **prefill: Any) -> dict[str, Any]:
    """TP4 to TP8 of an LLM with 8 KV heads, pages of tokens, all sent when the prefill has ended."""
    return {
        "llm": "qwen3-8b",
        "prefill": ALONE | {"chunk_tokens": None} | prefill,
        "decode": {"tp_size": 8, "ep_size": 1, "ep_exchange": "all_reduce", "max_running_requests": 8},
        "requests": [{"name": "r", "input_tokens": tokens, "user_price_gpus": 8}],
        "transfer": {"staging_tokens": 0, "release_after": "prefill"} | (transfer or {}),
    }


def record(resolved: Any) -> AllocationData:
    built = timeline(resolved)
    return AllocationData.build(built, build_transfers(resolved, built), prices(resolved))


def law_s(resolved: Any) -> Any:
    """The hand-over by the closed form, on the scenario's own routes."""
    (request,), routes = resolved.requests, Routes(resolved)
    (placement,) = resolved.prefill

    def ways(source: int, target: int) -> Any:
        return routes.between(placement.gpus[source], resolved.decode.gpus[target])

    setting = Setting(
        route_path(ways, routes.capacity),
        engine_constants(resolved.engine, resolved.posting_threads),
        engine_slicing(resolved.engine),
        mode=resolved.engine.mode.value,
    )
    kept = caches(resolved.arch, request.input_tokens, resolved.spec.kv_dtype)
    return hand_over(exchange_of(resolved, request), kept, setting).terms


def moving_s(data: AllocationData, replay: Any) -> float:
    """From the end of the prefill to the last byte."""
    return float(np.nanmax(replay.flow_finish_s) - replay.lanes[0].end_s[-1])


# ---- the law is what a replay does -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("transfer", "bound_by"),
    [
        ({}, "descriptors"),
        ({"posting_threads": 4}, "descriptors"),
        ({"layout": "hnd", "page_tokens": 16}, "descriptors"),
        ({"layout": "hnd", "page_tokens": 16, "posting_threads": 400}, "bandwidth"),
        ({"posting_threads": 400}, "messages"),
        ({"staging_tokens": 1024}, "bandwidth"),
    ],
)
@pytest.mark.parametrize("engine", ["sglang_mooncake", "vllm_nixl"])
def test_the_last_send_is_there_when_the_law_says(variant, engine: str, transfer: Any, bound_by: str) -> None:
    changes = mismatch({"layout": "nhd", "route_rule": "nearest", "alternative_nics": 0} | transfer, engine=engine)
    resolved = variant("seed_h200_nvlink", changes)
    terms, data = law_s(resolved), record(resolved)
    middle = max(terms.bandwidth_s, terms.descriptors_s, terms.messages_s)
    assert terms.bound_by.value == bound_by
    assert moving_s(data, simulate(data, "unmanaged")) == pytest.approx(middle, rel=1e-6)
    planned = solve_elastic(data)
    assert moving_s(data, simulate(data, PlanPolicy(planned.schedule))) == pytest.approx(middle, rel=1e-6)
    kinds = {port.kind for port, price in zip(data.ports, planned.shadow_price, strict=True) if price > 1e-15}
    assert bool(kinds & {PortKind.POSTING}) == (bound_by == "descriptors")
    assert bool(kinds & {PortKind.MESSAGES}) == (bound_by == "messages")


def test_the_price_of_posting_is_what_a_faster_thread_saves(variant) -> None:
    resolved = variant("seed_h200_nvlink", mismatch({"alternative_nics": 0}))
    data = record(resolved)
    found = solve_elastic(data)
    posting = [e for e, port in enumerate(data.ports) if port.kind is PortKind.POSTING]
    step = 1e-4
    ports = tuple(
        replace(port, capacity_bytes_per_s=port.capacity_bytes_per_s * (1 + step)) if e in posting else port
        for e, port in enumerate(data.ports)
    )
    faster = solve_elastic(replace(data, ports=ports))
    gained = sum(found.shadow_price[e] * data.capacity[e] * step for e in posting)
    assert gained == pytest.approx(found.objective - faster.objective, rel=2e-3)


@pytest.mark.parametrize("release", ["layer", "chunk"])
@pytest.mark.parametrize("staged", [0, 1024])
def test_pieces_that_are_sent_as_they_are_computed(variant, release: str, staged: int) -> None:
    """F = max_j (C_j + sum_{k >= j} v_k / B), with B what posting or the wire carries."""
    changes = mismatch(
        {"release_after": release, "staging_tokens": staged, "alternative_nics": 0},
        tp_size=1,
        chunk_tokens=2048,
        tokens=8192,
    )
    changes["decode"]["tp_size"] = 2
    resolved = variant("seed_h200_nvlink", changes)
    data = record(resolved)
    replay = simulate(data, "unmanaged")
    ends = replay.lanes[0].end_s
    for f, flow in enumerate(data.flows):
        steps = [(float(ends[k - 1]), size) for k, size in flow.release]
        times = [time for time, _ in steps]
        compute = [times[0], *np.diff(times)]
        consumed = np.zeros(len(data.ports))
        for other in data.flows:
            consumed += [other.routes[0].ports.get(port.name, 0.0) for port in data.ports]
        rate = float((data.capacity[consumed > 0] / consumed[consumed > 0]).min())
        wanted = completion_s(compute, [size for _, size in steps], rate)
        assert replay.flow_finish_s[f] == pytest.approx(wanted, rel=1e-6)
        assert bool(staged) == (len(data.ports) == len(resolved.ports))


# ---- what is charged -------------------------------------------------------------------------------------------------
def test_a_port_of_threads_is_w_over_tau_and_bytes_count_by_their_length(variant) -> None:
    resolved = variant("seed_h200_nvlink", mismatch({"posting_threads": 2}))
    found = build_transfers(resolved, timeline(resolved))
    ports = {port.name: port for port in found.ports}
    assert sorted(ports) == [f"P/gpu{k}/posting" for k in range(4)]
    assert [port.capacity_bytes_per_s for port in found.ports] == pytest.approx([2 * 65536 / 3.4e-6] * 4)
    assert {port.kind for port in found.ports} == {PortKind.POSTING}
    for flow in found.flows:
        for route in flow.routes:
            assert route.ports[f"{flow.source}/posting"] == pytest.approx(65536 / 256)


def test_who_pulls_posts(variant) -> None:
    resolved = variant("seed_h200_nvlink", mismatch({"layout": "nhd"}, engine="vllm_nixl"))
    ports = build_transfers(resolved, timeline(resolved)).ports
    assert sorted(port.name for port in ports) == [f"D/gpu{k}/posting" for k in range(8)]


@pytest.mark.parametrize("name", ["agentic_turn_pcie", "seed_h200_nvlink", "mla_deepseek_v3_pcie"])
def test_ports_that_can_never_be_full_are_left_out(variant, name: str) -> None:
    resolved = variant(name)
    assert build_transfers(resolved, timeline(resolved)).ports == ()


@given(st.data())
def test_a_port_that_is_left_out_is_never_full(data: st.DataObject) -> None:
    """Whatever rates the other ports allow, the load of a port that `never_binds` is at most its capacity."""
    positive = st.floats(0.1, 10)
    names = ["a", "b", "c"]
    capacity = {name: data.draw(positive) for name in [*names, "x"]}
    routes = [
        Route(str(k), {"x": data.draw(positive)} | {name: data.draw(positive) for name in data.draw(st.sets(
            st.sampled_from(names), min_size=1))})
        for k in range(data.draw(st.integers(1, 4)))
    ]  # fmt: skip
    if never_binds("x", routes, set(names), capacity):
        rates = [data.draw(st.floats(0, 10)) for _ in routes]
        fullest = max(
            sum(route.ports.get(name, 0.0) * rate for route, rate in zip(routes, rates, strict=True)) / capacity[name]
            for name in names
        )
        load = sum(route.ports["x"] * rate for route, rate in zip(routes, rates, strict=True)) / capacity["x"]
        assert load <= fullest * (1 + 1e-9) + 1e-12


def test_the_reference_piece_is_one_of_mooncakes_slices(variant) -> None:
    resolved = variant("seed_h200_nvlink", mismatch())
    assert engine_slicing(resolved.engine).slice_bytes == REFERENCE_BYTES
    (request,) = resolved.requests
    parts = parts_of(resolved, request)
    sends = [flow for flow in build_transfers(resolved, timeline(resolved)).flows if flow.kind is FlowKind.SEND]
    assert [part.pieces.size_bytes for part in parts] == pytest.approx([flow.volume_bytes for flow in sends])
    assert {part.pieces.run_bytes for part in parts} == {256}
