"""Errors of the compute formulas over LLMs left out of the fit: agreement with aiconfigurator's tables, not machines.

``python benchmarks/heldout_compute.py FOLDER [--systems NAME ...] [--backends NAME ...]``: per system, the constants
are fitted on the vLLM kernels of all LLMs but one (`fit_compute`), and what is left out is predicted: its kernels, and
its whole steps without collectives through `pdmodel.costs.step`. Rows with flags, and those of other backends (which
the constants are not fitted to), are counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import compute_tables as tables
import fit_compute as fits
import numpy as np
import pandas as pd
from compute_tables import SYSTEMS, System

from pdmodel.costs.step import decode_step, prefill_pass
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.compute import ComputeConstants, LaunchConstants
from pdmodel.hardware.figures import Figure
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.llm.architecture import Architecture, WeightDtypes
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype

LLMS = {
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Meta-Llama-3.1-70B": "llama-3.1-70b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
}
MLA = "deepseek-ai/DeepSeek-V3"
DTYPES = {"bfloat16": WeightDtype.BF16, "fp8": WeightDtype.FP8, "fp8_block": WeightDtype.FP8_BLOCK}
OPS = {
    "gemm": "GEMM",
    "prefill_attention": "prefill attention",
    "decode_attention": "decode attention",
    "moe": "experts",
}


def profile_of(system: System, constants: ComputeConstants) -> HardwareProfile:
    """A box with this system's peaks and constants; its links, which cost nothing here, may be another box's."""
    names = SYSTEMS[system.name]
    profile = load_profile(names[0] if names else "h100_8nic")
    if not names:
        peaks = {dtype: Figure(value=peak / 1e12, source="gpu") for dtype, peak in system.flop_per_s.items()}
        memory = Figure(value=system.bytes_per_s / 1e9, source="gpu")
        gpu = profile.gpu.model_copy(update={"peak_tflops": peaks, "hbm_gb_per_s": memory})
        profile = profile.model_copy(update={"gpu": gpu})
    return profile.model_copy(update={"compute": constants})


def architecture(row: Any) -> Architecture:
    """The LLM with the weights of a step; embeddings, head and router stay BF16."""
    arch, dtype = load_llm(LLMS[row.base_model]), DTYPES[row.weight_dtype]
    experts = DTYPES.get(row.moe_dtype, dtype)
    return replace(arch, dtypes=WeightDtypes(dtype, dtype, dtype, experts, WeightDtype.BF16))


def expressible(row: Any) -> bool:
    """Whether the ranks of a step are what `prefill_pass` knows: DP attention goes with one expert part a rank."""
    known = row.base_model in LLMS and row.weight_dtype in DTYPES
    return known and (row.attention_dp == 1 or row.moe_tp == 1)


def predicted_ms(row: Any, profile: HardwareProfile) -> float:
    """Compute of a step without collectives [ms]."""
    arch, tp, ep = architecture(row), int(row.tp), 1 if np.isnan(row.moe_ep) else int(row.moe_ep)
    cache = KvDtype.FP8 if row.kv_dtype == "fp8" else KvDtype.BF16
    ranks = {"tp_size": tp, "ep_size": ep if arch.moe else 1}
    if row.phase == "prefill":
        past, new = int(row.prefix), int(row.new_tokens)
        return prefill_pass(arch, profile, new, past, cp_size=int(row.cp), kv_dtype=cache, **ranks).time_s * 1e3
    return decode_step(arch, profile, int(row.batch), float(row.ctx), kv_dtype=cache, **ranks).time_s * 1e3


def family(row: Any, constants: ComputeConstants) -> str:
    """What a step counts as: its flags or its backend, else dense or MoE and the weights.

    A MoE step counts as held out where other LLMs gave constants for its experts; else they are the package's defaults.
    """
    dtype = row.weight_dtype.replace("bfloat16", "bf16")
    kind = f"{'dense' if pd.isna(row.moe_dtype) else 'MoE'} {dtype}"
    if row.backend != "vllm":
        return f"{row.backend}, {kind}" + (", flags" if row.flags else "")
    if row.flags:
        return str(row.flags) + (", MLA" if row.base_model == MLA and "fp8block" in row.flags else "")
    return kind + ("" if kind.startswith("dense") or dtype in constants.moe else ", default experts")


def eager(profile: HardwareProfile) -> HardwareProfile:
    """The same box with matrix products launched one by one."""
    launch = LaunchConstants(eager_calls=True, source="kernels")
    return profile.model_copy(update={"compute": profile.compute.model_copy(update={"launch": launch})})


def step_errors(steps: pd.DataFrame, profile: HardwareProfile) -> Iterator[tuple[str, str, float]]:
    """(family, phase, relative error) of every step that can be expressed.

    The flag for long calls of FP8 in blocks concerns plain products: blocks of MLA were timed as a whole, without them.
    """
    with_calls = eager(profile)
    for row in steps.itertuples():
        if expressible(row):
            called = "fp8block_overhead" in row.flags and row.base_model != MLA
            compute_ms = row.total_ms - row.allreduce_ms - row.other_comm_ms
            time_ms = predicted_ms(row, with_calls if called else profile)
            yield family(row, profile.compute), row.phase, time_ms / compute_ms - 1


def evaluate(folder: Path, systems: Sequence[str], backends: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Errors per kernel shape and per step, each with system and LLM left out."""
    ops, steps = tables.load_ops(folder), tables.load_steps(folder)
    steps = steps[steps.backend.isin(backends)]
    by_shape: list[dict[str, Any]] = []
    by_step: list[dict[str, Any]] = []
    for name in systems:
        system, mine = System.of(name), ops[ops.system == name]
        for part in fits.parts(system):
            for llm, errors in fits.held_out(part, mine, system).items():
                key = {"system": name, "llm": llm, "op": part.field, "dtype": part.key}
                by_shape += [key | {"error": error} for error in errors]
        everything = fits.fit_system(mine, system)
        for llm, tested in steps[steps.system == name].groupby("base_model"):
            without = fits.fit_system(mine[mine.base_model != llm], system)
            for fitted, constants in (("others", without), ("all", everything)):
                key = {"system": name, "llm": llm, "fitted": fitted}
                errors = step_errors(tested, profile_of(system, constants))
                by_step += [key | {"family": kind, "phase": phase, "error": error} for kind, phase, error in errors]
    return pd.DataFrame(by_shape), pd.DataFrame(by_step)


def summary(errors: pd.DataFrame, rows: list[str], column: str) -> pd.DataFrame:
    """Mean absolute error [%] and count of each group."""
    size = errors.assign(error=100 * errors.error.abs())
    table = size.pivot_table(
        index=rows, columns=column, values="error", aggfunc="mean", margins=True, margins_name="all"
    )
    return table.round(1).assign(n=size.groupby(rows).size())


def lines(table: pd.DataFrame) -> list[str]:
    """A Markdown table; empty cells where nothing was held out."""
    names = [*(name or "" for name in table.index.names), *(str(column) for column in table.columns)]
    found = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for index, values in zip(table.index, table.to_numpy(), strict=True):
        keys = index if isinstance(index, tuple) else (index,)
        cells = ["" if np.isnan(value) else f"{value:g}" for value in values]
        found.append("| " + " | ".join([*map(str, keys), *cells]) + " |")
    return found


def report(by_shape: pd.DataFrame, by_step: pd.DataFrame) -> str:
    """The tables of docs/compute.md."""
    by_shape = by_shape.assign(op=by_shape.op.map(OPS) + ", " + by_shape.dtype)
    own = by_step.family.str.match("dense|MoE")
    held_out, fitted = by_step.fitted == "others", by_step.fitted == "all"
    rows = ["family", "phase"]
    text = ["Kernels, mean absolute error [%] over the shapes of LLMs left out:", ""]
    text += lines(summary(by_shape, ["op"], "system"))
    text += ["", "Steps without flags (vLLM), their LLM left out, mean absolute error [%]:", ""]
    text += lines(summary(by_step[own & held_out], rows, "system"))
    text += ["", "The same by LLM left out:", "", *lines(summary(by_step[own & held_out], rows, "llm"))]
    text += ["", "The same steps with all LLMs fitted:", "", *lines(summary(by_step[own & fitted], rows, "system"))]
    if not own.all():
        text += ["", "Apart: flagged rows, and backends that the constants are not fitted to, all LLMs fitted:", ""]
        text += lines(summary(by_step[~own & fitted], rows, "system"))
    return "\n".join(text)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--backends", nargs="+", default=["vllm", "sglang", "trtllm"])
    arguments = parser.parse_args()
    by_shape, by_step = evaluate(arguments.folder, arguments.systems, arguments.backends)
    sys.stdout.write(report(by_shape, by_step) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
