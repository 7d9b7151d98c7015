"""One form for the tree of a box, whatever told it: each GPU and NIC with the switches above it, its root port, socket.

``nvidia-smi topo -m`` gives a hypothesis, an NCCL file or lspci the tree itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdmodel.importers.findings import Level, TopologyFindings
from pdmodel.importers.lspci import Lspci, link_of
from pdmodel.importers.nccl_xml import NcclSystem
from pdmodel.importers.nccl_xml_findings import Endpoint, bogus, endpoints
from pdmodel.importers.pci import NO_LINK, DeviceKind, Link, PciDevice, above, in_bus_order, slower


@dataclass(frozen=True, slots=True)
class Leaf:
    """A GPU, or a NIC with all of its ports.

    ``chain``: switches above, the nearest first; ``root_port``, ``host_bridge``, ``socket``: names of this tree
    (``host_bridge`` empty where the source does not tell them apart); ``link``: PCIe towards the first of these.
    ``gbit_per_s``: all ports together; ``gpudirect``: None where it is not told.
    """

    label: str
    chain: tuple[str, ...]
    root_port: str
    host_bridge: str
    socket: str
    link: Link = NO_LINK
    bus: str = ""
    ports: tuple[str, ...] = ()
    gbit_per_s: float | None = None
    gpudirect: bool | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class BoxTree:
    """A whole tree; ``links`` are uplinks of switches (unknown ones are left out), ``basis`` the tool that told it.

    ``sockets_known``: False where nothing says which root ports share a socket.
    """

    basis: str
    file: str
    gpus: tuple[Leaf, ...]
    nics: tuple[Leaf, ...]
    sockets: tuple[str, ...]
    links: Mapping[str, Link]
    hypothesis: bool
    sockets_known: bool = True
    remarks: tuple[str, ...] = ()


def from_nccl(system: NcclSystem) -> BoxTree:
    """The tree of an NCCL file: each ``<pci>`` bridge a switch, each ``<cpu>`` a socket."""
    gpus, nics = endpoints(system)
    links = {
        bus: device.link
        for bus, device in system.devices.items()
        if device.kind is DeviceKind.BRIDGE
        and device.link.generation
        and not device.link.idle
        and not bogus(device, system)
    }
    cards: dict[tuple[str, int], list[Endpoint]] = {}
    for nic in nics:
        card = nic.net.card if nic.net is not None else -1
        cards.setdefault((nic.device.bus if nic.device is not None else "", card), []).append(nic)
    found = [_card(ends, system) for ends in cards.values()]
    taken = [_nccl_leaf(gpu, system) for gpu in gpus]
    hosts = sorted({end.host for end in (*gpus, *nics)})
    return BoxTree(
        "NCCL topology file",
        system.file,
        tuple(taken),
        tuple(found),
        tuple(_cpu(host) for host in hosts),
        links,
        hypothesis=False,
    )


def _cpu(host: int) -> str:
    return f"cpu{host}"


def _nccl_leaf(end: Endpoint, system: NcclSystem) -> Leaf:
    if end.device is None:
        return Leaf(end.label, (), f"virtual:{end.label}", "", _cpu(end.host))
    chain = above(end.device, system.devices)
    link = NO_LINK if end.device.link.idle else end.device.link
    direct = end.gpu.gdr if end.gpu is not None else end.net.gdr if end.net is not None else None
    root = chain[-1] if chain else end.device.bus
    return Leaf(
        end.label, chain, root, "", _cpu(end.host), link, end.device.bus, gpudirect=direct, name=end.device.name
    )


def _card(ends: Sequence[Endpoint], system: NcclSystem) -> Leaf:
    speeds = [end.net.speed_mbit_per_s for end in ends if end.net is not None and end.net.speed_mbit_per_s]
    total = sum(speeds) / 1000 if len(speeds) == len(ends) else None
    leaf = _nccl_leaf(ends[0], system)
    return replace(leaf, ports=tuple(end.label for end in ends), gbit_per_s=total)


def from_lspci(found: Lspci) -> BoxTree | None:
    """The tree of lspci: upstream ports are switches, ports of root buses root ports, root buses host bridges."""
    if not found.of_kind(DeviceKind.GPU):
        return None
    links: dict[str, Link] = {}
    gpus = [
        _lspci_leaf(f"GPU{k}", device, found, links)
        for k, device in enumerate(in_bus_order(found.of_kind(DeviceKind.GPU)))
    ]
    functions: dict[str, list[PciDevice]] = {}
    for device in in_bus_order(found.of_kind(DeviceKind.NIC)):
        functions.setdefault(device.bus.rpartition(".")[0], []).append(device)
    nics, count = [], 0
    for ports in functions.values():
        labels = tuple(f"NIC{count + k}" for k in range(len(ports)))
        count += len(ports)
        nics.append(replace(_lspci_leaf(labels[0], ports[0], found, links), ports=labels))
    several = _holding_several((*gpus, *nics))
    gpus, nics = ([_below_switch(leaf, several) for leaf in part] for part in (gpus, nics))
    leaves = (*gpus, *nics)
    known = all(leaf.socket for leaf in leaves)
    if not known:
        gpus, nics = ([replace(leaf, socket="all") for leaf in part] for part in (gpus, nics))
    sockets = tuple(sorted({leaf.socket for leaf in (*gpus, *nics)}))
    return BoxTree(
        "lspci",
        found.file,
        tuple(gpus),
        tuple(nics),
        sockets,
        {name: link for name, link in links.items() if link.generation},
        hypothesis=False,
        sockets_known=known,
        remarks=tuple(
            f"{root} has several links below it, so ports between are missing from the file: taken as a switch"
            for root in several
        ),
    )


def _holding_several(leaves: Sequence[Leaf]) -> tuple[str, ...]:
    """Root ports above more than one link, which a whole file never has."""
    below: dict[str, set[str]] = {}
    for leaf in leaves:
        below.setdefault(leaf.root_port, set()).add(leaf.chain[-1] if leaf.chain else leaf.label)
    return tuple(root for root, links in below.items() if len(links) > 1)


def _below_switch(leaf: Leaf, roots: Sequence[str]) -> Leaf:
    return replace(leaf, chain=(*leaf.chain, leaf.root_port)) if leaf.root_port in roots else leaf


def _lspci_leaf(label: str, device: PciDevice, found: Lspci, links: dict[str, Link]) -> Leaf:
    """Bridges above alternate: downstream port, upstream port, ..., root port; upstream ports stand for switches."""
    over = above(device, found.devices)
    inner = over[:-1]
    # From the root port down: upstream port, downstream port, upstream port, ...
    upstream = [bus for k, bus in enumerate(reversed(inner)) if k % 2 == 0]
    for bus in upstream:
        links[bus] = link_of(found.devices[bus], found)
    numa = device.numa if device.numa is not None else _numa(over, found)
    return Leaf(
        label,
        tuple(reversed(upstream)),
        over[-1] if over else device.bus,
        found.root_buses[device.host],
        "" if numa is None else f"numa{numa}",
        link_of(device, found),
        device.bus,
        name=device.name,
    )


def _numa(over: Iterable[str], found: Lspci) -> int | None:
    return next((numa for bus in over if (numa := found.devices[bus].numa) is not None), None)


def from_findings(found: TopologyFindings) -> BoxTree:
    """The hypothesis that distance classes allow."""
    groups = {
        level: [(f"{level.value}{k}", {*g.gpus, *g.nics}) for k, g in enumerate(found.at(level))] for level in Level
    }

    def of(level: Level, label: str) -> str:
        return next((name for name, members in groups[level] if label in members), "")

    def leaf(label: str) -> Leaf:
        switch, tree, card = of(Level.SWITCH, label), of(Level.SWITCH_TREE, label), of(Level.CARD, label)
        first = switch or card or (f"leaf:{label}" if tree else "")
        chain = tuple(name for name in (first, tree) if name)
        root = chain[-1] if chain else label
        socket = of(Level.NUMA, label) or of(Level.ROOT_COMPLEX, label) or tree or switch or card
        if not socket:
            socket = label if _far(found, label) else "all"
        ports = () if label in found.gpus else (label,)
        return Leaf(label, chain, root, of(Level.ROOT_COMPLEX, label) or f"alone:{root}", socket, ports=ports)

    gpus = tuple(leaf(label) for label in found.gpus)
    nics = tuple(leaf(label) for label in found.nics or ())
    sockets = tuple(dict.fromkeys(one.socket for one in (*gpus, *nics)))
    remarks = []
    if len(sockets) > 2:
        remarks.append(
            f"{len(sockets)} groups are SYS to each other: taken as NUMA domains that share the memory of two sockets"
        )
    known = bool(groups[Level.NUMA]) or len(sockets) > 1
    return BoxTree(
        found.kind.value, found.file, gpus, nics, sockets, {}, hypothesis=True, sockets_known=known,
        remarks=tuple(remarks),
    )  # fmt: skip


def _far(found: TopologyFindings, label: str) -> bool:
    """Whether a device is SYS to some other one, so that it sits on another socket than that."""
    return any(code == "SYS" for code in found.matrix.get(label, {}).values())


def with_sockets(tree: BoxTree, other: BoxTree) -> BoxTree:
    """The tree with the sockets of another one whose GPUs are the same in number and order; NICs follow root buses."""
    if len(tree.gpus) != len(other.gpus):
        return tree
    gpus = tuple(replace(one, socket=two.socket) for one, two in zip(tree.gpus, other.gpus, strict=True))
    by_bridge = {leaf.host_bridge: leaf.socket for leaf in gpus}
    ports = {label: nic for nic in other.nics for label in nic.ports}
    nics = []
    for nic in tree.nics:
        same = ports.get(nic.label)
        socket = same.socket if same is not None else by_bridge.get(nic.host_bridge, gpus[0].socket)
        nics.append(replace(nic, socket=socket))
    sockets = tuple(dict.fromkeys(leaf.socket for leaf in (*gpus, *nics)))
    return replace(tree, gpus=gpus, nics=tuple(nics), sockets=sockets, sockets_known=other.sockets_known)


def with_link_caps(tree: BoxTree, found: Lspci) -> tuple[BoxTree, list[str]]:
    """The tree with what lspci says its links can do, by bus id; and where the two differ."""
    differ: list[str] = []

    def better(bus: str, link: Link) -> Link:
        details = found.details.get(bus)
        if details is None or details.cap.generation is None:
            return link
        cap = link_of(found.devices[bus], found) if bus in found.devices else details.cap
        if link.generation and slower(cap, link) != cap:
            differ.append(f"{bus}: {tree.basis} says {link}, lspci {cap}: lspci is taken")
        return cap

    gpus, nics = (
        tuple(replace(leaf, link=better(leaf.bus, leaf.link)) for leaf in part) for part in (tree.gpus, tree.nics)
    )
    names = {name for leaf in (*gpus, *nics) for name in leaf.chain}
    links = {name: better(name, tree.links.get(name, NO_LINK)) for name in names}
    return replace(tree, gpus=gpus, nics=nics, links={k: v for k, v in links.items() if v.generation}), differ


def classes(tree: BoxTree) -> dict[str, dict[str, str]]:
    """Class of the way between any two devices, in the letters of ``nvidia-smi topo -m``."""
    leaves = [(leaf.label, leaf) for leaf in tree.gpus]
    leaves += [(label, leaf) for leaf in tree.nics for label in leaf.ports or (leaf.label,)]
    return {one: {two: "X" if one == two else _class(first, second) for two, second in leaves} for one, first in leaves}


def _class(one: Leaf, two: Leaf) -> str:
    if one is two:
        return "PIX"
    if one.root_port == two.root_port:
        common = next((name for name in one.chain if name in two.chain), None)
        near = common is None or (one.chain[0] == common == two.chain[0])
        return "PIX" if near else "PXB"
    if one.socket != two.socket:
        return "SYS"
    return "PHB" if one.host_bridge == two.host_bridge else "NODE"
