"""Which tokens a rank keeps, and the stretches that two ranks keep in the same order: intervals, none one by one.

Every split of a sequence is a comb: teeth of equal length at equal distances. Two combs meet in intervals, and these
are the only thing that descriptors depend on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from pdmodel.errors import InputError

Integers = npt.NDArray[np.int64]


class Split(StrEnum):
    """How C ranks share the tokens of a sequence.

    whole: each keeps all (all-gathered KV). contiguous: one stretch each. zigzag: of 2C stretches rank r keeps r and
    2C-1-r, which balances causal attention. token_cyclic: every C-th token. page_cyclic: every C-th page.
    """

    WHOLE = "whole"
    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    TOKEN_CYCLIC = "token_cyclic"
    PAGE_CYCLIC = "page_cyclic"


@dataclass(frozen=True, slots=True)
class Comb:
    """Tokens k * stride + first + (0 .. length-1) below ``end``, for k = 0 .. teeth-1; kept in that order."""

    first: int
    stride: int
    length: int
    teeth: int
    end: int

    def intervals(self) -> tuple[Integers, Integers]:
        """First token of each tooth, and the one after its last; teeth beyond the sequence are left out."""
        starts = self.first + self.stride * np.arange(self.teeth, dtype=np.int64)
        starts = starts[starts < self.end]
        return starts, np.minimum(starts + self.length, self.end)

    @property
    def tokens(self) -> int:
        """How many tokens it holds [-]."""
        starts, ends = self.intervals()
        return int((ends - starts).sum())


def comb(split: Split, rank: int, ranks: int, tokens: int, page_tokens: int) -> Comb:
    """The tokens that one of ``ranks`` ranks keeps.

    Equation: contiguous: q = ceil(n/C), [rq, rq+q). Zigzag: q = ceil(n/2C), stretches r and 2C-1-r. Token-cyclic:
    r, r+C, ... Page-cyclic: pages r, r+C, ... of g tokens.

    Parameters: ``rank`` r in 0 .. C-1; ``ranks`` C >= 1; ``tokens`` n >= 1; ``page_tokens`` g >= 1 [-].
    Returns: the comb; empty where there are more ranks than stretches.
    Raises: `InputError` outside these ranges.
    Validity: any n; where C does not divide it, the last stretch is shorter.
    Source: SGLang prefill context parallelism (zigzag), vLLM decode context parallelism (token- and page-cyclic).

    >>> comb(Split.ZIGZAG, 1, 2, 16, 4).intervals()[0].tolist(), comb(Split.TOKEN_CYCLIC, 1, 4, 10, 4).tokens
    ([4, 8], 3)
    """
    if not 0 <= rank < ranks or tokens < 1 or page_tokens < 1:
        raise InputError(
            f"rank {rank} of {ranks}, {tokens} tokens in pages of {page_tokens}", expected="positive sizes"
        )
    if split is Split.WHOLE or ranks == 1:
        return Comb(0, tokens, tokens, 1, tokens)
    if split is Split.CONTIGUOUS:
        part = -(-tokens // ranks)
        return Comb(rank * part, part, part, 1, tokens)
    if split is Split.ZIGZAG:
        part = -(-tokens // (2 * ranks))
        return Comb(rank * part, (2 * (ranks - rank) - 1) * part, part, 2, tokens)
    length = 1 if split is Split.TOKEN_CYCLIC else page_tokens
    return Comb(rank * length, ranks * length, length, -(-tokens // (ranks * length)), tokens)


@dataclass(frozen=True, slots=True)
class TokenRuns:
    """Stretches of tokens, consecutive on both sides: where each starts on the source and destination, how long.

    ``source`` and ``destination`` count the tokens that a rank keeps, in order: arrays of equal shape (R,) [-].
    """

    source: Integers
    destination: Integers
    length: Integers

    @property
    def tokens(self) -> int:
        """Tokens in all stretches [-]."""
        return int(self.length.sum())


@dataclass(frozen=True, slots=True)
class Window:
    """A part of what a rank keeps, by its place there: ``first`` .. ``last`` - 1."""

    first: int
    last: int


def share(held: Comb, part: int, parts: int, page_tokens: int) -> Window:
    """Part ``part`` of ``parts`` of what a rank keeps, in whole pages, as even as pages allow.

    Equation: q = ceil(ceil(n/g)/parts) g; [part q, part q + q).

    >>> share(Comb(0, 100, 100, 1, 100), 1, 2, 16)
    Window(first=64, last=128)
    """
    pages = -(-held.tokens // page_tokens)
    size = -(-pages // parts) * page_tokens
    return Window(part * size, (part + 1) * size)


def common_runs(
    source: Comb,
    destination: Comb,
    source_part: Window | None = None,
    destination_part: Window | None = None,
    first_token: int = 0,
) -> TokenRuns:
    """The tokens that both keep, as stretches that are consecutive on both sides.

    Equation: teeth of the two combs are intersected; neighbours that touch on both sides are one stretch.

    Parameters: ``source_part``, ``destination_part``: only these places of what each keeps; ``first_token``: only
    tokens from here on (the tail that a window keeps).
    Returns: `TokenRuns`, in order of tokens; none where the two have nothing in common.
    Validity: any two combs; the work grows with their teeth.
    Source: intersection of intervals.

    >>> found = common_runs(comb(Split.CONTIGUOUS, 1, 2, 16, 4), comb(Split.PAGE_CYCLIC, 1, 2, 16, 4))
    >>> found.source.tolist(), found.destination.tolist(), found.length.tolist()
    ([4], [4], [4])
    """
    ours, our_ends = source.intervals()
    theirs, their_ends = destination.intervals()
    low = np.searchsorted(their_ends, ours, side="right")
    met = np.maximum(np.searchsorted(theirs, our_ends, side="left") - low, 0)
    tooth = np.repeat(np.arange(len(ours)), met)
    other = low[tooth] + np.arange(int(met.sum())) - np.repeat(np.cumsum(met) - met, met)
    start = np.maximum(np.maximum(ours[tooth], theirs[other]), first_token)
    length = np.minimum(our_ends[tooth], their_ends[other]) - start
    here = tooth * source.length + start - ours[tooth]
    there = other * destination.length + start - theirs[other]
    for part, of_source in ((source_part, True), (destination_part, False)):
        if part is not None:
            skipped = np.maximum(part.first - (here if of_source else there), 0)
            here, there, length = here + skipped, there + skipped, length - skipped
            length = np.minimum(length, part.last - (here if of_source else there))
    kept = length > 0
    return _joined(here[kept], there[kept], length[kept])


def _joined(here: Integers, there: Integers, length: Integers) -> TokenRuns:
    if not len(length):
        return TokenRuns(here, there, length)
    fresh = np.ones(len(length), dtype=bool)
    fresh[1:] = (here[1:] != here[:-1] + length[:-1]) | (there[1:] != there[:-1] + length[:-1])
    heads = np.flatnonzero(fresh)
    return TokenRuns(here[heads], there[heads], np.add.reduceat(length, heads))


def cut(runs: TokenRuns, page_tokens: int, *, source: bool) -> TokenRuns:
    """The stretches, cut where a page of one side ends.

    Equation: a stretch from place p of length l touches ceil((p mod g + l)/g) pages.

    >>> runs = TokenRuns(np.array([2]), np.array([0]), np.array([7]))
    >>> cut(runs, 4, source=True).length.tolist(), cut(runs, 4, source=False).length.tolist()
    ([2, 4, 1], [4, 3])
    """
    place = runs.source if source else runs.destination
    offset = place % page_tokens
    pieces = -(-(offset + runs.length) // page_tokens)
    which = np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = np.maximum(number * page_tokens - offset[which], 0)
    end = np.minimum((number + 1) * page_tokens - offset[which], runs.length[which])
    return TokenRuns(runs.source[which] + start, runs.destination[which] + start, end - start)
