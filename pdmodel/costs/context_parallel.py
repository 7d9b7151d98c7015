"""Context parallelism: what its ranks exchange in one attention layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pdmodel.costs.collectives.cost import CollectiveCost, collective
from pdmodel.costs.collectives.ring import all_gather_bytes, check_ranks
from pdmodel.errors import InputError, nearest
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.kv_cache import is_latent, kv_bytes_per_token_layer

# Queries, keys and values of the new tokens travel in 16 bits before they are cached.
ACTIVATION_BYTES = 2


class CpExchange(StrEnum):
    """How ranks that hold parts of a sequence see each other's keys and values.

    all_gather: every rank gathers all KV of the layer before attention (what SGLang and vLLM do). ring: KV blocks go
    round while attention runs. ulysses: all-to-all to heads before attention, and back after it.
    """

    ALL_GATHER = "all_gather"
    RING = "ring"
    ULYSSES = "ulysses"


@dataclass(frozen=True, slots=True)
class CpLayer:
    """The exchanges of one layer: before attention, beside it (each may hide behind a block of it), after it."""

    before: tuple[CollectiveCost, ...] = ()
    beside: tuple[CollectiveCost, ...] = ()
    after: tuple[CollectiveCost, ...] = ()


def kv_row_bytes(arch: Architecture, kv_dtype: KvDtype | str, tp_size: int) -> float:
    """KV bytes of one token and layer on one TP rank.

    Equation: GQA: 2 max(1, H_kv/T) d b. MLA: the whole latent on every rank.

    Parameters: ``tp_size`` T >= 1, a divisor or a multiple of H_kv [-].
    Returns: [byte].
    Raises: `InputError` if T < 1.
    Validity: KV heads copied where there are more ranks than heads.
    Source: vLLM v0.11 attention specs; see `pdmodel.llm.kv_cache`.
    """
    check_ranks(tp_size)
    whole = kv_bytes_per_token_layer(arch, kv_dtype)
    if is_latent(arch):
        return float(whole)
    return whole / arch.kv_heads * max(1.0, arch.kv_heads / tp_size)


def all_gather_layer_bytes(tokens: float, row_bytes: float, ranks: int) -> float:
    """Bytes in, and out, of each rank for the KV all-gather of one layer.

    Equation: (P-1)/P N kv.

    Parameters: ``tokens`` N, all ranks together [-]; ``row_bytes`` kv of a token and layer on one TP rank [byte];
    ``ranks`` P >= 1 [-].
    Returns: [byte].
    Raises: `InputError` if P < 1.
    Validity: any split of the sequence (zigzag, interleaved): the bytes are the same.
    Source: SGLang docs advanced_features/prefill_cp; ring all-gather.

    >>> all_gather_layer_bytes(8192, 1024, 4)
    6291456.0
    """
    return all_gather_bytes(tokens * row_bytes, ranks)


def ring_layer_bytes(tokens: float, row_bytes: float, ranks: int) -> float:
    """Bytes in, and out, of each rank for ring attention in one layer.

    Equation: (P-1) (N/P) kv: P-1 exchanges of the block that one rank holds.

    Parameters: as `all_gather_layer_bytes`.
    Returns: [byte]; the same as the all-gather's.
    Raises: `InputError` if P < 1.
    Validity: KV goes round, not queries.
    Source: Liu et al. 2023, Ring Attention, arXiv 2310.01889, section 3.

    >>> ring_layer_bytes(8192, 1024, 4)
    6291456.0
    """
    check_ranks(ranks)
    return (ranks - 1) * tokens / ranks * row_bytes


def ulysses_sizes(tokens: float, arch: Architecture, ranks: int, tp_size: int) -> tuple[float, float]:
    """What each rank hands to the two all-to-alls of Ulysses, own share included: before, after attention.

    Equation: before (N/P) b (H d + 2 max(H_kv, P) d) (MLA: H d_qk alone, the latent is gathered), after (N/P) b H d_v,
    with H, H_kv the heads of one TP rank and b = 2; (P-1)/P of it leaves the GPU.

    Parameters: ``tokens`` N [-]; ``ranks`` P, a divisor of H/T [-]; ``tp_size`` T [-].
    Returns: (before, after) [byte].
    Raises: `InputError` where P does not divide the query heads of a TP rank.
    Validity: KV heads copied where there are fewer of them than ranks.
    Source: Jacobs et al. 2023, DeepSpeed-Ulysses, arXiv 2309.14509, section 3.
    """
    check_ranks(ranks)
    check_ranks(tp_size)
    if arch.heads % (tp_size * ranks):
        raise InputError(
            f"{ranks} x {tp_size} shards do not divide the {arch.heads} heads of {arch.name}",
            path="cp_size",
            expected="cp_size x tp_size that divides the heads",
        )
    heads = arch.heads / tp_size
    per_token = heads * arch.head_dim
    if not is_latent(arch):
        kv_heads = max(1.0, arch.kv_heads / tp_size)
        per_token += 2 * max(kv_heads, float(ranks)) * arch.head_dim
    scale = tokens / ranks * ACTIVATION_BYTES
    return scale * per_token, scale * heads * arch.v_head_dim


def context_parallel_layer(
    kind: str,
    tokens: float,
    arch: Architecture,
    kv_dtype: KvDtype | str,
    *,
    tp_size: int,
    gpus: Sequence[int],
    box: Box,
) -> CpLayer:
    """What one CP group exchanges in one layer, in order.

    Equation: see `all_gather_layer_bytes`, `ring_layer_bytes`, `ulysses_sizes`; ring: P-1 send/recv of (N/P) kv. MLA
    with Ulysses: all-to-all of the queries, all-gather of the latents.

    Parameters
    ----------
    kind: one of `CpExchange`.
    tokens: N whose KV is exchanged, all ranks together (new tokens, and cached ones where the cache is sharded).
    arch, kv_dtype, tp_size: what a KV row is.
    gpus: the CP group in ring order, P of them.
    box: where.

    Returns
    -------
    `CpLayer`; empty for one rank.

    Raises
    ------
    InputError: unknown kind, or heads that cannot be split.

    Notes
    -----
    Validity: the groups of other TP ranks run at the same time; add their wire bytes. Source: the papers named in the
    formulas.

    """
    try:
        exchange = CpExchange(kind)
    except ValueError:
        legal = [member.value for member in CpExchange]
        raise InputError(
            f"unknown CP exchange {kind!r}", expected="one of " + ", ".join(legal), nearest=nearest(kind, legal)
        ) from None
    ranks = len(gpus)
    if ranks == 1:
        return CpLayer()
    row = kv_row_bytes(arch, kv_dtype, tp_size)
    if exchange is CpExchange.ALL_GATHER:
        return CpLayer(before=(collective("all_gather", tokens * row, gpus, box),))
    if exchange is CpExchange.RING:
        once = collective("send_recv", tokens / ranks * row, gpus, box)
        return CpLayer(beside=(once,) * (ranks - 1))
    before, after = ulysses_sizes(tokens, arch, ranks, tp_size)
    first = [collective("all_to_all", before, gpus, box)]
    if is_latent(arch):
        first.append(collective("all_gather", tokens * row, gpus, box))
    return CpLayer(before=tuple(first), after=(collective("all_to_all", after, gpus, box),))


def one_after_another(costs: Sequence[CollectiveCost]) -> CollectiveCost | None:
    """Several exchanges as one: times and wire bytes add up; None if there are none."""
    if not costs:
        return None
    wire: dict[str, float] = {}
    links: dict[str, tuple[str, ...]] = {}
    for cost in costs:
        for port, size in cost.wire_bytes.items():
            wire[port] = wire.get(port, 0.0) + size
        for port, found in cost.input_links.items():
            links[port] = tuple(dict.fromkeys((*links.get(port, ()), *found)))
    return replace(
        costs[0],
        size_bytes=sum(cost.size_bytes for cost in costs),
        time_s=sum(cost.time_s for cost in costs),
        own_time_s=sum(cost.own_time_s for cost in costs),
        wire_bytes=wire,
        input_links=links,
        source=max((cost.source for cost in costs), key=lambda source: source.rank),
        warnings=tuple(dict.fromkeys(warning for cost in costs for warning in cost.warnings)),
        notes=tuple(dict.fromkeys(note for cost in costs for note in cost.notes)),
        hazards=tuple(dict.fromkeys(hazard for cost in costs for hazard in cost.hazards)),
    )
