"""Time of one kernel: a launch overhead plus a soft maximum of computing and of reading memory.

Every formula is a pure function of sizes [FLOP, byte, count], peaks [FLOP/s, byte/s] and the constants of a profile.
"""

from __future__ import annotations

from pdmodel.hardware.compute import (
    DecodeAttentionConstants,
    ElementwiseConstants,
    GemmConstants,
    MoeConstants,
    PrefillAttentionConstants,
    QuantiseConstants,
)
from pdmodel.units import US

_QUANTISE_EXPONENT = 4.0


def soft_maximum(first: float, second: float, exponent: float) -> float:
    """(a^p + b^p)^(1/p): the maximum for p -> inf, the sum for p = 1; same unit as its arguments, both >= 0.

    >>> soft_maximum(3.0, 4.0, 2.0)
    5.0
    """
    large, small = (first, second) if first >= second else (second, first)
    if large == 0.0:
        return 0.0
    return float(large * (1.0 + (small / large) ** exponent) ** (1.0 / exponent))


def soft_roofline_s(
    flop: float,
    size_bytes: float,
    *,
    flop_per_s: float,
    bytes_per_s: float,
    exponent: float,
    overhead_s: float = 0.0,
) -> float:
    """Soft roofline: o + ((FLOP/F)^p + (bytes/B)^p)^(1/p).

    Parameters
    ----------
    flop, size_bytes: work and HBM traffic of the kernel [FLOP], [byte].
    flop_per_s, bytes_per_s: rates that the kernel reaches, not the peaks [FLOP/s], [byte/s].
    exponent: p >= 1; a hard maximum underrates kernels near the ridge.
    overhead_s: o, launch, prologue and tail [s].

    Returns
    -------
    time of one call [s].

    Source: roofline, Williams et al., CACM 52(4) 2009; the soft corner is fitted.

    """
    return overhead_s + soft_maximum(flop / flop_per_s, size_bytes / bytes_per_s, exponent)


def gemm_s(flop: float, size_bytes: float, *, flop_per_s: float, bytes_per_s: float, constants: GemmConstants) -> float:
    """Matrix product: o + ((FLOP/(e_c F))^p + (bytes/(e_m B))^p)^(1/p); without quantising its input.

    Parameters
    ----------
    flop, size_bytes: 2 m n k; weights, input and output once [FLOP], [byte].
    flop_per_s, bytes_per_s: peaks of the data sheet, F for the dtype of the weights [FLOP/s], [byte/s].
    constants: o, e_c, e_m, p.

    Returns
    -------
    time of one call [s].

    Valid for m from 1 to 32768 with n, k >= 512 (mean error 7-10 %; narrower outputs up to 40 %, at a few microseconds
    each). Source of the constants: fits to aiconfigurator 0.12.0's kernel tables (NVIDIA, Apache-2.0), vLLM.

    """
    return soft_roofline_s(
        flop,
        size_bytes,
        flop_per_s=flop_per_s * constants.compute_efficiency,
        bytes_per_s=bytes_per_s * constants.memory_efficiency,
        exponent=constants.exponent,
        overhead_s=constants.overhead_us * US,
    )


def quantise_s(rows: float, columns: float, *, bytes_per_s: float, constants: QuantiseConstants) -> float:
    """Dynamic per-token quantisation of a GEMM's input: ((m r)^4 + (3 m k / (e B))^4)^(1/4).

    Parameters
    ----------
    rows, columns: m tokens of k values; 16 bits are read and 8 written per value [count].
    bytes_per_s: B, peak of the memory [byte/s].
    constants: r [ns per row], e [-].

    Returns
    -------
    time [s].

    Without this term FP8 products with few columns come out 2-4 times too fast at thousands of rows. Source: fits to
    aiconfigurator 0.12.0's ``fp8`` GEMM tables (NVIDIA, Apache-2.0), vLLM.

    """
    per_row = rows * constants.ns_per_row * 1e-9
    traffic = 3.0 * rows * columns / (bytes_per_s * constants.memory_efficiency)
    return soft_maximum(per_row, traffic, _QUANTISE_EXPONENT)


def prefill_attention_s(
    flop: float, new_tokens: float, *, flop_per_s: float, constants: PrefillAttentionConstants
) -> float:
    """Causal attention of a chunk: o + FLOP/(e F) + l q/1024.

    Parameters
    ----------
    flop: 2 (d_qk + d_v) H pairs, the masked half left out [FLOP].
    new_tokens: q, queries [count].
    flop_per_s: F, BF16 peak, for FP8 caches too (kernels compute in 16 bits) [FLOP/s].
    constants: o, e, l.

    Returns
    -------
    time of one call [s].

    Valid for q from 1024 to 32768, 4 to 64 heads per rank (mean error 4-9 %); keys before the chunk enter through the
    FLOP (the tables have none). Source of the constants: as for `gemm_s`.

    """
    reached = flop_per_s * constants.compute_efficiency
    return (constants.overhead_us + constants.linear_us_per_1024_tokens * new_tokens / 1024.0) * US + flop / reached


def decode_attention_s(
    flop: float,
    cache_bytes: float,
    context_tokens: float,
    *,
    flop_per_s: float,
    bytes_per_s: float,
    constants: DecodeAttentionConstants,
) -> float:
    """One query per request: o + (max(FLOP/(e_c F), bytes/(e_m B))^p + (f sqrt(N/4096))^p)^(1/p).

    Parameters
    ----------
    flop: work of all requests; it matters for absorbed MLA alone [FLOP].
    cache_bytes: KV read for all requests [byte].
    context_tokens: N, mean context of a request [count].
    flop_per_s, bytes_per_s: BF16 peak, memory peak [FLOP/s], [byte/s].
    constants: o, e_m, e_c, f, p.

    Returns
    -------
    time of one call [s].

    Valid for N from 4096 to 32768 and batches from 1 to 128 (mean error 3-5 % with HBM, 10-18 % on GDDR cards, whose
    cache holds small KV sets). Source of the constants: as for `gemm_s`; e_c assumed.

    """
    read = cache_bytes / (bytes_per_s * constants.memory_efficiency)
    computed = flop / (flop_per_s * constants.compute_efficiency)
    floor = constants.floor_us * US * (context_tokens / 4096.0) ** 0.5
    return constants.overhead_us * US + soft_maximum(max(read, computed), floor, constants.exponent)


def moe_s(
    flop: float,
    weight_bytes: float,
    *,
    pairs: float,
    experts: float,
    width: float,
    hidden_bytes: float,
    flop_per_s: float,
    bytes_per_s: float,
    constants: MoeConstants,
) -> float:
    """Routed experts of one rank: o + ((FLOP (1 + w0/w)(1 + a n/P)/(e_c F))^p + (W/(e_m B))^p)^(1/p) + c X/B.

    Parameters
    ----------
    flop: 2 x 3 matrices x P pairs x hidden x w [FLOP].
    weight_bytes: W, weights of the experts touched [byte].
    pairs: P, token-expert pairs of this rank; experts: n, experts touched; width: w of an expert here [count].
    hidden_bytes: X, hidden states of all tokens gathered for this rank's experts, 16 bits each [byte].
    flop_per_s, bytes_per_s: peaks, F for the dtype of the experts [FLOP/s], [byte/s].
    constants: o, e_c, e_m, p, w0 (narrow experts reach less), a (rows of padding per expert), c (passes over X).

    Returns
    -------
    time of the block, router left out [s].

    Valid for 1 to 32768 tokens, 64 to 384 experts, top-k 4 to 10 (mean error 5-16 %; up to 30 % at batches below 128 on
    GDDR cards, whose cache holds a few experts). Source of the constants: fits to aiconfigurator 0.12.0's MoE tables
    (NVIDIA, Apache-2.0), vLLM, which were measured with skewed routing.

    """
    if pairs <= 0:
        return 0.0
    padded = flop * (1.0 + constants.narrow_width / width) * (1.0 + constants.tile_rows * experts / pairs)
    block = soft_roofline_s(
        padded,
        weight_bytes,
        flop_per_s=flop_per_s * constants.compute_efficiency,
        bytes_per_s=bytes_per_s * constants.memory_efficiency,
        exponent=constants.exponent,
        overhead_s=constants.overhead_us * US,
    )
    return block + constants.token_passes * hidden_bytes / bytes_per_s


def elementwise_s(size_bytes: float, *, bytes_per_s: float, constants: ElementwiseConstants) -> float:
    """Kernel that only moves bytes: o + bytes/(e B).

    Parameters
    ----------
    size_bytes: read and written [byte].
    bytes_per_s: B, peak of the memory [byte/s].
    constants: o, e.

    Returns
    -------
    time of one call [s].

    Source of the constants: 3 us and 0.8, what aiconfigurator 0.12.0 takes for norms, activations and embeddings (a
    convention there, no measurement).

    """
    return constants.overhead_us * US + size_bytes / (bytes_per_s * constants.memory_efficiency)
