"""The expert-parallel exchange of one MoE layer of an LLM: what routing expects, what travels, how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdmodel.costs.collectives import CollectiveCost, collective
from pdmodel.costs.moe import (
    EpExchange,
    FusedMoe,
    Routing,
    ep_exchange,
    expected_distinct_ranks,
    experts_touched,
    fused_moe,
)
from pdmodel.costs.step import prefill_pass
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.operators import Stage

_WIDE = (WeightDtype.BF16, WeightDtype.FP16, WeightDtype.FP32)


@dataclass(frozen=True, slots=True)
class MoeLayer:
    """One layer's exchange among n ranks of T tokens each.

    ``parts``: dispatch and combine, or the all-reduce that takes their place (it is the TP group's own, after the
    block). ``distinct_ranks``: ranks that a token's experts lie on, its own included. ``experts_touched``: of all
    experts, by the tokens of all ranks; ``experts_touched_rank``: of those of one rank. ``copies``: rows that leave for
    some rank per token, its own included. ``fused``: of the fused kernel alone, with its compute.
    """

    routing: Routing
    ranks: int
    distinct_ranks: float
    experts_touched: float
    experts_touched_rank: float
    copies: float
    parts: Mapping[str, CollectiveCost]
    fused: FusedMoe | None = None
    compute_s: float | None = None


def moe_layer(
    arch: Architecture,
    box: Box,
    gpus: Sequence[int],
    tokens: int,
    exchange: str,
    *,
    dispatch_bytes: int | None = None,
) -> MoeLayer:
    """Exchange of one MoE layer, every rank holding whole experts.

    Equation: see `ep_exchange`; all_reduce: one all-reduce of n T H values of 2 bytes. Copies of a token: n for
    all_gather_reduce_scatter, k for all_to_all and fused, E_R for dedup, none for all_reduce. Compute beside a fused
    exchange: the experts of `prefill_pass`.

    Parameters: ``gpus`` n of them, in ring order; ``tokens`` T > 0 of one rank before dispatch [count]; ``exchange``
    one of `EpExchange`; ``dispatch_bytes`` per value on the way out, 1 or 2; None: 1 where experts are stored narrower
    than 16 bits [byte].
    Returns: `MoeLayer`.
    Raises: `CoverageError` for an LLM without experts, or as `ep_exchange`; `InputError` where n does not divide the
    experts, T is not positive, or the exchange is unknown.
    Validity: as `ep_exchange`: a uniform gate without groups.
    Source: `ep_exchange`, `experts_touched`, `expected_distinct_ranks`.
    """
    if arch.moe is None:
        raise CoverageError(f"{arch.name} has no experts", expected="an LLM with experts (pdmodel llm list)")
    if tokens <= 0:
        raise InputError(f"found {tokens} tokens", expected="a positive number")
    order, ranks, moe = tuple(gpus), len(gpus), arch.moe
    if dispatch_bytes is None:
        dispatch_bytes = 2 if arch.dtypes.experts in _WIDE else 1
    routing = Routing(tokens, moe.width(arch.hidden_size), moe.experts, moe.top_k, dispatch_bytes)
    distinct = expected_distinct_ranks(moe.experts, moe.top_k, ranks)
    touched = experts_touched(moe.experts, moe.top_k, ranks * tokens)
    dispatch, combine = ep_exchange(exchange, routing, order, box)
    kind = EpExchange(exchange)
    parts = {"dispatch": dispatch, "combine": combine}
    fused, compute_s = None, None
    if kind is EpExchange.ALL_REDUCE:
        parts = {"all_reduce": collective("all_reduce", ranks * routing.tokens * arch.hidden_size * 2, order, box)}
    if kind is EpExchange.FUSED:
        cost = prefill_pass(arch, box.profile, tokens, ep_size=ranks)  # every rank brings its own tokens
        experts = next(layer for layer in cost.layers if layer.moe).stage(Stage.EXPERTS)
        compute_s = experts.time_s if experts else 0.0
        fused = fused_moe(routing, compute_s, order, box)
    return MoeLayer(
        routing=routing,
        ranks=ranks,
        distinct_ranks=distinct,
        experts_touched=touched,
        experts_touched_rank=touched / ranks,
        copies=_copies(kind, ranks, moe.top_k, distinct),
        parts=parts,
        fused=fused,
        compute_s=compute_s,
    )


def _copies(kind: EpExchange, ranks: int, top_k: int, distinct: float) -> float:
    known = {EpExchange.ALL_REDUCE: 0.0, EpExchange.ALL_GATHER_REDUCE_SCATTER: float(ranks), EpExchange.DEDUP: distinct}
    return known.get(kind, float(top_k))
