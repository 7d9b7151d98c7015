"""Whether a plan's pacing can be applied, phase kind by phase kind, and what to set for it.

An engine cannot slow a posted transfer; it can only submit later, and what it has posted is out of its hands. A NIC can
cap a traffic class, which caps the sending GPU's egress through back-pressure. What an engine can do follows from its
facts: who submits, in which pieces, how much is posted, and which classes its transfer engine keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Applicable, Enforceability, Gate, Rule, ScheduleRow, Setting
from pdmodel.engines.spec import EngineSpec, HostKnobs, Knob, KvPath, Mode, Piece, Steers
from pdmodel.hardware.ports import PortKind
from pdmodel.later import AS_IT_IS, WRITE_LATER, Later
from pdmodel.nic_lists import NicChoice, limits_of_lists
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import UNMANAGED, Policy, QueuePolicy
from pdmodel.timeline.phases import PhaseKind
from pdmodel.transfer.flows import FlowKind
from pdmodel.units import GBIT_PER_S, US, format_bytes, format_rate, format_seconds
from pdmodel.verdict import share_of_prefill

Moved = tuple[FlowKind, bool]
NIC_PORTS = frozenset({PortKind.NIC_INGRESS, PortKind.NIC_EGRESS, PortKind.NIC_TX, PortKind.NIC_RX})
MOVES = {
    (FlowKind.SEND, True): "sends",
    (FlowKind.LOAD, True): "prefetches",
    (FlowKind.LOAD, False): "prefix loads",
    (FlowKind.WRITEBACK, False): "write-backs",
}
"""What moves, by its kind and by whether a NIC moves it. A copy out of HBM comes first in every write-back."""


@dataclass(frozen=True, slots=True)
class PhaseBurst:
    """A kind of critical phase that KV meets on a port: how long it lasts, and the time to the next one [s].

    ``flow_kind`` is the KV that it meets, ``rate_bytes_per_s`` the narrowest port of that KV's route (its posting
    threads among them), ``guard_bytes`` the bytes that the guard of the shared port admits during the burst,
    ``piece_bytes`` what the engine submits in one go on one route. ``on_nic``: a NIC moves it (write-backs: a copy
    engine or a kernel does first); ``in_order``: a copy engine does, which serves first what came first.
    """

    operation: str
    flow_kind: FlowKind
    burst_s: float
    gap_s: float
    rate_bytes_per_s: float
    guard_bytes: float
    piece_bytes: float
    on_nic: bool
    in_order: bool = False


def phase_bursts(data: AllocationData, engine: EngineSpec) -> tuple[PhaseBurst, ...]:
    """Each kind of critical phase that KV meets on a port, with the medians of its burst and of the gap after it.

    KV meets the phases of its own lane from its first release on, and those of other lanes at any time: what is sent
    after the prefill meets no collective of its own request.
    """
    found: dict[tuple[str, Moved], PhaseBurst] = {}
    for number, lane in enumerate(data.lanes):
        critical = [i for i, phase in enumerate(lane.phases) if phase.kind is not PhaseKind.COMPUTE]
        if not critical:  # one GPU, or an instance without requests
            continue
        tau = data.duration_s[number]
        before = np.concatenate([[0.0], np.cumsum(tau)])
        gap_after = {
            i: float(before[following] - before[i + 1])
            for i, following in zip(critical, [*critical[1:], len(lane.phases)], strict=True)
        }
        kinds: dict[str, list[int]] = {}
        for i in critical:
            kinds.setdefault(lane.phases[i].operation, []).append(i)
        for operation, indices in kinds.items():
            for moved in MOVES:
                burst = _burst(
                    data, engine, lane=number, operation=operation, indices=indices, gap_after=gap_after, moved=moved
                )
                if burst is not None and (operation, moved) not in found:
                    found[operation, moved] = burst
    return tuple(found.values())


def _burst(
    data: AllocationData,
    engine: EngineSpec,
    *,
    lane: int,
    operation: str,
    indices: Sequence[int],
    gap_after: dict[int, float],
    moved: Moved,
) -> PhaseBurst | None:
    kind, on_nic = moved
    uses = data.critical_bytes[lane][indices[0]] > 0
    routes = _meeting(data, lane, max(indices), moved, uses)
    if not routes:
        return None
    burst = float(np.median(data.duration_s[lane][indices]))
    gaps = [gap_after[i] for i in indices if gap_after[i] > 0]
    crossing = data.consumption[routes]
    with np.errstate(divide="ignore"):
        rate = float(np.where(crossing > 0, data.capacity / crossing, np.inf).min())
    shared = uses & (crossing > 0).any(axis=0)
    flow = data.flows[int(data.route_flow[routes[0]])]
    device = [route.fifo for f in set(data.route_flow[routes].tolist()) for route in data.flows[f].routes]
    whole = max(size for _, size in (flow.due if kind is FlowKind.LOAD else flow.release))
    if kind is FlowKind.SEND:
        whole = flow.volume_bytes if engine.piece.value is Piece.REQUEST else whole
        whole = min(whole, engine.staging_bytes.value or whole)  # packed, it is submitted a buffer at a time
    return PhaseBurst(
        operation=operation,
        flow_kind=kind,
        burst_s=burst,
        gap_s=float(np.median(gaps)) if gaps else 0.0,
        rate_bytes_per_s=rate,
        guard_bytes=float(data.guard[shared].min()) * burst,
        piece_bytes=whole,
        on_nic=on_nic,
        in_order=all(device),
    )


def _meeting(data: AllocationData, lane: int, last_phase: int, moved: Moved, uses: NDArray[np.bool_]) -> list[int]:
    """Routes of a kind of KV that may be in use while the lane's phases up to ``last_phase`` use the same port."""
    nic = np.array([port.kind in NIC_PORTS for port in data.ports], dtype=bool)
    found = []
    for r, f in enumerate(data.route_flow):
        flow = data.flows[f]
        elsewhere = flow.lane != data.lanes[lane].name
        met = elsewhere or flow.release[0][0] <= last_phase
        crossed = data.consumption[r] > 0
        on_nic = bool((nic & crossed).any()) if flow.kind is FlowKind.LOAD else flow.kind is FlowKind.SEND
        if (flow.kind, on_nic) == moved and met and (uses & crossed).any():
            found.append(r)
    return found


def enforceability(bursts: Sequence[PhaseBurst], engine: EngineSpec) -> tuple[Enforceability, ...]:
    """Gateable, class-only or neither for each kind of phase.

    Gateable: whoever submits sees the burst, the gap is at least detection + one slice, and what is out of the engine's
    hands fits the guard of the burst (with fewer work requests, where there is a knob for them). Otherwise a NIC's
    class can hold what leaves by a NIC, and nothing holds the rest.
    """
    return tuple(_judge(burst, engine) for burst in bursts)


def _judge(burst: PhaseBurst, engine: EngineSpec) -> Enforceability:
    slice_bytes = engine.posting.slice_bytes.value if burst.on_nic else burst.piece_bytes
    needed = engine.posting.detection_us.value * US + slice_bytes / burst.rate_bytes_per_s
    obstacle = _obstacle(burst, engine, needed)
    if obstacle is not None:
        gate, why = Gate.CLASS_ONLY if burst.on_nic else Gate.NEITHER, obstacle
    else:
        gate, why = _room(burst, engine)
    held = {
        Gate.GATEABLE: "the engine can hold them back",
        Gate.CLASS_ONLY: "only a NIC cap or lane weight holds them",
        Gate.NEITHER: "nothing holds them; smaller copies, submitted later, would",
    }[gate]
    policy = _knobs(engine, Steers.WRITE_POLICY)
    if gate is Gate.NEITHER and burst.flow_kind is FlowKind.WRITEBACK and policy:
        held = f"nothing holds them in a burst; {policy[0].name} says when they are made"
    return Enforceability(
        phase_kind=f"{burst.operation} beside {MOVES[burst.flow_kind, burst.on_nic]}",
        gate=gate,
        burst_s=burst.burst_s,
        gap_s=burst.gap_s,
        needed_s=needed,
        text=f"{held}: {why}",
    )


def _obstacle(burst: PhaseBurst, engine: EngineSpec, needed_s: float) -> str | None:
    """Why nothing can be submitted between the bursts, or not in small pieces; None where it can."""
    if burst.gap_s < needed_s:
        return f"the gap is shorter than the {format_seconds(needed_s)} it takes to see it and post a slice"
    if not burst.on_nic:
        return None
    sent = burst.flow_kind is FlowKind.SEND
    if engine.piece.value is not Piece.LAYER:
        what = f"a whole {engine.piece.value}" if sent else "what it has of a request"
        return f"{engine.name} submits {what} ({format_bytes(burst.piece_bytes)} a route) in one go"
    if sent and engine.mode.value is Mode.PULL and engine.through.value is KvPath.DIRECT:
        return "the decode side reads, and does not see the bursts of the prefill side"
    return None


def _room(burst: PhaseBurst, engine: EngineSpec) -> tuple[Gate, str]:
    """Whether what is posted when a burst starts fits its guard."""
    posting = engine.posting
    overshoot = float(posting.in_flight_bytes) if burst.on_nic else burst.piece_bytes
    if overshoot <= burst.guard_bytes:
        return Gate.GATEABLE, f"at most {format_bytes(overshoot)} is in flight, within the guard"
    fewer = work_requests_within(burst, engine) if burst.on_nic else None
    if fewer is not None and _work_request_knob(engine) is not None:
        return Gate.GATEABLE, f"with {fewer} work requests in flight instead of {posting.work_requests.value}"
    where = " on a copy engine, which serves in order" if burst.in_order else ""
    why = f"{format_bytes(overshoot)} in flight{where}, the guard admits {format_bytes(burst.guard_bytes)} a burst"
    return (Gate.CLASS_ONLY if burst.on_nic else Gate.NEITHER), why


def work_requests_within(burst: PhaseBurst, engine: EngineSpec) -> int | None:
    """Most work requests per queue pair whose bytes fit the guard of one burst; None where not even one does."""
    posting = engine.posting
    fit = int(burst.guard_bytes // (posting.slice_bytes.value * posting.queue_pairs.value))
    return fit if fit >= 1 else None


def send_order(data: AllocationData, engine: EngineSpec) -> tuple[Enforceability, ...]:
    """Whether the sends of one request can go before another's, where those of several requests share a port."""
    senders: dict[int, set[str]] = {}
    for r, f in enumerate(data.route_flow):
        if data.flows[f].kind is FlowKind.SEND:
            for e in np.flatnonzero(data.consumption[r] > 0):
                senders.setdefault(int(e), set()).add(data.flows[f].request)
    if max(map(len, senders.values()), default=0) < 2:
        return ()
    classes = engine.backend.priorities
    gate = Gate.GATEABLE
    if engine.piece.value is Piece.LAYER:
        text = "the engine submits layer by layer, and may submit the urgent request first"
    elif classes is not None:
        text = f"{engine.backend.name} keeps {classes.levels.value} levels among its own transfers"
        text += ", the earliest deadline first" if classes.deadlines.value else ""
        text += f"; what waits for {format_seconds(classes.promotion_us.value * US)} moves up one"
    else:
        gate, most = Gate.NEITHER, engine.parallel_transfers.value
        order = "one request at a time" if most == 1 else f"up to {most} requests at a time"
        text = f"{engine.name} sends {order}, in order of arrival, and {engine.backend.name} keeps no classes"
    return (Enforceability("sends beside sends of other requests", gate, 0.0, 0.0, 0.0, text),)


def settings(
    rows: Sequence[ScheduleRow],
    bursts: Sequence[PhaseBurst],
    judged: Sequence[Enforceability],
    *,
    engine: EngineSpec,
    host: HostKnobs,
    policy: QueuePolicy | None,
    nic_rate_bytes_per_s: float,
    later: Later | None = None,
) -> tuple[Setting, ...]:
    """Lines to set for the plan: name, value, side and process, and the reason. Empty where the defaults do.

    ``policy`` is the simple rule that is the plan, or None when the plan is a schedule. ``nic_rate_bytes_per_s``: what
    the plan lets one NIC send while its sends are throttled, 0 if they never are. ``later``: what the engine can do
    later; nothing by default.
    """
    later = later or Later()
    if policy is not None and policy.cap is not None:
        return _cap_settings(policy, host)
    if policy is not None and policy.after_prefill:
        return tuple(
            _line(knob, value, "sends then meet no collective of their request") for knob, value in later.sends or ()
        )
    if policy is not None and policy.writebacks_last:
        return tuple(_later_writes(later.writes))
    if policy is not None and not policy.critical_first:
        return ()
    found: list[Setting] = []
    if any(row.rule in (Rule.CONTENDED, Rule.OVERDRAFT) for row in rows):
        found += _in_flight(bursts, judged, engine)
        found += _write_policy(bursts, judged, later.writes)
        if any(e.gate is Gate.CLASS_ONLY for e in judged):
            found += [
                _line(knob, "a class of KV's own", "so that a NIC can hold KV back during bursts that no gate can")
                for knob in _knobs(engine, Steers.NIC_CLASS)[:1]
            ]
            found += _burst_cap(nic_rate_bytes_per_s, host)
    return tuple(found)


def _in_flight(bursts: Sequence[PhaseBurst], judged: Sequence[Enforceability], engine: EngineSpec) -> list[Setting]:
    """Fewer work requests, where that makes a burst gateable."""
    knob = _work_request_knob(engine)
    fits = [
        fit
        for burst, e in zip(bursts, judged, strict=True)
        if burst.on_nic and e.gate is Gate.GATEABLE and (fit := work_requests_within(burst, engine)) is not None
    ]
    if knob is None or not fits or min(fits) >= engine.posting.work_requests.value:
        return []
    return [_line(knob, str(min(fits)), "what is posted when a burst starts then fits the guard")]


def _write_policy(bursts: Sequence[PhaseBurst], judged: Sequence[Enforceability], later: Knob | None) -> list[Setting]:
    """A later write policy, where write-backs meet collectives and nothing holds them."""
    free = any(
        burst.flow_kind is FlowKind.WRITEBACK and e.gate is Gate.NEITHER
        for burst, e in zip(bursts, judged, strict=True)
    )
    return _later_writes(later) if free else []


def _later_writes(later: Knob | None) -> list[Setting]:
    reason = "new KV is then copied when it is evicted, not when its prefill ends"
    return [] if later is None else [_line(later, WRITE_LATER, reason)]


def _burst_cap(rate_bytes_per_s: float, host: HostKnobs) -> list[Setting]:
    """A NIC cap at what the plan lets the NIC send, all its sends together, while they are throttled."""
    if not rate_bytes_per_s:
        return []
    value = f"{rate_bytes_per_s / GBIT_PER_S:.0f}"
    reason = f"one NIC's sends go at most at {format_rate(rate_bytes_per_s)} together during bursts"
    return [
        _line(knob, value, f"{reason}; dynamic, or static if late is allowed")
        for knob in host.knobs
        if knob.maps_to is Steers.RATE_CAP
    ][:1]


def _cap_settings(policy: QueuePolicy, host: HostKnobs) -> tuple[Setting, ...]:
    cap = policy.cap
    if cap is None:
        return ()
    value, where = f"{cap.rate_bytes_per_s / GBIT_PER_S:.1f}", ", ".join(cap.targets)
    if cap.needs_engine_throttle:
        reason = (
            f"KV on {where} at most at {format_rate(cap.rate_bytes_per_s)}; no NIC carries it: needs engine throttle"
        )
        return (Setting("copy rate of prefix loads", value, "Gbit/s", "engine", "P", reason),)
    return tuple(
        _line(knob, value, f"KV of {where} at most at {format_rate(cap.rate_bytes_per_s)}")
        for knob in host.knobs
        if knob.maps_to is Steers.RATE_CAP
    )[:1]


def _knobs(engine: EngineSpec, steers: Steers) -> list[Knob]:
    return [knob for knob in engine.all_knobs if knob.maps_to is steers]


def _work_request_knob(engine: EngineSpec) -> Knob | None:
    return next((k for k in _knobs(engine, Steers.IN_FLIGHT_BYTES) if k.unit == "work requests"), None)


def _line(knob: Knob, value: str, reason: str) -> Setting:
    unit = "" if knob.unit == "name" else knob.unit
    return Setting(knob.name, value, unit, knob.process, knob.side, f"{reason} (default {knob.default})")


def applicable(
    tried: Sequence[tuple[Policy, Replay]],
    chosen: Policy,
    cost: float,
    judged: Sequence[Enforceability],
    prefill: float,
    *,
    later: Later | None = None,
    broken: Collection[str] = (),
    nics: NicChoice | None = None,
) -> Applicable:
    """Whether the plan can be applied, else the cheapest policy that can, and what the missing gates are worth.

    ``cost`` is the plan's and ``prefill`` the price of the prefill, both [GPU·s]. ``later``: what the engine can do
    later; ``broken``: as `Later.without_gates`. ``nics``: what the plan's NICs are worth, where they are not the
    engine's; a list can be applied.
    """
    name, later = chosen.name, later or Later()
    if isinstance(chosen, QueuePolicy) and later.needs_no_gate(chosen):
        how = later.how(chosen)
        if nics is not None and nics.is_plan:
            how = "by a list of NICs" + ("" if how == AS_IT_IS else f" and {how}")
        return Applicable(name, cost, 0.0, f"{name} needs no gate: it can be applied {how}")
    limits = "" if nics is None else limits_of_lists(nics)
    early = isinstance(chosen, QueuePolicy) and chosen.after_prefill
    if not limits and not judged and not early:
        return Applicable(name, cost, 0.0, "KV meets no collective: nothing has to be held back")
    held = any(e.gate is not Gate.GATEABLE for e in judged) or (early and not judged)
    if not limits and not held:
        return Applicable(name, cost, 0.0, "the engine can hold KV back in every phase where the plan asks for it")
    free = later.without_gates(tried, broken)
    options = [(p.name, p.name, later.how(p), r.cost) for p, r in free]
    if nics is not None and not held and nics.paced_cost is not None:
        options.append(("plan", f"the plan on the NICs of {nics.rule.value}", AS_IT_IS, nics.paced_cost))
    if nics is not None and nics.listed is not None:
        one = nics.listed
        options.append((one.name, f"{one.policy.name} on {one.text}", later.how(one.policy), one.replay.cost))
    policy, words, how, today = min(options, key=lambda option: option[3])
    words += f" ({today:.3g} GPU·s)"
    if policy != UNMANAGED.name:
        words += f", against {next(r.cost for p, r in tried if p.name == UNMANAGED.name):.3g} of unmanaged,"
    gates = (
        "no knob makes sends wait for the end of their prefill"
        if early
        else "of the plan, not everything can be gated today"
    )
    lacking = [gates] if held else []
    lacking += [limits] if limits else []
    missing = ["the missing gates"] if held else []
    missing += ["what lists of NICs cannot do"] if limits else []
    worth = max(0.0, today - cost)
    text = (
        f"{', and '.join(lacking)}; {words} can be applied {how}, and {' and '.join(missing)} would be worth "
        f"{worth:.3g} GPU·s ({share_of_prefill(worth, prefill):.1%} of the prefill)"
    )
    return Applicable(policy, today, worth, text)
