"""Phases of prefill lanes and the decode step: what is there, in which order, with which bytes."""

from collections import Counter
from typing import Any

import pytest

from pdmodel.errors import InputError
from pdmodel.resolve import ResolvedScenario
from pdmodel.timeline.build import timeline
from pdmodel.timeline.clock import phase_times
from pdmodel.timeline.phases import Lane, PhaseKind

MOE = "qwen3-30b-a3b"


def operations(lane: Lane, layer: int = 3, chunk: int = 0, request: str | None = None) -> list[str]:
    return [
        phase.operation
        for phase in lane.phases
        if phase.layer == layer and phase.chunk == chunk and request in (None, phase.request)
    ]


def lane_of(resolved: ResolvedScenario) -> Lane:
    return timeline(resolved).lanes[0]


def moe_on_h200(variant, prefill: dict[str, Any]) -> Lane:
    changes = {
        "llm": MOE,
        "prefill": {"gpus": None, "instances": 1, "tp_size": 1, "cp_size": 1, "ep_size": 1, **prefill},
        "requests": [{"name": "r", "input_tokens": 16384}],
    }
    return lane_of(variant("seed_h200_nvlink", changes))


def test_qwen3_32b_tp4_reduces_after_every_block(variant) -> None:
    lane = lane_of(variant("rtx_pro_6000_qwen3_32b_tp4"))
    reduces = [
        phase for phase in lane.phases if phase.operation.endswith("all_reduce") or "all_reduce_" in phase.operation
    ]
    assert len(reduces) == 129
    assert all(phase.wire_bytes["P/gpu0/egress"] >= 1.5 * 8192 * 5120 * 2 for phase in reduces)


def test_a_dense_layer_on_tp_in_order(variant) -> None:
    lane = lane_of(variant("urgent_user"))
    assert operations(lane, request="A") == ["qkv+attention+o_proj", "tp_all_reduce_attn", "mlp", "tp_all_reduce_mlp"]
    assert [phase.operation for phase in lane.phases[:2]] == ["embedding", "embedding_all_reduce"]
    assert lane.phases[2].id == "A/c0/l0/qkv+attention+o_proj"
    ends = [phase.id for phase in lane.phases if phase.operation == "logits"]
    assert ends == ["A/c1/logits", "B/c1/logits"], "only the last chunk of a request is sampled from"


def test_later_chunks_attend_to_earlier_ones(variant) -> None:
    lane = lane_of(variant("urgent_user"))
    first, second = (
        next(p for p in lane.phases if p.request == "A" and p.chunk == chunk and p.layer == 0).duration_s
        for chunk in (0, 1)
    )
    assert second > 1.5 * first


@pytest.mark.parametrize(
    ("release", "cached", "first", "later"),
    [
        ("chunk", 0, ["qkv+attention+o_proj"], ["qkv+attention+o_proj"]),
        ("kv_write", 0, ["qkv", "attention+o_proj"], ["qkv", "attention+o_proj"]),
        ("attention", 0, ["qkv+attention", "o_proj"], ["qkv+attention", "o_proj"]),
        ("layer", 4096, ["qkv", "attention+o_proj"], ["qkv+attention+o_proj"]),
        ("prefill", 4096, ["qkv", "attention+o_proj"], ["qkv+attention+o_proj"]),
    ],
)
def test_compute_is_cut_where_kv_is_released_or_awaited(
    variant, release: str, cached: int, first: list[str], later: list[str]
) -> None:
    changes = {
        "transfer": {"release_after": release},
        "requests": [{"name": "A", "input_tokens": 16384 + cached, "cached_tokens": cached}],
    }
    lane = lane_of(variant("urgent_user", changes))
    tail = ["tp_all_reduce_attn", "mlp", "tp_all_reduce_mlp"]
    assert operations(lane, chunk=0) == [*first, *tail]
    assert operations(lane, chunk=1) == [*later, *tail]


def test_equal_layers_share_their_bytes(variant) -> None:
    lane = lane_of(variant("rtx_pro_6000_qwen3_235b"))
    reduces = [phase for phase in lane.phases if phase.operation == "tp_all_reduce_mlp"]
    assert len(reduces) == 94 * 4
    assert len({id(phase.wire_bytes) for phase in reduces}) == 1
    assert len({id(phase.input_links) for phase in reduces}) == 1


def test_a_ring_all_reduce_leaves_two_thirds_of_three_halves_on_each_port(variant) -> None:
    """2 (n-1)/n of tokens x hidden x 2 bytes leave and enter each GPU."""
    lane = lane_of(variant("rtx_pro_6000_qwen3_235b"))
    reduce = next(phase for phase in lane.phases if phase.operation == "tp_all_reduce_attn")
    payload = 1.5 * 8192 * 4096 * 2
    for gpu in range(4):
        assert reduce.wire_bytes[f"P/gpu{gpu}/egress"] == pytest.approx(payload, rel=1e-9)
    assert "P/gpu4/egress" not in reduce.wire_bytes


def test_tp_groups_of_a_cp_instance_reduce_their_own_tokens_at_once(variant) -> None:
    changes = {"llm": "qwen3-32b", "prefill": {"ep_size": 1, "ep_exchange": "all_reduce"}, "decode": {"ep_size": 1}}
    lane = lane_of(variant("seed_h200_nvlink", changes))
    reduce = next(phase for phase in lane.phases if phase.operation == "tp_all_reduce_attn")
    half = 2 * (1 / 2) * (8192 / 2) * 5120 * 2
    assert {port for port in reduce.wire_bytes if port.endswith("egress")} == {
        f"P/gpu{k}/nvlink_egress" for k in range(4)
    }
    assert all(size == pytest.approx(half, rel=0.1) for size in reduce.wire_bytes.values())


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        ("all_gather", ["qkv", "cp_all_gather", "attention+o_proj"]),
        ("ring", ["qkv", "attention", "o_proj"]),
        ("ulysses", ["qkv", "cp_ulysses", "attention", "cp_ulysses_back", "o_proj"]),
    ],
)
def test_context_parallel_exchanges(variant, exchange: str, expected: list[str]) -> None:
    changes = {
        "llm": "llama-3.1-8b",
        "prefill": {"tp_size": 1, "cp_size": 4, "ep_size": 1, "ep_exchange": "all_reduce", "cp_exchange": exchange},
        "decode": {"ep_size": 1, "ep_exchange": "all_reduce"},
    }
    lane = lane_of(variant("seed_h200_nvlink", changes))
    # Without TP nothing follows the MLP, so it is one phase with what comes before it in its layer.
    assert operations(lane)[: len(expected) - 1] == expected[:-1]
    assert operations(lane)[-1].startswith(expected[-1]) and operations(lane)[-1].endswith("mlp")
    attention = next(phase for phase in lane.phases if "attention" in phase.operation.split("+"))
    assert attention.kind is (PhaseKind.FUSED if exchange == "ring" else PhaseKind.COMPUTE)
    moved = sum(
        phase.wire_bytes.get("P/gpu0/nvlink_egress", 0.0)
        for phase in lane.phases
        if phase.layer == 3 and phase.chunk == 0
    )
    kv = 3 / 4 * 8192 * 4096
    queries = 3 / 4 * 2048 * 2 * (32 * 128 + 2 * 8 * 128 + 32 * 128)
    assert moved == pytest.approx(queries if exchange == "ulysses" else kv, rel=0.1)


def test_a_ring_hides_behind_attention_and_a_gather_does_not(variant) -> None:
    def total(exchange: str) -> float:
        changes = {
            "llm": "llama-3.1-8b",
            "prefill": {"tp_size": 1, "cp_size": 4, "ep_size": 1, "ep_exchange": "all_reduce", "cp_exchange": exchange},
            "decode": {"ep_size": 1, "ep_exchange": "all_reduce"},
        }
        return sum(phase.duration_s for phase in lane_of(variant("seed_h200_nvlink", changes)).phases)

    assert total("ring") < total("all_gather")


def test_a_ring_passes_the_kv_of_earlier_chunks_round_again(variant) -> None:
    def moved(exchange: str, chunk: int) -> float:
        changes = {
            "llm": "llama-3.1-8b",
            "prefill": {"tp_size": 1, "cp_size": 4, "ep_size": 1, "ep_exchange": "all_reduce", "cp_exchange": exchange},
            "decode": {"ep_size": 1, "ep_exchange": "all_reduce"},
        }
        phases = [p for p in lane_of(variant("seed_h200_nvlink", changes)).phases if p.layer == 3 and p.chunk == chunk]
        return sum(phase.wire_bytes.get("P/gpu0/nvlink_egress", 0.0) for phase in phases)

    assert moved("ring", 2) == pytest.approx(3 * moved("ring", 0))
    assert moved("all_gather", 2) == pytest.approx(moved("all_gather", 0))


def test_experts_behind_an_all_reduce(variant) -> None:
    lane = moe_on_h200(variant, {"tp_size": 4, "ep_size": 4, "ep_exchange": "all_reduce"})
    assert operations(lane) == ["qkv+attention+o_proj", "tp_all_reduce_attn", "router+experts", "tp_all_reduce_mlp"]


@pytest.mark.parametrize("exchange", ["all_gather_reduce_scatter", "all_to_all", "dedup"])
def test_experts_that_tokens_travel_to(variant, exchange: str) -> None:
    lane = moe_on_h200(variant, {"tp_size": 4, "ep_size": 4, "ep_exchange": exchange})
    assert operations(lane) == [
        "qkv+attention+o_proj",
        "tp_reduce_scatter_attn",
        "router",
        "ep_dispatch",
        "experts",
        "ep_combine",
        "tp_all_gather_mlp",
    ]


def test_the_fused_kernel_spreads_its_traffic_over_its_compute(variant) -> None:
    lane = moe_on_h200(variant, {"tp_size": 2, "cp_size": 2, "ep_size": 4, "ep_exchange": "fused"})
    found = operations(lane)
    assert found[:2] == ["qkv", "cp_all_gather"] and found[-3:] == ["router", "experts", "tp_all_gather_mlp"]
    fused = next(phase for phase in lane.phases if phase.operation == "experts")
    assert fused.kind is PhaseKind.FUSED and fused.wire_bytes["P/gpu0/nvlink_egress"] > 0


def test_dense_layers_before_the_experts_keep_their_all_reduces(variant) -> None:
    lane = lane_of(variant("mla_deepseek_v3_pcie"))
    assert "mlp" in operations(lane, layer=2) and "router+shared_expert+experts" in operations(lane, layer=3)
    assert Counter(p.operation for p in lane.phases if p.chunk == 0)["tp_all_reduce_mlp"] == 61


def test_a_later_request_waits_for_its_arrival_and_for_the_lane(variant) -> None:
    requests = [
        {"name": "B", "input_tokens": 12288, "cached_tokens": 4096, "arrival_ms": 9000},
        {"name": "A", "input_tokens": 8192},
    ]
    built = timeline(variant("urgent_user", {"requests": requests}))
    lane = built.lanes[0]
    assert [name for name, _ in Counter(phase.request for phase in lane.phases).items()] == ["A", "B"]
    start, end, _ = phase_times(built.clock, 0, [phase.not_before_s for phase in lane.phases])
    first = next(i for i, phase in enumerate(lane.phases) if phase.request == "B")
    arrival = lane.phases[first]
    assert arrival.operation == "arrival" and arrival.duration_s == 0.0
    assert end[first - 1] < 9.0 and start[first + 1] == pytest.approx(9.0)


def test_no_collective_is_faster_than_its_ports(variant) -> None:
    for name in ("rtx5090_staged", "seed_h200_nvlink", "agentic_turn_pcie"):
        built = timeline(variant(name))
        capacity = {port.name: port.capacity_bytes_per_s for port in built.ports}
        for lane in built.lanes:
            for phase in lane.phases:
                for port, size in phase.wire_bytes.items():
                    assert size / capacity[port] <= phase.duration_s * (1 + 1e-6), (name, phase.id, port)


def test_groups_that_share_an_uplink_are_slowed_together_and_it_is_said(variant) -> None:
    """Two TP4 groups whose rings cross the uplinks at every hop: each alone fits, both together do not."""
    changes = {
        "llm": "qwen3-32b",
        "prefill": {"tp_size": 4, "cp_size": 2, "ep_size": 1, "gpus": [[0, 4, 1, 5, 2, 6, 3, 7]]},
        "decode": {"ep_size": 1},
        "requests": [{"name": "r", "input_tokens": 8192}],
    }
    built = timeline(variant("agentic_turn_pcie", changes))
    raised = [text for text in built.warnings if text.startswith("tp_all_reduce_attn")]
    assert len(raised) == 1 and "P/switch" in raised[0] and "raised to that" in raised[0]
    reduce = next(phase for phase in built.lanes[0].phases if phase.operation == "tp_all_reduce_attn")
    capacity = {port.name: port.capacity_bytes_per_s for port in built.ports}
    slowest = max(size / capacity[port] for port, size in reduce.wire_bytes.items())
    assert reduce.duration_s == pytest.approx(slowest, rel=1e-9)


def test_the_decode_step_as_mean_and_peak(variant) -> None:
    resolved = variant("rtx_pro_6000_qwen3_32b_tp4", {"decode": {"all_reduce": "nccl"}})
    lane = timeline(resolved).decode_lanes[0]
    assert lane.name == "decode0" and lane.gpus == 4 and 0.005 < lane.step_s < 0.2
    port = "D/gpu0/egress"
    # 129 all-reduces of 32 tokens, at 1.5 times their size (more where flags travel with the data).
    least = 129 * 1.5 * 32 * 5120 * 2
    assert least <= lane.mean_bytes_per_s[port] * lane.step_s <= 2.2 * least
    assert lane.peak_bytes_per_s[port] > lane.mean_bytes_per_s[port]
    assert lane.input_links[port]


def test_what_is_assumed_is_said(variant) -> None:
    built = timeline(variant("rtx5090_staged"))
    assert any("compute constants of rtx_5090_direct" in text and "gemm" in text for text in built.assumed)
    assert any("non-blocking" in text for text in built.assumed)
    assert any("host_duplex_collapse" in text for text in built.hazards)
    bounded = timeline(variant("rtx5090_staged", {"network": {"fabric_gbit_per_s": 400}}))
    assert not any("non-blocking" in text for text in bounded.assumed)
    assert "fabric" in {port.name for port in bounded.ports}


def test_guards_and_nic_rates_of_the_scenario_reach_the_ports(variant) -> None:
    base = {port.name: port for port in variant("agentic_turn_pcie").ports}
    resolved = variant("agentic_turn_pcie", {"guards_gb_per_s": {"gpu_egress": 5}, "network": {"nic_gbit_per_s": 100}})
    ports = {port.name: port for port in resolved.ports}
    assert ports["P/gpu0/egress"].guard_bytes_per_s == 5e9
    assert ports["P/gpu0/ingress"] == base["P/gpu0/ingress"]
    for name in ("P/nic0/tx", "D/nic1/rx"):
        assert ports[name].capacity_bytes_per_s == pytest.approx(base[name].capacity_bytes_per_s / 4)
    with pytest.raises(InputError, match="guards_gb_per_s"):
        variant("agentic_turn_pcie", {"guards_gb_per_s": {"gpu_exit": 5}})
