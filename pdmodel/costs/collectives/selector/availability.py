"""What NCCL may take: transport between two GPUs, protocols and algorithms by link, GPU and the user's variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdmodel.costs.collectives.selector.constants import Generation, generation
from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Protocol
from pdmodel.hardware.profile import Distance

_O = CollectiveOperation
RING_OPERATIONS = (_O.ALL_REDUCE, _O.ALL_GATHER, _O.REDUCE_SCATTER, _O.BROADCAST, _O.REDUCE)
PEER_OPERATIONS = (_O.SEND_RECV, _O.ALL_TO_ALL)


class Transport(StrEnum):
    """How NCCL connects two ranks."""

    P2P = "p2p"
    SHM = "shm"
    NET = "net"


@dataclass(frozen=True, slots=True)
class Connection:
    """A transport and why NCCL takes it."""

    transport: Transport
    reason: str


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the choice of algorithm and protocol depends on.

    ``channels`` K and ``channel_gb_per_s`` b are those of the *graph* that NCCL's search finds (x = K b), not of wires.
    ``nvlink``: all hops inside a node are NVLink. ``nvls_channels``: 0 where the node has no NVLink switch for NVLS.
    ``peer_channels``: channels that send/recv and all-to-all give to each peer. ``near_nic``: NIC and GPU hang on one
    switch (typeInter <= PXB). ``protocols``, ``algorithms``: NCCL_PROTO and NCCL_ALGO; None where they are not set.
    ``cpu``: amd or intel.
    """

    ranks: int
    channels: int
    channel_gb_per_s: float
    compute_capability: float
    nvlink: bool
    nodes: int = 1
    inter_gb_per_s: float | None = None
    nvls_channels: int = 0
    nvls_channel_gb_per_s: float | None = None
    peer_channels: int = 1
    near_nic: bool = True
    net_latency_us: float = 0.0
    cpu: str = "intel"
    protocols: tuple[Protocol, ...] | None = None
    algorithms: tuple[Algorithm, ...] | None = None

    @property
    def ranks_per_node(self) -> float:
        """Ppn = n / N [-]."""
        return self.ranks / self.nodes

    @property
    def generation(self) -> Generation:
        """Which limits apply."""
        return generation(self.compute_capability)

    @property
    def bus_gb_per_s(self) -> float:
        """X = K b [GB/s]; b between nodes from the third node on."""
        speed = self.channel_gb_per_s
        if self.nodes > 2 and self.inter_gb_per_s is not None:
            speed = self.inter_gb_per_s
        return self.channels * speed


def connection(
    distance: Distance,
    *,
    p2p_allowed: bool,
    nvlink: bool = False,
    same_node: bool = True,
    p2p_level: Distance | None = None,
    shm_disabled: bool = False,
    amd_with_two_gpus: bool = False,
) -> Connection:
    """The transport between two ranks.

    Equation: NET between nodes; P2P over NVLink, or up to PXB over PCIe (``NCCL_P2P_LEVEL`` moves that; two GPUs on
    AMD: SYS) where the driver allows it; else SHM; else NET.

    Parameters: ``distance`` in the PCIe tree; ``p2p_allowed`` what the driver says (NVML; GeForce: no).
    Returns: `Connection`.
    Validity: x86 hosts.
    Source: NCCL 2.30.7 src/graph/paths.cc (ncclTopoCheckP2p), src/transport/{p2p,shm}.cc.

    >>> connection(Distance.PHB, p2p_allowed=True).transport, connection(Distance.PXB, p2p_allowed=True).transport
    (<Transport.SHM: 'shm'>, <Transport.P2P: 'p2p'>)
    """
    if not same_node:
        return Connection(Transport.NET, "the ranks are on two nodes")
    if nvlink and p2p_allowed:
        return Connection(Transport.P2P, "NVLink")
    level = p2p_level if p2p_level is not None else Distance.SYS if amd_with_two_gpus else Distance.PXB
    if p2p_allowed and distance.rank <= level.rank:
        return Connection(Transport.P2P, f"{distance.value} is within the P2P level {level.value}")
    why = f"{distance.value} is beyond the P2P level {level.value}" if p2p_allowed else "the driver refuses P2P"
    if shm_disabled:
        return Connection(Transport.NET, f"{why}, and NCCL_SHM_DISABLE is set")
    return Connection(Transport.SHM, why)


def ll128_by_default(situation: Situation) -> bool:
    """Whether LL128 is on without ``NCCL_PROTO``: lines of 128 bytes must arrive whole and in order.

    Equation: compute capability >= 7.0; inside a node NVLink only (a node with one rank counts as local); between nodes
    the NIC at most a switch away.

    Returns: True or False.
    Validity: all GPUs of one compute capability.
    Source: NCCL 2.30.7 src/graph/tuning.cc.
    """
    inside = situation.nvlink or situation.ranks_per_node == 1
    between = situation.nodes == 1 or situation.near_nic
    return situation.compute_capability >= 7 and inside and between


def algorithms_of(operation: CollectiveOperation, situation: Situation) -> tuple[Algorithm, ...]:
    """What the operation, the number of nodes and the switch permit, before ``NCCL_ALGO``.

    Source: NCCL 2.30.7 src/graph/tuning.cc and src/enqueue.cc. CollNet needs a plugin and is not here.
    """
    if operation in PEER_OPERATIONS:
        return (Algorithm.PAIRWISE,)
    found = [Algorithm.RING]
    one_node = situation.nodes == 1
    nvls = situation.nvls_channels >= 2 and situation.generation in {Generation.HOPPER, Generation.BLACKWELL}
    if operation is _O.ALL_REDUCE:
        found.insert(0, Algorithm.TREE)
        if nvls:
            found.append(Algorithm.NVLS if one_node else Algorithm.NVLS_TREE)
    elif operation in {_O.ALL_GATHER, _O.REDUCE_SCATTER}:
        if nvls and one_node:
            found.append(Algorithm.NVLS)
        if situation.ranks_per_node == 1 and not one_node:
            found.append(Algorithm.PAT)
    return tuple(found)


def enabled(
    operation: CollectiveOperation, situation: Situation
) -> tuple[tuple[tuple[Algorithm, Protocol], ...], tuple[str, ...]]:
    """Pairs of algorithm and protocol that NCCL compares, and why others are missing.

    ``NCCL_PROTO`` and ``NCCL_ALGO`` narrow them; ``NCCL_PROTO`` that names LL128 turns it on anywhere (and may corrupt
    data over PCIe: said in the notes). ``NCCL_ALGO`` does not touch send/recv and all-to-all.
    """
    notes: list[str] = []
    protocols = list(situation.protocols or (Protocol.LL, Protocol.LL128, Protocol.SIMPLE))
    if Protocol.LL128 in protocols and not ll128_by_default(situation):
        if situation.protocols is None:
            protocols.remove(Protocol.LL128)
            notes.append("LL128 is off: its lines must arrive whole, which PCIe and shared memory do not promise")
        else:
            notes.append("NCCL_PROTO turns LL128 on where NCCL would not: data may arrive corrupted")
    algorithms = algorithms_of(operation, situation)
    if situation.algorithms is not None and operation not in PEER_OPERATIONS:
        kept = tuple(a for a in algorithms if a in situation.algorithms)
        notes.extend(f"{a.value} is off by NCCL_ALGO" for a in algorithms if a not in situation.algorithms)
        if not kept:
            notes.append(f"NCCL_ALGO leaves nothing for {operation.value}: ring is taken")
        algorithms = kept or (Algorithm.RING,)
    pairs: list[tuple[Algorithm, Protocol]] = []
    for algorithm in algorithms:
        simple_only = algorithm in {Algorithm.NVLS, Algorithm.NVLS_TREE, Algorithm.PAT}
        own = [Protocol.SIMPLE] if simple_only else protocols
        if algorithm is Algorithm.PAIRWISE:
            own = [p for p in protocols if p is not Protocol.LL128] or [Protocol.SIMPLE]
        pairs.extend((algorithm, protocol) for protocol in own)
    return tuple(pairs), tuple(notes)
