"""The verdict's parts on cases worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Bound, VerdictKind
from pdmodel.hardware.ports import PortKind
from pdmodel.transfer.flows import FlowKind
from pdmodel.verdict import Contest, judge, mean_piece_bytes, port_shortfall, price_of_prefill, shares_port

BOUND = Bound(1.0, 1.0, 0.1, 0.5, "e", "")


def one_port(*, capacity=10.0, release=((0, 30.0),), critical=0.0, kind="send", due=None):
    """Three phases of 1 s on one port; the second is a collective of ``critical`` bytes."""
    bytes_of = [{}, {"e": critical} if critical else {}, {}]
    total = sum(size for _, size in release)
    return AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": capacity, "guard": 0.0}},
            "phases": [{"duration": 1.0, "bytes": b} for b in bytes_of],
            "lane_price": 2.0,
            "flows": [
                {
                    "name": "f",
                    "kind": kind,
                    "routes": [{"e": 1}],
                    "release": [list(step) for step in release],
                    "due": due or [[3, total]],
                    "price": 1.0,
                    "quantum": None,
                }
            ],
        }
    )


def test_kv_that_just_fits_is_feasible():
    # 30 bytes at 10 byte/s from t = 0, due at t = 3.
    assert port_shortfall(one_port(), slack_s=0.0) is None


def test_shortfall_names_the_port_and_the_missing_rate():
    # 60 bytes need 6 s; due at 3 s, 1 s is allowed: 60 / (3 + 1) = 15 byte/s are needed, 5 are missing.
    found = port_shortfall(one_port(release=((0, 60.0),)), slack_s=1.0)
    assert found is not None
    assert (found.port, found.late_s, found.size_bytes) == ("e", 3.0, 60.0)
    assert found.missing_bytes_per_s == pytest.approx(5.0)


def test_critical_traffic_does_not_count():
    assert port_shortfall(one_port(critical=10.0), slack_s=0.0) is None


def test_late_release_counts():
    # 20 of the 30 bytes come at t = 2: 2 s of work, 1 s left.
    found = port_shortfall(one_port(release=((0, 10.0), (2, 20.0))), slack_s=0.5)
    assert found is not None
    assert found.late_s == pytest.approx(1.0)
    assert found.missing_bytes_per_s == pytest.approx(20.0 / 1.5 - 10.0)


def test_bytes_released_at_the_due_time_need_the_slack():
    # 10 bytes at t = 3, due at t = 3: one second late at 10 byte/s; no rate brings that to zero.
    found = port_shortfall(one_port(release=((3, 10.0),)), slack_s=0.0)
    assert found is not None
    assert math.isinf(found.missing_bytes_per_s)
    assert port_shortfall(one_port(release=((3, 10.0),)), slack_s=1.0) is None


def posted(*, capacity, volume, run):
    """One thread that posts descriptors of ``run`` bytes; ``capacity`` in descriptors/s."""
    data = one_port(capacity=capacity * 65536.0, release=((0, volume),))
    (flow,) = data.flows
    route = replace(flow.routes[0], ports={"e": 65536.0 / run})
    port = replace(data.ports[0], kind=PortKind.POSTING)
    return replace(data, ports=(port,), flows=(replace(flow, routes=(route,)),))


def test_descriptors_are_told_as_descriptors():
    # 1.28 GB in pieces of 256 bytes are 5 million descriptors; a million a second, due at 3 s.
    data = posted(capacity=1e6, volume=1.28e9, run=256.0)
    assert mean_piece_bytes(data, 0) == pytest.approx(256.0)
    shortfall = port_shortfall(data, slack_s=0.5)
    verdict = judge(
        data,
        shortfall=shortfall,
        slack_s=0.5,
        bound=BOUND,
        band=(),
        best_rule="strict",
        best_rule_cost=0.0,
        plan_is="plan",
    )
    assert verdict.text == (
        "infeasible: e posts 1 million descriptors/s and has 5 million of 256 B due; even alone on the port it is "
        "2.000 s late (500 ms allowed): 428571/s are missing."
    )


def test_nobody_waits_for_a_write_back():
    data = one_port(release=((0, 60.0),))
    late = replace(data.flows[0], name="w", kind=FlowKind.WRITEBACK, due=())
    assert port_shortfall(replace(data, flows=(late,)), slack_s=0.0) is None


def test_loads_count_layer_by_layer():
    # 10 bytes due at t = 1, 10 more at t = 2, all released at t = 0: on time; 15 due at t = 1 are 0.5 s late.
    fits = one_port(kind="load", release=((0, 20.0),), due=[[1, 10.0], [2, 10.0]])
    assert port_shortfall(fits, slack_s=0.0) is None
    late = port_shortfall(one_port(kind="load", release=((0, 20.0),), due=[[1, 15.0], [2, 5.0]]), slack_s=0.0)
    assert late is not None
    assert late.late_s == pytest.approx(0.5)


@given(
    sizes=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=4),
    capacity=st.floats(1.0, 20.0),
    slack=st.floats(0.0, 2.0),
)
def test_shortfall_is_that_of_earliest_due_first(sizes, capacity, slack):
    """Loads released at 0 and due at 1, 2, ...: the lateness of earliest due first is that of each prefix."""
    due = [[k, size] for k, size in enumerate(sizes)]
    data = one_port(kind="load", capacity=capacity, release=((0, sum(sizes)),), due=[[min(k, 2), s] for k, s in due])
    at = np.minimum(np.arange(len(sizes)), 2.0)
    late = max(sum(s for s, other in zip(sizes, at, strict=True) if other <= t) / capacity - t for t in at)
    found = port_shortfall(data, slack)
    if late > slack * (1 + 1e-6) + 1e-9:
        assert found is not None
        assert found.late_s == pytest.approx(late)
    elif late < slack * (1 - 1e-6):
        assert found is None


def verdict(data, contests, shortfall=None, slack=0.0):
    return judge(
        data,
        shortfall=shortfall,
        slack_s=slack,
        bound=BOUND,
        band=[Contest(w, k, u, p) for w, k, u, p in contests],
        best_rule="strict",
        best_rule_cost=1.0,
        plan_is="plan",
    )


def test_price_of_prefill():
    # pi = lane_price 2 - lambda 1, over 3 s.
    assert price_of_prefill(one_port(critical=5.0)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("gains", "kind"),
    [
        ((0.02, 0.0299), VerdictKind.HEADROOM),
        ((0.03, 0.5), VerdictKind.CONTENDED),
        ((0.0299, 0.5), VerdictKind.UNCERTAIN),
    ],
)
def test_one_percent_of_the_prefill_decides(gains, kind):
    # 1 % of 3 GPU·s is 0.03.
    data = one_port(critical=5.0)
    band = [(1.0, 0.0, 1.0 + gains[0], 1.0), (2.0, 0.0, 1.0 + gains[1], 1.0)]
    assert verdict(data, band).kind is kind


def test_no_shared_port_comes_before_headroom():
    data = one_port(critical=0.0)
    assert not shares_port(data)
    found = verdict(data, [(1.0, 0.0, 1.0, 1.0)])
    assert found.kind is VerdictKind.NO_SHARED_PORT
    assert "no collective uses a port that KV uses" in found.text


def test_infeasible_comes_first():
    data = one_port(release=((0, 60.0),))
    found = verdict(data, [(1.0, 0.0, 1.0, 1.0)], port_shortfall(data, 1.0), 1.0)
    assert found.kind is VerdictKind.INFEASIBLE
    assert "e carries" in found.text
    assert "missing" in found.text


def test_one_percent_of_a_prefill_that_costs_nothing_is_of_its_users_or_of_nothing():
    case = {
        "ports": {"e": {"capacity": 10.0}},
        "phases": [{"duration": 3.0, "bytes": {"e": 6.0}}],
        "lane_price": 1.0,
        "flows": [{"name": "f", "kind": "send", "routes": [{"e": 1}], "release": [[0, 9.0]], "due": [[1, 9.0]]}],
    }
    case["flows"][0]["price"] = 1.0  # all of pi_i is the user's
    assert price_of_prefill(AllocationData.from_dict(case)) == pytest.approx(3.0)
    case["flows"][0]["price"] = case["lane_price"] = 0.0
    data = AllocationData.from_dict(case)
    assert price_of_prefill(data) == 0.0
    verdict = judge(
        data,
        shortfall=None,
        slack_s=0.0,
        bound=BOUND,
        band=[Contest(1.0, 0.0, 0.0, 0.0)],
        best_rule="strict",
        best_rule_cost=0.0,
        plan_is="plan",
    )
    assert verdict.kind is VerdictKind.HEADROOM
