"""Ranks that receive from one sender after the other, and requests that are sent at the same time."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.costs.kv_layout import Pair, PathTime, even_path
from pdmodel.costs.kv_layout.timing import one_sender_at_a_time
from pdmodel.hardware.ports import PortKind
from pdmodel.planner import plan, simulate
from pdmodel.replay.policies import PlanPolicy
from pdmodel.resolve import prices
from pdmodel.resources import resolve
from pdmodel.timeline.build import timeline
from pdmodel.transfer.breakdown import transfer_breakdown
from pdmodel.transfer.build import build_transfers
from pdmodel.verdict import VerdictKind

ALONE = {"tp_size": 8, "cp_size": 1, "ep_size": 1, "instances": 1, "gpus": None, "ep_exchange": "all_reduce"}


def engine_file(folder: Path, name: str, **changes: Any) -> str:
    """A shipped engine with other facts, as a file."""
    raw = json.loads(Path(resolve("engines", name)).read_text(encoding="utf-8"))
    for key, value in changes.items():
        *blocks, last = key.split(".")
        at = raw
        for block in blocks:
            at = at[block]
        at[last] = {"value": value, "source": "assumed"}
    path = folder / f"{name}_{'_'.join(str(value) for value in changes.values())}.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return str(path)


def narrowing(engine: str, tokens: int = 2048) -> dict[str, Any]:
    """TP8 to TP4 of eight KV heads, a token at a time: each destination takes from two ranks that post slowly."""
    return {
        "llm": "qwen3-8b",
        "prefill": ALONE | {"chunk_tokens": None, "engine": engine},
        "decode": {"tp_size": 4, "ep_size": 1, "ep_exchange": "all_reduce", "max_running_requests": 8},
        "requests": [{"name": "r", "input_tokens": tokens, "user_price_gpus": 8}],
        "transfer": {"staging_tokens": 0, "layout": "nhd", "release_after": "prefill"},
    }


def record(resolved: Any) -> AllocationData:
    built = timeline(resolved)
    return AllocationData.build(built, build_transfers(resolved, built), prices(resolved))


def test_one_after_the_other_takes_as_long_as_all_together_in_turn(variant: Any, tmp_path: Path) -> None:
    one = variant("layout_mismatch", narrowing("tensorrt_llm"))
    all_at_once = engine_file(tmp_path, "tensorrt_llm", **{"control.sequential_receive": False})
    many = variant("layout_mismatch", narrowing(all_at_once))
    turns, together = record(one), record(many)
    kinds = {port.name: port.kind for port in turns.ports}
    added = {port.name for port in turns.ports} - {port.name for port in together.ports}
    assert added == {f"D/gpu{k}/receiving" for k in range(4)}
    assert {kinds[name] for name in added} == {PortKind.RECEIVING}
    stalls = [float(simulate(data, "unmanaged").decode_stall_s[0]) for data in (turns, together)]
    # Two senders, each limited by its own posting: 2048 tokens of one head in 36 layers, keys and values.
    assert stalls[1] == pytest.approx(2048 * 2 * 36 * 3.4e-6, rel=1e-3)
    assert stalls[0] == pytest.approx(2 * stalls[1], rel=1e-6)
    found = solve_elastic(turns)
    replay = simulate(turns, PlanPolicy(found.schedule))
    assert replay.cost == pytest.approx(found.objective, rel=1e-6)
    assert float(replay.decode_stall_s[0]) == pytest.approx(stalls[0], rel=1e-6)
    # The reference counts links alone.
    ideal = [float(simulate(data, "bytes_over_bandwidth").decode_stall_s[0]) for data in (turns, together)]
    assert ideal[0] == pytest.approx(ideal[1])


def test_it_is_left_out_where_it_never_binds(variant: Any) -> None:
    """One sender for each, or several that wait at the same NIC anyway."""
    for changes in ({}, {"prefill": {"tp_size": 8, "gpus": None}}):
        resolved = variant("rtx_pro_6000_qwen3_32b_tp4", {"prefill": {"engine": "tensorrt_llm"}} | changes)
        transfers = build_transfers(resolved, timeline(resolved))
        assert not [port for port in transfers.ports if port.kind is PortKind.RECEIVING]
    resolved = variant("layout_mismatch", narrowing("tensorrt_llm") | {"transfer": {"staging_tokens": 8192}})
    assert not [port for port in record(resolved).ports if port.kind is PortKind.RECEIVING]


def test_the_verdict_and_the_breakdown_say_it(variant: Any, tmp_path: Path) -> None:
    resolved = variant("layout_mismatch", narrowing("tensorrt_llm") | {"kv_slack": 0.0})
    found, (row,) = plan(resolved), transfer_breakdown(resolved)
    assert found.verdict.kind is VerdictKind.INFEASIBLE
    assert "D/gpu0/receiving receives from one rank after the other, which takes 1.003 s" in found.verdict.text
    assert "Cheapest fix: packed in chunks of 8192 tokens" in found.verdict.text
    port = next(port for port in found.data.ports if port.kind is PortKind.RECEIVING)
    assert "one sender after the other" in port.note
    assert row.descriptors_s == pytest.approx(2 * 2048 * 2 * 36 * 3.4e-6)
    all_at_once = engine_file(tmp_path, "tensorrt_llm", **{"control.sequential_receive": False})
    (other,) = transfer_breakdown(variant("layout_mismatch", narrowing(all_at_once)))
    assert other.descriptors_s == pytest.approx(row.descriptors_s / 2)


def test_slow_senders_to_one_fast_rank(variant: Any) -> None:
    """Two NICs of 200G send to one of 400G, which could take both; in turn it takes as long as one of them would."""
    changes = narrowing("tensorrt_llm") | {"network": {"nic_gbit_per_s": None}}
    changes["prefill"] |= {"hardware": "l40s_pcie_gen4"}
    changes["decode"] |= {"hardware": "b200_8nic", "tp_size": 1}
    changes["transfer"] = {"staging_tokens": 8192, "release_after": "prefill"}
    resolved = variant("layout_mismatch", changes)
    data, (row,) = record(resolved), transfer_breakdown(resolved)
    (port,) = [port for port in data.ports if port.kind is PortKind.RECEIVING]
    assert row.port == port.name == "D/gpu0/receiving"
    alone = float(simulate(data, "unmanaged").decode_stall_s[0])
    assert row.bandwidth_s == pytest.approx(alone, rel=1e-6)
    assert row.bandwidth_s == pytest.approx(row.bytes / port.capacity_bytes_per_s)
    rx = next(port for port in data.ports if port.name == "D/nic0/rx")
    assert port.capacity_bytes_per_s < 0.6 * rx.capacity_bytes_per_s


def test_a_path_in_turn_by_hand() -> None:
    found = [Pair(0, 0, 60.0, 1, ()), Pair(1, 0, 40.0, 1, ()), Pair(2, 1, 50.0, 1, ())]

    def narrow(pairs: Any) -> PathTime:  # every sender has 10 byte/s, receivers any number
        return PathTime(max(pair.size_bytes for pair in pairs) / 10, "sender", 10.0, ("hazard",))

    assert narrow(found).time_s == 6.0
    turn = one_sender_at_a_time(narrow, "D/rank{}/receiving".format)(found)
    assert (turn.time_s, turn.port, turn.bytes_per_s, turn.hazards) == (10.0, "D/rank0/receiving", 10.0, ("hazard",))
    assert one_sender_at_a_time(even_path(10.0), str)(found) == even_path(10.0)(found)


def test_requests_wait_for_one_another_or_share(variant: Any, tmp_path: Path) -> None:
    """Two requests that are ready together: one at a time, the first is done in half the time."""
    changes = {
        "prefill": {"instances": 1, "engine": "vllm_nixl"},
        "requests": [{"name": name, "input_tokens": 4096} for name in ("a", "b", "c")],
        "network": {"nic_gbit_per_s": 5},
    }
    finish = {}
    for most in (1, 2, 3):
        engine = engine_file(tmp_path, "vllm_nixl", parallel_transfers=most)
        resolved = variant("rtx_pro_6000_qwen3_32b_tp4", changes | {"prefill": {"engine": engine}})
        data = record(resolved)
        assert {flow.queue for flow in data.flows} == set(range(most))
        replay = simulate(data, "unmanaged")
        finish[most] = _ends(data, replay)
    assert finish[1][0] < finish[2][0] < finish[3][0]
    last = [max(times) for times in finish.values()]
    assert last == pytest.approx([last[0]] * 3, rel=1e-6)  # the bytes are the same
    assert finish[1][2] == pytest.approx(finish[3][2], rel=1e-6)


def _ends(data: AllocationData, replay: Any) -> list[float]:
    names = [request.name for request in data.requests]
    return [
        max(float(replay.flow_finish_s[f]) for f, flow in enumerate(data.flows) if flow.request == name)
        for name in names
    ]
