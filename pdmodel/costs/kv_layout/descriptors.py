"""How many pieces a transfer falls into: stretches of memory that are contiguous on both sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from pdmodel.costs.kv_layout.tokens import TokenRuns, cut
from pdmodel.errors import CoverageError, InputError


class Order(StrEnum):
    """What lies next to one another in a page: nhd: all heads of a token. hnd: all tokens of a head."""

    NHD = "nhd"
    HND = "hnd"


class Pages(StrEnum):
    """Where the pages of a request lie: consecutive: one behind the other on both sides. scattered: none touch."""

    CONSECUTIVE = "consecutive"
    SCATTERED = "scattered"


@dataclass(frozen=True, slots=True)
class Side:
    """One rank's memory: order inside a page, tokens of a page, heads that the rank keeps."""

    order: Order
    page_tokens: int
    heads: int

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or self.heads < 1:
            raise InputError(f"pages of {self.page_tokens} tokens, {self.heads} heads", expected="1 or more")


def descriptors(
    runs: TokenRuns,
    heads: int,
    source: Side,
    destination: Side,
    *,
    pages: Pages = Pages.CONSECUTIVE,
    layers_together: int = 1,
) -> int:
    """Descriptors of one pair: maximal stretches that are contiguous in the memory of both ranks.

    Equation: token i, head a lies at i h + a (nhd) or floor(i/g) g h + a g + i mod g (hnd), in rows of one head. With
    both sides nhd: one descriptor for each stretch of tokens where all heads of both sides move (m = h_P = h_D), else
    one a token. Both hnd: stretches cut at pages, times m, less the joins: tokens that go on in the next page of a
    rank with one head; head to head where a page is full on both sides; page to page where all heads move too. Mixed:
    one per token and head, but where the last head of a page meets the next page.

    Parameters: ``runs`` of the pair; ``heads`` m that the two share, adjacent on both [-]; ``source``,
    ``destination``: g and h of each. ``layers_together``: buffers (keys, values, layers) that lie inside one
    page; the result then counts the descriptors of all of them.
    Returns: descriptors of one buffer, or of ``layers_together`` of them [-].
    Raises: `InputError` for more heads than a side keeps; `CoverageError` for pages that hold several layers in
    different orders.
    Validity: rows of a head are not cut; heads of equal width.
    Source: own derivation; equal to enumeration of every token and head (tests).

    >>> from pdmodel.costs.kv_layout.tokens import Comb, common_runs
    >>> runs = common_runs(Comb(0, 256, 256, 1, 256), Comb(0, 256, 256, 1, 256))
    >>> wide, narrow = Side(Order.NHD, 64, 2), Side(Order.NHD, 64, 1)
    >>> descriptors(runs, 2, wide, wide), descriptors(runs, 1, wide, narrow)
    (1, 256)
    >>> descriptors(runs, 1, Side(Order.HND, 64, 2), Side(Order.HND, 64, 1))
    4
    """
    if not 1 <= heads <= min(source.heads, destination.heads):
        raise InputError(f"{heads} heads between ranks of {source.heads} and {destination.heads}", expected="fewer")
    if not len(runs.length):
        return 0
    one, two = _plain(source, destination)
    full = heads == one.heads == two.heads
    if one.order is two.order is Order.NHD and not full:
        return runs.tokens * layers_together
    if one.order is two.order:
        inside = heads if one.order is Order.HND else 1
        block = inside * layers_together if full else inside
        strides = [
            (side.heads if one.order is Order.HND else 1) * layers_together * side.page_tokens for side in (one, two)
        ]
        found = _blocks(runs, block, (one.page_tokens, two.page_tokens), strides, pages)
        return found if full else found * layers_together
    if layers_together > 1:
        raise CoverageError("blocks of several layers in different orders", expected="nhd or hnd on both sides")
    joins = 0
    if full and pages is Pages.CONSECUTIVE:
        source_cut = one.order is Order.HND
        page = one.page_tokens if source_cut else two.page_tokens
        joins = len(cut(runs, page, source=source_cut).length) - len(runs.length)
    return runs.tokens * heads - joins


def _plain(source: Side, destination: Side) -> tuple[Side, Side]:
    """The sides with orders that only differ where memory does: pages of one token, or of one head, are of either."""

    def either(side: Side) -> bool:
        return side.page_tokens == 1 or side.heads == 1

    if either(source):
        source = replace(source, order=Order.NHD if either(destination) else destination.order)
    if either(destination):
        destination = replace(destination, order=source.order)
    return source, destination


def _blocks(runs: TokenRuns, block: int, page_tokens: tuple[int, int], strides: list[int], pages: Pages) -> int:
    """Descriptors where a page is ``block`` adjacent rows of tokens, out of pages ``strides`` apart.

    Order of the source: page, row, token. A stretch inside a page is a descriptor in each row; three kinds join.
    """
    here, there = page_tokens
    # Pages that nobody joins: further apart than any page is long.
    apart = [stride * (4 if pages is Pages.SCATTERED else 1) for stride in strides]
    parts = cut(cut(runs, here, source=True), there, source=False)
    ours = parts.source // here * apart[0] + parts.source % here
    theirs = parts.destination // there * apart[1] + parts.destination % there
    our_ends, their_ends = ours + parts.length, theirs + parts.length
    new_page = np.diff(parts.source // here) > 0
    on = ~new_page & (our_ends[:-1] == ours[1:]) & (their_ends[:-1] == theirs[1:])
    first = np.flatnonzero(np.concatenate(([True], new_page)))
    last = np.append(first[1:] - 1, len(ours) - 1)
    next_row = (our_ends[last] == ours[first] + here) & (their_ends[last] == theirs[first] + there)
    rows = block - 1
    next_page = (our_ends[last[:-1]] + rows * here == ours[first[1:]]) & (
        their_ends[last[:-1]] + rows * there == theirs[first[1:]]
    )
    return int(block * (len(ours) - on.sum()) - rows * next_row.sum() - next_page.sum())
