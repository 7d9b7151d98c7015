"""A prefill lane of equal collectives beside one endless transfer on one port, replayed."""

from __future__ import annotations

from pdmodel.allocation.data import AllocationData
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

_ROUNDS = 20


def replayed(collective_bytes: float, compute_s: float, port_bytes_per_s: float) -> tuple[float, float]:
    """Slowdown of the collectives and mean rate of the KV while they run, unmanaged.

    Equation: none; 20 rounds of compute and a collective that alone takes S/C, KV from the start to beyond the end,
    shares as the replay has them.

    Parameters: ``collective_bytes`` S on the port [byte]; ``compute_s`` between two collectives [s];
    ``port_bytes_per_s`` C [byte/s]; all positive.
    Returns: slowdown of the slowest collective [-], KV [byte/s].
    Validity: arbitration that is fair between the two classes.
    Source: `pdmodel.replay.simulate`.
    """
    alone = collective_bytes / port_bytes_per_s
    pause = Phase("compute", PhaseKind.COMPUTE, compute_s, request="r")
    ring = Phase("ring", PhaseKind.COLLECTIVE, alone, {"port": collective_bytes}, request="r")
    lanes = (Lane("lane", (pause, ring) * _ROUNDS),)
    ports = (Port("port", PortKind.ABSTRACT, port_bytes_per_s),)
    volume = 10 * 2 * _ROUNDS * (compute_s + alone) * port_bytes_per_s
    route = Route("route", {"port": 1.0}, {})
    kv = Flow("kv", FlowKind.SEND, "r", "lane", "kv", "D", (route,), ((0, volume),), ((99, volume),))
    timeline = Timeline(ports, lanes, (), run_clock(ports, lanes, ()))
    data = AllocationData.build(timeline, (kv,), Prices({"lane": 1.0}, {"r": 1.0}, {}))
    replay = simulate(data, "unmanaged", record=True)
    lane = replay.lanes[0]
    end_s = float(lane.end_s[-1])
    moved = sum(
        float(part.flow_rate[0]) * (part.end_s - part.start_s)
        for part in replay.segments
        if part.end_s <= end_s * (1 + 1e-12)
    )
    return float((lane.end_s - lane.start_s)[1::2].max()) / alone, moved / end_s
