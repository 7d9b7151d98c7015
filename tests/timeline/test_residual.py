"""Critical demand and residual of a small timeline, worked out by hand, and against the clock of a shipped scenario."""

import numpy as np
import pytest

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.resolve import load_scenario
from pdmodel.timeline.build import timeline
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind, Timeline
from pdmodel.timeline.residual import critical_demand, residual_bandwidth


def phase(name: str, duration_s: float, size: float = 0.0, request: str = "r", not_before_s: float = 0.0) -> Phase:
    kind = PhaseKind.COLLECTIVE if size else PhaseKind.COMPUTE
    wire = {"e": size} if size else {}
    return Phase(name, kind, duration_s, wire, request=request, not_before_s=not_before_s)


def small(*lanes: Lane, decode: tuple[DecodeLane, ...] = (), guard: float = 10.0) -> Timeline:
    ports = (Port("e", PortKind.ABSTRACT, 100.0, guard), Port("idle", PortKind.ABSTRACT, 50.0, 5.0))
    return Timeline(ports, lanes, decode, run_clock(ports, lanes, decode))


def test_one_lane_by_hand() -> None:
    lane = Lane("l", (phase("a", 2.0), phase("b", 1.0, 60.0), phase("c", 0.5, 47.5), phase("d", 1.0)))
    built = small(lane)
    demand = critical_demand(built, "e")
    assert demand.times_s == pytest.approx([0, 2, 3, 3.5]) and demand.bytes_per_s == pytest.approx([0, 60, 95, 0])
    left = residual_bandwidth(built, "e")
    # Compute leaves all; 60 leaves 100 - 10 - 60; 95 eats into the guard, which then keeps nothing more free.
    assert left.times_s == pytest.approx([0, 2, 3, 3.5]) and left.bytes_per_s == pytest.approx([100, 30, 0, 100])
    assert (
        left.at(2.5) == pytest.approx(30) and left.at(3.5) == pytest.approx(100) and left.at(99) == pytest.approx(100)
    )
    assert left.integral(1.0, 4.0) == pytest.approx(100 + 30 + 0 + 50)
    untouched = residual_bandwidth(built, "idle")
    assert untouched.times_s == pytest.approx([0]) and untouched.bytes_per_s == pytest.approx([50])


def test_two_lanes_that_meet_share_what_the_guard_leaves() -> None:
    lanes = (Lane("one", (phase("a", 1.0, 60.0),)), Lane("two", (phase("b", 1.0), phase("c", 1.0, 60.0))))
    built = small(*lanes)
    assert critical_demand(built, "e").bytes_per_s == pytest.approx([60, 0]) and built.clock.edges_s[
        -1
    ] == pytest.approx(2)
    together = small(Lane("one", (phase("a", 1.0, 60.0),)), Lane("two", (phase("b", 1.0, 60.0),)))
    # 120 wanted of 100: demand at full speed exceeds C - guard, so all 100 is usable and all of it is used.
    assert critical_demand(together, "e").bytes_per_s == pytest.approx([100, 0])
    assert critical_demand(together, "e").times_s == pytest.approx([0, 1.2])
    assert residual_bandwidth(together, "e").bytes_per_s == pytest.approx([0, 100])


def test_a_decode_lane_takes_its_mean_for_ever() -> None:
    decode = DecodeLane("d", 0.01, {"e": 20.0}, {"e": 80.0})
    built = small(Lane("l", (phase("a", 1.0), phase("b", 1.0, 30.0))), decode=(decode,))
    assert critical_demand(built, "e").bytes_per_s == pytest.approx([20, 50, 20])
    assert residual_bandwidth(built, "e").bytes_per_s == pytest.approx([70, 40, 70])


def test_an_arrival_leaves_a_gap() -> None:
    built = small(Lane("l", (phase("a", 1.0, 50.0), phase("b", 1.0, 50.0, "s", 3.0))))
    assert critical_demand(built, "e").times_s == pytest.approx([0, 1, 3, 4])
    assert residual_bandwidth(built, "e").bytes_per_s == pytest.approx([40, 100, 40, 100])


def test_unknown_port_and_time_before_the_clock() -> None:
    built = small(Lane("l", (phase("a", 1.0),)))
    with pytest.raises(InputError, match="no port 'f'"):
        residual_bandwidth(built, "f")
    with pytest.raises(InputError, match="before the clock starts"):
        residual_bandwidth(built, "e").at(-1.0)


@pytest.mark.parametrize("port", ["P/gpu0/egress", "P/switch0/up"])
def test_demand_carries_exactly_the_bytes_of_the_phases(port: str) -> None:
    built = timeline(load_scenario("agentic_turn_pcie"))
    demand, left = critical_demand(built, port), residual_bandwidth(built, port)
    total = sum(item.wire_bytes.get(port, 0.0) for lane in built.lanes for item in lane.phases)
    end = float(built.clock.edges_s[-1])
    assert demand.integral(0.0, end) == pytest.approx(total, rel=1e-9) and total > 0
    assert np.isin(demand.times_s, built.clock.edges_s).all() and np.isin(left.times_s, built.clock.edges_s).all()
    capacity = next(item.capacity_bytes_per_s for item in built.ports if item.name == port)
    busy = demand.bytes_per_s > 0
    assert (left.bytes_per_s >= 0).all() and left.bytes_per_s.max() == pytest.approx(capacity)
    assert (demand.bytes_per_s[busy] <= capacity * (1 + 1e-9)).all()
