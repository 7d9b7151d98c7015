import dataclasses

import numpy as np
import pytest
from plain_programs import random_case, random_lanes
from test_programs import one_collective, with_decode

from pdmodel.allocation.bound import kv_bytes, loss_bound, shared_ports
from pdmodel.allocation.data import AllocationData
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import AFTER_PREFILL, RESIDUAL_EDF, STRICT, UNMANAGED


def test_by_hand():
    data = AllocationData.from_dict(one_collective())
    bound = loss_bound(data)
    assert bound.loss_max_s == pytest.approx(0.3)  # 3 bytes over 10 byte/s
    assert bound.kv_to_critical_ratio == pytest.approx(0.3)
    assert bound.port == "e"
    assert shared_ports(data).tolist() == [True]


def test_classes_add_up_and_aligned_ranks_meet_on_a_port():
    """Two like ranks send 3 bytes each over their ports and, twice, an uplink; a third sends 4; the lane loads 5."""
    base = one_collective()
    ports = {name: {"capacity": 10.0, "guard": 0.0} for name in ("up", "gpu0", "gpu1", "gpu2")}
    sends = [
        {**base["flows"][0], "name": f"f{k}", "routes": [{f"gpu{k}": 1, "up": 2}], "release": [[0, size]]}
        for k, size in enumerate([3.0, 3.0, 4.0])
    ]
    load = {**base["flows"][0], "kind": "load", "name": "l", "release": [[0, 5.0]], "due": [[0, 5.0]]}
    phases = [{"duration": 1.0, "bytes": dict.fromkeys(ports, 8.0)}]
    bound = loss_bound(
        AllocationData.from_dict(
            {"ports": ports, "phases": phases, "lane_price": 2.0, "flows": [*sends, load | {"routes": [{"up": 1}]}]}
        )
    )
    assert bound.loss_max_s == pytest.approx(3.0 * 4 / 10 + 4.0 * 2 / 10 + 5.0 / 10)
    # The uplink carries 2 * (3 + 3 + 4) bytes of sends and 5 of loads, whichever class they belong to.
    assert bound.loss_max_aligned_s == pytest.approx(2 * (3.0 + 3.0 + 4.0) / 10 + 5.0 / 10)
    assert bound.kv_to_critical_ratio == pytest.approx((2 * (3 + 3 + 4) + 5) / 8)
    assert bound.port == "up"


def test_no_policy_loses_more_than_the_bound():
    tight = 0.0
    for seed in range(120):
        data = AllocationData.from_dict(random_case(np.random.default_rng([51, seed])))
        bound = loss_bound(data)
        for policy in (UNMANAGED, STRICT, RESIDUAL_EDF, AFTER_PREFILL):
            lost = simulate(data, policy).prefill_slowdown_s.sum()
            assert lost <= bound.loss_max_s * (1 + 1e-9) + 1e-9
            tight = max(tight, lost / bound.loss_max_s if bound.loss_max_s else 0.0)
    assert tight > 0.4
    full = AllocationData.from_dict(one_collective())
    assert simulate(full, UNMANAGED).prefill_slowdown_s.sum() == pytest.approx(loss_bound(full).loss_max_s)


def test_no_shared_port_no_loss():
    case = one_collective()
    case["ports"]["nic"] = {"capacity": 5.0}
    case["flows"][0]["routes"] = [{"nic": 1}]
    bound = loss_bound(AllocationData.from_dict(case))
    assert bound.loss_max_s == bound.loss_max_aligned_s == 0.0
    assert bound.kv_to_critical_ratio is None
    assert bound.port == ""


def test_no_bound_where_lanes_meet():
    data = AllocationData.from_dict(random_lanes(np.random.default_rng(3)))
    meets = ((data.critical_bytes[0] > 0).any(axis=0) & (data.critical_bytes[1] > 0).any(axis=0)).any()
    assert meets
    assert loss_bound(data).loss_max_s is None
    beside = with_decode(AllocationData.from_dict(one_collective()), [(1.0, {"e": 0.5})])
    assert loss_bound(beside).loss_max_s is None
    apart = AllocationData.from_dict(one_collective() | {"ports": {"e": {"capacity": 10.0}, "d": {"capacity": 2.0}}})
    apart = with_decode(apart, [(1.0, {"d": 0.5})])
    assert loss_bound(apart).loss_max_s == pytest.approx(0.3)


def test_kv_bytes_follow_the_engines_split():
    case = one_collective()
    case["ports"]["other"] = {"capacity": 1.0}
    case["flows"][0]["routes"].append({"other": 2})
    data = AllocationData.from_dict(case)
    assert kv_bytes(data).tolist() == [3.0, 0.0]
    case["phases"][-1]["bytes"]["other"] = 0.5
    # The second route would cost 2 * 3 / 1 s, but the engine does not take it.
    assert loss_bound(AllocationData.from_dict(case)).loss_max_s == pytest.approx(0.3)
    striped = dataclasses.replace(data, flows=(dataclasses.replace(data.flows[0], split=(0.75, 0.25)),))
    assert kv_bytes(striped).tolist() == [2.25, 1.5]
