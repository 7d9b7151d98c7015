"""Flows: bytes to move, one per (request, kind, rank, destination, set of routes), never one per (chunk, layer)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, Route


class FlowKind(StrEnum):
    """``send``: KV from prefill to decode. ``load``: cached KV towards HBM before the phase that needs it (from a store
    into host memory, from there into HBM). ``writeback``: new KV into host memory or a store; nobody waits for it.
    """

    SEND = "send"
    LOAD = "load"
    WRITEBACK = "writeback"


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow of its lane.

    ``release`` and ``due`` are (k, bytes) steps over the lane's phases: released at the start of phase k (k = number of
    phases: at the end of the last one; "the start of phase k" is the end of phase k-1, so bytes may move in the wait
    before k); due at the start of phase k. ``split`` is the engine's own rule over ``routes`` (sums to 1): simple
    policies use it, only plans choose. A write-back has neither due nor lease (`InputError`). ``lease_s``: the last
    byte must be there at most so long after the first release, else the transfer fails. ``queue``: of its source; what
    simple policies send from there to one destination they send one after another inside a queue. Nothing of a request
    moves before the request arrives.
    """

    name: str
    kind: FlowKind
    request: str
    lane: str
    source: str
    destination: str
    routes: tuple[Route, ...]
    release: tuple[tuple[int, float], ...]
    due: tuple[tuple[int, float], ...]
    split: tuple[float, ...] = (1.0,)
    lease_s: float | None = None
    queue: int = 0

    def __post_init__(self) -> None:
        if self.kind is FlowKind.WRITEBACK and (self.due or self.lease_s is not None):
            raise InputError(
                f"write-back {self.name!r} has a due time or a lease", expected="neither: nobody waits for it"
            )

    @property
    def volume_bytes(self) -> float:
        """All bytes of the flow."""
        return sum(size_bytes for _, size_bytes in self.release)


class MemoryKind(StrEnum):
    """Whose memory a pool is: of a GPU that prefills, of one that decodes, of a socket."""

    PREFILL_HBM = "prefill_hbm"
    DECODE_HBM = "decode_hbm"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """Memory that KV fills and leaves.

    ``appears``: (lane, k, request, bytes): bytes that are there from the start of phase k on (`Flow` says what that
    means) whatever is moved, because they are computed or reserved. ``moved``: per flow (by name) what one byte moved
    adds: +1 into the pool, negative out of it. So the row of a program is

        base + sum_{appeared} bytes + sum_f w_f c_f(t) <= capacity,

    with c_f the bytes moved so far. Engines free a request as a whole, when its last byte has left; `held_until_done`
    says so, and a replay then counts what a request holds until all its flows with negative weight are done.
    """

    name: str
    kind: MemoryKind
    capacity_bytes: float
    base_bytes: float
    appears: tuple[tuple[str, int, str, float], ...]
    moved: Mapping[str, float]
    held_until_done: bool = True


@dataclass(frozen=True, slots=True)
class Transfers:
    """All that moves KV: flows, the resources they use beside the ports of the boxes, the memory they fill."""

    flows: tuple[Flow, ...]
    ports: tuple[Port, ...] = ()
    memory: tuple[MemoryPool, ...] = ()
