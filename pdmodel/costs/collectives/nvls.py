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
