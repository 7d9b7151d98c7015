"""Compute time of whole passes against aiconfigurator's kernel tables (NVIDIA, Apache-2.0)."""

import csv
import gzip
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from pdmodel.costs.step import decode_step, prefill_pass
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.compute import LaunchConstants
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.operators import CpLayout, Stage
from pdmodel.spec import SourceKind
from pdmodel.verification.checks import step_cost
from pdmodel.verification.tables import read_rows, read_tables

STEPS = Path(__file__).parents[3] / "shared" / "data" / "step_times" / "dev.csv.gz"
PROFILES = {
    "rtx_pro_6000_server": "rtx_pro_6000_server",
    "l40s": "l40s_pcie_gen4",
    "h100_sxm": "h100_8nic",
    "h200_sxm": "h200_nvlink_2nic",
    "b200_sxm": "b200_8nic",
}
LLMS = {
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b",
}


@pytest.mark.skipif(not STEPS.exists(), reason="the folder of step times is not beside the repository")
def test_errors_over_all_clean_dense_bf16_steps() -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    with gzip.open(STEPS, "rt", newline="") as file:
        for row in csv.DictReader(file):
            known = row["system"] in PROFILES and row["base_model"] in LLMS and row["backend"] == "vllm"
            if not known or row["flags"] or row["weight_dtype"] != "bfloat16" or row["moe_dtype"]:
                continue
            arch, profile = load_llm(LLMS[row["base_model"]]), load_profile(PROFILES[row["system"]])
            tp, measured = int(row["tp"]), float(row["total_ms"]) - float(row["allreduce_ms"])
            if row["phase"] == "prefill":
                cost = prefill_pass(arch, profile, int(row["new_tokens"]), tp_size=tp)
            else:
                cost = decode_step(arch, profile, int(row["batch"]), float(row["ctx"]), tp_size=tp)
            found[row["system"], row["phase"]].append(abs(cost.time_s * 1e3 / measured - 1))
    assert sum(map(len, found.values())) >= 299
    for key, values in found.items():
        assert mean(values) <= 0.06, key
    assert mean(value for values in found.values() for value in values) <= 0.045


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_qwen3_32b_on_rtx_pro_6000(tp: int) -> None:
    (table,) = read_tables(("step_times",))
    wanted = {"profile": "rtx_pro_6000_server", "llm": "qwen3-32b", "new_tokens": "8192", "tp": str(tp)}
    row = next(row for row in read_rows(table) if wanted.items() <= row.items())
    cost = step_cost(row)
    assert cost.time_s * 1e3 == pytest.approx(float(row["compute_ms"]), rel=0.05)
    assert cost.source in (SourceKind.MEASURED, SourceKind.DERIVED)


def test_layers_of_a_kind_are_priced_once() -> None:
    cost = prefill_pass(load_llm("deepseek-v3"), load_profile("h200_nvlink_2nic"), 1000, tp_size=8, ep_size=8)
    assert len(cost.layers) == 61
    assert [layer.moe for layer in cost.layers] == [False] * 3 + [True] * 58
    assert len({id(layer) for layer in cost.layers}) == 2
    assert [stage.stage for stage in cost.layers[0].stages] == [Stage.QKV, Stage.ATTENTION, Stage.O_PROJ, Stage.MLP]
    assert [stage.stage for stage in cost.layers[9].stages][3:] == [Stage.ROUTER, Stage.SHARED_EXPERT, Stage.EXPERTS]
    parts = cost.embedding.time_s + sum(layer.time_s for layer in cost.layers)
    assert cost.logits is not None
    assert cost.time_s == pytest.approx(parts + cost.logits.time_s, rel=1e-12)
    assert cost.hbm_bytes > 58 * 256 * 3 * 7168 * 2048 / 8  # most weights of the rank are read
    layer = cost.layers[9]
    assert layer.seconds(Stage.ROUTER, Stage.EXPERTS) == layer.stages[3].time_s + layer.stages[5].time_s
    assert layer.stage(Stage.MLP) is None


def test_only_the_last_chunk_has_logits() -> None:
    arch, profile = load_llm("qwen3-8b"), load_profile("h100_8nic")
    assert prefill_pass(arch, profile, 1000, last_chunk=False).logits is None
    assert prefill_pass(arch, profile, 1000).logits is not None


def test_past_tokens_cost_attention_alone() -> None:
    arch, profile = load_llm("qwen3-8b"), load_profile("h100_8nic")
    fresh, late = (prefill_pass(arch, profile, 1024, past).layers[0] for past in (0, 65536))
    assert fresh.stages[0].time_s == late.stages[0].time_s
    assert fresh.seconds(Stage.MLP) == late.seconds(Stage.MLP)
    assert late.seconds(Stage.ATTENTION) > 20 * fresh.seconds(Stage.ATTENTION)


def test_context_parallelism() -> None:
    arch, profile = load_llm("qwen3-32b"), load_profile("h200_nvlink_2nic")

    def attention(layout: CpLayout) -> float:
        cost = prefill_pass(arch, profile, 65536, tp_size=2, cp_size=4, cp_layout=layout)
        return cost.layers[0].seconds(Stage.ATTENTION)

    whole = prefill_pass(arch, profile, 65536, tp_size=2).layers[0].seconds(Stage.ATTENTION)
    assert attention(CpLayout.ZIGZAG) == pytest.approx(whole / 4, rel=0.05)
    assert attention(CpLayout.CONTIGUOUS) == pytest.approx(whole / 4 * 1.75, rel=0.05)


def test_time_of_the_cpu_is_a_term_of_its_own() -> None:
    arch, profile = load_llm("qwen3-8b"), load_profile("h100_8nic")
    launch = LaunchConstants(layer_us=10, pass_us=500, source="kernels")
    slow = profile.model_copy(update={"compute": profile.compute.model_copy(update={"launch": launch})})
    added = decode_step(arch, slow, 1, 4096).time_s - decode_step(arch, profile, 1, 4096).time_s
    assert added == pytest.approx(36 * 10e-6 + 500e-6, rel=1e-9)


def _profiles() -> list[HardwareProfile]:
    return [load_profile(name) for name in ("rtx_5090_direct", "rtx_pro_6000_wrx90_two_roots")]


def test_boxes_without_a_table_say_so() -> None:
    arch = load_llm("qwen3-8b")
    without, other_box = (prefill_pass(arch, profile, 4096).source for profile in _profiles())
    assert without is SourceKind.ASSUMED
    assert other_box is SourceKind.DERIVED


def test_94_layers_by_8_chunks_are_fast() -> None:
    arch, profile = load_llm("qwen3-235b-a22b-fp8"), load_profile("rtx_pro_6000_wrx90_two_roots")
    start = time.perf_counter()
    for chunk in range(8):
        cost = prefill_pass(arch, profile, 8192, 8192 * chunk, tp_size=8, ep_size=8)
        assert sum(layer.time_s for layer in cost.layers) > 0
    assert time.perf_counter() - start < 0.05
