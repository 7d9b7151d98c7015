"""Time of one kernel: a launch overhead plus a soft maximum of computing and of reading memory.

Every formula is a pure function of sizes [FLOP, byte, count], peaks [FLOP/s, byte/s] and the constants of a profile.
Sizes are numbers, or arrays of one shape: then the times are an array of that shape.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pdmodel.hardware.compute import (
    CacheConstants,
    DecodeAttentionConstants,
    ElementwiseConstants,
    GemmConstants,
    MoeConstants,
    PrefillAttentionConstants,
    QuantiseConstants,
    TileConstants,
)
from pdmodel.units import MB, US

Value = TypeVar("Value", float, NDArray[np.float64])

_QUANTISE_EXPONENT = 4.0
_CACHE_EXPONENT = 4.0
_TILES = ((256, 128, 0), (128, 256, 0), (128, 128, 1), (128, 64, 2), (64, 128, 2), (64, 64, 3))
_SUSTAINED_S = 300e-6  # kernels longer than this run at the lowered clock


def soft_maximum(first: Value, second: Value, exponent: float) -> Value:
    """(a^p + b^p)^(1/p): the maximum for p -> inf, the sum for p = 1; same unit as its arguments, both >= 0.

    >>> float(soft_maximum(3.0, 4.0, 2.0))
    5.0
    """
    large: Value = np.maximum(first, second)
    small: Value = np.minimum(first, second)
    # The ratio is 0 where both are: the sum is then 0 whatever divides.
    ratio: Value = small / np.maximum(large, np.finfo(np.float64).tiny)
    result: Value = large * (1.0 + ratio**exponent) ** (1.0 / exponent)
    return result


def soft_roofline_s(
    flop: Value,
    size_bytes: Value,
    *,
    flop_per_s: float,
    bytes_per_s: float,
    exponent: float,
    overhead_s: float = 0.0,
) -> Value:
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

    >>> float(soft_roofline_s(3e12, 4e9, flop_per_s=1e12, bytes_per_s=1e9, exponent=2.0, overhead_s=1.0))
    6.0

    """
    return overhead_s + soft_maximum(flop / flop_per_s, size_bytes / bytes_per_s, exponent)


def read_s(size_bytes: Value, *, bytes_per_s: float, cache: CacheConstants | None) -> Value:
    """Time to read what partly stayed in the cache: V/B (1 - s/(1 + (V/V_c)^4)).

    Parameters
    ----------
    size_bytes: V [byte].
    bytes_per_s: B, rate that reading memory reaches [byte/s].
    cache: V_c and s; None: nothing stays.

    Returns
    -------
    time [s]; it grows with V.

    Valid where the same call is repeated, as in tables of kernel times; see `CacheConstants`. Source: fits to
    aiconfigurator 0.12.0's tables (NVIDIA, Apache-2.0), whose entries beat the memory's bandwidth below V_c.

    """
    full = size_bytes / bytes_per_s
    if cache is None:
        return full
    filled: Value = (size_bytes / (cache.size_mb * MB)) ** _CACHE_EXPONENT
    return full * (1.0 - cache.saving / (1.0 + filled))


def sustained_s(compute_s: Value, loss: float) -> Value:
    """Computing time c of a kernel when the clock falls under load: c (1 + loss c/(c + 300 us)).

    Parameters
    ----------
    compute_s: c at the full clock [s].
    loss: how much longer a very long kernel takes [-].

    Returns
    -------
    time [s].

    Source: GEMM tables of aiconfigurator 0.12.0 for H100 and H200 reach 0.84 of the peak at 0.2 ms and 0.72 beyond
    1 ms; the 300 us are read off them, the loss is fitted.

    """
    return compute_s * (1.0 + loss * compute_s / (compute_s + _SUSTAINED_S))


def tiled_flop(rows: Value, columns: Value, depth: Value, copies: float, tiles: TileConstants | None) -> Value:
    """Work of matrix products in whole waves of tiles: F (1 - w) + w min_t ceil(C M_t N_t/S) S 2 tm tn k/h^t.

    Parameters
    ----------
    rows, columns, depth, copies: m, n, k of each of C products; F = 2 C m n k [count].
    tiles: S multiprocessors, share s, h per halving; None: no waves, F itself. w = s min(1, max(0, (m - 128)/384)):
        kernels for few rows cut along k instead.

    Returns
    -------
    work that takes as long as the waves [FLOP]; M_t N_t tiles of tm x tn cover a product, from 256 x 128 to 64 x 64.

    Source: wave quantisation, NVIDIA, Matrix Multiplication Background User's Guide; the share is fitted. It is seen in
    the tables of A100 and RTX PRO 6000, not in those of H100, H200, B200, whose kernels are persistent.

    """
    smooth = 2.0 * copies * rows * columns * depth
    if tiles is None:
        return smooth
    best: Value = smooth + np.inf  # no product: 0 times infinity would be no number
    for height, width, halvings in _TILES:
        count = copies * np.ceil(rows / height) * np.ceil(columns / width)
        waves: Value = np.ceil(count / tiles.multiprocessors) * tiles.multiprocessors
        rate = tiles.halving_efficiency**halvings
        best = np.minimum(best, waves * (2.0 * height * width / rate) * depth)
    weight: Value = tiles.share * np.clip((rows - 128.0) / 384.0, 0.0, 1.0)
    return smooth + weight * (best - smooth)


def gemm_s(
    rows: Value,
    columns: Value,
    depth: Value,
    size_bytes: Value,
    *,
    copies: float = 1.0,
    flop_per_s: float,
    bytes_per_s: float,
    constants: GemmConstants,
) -> Value:
    """Matrix product: o + (c^p + r^p + (l k/1024)^p)^(1/p), c = sustained(FLOP/(e_c F)), r = read(bytes/(e_m B)).

    Parameters
    ----------
    rows, columns, depth: m, n, k of each of ``copies`` products in one kernel [count].
    size_bytes: weights, input and output once [byte].
    flop_per_s, bytes_per_s: peaks of the data sheet, F for the dtype of the weights [FLOP/s], [byte/s].
    constants: o, e_c, e_m, p, l, tiles of `tiled_flop` (the FLOP), loss of `sustained_s`, cache of `read_s`.

    Returns
    -------
    time of one call without quantising its input (`quantise_s`) and without `call_us` [s].

    Valid for m from 1 to 32768 with n, k >= 512; docs/compute.md has the errors. Source of the constants: fits to
    aiconfigurator 0.12.0's kernel tables (NVIDIA, Apache-2.0), vLLM.

    """
    flop = tiled_flop(rows, columns, depth, copies, constants.tiles)
    computing = sustained_s(flop / (flop_per_s * constants.compute_efficiency), constants.sustained_loss)
    reading = read_s(size_bytes, bytes_per_s=bytes_per_s * constants.memory_efficiency, cache=constants.cache)
    latency = depth * (constants.depth_us_per_1024 * US / 1024.0)
    busy = soft_maximum(soft_maximum(computing, reading, constants.exponent), latency, constants.exponent)
    return constants.overhead_us * US + busy


def quantise_s(rows: Value, columns: Value, *, bytes_per_s: float, constants: QuantiseConstants) -> Value:
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
    per_row = rows * (constants.ns_per_row * 1e-9)
    traffic = 3.0 * rows * columns / (bytes_per_s * constants.memory_efficiency)
    return soft_maximum(per_row, traffic, _QUANTISE_EXPONENT)


def prefill_attention_s(
    flop: Value, new_tokens: Value, pairs: Value, *, flop_per_s: float, constants: PrefillAttentionConstants
) -> Value:
    """Causal attention of a chunk: o + (c^p + (l q/1024)^p)^(1/p), c = FLOP (1 + q w/P)/(e F).

    Parameters
    ----------
    flop: 2 (d_qk + d_v) H P, the masked half left out [FLOP].
    new_tokens: q, queries [count].
    pairs: P, query-key pairs that the mask keeps, > 0 [count].
    flop_per_s: F, BF16 peak, for FP8 caches too (kernels compute in 16 bits) [FLOP/s].
    constants: o, e, l, w (`masked_keys`), p.

    Returns
    -------
    time of one call [s].

    Valid for q from 1024 to 32768, 4 to 64 heads per rank; keys before the chunk enter through P alone (the tables have
    none). Source of the constants: as for `gemm_s`.

    """
    wasted = new_tokens * constants.masked_keys / pairs
    work = flop * (1.0 + wasted) / (flop_per_s * constants.compute_efficiency)
    linear = new_tokens * (constants.linear_us_per_1024_tokens * US / 1024.0)
    return constants.overhead_us * US + soft_maximum(work, linear, constants.exponent)


def decode_attention_s(
    flop: Value,
    cache_bytes: Value,
    context_tokens: Value,
    *,
    flop_per_s: float,
    bytes_per_s: float,
    constants: DecodeAttentionConstants,
) -> Value:
    """One query per request: o + (max(FLOP/(e_c F), read(bytes/(e_m B)))^p + (f sqrt(N/4096))^p)^(1/p).

    Parameters
    ----------
    flop: work of all requests; it matters for absorbed MLA alone [FLOP].
    cache_bytes: KV read for all requests [byte].
    context_tokens: N, mean context of a request [count].
    flop_per_s, bytes_per_s: BF16 peak, memory peak [FLOP/s], [byte/s].
    constants: o, e_m, e_c, f, p, cache of `read_s`.

    Returns
    -------
    time of one call [s].

    Valid for N from 4096 to 32768 and batches from 1 to 128. Source of the constants: as for `gemm_s`; e_c assumed.

    """
    read = read_s(cache_bytes, bytes_per_s=bytes_per_s * constants.memory_efficiency, cache=constants.cache)
    computed = flop / (flop_per_s * constants.compute_efficiency)
    floor: Value = (constants.floor_us * US) * (context_tokens / 4096.0) ** 0.5
    busy: Value = np.maximum(read, computed)
    return constants.overhead_us * US + soft_maximum(busy, floor, constants.exponent)


def moe_s(
    flop: Value,
    weight_bytes: Value,
    *,
    pairs: Value,
    experts: Value,
    width: Value,
    hidden_bytes: Value,
    flop_per_s: float,
    bytes_per_s: float,
    constants: MoeConstants,
) -> Value:
    """Routed experts of one rank: o + ((FLOP (1 + w0/w)(1 + a n/P)/(e_c F))^p + read(W/(e_m B))^p)^(1/p) + c X/B.

    Parameters
    ----------
    flop: 2 x 3 matrices x P pairs x hidden x w [FLOP].
    weight_bytes: W, weights of the experts touched [byte].
    pairs: P > 0, token-expert pairs of this rank; experts: n, experts touched; width: w of an expert here [count].
    hidden_bytes: X, hidden states of all tokens gathered for this rank's experts, 16 bits each [byte].
    flop_per_s, bytes_per_s: peaks, F for the dtype of the experts [FLOP/s], [byte/s].
    constants: o, e_c, e_m, p, w0 (narrow experts reach less), a (rows of padding per expert), c (passes over X), cache
        of `read_s`.

    Returns
    -------
    time of the block, router left out [s].

    Valid for 1 to 32768 tokens, 64 to 384 experts, top-k 4 to 10; docs/compute.md has the errors. Source of the
    constants: fits to aiconfigurator 0.12.0's MoE tables (NVIDIA, Apache-2.0), vLLM, measured with skewed routing.

    """
    padded = flop * (1.0 + constants.narrow_width / width) * (1.0 + constants.tile_rows * experts / pairs)
    computing = padded / (flop_per_s * constants.compute_efficiency)
    reading = read_s(weight_bytes, bytes_per_s=bytes_per_s * constants.memory_efficiency, cache=constants.cache)
    block = constants.overhead_us * US + soft_maximum(computing, reading, constants.exponent)
    return block + hidden_bytes * (constants.token_passes / bytes_per_s)


def elementwise_s(size_bytes: Value, *, bytes_per_s: float, constants: ElementwiseConstants) -> Value:
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
