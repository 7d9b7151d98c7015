"""Tables of kernel times (aiconfigurator, NVIDIA, Apache-2.0) as rows of shapes, and the formulas over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pdmodel.costs import roofline
from pdmodel.hardware import compute
from pdmodel.llm.operators import EXPERT_SKEW, causal_pairs, experts_touched

PROFILES = Path(__file__).parents[1] / "hardware_profiles"
# System of the tables -> profiles that take its constants; the shares refer to the peaks of the first.
SYSTEMS = {
    "rtx_pro_6000_server": ("rtx_pro_6000_server", "rtx_pro_6000_wrx90_two_roots", "rtx_5090_direct"),
    "l40s": ("l40s_pcie_gen4",),
    "a100_sxm": (),
    "h100_sxm": ("h100_8nic",),
    "h200_sxm": ("h200_nvlink_2nic",),
    "b200_sxm": ("b200_8nic",),
}
# A100-SXM4-80GB, of which no profile is shipped: peaks of aiconfigurator-core 0.12.0, systems/a100_sxm.yaml.
A100_PEAKS = ({"bf16": 312e12}, 2039e9)
# Multiprocessors of the GPUs whose tables show waves of tiles: NVIDIA's architecture papers of Ampere and Blackwell.
WAVES = {"rtx_pro_6000_server": 188, "a100_sxm": 108}
RTX_5090_MULTIPROCESSORS = 170  # which takes the constants of the RTX PRO 6000
GDDR = ("rtx_pro_6000_server", "l40s")
HOPPER = ("h100_sxm", "h200_sxm")
QUANT = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block"}
WEIGHT_BYTES = {"bf16": 2, "fp8": 1, "fp8_block": 1}
STEP_COLUMNS = [
    *("row_id", "config_id", "system", "backend", "backend_version", "base_model", "phase", "attention_dp", "moe_tp"),
    *("moe_ep", "batch", "new_tokens", "ctx", "kv_dtype", "attn_extra_ms", "total_ms", "flags"),
]
Times = NDArray[np.float64]
Columns = Mapping[str, Times]


@dataclass(frozen=True, slots=True)
class System:
    """Peaks of the GPU whose kernels were timed [FLOP/s], [byte/s]."""

    name: str
    flop_per_s: dict[str, float]
    bytes_per_s: float

    @classmethod
    def of(cls, name: str) -> System:
        if not SYSTEMS[name]:
            return cls(name, *A100_PEAKS)
        gpu = json.loads((PROFILES / f"{SYSTEMS[name][0]}.json").read_text())["gpu"]
        peaks = {dtype: figure["value"] * 1e12 for dtype, figure in gpu["peak_tflops"].items()}
        return cls(name, peaks, gpu["hbm_gb_per_s"]["value"] * 1e9)

    def peak(self, dtype: str) -> float:
        return self.flop_per_s["fp8" if dtype.startswith("fp8") else dtype]


def load_steps(folder: Path) -> pd.DataFrame:
    """All steps; ``flags`` is never missing."""
    steps = pd.read_csv(folder / "dev.csv.gz", low_memory=False)
    steps["flags"] = steps["flags"].fillna("")
    return steps


def load_ops(folder: Path, backend: str = "vllm") -> pd.DataFrame:
    """Ops of one backend with the columns of their step; what the source derived or guessed is left out."""
    steps = load_steps(folder)
    steps = steps[(steps.backend == backend) & ~steps["flags"].str.contains("prefix_derived|gemm_extrap|a2a_estimated")]
    ops = pd.read_csv(folder / "dev_ops.csv.gz", low_memory=False).merge(steps[STEP_COLUMNS], on="row_id")
    ops["share"] = ops.ms / ops.total_ms
    ops["us"] = ops.ms_per_call * 1e3
    specs = pd.read_csv(folder / "op_specs.csv.gz")
    specs = specs[specs.kind == "Moe"].copy()
    parsed = specs.spec_json.map(json.loads)
    for column, key in (("d", "hidden_size"), ("inter", "inter_size"), ("experts", "num_experts"), ("top_k", "topk")):
        specs[column] = parsed.map(lambda spec, key=key: spec[key])
    keys = ["config_id", "phase", "op"]
    return ops.merge(specs[[*keys, "d", "inter", "experts", "top_k"]].drop_duplicates(keys), on=keys, how="left")


def distinct(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """One row per shape with its time and the sum of its shares of a step."""
    return frame.groupby(keys).agg(us=("us", "first"), share=("share", "sum")).reset_index()


def gemm_rows(ops: pd.DataFrame, dtype: str) -> pd.DataFrame:
    return distinct(ops[(ops.kind == "Gemm") & (ops.quant == QUANT[dtype])], ["m", "n", "k"])


def prefill_rows(ops: pd.DataFrame, cache: str) -> pd.DataFrame:
    """Causal attention without the constant that the source adds for rotation and cache write."""
    rows = ops[(ops.kind == "ContextAttention") & (ops.op == "context_attention") & (ops.kv_dtype == QUANT[cache])]
    rows = rows.assign(us=rows.us - rows.attn_extra_ms / rows["count"] * 1e3)
    return distinct(rows, ["n_heads", "n_kv", "head_dim", "new_tokens"])


def decode_rows(ops: pd.DataFrame, cache: str) -> pd.DataFrame:
    kind = (ops.kind == "GenerationAttention") & (ops.op == "generation_attention")
    return distinct(ops[kind & (ops.kv_dtype == QUANT[cache])], ["n_heads", "n_kv", "head_dim", "ctx", "batch"])


def moe_rows(ops: pd.DataFrame, dtype: str) -> pd.DataFrame:
    """Shapes of the expert blocks; ``tokens`` are all that are gathered (at most what was measured)."""
    rows = ops[(ops.kind == "Moe") & (ops.quant == QUANT[dtype])]
    rows = rows.assign(tokens=np.where(rows.phase == "decode", rows.batch, rows.new_tokens) * rows.attention_dp)
    return distinct(rows[rows.tokens <= 32768], ["d", "inter", "experts", "top_k", "moe_tp", "moe_ep", "tokens"])


def columns(rows: pd.DataFrame) -> Columns:
    return {str(name): rows[name].to_numpy(dtype=float) for name in rows.columns}


def gemm_s(constants: compute.GemmConstants, rows: Columns, system: System, dtype: str) -> Times:
    m, n, k = rows["m"], rows["n"], rows["k"]
    size = (m * k + k * n) * WEIGHT_BYTES[dtype] + 2 * m * n
    peaks = {"flop_per_s": system.peak(dtype), "bytes_per_s": system.bytes_per_s}
    found = roofline.gemm_s(m, n, k, size, constants=constants, **peaks) + constants.call_us * 1e-6
    if constants.quantise is not None:
        found = found + roofline.quantise_s(m, k, bytes_per_s=system.bytes_per_s, constants=constants.quantise)
    return found


def prefill_s(constants: compute.PrefillAttentionConstants, rows: Columns, system: System, _: str) -> Times:
    q = rows["new_tokens"]
    pairs: Any = causal_pairs(q, 0)  # type: ignore[arg-type]
    flop = 4 * pairs * rows["n_heads"] * rows["head_dim"]
    return roofline.prefill_attention_s(flop, q, pairs, flop_per_s=system.peak("bf16"), constants=constants)


def decode_s(constants: compute.DecodeAttentionConstants, rows: Columns, system: System, cache: str) -> Times:
    keys = rows["batch"] * rows["ctx"] * rows["head_dim"]
    return roofline.decode_attention_s(
        4 * keys * rows["n_heads"],
        2 * keys * rows["n_kv"] * WEIGHT_BYTES[cache],
        rows["ctx"],
        flop_per_s=system.peak("bf16"),
        bytes_per_s=system.bytes_per_s,
        constants=constants,
    )


def moe_s(constants: compute.MoeConstants, rows: Columns, system: System, dtype: str) -> Times:
    """With the same skew as `pdmodel.llm.operators`."""
    ep, d, tokens, width = rows["moe_ep"], rows["d"], rows["tokens"], rows["inter"] / rows["moe_tp"]
    fullness = ep**EXPERT_SKEW
    pairs = tokens * rows["top_k"] / ep * fullness
    reached = zip(rows["experts"], rows["top_k"] * fullness, tokens, strict=True)
    touched = np.array([experts_touched(*shape) for shape in reached]) / ep
    return roofline.moe_s(
        6 * pairs * d * width,
        touched * 3 * d * width * WEIGHT_BYTES[dtype],
        pairs=pairs,
        experts=touched,
        width=width,
        hidden_bytes=tokens * d * 2,
        flop_per_s=system.peak(dtype),
        bytes_per_s=system.bytes_per_s,
        constants=constants,
    )
