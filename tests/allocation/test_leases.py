"""Leases: the last byte at most so long after the first release; and requests whose bytes may move before they run."""

import dataclasses

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case, residual_cost, with_leases
from test_collapse import ranks
from test_programs import close, one_collective, with_decode
from test_writebacks import back

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import lower_bound, single_port
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.allocation.residual import clock_bounds, step_time
from pdmodel.errors import InputError
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.flows import MemoryKind, MemoryPool, Transfers
from pdmodel.workload.prices import Prices


def leased_case(seed):
    rng = np.random.default_rng([101, seed])
    return with_leases(random_case(rng), rng)


@pytest.mark.parametrize("seed", range(25))
def test_random_cases_agree_with_plain_matrices(seed):
    case = leased_case(seed)
    data = AllocationData.from_dict(case)
    elastic, expected = solve_elastic(data), elastic_cost(case)
    assert close(elastic.objective, expected)
    assert elastic.lease_excess_s.sum() == pytest.approx(expected.lease, rel=1e-6, abs=1e-6)
    fixed, expected = solve_residual(data), residual_cost(case)
    assert close(fixed.objective, expected)
    assert (fixed.lease_excess_s.sum() > 1e-9) >= (expected.lease > 1e-6)


def test_the_random_cases_bind():
    fits = dearer = late = 0
    for seed in range(25):
        case = leased_case(seed)
        free = {**case, "flows": [{k: x for k, x in flow.items() if k != "lease"} for flow in case["flows"]]}
        with_it = residual_cost(case)
        late += with_it.lease > 1e-6
        fits += with_it.lease <= 1e-6
        dearer += with_it > residual_cost(free) + 1e-3
    assert min(fits, dearer, late) >= 3


@pytest.mark.parametrize("seed", range(6))
def test_ranks_keep_their_leases_alike(seed):
    case = ranks(np.random.default_rng([102, seed]), 4)
    tau = [phase["duration"] for phase in case["phases"]]
    for flow in case["flows"]:
        flow["lease"] = sum(tau) * 1.3 if flow["kind"] == "send" else sum(tau[:2]) + 0.05 * sum(tau)
    data = AllocationData.from_dict(case)
    for solve, plain in ((solve_elastic, elastic_cost), (solve_residual, residual_cost)):
        collapsed, whole = solve(data), solve(data, symmetric=False)
        assert collapsed.objective == pytest.approx(whole.objective, rel=1e-7)
        assert collapsed.objective == pytest.approx(plain(case), rel=1e-6, abs=1e-9)
    longer = dataclasses.replace(data.flows[0], lease_s=9.0)
    odd = dataclasses.replace(data, flows=(longer, *data.flows[1:]))
    assert len(set(collapse(odd, odd.flow_quantum_bytes).flow.tolist())) > 2


def test_a_lease_makes_a_decode_lane_give_way():
    """Decode takes 8 of 10 byte/s and is dear: 6 bytes need 3 s beside it, and the lease leaves 2."""
    case = one_collective(price=1.0, send=6.0) | {"phases": [{"duration": 1e-9, "bytes": {}}]}
    flow = case["flows"][0]
    free = with_decode(AllocationData.from_dict(case), [(9.0, {"e": 8.0})])
    flow["lease"] = 2.0
    leased = with_decode(AllocationData.from_dict(case), [(9.0, {"e": 8.0})])
    assert solve_elastic(free).elastic.tail_s == pytest.approx(3.0)
    solution = solve_elastic(leased)
    assert solution.elastic.tail_s == pytest.approx(2.0)
    assert solution.objective == pytest.approx(2.0 + 9.0 * 2.0 / 8.0)
    assert solution.objective == pytest.approx(elastic_cost(case, [(9.0, {"e": 8.0})]))
    assert solution.lease_excess_s == pytest.approx([0.0])
    assert lower_bound(leased) == lower_bound(free)
    assert single_port(AllocationData.from_dict(case)) is None


def phases(*seconds):
    return [{"duration": x, "bytes": {}} for x in seconds]


def send(release, end, *, lease=None, name="s", size=6.0, price=1.0):
    flow = {"name": name, "kind": "send", "routes": [{"e": 1}], "release": release, "due": [[end, size]]}
    return flow | {"price": price, "quantum": size / 2, "lease": lease}


def test_a_lease_that_ends_inside_the_prefill():
    """All bytes released at 0, prefill of 4 s, lease of 2.5: they must be there by the end of phase 1, at 2 s."""
    first, other = send([[0, 6.0]], 4, lease=2.5), send([[0, 12.0]], 4, name="o", size=12.0)
    case = {"ports": {"e": {"capacity": 4.5}}, "phases": phases(1, 1, 1, 1), "lane_price": 3.0, "flows": [other, first]}
    solution = solve_elastic(AllocationData.from_dict(case))
    assert solution.objective == pytest.approx(0.0, abs=1e-9)
    assert solution.lease_excess_s == pytest.approx([0.0, 0.0])
    leased = sum(p.rates[1] * p.duration_s for p in solution.schedule.pieces if p.slot <= 3)
    assert leased == pytest.approx(6.0)
    fixed = solve_residual(AllocationData.from_dict(case | {"tail": [1.0, 2.0]}))
    assert fixed.lease_excess_s == pytest.approx([0.0, 0.0])
    assert sum(p.rates[1] * p.duration_s for p in fixed.schedule.pieces if p.slot <= 3) == pytest.approx(6.0)
    late = {**case, "flows": [other, {**first, "release": [[0, 3.0], [3, 3.0]]}]}
    assert solve_elastic(AllocationData.from_dict(late)).lease_excess_s == pytest.approx([0.0, 1.5])  # 4 s less 2.5
    fixed = solve_residual(AllocationData.from_dict(late | {"tail": [1.0, 2.0]}))
    assert fixed.lease_excess_s == pytest.approx([0.0, 1.5])


def test_what_nothing_can_keep_is_told():
    case = {"ports": {"e": {"capacity": 1.0}}, "phases": phases(1, 1), "lane_price": 3.0, "tail": [1.0] * 8}
    case["flows"] = [send([[0, 6.0]], 2, lease=4.0)]
    assert solve_elastic(AllocationData.from_dict(case)).lease_excess_s == pytest.approx([2.0])
    assert solve_residual(AllocationData.from_dict(case)).lease_excess_s == pytest.approx([2.0])
    case["flows"] = [send([[0, 6.0]], 2, lease=6.0)]
    for solve in (solve_elastic, solve_residual):
        assert solve(AllocationData.from_dict(case)).lease_excess_s == pytest.approx([0.0])


def test_writebacks_have_no_lease():
    case = one_collective()
    case["flows"].append({**back([[0, 50.0]]), "lease": 0.1})
    with pytest.raises(InputError, match="a write-back has no lease"):
        AllocationData.from_dict(case)
    case["flows"][-1].pop("lease")
    (*_, written) = AllocationData.from_dict(case).flows
    with pytest.raises(InputError, match="has a due time or a lease"):
        dataclasses.replace(written, lease_s=0.1)


# ---- before a request runs -----------------------------------------------------------------------------------------
def two_requests(arrival_s=0.7):
    """A runs for 2 s, then B, which arrives meanwhile; B's prefetch needs 1.5 s and is due when B starts."""
    case = {"ports": {"e": {"capacity": 4.0}}, "phases": phases(1, 1, 1), "lane_price": 1.0, "tail": [1.0, 4.0]}
    fetch = {"name": "fetch", "kind": "load", "routes": [{"e": 1}], "release": [[0, 6.0]], "due": [[2, 6.0]]}
    case["flows"] = [fetch | {"price": 1.0, "quantum": 3.0}]
    data = AllocationData.from_dict(case)
    (lane,) = data.lanes
    named = tuple(
        dataclasses.replace(phase, request="B" if i == 2 else "A", not_before_s=arrival_s if i == 2 else 0.0)
        for i, phase in enumerate(lane.phases)
    )
    lanes = (dataclasses.replace(lane, phases=named),)
    return lanes, (dataclasses.replace(data.flows[0], request="B"),), data


def record(arrival_s, memory=()):
    lanes, flows, data = two_requests(arrival_s)
    timeline = Timeline(ports=data.ports, lanes=lanes, decode_lanes=(), clock=data.clock)
    prices = Prices(lanes={"lane0": 1.0}, decode_lanes={}, requests={"A": 1.0, "B": 1.0})
    return AllocationData.build(timeline, Transfers(flows, (), memory), prices)


@pytest.mark.parametrize("arrival_s", [0.0, 0.7, 1.0, 1.3])
def test_bytes_of_a_request_move_from_its_arrival_on(arrival_s):
    data = record(arrival_s)
    bounds = clock_bounds(data)[0]
    assert step_time(data, data.flows[0], 0, bounds) == arrival_s
    assert step_time(data, data.flows[0], 1, bounds) == max(1.0, arrival_s)
    assert step_time(data, data.flows[0], 2, bounds) == 2.0
    solution = solve_residual(data)
    begins = min(p.slot // 2 + p.offset_s for p in solution.schedule.pieces)
    assert begins == pytest.approx(arrival_s)
    missing = max(0.0, 6.0 - 4.0 * (2.0 - arrival_s))
    assert solution.late_bytes == pytest.approx([missing], abs=1e-8)
    assert (solution.objective > 1e-6) == (missing > 1e-6)


def test_the_clock_is_cut_where_such_a_request_arrives():
    assert record(0.7).clock.edges_s.tolist() == [0.0, 0.7, 1.0, 2.0, 3.0]
    assert record(0.7).clock.phase.tolist() == [[0, 0, 1, 2]]
    assert record(1.0).clock.edges_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    appears = (("lane0", 0, "B", 1.0),)
    pool = MemoryPool("host", MemoryKind.HOST, 0.5, 0.0, appears, {"fetch": 0.0})
    data = record(1.6, (pool,))
    assert data.clock.edges_s.tolist() == [0.0, 1.0, 1.6, 2.0, 3.0]
    assert solve_residual(data).memory_excess_bytes == pytest.approx([0.5])


def test_flows_of_requests_that_arrive_apart_are_not_alike():
    data = record(0.7)
    (fetch,) = data.flows
    for request, classes in (("A", 2), ("B", 1)):
        twin = dataclasses.replace(fetch, name="twin", request=request)
        two = dataclasses.replace(
            data,
            flows=(fetch, twin),
            flow_price_per_s=np.ones(2),
            flow_quantum_bytes=np.full(2, np.nan),
            late_group=("loads:lane0",) * 2,
        )
        assert len(set(collapse(two, two.volume_bytes).flow.tolist())) == classes
