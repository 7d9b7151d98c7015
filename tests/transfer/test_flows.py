"""Flows of scenarios: bytes, releases, dues and routes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.llm.kv_cache import is_latent, kv_bytes_per_token, kv_bytes_per_token_layer
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_flows
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.marks import phase_marks
from pdmodel.transfer.nics import nic_order

LAYERS = 94


def flows_of(resolved, kind: FlowKind) -> list[Flow]:
    return [flow for flow in build_flows(resolved, timeline(resolved)) if flow.kind is kind]


# ---- bytes -----------------------------------------------------------------------------------------------------------
def test_copied_kv_heads_are_sent_as_often_as_they_are_kept(variant) -> None:
    """Mooncake's published table for SGLang, Qwen3-235B (4 KV heads) TP8 to TP8: 12.62 GB for 32,768 tokens."""
    changes = {"decode": {"tp_size": 8, "ep_size": 8}, "requests": [{"name": "r", "input_tokens": 32768}]}
    sends = flows_of(variant("agentic_turn_pcie", changes), FlowKind.SEND)
    assert sum(flow.volume_bytes for flow in sends) == pytest.approx(12.62e9, rel=1e-3)
    assert [(flow.source, flow.destination) for flow in sends] == [(f"P/gpu{k}", f"D/gpu{k}") for k in range(8)]


def cases() -> st.SearchStrategy[dict[str, Any]]:
    """Changes of a scenario: every degree, rule and size that decides who sends what when."""
    one = st.sampled_from
    return st.fixed_dictionaries(
        {
            "llm": one(["llama-3.1-8b", "qwen3-30b-a3b", "llama-2-7b"]),
            "prefill": st.builds(
                lambda degrees, exchange, chunk: {
                    "tp_size": degrees[0],
                    "cp_size": degrees[1],
                    "ep_size": 1,
                    "instances": 1,
                    "gpus": None,
                    "cp_exchange": exchange,
                    "chunk_tokens": chunk,
                    "ep_exchange": "all_reduce",
                },
                one([(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 4), (4, 2)]),
                one(["all_gather", "ring", "ulysses"]),
                one([None, 1000, 8192]),
            ),
            "decode": one([1, 2, 4, 8]).map(
                lambda size: {"tp_size": size, "ep_size": 1, "ep_exchange": "all_reduce", "max_running_requests": 2}
            ),
            "requests": st.builds(
                lambda new, cached: [{"name": "r", "input_tokens": new + cached, "cached_tokens": cached}],
                st.integers(1, 20_000),
                st.just(0) | st.integers(1, 12_000),
            ),
            "transfer": st.fixed_dictionaries(
                {
                    "release_after": one(["kv_write", "attention", "layer", "chunk", "prefill"]),
                    "early_send": st.booleans(),
                    "route_rule": one(["nearest", "stripe"]),
                    "context_senders": one(["first", "all"]),
                }
            ),
        }
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=cases())
def test_every_byte_is_released_once_and_due_once(variant, changes: dict[str, Any]) -> None:
    prefill, request = changes["prefill"], changes["requests"][0]
    tp_size, cp_size, exchange = prefill["tp_size"], prefill["cp_size"], prefill["cp_exchange"]
    decode, prompt, cached = changes["decode"]["tp_size"], request["input_tokens"], request["cached_tokens"]
    resolved = variant("seed_h200_nvlink", changes)
    built = timeline(resolved)
    flows = build_flows(resolved, built)
    arch = resolved.arch
    per_token = kv_bytes_per_token(arch, resolved.spec.kv_dtype)
    shards = tp_size * (cp_size if exchange == "ulysses" else 1)
    kept = max(1.0, shards / arch.kv_heads) * (cp_size if exchange == "all_gather" else 1)
    sends = [flow for flow in flows if flow.kind is FlowKind.SEND]
    loads = [flow for flow in flows if flow.kind is FlowKind.LOAD]
    sent, loaded = (sum(flow.volume_bytes for flow in group) for group in (sends, loads))
    assert sent == pytest.approx(per_token * prompt * max(1.0, decode / arch.kv_heads), rel=1e-12)
    assert loaded == pytest.approx(per_token * cached * kept, rel=1e-12)
    count = len(built.lanes[0].phases)
    for flow in flows:
        assert sum(size for _, size in flow.due) == pytest.approx(flow.volume_bytes, rel=1e-12)
        steps = [phase for phase, _ in flow.release]
        assert steps == sorted(set(steps)) and steps[0] >= 0 and steps[-1] <= count
        assert all(size > 0 for _, size in flow.release)
        assert sum(flow.split) == pytest.approx(1.0)
        # Released no later than due, byte by byte.
        for phase, _ in flow.due:
            due = sum(size for k, size in flow.due if k <= phase)
            assert sum(size for k, size in flow.release if k <= phase) >= due * (1 - 1e-12)
    assert {flow.due[0][0] for flow in sends} == {count}


# ---- releases and dues -----------------------------------------------------------------------------------------------
def test_loads_gate_the_attention_of_their_layer(variant) -> None:
    resolved = variant("agentic_turn_pcie")
    built = timeline(resolved)
    phases = built.lanes[0].phases
    (load, *_) = [flow for flow in build_flows(resolved, built) if flow.kind is FlowKind.LOAD]
    assert load.release == ((0, load.volume_bytes),)
    assert len(load.due) == LAYERS
    gates = [phases[k] for k, _ in load.due]
    assert [phase.layer for phase in gates] == list(range(LAYERS))
    assert all(phase.operation == "attention+o_proj" and phase.chunk == 0 for phase in gates)
    assert {size for _, size in load.due} == {63_488 * 512}  # one of four KV heads, key and value, bf16


def test_early_send_follows_the_loads_and_new_tokens_the_engine(variant) -> None:
    resolved = variant("agentic_turn_pcie")
    built = timeline(resolved)
    flows = build_flows(resolved, built)
    load = next(flow for flow in flows if flow.kind is FlowKind.LOAD)
    send = next(flow for flow in flows if flow.kind is FlowKind.SEND)
    assert [k for k, _ in send.release[:-1]] == [k for k, _ in load.due]
    end = len(built.lanes[0].phases)
    assert send.release[-1] == (end, LAYERS * 2048 * 512)
    late = variant("agentic_turn_pcie", {"transfer": {"early_send": False}})
    assert flows_of(late, FlowKind.SEND)[0].release == ((end, LAYERS * 65_536 * 512),)


@pytest.mark.parametrize("release", ["kv_write", "attention", "layer"])
def test_layer_by_layer_release_is_where_it_says(variant, release: str) -> None:
    resolved = variant("rtx_pro_6000_qwen3_235b", {"transfer": {"release_after": release}})
    built = timeline(resolved)
    phases = built.lanes[0].phases
    send = build_flows(resolved, built)[0]
    assert len(send.release) == LAYERS * 4
    for k, size in send.release[:-1]:
        before, after = phases[k - 1], phases[k]
        assert size == 8192 * 512
        if release == "kv_write":
            assert before.operation == "qkv" and after.operation == "attention+o_proj"
        elif release == "attention":
            assert before.operation == "qkv+attention" and after.operation == "o_proj"
        else:
            assert before.operation == "tp_all_reduce_mlp"


def test_chunks_and_requests_on_one_lane(variant) -> None:
    resolved = variant("urgent_user")
    built = timeline(resolved)
    phases = built.lanes[0].phases
    sends = flows_of(resolved, FlowKind.SEND)
    ends = {name: max(k for k, phase in enumerate(phases) if phase.request == name) + 1 for name in "AB"}
    for name in "AB":
        mine = [flow for flow in sends if flow.request == name]
        assert len(mine) == 8, "each of four source ranks has two heads, each for another destination"
        for flow in mine:
            assert [phases[k - 1].chunk for k, _ in flow.release] == [0, 1]
            assert flow.release[-1][0] == ends[name] and flow.due == ((ends[name], flow.volume_bytes),)


def test_a_pulling_engine_starts_after_the_prefill(variant) -> None:
    resolved = variant("rtx_pro_6000_qwen3_32b_tp4")
    built = timeline(resolved)
    for flow in build_flows(resolved, built):
        assert flow.release == ((len(built.lanes[0].phases), 8192 * 65_536.0),)


def test_loads_of_a_late_request_wait_for_its_arrival(variant) -> None:
    requests = [
        {"name": "A", "input_tokens": 8192},
        {"name": "B", "input_tokens": 12288, "cached_tokens": 4096, "arrival_ms": 9000},
    ]
    resolved = variant("urgent_user", {"requests": requests})
    built = timeline(resolved)
    load = next(flow for flow in build_flows(resolved, built) if flow.kind is FlowKind.LOAD)
    assert built.lanes[0].phases[load.release[0][0] - 1].operation == "arrival"


def test_an_engine_that_loads_on_demand_starts_a_layer_late(variant, tmp_path) -> None:
    import json

    from pdmodel.resources import resolve

    raw = json.loads(resolve("engines", "sglang_mooncake").read_text())
    raw["load_ahead"]["value"] = False
    path = tmp_path / "demand.json"
    path.write_text(json.dumps(raw))
    resolved = variant("agentic_turn_pcie", {"prefill": {"engine": str(path)}})
    built = timeline(resolved)
    chunk = phase_marks(built.lanes[0])["turn"][0]
    load = next(flow for flow in build_flows(resolved, built) if flow.kind is FlowKind.LOAD)
    assert [k for k, _ in load.release] == [chunk.start] + [chunk.layers[layer].end for layer in range(LAYERS - 1)]
    assert all(start <= gate for (start, _), (gate, _) in zip(load.release, load.due, strict=True))


# ---- routes ----------------------------------------------------------------------------------------------------------
def test_the_nearest_nic_by_default_and_the_other_as_a_choice(variant) -> None:
    sends = flows_of(variant("agentic_turn_pcie"), FlowKind.SEND)
    for flow in sends:
        near, other = ("P/nic0", "P/nic1") if int(flow.source[-1]) < 4 else ("P/nic1", "P/nic0")
        assert [route.device for route in flow.routes] == [near, other] and flow.split == (1.0, 0.0)
        assert not any("switch" in port for port in flow.routes[0].ports)
        assert any("switch" in port for port in flow.routes[1].ports)
    none = flows_of(variant("agentic_turn_pcie", {"transfer": {"alternative_nics": 0}}), FlowKind.SEND)
    assert all(len(flow.routes) == 1 for flow in none)


def test_striping_and_a_list_of_nics(variant) -> None:
    stripes = flows_of(variant("agentic_turn_pcie", {"transfer": {"route_rule": "stripe"}}), FlowKind.SEND)
    assert all(flow.split == (0.5, 0.5) for flow in stripes)
    assert {route.device for flow in stripes for route in flow.routes} == {"P/nic0", "P/nic1"}
    single = flows_of(variant("agentic_turn_pcie", {"transfer": {"nics": [1], "decode_nics": [0]}}), FlowKind.SEND)
    assert {route.device for flow in single for route in flow.routes} == {"P/nic1"}
    assert all("D/nic0/rx" in flow.routes[0].ports for flow in single)


def test_equally_near_nics_take_turns(variant) -> None:
    box = variant("seed_h200_nvlink").prefill_box
    first = [nic_order(box, gpu, (0, 1))[0] for gpu in range(box.gpu_count)]
    assert {first.count(0), first.count(1)} == {4}
    with pytest.raises(InputError, match="no NIC is left"):
        nic_order(box, 0, ())


def test_staged_kv_crosses_host_memory_twice_on_either_side(variant) -> None:
    resolved = variant("rtx5090_staged", {"network": {"fabric_gbit_per_s": 400}})
    for flow in flows_of(resolved, FlowKind.SEND):
        route = flow.routes[0]
        assert route.staged and route.ports["fabric"] == 1.0
        memory = {
            node: sum(m for port, m in route.ports.items() if port.startswith(node) and port.endswith("host_memory"))
            for node in "PD"
        }
        assert memory == {"P": 2.0, "D": 2.0}


def test_loads_queue_on_the_copy_engine_of_their_gpu(variant) -> None:
    for flow in flows_of(variant("rtx5090_staged", {"cache": {"load_by": "copy_engine"}}), FlowKind.LOAD):
        (route,) = flow.routes
        assert route.fifo and route.device == f"{flow.destination}/h2d"


# ---- latents ---------------------------------------------------------------------------------------------------------
def test_a_latent_goes_whole_to_every_decode_rank(variant) -> None:
    resolved = variant("mla_deepseek_v3_pcie")
    sends = flows_of(resolved, FlowKind.SEND)
    assert is_latent(resolved.arch) and len(sends) == 8
    per_layer = kv_bytes_per_token_layer(resolved.arch, resolved.spec.kv_dtype)
    assert {flow.volume_bytes for flow in sends} == {32_768 * 61 * per_layer}
    cached = variant("mla_deepseek_v3_pcie", {"requests": [{"name": "r", "input_tokens": 8192, "cached_tokens": 4096}]})
    assert {flow.volume_bytes for flow in flows_of(cached, FlowKind.LOAD)} == {4096 * 61 * per_layer}
