"""Printed figures of shipped scenarios against arithmetic on their inputs, without any function of the package."""

import re
from functools import cache

import pytest

from pdmodel.planner import plan

GB = 1e9
QWEN3_235B = {"layers": 94, "hidden": 4096, "kv_bytes": 94 * 2 * 4 * 128 * 2}
QWEN3_32B = {"layers": 64, "hidden": 5120, "kv_bytes": 64 * 2 * 8 * 128 * 2}
REQUESTS = 24 / 512
SM_REQUESTS = 24 / 128  # a kernel loads 128 bytes at a time
GUARD = 0.03


@cache
def planned(name):
    return plan(name)


def port(name, which):
    return next(port for port in planned(name).ports if port.name == which)


def all_reduce_bytes(llm, tokens, ranks):
    """One pass: two all-reduces a layer and one of the embedding, each 2 (n-1)/n of tokens x hidden x 2 byte."""
    return (2 * llm["layers"] + 1) * 2 * (ranks - 1) / ranks * tokens * llm["hidden"] * 2


def test_flagship_ports():
    """Four of eight ranks behind each uplink load a quarter of the KV each (4 KV heads on 8 ranks: two copies)."""
    name = "agentic_turn_pcie"
    load, send = 63_488 * QWEN3_235B["kv_bytes"] / 4, 65_536 * QWEN3_235B["kv_bytes"] / 4
    critical = all_reduce_bytes(QWEN3_235B, 2048, 8)
    expected = {
        "P/switch0/down": (critical, 4 * load),
        "P/switch0/up": (critical, 4 * load * SM_REQUESTS),
        "P/gpu0/egress": (critical, send + load * SM_REQUESTS),
        "P/gpu1/egress": (critical, load * SM_REQUESTS),
        "P/gpu0/ingress": (critical, load + send * REQUESTS),
        "P/gpu1/ingress": (critical, load),
        "P/root_complex0": (0.0, 8 * load),
        "P/nic0/tx": (0.0, 2 * send),
        "D/nic0/rx": (0.0, 4 * send),
    }
    for which, (critical_bytes, kv_bytes) in expected.items():
        assert port(name, which).critical_bytes == pytest.approx(critical_bytes)
        assert port(name, which).kv_bytes == pytest.approx(kv_bytes)
    bound = planned(name).bound
    assert bound.kv_to_critical_ratio == pytest.approx(4 * load / critical)
    assert bound.port == "P/switch0/down"
    # The new tokens' KV leaves after the chunk, through one NIC of 46 GB/s; the engine sets up and hands over.
    times = planned(name).times
    after = 1.84e-3 + 2e-3
    assert times.control_s == pytest.approx(2e-3 + after), "the handshake: nothing comes before this request"
    sent = 2048 * QWEN3_235B["kv_bytes"] / (46 * GB)
    assert times.decode_stall_s == pytest.approx(sent + after, rel=1e-6)


def test_the_nic_cap_is_what_a_nic_sends_not_what_a_flow_sends():
    """Two ranks a NIC; while the ring runs, each GPU's egress leaves C (1 - guard) less the ring's own rate."""
    found = next(line for line in planned("agentic_turn_pcie").settings if "ratelimit" in line.name)
    ring = 2 * 7 / 8 * 2048 * 4096 * 2 / (23.07e-6 + 2048 * 4096 * 2 / (26.31 * GB))
    assert float(found.value) == pytest.approx(2 * (56.3 * GB * (1 - GUARD) - ring) * 8 / GB, rel=0.01)
    assert not any("ratelimit" in line.name for line in planned("slow_nic_infeasible").settings)  # the wire is the cap


def test_the_bound_is_of_prefills():
    """Two TP4 instances: each GPU sends a quarter of 32,768 tokens' KV; the decode lane takes both requests'."""
    sent = 32_768 * QWEN3_235B["kv_bytes"] / 4
    bound = planned("rtx_pro_6000_qwen3_235b").bound
    assert bound.loss_max_s == pytest.approx(sent / (56.3 * GB * (1 - GUARD)))
    assert bound.share_of_prefill == pytest.approx(
        bound.loss_max_s / planned("rtx_pro_6000_qwen3_235b").times.prefill_s
    )
    ratio = sent / (4 * all_reduce_bytes(QWEN3_235B, 8192, 4))
    assert bound.kv_to_critical_ratio == pytest.approx(ratio)
    assert "a decode lane loses at most 57.8 ms" in bound.text


def test_staged_boxes_cross_memory_twice():
    """RTX 5090: every ring hop of a socket's 4 GPUs writes and reads memory; a send is copied out, then read again."""
    load, send = 30_720 * QWEN3_32B["kv_bytes"] / 8, 32_768 * QWEN3_32B["kv_bytes"] / 8
    critical = all_reduce_bytes(QWEN3_32B, 2048, 8)
    for which in ("P/root_complex0", "P/socket1/host_memory"):
        assert port("rtx5090_staged", which).critical_bytes == pytest.approx(8 * critical)
        assert port("rtx5090_staged", which).kv_bytes == pytest.approx(4 * load + 8 * send)
    assert port("rtx5090_staged", "P/gpu0/egress").critical_bytes == pytest.approx(critical * (1 + 24 / 128))


def test_infeasible_rate_by_hand():
    """12.6 GB between the first release (0.8 ms) and the due time, 5 % of the prefill allowed."""
    found = planned("slow_nic_infeasible")
    size, prefill = 65_536 * QWEN3_235B["kv_bytes"], found.times.prefill_no_kv_s
    first = min(flow.release_s for flow in found.flows if flow.kind == "send")
    late = size / (11.5 * GB) - (prefill - first)
    missing = size / (1.05 * prefill - first) / GB - 11.5
    figures = re.search(r"it is ([\d.]+) ms late .*: ([\d.]+) GB/s are missing", found.verdict.text)
    assert figures is not None
    assert float(figures[1]) == pytest.approx(late * 1e3, rel=0.01)
    assert float(figures[2]) == pytest.approx(missing, rel=0.01)


def test_assumptions_that_decide_are_listed():
    flagship = planned("agentic_turn_pcie").assumed
    assert any("of 8 prefill ranks 2.0 x, of 4 decode ranks 1.6 x" in line for line in flagship)
    assert any(line.startswith("D/nic0/rx: capacity 46 GB/s") for line in flagship)
    assert not any(line.startswith("D/nic0/egress") for line in flagship)  # the wire behind it is narrower
    # NICs across the CPU set the decode stall here; and where no port carries both, guard and arbitration are idle.
    assert any("P/nic0/reads_phb" in line for line in planned("rtx_pro_6000_qwen3_32b_tp4").assumed)
    assert not any(line.startswith(("guard", "arbitration")) for line in planned("seed_h200_nvlink").assumed)


def test_hazards_are_those_that_traffic_meets():
    assert not any("far_nic" in line for line in planned("agentic_turn_pcie").hazards)  # each GPU uses its switch's NIC
    assert any("posted_write_collapse" in line for line in planned("agentic_turn_pcie").hazards)
    # A ring inside one switch writes across no root port.
    assert not any("posted_write_collapse" in line for line in planned("agentic_turn_one_switch").hazards)


def test_sending_earlier_is_advised_where_it_would_help():
    assert any("layer by layer could save" in line for line in planned("agentic_turn_pcie").warnings)
    assert not any("layer by layer" in line for line in planned("slow_nic_infeasible").warnings)
