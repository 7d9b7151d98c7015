"""What an answer says of leases, write-backs and the control plane, on records made by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from pdmodel.allocation.data import AllocationData
from pdmodel.errors import InputError
from pdmodel.evidence import flows_of, missed_deadlines
from pdmodel.kv_evidence import lease_note, memory_of
from pdmodel.planner import plan
from pdmodel.replay.engine import simulate
from pdmodel.replay.memory import memory_trace
from pdmodel.transfer.flows import FlowKind, MemoryKind, MemoryPool


def record(*, lease_s: float | None = None, kind: FlowKind = FlowKind.SEND, flows: int = 1) -> AllocationData:
    """A phase of 1 s; flows of 30 bytes each, released at its start, on one port of 10 byte/s."""
    data = AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 10.0, "guard": 0.0}},
            "phases": [{"duration": 1.0, "bytes": {}}],
            "lane_price": 2.0,
            "flows": [
                {
                    "name": f"get/P{k}",
                    "kind": "send",
                    "routes": [{"e": 1}],
                    "release": [[0, 30.0]],
                    "due": [[1, 30.0]],
                    "price": 1.0,
                    "quantum": None,
                }
                for k in range(flows)
            ],
        }
    )
    due = {"due": ()} if kind is FlowKind.WRITEBACK else {}
    return replace(data, flows=tuple(replace(one, lease_s=lease_s, kind=kind, **due) for one in data.flows))


def test_a_lease_that_expires_is_a_missed_deadline():
    data = record(lease_s=5.5, flows=3)
    replay = simulate(data, "unmanaged")  # 90 bytes at 10 byte/s: all three end at 9 s
    late, lease = missed_deadlines(data, replay, slack_s=0.5)
    assert late.endswith("KV is complete 8.000 s after the prefill without KV ends (500 ms allowed)")
    assert lease == "lane0: get/P0 and 2 like it: not there within the lease of 5.500 s"


def test_a_lease_that_holds_is_not_told():
    data = record(lease_s=9.5, flows=3)
    replay = simulate(data, "unmanaged")
    assert len(missed_deadlines(data, replay, slack_s=0.5)) == 1


def test_a_write_back_has_a_finish_and_no_due():
    data = record(kind=FlowKind.WRITEBACK)
    replay = simulate(data, "unmanaged")
    (row,) = flows_of(data, replay)
    assert (row.kind, row.release_s, row.due_s) == ("writeback", 0.0, None)
    assert row.finish_s == pytest.approx(3.0)
    assert missed_deadlines(data, replay, slack_s=0.5) == ()


def test_a_plan_that_does_not_fit_is_refused_with_peak_and_time(variant):
    data = replace(record(), memory=(MemoryPool("D/gpu0/kv", MemoryKind.DECODE_HBM, 40.0, 15.0, (), {"get/P0": 1.0}),))
    replay = simulate(data, "unmanaged", record=True)
    resolved = variant("seed_h200_nvlink")
    with pytest.raises(InputError) as refused:
        memory_of(resolved, memory_trace(data, replay))
    assert refused.value.exit_code == 3
    text = str(refused.value)
    assert text.startswith(
        "seed_h200_nvlink.json: decode: the plan does not fit: D/gpu0/kv holds 45 B of 40 B at 3.000 s"
    )
    assert "after the last prefill" in text
    assert "expected fewer hand-offs at once" in text
    assert "\n" not in text
    full = replace(data.memory[0], name="P/gpu0/hbm", kind=MemoryKind.PREFILL_HBM, capacity_bytes=-1.0)
    host = replace(full, name="P/socket0/kv", kind=MemoryKind.HOST)
    with pytest.raises(
        InputError, match="prefill: the plan does not fit: the weights leave no memory for KV on P/gpu0"
    ):
        memory_of(resolved, memory_trace(replace(data, memory=(host, full)), replay))
    roomy = replace(data, memory=(replace(data.memory[0], capacity_bytes=50.0),))
    (row,) = memory_of(resolved, memory_trace(roomy, replay))
    assert (row.pool, row.kind, row.capacity_bytes) == ("D/gpu0/kv", "decode_hbm", 50.0)
    assert (row.peak_bytes, row.peak_s) == (pytest.approx(45.0), pytest.approx(3.0))


def test_kv_that_comes_after_its_sender_lets_go_of_it(variant):
    resolved = variant("rtx_pro_6000_qwen3_32b_tp4")  # vllm_nixl keeps it for 30 s
    assert lease_note(resolved, 29.0) == lease_note(resolved, math.inf) == ()
    assert lease_note(resolved, 40.0) == (
        "decode waits 40.000 s for KV that vllm_nixl keeps for 30 s after the prefill (a decode side that waits renews "
        "it)",
    )
    assert lease_note(variant("urgent_user"), 1e6) == ()


def test_the_control_plane_is_in_every_time_to_the_first_token_but_that_without_kv(variant):
    fast, slow = (plan(variant("seed_h200_nvlink", {"prefill": {"engine": name}})) for name in ENGINES)
    # Handshake, set-up and hand-over of the engine, and 0.82 ms to pack and unpack.
    assert (fast.times.control_s, slow.times.control_s) == (
        pytest.approx(5.84e-3 + 0.82e-3, rel=1e-3),
        pytest.approx(169.2e-3, rel=0.02),
    )
    for found in (fast, slow):
        rows = {row.name: row for row in (*found.policies, *found.references)}
        stall = float(found.replay.decode_stall_s.max())
        after_s = found.times.control_s - 2e-3  # the handshake is before the prefill
        assert rows["plan"].decode_stall_s == found.times.decode_stall_s == pytest.approx(stall + after_s)
        assert rows["plan"].ttft_s == pytest.approx(float(np.max(found.replay.ttft_s)) + found.times.control_s)
        assert rows["no_kv"].ttft_s < rows["bytes_over_bandwidth"].ttft_s - found.times.control_s
        assert rows["no_kv"].decode_stall_s == 0.0
        assert rows["plan"].cost == found.replay.cost
    assert not any("control plane alone" in line for line in fast.warnings)
    assert any(line.startswith("the control plane alone takes 169 ms") for line in slow.warnings)


def test_where_the_time_of_a_request_goes(variant):
    """TP4 to TP8, pages of whole tokens: 256 bytes a descriptor; the fix is named where that makes it infeasible."""
    found = plan(variant("layout_mismatch"))
    (row,) = found.transfer_times
    assert row.run_bytes == pytest.approx(256.0)
    assert row.descriptors * row.run_bytes == pytest.approx(row.bytes)
    slowest = max(row.bandwidth_s, row.descriptors_s, row.messages_s)
    assert row.time_s == pytest.approx(slowest + row.setup_s + row.staging_s + row.control_s)
    assert row.bound_by == "descriptors"
    assert row.fix_time_s < row.time_s / 10
    assert found.verdict.kind.value == "infeasible"
    assert "of 256 B due" in found.verdict.text
    assert f"Cheapest fix: {row.fix}: prompt alone takes " in found.verdict.text


ENGINES = ("sglang_mooncake", "vllm_nixl")
