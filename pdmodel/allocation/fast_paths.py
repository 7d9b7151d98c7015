"""Answers without a program: the closed form for one port, and a lower bound that certifies a simple rule."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData, RequestData
from pdmodel.allocation.elastic import tail_price
from pdmodel.allocation.network import Network, network
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward, released_by_slot
from pdmodel.allocation.schedule import elastic_schedule
from pdmodel.allocation.solution import Elastic, Solution, SolvePath, Status
from pdmodel.errors import InputError
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import Flow, FlowKind

#: A cost within this of a lower bound is optimal: relative, and absolute in units of the priced prefill.
CERTIFIED_RELATIVE = 1e-9
CERTIFIED_ABSOLUTE = 1e-12
#: Relative growth of a port's capacity for the derivative of the lower bound.
PRICE_STEP = 1e-6


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A cost that nothing undercuts [GPU·s]: the larger of ``sends`` and ``loads``."""

    cost: float
    sends: float
    loads: float


@dataclass(frozen=True, slots=True)
class _RequestBound:
    """Bounds of one request by port, shapes (P,) [GPU·s]: of its sends, of its loads, of what is released last."""

    sends: FloatArray
    loads: FloatArray
    late: FloatArray

    @property
    def by_sends(self) -> float:
        return float(self.sends.max(initial=0.0))

    @property
    def by_loads(self) -> float:
        return float(self.loads.max(initial=0.0) + self.late.max(initial=0.0))

    @property
    def parts(self) -> tuple[FloatArray, ...]:
        """What adds up to the greater of the two bounds."""
        return (self.sends,) if self.by_sends >= self.by_loads else (self.loads, self.late)


@dataclass(frozen=True, slots=True)
class Suffix:
    """Program E of sends on single ports (columns), for each start phase k = n .. 0 in that order.

    ``need`` (n + 1, P): the most bytes that phases from some k' >= k on cannot carry unstretched; ``price`` (n + 1, P):
    the least price per byte of room from k on, and ``seller`` (n + 1, P): the phase that sells it (n: the tail).
    """

    need: FloatArray
    price: FloatArray
    seller: IntArray

    @property
    def cost(self) -> FloatArray:
        """The optimum of each port, shape (P,)."""
        bought = np.diff(self.need, axis=0, prepend=0.0)
        return np.asarray((bought * self.price).sum(axis=0))


def suffix_scan(released: FloatArray, room: FloatArray, price: FloatArray, tail_price_per_byte: FloatArray) -> Suffix:
    r"""The closed form of program E for one port and sends, O(n) per port.

    .. math:: cost = \sum_{k=n}^{0} (M_k - M_{k+1}) \min_{i \ge k} \pi_i / \hat C_i, \quad
              M_k = \max_{k' \ge k} \Big( \sum_{i \ge k'} r_i - \sum_{i=k'}^{n-1} (\hat C_i \tau_i - b_i) \Big)

    What is released from k on must fit into the room from k on; what does not fit is bought where room is cheapest
    among the phases from k on and the tail.

    Parameters
    ----------
    released: bytes on the port released at phase k (last row: at the end), shape (n + 1, P).
    room: bytes that a phase carries beside its critical traffic without being stretched, shape (n, P).
    price: price per byte of stretching a phase, or the wait before it, shape (n, P).
    tail_price_per_byte: price per byte of the tail, shape (P,).

    Notes
    -----
    Valid for any non-negative figures. Source: greedy on suffixes; compared with the program in the tests.

    """
    backwards = np.cumsum(released[::-1], axis=0)
    carried = np.concatenate([np.zeros((1, released.shape[1])), np.cumsum(room[::-1], axis=0)])
    need = np.maximum.accumulate(np.maximum(backwards - carried, 0.0), axis=0)
    offers = np.concatenate([tail_price_per_byte[None, :], price[::-1]])
    least = np.minimum.accumulate(offers, axis=0)
    better = np.concatenate([np.ones((1, offers.shape[1]), dtype=bool), least[1:] < least[:-1]])
    places = np.where(better, np.arange(len(offers))[:, None], 0)
    return Suffix(need, least, len(offers) - 1 - np.maximum.accumulate(places, axis=0))


def lower_bound(data: AllocationData) -> LowerBound:
    r"""A lower bound of the cost of every policy on one lane.

    .. math:: LB = \max \Big( \max_e E_e, \; \min_{i \le k} \pi_i \max_{e,k} \frac{D_{e,k} - \sum_{i<k} S_{e,i} \tau_i}
              {C_e} + \lambda \max_e \frac{R_e}{C_e} \Big)

    E_e: closed form of the sends on port e alone, where a gated phase also sells room at pi_k / C_e; D: load bytes due
    by phase k, R: send bytes released at the end; bytes count with the fewest crossings that a route of the flow has.
    Decode lanes are taken to give way for nothing; write-backs, memory and leases are dropped: without them nothing
    takes longer. With several requests, the largest of their own bounds.

    Raises `InputError` when the record has not exactly one lane. Source: relaxation of program E to one port.
    """
    if len(data.lanes) != 1:
        raise InputError(f"the lower bound takes one prefill lane, not {len(data.lanes)}", expected="one lane")
    if not data.flows:
        return LowerBound(0.0, 0.0, 0.0)
    bounds = _request_bounds(data)
    sends, loads = max(bound.by_sends for bound in bounds), max(bound.by_loads for bound in bounds)
    return LowerBound(max(sends, loads), sends, loads)


def bound_prices(data: AllocationData) -> FloatArray:
    """What one more byte/s on each port takes off the lower bound, shape (P,) [GPU·s per byte/s].

    Where the bound is the optimum (`certified`), these are its shadow prices. The right derivative by a step of 1e-6;
    ports that bind alike share what they save when all of them grow, as a class of ranks does in a program.
    """
    price = np.zeros(len(data.ports))
    if not data.flows:
        return price
    bounds = _request_bounds(data)
    worst = max(range(len(bounds)), key=lambda k: max(bounds[k].by_sends, bounds[k].by_loads))
    for k, part in enumerate(bounds[worst].parts):
        tied = np.flatnonzero((part > 0) & (part >= part.max(initial=0.0) * (1 - CERTIFIED_RELATIVE)))
        if not len(tied):
            continue
        wider = _request_bounds(_widened(data, tied))[worst]
        now = (wider.sends,) if len(bounds[worst].parts) == 1 else (wider.loads, wider.late)
        saved = max(0.0, float(part.max() - now[k].max()))
        price[tied] += saved / (PRICE_STEP * data.capacity[tied].sum())
    return price


def _widened(data: AllocationData, ports: IntArray) -> AllocationData:
    """The record with a little more capacity on some ports."""
    wide = {
        int(e): replace(data.ports[e], capacity_bytes_per_s=data.ports[e].capacity_bytes_per_s * (1 + PRICE_STEP))
        for e in ports
    }
    return replace(data, ports=tuple(wide.get(e, port) for e, port in enumerate(data.ports)))


def certified(data: AllocationData, cost: float, floor: float) -> bool:
    """Whether a replayed cost equals the lower bound: 1e-9 relative, 1e-12 of the priced prefill absolute."""
    prefill = sum(float(tau @ price) for tau, price in zip(data.duration_s, data.phase_price_per_s, strict=True))
    return cost <= floor + max(CERTIFIED_RELATIVE * abs(floor), CERTIFIED_ABSOLUTE * prefill)


def _with_sure_prices(data: AllocationData) -> AllocationData:
    """One lane at what a delay costs at the least.

    A phase's price holds the waiting of every later request too; a later one that arrives after a pause need not wait.
    Where any does, a phase of request r counts pi + lambda_r alone.
    """
    (lane,) = data.lanes
    if not any(lane.phases[request.first_phase].not_before_s > 0 for request in data.requests[1:]):
        return data
    price = np.full(len(lane.phases), data.lane_price_per_s[0])
    for request in data.requests:
        price[request.first_phase : request.last_phase + 1] += request.price_per_s
    return replace(data, phase_price_per_s=(np.minimum(price, data.phase_price_per_s[0]),))


def _request_bounds(data: AllocationData) -> list[_RequestBound]:
    data = _with_sure_prices(data)
    crossings = np.full((len(data.flows), len(data.ports)), np.inf)
    np.minimum.at(crossings, data.route_flow, data.consumption)
    return [_request_bound(data, request, crossings) for request in data.requests]


def _request_bound(data: AllocationData, request: RequestData, crossings: FloatArray) -> _RequestBound:
    """Bounds by sends and by loads of one request, its phases alone."""
    mine = [(f, flow) for f, flow in enumerate(data.flows) if flow.request == request.name]
    end = request.last_phase + 1
    price, room = data.phase_price_per_s[0][:end], _room(data)[:end]
    sends = _released(mine, FlowKind.SEND, crossings, end)
    gates = [k for flow in data.flows if flow.kind is FlowKind.LOAD for k, _ in flow.due if k < end]
    offer = price[:, None] / data.lane_usable[0][:end]
    offer[gates] = np.minimum(offer[gates], price[gates, None] / data.capacity)
    by_sends = suffix_scan(sends, room, offer, request.price_per_s / data.capacity).cost
    late = request.price_per_s * (sends[-1] / data.capacity)
    return _RequestBound(by_sends, _loads_bound(data, mine, crossings, end), late)


def _loads_bound(data: AllocationData, mine: list[tuple[int, Flow]], crossings: FloatArray, end: int) -> FloatArray:
    """The longest delay that a gate must suffer by each port, at the least price of the phases until then, (P,)."""
    loads = [(f, flow) for f, flow in mine if flow.kind is FlowKind.LOAD]
    if not loads:
        return np.zeros(len(data.ports))
    first = min(k for _, flow in loads for k, _ in flow.release)
    owed = np.zeros((end, len(data.ports)))
    for f, flow in loads:
        for k, size_bytes in flow.due:
            if k < end:
                owed[k] += size_bytes * crossings[f]
    room = _room(data)[:end]
    room[:first] = 0.0
    before = np.concatenate([np.zeros((1, room.shape[1])), np.cumsum(room, axis=0)[:-1]])
    delay = (np.cumsum(owed, axis=0) - before) / data.capacity
    price = np.minimum.accumulate(data.phase_price_per_s[0][first:end])
    return np.asarray(np.maximum(delay[first:] * price[:, None], 0.0).max(axis=0, initial=0.0))


def _room(data: AllocationData) -> FloatArray:
    """Bytes of KV that each phase carries without being stretched, shape (n, P)."""
    return np.maximum(data.lane_usable[0] * data.duration_s[0][:, None] - data.critical_bytes[0], 0.0)


def _released(mine: list[tuple[int, Flow]], kind: FlowKind, crossings: FloatArray, end: int) -> FloatArray:
    """Bytes on each port that flows of a kind release at each phase up to ``end``, shape (end + 1, P)."""
    out = np.zeros((end + 1, crossings.shape[1]))
    for f, flow in mine:
        if flow.kind is kind:
            for k, size_bytes in flow.release:
                out[min(k, end)] += size_bytes * crossings[f]
    return out


def single_port(data: AllocationData) -> Solution | None:
    """Program E in closed form where it applies: one lane, sends only, one port (class) that KV uses; else None.

    Not where memory may overflow or a lease may run out: then it matters when bytes move.
    Every flow takes its route with the fewest crossings; the schedule sends as early as release and room allow.
    """
    began = time.perf_counter()
    if len(data.lanes) != 1 or data.decode_lanes or not data.volume_bytes.any():
        return None
    if any(flow.kind is not FlowKind.SEND or flow.lease_s is not None for flow in data.flows) or len(data.tight_pools):
        return None
    net = network(data, collapse(data, data.volume_bytes))
    if len(net.ports) != 1:
        return None
    crossing = net.consumption[:, 0] / net.per_flow
    chosen = np.array(
        [min(np.flatnonzero(net.route_flow == f), key=crossing.__getitem__) for f in range(len(net.flows))]
    )
    tau, usable, capacity = data.duration_s[0], data.lane_usable[0][:, net.ports], data.capacity[net.ports]
    flows = [(row, data.flows[f]) for row, f in enumerate(net.flows)]
    released = _released(flows, FlowKind.SEND, crossing[chosen][:, None], len(tau))
    offer, tail_offer = data.phase_price_per_s[0][:, None] / usable, tail_price(data) / capacity
    scan = suffix_scan(released, _room(data)[:, net.ports], offer, tail_offer)
    length = np.zeros(2 * len(tau) + 1)
    length[1::2] = tau
    seller, bought = scan.seller[:, 0], np.diff(scan.need[:, 0], prepend=0.0)
    width = np.append(usable[:, 0], capacity)
    np.add.at(length, 2 * seller + (seller < len(tau)), bought / width[seller])
    size_bytes = np.zeros((len(net.routes), len(length)))
    size_bytes[chosen] = _as_early_as_possible(data, _only(net, chosen), length)
    return Solution(
        path=SolvePath.CLOSED_FORM,
        status=Status.OPTIMAL,
        objective=float(scan.cost[0]),
        schedule=elastic_schedule(data, length, net.spread_routes(size_bytes)),
        shadow_price=net.spread_prices(_saved(data, net, scan)),
        wall_s=time.perf_counter() - began,
        elastic=Elastic(float((length[1::2] - tau).sum()), 0.0, float(length[-1]), np.zeros(0)),
    )


def _only(net: Network, chosen: IntArray) -> Network:
    """The network without the other routes."""
    return replace(
        net,
        consumption=net.consumption[chosen],
        routes=net.routes[chosen],
        route_flow=net.route_flow[chosen],
        per_flow=net.per_flow[chosen],
    )


def _as_early_as_possible(data: AllocationData, net: Network, length: FloatArray) -> FloatArray:
    """All bytes of one route per flow, as early as release and the slots' lengths allow, shape (F', 2n + 1)."""
    size_bytes = np.zeros((len(net.flows), len(length)))
    size_bytes[:, -1] = data.volume_bytes[net.flows] / net.per_flow
    room = length[:, None] * data.idle_usable[net.ports]
    room[1::2] = length[1::2, None] * data.lane_usable[0][:, net.ports] - data.critical_bytes[0][:, net.ports]
    order = earliest_due_first(data, net.flows)
    return pull_forward(size_bytes, room, released=released_by_slot(data, net, length), net=net, order=order)


def _saved(data: AllocationData, net: Network, scan: Suffix) -> FloatArray:
    """What one more byte/s would save, shape (1,): what is bought gets cheaper, and more fits into the phases."""
    rate, port = data.critical_rate[0][:, net.ports[0]], data.ports[net.ports[0]]
    widens = (rate == 0) | (rate <= port.capacity_bytes_per_s - port.guard_bytes_per_s)
    gain = np.concatenate([[0.0], np.cumsum((data.duration_s[0] * widens)[::-1])])
    width = np.append(data.lane_usable[0][:, net.ports[0]], port.capacity_bytes_per_s)
    seller, bought = scan.seller[:, 0], np.diff(scan.need[:, 0], prepend=0.0)
    places = np.flatnonzero(bought > 0)
    fits = np.diff(gain[places], prepend=0.0)
    cheaper = (bought * np.append(widens, True)[seller] / width[seller])[places]
    return np.array([(scan.price[places, 0] * (cheaper + fits)).sum()])
