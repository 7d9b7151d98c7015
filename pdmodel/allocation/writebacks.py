"""Write-backs: nobody waits for them, so most of them need no place in a program.

When everything else is done there is as much time as they need, at no price. A program plans only those that make room
in a pool that may overflow, and those that no port would ever let through beside the decode lanes. What else there is
to write back takes the gaps that are left, and the rest is served after the schedule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import Network
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind


def has_writebacks(data: AllocationData) -> bool:
    """Whether anything is to be written back."""
    return any(flow.kind is FlowKind.WRITEBACK for flow in data.flows)


def postponable(data: AllocationData) -> NDArray[np.bool_]:
    """Write-backs that can move when all else is done and decode lanes run at full speed, shape (F,)."""
    out = np.zeros(len(data.flows), dtype=bool)
    writeback = np.array([flow.kind is FlowKind.WRITEBACK for flow in data.flows], dtype=bool)
    if writeback.any():
        shut = data.idle_usable - data.decode_rate.sum(axis=0) <= 0
        open_route = ~(data.consumption[:, shut] > 0).any(axis=1)
        np.logical_or.at(out, data.route_flow, open_route)
    return np.asarray(out & writeback)


def in_program(data: AllocationData, net: Network, *, by_the_end: bool = False) -> NDArray[np.bool_]:
    """Flow classes that a program has to plan, shape (F',); ``by_the_end``: all bytes must be moved by its end."""
    if by_the_end:
        return np.ones(len(net.flows), dtype=bool)
    makes_room = (data.pool_weight[data.tight_pools] < 0).any(axis=0)
    return np.asarray(~(postponable(data) & ~makes_room)[net.flows])


def with_rest(data: AllocationData, net: Network, size_bytes: FloatArray, kept: NDArray[np.bool_]) -> FloatArray:
    """A schedule of the flows ``kept``, with the routes of all (R', S + 1): its last slot is after everything else.

    There wait the bytes of write-backs that have no place yet.
    """
    out = np.zeros((len(net.routes), size_bytes.shape[1] + 1))
    out[kept[net.route_flow], :-1] = size_bytes
    sent = np.zeros(len(net.flows))
    np.add.at(sent, net.route_flow, out.sum(axis=1) * net.per_flow)
    for place, f in enumerate(net.flows):
        if data.flows[f].kind is FlowKind.WRITEBACK:
            first = int(np.flatnonzero(net.route_flow == place)[0])
            out[first, -1] = max(data.volume_bytes[f] - sent[place], 0.0) / net.per_flow[first]
    return out
