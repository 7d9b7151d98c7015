"""The evidence of the KV path: control plane, memory over time, leases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import MemoryResult
from pdmodel.engines.spec import Preallocate
from pdmodel.errors import InputError
from pdmodel.evidence import Controls
from pdmodel.replay.memory import PoolTrace
from pdmodel.replay.outcome import Replay
from pdmodel.resolve import ResolvedScenario
from pdmodel.transfer.control import control
from pdmodel.transfer.flows import MemoryKind
from pdmodel.transfer.memory import hand_off_cap

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


def memory_of(resolved: ResolvedScenario, pools: Sequence[PoolTrace]) -> tuple[MemoryResult, ...]:
    """What each pool of memory holds at the most under the plan.

    Raises `InputError` where that is more than it has: pool, peak, capacity, when, and what mends it.
    """
    over = [pool for pool in pools if not pool.fits]
    if over:
        worst = max(over, key=lambda pool: pool.peak_bytes / pool.capacity_bytes)
        path, remedies = REMEDIES[worst.kind]
        raise InputError(f"the plan does not fit: {worst.text}", file=resolved.file, path=path, expected=remedies)
    return tuple(
        MemoryResult(one.name, one.kind.value, one.capacity_bytes, one.peak_bytes, one.peak_s, one.at) for one in pools
    )


def hand_offs_of(resolved: ResolvedScenario) -> int | None:
    """Hand-offs that the decode side can take at once; None where its engine reserves nothing for them."""
    return None if resolved.engine.preallocate.value is Preallocate.NONE else hand_off_cap(resolved)


def controls_of(resolved: ResolvedScenario, data: AllocationData) -> Controls:
    """What the control plane adds to the times of each request, in order of the record's."""
    by_name = {request.name: control(resolved, request) for request in resolved.requests}
    found = [by_name[request.name] for request in data.requests]
    return Controls(np.array([one.total_s for one in found]), np.array([one.after_s for one in found]))


def lease_note(replay: Replay) -> tuple[str, ...]:
    """That transfers outlive their leases under the plan, and what mends it."""
    if not replay.expired:
        return ()
    count = len(replay.expired)
    several = f"{count} transfers outlive their leases" if count > 1 else f"{replay.expired[0]} outlives its lease"
    return (f"{several}: what is read then may be gone, and the transfer fails; a longer lease or a faster way helps",)
