"""What a port has left over time: critical demand and residual, piecewise constant with exact breakpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdmodel.errors import InputError, nearest
from pdmodel.hardware.ports import Port
from pdmodel.timeline.capacity import usable_capacity
from pdmodel.timeline.phases import FloatArray, Timeline


@dataclass(frozen=True, slots=True)
class PiecewiseConstant:
    """A rate over time: ``bytes_per_s[k]`` holds from ``times_s[k]`` to ``times_s[k + 1]``, the last one for ever.

    ``times_s`` (K,) rises strictly from the start of the clock; ``bytes_per_s`` (K,) [byte/s]; neighbours differ.

    >>> rate = PiecewiseConstant(np.array([0.0, 2.0]), np.array([10.0, 4.0]))
    >>> rate.at(1.0), rate.at(2.0), rate.integral(1.0, 4.0)
    (10.0, 4.0, 18.0)
    """

    times_s: FloatArray
    bytes_per_s: FloatArray

    def at(self, time_s: float) -> float:
        """The rate at a time; at a breakpoint the rate after it [byte/s]."""
        place = int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        if place < 0:
            raise InputError(f"{time_s:g} s is before the clock starts", expected=f"at least {self.times_s[0]:g} s")
        return float(self.bytes_per_s[place])

    def integral(self, start_s: float, end_s: float) -> float:
        """Bytes between two times of the clock, exactly [byte]."""
        edges = np.append(self.times_s, np.inf)
        inside = np.clip(edges, start_s, end_s)
        return float(np.diff(inside) @ self.bytes_per_s)


def critical_demand(timeline: Timeline, port: str) -> PiecewiseConstant:
    """Critical bandwidth B_e(t) that a port really carries on the clock without KV, decode lanes at their mean.

    Raises
    ------
    InputError: the timeline has no such port.

    """
    _find(timeline, port)
    _, achieved = _demand(timeline, port)
    return _compact(timeline.clock.edges_s, achieved)


def residual_bandwidth(timeline: Timeline, port: str) -> PiecewiseConstant:
    r"""What critical traffic leaves of a port over time.

    .. math:: S_e(t) = \max(0, \hat C_e(t) - B_e(t))

    with the usable capacity of `usable_capacity` at the demand of whatever runs (so the guard is kept free only while
    critical traffic is active), and B the bandwidth that it achieves. Exact: breakpoints are those of the clock.

    Parameters
    ----------
    timeline: phases, decode lanes and the clock without KV.
    port: the port's name.

    Returns
    -------
    The residual over time [byte/s]; after the last phase what decode lanes leave.

    Raises
    ------
    InputError: the timeline has no such port (with the nearest name).

    """
    found = _find(timeline, port)
    full, achieved = _demand(timeline, port)
    capacity = np.full_like(full, found.capacity_bytes_per_s)
    usable = usable_capacity(capacity, np.full_like(full, found.guard_bytes_per_s), full)
    return _compact(timeline.clock.edges_s, np.maximum(usable - achieved, 0.0))


def _find(timeline: Timeline, name: str) -> Port:
    for port in timeline.ports:
        if port.name == name:
            return port
    known = [port.name for port in timeline.ports]
    raise InputError(
        f"no port {name!r}", expected=f"a port of the timeline, such as {known[0]}", nearest=nearest(name, known)
    )


def _demand(timeline: Timeline, port: str) -> tuple[FloatArray, FloatArray]:
    """Demand at full speed and achieved, in each interval and after the last one, shapes (J + 1,) [byte/s]."""
    steady = sum(lane.mean_bytes_per_s.get(port, 0.0) for lane in timeline.decode_lanes)
    full = np.full(len(timeline.clock.edges_s), steady, dtype=float)
    achieved = full.copy()
    for lane, phase, speed in zip(timeline.lanes, timeline.clock.phase, timeline.clock.speed, strict=True):
        rate = np.array(
            [item.wire_bytes.get(port, 0.0) / item.duration_s if item.duration_s > 0 else 0.0 for item in lane.phases]
        )
        running = np.append(phase >= 0, False)
        full[running] += rate[phase[phase >= 0]]
        achieved[running] += rate[phase[phase >= 0]] * speed[phase >= 0]
    return full, achieved


def _compact(edges: FloatArray, values: FloatArray) -> PiecewiseConstant:
    """Leave out intervals of no length and breakpoints at which nothing changes."""
    long = np.append(np.diff(edges) > 0, True)
    times, values = edges[long], values[long]
    change = np.append(True, values[1:] != values[:-1])
    return PiecewiseConstant(times[change], values[change])
