"""Who sends which share of the KV to whom: head shards, copies of KV heads, latents, context-parallel shards."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.engines.spec import ContextSenders, LatentSource


@dataclass(frozen=True, slots=True)
class Pair:
    """One source and one destination. ``heads_share`` of every token's KV, for ``tokens_share`` of the tokens [-]."""

    source_rank: int
    destination_rank: int
    heads_share: float
    tokens_share: float

    @property
    def share(self) -> float:
        """Share of all the KV of a request [-]."""
        return self.heads_share * self.tokens_share


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank keeps of the KV: ``heads_share`` of a token's KV, for ``tokens_share`` of the tokens [-]."""

    rank: int
    heads_share: float
    tokens_share: float


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """The prefill side: rank = cp_rank * tp_size + tp_rank. ``kv_heads`` None: a latent, whole on every TP rank."""

    tp_size: int
    cp_size: int
    exchange: CpExchange
    kv_heads: int | None
    senders: ContextSenders = ContextSenders.FIRST
    latent_source: LatentSource = LatentSource.ONE_RANK

    @property
    def shards(self) -> int:
        """Head shards: TP ranks, times CP ranks for Ulysses."""
        return self.tp_size * (self.cp_size if self._heads_over_cp else 1)

    @property
    def _heads_over_cp(self) -> bool:
        return self.exchange is CpExchange.ULYSSES and self.cp_size > 1

    def holdings(self) -> tuple[Holding, ...]:
        """What each rank holds after the prefill: a KV all-gather leaves all tokens on each CP rank, a ring 1/cp."""
        heads = 1.0 if self.kv_heads is None else 1.0 / min(self.shards, self.kv_heads)
        tokens = 1.0 / self.cp_size if self.exchange is CpExchange.RING else 1.0
        return tuple(Holding(rank, heads, tokens) for rank in range(self.tp_size * self.cp_size))

    def token_sources(self) -> tuple[tuple[int, float], ...]:
        """(CP rank, share of the tokens that it sends) of one head shard."""
        if self._heads_over_cp or self.cp_size == 1:
            return ((0, 1.0),)
        if self.exchange is CpExchange.ALL_GATHER and self.senders is ContextSenders.FIRST:
            return ((0, 1.0),)
        return tuple((rank, 1.0 / self.cp_size) for rank in range(self.cp_size))

    def rank_of(self, shard: int, cp_rank: int) -> int:
        """The rank that holds a head shard (of one CP rank)."""
        if self._heads_over_cp:
            tp_rank, cp_rank = divmod(shard, self.cp_size)
            return cp_rank * self.tp_size + tp_rank
        return cp_rank * self.tp_size + shard


def pairs(source: SourceLayout, destination_tp: int) -> tuple[Pair, ...]:
    """Every (source, destination) with traffic, and its share of the KV.

    Head-sharded KV: destination rank d takes each head that it holds from one rank that holds it. Where a head is
    copied over several sources, copy number i of the destination takes it from copy i modulo the number of sources:
    with equal tp sizes rank d sends to rank d, copies included. So the bytes on the wire are those of the KV times the
    copies that the destination keeps, max(1, tp_D / H_kv); copies on the source add nothing.

    Latent: every destination rank keeps all of it. `LatentSource.ONE_RANK`: rank floor(d * tp_P / tp_D) sends it whole;
    `LatentSource.TOKEN_SHARDS`: every source rank sends 1/tp_P of the tokens to every destination.

    Parameters
    ----------
    source: degrees, CP exchange and rules of the prefill side.
    destination_tp: TP size of the decode side.

    Returns
    -------
    Pairs in order of destination, then source.

    Notes
    -----
    Valid where heads and TP sizes divide each other (checked with the scenario). Source: SGLang 0.5.23
    disaggregation/mooncake (equal and unequal TP, MLA), vLLM Mooncake connector (one copy of a head sends).

    >>> replicated = SourceLayout(tp_size=8, cp_size=1, exchange=CpExchange.ALL_GATHER, kv_heads=4)
    >>> sum(pair.share for pair in pairs(replicated, 8))
    2.0

    """
    found = [
        Pair(source.rank_of(shard, cp_rank), destination, heads, tokens * part)
        for destination in range(destination_tp)
        for shard, heads, part in _shards_for(source, destination, destination_tp)
        for cp_rank, tokens in source.token_sources()
    ]
    return tuple(found)


def _shards_for(source: SourceLayout, destination: int, destination_tp: int) -> list[tuple[int, float, float]]:
    """(source shard, share of a token's KV, share of the tokens) that a destination rank takes."""
    if source.kv_heads is None:
        if source.latent_source is LatentSource.TOKEN_SHARDS:
            return [(shard, 1.0, 1.0 / source.tp_size) for shard in range(source.tp_size)]
        return [(destination * source.tp_size // destination_tp, 1.0, 1.0)]
    heads = source.kv_heads
    ours = min(source.shards, heads)
    theirs = min(destination_tp, heads)
    copies_here, copies_there = source.shards // ours, destination_tp // theirs
    wanted, copy = divmod(destination, copies_there)
    first, last = wanted * heads // theirs, (wanted + 1) * heads // theirs
    found = []
    for group in range(ours):
        overlap = min(last, (group + 1) * heads // ours) - max(first, group * heads // ours)
        if overlap > 0:
            found.append((group * copies_here + copy % copies_here, overlap / heads, 1.0))
    return found
