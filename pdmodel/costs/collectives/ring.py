"""Ring collectives: every rank sends to its successor and receives from its predecessor, step after step."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.errors import InputError


def check_ranks(ranks: int) -> None:
    """Refuse fewer than one rank."""
    if ranks < 1:
        raise InputError(f"{ranks} ranks", expected="at least 1")


def ring_hops(gpus: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The hops of a ring, in the order given: (sender, receiver) of each; none for one GPU.

    One direction only: NCCL lays all channels of a PCIe ring in the same order (src/graph/connect.cc 2.30 doubles and
    copies the found ring), so each hop carries all of the bytes.

    >>> ring_hops((0, 2, 1))
    ((0, 2), (2, 1), (1, 0))
    """
    if len(set(gpus)) != len(gpus):
        raise InputError(f"GPUs {list(gpus)} hold a rank twice", expected="each GPU once in a ring")
    if len(gpus) < 2:
        return ()
    return tuple((gpus[k], gpus[(k + 1) % len(gpus)]) for k in range(len(gpus)))


def all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that each rank sends, and receives, in a ring all-reduce.

    Equation: 2 (n-1)/n S: a reduce-scatter, then an all-gather, of S/n a step.

    Parameters: ``size_bytes`` S, the buffer [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte]; 0 for one rank.
    Raises: `InputError` if n < 1.
    Validity: S >= n elements; NCCL rounds up to whole chunks below that.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22); Patarasuk and Yuan 2009, section 3.

    >>> all_reduce_bytes(8.0, 4)
    12.0
    """
    check_ranks(ranks)
    return 2 * (ranks - 1) / ranks * size_bytes


def all_reduce_steps(ranks: int) -> int:
    """Steps of a ring all-reduce, 2 (n-1); source: NCCL 2.30.7 src/graph/tuning.cc (nsteps).

    >>> all_reduce_steps(8)
    14
    """
    check_ranks(ranks)
    return 2 * (ranks - 1)


def all_gather_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that each rank sends, and receives, in a ring all-gather.

    Equation: (n-1)/n S with S what every rank holds in the end (n shards): each shard travels n-1 hops.

    Parameters: ``size_bytes`` S, the gathered buffer [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte].
    Raises: `InputError` if n < 1.
    Validity: as `all_reduce_bytes`.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22).

    >>> all_gather_bytes(8.0, 4)
    6.0
    """
    check_ranks(ranks)
    return (ranks - 1) / ranks * size_bytes


def all_gather_steps(ranks: int) -> int:
    """Steps of a ring all-gather (and reduce-scatter), n-1; source: NCCL 2.30.7 src/graph/tuning.cc (nsteps)."""
    check_ranks(ranks)
    return ranks - 1


def reduce_scatter_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that each rank sends, and receives, in a ring reduce-scatter.

    Equation: (n-1)/n S with S the whole input of one rank: the all-gather run backwards.

    Parameters: ``size_bytes`` S, one rank's input [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte].
    Raises: `InputError` if n < 1.
    Validity: as `all_reduce_bytes`.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22).

    >>> reduce_scatter_bytes(8.0, 4)
    6.0
    """
    check_ranks(ranks)
    return (ranks - 1) / ranks * size_bytes
