"""What a replay runs, prepared once per record: critical traffic, the clock without KV, and KV cut into pieces."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.errors import InputError
from pdmodel.timeline.clock import clock_of, phase_times
from pdmodel.timeline.critical import CriticalTraffic, critical_traffic
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import Flow, FlowKind

SNAP = 1e-12
"""Times closer than this share of the horizon are one time: rounding makes no events."""
NO_GATE = -1


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a flow that are released together and due together.

    Released at the end of phase ``release - 1`` of the lane, not before ``arrival_s``; ``gate`` is the phase that they
    gate, `NO_GATE` for sends and write-backs. ``due_rank`` orders dues over the whole record, write-backs last.
    """

    flow: int
    lane: int
    release: int
    arrival_s: float
    gate: int
    due_rank: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """What one byte/s of a route consumes: (port number, multiplicity, input links), ports in the rule's order.

    ``device`` is the NIC or copy engine that moves it.
    """

    ports: tuple[tuple[int, float, tuple[str, ...]], ...]
    device: str


@dataclass(frozen=True)
class Stage:
    """A record made ready for replay; ``start_s``, ``end_s``, ``loss_s`` are those of the clock without KV."""

    data: AllocationData
    critical: CriticalTraffic
    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]
    loss_s: tuple[FloatArray, ...]
    work_scale: tuple[FloatArray, ...]
    crossings: tuple[Crossing, ...]
    route_crossing: tuple[int, ...]
    pieces: tuple[Piece, ...]
    request_of_flow: tuple[int, ...]
    is_writeback: tuple[bool, ...]
    decode_base_loss_s: FloatArray
    snap_s: float


def stage_of(data: AllocationData, jitter: tuple[float, int] | None = None) -> Stage:
    """The stage of a record, kept for the records used last. ``jitter`` is (sigma, seed) of `work_scale`."""
    for known in _STAGES:
        if known[0].data is data and known[1] == jitter:
            return known[0]
    found = _build(data, jitter)
    _STAGES.append((found, jitter))
    return found


_STAGES: deque[tuple[Stage, tuple[float, int] | None]] = deque(maxlen=4)


def work_scale(sigma: float, seed: int, lane: str, phases: Sequence[str]) -> FloatArray:
    r"""Factors on the duration of phases: lognormal with mean 1.

    .. math:: z = \exp(\sigma g - \sigma^2 / 2), \quad g \sim N(0, 1)

    Parameters
    ----------
    sigma: standard deviation of ln z [-].
    seed, lane, phases: what the draw of a phase depends on, and nothing else: every policy sees the same draws.

    Returns
    -------
    Factors, shape (n,) [-]. g comes from a 128-bit hash of (seed, lane, phase id) by the Box-Muller formula.

    """
    words = np.array(
        [
            np.frombuffer(
                hashlib.blake2b(f"{seed}\0{lane}\0{phase}".encode(), digest_size=16).digest(), dtype=np.uint64
            )
            for phase in phases
        ],
        dtype=np.uint64,
    ).reshape(len(phases), 2)
    uniform = ((words >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53
    normal = np.sqrt(-2.0 * np.log(uniform[:, 0])) * np.cos(2.0 * np.pi * uniform[:, 1])
    return np.asarray(np.exp(sigma * normal - sigma * sigma / 2.0))


def _build(data: AllocationData, jitter: tuple[float, int] | None) -> Stage:
    critical = critical_traffic(data.ports, data.lanes, data.decode_lanes)
    scale = tuple(np.ones(len(lane.phases)) for lane in data.lanes)
    clock = data.clock
    if jitter is not None:
        sigma, seed = jitter
        scale = tuple(work_scale(sigma, seed, lane.name, [p.id for p in lane.phases]) for lane in data.lanes)
        work = [(z * tau).tolist() for z, tau in zip(scale, data.duration_s, strict=True)]
        critical = dataclasses.replace(critical, work_s=work)
        clock = clock_of(critical)
    times = [phase_times(clock, k, earliest) for k, earliest in enumerate(critical.not_before_s)]
    start, end, loss = (tuple(time[part] for time in times) for part in range(3))
    requests = {(request.lane, request.name): q for q, request in enumerate(data.requests)}
    request_of_flow = tuple(requests.get((data.lane_index[f.lane], f.request), -1) for f in data.flows)
    crossings, route_crossing = _crossings(data, critical)
    stage = Stage(
        data=data,
        critical=critical,
        start_s=start,
        end_s=end,
        loss_s=loss,
        work_scale=scale,
        crossings=crossings,
        route_crossing=route_crossing,
        pieces=(),
        request_of_flow=request_of_flow,
        is_writeback=tuple(flow.kind is FlowKind.WRITEBACK for flow in data.flows),
        decode_base_loss_s=_decode_loss(critical, clock.phase, np.diff(clock.edges_s)),
        snap_s=SNAP * _horizon(data, end),
    )
    return dataclasses.replace(stage, pieces=_pieces(stage))


def _horizon(data: AllocationData, end_s: Sequence[FloatArray]) -> float:
    """A time that every replay is of the order of: the clock, then all bytes one after another."""
    clock = max((float(end[-1]) for end in end_s if len(end)), default=0.0)
    slowest = (data.consumption / data.capacity).max(axis=1, initial=0.0) if len(data.routes) else np.zeros(0)
    return clock + float(slowest @ data.volume_bytes[data.route_flow]) if len(slowest) else clock


def _decode_loss(critical: CriticalTraffic, phase: np.ndarray, length: FloatArray) -> FloatArray:
    """Integral of (1 - x) dt of decode lanes on the clock without KV, shape (D,) [s]: what prefill lanes cost them."""
    loss = np.zeros(len(critical.decode_rows))
    if not len(loss) or not critical.collide:
        return loss
    known: dict[tuple[int, ...], FloatArray] = {}
    for j, running in enumerate(phase.T.tolist()):
        key = tuple(critical.signature[k][i] if i >= 0 else 0 for k, i in enumerate(running))
        if key not in known:
            known[key] = 1.0 - np.array(critical.speeds(key)[1])
        loss += known[key] * length[j]
    return loss


def _crossings(data: AllocationData, critical: CriticalTraffic) -> tuple[tuple[Crossing, ...], tuple[int, ...]]:
    """The distinct crossings of routes, and which one each route has."""
    number: dict[Crossing, int] = {}
    of_route = []
    for route in data.routes:
        unknown = [name for name in route.ports if name not in critical.place]
        if unknown:
            raise InputError(f"route {route.name!r} crosses port {unknown[0]!r}", expected="a port of the record")
        ports = sorted(
            (critical.place[name], multiplicity, tuple(route.input_links.get(name, ())))
            for name, multiplicity in route.ports.items()
            if multiplicity > 0
        )
        if not ports:
            raise InputError(f"route {route.name!r} crosses no port", expected="at least one port")
        of_route.append(number.setdefault(Crossing(tuple(ports), route.device), len(number)))
    return tuple(number), tuple(of_route)


def _pieces(stage: Stage) -> tuple[Piece, ...]:
    data = stage.data
    cut: list[tuple[int, int, float, int, float, float]] = []
    for f, flow in enumerate(data.flows):
        lane, request = data.lane_index[flow.lane], stage.request_of_flow[f]
        if flow.kind is FlowKind.SEND and request < 0:
            raise InputError(f"flow {flow.name!r} sends for request {flow.request!r}", expected="a request of its lane")
        arrival = -math.inf
        if request >= 0:
            arrival = stage.critical.not_before_s[lane][data.requests[request].first_phase]
        for release, due, size in _matched(flow):
            if flow.kind is FlowKind.SEND:
                last = data.requests[request].last_phase
                cut.append((f, release, arrival, NO_GATE, float(stage.end_s[lane][last]), size))
                continue
            if flow.kind is FlowKind.WRITEBACK:
                cut.append((f, release, arrival, NO_GATE, math.inf, size))
                continue
            if due is not None and release > due:
                raise InputError(f"flow {flow.name!r} loads for phase {due} what is released after it, at {release}")
            gate = NO_GATE if due is None or due >= len(stage.end_s[lane]) else due
            when = float(stage.end_s[lane][-1] if gate == NO_GATE else stage.start_s[lane][gate])
            cut.append((f, release, arrival, gate, when, size))
    rank = _ranks([when for *_, when, _ in cut], stage.snap_s)
    return tuple(
        Piece(f, data.lane_index[data.flows[f].lane], release, arrival, gate, rank[when], size)
        for f, release, arrival, gate, when, size in cut
    )


def _matched(flow: Flow) -> list[tuple[int, int | None, float]]:
    """(release, due, bytes): the first bytes that are released are those that are due first; None: never due.

    Sends keep their due out of it: what matters is when the last one is there. Write-backs have none.
    """
    released = sorted((k, size) for k, size in flow.release if size > 0)
    if flow.kind is not FlowKind.LOAD:
        return [(k, None, size) for k, size in released]
    wanted = sorted((k, size) for k, size in flow.due if size > 0)
    scrap = 1e-9 * flow.volume_bytes
    found: list[tuple[int, int | None, float]] = []
    place, left = 0, wanted[0][1] if wanted else 0.0
    for k, size in released:
        rest = size
        while rest > 0:
            while place < len(wanted) and left <= scrap:
                place += 1
                left = wanted[place][1] if place < len(wanted) else 0.0
            if place == len(wanted):
                if found and found[-1][0] == k and rest <= scrap:
                    found[-1] = (k, found[-1][1], found[-1][2] + rest)
                else:
                    found.append((k, None, rest))
                break
            part = rest if rest <= left + scrap else left
            found.append((k, wanted[place][0], part))
            rest, left = rest - part, left - part
    return found


def _ranks(times: Sequence[float], snap_s: float) -> dict[float, int]:
    """Place of each time in order; times closer than ``snap_s`` are one."""
    rank: dict[float, int] = {}
    last, place = -math.inf, -1
    for time in sorted(set(times)):
        if time - last > snap_s:
            place += 1
            last = time
        rank[time] = place
    return rank
