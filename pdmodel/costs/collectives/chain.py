"""Chains of GPUs: broadcast and reduce, and NCCL's tree, which inside one node is a chain up and down."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.collectives.ring import check_ranks, ring_hops


def chain_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that a rank in the middle sends, and receives, in a broadcast or a reduce.

    Equation: S: it passes on all that it receives. The root sends (broadcast) or receives (reduce) S alone.

    Parameters: ``size_bytes`` S, the buffer [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte]; 0 for one rank.
    Raises: `InputError` if n < 1.
    Validity: one ring, cut at the root.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22); NCCL 2.30.7 src/device/broadcast.h, reduce.h.

    >>> chain_bytes(8.0, 4)
    8.0
    """
    check_ranks(ranks)
    return size_bytes if ranks > 1 else 0.0


def tree_all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that the busiest rank sends, and receives, in a tree all-reduce inside one node.

    Equation: 2 S in the middle of the chain (up, then down), S at its ends; two ranks have ends only.

    Parameters: ``size_bytes`` S, the buffer [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte]; 0 for one rank.
    Raises: `InputError` if n < 1.
    Validity: one node, where both trees of NCCL's double tree are the same chain.
    Source: NCCL 2.30.7 src/graph/connect.cc, src/device/all_reduce.h (runTreeUpDown).

    >>> tree_all_reduce_bytes(8.0, 4), tree_all_reduce_bytes(8.0, 2)
    (16.0, 8.0)
    """
    check_ranks(ranks)
    return size_bytes * min(ranks - 1, 2)


def chain_hops(gpus: Sequence[int], *, towards_first: bool = False) -> tuple[tuple[int, int], ...]:
    """Hops of a chain from the first GPU to the last, or back: (sender, receiver) of each.

    >>> chain_hops((0, 1, 2)), chain_hops((0, 1, 2), towards_first=True)
    (((0, 1), (1, 2)), ((1, 0), (2, 1)))
    """
    hops = ring_hops(gpus)[:-1]
    return tuple((target, source) for source, target in hops) if towards_first else hops


def tree_hops(gpus: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Hops of a chain in both directions.

    >>> tree_hops((0, 1))
    ((0, 1), (1, 0))
    """
    return (*chain_hops(gpus), *chain_hops(gpus, towards_first=True))
