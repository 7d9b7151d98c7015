"""Events per second of replay on the largest one-lane record: 94 layers x 8 chunks x 6 phases, 8 ranks.

Run: python benchmarks/bench_replay.py
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.schedule import Piece, Schedule
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import NO_KV, SIMPLE, Policy, plan, simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

LAYERS, CHUNKS, RANKS = 94, 8, 8
MB, GB = 1e6, 1e9
REDUCE = ("all_reduce", 2.7e-3)
TARGET_EVENTS_PER_S = 50_000


def ports() -> Iterator[Port]:
    """Eight GPUs on two switches, one x16 root port each, one NIC a switch."""
    for k in range(RANKS):
        yield Port(f"P/gpu{k}/egress", PortKind.GPU_EGRESS, 54 * GB, 1 * GB)
        yield Port(f"P/gpu{k}/ingress", PortKind.GPU_INGRESS, 54 * GB, 1 * GB)
    for s in range(2):
        yield Port(f"P/switch{s}/up", PortKind.UPLINK_UP, 56 * GB, 1 * GB)
        yield Port(f"P/switch{s}/down", PortKind.UPLINK_DOWN, 56 * GB, 1 * GB)
        yield Port(f"P/nic{s}/tx", PortKind.NIC_TX, 48 * GB)


def lane() -> Lane:
    """Six phases a layer: two all-reduces over every GPU port and both uplinks, compute around them."""
    names = [f"P/gpu{k}/{side}" for k in range(RANKS) for side in ("egress", "ingress")]
    names += [f"P/switch{s}/{side}" for s in range(2) for side in ("up", "down")]
    all_reduce = dict.fromkeys(names, 120 * MB)
    phases = []
    for chunk in range(CHUNKS):
        for layer in range(LAYERS):
            attention = ("attention", 5e-4 + 5e-5 * chunk)
            steps = (("qkv", 3e-4), attention, REDUCE, ("router", 1e-4), ("experts", 9e-4), REDUCE)
            for step, (kind, took) in enumerate(steps):
                name = f"request/{chunk}/{layer}/{step}"
                busy = kind == "all_reduce"
                phases.append(
                    Phase(
                        name,
                        PhaseKind.COLLECTIVE if busy else PhaseKind.COMPUTE,
                        took,
                        all_reduce if busy else {},
                        operation=kind,
                        request="request",
                        chunk=chunk,
                        layer=layer,
                    )
                )
    return Lane("P", tuple(phases), RANKS)


def flows(*, by_layer: bool) -> Iterator[Flow]:
    """A send and a prefix load per rank. ``by_layer``: every layer of every chunk is released by itself."""
    count = 6 * LAYERS * CHUNKS
    for k in range(RANKS):
        send = Route(
            f"P/gpu{k} -> P/nic{k // 4}",
            {f"P/gpu{k}/egress": 1.0, f"P/gpu{k}/ingress": 0.006, f"P/nic{k // 4}/tx": 1.0},
            {f"P/gpu{k}/egress": (f"nic{k // 4}",)},
            f"P/nic{k // 4}",
        )
        load = Route(
            f"host -> P/gpu{k}",
            {f"P/switch{k // 4}/down": 1.0, f"P/gpu{k}/ingress": 1.0},
            {f"P/switch{k // 4}/down": ("host",)},
            f"P/gpu{k}/h2d",
            fifo=True,
        )
        steps = range(LAYERS * CHUNKS) if by_layer else range(LAYERS - 1, LAYERS * CHUNKS, LAYERS)
        release = tuple((6 * step + 6 if not by_layer else 6 * step + 1, 400 * MB / len(steps)) for step in steps)
        yield Flow(
            f"send{k}", FlowKind.SEND, "request", "P", f"P/gpu{k}", f"D/gpu{k}", (send,), release, ((count, 4e8),)
        )
        due = tuple((6 * layer + 1, 2000 * MB / LAYERS) for layer in range(LAYERS))
        yield Flow(f"load{k}", FlowKind.LOAD, "request", "P", "P/host", f"P/gpu{k}", (load,), ((0, 2000 * MB),), due)


def record(*, by_layer: bool) -> AllocationData:
    """The record."""
    box, lanes = tuple(ports()), (lane(),)
    timeline = Timeline(box, lanes, (), run_clock(box, lanes))
    return AllocationData.build(timeline, tuple(flows(by_layer=by_layer)), Prices({"P": 8.0}, {"request": 0.25}, {}))


def constant_plan(data: AllocationData) -> Schedule:
    """Loads at 5 GB/s a rank for as long as they take, sends spread over the phases that follow, phase by phase."""
    tau, loads, sends = data.duration_s[0], np.zeros(len(data.routes)), np.zeros(len(data.routes))
    loads[1::2], sends[0::2] = 5 * GB, 0.2 * GB
    end = np.cumsum(tau)
    pieces = tuple(
        Piece(0, 2 * i + 1, 0.0, float(tau[i]), loads if end[i] < 0.4 else sends if end[i] > 1.5 else loads * 0)
        for i in range(len(tau))
    )
    return Schedule(pieces, (np.zeros(len(tau)),), (np.zeros(len(tau)),))


def main() -> None:
    """Print events, time and events/s of every policy, the first replay of a record apart (it prepares the record)."""
    box, lanes = tuple(ports()), (lane(),)
    began = time.perf_counter()
    run_clock(box, lanes)
    print(f"clock without KV: {1e3 * (time.perf_counter() - began):.1f} ms (target 20 ms)")
    for by_layer in (False, True):
        data = record(by_layer=by_layer)
        print(f"sends released by {'layer' if by_layer else 'chunk'}: {len(data.lanes[0].phases)} phases, 16 flows")
        began = time.perf_counter()
        simulate(data, NO_KV)
        print(f"  first replay, record prepared: {time.perf_counter() - began:.3f} s")
        policies: list[Policy] = [NO_KV, *SIMPLE, plan(constant_plan(data))]
        for policy in policies:
            began = time.perf_counter()
            replay = simulate(data, policy)
            took = time.perf_counter() - began
            pace = replay.events / took
            mark = "" if pace >= TARGET_EVENTS_PER_S else f"  below {TARGET_EVENTS_PER_S}"
            print(
                f"  {policy.name:14s} {replay.events:6d} events {took:6.3f} s {pace:9.0f} events/s"
                f"  cost {replay.cost:9.5f}{mark}"
            )


if __name__ == "__main__":
    main()
