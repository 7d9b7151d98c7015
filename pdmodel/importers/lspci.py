"""``lspci``: the tree of ``-tv``; links, packet sizes, ACS and NUMA nodes of ``-vvv``; both, or several, in one file.

``LnkSta`` of an idle GPU is 2.5 GT/s: what a link can do is ``LnkCap`` of both of its ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdmodel.errors import InputError
from pdmodel.importers.lspci_tree import Drawn, drawn, is_drawing
from pdmodel.importers.pci import NO_LINK, DeviceKind, Link, PciDevice, bus_id, name_of, slower, speed_of

_HEAD = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]) (\S.*)", re.IGNORECASE)
_PROMPT = re.compile(r"^\S{0,64}[$#>] .*lspci")
_BUSES = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", re.IGNORECASE)
_LINK = re.compile(r"Lnk(Cap|Sta):.*?Speed ([^,]+), Width x([0-9]{1,2})")
_PORT = re.compile(r"Express \(v[0-9]\) (Root Port|Upstream Port|Downstream Port|Legacy Endpoint|Endpoint)")
_IN_FORCE = re.compile(r"MaxPayload ([0-9]{2,5}) bytes, MaxReadReq ([0-9]{2,5}) bytes")
_ABLE = re.compile(r"DevCap:\s+MaxPayload ([0-9]{2,5}) bytes")
_ACS = re.compile(r"ACSCtl:\s.*?ReqRedir([+-]) CmpltRedir([+-])")
_NUMA = re.compile(r"NUMA node:\s*(-?[0-9]{1,4})")
_IDS = re.compile(r"\[([0-9a-f]{4}:[0-9a-f]{4})\]", re.IGNORECASE)
_PRODUCT = re.compile(r"Product Name:\s*(.{1,200})")
_GPU_NAME = re.compile(r"\[([^\[\]]*[A-Za-z][^\[\]]*)\](?: \[[0-9a-f]{4}:[0-9a-f]{4}\])?(?: \(rev [0-9a-f]+\))?\s*$")
_PROGRAMMING = re.compile(r" \(prog-if [^()]*\)\s*$")
# What ``lspci -n`` prints instead of names: class, vendor and device.
_NUMBERS = re.compile(r"(?:Class )?([0-9a-f]{4}): ([0-9a-f]{4}:[0-9a-f]{4})\b", re.IGNORECASE)
_NVIDIA_ID = re.compile(r"NVIDIA Corporation Device ([0-9a-f]{4})\b", re.IGNORECASE)

_NOT_A_GPU = ("audio", "usb", "ucsi", "nvswitch", "bridge", "serial bus", "nvlink", "ethernet", "infiniband")
_FABRIC_NICS = (
    "mellanox", "connectx", "bluefield", "infiniband", "elastic fabric", "omni-path", "bcm575", "bcm576", "bcm587",
    "e810", "e822", "pollara", "dsc ethernet", "chelsio", "slingshot", "cassini", "gve",
)  # fmt: skip
_NOT_A_NIC = ("dma controller", "management", "bridge", "nvme", "pcie switch", "crypto", "family of pcie")
_LAN = ("ethernet controller", "ethernet connection", "network connection", "ethernet network")


@dataclass(frozen=True, slots=True)
class Details:
    """What ``-vvv`` says of one device.

    ``cap`` and ``status`` are LnkCap and LnkSta; ``payload_bytes`` and ``read_request_bytes`` are in force;
    ``redirects`` is None where the device has no ACS; ``port`` is its place in the tree (Root Port, Endpoint, ...).
    """

    bus: str
    text: str
    line: int
    secondary: str | None = None
    numa: int | None = None
    cap: Link = NO_LINK
    status: Link = NO_LINK
    downgraded: bool = False
    payload_bytes: int | None = None
    payload_able_bytes: int | None = None
    read_request_bytes: int | None = None
    redirects: bool | None = None
    port: str = ""
    product: str = ""


@dataclass(frozen=True, slots=True)
class Lspci:
    """One file or several of one box: ``devices`` by bus id (empty without a tree), ``details`` of ``-vvv``.

    ``redirects`` counts ports that redirect P2P through the CPU, and all that have ACS; ``root_buses`` in their order.
    """

    file: str
    devices: Mapping[str, PciDevice]
    details: Mapping[str, Details]
    root_buses: tuple[str, ...]
    redirects: tuple[int, int]
    lan_ports: int
    drawing: bool
    warnings: tuple[str, ...]

    def of_kind(self, kind: DeviceKind) -> tuple[PciDevice, ...]:
        """The devices of one kind."""
        return tuple(device for device in self.devices.values() if device.kind is kind)


@dataclass
class _Read:
    blocks: list[Details] = field(default_factory=list)
    drawings: list[tuple[int, str]] = field(default_factory=list)
    redirects: list[bool] = field(default_factory=list)


def parse(text: str, file: str) -> Lspci:
    """Read the output of ``lspci``, with whatever stands around it.

    Returns: `Lspci` with at least one device, or the ACS settings of ``lspci -vvv | grep ACSCtl``.
    Raises: `InputError` for a text in which nothing is of lspci.
    """
    read = _lines(text)
    found = list(drawn(read.drawings))
    if not read.blocks and not found and not read.redirects:
        raise InputError(
            "no line is of lspci", file=file, path="line 1", expected="the output of lspci -tv, or of sudo lspci -vvv"
        )
    details = {block.bus: block for block in read.blocks}
    warnings = []
    if len(details) < len(read.blocks):
        warnings.append(f"{len(read.blocks) - len(details)} devices are there twice: the last counts")
    devices, roots = (
        (_of_drawing(found, details), list(dict.fromkeys(one.root for one in found))) if found else ({}, [])
    )
    if not devices:
        devices, roots = _of_buses(details)
    texts = [device.name for device in devices.values()]
    lan = sum(any(word in name.lower() for word in _LAN) and not _is_nic(name) for name in texts)
    result = Lspci(
        file=file,
        devices=devices,
        details=details,
        root_buses=tuple(roots),
        redirects=(sum(read.redirects), len(read.redirects)),
        lan_ports=lan,
        drawing=bool(found),
        warnings=(),
    )
    return replace(result, warnings=tuple(warnings + _remarks(result)))


def _lines(text: str) -> _Read:
    read = _Read()
    current: dict[str, object] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.rstrip()
        head = _HEAD.fullmatch(line)
        if head is not None:
            _close(current, read)
            bus = bus_id(f"{head[1] or '0000'}:{head[2]}")
            current = {"bus": bus or "", "text": head[3][:300], "line": number}
        elif _PROMPT.match(line):
            _close(current, read)
            current = None
        elif is_drawing(line):
            read.drawings.append((number, line))
        else:
            acs = _ACS.search(line)
            if acs is not None:
                read.redirects.append("+" in acs.groups())
            if current is not None and line[:1].isspace():
                _detail(current, line)
    _close(current, read)
    return read


def _close(current: dict[str, object] | None, read: _Read) -> None:
    if current is not None:
        read.blocks.append(Details(**current))  # type: ignore[arg-type]


def _detail(current: dict[str, object], line: str) -> None:
    if (found := _LINK.search(line)) is not None:
        link = Link(speed_of(found[2]), int(found[3]) or None)
        if found[1] == "Cap":
            current.setdefault("cap", link)
        else:
            current.setdefault("status", link)
            current.setdefault("downgraded", "downgraded" in line)
    elif (found := _IN_FORCE.search(line)) is not None:
        current.setdefault("payload_bytes", int(found[1]))
        current.setdefault("read_request_bytes", int(found[2]))
    elif (found := _ABLE.search(line)) is not None:
        current.setdefault("payload_able_bytes", int(found[1]))
    elif (found := _NUMA.search(line)) is not None:
        current.setdefault("numa", int(found[1]) if int(found[1]) >= 0 else None)
    elif (found := _BUSES.search(line)) is not None:
        current.setdefault("secondary", found[2].lower())
    elif (found := _PORT.search(line)) is not None:
        current.setdefault("port", found[1])
    elif (found := _ACS.search(line)) is not None:
        current.setdefault("redirects", "+" in found.groups())
    elif (found := _PRODUCT.search(line)) is not None:
        current.setdefault("product", found[1].strip())


# ---- the tree --------------------------------------------------------------------------------------------------------


def _of_drawing(found: Sequence[Drawn], details: Mapping[str, Details]) -> dict[str, PciDevice]:
    bridges = {one.parent for one in found if one.parent} | {one.bus for one in found if not one.text}
    hosts = {root: k for k, root in enumerate(dict.fromkeys(one.root for one in found))}
    devices: dict[str, PciDevice] = {}
    for one in found:
        known = details.get(one.bus)
        text = known.text if known is not None else one.text
        kind = DeviceKind.BRIDGE if one.bus in bridges else _kind(text, one.bus)
        link = known.cap if known is not None else Link()
        devices.setdefault(
            one.bus, _device(one.bus, kind, one.parent, hosts[one.root], link=link, text=text, known=known)
        )
    return devices


def _of_buses(details: Mapping[str, Details]) -> tuple[dict[str, PciDevice], list[str]]:
    """The tree that "Bus: primary, secondary, subordinate" tells; empty where no bridge is among the devices."""
    over = {f"{one.bus[:4]}:{one.secondary}": one.bus for one in details.values() if one.secondary not in {None, "00"}}
    if not over:
        return {}, []
    parents = {bus: over.get(bus[:7]) for bus in details}
    roots: dict[str, int] = {}
    devices: dict[str, PciDevice] = {}
    for bus, one in details.items():
        top, seen = bus, {bus}
        while (parent := parents.get(top)) is not None and parent not in seen:
            seen.add(parent)
            top = parent
        host = roots.setdefault(top[:7], len(roots))
        kind = DeviceKind.BRIDGE if one.secondary is not None else _kind(one.text, bus)
        parent = parents[bus] if parents[bus] != bus else None
        devices[bus] = _device(bus, kind, parent, host, link=one.cap, text=one.text, known=one)
    return devices, list(roots)


def _device(
    bus: str, kind: DeviceKind, parent: str | None, host: int, *, link: Link, text: str, known: Details | None
) -> PciDevice:
    found = _IDS.search(text)
    ids = found[1].lower() if found else ""
    if not ids and (numbers := _NUMBERS.match(text)) is not None:
        ids = numbers[2].lower()
    if not ids and (number := _NVIDIA_ID.search(text)) is not None:
        ids = f"10de:{number[1].lower()}"
    name = text
    if kind is DeviceKind.GPU:
        bracket = _GPU_NAME.search(_PROGRAMMING.sub("", text))
        name = name_of(ids) or (bracket[1] if bracket else text.rsplit(": ", maxsplit=1)[-1])
    return PciDevice(bus, kind, parent, host, link, ids, name, known.numa if known is not None else None)


def _kind(text: str, bus: str) -> DeviceKind:
    low = text.lower()
    if (numbers := _NUMBERS.match(low)) is not None:
        return _kind_by_numbers(numbers[1], numbers[2])
    if "nvswitch" in low:
        return DeviceKind.NVSWITCH
    if not bus.endswith(".0") and not _is_nic(text):
        return DeviceKind.OTHER
    if "nvidia corporation" in low and not any(word in low for word in _NOT_A_GPU):
        return DeviceKind.GPU
    if any(word in low for word in ("instinct", "processing accelerators: advanced micro", "aqua vanjaram")):
        return DeviceKind.GPU
    return DeviceKind.NIC if _is_nic(text) else DeviceKind.OTHER


def _kind_by_numbers(code: str, ids: str) -> DeviceKind:
    """Kind by class and vendor: displays and accelerators of NVIDIA and AMD; Mellanox, EFA and InfiniBand adapters."""
    vendor = ids[:4]
    if code[:2] in {"03", "12"} and vendor in {"10de", "1002"}:
        return DeviceKind.GPU
    if code == "0680" and vendor == "10de":
        return DeviceKind.NVSWITCH
    adapter = code == "0207" or (code == "0200" and (vendor == "15b3" or ids.startswith("1d0f:efa")))
    return DeviceKind.NIC if adapter else DeviceKind.BRIDGE if code == "0604" else DeviceKind.OTHER


def _is_nic(text: str) -> bool:
    low = text.lower()
    if (numbers := _NUMBERS.match(low)) is not None:
        return _kind_by_numbers(numbers[1], numbers[2]) is DeviceKind.NIC
    return any(word in low for word in _FABRIC_NICS) and not any(word in low for word in _NOT_A_NIC)


def gpu_name(details: Details) -> str:
    """What the GPU is called; empty for other devices."""
    if _kind(details.text, details.bus) is not DeviceKind.GPU:
        return ""
    return _device(details.bus, DeviceKind.GPU, None, 0, link=NO_LINK, text=details.text, known=None).name


def is_nic(details: Details) -> bool:
    """Whether the device is an RDMA adapter by its name."""
    return _is_nic(details.text)


def with_details(found: Lspci, details: Mapping[str, Details], redirects: tuple[int, int]) -> Lspci:
    """The tree with the details of further files about the same machine."""
    devices = {
        bus: replace(
            device, link=details[bus].cap, numa=device.numa if details[bus].numa is None else details[bus].numa
        )
        if bus in details
        else device
        for bus, device in found.devices.items()
    }
    return replace(found, devices=devices, details=details, redirects=redirects)


def link_of(device: PciDevice, found: Lspci) -> Link:
    """What a device's link can do: LnkCap of both ends, where both are known."""
    other = found.details.get(device.parent or "")
    return slower(device.link, other.cap) if other is not None else device.link


def _remarks(found: Lspci) -> list[str]:
    remarks = []
    asleep = [
        one for one in found.details.values()
        if one.status.idle and (one.cap.gt_per_s or 0) > (one.status.gt_per_s or 0)
        and _kind(one.text, one.bus) is DeviceKind.GPU
    ]  # fmt: skip
    if asleep:
        remarks.append(
            f"{_listed([one.bus for one in asleep])}: LnkSta {asleep[0].status} of an idle GPU; LnkCap "
            f"{asleep[0].cap} is taken"
        )
    narrow = [
        one for one in found.details.values()
        if one.status.lanes and one.cap.lanes and one.status.lanes < one.cap.lanes
        and _kind(one.text, one.bus) in {DeviceKind.GPU, DeviceKind.NIC}
    ]  # fmt: skip
    remarks += [f"{one.bus} runs on {one.status.lanes} of {one.cap.lanes} lanes" for one in narrow[:8]]
    on, of = found.redirects
    if on:
        remarks.append(f"ACS redirects P2P through the CPU on {on} of {of} ports: PIX pairs lose half of their rate")
    if found.lan_ports:
        remarks.append(f"{found.lan_ports} Ethernet ports whose names are not of RDMA adapters: not counted as NICs")
    if not found.devices:
        remarks.append("no tree: neither a drawing (lspci -tv) nor bridges with their bus numbers")
    elif not found.of_kind(DeviceKind.GPU):
        remarks.append("no GPU among the devices")
    if found.devices and not any(device.numa is not None for device in found.devices.values()):
        remarks.append("no NUMA nodes: which root ports are of one socket is not told (lspci -vvv, or topo -m, does)")
    return remarks


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
