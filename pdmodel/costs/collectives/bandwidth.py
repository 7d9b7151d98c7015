"""algbw and busbw: what nccl-tests prints."""

from __future__ import annotations

from pdmodel.errors import InputError
from pdmodel.hardware.constants import CollectiveOperation

_WHOLE = {CollectiveOperation.SEND_RECV, CollectiveOperation.BROADCAST, CollectiveOperation.REDUCE}


def busbw_factor(operation: CollectiveOperation, ranks: int) -> float:
    """The ratio busbw / algbw: busbw can be held against a link.

    Equation: 2(n-1)/n for an all-reduce; (n-1)/n for all-gather, reduce-scatter and all-to-all; 1 for send/recv,
    broadcast and reduce.
    For dispatch and combine, whose S already holds the bytes of the local rank, (n-1)/n as well.

    Parameters: ``ranks`` n >= 1 [-].
    Returns: the factor [-]; 0 for one rank where nothing travels.
    Raises: `InputError` if n < 1.
    Source: nccl-tests doc/PERFORMANCE.md (a0b82b22).

    >>> busbw_factor(CollectiveOperation.ALL_REDUCE, 4), busbw_factor(CollectiveOperation.ALL_TO_ALL, 4)
    (1.5, 0.75)
    """
    if ranks < 1:
        raise InputError(f"{ranks} ranks", expected="at least 1")
    if operation in _WHOLE:
        return 1.0 if ranks > 1 else 0.0
    share = (ranks - 1) / ranks
    return 2 * share if operation is CollectiveOperation.ALL_REDUCE else share
