"""Who can pace what: bursts, gaps and bytes in flight worked by hand."""

import pytest

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Gate
from pdmodel.enforce import applicable, enforceability, phase_bursts, work_requests_within
from pdmodel.engines.catalog import load_engine
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import STRICT, UNMANAGED, cap

GB = 1e9


def burst_case(*, burst_s=4e-3, gap_s=4e-3, guard=0.05, layers=4, kind="send"):
    """Layers of compute and a collective on one 50 GB/s port; KV of each layer is 8 MB."""
    phases = []
    for _ in range(layers):
        phases += [{"duration": gap_s, "bytes": {}}, {"duration": burst_s, "bytes": {"e": 40 * GB * burst_s}}]
    steps = [[2 * k + 1 if kind == "send" else 2 * k, 8e6] for k in range(layers)]
    total = [[2 * layers if kind == "send" else 0, 8e6 * layers]]
    return AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50 * GB, "guard": guard * 50 * GB}},
            "phases": phases,
            "lane_price": 5.0,
            "flows": [
                {
                    "name": "f",
                    "kind": kind,
                    "routes": [{"e": 1}],
                    "release": steps if kind == "send" else total,
                    "due": total if kind == "send" else steps,
                    "price": 1.0,
                    "quantum": None,
                }
            ],
        }
    )


def judged(data, engine):
    bursts = phase_bursts(data, engine)
    return bursts, enforceability(bursts, engine)


def test_long_bursts_of_a_layerwise_engine_are_gateable_with_fewer_work_requests():
    """A burst of 4 ms under a guard of 2.5 GB/s admits 10 MB; slices of 64 KiB on 2 queue pairs: 76 work requests."""
    engine = load_engine("layerwise")
    (burst,), (found,) = judged(burst_case(), engine)
    assert burst.guard_bytes == pytest.approx(10e6)
    assert (burst.burst_s, burst.gap_s) == (pytest.approx(4e-3), pytest.approx(4e-3))
    assert engine.posting.in_flight_bytes == 32 * 2**20
    assert work_requests_within(burst, engine) == 76
    assert found.gate is Gate.GATEABLE
    assert "76 work requests in flight instead of 256" in found.text


def test_short_gaps_are_the_nics():
    """A gap of 20 us is shorter than the 30 us that it takes to see it."""
    _, (found,) = judged(burst_case(burst_s=6e-5, gap_s=2e-5), load_engine("layerwise"))
    assert found.gate is Gate.CLASS_ONLY
    assert found.needed_s == pytest.approx(30e-6 + 65536 / 50e9)
    assert "the gap is shorter" in found.text


def test_an_engine_that_submits_chunks_cannot_gate():
    _, (found,) = judged(burst_case(), load_engine("sglang_mooncake"))
    assert found.gate is Gate.CLASS_ONLY
    assert "submits a whole chunk" in found.text


def test_loads_that_no_nic_carries_are_nobodys():
    """8 MB a layer are in flight where the guard admits 2.5 GB/s for 1 ms."""
    _, (found,) = judged(burst_case(burst_s=1e-3, kind="load"), load_engine("layerwise"))
    assert found.gate is Gate.NEITHER
    assert "2.5 MB a burst" in found.text


def test_no_collective_beside_kv_is_nothing_to_enforce():
    alone = AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50.0}, "other": {"capacity": 50.0}},
            "phases": [{"duration": 1.0, "bytes": {"other": 20.0}}],
            "lane_price": 2.0,
            "flows": [
                {
                    "name": "f",
                    "kind": "send",
                    "routes": [{"e": 1}],
                    "release": [[0, 10.0]],
                    "due": [[1, 10.0]],
                    "price": 1.0,
                }
            ],
        }
    )
    assert phase_bursts(alone, load_engine("layerwise")) == ()


@pytest.mark.parametrize("rule", [UNMANAGED, cap("e", 1e9)])
def test_rules_without_gates_can_be_applied(rule):
    data = burst_case()
    found = applicable([(rule, simulate(data, rule))], rule, 1.0, (), 1.0)
    assert (found.policy, found.worth_of_gates) == (rule.name, 0.0)


def test_missing_gates_have_a_worth():
    """`strict` cannot be gated by an engine that submits chunks: `unmanaged` is left, at its own cost."""
    data, engine = burst_case(), load_engine("sglang_mooncake")
    tried = [(UNMANAGED, simulate(data, UNMANAGED)), (STRICT, simulate(data, STRICT))]
    _, judgement = judged(data, engine)
    found = applicable(tried, STRICT, tried[1][1].cost, judgement, 0.16)
    assert found.policy == "unmanaged"
    assert found.cost == tried[0][1].cost
    assert found.worth_of_gates == pytest.approx(tried[0][1].cost - tried[1][1].cost)
    assert found.worth_of_gates > 0


def test_a_lane_without_a_collective_has_no_bursts():
    """One GPU, or an instance without requests: nothing to gate, and nothing to fail on."""
    data = AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50 * GB}},
            "phases": [{"duration": 1e-3, "bytes": {}}],
            "lane_price": 1.0,
            "flows": [
                {
                    "name": "f",
                    "kind": "send",
                    "routes": [{"e": 1}],
                    "release": [[1, GB]],
                    "due": [[1, GB]],
                    "price": 1.0,
                }
            ],
        }
    )
    assert phase_bursts(data, load_engine("layerwise")) == ()
