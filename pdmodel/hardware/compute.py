"""Constants of computing on a GPU that no data sheet gives: overheads and reached shares of the peaks, fitted."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pdmodel.spec import Spec

Efficiency = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Exponent = Annotated[float, Field(ge=1, le=20)]
Share = Annotated[float, Field(ge=0, lt=1)]


class CacheConstants(Spec):
    """What stays in the L2 cache from one call of a kernel to the next.

    ``saving``: share of the memory time that a set of data far below ``size_mb`` (1e6 byte) saves. Tables are taken by
    calling one kernel over and over; in a serving engine other layers pass through the cache in between.
    """

    size_mb: Annotated[float, Field(gt=0)]
    saving: Share


class QuantiseConstants(Spec):
    """Quantising the input of an FP8 matrix product, one scale per token: time per row, reached share of bandwidth."""

    ns_per_row: NonNegative
    memory_efficiency: Efficiency


class TileConstants(Spec):
    """How a matrix product is cut into tiles that the multiprocessors compute in waves.

    ``share``: of the time that behaves so, for many rows. ``halving_efficiency``: what a tile of half the size reaches
    of the larger one's rate.
    """

    multiprocessors: Annotated[int, Field(ge=1)]
    share: Annotated[float, Field(ge=0, le=1)]
    halving_efficiency: Efficiency


class GemmConstants(Spec):
    """Soft roofline of a matrix product: overhead, reached shares of the two peaks, exponent of the corner.

    ``depth_us_per_1024``: latency of the loop over the inner dimension, per 1024 of it. ``sustained_loss``: share by
    which long kernels compute slower, their clock being lowered. ``call_us``: time of a call beside the kernel when it
    is launched outside of a graph; priced where ``launch.eager_calls`` says so. ``mean_error``: over the shapes fitted;
    ``held_out_error``: over those of each LLM in turn, all others fitted.
    """

    overhead_us: NonNegative
    compute_efficiency: Efficiency
    memory_efficiency: Efficiency
    exponent: Exponent
    call_us: NonNegative = 0.0
    tiles: TileConstants | None = None
    depth_us_per_1024: NonNegative = 0.0
    sustained_loss: NonNegative = 0.0
    cache: CacheConstants | None = None
    quantise: QuantiseConstants | None = None
    source: str
    mean_error: NonNegative | None = None
    held_out_error: NonNegative | None = None


class PrefillAttentionConstants(Spec):
    """Causal attention of a chunk: overhead, reached share of the BF16 peak, a part linear in the queries.

    ``masked_keys``: keys that each query is multiplied with in vain, in tiles that the mask cuts. ``exponent`` joins
    the work and the linear part: 1 adds them, a large one takes the longer (few heads: the longest row of tiles).
    """

    overhead_us: NonNegative
    compute_efficiency: Efficiency
    linear_us_per_1024_tokens: NonNegative = 0.0
    masked_keys: NonNegative = 0.0
    exponent: Exponent = 1.0
    source: str
    mean_error: NonNegative | None = None
    held_out_error: NonNegative | None = None


class DecodeAttentionConstants(Spec):
    """Attention of a decode step: overhead, reached shares of the two peaks, and a floor in the root of the context.

    ``floor_us`` is the floor at 4096 tokens of context: short work lists leave multiprocessors idle.
    """

    overhead_us: NonNegative
    memory_efficiency: Efficiency
    compute_efficiency: Efficiency
    floor_us: NonNegative
    exponent: Exponent
    cache: CacheConstants | None = None
    source: str
    mean_error: NonNegative | None = None
    held_out_error: NonNegative | None = None


class MoeConstants(Spec):
    """Soft roofline of a block of routed experts.

    ``narrow_width``: an expert as narrow as this reaches half of ``compute_efficiency``. ``tile_rows``: rows of padding
    per expert touched. ``token_passes``: times that the hidden states of all gathered tokens go through memory, to be
    permuted and summed.
    """

    overhead_us: NonNegative
    compute_efficiency: Efficiency
    memory_efficiency: Efficiency
    exponent: Exponent
    narrow_width: NonNegative
    tile_rows: NonNegative
    token_passes: NonNegative
    cache: CacheConstants | None = None
    source: str
    mean_error: NonNegative | None = None
    held_out_error: NonNegative | None = None


class ElementwiseConstants(Spec):
    """Norms, activations, rotations and copies: overhead of a kernel, reached share of memory bandwidth."""

    overhead_us: NonNegative
    memory_efficiency: Efficiency
    source: str


class LaunchConstants(Spec):
    """Time of the CPU that the GPU does not hide, per layer and per pass; 0 where graphs are replayed.

    ``eager_calls``: each matrix product also takes its ``call_us``.
    """

    layer_us: NonNegative = 0.0
    pass_us: NonNegative = 0.0
    eager_calls: bool = False
    source: str


class ComputeConstants(Spec):
    """Constants of compute: matrix products and experts by the dtype of their weights, attention by that of the cache.

    What is absent is taken from `DEFAULTS` and marked *assumed*; an absent ``launch`` is zero.
    """

    gemm: dict[str, GemmConstants] = Field(default_factory=dict)
    prefill_attention: dict[str, PrefillAttentionConstants] = Field(default_factory=dict)
    decode_attention: dict[str, DecodeAttentionConstants] = Field(default_factory=dict)
    moe: dict[str, MoeConstants] = Field(default_factory=dict)
    elementwise: ElementwiseConstants | None = None
    launch: LaunchConstants | None = None


def _defaults() -> ComputeConstants:
    """Medians over the GPUs for which kernel times are published (aiconfigurator 0.12.0, vLLM), rounded."""
    none = ""
    prefill = PrefillAttentionConstants(
        overhead_us=13.0,
        compute_efficiency=0.62,
        linear_us_per_1024_tokens=11.0,
        masked_keys=270.0,
        exponent=1.5,
        source=none,
    )
    decode = DecodeAttentionConstants(
        overhead_us=11.0, memory_efficiency=0.83, compute_efficiency=0.6, floor_us=3.8, exponent=1.4, source=none
    )
    bf16 = GemmConstants(
        overhead_us=2.8,
        compute_efficiency=0.85,
        memory_efficiency=0.82,
        exponent=2.2,
        depth_us_per_1024=0.85,
        sustained_loss=0.13,
        source=none,
    )
    fp8 = GemmConstants(
        overhead_us=4.8,
        compute_efficiency=0.7,
        memory_efficiency=0.77,
        exponent=2.0,
        depth_us_per_1024=1.0,
        quantise=QuantiseConstants(ns_per_row=6.6, memory_efficiency=0.4),
        source=none,
    )
    experts = {
        dtype: MoeConstants(
            overhead_us=24.0,
            compute_efficiency=efficiency,
            memory_efficiency=0.94,
            exponent=1.6,
            narrow_width=50.0,
            tile_rows=20.0,
            token_passes=30.0,
            source=none,
        )
        for dtype, efficiency in (("bf16", 0.55), ("fp8", 0.37))
    }
    return ComputeConstants(
        gemm={"bf16": bf16, "fp8": fp8},
        prefill_attention={"bf16": prefill, "fp8": prefill},
        decode_attention={"bf16": decode, "fp8": decode},
        moe=experts,
        elementwise=ElementwiseConstants(overhead_us=3.0, memory_efficiency=0.8, source=none),
    )


DEFAULTS = _defaults()
