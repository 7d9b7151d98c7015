"""The clock without KV."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.timeline.clock import _collisions, clock_of, phase_times, run_clock
from pdmodel.timeline.critical import critical_traffic
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind


def port(name: str, capacity: float = 10.0, guard: float = 0.0) -> Port:
    return Port(name, PortKind.ABSTRACT, capacity, guard)


def compute(duration: float, not_before: float = 0.0) -> Phase:
    return Phase("c", PhaseKind.COMPUTE, duration, not_before_s=not_before)


def collective(duration: float, not_before: float = 0.0, **sizes: float) -> Phase:
    return Phase("x", PhaseKind.COLLECTIVE, duration, sizes, not_before_s=not_before)


def test_one_lane_is_a_sum() -> None:
    clock = run_clock([port("e")], [Lane("a", (compute(1.0), collective(2.0, e=15.0), compute(0.5)))])
    assert clock.edges_s == pytest.approx([0, 1, 3, 3.5])
    assert clock.phase.tolist() == [[0, 1, 2]]
    assert clock.speed.tolist() == [[1, 1, 1]]


def test_arrival_leaves_the_lane_idle() -> None:
    # The second request arrives at 4, two seconds after the first one ended; the third is late for its own arrival.
    lane = Lane("a", (compute(2.0), compute(1.0, 4.0), compute(1.0, 3.0)))
    clock = run_clock([], [lane])
    assert clock.edges_s == pytest.approx([0, 2, 4, 5, 6])
    assert clock.phase.tolist() == [[0, -1, 1, 2]]


def test_two_lanes_that_share_a_port_slow_each_other() -> None:
    # Both want 8 of 10 for 1 s. Together 5 each, x = 5/8, until the one that started 0.5 s earlier is done:
    # it has 0.5 s of work left at 0.5 and needs 0.8 s for it; the other then has 0.5 s left, alone, at full speed.
    lanes = [Lane("a", (collective(1.0, e=8.0),)), Lane("b", (compute(0.5), collective(1.0, e=8.0)))]
    clock = run_clock([port("e")], lanes)
    assert clock.edges_s == pytest.approx([0, 0.5, 1.3, 1.8])
    assert clock.phase.tolist() == [[0, 0, -1], [0, 1, 1]]
    assert clock.speed[0] == pytest.approx([1, 0.625, 0])
    assert clock.speed[1] == pytest.approx([1, 0.625, 1])
    start, end, loss = phase_times(clock, 1, [0.0, 0.0])
    assert start == pytest.approx([0, 0.5])
    assert end == pytest.approx([0.5, 1.8])
    assert loss == pytest.approx([0, 0.3])


def test_lanes_on_ports_of_their_own_do_not_meet() -> None:
    lanes = [Lane("a", (collective(1.0, e=10.0),)), Lane("b", (collective(0.4, f=4.0), compute(0.2)))]
    clock = run_clock([port("e"), port("f")], lanes)
    assert clock.edges_s == pytest.approx([0, 0.4, 0.6, 1.0])
    assert clock.phase.tolist() == [[0, 0, 0], [0, 1, -1]]


def test_decode_lane_takes_its_share() -> None:
    # The step wants 5 of 10 at all times, the collective 10: 5 each, so the collective takes twice as long.
    decode = DecodeLane("d", 0.01, {"e": 5.0}, {"e": 10.0})
    clock = run_clock([port("e")], [Lane("a", (collective(1.0, e=10.0), compute(1.0)))], [decode])
    assert clock.edges_s == pytest.approx([0, 2, 3])
    assert clock.speed[0] == pytest.approx([0.5, 1])


def test_guard_counts_while_critical_traffic_is_active() -> None:
    # Two lanes want 6 each of 10 with a guard of 2: what they may have is min(10, max(8, 12)) = 10.
    lanes = [Lane(n, (collective(1.0, e=6.0),)) for n in "ab"]
    assert run_clock([port("e", guard=2.0)], lanes).edges_s == pytest.approx([0, 1.2])
    # They want 3.5 each: 7 is below 8, nobody is slowed.
    lanes = [Lane(n, (collective(1.0, e=3.5),)) for n in "ab"]
    assert run_clock([port("e", guard=2.0)], lanes).edges_s == pytest.approx([0, 1.0])


def test_phases_of_no_duration_take_no_interval() -> None:
    lane = Lane("a", (compute(0.0), compute(1.0), compute(0.0), compute(0.0, 3.0)))
    clock = run_clock([], [lane])
    assert clock.phase.tolist() == [[1]] or clock.phase.tolist() == [[1, -1]]
    start, end, _ = phase_times(clock, 0, [0.0, 0.0, 0.0, 3.0])
    assert start == pytest.approx([0, 0, 1, 3])
    assert end == pytest.approx([0, 1, 1, 3])


def test_no_lanes() -> None:
    clock = run_clock([port("e")], [])
    assert clock.phase.shape == (0, 0)


def test_unknown_port() -> None:
    with pytest.raises(InputError, match="'nowhere'"):
        run_clock([port("e")], [Lane("a", (collective(1.0, nowhere=1.0),))])


@st.composite
def lane_sets(draw, own_ports: bool):
    lanes = []
    for k in range(draw(st.integers(1, 3))):
        name = f"e{k}" if own_ports else "e"
        phases = []
        for _ in range(draw(st.integers(1, 6))):
            arrival = draw(st.sampled_from([0.0, 0.0, 1.5, 4.0]))
            duration = draw(st.sampled_from([0.1, 0.25, 1.0, 0.0]))
            phases.append(
                draw(
                    st.sampled_from([compute(duration, arrival), collective(duration, arrival, **{name: 7 * duration})])
                )
            )
        lanes.append(Lane(f"lane{k}", tuple(phases)))
    return [port("e"), *(port(f"e{k}") for k in range(3))], lanes


@given(lane_sets(own_ports=True))
def test_fast_path_is_the_event_loop(problem) -> None:
    ports, lanes = problem
    critical = critical_traffic(ports, lanes)
    assert not critical.collide
    fast, slow = clock_of(critical), _collisions(critical)
    for k, lane in enumerate(lanes):
        earliest = [phase.not_before_s for phase in lane.phases]
        for a, b in zip(phase_times(fast, k, earliest), phase_times(slow, k, earliest), strict=True):
            assert a == pytest.approx(b, abs=1e-9)


@given(lane_sets(own_ports=False))
def test_work_is_done_and_order_kept(problem) -> None:
    ports, lanes = problem
    clock = run_clock(ports, lanes)
    length = np.diff(clock.edges_s)
    for k, lane in enumerate(lanes):
        for i, phase in enumerate(lane.phases):
            inside = clock.phase[k] == i
            assert (clock.speed[k] * length)[inside].sum() == pytest.approx(phase.duration_s, abs=1e-9)
        start, end, _ = phase_times(clock, k, [phase.not_before_s for phase in lane.phases])
        assert np.all(start[1:] >= end[:-1] - 1e-9)
        assert np.all(start >= np.array([phase.not_before_s for phase in lane.phases]) - 1e-9)
    rate = sum(
        np.where(clock.phase[k] >= 0, clock.speed[k], 0) * rates_on("e", lane, clock.phase[k])
        for k, lane in enumerate(lanes)
    )
    assert np.all(rate <= 10 * (1 + 1e-9))


def rates_on(name: str, lane: Lane, phases: np.ndarray) -> np.ndarray:
    rate = [p.wire_bytes.get(name, 0.0) / p.duration_s if p.duration_s else 0.0 for p in lane.phases] + [0.0]
    return np.array(rate)[phases]


def test_many_phases_are_quick() -> None:
    sizes = {f"gpu{k}/egress": 5.0 for k in range(8)} | {f"gpu{k}/ingress": 5.0 for k in range(8)}
    ports = [port(name) for name in sizes]
    phases = tuple(
        Phase(str(i), PhaseKind.COLLECTIVE, 1.0, dict(sizes)) if i % 2 else compute(0.7) for i in range(4500)
    )
    lane = Lane("a", phases)
    run_clock(ports, [lane])
    began = time.perf_counter()
    clock = run_clock(ports, [lane])
    took = time.perf_counter() - began
    assert clock.phase.shape == (1, 4500)
    assert took < 0.1, f"{took * 1e3:.0f} ms; 20 ms on a quiet machine"
