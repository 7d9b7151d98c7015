"""Write-backs, prefetches and leases in a replay: by hand, and what holds on random cases."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_oracle import cases

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.schedule import Piece, Schedule
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import NO_KV, SENDS_FIRST, SIMPLE, plan, policy_named, simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

PORTS = (Port("e", PortKind.ABSTRACT, 10.0), Port("f", PortKind.ABSTRACT, 10.0))


def phase(request: str, duration: float, size: float = 0.0, arrival: float = 0.0) -> Phase:
    kind = PhaseKind.COLLECTIVE if size else PhaseKind.COMPUTE
    sizes = {"e": size} if size else {}
    return Phase(f"{request}/{duration}/{size}", kind, duration, sizes, request=request, not_before_s=arrival)


def flow(name, kind, release, due=(), *, request="r", port="e", device="", lease_s=None) -> Flow:
    route = Route(name, {port: 1.0}, {}, device, bool(device))
    return Flow(name, FlowKind(kind), request, "a", name, "there", (route,), release, due, lease_s=lease_s)


def record(phases, flows, decode=()) -> AllocationData:
    lanes = (Lane("a", tuple(phases)),)
    timeline = Timeline(PORTS, lanes, tuple(decode), run_clock(PORTS, lanes, tuple(decode)))
    requests = dict.fromkeys({one.request for one in phases}, 0.5)
    return AllocationData.build(timeline, tuple(flows), Prices({"a": 2.0}, requests, {one.name: 1.0 for one in decode}))


def no_holds(count: int, *pieces: Piece) -> Schedule:
    return Schedule(pieces, (np.zeros(count),), (np.zeros(count),))


PREFILL = [phase("r", 1.0), phase("r", 1.0, 10.0)]
"""A second of compute, then a collective that fills port e for a second."""


def test_a_write_back_is_kv_like_any_other_under_unmanaged_and_last_under_edf() -> None:
    back, send = flow("back", "writeback", ((0, 20.0),)), flow("send", "send", ((1, 5.0),), ((2, 5.0),))
    data = record(PREFILL, [back, send])
    # Ten bytes leave in the first second; then collective, write-back and send share: two queues, one collective.
    fair = simulate(data, "unmanaged")
    assert fair.prefill_slowdown_s == pytest.approx([1.5])
    assert fair.flow_finish_s == pytest.approx([3.5, 2.5])
    edf = simulate(data, "residual_edf", record=True)
    assert edf.prefill_slowdown_s[0] == 0.0
    assert edf.flow_finish_s == pytest.approx([3.5, 2.5])
    assert (edf.end_s, edf.writeback_end_s) == pytest.approx((2.5, 3.5))
    assert edf.decode_stall_s == pytest.approx([0.5])
    # Until the last send was delivered: 10 bytes of the write-back, all of the send.
    assert edf.kv_bytes == pytest.approx([15.0, 0.0])
    # Without order of dues the two share what the collective leaves.
    assert simulate(data, "strict").flow_finish_s == pytest.approx([3.5, 3.0])


def test_a_copy_engine_takes_write_backs_in_order() -> None:
    back = flow("back", "writeback", ((0, 20.0),), device="d2h")
    send = flow("send", "send", ((0, 5.0),), ((2, 5.0),), device="d2h")
    data = record([phase("r", 3.0)], [back, replace(send, due=((1, 5.0),))])
    assert simulate(data, "unmanaged").flow_finish_s == pytest.approx([2.0, 2.5])
    assert simulate(data, "residual_edf").flow_finish_s == pytest.approx([2.5, 0.5])


def test_sends_first_holds_write_backs_until_the_request_is_served() -> None:
    flows = [
        flow("back", "writeback", ((0, 20.0),)),
        flow("send", "send", ((2, 5.0),), ((2, 5.0),)),
        flow("load", "load", ((0, 2.0),), ((0, 2.0),), port="f"),
    ]
    replay = simulate(record(PREFILL, flows), SENDS_FIRST, record=True)
    # The load holds the first phase up for 0.2 s; the send leaves in [2.2, 2.7], then the write-back.
    assert replay.flow_finish_s == pytest.approx([4.7, 2.7, 0.2])
    assert replay.prefill_slowdown_s[0] == 0.0
    assert policy_named("sends_first") is SENDS_FIRST
    assert all(segment.flow_rate[0] == 0.0 for segment in replay.segments if segment.end_s <= 2.7)


def test_sends_first_knows_requests_apart() -> None:
    phases = [phase("r", 1.0), phase("s", 1.0)]
    flows = [
        flow("back", "writeback", ((1, 5.0),)),
        flow("send", "send", ((1, 2.0),), ((1, 2.0),)),
        flow("other", "send", ((2, 2.0),), ((2, 2.0),), request="s", port="f"),
        flow("nobody's", "writeback", ((0, 1.0),), request="evicted", port="f"),
    ]
    assert simulate(record(phases, flows), SENDS_FIRST).flow_finish_s == pytest.approx([1.7, 1.2, 2.2, 0.1])


def test_after_prefill_leaves_write_backs_as_released() -> None:
    flows = [flow("back", "writeback", ((0, 5.0),)), flow("send", "send", ((0, 5.0),), ((2, 5.0),))]
    assert simulate(record(PREFILL, flows), "after_prefill").flow_finish_s == pytest.approx([0.5, 2.5])


def test_unplanned_write_backs_take_what_everything_else_leaves() -> None:
    flows = [flow("back", "writeback", ((0, 30.0),)), flow("send", "send", ((2, 5.0),), ((2, 5.0),))]
    data = record([*PREFILL[:1], phase("r", 1.0, 6.0)], flows)
    # The send is late by half of what was planned: it goes before the write-back, the collective before both.
    tail = Piece(0, 4, 0.0, 0.5, np.array([0.0, 5.0]))
    replay = simulate(data, plan(no_holds(2, tail)), record=True)
    assert replay.prefill_slowdown_s[0] == 0.0
    # 10 and 4 bytes beside the phases; in the tail the send has 5 by plan and 5 as backlog: 2.5 bytes a half second.
    assert replay.flow_finish_s == pytest.approx([3.0 + 1.1, 2.5], abs=1e-9)


def test_planned_write_backs_are_served_before_collectives() -> None:
    flows = [flow("back", "writeback", ((0, 8.0),))]
    by_plan = Piece(0, 3, 0.0, 1.25, np.array([2.0]))
    replay = simulate(record(PREFILL, flows), plan(no_holds(2, by_plan)))
    # 2.5 bytes are planned for the collective, which gives way; the others leave while nothing runs.
    assert replay.prefill_slowdown_s[0] == pytest.approx(0.25)
    assert replay.flow_finish_s == pytest.approx([2.25])
    assert replay.cost == pytest.approx(2.5 * 0.25)


def test_a_second_stretch_of_the_tail_moves_write_backs() -> None:
    flows = [flow("back", "writeback", ((2, 10.0),)), flow("send", "send", ((2, 5.0),), ((2, 5.0),))]
    pieces = (Piece(0, 4, 0.0, 0.5, np.array([0.0, 10.0])), Piece(0, 4, 0.5, 2.0, np.array([5.0, 0.0])))
    replay = simulate(record(PREFILL, flows), plan(no_holds(2, *pieces)))
    assert replay.flow_finish_s == pytest.approx([4.5, 2.5])
    assert (replay.end_s, replay.writeback_end_s) == pytest.approx((2.5, 4.5))


@pytest.mark.parametrize("policy", ["strict", "residual_edf", "sends_first", "plan"])
def test_write_backs_that_nothing_moves_starve_nobody(policy) -> None:
    # The decode lane has the whole port for ever, and comes first: the write-back is never over.
    decode = DecodeLane("d", 0.01, {"e": 10.0}, {"e": 10.0})
    flows = [flow("back", "writeback", ((1, 5.0),)), flow("send", "send", ((1, 5.0),), ((2, 5.0),), port="f")]
    data = record([phase("r", 1.0), phase("r", 1.0)], flows, (decode,))
    rule = plan(no_holds(2)) if policy == "plan" else policy_named(policy)
    replay = simulate(data, rule)
    if policy == "sends_first":  # shares with the decode lane, which slows down
        assert replay.decode_loss_s[0] == pytest.approx(0.5)
        return
    assert (replay.cost, replay.end_s) == (0.0, 2.0)
    assert replay.writeback_end_s == math.inf
    assert replay.flow_finish_s == pytest.approx([math.inf, 1.5])
    assert replay.diagnostics == ("write-backs are never over: critical traffic leaves them no capacity",)


def test_critical_bytes_are_counted_until_the_last_send_or_where_the_prefill_ends() -> None:
    decode = DecodeLane("d", 0.01, {"f": 2.0}, {"f": 2.0})
    back = flow("back", "writeback", ((2, 10.0),))
    only = simulate(record(PREFILL, [back], (decode,)), "strict")
    assert only.critical_bytes == pytest.approx([10.0, 4.0])
    assert only.kv_bytes == pytest.approx([0.0, 0.0])
    assert (only.end_s, only.writeback_end_s) == pytest.approx((2.0, 3.0))
    both = simulate(record(PREFILL, [back, flow("send", "send", ((2, 5.0),), ((2, 5.0),))], (decode,)), "residual_edf")
    assert both.critical_bytes == pytest.approx([10.0, 5.0])
    assert both.kv_bytes == pytest.approx([5.0, 0.0])


def test_the_hold_of_a_phase_counts_as_run() -> None:
    # The send is delivered while the collective's hold passes: its bytes have crossed.
    data = record(PREFILL, [flow("send", "send", ((1, 5.0),), ((2, 5.0),))])
    schedule = Schedule((Piece(0, 3, 1.0, 1.0, np.array([5.0])),), (np.array([0.0, 1.0]),), (np.zeros(2),))
    assert simulate(data, plan(schedule)).critical_bytes == pytest.approx([10.0, 0.0])


# ---- prefetches ----------------------------------------------------------------------------------------------------
TWO = [phase("r", 2.0), phase("s", 1.0, arrival=1.5)]


def prefetches() -> list[Flow]:
    return [
        flow("early", "load", ((0, 2.0),), ((0, 2.0),)),
        flow("late", "load", ((0, 10.0),), ((1, 10.0),), request="s"),
    ]


@pytest.mark.parametrize("policy", [*SIMPLE, SENDS_FIRST, plan(no_holds(2))])
def test_a_prefetch_starts_when_its_request_arrives(policy) -> None:
    replay = simulate(record(TWO, prefetches()), policy, record=True)
    # The first waits for its own prefix until 0.2 and runs until 2.2; the second's is on its way from 1.5 to 2.5.
    assert replay.flow_finish_s == pytest.approx([0.2, 2.5])
    assert replay.lanes[0].wait_s == pytest.approx([0.2, 0.3])
    assert all(segment.flow_rate[1] == 0.0 for segment in replay.segments if segment.end_s <= 1.5)


def test_a_prefetch_planned_before_its_arrival_is_late_and_not_lost() -> None:
    # Half of it is planned for a stretch that has passed when the request arrives in the middle of the phase.
    pieces = [Piece(0, 1, 0.0, 1.0, np.array([0.0, 5.0])), Piece(0, 1, 1.6, 0.2, np.array([0.0, 25.0]))]
    replay = simulate(record(TWO, prefetches()), plan(no_holds(2, *pieces)))
    assert replay.flow_finish_s == pytest.approx([0.2, 2.5])


# ---- leases --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lease_s", [1.29, None])
def test_a_lease_runs_from_the_first_release(lease_s) -> None:
    # Released at 1 s and 2 s: five bytes beside the collective's five, then three more.
    send = flow("send", "send", ((1, 5.0), (2, 3.0)), ((2, 8.0),), lease_s=lease_s)
    data = record([PREFILL[0], phase("r", 1.0, 5.0)], [send])
    replay = simulate(data, "strict")
    assert replay.flow_finish_s == pytest.approx([2.3])
    assert replay.expired == (("send",) if lease_s else ())
    # The record's release counts, whatever the policy waits for.
    late = simulate(record([PREFILL[0], phase("r", 1.0, 5.0)], [replace(send, lease_s=1.3)]), "after_prefill")
    assert late.expired == ("send",)
    assert late.diagnostics == (
        "the lease of send expires: its last byte comes 1.800 s after its release, 1.300 s are allowed",
    )


def test_a_lease_of_a_prefetch_runs_from_the_arrival() -> None:
    early, late = prefetches()
    for lease_s, expired in ((0.99, ("late",)), (1.0, ())):
        data = record(TWO, [early, replace(late, lease_s=lease_s)])
        assert simulate(data, "unmanaged").expired == expired
        assert simulate(data, NO_KV).expired == ()


def test_what_never_comes_outlives_every_lease() -> None:
    decode = DecodeLane("d", 0.01, {"e": 10.0}, {"e": 10.0})
    data = record([phase("r", 1.0)], [flow("send", "send", ((1, 5.0),), ((1, 5.0),), lease_s=9.0)], (decode,))
    replay = simulate(data, "strict")
    assert replay.expired == ("send",)
    assert "never" in replay.diagnostics[-1]


# ---- random cases --------------------------------------------------------------------------------------------------
@st.composite
def with_write_backs(draw):
    """An abstract case whose flows are in part write-backs, released when the flow they are made of is."""
    data = AllocationData.from_dict(draw(cases()))
    backs = draw(st.sets(st.integers(0, len(data.flows) - 1), min_size=1))
    kept = tuple(
        replace(one, kind=FlowKind.WRITEBACK, due=()) if f in backs else one for f, one in enumerate(data.flows)
    )
    return replace(data, flows=kept)


def split_plan(data: AllocationData, rate: float) -> Schedule:
    slots = range(2 * len(data.lanes[0].phases) + 1)
    return no_holds(
        len(data.lanes[0].phases), *(Piece(0, s, 0.05, 0.3, np.full(len(data.routes), rate)) for s in slots)
    )


@settings(max_examples=100)
@given(with_write_backs(), st.sampled_from([*SIMPLE, SENDS_FIRST, 0.0, 0.6, 9.0]))
def test_bytes_are_conserved_and_ports_hold(data, choice) -> None:
    replay = simulate(data, plan(split_plan(data, choice)) if isinstance(choice, float) else choice, record=True)
    moved = np.zeros(len(data.flows))
    for segment in replay.segments:
        moved += segment.flow_rate * (segment.end_s - segment.start_s)
        assert np.all(segment.critical + segment.kv <= data.capacity * (1 + 1e-9))
    assert moved == pytest.approx(data.volume_bytes, rel=1e-9)
    assert np.isfinite(replay.cost)
    back = [one.kind is FlowKind.WRITEBACK for one in data.flows]
    assert replay.writeback_end_s == replay.flow_finish_s[back].max()
    assert replay.end_s <= max(replay.lanes[0].end_s[-1], *replay.flow_finish_s) + 1e-9


@settings(max_examples=60)
@given(with_write_backs())
def test_served_last_write_backs_change_no_time(data) -> None:
    # With EDF they have what all others leave: the same replay as if they were not there.
    others = tuple(one for one in data.flows if one.kind is not FlowKind.WRITEBACK)
    kept = [f for f, one in enumerate(data.flows) if one.kind is not FlowKind.WRITEBACK]
    alone = replace(
        data,
        flows=others,
        flow_price_per_s=data.flow_price_per_s[kept],
        flow_quantum_bytes=data.flow_quantum_bytes[kept],
        late_group=tuple(data.late_group[f] for f in kept),
    )
    # A schedule without bytes leaves all to the backlog.
    for policy in ("residual_edf", plan(no_holds(len(data.lanes[0].phases)))):
        one, other = simulate(data, policy), simulate(alone, policy)
        assert one.cost == pytest.approx(other.cost, rel=1e-9, abs=1e-9)
        assert one.ttft_s == pytest.approx(other.ttft_s, rel=1e-9)
        assert one.end_s == pytest.approx(other.end_s, rel=1e-9)
        assert one.flow_finish_s[kept] == pytest.approx(other.flow_finish_s, rel=1e-9)
