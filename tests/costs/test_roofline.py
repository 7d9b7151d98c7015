"""The kernel formulas: limits, monotonicity, and what happens where a profile lacks constants."""

import math
from dataclasses import replace

import numpy as np
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
    CacheConstants,
    DecodeAttentionConstants,
    ElementwiseConstants,
    GemmConstants,
    LaunchConstants,
    MoeConstants,
    PrefillAttentionConstants,
    QuantiseConstants,
    TileConstants,
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

    with pytest.raises(CoverageError, match="int8 weights"):
        prefill_pass(replace(arch, dtypes=of(WeightDtype.INT8)), profile, 10)
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


CACHE = CacheConstants(size_mb=20.0, saving=0.5)


def test_cache_by_hand() -> None:
    # 20 MB at 2 TB/s: 10 us; at the cache's size half of the saving is left, far below it all, far above it nothing
    def read(size_bytes: float, cache: CacheConstants | None = CACHE) -> float:
        return roofline.read_s(size_bytes, bytes_per_s=B, cache=cache)

    assert read(20e6) == pytest.approx(7.5e-6, rel=1e-12)
    assert read(20e3) == pytest.approx(5e-9, rel=1e-9)
    assert read(20e9) == pytest.approx(10e-3, rel=1e-9)
    assert read(20e6, None) == pytest.approx(10e-6, rel=1e-12)


@given(st.floats(1e3, 1e12), st.floats(1.0, 10.0))
def test_more_bytes_never_read_faster(size_bytes: float, factor: float) -> None:
    most = CacheConstants(size_mb=20.0, saving=0.95)
    small, large = (roofline.read_s(size, bytes_per_s=B, cache=most) for size in (size_bytes, size_bytes * factor))
    assert small <= large * (1 + 1e-12)


def test_lowered_clock_by_hand() -> None:
    assert roofline.sustained_s(300e-6, 0.2) == pytest.approx(330e-6, rel=1e-12)
    assert roofline.sustained_s(1.0, 0.2) == pytest.approx(1.2, rel=1e-3)
    assert roofline.sustained_s(1e-9, 0.2) == pytest.approx(1e-9, rel=1e-5)


def test_depth_bounds_a_small_product() -> None:
    deep = GEMM.model_copy(update={"depth_us_per_1024": 3.0})
    found = roofline.gemm_s(1e-6, 1e-6, 2048.0, 0.0, flop_per_s=F, bytes_per_s=B, constants=deep)
    assert found == pytest.approx(2e-6 + 6e-6, rel=1e-9)


def test_waves_by_hand() -> None:
    tiles = TileConstants(multiprocessors=100, share=1.0, halving_efficiency=0.8)
    # 1024 x 4096 in units of 256 x 128 x 100 tiles: 128 large ones take two waves, 2; 256 of half the size three, each
    # half as long but at 0.8 of the rate, 1.875; 512 of a quarter six at 0.64, 2.34; 1024 of an eighth eleven, 2.69
    expected = 1.875 * 100 * (2 * 256 * 128 * 4096)
    assert roofline.tiled_flop(1024.0, 4096.0, 4096.0, 1.0, tiles) == pytest.approx(expected, rel=1e-12)
    smooth = 2 * 1024 * 4096 * 4096
    assert roofline.tiled_flop(1024.0, 4096.0, 4096.0, 1.0, None) == smooth
    assert roofline.tiled_flop(1024.0, 0.0, 4096.0, 1.0, tiles) == 0
    half = tiles.model_copy(update={"share": 0.5})
    found = roofline.tiled_flop(1024.0, 4096.0, 4096.0, 1.0, half)
    assert found == pytest.approx((expected + smooth) / 2, rel=1e-12)
    few = 2 * 128 * 4096 * 4096  # rows up to 128: no waves
    assert roofline.tiled_flop(128.0, 4096.0, 4096.0, 1.0, tiles) == few


def test_masked_keys_and_longest_row_by_hand() -> None:
    constants = PrefillAttentionConstants(
        overhead_us=10,
        compute_efficiency=0.5,
        linear_us_per_1024_tokens=4,
        masked_keys=64,
        exponent=2,
        source="s",
    )
    # 1024 queries, 65536 pairs, 64 more keys a query: twice the work, 200 us beside 4 us
    found = roofline.prefill_attention_s(2e10, 1024.0, 65536.0, flop_per_s=F, constants=constants)
    assert found == pytest.approx(10e-6 + math.hypot(200e-6, 4e-6), rel=1e-12)


def test_arrays_are_the_numbers_one_by_one() -> None:
    tiles = TileConstants(multiprocessors=100, share=0.5, halving_efficiency=0.8)
    update = {"tiles": tiles, "cache": CACHE, "depth_us_per_1024": 1.0, "sustained_loss": 0.1}
    constants = GEMM.model_copy(update=update)
    m, n, k = np.array([1.0, 500.0, 8192.0]), np.array([64.0, 4096.0, 128.0]), np.array([512.0, 4096.0, 2048.0])
    size = 2 * (m * k + k * n + m * n)
    peaks = {"flop_per_s": F, "bytes_per_s": B}
    found = roofline.gemm_s(m, n, k, size, constants=constants, **peaks)
    for index, shape in enumerate(zip(m, n, k, size, strict=True)):
        one = roofline.gemm_s(*map(float, shape), constants=constants, **peaks)
        assert found[index] == pytest.approx(one, rel=1e-14)


def test_calls_are_priced_where_products_are_launched_one_by_one() -> None:
    profile = load_profile("h200_nvlink_2nic")
    arch, layer = load_llm("qwen3-235b-a22b-fp8"), 5
    launch = LaunchConstants(eager_calls=True, source="kernels")
    eager = profile.model_copy(update={"compute": profile.compute.model_copy(update={"launch": launch})})
    call_us = profile.compute.gemm["fp8_block"].call_us
    assert call_us > 20
    added = prefill_pass(arch, eager, 100).layers[layer].time_s - prefill_pass(arch, profile, 100).layers[layer].time_s
    assert added == pytest.approx(2 * call_us * 1e-6, rel=1e-9)  # qkv and o_proj; the router is BF16
