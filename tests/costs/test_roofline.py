"""The kernel formulas: limits, monotonicity, and what happens where a profile lacks constants."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs import roofline
from pdmodel.costs.device import Device
from pdmodel.costs.kernels import operation_s
from pdmodel.costs.step import prefill_pass
from pdmodel.errors import CoverageError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.compute import (
    DecodeAttentionConstants,
    ElementwiseConstants,
    GemmConstants,
    MoeConstants,
    PrefillAttentionConstants,
    QuantiseConstants,
)
from pdmodel.llm.architecture import WeightDtypes
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.operators import OperationKind, decode_layer, prefill_layer
from pdmodel.spec import SourceKind

F, B = 400e12, 2e12
GEMM = GemmConstants(overhead_us=2.0, compute_efficiency=0.5, memory_efficiency=0.8, exponent=2.0, source="s")
MOE = MoeConstants(
    overhead_us=10.0,
    compute_efficiency=0.5,
    memory_efficiency=0.8,
    exponent=1.5,
    narrow_width=100.0,
    tile_rows=16.0,
    token_passes=4.0,
    source="s",
)


def test_gemm_by_hand() -> None:
    # 2 us + sqrt((2e9 / 2e14)^2 + (16e6 / 1.6e12)^2) = 2 us + sqrt(2) * 10 us
    found = roofline.gemm_s(1e3, 1e3, 1e3, 16e6, flop_per_s=F, bytes_per_s=B, constants=GEMM)
    assert found == pytest.approx(2e-6 + math.sqrt(2) * 10e-6, rel=1e-12)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 20))
def test_soft_maximum_lies_between_maximum_and_sum(a: float, b: float, p: float) -> None:
    found = roofline.soft_maximum(a, b, p)
    assert max(a, b) * (1 - 1e-12) <= found <= (a + b) * (1 + 1e-12)
    assert found == roofline.soft_maximum(b, a, p)


def test_quantise_by_hand() -> None:
    constants = QuantiseConstants(ns_per_row=5.0, memory_efficiency=0.5)
    few = roofline.quantise_s(1000, 10, bytes_per_s=B, constants=constants)
    assert few == pytest.approx(5e-6, rel=1e-4)  # the floor per row
    many = roofline.quantise_s(1000, 1e6, bytes_per_s=B, constants=constants)
    assert many == pytest.approx(3e9 / 1e12, rel=1e-4)  # the traffic


def test_prefill_attention_by_hand() -> None:
    constants = PrefillAttentionConstants(
        overhead_us=10, compute_efficiency=0.5, linear_us_per_1024_tokens=4, source="s"
    )
    found = roofline.prefill_attention_s(2e10, 2048, 1.0, flop_per_s=F, constants=constants)
    assert found == pytest.approx(10e-6 + 8e-6 + 100e-6, rel=1e-12)


def test_decode_attention_by_hand() -> None:
    constants = DecodeAttentionConstants(
        overhead_us=5, memory_efficiency=0.8, compute_efficiency=0.5, floor_us=30, exponent=2, source="s"
    )
    # read 64e6 / 1.6e12 = 40 us, floor 30 us at 4096 tokens
    found = roofline.decode_attention_s(1.0, 64e6, 4096, flop_per_s=F, bytes_per_s=B, constants=constants)
    assert found == pytest.approx(55e-6, rel=1e-9)
    computed = roofline.decode_attention_s(2e10, 1.0, 4096, flop_per_s=F, bytes_per_s=B, constants=constants)
    assert computed == pytest.approx(5e-6 + math.hypot(100e-6, 30e-6), rel=1e-9)


def test_moe_by_hand() -> None:
    # 100 wide at narrow_width 100: half the share; 16 experts x 16 rows on 256 pairs: twice the rows; no weights
    found = roofline.moe_s(
        2e9,
        0.0,
        pairs=256,
        experts=16,
        width=100,
        hidden_bytes=5e6,
        flop_per_s=F,
        bytes_per_s=B,
        constants=MOE,
    )
    assert found == pytest.approx(10e-6 + 4 * 10e-6 + 4 * 2.5e-6, rel=1e-12)


def test_elementwise_by_hand() -> None:
    constants = ElementwiseConstants(overhead_us=3, memory_efficiency=0.5, source="s")
    assert roofline.elementwise_s(1e6, bytes_per_s=B, constants=constants) == pytest.approx(4e-6, rel=1e-12)


@given(st.sampled_from(["qwen3-32b", "qwen3-235b-a22b", "deepseek-v3"]), st.integers(1, 4000), st.integers(1, 4000))
def test_more_tokens_never_take_less_time(name: str, tokens: int, more: int) -> None:
    device = Device.of(load_profile("h200_nvlink_2nic"))
    arch = load_llm(name)

    def times(q: int) -> list[float]:
        return [operation_s(operation, device).value for operation in prefill_layer(arch, 5, q, 100, tp_size=8)]

    assert all(a <= b * (1 + 1e-12) for a, b in zip(times(tokens), times(tokens + more), strict=True))


def test_absent_constants_are_assumed_and_near_ones_derived() -> None:
    profile = load_profile("rtx_pro_6000_server")
    device = Device.of(profile)
    assert device.gemm(WeightDtype.BF16)[1] is SourceKind.MEASURED
    assert device.gemm(WeightDtype.FP8_BLOCK)[1] is SourceKind.DERIVED
    assert device.prefill_attention(KvDtype.FP8)[1] is SourceKind.MEASURED
    bare = Device.of(profile.model_copy(update={"compute": type(profile.compute)()}))
    assert bare.gemm(WeightDtype.BF16)[1] is SourceKind.ASSUMED
    assert bare.decode_attention(KvDtype.BF16)[1] is SourceKind.ASSUMED
    assert bare.moe(WeightDtype.FP8)[1] is SourceKind.ASSUMED
    assert bare.elementwise()[1] is SourceKind.ASSUMED
    assert (device.launch_layer_s, device.launch_pass_s) == (0.0, 0.0)


def test_defaults_are_in_the_range_of_the_fitted() -> None:
    arch = load_llm("qwen3-32b")
    for name in ("rtx_pro_6000_server", "h100_8nic", "h200_nvlink_2nic", "b200_8nic"):
        profile = load_profile(name)
        bare = profile.model_copy(update={"compute": type(profile.compute)()})
        fitted = prefill_pass(arch, profile, 8192, tp_size=4).time_s
        assert prefill_pass(arch, bare, 8192, tp_size=4).time_s == pytest.approx(fitted, rel=0.25)


def test_dtypes_that_nothing_covers_are_named() -> None:
    arch = load_llm("qwen3-8b")
    profile = load_profile("h200_nvlink_2nic")

    def of(dtype: WeightDtype) -> WeightDtypes:
        return WeightDtypes(dtype, dtype, dtype, dtype, WeightDtype.BF16)

    with pytest.raises(CoverageError, match="nvfp4 weights"):
        prefill_pass(replace(arch, dtypes=of(WeightDtype.NVFP4)), profile, 10)
    with pytest.raises(CoverageError, match="fp32 cache"):
        prefill_pass(arch, profile, 10, kv_dtype=KvDtype.FP32)
    no_fp8 = profile.gpu.model_copy(update={"peak_tflops": {"bf16": profile.gpu.peak_tflops["bf16"]}})
    with pytest.raises(CoverageError, match=r"gpu\.peak_tflops\.fp8: .* gives no peak for fp8"):
        prefill_pass(replace(arch, dtypes=of(WeightDtype.FP8)), profile.model_copy(update={"gpu": no_fp8}), 10)


def test_every_kind_of_operation_has_a_formula() -> None:
    device = Device.of(load_profile("b200_8nic"))
    operations = [*prefill_layer(load_llm("deepseek-v3"), 5, 100), *decode_layer(load_llm("deepseek-v3"), 5, 8, 900)]
    assert {operation.kind for operation in operations} == set(OperationKind)
    assert all(operation_s(operation, device).value > 0 for operation in operations)
