"""The port that takes longest when bytes move on several routes at once: what all of them together wait for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Route


@dataclass(frozen=True, slots=True)
class PathTime:
    """The port that takes longest: its time [s], its name, its rate [byte/s]; hazards of the routes."""

    time_s: float
    port: str
    bytes_per_s: float
    hazards: tuple[str, ...] = ()


def port_loads(moved: Iterable[tuple[Route, float]]) -> dict[str, float]:
    """What routes put on each port.

    Equation: sum_r m_{r,e} V_r.

    Parameters: ``moved``: routes with their bytes V [byte].
    Returns: bytes by port [byte].
    Source: `pdmodel.hardware.ports`.
    """
    total: dict[str, float] = defaultdict(float)
    for route, size in moved:
        for name, multiplicity in route.ports.items():
            total[name] += multiplicity * size
    return dict(total)


def fullest_port(moved: Iterable[tuple[Route, float]], capacity: Mapping[str, float]) -> PathTime:
    """The port that takes longest, when bytes move on several routes at once.

    Equation: max_e sum_r m_{r,e} V_r / C_e.

    Parameters: ``moved``: routes with their bytes V [byte]; ``capacity`` C of every port that they cross [byte/s].
    Returns: `PathTime`; no time and no name where nothing moves; of equal ports the first that is crossed.
    Raises: `InputError` for a port without a capacity.
    Validity: nothing else on the ports; the rates of all routes are such that all end together.
    Source: `pdmodel.hardware.ports`; one bottleneck.
    """
    pairs = [(route, size) for route, size in moved if size]
    hazards = tuple(dict.fromkeys(hazard for route, _ in pairs for hazard in route.hazards))
    return replace(busiest(port_loads(pairs), capacity), hazards=hazards)


def busiest(loads: Mapping[str, float], capacity: Mapping[str, float]) -> PathTime:
    """`fullest_port` of loads that are known [byte], without hazards."""
    unknown = next((name for name in loads if name not in capacity), None)
    if unknown is not None:
        raise InputError(f"no box here has the port {unknown!r}", expected="a port of one of the boxes")
    if not any(loads.values()):
        return PathTime(0.0, "", math.inf)
    port = max(loads, key=lambda name: loads[name] / capacity[name])
    return PathTime(loads[port] / capacity[port], port, capacity[port])
