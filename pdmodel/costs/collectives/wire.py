"""Bytes that a collective puts on every port of a box, from the routes between its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pdmodel.costs.collectives.all_to_all import all_to_all_bytes, pairs
from pdmodel.costs.collectives.custom import one_shot_pair_bytes, two_shot_pair_bytes
from pdmodel.costs.collectives.nvls import nvls_all_reduce_bytes
from pdmodel.costs.collectives.ring import all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes, ring_hops
from pdmodel.costs.collectives.send_recv import send_recv_bytes
from pdmodel.errors import CoverageError
from pdmodel.hardware.constants import Algorithm, CollectiveOperation
from pdmodel.hardware.routes import Transport, gpu_to_gpu
from pdmodel.hardware.topology import Box

_AR, _AG, _RS = CollectiveOperation.ALL_REDUCE, CollectiveOperation.ALL_GATHER, CollectiveOperation.REDUCE_SCATTER
_EXCHANGES = {CollectiveOperation.ALL_TO_ALL, CollectiveOperation.DISPATCH, CollectiveOperation.COMBINE}


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
    ring = {
        _AR: all_reduce_bytes,
        _AG: all_gather_bytes,
        _RS: reduce_scatter_bytes,
        CollectiveOperation.SEND_RECV: send_recv_bytes,
    }
    if algorithm is Algorithm.RING and operation in ring:
        return ring[operation](1.0, ranks)
    if algorithm is Algorithm.PAIRWISE and operation in _EXCHANGES:
        return all_to_all_bytes(1.0, ranks)
    if operation is _AR and algorithm is Algorithm.NVLS:
        return nvls_all_reduce_bytes(1.0, ranks)
    if operation is _AR and algorithm is Algorithm.ONE_SHOT:
        return (ranks - 1) * one_shot_pair_bytes(1.0, ranks)
    if operation is _AR and algorithm is Algorithm.TWO_SHOT:
        return (ranks - 1) * two_shot_pair_bytes(1.0, ranks)
    raise CoverageError(f"no formula for {operation.value} by {algorithm.value}")


@lru_cache(maxsize=1024)
def wire_per_byte(box: Box, gpus: tuple[int, ...], operation: CollectiveOperation, algorithm: Algorithm) -> Wire:
    """Bytes on every port per byte of S, payload and read requests, before the protocol's flags.

    Equation: W_e = sum over the transfers (i, j) of the algorithm of b_ij m_ij,e, with b_ij the payload from GPU i to
    GPU j per byte of S and m the multiplicities of the route from i to j. Rings: b is the payload per rank on each hop
    of the order given, one direction. Pairwise, one-shot and two-shot: an equal share on every ordered pair. NVLS: S
    (1+1/n) on each GPU's NVLink, counted hop by hop (each hop is one GPU out, one GPU in).

    Parameters: ``gpus`` in ring order.
    Returns: `Wire`; empty for one GPU.
    Raises: `CoverageError` for an algorithm that the operation or the box does not have; `InputError` as the routes do.
    Validity: one box. Transport: NVLink, else posted writes, else through host memory; loads from peers where the
    algorithm loads.
    Source: the formulas of each algorithm (this package), routes of `pdmodel.hardware.routes`.
    """
    ranks = len(gpus)
    load = payload_per_rank(operation, algorithm, ranks)
    if algorithm is Algorithm.NVLS and not box.has_nvlink:
        raise CoverageError(f"{box.profile.name} has no NVLink switch for NVLS")
    by_hop = algorithm in {Algorithm.RING, Algorithm.NVLS}
    transport = Transport.PEER_READ if algorithm in {Algorithm.ONE_SHOT, Algorithm.TWO_SHOT} else None
    ports: dict[str, float] = {}
    links: dict[str, tuple[str, ...]] = {}
    hazards: list[str] = []
    transfers = ring_hops(gpus) if by_hop else pairs(gpus)
    share = load if by_hop else load / max(ranks - 1, 1)
    for source, target in transfers:
        route = gpu_to_gpu(box, source, target, transport)
        for port, multiplicity in route.ports.items():
            ports[port] = ports.get(port, 0.0) + share * multiplicity
        for port, found in route.input_links.items():
            links[port] = tuple(dict.fromkeys((*links.get(port, ()), *found)))
        hazards.extend(route.hazards)
    return Wire(ports, links, tuple(dict.fromkeys(hazards)))
