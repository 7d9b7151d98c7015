"""What a plan gains by NICs that the engine's rule does not use, and how much of it a list of NICs brings.

A plan may weigh the NICs of a send and change the weights from phase to phase. Engines take a list of NICs for each
process: it excludes NICs, and the engine's own rule spreads the bytes over the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.schedule import Schedule
from pdmodel.answer import Enforceability, Gate, Setting, Verdict, VerdictKind
from pdmodel.choose import Choice, Keeps
from pdmodel.engines.spec import EngineSpec, Knob, RouteRule, Steers
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import gpu_to_nic, nic_to_gpu
from pdmodel.hardware.topology import Box
from pdmodel.record import listed_record
from pdmodel.replay.engine import simulate
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import UNMANAGED, PlanPolicy, QueuePolicy
from pdmodel.resolve import ResolvedScenario
from pdmodel.timeline.phases import FloatArray, Timeline
from pdmodel.transfer.flows import FlowKind
from pdmodel.transfer.nics import NicLists, nic_order
from pdmodel.units import format_ranges
from pdmodel.verdict import WORTH, price_of_prefill, share_of_prefill

NAME: Final = "nic_list"
"""What a rule over a list of NICs is called."""
SAME: Final = 0.01
"""Shares of bytes that differ by less are one."""
TENTH: Final = 0.1
"""A list that brings less than this share of the gain is not worth setting."""
SPREADING: Final = frozenset({RouteRule.STRIPE, RouteRule.RANDOM, RouteRule.ROUND_ROBIN, RouteRule.WEIGHTED})
"""Rules that use more than one NIC of a list."""

Shares = Mapping[int, Mapping[int, float]]
"""Share of a GPU's sends [-] by GPU and NIC."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A simple rule over a list of NICs: what an engine does that is given the list."""

    lists: NicLists
    policy: QueuePolicy
    replay: Replay

    @property
    def name(self) -> str:
        """Of the list with its rule."""
        return NAME if self.policy is UNMANAGED else f"{NAME}+{self.policy.name}"

    @property
    def text(self) -> str:
        """Both sides in words."""
        sides = (("P", self.lists.prefill), ("D", self.lists.decode))
        return ", ".join(f"{side} {list_text(lists)}" for side, lists in sides if lists)


@dataclass(frozen=True, slots=True)
class NicChoice:
    """What the choice of NICs is worth to a plan.

    ``gain``: what the plan saves over the cheapest schedule tried that keeps to the NICs of ``rule`` [GPU·s].
    ``paced_cost``: cost of the plan's pacing on them, None where it breaks a limit. ``prefill``, ``decode``: which NICs
    the plan uses. ``equal``: the NICs that a GPU uses carry equal parts; ``steady``: at all times. ``listed``: the
    cheapest list. ``is_plan``: the plan is made for it.
    """

    rule: RouteRule
    gain: float
    paced_cost: float | None
    prefill: Shares
    decode: Shares
    equal: bool
    steady: bool
    listed: Listed | None
    is_plan: bool = False

    @property
    def lists(self) -> NicLists | None:
        """Those that the plan is made for."""
        return self.listed.lists if self.listed is not None and self.is_plan else None


def nic_knob(engine: EngineSpec) -> Knob | None:
    """The list of NICs of a process, the engine's own before its backend's; None where nothing takes one."""
    return next((k for k in engine.all_knobs if k.maps_to is Steers.NIC_LIST and k.unit == "NIC names"), None)


def rule_share(data: AllocationData) -> FloatArray:
    """Share of its flow's bytes that the engine's rule puts on each route, shape (R,) [-]."""
    return np.array([share for flow in data.flows for share in flow.split], dtype=float)


def moved_share(data: AllocationData, size_bytes: FloatArray) -> FloatArray:
    """Share of its flow's bytes on each route, shape (R,) [-], of bytes by route; the rule's where nothing moves.

    Equation: s_r = v_r / sum of v over the routes of the flow.
    """
    total = np.bincount(data.route_flow, weights=size_bytes, minlength=len(data.flows))[data.route_flow]
    return np.where(total > 0, size_bytes / np.where(total > 0, total, 1.0), rule_share(data))


def main_route(data: AllocationData, replay: Replay, flow: int) -> Route:
    """The route that carries most of a flow; by the engine's rule where the replay does not say."""
    share = rule_share(data)
    if len(replay.route_bytes) == len(share):
        share = moved_share(data, replay.route_bytes)
    mine = np.flatnonzero(data.route_flow == flow)
    return data.routes[int(mine[np.argmax(share[mine])])]


def nic_choice(
    resolved: ResolvedScenario,
    timeline: Timeline,
    data: AllocationData,
    choice: Choice,
    rules: Sequence[tuple[QueuePolicy, Replay]],
) -> NicChoice | None:
    """What the NICs of a plan are worth, and the best list of NICs.

    Parameters
    ----------
    resolved, timeline, data: the scenario that was planned, with its record.
    choice: its plan.
    rules: simple rules that can be applied, with their replays; the cheapest is tried on the lists too.

    Returns
    -------
    None where the plan keeps to the engine's rule, or gains next to nothing by not doing so.

    Notes
    -----
    The gain is an upper bound: a program that is held to the rule's NICs could do better than the plan's pacing on
    them. Lists that are tried: one, two, four .. nearest NICs for every GPU, the NICs that carry most of the plan, and
    one NIC for each GPU so that NICs are full at the same time.

    """
    plan = choice.policy
    if not isinstance(plan, PlanPolicy) or not len(data.routes):
        return None
    share, rule = moved_share(data, choice.replay.route_bytes), rule_share(data)
    if not _differ(data, share, rule):
        return None
    cost, worth = choice.replay.cost, WORTH * price_of_prefill(data)
    kept = [r.cost for p, r in choice.policies if p.name not in choice.broken]
    if min(kept, default=np.inf) - cost < worth:
        return None
    sharing = resolved.spec.sharing
    centre = (1.0, 0.0) if sharing is None else (sharing.kv_weight, sharing.interference)
    paced = _on_rule(data, plan, centre)
    gain = min([*kept, *([] if paced is None else [paced])], default=np.inf) - cost
    if gain < worth:
        return None
    ours, theirs, equal, steady = uses(resolved, data, choice)
    return NicChoice(
        rule=resolved.route_rule,
        gain=gain,
        paced_cost=paced,
        prefill=ours,
        decode=theirs,
        equal=equal,
        steady=steady,
        listed=_best(resolved, timeline, data, rules=rules, shares=(ours, theirs), centre=centre),
    )


def uses(resolved: ResolvedScenario, data: AllocationData, choice: Choice) -> tuple[Shares, Shares, bool, bool]:
    """NICs that a plan uses, on either side; whether in equal parts, and whether in the same ones at all times."""
    share, plan = moved_share(data, choice.replay.route_bytes), choice.policy
    ours, theirs = _by_gpu(resolved, data, share)
    equal = all(_is_equal(nics) for side in (ours, theirs) for nics in side.values())
    return ours, theirs, equal, not isinstance(plan, PlanPolicy) or _is_steady(data, plan.schedule, share)


def _differ(data: AllocationData, share: FloatArray, other: FloatArray) -> bool:
    """Whether sends go by other routes for more than `SAME` of their bytes."""
    sends = np.array([flow.kind is FlowKind.SEND for flow in data.flows], dtype=bool)[data.route_flow]
    volume = np.where(sends, data.volume_bytes[data.route_flow], 0.0)
    return bool(0.5 * np.abs(share - other) @ volume > SAME * max(float(data.volume_bytes.sum()), 1e-300))


def _on_rule(data: AllocationData, plan: PlanPolicy, centre: tuple[float, float]) -> float | None:
    """Cost of the plan's pacing with every flow on the NICs of the rule [GPU·s]; None where it breaks a limit."""
    rule, flows = rule_share(data), len(data.flows)
    pieces = tuple(
        replace(piece, rates=rule * np.bincount(data.route_flow, weights=piece.rates, minlength=flows)[data.route_flow])
        for piece in plan.schedule.pieces
    )
    policy = PlanPolicy(replace(plan.schedule, pieces=pieces))
    replay = simulate(data, policy, kv_weight=centre[0], interference=centre[1])
    return None if Keeps(data, centre).reason(policy, replay) else replay.cost


def _is_equal(nics: Mapping[int, float]) -> bool:
    return max(nics.values()) - min(nics.values()) <= SAME


def _is_steady(data: AllocationData, schedule: Schedule, share: FloatArray) -> bool:
    """Whether each flow's shares are the same in every piece."""
    size = np.array([piece.rates * piece.duration_s for piece in schedule.pieces]).reshape(-1, len(data.routes))
    per_flow = np.zeros((len(size), len(data.flows)))
    np.add.at(per_flow.T, data.route_flow, size.T)
    off = np.abs(size - share * per_flow[:, data.route_flow]).sum()
    return bool(0.5 * off <= SAME * size.sum())


def _by_gpu(resolved: ResolvedScenario, data: AllocationData, share: FloatArray) -> tuple[Shares, Shares]:
    """What the NICs carry of the sends from each prefill GPU, and of those into each decode GPU."""
    found = []
    for box, end in ((resolved.prefill_box, "tx"), (resolved.decode_box, "rx")):
        nic_of = {box.port_name(box.nic(nic), end): nic for nic in range(box.nic_count)}
        gpu_of = {box.port_name(box.gpu(gpu)): gpu for gpu in range(box.gpu_count)}
        size: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for r, route in enumerate(data.routes):
            flow = data.flows[int(data.route_flow[r])]
            nic = next((nic_of[name] for name in route.ports if name in nic_of), None)
            if flow.kind is FlowKind.SEND and nic is not None:
                gpu = gpu_of[flow.source if end == "tx" else flow.destination]
                size[gpu][nic] += float(share[r]) * flow.volume_bytes
        found.append({gpu: _shares(nics) for gpu, nics in sorted(size.items())})
    return found[0], found[1]


def _shares(size: Mapping[int, float]) -> dict[int, float]:
    total = sum(size.values())
    return {nic: part / total for nic, part in sorted(size.items()) if part > SAME * total}


# ---- lists -----------------------------------------------------------------------------------------------------------
def _best(
    resolved: ResolvedScenario,
    timeline: Timeline,
    data: AllocationData,
    *,
    rules: Sequence[tuple[QueuePolicy, Replay]],
    shares: tuple[Shares, Shares],
    centre: tuple[float, float],
) -> Listed | None:
    """The cheapest list that fits, under `unmanaged` or the cheapest rule; of equally cheap ones the first."""
    if nic_knob(resolved.engine) is None:
        return None
    cheapest = min(rules, key=lambda pair: pair[1].cost, default=None)
    tried = [UNMANAGED]
    if cheapest is not None and cheapest[0] is not UNMANAGED and cheapest[0].cap is None:  # a cap is for its own NICs
        tried.append(cheapest[0])

    def record(lists: NicLists) -> AllocationData:
        return listed_record(resolved, timeline, lists)

    known = {_ways(data)}
    found: list[Listed] = []
    for lists in _to_try(resolved, data, shares):
        listed = record(lists)
        if _ways(listed) in known:
            continue
        known.add(_ways(listed))
        keeps = Keeps(listed, centre)
        for policy in tried:
            replay = simulate(listed, policy, kv_weight=centre[0], interference=centre[1])
            if not keeps.reason(policy, replay):
                found.append(Listed(lists, policy, replay))
    best = min(found, key=lambda one: one.replay.cost, default=None)
    if best is None:
        return None
    ways = _ways(record(best.lists))
    for side in ("prefill", "decode"):  # a side that does the same without a list needs none
        fewer = replace(best.lists, **{side: {}})
        if _ways(record(fewer)) == ways:
            best = replace(best, lists=fewer)
    return best


def _ways(data: AllocationData) -> tuple[tuple[str, float], ...]:
    """What the engine's rule uses: two records that agree here are one."""
    return tuple((route.name, share) for route, share in zip(data.routes, rule_share(data), strict=True) if share > 0)


def _to_try(resolved: ResolvedScenario, data: AllocationData, shares: tuple[Shares, Shares]) -> Iterator[NicLists]:
    boxes, allowed = (resolved.prefill_box, resolved.decode_box), (resolved.nics, resolved.decode_nics)
    near = [
        {gpu: nic_order(box, gpu, nics) for gpu in mine} for box, nics, mine in zip(boxes, allowed, shares, strict=True)
    ]
    spreads, count = resolved.route_rule in SPREADING, 1
    while count < max(map(len, allowed)) and (count == 1 or spreads):
        yield _lists(resolved, [{gpu: order[:count] for gpu, order in side.items()} for side in near])
        count *= 2
    if spreads:
        used = [
            {gpu: {n for n, s in nics.items() if s >= 0.5 / len(nics)} for gpu, nics in one.items()} for one in shares
        ]
        yield _lists(
            resolved,
            [
                {gpu: tuple(nic for nic in order if nic in mine[gpu]) for gpu, order in side.items()}
                for side, mine in zip(near, used, strict=True)
            ],
        )
    ends: dict[str, float] = defaultdict(float)
    for flow in data.flows:
        if flow.kind is FlowKind.SEND:
            ends[flow.source] += flow.volume_bytes
            ends[flow.destination] += flow.volume_bytes
    sizes = [{gpu: ends[box.port_name(box.gpu(gpu))] for gpu in side} for box, side in zip(boxes, near, strict=True)]
    yield _lists(
        resolved,
        [_spread(boxes[k], sizes[k], near[k], sending=k == 0) for k in range(2)],
    )


def _lists(resolved: ResolvedScenario, lists: Sequence[Mapping[int, tuple[int, ...]]]) -> NicLists:
    """Of both sides, as a person would write them down; on rails the other end follows."""
    ours, theirs = ({gpu: tuple(sorted(nics)) for gpu, nics in side.items()} for side in lists)
    return NicLists(ours, {} if resolved.route_rule is RouteRule.RAIL else theirs)


def _spread(
    box: Box, size_bytes: Mapping[int, float], near: Mapping[int, Sequence[int]], *, sending: bool
) -> dict[int, tuple[int, ...]]:
    """One NIC for each GPU: the nearest, then GPU by GPU another one as long as the fullest port gets less full.

    Equation: load_e = sum over GPUs of m_e v / C_e; each step takes the (GPU, NIC) whose loads, in falling order, are
    the least; the last step is the one that lowers them.
    """
    capacity = {name: port.capacity_bytes_per_s for name, port in box.port_index.items()}
    took: dict[tuple[int, int], dict[str, float]] = {}
    for gpu, nics in near.items():
        for nic in nics:
            route = gpu_to_nic(box, gpu, nic) if sending else nic_to_gpu(box, nic, gpu)
            crossed = dict(route.ports) | {box.port_name(box.nic(nic), "tx" if sending else "rx"): 1.0}
            took[gpu, nic] = {name: size_bytes[gpu] * times / capacity[name] for name, times in crossed.items()}

    def loads(chosen: Mapping[int, int]) -> list[float]:
        load: dict[str, float] = defaultdict(float)
        for pair in chosen.items():
            for name, time_s in took[pair].items():
                load[name] += time_s
        return sorted((float(f"{time_s:.9g}") for time_s in load.values()), reverse=True)

    best = {gpu: nics[0] for gpu, nics in near.items()}
    least = loads(best)
    while True:
        moves = [best | {gpu: nic} for gpu, nics in near.items() for nic in nics if nic != best[gpu]]
        moved = min(moves, key=loads, default=best)
        if not loads(moved) < least:
            return {gpu: (nic,) for gpu, nic in best.items()}
        best, least = moved, loads(moved)


# ---- what to set, what to say ----------------------------------------------------------------------------------------
def nic_weights(nics: NicChoice | None, cost: float, prefill: float) -> tuple[Enforceability, ...]:
    """Whether a list of NICs gives what the plan gains by its NICs; ``cost`` of the plan and ``prefill`` [GPU·s]."""
    if nics is None:
        return ()
    does = nics.listed is not None and share_of_prefill(nics.listed.replay.cost - cost, prefill) < WORTH
    limits = limits_of_lists(nics)
    gate, text = (Gate.GATEABLE, "a list of NICs does it") if does or not limits else (Gate.NEITHER, limits)
    return (Enforceability("choice of NICs", gate, 0.0, 0.0, 0.0, text),)


def nic_settings(
    nics: NicChoice | None, engine: EngineSpec, rules: Sequence[tuple[QueuePolicy, Replay]]
) -> tuple[Setting, ...]:
    """The list of NICs of each side, where it saves something over ``rules``, what can be applied without one."""
    knob = nic_knob(engine)
    saved = saved_by_list(nics, rules)
    if nics is None or nics.listed is None or knob is None or not saved:
        return ()
    found = []
    for side, lists, shares in (
        ("P", nics.listed.lists.prefill, nics.prefill),
        ("D", nics.listed.lists.decode, nics.decode),
    ):
        if lists:
            reason, limits = f"saves {saved:.3g} GPU·s", limits_of_lists(nics)
            reason += "; one value for the process of each rank" if len(set(lists.values())) > 1 else ""
            reason += f"; the plan sends {shares_text(shares)}, and {limits}" if limits else ""
            reason += f" (default {knob.default})"
            found.append(Setting(knob.name, list_text(lists), "", knob.process, side, reason))
    return tuple(found)


def saved_by_list(nics: NicChoice | None, rules: Sequence[tuple[QueuePolicy, Replay]]) -> float:
    """What the best list of NICs saves over the cheapest of ``rules`` [GPU·s]; 0 for less than a tenth of the gain.

    All that it saves where the plan is made for it.
    """
    if nics is None or nics.listed is None:
        return 0.0
    saved = min(replay.cost for _, replay in rules) - nics.listed.replay.cost
    return saved if nics.is_plan or saved >= TENTH * nics.gain else 0.0


def limits_of_lists(nics: NicChoice) -> str:
    """What a list of NICs cannot do that the plan asks for; empty where the plan is made for a list and follows it."""
    limits = [] if nics.equal else ["a list can exclude a NIC, not weigh it"]
    limits += [] if nics.steady else ["no list changes from phase to phase"]
    if not limits and not nics.is_plan:
        return f"a list leaves the rest to the engine's rule ({nics.rule.value})"
    return " and ".join(limits)


def with_nics(verdict: Verdict, nics: NicChoice | None, saved: float, prefill: float) -> Verdict:
    """The verdict with what other NICs than the engine's are worth, so that nobody takes it for worth of pacing.

    ``saved``: what a list of NICs saves; ``prefill``: its price, both [GPU·s].
    """
    if nics is None:
        return verdict
    paced = verdict.kind in {VerdictKind.CONTENDED, VerdictKind.UNCERTAIN}
    share = share_of_prefill(nics.gain, prefill)
    text = f"{verdict.text} {'Of this' if paced else 'But'} the choice of NICs is worth up to {nics.gain:.3g} GPU·s "
    text += f"({share:.1%} of the prefill); "
    text += f"a list of NICs saves {saved:.3g}." if saved else "no list of NICs that was tried saves a tenth of it."
    return replace(verdict, text=text)


def list_text(lists: Mapping[int, tuple[int, ...]]) -> str:
    """Which NICs each GPU is given.

    >>> list_text({0: (0,), 1: (0,)}), list_text({0: (0, 1), 1: (0, 1), 2: (2,)})
    ('nic0', 'gpu0-1: nic0, nic1; gpu2: nic2')
    """
    return _grouped({gpu: ", ".join(f"nic{nic}" for nic in nics) for gpu, nics in lists.items()})


def shares_text(shares: Shares) -> str:
    """Which part of its sends each GPU puts on which NIC.

    >>> shares_text({0: {0: 0.7, 1: 0.1, 2: 0.1, 3: 0.1}, 1: {1: 1.0}})
    'gpu0: 70 % nic0, 10 % each nic1-3; gpu1: 100 % nic1'
    """
    return _grouped({gpu: _weights(nics) for gpu, nics in shares.items()})


def _weights(nics: Mapping[int, float]) -> str:
    alike: dict[str, list[int]] = {}
    for nic, share in nics.items():
        alike.setdefault(f"{share:.0%}".replace("%", " %"), []).append(nic)
    return ", ".join(f"{share} {'each ' * (len(which) > 1)}nic{format_ranges(which)}" for share, which in alike.items())


def _grouped(texts: Mapping[int, str]) -> str:
    alike: dict[str, list[int]] = {}
    for gpu, text in sorted(texts.items()):
        alike.setdefault(text, []).append(gpu)
    if len(alike) == 1:
        return next(iter(alike))
    return "; ".join(f"gpu{format_ranges(gpus)}: {text}" for text, gpus in alike.items())
