"""The verdict: which of the five kinds an answer is, from the record and its replays alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.allocation.bound import shared_ports
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.residual import clock_bounds, step_time
from pdmodel.answer import Bound, Verdict, VerdictKind
from pdmodel.hardware.ports import PIECE_PORTS, REFERENCE_BYTES, PortKind
from pdmodel.timeline.phases import FloatArray
from pdmodel.transfer.flows import FlowKind
from pdmodel.units import format_bytes, format_count, format_rate, format_seconds

WORTH = 0.01


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The port that cannot carry KV alone in time: by how much it is late, and what it would need."""

    port: str
    late_s: float
    size_bytes: float
    capacity_bytes_per_s: float
    missing_bytes_per_s: float
    of_software: bool = False
    """Whether the port is no link: posting, work requests, or receiving in turn."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Costs [GPU·s] of `unmanaged` and of the plan at one point of (kv_weight, interference)."""

    kv_weight: float
    interference: float
    unmanaged: float
    plan: float


def port_shortfall(data: AllocationData, slack_s: float, kind: FlowKind | None = None) -> Shortfall | None:
    r"""The port that misses a due time by more than the slack although it carries nothing but KV.

    On one port, transfers with release r_i and due d_i are on time iff for every r, d the bytes inside fit:

    .. math:: \max_{r, d} \sum_{r_i \ge r,\ d_i \le d} m_i v_i / C - (d - r) \le slack

    Parameters
    ----------
    data: the record with every flow released at the earliest moment its bytes exist; times are the clock without KV.
    slack_s: lateness that is accepted [s].
    kind: flows of this kind alone; all by default.

    Returns
    -------
    The port with the greatest lateness beyond the slack, or None.

    Notes
    -----
    Necessary for any schedule (each port alone is a relaxation; a flow that can avoid a port does not count there), so
    "infeasible" is proved. Exact for one port: earliest due date first is optimal for preemptive work on one machine
    (Jackson 1955, with release times Horn 1974).

    """
    jobs = [job for job in _jobs(data) if kind is None or data.flows[job[0]].kind is kind]
    flow = np.array([job[0] for job in jobs], dtype=np.int64)
    release, due, size = (np.array([job[k] for job in jobs], dtype=float) for k in (1, 2, 3))
    worst: Shortfall | None = None
    crossings = _least_crossings(data)
    for e, port in enumerate(data.ports):
        moved = size * crossings[flow, e]
        mine = moved > 0
        if not mine.any():
            continue
        late, needed, amount = _single_port_lateness(
            release[mine], due[mine], moved[mine], capacity=port.capacity_bytes_per_s, slack_s=slack_s
        )
        if late > slack_s * (1 + 1e-9) + 1e-12 and (worst is None or late > worst.late_s):
            missing = needed - port.capacity_bytes_per_s
            software = port.kind in (*PIECE_PORTS, PortKind.RECEIVING)
            worst = Shortfall(port.name, late, amount, port.capacity_bytes_per_s, missing, software)
    return worst


def shares_port(data: AllocationData) -> bool:
    """Whether any port carries critical traffic and KV."""
    return bool(shared_ports(data).any())


def judge(
    data: AllocationData,
    *,
    shortfall: Shortfall | None,
    slack_s: float,
    bound: Bound,
    band: Sequence[Contest],
    best_rule: str,
    best_rule_cost: float,
    plan_is: str,
) -> Verdict:
    """The verdict in the order infeasible, no shared port, headroom, contended, uncertain.

    ``band`` holds `unmanaged` and the plan at every point; ``best_rule`` is the cheapest policy that needs no plan.
    """
    if shortfall is not None:
        return Verdict(VerdictKind.INFEASIBLE, _infeasible_text(data, shortfall, slack_s))
    if not shares_port(data):
        text = "no collective uses a port that KV uses; transfers share their ports with one another only"
        return Verdict(VerdictKind.NO_SHARED_PORT, f"{text}. Unmodelled interference of up to ~10 % has been seen.")
    unit = price_of_prefill(data)
    gains = [share_of_prefill(point.unmanaged - point.plan, unit) for point in band]
    low, high = min(gains), max(gains)
    if high < WORTH:
        most = f"{_least_percent(high)} of this prefill's GPU time"
        text = f"headroom: no schedule wins more than {most} over sending at will"
        if bound.loss_max_s is not None and bound.share_of_prefill is not None:
            loss = format_seconds(bound.loss_max_s)
            text += f"; KV can cost it at most {loss} ({bound.share_of_prefill:.1%}) without holds"
        return Verdict(VerdictKind.HEADROOM, f"{text}.")
    worth = f"pacing is worth {low:.1%} to {high:.1%} of this prefill's {unit:.3g} GPU·s"
    unmanaged, plan = _span([point.unmanaged for point in band]), _span([point.plan for point in band])
    evidence = f"unmanaged {unmanaged}, plan {plan} over the band of arbitration"
    evidence += f", simple rule {best_rule} {best_rule_cost:.3g}"
    if low >= WORTH:
        text = f"contended: {worth}: {evidence}"
        if plan_is != "plan":
            text += f"; the simple rule {plan_is} is the plan"
        return Verdict(VerdictKind.CONTENDED, f"{text}.")
    text = (
        f"depends on how the ports arbitrate: {worth}: {evidence}. Measure it: time the collective alone and beside a "
        "full-rate KV transfer on one port (nccl-tests beside ib_write_bw --use_cuda or an H2D copy)"
    )
    return Verdict(VerdictKind.UNCERTAIN, f"{text}.")


def _least_percent(share: float) -> str:
    """A share that may be tiny.

    >>> _least_percent(0.0087), _least_percent(0.0)
    ('0.87%', '0.01%')
    """
    return f"{max(share, 1e-4):.2%}"


def _span(costs: Sequence[float]) -> str:
    low, high = f"{min(costs):.3g}", f"{max(costs):.3g}"
    return low if low == high else f"{low} to {high}"


def price_of_prefill(data: AllocationData) -> float:
    """What 1 % is taken of [GPU·s]: sum over lanes of pi times the lane's critical time without KV.

    Where a prefill's GPUs cost nothing, that time at what its users' waiting costs, else at what decode GPUs cost; 0
    where nothing costs anything.
    """
    times = data.duration_s
    own = sum(price * time.sum() for price, time in zip(data.lane_price_per_s, times, strict=True))
    users = sum(price @ time for price, time in zip(data.phase_price_per_s, times, strict=True))
    decode = data.decode_price_per_s.sum() * sum(time.sum() for time in times)
    return float(own or users or decode)


def share_of_prefill(saved: float, prefill: float) -> float:
    """``saved`` as a share of the priced prefill, both [GPU·s]; 0 where nothing costs anything.

    >>> share_of_prefill(0.5, 2.0), share_of_prefill(0.0, 0.0)
    (0.25, 0.0)
    """
    return saved / prefill if prefill > 0 else 0.0


def no_kv_prefill_s(data: AllocationData) -> float:
    """The longest lane on the clock without KV [s]."""
    return max((float(duration.sum()) for duration in data.duration_s), default=0.0)


def _infeasible_text(data: AllocationData, shortfall: Shortfall, slack_s: float) -> str:
    missing, late = shortfall.missing_bytes_per_s, format_seconds(shortfall.late_s)
    e = data.port_index[shortfall.port]
    kind, capacity, size = data.ports[e].kind, shortfall.capacity_bytes_per_s, shortfall.size_bytes
    if kind in PIECE_PORTS:
        what = "descriptors" if kind is PortKind.POSTING else "work requests"
        verb = "posts" if kind is PortKind.POSTING else "takes"
        text = f"{verb} {format_count(capacity / REFERENCE_BYTES)} {what}/s and has "
        text += f"{format_count(size / REFERENCE_BYTES)} of {format_bytes(mean_piece_bytes(data, e))} due"
        more = f"{format_count(missing / REFERENCE_BYTES)}/s are missing"
    elif kind is PortKind.RECEIVING:
        text = f"receives from one rank after the other, which takes {format_seconds(size / capacity)} for what is due"
        more = f"{(capacity + missing) / capacity:.3g} times as fast would do"
    elif kind is PortKind.CLIENT:
        text = f"moves one object after another, which takes {format_seconds(size / capacity)} for what is due"
        more = f"{(capacity + missing) / capacity:.3g} times as fast would do"
    else:
        text = f"carries {format_rate(capacity)} and has {format_bytes(size)} of KV due"
        more = f"{format_rate(missing)} are missing"
    if not np.isfinite(missing):
        more = "no rate would do; all of it is missing"
    return (
        f"infeasible: {shortfall.port} {text}; even alone on the port it is {late} late "
        f"({format_seconds(slack_s)} allowed): {more}."
    )


def mean_piece_bytes(data: AllocationData, e: int) -> float:
    """Mean size of the pieces that flows move through a posting or message port, by their own routes [bytes]."""
    share = np.concatenate([np.asarray(flow.split) * flow.volume_bytes for flow in data.flows])
    crossing = data.consumption[:, e] > 0
    return REFERENCE_BYTES * float(share[crossing].sum()) / float(share @ data.consumption[:, e])


def _jobs(data: AllocationData) -> list[tuple[int, float, float, float]]:
    """(flow, release [s], due [s], bytes) on the clock without KV, first released matched with first due."""
    bounds = clock_bounds(data)
    found = []
    for f, flow in enumerate(data.flows):
        if not flow.due:
            continue
        mine = bounds[int(data.flow_lane[f])]
        release = [(step_time(data, flow, k, mine), size) for k, size in sorted(flow.release)]
        if flow.kind is FlowKind.LOAD:
            release = [(release[0][0], flow.volume_bytes)]
        due = [(step_time(data, flow, k, mine), size) for k, size in sorted(flow.due)]
        found += [(f, r, d, size) for r, d, size in _matched(release, due)]
    return found


def _matched(release: list[tuple[float, float]], due: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
    found, i, j = [], 0, 0
    left, wanted = release[0][1], due[0][1]
    while i < len(release) and j < len(due):
        size = min(left, wanted)
        found.append((release[i][0], due[j][0], size))
        left, wanted = left - size, wanted - size
        if left <= 1e-12 * release[i][1]:
            i += 1
            left = release[i][1] if i < len(release) else 0.0
        if wanted <= 1e-12 * due[j][1]:
            j += 1
            wanted = due[j][1] if j < len(due) else 0.0
    return found


def _least_crossings(data: AllocationData) -> FloatArray:
    """Fewest crossings of a port over a flow's routes, shape (F, P) [-]."""
    least = np.full((len(data.flows), len(data.ports)), np.inf)
    np.minimum.at(least, data.route_flow, data.consumption)
    return np.where(np.isfinite(least), least, 0.0)


def _single_port_lateness(
    released: FloatArray, wanted: FloatArray, size: FloatArray, *, capacity: float, slack_s: float
) -> tuple[float, float, float]:
    """Greatest lateness [s], the capacity that would bring it to the slack [byte/s], and the bytes behind it."""
    release, at_release = np.unique(released, return_inverse=True)
    due, at_due = np.unique(wanted, return_inverse=True)
    inside = np.zeros((len(release), len(due)))
    np.add.at(inside, (at_release, at_due), size)
    inside = np.cumsum(np.cumsum(inside[::-1], axis=0)[::-1], axis=1)
    room = due[None, :] - release[:, None]
    lateness = np.where(inside > 0, inside / capacity - room, -np.inf)
    worst = np.unravel_index(int(np.argmax(lateness)), lateness.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        needed = np.where(inside > 0, np.where(room + slack_s > 0, inside / (room + slack_s), np.inf), 0.0)
    return float(lateness[worst]), float(needed.max()), float(inside[worst])
