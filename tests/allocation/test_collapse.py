import dataclasses

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.timeline.phases import DecodeLane


def ranks(rng, count, nudge=0.0):
    """Ranks with a private port each, two to a NIC, all behind one uplink; ``nudge`` makes the last one differ."""
    ports = {"uplink": {"capacity": 40.0, "guard": 2.0}}
    ports |= {f"nic{k}": {"capacity": 14.0, "guard": 0.0} for k in range(count // 2)}
    ports |= {f"gpu{k}": {"capacity": 20.0, "guard": 1.0} for k in range(count)}
    phases = []
    for i in range(int(rng.integers(3, 6))):
        duration = float(rng.uniform(0.3, 1.5))
        size = (
            {p: float(duration * ports[p]["capacity"] * 0.8) for p in ports if not p.startswith("nic")} if i % 2 else {}
        )
        phases.append({"duration": duration, "bytes": size})
    amount = rng.uniform(2.0, 14.0, 3)
    flows = []
    for k in range(count):
        extra = 1.0 + nudge * (k == count - 1)
        nic = f"nic{k // 2}"
        release = [[0, float(amount[0] * extra)], [len(phases), float(amount[1])]]
        send = {"routes": [{f"gpu{k}": 1.0, nic: 1.0}, {f"gpu{k}": 1.0, "uplink": 2.0}], "release": release}
        send |= {"name": f"send{k}", "kind": "send", "due": [[len(phases), sum(x for _, x in release)]]}
        load = {"routes": [{f"gpu{k}": 1.0, "uplink": 1.0}], "release": [[0, float(amount[2])]]}
        load |= {"name": f"load{k}", "kind": "load", "due": [[2, float(amount[2])]]}
        flows += [{**send, "price": 0.7, "quantum": 6.0}, {**load, "price": 3.0, "quantum": 2.0}]
    tail = [1.0, 3.0, 9.0, 27.0]
    return {"ports": ports, "phases": phases, "tail": tail, "lane_price": 6.0, "flows": flows}


def both(data, solve):
    return solve(data), solve(data, symmetric=False)


@pytest.mark.parametrize("solve", [solve_elastic, solve_residual])
@pytest.mark.parametrize("seed", range(6))
def test_symmetric_ranks_have_the_same_optimum_with_fewer_variables(seed, solve):
    data = AllocationData.from_dict(ranks(np.random.default_rng([21, seed]), 4))
    collapsed, whole = both(data, solve)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)
    assert collapsed.objective > 0.01
    assert collapsed.variables < 0.5 * whole.variables
    assert collapsed.shadow_price.sum() == pytest.approx(whole.shadow_price.sum(), rel=1e-6)
    assert np.ptp(collapsed.shadow_price[3:]) == 0.0  # the four GPUs' ports share one price


@pytest.mark.parametrize("solve", [solve_elastic, solve_residual])
def test_a_rank_that_differs_stays_apart(solve):
    data = AllocationData.from_dict(ranks(np.random.default_rng(21), 4, nudge=1e-3))
    collapsed, whole = both(data, solve)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)
    flow = collapse(data, data.flow_quantum_bytes).flow
    assert len(set(flow[::2].tolist())) == 3  # ranks 0, 1 behind one NIC; rank 2 behind the other; rank 3 by itself
    same = AllocationData.from_dict(ranks(np.random.default_rng(21), 4))
    assert len(set(collapse(same, same.flow_quantum_bytes).flow.tolist())) == 2


def nudged(data, what):
    """The record of four like ranks with one figure of rank 3 changed."""
    gpu3 = [port.name for port in data.ports].index("gpu3")
    port, flow, phase = data.ports[gpu3], data.flows[6], data.lanes[0].phases[1]
    if what == "guard":
        ports = (*data.ports[:gpu3], dataclasses.replace(port, guard_bytes_per_s=3.0))
        return dataclasses.replace(data, ports=ports)
    if what == "capacity":
        ports = (*data.ports[:gpu3], dataclasses.replace(port, capacity_bytes_per_s=19.0))
        return dataclasses.replace(data, ports=ports)
    if what == "demand":
        busy = dataclasses.replace(phase, wire_bytes={**phase.wire_bytes, "gpu3": 0.5 * phase.wire_bytes["gpu3"]})
        phases = (data.lanes[0].phases[0], busy, *data.lanes[0].phases[2:])
        return dataclasses.replace(data, lanes=(dataclasses.replace(data.lanes[0], phases=phases),))
    if what == "decode":
        lane = DecodeLane("decode", 0.02, {"gpu3": 4.0}, {"gpu3": 4.0})
        return dataclasses.replace(data, decode_lanes=(lane,), decode_price_per_s=np.array([2.0]))
    if what == "multiplicity":
        routes = (dataclasses.replace(flow.routes[0], ports={"gpu3": 1.2, "nic1": 1.0}), flow.routes[1])
        flow = dataclasses.replace(flow, routes=routes)
    if what == "release":
        flow = dataclasses.replace(flow, release=((1, flow.release[0][1]), flow.release[1]))
    if what == "quantum":
        return dataclasses.replace(data, flow_quantum_bytes=data.flow_quantum_bytes * (1 + (np.arange(8) == 6)))
    return dataclasses.replace(data, flows=(*data.flows[:6], flow, data.flows[7]))


@pytest.mark.parametrize("what", ["guard", "capacity", "demand", "decode", "multiplicity", "release", "quantum"])
def test_every_figure_keeps_unlike_ranks_apart(what):
    alike = AllocationData.from_dict(ranks(np.random.default_rng(25), 4))
    data = nudged(alike, what)
    assert len(set(collapse(alike, alike.flow_quantum_bytes).flow[::2].tolist())) == 1
    assert len(set(collapse(data, data.flow_quantum_bytes).flow[::2].tolist())) > 1
    for solve in (solve_elastic, solve_residual):
        collapsed, whole = both(data, solve)
        assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)


@pytest.mark.parametrize("seed", range(15))
def test_cases_without_symmetry_are_left_as_they_are(seed):
    case = random_case(np.random.default_rng([22, seed]))
    data = AllocationData.from_dict(case)
    for solve in (solve_elastic, solve_residual):
        collapsed, whole = both(data, solve)
        assert collapsed.objective == pytest.approx(whole.objective, rel=1e-7, abs=1e-9)


def hexagon_and_triangles():
    """Twelve ports and flows, each flow on two ports: a ring of six beside two rings of three."""
    rings = [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11]]
    pairs = [(ring[k], ring[(k + 1) % len(ring)]) for ring in rings for k in range(len(ring))]
    flows = [
        {
            "name": f"f{k}",
            "kind": "send",
            "routes": [{f"e{a}": 1.0, f"e{b}": 1.0}],
            "release": [[0, 7.0]],
            "due": [[2, 7.0]],
            "price": 1.0,
            "quantum": 3.0,
        }
        for k, (a, b) in enumerate(pairs)
    ]
    full = {f"e{k}": 8.0 for k in range(12)}
    phases = [{"duration": 1.0, "bytes": full}, {"duration": 0.5, "bytes": {}}]
    ports = {f"e{k}": {"capacity": 10.0, "guard": 0.0} for k in range(12)}
    return {"ports": ports, "phases": phases, "tail": [0.5, 2.0], "lane_price": 15.0, "flows": flows}


def test_equitable_classes_need_no_automorphism():
    case = hexagon_and_triangles()
    data = AllocationData.from_dict(case)
    classes = collapse(data, data.flow_quantum_bytes)
    assert set(classes.port.tolist()) == set(classes.flow.tolist()) == {0}  # no automorphism maps hexagon to triangle
    collapsed, whole = both(data, solve_elastic)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-9)
    assert collapsed.objective == pytest.approx(elastic_cost(case), rel=1e-9)
    assert collapsed.objective > 1.0


def test_a_schedule_is_spread_equally():
    data = AllocationData.from_dict(ranks(np.random.default_rng(23), 4))
    for solve in (solve_elastic, solve_residual):
        total = sum(piece.rates * piece.duration_s for piece in solve(data).schedule.pieces)
        moved = np.bincount(data.route_flow, total)
        assert moved == pytest.approx(data.volume_bytes, rel=1e-9)
        assert np.ptp(moved[::2]) <= 1e-9 * moved.max()


def test_groups_of_equal_requests_collapse():
    data = AllocationData.from_dict(ranks(np.random.default_rng(24), 4))
    names = tuple(f"user{k // 4}" if k % 2 == 0 else "loads" for k in range(8))
    two_users = dataclasses.replace(data, late_group=names)
    collapsed, whole = both(two_users, solve_residual)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)
    assert set(collapse(two_users, two_users.flow_quantum_bytes).group.tolist()) == {0, 1}
    dearer = dataclasses.replace(two_users, flow_price_per_s=two_users.flow_price_per_s * np.linspace(1, 2, 8))
    collapsed, whole = both(dearer, solve_residual)
    assert collapsed.objective == pytest.approx(whole.objective, rel=1e-8)
    assert len(set(collapse(dearer, dearer.flow_quantum_bytes).group.tolist())) == 3
