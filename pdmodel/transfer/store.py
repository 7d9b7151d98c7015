"""Ways into a KV store and out of it, with the limits of a client beside the ports of the boxes.

A chain of copies (a put and the get behind it, HBM to host memory and on into the store) is one fluid flow that crosses
the ports of all: each copy follows the one before piece by piece, with perfect pipelining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pdmodel.costs.nic_choice import nic_order
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
from pdmodel.transfer.posting import never_binds
from pdmodel.units import US


class StoreWays:
    """The ways of a scenario into its KV store and out of it, and the ports that they cross beside those of the boxes.

    Of host memory the NICs of its socket move the bytes, in equal turns; of a GPU its nearest one. `StorePlace.REMOTE`:
    through the fabric, what the other nodes have is not bounded. `StorePlace.PREFILL_HOST`: in the memory of the socket
    that asks, copied by the CPU. Ports of the store: what a client (a node) reads or writes at most, and the objects
    that a rank puts or gets, one after another.
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
    def fetch(self, gpu: int, object_bytes: float) -> Route:
        """From the store into the memory of a prefill GPU's socket, in objects of this size."""
        return self._client(self._host(gpu, put=False), self._resolved.prefill_box, gpu, object_bytes, put=False)

    def backup(self, gpu: int, object_bytes: float) -> Route:
        """From the memory of a prefill GPU's socket into the store, every copy of the objects."""
        box = self._resolved.prefill_box
        way = self._client(self._host(gpu, put=True), box, gpu, object_bytes, put=True)
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
    def send(self, source: int, target: int, put_share: float, objects: tuple[float, float]) -> Route:
        """From a prefill GPU into the store and from there into a decode GPU, as one fluid flow: `put_and_get`."""
        put, get = self.put_and_get(source, target, put_share, objects)
        parts = (put, get) if put_share else (get,)
        # Each copy engine on the way is one stage of a fluid, not a queue of its own.
        return replace(merge(*parts, name=">store>".join(part.name for part in parts)), fifo=False)

    def put_and_get(
        self, source: int, target: int, put_share: float, objects: tuple[float, float]
    ) -> tuple[Route, Route]:
        """From a prefill GPU into the store, all copies, and from there into a decode GPU; per byte that is got.

        ``put_share``: of the bytes that are got, those that this GPU puts, 0 where they are in the store already;
        ``objects``: bytes of an object that is put, and of one that is got.
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
        written = weighed(self._client(put, box, source, objects[0], put=True), put_share * self.store.replicas)
        return written, self._client(get, other, target, objects[1], put=False)

    # ---- ports ---------------------------------------------------------------------------------------------------
    def settled(self, flows: Sequence[Flow], known: Mapping[str, float]) -> tuple[tuple[Flow, ...], tuple[Port, ...]]:
        """Flows and the ports that can hold one up; calls for objects that others always outlast are dropped.

        ``known``: capacity of the ports of the boxes [byte/s].
        """
        capacity = dict(known) | {name: port.capacity_bytes_per_s for name, port in self._ports.items()}
        others = {name for name in capacity if name not in self._ports or self._ports[name].kind is PortKind.STORE}
        routes = [route for flow in flows for route in flow.routes]
        idle = set()
        for name in self._ports.keys() - others:
            mine = [route for route in routes if name in route.ports]
            if not mine or never_binds(name, mine, others, capacity):
                idle.add(name)
        slim = tuple(replace(flow, routes=tuple(_without(route, idle) for route in flow.routes)) for flow in flows)
        return slim, tuple(port for name, port in self._ports.items() if name not in idle)

    def _fabric(self) -> tuple[Route, ...]:
        fabric = self._resolved.fabric
        return () if fabric is None else (Route("", {fabric.name: 1.0}, {fabric.name: ("wire",)}),)

    def _client(self, way: Route, box: Box, gpu: int, object_bytes: float, *, put: bool) -> Route:
        """The way with the store's own limits on the client that asks."""
        store, verb = self.store, "put" if put else "get"
        extra: dict[str, float] = {}
        limit = store.limit(put=put)
        if limit is not None:
            name = box.port_name("store", verb)
            most, source, note = limit
            self._ports[name] = Port(name, PortKind.STORE, most, source=source, note=note)
            extra[name] = 1.0
        each_s = store.constants.object_put_s if put else store.constants.object_get_s
        if each_s and object_bytes:
            name = box.port_name(box.gpu(gpu), f"store_{verb}")
            note = f"{each_s / US:g} us an object; {store.constants.ref}"
            rate = REFERENCE_BYTES / each_s
            self._ports[name] = Port(name, PortKind.POSTING, rate, source=store.constants.source, note=note)
            extra[name] = REFERENCE_BYTES / object_bytes
        return merge(way, Route("", extra, dict.fromkeys(extra, ("client",)))) if extra else way


def _without(route: Route, ports: set[str]) -> Route:
    if not route.ports.keys() & ports:
        return route
    return replace(route, ports={name: share for name, share in route.ports.items() if name not in ports})


def nics_of_memory(box: Box, socket: str, allowed: Sequence[int]) -> tuple[int, ...]:
    """The NICs that move the bytes of a socket's memory: those of the socket, or where it has none, all.

    Source: Mooncake's topology.cpp prefers, for memory of NUMA node n, the NICs of that node, in turns.
    """
    near = tuple(nic for nic in allowed if box.socket(box.nic(nic)) == socket)
    return near or tuple(allowed)
