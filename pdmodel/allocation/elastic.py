"""Program E as arrays: slots of a stretched lane, after the exact reduction.

Between two releases or gates nothing distinguishes when inside a stretch bytes move, so phases with the same critical
rates and the same price act as one long phase; what is solved for it is spread back in proportion to tau.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.collapse import DIGITS
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.leases import NO_LEASES, LeaseSpan, StretchedLeases, lease_spans
from pdmodel.allocation.memory import NO_ROWS, PoolRows, appearances, pool_rows
from pdmodel.allocation.network import Network
from pdmodel.allocation.scaling import Scale
from pdmodel.allocation.schedule import HOLD_ROUNDING
from pdmodel.allocation.writebacks import postponable
from pdmodel.errors import InputError
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import FlowKind

#: Bytes due before they are released, relative to the flow's volume, beyond which a case is refused.
DUE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class ElasticForm:
    """Slots (S) in order; steps (K) are groups of slots between which bytes moved so far are bounded.

    ``tau_s``, ``price`` (S,): duration without KV and price per second of stretch; ``stretch`` (S,): whether a slot may
    be longer than tau; ``critical`` [bytes], ``usable`` [byte/s] (S, P'); ``step`` (S,); ``lower``, ``upper`` (F', K)
    [bytes]: bounds of the bytes sent by the end of a step; ``decode`` (D, P') [byte/s] and ``decode_price`` (D,).
    ``widens`` (S, P'): whether more capacity is more usable capacity. ``phase_slot``, ``wait_slot`` (n,): slot of each
    phase and of the wait before it (-1: none); ``phase_share`` (n,): the phase's share of its slot. The last slot is
    the tail. ``pools``, ``leases``: their rows.
    """

    step: IntArray
    tau_s: FloatArray
    price: FloatArray
    stretch: NDArray[np.bool_]
    critical: FloatArray
    usable: FloatArray
    widens: NDArray[np.bool_]
    lower: FloatArray
    upper: FloatArray
    decode: FloatArray
    decode_price: FloatArray
    phase_slot: IntArray
    wait_slot: IntArray
    phase_share: FloatArray
    pools: PoolRows
    leases: StretchedLeases

    @property
    def limited(self) -> bool:
        """Whether memory or a lease says when bytes have to move, beside releases and gates."""
        return bool(len(self.pools.room) or len(self.leases.flow))

    @property
    def overfull(self) -> NDArray[np.bool_]:
        """Slots and ports (S, P') where critical traffic and decode lanes ask for more than there is."""
        left = self.usable - self.decode.sum(axis=0)
        return np.asarray((self.critical > left * self.tau_s[:, None] + 1e-12 * self.critical) | (left < 0))

    def scaled(self, scale: Scale) -> ElasticForm:
        """The same form in the units of ``scale``."""
        return replace(
            self,
            tau_s=self.tau_s / scale.time_s,
            price=self.price / scale.price,
            critical=self.critical / scale.size_bytes,
            usable=self.usable / scale.rate_bytes_per_s,
            lower=self.lower / scale.size_bytes,
            upper=self.upper / scale.size_bytes,
            decode=self.decode / scale.rate_bytes_per_s,
            decode_price=self.decode_price / scale.price,
            pools=self.pools.scaled(scale.size_bytes),
            leases=self.leases.scaled(scale.time_s),
        )


def tail_price(data: AllocationData) -> float:
    """Price of the tail: lambda of every request that has sends [GPU·s per s]."""
    waiting = {(flow.lane, flow.request) for flow in data.flows if flow.kind is FlowKind.SEND}
    return sum(r.price_per_s for r in data.requests if (data.lanes[r.lane].name, r.name) in waiting)


def elastic_form(data: AllocationData, net: Network, wait_price: FloatArray | None = None) -> ElasticForm:
    """The slots of the one prefill lane of a record.

    ``wait_price`` (n,) [GPU·s per s] is that of the wait before each phase, where it is not the phase's own.
    Raises `InputError` when the record has not exactly one lane, or a load is due before its bytes are released.
    """
    if len(data.lanes) != 1:
        raise InputError(f"program E takes one prefill lane, not {len(data.lanes)}", expected="one lane (or program R)")
    count = len(data.lanes[0].phases)
    flows = [data.flows[f] for f in net.flows]
    spans = lease_spans(data, flows)
    gates = {k for flow in flows if flow.kind is FlowKind.LOAD for k, _ in flow.due if k < count}
    later = {k for flow in flows for k, _ in flow.release}
    later |= {k for q in data.tight_pools for _, k, *_ in data.memory[q].appears}
    later |= {span.end for span in spans if not span.tail}
    cuts = sorted({0, *gates, *(k for k in later if k < count)})
    # steps: a wait where a gate is, then the phases up to the next cut; the tail is the last
    wait_step, first_step, step = {}, {}, 0
    span_step = np.zeros(count, dtype=np.int64)
    for cut, stop in zip(cuts, [*cuts[1:], count], strict=True):
        first_step[cut] = step
        if cut in gates:
            wait_step[cut] = step
            step += 1
        span_step[cut:stop] = step
        step += 1
    first_step[count] = step
    price = data.phase_price_per_s[0] if wait_price is None else wait_price
    form = _slots(data, net, span_step, {k: (at, float(price[k])) for k, at in wait_step.items()}, tail_step=step)
    lower, upper = _cumulative(data, net, first_step, wait_step, steps=step + 1)
    leases = _leases(spans, first_step, wait_step)
    for f, last in zip(leases.flow.tolist(), leases.last.tolist(), strict=True):
        lower[f, last:] = upper[f, -1]
    appeared = appearances(data, net, lambda _, k, __: first_step[k], step + 1)
    pools = pool_rows(data, net, appeared, lower, upper)
    form = replace(form, lower=np.minimum(lower, upper), upper=upper, pools=pools, leases=leases)
    # with memory or a lease, a pause is not as good later as it is now
    return replace(form, stretch=np.ones_like(form.stretch)) if form.limited else form


def _leases(spans: list[LeaseSpan], first_step: dict[int, int], wait_step: dict[int, int]) -> StretchedLeases:
    """Spans over phases as spans over steps."""
    tail = max(first_step.values())

    def last(span: LeaseSpan) -> int:
        if span.tail:
            return tail
        return wait_step[span.end] if span.gate else first_step[span.end] - 1

    return StretchedLeases(
        flow=np.array([span.flow for span in spans], dtype=np.int64),
        first=np.array([first_step[span.first] for span in spans], dtype=np.int64),
        last=np.array([last(span) for span in spans], dtype=np.int64),
        left_s=np.array([span.left_s for span in spans], dtype=float),
    )


def _slots(
    data: AllocationData, net: Network, span_step: IntArray, wait_at: dict[int, tuple[int, float]], tail_step: int
) -> ElasticForm:
    """Merge phases of one step with equal price and equal critical rates; then waits; the tail last.

    ``wait_at``: step and price of the wait before a phase.
    """
    tau, price = data.duration_s[0], data.phase_price_per_s[0]
    rate = data.critical_rate[0][:, net.ports]
    key = np.column_stack([span_step, price, np.round(rate / data.capacity[net.ports], DIGITS)])
    groups, member = np.unique(key, axis=0, return_inverse=True)
    member = member.reshape(-1)
    first = np.zeros(len(groups), dtype=np.int64)
    first[member[::-1]] = np.arange(len(tau))[::-1]
    waits = sorted(wait_at)
    span_tau = np.bincount(member, tau, minlength=len(groups)).astype(float)
    span_critical = np.zeros((len(groups), len(net.ports)))
    np.add.at(span_critical, member, data.critical_bytes[0][:, net.ports])
    idle, free = data.idle_usable[net.ports], len(waits) + 1
    steps = np.concatenate([groups[:, 0].astype(np.int64), [wait_at[k][0] for k in waits], [tail_step]]).astype(
        np.int64
    )
    # by step, tail last, in order of the first phase inside a step
    order = np.lexsort((np.concatenate([first, waits, [len(tau)]]), steps))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    wait_slot = np.full(len(tau), -1, dtype=np.int64)
    wait_slot[waits] = place[len(groups) : len(groups) + len(waits)]
    slot_price = np.concatenate([price[first], [wait_at[k][1] for k in waits], [tail_price(data)]])[order]
    critical = np.concatenate([span_critical, np.zeros((free, len(net.ports)))])[order]
    steady = data.decode_rate.sum(axis=0)[net.ports]
    demand = np.concatenate([rate[first] + steady, np.tile(steady, (free, 1))])[order]
    still = np.zeros(len(order), dtype=bool)
    still[place[len(groups) :]] = True
    return ElasticForm(
        step=steps[order],
        tau_s=np.concatenate([span_tau, np.zeros(free)])[order],
        price=slot_price,
        stretch=_worth_stretching(critical, slot_price, still),
        critical=critical,
        usable=np.concatenate([data.lane_usable[0][first][:, net.ports], np.tile(idle, (free, 1))])[order],
        widens=(demand == 0) | (demand <= (data.capacity - data.guard)[net.ports]),
        lower=np.zeros((0, 0)),
        upper=np.zeros((0, 0)),
        decode=data.decode_rate[:, net.ports],
        decode_price=data.decode_price_per_s,
        phase_slot=place[member],
        wait_slot=wait_slot,
        phase_share=_shares(tau, span_tau, member),
        pools=NO_ROWS,
        leases=NO_LEASES,
    )


def _shares(tau: FloatArray, span_tau: FloatArray, member: IntArray) -> FloatArray:
    """Share of each phase in its merged slot, shape (n,) [-]: by tau, or equal where all last 0 s."""
    even = 1.0 / np.bincount(member)[member]
    return np.where(span_tau[member] > 0, tau / np.where(span_tau > 0, span_tau, 1.0)[member], even)


def _worth_stretching(critical: FloatArray, price: FloatArray, still: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Slots that an optimum may have to stretch: all but compute before a wait or tail that costs no more.

    A pause inside compute offers every port what a pause at the next wait (or tail) offers, and nothing is due between,
    so the later one does as well.
    """
    later = np.full(len(price), np.inf)
    ahead = np.inf
    for s in range(len(price) - 1, -1, -1):
        later[s] = ahead
        if still[s]:
            ahead = price[s]
    computes = ~still & ~(critical > 0).any(axis=1)
    return ~(computes & (later <= price))


def _cumulative(
    data: AllocationData, net: Network, first_step: dict[int, int], wait_step: dict[int, int], steps: int
) -> tuple[FloatArray, FloatArray]:
    """Bounds of the bytes sent by the end of each step: released from its start, due by a gate's wait.

    What write-backs leave unsent moves after the tail, for nothing.
    """
    count, flows = len(data.lanes[0].phases), [data.flows[f] for f in net.flows]
    later = postponable(data)[net.flows]
    lower, upper = np.zeros((len(flows), steps)), np.zeros((len(flows), steps))
    for f, flow in enumerate(flows):
        for k, size_bytes in flow.release:
            upper[f, first_step[min(k, count)] :] += size_bytes
        if flow.kind is FlowKind.LOAD:
            for k, size_bytes in _steps_before(flow.due, count):
                lower[f, wait_step[k] :] += size_bytes
        upper[f] = np.minimum(upper[f], flow.volume_bytes)
        upper[f, -1] = flow.volume_bytes
        if not later[f]:
            lower[f, -1] = flow.volume_bytes
        if (lower[f] > upper[f] + DUE_TOLERANCE * flow.volume_bytes).any():
            raise InputError(f"flow {flow.name!r} is due before its bytes are released")
    return lower, upper


def _steps_before(pairs: Iterable[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    return [(k, size_bytes) for k, size_bytes in pairs if k < count]


@dataclass(frozen=True, slots=True)
class ElasticAnswer:
    """Bytes per route and slot (R', S), stretch per slot (S,) [s] and loss per decode lane and slot (D, S) [s]."""

    sent: FloatArray
    stretch: FloatArray
    loss: FloatArray


def postpone_holds(form: ElasticForm, net: Network, answer: ElasticAnswer) -> ElasticAnswer:
    """The same optimum without waits that outlast their gate.

    What is left of a wait once its gate is met moves, bytes included, to the next wait or the tail, where every port
    offers the same and nothing is due before; only if that costs no more, and where neither memory nor leases care.
    """
    if form.limited:
        return answer
    sent, stretch, loss = answer.sent.copy(), answer.stretch.copy(), answer.loss.copy()
    flows = len(net.flows)
    gained = np.zeros((flows, len(form.tau_s)))
    np.add.at(gained, net.route_flow, sent * net.per_flow[:, None])
    still = [*np.sort(form.wait_slot[form.wait_slot >= 0]).tolist(), len(form.tau_s) - 1]
    for here, after in itertools.pairwise(still):
        if stretch[here] <= 0 or form.price[after] > form.price[here]:
            continue
        missing = form.lower[:, form.step[here]] - gained[:, :here].sum(axis=1)
        kept = np.divide(missing, gained[:, here], out=np.zeros(flows), where=gained[:, here] > 0)
        moved = 1.0 - min(1.0, max(0.0, float(kept.max(initial=0.0))))
        if moved > HOLD_ROUNDING:
            for values in (sent, stretch, loss, gained):
                values[..., after] += moved * values[..., here]
                values[..., here] *= 1.0 - moved
    return ElasticAnswer(sent, stretch, loss)
