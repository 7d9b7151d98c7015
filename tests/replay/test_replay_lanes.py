"""Several lanes, requests, arrivals and a decode lane at once: what holds for every policy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.schedule import Piece, Schedule
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import SENDS_FIRST, SIMPLE, plan, simulate
from pdmodel.timeline.clock import phase_times, run_clock
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

PORTS = tuple(Port(name, PortKind.ABSTRACT, 10.0, guard) for name, guard in (("e", 0.5), ("f", 0.0), ("g", 1.0)))
NAMES = [port.name for port in PORTS]


@st.composite
def lanes_of(draw, name):
    phases = []
    for request in range(draw(st.integers(1, 2))):
        arrival = draw(st.sampled_from([0.0, 0.0, 1.3, 6.0]))
        for step in range(draw(st.integers(1, 3))):
            duration = draw(st.sampled_from([0.0, 0.3, 1.0]))
            used = draw(st.sets(st.sampled_from(NAMES))) if duration else set()
            sizes = {port: duration * draw(st.sampled_from([3.0, 8.0, 9.0])) for port in sorted(used)}
            kind = PhaseKind.COLLECTIVE if sizes else PhaseKind.COMPUTE
            phases.append(
                Phase(f"{request}/{step}", kind, duration, sizes, request=f"{name}{request}", not_before_s=arrival)
            )
    return Lane(name, tuple(phases))


@st.composite
def flows_of(draw, lane, kinds=("send", "load", "writeback")):
    found = []
    spans: dict[str, list[int]] = {}
    for i, phase in enumerate(lane.phases):
        spans.setdefault(phase.request, []).append(i)
    for k in range(draw(st.integers(1, 3))):
        request = draw(st.sampled_from(sorted(spans)))
        first, last = spans[request][0], spans[request][-1]
        links = draw(st.sampled_from([(), ("nic0",), ("nic0", "nic1")]))
        device = draw(st.sampled_from(["", "h2d"]))
        count = draw(st.integers(1, 2))
        routes = []
        for way in range(count):
            used = sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))
            ports = {port: draw(st.sampled_from([1.0, 2.0, 0.05])) for port in used}
            routes.append(Route(f"{k}/{way}", ports, dict.fromkeys(used, links) if links else {}, device, bool(device)))
        split = draw(st.sampled_from([(1.0,)] if count == 1 else [(0.5, 0.5), (1.0, 0.0), (0.25, 0.75)]))
        size = st.sampled_from([0.5, 4.0, 11.0])
        kind = FlowKind(draw(st.sampled_from(kinds)))
        if kind is FlowKind.LOAD:
            steps = sorted(draw(st.sets(st.integers(first, last), min_size=1)))
            due = tuple((step, draw(size)) for step in steps)
            # From its request's first phase on, or while earlier requests run: a prefetch.
            release = ((draw(st.sampled_from([first, 0])), sum(part for _, part in due)),)
        else:
            steps = sorted(draw(st.sets(st.integers(first, last + 1), min_size=1)))
            release = tuple((step, draw(size)) for step in steps)
            due = ((last + 1, sum(part for _, part in release)),) if kind is FlowKind.SEND else ()
        source = draw(st.sampled_from(["gpu0", "gpu1"]))
        found.append(Flow(f"{lane.name}{k}", kind, request, lane.name, source, "D", tuple(routes), release, due, split))
    return found


@st.composite
def records(draw):
    lanes = tuple(draw(lanes_of(name)) for name in "ab"[: draw(st.integers(1, 2))])
    flows = tuple(flow for lane in lanes for flow in draw(flows_of(lane)))
    decode = tuple([DecodeLane("d", 0.01, {"g": 6.0}, {"g": 9.0})] * draw(st.integers(0, 1)))
    timeline = Timeline(PORTS, lanes, decode, run_clock(PORTS, lanes, decode))
    requests = {phase.request for lane in lanes for phase in lane.phases}
    prices = Prices({lane.name: 2.0 for lane in lanes}, dict.fromkeys(requests, 0.5), {one.name: 1.0 for one in decode})
    return AllocationData.build(timeline, flows, prices)


def some_schedule(data: AllocationData, rates: list[float]) -> Schedule:
    """A schedule that nobody optimised: one rate for all flows of a lane, in every slot of it, for half a second."""
    pieces = []
    for k, lane in enumerate(data.lanes):
        mine = np.where(data.flow_lane[data.route_flow] == k, rates[k], 0.0)
        pieces += [Piece(k, slot, 0.1, 0.5, mine) for slot in range(2 * len(lane.phases) + 1)]
    zero = tuple(np.zeros(len(lane.phases)) for lane in data.lanes)
    return Schedule(tuple(pieces), zero, zero)


@settings(max_examples=200)
@given(records(), st.sampled_from(range(len(SIMPLE) + 2)), st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 0.1]))
def test_bytes_add_up_order_is_kept_and_ports_hold(data, choice, kv_weight, kappa) -> None:
    policy = (*SIMPLE, SENDS_FIRST, plan(some_schedule(data, [0.7, 4.0])))[choice]
    replay = simulate(data, policy, kv_weight=kv_weight, interference=kappa, record=True)
    moved, crossed = np.zeros(len(data.flows)), np.zeros(len(PORTS))
    counted_until = counting_ends(data, replay)
    for segment in replay.segments:
        length = segment.end_s - segment.start_s
        moved += segment.flow_rate * length
        # Of write-backs kv_bytes counts what crossed until the last send was delivered.
        share = np.where(is_writeback(data) & (segment.start_s >= counted_until - 1e-9), 0.0, 1.0)
        assert np.all(segment.critical + segment.kv <= data.capacity * (1 + 1e-9))
        crossed += share * segment.flow_rate * length @ flow_crossing(data) if one_way(data) else segment.kv * length
    assert moved == pytest.approx(data.volume_bytes, rel=1e-8)
    if one_way(data) or not is_writeback(data).any():
        assert crossed == pytest.approx(replay.kv_bytes, rel=1e-8)
    assert np.all(np.isfinite(replay.flow_finish_s))
    check_ends(data, replay)
    for k, (lane, outcome) in enumerate(zip(data.lanes, replay.lanes, strict=True)):
        earliest = np.array([phase.not_before_s for phase in lane.phases])
        assert np.all(outcome.start_s >= earliest - 1e-9)
        assert np.all(outcome.start_s[1:] >= outcome.end_s[:-1] - 1e-9)
        took = outcome.end_s - outcome.start_s
        assert took == pytest.approx(data.duration_s[k] + outcome.loss_s + outcome.hold_s, abs=1e-9)
    check_gates(data, replay)


def is_writeback(data: AllocationData) -> np.ndarray:
    return np.array([flow.kind is FlowKind.WRITEBACK for flow in data.flows])


def one_way(data: AllocationData) -> bool:
    return all(len(flow.routes) == 1 for flow in data.flows)


def flow_crossing(data: AllocationData) -> np.ndarray:
    return data.consumption[[int(np.flatnonzero(data.route_flow == f)[0]) for f in range(len(data.flows))]]


def counting_ends(data: AllocationData, replay) -> float:
    sends = [f for f, flow in enumerate(data.flows) if flow.kind is FlowKind.SEND]
    return float(replay.flow_finish_s[sends].max()) if sends else replay.end_s


def check_ends(data: AllocationData, replay) -> None:
    """``end_s`` waits for lanes, sends and loads, ``writeback_end_s`` for write-backs."""
    back = is_writeback(data)
    ends = [lane.end_s[-1] for lane in replay.lanes]
    assert replay.end_s == pytest.approx(max([*ends, *replay.flow_finish_s[~back]]), abs=1e-9)
    if back.any():
        assert replay.writeback_end_s == replay.flow_finish_s[back].max()
    else:
        assert replay.writeback_end_s is None


def check_gates(data: AllocationData, replay) -> None:
    """No phase starts before its loads are there, none of a flow's bytes leave before they exist."""
    for f, flow in enumerate(data.flows):
        lane = replay.lanes[int(data.flow_lane[f])]
        count = len(lane.end_s)
        first = min(i for i, p in enumerate(data.lanes[int(data.flow_lane[f])].phases) if p.request == flow.request)
        arrival = data.lanes[int(data.flow_lane[f])].phases[first].not_before_s

        def moved_by(time: float, f: int = f) -> float:
            return sum(
                s.flow_rate[f] * max(min(s.end_s, time) - s.start_s, 0.0) for s in replay.segments if s.start_s < time
            )

        tolerance = 1e-6 * flow.volume_bytes
        assert moved_by(arrival) <= tolerance
        for k in range(count + 1):
            before = max(float(lane.end_s[k - 1]) if k else 0.0, arrival)
            released = sum(size for step, size in flow.release if step < k)
            if k:
                assert moved_by(min(before, float(lane.end_s[k - 1]))) <= released + tolerance
            if flow.kind is FlowKind.LOAD and k < count:
                assert moved_by(float(lane.start_s[k])) >= sum(s for step, s in flow.due if step <= k) - tolerance


@given(records())
def test_without_kv_the_replay_is_the_clock(data) -> None:
    replay = simulate(data, "no_kv")
    assert replay.cost == pytest.approx(0.0, abs=1e-9)
    for k, (lane, outcome) in enumerate(zip(data.lanes, replay.lanes, strict=True)):
        start, end, _ = phase_times(data.clock, k, [phase.not_before_s for phase in lane.phases])
        assert outcome.start_s == pytest.approx(start, abs=1e-9)
        assert outcome.end_s == pytest.approx(end, abs=1e-9)


@given(records())
def test_delays_are_those_of_the_clocks(data) -> None:
    # Summed delays agree with the difference of clocks, up to what such a difference is good for.
    for policy in SIMPLE:
        replay = simulate(data, policy)
        for q, request in enumerate(data.requests):
            earliest = [phase.not_before_s for phase in data.lanes[request.lane].phases]
            due = phase_times(data.clock, request.lane, earliest)[1][request.last_phase]
            ended = replay.lanes[request.lane].end_s[request.last_phase]
            assert replay.user_delay_s[q] == pytest.approx(ended + replay.decode_stall_s[q] - due, abs=1e-9)
            assert replay.ttft_s[q] >= replay.prefill_s[q] + replay.decode_stall_s[q] - 1e-9


@st.composite
def prefills_and_a_decode_lane(draw, kinds=("send", "load"), demands=(4.0, 6.0, 9.0)):
    """One lane and one request; the decode lane shares port g with KV, and no port with the lane."""
    drawn = draw(lanes_of("a"))
    phases = []
    for phase in drawn.phases:
        sizes = {port: size for port, size in phase.wire_bytes.items() if port != "g"}
        kind = PhaseKind.COLLECTIVE if sizes else PhaseKind.COMPUTE
        phases.append(Phase(phase.id, kind, phase.duration_s, sizes, request="a0"))
    lane = Lane("a", tuple(phases))
    decode = (DecodeLane("d", 0.01, {"g": draw(st.sampled_from(demands))}, {"g": 9.5}),)
    timeline = Timeline(PORTS, (lane,), decode, run_clock(PORTS, (lane,), decode))
    price = {name: draw(st.sampled_from([0.1, 1.0, 5.0])) for name in ("a", "a0", "d")}
    prices = Prices({"a": price["a"]}, {"a0": price["a0"]}, {"d": price["d"]})
    return AllocationData.build(timeline, tuple(draw(flows_of(lane, kinds))), prices)


@settings(max_examples=50)
@given(prefills_and_a_decode_lane())
def test_the_elastic_program_bounds_replays_with_a_decode_lane(data) -> None:
    solution = solve_elastic(data)
    tolerance = 1e-6 * max(solution.objective, 1e-2)
    for policy in SIMPLE:
        assert simulate(data, policy).cost >= solution.objective - tolerance, policy.name
    assert solution.schedule is not None
    assert simulate(data, plan(solution.schedule)).cost == pytest.approx(solution.objective, abs=tolerance)


def test_gaps_of_an_abstract_clock_are_arrivals() -> None:
    # The second lane starts at 2 s, and its second phase after an idle second; replay without KV keeps to that.
    def phase(start: float, end: float) -> dict:
        return {"start": start, "end": end, "duration": end - start, "bytes": {}}

    lanes = [{"price": 1.0, "phases": [phase(0, 1)]}, {"price": 1.0, "phases": [phase(2, 3), phase(4, 5)]}]
    data = AllocationData.from_dict({"ports": {"e": {"capacity": 1.0}}, "lanes": lanes, "flows": []})
    replay = simulate(data, "no_kv")
    assert replay.lanes[1].start_s == pytest.approx([2.0, 4.0])
    assert replay.ttft_s == pytest.approx([1.0, 3.0])


def test_dust_of_two_lanes_is_not_mixed_up() -> None:
    """Rates that a solver leaves beside much greater ones round to nothing on either lane, but are of its own flows."""
    route = Route("w", {NAMES[0]: 1.0}, {})
    lanes = tuple(Lane(k, (Phase(f"{k}/0", PhaseKind.COMPUTE, 2.0, {}, request=k),)) for k in "ab")
    flows = [Flow(k, FlowKind.SEND, k, k, k, "D", (route,), ((0, 2.0),), ((1, 2.0),), (1.0,)) for k in "ab"]
    timeline = Timeline(PORTS, lanes, (), run_clock(PORTS, lanes, ()))
    data = AllocationData.build(timeline, flows, Prices(dict.fromkeys("ab", 1.0), dict.fromkeys("ab", 1.0), {}))
    rates = [(0, 1, 0.5, [2.0, 0.0]), (0, 2, 1.0, [1e-14, 0.0]), (1, 1, 1.0, [0.0, 1e-14]), (1, 2, 1.0, [0.0, 2.0])]
    pieces = tuple(Piece(lane, slot, 0.0, length, np.array(rate)) for lane, slot, length, rate in rates)
    zero = (np.zeros(1), np.zeros(1))
    replay = simulate(data, plan(Schedule(pieces, zero, zero)), record=True)
    moved = sum(segment.flow_rate * (segment.end_s - segment.start_s) for segment in replay.segments)
    assert moved == pytest.approx([2.0, 2.0])
