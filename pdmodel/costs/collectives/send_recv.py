"""Send and receive around a ring: every rank sends S to its successor while it receives from its predecessor."""

from __future__ import annotations

from pdmodel.costs.collectives.ring import check_ranks


def send_recv_bytes(size_bytes: float, ranks: int) -> float:
    """Payload that each rank sends, and receives, in one exchange.

    Equation: S; 0 for one rank.

    Parameters: ``size_bytes`` S, the message [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per rank and direction [byte].
    Raises: `InputError` if n < 1.
    Validity: all ranks at once, as sendrecv_perf runs it and as ring attention needs it.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22).

    >>> send_recv_bytes(8.0, 2)
    8.0
    """
    check_ranks(ranks)
    return size_bytes if ranks > 1 else 0.0
