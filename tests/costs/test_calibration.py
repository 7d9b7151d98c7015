"""The fit of collective constants: on made-up tables with known lines, on the shipped numbers, on published rows."""

import numpy as np
import pytest
from collective_fits import DATA, FITTED, rows
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.calibration import (
    CollectiveRow,
    Shape,
    aiconfigurator_rows,
    busbw_row,
    fit_branches,
    fit_collective,
    leave_one_size_out,
    nccl_tests_rows,
    predicted_s,
    robust_line,
)
from pdmodel.costs.collectives import collective
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Protocol
from pdmodel.hardware.topology import Box

AR = CollectiveOperation.ALL_REDUCE
TWO = (Shape(Protocol.LL, Algorithm.RING), Shape(Protocol.SIMPLE, Algorithm.RING))
SIZES = np.array([2.0**k for k in range(9, 30)])


def table(times):
    return [CollectiveRow(AR, 8, size, time) for size, time in zip(SIZES, times, strict=True)]


def two_lines(first=(20e-6, 5e9), second=(50e-6, 25e9)):
    return np.minimum(first[0] + SIZES / first[1], second[0] + SIZES / second[1])


@given(alpha_us=st.floats(1, 1e3), gb_per_s=st.floats(0.1, 1e3))
def test_a_line_is_found_exactly(alpha_us, gb_per_s):
    alpha, bandwidth = robust_line(SIZES, alpha_us * 1e-6 + SIZES / (gb_per_s * 1e9))
    assert alpha == pytest.approx(alpha_us * 1e-6, rel=1e-6)
    assert bandwidth == pytest.approx(gb_per_s * 1e9, rel=1e-6)


def test_outliers_do_not_move_the_line():
    times = 20e-6 + SIZES / 1e10
    times[[3, 12]] *= 4
    alpha, bandwidth = robust_line(SIZES, times)
    assert (alpha, bandwidth) == (pytest.approx(20e-6), pytest.approx(1e10))


@given(st.lists(st.floats(1e-6, 1e-2), min_size=3, max_size=8), st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
def test_no_line_is_better(times, alpha, bandwidth):
    size, time = SIZES[: len(times)], np.array(times)
    best = robust_line(size, time, least_alpha_s=1e-7, fastest_bytes_per_s=1e12)

    def error(line):
        return np.abs((line[0] + size / line[1]) / time - 1).mean()

    assert error(best) <= error((alpha, bandwidth)) + 1e-12


def test_two_branches_are_found_under_noise():
    times = two_lines() * np.exp(np.random.default_rng(1).normal(0, 0.01, SIZES.size))
    fit = fit_branches(table(times), TWO)
    (ll, simple), error = fit.branches, fit.mean_error
    assert ll.alpha_us == pytest.approx(20, rel=0.03)
    assert simple.alpha_us == pytest.approx(50, rel=0.15)
    assert ll.bandwidth_gb_per_s == pytest.approx(5, rel=0.1)
    assert simple.bandwidth_gb_per_s == pytest.approx(25, rel=0.03)
    assert error < 0.012
    assert error == pytest.approx(np.abs(predicted_s(fit.branches, SIZES) / times - 1).mean())


def test_a_branch_with_a_limit_is_fitted_to_the_sizes_below_it():
    limit = 1 << 20
    times = np.where(limit >= SIZES, 10e-6 + SIZES / 50e9, 40e-6 + SIZES / 30e9)
    shapes = (Shape(Protocol.CUSTOM, Algorithm.ONE_SHOT, limit), Shape(Protocol.SIMPLE, Algorithm.RING))
    fit = fit_branches(table(times), shapes)
    assert fit.max_error < 1e-3
    assert [branch.max_bytes for branch in fit.branches] == [limit, None]


def test_limits_of_a_line():
    times = 20e-6 + SIZES / 100e9
    _, bandwidth = robust_line(SIZES, times, fastest_bytes_per_s=50e9)
    assert bandwidth == pytest.approx(50e9)
    assert robust_line(SIZES, times, least_alpha_s=30e-6)[0] >= 30e-6


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        fit_branches(table(two_lines())[:3], TWO)
    with pytest.raises(InputError, match="positive"):
        fit_branches([CollectiveRow(AR, 8, 1.0, 0.0)] * 9, TWO)


def test_left_out_sizes_are_predicted_from_the_others():
    errors = leave_one_size_out(table(two_lines()), TWO)
    assert errors.shape == SIZES.shape
    assert np.median(errors) < 1e-3


def test_tables_are_read_in_their_units():
    text = [
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency",
        "x,1,y,alltoall,NCCL,half,4,256,0.0083",
        "x,1,y,alltoall,NCCL,int8,4,512,0.0082",
    ]
    (row,) = aiconfigurator_rows(text, {"nccl_dtype": "half"})
    assert (row.operation.value, row.ranks, row.size_bytes, row.time_s) == ("all_to_all", 4, 512, pytest.approx(8.3e-6))
    (row,) = aiconfigurator_rows(text, {"nccl_dtype": "int8"})
    assert row.size_bytes == 512
    with pytest.raises(InputError, match="dtype"):
        aiconfigurator_rows([text[0], text[1].replace("half", "fp4")], {})
    head = "collective,n_ranks,size_bytes,time_us,place"
    found = nccl_tests_rows([head, "all_reduce,8,0,5,out", "all_reduce,8,64,5,out", "all_reduce,8,64,6,in"])
    assert found == [CollectiveRow(AR, 8, 64.0, pytest.approx(5e-6))]
    assert busbw_row(AR, 8, 1.75e9, 1.75**2 * 1e9).time_s == pytest.approx(1.0)


# ---- shipped -------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measurements are not at {DATA}")
@pytest.mark.parametrize("wanted", FITTED, ids=lambda fitted: fitted.name)
def test_shipped_constants_are_what_the_fit_returns(wanted):
    found = fit_collective(
        rows(wanted.table),
        wanted.operation,
        wanted.ranks,
        wanted.shapes,
        source=wanted.source,
        implementation=wanted.implementation,
    )
    shipped = next(
        entry
        for entry in load_profile(wanted.profile).collectives
        if (entry.operation, entry.ranks, entry.implementation)
        == (wanted.operation, wanted.ranks, wanted.implementation)
    )
    assert found == shipped.model_copy(update={"bound_by": None, "reason": ""})


def test_a_pass_of_vllm_all_reduces():
    # 64 layers and the embedding: 129 all-reduces of 8192 x 5120 bf16; 568 ms by aiconfigurator's measured tables
    # (aiconfigurator, NVIDIA, Apache-2.0: static_ctx of Qwen3-32B, rtx_pro_6000_server, vllm 0.24.0, TP4).
    cost = collective(
        "all_reduce", 8192 * 5120 * 2, range(4), Box(load_profile("rtx_pro_6000_server"), "P"), "vllm_custom"
    )
    assert 129 * cost.time_s == pytest.approx(0.568, rel=0.05)
