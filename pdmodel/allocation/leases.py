"""Leases as rows of a program: the last byte at most so long after the first release. Write-backs have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import Network
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import Flow, FlowKind

#: Share of a flow that may be rounding when its last byte is looked for.
LAST = 1e-6


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """Where the lease of a flow runs on a lane's stretched clock.

    From the wait before phase ``first`` on until the flow must be done: phase ``end`` starts, its own wait included if
    it is a ``gate`` of the flow's; with ``tail``, after the tail. ``left_s`` [s]: the lease less the phases' own time.
    """

    flow: int
    first: int
    end: int
    gate: bool
    tail: bool
    left_s: float


@dataclass(frozen=True, slots=True)
class StretchedLeases:
    """Rows (M): slots of steps ``first`` to ``last`` may take ``left_s`` [s] more than tau; place of the ``flow``."""

    flow: IntArray
    first: IntArray
    last: IntArray
    left_s: FloatArray

    def scaled(self, time_s: float) -> StretchedLeases:
        """The same rows in another unit of time."""
        return replace(self, left_s=self.left_s / time_s)


NO_LEASES = StretchedLeases(*(np.zeros(0, dtype=np.int64),) * 3, np.zeros(0))


@dataclass(frozen=True, slots=True)
class FixedLeases:
    """Rows (M): all bytes of a ``flow`` (its place) by the end of an ``interval``, where lease ends at ``until_s``."""

    flow: IntArray
    interval: IntArray
    until_s: FloatArray


def lease_spans(data: AllocationData, flows: Sequence[Flow]) -> list[LeaseSpan]:
    """The span of each flow that has a lease, on the one lane of a record.

    A load is there when its last gate opens, a send when the tail ends. Where the phases alone take longer than the
    lease, the flow must be done by the last phase within the lease, or by the first one after its last release.
    """
    tau, count = data.duration_s[0], len(data.duration_s[0])
    passed = np.concatenate([[0.0], np.cumsum(tau)])
    spans = []
    for place, flow in enumerate(flows):
        steps = [k for k, size_bytes in flow.release if size_bytes > 0]
        if flow.lease_s is None or flow.kind is FlowKind.WRITEBACK or not steps:
            continue
        first, last = min(steps), max(steps)
        gates = [k for k, _ in flow.due if k < count] if flow.kind is FlowKind.LOAD else []
        end = max(gates, default=count)
        tail = not gates or len(gates) < len(flow.due)
        end, until = (count, passed[count]) if tail else (end, passed[end])
        natural = until - passed[first] <= flow.lease_s or last == count
        if not natural:
            tail = False
            end = int(np.searchsorted(passed, passed[first] + flow.lease_s, side="right")) - 1
            end = max(end, last + 1, first + 1)
        left = flow.lease_s - (passed[end] - passed[first])
        spans.append(LeaseSpan(place, first, end, natural and not tail, tail, float(left)))
    return spans


def fixed_leases(data: AllocationData, net: Network, released_s: Sequence[float], end_s: FloatArray) -> FixedLeases:
    """Leases on a fixed clock; ``released_s`` (F',) is each flow's first release, ``end_s`` (J,) ends intervals [s].

    A lease that outlasts the last interval is none; one that ends inside an interval counts until that begins.
    """
    flow, interval, until = [], [], []
    slack = 1e-12 * float(end_s[-1] - data.clock.edges_s[0]) if len(end_s) else 0.0
    for place, f in enumerate(net.flows):
        lease = data.flows[f].lease_s
        if lease is None or data.flows[f].kind is FlowKind.WRITEBACK:
            continue
        last = int(np.searchsorted(end_s, released_s[place] + lease + slack, side="right")) - 1
        if last < len(end_s) - 1:
            flow.append(place)
            interval.append(max(last, 0))
            until.append(released_s[place] + lease)
    return FixedLeases(np.array(flow, dtype=np.int64), np.array(interval, dtype=np.int64), np.array(until, dtype=float))


def outlasted(net: Network, leases: FixedLeases, size: FloatArray, end_s: FloatArray) -> FloatArray:
    """By how much the last byte of each flow class comes after its lease on a fixed clock, shape (F',) [s].

    ``size`` (R', J) [bytes] per route and interval; a byte is there when its interval ends.
    """
    out = np.zeros(len(net.flows))
    for f, until in zip(leases.flow.tolist(), leases.until_s.tolist(), strict=True):
        mine = net.route_flow == f
        sent = np.cumsum(net.per_flow[mine] @ size[mine])
        last = int(np.searchsorted(sent, sent[-1] * (1 - LAST)))
        out[f] = max(0.0, float(end_s[last]) - until)
    return out
