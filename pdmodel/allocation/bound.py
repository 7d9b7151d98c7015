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
    so that its sends (and its loads) cost what they put on the port where that lasts longest.
    ``kv_to_critical_ratio`` and its ``port`` as `kv_to_critical` finds them; None and "" when no port carries both.
    """

    loss_max_s: float | None
    loss_max_aligned_s: float | None
    kv_to_critical_ratio: float | None
    port: str
    lane_loss_s: FloatArray | None = None
    lane_loss_aligned_s: FloatArray | None = None


def loss_bound(data: AllocationData) -> LossBound:
    r"""The bound on the slowdown of each lane, and how KV compares with critical bytes.

    .. math:: L = \sum_{f} V_f \max_{p \in f} \max_e \frac{m_{p,e}}{\min_j \hat C_{e,j}}, \quad
              L_{aligned} = \sum_{r, kind} \max_e \frac{\sum_{f} m_{f,e} V_f}{\min_j \hat C_{e,j}}

    over ports e that also carry critical bytes of the lane (j: phases with such bytes); f runs over classes of flows, p
    over the routes that the engine's own rule uses, and m counts what all members of a class put on a port. While a
    collective runs at x < 1 behind a full port, (1 - x) a = a - C + kv <= kv a / C as a <= C, so its loss grows by at
    most the KV bytes over C. Valid for every policy without holds that takes the engine's routes; write-backs count, as
    policies send them like any other KV. Source: this derivation.
    """
    found = kv_to_critical(data)
    if lanes_meet(data):
        return LossBound(None, None, found[0], found[1])
    losses = [_lane_loss(data, table, usable) for table, usable in _critical_tables(data)]
    loss, aligned = (np.array([pair[k] for pair in losses], dtype=float) for k in range(2))
    return LossBound(float(loss.max(initial=0.0)), float(aligned.max(initial=0.0)), found[0], found[1], loss, aligned)


def kv_to_critical(data: AllocationData) -> tuple[float | None, str]:
    """The largest V_e/B_e over ports that carry both [-], and that port: a prefill's if there is one, else decode's.

    A decode lane's collectives are small beside a whole prompt's KV; their ratio says little about the prefill.
    """
    kv, critical = kv_bytes(data), critical_bytes(data)
    prefill = sum((table.sum(axis=0) for table in data.critical_bytes), np.zeros(len(data.ports)))
    for mine in (prefill > 0, critical > 0):
        both = mine & (kv > 0)
        if both.any():
            ratio = np.divide(kv, critical, out=np.zeros_like(kv), where=both)
            worst = int(np.argmax(ratio))
            return float(ratio[worst]), data.ports[worst].name
    return None, ""


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
    return np.asarray((route_split(data) * data.volume_bytes[data.route_flow]) @ data.consumption)


def route_split(data: AllocationData) -> FloatArray:
    """Share of its flow's bytes that the engine's own rule puts on each route, shape (R,) [-]."""
    return np.array([part for flow in data.flows for part in flow.split], dtype=float)


def critical_bytes(data: AllocationData) -> FloatArray:
    """Critical bytes per port: of the lanes' phases, and of decode lanes while the clock lasts, shape (P,) [bytes]."""
    lanes = sum((table.sum(axis=0) for table in data.critical_bytes), np.zeros(len(data.ports)))
    return np.asarray(lanes + data.decode_rate.sum(axis=0) * data.interval_s.sum())


def _critical_tables(data: AllocationData) -> list[tuple[FloatArray, FloatArray]]:
    """Critical demand and usable capacity of each lane, then of each decode lane, shapes (n, P) [byte/s]."""
    tables = list(zip(data.critical_rate, data.lane_usable, strict=True))
    return tables + [(rate[None, :], data.idle_usable[None, :]) for rate in data.decode_rate]


def _lane_loss(data: AllocationData, demand: FloatArray, usable: FloatArray) -> tuple[float, float]:
    """Bound of one lane: over all classes of flows, and with the bursts of each request's sends (loads) aligned [s]."""
    if not data.flows or not len(demand):
        return 0.0, 0.0
    least = np.where(demand > 0, usable, np.inf).min(axis=0)
    split = route_split(data)
    net = network(data, collapse(data, data.volume_bytes))
    used = np.zeros(len(net.routes), dtype=bool)
    np.logical_or.at(used, net.classes.route, split > 0)
    per_byte = (net.consumption / least[net.ports]).max(axis=1, initial=0.0)
    worst = np.zeros(len(net.flows))
    np.maximum.at(worst, net.route_flow, np.where(used, per_byte, 0.0))
    crossing = (split * data.volume_bytes[data.route_flow])[:, None] * data.consumption
    aligned: dict[tuple[str, str, str], FloatArray] = defaultdict(lambda: np.zeros(len(data.ports)))
    for r, f in enumerate(data.route_flow):
        flow = data.flows[f]
        aligned[flow.lane, flow.request, flow.kind.value] += crossing[r]
    together = sum(float((size_bytes / least).max(initial=0.0)) for size_bytes in aligned.values())
    return float(worst @ data.volume_bytes[net.flows]), together
