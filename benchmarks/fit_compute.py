"""Fit the compute constants of the shipped profiles to kernel times (aiconfigurator, NVIDIA, Apache-2.0; vLLM).

``python benchmarks/fit_compute.py FOLDER [--write]`` reads ``dev.csv.gz``, ``dev_ops.csv.gz``, ``op_specs.csv.gz`` of
FOLDER and prints the constants per system; ``--write`` puts them into the ``compute`` section of the profiles. The
formulas fitted are those of `pdmodel.costs.roofline`. Residuals are those of log time, weighted with the share of the
steps that a kernel occurs in, plus a constant so that rare shapes are not lost; a weak pull to a central value decides
what few shapes leave open. ``held_out_error`` is that over each LLM's shapes when all others were fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compute_tables as tables
import numpy as np
import pandas as pd
from compute_tables import GDDR, HOPPER, PROFILES, RTX_5090_MULTIPROCESSORS, SYSTEMS, WAVES, System, Times

from pdmodel.hardware import compute

LEAST_ROWS = 12  # shapes below which nothing is fitted
PULL = 0.1  # weight of one spread from the centre, as a log residual


@dataclass(frozen=True, slots=True)
class Number:
    """A constant to be fitted: its central value, how far it usually lies from it, and its bounds."""

    centre: float
    spread: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Part:
    """One set of constants: the rows it is fitted to, how it is made of numbers, and its formula over rows."""

    field: str
    key: str
    rows: Callable[[pd.DataFrame, str], pd.DataFrame]
    time_s: Callable[[Any, tables.Columns, System, str], Times]
    build: Callable[[Sequence[float]], Any]
    numbers: tuple[Number, ...]

    def relative_errors(self, constants: Any, rows: pd.DataFrame, system: System) -> Times:
        """Predicted over measured, minus 1, per row."""
        return self.time_s(constants, tables.columns(rows), system, self.key) / (rows.us.to_numpy() * 1e-6) - 1


CACHE = (Number(100.0, 60.0, 2.0, 400.0), Number(0.5, 0.3, 0.0, 0.95))


def cache_of(x: Sequence[float]) -> compute.CacheConstants | None:
    """From size and saving; a saving of nothing is no cache."""
    return compute.CacheConstants(size_mb=x[0], saving=x[1]) if len(x) > 0 and x[1] > 0 else None


def gemm_part(dtype: str, system: System) -> Part:
    """Matrix products: FP8 with the quantisation of their input, FP8 in blocks with the time of a call."""
    quantised, cached, waves = dtype == "fp8", system.name in GDDR, WAVES.get(system.name)

    def build(x: Sequence[float]) -> compute.GemmConstants:
        rest = list(x[6:])
        quantise = None
        if quantised:
            quantise = compute.QuantiseConstants(ns_per_row=rest.pop(0), memory_efficiency=rest.pop(0))
        tiles = None
        if waves:
            share, efficiency = rest.pop(0), rest.pop(0)
            tiles = compute.TileConstants(multiprocessors=waves, share=share, halving_efficiency=efficiency)
        return compute.GemmConstants(
            overhead_us=x[0],
            compute_efficiency=x[1],
            memory_efficiency=x[2],
            exponent=x[3],
            tiles=tiles if tiles and tiles.share > 0 else None,
            depth_us_per_1024=x[4],
            sustained_loss=x[5],
            cache=cache_of(rest),
            quantise=quantise,
            source="kernels",
        )

    numbers = [Number(4.0, 4.0, 0.0, 50.0), Number(0.75, 0.2, 0.05, 1.0), Number(0.8, 0.15, 0.05, 1.0)]
    numbers += [Number(2.2, 1.5, 1.0, 6.0), Number(1.0, 0.7, 0.0, 5.0), Number(0.1, 0.15, 0.0, 0.6)]
    numbers += [Number(6.0, 5.0, 0.0, 50.0), Number(0.4, 0.3, 0.02, 1.0)] if quantised else []
    numbers += [Number(0.4, 0.3, 0.0, 1.0), Number(0.85, 0.15, 0.5, 1.0)] if waves else []
    numbers += [Number(20.0, 15.0, 2.0, 100.0), Number(0.5, 0.3, 0.0, 0.95)] if cached else []
    return Part("gemm", dtype, tables.gemm_rows, tables.gemm_s, build, tuple(numbers))


def block_part() -> Part:
    """FP8 in blocks: a long call (launches and quantisation outside of graphs) beside the kernel."""

    def build(x: Sequence[float]) -> compute.GemmConstants:
        return compute.GemmConstants(
            overhead_us=5.0,
            call_us=x[0],
            compute_efficiency=x[1],
            memory_efficiency=x[2],
            exponent=x[3],
            source="fp8_blocks",
        )

    numbers = (Number(80.0, 80.0, 0.0, 500.0), Number(0.6, 0.2, 0.05, 1.0), Number(0.7, 0.2, 0.05, 1.0))
    exponent = Number(2.2, 1.5, 1.0, 6.0)
    return Part("gemm", "fp8_block", tables.gemm_rows, tables.gemm_s, build, (*numbers, exponent))


def prefill_part(cache: str) -> Part:
    def build(x: Sequence[float]) -> compute.PrefillAttentionConstants:
        return compute.PrefillAttentionConstants(
            overhead_us=x[0],
            compute_efficiency=x[1],
            linear_us_per_1024_tokens=x[2],
            masked_keys=x[3],
            exponent=x[4],
            source="kernels",
        )

    numbers = (Number(12.0, 10.0, 0.0, 100.0), Number(0.6, 0.2, 0.05, 1.0), Number(10.0, 10.0, 0.0, 100.0))
    numbers += (Number(250.0, 250.0, 0.0, 2000.0), Number(2.0, 2.0, 1.0, 10.0))
    return Part("prefill_attention", cache, tables.prefill_rows, tables.prefill_s, build, numbers)


def decode_part(cache: str) -> Part:
    """Attention of one query per request; the share of the compute peak cannot be seen in GQA and is assumed."""

    def build(x: Sequence[float]) -> compute.DecodeAttentionConstants:
        return compute.DecodeAttentionConstants(
            overhead_us=x[0],
            memory_efficiency=x[1],
            compute_efficiency=0.6,
            floor_us=x[2],
            exponent=x[3],
            cache=cache_of(x[4:]),
            source="kernels",
        )

    numbers = (Number(10.0, 8.0, 0.0, 50.0), Number(0.85, 0.15, 0.1, 1.0), Number(4.0, 4.0, 0.0, 100.0))
    numbers += (Number(1.5, 1.5, 1.0, 10.0), *CACHE)
    return Part("decode_attention", cache, tables.decode_rows, tables.decode_s, build, numbers)


def moe_part(dtype: str, system: System) -> Part:
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
            cache=cache_of(x[7:]),
            source="kernels",
        )

    numbers = [Number(25.0, 15.0, 0.0, 200.0), Number(0.5, 0.25, 0.02, 1.0), Number(0.9, 0.2, 0.1, 1.0)]
    numbers += [Number(1.8, 0.7, 1.0, 10.0), Number(100.0, 150.0, 0.0, 2000.0), Number(20.0, 30.0, 0.0, 256.0)]
    numbers += [Number(15.0, 20.0, 0.0, 80.0)]
    numbers += [Number(120.0, 60.0, 5.0, 400.0), Number(0.8, 0.3, 0.0, 0.95)] if system.name in GDDR else []
    return Part("moe", dtype, tables.moe_rows, tables.moe_s, build, tuple(numbers))


def parts(system: System) -> list[Part]:
    """What is fitted for a system: BF16, and FP8 where it has it."""
    dtypes = ("bf16", "fp8") if "fp8" in system.flop_per_s else ("bf16",)
    gemm = [gemm_part(dtype, system) for dtype in dtypes] + ([block_part()] if "fp8" in dtypes else [])
    attention = [make(cache) for make in (prefill_part, decode_part) for cache in dtypes]
    return [*gemm, *attention, *(moe_part(dtype, system) for dtype in dtypes)]


def fit(part: Part, rows: pd.DataFrame, system: System) -> Any:
    """Constants that fit the rows."""
    from scipy.optimize import least_squares

    shapes, measured = tables.columns(rows), np.log(rows.us.to_numpy() * 1e-6)
    weight = np.sqrt(0.3 + rows.share.to_numpy() / rows.share.mean())
    centre, spread, low, high = (
        np.array([getattr(number, name) for number in part.numbers]) for name in ("centre", "spread", "low", "high")
    )

    def residuals(x: Times) -> Times:
        times = part.time_s(part.build(x.tolist()), shapes, system, part.key)
        return np.concatenate([(np.log(times) - measured) * weight, PULL * (x - centre) / spread])

    best = None
    for scale in (1.0, 0.6, 1.6):
        start = np.clip(centre * scale, low + 1e-6, high - 1e-6)
        result = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=spread)
        best = result if best is None or result.cost < best.cost else best
    assert best is not None
    x = [float(f"{value:.4g}") if value > 1e-4 else 0.0 for value in best.x]
    error = float(np.mean(np.abs(part.relative_errors(part.build(x), rows, system))))
    return part.build(x).model_copy(update={"mean_error": round(error, 3)})


def held_out(part: Part, ops: pd.DataFrame, system: System) -> dict[str, Times]:
    """Relative errors over the shapes of each LLM when the others were fitted; without LLMs that leave too few rows."""
    found = {}
    for llm in sorted(ops.base_model.unique()):
        tested = part.rows(ops[ops.base_model == llm], part.key)
        fitted = part.rows(ops[ops.base_model != llm], part.key)
        if len(tested) and len(fitted) >= LEAST_ROWS:
            found[llm] = part.relative_errors(fit(part, fitted, system), tested, system)
    return found


def fit_system(ops: pd.DataFrame, system: System, *, evaluate: bool = False) -> compute.ComputeConstants:
    """All constants of one system; ``evaluate`` adds the errors over LLMs left out."""
    found: dict[str, dict[str, Any]] = {"gemm": {}, "prefill_attention": {}, "decode_attention": {}, "moe": {}}
    for part in parts(system):
        rows = part.rows(ops, part.key)
        if len(rows) < LEAST_ROWS:
            continue
        constants = fit(part, rows, system)
        if evaluate and (errors := held_out(part, ops, system)):
            error = float(np.mean(np.abs(np.concatenate(list(errors.values())))))
            constants = constants.model_copy(update={"held_out_error": round(error, 3)})
        found[part.field][part.key] = constants
    if system.name in HOPPER and "bf16" in found["moe"]:
        found["moe"]["fp8"] = derived_fp8_experts(found["moe"]["bf16"])
    elementwise = compute.ElementwiseConstants(overhead_us=3.0, memory_efficiency=0.8, source="elementwise")
    return compute.ComputeConstants(**found, elementwise=elementwise)


def derived_fp8_experts(bf16: compute.MoeConstants) -> compute.MoeConstants:
    """FP8 experts on Hopper from the BF16 fit, with 0.6 of its share of the peak.

    The FP8 table of vLLM 0.24.0 there holds a kernel 2.3 times slower than BF16 and 2.7 times slower than that of
    vLLM 0.19.0. Its fp8_block table (H200, DeepSeek-V3) does not, and is met to 7 % with this share.
    """
    update = {"source": "fp8_experts", "mean_error": None, "held_out_error": None}
    return bf16.model_copy(update={**update, "compute_efficiency": round(0.6 * bf16.compute_efficiency, 4)})


def of_profile(constants: compute.ComputeConstants, profile: str) -> compute.ComputeConstants:
    """The constants as a profile takes them: waves on its own number of multiprocessors."""
    if profile != "rtx_5090_direct":
        return constants
    count = {"multiprocessors": RTX_5090_MULTIPROCESSORS}
    gemm = {
        dtype: value.model_copy(update={"tiles": value.tiles.model_copy(update=count)} if value.tiles else {})
        for dtype, value in constants.gemm.items()
    }
    return constants.model_copy(update={"gemm": gemm})


def sources(system: str, version: str, profile: str) -> dict[str, dict[str, str]]:
    """Where the constants of a profile come from."""
    table = f"aiconfigurator 0.12.0, NVIDIA, Apache-2.0: kernel tables of {system}, vllm {version}"
    fitted = (
        "fits of the formulas of costs/roofline.py by benchmarks/fit_compute.py; mean_error is over distinct shapes, "
        "held_out_error over those of each LLM with all others fitted; agreement with the tables, not with machines"
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
    if system != "rtx_pro_6000_server":  # without a table there
        note = (
            f"{fitted}; call_us is the 50-300 us that each call takes in these tables at any size: "
            "launches and quantisation outside of graphs by the look of it, and in no table of TensorRT-LLM or SGLang"
        )
        found["fp8_blocks"] = {"kind": "measured", "ref": table, "note": note}
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
    for part, value in constants.model_dump(exclude_defaults=True).items():
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
    ops = tables.load_ops(arguments.folder)
    for name, profiles in SYSTEMS.items():
        mine = ops[ops.system == name]
        constants = fit_system(mine, System.of(name), evaluate=True)
        sys.stdout.write(f"{name}\n{section(constants)}\n")
        for profile in profiles if arguments.write else ():
            found = sources(name, str(mine.backend_version.iloc[0]), profile)
            write(PROFILES / f"{profile}.json", of_profile(constants, profile), found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
