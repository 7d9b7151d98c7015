"""What a profile tells of NCCL's graph, and branches put where NCCL would switch."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.collectives.selector import Situation, switches
from pdmodel.costs.collectives.selector.availability import PEER_OPERATIONS
from pdmodel.hardware.constants import Branch, CollectiveOperation, NcclGraph, Protocol
from pdmodel.hardware.profile import HardwareProfile


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
