"""NCCL's tuning constants as a table. Latencies in us, bandwidths in GB/s (1e9 byte/s), as NCCL states them.

Version 2.30.7; source: github.com/NVIDIA/nccl, tag v2.30.7-1, src/graph/tuning.cc, topo.h, search.cc.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdmodel.hardware.constants import Algorithm, Protocol

_LL, _LL128, _SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE
Row = Mapping[Protocol, float]


class Generation(StrEnum):
    """GPU generations that NCCL's limits tell apart."""

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class Hop(StrEnum):
    """Kinds of link with a latency of their own."""

    NVLINK = "nvlink"
    PCI = "pci"
    NET = "net"


def _row(ll: float, ll128: float, simple: float) -> dict[Protocol, float]:
    return {_LL: ll, _LL128: ll128, _SIMPLE: simple}


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of one generation [GB/s]; triples are for 1, 2 and more nodes, per channel where the name says so."""

    ll_one_node: float
    ring_ll128_per_channel: float
    tree_ll128_per_channel: tuple[float, float, float]
    tree_per_channel: tuple[float, float, float]
    nvls_tree_per_channel: tuple[float, float]
    nvls_efficiency: float


@dataclass(frozen=True, slots=True)
class TuningConstants:
    """Everything that the cost form reads; ``version`` says of which NCCL."""

    version: str
    source: str
    base_us: Mapping[Algorithm, Row]
    hop_us: Mapping[tuple[Hop, Algorithm], Row]
    nvls_us: float
    nvls_tree_net_us: float
    limits: Mapping[Generation, Limits]
    ll_more_nodes: Mapping[str, tuple[float, float]]
    tree_sizes: Mapping[Protocol, tuple[float, ...]]
    speeds: Mapping[Generation, tuple[float, ...]]
    ring_ll128_share: float = 0.92
    tree_share: float = 0.92
    tree_ll_divisor: float = 3.8
    tree_ll128_share: tuple[float, float] = (7 / 9, 0.9375)
    plateau: Mapping[Generation, float] | None = None


_TREE_SIZES = {
    _LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    _LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    _SIMPLE: (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}

NCCL = TuningConstants(
    version="2.30.7",
    source="github.com/NVIDIA/nccl v2.30.7-1, src/graph/tuning.cc, topo.h, search.cc, src/enqueue.cc",
    base_us={
        Algorithm.TREE: _row(6.8, 14.0, 8.4),
        Algorithm.RING: _row(6.6, 14.0, 8.4),
        Algorithm.PAT: _row(8.0, 8.0, 8.0),
    },
    hop_us={
        (Hop.NVLINK, Algorithm.TREE): _row(0.6, 1.25, 4.0),
        (Hop.NVLINK, Algorithm.RING): _row(0.6, 1.9, 3.4),
        (Hop.PCI, Algorithm.TREE): _row(1.0, 1.9, 4.0),
        (Hop.PCI, Algorithm.RING): _row(1.0, 2.5, 5.7),
        (Hop.NET, Algorithm.TREE): _row(5.0, 8.5, 14.0),
        (Hop.NET, Algorithm.RING): _row(2.7, 4.0, 14.0),
    },
    nvls_us=25.0,
    nvls_tree_net_us=20.9,
    limits={
        Generation.VOLTA: Limits(39.0, 20.0, (20.0, 20.0, 20.0), (26.5, 18.5, 10.0), (0.0, 0.0), 0.0),
        Generation.AMPERE: Limits(87.7, 20.0, (20.0, 20.0, 20.0), (24.0, 23.6, 17.8), (0.0, 0.0), 0.0),
        Generation.HOPPER: Limits(141.0, 36.7, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0), (57.7, 45.5), 0.85),
        Generation.BLACKWELL: Limits(282.0, 40.0, (55.6, 31.7, 20.0), (70.0, 42.8, 24.0), (96.0, 80.0), 0.74),
    },
    ll_more_nodes={"intel": (39.0, 20.4), "amd": (22.5, 19.0)},
    tree_sizes=_TREE_SIZES,
    speeds={
        Generation.VOLTA: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
        Generation.AMPERE: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
        Generation.HOPPER: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
        Generation.BLACKWELL: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
    },
    plateau={
        Generation.VOLTA: 1.9,
        Generation.AMPERE: 1.4,
        Generation.HOPPER: 1.4,
        Generation.BLACKWELL: 1.4,
    },
)

# Rating of one NVLink [GB/s] by compute capability, src/graph/topo.h.
NVLINK_GB_PER_S = {70: 20.0, 75: 20.0, 80: 20.0, 86: 12.0, 89: 20.0, 90: 20.6, 100: 40.1, 103: 40.1, 120: 40.1}
# Rating of an x16 PCIe link [GB/s]: width * generation / 80 per lane and step, src/graph/topo.h.
PCIE_GB_PER_S = {3: 12.0, 4: 24.0, 5: 48.0}
# Rating between CPUs [GB/s], src/graph/topo.h: AMD; Intel by generation.
CPU_GB_PER_S = {
    "amd": 16.0,
    "intel_broadwell": 6.0,
    "intel_skylake": 10.0,
    "intel_sapphire_rapids": 22.0,
    "intel_emerald_rapids": 40.0,
}
# A send of one pair goes by LL up to this many bytes a channel (NCCL_P2P_LL_THRESHOLD, src/enqueue.cc).
P2P_LL_BYTES_PER_CHANNEL = 16 * 1024


def generation(compute_capability: float) -> Generation:
    """The generation of a compute capability such as 8.9 or 12.0.

    >>> generation(8.9), generation(12.0)
    (<Generation.AMPERE: 'ampere'>, <Generation.BLACKWELL: 'blackwell'>)
    """
    for least, found in ((10, Generation.BLACKWELL), (9, Generation.HOPPER), (8, Generation.AMPERE)):
        if compute_capability >= least:
            return found
    return Generation.VOLTA
