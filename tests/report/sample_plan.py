"""A hand-made plan: one lane, two ranks behind one uplink, loads and sends; its replay is drawn by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import (
    Applicable,
    Bound,
    Enforceability,
    FlowResult,
    Gate,
    Plan,
    PolicyResult,
    PortResult,
    Rule,
    ScheduleRow,
    Setting,
    SolverResult,
    Times,
    Verdict,
    VerdictKind,
)
from pdmodel.replay.outcome import LaneOutcome, Replay, Segment
from pdmodel.spec import SourceKind

GB = 1e9
UPLINK, NIC = "P/switch0/down", "P/nic0/tx"
RANKS = ("P/gpu0/ingress", "P/gpu1/ingress")
PORTS = {
    UPLINK: {"capacity": 56 * GB, "guard": 2 * GB},
    RANKS[0]: {"capacity": 54 * GB, "guard": 2 * GB},
    RANKS[1]: {"capacity": 54 * GB, "guard": 2 * GB},
    NIC: {"capacity": 48 * GB, "guard": 0.0},
}
COMPUTE_S, COLLECTIVE_S = 3e-3, 2e-3
COLLECTIVE_BYTES = 0.08 * GB


def sample_data(layers: int = 4) -> AllocationData:
    """Layers of (compute, collective): the collective crosses the uplink and both GPUs; loads gate each layer."""
    collective = {UPLINK: COLLECTIVE_BYTES, RANKS[0]: COLLECTIVE_BYTES, RANKS[1]: COLLECTIVE_BYTES}
    phases = []
    for _ in range(layers):
        phases += [{"duration": COMPUTE_S, "bytes": {}}, {"duration": COLLECTIVE_S, "bytes": collective}]
    flows = []
    for rank in range(2):
        flows.append(
            {
                "name": f"load/rank{rank}",
                "kind": "load",
                "routes": [{UPLINK: 1.0, RANKS[rank]: 1.0}],
                "release": [[0, 0.07 * GB * layers]],
                "due": [[2 * layer, 0.07 * GB] for layer in range(layers)],
                "price": 4.0,
            }
        )
        flows.append(
            {
                "name": f"send/rank{rank}",
                "kind": "send",
                "routes": [{NIC: 1.0}],
                "release": [[2 * layer + 2, 0.02 * GB] for layer in range(layers)],
                "due": [[2 * layers, 0.02 * GB * layers]],
                "price": 0.25,
            }
        )
    data = AllocationData.from_dict({"ports": PORTS, "phases": phases, "lane_price": 4.5, "flows": flows})
    named = tuple(
        replace(phase, request="r0", layer=i // 2, operation=("attention", "all_reduce")[i % 2])
        for i, phase in enumerate(data.lanes[0].phases)
    )
    return replace(data, lanes=(replace(data.lanes[0], phases=named),))


def sample_replay(data: AllocationData) -> Replay:
    """The lane at full speed; loads take what the uplink has left; sends follow layer by layer."""
    duration = data.duration_s[0]
    edges = np.concatenate([[0.0], np.cumsum(duration)])
    usable, critical = data.lane_usable[0], data.critical_rate[0]
    left = data.volume_bytes.copy()
    finish = np.zeros(len(data.flows))
    segments = []
    for i, tau in enumerate(duration):
        free = usable[i] - critical[i]
        wanted = {"load": free[0] / 2, "send": free[3] / 2 if i >= 2 else 0.0}
        rate = np.array([min(wanted[flow.kind.value], left[f] / tau) for f, flow in enumerate(data.flows)])
        left -= rate * tau
        finish = np.where(rate > 0, edges[i + 1], finish)
        segments.append(Segment(edges[i], edges[i + 1], critical[i], rate @ data.consumption, rate))
    tail = 1e-3
    rate = left / tail
    finish = np.where(rate > 0, edges[-1] + tail, finish)
    segments.append(Segment(edges[-1], edges[-1] + tail, np.zeros(len(PORTS)), rate @ data.consumption, rate))
    zero, one = np.zeros(len(duration)), np.zeros(1)
    prefill = float(edges[-1])
    return Replay(
        policy="plan",
        lanes=(LaneOutcome(edges[:-1], edges[1:], zero, zero, zero),),
        flow_finish_s=finish,
        prefill_s=np.array([prefill]),
        prefill_slowdown_s=one,
        load_stall_s=one,
        decode_stall_s=np.array([tail]),
        user_delay_s=np.array([tail]),
        ttft_s=np.array([prefill + tail]),
        decode_loss_s=np.zeros(0),
        cost=0.0061,
        kv_bytes=sum((segment.kv * (segment.end_s - segment.start_s) for segment in segments), np.zeros(len(PORTS))),
        critical_bytes=data.critical_bytes[0].sum(axis=0),
        end_s=prefill + tail,
        events=len(segments),
        segments=tuple(segments),
    )


def _policy(name: str, *, ttft: float, slow: float, load: float, decode: float, cost: float, **more: object):
    return PolicyResult(name, ttft, ttft - decode, slow, decode, load, cost, **more)  # type: ignore[arg-type]


def sample_policies() -> tuple[PolicyResult, ...]:
    return (
        _policy(
            "unmanaged",
            ttft=0.0273,
            slow=0.0041,
            load=0.0022,
            decode=0.001,
            cost=0.0287,
            cost_low=0.0209,
            cost_high=0.0341,
            ttft_low_s=0.0252,
            ttft_high_s=0.0291,
        ),
        _policy(
            "strict", ttft=0.0218, slow=0.0, load=0.0008, decode=0.001, cost=0.0062, cost_low=0.006, cost_high=0.007
        ),
        _policy("after_prefill", ttft=0.0252, slow=0.0041, load=0.0, decode=0.0011, cost=0.0198),
        _policy("cap", ttft=0.0241, slow=0.0012, load=0.0019, decode=0.001, cost=0.0145, note="P/nic0 at 12 GB/s"),
        _policy(
            "plan", ttft=0.0217, slow=0.0, load=0.0007, decode=0.001, cost=0.0061, cost_low=0.0061, cost_high=0.0069
        ),
    )


def sample_plan(layers: int = 4, kind: VerdictKind = VerdictKind.CONTENDED) -> Plan:
    data = sample_data(layers)
    replay = sample_replay(data)
    horizon = replay.end_s
    prices = {UPLINK: 1.9e-4, RANKS[0]: 0.0, RANKS[1]: 0.0, NIC: 0.0}
    ports = tuple(
        PortResult(
            name=port.name,
            kind=port.kind.value,
            capacity_bytes_per_s=port.capacity_bytes_per_s,
            capacity_source=SourceKind.MEASURED if "switch" in port.name else SourceKind.ASSUMED,
            critical_bytes=float(replay.critical_bytes[p]),
            kv_bytes=float(replay.kv_bytes[p]),
            utilisation=float((replay.critical_bytes[p] + replay.kv_bytes[p]) / (port.capacity_bytes_per_s * horizon)),
            shadow_price=prices[port.name],
        )
        for p, port in enumerate(data.ports)
    )
    flows = tuple(
        FlowResult(
            flow.name,
            flow.kind.value,
            flow.volume_bytes,
            0.0 if flow.kind.value == "load" else 5e-3,
            0.015 if flow.kind.value == "load" else 0.02,
            float(replay.flow_finish_s[f]),
            flow.routes[0].name,
        )
        for f, flow in enumerate(data.flows)
    )
    return Plan(
        scenario="sample",
        purpose="Two ranks load cached KV through one uplink that the ring crosses as well.",
        verdict=Verdict(
            kind, "unmanaged KV costs 0.0209 GPU·s even at the favourable end, the plan 0.0061, strict 0.0062."
        ),
        bound=Bound(0.0104, 0.0052, 0.52, 0.875, UPLINK, "KV can slow the prefill by at most 10.4 ms (52 %)."),
        times=Times(0.0207, 0.02, 0.0217, 0.001, 0.0007, 0.0),
        policies=sample_policies(),
        references=(
            _policy("no_kv", ttft=0.02, slow=0.0, load=0.0, decode=0.0, cost=0.0),
            _policy("bytes_over_bandwidth", ttft=0.0253, slow=0.0, load=0.0, decode=0.0033, cost=0.0008),
        ),
        ports=ports,
        flows=flows,
        schedule=sample_schedule(layers),
        settings=(
            Setting("mlnx_qos --ratelimit", "96", "Gbit/s", "NIC of rank 0", "P", "caps the class that carries KV"),
            Setting("MC_MAX_WR", "16", "", "Mooncake transfer engine", "P", "4 MiB in flight instead of 32"),
        ),
        enforceability=(
            Enforceability("all_reduce", Gate.GATEABLE, 2e-3, 3e-3, 6.5e-5, "the gap holds detection and one slice"),
            Enforceability("decode step", Gate.CLASS_ONLY, 6e-5, 2e-4, 3e-4, "a NIC cap or a lane weight only"),
        ),
        applicable=Applicable("unmanaged", 0.0075, 0.0014, "unmanaged (0.0075 GPU·s) can be applied as it is"),
        solver=SolverResult("certified", "optimal", 0.0061, 0.0, 0.012, 0),
        assumed=("capacity of P/gpu0/ingress: 54 GB/s", "guard: 2 GB/s on every PCIe port"),
        hazards=("posted-write collapse has been seen on this switch when two peers write to one GPU",),
        warnings=("phase 3: the collective's time was raised from 1.4 ms to 1.43 ms by P/switch0/down",),
        provenance={"pdmodel": "0.1.0", "scenario": "sample", "seed": "0"},
        data=data,
        replay=replay,
    )


def sample_schedule(layers: int) -> tuple[ScheduleRow, ...]:
    rows = []
    for rank in range(2):
        load, route = f"load/rank{rank}", f"load/rank{rank}/route0"
        last = layers - 1
        rows += [
            ScheduleRow("lane0", "wait", "r0", 0, "attention", 0, 0, load, route, 28 * GB, 0.0, 7e-4, 0.0, Rule.IDLE),
            ScheduleRow(
                "lane0", "phase", "r0", 0, "attention", 0, last, load, route, 28 * GB, 0.0, 3e-3, 0.0, Rule.IDLE
            ),
            ScheduleRow(
                "lane0", "phase", "r0", 0, "all_reduce", 0, last, load, route, 7 * GB, 0.0, 2e-3, 1e-4, Rule.CONTENDED
            ),
            ScheduleRow(
                "lane0",
                "phase",
                "r0",
                0,
                "attention",
                1,
                last,
                f"send/rank{rank}",
                "nic0",
                6.67 * GB,
                0.0,
                3e-3,
                0.0,
                Rule.HEADROOM,
            ),
            ScheduleRow(
                "lane0", "tail", "r0", 0, "", -1, -1, f"send/rank{rank}", "nic0", 20 * GB, 0.0, 1e-3, 0.0, Rule.IDLE
            ),
        ]
    return tuple(rows)
