"""One kernel of a rank: its kind, FLOP and HBM bytes, and how the simple ones are built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.spec import SourceKind

ACTIVATION_BYTES: Final = 2  # activations are 16 bits wide on every path; FP8 GEMMs quantise on the way in


class OperationKind(StrEnum):
    """Which formula prices an operation."""

    GEMM = "gemm"
    PREFILL_ATTENTION = "prefill_attention"
    DECODE_ATTENTION = "decode_attention"
    MOE = "moe"
    ELEMENTWISE = "elementwise"


class Stage(StrEnum):
    """Part of a pass, in order; collectives and KV releases fall between stages.

    The KV of a chunk is written at the end of ``qkv``. A CP exchange follows ``qkv`` and the TP collectives follow
    ``o_proj`` and ``mlp`` | ``experts``. The dispatch to expert-parallel ranks follows ``router``, the combine
    ``experts``; ``shared_expert`` may run beside them.
    """

    EMBEDDING = "embedding"
    QKV = "qkv"
    ATTENTION = "attention"
    O_PROJ = "o_proj"
    MLP = "mlp"
    ROUTER = "router"
    SHARED_EXPERT = "shared_expert"
    EXPERTS = "experts"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel on one rank: ``flop`` [FLOP, 1 MAC = 2] and ``size_bytes`` moved from and to HBM [byte], per call.

    ``dtype`` (of weights) and ``kv_dtype`` decide peaks and constants. ``m``, ``n``, ``k``: of a GEMM, its rows,
    columns and depth; of routed experts, token-expert pairs, hidden size and width of an expert on this rank; of
    attention, m queries; of an elementwise kernel, m tokens. ``weight_bytes``: the part of ``size_bytes`` that is
    weights. ``tokens``: of routed experts, all tokens that were gathered for them. ``context_tokens``: of attention,
    the keys that a query sees at most. ``pairs``: of attention, query-key pairs; 0: those of a causal mask.
    ``experts``: whose weights are read. ``basis``: how well the formula that prices it fits; a kernel that is priced by
    the constants of another one is derived or assumed, however these were found.
    """

    stage: Stage
    name: str
    kind: OperationKind
    flop: float
    size_bytes: float
    m: float
    n: float = 0.0
    k: float = 0.0
    dtype: WeightDtype = WeightDtype.BF16
    kv_dtype: KvDtype = KvDtype.BF16
    weight_bytes: float = 0.0
    tokens: float = 0.0
    context_tokens: float = 0.0
    experts: float = 0.0
    pairs: float = 0.0
    basis: SourceKind = SourceKind.MEASURED


def causal_pairs(new_tokens: float, past_tokens: float) -> float:
    """Query-key pairs that a causal mask keeps: q p + q (q + 1) / 2 for q new tokens after p past ones [count].

    >>> causal_pairs(3, 2)
    12.0
    """
    return new_tokens * past_tokens + new_tokens * (new_tokens + 1) / 2


def window_pairs(new_tokens: float, past_tokens: float, window: float) -> float:
    """Pairs of a causal mask where a query sees at most ``window`` keys, its own included [count].

    Equation: sum over j = 1..q of min(p + j, w).

    Parameters: ``new_tokens`` q, ``past_tokens`` p >= 0, ``window`` w >= 1 [count].
    Validity: exact for whole numbers. Source: own sum.

    >>> window_pairs(3, 2, 4), window_pairs(3, 2, 100) == causal_pairs(3, 2)
    (11.0, True)
    """

    def until(tokens: float) -> float:
        inside = min(tokens, window)
        return inside * (inside + 1) / 2 + (tokens - inside) * window

    return until(past_tokens + new_tokens) - until(past_tokens)


def chunked_pairs(new_tokens: float, past_tokens: float, chunk: float) -> float:
    """Pairs of a causal mask within blocks of ``chunk`` tokens [count].

    Equation: sum over j = 1..q of ((p + j - 1) mod c) + 1.

    Parameters: ``new_tokens`` q, ``past_tokens`` p >= 0, ``chunk`` c >= 1 [count].
    Validity: exact for whole numbers. Source: own sum.

    >>> chunked_pairs(3, 2, 4), chunked_pairs(3, 2, 100) == causal_pairs(3, 2)
    (8.0, True)
    """

    def until(tokens: float) -> float:
        whole, rest = divmod(tokens, chunk)
        return whole * chunk * (chunk + 1) / 2 + rest * (rest + 1) / 2

    return until(past_tokens + new_tokens) - until(past_tokens)


def experts_touched(experts: float, top_k: float, tokens: float) -> float:
    """Expected number of distinct experts that ``tokens`` tokens reach: E (1 - (1 - k/E)^t).

    Parameters
    ----------
    experts: E, experts to choose from [count].
    top_k: k, experts per token [count].
    tokens: t [count].

    Returns
    -------
    experts [count], between k and E for t >= 1.

    Valid for uniform, independent routing; skewed routing touches fewer. Source: expectation of the union of t random
    k-subsets.

    >>> round(experts_touched(128, 8, 1), 6), round(experts_touched(128, 8, 64), 1)
    (8.0, 125.9)

    """
    return float(experts * (1.0 - (1.0 - top_k / experts) ** tokens))


def gemm(
    stage: Stage, name: str, shape: tuple[float, float, float], dtype: WeightDtype, *, copies: float = 1.0
) -> Operation:
    """``copies`` GEMMs (m, k) x (k, n) in one kernel: 2 m n k FLOP each; weights, input and output once."""
    m, n, k = shape
    # An FP8 GEMM reads its input as FP8; everything else moves 16-bit activations.
    input_bytes = 1 if dtype in (WeightDtype.FP8, WeightDtype.FP8_BLOCK) else ACTIVATION_BYTES
    weights = copies * k * n * dtype.bytes_per_parameter
    return Operation(
        stage=stage,
        name=name,
        kind=OperationKind.GEMM,
        flop=copies * 2.0 * m * n * k,
        size_bytes=weights + copies * (m * k * input_bytes + m * n * ACTIVATION_BYTES),
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        weight_bytes=weights,
    )


def elementwise(stage: Stage, name: str, tokens: float, bytes_per_token: float) -> Operation:
    """A kernel that only moves bytes."""
    return Operation(stage, name, OperationKind.ELEMENTWISE, 0.0, tokens * bytes_per_token, m=tokens)


def norm(arch: Architecture, stage: Stage, name: str, tokens: float) -> Operation:
    """Residual add and RMS norm in one kernel: read input and residual, write both.

    n residual streams (mHC) are read, mixed and written: 4n + 4 values per hidden one (DeepSeek-V4.1 report, arXiv
    2609.19969, of its predecessor).
    """
    streams = arch.residual_streams
    values = 4 if streams == 1 else 4 * streams + 4
    return elementwise(stage, name, tokens, values * arch.hidden_size * ACTIVATION_BYTES)
