"""PCIe as topology files describe it: links, devices and the tree they hang in; what a link carries, by arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

SPEEDS: Mapping[float, int] = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""Transfers a second and lane [GT/s] -> PCIe generation."""

IDLE_GT_PER_S = 5.0
"""Up to this a link of a GPU is asleep: no data-centre GPU since 2012 has less than Gen3."""

# Share of the line's bits that are data: 8b/10b, 128b/130b, and 242 of 256 bytes of a Gen6 flit.
_LINE_CODE = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
PACKET_BYTES, OVERHEAD_BYTES = 128, 24
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)\s*GT/s", re.IGNORECASE)
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link: transfers a second and lane, lanes; None where the file does not tell."""

    gt_per_s: float | None = None
    lanes: int | None = None

    @property
    def generation(self) -> int | None:
        """PCIe generation, None where the speed is not known."""
        return SPEEDS.get(self.gt_per_s) if self.gt_per_s is not None else None

    @property
    def idle(self) -> bool:
        """Whether the speed is that of a link that sleeps."""
        return self.gt_per_s is not None and self.gt_per_s <= IDLE_GT_PER_S

    def __str__(self) -> str:
        speed = f"{self.gt_per_s:g} GT/s" if self.gt_per_s is not None else "unknown speed"
        return f"{speed} x{self.lanes}" if self.lanes else speed


NO_LINK = Link()


class DeviceKind(StrEnum):
    """What hangs in the tree."""

    GPU = "gpu"
    NIC = "nic"
    BRIDGE = "bridge"
    NVSWITCH = "nvswitch"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device: ``parent`` is the bus id of the bridge above (None: the CPU's own port), ``host`` its CPU or root bus.

    ``ids``: vendor and device, as 10de:2330; ``link``: towards the parent.
    """

    bus: str
    kind: DeviceKind
    parent: str | None
    host: int
    link: Link
    ids: str = ""
    name: str = ""
    numa: int | None = None


def raw_gb_per_s(link: Link) -> float | None:
    """What a link carries after its line code, one direction [GB/s].

    Equation: lanes x GT/s x share of data bits / 8. Shapes: scalar. Valid for Gen1 to Gen6; None where speed or lanes
    are not known. Source: PCI Express base specification, encodings of each generation.

    >>> round(raw_gb_per_s(Link(32.0, 16)), 2), round(raw_gb_per_s(Link(64.0, 16)), 1)
    (63.02, 121.0)
    """
    if link.generation is None or link.gt_per_s is None or not link.lanes:
        return None
    return link.lanes * link.gt_per_s * _LINE_CODE[link.generation] / 8


def capacity_gb_per_s(link: Link, packet_bytes: int = PACKET_BYTES) -> float | None:
    """What a link carries of payload, one direction [GB/s].

    Equation: raw x P / (P + 24), P bytes of payload in each packet and 24 bytes around it (framing, sequence number,
    header with a 64-bit address, checksum). Shapes: scalar. Raises: nothing; None where the link is not known. Valid
    for writes; measured Gen4 (26.3) and Gen5 (53-56) links lie at or above P = 128. Source: Intel AN 708.

    >>> round(capacity_gb_per_s(Link(32.0, 16)), 1), round(capacity_gb_per_s(Link(16.0, 16)), 1)
    (53.1, 26.5)
    """
    raw = raw_gb_per_s(link)
    return None if raw is None else raw * packet_bytes / (packet_bytes + OVERHEAD_BYTES)


def speed_of(text: str) -> float | None:
    """GT/s in a text such as "32.0 GT/s PCIe"; None for one that no generation has.

    >>> speed_of("32.0 GT/s PCIe"), speed_of("16 GT/s"), speed_of("Speed 2.5GT/s (downgraded)"), speed_of("")
    (32.0, 16.0, 2.5, None)
    """
    found = _SPEED.search(text)
    value = float(found[1]) if found else None
    return value if value in SPEEDS else None


def bus_id(text: str) -> str | None:
    """A bus id in full and in lower case, None for what is none.

    >>> bus_id("0F:00.0"), bus_id("00000000:0f:00.0"), bus_id("gpu")
    ('0000:0f:00.0', '0000:0f:00.0', None)
    """
    found = _BUS.fullmatch(text.strip())
    if found is None:
        return None
    domain = (found[1] or "0000").lower()
    domain = domain[-4:] if set(domain[:-4]) <= {"0"} else domain
    return f"{domain}:{found[2].lower()}:{found[3].lower()}.{found[4].lower()}"


def slower(one: Link, two: Link) -> Link:
    """The lesser speed and the lesser width of two ends of a link; what one does not know the other says."""
    speeds = [value for value in (one.gt_per_s, two.gt_per_s) if value is not None]
    lanes = [value for value in (one.lanes, two.lanes) if value]
    return Link(min(speeds, default=None), min(lanes, default=None))


def above(device: PciDevice, tree: Mapping[str, PciDevice]) -> tuple[str, ...]:
    """Bus ids of the bridges over a device, the nearest first."""
    found: list[str] = []
    parent = device.parent
    while parent is not None and parent in tree and parent not in found:
        found.append(parent)
        parent = tree[parent].parent
    return tuple(found)


def distance(one: PciDevice, two: PciDevice, tree: Mapping[str, PciDevice], *, same_socket: bool) -> str:
    """Class of the way between two devices: PIX (one switch), PXB (several), PHB (the CPU), SYS (two sockets).

    NODE is PHB here: a tree of bridges does not show host bridges apart.
    """
    if one.host != two.host:
        return "PHB" if same_socket else "SYS"
    first, second = above(one, tree), above(two, tree)
    common = next((bus for bus in first if bus in second), None)
    if common is None:
        return "PHB" if same_socket else "SYS"
    return "PIX" if first[0] == common == second[0] else "PXB"


def in_bus_order(devices: Sequence[PciDevice]) -> Iterator[PciDevice]:
    """Devices as drivers number them: by bus id."""

    def place(device: PciDevice) -> tuple[bool, tuple[int, ...]]:
        # Those whose id is none come last, in the order of the file.
        known = _BUS.fullmatch(device.bus) is not None
        return not known, tuple(int(part, 16) for part in re.split(r"[:.]", device.bus)) if known else ()

    return iter(sorted(devices, key=place))


# Names by vendor and device id, as the PCI ID Repository (pci-ids.ucw.cz, 2023-04-10) has them, spelt as drivers do;
# 2bb5 and 74a1 are younger: from captures of such machines.
_NAMES = {
    "10de:1b38": "Tesla P40",
    "10de:1db1": "Tesla V100 SXM2 16GB",
    "10de:1db5": "Tesla V100 SXM2 32GB",
    "10de:1db6": "Tesla V100 PCIe 32GB",
    "10de:1e04": "GeForce RTX 2080 Ti",
    "10de:1e07": "GeForce RTX 2080 Ti",
    "10de:20b0": "A100 SXM4 40GB",
    "10de:20b2": "A100 SXM4 80GB",
    "10de:20b5": "A100 PCIe 80GB",
    "10de:20f1": "A100 PCIe 40GB",
    "10de:20f3": "A800 SXM4 80GB",
    "10de:2204": "GeForce RTX 3090",
    "10de:2230": "RTX A6000",
    "10de:2235": "A40",
    "10de:2324": "H800 SXM5",
    "10de:2330": "H100 SXM5 80GB",
    "10de:2331": "H100 PCIe",
    "10de:2684": "GeForce RTX 4090",
    "10de:26b1": "RTX 6000 Ada Generation",
    "10de:27b8": "L4",
    "10de:2bb5": "RTX PRO 6000 Blackwell Server Edition",
    "1002:7408": "Instinct MI250X",
    "1002:740c": "Instinct MI250X",
    "1002:740f": "Instinct MI210",
    "1002:74a1": "Instinct MI300X",
}


def name_of(ids: str) -> str:
    """What the device with these ids is called, empty where it is not known."""
    return _NAMES.get(ids.lower(), "")
