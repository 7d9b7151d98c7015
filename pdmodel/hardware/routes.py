"""Routes: which ports a transfer crosses, walked on the box's tree, with the share that read requests take.

Posted writes load only the direction in which they go. A read also loads the opposite direction with its requests:
h/r per byte read, h = 24 byte (framing, header and CRC of a request), r = the bytes one request asks for: 128 for loads
by SMs, MaxReadReq for a NIC or a copy engine. A NIC's reads of GPU memory stay behind the GPU's own posted writes
unless relaxed ordering is on; capacities cannot say that, and neither do routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, Route
from pdmodel.hardware.profile import P2P, Distance, GpuDirect, HazardKind, Traffic
from pdmodel.hardware.topology import Box, Step

REQUEST_BYTES = 24.0
SM_READ_BYTES = 128.0
HOST_MEMORY = "host_memory"
COPY_ENGINE = "copy_engine"


class Transport(StrEnum):
    """How bytes go from GPU to GPU inside a box."""

    NVLINK = "nvlink"
    P2P_WRITE = "p2p_write"
    PEER_READ = "peer_read"
    SHM = "shm"


def request_share(read_bytes: float) -> float:
    r"""Share of the reverse direction that read requests take, per byte read.

    .. math:: m = h / r

    Parameters
    ----------
    read_bytes: r, bytes that one request asks for, scalar, positive [bytes].

    Returns
    -------
    m, scalar [-].

    Notes
    -----
    h = 24 bytes: 12-16 byte header, 4 byte LCRC, framing and sequence number. Valid for PCIe 3 to 5 (128b/130b).
    Source: PCI Express base specification 5.0, section 2.2.

    >>> request_share(128), request_share(512)
    (0.1875, 0.046875)

    """
    return REQUEST_BYTES / read_bytes


def default_transport(box: Box) -> Transport:
    """What GPUs of this box use among themselves: NVLink, else P2P writes, else host memory."""
    if box.has_nvlink:
        return Transport.NVLINK
    return Transport.P2P_WRITE if box.profile.flags.p2p is P2P.POSTED_WRITES else Transport.SHM


@dataclass
class _Charges:
    """What a route collects on its walk: bytes per byte moved, and input links, per port."""

    box: Box
    ports: dict[str, float] = field(default_factory=dict)
    links: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, port: str, multiplicity: float, link: str) -> None:
        self.ports[port] = self.ports.get(port, 0.0) + multiplicity
        known = self.links.get(port, ())
        if link not in known:
            self.links[port] = (*known, link)

    def up(self, steps: Sequence[Step], agent: str, multiplicity: float) -> str:
        """Towards the CPU; returns the last port, by which the bytes enter what comes next."""
        link = agent
        for step in steps:
            self.add(step.up, multiplicity, link)
            link = step.up
        return link

    def down(self, steps: Sequence[Step], link: str, multiplicity: float) -> None:
        """From the CPU; ``steps`` are in climbing order, ``link`` is how the bytes enter the first element."""
        for step in reversed(steps):
            self.add(step.down, multiplicity, link)
            link = step.down

    def root_complex(self, traffic: Traffic, root_ports: Sequence[str], link: str, multiplicity: float) -> None:
        """Limits that root ports share count every byte once."""
        groups = {group.name: group for port in root_ports for group in self.box.root_complexes_of[port]}
        for group in groups.values():
            if traffic in group.counts:
                self.add(self.box.port_name(group.name), multiplicity, link)

    def sockets(self, source: str, destination: str, link: str, multiplicity: float) -> None:
        if source != destination:
            self.add(self.box.inter_socket(source, destination), multiplicity, link)

    def peer(self, source: str, destination: str, agent: str, multiplicity: float = 1.0, *, data: bool = True) -> None:
        """From device to device. Requests (``data=False``) take links, but no share of a root complex's limit."""
        box = self.box
        one, two = box.climb(source), box.climb(destination)
        root_one, root_two = one[-1].parent, two[-1].parent
        if root_one == root_two and not box.profile.flags.acs_redirect:
            above = [step.parent for step in two]
            turn = next(k for k, step in enumerate(one) if step.parent in above)
            one, two = one[: turn + 1], two[: above.index(one[turn].parent) + 1]
            self.down(two, self.up(one, agent, multiplicity), multiplicity)
            return
        self.up(one, agent, multiplicity)
        if data:
            self.root_complex(Traffic.PEER, (root_one, root_two), root_one, multiplicity)
        self.sockets(box.socket(source), box.socket(destination), root_one, multiplicity)
        self.down(two, root_one, multiplicity)

    def to_memory(self, source: str, socket: str, agent: str) -> None:
        """Writes of a device into the memory of a socket."""
        box, root = self.box, self.box.root_port(source)
        self.up(box.climb(source), agent, 1.0)
        self.root_complex(Traffic.HOST_WRITE, (root,), root, 1.0)
        self.sockets(box.socket(source), socket, root, 1.0)
        self.add(box.port_name(socket, HOST_MEMORY), 1.0, root)

    def from_memory(self, socket: str, destination: str, agent: str, read_bytes: float) -> None:
        """Reads by a device from the memory of a socket, with the requests that it sends."""
        box, root = self.box, self.box.root_port(destination)
        self.add(box.port_name(socket, HOST_MEMORY), 1.0, root)
        self.sockets(socket, box.socket(destination), HOST_MEMORY, 1.0)
        self.root_complex(Traffic.HOST_READ, (root,), root, 1.0)
        self.down(box.climb(destination), HOST_MEMORY, 1.0)
        requests = request_share(read_bytes)
        self.up(box.climb(destination), agent, requests)
        self.sockets(box.socket(destination), socket, root, requests)

    def both_directions(self) -> None:
        """Caps on the two directions of a link together: the sum of its members."""
        for port in list(self.ports):
            for kind in ("egress", "ingress", "up", "down"):
                if port.endswith(kind):
                    both = port.removesuffix(kind) + "both"
                    if both in self.box.port_index:
                        self.add(both, self.ports[port], port)

    def route(
        self, name: str, *, device: str = "", fifo: bool = False, staged: bool = False, hazards: Sequence[str] = ()
    ) -> Route:
        self.both_directions()
        return Route(name, self.ports, self.links, device, fifo, staged, tuple(dict.fromkeys(hazards)))


# ---- GPU to GPU ------------------------------------------------------------------------------------------------------
def gpu_to_gpu(box: Box, source: int, destination: int, transport: Transport | None = None) -> Route:
    """From GPU to GPU inside a box; ``transport`` None is what the box does (`default_transport`).

    NVLink: only NVLink ports. P2P write: sender egress, receiver ingress and what lies between. Peer read: the same
    bytes, and requests back at h/128. SHM: sender into the memory of the receiver's socket, receiver's SMs load it.

    Raises
    ------
    InputError: no such GPU; the same GPU twice; a transport that the box does not have.

    """
    transport = transport or default_transport(box)
    one, two = box.gpu(source), box.gpu(destination)
    if one == two:
        raise InputError(f"GPU {source} cannot send to itself", expected="two different GPUs")
    _check_transport(box, transport)
    charges, name = _Charges(box), f"{box.port_name(one)}>{box.port_name(two)}"
    if box.has_nvlink and transport is not Transport.SHM and transport is not Transport.P2P_WRITE:
        charges.add(box.port_name(one, "nvlink_egress"), 1.0, "sm")
        charges.add(box.port_name(two, "nvlink_ingress"), 1.0, box.port_name(one, "nvlink_egress"))
        return charges.route(name)
    if transport is Transport.SHM:
        socket = box.socket(two)
        charges.to_memory(one, socket, "sm")
        charges.from_memory(socket, two, "sm", SM_READ_BYTES)
    elif transport is Transport.PEER_READ:
        charges.peer(one, two, two)
        charges.peer(two, one, "sm", request_share(SM_READ_BYTES), data=False)
    else:
        charges.peer(one, two, "sm")
    return charges.route(name, staged=transport is Transport.SHM, hazards=_gpu_hazards(box, one, two, transport))


def _check_transport(box: Box, transport: Transport) -> None:
    if transport is Transport.NVLINK and not box.has_nvlink:
        raise InputError(f"{box.profile.name} has no NVLink", expected=f"such as {default_transport(box).value}")
    peer = transport in {Transport.P2P_WRITE, Transport.PEER_READ} and not box.has_nvlink
    if peer and box.profile.flags.p2p is P2P.REFUSED:
        raise InputError(f"{box.profile.name} refuses {transport.value}", expected=Transport.SHM.value)


def _hazards(box: Box, *kinds: HazardKind) -> list[str]:
    return [f"{hazard.kind.value}: {hazard.text}" for hazard in box.profile.hazards if hazard.kind in kinds]


def _gpu_hazards(box: Box, one: str, two: str, transport: Transport) -> list[str]:
    if transport is Transport.SHM:
        return _hazards(box, HazardKind.HOST_DUPLEX_COLLAPSE)
    kinds = [HazardKind.P2P_ALL_TO_ALL_COLLAPSE]
    if transport is Transport.P2P_WRITE and box.root_port(one) != box.root_port(two):
        kinds.append(HazardKind.POSTED_WRITE_COLLAPSE)
    return _hazards(box, *kinds)


# ---- GPU and host memory ---------------------------------------------------------------------------------------------
def host_to_gpu(box: Box, gpu: int, socket: str | None = None, *, by_kernel: bool = False) -> Route:
    """From the memory of a socket (None: the GPU's own) into a GPU, requests going out.

    By its copy engine, in order of submission; or by a kernel, whose SMs load 128 bytes at a time beside everything
    else that they do.
    """
    element = box.gpu(gpu)
    home = _socket(box, socket, element)
    charges = _Charges(box)
    engine_bytes = box.profile.max_read_request.copy_engine_bytes.value
    charges.from_memory(home, element, *(("sm", SM_READ_BYTES) if by_kernel else (COPY_ENGINE, engine_bytes)))
    name = f"{box.port_name(home)}>{box.port_name(element)}"
    hazards = _hazards(box, HazardKind.HOST_DUPLEX_COLLAPSE)
    return charges.route(
        name, device="" if by_kernel else box.port_name(element, "h2d"), fifo=not by_kernel, hazards=hazards
    )


def gpu_to_host(box: Box, gpu: int, socket: str | None = None, *, by_kernel: bool = False) -> Route:
    """From a GPU into the memory of a socket (None: its own) by its copy engine or a kernel: posted writes."""
    element = box.gpu(gpu)
    home = _socket(box, socket, element)
    charges = _Charges(box)
    charges.to_memory(element, home, "sm" if by_kernel else COPY_ENGINE)
    name = f"{box.port_name(element)}>{box.port_name(home)}"
    hazards = _hazards(box, HazardKind.HOST_DUPLEX_COLLAPSE)
    return charges.route(
        name, device="" if by_kernel else box.port_name(element, "d2h"), fifo=not by_kernel, hazards=hazards
    )


def nic_to_host(box: Box, nic: int, socket: str | None = None) -> Route:
    """From the wire through a NIC into the memory of a socket (None: the NIC's own): posted writes."""
    element = box.nic(nic)
    home = _socket(box, socket, element)
    charges = _Charges(box)
    charges.add(box.port_name(element, "rx"), 1.0, "wire")
    charges.to_memory(element, home, "rx")
    return charges.route(f"{box.port_name(element)}>{box.port_name(home)}", device=box.port_name(element))


def host_to_nic(box: Box, nic: int, socket: str | None = None) -> Route:
    """From the memory of a socket (None: the NIC's own) through a NIC onto the wire: the NIC reads, requests go out."""
    element = box.nic(nic)
    home = _socket(box, socket, element)
    charges = _Charges(box)
    charges.from_memory(home, element, "dma", box.profile.max_read_request.nic_bytes.value)
    charges.add(box.port_name(element, "tx"), 1.0, box.port_name(element, "ingress"))
    return charges.route(f"{box.port_name(home)}>{box.port_name(element)}", device=box.port_name(element))


def host_copy(box: Box, source: str, destination: str) -> Route:
    """From memory to memory inside a box, by the CPU: read once and written once, between sockets over their link."""
    one, two = _socket(box, source, ""), _socket(box, destination, "")
    charges = _Charges(box)
    charges.add(box.port_name(one, HOST_MEMORY), 1.0, "cpu")
    charges.sockets(one, two, HOST_MEMORY, 1.0)
    charges.add(box.port_name(two, HOST_MEMORY), 1.0, "cpu")
    return charges.route(f"{box.port_name(one)}>{box.port_name(two)}")


def _socket(box: Box, socket: str | None, element: str) -> str:
    if socket is None:
        return box.socket(element)
    if socket not in box.profile.tree.sockets:
        raise InputError(f"socket {socket!r} does not exist", expected="one of " + ", ".join(box.profile.tree.sockets))
    return socket


def host_disk(box: Box, socket: str, *, write: bool) -> Route:
    """Between disks of the node and the memory of a socket; the links of disks are no ports of a box.

    ``write``: into memory, else out of it.
    """
    port = box.port_name(_socket(box, socket, ""), HOST_MEMORY)
    return Route(f"disk>{port}" if write else f"{port}>disk", {port: 1.0}, {port: ("disk",)})


# ---- GPU and NIC -----------------------------------------------------------------------------------------------------
def gpu_to_nic(box: Box, gpu: int, nic: int) -> Route:
    """A NIC takes bytes out of a GPU (the sending side of push and pull alike), up to the NIC's PCIe ingress.

    With GPUDirect the NIC reads the GPU: GPU egress to NIC ingress, requests back at h/MaxReadReq. Without, or where
    a NIC may only write, the copy engine writes to host memory and the NIC reads it there: memory is crossed twice.
    """
    one, two = box.gpu(gpu), box.nic(nic)
    charges, name = _Charges(box), f"{box.port_name(one)}>{box.port_name(two)}"
    read_bytes = box.profile.max_read_request.nic_bytes.value
    staged = box.profile.flags.gpudirect_rdma is not GpuDirect.FULL
    hazards = _distance_hazards(box, one, two, staged=staged)
    if staged:
        socket = box.socket(one)
        charges.to_memory(one, socket, COPY_ENGINE)
        charges.from_memory(socket, two, "dma", read_bytes)
        hazards += _staged_hazards(box, "leaves")
    else:
        charges.peer(one, two, two)
        charges.peer(two, one, "dma", request_share(read_bytes), data=False)
        _far(charges, one, two, read=True)
    return charges.route(name, device=box.port_name(two), staged=staged, hazards=hazards)


def nic_to_gpu(box: Box, nic: int, gpu: int) -> Route:
    """A NIC brings bytes from its wire into a GPU: posted writes; staged through host memory without GPUDirect."""
    one, two = box.nic(nic), box.gpu(gpu)
    charges, name = _Charges(box), f"{box.port_name(one)}>{box.port_name(two)}"
    staged = box.profile.flags.gpudirect_rdma is GpuDirect.NONE
    hazards = _distance_hazards(box, two, one, staged=staged)
    if staged:
        socket = box.socket(two)
        charges.to_memory(one, socket, "rx")
        charges.from_memory(socket, two, COPY_ENGINE, box.profile.max_read_request.copy_engine_bytes.value)
        hazards += _staged_hazards(box, "enters")
    else:
        charges.peer(one, two, "rx")
        _far(charges, two, one, read=False)
    return charges.route(name, device=box.port_name(one), staged=staged, hazards=hazards)


def _far(charges: _Charges, gpu: str, nic: str, *, read: bool) -> None:
    """What the profile says a NIC reaches on GPU memory at this distance."""
    box = charges.box
    distance = box.distance(gpu, nic)
    if box.profile.nics is not None and distance in box.profile.nics.gpu_rate:
        reads, writes = box.gpu_rate_ports(nic, distance)
        charges.add(reads if read else writes, 1.0, gpu)


def _distance_hazards(box: Box, gpu: str, nic: str, *, staged: bool) -> list[str]:
    """Behind the CPU a NIC reaches GPU memory more slowly; a staged copy only minds the other socket."""
    distance = box.distance(gpu, nic)
    if distance.rank <= (Distance.NODE if staged else Distance.PXB).rank:
        return []
    return [
        f"far_nic: {box.port_name(nic)} and {box.port_name(gpu)} are {distance.value.upper()} apart; "
        "behind one switch a NIC reaches more"
    ]


def _staged_hazards(box: Box, verb: str) -> list[str]:
    text = f"staged: KV {verb} {box.node} through host memory, taken as one fluid flow with perfect pipelining"
    return [text, *_hazards(box, HazardKind.HOST_DUPLEX_COLLAPSE)]


def gpu_to_wire(box: Box, gpu: int, nic: int) -> Route:
    """`gpu_to_nic`, and out onto the wire."""
    out = gpu_to_nic(box, gpu, nic)
    tx = box.port_name(box.nic(nic), "tx")
    return merge(out, Route("", {tx: 1.0}, {tx: (box.port_name(box.nic(nic), "ingress"),)}), name=out.name)


def wire_to_gpu(box: Box, nic: int, gpu: int) -> Route:
    """In from the wire, and `nic_to_gpu`."""
    into = nic_to_gpu(box, nic, gpu)
    rx = box.port_name(box.nic(nic), "rx")
    return merge(Route("", {rx: 1.0}, {rx: ("wire",)}), into, name=into.name)


# ---- between nodes ---------------------------------------------------------------------------------------------------
def kv_route(  # noqa: PLR0917 (two ends of three each)
    source: Box,
    source_gpu: int,
    source_nic: int,
    target: Box,
    target_nic: int,
    target_gpu: int,
    fabric: Port | None = None,
) -> Route:
    """KV from a GPU of one node into a GPU of another, with GPUDirect or staged on each side as the profiles say.

    ``fabric`` is one more port where the scenario bounds it; else the fabric is non-blocking. The device is the
    sending NIC.
    """
    wire = _Charges(source)
    tx, rx = source.port_name(source.nic(source_nic), "tx"), target.port_name(target.nic(target_nic), "rx")
    wire.add(tx, 1.0, source.port_name(source.nic(source_nic), "ingress"))
    if fabric is not None:
        wire.add(fabric.name, 1.0, tx)
    wire.add(rx, 1.0, "wire")
    out = gpu_to_nic(source, source_gpu, source_nic)
    into = nic_to_gpu(target, target_nic, target_gpu)
    return merge(out, wire.route(""), into, name=f"{out.name}>{into.name}")


def weighed(route: Route, weight: float) -> Route:
    """The same way with every byte counted ``weight`` times: copies that are written, or the share that is."""
    return replace(route, ports={port: weight * multiplicity for port, multiplicity in route.ports.items()})


def striped(routes: Sequence[Route]) -> Route:
    """Equal turns over several ways, as one: what an engine does that gives no choice. The slowest sets the pace."""
    if len(routes) == 1:
        return routes[0]
    together = merge(*(weighed(route, 1.0 / len(routes)) for route in routes), name=" | ".join(r.name for r in routes))
    return replace(together, device="", fifo=False)


def merge(*routes: Route, name: str | None = None) -> Route:
    """One route out of several that the same bytes cross: multiplicities add up, input links unite.

    The device is the first one named; ``fifo`` and ``staged`` hold if they hold for one.
    """
    ports: dict[str, float] = {}
    links: dict[str, tuple[str, ...]] = {}
    for route in routes:
        for port, multiplicity in route.ports.items():
            ports[port] = ports.get(port, 0.0) + multiplicity
        for port, found in route.input_links.items():
            links[port] = tuple(dict.fromkeys((*links.get(port, ()), *found)))
    return Route(
        name if name is not None else ">".join(route.name for route in routes if route.name),
        ports,
        links,
        next((route.device for route in routes if route.device), ""),
        any(route.fifo for route in routes),
        any(route.staged for route in routes),
        tuple(dict.fromkeys(hazard for route in routes for hazard in route.hazards)),
    )
