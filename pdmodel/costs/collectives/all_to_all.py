"""All-to-all: every rank sends a chunk of its own to every other rank, pairwise."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.collectives.ring import check_ranks
from pdmodel.errors import InputError


def all_to_all_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that each rank sends, and receives.

    Equation: (n-1)/n S with S what one rank holds for all n ranks; the chunk for itself does not travel.

    Parameters: ``size_bytes`` S, one rank's send buffer [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte].
    Raises: `InputError` if n < 1.
    Validity: equal chunks.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22).

    >>> all_to_all_bytes(8.0, 8)
    7.0
    """
    check_ranks(ranks)
    return (ranks - 1) / ranks * size_bytes


def pairs(gpus: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Every ordered pair of different ranks.

    >>> pairs((0, 1))
    ((0, 1), (1, 0))
    """
    if len(set(gpus)) != len(gpus):
        raise InputError(f"GPUs {list(gpus)} hold a rank twice", expected="each GPU once")
    return tuple((source, target) for source in gpus for target in gpus if source != target)
