"""A GPU as the cost formulas see it: peaks, constants, and how good each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pdmodel.errors import CoverageError
from pdmodel.hardware.compute import (
    DEFAULTS,
    ComputeConstants,
    DecodeAttentionConstants,
    ElementwiseConstants,
    GemmConstants,
    MoeConstants,
    PrefillAttentionConstants,
)
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.spec import SourceKind, weakest
from pdmodel.units import GB, US

Constants = TypeVar(
    "Constants", GemmConstants, MoeConstants, PrefillAttentionConstants, DecodeAttentionConstants, ElementwiseConstants
)

# Data type in which a matrix product with such weights computes, and the constants that price it, best first.
_COMPUTES_IN = {
    WeightDtype.BF16: ("bf16", ("bf16",)),
    WeightDtype.FP16: ("bf16", ("bf16",)),
    WeightDtype.FP8: ("fp8", ("fp8",)),
    WeightDtype.FP8_BLOCK: ("fp8", ("fp8_block", "fp8")),
    WeightDtype.INT4: ("bf16", ("int4", "bf16")),
    # Widened in the kernel, as INT4 is: FP4 arithmetic is left to engines and GPUs that have it.
    WeightDtype.MXFP4: ("bf16", ("mxfp4", "int4", "bf16")),
    WeightDtype.NVFP4: ("bf16", ("nvfp4", "int4", "bf16")),
}
_CACHE_KEYS = {
    KvDtype.BF16: ("bf16",),
    KvDtype.FP16: ("bf16",),
    KvDtype.FP8: ("fp8", "bf16"),
    KvDtype.FP8_DS_MLA: ("fp8", "bf16"),
}


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of a box. ``kinds`` gives the quality of each source id; an unknown id is *assumed*."""

    name: str
    flop_per_s: Mapping[str, float]
    bytes_per_s: float
    constants: ComputeConstants
    kinds: Mapping[str, SourceKind]
    peak_kind: SourceKind

    @classmethod
    def of(cls, profile: HardwareProfile) -> Device:
        """The GPUs of a box, all alike."""
        figures = [profile.gpu.hbm_gb_per_s, *profile.gpu.peak_tflops.values()]
        return cls(
            name=profile.name,
            flop_per_s={dtype: peak.value * 1e12 for dtype, peak in profile.gpu.peak_tflops.items()},
            bytes_per_s=profile.gpu.hbm_gb_per_s.value * GB,
            constants=profile.compute,
            kinds={name: source.kind for name, source in profile.sources.items()},
            peak_kind=weakest(*(profile.kind_of(figure.source) for figure in figures)),
        )

    def peak_flop_per_s(self, dtype: WeightDtype) -> float:
        """Peak for weights of this dtype; `CoverageError` where the GPU or the formulas have none [FLOP/s]."""
        computes_in, _ = self._compute(dtype)
        if computes_in not in self.flop_per_s:
            raise CoverageError(
                f"{self.name} gives no peak for {computes_in}, which {dtype.value} weights need",
                path=f"gpu.peak_tflops.{computes_in}",
                expected="one of " + ", ".join(self.flop_per_s),
            )
        return self.flop_per_s[computes_in]

    @staticmethod
    def _compute(dtype: WeightDtype) -> tuple[str, tuple[str, ...]]:
        if dtype not in _COMPUTES_IN:
            raise CoverageError(
                f"no compute time for {dtype.value} weights",
                expected="one of " + ", ".join(known.value for known in _COMPUTES_IN),
            )
        return _COMPUTES_IN[dtype]

    def gemm(self, dtype: WeightDtype) -> tuple[GemmConstants, SourceKind]:
        """Constants of a matrix product with weights of ``dtype``, and how good they are."""
        return self._pick(self.constants.gemm, DEFAULTS.gemm, self._compute(dtype)[1])

    def moe(self, dtype: WeightDtype) -> tuple[MoeConstants, SourceKind]:
        """Constants of routed experts with weights of ``dtype``, and how good they are."""
        return self._pick(self.constants.moe, DEFAULTS.moe, self._compute(dtype)[1])

    def prefill_attention(self, dtype: KvDtype) -> tuple[PrefillAttentionConstants, SourceKind]:
        """Constants of attention over a cache of ``dtype`` at prefill, and how good they are."""
        return self._pick(self.constants.prefill_attention, DEFAULTS.prefill_attention, _cache_keys(dtype))

    def decode_attention(self, dtype: KvDtype) -> tuple[DecodeAttentionConstants, SourceKind]:
        """Constants of attention over a cache of ``dtype`` at decode, and how good they are."""
        return self._pick(self.constants.decode_attention, DEFAULTS.decode_attention, _cache_keys(dtype))

    def elementwise(self) -> tuple[ElementwiseConstants, SourceKind]:
        """Constants of kernels that only move bytes, and how good they are."""
        own = {} if self.constants.elementwise is None else {"": self.constants.elementwise}
        default = {} if DEFAULTS.elementwise is None else {"": DEFAULTS.elementwise}
        return self._pick(own, default, ("",))

    def _pick(
        self, own: Mapping[str, Constants], default: Mapping[str, Constants], keys: tuple[str, ...]
    ) -> tuple[Constants, SourceKind]:
        """The profile's constants under the first of ``keys``; under a later one they are derived; else the default."""
        for index, key in enumerate(keys):
            if key in own:
                kind = self.kinds.get(own[key].source, SourceKind.ASSUMED)
                kind = kind if index == 0 else weakest(kind, SourceKind.DERIVED)
                return own[key], weakest(kind, self.peak_kind) if self.peak_kind is SourceKind.ASSUMED else kind
        for key in keys:
            if key in default:
                return default[key], SourceKind.ASSUMED
        raise CoverageError(f"{self.name} has no constants for {keys[0]}")

    @property
    def launch_layer_s(self) -> float:
        """Time of the CPU that the GPU does not hide, per layer; 0 unless the profile says otherwise [s]."""
        return self.constants.launch.layer_us * US if self.constants.launch else 0.0

    @property
    def launch_pass_s(self) -> float:
        """The same, per pass [s]."""
        return self.constants.launch.pass_us * US if self.constants.launch else 0.0

    @property
    def eager_calls(self) -> bool:
        """Whether matrix products are launched one by one and each takes its ``call_us``."""
        return self.constants.launch is not None and self.constants.launch.eager_calls


def _cache_keys(dtype: KvDtype) -> tuple[str, ...]:
    if dtype not in _CACHE_KEYS:
        raise CoverageError(
            f"no attention time for a {dtype.value} cache",
            expected="one of " + ", ".join(known.value for known in _CACHE_KEYS),
        )
    return _CACHE_KEYS[dtype]
