"""Collectives over several nodes: what each NIC carries, and the time where the NICs are the limit."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.costs.collectives.wire import payload_per_rank
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.constants import Algorithm, CollectiveOperation

_O, _A = CollectiveOperation, Algorithm


@dataclass(frozen=True, slots=True)
class Spread:
    """``ranks`` n over ``nodes`` N, each with ``nics`` R that share its traffic evenly."""

    ranks: int
    nodes: int
    nics: int

    def __post_init__(self) -> None:
        if self.nodes < 2 or self.nics < 1 or self.ranks < self.nodes or self.ranks % self.nodes:
            found = f"{self.ranks} ranks on {self.nodes} nodes with {self.nics} NICs each"
            raise InputError(found, expected="two or more full nodes")


def nic_bytes(operation: CollectiveOperation, algorithm: Algorithm, size_bytes: float, spread: Spread) -> float:
    """Payload that each NIC of a node sends, and receives.

    Equation, over all NICs of a node, to be divided by their number R. Ring: every channel's ring leaves a node once,
    so the payload of one rank, p S. Tree, NVLSTree: up and down once: 2 S (N > 2, a node in the middle; two nodes: S).
    PAT: (n-1)/n S. All-to-all: (n/N) ranks send the part for other nodes, S (N-1)/N each. Send/recv ring: S leaves
    once.

    Parameters: ``size_bytes`` S as nccl-tests prints it [byte]; ``spread`` n, N >= 2, R.
    Returns: bytes per NIC and direction [byte].
    Raises: `CoverageError` for an algorithm that the operation or the spread does not have.
    Validity: bytes spread evenly over the NICs (a rail for each channel).
    Source: NCCL 2.30.7 src/graph/connect.cc (rings and trees between nodes); counting.

    >>> nic_bytes(CollectiveOperation.ALL_REDUCE, Algorithm.RING, 16.0, Spread(16, 2, 1))
    30.0
    >>> nic_bytes(CollectiveOperation.ALL_TO_ALL, Algorithm.PAIRWISE, 16.0, Spread(16, 2, 8))
    8.0
    """
    ranks, nodes = spread.ranks, spread.nodes
    if algorithm is _A.PAIRWISE and operation in {_O.ALL_TO_ALL, _O.DISPATCH, _O.COMBINE}:
        total = ranks / nodes * size_bytes * (nodes - 1) / nodes
    elif algorithm in {_A.TREE, _A.NVLS_TREE} and operation is _O.ALL_REDUCE:
        total = size_bytes * (2 if nodes > 2 else 1)
    elif algorithm is _A.PAT and operation in {_O.ALL_GATHER, _O.REDUCE_SCATTER}:
        if ranks != nodes:
            raise CoverageError(f"PAT needs one rank a node, not {ranks} on {nodes}")
        total = (ranks - 1) / ranks * size_bytes
    elif algorithm is _A.RING:
        total = payload_per_rank(operation, _A.RING, ranks) * size_bytes
    else:
        raise CoverageError(f"no formula for {operation.value} by {algorithm.value} over nodes")
    return total / spread.nics


def nic_bound_s(
    operation: CollectiveOperation,
    algorithm: Algorithm,
    size_bytes: float,
    spread: Spread,
    nic_bytes_per_s: float,
    *,
    alpha_s: float = 0.0,
    inside_s: float = 0.0,
) -> float:
    """Time of a collective over nodes whose NICs carry ``nic_bytes_per_s`` each.

    Equation: t = alpha + max(V_nic / B_nic, t_inside): the part inside the nodes runs beside the wire.

    Parameters: ``nic_bytes_per_s`` what a NIC reaches per direction [byte/s]; ``alpha_s`` latency, for instance
    `pdmodel.costs.collectives.selector.latency_us`; ``inside_s`` what the slowest link inside a node needs [s].
    Returns: [s].
    Raises: as `nic_bytes`; `InputError` for a rate that is not positive.
    Validity: large messages; a fabric that does not block.
    Source: own form.
    """
    if nic_bytes_per_s <= 0:
        raise InputError(f"a NIC of {nic_bytes_per_s:g} byte/s", expected="a positive rate")
    carried = nic_bytes(operation, algorithm, size_bytes, spread)
    return alpha_s + max(carried / nic_bytes_per_s, inside_s)
