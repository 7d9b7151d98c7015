"""The hardware profile: one JSON file that describes a box (not a GPU), every figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from pdmodel.hardware.constants import CollectiveConstants, ComputeConstants, NcclConstants
from pdmodel.hardware.figures import DeviceLink, Figure, Share, Source, Uplink
from pdmodel.hardware.profile_checks import check_profile
from pdmodel.spec import SourceKind, Spec

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$")]
Index = Annotated[int, Field(ge=0)]


class P2P(StrEnum):
    """Whether the driver lets GPUs write to each other over PCIe."""

    POSTED_WRITES = "posted_writes"
    REFUSED = "refused"


class GpuDirect(StrEnum):
    """Whether a NIC may read and write GPU memory; what it may not do is staged through host memory."""

    FULL = "full"
    WRITE_ONLY = "write_only"
    NONE = "none"


class Traffic(StrEnum):
    """Traffic that a root complex's own limit counts."""

    HOST_READ = "host_read"
    HOST_WRITE = "host_write"
    PEER = "peer"


class Distance(StrEnum):
    """How far two endpoints are apart in the tree, near to far, in the words of ``nvidia-smi topo -m``.

    PIX: one switch. PXB: several switches, no CPU. PHB: two root ports of one root complex. NODE: two root complexes
    of one socket. SYS: two sockets.
    """

    PIX = "pix"
    PXB = "pxb"
    PHB = "phb"
    NODE = "node"
    SYS = "sys"

    @property
    def rank(self) -> int:
        """0 for the nearest."""
        return list(Distance).index(self)


class Gpu(Spec):
    """The GPUs of the box, all alike. Peaks are dense, per data type of the operands."""

    name: str
    count: Annotated[int, Field(ge=1)]
    memory_gib: Figure
    hbm_gb_per_s: Figure
    peak_tflops: dict[str, Figure]


class Links(Spec):
    """What each kind of link really carries.

    ``host_memory_gb_per_s`` counts reads and writes of one socket's memory together; ``inter_socket_gb_per_s`` is one
    direction between two sockets; ``overrides`` gives single devices (``gpu3``, ``nic1``) a link of their own.
    """

    gpu: DeviceLink
    uplink: Uplink | None = None
    host_memory_gb_per_s: Figure
    inter_socket_gb_per_s: Figure | None = None
    nvlink: DeviceLink | None = None
    overrides: dict[str, DeviceLink] = Field(default_factory=dict)


class FarRate(Spec):
    """What a NIC reaches at most on GPU memory at some distance: reading it, writing it."""

    read_gb_per_s: Figure
    write_gb_per_s: Figure


class Nics(Spec):
    """The NICs of the box, all alike; ``attached_to`` names the switch or root port of each, in order of index.

    ``achievable_gb_per_s`` is payload per direction on the wire; ``gpu_rate`` limits transfers with GPU memory at a
    distance (where nothing is given the ports on the path are the limit).
    """

    line_rate_gbit_per_s: Figure
    achievable_gb_per_s: Figure
    pcie: DeviceLink
    attached_to: tuple[Name, ...]
    gpu_rate: dict[Distance, FarRate] = Field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of NICs."""
        return len(self.attached_to)


class RootPort(Spec):
    """A root port of a socket, and the GPUs that sit directly on it."""

    name: Name
    socket: Name
    gpus: tuple[Index, ...] = ()


class Switch(Spec):
    """A PCIe switch under a root port or another switch, and its GPUs; ``uplink`` where it differs from the box's."""

    name: Name
    under: Name
    gpus: tuple[Index, ...] = ()
    uplink: Uplink | None = None


class RootComplex(Spec):
    """A limit that several root ports share: what crosses them towards memory or each other, every byte once.

    ``counts`` says which traffic; root ports that are in no root complex of the file have no limit of their own but
    count as one root complex per socket when distances are told.
    """

    name: Name
    root_ports: Annotated[tuple[Name, ...], Field(min_length=1)]
    counts: Annotated[tuple[Traffic, ...], Field(min_length=1)] = tuple(Traffic)
    capacity_gb_per_s: Figure


class Tree(Spec):
    """The PCIe tree: sockets, root ports, switches and which GPUs sit where."""

    sockets: Annotated[tuple[Name, ...], Field(min_length=1)]
    root_ports: Annotated[tuple[RootPort, ...], Field(min_length=1)]
    switches: tuple[Switch, ...] = ()
    root_complexes: tuple[RootComplex, ...] = ()


class Flags(Spec):
    """What the platform permits, which no capacity can express."""

    p2p: P2P
    gpudirect_rdma: GpuDirect
    acs_redirect: bool = False


class MaxReadRequest(Spec):
    """Bytes that one PCIe read request asks for; sets the share of the reverse direction that requests take."""

    nic_bytes: Figure
    copy_engine_bytes: Figure


class HazardKind(StrEnum):
    """Known failures of sharing. Which routes meet them follows from the kind.

    posted_write_collapse: P2P writes that cross root ports; p2p_all_to_all_collapse: P2P writes between GPUs;
    host_duplex_collapse: traffic through host memory.
    """

    POSTED_WRITE_COLLAPSE = "posted_write_collapse"
    P2P_ALL_TO_ALL_COLLAPSE = "p2p_all_to_all_collapse"
    HOST_DUPLEX_COLLAPSE = "host_duplex_collapse"


class Hazard(Spec):
    """A hazard of this box: what happens, and where that was seen."""

    kind: HazardKind
    text: str
    source: str


class BoundByNote(Spec):
    """Why measured collectives stay well below the links of the box.

    unmodelled_link: ``port`` (its name without the node) carries the measured rate as its capacity. protocol: the rest
    of the port is residual.
    """

    kind: Literal["unmodelled_link", "protocol"]
    text: str
    port: str | None = None


class HardwareProfile(Spec):
    """A box: topology, effective capacities, constants, guard."""

    schema_version: Literal[1] = 1
    name: Name
    summary: str
    sources: dict[str, Source]
    gpu: Gpu
    links: Links
    nics: Nics | None = None
    tree: Tree
    flags: Flags
    max_read_request: MaxReadRequest
    guard_share: Share
    hazards: tuple[Hazard, ...] = ()
    bound_by: tuple[BoundByNote, ...] = ()
    compute: ComputeConstants = Field(default_factory=ComputeConstants)
    collectives: tuple[CollectiveConstants, ...] = ()
    nccl: NcclConstants | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, file: str | None = None) -> Self:
        """Validate ``raw``, its keys and what it means; the first error is one `InputError` with its JSON path."""
        profile = super().parse(raw, file=file)
        check_profile(profile, file)
        return profile

    def kind_of(self, source: str) -> SourceKind:
        """How good the source with this id is."""
        return self.sources[source].kind
