"""Fit the compute constants of the shipped profiles to kernel times (aiconfigurator, NVIDIA, Apache-2.0; vLLM).

``python benchmarks/fit_compute.py FOLDER [--write]`` reads ``dev.csv.gz``, ``dev_ops.csv.gz``, ``op_specs.csv.gz`` of
FOLDER and prints the constants per system; ``--write`` puts them into the ``compute`` section of the profiles. The
formulas fitted are those of `pdmodel.costs.roofline`. A kernel counts with its share of the steps it occurs in, plus a
constant so that rare shapes are not lost; residuals are those of log time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdmodel.costs import roofline
from pdmodel.hardware import compute
from pdmodel.llm.operators import EXPERT_SKEW, experts_touched

PROFILES = Path(__file__).parents[1] / "hardware_profiles"
# System of the tables -> profiles that take its constants; the shares refer to the peaks of the first.
SYSTEMS = {
    "rtx_pro_6000_server": ("rtx_pro_6000_server", "rtx_pro_6000_wrx90_two_roots", "rtx_5090_direct"),
    "l40s": ("l40s_pcie_gen4",),
    "h100_sxm": ("h100_8nic",),
    "h200_sxm": ("h200_nvlink_2nic",),
    "b200_sxm": ("b200_8nic",),
}
HOPPER = ("h100_sxm", "h200_sxm")
QUANT = {"bf16": "bfloat16", "fp8": "fp8"}
WEIGHT_BYTES = {"bf16": 2, "fp8": 1}
Rows = list[dict[str, float]]


def load(folder: Path) -> pd.DataFrame:
    """Ops of the vLLM steps, one row per kernel, with the columns of their step; derived rows left out."""
    steps = pd.read_csv(folder / "dev.csv.gz", low_memory=False)
    steps = steps[(steps.backend == "vllm") & ~steps["flags"].fillna("").str.contains("prefix_derived")]
    ops = pd.read_csv(folder / "dev_ops.csv.gz", low_memory=False)
    columns = [
        "row_id",
        "config_id",
        "system",
        "backend_version",
        "base_model",
        "phase",
        "attention_dp",
        "moe_tp",
        "moe_ep",
        "batch",
    ]
    columns += ["new_tokens", "ctx", "kv_dtype", "attn_extra_ms", "total_ms"]
    ops = ops.merge(steps[columns], on="row_id")
    ops["share"] = ops.ms / ops.total_ms
    ops["us"] = ops.ms_per_call * 1e3
    return ops


def distinct(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per shape with its time and the sum of its shares."""
    found = frame.groupby(keys).agg(us=("us", "first"), share=("share", "sum")).reset_index()
    found["weight"] = np.sqrt(0.3 + found.share / found.share.mean())
    return found


def fit(
    build: Callable[[Sequence[float]], Any],
    time_s: Callable[[Any, dict[str, float]], float],
    rows: pd.DataFrame,
    bounds: list[tuple[float, float, float]],
) -> Any:
    """Constants ``build(x)`` that fit ``time_s(constants, row)``; ``bounds`` are (start, low, high) per number."""
    from scipy.optimize import least_squares

    records: Rows = rows.to_dict("records")
    measured = rows.us.to_numpy() * 1e-6

    def predict(x: Sequence[float]) -> NDArray[np.float64]:
        constants = build(x)
        return np.array([time_s(constants, row) for row in records])

    def residuals(x: Sequence[float]) -> NDArray[np.float64]:
        return np.log(predict(x) / measured) * rows.weight.to_numpy()

    start, low, high = (np.array(column) for column in zip(*bounds, strict=True))
    best = None
    for scale in (1.0, 0.6, 1.6):
        inside = np.clip(start * scale, low + 1e-6, high - 1e-6)
        result = least_squares(residuals, inside, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=start)
        best = result if best is None or result.cost < best.cost else best
    assert best is not None
    x = [float(f"{max(value, 1e-6):.4g}") if value > 1e-6 else 0.0 for value in best.x]
    error = float(np.mean(np.abs(predict(x) / measured - 1)))
    return build(x).model_copy(update={"mean_error": round(error, 3)})


def fit_gemm(ops: pd.DataFrame, dtype: str, flop_per_s: float, bytes_per_s: float) -> compute.GemmConstants:
    """Matrix products; FP8 with the quantisation of their input."""
    rows = distinct(ops[(ops.kind == "Gemm") & (ops.quant == QUANT[dtype])], ["m", "n", "k"])
    width = WEIGHT_BYTES[dtype]

    def build(x: Sequence[float]) -> compute.GemmConstants:
        quantise = compute.QuantiseConstants(ns_per_row=x[4], memory_efficiency=x[5]) if len(x) > 4 else None
        return compute.GemmConstants(
            overhead_us=x[0],
            compute_efficiency=x[1],
            memory_efficiency=x[2],
            exponent=x[3],
            quantise=quantise,
            source="kernels",
        )

    def time_s(constants: compute.GemmConstants, row: dict[str, float]) -> float:
        m, n, k = row["m"], row["n"], row["k"]
        size = (m * k + k * n) * width + 2 * m * n
        found = roofline.gemm_s(
            2 * m * n * k, size, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s, constants=constants
        )
        if constants.quantise is not None:
            found += roofline.quantise_s(m, k, bytes_per_s=bytes_per_s, constants=constants.quantise)
        return found

    bounds = [(4.0, 0.0, 300.0), (0.75, 0.05, 1.0), (0.8, 0.05, 1.0), (2.5, 1.0, 10.0)]
    if dtype == "fp8":
        bounds += [(5.0, 0.0, 50.0), (0.35, 0.02, 1.0)]
    return fit(build, time_s, rows, bounds)


def fit_prefill(ops: pd.DataFrame, cache: str, flop_per_s: float) -> compute.PrefillAttentionConstants:
    """Causal attention without the constant that the source adds for rotation and cache write."""
    rows = ops[(ops.kind == "ContextAttention") & (ops.op == "context_attention") & (ops.kv_dtype == QUANT[cache])]
    rows = rows.assign(us=rows.us - rows.attn_extra_ms / rows["count"] * 1e3)
    rows = distinct(rows, ["n_heads", "n_kv", "head_dim", "new_tokens"])

    def build(x: Sequence[float]) -> compute.PrefillAttentionConstants:
        return compute.PrefillAttentionConstants(
            overhead_us=x[0], compute_efficiency=x[1], linear_us_per_1024_tokens=x[2], source="kernels"
        )

    def time_s(constants: compute.PrefillAttentionConstants, row: dict[str, float]) -> float:
        q = row["new_tokens"]
        flop = 2 * q * (q + 1) * row["n_heads"] * row["head_dim"]
        return roofline.prefill_attention_s(flop, q, flop_per_s=flop_per_s, constants=constants)

    return fit(build, time_s, rows, [(15.0, 0.0, 100.0), (0.6, 0.05, 1.0), (8.0, 0.0, 100.0)])


def fit_decode(
    ops: pd.DataFrame, cache: str, flop_per_s: float, bytes_per_s: float
) -> compute.DecodeAttentionConstants:
    """Attention of one query per request; the share of the compute peak cannot be seen in GQA and is assumed."""
    rows = ops[
        (ops.kind == "GenerationAttention") & (ops.op == "generation_attention") & (ops.kv_dtype == QUANT[cache])
    ]
    rows = distinct(rows, ["n_heads", "n_kv", "head_dim", "ctx", "batch"])

    def build(x: Sequence[float]) -> compute.DecodeAttentionConstants:
        return compute.DecodeAttentionConstants(
            overhead_us=x[0],
            memory_efficiency=x[1],
            compute_efficiency=0.6,
            floor_us=x[2],
            exponent=x[3],
            source="kernels",
        )

    def time_s(constants: compute.DecodeAttentionConstants, row: dict[str, float]) -> float:
        keys = row["batch"] * row["ctx"] * row["head_dim"]
        return roofline.decode_attention_s(
            4 * keys * row["n_heads"],
            2 * keys * row["n_kv"] * WEIGHT_BYTES[cache],
            row["ctx"],
            flop_per_s=flop_per_s,
            bytes_per_s=bytes_per_s,
            constants=constants,
        )

    return fit(build, time_s, rows, [(8.0, 0.0, 50.0), (0.85, 0.1, 1.0), (4.0, 0.0, 100.0), (2.0, 1.0, 10.0)])


def moe_rows(ops: pd.DataFrame, specs: pd.DataFrame, quant: str) -> pd.DataFrame:
    """Shapes of the expert blocks: width and share of a rank, tokens gathered (at most what was measured)."""
    parsed = specs[specs.kind == "Moe"].assign(spec=lambda frame: frame.spec_json.map(json.loads))
    for column, key in (("d", "hidden_size"), ("inter", "inter_size"), ("experts", "num_experts"), ("top_k", "topk")):
        parsed[column] = parsed.spec.map(lambda spec, key=key: spec[key])
    keys = ["config_id", "phase", "op"]
    rows = ops[(ops.kind == "Moe") & (ops.quant == quant)].merge(
        parsed[[*keys, "d", "inter", "experts", "top_k"]].drop_duplicates(keys), on=keys
    )
    rows["tokens"] = np.where(rows.phase == "decode", rows.batch, rows.new_tokens) * rows.attention_dp
    rows = rows[rows.tokens <= 32768]
    return distinct(rows, ["d", "inter", "experts", "top_k", "moe_tp", "moe_ep", "tokens"])


def moe_time_s(
    constants: compute.MoeConstants, row: dict[str, float], width_bytes: int, flop_per_s: float, bytes_per_s: float
) -> float:
    """Time of one row of `moe_rows`, with the same skew as `pdmodel.llm.operators`."""
    ep, d, tokens = row["moe_ep"], row["d"], row["tokens"]
    width, fullness = row["inter"] / row["moe_tp"], ep**EXPERT_SKEW
    pairs = tokens * row["top_k"] / ep * fullness
    touched = experts_touched(row["experts"], row["top_k"] * fullness, tokens) / ep
    return roofline.moe_s(
        6 * pairs * d * width,
        touched * 3 * d * width * width_bytes,
        pairs=pairs,
        experts=touched,
        width=width,
        hidden_bytes=tokens * d * 2,
        flop_per_s=flop_per_s,
        bytes_per_s=bytes_per_s,
        constants=constants,
    )


def fit_moe(rows: pd.DataFrame, dtype: str, flop_per_s: float, bytes_per_s: float) -> compute.MoeConstants:
    """Routed experts."""

    def build(x: Sequence[float]) -> compute.MoeConstants:
        return compute.MoeConstants(
            overhead_us=x[0],
            compute_efficiency=x[1],
            memory_efficiency=x[2],
            exponent=x[3],
            narrow_width=x[4],
            tile_rows=x[5],
            token_passes=x[6],
            source="kernels",
        )

    def time_s(constants: compute.MoeConstants, row: dict[str, float]) -> float:
        return moe_time_s(constants, row, WEIGHT_BYTES[dtype], flop_per_s, bytes_per_s)

    bounds = [(15.0, 0.0, 200.0), (0.5, 0.02, 1.0), (0.9, 0.1, 1.0), (1.5, 1.0, 10.0)]
    return fit(build, time_s, rows, [*bounds, (100.0, 0.0, 2000.0), (20.0, 0.0, 256.0), (20.0, 0.0, 80.0)])


def fit_system(ops: pd.DataFrame, specs: pd.DataFrame, profile: dict[str, Any]) -> compute.ComputeConstants:
    """All constants of one system."""
    peaks = {dtype: figure["value"] * 1e12 for dtype, figure in profile["gpu"]["peak_tflops"].items()}
    bytes_per_s = profile["gpu"]["hbm_gb_per_s"]["value"] * 1e9
    both = ("bf16", "fp8")
    moe = {}
    for dtype in both:
        rows = moe_rows(ops, specs, QUANT[dtype])
        moe[dtype] = fit_moe(rows, dtype, peaks[dtype], bytes_per_s)
    return compute.ComputeConstants(
        gemm={dtype: fit_gemm(ops, dtype, peaks[dtype], bytes_per_s) for dtype in both},
        prefill_attention={cache: fit_prefill(ops, cache, peaks["bf16"]) for cache in both},
        decode_attention={cache: fit_decode(ops, cache, peaks["bf16"], bytes_per_s) for cache in both},
        moe=moe,
        elementwise=compute.ElementwiseConstants(overhead_us=3.0, memory_efficiency=0.8, source="elementwise"),
    )


def derived_fp8_experts(bf16: compute.MoeConstants) -> compute.MoeConstants:
    """FP8 experts on Hopper from the BF16 fit, with 0.6 of its share of the peak.

    The FP8 table of vLLM 0.24.0 there holds a kernel 2.3 times slower than BF16 and 2.7 times slower than that of
    vLLM 0.19.0. Its fp8_block table (H200, DeepSeek-V3) does not, and is met to 7 % with this share.
    """
    share = round(0.6 * bf16.compute_efficiency, 4)
    return bf16.model_copy(update={"compute_efficiency": share, "source": "fp8_experts", "mean_error": None})


def sources(system: str, version: str, profile: str) -> dict[str, dict[str, str]]:
    """Where the constants of a profile come from."""
    table = f"aiconfigurator 0.12.0, NVIDIA, Apache-2.0: kernel tables of {system}, vllm {version}"
    fitted = (
        "fits of the formulas of costs/roofline.py by benchmarks/fit_compute.py; mean_error is over distinct shapes"
    )
    kernels = {"kind": "measured", "ref": table, "note": f"{fitted}; the decode share of the compute peak is assumed"}
    if profile == "rtx_pro_6000_wrx90_two_roots":
        kernels |= {"kind": "derived", "note": f"the same GPU in another box; {fitted}"}
    if profile == "rtx_5090_direct":
        note = "no table of this GPU: shares of the peaks and overheads of the RTX PRO 6000, the nearest one measured"
        kernels |= {"kind": "assumed", "note": note}
    elementwise = {
        "kind": "assumed" if kernels["kind"] == "assumed" else "derived",
        "ref": "aiconfigurator 0.12.0, NVIDIA, Apache-2.0: operators without a table",
        "note": "3 us and 80 % of the data sheet's bandwidth per kernel, a convention there; memory-bound products "
        "and decode attention reach 59-91 % in the same source's tables",
    }
    found = {"kernels": kernels, "elementwise": elementwise}
    if system in HOPPER:
        note = (
            "0.6 of the BF16 fit's share of the peak: the FP8 table of vllm 0.24.0 on Hopper is of a kernel 2.3 times "
            "slower than BF16; the fp8_block table (H200, DeepSeek-V3, 8 GPUs) is met to 7 % in the mean"
        )
        found["fp8_experts"] = {"kind": "derived", "ref": table, "note": note}
    return found


def section(constants: compute.ComputeConstants) -> str:
    """The ``compute`` section as text, one set of constants a line."""
    lines = []
    for part, value in constants.model_dump(exclude_none=True).items():
        if part == "elementwise":
            lines.append(f'    "{part}": {json.dumps(value)}')
            continue
        inner = ",\n".join(f'      "{dtype}": {json.dumps(entry)}' for dtype, entry in value.items())
        lines.append(f'    "{part}": {{\n{inner}\n    }}')
    return '"compute": {\n' + ",\n".join(lines) + "\n  }"


def _end_of_object(text: str, start: int) -> int:
    """Index just behind the JSON object that begins at the first brace from ``start`` on."""
    begin = text.index("{", start)
    _, length = json.JSONDecoder().raw_decode(text[begin:])
    return begin + length


def write(path: Path, constants: compute.ComputeConstants, found: dict[str, dict[str, str]]) -> None:
    """Replace the ``compute`` section and the sources it names; the rest of the file keeps its lines."""
    text = path.read_text()
    begin = text.index('"compute":')
    text = text[:begin] + section(constants) + text[_end_of_object(text, begin) :]
    for name, source in found.items():
        lines = ",\n".join(f'      "{key}": {json.dumps(value)}' for key, value in source.items())
        entry = f'"{name}": {{\n{lines}\n    }}'
        top = text.index('"sources":')
        end = _end_of_object(text, top)
        known = text.find(f'"{name}": {{', top, end)
        if known >= 0:
            text = text[:known] + entry + text[_end_of_object(text, known) :]
        else:
            last = text.rindex("}", top, end - 1) + 1
            text = f"{text[:last]},\n    {entry}{text[last:]}"
    path.write_text(text)


def main() -> int:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    ops = load(arguments.folder)
    specs = pd.read_csv(arguments.folder / "op_specs.csv.gz")
    for system, profiles in SYSTEMS.items():
        mine = ops[ops.system == system]
        peaks = json.loads((PROFILES / f"{profiles[0]}.json").read_text())
        constants = fit_system(mine, specs, peaks)
        if system in HOPPER:
            constants.moe["fp8"] = derived_fp8_experts(constants.moe["bf16"])
        sys.stdout.write(f"{system}\n{section(constants)}\n")
        for name in profiles if arguments.write else ():
            found = sources(system, str(mine.backend_version.iloc[0]), name)
            write(PROFILES / f"{name}.json", constants, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
