"""What a profile tells of NCCL's graph, and branches put where NCCL would switch."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.collectives.ring import ring_hops
from pdmodel.costs.collectives.selector import Connection, Search, Situation, connection, search_speed, switches
from pdmodel.costs.collectives.selector.availability import PEER_OPERATIONS
from pdmodel.costs.collectives.selector.constants import PCIE_GB_PER_S
from pdmodel.hardware.constants import Branch, CollectiveOperation, NcclGraph, Protocol
from pdmodel.hardware.profile import P2P, Distance, HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.units import GB


def situation_of(profile: HardwareProfile, ranks: int) -> Situation | None:
    """All that NCCL's choice depends on among ``ranks`` GPUs of one box; None where the profile has no such graph.

    ``NCCL_MIN_NCHANNELS`` copies the graph's channels: a copy shares the bandwidth, so x stays and the caps by channel
    rise.
    """
    nccl = profile.nccl
    graph = next((one for one in nccl.graphs if one.ranks == ranks), None) if nccl is not None else None
    if nccl is None or graph is None:
        return None
    channels = max(graph.channels, (nccl.min_channels or 0) // 2)
    return Situation(
        ranks=ranks,
        channels=channels,
        channel_gb_per_s=graph.channels * graph.channel_gb_per_s / channels,
        compute_capability=nccl.compute_capability,
        nvlink=profile.links.nvlink is not None,
        nvls_channels=graph.nvls_channels,
        nvls_channel_gb_per_s=graph.nvls_channel_gb_per_s,
        peer_channels=graph.peer_channels,
        cpu=nccl.cpu,
        protocols=nccl.protocols,
        algorithms=nccl.algorithms,
    )


def ring_connections(box: Box, gpus: Sequence[int]) -> tuple[Connection, ...]:
    """How NCCL connects each GPU of a ring to the next, and why; the P2P level is the profile's.

    Returns: one `Connection` for each hop of the ring.
    Source: `pdmodel.costs.collectives.selector.connection` on the box's tree.
    """
    nccl = box.profile.nccl
    level = Distance(nccl.p2p_level) if nccl is not None and nccl.p2p_level is not None else None
    return tuple(
        connection(
            box.distance(box.gpu(source), box.gpu(target)),
            p2p_allowed=box.has_nvlink or box.profile.flags.p2p is P2P.POSTED_WRITES,
            nvlink=box.has_nvlink,
            p2p_level=level,
            amd_with_two_gpus=nccl is not None and nccl.cpu == "amd" and box.gpu_count <= 2,
        )
        for source, target in ring_hops(gpus)
    )


def search_ring(box: Box, gpus: Sequence[int]) -> Search | None:
    """What NCCL's search finds for a PCIe ring, from its ratings of the links; None where they are not known.

    Equation: the narrowest of the GPUs' links (x16 rated 12, 24 or 48 GB/s by generation, which the capacity of the
    port tells) and, where a hop crosses sockets, the CPUs' (``cpu_link_gb_per_s``); then `search_speed`.

    Returns: `Search`, or None with NVLink, without an ``nccl`` section, or without a rating of a link that is crossed.
    Validity: x16 links; the search may find better orders than ``gpus``, not worse.
    Source: NCCL 2.30.7 src/graph/topo.h, search.cc.
    """
    nccl = box.profile.nccl
    if nccl is None or box.has_nvlink:
        return None
    ports = [box.port_index[box.port_name(box.gpu(gpu), "egress")] for gpu in gpus]
    slowest = min(port.capacity_bytes_per_s for port in ports) / GB
    # A port carries 0.8 to 0.95 of its lanes' rate: 16, 32 or 64 GB/s.
    generation = next((known for known, lanes in ((3, 16.0), (4, 32.0)) if slowest <= lanes), 5)
    ratings = [PCIE_GB_PER_S[generation]]
    distances = {box.distance(box.gpu(source), box.gpu(target)) for source, target in ring_hops(gpus)}
    if Distance.SYS in distances:
        if nccl.cpu_link_gb_per_s is None:
            return None
        ratings.append(nccl.cpu_link_gb_per_s)
    return search_speed(min(ratings), nccl.compute_capability)


def situation(box: Box, gpus: Sequence[int]) -> Situation | None:
    """`situation_of` where the profile gives the graph, else what `search_ring` finds; None where neither is known."""
    known = situation_of(box.profile, len(gpus))
    nccl = box.profile.nccl
    if known is not None or nccl is None or len(gpus) < 2:
        return known
    found = search_ring(box, gpus)
    if found is None:
        return None
    return Situation(
        ranks=len(gpus),
        channels=found.channels,
        channel_gb_per_s=found.channel_gb_per_s,
        compute_capability=nccl.compute_capability,
        nvlink=False,
        cpu=nccl.cpu,
        protocols=nccl.protocols,
        algorithms=nccl.algorithms,
    )


def fallback_note(graph: NcclGraph) -> str | None:
    """A warning where NCCL's search found nothing and its choices are far from the box's best."""
    if not graph.fallback:
        return None
    return (
        f"NCCL's search fell back among {graph.ranks} ranks (0.1 GB/s): small messages leave LL at a few KiB; "
        "a graph file (NCCL_GRAPH_FILE) or NCCL_PROTO may halve their time"
    )


def switched(
    branches: Sequence[Branch], operation: CollectiveOperation, situation: Situation | None
) -> tuple[Branch, ...]:
    """The same lines, each in the range of sizes where NCCL takes its protocol.

    Equation: LL up to the size at which NCCL leaves LL for good, LL128 (where the lines have it) up to the size at
    which it comes to Simple, Simple from there on; where the lines have no LL128, Simple from where LL ends. Send/recv
    and all-to-all over NVLink are left as they are: their tables change without a mark.

    Parameters: ``branches`` one line a protocol, small sizes first; ``situation`` None: nothing is known.
    Returns: the branches with these limits, or as they are where there is no situation, a protocol has two lines, or
    NCCL never switches between those that there are.
    Validity: `switches` is right about the power of two on all boxes whose graph is known (docs/collectives.md).
    Source: NCCL 2.30.7, `pdmodel.costs.collectives.selector`.
    """
    order = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
    mine = [branch.protocol for branch in branches]
    smooth = situation is not None and situation.nvlink and operation in PEER_OPERATIONS
    if situation is None or smooth or len(set(mine)) != len(mine) or any(p not in order for p in mine):
        return tuple(branches)
    marks = switches(operation, situation)
    after_ll = next((start for start, _, protocol in marks if protocol is not Protocol.LL), None)
    simple = next((start for start, _, protocol in marks if protocol is Protocol.SIMPLE), None)
    starts = {Protocol.LL: 0.0, Protocol.LL128: after_ll, Protocol.SIMPLE: simple}
    if Protocol.LL128 not in mine:
        starts[Protocol.SIMPLE] = after_ll
    ordered = [starts[protocol] for protocol in mine]
    known = [start for start in ordered if start is not None]
    if len(known) != len(ordered) or known != sorted(set(known)) or known[0] != 0:
        return tuple(branches)
    ends = [*(round(start) - 1 for start in known[1:]), None]
    return tuple(
        branch.model_copy(update={"from_bytes": round(start) if start else None, "max_bytes": end})
        for branch, start, end in zip(branches, known, ends, strict=True)
    )
