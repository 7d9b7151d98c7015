"""Bytes of a finished schedule moved as early as release and ports allow: same cost, and no choice left to chance."""

from __future__ import annotations

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.memory import PoolRoom
from pdmodel.allocation.network import Network
from pdmodel.timeline.phases import FloatArray, IntArray
from pdmodel.transfer.flows import FlowKind

#: Bytes, relative to a flow's volume, that are not worth a move.
CRUMB = 1e-12


def pull_forward(
    size_bytes: FloatArray,
    room: FloatArray,
    *,
    released: FloatArray,
    net: Network,
    order: IntArray,
    pools: PoolRoom | None = None,
) -> FloatArray:
    """Bytes per route and slot, each flow's bytes taken from its next later slots wherever a slot has room left.

    Slots are visited in time order, and in a slot the flows in ``order``: since only later slots give bytes away, one
    pass leaves no move to be made. Bytes sent by the end of a slot never decrease, so dues stay met; lengths of slots
    and overdrafts are not touched, so the cost stays.

    Parameters
    ----------
    size_bytes: the schedule, shape (R, S) [bytes].
    room: bytes of KV that each port can carry in each slot, shape (S, P).
    released: bytes of each flow released by each slot, shape (F, S).
    net: the routes' flows and consumption.
    order: flows, the one to be served first in front, shape (F,).
    pools: memory that the bytes fill; it is used up.

    """
    out = np.clip(size_bytes, 0.0, None)
    routes = [np.flatnonzero(net.route_flow == f).tolist() for f in range(len(released))]
    crossed = [np.flatnonzero(m).tolist() for m in net.consumption]
    weight = [m[p].tolist() for m, p in zip(net.consumption, crossed, strict=True)]
    members = net.per_flow.tolist()
    volume = [float(net.per_flow[r] @ out[r].sum(axis=1)) for r in routes]
    sent, ahead = [0.0] * len(routes), [0.0] * len(routes)
    for s in range(out.shape[1]):
        column = out[:, s].tolist()
        for f in range(len(routes)):
            for r in reversed(routes[f]):
                given = min(ahead[f], members[r] * column[r])
                column[r] -= given / members[r]
                ahead[f] -= given
                sent[f] += members[r] * column[r]
        allowed = released[:, s].tolist()
        wanting = [f for f in order.tolist() if min(allowed[f], volume[f]) - sent[f] > CRUMB * volume[f]]
        if wanting:
            left = (room[s] - np.asarray(column) @ net.consumption).tolist()
            for f in wanting:
                for r in routes[f]:
                    fits = min((left[p] / w for p, w in zip(crossed[r], weight[r], strict=True)), default=np.inf)
                    fills = np.inf if pools is None else pools.limit(f, s, sent[f])
                    moved = min(fits * members[r], min(allowed[f], volume[f]) - sent[f], fills)
                    if moved > CRUMB * volume[f]:
                        if pools is not None:
                            pools.pull(f, s, sent[f], moved)
                        column[r] += moved / members[r]
                        sent[f] += moved
                        ahead[f] += moved
                        for p, w in zip(crossed[r], weight[r], strict=True):
                            left[p] -= w * moved / members[r]
        out[:, s] = column
    return out


def earliest_due_first(data: AllocationData, flows: IntArray) -> IntArray:
    """Places in ``flows`` in the order of EDF: by first due phase, loads before sends, then as listed.

    Write-backs come last: they take what is left.
    """
    key = [
        (
            data.flows[f].kind is FlowKind.WRITEBACK,
            min((k for k, _ in data.flows[f].due), default=0),
            data.flows[f].kind.value,
            n,
        )
        for n, f in enumerate(flows)
    ]
    return np.array([n for *_, n in sorted(key)], dtype=np.int64)


def released_by_slot(data: AllocationData, net: Network, length_s: FloatArray) -> FloatArray:
    """Bytes of each flow class that may have left by each slot of the one lane, shape (F', 2n + 1) [bytes].

    Bytes released at phase k may move in the wait before it. A slot of 0 s takes none.
    """
    out = np.zeros((len(net.flows), len(length_s)))
    for row, f in enumerate(net.flows):
        for k, size_bytes in data.flows[f].release:
            out[row, 2 * k :] += size_bytes
    return np.where(length_s > 0, out, 0.0)
