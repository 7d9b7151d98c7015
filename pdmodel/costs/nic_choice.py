"""Which NICs a GPU's KV takes, and which share of the bytes each path gets: for costs and scenarios alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdmodel.engines.spec import RouteRule
from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, Route
from pdmodel.hardware.routes import kv_route
from pdmodel.hardware.topology import Box


@dataclass(frozen=True, slots=True)
class End:
    """One side of a transfer: a GPU, and the NICs that it may use.

    ``listed``: the NICs were listed by hand, so that an engine that spreads takes all of them, near or far.
    """

    box: Box
    gpu: int
    nics: tuple[int, ...]
    listed: bool = False

    @classmethod
    def of(cls, box: Box, gpu: int) -> End:
        """With every NIC of the box."""
        return cls(box, gpu, tuple(range(box.nic_count)))


@dataclass(frozen=True, slots=True)
class Way:
    """One path between two GPUs, its NICs, and the share of the bytes that the engine's rule puts on it [-]."""

    route: Route
    nic: int
    peer: int
    share: float


def nic_order(box: Box, gpu: int, allowed: Sequence[int]) -> tuple[int, ...]:
    """NICs from near to far; among equally near ones GPUs take turns, so that a tie does not load one NIC alone.

    Raises
    ------
    InputError: no NIC is allowed.

    """
    found: list[int] = []
    for tie in _ties(box, gpu, allowed):
        turn = gpu % len(tie)
        found += tie[turn:] + tie[:turn]
    return tuple(found)


def _ties(box: Box, gpu: int, allowed: Sequence[int]) -> list[list[int]]:
    """NICs that are equally far, near ones first: by class of distance, then by links on the way."""
    if not allowed:
        raise InputError("no NIC is left to send with", expected="at least one")
    element = box.gpu(gpu)
    far = {nic: (box.distance(element, box.nic(nic)).rank, len(box.climb(box.nic(nic)))) for nic in allowed}
    return [[nic for nic in allowed if far[nic] == rank] for rank in sorted(set(far.values()))]


def kv_ways(
    source: End,
    target: End,
    rule: RouteRule,
    capacity: Mapping[str, float],
    *,
    fabric: Port | None = None,
    further: int = 0,
) -> tuple[Way, ...]:
    """Paths from one GPU to another by an engine's rule, and further ones that the rule leaves empty.

    Equation: nearest, rail: share 1 on one path. stripe, random, round_robin: 1/n on each of n; what is given to a path
    stays there, so n paths together carry n times what the slowest does. weighted: B_p / sum B_p, B_p = min_e C_e/m_e.

    Parameters: ``source``, ``target``: ends on different nodes; ``capacity`` C of every port [byte/s]; ``fabric``: one
    more port on the way; ``further``: NICs of the source beside those of the rule, near ones first.
    Returns: `Way` objects, shares sum to 1.
    Raises: `InputError` where no NIC is left, or where a rail has no other end.
    Validity: random and round robin as their mean; weights as they settle on an idle network.
    Source: Mooncake topology.cpp (preferred NICs, uniform choice), its docs design/tent (weights), issue 813.
    """
    ends = _ends(source, target, rule)
    used = {nic for nic, _ in ends}
    others = [nic for nic in nic_order(source.box, source.gpu, source.nics) if nic not in used][:further]
    first = nic_order(target.box, target.gpu, target.nics)[0]
    spare = [(nic, nic if rule is RouteRule.RAIL and nic in target.nics else first) for nic in others]
    routes = [
        kv_route(source.box, source.gpu, nic, target.box, peer, target.gpu, fabric=fabric)
        for nic, peer in (*ends, *spare)
    ]
    share = [1.0] * len(ends)
    if rule is RouteRule.WEIGHTED:
        share = [path_bytes_per_s(route, capacity) for route in routes[: len(ends)]]
    share += [0.0] * len(spare)
    return tuple(
        Way(route, nic, peer, part / sum(share))
        for route, (nic, peer), part in zip(routes, (*ends, *spare), share, strict=True)
    )


def path_bytes_per_s(route: Route, capacity: Mapping[str, float]) -> float:
    """What a path carries alone.

    Equation: min_e C_e / m_e.

    Returns: [byte/s].
    """
    return min(capacity[name] / multiplicity for name, multiplicity in route.ports.items() if multiplicity > 0)


def _ends(source: End, target: End, rule: RouteRule) -> list[tuple[int, int]]:
    """(NIC here, NIC there) that the rule uses."""
    ours, theirs = (nic_order(end.box, end.gpu, end.nics) for end in (source, target))
    if rule is RouteRule.STRIPE:
        return _dealt(source.nics, target.nics)
    if rule in {RouteRule.RANDOM, RouteRule.ROUND_ROBIN}:
        return _dealt(*(end.nics if end.listed else _ties(end.box, end.gpu, end.nics)[0] for end in (source, target)))
    if rule is RouteRule.WEIGHTED:
        return _dealt(ours, theirs)
    if rule is RouteRule.RAIL:
        if ours[0] not in target.nics:
            raise InputError(
                f"rail {ours[0]} has no NIC of the same index on {target.box.node}",
                path="route_rule",
                expected="as many NICs on the other side, or another rule",
            )
        return [(ours[0], ours[0])]
    return [(ours[0], theirs[0])]


def _dealt(ours: Sequence[int], theirs: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of NICs in which each side's NICs occur equally often."""
    return [(ours[k % len(ours)], theirs[k % len(theirs)]) for k in range(math.lcm(len(ours), len(theirs)))]


def nics_of_memory(box: Box, socket: str, allowed: Sequence[int]) -> tuple[int, ...]:
    """The NICs that move the bytes of a socket's memory: those of the socket, or where it has none, all.

    Source: Mooncake's topology.cpp prefers, for memory of NUMA node n, the NICs of that node, in turns.
    """
    near = tuple(nic for nic in allowed if box.socket(box.nic(nic)) == socket)
    return near or tuple(allowed)
