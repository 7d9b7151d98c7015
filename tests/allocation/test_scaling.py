import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_programs import random_case

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.fast_paths import lower_bound, single_port
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.allocation.scaling import scale_of


def in_bytes(case, factor):
    """The case with every figure in bytes multiplied."""
    ports = {n: {key: x * factor for key, x in port.items()} for n, port in case["ports"].items()}
    phases = [{**p, "bytes": {n: x * factor for n, x in p["bytes"].items()}} for p in case["phases"]]
    flows = [
        {
            **flow,
            "release": [[k, x * factor] for k, x in flow["release"]],
            "due": [[k, x * factor] for k, x in flow["due"]],
            "quantum": flow["quantum"] * factor,
        }
        for flow in case["flows"]
    ]
    return {**case, "ports": ports, "phases": phases, "flows": flows}


@settings(deadline=None, max_examples=25, derandomize=True)
@given(seed=st.integers(0, 10_000), exponent=st.sampled_from([-6, -3, 3, 6, 9]))
def test_the_unit_of_bytes_does_not_matter(seed, exponent):
    case = random_case(np.random.default_rng([31, seed]))
    data = AllocationData.from_dict(case)
    other = AllocationData.from_dict(in_bytes(case, 10.0**exponent))
    for solve in (solve_elastic, solve_residual):
        here, there = solve(data), solve(other)
        assert there.objective == pytest.approx(here.objective, rel=1e-8, abs=1e-9)
    assert lower_bound(other).cost == pytest.approx(lower_bound(data).cost, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("exponent", [-6, 6, 10])
def test_schedule_and_prices_scale_along(exponent):
    factor = 10.0**exponent
    case = random_case(np.random.default_rng(36), loads=False, ports=(1, 2))
    here, there = (
        [solve(AllocationData.from_dict(c)) for solve in (solve_elastic, solve_residual, single_port)]
        for c in (case, in_bytes(case, factor))
    )
    assert here[0].objective > 0.01
    for one, other in zip(here, there, strict=True):
        assert other.shadow_price * factor == pytest.approx(one.shadow_price, rel=1e-6)
        assert len(other.schedule.pieces) == len(one.schedule.pieces)
        for a, b in zip(one.schedule.pieces, other.schedule.pieces, strict=True):
            assert b.duration_s == pytest.approx(a.duration_s, rel=1e-7)
            assert b.rates / factor == pytest.approx(a.rates, rel=1e-6, abs=1e-9)


def test_units_make_figures_near_one():
    scale = scale_of(AllocationData.from_dict(in_bytes(random_case(np.random.default_rng(33)), 1e9)))
    assert scale.rate_bytes_per_s > 1e9
    assert scale.size_bytes == pytest.approx(scale.time_s * scale.rate_bytes_per_s)
    assert scale.cost == pytest.approx(scale.time_s * scale.price)


def test_units_of_a_record_without_time_or_price():
    flow = {"name": "f", "kind": "send", "routes": [{"e": 1}], "release": [[0, 6.0]], "due": [[1, 6.0]], "price": 0.0}
    case = {"ports": {"e": {"capacity": 2.0}}, "phases": [{"duration": 0.0, "bytes": {}}], "lane_price": 0.0}
    data = AllocationData.from_dict(case | {"flows": [flow]})
    assert scale_of(data).time_s == 3.0  # the time of all bytes
    assert scale_of(data).price == 1.0
    assert solve_elastic(data).objective == 0.0
