"""Posting threads and message rates as ports: what descriptors cost, in the bytes that pieces of 64 KiB would be.

A rank posts at most W / tau descriptors a second; the queue pairs that it has on a NIC take at most mu work requests.
In bytes of pieces of `REFERENCE_BYTES` = R each that is W R / tau and mu R; bytes that travel in descriptors of mean
length r count R / r of themselves there. Programs, replays and prices then treat both like any link. Ranks are
processes: each has its own threads, and on each NIC its own queue pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.kv_layout import engine_constants, engine_slicing, slices
from pdmodel.engines.spec import Mode
from pdmodel.hardware.ports import REFERENCE_BYTES, Port, PortKind, Route
from pdmodel.resolve import ResolvedScenario
from pdmodel.spec import SourceKind
from pdmodel.transfer.flows import Flow
from pdmodel.units import US

ROUNDED = 1 + 1e-9
"""What is 1 within rounding."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How the bytes of a flow are cut: (descriptors, bytes of each) for every kind of buffer [-], [byte]."""

    pieces: tuple[tuple[int, float], ...]

    @property
    def size_bytes(self) -> float:
        """All bytes [byte]."""
        return sum(count * size for count, size in self.pieces)

    @property
    def descriptors(self) -> int:
        """All descriptors [-]."""
        return sum(count for count, _ in self.pieces)

    @property
    def run_bytes(self) -> float:
        """Mean length of a descriptor [byte]."""
        return self.size_bytes / self.descriptors


class Posting:
    """Charges of the side that posts: the prefill side where it pushes, the decode side where it pulls."""

    def __init__(self, resolved: ResolvedScenario) -> None:
        self._constants = engine_constants(resolved.engine, resolved.posting_threads)
        self._slicing = engine_slicing(resolved.engine)
        self._push = resolved.engine.mode.value is Mode.PUSH
        self._box = resolved.prefill_box if self._push else resolved.decode_box
        self._known: dict[tuple[int, str, Pieces], Route] = {}
        self._ports: dict[str, Port] = {}

    def charged(self, route: Route, source: int, target: int, pieces: Pieces) -> Route:
        """The route with what each of its bytes costs the rank that posts, and the NIC that it posts to."""
        gpu = source if self._push else target
        key = (gpu, route.name, pieces)
        if key not in self._known:
            self._known[key] = self._charge(route, gpu, pieces)
        return self._known[key]

    def _charge(self, route: Route, gpu: int, pieces: Pieces) -> Route:
        box, constants = self._box, self._constants
        nic = next(name for name in route.ports if name.startswith(f"{box.node}/") and name.endswith(("/tx", "/rx")))
        requests = sum(count * slices(size, self._slicing) for count, size in pieces.pieces)
        charges = {}
        if constants.descriptor_s > 0:
            port = self._port(
                box.port_name(box.gpu(gpu), "posting"),
                PortKind.POSTING,
                constants.threads * REFERENCE_BYTES / constants.descriptor_s,
                f"{constants.threads} posting thread{'s' * (constants.threads > 1)} of this rank, "
                f"{constants.descriptor_s / US:.3g} us a descriptor, as bytes of 64 KiB descriptors",
            )
            charges[port] = REFERENCE_BYTES * pieces.descriptors / pieces.size_bytes
        port = self._port(
            box.port_name(box.gpu(gpu), nic.split("/")[1], "messages"),
            PortKind.MESSAGES,
            constants.messages_per_s * REFERENCE_BYTES,
            f"{constants.messages_per_s / 1e6:.3g} million work requests/s of this rank's queue pairs on the NIC, "
            "as bytes of 64 KiB requests",
        )
        charges[port] = REFERENCE_BYTES * requests / pieces.size_bytes
        return replace(route, ports={**route.ports, **charges})

    def _port(self, name: str, kind: PortKind, capacity: float, note: str) -> str:
        self._ports.setdefault(name, Port(name, kind, capacity, source=SourceKind.DERIVED, note=note))
        return name

    def settled(self, flows: Sequence[Flow], known: Mapping[str, float]) -> tuple[tuple[Flow, ...], tuple[Port, ...]]:
        """Flows and the ports that can hold one up; charges on ports that never can are dropped.

        ``known``: capacity of the ports of the boxes [byte/s].
        """
        capacity = dict(known)
        capacity |= {name: port.capacity_bytes_per_s for name, port in self._ports.items()}
        routes = {id(route): route for flow in flows for route in flow.routes}
        crossing: dict[str, list[Route]] = defaultdict(list)
        for route in routes.values():
            for name in self._ports.keys() & route.ports.keys():
                crossing[name].append(route)
        kept = set(known)
        # Posting first: a NIC's message rate is often out of reach because of it.
        for name in sorted(crossing, key=lambda name: (self._ports[name].kind is PortKind.MESSAGES, name)):
            if not never_binds(name, crossing[name], kept, capacity):
                kept.add(name)
        slim = {
            key: replace(route, ports={name: m for name, m in route.ports.items() if name in kept})
            if route.ports.keys() - kept
            else route
            for key, route in routes.items()
        }
        found = tuple(replace(flow, routes=tuple(slim[id(route)] for route in flow.routes)) for flow in flows)
        return found, tuple(port for name, port in self._ports.items() if name in kept)


def never_binds(name: str, routes: Sequence[Route], others: set[str], capacity: Mapping[str, float]) -> bool:
    """Whether other ports keep a port from ever being full.

    Equation: each route r is put under one port e(r) that it crosses; with q_r = (m_r / C) / (m_{r,e} / C_e),
    sum_e max_{r under e} q_r <= 1. Then the load sum_r m_r x_r / C is at most sum_e max q (load of e) <= 1.

    Parameters: ``routes``: all that cross port ``name``; ``others``: ports that count; ``capacity`` C [byte/s].
    Returns: True where that is proved, by one port for all routes or by the best one for each.
    """

    def ratio(route: Route, other: str) -> float:
        return route.ports[name] / capacity[name] * capacity[other] / route.ports[other]

    mine = [{other for other in route.ports.keys() & others if route.ports[other] > 0} for route in routes]
    if not all(mine):
        return False
    common = set.intersection(*mine)
    if any(max(ratio(route, other) for route in routes) <= ROUNDED for other in common):
        return True
    best: dict[str, float] = {}
    for route, ports in zip(routes, mine, strict=True):
        other = min(sorted(ports), key=lambda port: ratio(route, port))
        best[other] = max(best.get(other, 0.0), ratio(route, other))
    return sum(best.values()) <= ROUNDED
