"""Constants of a box that no formula gives: what its collectives reach, fitted to measurements of that box."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pdmodel.hardware.compute import ComputeConstants
from pdmodel.spec import Spec

__all__ = [
    "Algorithm",
    "BoundBy",
    "Branch",
    "CollectiveConstants",
    "CollectiveOperation",
    "ComputeConstants",
    "Implementation",
    "MeasuredPoint",
    "NcclConstants",
    "NcclGraph",
    "Protocol",
]


class CollectiveOperation(StrEnum):
    """A collective, or one half (``dispatch``, ``combine``) of an expert-parallel exchange."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    DISPATCH = "dispatch"
    COMBINE = "combine"


class Implementation(StrEnum):
    """Whose kernel runs: NCCL's, the engine's custom all-reduce (vLLM's; SGLang's is the same), DeepEP's exchange.

    ``deepep_ll``: DeepEP's low-latency kernels.

    ``deepgemm``: the exchange inside DeepGEMM's fused kernel; it has no constants of its own.

    ``pcie_push``, ``pcie_pull``: two-shot all-reduce kernels for boxes without NVLink, by posted writes or by loads.
    """

    NCCL = "nccl"
    VLLM_CUSTOM = "vllm_custom"
    DEEPEP = "deepep"
    DEEPEP_LL = "deepep_ll"
    DEEPGEMM = "deepgemm"
    PCIE_PUSH = "pcie_push"
    PCIE_PULL = "pcie_pull"


class Protocol(StrEnum):
    """NCCL's wire protocols; ``custom`` is whatever an engine's own kernel does (payload only)."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"
    CUSTOM = "custom"


class Algorithm(StrEnum):
    """How the bytes travel.

    ``tree``: on one node a chain up and down; ``nvls``, ``nvls_tree``: the NVLink switch adds and multicasts; ``pat``:
    parallel trees between nodes of one GPU; ``pairwise``: every rank to every other; ``one_shot``, ``two_shot``: loads
    from peers; ``two_shot_push``: the bytes of ``two_shot`` as posted writes to peers.
    """

    RING = "ring"
    TREE = "tree"
    NVLS = "nvls"
    NVLS_TREE = "nvls_tree"
    PAT = "pat"
    PAIRWISE = "pairwise"
    ONE_SHOT = "one_shot"
    TWO_SHOT = "two_shot"
    TWO_SHOT_PUSH = "two_shot_push"


class BoundBy(StrEnum):
    """Why a measured collective leaves every port of the profile below 80 % of its capacity.

    ``unmodelled_link``: something on its way that the tree does not show; the group port that it passes has the
    measured rate as its capacity (kind derived). ``protocol``: steps, flags, few channels; the rest is free for others.
    """

    UNMODELLED_LINK = "unmodelled_link"
    PROTOCOL = "protocol"


class Branch(Spec):
    """One straight line of a collective's time: alpha + S / B.

    ``bandwidth_gb_per_s`` is algbw, S/B with S as nccl-tests prints it. ``max_bytes``: the implementation leaves this
    branch above that size, ``from_bytes``: it does not take it below (where its own estimate or a limit in its code
    switches, not where lines cross: the time may then jump).
    """

    protocol: Protocol
    algorithm: Algorithm
    alpha_us: Annotated[float, Field(gt=0)]
    bandwidth_gb_per_s: Annotated[float, Field(gt=0)]
    max_bytes: Annotated[int, Field(gt=0)] | None = None
    from_bytes: Annotated[int, Field(gt=0)] | None = None


class MeasuredPoint(Spec):
    """One size of a measured table, and the time of a call."""

    size_bytes: Annotated[int, Field(gt=0)]
    time_us: Annotated[float, Field(gt=0)]


class CollectiveConstants(Spec):
    """Time of one operation among ``ranks`` GPUs of this box: the least of its branches that the size allows.

    ``nodes``: how many such boxes the ranks are spread over; entries of several serve no plan of one box.

    ``table``: measured points, in rising order of size, that the time passes through: between two of them in one branch
    the branch's line is bent to meet both, beyond the last one its ratio to the line is kept. Empty: lines alone.
    ``mean_error`` and ``max_error`` are relative errors of the fit on the rows named by ``source``; null where
    nothing was fitted. ``bound_by`` goes with ``reason``: see `BoundBy`.
    """

    operation: CollectiveOperation
    implementation: Implementation = Implementation.NCCL
    ranks: Annotated[int, Field(ge=2)]
    nodes: Annotated[int, Field(ge=1)] = 1
    branches: Annotated[tuple[Branch, ...], Field(min_length=1)]
    table: tuple[MeasuredPoint, ...] = ()
    source: str
    bound_by: BoundBy | None = None
    reason: str = ""
    mean_error: Annotated[float, Field(ge=0)] | None = None
    max_error: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if all(branch.max_bytes is not None for branch in self.branches):
            message = "every branch has max_bytes: nothing covers larger sizes; leave it out of the last one"
            raise ValueError(message)
        if self.bound_by is not None and not self.reason:
            message = "bound_by without a reason"
            raise ValueError(message)
        if all(branch.from_bytes is not None for branch in self.branches):
            message = "every branch has from_bytes: nothing covers smaller sizes; leave it out of the first one"
            raise ValueError(message)
        sizes = [point.size_bytes for point in self.table]
        if any(later <= sooner for sooner, later in pairwise(sizes)):
            message = "the sizes of table do not rise"
            raise ValueError(message)
        return self


class NcclGraph(Spec):
    """The graph that NCCL's search finds among ``ranks`` GPUs of the box: what its choices count with, not wires.

    ``channels`` are the graph's (NCCL runs twice as many); ``fallback``: no speed of its list fitted a link, and it
    counts with 0.1 GB/s on one channel (compute capability 10 and more on links rated below 18 GB/s).
    ``peer_channels``: channels that send/recv and all-to-all give each peer. ``nvls_channels``,
    ``nvls_channel_gb_per_s``: of the NVLink switch's graph.
    """

    ranks: Annotated[int, Field(ge=2)]
    channels: Annotated[int, Field(ge=1)]
    channel_gb_per_s: Annotated[float, Field(gt=0)]
    fallback: bool = False
    peer_channels: Annotated[int, Field(ge=1)] = 1
    nvls_channels: Annotated[int, Field(ge=0)] = 0
    nvls_channel_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    source: str


class NcclConstants(Spec):
    """What NCCL knows of this box, and what its user has told it.

    ``cpu`` with ``cpu_link_gb_per_s``: NCCL's rating of the link between sockets (AMD 16; Intel 6 to 40 by
    generation). ``protocols``, ``algorithms``, ``p2p_level``, ``min_channels``: NCCL_PROTO, NCCL_ALGO, NCCL_P2P_LEVEL,
    NCCL_MIN_NCHANNELS where they are set.
    """

    version: str
    compute_capability: Annotated[float, Field(ge=5)]
    cpu: Literal["amd", "intel"]
    cpu_link_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    graphs: tuple[NcclGraph, ...] = ()
    protocols: tuple[Protocol, ...] | None = None
    algorithms: tuple[Algorithm, ...] | None = None
    p2p_level: Literal["pix", "pxb", "phb", "node", "sys"] | None = None
    min_channels: Annotated[int, Field(ge=1)] | None = None
    source: str
