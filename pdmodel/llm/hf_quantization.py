"""Dtypes of the weights, read from ``quantization_config``; the KV cache's dtype never follows from it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from typing import Any

from pdmodel.errors import CoverageError
from pdmodel.llm.architecture import WeightDtypes
from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.hf_fields import ConfigSection

_PLAIN = {
    "bfloat16": WeightDtype.BF16,
    "float16": WeightDtype.FP16,
    "float32": WeightDtype.FP32,
    "half": WeightDtype.FP16,
}
_NOT_CONVERTED = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")


def weight_dtypes(section: ConfigSection, layers: int) -> WeightDtypes:
    """Dtypes of attention, MLP and experts.

    Without ``quantization_config`` all weights have ``torch_dtype`` (or ``dtype``; bf16 where neither is given). With
    one, the matrices of the layers have its format, apart from those that its list of exceptions names; embedding,
    head, norms and router keep the plain dtype. A middle layer stands for all.

    Raises
    ------
    CoverageError: naming the field, for a method or a block shape that is not known.

    """
    plain = _plain_dtype(section)
    key = section.present("quantization_config", "compression_config")
    if key is None:
        return WeightDtypes(plain, plain, plain, plain, plain)
    raw = section.get(key)
    if not isinstance(raw, dict):
        raise section.error(key, f"found {raw!r}", expected="an object")
    quantised, block = _format(section, key, raw)
    exceptions = _exceptions(raw)
    root = f"model.layers.{layers // 2}"
    narrow = "fp4" in (section.get("expert_dtype"), raw.get("expert_dtype"))

    def dtype(module: str) -> WeightDtype:
        # mxfp4 as published is for experts alone.
        left_out = quantised is WeightDtype.MXFP4 and "experts.0" not in module
        return plain if left_out or _is_exception(f"{root}.{module}", exceptions) else quantised

    return WeightDtypes(
        attention=dtype("self_attn.q_proj"),
        mlp=dtype("mlp.gate_proj"),
        experts=WeightDtype.MXFP4 if narrow else dtype("mlp.experts.0.gate_proj"),
        shared_expert=dtype("mlp.shared_experts.gate_proj"),
        other=plain,
        block=block,
    )


def _plain_dtype(section: ConfigSection) -> WeightDtype:
    key = section.present("torch_dtype", "dtype")
    if key is None:
        return WeightDtype.BF16
    found = section.get(key)
    dtype = _PLAIN.get(found.removeprefix("torch.")) if isinstance(found, str) else None
    if dtype is None:
        raise section.error(key, f"found {found!r}", expected="one of bfloat16, float16, float32")
    return dtype


def _format(section: ConfigSection, key: str, raw: Mapping[str, Any]) -> tuple[WeightDtype, tuple[int, int] | None]:
    method = raw.get("quant_method")
    bits = raw.get("bits", raw.get("w_bit"))
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(section, key, raw.get("weight_block_size"))
    if method == "bitsandbytes":
        bits = 4 if raw.get("load_in_4bit") or raw.get("_load_in_4bit") else 8
    if method in ("awq", "gptq", "auto-round", "bitsandbytes") and bits in (4, 8):
        return (WeightDtype.INT4 if bits == 4 else WeightDtype.INT8), None
    if method == "mxfp4":
        return WeightDtype.MXFP4, None
    if method in ("modelopt", "modelopt_fp4", "modelopt_fp8"):
        algorithm = str(raw.get("quant_algo", raw.get("quantization", {}).get("quant_algo", ""))).upper()
        known = {"NVFP4": WeightDtype.NVFP4, "FP8": WeightDtype.FP8}
        if algorithm in known:
            return known[algorithm], None
        raise CoverageError(
            f"found {algorithm!r}", file=section.file, path=f"{section.path(key)}.quant_algo", expected="NVFP4 or FP8"
        )
    if method == "compressed-tensors":
        return _compressed_tensors(section, key, raw)
    raise CoverageError(
        f"found {method!r}: this quantisation is not supported",
        file=section.file,
        path=f"{section.path(key)}.quant_method",
        expected="one of fp8, awq, gptq, auto-round, bitsandbytes, mxfp4, modelopt, compressed-tensors",
    )


def _fp8(section: ConfigSection, key: str, block: Any) -> tuple[WeightDtype, tuple[int, int] | None]:
    if block is None:
        return WeightDtype.FP8, None
    if block == [32, 32]:
        return WeightDtype.FP8, (32, 32)  # scales of a byte, 0.1 %: left out
    if block != [128, 128]:
        raise CoverageError(
            f"found {block!r}",
            file=section.file,
            path=f"{section.path(key)}.weight_block_size",
            expected="[128, 128], [32, 32] or null",
        )
    return WeightDtype.FP8_BLOCK, (128, 128)


def _compressed_tensors(
    section: ConfigSection, key: str, raw: Mapping[str, Any]
) -> tuple[WeightDtype, tuple[int, int] | None]:
    groups = raw.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    path = f"{section.path(key)}.config_groups"
    if not weights or not isinstance(weights[0], dict) or any(other != weights[0] for other in weights):
        raise CoverageError("found groups that differ", file=section.file, path=path, expected="one format of weights")
    bits, kind = weights[0].get("num_bits"), weights[0].get("type")
    if (bits, kind) == (8, "float"):
        return _fp8(section, key, weights[0].get("block_structure"))
    if kind == "float" and bits == 4:
        return WeightDtype.NVFP4, None
    if kind == "int" and bits in (4, 8):
        return (WeightDtype.INT4 if bits == 4 else WeightDtype.INT8), None
    raise CoverageError(
        f"found {kind} of {bits} bits", file=section.file, path=path, expected="float or int of 4 or 8 bits"
    )


def _exceptions(raw: Mapping[str, Any]) -> tuple[str, ...]:
    named: list[str] = []
    for key in _NOT_CONVERTED:
        found = raw.get(key)
        if isinstance(found, list):
            named += [item.replace("language_model.", "") for item in found if isinstance(item, str)]
    return tuple(named)


def _is_exception(module: str, exceptions: tuple[str, ...]) -> bool:
    """Whether a pattern names the module, one of its parents, or one of its parts; ``re:`` marks expressions.

    >>> _is_exception("model.layers.3.self_attn.q_proj", ("model.layers.*.self_attn", "lm_head"))
    True
    >>> _is_exception("model.layers.3.mlp.gate_proj", ("gate", "lm_head"))
    False
    """
    parts = module.split(".")
    for pattern in exceptions:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
        elif "." not in pattern and "*" not in pattern:
            if pattern in parts:
                return True
        elif any(fnmatch.fnmatchcase(".".join(parts[: end + 1]), pattern) for end in range(len(parts))):
            return True
    return False
