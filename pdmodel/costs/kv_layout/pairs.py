"""Who sends what to whom: pairs of ranks with their bytes and descriptors, for any split of heads and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from pdmodel.costs.kv_layout.caches import Cache
from pdmodel.costs.kv_layout.descriptors import Order, Pages, Side, descriptors
from pdmodel.costs.kv_layout.tokens import Split, TokenRuns, Window, comb, common_runs, share
from pdmodel.engines.spec import ContextSenders
from pdmodel.errors import InputError


class CopySender(StrEnum):
    """Which of r_P ranks that keep the same heads sends to a destination: rank i of the r_D with these heads there.

    spread: shard d of the destination takes copy d mod r_P. cyclic: rank i takes copy i mod r_P. proportional: it takes
    copy floor(i r_P / r_D). first: copy 0 serves all. shares: every copy sends an equal part of the pages to each.
    Ranks that share the tokens of a head (decode context parallelism) are ranks of their own here.
    """

    SPREAD = "spread"
    CYCLIC = "cyclic"
    FIRST = "first"
    PROPORTIONAL = "proportional"
    SHARES = "shares"


@dataclass(frozen=True, slots=True)
class Placement:
    """One instance: ``shards`` head shards times ``parts`` ranks that share the tokens by ``split``.

    ``ulysses`` U: of the shards, U neighbours are the context-parallel ranks of one TP rank. Rank of shard t, part c
    on the prefill side: c shards + t (Ulysses: (t mod U) shards/U + floor(t/U)); on the decode side t parts + c.
    """

    shards: int
    parts: int = 1
    split: Split = Split.WHOLE
    page_tokens: int = 64
    order: Order = Order.NHD
    ulysses: int = 1

    def __post_init__(self) -> None:
        if min(self.shards, self.parts, self.page_tokens, self.ulysses) < 1 or self.shards % self.ulysses:
            raise InputError(
                f"{self.shards} shards, {self.parts} parts, pages of {self.page_tokens}, Ulysses {self.ulysses}",
                expected="1 or more, Ulysses a divisor of the shards",
            )

    @property
    def ranks(self) -> int:
        """How many ranks there are [-]."""
        return self.shards * self.parts


@dataclass(frozen=True, slots=True)
class Exchange:
    """Both sides, and the rules of the engine between them.

    ``latent_copies``: the rule for what every rank keeps whole; None: as ``copies``.
    ``gather``: ranks of the destination that keep the same heads take an equal part each and gather the rest among
    themselves. ``chunk_tokens``: tokens that are packed into one staging buffer before they are sent; None: sent from
    where they lie. ``layers_together``: a page holds all layers of a cache (cross-layer blocks). ``cuts``: tokens of
    the sequence before which all is sent before the rest (chunks), rising; no descriptor reaches over one.
    """

    source: Placement
    destination: Placement
    copies: CopySender = CopySender.SPREAD
    latent_copies: CopySender | None = None
    context_senders: ContextSenders = ContextSenders.FIRST
    pages: Pages = Pages.CONSECUTIVE
    layers_together: bool = False
    gather: bool = False
    chunk_tokens: int | None = None
    cuts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.destination.split is Split.WHOLE and self.destination.parts > 1:
            raise InputError("the destination's parts keep the same tokens", expected="a split of the tokens")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise InputError(f"staging of {self.chunk_tokens} tokens", expected="1 or more")


@dataclass(frozen=True, slots=True)
class Pair:
    """What one rank sends to another: bytes, and the pieces that are contiguous on both sides [-].

    ``pieces``: (descriptors, bytes of each) for every kind of buffer.
    """

    source_rank: int
    destination_rank: int
    size_bytes: float
    descriptors: int
    pieces: tuple[tuple[int, float], ...]


def pairs(exchange: Exchange, kept: Sequence[Cache]) -> tuple[Pair, ...]:
    """Every (source, destination) with traffic, for all caches of an LLM.

    Equation: rank d keeps heads floor(d H/T) .. of each cache; overlaps of both sides' heads and of both sides' tokens
    are a pair's bytes; descriptors as `descriptors`, times the buffers; staged: one per buffer and chunk.
    So V = sum of caches x r_D with r_D = max(1, T_D/H) copies (gather: 1), and copies on the source add nothing.

    Parameters: ``exchange``: both sides and the rules; ``kept``: what the LLM keeps of the sequence.
    Returns: pairs in order of destination, then source.
    Raises: `InputError` where a side's shards neither divide the heads nor are a multiple of them.
    Validity: a sequence starts at a page; a row of a head is not cut; staging keeps the heads of a pair together.
    Source: SGLang 0.5.23 disaggregation (equal and unequal TP, MLA, CP), vLLM Mooncake connector (copies of heads).
    """
    found: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for cache in kept:
        for key, pieces, row_bytes in _of_cache(exchange, cache):
            found.setdefault(key, []).append((pieces, row_bytes))
    order = sorted(found, key=lambda key: (key[1], key[0]))
    return tuple(
        Pair(
            key[0],
            key[1],
            sum(size for _, size in found[key]),
            sum(count for count, _ in found[key]),
            tuple((count, size / count) for count, size in found[key]),
        )
        for key in order
    )


def copies_of(shards: int, heads: int) -> int:
    """How many of ``shards`` ranks keep the same heads.

    Equation: max(1, T/H).

    Raises: `InputError` where one does not divide the other.

    >>> copies_of(8, 4), copies_of(4, 8)
    (2, 1)
    """
    if shards % heads and heads % shards:
        raise InputError(f"{shards} head shards of {heads} KV heads", expected="one that divides the other")
    return max(1, shards // heads)


@dataclass(frozen=True, slots=True)
class _Link:
    """A shard of each side that share ``heads`` heads, a part of the tokens there, and what of either's pages moves."""

    source_shard: int
    destination_shard: int
    destination_part: int
    heads: int
    source_share: tuple[int, int] | None
    destination_share: tuple[int, int] | None


def _links(exchange: Exchange, heads: int, rule: CopySender) -> Iterator[_Link]:
    ours, theirs, parts = exchange.source.shards, exchange.destination.shards, exchange.destination.parts
    copies_here, copies_there = copies_of(ours, heads), copies_of(theirs, heads)
    groups_here, groups_there = ours // copies_here, theirs // copies_there
    for shard in range(theirs):
        wanted, copy = divmod(shard, copies_there)
        first, last = wanted * heads // groups_there, (wanted + 1) * heads // groups_there
        taken = (copy, copies_there) if exchange.gather and copies_there > 1 else None
        for group in range(groups_here):
            overlap = min(last, (group + 1) * heads // groups_here) - max(first, group * heads // groups_here)
            for part in range(parts if overlap > 0 else 0):
                rank = copy * parts + part, copies_there * parts
                for sender, piece in _senders(rule, shard, rank, copies_here):
                    yield _Link(group * copies_here + sender, shard, part, overlap, piece, taken)


def _senders(
    rule: CopySender, shard: int, rank: tuple[int, int], copies: int
) -> list[tuple[int, tuple[int, int] | None]]:
    """(copy of the source, which part of its pages) that serve one rank of the destination, i of so many."""
    if rule is CopySender.SHARES and copies > 1:
        return [(sender, (sender, copies)) for sender in range(copies)]
    if rule is CopySender.SPREAD:
        return [(shard % copies, None)]
    if rule is CopySender.CYCLIC:
        return [(rank[0] % copies, None)]
    return [(rank[0] * copies // rank[1] if rule is CopySender.PROPORTIONAL else 0, None)]


def _of_cache(exchange: Exchange, cache: Cache) -> Iterator[tuple[tuple[int, int], int, float]]:
    """((source, destination), descriptors, bytes) of one kind of buffer."""
    heads = cache.heads or 1
    if cache.once and exchange.destination.parts > 1:
        # There are no tokens to share: each rank keeps its heads, as without decode context parallelism.
        alone = replace(exchange.destination, shards=exchange.destination.ranks, parts=1, split=Split.WHOLE)
        exchange = replace(exchange, destination=alone)
    kept_here = max(1, heads // exchange.source.shards)
    kept_there = max(1, heads // exchange.destination.shards)
    sides = [
        Side(place.order, max(1, place.page_tokens // cache.tokens_per_row), kept)
        for place, kept in ((exchange.source, kept_here), (exchange.destination, kept_there))
    ]
    known: dict[tuple[object, ...], tuple[int, int]] = {}
    rule = exchange.copies if cache.heads or exchange.latent_copies is None else exchange.latent_copies
    for link in _links(exchange, heads, rule):
        part = link.destination_part
        for sender, piece in _context(exchange, cache, link.source_share):
            key = (sender, part, piece, link.destination_share, link.heads)
            if key not in known:
                runs = _runs(exchange, cache, sides, (sender, part), (piece, link.destination_share))
                known[key] = (_pieces(exchange, cache, runs, link.heads, sides), runs.tokens)
            pieces, rows = known[key]
            if rows:
                ranks = (
                    _source_rank(exchange.source, link.source_shard, sender),
                    link.destination_shard * exchange.destination.parts + part,
                )
                yield ranks, pieces, rows * link.heads * cache.row_bytes * cache.buffers


def _context(
    exchange: Exchange, cache: Cache, piece: tuple[int, int] | None
) -> list[tuple[int, tuple[int, int] | None]]:
    """(part of the source, which of its pages) that send: who keeps all may leave it to the first."""
    parts = exchange.source.parts
    if cache.once:
        return [(0, None)] if piece is None or piece[0] == 0 else []
    if exchange.source.split is not Split.WHOLE:
        return [(sender, piece) for sender in range(parts)]
    if parts == 1 or exchange.context_senders is ContextSenders.FIRST:
        return [(0, piece)]
    one, of = piece or (0, 1)
    return [(sender, (one * parts + sender, of * parts)) for sender in range(parts)]


def _runs(
    exchange: Exchange,
    cache: Cache,
    sides: Sequence[Side],
    parts: tuple[int, int],
    shares: tuple[tuple[int, int] | None, tuple[int, int] | None],
) -> TokenRuns:
    windows: list[Window | None] = []
    combs = []
    for place, side, part, piece in zip((exchange.source, exchange.destination), sides, parts, shares, strict=True):
        split = Split.WHOLE if cache.once else place.split
        held = comb(split, part if split is not Split.WHOLE else 0, place.parts, cache.rows, side.page_tokens)
        combs.append(held)
        windows.append(None if piece is None or cache.once else share(held, *piece, side.page_tokens))
    return common_runs(combs[0], combs[1], windows[0], windows[1], cache.first_row)


def _pieces(exchange: Exchange, cache: Cache, runs: TokenRuns, heads: int, sides: Sequence[Side]) -> int:
    """Descriptors of all buffers of a cache."""
    if cache.once or not runs.tokens:
        return cache.buffers
    if exchange.chunk_tokens is not None:
        # Rows of a chunk lie anywhere in a rank's memory, but its places tell which chunks a pair has a part in.
        chunk = max(1, exchange.chunk_tokens // cache.tokens_per_row // _spread(exchange.source))
        first, last = runs.source // chunk, (runs.source + runs.length - 1) // chunk
        chunks = 1 + int((np.maximum(first[1:] - last[:-1], 0) > 0).sum() + (last - first).sum())
        return cache.buffers * chunks
    together = cache.buffers if exchange.layers_together else 1
    count = sum(
        descriptors(part, heads, sides[0], sides[1], pages=exchange.pages, layers_together=together)
        for part in _sent_apart(exchange, cache, runs)
    )
    return count * cache.buffers // together


def _sent_apart(exchange: Exchange, cache: Cache, runs: TokenRuns) -> Iterator[TokenRuns]:
    """The stretches between one cut and the next, each cut at its own place among the rows of a rank."""
    spread = _spread(exchange.source) * cache.tokens_per_row
    places = [-(-cut // spread) for cut in exchange.cuts]
    for first, last in zip([0, *places], [*places, None], strict=True):
        start = np.maximum(runs.source, first)
        end = runs.source + runs.length
        length = (end if last is None else np.minimum(end, last)) - start
        kept = length > 0
        moved = start - runs.source
        yield TokenRuns(start[kept], (runs.destination + moved)[kept], length[kept])


def _spread(source: Placement) -> int:
    """Ranks that one chunk's tokens lie on."""
    return 1 if source.split is Split.WHOLE else source.parts


def _source_rank(source: Placement, shard: int, part: int) -> int:
    if source.ulysses > 1:
        tp_rank, cp_rank = divmod(shard, source.ulysses)
        return cp_rank * (source.shards // source.ulysses) + tp_rank
    return part * source.shards + shard
