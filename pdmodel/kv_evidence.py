"""The evidence of the KV path: control plane, memory over time, leases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import MemoryResult, Verdict
from pdmodel.engines.spec import Preallocate
from pdmodel.errors import InputError
from pdmodel.evidence import Controls
from pdmodel.replay.memory import PoolTrace
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Through
from pdmodel.transfer.breakdown import TransferTime
from pdmodel.transfer.control import control
from pdmodel.transfer.flows import MemoryKind
from pdmodel.transfer.memory import hand_off_cap
from pdmodel.transfer.prefetch import waits_s
from pdmodel.units import format_seconds
from pdmodel.verdict import Shortfall

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
        worst = max(over, key=_overflow)
        path, remedies = REMEDIES[worst.kind]
        text = worst.text if worst.capacity_bytes > 0 else f"the weights leave no memory for KV on {worst.name}"
        raise InputError(f"the plan does not fit: {text}", file=resolved.file, path=path, expected=remedies)
    return tuple(
        MemoryResult(one.name, one.kind.value, one.capacity_bytes, one.peak_bytes, one.peak_s, one.at) for one in pools
    )


def _overflow(pool: PoolTrace) -> tuple[float, bool]:
    """How many times its capacity a pool holds; of GPUs and hosts that have none at all, the GPU is to blame."""
    if pool.capacity_bytes <= 0:
        return math.inf, pool.kind is not MemoryKind.HOST
    return pool.peak_bytes / pool.capacity_bytes, pool.kind is not MemoryKind.HOST


def hand_offs_of(resolved: ResolvedScenario) -> int | None:
    """Hand-offs that the decode side can take at once; None where its engine reserves nothing for them."""
    return None if resolved.engine.preallocate.value is Preallocate.NONE else hand_off_cap(resolved)


def controls_of(resolved: ResolvedScenario, data: AllocationData) -> Controls:
    """What the control plane adds to the times of each request, in order of the record's."""
    waits = waits_s(data.lanes, data.clock)
    by_name = {request.name: control(resolved, request, waits.get(request.name, 0.0)) for request in resolved.requests}
    found = [by_name[request.name] for request in data.requests]
    return Controls(np.array([one.total_s for one in found]), np.array([one.after_s for one in found]))


def control_note(control: Controls, slack_s: float) -> tuple[str, ...]:
    """That the control plane takes longer than what still counts as on time: deadlines are those of bytes."""
    longest = float(control.stall_s.max(initial=0.0))
    if longest <= slack_s:
        return ()
    return (
        f"the control plane alone takes {format_seconds(longest)} after the last byte, more than the "
        f"{format_seconds(slack_s)} of lateness that are allowed; deadlines and verdict are of the bytes",
    )


def with_fix(verdict: Verdict, shortfall: Shortfall | None, times: Sequence[TransferTime]) -> Verdict:
    """The verdict; where posting or receiving makes it infeasible, with the cheapest change of the largest request."""
    slowest = max(times, key=lambda one: one.time_s, default=None)
    if shortfall is None or not shortfall.of_software or slowest is None or slowest.fix_time_s is None:
        return verdict
    with_it, without = format_seconds(slowest.fix_time_s), format_seconds(slowest.time_s)
    text = f"{verdict.text} Cheapest fix: {slowest.fix}: {slowest.request} alone takes {with_it} instead of {without}."
    return replace(verdict, text=text)


def lease_note(resolved: ResolvedScenario, stall_s: float) -> tuple[str, ...]:
    """That KV is delivered later than its sender keeps it by itself, where the engine says how long that is.

    ``stall_s``: the longest that decode waits for KV after a prefill [s].
    """
    lease = resolved.engine.lease_s
    if lease is None or resolved.through is not Through.DIRECT or not lease.value < stall_s < math.inf:
        return ()
    note = f" ({lease.note})" if lease.note else ""
    return (
        f"decode waits {format_seconds(stall_s)} for KV that {resolved.engine.name} keeps for {lease.value} s after "
        f"the prefill{note}",
    )
