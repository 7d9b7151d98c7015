"""A step taken apart adds up to the step of the timeline."""

import pytest

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.device import Device
from pdmodel.costs.moe import EpExchange
from pdmodel.costs.step import decode_step, prefill_pass
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm
from pdmodel.parallelism import Parallelism, place
from pdmodel.timeline.breakdown import Bound, Group, Setting, decode_breakdown, kernel_terms, prefill_breakdown
from pdmodel.timeline.build import timeline


def setting(llm: str, box: str, tp: int, cp: int = 1, ep: int = 1, **ways) -> Setting:
    here = Box(load_profile(box), "P")
    (placement,) = place(Parallelism(tp, cp, ep), 1, here.gpu_count, None)
    return Setting(load_llm(llm), here, placement, **ways)


@pytest.mark.parametrize("name", ["rtx_pro_6000_qwen3_32b_tp4", "agentic_turn_pcie", "mla_deepseek_v3_pcie"])
def test_it_is_the_step_of_the_timeline(variant, name: str) -> None:
    resolved = variant(name)
    spec, found = resolved.spec, timeline(resolved)
    decode = decode_breakdown(
        Setting(
            resolved.arch,
            resolved.decode_box,
            resolved.decode,
            spec.kv_dtype,
            spec.decode.all_reduce.value,
            spec.decode.ep_exchange,
        ),
        spec.decode.max_running_requests,
        spec.decode.context_tokens,
    )
    assert decode.time_s == pytest.approx(found.decode_lanes[0].step_s)
    request = resolved.requests[0]
    chunks = request.chunks(spec.prefill.chunk_tokens)
    for number, (new_tokens, past_tokens) in enumerate(chunks):
        prefill = prefill_breakdown(
            Setting(
                resolved.arch,
                resolved.prefill_box,
                resolved.prefill[0],
                spec.kv_dtype,
                spec.prefill.all_reduce.value,
                spec.prefill.ep_exchange,
                spec.prefill.cp_exchange,
                spec.prefill.cp_split,
            ),
            new_tokens,
            past_tokens,
            last_chunk=number == len(chunks) - 1,
        )
        lane = found.lanes[0]
        mine = [phase for phase in lane.phases if phase.request == request.name and phase.chunk == number]
        assert prefill.time_s == pytest.approx(sum(phase.duration_s for phase in mine))


def test_groups_are_all_of_it_and_compute_is_that_of_the_pass() -> None:
    here = setting("qwen3-30b-a3b", "h100_8nic", 4, ep=4)
    step = prefill_breakdown(here, 4096)
    assert sum(step.by_group().values()) == pytest.approx(step.time_s)
    exchanged = sum(row.total_s for row in step.rows if row.group in {Group.TP, Group.CP, Group.EP})
    cost = prefill_pass(here.arch, here.box.profile, 4096, tp_size=4, ep_size=4)
    assert step.time_s - exchanged == pytest.approx(cost.time_s)
    assert sum(row.count * row.flop for row in step.rows) > 1e12
    assert Group.CPU in step.by_group()


def test_dense_and_moe_layers_share_the_rows_that_they_have_alike() -> None:
    here = setting("deepseek-v3", "h200_nvlink_2nic", 8, ep=8)
    rows = {row.name: row for row in decode_breakdown(here, 16, 4096).rows}
    assert rows["attention"].count == 61
    assert rows["experts"].count == 58
    assert rows["gate_up"].count == 3
    assert rows["shared_gate_up"].count == 58
    assert rows["tp_all_reduce_attn"].count == 61
    assert rows["tp_all_reduce_mlp"].detail.endswith(("ll", "ll128", "simple", "custom"))


@pytest.mark.parametrize("exchange", list(CpExchange))
def test_context_parallel_exchange_is_a_group(exchange: CpExchange) -> None:
    step = prefill_breakdown(setting("llama-3.1-8b", "h100_8nic", 1, cp=4, cp_exchange=exchange), 32768)
    # A ring hides behind attention, where attention takes longer.
    assert step.by_group()[Group.CP] >= 0
    assert exchange is CpExchange.RING or step.by_group()[Group.CP] > 0
    assert any(row.group is Group.CP and row.wire_bytes for row in step.rows)


@pytest.mark.parametrize("exchange", [kind for kind in EpExchange if kind is not EpExchange.ALL_REDUCE])
def test_expert_exchange_is_a_group(exchange: EpExchange) -> None:
    step = prefill_breakdown(setting("qwen3-30b-a3b", "b200_8nic", 8, ep=8, ep_exchange=exchange), 8192)
    names = {row.name for row in step.rows if row.group is Group.EP}
    assert names == ({"experts_exposed"} if exchange is EpExchange.FUSED else {"ep_dispatch", "ep_combine"})


def test_what_binds_a_kernel() -> None:
    prefill = {row.name: row for row in prefill_breakdown(setting("qwen3-32b", "h100_8nic", 1), 8192).rows}
    assert prefill["gate_up"].bound_by is Bound.COMPUTE
    assert prefill["mlp_norm"].bound_by is Bound.MEMORY
    decode = {row.name: row for row in decode_breakdown(setting("qwen3-32b", "h100_8nic", 1), 1, 4096).rows}
    assert decode["gate_up"].bound_by is Bound.MEMORY
    assert decode["mlp_norm"].bound_by is Bound.OVERHEAD
    reduce = {row.name: row for row in decode_breakdown(setting("qwen3-32b", "h100_8nic", 8), 1, 4096).rows}
    assert reduce["tp_all_reduce_attn"].bound_by is Bound.LATENCY
    shared = {row.name: row for row in prefill_breakdown(setting("qwen3-32b", "rtx_pro_6000_server", 4), 8192).rows}
    assert shared["tp_all_reduce_attn"].bound_by in {Bound.PORT, Bound.PROTOCOL}


@pytest.mark.parametrize("name", ["h100_8nic", "b200_8nic", "rtx_pro_6000_server", "l40s_pcie_gen4"])
def test_terms_of_a_kernel_bracket_its_time(name: str) -> None:
    here = setting("qwen3-30b-a3b", name, 2, ep=2)
    device = Device.of(here.box.profile)
    passes = (
        prefill_pass(here.arch, here.box.profile, 2048, tp_size=2, ep_size=2),
        decode_step(here.arch, here.box.profile, 16, 4096, tp_size=2, ep_size=2),
    )
    for cost in passes:
        for stage in cost.layers[0].stages:
            for timed in stage.operations:
                compute, memory, overhead = kernel_terms(timed.operation, device)
                assert min(compute, memory, overhead) >= 0
                assert overhead > 0
                assert timed.estimate.value >= overhead + max(compute, memory) - 1e-12
                assert timed.estimate.value <= overhead + compute + memory + 1e-12


def test_time_of_the_cpu_is_a_row_of_its_own() -> None:
    here = setting("qwen3-32b", "h100_8nic", 4)
    raw = here.box.profile.model_dump(mode="json")
    raw["compute"]["launch"] = {"layer_us": 5.0, "pass_us": 100.0, "source": next(iter(raw["sources"]))}
    slower = Setting(here.arch, Box(type(here.box.profile).parse(raw), "P"), here.placement)
    without, with_it = decode_breakdown(here, 8, 1024), decode_breakdown(slower, 8, 1024)
    known = without.by_group()[Group.CPU]
    assert with_it.by_group()[Group.CPU] == pytest.approx(64 * 5e-6 + 100e-6)
    assert with_it.time_s - without.time_s == pytest.approx(64 * 5e-6 + 100e-6 - known)


def test_calls_outside_of_graphs_are_time_of_the_cpu() -> None:
    here = setting("qwen3-32b", "h100_8nic", 4)
    raw = here.box.profile.model_dump(mode="json")
    raw["compute"]["gemm"]["bf16"]["call_us"] = 2.0
    raw["compute"]["launch"] = {"eager_calls": True, "source": next(iter(raw["sources"]))}
    eager = Setting(here.arch, Box(type(here.box.profile).parse(raw), "P"), here.placement)
    step = decode_breakdown(eager, 8, 1024)
    # Four products in each of 64 layers, and the output head.
    assert step.by_group()[Group.CPU] == pytest.approx((4 * 64 + 1) * 2e-6)
    exchanged = sum(row.total_s for row in step.rows if row.group is Group.TP)
    cost = decode_step(eager.arch, eager.box.profile, 8, 1024, tp_size=4)
    assert step.time_s - exchanged == pytest.approx(cost.time_s)
    assert min(row.time_s for row in step.rows) >= 0
