"""Every policy on records small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.schedule import Piece, Schedule
from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import SIMPLE, band, best_cap, cap, plan, policy_named, simulate
from pdmodel.replay.activities import work_scale
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices


def compute(duration: float, request: str = "r", not_before: float = 0.0) -> Phase:
    return Phase("c", PhaseKind.COMPUTE, duration, request=request, not_before_s=not_before)


def collective(duration: float, request: str = "r", **sizes: float) -> Phase:
    return Phase("x", PhaseKind.COLLECTIVE, duration, sizes, request=request)


def route(links: tuple[str, ...] = (), device: str = "", fifo: bool = False, **ports: float) -> Route:
    return Route("route", ports, dict.fromkeys(ports, links) if links else {}, device, fifo)


def send(name: str, way: Route, *release: tuple[int, float], lane: str = "a", request: str = "r") -> Flow:
    total = sum(size for _, size in release)
    return Flow(name, FlowKind.SEND, request, lane, name, "D", (way,), release, ((99, total),))


def load(name: str, way: Route, *due: tuple[int, float], at: int = 0, lane: str = "a", request: str = "r") -> Flow:
    total = sum(size for _, size in due)
    return Flow(name, FlowKind.LOAD, request, lane, "host", name, (way,), ((at, total),), due)


def record(lanes, flows, *, decode=(), lane_price=2.0, user_price=0.5, decode_price=3.0, **capacity) -> AllocationData:
    ports = tuple(Port(name, PortKind.ABSTRACT, size) for name, size in (capacity or {"e": 10.0}).items())
    lanes = tuple(lanes)
    requests = {phase.request for lane in lanes for phase in lane.phases}
    timeline = Timeline(ports, lanes, tuple(decode), run_clock(ports, lanes, decode))
    prices = Prices(
        {lane.name: lane_price for lane in lanes},
        dict.fromkeys(requests, user_price),
        {lane.name: decode_price for lane in decode},
    )
    return AllocationData.build(timeline, tuple(flows), prices)


def small() -> AllocationData:
    """Compute 1 s, a collective that fills the port for 1 s, compute 1 s; 8 bytes are sent from the first second on."""
    lane = Lane("a", (compute(1.0), collective(1.0, e=10.0), compute(1.0)))
    return record([lane], [send("f", route(e=1.0), (1, 8.0))])


# ---- simple policies ----
def test_unmanaged_halves_the_collective() -> None:
    # From 1 s on both get 5 byte/s: KV is through at 2.6 s, when the collective has 0.2 s of work left: it ends at 2.8.
    replay = simulate(small(), "unmanaged")
    assert replay.flow_finish_s == pytest.approx([2.6])
    assert replay.lanes[0].end_s == pytest.approx([1.0, 2.8, 3.8])
    assert replay.prefill_slowdown_s == pytest.approx([0.8])
    assert replay.decode_stall_s == pytest.approx([0.0])
    # 2 GPU and 0.5 for the user who waits 0.8 s longer.
    assert replay.cost == pytest.approx((2.0 + 0.5) * 0.8)
    assert (replay.prefill_s, replay.ttft_s) == (pytest.approx([3.8]), pytest.approx([3.8]))
    assert replay.kv_bytes == pytest.approx([8.0])
    # What the collective had carried when KV was through: 0.8 of its 10 bytes.
    assert replay.critical_bytes == pytest.approx([8.0])


def test_strict_waits_for_the_collective() -> None:
    # KV moves from 2.0 to 2.8 s, in the second compute phase: nobody waits.
    replay = simulate(small(), "strict")
    assert replay.flow_finish_s == pytest.approx([2.8])
    assert replay.cost == pytest.approx(0.0, abs=1e-12)


def test_after_prefill_sends_in_the_tail() -> None:
    # From 3.0 to 3.8 s: 0.8 s of stall, of which only the user knows.
    replay = simulate(small(), "after_prefill")
    assert replay.decode_stall_s == pytest.approx([0.8])
    assert replay.ttft_s == pytest.approx([3.8])
    assert replay.cost == pytest.approx(0.5 * 0.8)


def test_cap_trades_slowdown_for_stall() -> None:
    # KV at 2.5 byte/s leaves the collective 7.5: it takes 4/3 s. The prefill ends at 10/3; 8 bytes take 3.2 s, to 4.2.
    replay = simulate(small(), cap("e", 2.5))
    assert replay.prefill_slowdown_s == pytest.approx([1 / 3])
    assert replay.decode_stall_s == pytest.approx([4.2 - 10 / 3])
    assert replay.cost == pytest.approx(2.0 / 3 + 0.5 * (4.2 - 3.0))


def test_references() -> None:
    no_kv, alone = simulate(small(), "no_kv"), simulate(small(), "bytes_over_bandwidth")
    assert (no_kv.cost, no_kv.lanes[0].end_s[-1]) == (0.0, 3.0)
    assert np.isnan(no_kv.flow_finish_s[0])
    # 8 bytes over 10 byte/s from 1 s on, whatever else runs.
    assert alone.flow_finish_s == pytest.approx([1.8])
    assert alone.lanes[0].end_s == pytest.approx([1.0, 2.0, 3.0])


def test_bytes_over_bandwidth_is_the_narrowest_port_of_each_route() -> None:
    # 3 bytes on the first route at min(10, 4/2) = 2 byte/s, 9 on the second at 9: max(1.5, 1).
    flow = Flow(
        "f", FlowKind.SEND, "r", "a", "s", "D",
        (route(e=1.0, f=2.0), route(g=1.0)), ((0, 12.0),), ((1, 12.0),), (0.25, 0.75),
    )  # fmt: skip
    data = record([Lane("a", (compute(5.0),))], [flow], e=10.0, f=4.0, g=9.0)
    assert simulate(data, "bytes_over_bandwidth").flow_finish_s == pytest.approx([1.5])


def test_bytes_over_bandwidth_does_not_count_pieces() -> None:
    data = record(
        [Lane("a", (compute(5.0),))], [send("f", route(e=1.0, threads=100.0), (0, 20.0))], e=10.0, threads=50.0
    )
    ports = tuple(replace(port, kind=PortKind.POSTING) if port.name == "threads" else port for port in data.ports)
    counted = replace(data, ports=ports)
    assert simulate(counted, "bytes_over_bandwidth").flow_finish_s == pytest.approx([2.0])
    assert simulate(counted, "unmanaged").flow_finish_s == pytest.approx([40.0])


def test_residual_edf_loads_in_order_of_due() -> None:
    # Two loads of 12, due at phases 1 and 2 (1 s and 2 s without KV). Earliest first: the first is there at 1.2, the
    # second at 2.4, phases start at 1.2 and 2.4: 0.2 s each. Shared alike both arrive at 2.4: 1.4 s, then none.
    lane = Lane("a", (compute(1.0),) * 3)
    data = record([lane], [load("p", route(e=1.0), (1, 12.0)), load("q", route(e=1.0), (2, 12.0))])
    edf, strict = simulate(data, "residual_edf"), simulate(data, "strict")
    assert edf.lanes[0].wait_s == pytest.approx([0.0, 0.2, 0.2])
    assert strict.lanes[0].wait_s == pytest.approx([0.0, 1.4, 0.0])
    assert strict.load_stall_s == pytest.approx([1.4])
    assert strict.cost == pytest.approx(2.5 * 1.4)


def test_a_later_due_that_comes_first_gives_way() -> None:
    # A send of 20 (due at the end, 4 s) is under way when 5 bytes for phase 2 (due at 2 s) are released at 1 s: with
    # EDF they are there at 1.5 s, and the send, which had moved 10, ends at 2.5 s.
    lane = Lane("a", (compute(1.0), compute(1.0), compute(2.0)))
    data = record([lane], [send("s", route(e=1.0), (0, 20.0)), load("p", route(e=1.0), (2, 5.0), at=1)])
    assert simulate(data, "residual_edf").flow_finish_s == pytest.approx([2.5, 1.5])
    assert simulate(data, "strict").flow_finish_s == pytest.approx([2.5, 2.0])


def test_pieces_of_a_queue_go_first_in_first_out() -> None:
    # Two requests' sends between the same ranks are one queue: 10 bytes of the first, then 10 of the second.
    lane = Lane("a", (compute(1.0, "r"), compute(1.0, "s")))
    flows = [send("x", route(e=1.0), (0, 10.0)), send("y", route(e=1.0), (0, 10.0), request="s")]
    same = [Flow(f.name, f.kind, f.request, f.lane, "gpu0", "D", f.routes, f.release, f.due) for f in flows]
    assert simulate(record([lane], same), "unmanaged").flow_finish_s == pytest.approx([1.0, 2.0])
    assert simulate(record([lane], flows), "unmanaged").flow_finish_s == pytest.approx([2.0, 2.0])


def test_copy_engine_serves_in_order() -> None:
    # One engine, two destinations: one activity, in order of submission, and one share beside another queue.
    lane = Lane("a", (compute(1.0),))
    first, second = (send(n, route(device="h2d", fifo=True, e=1.0), (0, 10.0)) for n in "xy")
    assert simulate(record([lane], [first, second]), "unmanaged").flow_finish_s == pytest.approx([1.0, 2.0])
    third = send("z", route(e=1.0), (0, 10.0))
    # z has half of the port until its 10 bytes are through at 2 s; the engine's 20 take 3 s in all.
    finish = simulate(record([lane], [first, second, third]), "unmanaged").flow_finish_s
    assert finish == pytest.approx([2.0, 3.0, 2.0])


def test_split_routes_and_gates_wait_for_every_part() -> None:
    # 12 bytes for phase 1 over two routes of 10 and 2 byte/s, half each: the slow half takes 3 s.
    flow = Flow(
        "p", FlowKind.LOAD, "r", "a", "host", "p", (route(e=1.0), route(f=1.0)),
        ((0, 12.0),), ((1, 12.0),), (0.5, 0.5),
    )  # fmt: skip
    data = record([Lane("a", (compute(1.0), compute(1.0)))], [flow], e=10.0, f=2.0)
    assert simulate(data, "strict").lanes[0].start_s == pytest.approx([0.0, 3.0])


# ---- sharing ----
def test_one_input_link_counts_once() -> None:
    # Four queues behind one NIC: half of the port together. As four inputs of their own they leave the ring a fifth.
    lane = Lane("a", (collective(1.0, e=10.0),))
    behind = [send(f"s{k}", route(("nic0",), e=1.0), (0, 100.0)) for k in range(4)]
    apart = [send(f"s{k}", route((f"nic{k}",), e=1.0), (0, 100.0)) for k in range(4)]
    assert simulate(record([lane], behind), "unmanaged").lanes[0].end_s == pytest.approx([2.0])
    assert simulate(record([lane], apart), "unmanaged").lanes[0].end_s == pytest.approx([5.0])


def test_kv_weight_and_interference() -> None:
    lane = Lane("a", (collective(1.0, e=10.0),))
    data = record([lane], [send("s", route(e=1.0), (0, 100.0))])
    # Weight 2: KV gets two thirds of the port.
    assert simulate(data, "unmanaged", kv_weight=2.0).lanes[0].end_s == pytest.approx([3.0])
    # Half of the port is free: x <= 1 - 0.1 * 5/10, under strict priority too.
    lane = Lane("a", (collective(1.0, e=5.0),))
    data = record([lane], [send("s", route(e=1.0), (0, 100.0))])
    for policy in ("unmanaged", "strict"):
        assert simulate(data, policy, interference=0.1).lanes[0].end_s == pytest.approx([1 / 0.95])
        assert simulate(data, policy).lanes[0].end_s == pytest.approx([1.0])


def test_decode_lane_loses_what_kv_takes() -> None:
    # The step wants 6 of 10, 20 bytes arrive at 5 byte/s: x = 5/6 for 4 s. Strict: 4 byte/s for 5 s, and no loss.
    decode = DecodeLane("d", 0.01, {"e": 6.0}, {"e": 10.0})
    data = record([Lane("a", (compute(1.0),))], [send("s", route(e=1.0), (0, 20.0))], decode=[decode])
    replay = simulate(data, "unmanaged")
    assert replay.decode_loss_s == pytest.approx([4 / 6])
    assert replay.cost == pytest.approx(3.0 * 4 / 6 + 0.5 * 3.0)
    strict = simulate(data, "strict")
    assert strict.decode_loss_s == pytest.approx([0.0])
    assert strict.decode_stall_s == pytest.approx([4.0])
    # Until the last byte was delivered, 5 s, the steps had moved 6 byte/s.
    assert strict.critical_bytes == pytest.approx([30.0])


def test_decode_lane_is_not_charged_for_the_prefill_beside_it() -> None:
    # The step wants 6 and the collective 10 of 10: 5 each for 2 s. That is so without KV too: nothing to pay.
    decode = DecodeLane("d", 0.01, {"e": 6.0}, {"e": 10.0})
    lane = Lane("a", (collective(1.0, e=10.0), compute(2.0)))
    replay = simulate(record([lane], [], decode=[decode]), "no_kv")
    assert replay.lanes[0].end_s == pytest.approx([2.0, 4.0])
    assert replay.decode_loss_s == pytest.approx([0.0])
    # 10 bytes released after the collective: 5 byte/s for 2 s, in which x = 5/6.
    replay = simulate(record([lane], [send("s", route(e=1.0), (1, 10.0))], decode=[decode]), "unmanaged")
    assert replay.decode_loss_s == pytest.approx([1 / 3])
    assert replay.cost == pytest.approx(3.0 / 3)


def test_starved_kv_is_said_and_costs_without_end() -> None:
    decode = DecodeLane("d", 0.01, {"e": 10.0}, {"e": 10.0})
    data = record([Lane("a", (compute(1.0),))], [send("s", route(e=1.0), (0, 20.0))], decode=[decode])
    replay = simulate(data, "strict")
    assert replay.cost == np.inf
    assert replay.ttft_s == pytest.approx([np.inf])
    assert any("starves" in line for line in replay.diagnostics)
    gated = record([Lane("a", (compute(1.0),))], [load("p", route(e=1.0), (0, 1.0))], decode=[decode])
    assert simulate(gated, "strict").prefill_s == pytest.approx([np.inf])


# ---- several requests, several lanes ----
def test_second_request_arrives_later() -> None:
    # B arrives at 4 s, two after A ended; its load of 5 for its first phase starts then: phase 1 starts at 4.5 s.
    lane = Lane("a", (compute(2.0, "A"), compute(1.0, "B", 4.0)))
    flows = [load("p", route(e=1.0), (1, 5.0), at=1, request="B"), send("s", route(e=1.0), (2, 5.0), request="B")]
    replay = simulate(record([lane], flows), "unmanaged")
    assert replay.lanes[0].start_s == pytest.approx([0.0, 4.5])
    assert replay.lanes[0].wait_s == pytest.approx([0.0, 0.5])
    # From its arrival: 0.5 s until it starts, 1 s of prefill, 0.5 s for 5 bytes.
    assert replay.ttft_s == pytest.approx([2.0, 2.0])
    assert replay.prefill_s == pytest.approx([2.0, 1.0])
    assert replay.user_delay_s == pytest.approx([0.0, 1.0])
    assert replay.cost == pytest.approx(2.0 * 0.5 + 0.5 * 1.0)


def test_slack_between_requests_absorbs_delay() -> None:
    # A's collective loses 1 s to KV; B arrives 0.4 s after A would have ended, and starts 0.6 s late.
    lane = Lane("a", (collective(1.0, "A", e=10.0), compute(1.0, "B", 1.4)))
    replay = simulate(record([lane], [send("s", route(e=1.0), (0, 10.0), request="A")]), "unmanaged")
    assert replay.lanes[0].end_s == pytest.approx([2.0, 3.0])
    assert replay.user_delay_s == pytest.approx([1.0, 0.6])
    # The lane lost 1 s, however much of it B noticed.
    assert replay.cost == pytest.approx(2.0 * 1.0 + 0.5 * 1.6)


def test_lanes_that_collide_without_kv_are_not_charged_for_it() -> None:
    # Two collectives of 1 s that want 8 of 10 each: 1.6 s together without KV, and nobody pays for that.
    lanes = [Lane(name, (collective(1.0, f"r{name}", e=8.0),)) for name in "ab"]
    flows = [send("s", route(e=1.0), (0, 10 / 3), lane="a", request="ra")]
    data = record(lanes, flows)
    assert simulate(data, "no_kv").cost == pytest.approx(0.0, abs=1e-12)
    assert simulate(data, "no_kv").lanes[0].end_s == pytest.approx([1.6])
    # With KV three share 10: x = 5/12 for 1 s, then 7/12 of the work at 5/8: it ends at 1 + 14/15, 1/3 s late.
    replay = simulate(data, "unmanaged")
    assert replay.lanes[0].end_s == pytest.approx([1 + 14 / 15])
    assert replay.prefill_slowdown_s == pytest.approx([1 / 3, 1 / 3])
    assert replay.cost == pytest.approx(2 * 2.5 / 3)


def test_loads_of_one_lane_do_not_gate_another() -> None:
    lanes = [Lane("a", (compute(1.0, "ra"), compute(1.0, "ra"))), Lane("b", (compute(1.0, "rb"), compute(1.0, "rb")))]
    replay = simulate(record(lanes, [load("p", route(e=1.0), (1, 20.0), request="ra")]), "unmanaged")
    assert replay.lanes[0].start_s == pytest.approx([0.0, 2.0])
    assert replay.lanes[1].start_s == pytest.approx([0.0, 1.0])


# ---- schedules ----
def schedule(phases: int, *pieces: tuple[int, float, float, float], hold=(), wait=()) -> Schedule:
    """Pieces as (slot, offset, duration, rate) of one route; holds as {phase: seconds}."""
    held, waited = np.zeros(phases), np.zeros(phases)
    for phase, pause in dict(hold).items():
        held[phase] = pause
    for phase, pause in dict(wait).items():
        waited[phase] = pause
    return Schedule(tuple(Piece(0, s, o, d, np.array([r])) for s, o, d, r in pieces), (held,), (waited,))


def test_plan_serves_planned_rates_first() -> None:
    # 2 byte/s during the collective leave it 8: it takes 1.25 s, 2.5 bytes move; the other 5.5 in the next second.
    replay = simulate(small(), plan(schedule(3, (3, 0.0, 1.25, 2.0), (5, 0.0, 1.0, 5.5))))
    assert replay.lanes[0].end_s == pytest.approx([1.0, 2.25, 3.25])
    assert replay.flow_finish_s == pytest.approx([3.25])
    assert replay.cost == pytest.approx(2.5 * 0.25)


def test_what_is_not_planned_leaves_last() -> None:
    # 2 byte/s for 0.5 s, then 5 byte/s for 1 s: 2 of 8 bytes are in no piece. They get nothing while the collective is
    # there (it takes all that is left), so it ends at 1 + 0.5 + 0.6; then 5 byte/s beside the plan: through at 2.5.
    replay = simulate(small(), plan(schedule(3, (3, 0.0, 0.5, 2.0), (5, 0.0, 1.0, 5.0))), record=True)
    assert replay.lanes[0].end_s == pytest.approx([1.0, 2.1, 3.1])
    assert replay.flow_finish_s == pytest.approx([3.1])
    busy = [segment for segment in replay.segments if segment.start_s == pytest.approx(2.1)]
    assert busy[0].flow_rate == pytest.approx([10.0])
    assert busy[0].end_s == pytest.approx(2.5)


def test_a_slot_that_is_too_short_hands_its_bytes_on() -> None:
    # Planned for 2 s in a phase of 1 s: 4 of the 8 bytes are left over and leave with all that the tail has.
    replay = simulate(small(), plan(schedule(3, (5, 0.0, 2.0, 4.0))))
    assert replay.decode_stall_s == pytest.approx([0.4])
    assert replay.lanes[0].end_s == pytest.approx([1.0, 2.0, 3.0])


def test_holds_pause_the_lane() -> None:
    # 0.3 s after the collective's work; KV goes on in the pause.
    replay = simulate(small(), plan(schedule(3, (3, 1.0, 0.3, 10.0), (5, 0.0, 1.0, 5.0), hold={1: 0.3})))
    assert replay.lanes[0].end_s == pytest.approx([1.0, 2.3, 3.3])
    assert replay.lanes[0].hold_s == pytest.approx([0.0, 0.3, 0.0])
    assert replay.prefill_slowdown_s == pytest.approx([0.3])
    assert replay.cost == pytest.approx(2.5 * 0.3)


def test_wait_holds_follow_the_gate() -> None:
    # The load of 5 is there 0.5 s into the wait; the phase starts 0.2 s later.
    data = record([Lane("a", (compute(1.0), compute(1.0)))], [load("p", route(e=1.0), (1, 5.0), at=1)])
    replay = simulate(data, plan(schedule(2, (2, 0.0, 0.5, 10.0), wait={1: 0.2})))
    assert replay.lanes[0].start_s == pytest.approx([0.0, 1.7])
    assert replay.load_stall_s == pytest.approx([0.7])


def test_bytes_planned_after_their_gate_are_fetched() -> None:
    # 5 bytes gate phase 1, but the schedule moves them during phase 1: the lane waits, so they leave at once.
    data = record([Lane("a", (compute(1.0), compute(1.0)))], [load("p", route(e=1.0), (1, 5.0))])
    replay = simulate(data, plan(schedule(2, (3, 0.0, 1.0, 5.0))))
    assert replay.lanes[0].start_s == pytest.approx([0.0, 1.5])


def test_plan_lets_late_requests_in() -> None:
    # B arrives 1 s after A ended; its two loads of 5 come with it. Nothing is planned for them: 1 s for both, then 1 s.
    lane = Lane("a", (compute(1.0, "A"), compute(1.0, "B", 2.0)))
    flows = [load(n, route(e=1.0), (1, 5.0), at=1, request="B") for n in "pq"]
    replay = simulate(record([lane], flows), plan(schedule(2)))
    assert replay.lanes[0].start_s == pytest.approx([0.0, 3.0])


def test_plans_of_two_lanes_share_what_both_want() -> None:
    # Both plans want all of the port in the first second: 5 byte/s each, and the rest leaves as backlog.
    lanes = [Lane(name, (compute(1.0, f"r{name}"),)) for name in "ab"]
    flows = [send(f"s{n}", route(e=1.0), (0, 10.0), lane=n, request=f"r{n}") for n in "ab"]
    pieces = (Piece(0, 1, 0.0, 1.0, np.array([10.0, 0.0])), Piece(1, 1, 0.0, 1.0, np.array([0.0, 10.0])))
    both = Schedule(pieces, (np.zeros(1), np.zeros(1)), (np.zeros(1), np.zeros(1)))
    assert simulate(record(lanes, flows), plan(both)).flow_finish_s == pytest.approx([2.0, 2.0])


# ---- bands, caps, jitter, input ----
def test_band_spans_weights_and_interference() -> None:
    lane = Lane("a", (collective(1.0, e=10.0),))
    data = record([lane], [send("s", route(e=1.0), (0, 100.0))], user_price=0.0)
    found = band(data)
    assert len(found.points) == 6
    # KV of weight 1/2 takes a third of the port: 1.5 s; of weight 2, two thirds: 3 s. Each second over 1 costs 2.
    assert found.favourable.replay.cost == pytest.approx(2 * 0.5)
    assert found.unfavourable.replay.cost == pytest.approx(2 * 2.0)
    assert found.at(1.0, 0.0).cost == pytest.approx(2 * 1.0)
    assert band(data, "strict").favourable.replay.cost == pytest.approx(0.0, abs=1e-12)


def test_best_cap_is_found_and_beats_unmanaged() -> None:
    # The lane costs 20, the user 0.5: the less KV takes of the collective the better, down to where the tail hurts.
    lane = Lane("a", (compute(1.0), collective(1.0, e=10.0), compute(1.0)))
    data = record([lane], [send("f", route(e=1.0), (1, 8.0))], lane_price=20.0)
    found = best_cap(data)
    assert found.policy is not None
    assert len(found.tried) == 12
    assert found.replay.cost == min(cost for *_, cost in found.tried)
    assert found.replay.cost < simulate(data, "unmanaged").cost
    assert found.policy.cap is not None
    assert found.policy.cap.needs_engine_throttle


def test_a_replay_is_given_up_once_it_costs_too_much() -> None:
    lane = Lane("a", (collective(1.0, e=10.0), compute(1.0), collective(1.0, e=10.0)))
    data = record([lane], [send("f", route(e=1.0), (0, 5.0), (2, 5.0))])
    whole = simulate(data, "unmanaged")
    assert whole.prefill_slowdown_s.sum() > 0.9
    assert simulate(data, "unmanaged", most=whole.cost).cost == whole.cost
    short = simulate(data, "unmanaged", most=whole.cost / 4)
    assert (short.cost, short.diagnostics) == (np.inf, ("given up: it costs too much already",))
    assert short.events < whole.events


def test_a_band_uses_replays_at_hand() -> None:
    data = small()
    at_hand = simulate(data, "strict", record=True)
    assert band(data, "strict", at_hand={(1.0, 0.0): at_hand}).at(2.0, 0.0) is at_hand


def test_no_static_cap_helps() -> None:
    # The user is all that costs: KV must not be slowed.
    lane = Lane("a", (compute(1.0), collective(1.0, e=2.0)))
    data = record([lane], [send("f", route(e=1.0), (1, 80.0))], lane_price=0.1, user_price=10.0)
    found = best_cap(data)
    assert found.policy is None
    assert found.replay.policy == "unmanaged"


def test_a_nic_can_cap_without_the_engine() -> None:
    lane = Lane("a", (compute(1.0), collective(1.0, e=10.0), compute(1.0)))
    data = record([lane], [send("f", route(device="nic0", e=1.0), (1, 8.0))], lane_price=20.0)
    found = best_cap(data)
    assert found.policy is not None
    assert found.policy.cap is not None
    assert found.policy.cap.targets == ("nic0",)
    assert not found.policy.cap.needs_engine_throttle
    same = simulate(data, cap("nic0", 2.5)).cost
    assert same == pytest.approx(simulate(data, cap("e", 2.5)).cost)


def test_requests_of_reads_are_not_capped() -> None:
    # A copy into the GPU asks for its bytes through the egress that the NIC reads from: the cap is still the NIC's.
    lane = Lane("a", (compute(1.0), collective(1.0, e=10.0), compute(1.0)))
    flows = [
        send("s", route(device="nic0", e=1.0), (1, 8.0)),
        load("p", route(device="h2d", fifo=True, e=0.05, f=1.0), (1, 5.0)),
    ]
    data = record([lane], flows, lane_price=20.0, e=10.0, f=10.0)
    found = best_cap(data)
    assert found.policy is not None
    assert found.policy.cap is not None
    assert found.policy.cap.targets == ("nic0",)
    capped = simulate(data, cap("e", 1.0)).flow_finish_s
    assert capped == pytest.approx([9.0, 0.5])


def test_jitter_is_the_same_for_every_policy_and_has_mean_one() -> None:
    ids = [str(k) for k in range(20_000)]
    draws = work_scale(0.2, 7, "a", ids)
    assert draws.mean() == pytest.approx(1.0, abs=0.01)
    assert np.log(draws).std() == pytest.approx(0.2, abs=0.005)
    assert np.array_equal(draws, work_scale(0.2, 7, "a", ids))
    assert not np.array_equal(draws, work_scale(0.2, 8, "a", ids))
    lane = Lane("a", tuple(Phase(str(k), PhaseKind.COMPUTE, 1.0, request="r") for k in range(5)))
    data = record([lane], [])
    ends = [simulate(data, policy, jitter=(0.1, 1)).lanes[0].end_s for policy in (*SIMPLE, "no_kv")]
    assert all(np.array_equal(ends[0], other) for other in ends)
    assert not np.array_equal(ends[0], simulate(data, "no_kv").lanes[0].end_s)


def test_input_errors() -> None:
    with pytest.raises(InputError, match="'unmanaged'"):
        policy_named("unmanged")
    with pytest.raises(InputError, match="kv_weight"):
        simulate(small(), "strict", kv_weight=0.0)
    with pytest.raises(InputError, match="no KV crosses"):
        simulate(small(), cap("nowhere", 1.0))
    with pytest.raises(InputError, match="positive"):
        cap("e", 0.0)
    lane = Lane("a", (compute(1.0), compute(1.0)))
    with pytest.raises(InputError, match="released after"):
        simulate(record([lane], [load("p", route(e=1.0), (0, 5.0), at=1)]), "strict")
    with pytest.raises(InputError, match="crosses no port"):
        simulate(record([lane], [send("p", route(), (0, 5.0))]), "strict")
    with pytest.raises(InputError, match="sends for request 'x'"):
        timeline = record([lane], [])
        stranger = send("p", route(e=1.0), (0, 5.0), request="x")
        simulate(AllocationData(**{**vars(timeline), "flows": (stranger,)}), "strict")


# ---- a ring beside a transfer that never ends (measured ones: tests/verification) ----
def test_a_collective_beside_a_transfer_takes_twice_as_long() -> None:
    size, goodput, pause = 5e5, 24.82e6, 0.03
    phases = (compute(pause), collective(size / goodput, e=size)) * 20
    kv = 10 * len(phases) * pause * goodput
    data = record([Lane("a", phases)], [send("s", route(e=1.0), (0, kv))], e=goodput)
    lane = simulate(data, "unmanaged", record=True).lanes[0]
    assert (lane.end_s - lane.start_s)[1::2] / (size / goodput) == pytest.approx(np.full(20, 2.0))
    assert simulate(data, "strict").prefill_slowdown_s == pytest.approx([0.0])
