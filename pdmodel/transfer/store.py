"""Ways into a KV store and out of it, with the limits of a client beside the ports of the boxes.

A rank's client handles one object after another: what an object costs, and then its bytes. While it does the one it
does not do the other, so both times add up, as in `pdmodel.costs.kv_store.put_terms`: its time is a port of its own, in
series with those that its bytes cross.

A chain of copies (a put and the get behind it, HBM to host memory and on into the store) is one fluid flow that crosses
the ports of all: each copy follows the one before piece by piece, with perfect pipelining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.fullest_port import busiest, port_loads
from pdmodel.costs.nic_choice import nic_order, nics_of_memory
from pdmodel.hardware.ports import REFERENCE_BYTES, Port, PortKind, Route
from pdmodel.hardware.routes import (
    gpu_to_host,
    gpu_to_wire,
    host_copy,
    host_disk,
    host_to_gpu,
    host_to_nic,
    merge,
    nic_to_host,
    striped,
    weighed,
    wire_to_gpu,
)
from pdmodel.hardware.topology import Box
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import StorePlace
from pdmodel.tiers import Store
from pdmodel.transfer.flows import Flow
from pdmodel.units import US


@dataclass(frozen=True, slots=True)
class Asking:
    """What a rank's client puts or gets: ``share`` of a flow of ``size_bytes`` on ``route``, in such objects [byte]."""

    box: Box
    gpu: int
    route: Route
    size_bytes: float
    object_bytes: float
    put: bool
    share: float = 1.0


class StoreWays:
    """The ways of a scenario into its KV store and out of it, and the ports that they cross beside those of the boxes.

    Of host memory the NICs of its socket move the bytes, in equal turns; of a GPU its nearest one. `StorePlace.REMOTE`:
    through the fabric, what the other nodes have is not bounded. `StorePlace.PREFILL_HOST`: in the memory of the socket
    that asks, copied by the CPU. Ports of the store: what a node reads or writes at most, and the time of each rank's
    client (`in_series`).
    """

    def __init__(self, resolved: ResolvedScenario, store: Store) -> None:
        self._resolved = resolved
        self.store = store
        self._ports: dict[str, Port] = {}

    @classmethod
    def of(cls, resolved: ResolvedScenario) -> StoreWays | None:
        """Of a scenario; None where it has no store."""
        return None if resolved.store is None else cls(resolved, resolved.store)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The ports of the store on the ways that were asked for so far."""
        return tuple(self._ports.values())

    # ---- between host memory and the store -----------------------------------------------------------------------
    def fetch(self, gpu: int) -> Route:
        """From the store into the memory of a prefill GPU's socket."""
        return self._limited(self._host(gpu, put=False), self._resolved.prefill_box, put=False)

    def backup(self, gpu: int) -> Route:
        """From the memory of a prefill GPU's socket into the store, every copy of the objects."""
        way = self._limited(self._host(gpu, put=True), self._resolved.prefill_box, put=True)
        return weighed(way, self.store.replicas)

    def _host(self, gpu: int, *, put: bool) -> Route:
        box = self._resolved.prefill_box
        home = box.socket(box.gpu(gpu))
        if self.store.is_local:
            return host_disk(box, home, write=not put)
        if self.store.spec.place is StorePlace.PREFILL_HOST:
            return host_copy(box, home, home)
        ways = []
        for k, nic in enumerate(nics_of_memory(box, home, self._resolved.nics)):
            near = [host_to_nic(box, nic, home) if put else nic_to_host(box, nic, home), *self._fabric()]
            far = []
            if self.store.spec.place is StorePlace.DECODE_HOST:
                peer, other = self._resolved.decode_nics[k % len(self._resolved.decode_nics)], self._resolved.decode_box
                far = [nic_to_host(other, peer) if put else host_to_nic(other, peer)]
            parts = near + far if put else far + near[::-1]
            ways.append(replace(merge(*parts), device=near[0].device))
        return striped(ways)

    # ---- between GPUs through the store --------------------------------------------------------------------------
    def put_and_get(self, source: int, target: int, put_share: float) -> tuple[Route, Route]:
        """From a prefill GPU into the store, all copies, and from there into a decode GPU; per byte that is got.

        ``put_share``: of the bytes that are got, those that this GPU puts, 0 where they are in the store already.
        """
        resolved, place = self._resolved, self.store.spec.place
        box, other = resolved.prefill_box, resolved.decode_box
        nic = nic_order(box, source, resolved.nics)[0]
        peer = nic_order(other, target, resolved.decode_nics)[0]
        out, into = gpu_to_wire(box, source, nic), wire_to_gpu(other, peer, target)
        if place is StorePlace.PREFILL_HOST:
            near = nics_of_memory(box, box.socket(box.gpu(source)), resolved.nics)
            reader = host_to_nic(box, near[source % len(near)], box.socket(box.gpu(source)))
            put, get = gpu_to_host(box, source), merge(reader, *self._fabric(), into)
        elif place is StorePlace.DECODE_HOST:
            writer = nic_to_host(other, peer, other.socket(other.gpu(target)))
            put, get = merge(out, *self._fabric(), writer), host_to_gpu(other, target)
        else:
            put, get = merge(out, *self._fabric()), merge(*self._fabric(), into)
        written = weighed(self._limited(put, box, put=True), put_share * self.store.replicas)
        return written, self._limited(get, other, put=False)

    # ---- clients -------------------------------------------------------------------------------------------------
    def in_series(self, asked: Sequence[Asking]) -> list[Route]:
        """Routes charged with the time of the clients that move what goes over them.

        Equation: a byte takes its client o / s + T_c / V_c: o per object of s bytes (once, however many copies are
        written), and then its share of the time T_c = max_e load_e / C_e, e: ports that the client's V_c bytes cross,
        load: what all of ``asked`` put there (every copy). On a port of 64 KiB / o that is so many times 64 KiB / o.

        Parameters: ``asked``: what the clients of one request move at the same time, puts and gets apart.
        Returns: the routes, in the same order.
        Validity: exact for one request alone, whose ranks are in step: T = k o + R V / B. Beside other traffic bytes
        take longer than T_c: the ports that are shared say so, but not that k o comes on top, so it is too quick by at
        most k o. PutStart and PutEnd are one each for all copies; what a copy adds to o is not known and left out.
        Source: `pdmodel.costs.kv_store.put_terms`.
        """
        constants = self.store.constants
        capacity = self.capacity
        load = port_loads((one.route, one.size_bytes) for one in asked)
        found = []
        for one in asked:
            each_s = constants.object_put_s if one.put else constants.object_get_s
            if not each_s or not one.share:
                found.append(one.route)
                continue
            mine = [each for each in asked if (each.box.node, each.gpu) == (one.box.node, one.gpu)]
            crossed = {name: load[name] for each in mine for name in each.route.ports}
            moved = sum(each.share * each.size_bytes for each in mine)
            byte_s = busiest(crossed, capacity).time_s / moved
            if one.object_bytes:
                byte_s += each_s / one.object_bytes
            port = self._client(one, each_s)
            charge = Route("", {port.name: one.share * byte_s * port.capacity_bytes_per_s}, {port.name: ("client",)})
            found.append(merge(one.route, charge))
        return found

    def _client(self, one: Asking, each_s: float) -> Port:
        name = one.box.port_name(one.box.gpu(one.gpu), f"store_{'put' if one.put else 'get'}")
        if name not in self._ports:
            constants = self.store.constants
            note = f"{each_s / US:g} us an object, then its bytes; {constants.ref}"
            rate = REFERENCE_BYTES / each_s
            self._ports[name] = Port(name, PortKind.CLIENT, rate, source=constants.source, note=note)
        return self._ports[name]

    # ---- ports ---------------------------------------------------------------------------------------------------
    def crossed(self, flows: Sequence[Flow]) -> tuple[Port, ...]:
        """The ports of the store that some flow crosses."""
        names = {name for flow in flows for route in flow.routes for name in route.ports}
        return tuple(port for port in self.ports if port.name in names)

    @property
    def capacity(self) -> dict[str, float]:
        """Of the ports of the boxes, and of those of the store so far [byte/s]."""
        return {port.name: port.capacity_bytes_per_s for port in (*self._resolved.ports, *self.ports)}

    def _fabric(self) -> tuple[Route, ...]:
        fabric = self._resolved.fabric
        return () if fabric is None else (Route("", {fabric.name: 1.0}, {fabric.name: ("wire",)}),)

    def _limited(self, way: Route, box: Box, *, put: bool) -> Route:
        """The way with what a node of the store's clients reads or writes at most."""
        limit = self.store.limit(put=put)
        if limit is None:
            return way
        name = box.port_name("store", "put" if put else "get")
        most, source, note = limit
        self._ports[name] = Port(name, PortKind.STORE, most, source=source, note=note)
        return merge(way, Route("", {name: 1.0}, {name: ("client",)}))
