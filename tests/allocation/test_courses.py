"""Several requests on one lane: courses by hand, Smith's rule against all orders, promises against replays."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.allocation.course import Course, shortest_first
from pdmodel.allocation.courses import best_course
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import quantum_rounds
from pdmodel.allocation.solution import Solution
from pdmodel.choose import choose, course_of, has_pauses
from pdmodel.errors import SolverError
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import SIMPLE, plan, simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices

RATE = 10.0
PORTS = tuple(Port(name, PortKind.ABSTRACT, RATE) for name in "ef")


def phase(request: str, duration: float, not_before: float = 0.0, **sizes: float) -> Phase:
    kind = PhaseKind.COLLECTIVE if sizes else PhaseKind.COMPUTE
    return Phase(f"{request}:{duration}", kind, duration, sizes, request=request, not_before_s=not_before)


def send(request: str, size: float, at: int, *ways: str, lane: str = "a") -> Flow:
    routes = tuple(Route(f"{request}{way}", dict.fromkeys(way, 1.0), {}) for way in ways or ("e",))
    split = (1.0 / len(routes),) * len(routes)
    return Flow(request, FlowKind.SEND, request, lane, request, "D", routes, ((at, size),), ((at, size),), split)


def load(request: str, size: float, at: int, due: int) -> Flow:
    route = Route(f"load {request}", {"f": 1.0}, {})
    return Flow(f"load {request}", FlowKind.LOAD, request, "a", "s", "d", (route,), ((at, size),), ((due, size),))


def record(lanes: dict[str, list[Phase]], flows: list[Flow], prices: dict[str, float], pi: float = 1.0):
    built = tuple(Lane(name, tuple(phases)) for name, phases in lanes.items())
    timeline = Timeline(PORTS, built, (), run_clock(PORTS, built, ()))
    return AllocationData.build(timeline, flows, Prices(dict.fromkeys(lanes, pi), prices, {}))


# ---- by hand ---------------------------------------------------------------------------------------------------------
def two_turns(price: float) -> AllocationData:
    """A computes 1 s and sends for 1 s; B's second second is an all-reduce that fills the port."""
    phases = [phase("A", 1.0), phase("B", 0.5), phase("B", 1.0, e=10.0), phase("B", 0.5)]
    return record({"a": phases}, [send("A", 10.0, 1)], {"A": price, "B": 0.0})


@pytest.mark.parametrize(
    ("done", "stretch", "delay"),
    [
        (1, 1.0, 1.0),  # B waits for all of it
        (2, 0.5, 1.0),  # half of it while B computes, then B waits
        (3, 0.5, 2.0),  # the other half slows the all-reduce down, and counts until that is over
        (4, 0.0, 2.0),  # or waits until after the all-reduce
    ],
)
def test_what_a_course_costs(done: int, stretch: float, delay: float) -> None:
    data = two_turns(price=3.0)
    solution = solve_elastic(data, course=Course((done, 4), (0, 0)))
    assert solution.objective == pytest.approx(1.0 * stretch + 3.0 * delay)
    replay = simulate(data, plan(solution.schedule))
    assert replay.cost <= solution.objective * (1 + 1e-9)
    assert replay.prefill_slowdown_s.sum() + replay.load_stall_s.sum() == pytest.approx(stretch)


@pytest.mark.parametrize(("price", "cost"), [(0.1, 0.2), (3.0, 3.5)])
def test_the_best_course_depends_on_who_waits(price: float, cost: float) -> None:
    data = two_turns(price)
    for begun in ((1, 4), (4, 4)):
        assert best_course(data, [Course(begun, (0, 0))]).objective == pytest.approx(cost)
    assert choose(data).replay.cost == pytest.approx(cost)


def test_one_request_is_program_e() -> None:
    data = record({"a": [phase("A", 1.0, e=8.0), phase("A", 0.2)]}, [send("A", 9.0, 1)], {"A": 0.5})
    plain, course = solve_elastic(data), solve_elastic(data, course=Course((2,), (0,)))
    assert course.objective == pytest.approx(plain.objective)
    assert course.elastic.tail_s == pytest.approx(plain.elastic.tail_s)


def test_nothing_moves_before_its_request_arrives() -> None:
    phases = [phase("A", 2.0), phase("A", 1.0), phase("B", 1.0, not_before=1.5)]
    data = record({"a": phases}, [load("B", 20.0, 0, 2)], {"A": 1.0, "B": 1.0})
    course = course_of(data, simulate(data, "strict"))
    assert course.begun == (0, 1)  # phase 1 is the first that starts at 1.5 s or later
    solution = solve_elastic(data, course=course)
    assert solution.objective == pytest.approx(
        2.0
    )  # half of it in the second before the gate, the lane waits for the rest
    assert simulate(data, plan(solution.schedule)).cost == pytest.approx(2.0)
    assert solve_elastic(data).objective == pytest.approx(0.0)  # as if it had been there from the beginning


# ---- one after another in the tail -----------------------------------------------------------------------------------
def priced_ends(sizes, prices, order) -> float:
    ends = np.cumsum([sizes[q] for q in order]) / RATE
    return float(sum(prices[q] * end for q, end in zip(order, ends, strict=True)))


JOBS = st.lists(
    st.tuples(st.sampled_from([1.0, 4.0, 10.0, 25.0]), st.sampled_from([0.2, 1.0, 1.0, 5.0])), min_size=1, max_size=4
)


@settings(max_examples=8)
@given(JOBS, st.booleans())
def test_on_one_port_no_order_is_better(jobs, together) -> None:
    """On one lane (program E) and on lanes of their own (the tail of program R) that end at once."""
    sizes, prices = zip(*jobs, strict=True)
    names = [f"r{q}" for q in range(len(jobs))]
    if together:
        lanes = {"a": [phase(name, 1e-6) for name in names]}
        flows = [send(name, size, q + 1) for q, (name, size) in enumerate(zip(names, sizes, strict=True))]
    else:
        lanes = {f"lane{q}": [phase(name, 0.1)] for q, name in enumerate(names)}
        flows = [send(name, size, 1, lane=f"lane{q}") for q, (name, size) in enumerate(zip(names, sizes, strict=True))]
    data = record(lanes, flows, dict(zip(names, prices, strict=True)))
    least = min(priced_ends(sizes, prices, order) for order in itertools.permutations(range(len(jobs))))
    assert priced_ends(sizes, prices, shortest_first(data, range(len(jobs)))) == pytest.approx(least)
    assert choose(data).replay.cost == pytest.approx(least, rel=1e-4)


def test_a_tail_uses_all_routes_and_ends_when_its_bytes_have_left() -> None:
    # Each may take either port: A takes both, then B; the area of lateness is the same if they share all the way.
    lanes = {"a": [phase("A", 0.1)], "b": [phase("B", 0.1)]}
    flows = [send(name, 20.0, 1, "e", "f", lane=lane) for name, lane in (("A", "a"), ("B", "b"))]
    data = record(lanes, flows, {"A": 1.0, "B": 1.0})
    (solution, *_) = quantum_rounds(data)
    assert solution.in_turn is not None
    replay = simulate(data, plan(solution.in_turn))
    assert sorted(replay.user_delay_s) == pytest.approx([1.0, 2.0])
    assert choose(data).replay.cost == pytest.approx(3.0)


# ---- any lane --------------------------------------------------------------------------------------------------------
@st.composite
def lanes(draw, pauses: bool = False) -> AllocationData:
    phases, flows, prices = [], [], {}
    for q in range(draw(st.integers(2, 3))):
        name, first = f"r{q}", len(phases)
        arrival = draw(st.sampled_from([0.0, 1.0, 4.0])) if q and pauses else 0.0
        for _ in range(draw(st.integers(1, 3))):
            duration = draw(st.sampled_from([0.2, 0.5, 1.0]))
            sizes = {
                port: duration * draw(st.sampled_from([3.0, 9.0])) for port in draw(st.sampled_from(["", "e", "ef"]))
            }
            phases.append(phase(name, duration, arrival, **sizes))
        last, way = len(phases) - 1, draw(st.sampled_from([("e",), ("ef",), ("e", "f")]))
        prices[name] = draw(st.sampled_from([0.2, 1.0, 5.0]))
        size, released = draw(st.sampled_from([2.0, 6.0, 15.0])), draw(st.integers(first, last + 1))
        flows.append(replace(send(name, size, last + 1, *way), release=((released, size),)))
        if draw(st.booleans()):
            size, due = draw(st.sampled_from([1.0, 5.0])), draw(st.integers(first, last))
            flows.append(load(name, size, first, due))
    return record({"a": phases}, flows, prices)


@settings(max_examples=12)
@given(lanes())
def test_a_replay_keeps_what_a_course_promises(data) -> None:
    best = min((simulate(data, policy) for policy in SIMPLE), key=lambda replay: replay.cost)
    solution = best_course(data, [course_of(data, best)])
    replay = simulate(data, plan(solution.schedule))
    tolerance = 1e-6 * max(solution.objective, 1e-3)
    assert replay.cost <= solution.objective + tolerance
    # From the course that the replay had, no more is lost.
    again = best_course(data, [course_of(data, replay)])
    assert again.objective <= solution.objective + tolerance


@settings(max_examples=8)
@given(lanes(pauses=True))
def test_the_plan_is_no_dearer_than_rules_and_rounds(data) -> None:
    found = choose(data).replay.cost
    rules = [simulate(data, policy).cost for policy in SIMPLE]
    assert found <= min(rules) * (1 + 1e-9) + 1e-12
    if has_pauses(data):
        first = next(iter(quantum_rounds(data)))
        assert found <= simulate(data, plan(first.schedule)).cost * (1 + 1e-9) + 1e-12


def test_a_course_without_an_optimum_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    data = two_turns(5.0)
    tail, early = Course((4, 4), (0, 1)), Course((1, 4), (0, 1))
    exact = best_course(data, [early, tail])
    looked = []

    def solve(data: AllocationData, *, course: Course) -> Solution:
        looked.append(course)
        if len(looked) == 1:
            message = "out of order"
            raise SolverError(message)
        return solve_elastic(data, course=course)

    monkeypatch.setattr("pdmodel.allocation.courses.solve_elastic", solve)
    assert best_course(data, [tail, early]).objective == pytest.approx(exact.objective)
    assert len(looked) == len(set(looked)) > 1
    looked.clear()
    monkeypatch.setattr("pdmodel.allocation.courses.MOST_SOLVES", 1)
    with pytest.raises(SolverError, match="out of order"):
        best_course(data, [tail, early])
