"""Ranks that receive from one sender after the other: the time that this takes, as a port.

While a rank takes from one sender the others wait, so the times of what it takes add up: sum_f V_f / B_f <= time, B_f
how fast that sender is by itself. With B the greatest of them that is a port of capacity B on which a
byte from sender f counts B / B_f times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pdmodel.costs.fullest_port import fullest_port
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.resolve import ResolvedScenario
from pdmodel.spec import SourceKind
from pdmodel.transfer.flows import Flow
from pdmodel.transfer.posting import never_binds


def received_in_turn(
    resolved: ResolvedScenario, flows: Sequence[Flow], capacity: Mapping[str, float]
) -> tuple[tuple[Flow, ...], tuple[Port, ...]]:
    """Send flows charged with the time of the ranks that receive them, and the ports of those whose time can run out.

    Parameters
    ----------
    resolved: the scenario; its engine says whether a rank receives from one sender after the other.
    flows: sends from GPU to GPU.
    capacity: of every port that they cross [byte/s].

    Returns
    -------
    The flows, and one port for each receiving rank. Where all senders of a rank have their narrowest place in common
    (its own NIC, or there is one sender), the others wait there anyway, and nothing is added.

    Notes
    -----
    Validity: a sender is as fast as it is alone on the NICs that the engine gives it, whatever NIC a plan chooses.
    Source: TensorRT-LLM docs, features/disagg-serving.md (TRTLLM_ENABLE_KVCACHE_RECEIVE_PARALLEL is off).

    """
    if not resolved.engine.control.sequential_receive.value:
        return tuple(flows), ()
    by_rank: dict[str, list[Flow]] = defaultdict(list)
    for flow in flows:
        by_rank[flow.destination].append(flow)
    changed: dict[str, Flow] = {}
    ports = []
    for rank, mine in by_rank.items():
        rates = _rates(mine, capacity)
        port = Port(
            f"{rank}/receiving",
            PortKind.RECEIVING,
            max(rates.values()),
            source=SourceKind.DERIVED,
            note=f"{resolved.engine.name} receives from one sender after the other",
        )
        charged = {
            flow.name: tuple(
                replace(route, ports={**route.ports, port.name: port.capacity_bytes_per_s / rates[flow.name]})
                for route in flow.routes
            )
            for flow in mine
        }
        known = {**capacity, port.name: port.capacity_bytes_per_s}
        if not never_binds(port.name, [route for routes in charged.values() for route in routes], set(capacity), known):
            ports.append(port)
            changed |= {flow.name: replace(flow, routes=charged[flow.name]) for flow in mine}
    return tuple(changed.get(flow.name, flow) for flow in flows), tuple(ports)


def _rates(flows: Sequence[Flow], capacity: Mapping[str, float]) -> dict[str, float]:
    """How fast the sender of each flow sends it, alone: all that it sends of a request at once, by the engine's split
    [byte/s].
    """
    together: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        together[flow.request, flow.source].append(flow)
    found: dict[str, float] = {}
    for group in together.values():
        moved = [
            (route, share * flow.volume_bytes)
            for flow in group
            for route, share in zip(flow.routes, flow.split, strict=True)
        ]
        rate = sum(flow.volume_bytes for flow in group) / fullest_port(moved, capacity).time_s
        found |= dict.fromkeys((flow.name for flow in group), rate)
    return found
