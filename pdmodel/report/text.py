"""The plan for reading: verdict, times, ports, what to set, whether it can be enforced, what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pdmodel.answer import Rule, VerdictKind
from pdmodel.hardware.ports import REFERENCE_BYTES
from pdmodel.report.document import Document, Section, table
from pdmodel.report.export import plan_records, plan_to_dict
from pdmodel.report.kv_path import memory_section, reuse_section, transfer_section
from pdmodel.report.schedule import rates_section, schedule_section
from pdmodel.report.words import (
    NOTHING,
    Unit,
    gb_per_s,
    group,
    merged_name,
    merged_sentences,
    name_pattern,
    number,
    percent,
    seconds,
    span,
    time_unit,
)
from pdmodel.units import format_bytes, format_count

if TYPE_CHECKING:
    from pdmodel.answer import FlowResult, Plan, PolicyResult, PortResult

TOP_PORTS = 8
TOP_FLOWS = 8
BESIDE = " beside "
NEARLY = 0.9
EQUAL = 1e-9
MEANING = {
    "strict": "KV takes only what collectives leave of a port",
    "residual_edf": "KV takes only what collectives leave of a port, earliest due first",
    "sends_first": "what is written back waits until nothing else of its request is left",
    "after_prefill": "sends wait until the prefill of their request has ended",
}
COUNTED = {"posting": "descriptors", "messages": "requests"}
IN_WORDS = {
    "posting": "posting: what the threads of a rank post, in GB/s of 64 KiB descriptors",
    "messages": "messages: the work requests that a NIC takes, in GB/s of 64 KiB requests",
    "store": "store: what a client of the KV store reads or writes at most",
    "receiving": "receiving: a rank that takes from one sender after the other, in GB/s of its fastest sender",
    "client": "client: one object of the KV store after another, in GB/s of 64 KiB objects without their way",
}
PACED = (Rule.CONTENDED, Rule.OVERDRAFT)


def plan_document(plan: Plan, *, full: bool = False, full_schedule: bool = False) -> Document:
    """The whole answer; ``full`` lists every policy, port and flow, ``full_schedule`` every row of the schedule."""
    sections = [
        _verdict(plan),
        _times(plan, full=full),
        *([_missed(plan)] if plan.missed_deadlines else []),
        reuse_section(plan),
        _ports(plan, full=full),
        rates_section(plan),
        _settings(plan),
        transfer_section(plan, full=full),
        memory_section(plan, full=full),
        _enforceability(plan),
        _listing("Assumed inputs that matter", plan.assumed, "None: every input that matters is measured or derived."),
        *([_listing("Hazards", plan.hazards)] if plan.hazards else []),
        *([_listing("Warnings", plan.warnings)] if plan.warnings else []),
        _flows(plan, full=full),
        *([schedule_section(plan)] if full_schedule else []),
        _origin(plan),
    ]
    return Document(
        title=f"pdmodel plan: {plan.scenario}",
        subtitle=plan.purpose,
        sections=tuple(section for section in sections if section is not None),
        content=plan_to_dict(plan),
        records=plan_records(plan),
    )


def best_simple_rule(policies: Sequence[PolicyResult]) -> PolicyResult | None:
    """The cheapest policy that needs no plan: neither ``plan`` itself nor ``unmanaged``; the first of equals.

    As the plan is the first of equals as well, a plan that is a simple rule and the best simple rule have one name.
    """
    simple = [policy for policy in policies if policy.name not in {"plan", "unmanaged"}]
    simple = [policy for policy in simple if not policy.breaks] or simple
    least = min((policy.cost for policy in simple), default=0.0)
    return next((policy for policy in simple if policy.cost <= least * (1 + EQUAL)), None)


def port_groups(ports: Sequence[PortResult]) -> list[list[PortResult]]:
    """Ports that print alike, together; first those that carry critical traffic and KV, or are the fullest of all."""
    alike = group(ports, lambda port: (name_pattern(port.name), *_port_cells(port)))
    fullest = max((port.utilisation for port in ports), default=0.0)

    def relevance(ports: list[PortResult]) -> tuple[bool, float, float]:
        return matters(ports[0], fullest), ports[0].shadow_price or 0.0, ports[0].utilisation

    return sorted(alike, key=relevance, reverse=True)


def _verdict(plan: Plan) -> Section:
    kind = plan.verdict.kind.value
    sentence = plan.verdict.text.removeprefix(f"{kind}: ")
    return Section("Verdict", text=(f"{kind.replace('_', ' ').upper()}: {sentence}", f"Bound: {plan.bound.text}"))


def _times(plan: Plan, *, full: bool) -> Section:
    best = best_simple_rule(plan.policies)
    shown = [
        policy
        for policy in plan.policies
        if full or policy.name in {"unmanaged", "plan"} or (best is not None and policy.name == best.name)
    ]
    everyone = (*shown, *plan.references)
    unit = time_unit([policy.ttft_s for policy in everyone])
    rows = [_policy_cells(policy, _policy_label(policy, best, plan.solver.rule), unit) for policy in shown]
    rows += [_policy_cells(policy, policy.name, unit) for policy in plan.references]
    times = ("TTFT", "prefill slowdown", "load stall", "decode stall")
    head = ["policy", *(f">{name} [{unit.name}]" for name in times), ">cost [GPU·s]"]
    note = "Worst request; (low .. high): band over arbitration weights and interference."
    if plan.references:
        note += f" Not policies but references: {', '.join(policy.name for policy in plan.references)}."
    if plan.times.control_s > 0:
        note += (
            f" TTFT and decode stall: of which control plane {seconds(plan.times.control_s)} "
            "(set-up, packing, hand-over), which no schedule changes."
        )
    told = {policy.name: _told(policy) for policy in everyone}
    notes = tuple(f"{name}: {text}" for name, text in told.items() if text)
    hidden = len(plan.policies) - len(shown)
    if hidden:
        note += f" {hidden} more policies: --full."
    return Section("Times", table=table(head, rows), bullets=notes, note=note)


def _told(policy: PolicyResult) -> str:
    said = policy.note or MEANING.get(policy.name, "")
    return "; ".join(part for part in (said, policy.breaks and f"does not fit: {policy.breaks}") if part)


def _policy_label(policy: PolicyResult, best: PolicyResult | None, rule: str) -> str:
    if policy.name == "plan" and rule:
        return f"plan (= {rule})"
    if best is not None and policy.name == best.name:
        return f"{policy.name} (best simple)"
    return policy.name


def _policy_cells(policy: PolicyResult, label: str, unit: Unit) -> list[str]:
    ttft, cost = unit(policy.ttft_s), number(policy.cost)
    if policy.ttft_low_s is not None and policy.ttft_high_s is not None:
        ttft = _with_band(ttft, span(policy.ttft_low_s, policy.ttft_high_s, unit))
    if policy.cost_low is not None and policy.cost_high is not None:
        cost = _with_band(cost, span(policy.cost_low, policy.cost_high, number))
    stalls = [unit(time_s) for time_s in (policy.prefill_slowdown_s, policy.load_stall_s, policy.decode_stall_s)]
    return [label, ttft, *stalls, cost]


def _with_band(value: str, band: str) -> str:
    return value if band == value else f"{value} ({band})"


def _missed(plan: Plan) -> Section:
    return Section("Missed deadlines", bullets=plan.missed_deadlines)


def contended(port: PortResult) -> bool:
    """Whether the port carries critical traffic and KV."""
    return port.critical_bytes > 0 and port.kv_bytes > 0


def matters(port: PortResult, fullest: float) -> bool:
    """Whether the port carries both kinds, or is about as full as the fullest of all."""
    return contended(port) or port.utilisation >= NEARLY * fullest > 0


def _port_cells(port: PortResult) -> list[str]:
    return [
        f"{gb_per_s(port.capacity_bytes_per_s)} {port.capacity_source.value}",
        format_bytes(port.critical_bytes) if port.critical_bytes else NOTHING,
        _carried(port) if port.kv_bytes else NOTHING,
        percent(port.utilisation),
        NOTHING if port.shadow_price is None else number(port.shadow_price),
    ]


def _carried(port: PortResult) -> str:
    """What KV puts on the port: bytes, or the descriptors or work requests that it counts."""
    if port.kind not in COUNTED:
        return format_bytes(port.kv_bytes)
    return f"{format_count(port.kv_bytes / REFERENCE_BYTES)} {COUNTED[port.kind]}"


def _ports(plan: Plan, *, full: bool) -> Section:
    groups = [[port] for found in port_groups(plan.ports) for port in found] if full else port_groups(plan.ports)
    used = groups if full else [ports for ports in groups if ports[0].critical_bytes or ports[0].kv_bytes]
    shown = used if full else used[:TOP_PORTS]
    rows = [[merged_name([port.name for port in ports]), *_port_cells(ports[0])] for ports in shown]
    head = ["port", ">capacity [GB/s]", ">critical", ">KV", ">used", ">price [GPU·s per GB/s]"]
    hidden = len(plan.ports) - sum(len(ports) for ports in shown)
    shared = sum(contended(port) for port in plan.ports)
    note = f"{shared} of {len(plan.ports)} ports carry both critical traffic and KV."
    words = [text for kind, text in IN_WORDS.items() if any(ports[0].kind == kind for ports in shown)]
    if words:
        note += f" {'; '.join(words)}."
    if hidden:
        note += f" {hidden} ports not shown: --full."
    return Section("Ports", table=table(head, rows), note=note)


def _settings(plan: Plan) -> Section:
    title = "What to set: knobs"
    if not plan.settings:
        nothing = "Nothing: leave the defaults."
        if plan.verdict.kind is VerdictKind.HEADROOM and any(row.rule in PACED for row in plan.schedule):
            nothing += " The rates above are the plan's; the verdict is that they are not worth setting."
        return Section(title, text=(nothing,))
    sides = {"P": "prefill side", "D": "decode side", "both": "both sides"}
    lines = [
        f"{setting.name} = {setting.value}{' ' + setting.unit if setting.unit else ''} "
        f"({setting.where}, {sides.get(setting.side, setting.side)}): {setting.reason}"
        for setting in plan.settings
    ]
    return Section(title, bullets=tuple(lines))


def _enforceability(plan: Plan) -> Section:
    """Phase kinds of one fate on one line; what it means is said once for each fate."""
    if not plan.enforceability:
        return Section("Enforceability", text=("Nothing to enforce: the plan paces no transfer.",))
    alike = group(plan.enforceability, lambda e: (e.gate, e.phase_kind.partition(BESIDE)[2], e.text))
    rows, meanings = [], []
    for found in alike:
        gate = found[0].gate.value.replace("_", "-")
        beside = found[0].phase_kind.partition(BESIDE)[2]
        rows.append(
            [
                ", ".join(e.phase_kind.partition(BESIDE)[0] for e in found),
                beside or NOTHING,
                gate,
                *(
                    span(min(times), max(times), seconds)
                    for times in zip(*((e.burst_s, e.gap_s, e.needed_s) for e in found), strict=True)
                ),
            ]
        )
        meanings.append(f"{gate}{' (' + beside + ')' if beside else ''}: {found[0].text}")
    head = ["~phase kinds", "beside", "who can pace", ">burst", ">gap", ">needed"]
    bullets = (plan.applicable.text, *dict.fromkeys(meanings))
    return Section("Enforceability", table=table(head, rows), bullets=bullets)


def _listing(title: str, items: Sequence[str], nothing: str = "") -> Section:
    return Section(title, bullets=tuple(merged_sentences(items))) if items else Section(title, text=(nothing,))


def _flow_cells(flow: FlowResult) -> list[str]:
    return _flow_spans([flow])


def _flow_spans(flows: Sequence[FlowResult]) -> list[str]:
    """Bytes of each, then its times: from the first to the last of the flows where they differ."""
    late = [None if flow.due_s is None else max(0.0, flow.finish_s - flow.due_s) for flow in flows]
    times = (
        [flow.release_s for flow in flows],
        [flow.due_s for flow in flows],
        [flow.finish_s for flow in flows],
        late,
    )
    return [format_bytes(flows[0].bytes), *(_first_to_last(column) for column in times)]


def _first_to_last(times_s: Sequence[float | None]) -> str:
    known = [time_s for time_s in times_s if time_s is not None]
    return span(min(known), max(known), seconds) if known else NOTHING


def _flow_groups(plan: Plan) -> list[list[FlowResult]]:
    """Flows that print alike; where these are too many for a table, those of one name and size."""
    alike = group(plan.flows, lambda flow: (flow.kind, name_pattern(flow.name), *_flow_cells(flow)))
    if len(alike) > TOP_FLOWS:
        alike = group(plan.flows, lambda flow: (flow.kind, name_pattern(flow.name), format_bytes(flow.bytes)))
    return alike


def _flows(plan: Plan, *, full: bool) -> Section:
    groups = [[flow] for flow in plan.flows] if full else _flow_groups(plan)
    shown = groups if full else groups[:TOP_FLOWS]
    rows = [
        [
            merged_name([flow.name for flow in flows]),
            flows[0].kind,
            *_flow_spans(flows),
            merged_name([flow.route for flow in flows]),
        ]
        for flows in shown
    ]
    head = ["transfer", "kind", ">each", ">first release", ">last due", ">finish", ">late", "route"]
    hidden = len(plan.flows) - sum(len(flows) for flows in shown)
    note = f"{hidden} transfers not shown: --full." if hidden else ""
    return Section("Transfers", table=table(head, rows), note=note)


def _origin(plan: Plan) -> Section:
    solver = plan.solver
    how = f"Found by {solver.path} ({solver.status}) in {seconds(solver.wall_s)}; objective {number(solver.objective)}"
    how += f" GPU·s, gap {number(solver.gap)}"
    how += f", {solver.variables} variables." if solver.variables else "."
    return Section("How it was found", text=(how,), bullets=tuple(f"{k}: {v}" for k, v in plan.provenance.items()))
