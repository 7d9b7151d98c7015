"""The bound that comes before any program: KV takes from a lane at most what it carries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import network
from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class LossBound:
    """What KV can cost a lane at most, without holds.

    ``lane_loss_s``, ``lane_loss_aligned_s`` shape (L,) [s], and their largest; None when two lanes' critical traffic
    shares a port (one nudge can make lanes collide for ever). ``aligned``: the ranks' bursts of one request coincide,
    so of its sends (and of its loads) the largest class counts alone. ``kv_to_critical_ratio``: the largest V_e / B_e
    over ports that carry both, and ``port`` that port; None and "" when no port does.
    """

    loss_max_s: float | None
    loss_max_aligned_s: float | None
    kv_to_critical_ratio: float | None
    port: str
    lane_loss_s: FloatArray | None = None
    lane_loss_aligned_s: FloatArray | None = None


def loss_bound(data: AllocationData) -> LossBound:
    r"""The bound on the slowdown of each lane, and how KV compares with critical bytes.

    .. math:: L = \sum_{f} V_f \max_{p \in f} \max_e \frac{m_{p,e}}{\min_j \hat C_{e,j}}

    over ports e that also carry critical bytes of the lane (j: phases with such bytes); f runs over classes of flows,
    and m counts what all members of a class put on a port. While a collective runs at x < 1 behind a full port,
    (1 - x) a = a - C + kv <= kv a / C as a <= C, so its loss grows by at most the KV bytes over C. Valid for every
    policy without holds. Source: this derivation.
    """
    kv, critical = kv_bytes(data), critical_bytes(data)
    both = (kv > 0) & (critical > 0)
    ratio = np.divide(kv, critical, out=np.zeros_like(kv), where=both)
    worst = int(np.argmax(ratio)) if both.any() else -1
    found = (float(ratio[worst]), data.ports[worst].name) if both.any() else (None, "")
    if lanes_meet(data):
        return LossBound(None, None, found[0], found[1])
    losses = [_lane_loss(data, table, usable) for table, usable in _critical_tables(data)]
    loss, aligned = (np.array([pair[k] for pair in losses], dtype=float) for k in range(2))
    return LossBound(float(loss.max(initial=0.0)), float(aligned.max(initial=0.0)), found[0], found[1], loss, aligned)


def lanes_meet(data: AllocationData) -> bool:
    """Whether two lanes' (decode lanes included) critical traffic shares a port."""
    users = np.zeros(len(data.ports), dtype=np.int64)
    for table in data.critical_bytes:
        users += (table > 0).any(axis=0)
    users += (data.decode_rate > 0).sum(axis=0)
    return bool((users > 1).any())


def shared_ports(data: AllocationData) -> NDArray[np.bool_]:
    """Ports that carry critical traffic and may carry KV, shape (P,)."""
    return (critical_bytes(data) > 0) & (data.consumption > 0).any(axis=0)


def kv_bytes(data: AllocationData) -> FloatArray:
    """KV bytes per port under the engine's own rule for routes, shape (P,) [bytes]."""
    split = np.array([part for flow in data.flows for part in flow.split], dtype=float)
    if len(split) != len(data.routes):
        split = np.concatenate([np.pad(flow.split, (0, len(flow.routes)))[: len(flow.routes)] for flow in data.flows])
    return np.asarray((split * data.volume_bytes[data.route_flow]) @ data.consumption)


def critical_bytes(data: AllocationData) -> FloatArray:
    """Critical bytes per port: of the lanes' phases, and of decode lanes while the clock lasts, shape (P,) [bytes]."""
    lanes = sum((table.sum(axis=0) for table in data.critical_bytes), np.zeros(len(data.ports)))
    return np.asarray(lanes + data.decode_rate.sum(axis=0) * data.interval_s.sum())


def _critical_tables(data: AllocationData) -> list[tuple[FloatArray, FloatArray]]:
    """Critical demand and usable capacity of each lane, then of each decode lane, shapes (n, P) [byte/s]."""
    tables = list(zip(data.critical_rate, data.lane_usable, strict=True))
    return tables + [(rate[None, :], data.idle_usable[None, :]) for rate in data.decode_rate]


def _lane_loss(data: AllocationData, demand: FloatArray, usable: FloatArray) -> tuple[float, float]:
    """Bound of one lane: all classes of flows, and the largest class of each request's sends and loads [s]."""
    if not data.flows or not len(demand):
        return 0.0, 0.0
    net = network(data, collapse(data, data.volume_bytes))
    least = np.where(demand > 0, usable, np.inf).min(axis=0)[net.ports]
    per_byte = (net.consumption / least).max(axis=1, initial=0.0)
    worst = np.zeros(len(net.flows))
    np.maximum.at(worst, net.route_flow, per_byte)
    loss = worst * data.volume_bytes[net.flows]
    largest: dict[tuple[str, str, str], float] = defaultdict(float)
    for f, value in zip(net.flows, loss, strict=True):
        flow = data.flows[f]
        key = (flow.lane, flow.request, flow.kind.value)
        largest[key] = max(largest[key], float(value))
    return float(loss.sum()), sum(largest.values())
