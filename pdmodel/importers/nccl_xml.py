"""NCCL and RCCL topology files (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE): XML in, a typed tree out.

Facts of the format: NVIDIA/nccl src/graph/{topo.h,topo.cc,xml.cc} at v2.30.7: each ``<pci>`` is one link to what is
above it; a ``<cpu>`` is a NUMA node; classes tell GPUs (0x03...., 0x12....) from NICs (0x02....).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from pdmodel.errors import InputError
from pdmodel.importers.pci import DeviceKind, Link, PciDevice, bus_id, name_of, speed_of

MOST_ELEMENTS, MOST_LEVELS, MOST_BYTES = 50_000, 64, 16 * 2**20
"""A box has some hundred elements on some ten levels; beyond this a file is refused."""

_KNOWN = {"system", "cpu", "pci", "gpu", "nvlink", "xgmi", "c2c", "pcilink", "nic", "net", "nvs"}
_INSIDE = {
    "cpu": {"system"},
    "pci": {"cpu", "pci"},
    "gpu": {"pci"},
    "nic": {"pci", "cpu"},
    "net": {"nic"},
    "nvlink": {"gpu"},
    "xgmi": {"gpu"},
    "c2c": {"gpu"},
    "pcilink": {"pci"},
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """A NUMA node. ``numa`` is -1 where the file says so (a machine without NUMA)."""

    numa: int | None
    vendor: str
    arch: str
    family: int | None
    model_id: int | None
    affinity: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """Links of a GPU to one target: kind is nvlink or xgmi; the target is a GPU or a switch (by class)."""

    kind: str
    target: str
    count: int
    to_switch: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """A ``<gpu>``: ``device`` is CUDA's index; ``gdr`` whether NICs may reach its memory."""

    bus: str
    device: int | None
    rank: int | None
    sm: int | None
    gcn: str
    gdr: bool | None
    fabric: tuple[Fabric, ...]
    c2c_gb_per_s: float | None


@dataclass(frozen=True, slots=True)
class Net:
    """A port of a NIC; ``bus`` is None where the NIC hangs under the CPU itself (a virtual one)."""

    name: str
    bus: str | None
    host: int
    card: int
    speed_mbit_per_s: float | None
    port: int | None
    gdr: bool | None
    latency_us: float | None
    guid: str
    most_connections: int | None
    device: int | None


@dataclass(frozen=True, slots=True)
class NcclSystem:
    """One file: CPUs in its order, every PCI device by bus id, GPUs and ports of NICs as their tags say.

    ``template``: there are GPUs by class and no ``<gpu>``. ``shortcuts``: pairs of bridges that a ``<pcilink>`` joins.
    """

    file: str
    version: int | None
    cpus: tuple[Cpu, ...]
    devices: Mapping[str, PciDevice]
    gpus: tuple[Gpu, ...]
    nets: tuple[Net, ...]
    template: bool
    shortcuts: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]

    def of_kind(self, kind: DeviceKind) -> tuple[PciDevice, ...]:
        """The PCI devices of one kind, in the order of the file."""
        return tuple(device for device in self.devices.values() if device.kind is kind)


@dataclass
class _Open:
    """An element that is not closed yet; ``bus`` is that of the ``<pci>`` it is (or is in)."""

    tag: str
    bus: str | None = None
    host: int = -1
    links: list[Fabric] = field(default_factory=list)
    c2c: float | None = None
    gpu: Mapping[str, str] | None = None
    card: int = -1


@dataclass
class _Builder:
    file: str
    version: int | None = None
    cpus: list[Cpu] = field(default_factory=list)
    devices: dict[str, PciDevice] = field(default_factory=dict)
    gpus: list[Gpu] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    shortcuts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stack: list[_Open] = field(default_factory=list)
    elements: int = 0
    cards: int = 0
    line: int = 1
    column: int = 1

    def refuse(self, what: str, expected: str | None = None) -> InputError:
        return InputError(what, file=self.file, path=f"line {self.line} column {self.column}", expected=expected)

    def warn(self, what: str) -> None:
        self.warnings.append(f"line {self.line}: {what}")

    # ---- elements ----------------------------------------------------------------------------------------------
    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.elements += 1
        if self.elements > MOST_ELEMENTS:
            raise self.refuse(f"more than {MOST_ELEMENTS} elements", "the topology of one box")
        if len(self.stack) >= MOST_LEVELS:
            raise self.refuse(f"elements nested more than {MOST_LEVELS} deep", "the topology of one box")
        parent = self.stack[-1] if self.stack else None
        if parent is None and tag != "system":
            raise self.refuse(f"the root is <{tag}>", "<system>, as NCCL_TOPO_DUMP_FILE writes it")
        opened = _Open(tag, parent.bus if parent else None, parent.host if parent else -1)
        self.stack.append(opened)
        if tag not in _KNOWN:
            self.warn(f"<{tag}> is not known: left out")
        elif tag in _INSIDE and (parent is None or parent.tag not in _INSIDE[tag]):
            self.warn(f"<{tag}> inside <{parent.tag if parent else ''}>: left out")
            opened.tag = "misplaced"
        else:
            self.take(tag, attributes, opened, parent)

    def take(self, tag: str, attributes: Mapping[str, str], opened: _Open, parent: _Open | None) -> None:
        if tag == "system":
            self.version = _whole(attributes.get("version"))
        elif tag == "cpu":
            opened.host = len(self.cpus)
            self.cpu(attributes)
        elif tag == "pci":
            self.pci(attributes, opened, parent)
        elif tag == "gpu":
            opened.gpu = attributes
        elif tag == "nic":
            opened.card, self.cards = self.cards, self.cards + 1
        elif tag == "net" and parent is not None:
            self.net(attributes, parent)
        elif tag in {"nvlink", "xgmi"} and parent is not None:
            self.fabric(tag, attributes, parent)
        elif tag == "c2c" and parent is not None:
            rate, count = _real(attributes.get("bw")), _whole(attributes.get("count")) or 1
            parent.c2c = (parent.c2c or 0.0) + (rate or 0.0) / 1000 * count  # MB/s a link
        elif tag == "pcilink" and opened.bus is not None:
            target = bus_id(attributes.get("target", ""))
            if target is not None:
                self.shortcuts.append((opened.bus, target))

    def end(self, _: str) -> None:
        closed = self.stack.pop()
        if closed.tag == "gpu" and closed.gpu is not None and closed.bus is not None:
            found = closed.gpu
            self.gpus.append(
                Gpu(
                    bus=closed.bus,
                    device=_whole(found.get("dev")),
                    rank=_whole(found.get("rank")),
                    sm=_whole(found.get("sm")),
                    gcn=found.get("gcn", ""),
                    gdr=_flag(found.get("gdr")),
                    fabric=tuple(closed.links),
                    c2c_gb_per_s=closed.c2c,
                )
            )
            device = self.devices[closed.bus]
            self.devices[closed.bus] = _as(device, DeviceKind.GPU)

    def cpu(self, attributes: Mapping[str, str]) -> None:
        numa = _whole(attributes.get("numaid"))
        if numa is None:
            self.warn("<cpu> without numaid")
        elif numa in [cpu.numa for cpu in self.cpus]:
            self.warn(f"a second <cpu> with numaid {numa}: taken as one of its own")
        self.cpus.append(
            Cpu(
                numa=numa,
                vendor=attributes.get("vendor", ""),
                arch=attributes.get("arch", ""),
                family=_whole(attributes.get("familyid")),
                model_id=_whole(attributes.get("modelid")),
                affinity=attributes.get("affinity", ""),
            )
        )

    def pci(self, attributes: Mapping[str, str], opened: _Open, parent: _Open | None) -> None:
        bus = bus_id(attributes.get("busid", ""))
        if bus is None or bus in self.devices:
            what = f"busid {attributes.get('busid', '')[:40]!r} " + ("is none" if bus is None else "is there twice")
            self.warn(f"{what}: counted as a device of its own")
            bus = f"{bus or 'unnamed'}#{len(self.devices)}"
        kind = _kind(attributes.get("class", ""))
        if kind is None:
            self.warn(f"class {attributes.get('class', '')[:20]!r} of {bus} is not known: taken as a bridge")
        opened.bus = bus
        ids = f"{_hex(attributes.get('vendor', ''))}:{_hex(attributes.get('device', ''))}"
        self.devices[bus] = PciDevice(
            bus=bus,
            kind=kind or DeviceKind.BRIDGE,
            parent=parent.bus if parent else None,
            host=opened.host,
            link=_link(attributes),
            ids=ids if len(ids) == 9 else "",
            name=name_of(ids),
            numa=self.cpus[opened.host].numa if 0 <= opened.host < len(self.cpus) else None,
        )

    def net(self, attributes: Mapping[str, str], parent: _Open) -> None:
        if parent.bus is not None and self.devices[parent.bus].kind is not DeviceKind.GPU:
            self.devices[parent.bus] = _as(self.devices[parent.bus], DeviceKind.NIC)
        self.nets.append(
            Net(
                name=attributes.get("name", "")[:80],
                bus=parent.bus,
                host=parent.host,
                card=parent.card,
                speed_mbit_per_s=_real(attributes.get("speed")),
                port=_whole(attributes.get("port")),
                gdr=_flag(attributes.get("gdr")),
                latency_us=_real(attributes.get("latency")),
                guid=attributes.get("guid", "")[:40],
                most_connections=_whole(attributes.get("maxconn")),
                device=_whole(attributes.get("dev")),
            )
        )

    def fabric(self, tag: str, attributes: Mapping[str, str], parent: _Open) -> None:
        target, count = attributes.get("target", ""), _whole(attributes.get("count"))
        if count is None or not 0 < count <= 64:
            self.warn(f"<{tag}> with count {attributes.get('count', '')[:20]!r}: left out")
            return
        kind = attributes.get("tclass", "").lower().removeprefix("0x")
        parent.links.append(Fabric(tag, bus_id(target) or target[:40], count, kind.startswith("0680")))


def parse(content: bytes | str, file: str) -> NcclSystem:
    """Read a topology file.

    Parameters: ``content``: the file's bytes, in any encoding that XML declares; ``file``: its name, for errors.
    Returns: `NcclSystem` with at least one GPU.
    Raises: `InputError` with line and column for what is no XML, no topology, or holds declarations of entities.
    """
    data = content.encode() if isinstance(content, str) else content
    if len(data) > MOST_BYTES:
        raise InputError(f"is larger than {MOST_BYTES // 2**20} MiB", file=file, expected="the topology of one box")
    builder = _Builder(file)
    parser = expat.ParserCreate()
    parser.buffer_text = True

    def placed(tag: str, attributes: dict[str, str]) -> None:
        builder.line, builder.column = parser.CurrentLineNumber, parser.CurrentColumnNumber + 1
        builder.start(tag, attributes)

    def declared(*_: object) -> None:
        builder.line, builder.column = parser.CurrentLineNumber, parser.CurrentColumnNumber + 1
        raise builder.refuse("declares an entity", "a topology file: it needs none")

    parser.StartElementHandler = placed
    parser.EndElementHandler = builder.end
    parser.EntityDeclHandler = declared
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code) or "malformed"
        where = f"line {error.lineno} column {error.offset + 1}"
        raise InputError(f"not XML: {what}", file=file, path=where, expected="an NCCL topology file") from None
    except (LookupError, ValueError) as error:  # an encoding that is not known, or bytes that are not in it
        raise InputError(f"not XML: {error}", file=file, path="line 1 column 1") from None
    return _finished(builder)


def _finished(builder: _Builder) -> NcclSystem:
    tagged = {gpu.bus for gpu in builder.gpus}
    by_class = [device for device in builder.devices.values() if device.kind is DeviceKind.GPU]
    if not by_class:
        raise builder.refuse("there is no GPU in it", "a <gpu>, or a <pci> of class 0x03.... or 0x12....")
    if builder.version not in {1, 2}:
        said = "no version" if builder.version is None else f"version {builder.version}"
        builder.warnings.append(f"<system> says {said}: NCCL reads 1, RCCL 2, and each refuses others")
    template = not builder.gpus
    if template:
        builder.warnings.append(
            "a template without <gpu>: GPUs and NICs are told apart by class, NVLink and GPUDirect are not shown, "
            "links are what its author wrote"
        )
    for device in by_class:
        if device.bus not in tagged and not template:
            builder.warnings.append(f"{device.bus} is a GPU by class and has no <gpu>: left out")
            builder.devices[device.bus] = _as(device, DeviceKind.OTHER)
    return NcclSystem(
        file=builder.file,
        version=builder.version,
        cpus=tuple(builder.cpus),
        devices=builder.devices,
        gpus=tuple(builder.gpus),
        nets=tuple(builder.nets),
        template=template,
        shortcuts=tuple(builder.shortcuts),
        warnings=tuple(builder.warnings),
    )


def _as(device: PciDevice, kind: DeviceKind) -> PciDevice:
    return PciDevice(device.bus, kind, device.parent, device.host, device.link, device.ids, device.name, device.numa)


def _kind(text: str) -> DeviceKind | None:
    """Kind by class; None for a class that is not known."""
    code = text.strip().lower().removeprefix("0x")
    if not re.fullmatch(r"[0-9a-f]{4,6}", code):
        return None
    if code.startswith("0680"):
        return DeviceKind.NVSWITCH
    kinds = {"03": DeviceKind.GPU, "12": DeviceKind.GPU, "02": DeviceKind.NIC}
    if code[:2] in kinds:
        return kinds[code[:2]]
    # 0801 is the direct function of a ConnectX-8, which NCCL treats as a bridge.
    return DeviceKind.BRIDGE if code.startswith(("0604", "0801")) else None


def _link(attributes: Mapping[str, str]) -> Link:
    lanes = _whole(attributes.get("link_width"))
    return Link(speed_of(attributes.get("link_speed", "")), lanes if lanes and 1 <= lanes <= 32 else None)


def _hex(text: str) -> str:
    code = text.strip().lower().removeprefix("0x")
    return code if re.fullmatch(r"[0-9a-f]{4}", code) else ""


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?[0-9]{1,12}", text.strip()) else None


def _real(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text.strip()) else None


def _flag(text: str | None) -> bool | None:
    value = _whole(text)
    return None if value is None else value != 0
