"""Kernels and steps of LLMs that were left out of the fit, on one system, and what the profiles record of it."""

import sys
from functools import cache
from pathlib import Path

import pytest

from pdmodel.hardware.catalog import load_profile

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS = Path(__file__).parents[3] / "shared" / "data" / "step_times"
SYSTEM, PROFILE = "rtx_pro_6000_server", "rtx_pro_6000_server"

if not STEPS.exists():
    pytest.skip("the folder of step times is not beside the repository", allow_module_level=True)

sys.path.insert(0, str(BENCHMARKS))
import compute_tables as tables  # noqa: E402
import fit_compute as fits  # noqa: E402
import heldout_compute as heldout  # noqa: E402


@cache
def evaluated() -> tuple[object, object]:
    return heldout.evaluate(STEPS, [SYSTEM], ["vllm"])


def test_kernels_of_other_llms() -> None:
    by_shape = evaluated()[0]
    error = by_shape.assign(error=by_shape.error.abs()).groupby(["op", "dtype"]).error.mean()
    limits = {"gemm": 0.08, "prefill_attention": 0.09, "decode_attention": 0.10, "moe": 0.17}
    assert set(error.index.get_level_values("op")) == set(limits)
    for (op, dtype), value in error.items():
        assert value <= limits[op], (op, dtype, value)
        recorded = getattr(load_profile(PROFILE).compute, op)[dtype].held_out_error
        assert recorded == pytest.approx(value, abs=0.001), (op, dtype)


def test_steps_of_other_llms() -> None:
    by_step = evaluated()[1]
    clean = by_step[by_step.family.str.match("dense|MoE") & (by_step.fitted == "others")]
    error = clean.assign(error=clean.error.abs()).groupby(["family", "phase"]).error.agg(["mean", "size"])
    assert error["size"].sum() >= 400
    assert error.loc[("dense bf16", "prefill"), "mean"] <= 0.04
    assert error.loc[("dense bf16", "decode"), "mean"] <= 0.05
    assert (error["mean"] <= 0.13).all()


def test_a_fit_finds_the_constants_it_was_made_from() -> None:
    system = tables.System.of(SYSTEM)
    part = fits.prefill_part("bf16")
    rows = part.rows(tables.load_ops(STEPS).query("system == @SYSTEM"), "bf16")
    made = part.build([10.0, 0.6, 12.0, 250.0, 1.5])
    rows = rows.assign(us=part.time_s(made, tables.columns(rows), system, "bf16") * 1e6)
    found = fits.fit(part, rows, system)
    assert found.mean_error <= 0.005
    assert found.compute_efficiency == pytest.approx(0.6, rel=0.02)
