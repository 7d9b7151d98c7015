"""What decides who sends when: the policies that compete, and the references that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdmodel.allocation.schedule import Schedule
from pdmodel.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class Cap:
    """One static rate [byte/s] on the KV that each of ``targets`` carries: a NIC (a route's device) or a port.

    A NIC caps the traffic class of its KV. Elsewhere the engine would have to throttle: ``needs_engine_throttle``.
    Requests of reads are not capped.
    """

    targets: tuple[str, ...]
    rate_bytes_per_s: float
    needs_engine_throttle: bool = False


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A simple rule over KV queues.

    Routes are taken by the engine's own split. Without ``critical_first`` KV and critical traffic share by the rule;
    with it KV shares what critical traffic leaves. ``earliest_due_first`` serves queues in groups of equal due,
    earliest first, and pieces of a queue likewise (else first in, first out); a copy engine then gets its copies
    submitted in order of due; write-backs have none and come last. ``after_prefill`` releases sends when the prefill of
    their request has ended. ``writebacks_last`` holds write-backs back until no send or load of their request is
    unfinished: what an engine does that writes KV back when it evicts it, not when it is computed.
    """

    name: str
    critical_first: bool = False
    earliest_due_first: bool = False
    after_prefill: bool = False
    writebacks_last: bool = False
    cap: Cap | None = None


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """A schedule: planned rates first, critical traffic from what is left, late bytes last (earliest due first).

    Write-backs that are released and not planned are late at once, after everything else that is; those that would
    fill memory that may overflow wait until what makes room there is done.

    Slots start where replay starts them: slot 2i at the end of phase i - 1 (slot 0 of a lane when its first request
    arrives), slot 2i + 1 at the start of phase i, the tail at the end of the last phase. A slot that ends before its
    planned bytes have left hands them to the backlog; a slot that lasts longer than planned sends nothing more by
    plan. Phase i ends when its work is done and then its hold has passed; the wait before phase i ends when its gate
    is met (and its request is there) and then its hold has passed.
    """

    schedule: Schedule
    name: str = "plan"


@dataclass(frozen=True, slots=True)
class Reference:
    """A figure to compare with, no policy: nothing can be set so that it happens.

    ``no_kv``: the lanes without any KV. ``bytes_over_bandwidth``: every flow as if it were alone on the box, each of
    its routes at the constant rate min_e C_e / m_e over links, first in, first out, from its release on; collectives as
    without KV. So a flow takes V m / C at its narrowest link, however many pieces it falls into (posting threads and
    message rates do not count), and nobody is in anybody's way.
    """

    name: str


Policy = QueuePolicy | PlanPolicy | Reference

UNMANAGED = QueuePolicy("unmanaged")
STRICT = QueuePolicy("strict", critical_first=True)
RESIDUAL_EDF = QueuePolicy("residual_edf", critical_first=True, earliest_due_first=True)
AFTER_PREFILL = QueuePolicy("after_prefill", after_prefill=True)
SENDS_FIRST = QueuePolicy("sends_first", writebacks_last=True)
"""`unmanaged` without write-backs (and needless there); with them, the simple rule that defers them."""
NO_KV = Reference("no_kv")
BYTES_OVER_BANDWIDTH = Reference("bytes_over_bandwidth")

SIMPLE: tuple[QueuePolicy, ...] = (UNMANAGED, STRICT, RESIDUAL_EDF, AFTER_PREFILL)
REFERENCES: tuple[Reference, ...] = (NO_KV, BYTES_OVER_BANDWIDTH)
_ALL: tuple[Policy, ...] = (*SIMPLE, SENDS_FIRST, *REFERENCES)
NAMED: Mapping[str, Policy] = {policy.name: policy for policy in _ALL}


def cap(targets: str | Sequence[str], rate_bytes_per_s: float, *, needs_engine_throttle: bool = False) -> QueuePolicy:
    """``unmanaged`` with one static rate on the KV of each target (NICs or ports). InputError for a rate <= 0."""
    if not rate_bytes_per_s > 0:
        raise InputError(f"cap of {rate_bytes_per_s} byte/s", expected="a positive rate")
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    return QueuePolicy("cap", cap=Cap(names, float(rate_bytes_per_s), needs_engine_throttle))


def plan(schedule: Schedule, name: str = "plan") -> PlanPolicy:
    """The policy that follows a schedule."""
    return PlanPolicy(schedule, name)


def policy_named(name: str) -> Policy:
    """A policy or reference by its name. Raises InputError for another name."""
    if name not in NAMED:
        raise InputError(
            f"unknown policy {name!r}", expected=f"one of {', '.join(NAMED)}", nearest=nearest(name, NAMED)
        )
    return NAMED[name]
