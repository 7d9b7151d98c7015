"""Posting threads and message rate as ports: a route of 256-byte pieces crosses them 256 times a byte."""

import numpy as np
import pytest
from plain_programs import elastic_cost, random_case, residual_cost
from test_programs import close
from test_scaling import in_bytes

from pdmodel.allocation.collapse import collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import lower_bound, single_port
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.allocation.scaling import scale_of
from pdmodel.hardware.ports import REFERENCE_BYTES

PIECES = 256.0


def posted(case, rng, *, spare=1.0):
    """Every route crosses a posting and a message port; ``spare``: how they compare with the slowest other port."""
    slowest = min(port["capacity"] for port in case["ports"].values())
    times = REFERENCE_BYTES / PIECES
    ports = {**case["ports"], "posting": {"capacity": spare * slowest * times}, "messages": {"capacity": 1e4 * times}}
    ports["posting"]["guard"] = ports["messages"]["guard"] = 0.0
    flows = [
        {
            **flow,
            "routes": [
                {**route, "posting": float(rng.choice([times, 1.0, 16.0])), "messages": times}
                for route in flow["routes"]
            ],
        }
        for flow in case["flows"]
    ]
    return {**case, "ports": ports, "flows": flows, "tail": [2 * x for x in case["tail"]]}


@pytest.mark.parametrize("seed", range(20))
def test_same_optimum_as_plain_matrices(seed):
    rng = np.random.default_rng([111, seed])
    case = posted(random_case(rng), rng, spare=float(rng.choice([0.3, 1.0, 4.0])))
    for factor in (1.0, 1e6, 1e-6):
        data = AllocationData.from_dict(in_bytes(case, factor))
        assert close(solve_elastic(data).objective, elastic_cost(case))
        assert close(solve_residual(data).objective, residual_cost(case))
        assert lower_bound(data).cost <= solve_elastic(data).objective * (1 + 1e-9) + 1e-12


def ranks_of_pieces(count=4, times=PIECES):
    """One send per rank, each with its own posting port, one NIC with a message port for all."""
    ports = {"nic": {"capacity": 25e9}, "messages": {"capacity": 1e8 * REFERENCE_BYTES}}
    ports |= {f"posting{k}": {"capacity": REFERENCE_BYTES / 1e-6} for k in range(count)}
    ports = {name: port | {"guard": 0.0} for name, port in ports.items()}
    flows = [
        {
            "name": f"send{k}",
            "kind": "send",
            "routes": [{"nic": 1.0, "messages": times, f"posting{k}": times}],
            "release": [[0, 4e9], [2, 4e9]],
            "due": [[2, 8e9]],
            "price": 1.0,
            "quantum": 4e9,
        }
        for k in range(count)
    ]
    phases = [{"duration": 0.5, "bytes": {}}, {"duration": 0.5, "bytes": {"nic": 10e9}}]
    return {"ports": ports, "phases": phases, "lane_price": 9.0, "flows": flows, "tail": [5.0, 40.0, 100.0]}


def test_posting_is_what_binds_and_ranks_collapse():
    """256-byte pieces at one a microsecond: 0.256 GB/s a rank, 8 GB take 31 s; with whole slices the NIC binds."""
    case = ranks_of_pieces()
    data = AllocationData.from_dict(case)
    assert set(collapse(data, data.flow_quantum_bytes).flow.tolist()) == {0}
    for solve, plain in ((solve_elastic, elastic_cost), (solve_residual, residual_cost)):
        solution = solve(data)
        assert solution.objective == pytest.approx(plain(case), rel=1e-6)
        assert solution.objective == pytest.approx(solve(data, symmetric=False).objective, rel=1e-8)
    elastic = solve_elastic(data)
    assert elastic.elastic.tail_s == pytest.approx(8e9 / 0.256e9 - 1.0, rel=1e-6)
    posting = [k for k, port in enumerate(data.ports) if port.name.startswith("posting")]
    assert elastic.shadow_price[posting].min() > 0
    assert elastic.shadow_price[0] == pytest.approx(0.0, abs=1e-15)
    whole = solve_elastic(AllocationData.from_dict(ranks_of_pieces(times=1.0)))
    assert whole.elastic.tail_s < 1.0
    assert single_port(data) is None


def test_units_follow_what_gets_through():
    data = AllocationData.from_dict(ranks_of_pieces())
    assert data.capacity.max() > 6e12
    assert scale_of(data).rate_bytes_per_s == pytest.approx(1e8 * REFERENCE_BYTES / PIECES)
