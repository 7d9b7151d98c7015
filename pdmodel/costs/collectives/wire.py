"""Bytes that a collective puts on every port of a box, from the routes between its GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pdmodel.costs.collectives.all_to_all import all_to_all_bytes, pairs
from pdmodel.costs.collectives.chain import chain_bytes, chain_hops, tree_all_reduce_bytes, tree_hops
from pdmodel.costs.collectives.custom import one_shot_pair_bytes, two_shot_pair_bytes
from pdmodel.costs.collectives.nvls import nvls_all_reduce_bytes, nvls_half_bytes
from pdmodel.costs.collectives.ring import all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes, ring_hops
from pdmodel.costs.collectives.send_recv import send_recv_bytes
from pdmodel.errors import CoverageError
from pdmodel.hardware.constants import Algorithm, CollectiveOperation
from pdmodel.hardware.profile import HazardKind
from pdmodel.hardware.routes import Transport, gpu_to_gpu
from pdmodel.hardware.topology import Box

_AR, _AG, _RS = CollectiveOperation.ALL_REDUCE, CollectiveOperation.ALL_GATHER, CollectiveOperation.REDUCE_SCATTER
_CHAINS = {CollectiveOperation.BROADCAST, CollectiveOperation.REDUCE}
_EXCHANGES = {CollectiveOperation.ALL_TO_ALL, CollectiveOperation.DISPATCH, CollectiveOperation.COMBINE}


def _one_shot_bytes(size_bytes: float, ranks: int) -> float:
    return (ranks - 1) * one_shot_pair_bytes(size_bytes, ranks)


def _two_shot_bytes(size_bytes: float, ranks: int) -> float:
    return (ranks - 1) * two_shot_pair_bytes(size_bytes, ranks)


_PAYLOAD: dict[tuple[CollectiveOperation, Algorithm], Callable[[float, int], float]] = {
    (_AR, Algorithm.RING): all_reduce_bytes,
    (_AG, Algorithm.RING): all_gather_bytes,
    (_RS, Algorithm.RING): reduce_scatter_bytes,
    (CollectiveOperation.SEND_RECV, Algorithm.RING): send_recv_bytes,
    (CollectiveOperation.SEND_RECV, Algorithm.PAIRWISE): send_recv_bytes,
    **{(operation, Algorithm.RING): chain_bytes for operation in _CHAINS},
    (_AR, Algorithm.TREE): tree_all_reduce_bytes,
    **{(operation, Algorithm.PAIRWISE): all_to_all_bytes for operation in _EXCHANGES},
    (_AR, Algorithm.NVLS): nvls_all_reduce_bytes,
    (_AR, Algorithm.NVLS_TREE): nvls_all_reduce_bytes,
    (_AG, Algorithm.NVLS): nvls_half_bytes,
    (_RS, Algorithm.NVLS): nvls_half_bytes,
    (_AR, Algorithm.ONE_SHOT): _one_shot_bytes,
    (_AR, Algorithm.TWO_SHOT): _two_shot_bytes,
    (_AR, Algorithm.TWO_SHOT_PUSH): _two_shot_bytes,
}


@dataclass(frozen=True, slots=True)
class Wire:
    """What one byte of a collective's size puts on each port [byte], and by which links it comes there."""

    ports: Mapping[str, float]
    input_links: Mapping[str, tuple[str, ...]]
    hazards: tuple[str, ...]

    def slowest(self, box: Box) -> tuple[str, float]:
        """The port that needs longest for its share, and that time per byte of the collective's size [s/byte]."""
        times = {port: share / box.port_index[port].capacity_bytes_per_s for port, share in self.ports.items()}
        port = max(times, key=times.__getitem__)
        return port, times[port]


def payload_per_rank(operation: CollectiveOperation, algorithm: Algorithm, ranks: int) -> float:
    """Payload that each rank takes in per byte of S [-]: what the wire would carry with perfect lines.

    Raises: `CoverageError` for an algorithm that the operation does not have.
    """
    formula = _PAYLOAD.get((operation, algorithm))
    if formula is not None:
        return formula(1.0, ranks)
    raise CoverageError(f"no formula for {operation.value} by {algorithm.value}")


# Every GPU writes to one other at a time: the collapse of all-to-all writes does not meet these.
_IN_ORDER = {Algorithm.RING, Algorithm.TREE, Algorithm.NVLS, Algorithm.NVLS_TREE}

# Kernels that say themselves how bytes travel; the others take what the box has.
_TRANSPORT = {
    Algorithm.ONE_SHOT: Transport.PEER_READ,
    Algorithm.TWO_SHOT: Transport.PEER_READ,
    Algorithm.TWO_SHOT_PUSH: Transport.P2P_WRITE,
}


def transfers_of(
    operation: CollectiveOperation, algorithm: Algorithm, gpus: tuple[int, ...], load: float
) -> tuple[tuple[tuple[int, int], ...], float]:
    """Ordered pairs of GPUs that an algorithm moves bytes between, and the bytes on each per byte of S.

    Rings and NVLS: the hops of the ring, ``load`` each. Broadcast and reduce: the chain from, or to, the first GPU, S
    each. Tree on one node: the chain in both directions, S each. Else every pair, an equal share of ``load``.
    """
    if operation in _CHAINS:
        return chain_hops(gpus, towards_first=operation is CollectiveOperation.REDUCE), 1.0
    if algorithm is Algorithm.TREE:
        return tree_hops(gpus), 1.0
    if algorithm in _IN_ORDER or operation is CollectiveOperation.SEND_RECV:
        return ring_hops(gpus), load
    return pairs(gpus), load / max(len(gpus) - 1, 1)


@lru_cache(maxsize=1024)
def wire_per_byte(box: Box, gpus: tuple[int, ...], operation: CollectiveOperation, algorithm: Algorithm) -> Wire:
    """Bytes on every port per byte of S, payload and read requests, before the protocol's flags.

    Equation: W_e = sum over the transfers (i, j) of the algorithm of b_ij m_ij,e, with b_ij the payload from GPU i to
    GPU j per byte of S and m the multiplicities of the route from i to j. Rings: b is the payload per rank on each hop
    of the order given, one direction. Broadcast, reduce and tree: see `transfers_of`. Pairwise, one-shot and two-shot:
    an equal share on every ordered pair. NVLS: its payload on each GPU's NVLink, counted hop by hop (each hop is one
    GPU out, one GPU in).

    Parameters: ``gpus`` in ring order.
    Returns: `Wire`; empty for one GPU.
    Raises: `CoverageError` for an algorithm that the operation or the box does not have; `InputError` as the routes do.
    Validity: one box. Transport: NVLink, else posted writes, else through host memory; loads from peers, or writes to
    them over PCIe, where the algorithm says so.
    Source: the formulas of each algorithm (this package), routes of `pdmodel.hardware.routes`.
    """
    ranks = len(gpus)
    load = payload_per_rank(operation, algorithm, ranks)
    if algorithm in {Algorithm.NVLS, Algorithm.NVLS_TREE} and not box.has_nvlink:
        raise CoverageError(f"{box.profile.name} has no NVLink switch for NVLS")
    transport = _TRANSPORT.get(algorithm)
    ports: dict[str, float] = {}
    links: dict[str, tuple[str, ...]] = {}
    hazards: list[str] = []
    transfers, share = transfers_of(operation, algorithm, gpus, load)
    for source, target in transfers:
        route = gpu_to_gpu(box, source, target, transport)
        for port, multiplicity in route.ports.items():
            ports[port] = ports.get(port, 0.0) + share * multiplicity
        for port, found in route.input_links.items():
            links[port] = tuple(dict.fromkeys((*links.get(port, ()), *found)))
        hazards.extend(route.hazards)
    if algorithm in _IN_ORDER:
        hazards = [text for text in hazards if not text.startswith(HazardKind.P2P_ALL_TO_ALL_COLLAPSE.value)]
    return Wire(ports, links, tuple(dict.fromkeys(hazards)))
