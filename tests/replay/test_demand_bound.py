"""Earliest due first on one port: in time exactly where the demand bound says that anything can be."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.allocation.data import AllocationData
from pdmodel.costs.kv_layout import completion_s
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.replay import simulate
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import Lane, Phase, PhaseKind, Timeline
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.workload.prices import Prices


@dataclass(frozen=True)
class Job:
    """Bytes that are released at the start of one phase and due at the end of another, on a port of 1 byte/s."""

    first: int
    last: int
    size: float


def replayed(lengths: list[float], busy: list[float], jobs: list[Job], order: list[int] | None = None) -> list[float]:
    """When each job is done, earliest due first; ``order``: the last phases that the queue goes by instead."""
    served = order or [job.last for job in jobs]
    phases = tuple(
        Phase(
            f"p{i}", PhaseKind.COLLECTIVE if b else PhaseKind.COMPUTE, t, {"port": b * t} if b else {}, request=f"q{i}"
        )
        for i, (t, b) in enumerate(zip(lengths, busy, strict=True))
    )
    lanes, ports = (Lane("lane", phases),), (Port("port", PortKind.ABSTRACT, 1.0),)
    route = Route("route", {"port": 1.0}, {})
    flows = [
        Flow(
            f"f{k}", FlowKind.SEND, f"q{last}", "lane", f"s{k}", f"d{k}", (route,),
            ((job.first, job.size),), ((last + 1, job.size),),
        )
        for k, (job, last) in enumerate(zip(jobs, served, strict=True))
    ]  # fmt: skip
    timeline = Timeline(ports, lanes, (), run_clock(ports, lanes, ()))
    data = AllocationData.build(timeline, flows, Prices({"lane": 1.0}, {phase.request: 1.0 for phase in phases}, {}))
    return [float(when) for when in simulate(data, "residual_edf").flow_finish_s]


def slack(lengths: list[float], busy: list[float], jobs: list[Job]) -> float:
    """Least bytes that are left of any stretch once all that must move inside it has moved."""
    free = [t * (1.0 - b) for t, b in zip(lengths, busy, strict=True)]
    return min(
        sum(free[s : t + 1]) - sum(job.size for job in jobs if job.first >= s and job.last <= t)
        for s, t in itertools.combinations_with_replacement(range(len(lengths)), 2)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], list[float], list[Job]]:
    count = draw(st.integers(1, 5))
    lengths = [draw(st.integers(1, 8)) / 4 for _ in range(count)]
    busy = [draw(st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.75])) for _ in range(count)]
    jobs = []
    for _ in range(draw(st.integers(1, 5))):
        last = draw(st.integers(0, count - 1))
        jobs.append(Job(draw(st.integers(0, last)), last, draw(st.integers(1, 16)) / 8))
    return lengths, busy, jobs


@settings(max_examples=400, deadline=None)
@given(cases())
def test_earliest_due_first_is_in_time_where_the_demand_bound_holds(
    case: tuple[list[float], list[float], list[Job]],
) -> None:
    lengths, busy, jobs = case
    ends = list(itertools.accumulate(lengths))
    late = max(done - ends[job.last] for done, job in zip(replayed(lengths, busy, jobs), jobs, strict=True))
    assert (late <= 1e-9) is (slack(lengths, busy, jobs) >= -1e-9)


def test_order_of_largest_share_of_the_window_first_misses_what_earliest_due_first_meets() -> None:
    # 6 bytes due at 10 and 1 byte due at 2 on a port of 1 byte/s: shares of their windows 0.6 and 0.5.
    lengths, busy, jobs = [2.0, 8.0], [0.0, 0.0], [Job(0, 1, 6.0), Job(0, 0, 1.0)]
    ends = [2.0, 10.0]
    shares = [job.size / ends[job.last] for job in jobs]
    assert replayed(lengths, busy, jobs) == pytest.approx([7.0, 1.0])
    by_share = sorted(range(2), key=lambda k: -shares[k])
    order = [by_share.index(k) for k in range(2)]
    done = replayed(lengths, busy, jobs, order)
    assert done == pytest.approx([6.0, 7.0])
    assert done[1] > ends[0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=8))
def test_layer_after_layer_is_done_when_the_law_of_pipelines_says(layers: list[tuple[int, int]]) -> None:
    lengths, sizes = [c / 4 for c, _ in layers], [v / 4 for _, v in layers]
    phases = tuple(Phase(f"p{i}", PhaseKind.COMPUTE, c, request="q") for i, c in enumerate(lengths))
    lanes, ports = (Lane("lane", phases),), (Port("port", PortKind.ABSTRACT, 1.0),)
    release = tuple((i + 1, size) for i, size in enumerate(sizes))
    flow = Flow(
        "f", FlowKind.SEND, "q", "lane", "s", "d", (Route("route", {"port": 1.0}, {}),),
        release, ((len(layers), sum(sizes)),),
    )  # fmt: skip
    timeline = Timeline(ports, lanes, (), run_clock(ports, lanes, ()))
    data = AllocationData.build(timeline, [flow], Prices({"lane": 1.0}, {"q": 1.0}, {}))
    (done,) = simulate(data, "unmanaged").flow_finish_s
    assert done == pytest.approx(completion_s(lengths, sizes, 1.0), rel=1e-9)
