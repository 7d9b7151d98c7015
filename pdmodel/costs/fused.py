"""DeepGEMM's fused MoE kernel alone: compute, weights and the depth of its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdmodel.costs.moe import Routing, experts_touched, fused_flop
from pdmodel.costs.roofline import soft_maximum
from pdmodel.errors import CoverageError, nearest
from pdmodel.units import GB, US


@dataclass(frozen=True, slots=True)
class FusedConstants:
    """Constants of one GPU.

    ``base_us`` launch and barriers; ``depth_us`` per value of the two inner dimensions, latency of their loops;
    ``peak_tflops`` with ``depth_values`` K0: a loop of K values reaches peak / (1 + K0/K); ``hbm_gb_per_s``;
    ``exponent`` joins compute and memory; ``rows`` r0: tiles that few tokens of an expert leave empty; ``weight_bytes``
    of a parameter; ``tail_bytes_per_s`` of the reduction at the end.
    """

    base_us: float
    depth_us: float
    peak_tflops: float
    depth_values: float
    hbm_gb_per_s: float
    exponent: float
    rows: float
    weight_bytes: float
    tail_bytes_per_s: float
    source: str


FUSED: Mapping[str, FusedConstants] = {
    "b200": FusedConstants(
        *(1.06, 7.36e-3, 3858.0, 2438.0, 7229.0, 2.15, 0.90, 0.53, 6.5e12),
        source="github.com/deepseek-ai/DeepGEMM/pull/316 (FP8 x FP4, EP8)",
    ),
    "h200": FusedConstants(
        *(25.9, 7.2e-3, 1042.0, 868.0, 4637.0, 2.68, 40.6, 1.03, 3.9e12),
        source="github.com/deepseek-ai/DeepGEMM/pull/383 (FP8, EP8)",
    ),
}


def fused_kernel_s(routing: Routing, intermediate_size: int, ranks: int, gpu: str) -> float:
    """Time of the whole fused layer where the exchange hides behind compute.

    Equation: t = o + l (H + I) + (c^p + m^p)^(1/p) + tail; c = FLOP / F (1 + K0 (2/3/H + 1/3/I)) (1 + r0/rows), FLOP =
    2 T k 3 H I, rows = T k n / E tokens of an expert (over experts that are touched); m = (weights of touched experts +
    activations) / B_hbm; tail = T 2 H (1 + k) / B_tail.

    Parameters: ``routing`` T tokens of one rank; ``intermediate_size`` I of an expert; ``ranks`` n; ``gpu`` b200, h200.
    Returns: [s].
    Raises: `CoverageError` for another GPU.
    Validity: eight ranks, 1 to 32768 tokens a rank (B200), 8 to 8192 (H200); NVLink is not the limit there (V/B of 900
    GB/s is at most 0.6 of the time). Seven constants fitted to 8 (B200) and 22 (H200) published times: within 6 % mean
    when a time is left out on B200.
    Source: own form after DeepGEMM tests/test_mega_moe.py at 54e2261 (counts of FLOP, bytes, tail).
    """
    constants = FUSED.get(gpu)
    if constants is None:
        raise CoverageError(
            f"no constants of the fused kernel for {gpu!r}",
            expected="one of " + ", ".join(FUSED),
            nearest=nearest(gpu, list(FUSED)),
        )
    hidden, inner = routing.hidden_size, intermediate_size
    touched = experts_touched(routing.experts, routing.top_k, ranks * routing.tokens) / ranks
    copies = routing.tokens * routing.top_k
    loss = 1 + constants.depth_values * (2 / 3 / hidden + 1 / 3 / inner)
    compute = fused_flop(routing, inner) / (constants.peak_tflops * 1e12) * loss
    compute *= 1 + constants.rows * touched / copies
    moved = touched * 3 * hidden * inner * constants.weight_bytes + copies * (3 * hidden + 2 * inner)
    memory = moved / (constants.hbm_gb_per_s * GB)
    tail = routing.tokens * 2 * hidden * (1 + routing.top_k) / constants.tail_bytes_per_s
    base = (constants.base_us + constants.depth_us * (hidden + inner)) * US
    return float(base + soft_maximum(compute, memory, constants.exponent) + tail)
