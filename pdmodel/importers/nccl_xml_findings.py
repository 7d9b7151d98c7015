"""What an NCCL topology file says about a box: who is near whom, on which links, and which of them look wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from pdmodel.importers.findings import Kind, Status, TopologyFindings
from pdmodel.importers.nccl_xml import Gpu, NcclSystem, Net
from pdmodel.importers.pci import DeviceKind, Link, PciDevice, distance, in_bus_order

_ORDER = {name: rank for rank, name in enumerate(("PIX", "PXB", "PHB", "NODE", "SYS"))}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A GPU or a port of a NIC under the label that findings give it; ``device`` is None for a virtual NIC."""

    label: str
    device: PciDevice | None
    host: int
    gpu: Gpu | None = None
    net: Net | None = None


def endpoints(system: NcclSystem) -> tuple[tuple[Endpoint, ...], tuple[Endpoint, ...]]:
    """GPUs as CUDA numbers them, and ports of NICs under their names; by bus id where the file has no tags."""
    gpus = _gpus(system)
    nets = [Endpoint(net.name, system.devices.get(net.bus or ""), net.host, net=net) for net in system.nets]
    names = Counter(end.label for end in nets)
    found = [
        Endpoint(end.label if end.label and names[end.label] == 1 else f"NIC{k}", end.device, end.host, net=end.net)
        for k, end in enumerate(nets)
    ]
    tagged = {net.bus for net in system.nets}
    bare = [device for device in system.of_kind(DeviceKind.NIC) if device.bus not in tagged]
    found += [Endpoint(f"NIC{k}", device, device.host) for k, device in enumerate(in_bus_order(bare), start=len(found))]
    return gpus, tuple(found)


def _gpus(system: NcclSystem) -> tuple[Endpoint, ...]:
    devices = list(in_bus_order(system.of_kind(DeviceKind.GPU)))
    if system.template:
        return tuple(Endpoint(f"GPU{k}", device, device.host) for k, device in enumerate(devices))
    place = {device.bus: k for k, device in enumerate(devices)}
    numbers = [gpu.device for gpu in system.gpus]
    sure = None not in numbers and len(set(numbers)) == len(numbers)
    key = {gpu.bus: (gpu.device or 0) if sure else place[gpu.bus] for gpu in system.gpus}
    ordered = sorted(system.gpus, key=lambda gpu: key[gpu.bus])
    return tuple(
        Endpoint(f"GPU{key[gpu.bus]}", system.devices[gpu.bus], system.devices[gpu.bus].host, gpu=gpu)
        for gpu in ordered
    )


def findings(system: NcclSystem) -> TopologyFindings:
    """The common form of what the file says."""
    gpus, nics = endpoints(system)
    ends = (*gpus, *nics)
    classes = {one.label: {two.label: _class(one, two, system) for two in ends} for one in ends}
    fabric = {(one.label, two.label): _links(one, two) for one in gpus for two in gpus if one is not two}
    kinds = {link.kind for gpu in system.gpus for link in gpu.fabric}
    matrix = {
        row: {
            column: code if not (count := fabric.get((row, column))) else "XGMI" if "xgmi" in kinds else f"NV{count}"
            for column, code in cells.items()
        }
        for row, cells in classes.items()
    }
    nearest: dict[str, tuple[str, ...]] = {}
    least: dict[str, str | None] = {}
    for gpu in gpus if nics else ():
        near = min((classes[gpu.label][nic.label] for nic in nics), key=_ORDER.__getitem__, default=None)
        least[gpu.label] = near
        nearest[gpu.label] = tuple(nic.label for nic in nics if classes[gpu.label][nic.label] == near)
    warnings = [*system.warnings, *link_warnings(system), *_remarks(system, gpus, nics, fabric)]
    return TopologyFindings(
        file=system.file,
        kind=Kind.NCCL_XML,
        status=Status.COMPLETE,
        gpus=tuple(gpu.label for gpu in gpus),
        nics=tuple(nic.label for nic in nics),
        nic_names={nic.label: nic.device.bus for nic in nics if nic.device is not None},
        nvlink=False if "xgmi" in kinds else joined(system),
        fabric="xgmi" if "xgmi" in kinds else "nvlink" if kinds else "",
        nearest_nics=nearest,
        distance=least,
        matrix=matrix,
        pcie_matrix=classes,
        numa_affinity={end.label: _numa(end, system) for end in ends},
        twins=_twins(nics),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _class(one: Endpoint, two: Endpoint, system: NcclSystem) -> str:
    if one is two:
        return "X"
    if one.device is not None and two.device is not None and one.device is two.device:
        return "PIX"
    if one.device is None or two.device is None:
        return "PHB" if one.host == two.host else "SYS"
    found = distance(one.device, two.device, system.devices, same_socket=one.host == two.host)
    return "PXB" if found in {"PHB", "SYS"} and _shortcut(one.device, two.device, system) else found


def _shortcut(one: PciDevice, two: PciDevice, system: NcclSystem) -> bool:
    """Whether a link between two switches spares the way through the CPU."""
    from pdmodel.importers.pci import above

    over = above(one, system.devices), above(two, system.devices)
    return any(
        (first in over[0] and second in over[1]) or (second in over[0] and first in over[1])
        for first, second in system.shortcuts
    )


def _links(one: Endpoint, two: Endpoint) -> int:
    """NVLinks or xGMI links between two GPUs: those to each other, else the lesser number to switches."""
    if one.gpu is None or two.gpu is None:
        return 0
    direct = sum(link.count for link in one.gpu.fabric if link.target == two.gpu.bus)
    if direct:
        return direct
    switched = [sum(link.count for link in gpu.fabric if link.to_switch) for gpu in (one.gpu, two.gpu)]
    return min(switched)


def joined(system: NcclSystem) -> bool | Literal["partial"]:
    """Whether NVLink or xGMI joins all pairs of GPUs, some, or none; of one GPU whether it has any."""
    gpus = _gpus(system)
    fabric = {(one.label, two.label): _links(one, two) for one in gpus for two in gpus if one is not two}
    if len(gpus) < 2:
        return any(gpu.gpu is not None and bool(gpu.gpu.fabric) for gpu in gpus)
    linked = [bool(fabric[one.label, two.label]) for one, two in combinations(gpus, 2)]
    return True if all(linked) else "partial" if any(linked) else False


def _numa(end: Endpoint, system: NcclSystem) -> str | None:
    numa = system.cpus[end.host].numa if 0 <= end.host < len(system.cpus) else None
    return None if numa is None or numa < 0 else str(numa)


def _twins(nics: Sequence[Endpoint]) -> tuple[tuple[str, ...], ...]:
    """Ports of one card: they share its PCIe link."""
    cards: dict[int, list[str]] = {}
    for nic in nics:
        if nic.net is not None:
            cards.setdefault(nic.net.card, []).append(nic.label)
    return tuple(tuple(labels) for labels in cards.values() if len(labels) > 1)


# ---- what looks wrong ------------------------------------------------------------------------------------------------


def bogus(device: PciDevice, system: NcclSystem) -> bool:
    """Whether an inner link is slower than the link above it and every link below it, as no working switch is."""
    if device.kind is not DeviceKind.BRIDGE or device.link.gt_per_s is None:
        return False
    below = [child.link.gt_per_s for child in system.devices.values() if child.parent == device.bus]
    known = [speed for speed in below if speed is not None]
    parent = system.devices.get(device.parent or "")
    over = parent.link.gt_per_s if parent is not None else None
    return bool(known) and device.link.gt_per_s < min(known) and (over is None or device.link.gt_per_s < over)


def link_warnings(system: NcclSystem) -> list[str]:
    """Links that cannot be what the file says."""
    found: dict[str, list[str]] = {}
    for device in system.devices.values():
        link = device.link
        if device.kind in {DeviceKind.NVSWITCH, DeviceKind.OTHER}:
            continue
        if bogus(device, system):
            what = f"{link}, slower than the links above and below it: no capacity of that uplink is taken from it"
        elif link.idle:
            asleep = "asleep when the file was written" if device.kind is DeviceKind.GPU else "not what it can do"
            what = f"{link}, a {device.kind.value} link that was {asleep}: not taken as its capacity"
        elif device.kind is DeviceKind.BRIDGE and not _has_endpoint(device, system):
            continue
        elif link.gt_per_s is None or link.lanes is None:
            what = f"{_said(link)}: unknown (NCCL counts with 8 GT/s x16 there)"
        else:
            continue
        found.setdefault(what, []).append(device.bus)
    return [f"{_listed(buses)}: {what}" for what, buses in found.items()]


def _has_endpoint(device: PciDevice, system: NcclSystem) -> bool:
    return any(child.parent == device.bus for child in system.devices.values())


def _said(link: Link) -> str:
    speed = "no speed" if link.gt_per_s is None else f"{link.gt_per_s:g} GT/s"
    return f"{speed}, " + ("no width" if link.lanes is None else f"x{link.lanes}")


def _listed(buses: Sequence[str]) -> str:
    return ", ".join(buses[:3]) + (f" and {len(buses) - 3} more" if len(buses) > 3 else "")


def _remarks(
    system: NcclSystem,
    gpus: Sequence[Endpoint],
    nics: Sequence[Endpoint],
    fabric: Mapping[tuple[str, str], int],
) -> list[str]:
    """What a reader would not expect of such a box."""
    found = []
    off = [gpu.label for gpu in gpus if not any(fabric.get((gpu.label, two.label)) for two in gpus if two is not gpu)]
    if len(gpus) > 1 and 0 < len(off) < len(gpus):
        found.append(f"{', '.join(off)} without a link to the others' fabric")
    if any(link.kind == "xgmi" for gpu in system.gpus for link in gpu.fabric):
        pairs = {True: "all pairs", "partial": "some pairs", False: "no pair"}[joined(system)]
        found.append(f"xGMI joins {pairs} of GPUs directly")
    virtual = [nic.label for nic in nics if nic.device is None]
    if virtual:
        found.append(f"{', '.join(virtual)}: no PCIe device (virtual)")
    blocked = [nic.label for nic in nics if nic.net is not None and nic.net.gdr is False]
    if blocked:
        found.append(f"{', '.join(blocked)}: no GPUDirect RDMA (gdr=0)")
    shut = [gpu.label for gpu in gpus if gpu.gpu is not None and gpu.gpu.gdr is False]
    if shut:
        found.append(f"{', '.join(shut)}: no GPUDirect RDMA (gdr=0)")
    found += [f"{' and '.join(labels)} are ports of one card: they share its PCIe link" for labels in _twins(nics)]
    if not nics:
        found.append("there is no NIC in the file")
    sockets = {cpu.numa for cpu in system.cpus}
    if len(sockets) > 2:
        found.append(f"{len(sockets)} NUMA nodes: which of them share a socket is not told")
    nodeless = [cpu.numa for cpu in system.cpus if cpu.numa is not None and cpu.numa < 0]
    if nodeless:
        found.append("a CPU without a NUMA node (numaid -1)")
    return found
