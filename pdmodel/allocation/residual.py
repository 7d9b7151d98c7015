"""Program R as arrays: intervals of the clock without KV, then a tail of geometric intervals.

Exact reduction: where nothing is released, due or late, intervals that run the same phases at the same speed and price
act as one; what is solved for them is spread back in proportion to their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import DIGITS, late_groups
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.leases import FixedLeases, fixed_leases
from pdmodel.allocation.memory import PoolRows, appearances, pool_rows
from pdmodel.allocation.network import Network, first_of
from pdmodel.allocation.scaling import Scale
from pdmodel.allocation.writebacks import postponable
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import Flow, FlowKind

TAIL_INTERVALS = 12
TAIL_RATIO = 1.6
#: Tail length relative to the time that all bytes need.
TAIL_MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class ResidualForm:
    """Slots (S) are merged intervals; steps (K) are slots between which the bytes sent so far are bounded.

    ``length_s``, ``step`` (S,); ``room`` = S·Delta and ``overdraft`` = bytes of lanes' critical traffic, (S, P')
    [bytes]; ``usable`` (S, P') [byte/s] and ``widens`` (S, P'): whether more capacity is more usable capacity.
    ``delay_phase``, ``delay_slot`` (E,): delayed phase (pooled, N) and slot of each pair that meet; ``uses`` (N, P')
    and ``delay_price`` (N,) of a pooled phase; ``pool`` (all phases,). ``lower``, ``upper``, ``due`` (F', K) [bytes]:
    bounds of the bytes sent by a step's end, bytes due by its start. ``quantum`` (F',) [bytes], ``group`` (F',),
    ``group_price`` (G',). ``decode`` (D, P') [byte/s]. ``slot_of``, ``share`` (J,): slot of each interval and its share
    of it. ``pools``: rows over steps; ``leases``, and ``lease_step`` (M,): the step that each lease's interval is in.
    """

    length_s: FloatArray
    step: IntArray
    room: FloatArray
    overdraft: FloatArray
    usable: FloatArray
    widens: NDArray[np.bool_]
    delay_phase: IntArray
    delay_slot: IntArray
    uses: NDArray[np.bool_]
    delay_price: FloatArray
    pool: IntArray
    lower: FloatArray
    upper: FloatArray
    due: FloatArray
    quantum: FloatArray
    group: IntArray
    group_price: FloatArray
    decode: FloatArray
    decode_price: FloatArray
    slot_of: IntArray
    share: FloatArray
    pools: PoolRows
    leases: FixedLeases
    lease_step: IntArray

    @property
    def step_s(self) -> FloatArray:
        """Length of each step, shape (K,)."""
        return np.bincount(self.step, self.length_s).astype(float)

    def scaled(self, scale: Scale) -> ResidualForm:
        """The same form in the units of ``scale`` (``leases`` stay in seconds)."""
        size, rate = scale.size_bytes, scale.rate_bytes_per_s
        return replace(
            self,
            length_s=self.length_s / scale.time_s,
            room=self.room / size,
            overdraft=self.overdraft / size,
            usable=self.usable / rate,
            delay_price=self.delay_price / scale.price,
            lower=self.lower / size,
            upper=self.upper / size,
            due=self.due / size,
            quantum=self.quantum / size,
            group_price=self.group_price / scale.price,
            decode=self.decode / rate,
            decode_price=self.decode_price / scale.price,
            pools=self.pools.scaled(size),
        )


def tail_intervals(data: AllocationData) -> FloatArray:
    r"""Lengths of the tail's intervals [s].

    .. math:: \Delta_j \propto 1.6^j, \quad \sum_j \Delta_j = 1.05 \max_e \sum_f V_f m_{p(f),e} / \hat C_e

    p(f) is the route of f with the least bottleneck time; write-backs that can move after the tail do not count. The
    record's own tail wins. Shape (12,) or as given. All other bytes can be sent in it, so program R is always feasible.
    """
    if data.tail_s is not None:
        return data.tail_s
    usable = data.idle_usable
    per_byte = (data.consumption / usable).max(axis=1, initial=0.0)
    load = np.zeros(len(data.ports))
    for f, volume in enumerate(np.where(postponable(data), 0.0, data.volume_bytes)):
        of_flow = np.flatnonzero(data.route_flow == f)
        load += volume * data.consumption[of_flow[np.argmin(per_byte[of_flow])]]
    total = TAIL_MARGIN * float((load / usable).max(initial=0.0))
    weight = TAIL_RATIO ** np.arange(TAIL_INTERVALS)
    return np.asarray(total * weight / weight.sum())


def first_quantum(data: AllocationData) -> FloatArray:
    """Bytes that normalise lateness at first, shape (F,): the record's own; else half of the volume (loads: of the
    largest due step).
    """
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
        running = np.flatnonzero(phase >= 0)
        start, end = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(start, phase[running], data.clock.edges_s[running])
        np.maximum.at(end, phase[running], data.clock.edges_s[running + 1])
        absent = np.isinf(start)
        before = np.maximum.accumulate(np.concatenate([[data.clock.edges_s[0]], end]))[:-1]
        start[absent] = end[absent] = before[absent]
        bounds.append((start, end))
    return tuple(bounds)


def step_time(data: AllocationData, flow: Flow, k: int, bounds: tuple[FloatArray, FloatArray]) -> float:
    """Time on the clock of "the start of phase k" for a flow [s]: see `start_time`."""
    return start_time(data, flow.lane, flow.request, k, bounds)


def start_time(data: AllocationData, lane: str, request: str, k: int, bounds: tuple[FloatArray, FloatArray]) -> float:
    """Time on the clock of "the start of phase k" for what belongs to a request of a lane [s].

    That is the end of phase k - 1, unless phase k begins the request after an idle time; and never before the request
    arrives.
    """
    start, end = bounds
    phases, arrival = data.lanes[data.lane_index[lane]].phases, data.arrival_s.get((lane, request), 0.0)
    if k == 0 or (k < len(phases) and phases[k].request == request != phases[k - 1].request):
        return max(float(start[k]), arrival)
    return max(float(end[k - 1]), arrival)


def clock_appearances(data: AllocationData, net: Network) -> FloatArray:
    """Bytes that appeared in each pool class by the start of each interval, shape (Q', J) [bytes]."""
    bounds, start_s = clock_bounds(data), _starts(data)

    def place(lane: str, k: int, request: str) -> int:
        return _place(data, start_s, start_time(data, lane, request, k, bounds[data.lane_index[lane]]))

    return appearances(data, net, place, len(start_s))


def clock_leases(data: AllocationData, net: Network) -> FixedLeases:
    """The leases of the flows of a network on the clock and its tail."""
    bounds, released = clock_bounds(data), []
    for f in net.flows:
        flow = data.flows[f]
        first = min((k for k, size_bytes in flow.release if size_bytes > 0), default=0)
        released.append(step_time(data, flow, first, bounds[data.lane_index[flow.lane]]))
    return fixed_leases(data, net, released, clock_ends(data))


def clock_ends(data: AllocationData) -> FloatArray:
    """When each interval of the clock and its tail ends, shape (J,) [s]."""
    edges = data.clock.edges_s
    return np.concatenate([edges[1:], edges[-1] + np.cumsum(tail_intervals(data))])


def residual_form(data: AllocationData, net: Network, quantum: FloatArray) -> ResidualForm:
    """The intervals of a record on its fixed clock; ``quantum`` (F,) [bytes] normalises lateness."""
    tail, ports = tail_intervals(data), net.ports
    interval = np.concatenate([data.interval_s, tail])
    upper, due = clock_curves(data, net)
    appeared, leases = clock_appearances(data, net), clock_leases(data, net)
    cut = np.zeros(len(interval), dtype=bool)
    cut[1:] = (appeared[:, 1:] != appeared[:, :-1]).any(axis=0)
    cut[leases.interval + 1] = True
    slot_of, first, step_of, pool = _merge(data, ports, upper, due, cut)
    step = step_of[first]
    length = np.bincount(slot_of, interval).astype(float)
    steady, idle = data.decode_rate.sum(axis=0), data.idle_usable
    rest = np.tile(np.maximum(idle - steady, 0.0), (len(tail), 1))
    residual = np.concatenate([data.clock_residual, rest])[first][:, ports]
    critical = np.concatenate([np.maximum(data.clock_rate - steady, 0.0), np.zeros_like(rest)])[first][:, ports]
    usable = np.concatenate([data.clock_usable, np.tile(idle, (len(tail), 1))])[first][:, ports]
    demand = np.concatenate([data.clock_full_rate, np.tile(steady, (len(tail), 1))])[first][:, ports]
    lane, j = np.nonzero(data.clock.phase >= 0)
    offset = np.cumsum([0, *(len(one.phases) for one in data.lanes)])
    pairs = np.unique(np.stack([pool[offset[lane] + data.clock.phase[lane, j]], slot_of[j]], axis=1), axis=0)
    member = first_of(pool)
    start_of_step = np.unique(step_of, return_index=True)[1]
    end_of_step = np.append(start_of_step[1:], len(step_of)) - 1
    lower, bound = np.zeros((len(net.flows), len(start_of_step))), upper[:, end_of_step]
    bound[:, -1] = data.volume_bytes[net.flows]
    later = postponable(data)[net.flows] & (data.tail_s is None)
    lower[:, -1] = np.where(later, 0.0, bound[:, -1])
    group, price = late_groups(data)
    group_class = net.classes.group
    return ResidualForm(
        length_s=length,
        step=step,
        room=residual * length[:, None],
        overdraft=critical * length[:, None],
        usable=usable,
        widens=(demand == 0) | (demand <= (data.capacity - data.guard)[ports]),
        delay_phase=pairs[:, 0],
        delay_slot=pairs[:, 1],
        uses=np.concatenate([table[:, ports] for table in data.critical_bytes])[member] > 0,
        delay_price=np.concatenate(data.phase_price_per_s)[member],
        pool=pool,
        lower=lower,
        upper=bound,
        due=due[:, start_of_step],
        quantum=quantum[net.flows],
        group=group_class[group[net.flows]],
        group_price=np.bincount(group_class, price).astype(float),
        decode=data.decode_rate[:, ports],
        decode_price=data.decode_price_per_s,
        slot_of=slot_of,
        share=np.divide(interval, length[slot_of], out=np.zeros_like(interval), where=length[slot_of] > 0),
        pools=pool_rows(data, net, appeared[:, start_of_step], lower, bound),
        leases=leases,
        lease_step=step_of[leases.interval],
    )


def _starts(data: AllocationData) -> FloatArray:
    """Start of each interval of the clock, infinite in the tail, shape (J,) [s]."""
    clock = len(data.interval_s)
    return np.concatenate([data.clock.edges_s[:clock], np.full(len(tail_intervals(data)), np.inf)])


def _place(data: AllocationData, start_s: FloatArray, time_s: float) -> int:
    """The first interval that starts at a time or later."""
    slack = 1e-12 * float(data.clock.edges_s[-1] - data.clock.edges_s[0])
    return int(np.searchsorted(start_s, time_s - slack))


def clock_curves(data: AllocationData, net: Network) -> tuple[FloatArray, FloatArray]:
    """Bytes released and bytes due by the start of each interval, (F', J) [bytes]."""
    bounds, start_s = clock_bounds(data), _starts(data)
    shape = (len(net.flows), len(start_s))
    upper, due = np.zeros(shape), np.zeros(shape)
    for row, f in enumerate(net.flows):
        flow = data.flows[f]
        mine = bounds[data.lane_index[flow.lane]]
        for pairs, curve in ((flow.release, upper), (flow.due, due)):
            for k, size_bytes in pairs:
                curve[row, _place(data, start_s, step_time(data, flow, k, mine))] += size_bytes
    volume = data.volume_bytes[net.flows][:, None]
    return np.minimum(np.cumsum(upper, axis=1), volume), np.minimum(np.cumsum(due, axis=1), volume)


def _merge(
    data: AllocationData, ports: IntArray, upper: FloatArray, due: FloatArray, cut: NDArray[np.bool_]
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Slot of each interval (J,), first interval of each slot (S,), step of each interval (J,), pool of each phase.

    Intervals merge inside a step when each lane runs a phase of equal price, rates and speed, nothing is due yet, and
    no running phase is cut by another lane's breakpoint; where ``cut`` (J,) says so, a step begins.
    """
    phase, speed = data.clock.phase, data.clock.speed
    lanes, clock = phase.shape
    count = upper.shape[1]
    kind = np.full((lanes, count), -1, dtype=np.int64)
    plain = due.sum(axis=0) == 0
    plain[clock:] = False
    for lane in range(lanes):
        rate = np.round(data.critical_rate[lane][:, ports] / data.capacity[ports], DIGITS)
        alike = np.unique(np.column_stack([data.phase_price_per_s[lane], rate]), axis=0, return_inverse=True)[1]
        running = np.flatnonzero(phase[lane] >= 0)
        kind[lane, running] = alike.reshape(-1)[phase[lane, running]]
        parts = np.bincount(phase[lane, running], minlength=len(alike.reshape(-1)))
        plain[running] &= parts[phase[lane, running]] == 1
    fresh = np.ones(count, dtype=bool)
    fresh[1:] = ~plain[1:] | ~plain[:-1] | (upper[:, 1:] != upper[:, :-1]).any(axis=0) | cut[1:]
    step = np.cumsum(fresh) - 1
    pace = np.zeros((lanes, count))
    pace[:, :clock] = np.round(speed, DIGITS)
    key = np.column_stack([step, kind.T, pace.T])
    first, slot_of = np.unique(key, axis=0, return_index=True, return_inverse=True)[1:]
    order = np.argsort(first)  # slots in order of their first interval
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    slot_of = rank[slot_of.reshape(-1)]
    # phases that share a merged slot on a lane are delayed as one
    offset = np.cumsum([0, *(len(one.phases) for one in data.lanes)])
    pool = np.arange(offset[-1])
    for lane in range(lanes):
        running = np.flatnonzero((phase[lane] >= 0) & plain[:clock])
        pool[offset[lane] + phase[lane, running]] = offset[-1] + lane * count + slot_of[running]
    return slot_of, first[order], step, np.unique(pool, return_inverse=True)[1].reshape(-1)
