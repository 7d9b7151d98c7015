"""The evidence of an answer: times, policies, ports and flows, what it assumes, where it is from."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pdmodel import __version__
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.residual import clock_bounds, step_time
from pdmodel.answer import Bound, FlowResult, PolicyResult, PortResult, Times
from pdmodel.choose import Choice
from pdmodel.nic_lists import Listed, main_route
from pdmodel.replay.moments import Moments
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import NO_KV, PlanPolicy, Policy, QueuePolicy
from pdmodel.replay.search import Band
from pdmodel.resolve import ResolvedScenario
from pdmodel.spec import SourceKind
from pdmodel.timeline.phases import FloatArray, Timeline
from pdmodel.transfer.breakdown import page_notes
from pdmodel.transfer.flows import FlowKind
from pdmodel.transfer.host_memory import host_memory_notes
from pdmodel.transfer.memory import memory_notes
from pdmodel.units import GB, MS, format_rate, format_seconds
from pdmodel.verdict import no_kv_prefill_s, port_shortfall


def bound_of(data: AllocationData, choice: Choice) -> Bound:
    """The bound in the words of the answer: of prefill lanes; what a decode lane may lose stands beside it."""
    loss, prefills = choice.loss, len(data.lanes)
    ratio, port = loss.kv_to_critical_ratio, loss.port
    if loss.lane_loss_s is None or loss.lane_loss_aligned_s is None:
        text = "none: critical traffic of two lanes shares a port, so one nudge can make them collide again and again"
        return Bound(None, None, None, ratio, port, text)
    own, aligned = loss.lane_loss_s[:prefills], loss.lane_loss_aligned_s[:prefills]
    most, together = float(own.max(initial=0.0)), float(aligned.max(initial=0.0))
    worst = int(np.argmax(own)) if prefills else 0
    length = float(data.duration_s[worst].sum()) if prefills else 0.0
    share = most / length if length > 0 else None
    parts = []
    if most > 0 and share is not None:
        parts.append(f"KV costs a prefill at most {format_seconds(most)} ({share:.1%} of it)")
        if together < 0.99 * most:
            parts[0] += f", {format_seconds(together)} when all ranks' bursts coincide"
    elif prefills:
        parts.append("KV costs the prefill's collectives nothing: no port carries both")
    decode = float(loss.lane_loss_s[prefills:].max(initial=0.0))
    if decode > 0:
        parts.append(f"a decode lane loses at most {format_seconds(decode)}")
    if ratio is not None:
        parts.append(f"KV is {ratio:.3g} x the critical bytes on {port}")
    return Bound(most, together, share, ratio, port, "; ".join(parts))


@dataclass(frozen=True, slots=True)
class Controls:
    """What the control plane adds to each request's time to the first token, and of that to its stall, (Q,) [s].

    No schedule changes it, so it is added to the times that are told and to no cost.
    """

    ttft_s: FloatArray
    stall_s: FloatArray

    @property
    def nothing(self) -> Controls:
        """Of requests whose KV goes nowhere."""
        return Controls(0.0 * self.ttft_s, 0.0 * self.stall_s)


def times_of(data: AllocationData, replay: Replay, control: Controls) -> Times:
    """Times of the worst request, the control plane's included."""
    return Times(
        prefill_s=_worst(replay.prefill_s),
        prefill_no_kv_s=no_kv_prefill_s(data),
        ttft_s=_worst(replay.ttft_s + control.ttft_s),
        decode_stall_s=_worst(replay.decode_stall_s + control.stall_s),
        load_stall_s=_worst(replay.load_stall_s),
        prefill_slowdown_s=_worst(replay.prefill_slowdown_s),
        control_s=_worst(control.ttft_s),
    )


def policies_of(choice: Choice, control: Controls, listed: Listed | None = None) -> tuple[PolicyResult, ...]:
    """Every policy that was tried, `unmanaged` with its band, the best list of NICs, and the plan."""
    rows = [
        policy_result(
            replay,
            control,
            choice.unmanaged if replay.policy == choice.unmanaged.policy else None,
            note=_cap(policy),
            breaks=choice.broken.get(policy.name, ""),
        )
        for policy, replay in choice.policies
    ]
    mine = policy_result(choice.replay, control, name="plan", breaks=choice.broken.get(choice.policy.name, ""))
    nics = () if listed is None else (policy_result(listed.replay, control, name=listed.name, note=listed.text),)
    return (*rows, *nics, mine)


def references_of(choice: Choice, control: Controls) -> tuple[PolicyResult, ...]:
    """Figures to compare with; they never compete. Without KV nothing is handed over."""
    return tuple(
        policy_result(replay, control.nothing if replay.policy == NO_KV.name else control)
        for replay in choice.references
    )


def policy_result(
    replay: Replay,
    control: Controls,
    band: Band | None = None,
    *,
    name: str = "",
    note: str = "",
    breaks: str = "",
) -> PolicyResult:
    """One row of the policies table."""
    # The diagnostics end with a line for each lease that expires; all of them are in ``breaks``.
    diagnostics = replay.diagnostics[: len(replay.diagnostics) - len(replay.expired)]
    return PolicyResult(
        name=name or replay.policy,
        ttft_s=_worst(replay.ttft_s + control.ttft_s),
        prefill_s=_worst(replay.prefill_s),
        prefill_slowdown_s=_worst(replay.prefill_slowdown_s),
        decode_stall_s=_worst(replay.decode_stall_s + control.stall_s),
        load_stall_s=_worst(replay.load_stall_s),
        cost=replay.cost,
        cost_low=band.favourable.replay.cost if band else None,
        cost_high=band.unfavourable.replay.cost if band else None,
        ttft_low_s=_worst(band.favourable.replay.ttft_s + control.ttft_s) if band else None,
        ttft_high_s=_worst(band.unfavourable.replay.ttft_s + control.ttft_s) if band else None,
        note="; ".join(part for part in (note, *diagnostics) if part),
        breaks=breaks,
    )


def _cap(policy: Policy) -> str:
    """Where a static cap sits, how high it is, and whether anything there can keep it."""
    if not isinstance(policy, QueuePolicy) or policy.cap is None:
        return ""
    note = f"KV at most at {format_rate(policy.cap.rate_bytes_per_s)} on {_brief(policy.cap.targets)}"
    return f"{note}; needs engine throttle" if policy.cap.needs_engine_throttle else note


def ports_of(data: AllocationData, choice: Choice) -> tuple[PortResult, ...]:
    """Every port under the plan."""
    replay, price = choice.replay, choice.shadow_price
    return tuple(
        PortResult(
            name=port.name,
            kind=port.kind.value,
            capacity_bytes_per_s=port.capacity_bytes_per_s,
            capacity_source=port.source,
            critical_bytes=float(replay.critical_bytes[e]),
            kv_bytes=float(replay.kv_bytes[e]),
            utilisation=float(replay.critical_bytes[e] + replay.kv_bytes[e])
            / (port.capacity_bytes_per_s * replay.end_s if replay.end_s > 0 else np.inf),
            shadow_price=None if price is None else float(price[e]) * GB,
        )
        for e, port in enumerate(data.ports)
    )


def flows_of(data: AllocationData, replay: Replay) -> tuple[FlowResult, ...]:
    """Every flow under the plan: released on the replay's clock, due on the clock without KV."""
    found, bounds, moments = [], clock_bounds(data), Moments(data, replay.lanes)
    for f, flow in enumerate(data.flows):
        lane = int(data.flow_lane[f])
        release = moments.at(lane, min(k for k, _ in flow.release), flow.request)
        due = step_time(data, flow, max(k for k, _ in flow.due), bounds[lane]) if flow.due else None
        found.append(
            FlowResult(
                name=flow.name,
                kind=flow.kind.value,
                bytes=flow.volume_bytes,
                release_s=release,
                due_s=due,
                finish_s=float(replay.flow_finish_s[f]),
                route=main_route(data, replay, f).name,
            )
        )
    return tuple(found)


def missed_deadlines(data: AllocationData, replay: Replay, slack_s: float) -> tuple[str, ...]:
    """Requests whose last KV comes, or whose loads hold the prefill up, by more than the slack; leases that expire."""
    late = []
    for q, request in enumerate(data.requests):
        for delay, what in (
            (replay.user_delay_s[q], "KV is complete"),
            (replay.load_stall_s[request.lane], "prefill waited for its prefix"),
        ):
            if delay > slack_s * (1 + 1e-9) + 1e-12:
                text = f"{request.name}: {what} {format_seconds(float(delay))}"
                text += " after the prefill without KV ends" if what.startswith("KV") else ""
                late.append(f"{text} ({format_seconds(slack_s)} allowed)")
    return (*late, *_expired(data, replay))


def _expired(data: AllocationData, replay: Replay) -> list[str]:
    """Leases that expire, a line for each request and lease."""
    found: dict[tuple[str, float], list[str]] = {}
    for flow in data.flows:
        if flow.name in replay.expired and flow.lease_s is not None:
            found.setdefault((flow.request, flow.lease_s), []).append(flow.name)
    return [
        f"{request}: {_brief(names)}: not there within the lease of {format_seconds(lease_s)}"
        for (request, lease_s), names in found.items()
    ]


def release_note(resolved: ResolvedScenario, earliest: AllocationData, choice: Choice) -> tuple[str, ...]:
    """That KV is late only because of when the engine sends it, where that is so.

    ``earliest`` is the record with every flow released when its bytes exist: what the ports then still make late is not
    the engine's doing.
    """
    stall = _worst(choice.replay.decode_stall_s)
    after = resolved.release_after.value
    if stall <= 0.1 * MS or after not in {"chunk", "prefill"}:
        return ()
    left = port_shortfall(earliest, 0.0, FlowKind.SEND)
    saved = stall - (left.late_s if left is not None else 0.0)
    if saved < 0.5 * stall:
        return ()
    return (
        f"decode waits {format_seconds(stall)} for KV because {resolved.engine.name} sends after the {after}; "
        f"an engine that sends layer by layer could save up to {format_seconds(saved)} of it",
    )


def assumed_of(data: AllocationData, timeline: Timeline, resolved: ResolvedScenario, choice: Choice) -> tuple[str, ...]:
    """The assumed inputs that matter: ports that carry both kinds or bind, collectives, prices, arbitration."""
    replay = choice.replay
    both = (replay.kv_bytes > 0) & (replay.critical_bytes > 0)
    busy = both | _binding(data, choice)
    found: dict[str, list[str]] = {}
    for e in np.flatnonzero(busy):
        port = data.ports[e]
        if port.source is SourceKind.ASSUMED:
            text = f"capacity {format_rate(port.capacity_bytes_per_s)}" + (f" ({port.note})" if port.note else "")
            found.setdefault(text, []).append(port.name)
    lines = [f"{_brief(names)}: {text}" for text, names in found.items()]
    if both.any():
        guards = sorted({round(float(g / c), 4) for g, c in zip(data.guard[both], data.capacity[both], strict=True)})
        share = " to ".join(f"{guard:.1%}" for guard in (guards if len(guards) < 3 else (guards[0], guards[-1])))
        lines.append(f"guard: {share} of a port is kept free while critical traffic is active on it")
        lines.append(
            "arbitration of a full port between a collective and KV: 1 : 1 per input link, band 1 : 2 to 2 : 1"
        )
    lines += [*timeline.assumed, *resolved.assumed, *page_notes(resolved), *host_memory_notes(resolved, data.memory)]
    lines += memory_notes(resolved) if data.memory else ()
    if resolved.spec.prices.user_gpus is None and any(r.user_price_gpus is None for r in resolved.requests):
        lines.append("a waiting user costs decode GPUs / max_running_requests")
    return tuple(dict.fromkeys(lines))


def _binding(data: AllocationData, choice: Choice) -> NDArray[np.bool_]:
    """Ports with a price, and of each route in use the ports that need longest for the KV they carry, shape (P,)."""
    found = np.zeros(len(data.ports), dtype=bool)
    if choice.shadow_price is not None:
        found |= choice.shadow_price > 0
    busy_s = choice.replay.kv_bytes / data.capacity
    for route in np.flatnonzero(routes_in_use(data, choice)):
        mine = np.where(data.consumption[route] > 0, busy_s, 0.0)
        found |= (mine > 0) & (mine >= (1 - 1e-6) * mine.max())
    return found


def routes_in_use(data: AllocationData, choice: Choice) -> NDArray[np.bool_]:
    """Routes that carry something under the engine's own rule or under the plan, shape (R,)."""
    used = np.array(
        [k < len(flow.split) and flow.split[k] > 0 for flow in data.flows for k in range(len(flow.routes))], dtype=bool
    )
    if isinstance(choice.policy, PlanPolicy):
        for piece in choice.policy.schedule.pieces:
            used |= piece.rates > 0
    return np.asarray(used)


def hazards_of(data: AllocationData, timeline: Timeline, resolved: ResolvedScenario, choice: Choice) -> tuple[str, ...]:
    """What no capacity can express, where collectives or routes in use meet it; with the box that it is known of."""
    used = routes_in_use(data, choice)
    met = dict.fromkeys(timeline.hazards)
    met.update(dict.fromkeys(text for r in np.flatnonzero(used) for text in data.routes[r].hazards))
    owner = {
        f"{hazard.kind.value}: {hazard.text}": box.profile.name
        for box in (resolved.prefill_box, resolved.decode_box)
        for hazard in box.profile.hazards
    }
    return tuple(f"{owner[text]}: {text}" if text in owner else text for text in met)


def provenance_of(resolved: ResolvedScenario) -> Mapping[str, str]:
    """What was computed from what, so that it can be computed again."""
    spec = resolved.spec
    return {
        "pdmodel": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scenario": f"{Path(resolved.file).name or spec.name} {_digest(spec.model_dump_json())}",
        "prefill_hardware": _profile_digest(resolved.prefill_box.profile),
        "decode_hardware": _profile_digest(resolved.decode_box.profile),
        "llm": resolved.arch.name,
        "engine": resolved.engine.name,
    }


def _profile_digest(profile: object) -> str:
    from pdmodel.hardware.profile import HardwareProfile

    if not isinstance(profile, HardwareProfile):
        return ""
    return f"{profile.name} {_digest(profile.model_dump_json())}"


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _worst(values: FloatArray) -> float:
    return float(values.max()) if len(values) else 0.0


def _brief(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found) if len(found) <= 2 else f"{found[0]} and {len(found) - 1} like it"
