"""A box as a tree of PCIe links, every link two ports, with NVLink, host memory and the limits that ports share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pdmodel.errors import InputError
from pdmodel.hardware.figures import DeviceLink, Figure, rate
from pdmodel.hardware.ports import Discipline, Port, PortKind
from pdmodel.hardware.profile import Distance, HardwareProfile, RootComplex


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of the tree: the ports of the link from an element towards the CPU (``up``) and back (``down``)."""

    element: str
    parent: str
    up: str
    down: str


@dataclass(frozen=True, eq=False)
class Box:
    """A profile as a node of a scenario: ports whose names begin with ``node``, and the tree that routes walk.

    ``elements`` are named as in the profile (``gpu0``, ``nic1``, a switch, a root port); ports as ``P/gpu0/egress``.
    """

    profile: HardwareProfile
    node: str

    @property
    def gpu_count(self) -> int:
        """Number of GPUs."""
        return self.profile.gpu.count

    @property
    def nic_count(self) -> int:
        """Number of NICs."""
        return self.profile.nics.count if self.profile.nics else 0

    @property
    def has_nvlink(self) -> bool:
        """Whether every GPU reaches every other by NVLink."""
        return self.profile.links.nvlink is not None

    def port_name(self, *parts: str) -> str:
        """``P/gpu0/egress`` of ``("gpu0", "egress")``."""
        return "/".join((self.node, *parts))

    def gpu(self, index: int) -> str:
        """The element of a GPU; `InputError` where there is no such GPU."""
        return self._element("gpu", index, self.gpu_count)

    def nic(self, index: int) -> str:
        """The element of a NIC; `InputError` where there is no such NIC."""
        return self._element("nic", index, self.nic_count)

    def _element(self, kind: str, index: int, count: int) -> str:
        if not 0 <= index < count:
            legal = f"0 to {count - 1}" if count else f"none: {self.profile.name} has no {kind.upper()}"
            raise InputError(f"{kind.upper()} {index} does not exist on {self.node}", expected=legal)
        return f"{kind}{index}"

    # ---- the tree ------------------------------------------------------------------------------------------------
    @cached_property
    def steps(self) -> Mapping[str, Step]:
        """Each GPU, NIC and switch with its link towards the CPU."""
        profile = self.profile
        found: dict[str, Step] = {}
        holders = [(port.name, port.gpus) for port in profile.tree.root_ports]
        holders += [(switch.name, switch.gpus) for switch in profile.tree.switches]
        for holder, gpus in holders:
            for gpu in gpus:
                found[f"gpu{gpu}"] = self._device_step(f"gpu{gpu}", holder)
        for k, where in enumerate(profile.nics.attached_to if profile.nics else ()):
            found[f"nic{k}"] = self._device_step(f"nic{k}", where)
        for switch in profile.tree.switches:
            up, down = self.port_name(switch.name, "up"), self.port_name(switch.name, "down")
            found[switch.name] = Step(switch.name, switch.under, up, down)
        return found

    def _device_step(self, element: str, parent: str) -> Step:
        return Step(element, parent, self.port_name(element, "egress"), self.port_name(element, "ingress"))

    @cached_property
    def socket_of_root_port(self) -> Mapping[str, str]:
        """Root port to its socket."""
        return {port.name: port.socket for port in self.profile.tree.root_ports}

    @cached_property
    def root_complexes_of(self) -> Mapping[str, tuple[RootComplex, ...]]:
        """Root port to the limits that it shares with others."""
        groups = self.profile.tree.root_complexes
        return {
            port.name: tuple(group for group in groups if port.name in group.root_ports)
            for port in self.profile.tree.root_ports
        }

    def climb(self, element: str) -> tuple[Step, ...]:
        """The links from an element up to its root port."""
        found = []
        while element in self.steps:
            found.append(self.steps[element])
            element = found[-1].parent
        return tuple(found)

    def root_port(self, element: str) -> str:
        """The root port above an element."""
        return self.climb(element)[-1].parent

    def socket(self, element: str) -> str:
        """The socket above an element."""
        return self.socket_of_root_port[self.root_port(element)]

    def distance(self, first: str, second: str) -> Distance:
        """How far two elements are apart (see `Distance`)."""
        one, two = self.climb(first), self.climb(second)
        if one[-1].parent == two[-1].parent:
            above = [step.parent for step in two]
            up = next(k for k, step in enumerate(one) if step.parent in above)
            down = above.index(one[up].parent)
            return Distance.PIX if up == down == 0 else Distance.PXB
        if self.socket(first) != self.socket(second):
            return Distance.SYS
        groups = [{group.name for group in self.root_complexes_of[path[-1].parent]} for path in (one, two)]
        same = bool(groups[0] & groups[1]) or not (groups[0] or groups[1])
        return Distance.PHB if same else Distance.NODE

    # ---- ports ---------------------------------------------------------------------------------------------------
    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Every port of the box."""
        return tuple(
            port for part in (self._gpu_ports, self._switch_ports, self._host_ports, self._nic_ports) for port in part()
        )

    @cached_property
    def port_index(self) -> Mapping[str, Port]:
        """Port by name."""
        return {port.name: port for port in self.ports}

    def _port(
        self,
        name: str,
        kind: PortKind,
        figure: Figure,
        *,
        note: str = "",
        discipline: Discipline = Discipline.SHARED,
    ) -> Port:
        source = self.profile.sources[figure.source]
        return Port(
            name,
            kind,
            rate(figure),
            guard_bytes_per_s=self.profile.guard_share.value * rate(figure),
            discipline=discipline,
            source=source.kind,
            note=note or source.note,
        )

    def _link(
        self, element: str, link: DeviceLink, kinds: tuple[PortKind, PortKind], suffix: str = ""
    ) -> Iterator[Port]:
        yield self._port(self.port_name(element, f"{suffix}egress"), kinds[0], link.egress_gb_per_s)
        yield self._port(self.port_name(element, f"{suffix}ingress"), kinds[1], link.ingress_gb_per_s)
        if link.both_gb_per_s is not None:
            yield self._port(self.port_name(element, f"{suffix}both"), PortKind.BOTH_DIRECTIONS, link.both_gb_per_s)

    def _gpu_ports(self) -> Iterator[Port]:
        links = self.profile.links
        for k in range(self.gpu_count):
            own = links.overrides.get(f"gpu{k}", links.gpu)
            yield from self._link(f"gpu{k}", own, (PortKind.GPU_EGRESS, PortKind.GPU_INGRESS))
            if links.nvlink is not None:
                kinds = (PortKind.NVLINK_EGRESS, PortKind.NVLINK_INGRESS)
                yield from self._link(f"gpu{k}", links.nvlink, kinds, "nvlink_")

    def _switch_ports(self) -> Iterator[Port]:
        for switch in self.profile.tree.switches:
            uplink = switch.uplink or self.profile.links.uplink
            if uplink is None:  # refused by the profile's checks
                continue
            yield self._port(self.port_name(switch.name, "up"), PortKind.UPLINK_UP, uplink.up_gb_per_s)
            yield self._port(self.port_name(switch.name, "down"), PortKind.UPLINK_DOWN, uplink.down_gb_per_s)
            if uplink.both_gb_per_s is not None:
                name = self.port_name(switch.name, "both")
                yield self._port(name, PortKind.BOTH_DIRECTIONS, uplink.both_gb_per_s)

    def _host_ports(self) -> Iterator[Port]:
        links, tree = self.profile.links, self.profile.tree
        notes = {note.port: note.text for note in self.profile.bound_by if note.port}
        for group in tree.root_complexes:
            name = self.port_name(group.name)
            yield self._port(name, PortKind.ROOT_COMPLEX, group.capacity_gb_per_s, note=notes.get(group.name, ""))
        for socket in tree.sockets:
            yield self._port(self.port_name(socket, "host_memory"), PortKind.HOST_MEMORY, links.host_memory_gb_per_s)
        if links.inter_socket_gb_per_s is None:
            return
        for one in tree.sockets:
            for two in tree.sockets:
                if one != two:
                    name = self.inter_socket(one, two)
                    yield self._port(name, PortKind.INTER_SOCKET, links.inter_socket_gb_per_s)

    def inter_socket(self, source: str, destination: str) -> str:
        """The port from one socket to another."""
        return self.port_name(source, f"to_{destination}")

    def _nic_ports(self) -> Iterator[Port]:
        nics = self.profile.nics
        if nics is None:
            return
        for k in range(nics.count):
            own = self.profile.links.overrides.get(f"nic{k}", nics.pcie)
            yield from self._link(f"nic{k}", own, (PortKind.NIC_EGRESS, PortKind.NIC_INGRESS))
            for name, kind in (("tx", PortKind.NIC_TX), ("rx", PortKind.NIC_RX)):
                wire = self.port_name(f"nic{k}", name)
                yield self._port(wire, kind, nics.achievable_gb_per_s, discipline=Discipline.CLASSES)
            for distance, far in nics.gpu_rate.items():
                read, write = self.gpu_rate_ports(f"nic{k}", distance)
                yield self._port(read, PortKind.NIC_INGRESS, far.read_gb_per_s)
                yield self._port(write, PortKind.NIC_EGRESS, far.write_gb_per_s)

    def gpu_rate_ports(self, nic: str, distance: Distance) -> tuple[str, str]:
        """The ports that stand for what a NIC reaches on GPU memory at a distance: reading, writing."""
        return self.port_name(nic, f"reads_{distance.value}"), self.port_name(nic, f"writes_{distance.value}")
