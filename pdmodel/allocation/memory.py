"""Memory pools as rows of a program, and as what a schedule may not overfill when its bytes are pulled forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.network import Network, first_of
from pdmodel.timeline.phases import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class PoolRows:
    """Rows (M) of pool classes (Q') that may overflow, over steps of a program; see `MemoryRow` for the equation.

    ``weight`` (Q', F') [-]: what a byte moved of one flow of each class adds; ``pool``, ``step`` (M,); ``room`` (M,)
    [bytes]: what moved bytes may fill; ``least`` (Q',) [bytes]: what is too much whatever is moved when.
    """

    weight: FloatArray
    pool: IntArray
    step: IntArray
    room: FloatArray
    least: FloatArray

    def scaled(self, size_bytes: float) -> PoolRows:
        """The same rows in another unit of bytes."""
        return replace(self, room=self.room / size_bytes, least=self.least / size_bytes)


NO_ROWS = PoolRows(np.zeros((0, 0)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def pool_rows(
    data: AllocationData, net: Network, appeared: FloatArray, lower: FloatArray, upper: FloatArray
) -> PoolRows:
    """The rows that may bind.

    A pool is fullest where a step ends: moved bytes count as they are then, and what appears as the next step starts is
    there already. A row that bounds of the bytes moved keep anyway is left out.

    Parameters
    ----------
    data, net: the record and the flows of its program; flows that the program leaves out have moved nothing yet.
    appeared: bytes that appeared by the start of each step, shape (Q', K).
    lower, upper: bounds of the bytes moved by the end of each step, shape (F', K).

    """
    weight = pool_weights(data, net)
    free = _free(data, net)
    level = np.maximum(appeared, np.concatenate([appeared[:, 1:], appeared[:, -1:]], axis=1))
    room = free[:, None] - level
    most = np.maximum(weight, 0.0) @ upper + np.minimum(weight, 0.0) @ lower
    pool, step = np.nonzero(most > room)
    moved = data.pool_weight[_members(data, net)] @ data.volume_bytes
    over = np.maximum(appeared[:, 0], appeared[:, -1] + moved) - free
    return PoolRows(weight, pool, step, room[pool, step], np.maximum(over, 0.0))


def pool_weights(data: AllocationData, net: Network) -> FloatArray:
    """What a byte moved of one flow of each class adds to the first pool of each class, shape (Q', F') [-]."""
    flow = net.classes.flow
    table = np.zeros((len(_members(data, net)), int(flow.max(initial=-1)) + 1))
    for q, member in enumerate(_members(data, net)):
        np.add.at(table[q], flow, data.pool_weight[member])
    return table[:, flow[net.flows]]


def appearances(data: AllocationData, net: Network, place: Callable[[str, int, str], int], count: int) -> FloatArray:
    """Bytes that appeared in the first pool of each class by each of ``count`` places, shape (Q', count) [bytes].

    ``place`` says from where on, given lane, k and request.
    """
    table = np.zeros((len(_members(data, net)), count))
    for q, member in enumerate(_members(data, net)):
        for lane, k, request, size_bytes in data.memory[member].appears:
            table[q, place(lane, k, request) :] += size_bytes
    return table


def spread_excess(data: AllocationData, net: Network, reduced: FloatArray) -> FloatArray:
    """Bytes too much per pool class, shape (Q',), to bytes too much per pool of the record, shape (Q,)."""
    out = np.zeros(len(data.memory))
    out[data.tight_pools] = reduced[net.classes.pool]
    return out


def _members(data: AllocationData, net: Network) -> IntArray:
    """The first pool of each class, as a place in the record."""
    return np.asarray(data.tight_pools[first_of(net.classes.pool)])


def _free(data: AllocationData, net: Network) -> FloatArray:
    """Capacity less what is always there of the first pool of each class, shape (Q',) [bytes]."""
    pools = [data.memory[q] for q in _members(data, net)]
    return np.array([pool.capacity_bytes - pool.base_bytes for pool in pools], dtype=float)


class PoolRoom:
    """What is left in each pool at the end of each slot, while bytes are pulled forward.

    Pulled bytes are the next planned ones of their flow, so the bytes moved by the end of a later slot are
    max(planned, moved so far): a pool is fuller only until then.
    """

    def __init__(self, weight: FloatArray, left: FloatArray, planned: FloatArray) -> None:
        """``weight`` (Q', F') [-], ``left`` (Q', S) [bytes] under the plan, ``planned`` (F', S) bytes moved by then."""
        self.weight, self.left, self.planned = weight, left.copy(), planned
        self.pools = [np.flatnonzero(column).tolist() for column in weight.T]

    @classmethod
    def of(
        cls, data: AllocationData, net: Network, appeared: FloatArray, size_bytes: FloatArray, excess: FloatArray
    ) -> Self | None:
        """The room beside a schedule (R', S), given what appears (Q', S) and the excess that it takes (Q',) [bytes]."""
        if not len(appeared):
            return None
        planned = np.zeros((len(net.flows), size_bytes.shape[1]))
        np.add.at(planned, net.route_flow, size_bytes * net.per_flow[:, None])
        planned, weight = np.cumsum(planned, axis=1), pool_weights(data, net)
        level = np.maximum(appeared, np.concatenate([appeared[:, 1:], appeared[:, -1:]], axis=1))
        return cls(weight, (_free(data, net) + excess)[:, None] - level - weight @ planned, planned)

    def limit(self, flow: int, slot: int, moved: float) -> float:
        """Bytes of a flow that may be pulled into a slot; ``moved`` are those that left by its end so far."""
        most = np.inf
        for q in self.pools[flow]:
            if self.weight[q, flow] > 0:
                room = np.maximum(self.left[q, slot:], 0.0) / self.weight[q, flow]
                most = min(most, float((np.maximum(self.planned[flow, slot:] - moved, 0.0) + room).min()))
        return most

    def pull(self, flow: int, slot: int, moved: float, size_bytes: float) -> None:
        """Take note of a pull; ``moved`` are the bytes that had left by the slot's end before it."""
        if self.pools[flow]:
            planned = self.planned[flow, slot:]
            more = np.maximum(planned, moved + size_bytes) - np.maximum(planned, moved)
            for q in self.pools[flow]:
                self.left[q, slot:] -= self.weight[q, flow] * more
