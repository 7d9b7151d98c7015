"""Context parallelism: what its ranks exchange in one attention layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pdmodel.costs.collectives.cost import CollectiveCost, collective
from pdmodel.costs.collectives.ring import all_gather_bytes, check_ranks
from pdmodel.errors import CoverageError, InputError, nearest
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.kinds import LayerKind
from pdmodel.llm.kv_cache import entry_bytes, growing_bytes

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


def kv_row_bytes(arch: Architecture, kv_dtype: KvDtype | str, tp_size: int, layer: int = 0) -> float:
    """KV bytes of one token and layer on one TP rank, in a window too.

    Equation: GQA: max(1, H_kv/T) (d + d_v) b. MLA, compressed: the whole latent (or its part of an entry), with the
    indexer's key, on every rank. A layer that reads the cache of another: 0.

    Parameters: ``tp_size`` T >= 1, a divisor or a multiple of H_kv [-].
    Returns: [byte].
    Raises: `InputError` if T < 1.
    Validity: KV heads copied where there are more ranks than heads.
    Source: vLLM v0.11 attention specs; see `pdmodel.llm.kv_cache`.
    """
    check_ranks(tp_size)
    mixer = arch.mixer(layer)
    if mixer.is_latent:
        return float(growing_bytes(mixer, kv_dtype))
    if not mixer.stores or not mixer.kv_heads:
        return 0.0
    return entry_bytes(mixer, kv_dtype) / mixer.kv_heads * max(1.0, mixer.kv_heads / tp_size)


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


def ulysses_sizes(tokens: float, arch: Architecture, ranks: int, tp_size: int, layer: int = 0) -> tuple[float, float]:
    """What each rank hands to the two all-to-alls of Ulysses, own share included: before, after attention.

    Equation: before (N/P) b (H d + max(H_kv, P) (d + d_v)) (MLA: H d_qk alone, the latent is gathered), after
    (N/P) b H d_v, with H, H_kv the heads of one TP rank and b = 2; (P-1)/P of it leaves the GPU.

    Parameters: ``tokens`` N [-]; ``ranks`` P, a divisor of H/T [-]; ``tp_size`` T [-].
    Returns: (before, after) [byte].
    Raises: `InputError` where P does not divide the query heads of a TP rank.
    Validity: KV heads copied where there are fewer of them than ranks.
    Source: Jacobs et al. 2023, DeepSpeed-Ulysses, arXiv 2309.14509, section 3.
    """
    check_ranks(ranks)
    check_ranks(tp_size)
    mixer = arch.mixer(layer)
    if mixer.heads % (tp_size * ranks):
        raise InputError(
            f"{ranks} x {tp_size} shards do not divide the {mixer.heads} heads of {arch.name}",
            path="cp_size",
            expected="cp_size x tp_size that divides the heads",
        )
    heads = mixer.heads / tp_size
    per_token = heads * mixer.head_dim
    if not mixer.is_latent and mixer.stores:
        kv_heads = max(1.0, mixer.kv_heads / tp_size)
        per_token += max(kv_heads, float(ranks)) * (mixer.head_dim + mixer.v_head_dim)
    scale = tokens / ranks * ACTIVATION_BYTES
    return scale * per_token, scale * heads * mixer.v_head_dim


def context_parallel_layer(
    kind: str,
    tokens: float,
    arch: Architecture,
    kv_dtype: KvDtype | str,
    *,
    tp_size: int,
    gpus: Sequence[int],
    box: Box,
    layer: int = 0,
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
    layer: whose mixer.

    Returns
    -------
    `CpLayer`; empty for one rank.

    Raises
    ------
    InputError: unknown kind, or heads that cannot be split.
    CoverageError: a kind of layer whose ranks exchange something else (`check_context_parallel`).

    Notes
    -----
    Validity: the groups of other TP ranks run at the same time; add their wire bytes. Source: the papers named in the
    formulas.

    """
    exchange, ranks = _exchange(kind), len(gpus)
    if ranks == 1:
        return CpLayer()
    check_context_parallel(arch, exchange)
    row = kv_row_bytes(arch, kv_dtype, tp_size, layer)
    if exchange is CpExchange.ALL_GATHER:
        size = tokens * row + _halo_bytes(arch, kv_dtype, ranks, layer)
        return CpLayer(before=(collective("all_gather", size, gpus, box),) if size else ())
    if exchange is CpExchange.RING:
        if not row:
            return CpLayer()
        once = collective("send_recv", tokens / ranks * row, gpus, box)
        return CpLayer(beside=(once,) * (ranks - 1))
    before, after = ulysses_sizes(tokens, arch, ranks, tp_size, layer)
    first = [collective("all_to_all", before, gpus, box)]
    if arch.mixer(layer).is_latent:
        first.append(collective("all_gather", tokens * row, gpus, box))
    return CpLayer(before=tuple(first), after=(collective("all_to_all", after, gpus, box),))


def _exchange(kind: str) -> CpExchange:
    try:
        return CpExchange(kind)
    except ValueError:
        legal = [member.value for member in CpExchange]
        raise InputError(
            f"unknown CP exchange {kind!r}", expected="one of " + ", ".join(legal), nearest=nearest(kind, legal)
        ) from None


def check_context_parallel(arch: Architecture, exchange: CpExchange) -> None:
    """Refuse what no formula covers: recurrent layers over CP ranks, rings and head shards of compressed or shared KV.

    Raises: `CoverageError`.
    """
    kinds = {mixer.kind for mixer in arch.distinct_mixers()}
    if LayerKind.LINEAR in kinds:
        raise CoverageError(f"{arch.name} has recurrent layers: no exchange of theirs between CP ranks is known")
    if LayerKind.COMPRESSED in kinds and exchange is not CpExchange.ALL_GATHER:
        raise CoverageError(f"{arch.name} has compressed attention: {exchange.value} has none", expected="all_gather")


def _halo_bytes(arch: Architecture, kv_dtype: KvDtype | str, ranks: int, layer: int) -> float:
    """Compressed attention: entries of the window before each rank's tokens, which are not compressed [byte]."""
    mixer = arch.mixer(layer)
    if mixer.compression is None or mixer.window is None:
        return 0.0
    return float(ranks * mixer.window * entry_bytes(mixer, kv_dtype))


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
