"""How a number is stored: bytes per element of weights and of KV-cache entries."""

from __future__ import annotations

from enum import StrEnum

from pdmodel.errors import InputError, nearest


class WeightDtype(StrEnum):
    """Storage of a weight matrix. Block formats carry their scales (see `bytes_per_parameter`)."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes per weight, scales included.

        ``fp8_block``: one FP32 scale per 128 x 128 block. ``int4``: one 16-bit scale per group of 32. ``mxfp4``: one
        8-bit exponent per 32 (OCP Microscaling 1.0). ``nvfp4``: one FP8 scale per 16 (its per-tensor scale is left
        out). ``fp8``, ``int8``: per-tensor or per-channel scales, below 0.1 %, left out.

        >>> WeightDtype.MXFP4.bytes_per_parameter
        0.53125
        """
        return _WEIGHT_BYTES[self]


_WEIGHT_BYTES = {
    WeightDtype.FP32: 4.0,
    WeightDtype.BF16: 2.0,
    WeightDtype.FP16: 2.0,
    WeightDtype.FP8: 1.0,
    WeightDtype.FP8_BLOCK: 1.0 + 4.0 / (128 * 128),
    WeightDtype.INT8: 1.0,
    WeightDtype.INT4: 0.5 + 2.0 / 32,
    WeightDtype.MXFP4: 0.5 + 1.0 / 32,
    WeightDtype.NVFP4: 0.5 + 1.0 / 16,
}


class KvDtype(StrEnum):
    """Storage of the KV cache; it is the engine's choice and does not follow from the weights.

    ``fp8_ds_mla`` is vLLM's layout for latents of 512 + 64: 512 FP8 values, 4 FP32 scales, 64 values of 16 bits for
    the rotary part, 656 bytes in all.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_DS_MLA = "fp8_ds_mla"

    @property
    def bytes_per_element(self) -> int:
        """Bytes per cached value (`fp8_ds_mla`: of its FP8 part)."""
        return {KvDtype.FP32: 4, KvDtype.BF16: 2, KvDtype.FP16: 2}.get(self, 1)

    @classmethod
    def parse(cls, name: str) -> KvDtype:
        """A KV dtype by its name.

        >>> KvDtype.parse("bf16").bytes_per_element
        2
        """
        word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
        try:
            return cls(word.get(name, name))
        except ValueError:
            legal = [dtype.value for dtype in cls]
            raise InputError(
                f"unknown KV dtype {name!r}", expected="one of " + ", ".join(legal), nearest=nearest(name, legal)
            ) from None
