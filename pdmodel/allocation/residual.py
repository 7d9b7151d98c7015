"""Program R as arrays: intervals of the clock without KV, then a tail of geometric intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import Network
from pdmodel.allocation.scaling import Scale
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import Flow, FlowKind

TAIL_INTERVALS = 12
TAIL_RATIO = 1.6
#: Tail length relative to the time that all bytes need.
TAIL_MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class ResidualForm:
    """Intervals (J) in order: those of the clock, then the tail.

    ``interval_s`` (J,); ``room`` = S·Delta and ``overdraft`` = bytes of lanes' critical traffic, (J, P') [bytes];
    ``usable`` (J, P') [byte/s]. ``delay_phase``, ``delay_interval`` (E,): phase (numbered over all lanes) and interval
    of each pair that meet on the clock; ``uses`` (phases, P'): ports that a phase uses; ``delay_price`` (phases,).
    ``lower``, ``upper``, ``due`` (F', J) [bytes]: bounds of the bytes sent by an interval's end, bytes due by its
    start. ``quantum`` (F',) [bytes], ``group`` (F',), ``group_price`` (G,). ``decode`` (D, P') [byte/s].
    """

    interval_s: FloatArray
    room: FloatArray
    overdraft: FloatArray
    usable: FloatArray
    delay_phase: IntArray
    delay_interval: IntArray
    uses: FloatArray
    delay_price: FloatArray
    lower: FloatArray
    upper: FloatArray
    due: FloatArray
    quantum: FloatArray
    group: IntArray
    group_price: FloatArray
    decode: FloatArray
    decode_price: FloatArray

    def scaled(self, scale: Scale) -> ResidualForm:
        """The same form in the units of ``scale``."""
        size = scale.size_bytes
        return replace(
            self,
            interval_s=self.interval_s / scale.time_s,
            room=self.room / size,
            overdraft=self.overdraft / size,
            usable=self.usable / scale.rate_bytes_per_s,
            delay_price=self.delay_price / scale.price,
            lower=self.lower / size,
            upper=self.upper / size,
            due=self.due / size,
            quantum=self.quantum / size,
            group_price=self.group_price / scale.price,
            decode=self.decode / scale.rate_bytes_per_s,
            decode_price=self.decode_price / scale.price,
        )


def tail_intervals(data: AllocationData) -> FloatArray:
    r"""Lengths of the tail's intervals [s].

    .. math:: \Delta_j \propto 1.6^j, \quad \sum_j \Delta_j = 1.05 \max_e \sum_f V_f m_{p(f),e} / \hat C_e

    p(f) is the route of f with the least bottleneck time. The record's own tail wins. Shape (12,) or as given. All
    bytes can be sent in it, so program R is always feasible.
    """
    if data.tail_s is not None:
        return data.tail_s
    usable = data.idle_usable
    per_byte = (data.consumption / usable).max(axis=1, initial=0.0)
    load = np.zeros(len(data.ports))
    for f, volume in enumerate(data.volume_bytes):
        of_flow = np.flatnonzero(data.route_flow == f)
        load += volume * data.consumption[of_flow[np.argmin(per_byte[of_flow])]]
    total = TAIL_MARGIN * float((load / usable).max(initial=0.0))
    weight = TAIL_RATIO ** np.arange(TAIL_INTERVALS)
    return np.asarray(total * weight / weight.sum())


def first_quantum(data: AllocationData) -> FloatArray:
    """Bytes that normalise lateness at first: the record's own, else half of the volume (loads: of the largest due)."""
    default = [
        max(size_bytes for _, size_bytes in flow.due) / 2 if flow.kind is FlowKind.LOAD else flow.volume_bytes / 2
        for flow in data.flows
    ]
    return np.where(np.isnan(data.flow_quantum_bytes), np.array(default, dtype=float), data.flow_quantum_bytes)


def clock_bounds(data: AllocationData) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Start and end of each phase of each lane on the clock, shapes (n_l,) [s]; a phase of 0 s sits where it would."""
    bounds = []
    for lane in range(len(data.lanes)):
        count = len(data.lanes[lane].phases)
        phase = data.clock.phase[lane]
        start, end = np.full(count, np.nan), np.full(count, np.nan)
        for j in range(len(phase) - 1, -1, -1):
            if phase[j] >= 0:
                start[phase[j]] = data.clock.edges_s[j]
                end[phase[j]] = max(np.nan_to_num(end[phase[j]], nan=-np.inf), data.clock.edges_s[j + 1])
        previous = float(data.clock.edges_s[0])
        for i in range(count):
            if np.isnan(start[i]):
                start[i] = end[i] = previous
            previous = float(end[i])
        bounds.append((start, end))
    return tuple(bounds)


def step_time(data: AllocationData, flow: Flow, k: int, bounds: tuple[FloatArray, FloatArray]) -> float:
    """Time on the clock of "the start of phase k" for a flow [s].

    That is the end of phase k - 1, unless the flow belongs to the request that phase k begins after an idle time.
    """
    start, end = bounds
    phases = data.lanes[data.lane_index[flow.lane]].phases
    if k == 0:
        return float(start[0])
    if k < len(phases) and phases[k].request == flow.request and phases[k - 1].request != flow.request:
        return float(start[k])
    return float(end[k - 1])


def residual_form(data: AllocationData, net: Network, quantum: FloatArray) -> ResidualForm:
    """The intervals of a record on its fixed clock; ``quantum`` (F,) [bytes] normalises lateness."""
    tail = tail_intervals(data)
    clock, ports = len(data.interval_s), net.ports
    interval = np.concatenate([data.interval_s, tail])
    steady = data.decode_rate.sum(axis=0)
    idle = data.idle_usable
    rest = np.maximum(idle - steady, 0.0)
    room = np.concatenate([data.clock_residual, np.tile(rest, (len(tail), 1))])[:, ports] * interval[:, None]
    lanes_only = np.maximum(data.clock_rate - steady, 0.0)[:, ports] * data.interval_s[:, None]
    overdraft = np.concatenate([lanes_only, np.zeros((len(tail), len(ports)))])
    usable = np.concatenate([data.clock_usable, np.tile(idle, (len(tail), 1))])[:, ports]
    offset = np.cumsum([0, *(len(lane.phases) for lane in data.lanes)])
    lane, j = np.nonzero(data.clock.phase >= 0)
    lower, upper, due = _curves(data, net, np.concatenate([data.clock.edges_s[:clock], np.full(len(tail), np.inf)]))
    names = sorted(set(data.late_group))
    price = np.zeros(len(names))
    for f, name in enumerate(data.late_group):
        price[names.index(name)] = max(price[names.index(name)], data.flow_price_per_s[f])
    return ResidualForm(
        interval_s=interval,
        room=room,
        overdraft=overdraft,
        usable=usable,
        delay_phase=offset[lane] + data.clock.phase[lane, j],
        delay_interval=j,
        uses=np.concatenate([table[:, ports] for table in data.critical_bytes]),
        delay_price=np.concatenate(data.phase_price_per_s),
        lower=lower,
        upper=upper,
        due=due,
        quantum=quantum[net.flows],
        group=np.array([names.index(data.late_group[f]) for f in net.flows], dtype=np.int64),
        group_price=price,
        decode=data.decode_rate[:, ports],
        decode_price=data.decode_price_per_s,
    )


def _curves(data: AllocationData, net: Network, start_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Bounds of the bytes sent by an interval's end, and bytes due by its start, (F', J) [bytes]."""
    bounds = clock_bounds(data)
    shape = (len(net.flows), len(start_s))
    lower, upper, due = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    slack = 1e-12 * float(data.clock.edges_s[-1] - data.clock.edges_s[0])
    for row, f in enumerate(net.flows):
        flow = data.flows[f]
        mine = bounds[data.lane_index[flow.lane]]
        for pairs, curve in ((flow.release, upper), (flow.due, due)):
            for k, size_bytes in pairs:
                curve[row, start_s >= step_time(data, flow, k, mine) - slack] += size_bytes
        upper[row] = np.minimum(upper[row], flow.volume_bytes)
        upper[row, -1] = lower[row, -1] = flow.volume_bytes
        due[row] = np.minimum(due[row], flow.volume_bytes)
    return lower, upper, due
