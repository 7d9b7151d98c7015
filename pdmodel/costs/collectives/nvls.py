"""All-reduce by the NVLink switch (NVLS): the switch adds and multicasts."""

from __future__ import annotations

from pdmodel.costs.collectives.ring import check_ranks


def nvls_all_reduce_bytes(size_bytes: float, ranks: int) -> float:
    """Payload on each GPU's NVLink, per direction, in an all-reduce that the switch performs.

    Equation: S (1 + 1/n). Out: the whole buffer once, for the switch to add, and the own slice of the sum, to be
    multicast. In: the reduced own slice, and the multicast sum.

    Parameters: ``size_bytes`` S [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per GPU and direction [byte]; 0 for one rank.
    Raises: `InputError` if n < 1.
    Validity: one node, third-generation NVSwitch or newer. busbw as nccl-tests prints it can exceed the link, as it
    assumes 2(n-1)/n S.
    Source: derived from multimem.ld_reduce and multimem.st (PTX ISA 8.1) as NCCL's NVLS all-reduce uses them.

    >>> nvls_all_reduce_bytes(8.0, 8)
    9.0
    """
    check_ranks(ranks)
    return size_bytes * (1 + 1 / ranks) if ranks > 1 else 0.0


def nvls_half_bytes(size_bytes: float, ranks: int) -> float:
    """Payload on each GPU's NVLink, in the fuller direction, of an all-gather or reduce-scatter by the switch.

    Equation: S. All-gather: the own slice S/n out, all slices in (the multicast returns the own one as well).
    Reduce-scatter: the whole input out to be added, S/n in.

    Parameters: ``size_bytes`` S, what a rank holds of all ranks [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per GPU in the fuller direction [byte]; 0 for one rank. The other direction carries S/n and is
    counted as full: an upper bound.
    Raises: `InputError` if n < 1.
    Validity: one node, third-generation NVSwitch or newer.
    Source: derived from multimem.ld_reduce and multimem.st (PTX ISA 8.1).

    >>> nvls_half_bytes(8.0, 8)
    8.0
    """
    check_ranks(ranks)
    return size_bytes if ranks > 1 else 0.0
