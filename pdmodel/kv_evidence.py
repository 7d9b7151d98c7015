"""The evidence of the KV path: control plane, memory over time, leases."""

from __future__ import annotations

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import MemoryResult
from pdmodel.errors import InputError
from pdmodel.replay.memory import memory_trace
from pdmodel.replay.outcome import Replay
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Through
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import MemoryKind
from pdmodel.units import US
from pdmodel.workload.request import CacheTier

REMEDIES = {
    MemoryKind.PREFILL_HBM: (
        "prefill",
        "fewer or shorter requests at once, kv_dtype fp8, a larger tp_size or memory_fraction, or a faster hand-over",
    ),
    MemoryKind.DECODE_HBM: (
        "decode",
        "fewer hand-offs at once, a smaller max_running_requests or context_tokens, kv_dtype fp8, a larger tp_size or "
        "memory_fraction",
    ),
    MemoryKind.HOST: (
        "cache.host_memory_gib",
        "a larger host_memory_gib, fewer tokens in the store, or no write_policy",
    ),
}


def memory_of(resolved: ResolvedScenario, data: AllocationData, replay: Replay) -> tuple[MemoryResult, ...]:
    """What each pool of memory holds at the most under the plan.

    Raises `InputError` where that is more than it has: pool, peak, capacity, when, and what mends it.
    """
    traces = memory_trace(data, replay)
    over = [trace for trace in traces if not trace.fits]
    if over:
        worst = max(over, key=lambda trace: trace.peak_bytes / trace.capacity_bytes)
        path, remedies = REMEDIES[worst.kind]
        raise InputError(f"the plan does not fit: {worst.text}", file=resolved.file, path=path, expected=remedies)
    return tuple(
        MemoryResult(one.name, one.kind.value, one.capacity_bytes, one.peak_bytes, one.peak_s, one.at) for one in traces
    )


def control_s(resolved: ResolvedScenario, data: AllocationData) -> FloatArray:
    """What the control plane adds to each request's time to the first token, shape (Q,) [s].

    Setting the transfer up, and handing the request over after its last byte; asking a store for the prefix, and
    putting the last of the KV there and asking for it, where it goes through one. No schedule changes it, so it is
    added to the times that are told and to no cost.
    """
    engine, store = resolved.engine, resolved.store
    hand_over = (engine.posting.request_overhead_us.value + engine.control.hand_over_us.value) * US
    query = 0.0 if store is None else store.constants.query_rpc_s
    if store is not None and resolved.through is Through.STORE:
        hand_over += store.constants.put_rpc_s + query
    stored = {one.name: query if one.cached_by(CacheTier.STORE) else 0.0 for one in resolved.requests}
    return np.array([hand_over + stored[request.name] for request in data.requests])


def lease_note(replay: Replay) -> tuple[str, ...]:
    """That transfers outlive their leases under the plan, and what mends it."""
    if not replay.expired:
        return ()
    count = len(replay.expired)
    several = f"{count} transfers outlive their leases" if count > 1 else f"{replay.expired[0]} outlives its lease"
    return (f"{several}: what is read then may be gone, and the transfer fails; a longer lease or a faster way helps",)
