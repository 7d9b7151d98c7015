"""Flows: bytes to move, one per (request, kind, rank, destination, set of routes), never one per (chunk, layer)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pdmodel.hardware.ports import Route


class FlowKind(StrEnum):
    """``send``: KV from prefill to decode. ``load``: cached prefix KV into HBM before the layer that needs it."""

    SEND = "send"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow of its lane.

    ``release`` and ``due`` are (k, bytes) steps over the lane's phases: released at the start of phase k (k = number of
    phases: at the end of the last one; "the start of phase k" is the end of phase k-1, so bytes may move in the wait
    before k); due at the start of phase k. ``split`` is the engine's own rule over ``routes`` (sums to 1): simple
    policies use it, only plans choose.
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

    @property
    def volume_bytes(self) -> float:
        """All bytes of the flow."""
        return sum(size_bytes for _, size_bytes in self.release)
