"""NCCL's own estimate of every algorithm and protocol, vectorised over sizes, and the choice it makes."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

import numpy as np
import numpy.typing as npt

from pdmodel.costs.collectives.selector.availability import PEER_OPERATIONS, Situation, enabled
from pdmodel.costs.collectives.selector.constants import (
    NCCL,
    P2P_LL_BYTES_PER_CHANNEL,
    Hop,
    TuningConstants,
)
from pdmodel.errors import InputError
from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Protocol

FloatArray = npt.NDArray[np.float64]
_O, _A, _P = CollectiveOperation, Algorithm, Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm and protocol: latency [us] and algorithm bandwidth [GB/s] in NCCL's own units."""

    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    bandwidth_gb_per_s: float


@dataclass(frozen=True, slots=True)
class Choice:
    """What NCCL takes for each size, and what it believes that takes.

    ``index`` (m,) points into ``candidates``; ``estimate_s`` (m,) [s] is NCCL's estimate, a selector's figure and no
    prediction. ``notes`` say what is not available and why.
    """

    candidates: tuple[Candidate, ...]
    index: npt.NDArray[np.intp]
    estimate_s: FloatArray
    notes: tuple[str, ...]

    def at(self, k: int) -> Candidate:
        """The candidate taken for the k-th size."""
        return self.candidates[int(self.index[k])]


def steps(operation: CollectiveOperation, ranks: int) -> int:
    """Steps of a ring: 2(n-1) for an all-reduce, n-1 for all-gather and reduce-scatter, n for broadcast and reduce.

    Source: NCCL 2.30.7 src/graph/tuning.cc (nsteps).

    >>> steps(CollectiveOperation.ALL_REDUCE, 8), steps(CollectiveOperation.BROADCAST, 8)
    (14, 8)
    """
    if operation is _O.ALL_REDUCE:
        return 2 * (ranks - 1)
    return ranks if operation in {_O.BROADCAST, _O.REDUCE} else ranks - 1


def _by_nodes(values: tuple[float, float, float], nodes: int) -> float:
    return values[min(nodes, 3) - 1]


def _ll_limit(situation: Situation, constants: TuningConstants) -> float:
    if situation.nodes == 1:
        return constants.limits[situation.generation].ll_one_node
    known = constants.ll_more_nodes.get(situation.cpu, constants.ll_more_nodes["amd"])
    return known[min(situation.nodes, 3) - 2]


def ring_gb_per_s(
    operation: CollectiveOperation, protocol: Protocol, situation: Situation, constants: TuningConstants
) -> float:
    """Algorithm bandwidth of a ring.

    Equation: (x, min(llMax, x/2), min(0.92 x, K r)) * n / steps for Simple, LL, LL128.

    Returns: [GB/s].
    Source: NCCL 2.30.7 src/graph/tuning.cc.
    """
    bus = situation.bus_gb_per_s
    if protocol is _P.LL:
        bus = min(_ll_limit(situation, constants), bus / 2)
    elif protocol is _P.LL128:
        per_channel = constants.limits[situation.generation].ring_ll128_per_channel
        bus = min(constants.ring_ll128_share * bus, situation.channels * per_channel)
    return bus * situation.ranks / steps(operation, situation.ranks)


def tree_gb_per_s(protocol: Protocol, situation: Situation, constants: TuningConstants) -> float:
    """Algorithm bandwidth of a tree all-reduce before the correction by size.

    Equation: half of min(0.92 x, K t); LL: min(that/3.8, llMax); LL128: min(that * 7/9 or 0.9375, K l).

    Returns: [GB/s].
    Source: NCCL 2.30.7 src/graph/tuning.cc.
    """
    limits, nodes = constants.limits[situation.generation], situation.nodes
    bus = constants.tree_share * situation.bus_gb_per_s
    bus = min(bus, situation.channels * _by_nodes(limits.tree_per_channel, nodes))
    if protocol is _P.LL:
        bus = min(bus / constants.tree_ll_divisor, _ll_limit(situation, constants))
    elif protocol is _P.LL128:
        share = constants.tree_ll128_share[0 if nodes == 1 else 1]
        bus = min(bus * share, situation.channels * _by_nodes(limits.tree_ll128_per_channel, nodes))
    return bus / 2


def nvls_gb_per_s(operation: CollectiveOperation, situation: Situation, constants: TuningConstants) -> float:
    """Algorithm bandwidth of NVLS (one node) and NVLSTree (more).

    Equation, with K and b of the NVLS graph: bus = K b eff (K-1)/K; all-reduce: 2 bus n / steps; all-gather and
    reduce-scatter: bus (n-1)/n, not converted. NVLSTree: K min(intra, inter (x2 on two nodes), cap) n / steps.

    Returns: [GB/s].
    Validity: K >= 2.
    Source: NCCL 2.30.7 src/graph/tuning.cc.
    """
    limits, count = constants.limits[situation.generation], situation.nvls_channels
    speed = situation.nvls_channel_gb_per_s or situation.channel_gb_per_s
    bus = count * speed * limits.nvls_efficiency * (count - 1) / count
    ratio = situation.ranks / steps(_O.ALL_REDUCE, situation.ranks)
    if operation is not _O.ALL_REDUCE:
        return bus * (situation.ranks_per_node - 1) / situation.ranks_per_node
    bus *= 2
    if situation.nodes == 1:
        return bus * ratio
    inter = (situation.inter_gb_per_s or speed) * (2 if situation.nodes == 2 else 1)
    cap = limits.nvls_tree_per_channel[0 if situation.nodes == 2 else 1]
    return min(bus / count, inter, cap) * count * ratio


def _net_hop(algorithm: Algorithm, protocol: Protocol, situation: Situation, constants: TuningConstants) -> float:
    row = Algorithm.TREE if situation.ranks_per_node == 1 else algorithm
    extra = situation.net_latency_us * (2 if protocol is _P.SIMPLE else 1)
    return constants.hop_us[Hop.NET, row][protocol] + extra


def latency_us(
    operation: CollectiveOperation,
    algorithm: Algorithm,
    protocol: Protocol,
    situation: Situation,
    constants: TuningConstants = NCCL,
) -> float:
    """NCCL's latency of one algorithm and protocol.

    Equation. Ring: base + (steps - si) max(intra, o) + si inter, si = 2(N-1) for an all-reduce, N-1 for all-gather and
    reduce-scatter, 0 on one node, o = 1 us (Intel) or 2 us (AMD; x3 for Simple) with more nodes. Tree:
    base + 2 ((ppn-1) intra + floor(log2 N) inter). NVLS: 25. NVLSTree: intra + 2 floor(log2 N) inter. PAT:
    base + log2(N) inter / 3.5 + 2.8 n. Broadcast and reduce: base + one hop (their chunks follow each other).

    Returns: [us].
    Validity: estimates for choosing; measured latencies are 0.9 to 2 times these.
    Source: NCCL 2.30.7 src/graph/tuning.cc.

    >>> one = Situation(ranks=4, channels=1, channel_gb_per_s=15, compute_capability=8.9, nvlink=False)
    >>> latency_us(CollectiveOperation.ALL_REDUCE, Algorithm.RING, Protocol.LL, one)
    12.6
    """
    rounds = floor(log2(situation.nodes))
    if algorithm in {_A.NVLS, _A.NVLS_TREE}:
        # On one node there are no rounds.
        return constants.nvls_us + 2 * rounds * (constants.nvls_tree_net_us + 2 * situation.net_latency_us)
    if algorithm is _A.PAT:
        inter = _net_hop(_A.RING, protocol, situation, constants)
        return constants.base_us[_A.PAT][protocol] + log2(situation.nodes) * inter / 3.5 + 2.8 * situation.ranks
    base = constants.base_us[algorithm][protocol]
    if algorithm is _A.TREE:
        intra = constants.hop_us[_hop(situation), _A.TREE][protocol]
        inter = _net_hop(_A.TREE, protocol, situation, constants)
        return base + 2 * ((situation.ranks_per_node - 1) * intra + rounds * inter)
    return base + _ring_hops_us(operation, protocol, situation, constants)


def _hop(situation: Situation) -> Hop:
    return Hop.NVLINK if situation.nvlink else Hop.PCI


def _ring_hops_us(
    operation: CollectiveOperation, protocol: Protocol, situation: Situation, constants: TuningConstants
) -> float:
    """What the steps of a ring add to its base [us]; see `latency_us`."""
    intra, nodes = constants.hop_us[_hop(situation), _A.RING][protocol], situation.nodes
    inter = _net_hop(_A.RING, protocol, situation, constants)
    if operation in {_O.BROADCAST, _O.REDUCE}:
        return intra if nodes == 1 else inter
    count = steps(operation, situation.ranks)
    if nodes == 1:
        return count * intra
    overhead = (1.0 if situation.cpu == "intel" else 2.0) * (3 if protocol is _P.SIMPLE else 1)
    between = (2 if operation is _O.ALL_REDUCE else 1) * (nodes - 1)
    return (count - between) * max(intra, overhead) + between * inter


def candidates(
    operation: CollectiveOperation, situation: Situation, constants: TuningConstants = NCCL
) -> tuple[Candidate, ...]:
    """Every algorithm and protocol that NCCL compares for a collective with a cost table.

    Raises: `InputError` for fewer than two ranks, or an operation without a cost table (send/recv, all-to-all).
    """
    if operation in PEER_OPERATIONS:
        raise InputError(f"NCCL has no cost table for {operation.value}", expected="a ring collective")
    if situation.ranks < 2:
        raise InputError(f"{situation.ranks} ranks", expected="at least 2")
    found = []
    for algorithm, protocol in enabled(operation, situation)[0]:
        if algorithm is _A.TREE:
            bandwidth = tree_gb_per_s(protocol, situation, constants)
        elif algorithm in {_A.NVLS, _A.NVLS_TREE}:
            bandwidth = nvls_gb_per_s(operation, situation, constants)
        elif algorithm is _A.PAT:
            bandwidth = 0.75 * situation.bus_gb_per_s
        else:
            bandwidth = ring_gb_per_s(operation, protocol, situation, constants)
        found.append(
            Candidate(algorithm, protocol, latency_us(operation, algorithm, protocol, situation, constants), bandwidth)
        )
    return tuple(found)


def evaluate(
    operation: CollectiveOperation,
    sizes_bytes: FloatArray,
    situation: Situation,
    found: tuple[Candidate, ...] | None = None,
    constants: TuningConstants = NCCL,
) -> FloatArray:
    """NCCL's estimate of every candidate at every size.

    Equation: t = latency + S / (1000 bw) [us, bytes, GB/s]; a tree's bw is multiplied by its factor at
    floor(log2(S / 64)); the ring all-reduce by Simple on more nodes has its latency raised from 64 B a channel and
    rank on.

    Parameters: ``sizes_bytes`` (m,) [byte]; ``found`` from `candidates`.
    Returns: (len(found), m) [s].
    Validity: estimates for choosing, not times (see the package's docstring).
    Source: NCCL 2.30.7 src/graph/tuning.cc (ncclTopoGetAlgoTime).
    """
    found = candidates(operation, situation, constants) if found is None else found
    latency = np.array([one.latency_us for one in found])[:, None]
    slope = np.array([1e-3 / one.bandwidth_gb_per_s for one in found])[:, None]
    times = latency + slope * sizes_bytes[None, :]
    for k, one in enumerate(found):
        if one.algorithm is _A.TREE:
            table = np.array((*constants.tree_sizes[one.protocol], 1.0))
            step = np.floor(np.log2(np.maximum(sizes_bytes, 64.0) / 64)).astype(np.intp)
            times[k] = one.latency_us + slope[k] * sizes_bytes / table[np.minimum(step, table.size - 1)]
        plateau = one.algorithm is _A.RING and one.protocol is _P.SIMPLE and situation.nodes > 1
        if plateau and operation is _O.ALL_REDUCE and constants.plateau is not None:
            raised = sizes_bytes / (situation.channels * situation.ranks) >= 64
            times[k] += np.where(raised, (constants.plateau[situation.generation] - 1) * one.latency_us, 0.0)
    return times * 1e-6


def _select_peers(
    operation: CollectiveOperation, sizes_bytes: FloatArray, situation: Situation, constants: TuningConstants
) -> Choice:
    pairs, notes = enabled(operation, situation)
    found = tuple(
        Candidate(
            algorithm,
            protocol,
            constants.base_us[_A.RING][protocol] + 2 * constants.hop_us[_hop(situation), _A.RING][protocol],
            situation.bus_gb_per_s * (0.5 if protocol is _P.LL else 1.0),
        )
        for algorithm, protocol in pairs
    )
    peers = situation.ranks if operation is _O.ALL_TO_ALL else 1
    small = sizes_bytes / peers <= P2P_LL_BYTES_PER_CHANNEL * situation.peer_channels
    first = [one.protocol for one in found]
    ll, simple = (first.index(p) if p in first else 0 for p in (_P.LL, _P.SIMPLE))
    index = np.where(small, ll, simple).astype(np.intp)
    latency = np.array([one.latency_us for one in found])[index]
    slope = np.array([1e-3 / one.bandwidth_gb_per_s for one in found])[index]
    return Choice(found, index, (latency + slope * sizes_bytes) * 1e-6, notes)


def select(
    operation: CollectiveOperation,
    sizes_bytes: FloatArray,
    situation: Situation,
    constants: TuningConstants = NCCL,
) -> Choice:
    """What NCCL takes for each size.

    Equation: the least of `evaluate`. Send/recv and all-to-all have no cost table: LL up to 16 KiB a peer and channel
    of its own, else Simple.

    Parameters: ``sizes_bytes`` (m,) [byte], as nccl-tests prints them.
    Returns: `Choice`.
    Raises: `InputError` for fewer than two ranks.
    Source: NCCL 2.30.7 src/graph/tuning.cc, src/enqueue.cc.
    """
    if operation in PEER_OPERATIONS:
        return _select_peers(operation, sizes_bytes, situation, constants)
    found = candidates(operation, situation, constants)
    times = evaluate(operation, sizes_bytes, situation, found, constants)
    index = times.argmin(axis=0)
    return Choice(found, index, times[index, np.arange(sizes_bytes.size)], enabled(operation, situation)[1])


def switches(
    operation: CollectiveOperation,
    situation: Situation,
    constants: TuningConstants = NCCL,
    largest_bytes: float = 2**35,
) -> tuple[tuple[float, Algorithm, Protocol], ...]:
    """Where the choice changes: (from this size on [byte], algorithm, protocol), the first from 0; within 0.1 %."""
    sizes = np.exp2(np.arange(3, log2(largest_bytes), 0.001))
    choice = select(operation, sizes, situation, constants)
    marks = np.flatnonzero(np.diff(choice.index)) + 1
    first = choice.at(0)
    found = [(0.0, first.algorithm, first.protocol)]
    for mark in marks:
        one = choice.at(int(mark))
        found.append((float(sizes[mark]), one.algorithm, one.protocol))
    return tuple(found)
