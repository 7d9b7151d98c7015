"""Replays behind the published rates of flows that share something: laws that they obey, and the cause of 813."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.choose import choose
from pdmodel.engines.spec import RouteRule
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.hardware.topology import Box
from pdmodel.resources import data_folder
from pdmodel.verification.sharing import copies_of, one_nic, out_of
from pdmodel.verification.together import Side, record_of, together

RATES = st.floats(1e9, 1e11)


def box(name: str) -> Box:
    return Box(load_profile(str(data_folder("published") / "boxes" / f"{name}.json")), "P")


# ---- one NIC ---------------------------------------------------------------------------------------------------------
@settings(max_examples=100, deadline=None)
@given(RATES, RATES, st.integers(1, 16))
def test_queue_pairs_share_a_wire_equally_up_to_their_ceiling(wire: float, ceiling: float, flows: int) -> None:
    assert one_nic(wire, ceiling, flows) == pytest.approx([min(ceiling, wire / flows)] * flows, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(RATES, RATES, st.integers(2, 16), st.data())
def test_urgent_flows_come_first_and_nothing_is_made(
    wire: float, ceiling: float, flows: int, data: st.DataObject
) -> None:
    urgent = data.draw(st.integers(1, flows - 1))
    rates = one_nic(wire, ceiling, flows, urgent)
    first = min(ceiling, wire / urgent)
    assert rates[:urgent] == pytest.approx([first] * urgent, rel=1e-9)
    left = wire - first * urgent
    assert rates[urgent:] == pytest.approx([min(ceiling, left / (flows - urgent))] * (flows - urgent), abs=1e-9 * wire)
    assert sum(rates) == pytest.approx(min(wire, ceiling * flows), rel=1e-9)


# ---- any flows -------------------------------------------------------------------------------------------------------
@st.composite
def crossings(draw: st.DrawFn) -> tuple[list[Port], list[Route]]:
    ports = [Port(f"p{k}", PortKind.ABSTRACT, draw(RATES)) for k in range(draw(st.integers(1, 4)))]
    ways = st.dictionaries(st.sampled_from([port.name for port in ports]), st.sampled_from([0.5, 1.0, 2.0]), min_size=1)
    return ports, [Route(f"r{k}", draw(ways), {}) for k in range(draw(st.integers(1, 6)))]


@settings(max_examples=150, deadline=None)
@given(crossings())
def test_no_port_above_its_capacity_and_each_flow_is_held_by_a_full_one(case: tuple[list[Port], list[Route]]) -> None:
    ports, routes = case
    found = together([Side((route,)) for route in routes], ports)
    used = {
        port.name: sum(
            route.ports.get(port.name, 0.0) * rate for route, rate in zip(routes, found.at_once, strict=True)
        )
        / port.capacity_bytes_per_s
        for port in ports
    }
    assert max(used.values()) <= 1 + 1e-9
    for route in routes:
        assert max(used[name] for name in route.ports) == pytest.approx(1.0)
    assert found.total <= found.each.sum() * (1 + 1e-9)


@settings(max_examples=50, deadline=None)
@given(crossings(), st.sampled_from([1e-6, 1e6]))
def test_rates_in_another_unit(case: tuple[list[Port], list[Route]], scale: float) -> None:
    ports, routes = case
    sides = [Side((route,)) for route in routes]
    scaled = [Port(port.name, port.kind, port.capacity_bytes_per_s * scale) for port in ports]
    assert together(sides, scaled).each == pytest.approx(together(sides, ports).each * scale, rel=1e-9)


def test_patterns_of_copies() -> None:
    flat = box("two_switches_flat")
    assert [route.name for route in copies_of(flat, "0>4 1>6")] == ["P/gpu0>P/gpu4", "P/gpu1>P/gpu6"]
    assert len(copies_of(flat, "within:0-3")) == 12
    assert [route.name for route in copies_of(flat, "shift:7")][:2] == ["P/gpu0>P/gpu7", "P/gpu1>P/gpu0"]
    with pytest.raises(InputError):
        copies_of(flat, "0>0")


# ---- one near NIC, three far ones (Mooncake issue 813) ---------------------------------------------------------------
NEAR, FAR, GPU_PORT = 42e9, 7.5e9, 55.1e9


def rate(nics: list[int], rule: RouteRule) -> float:
    side, ports = out_of(box("pix_and_node"), 1, nics, rule)
    return together([side], ports).total


@pytest.mark.parametrize("rule", [RouteRule.STRIPE, RouteRule.RANDOM, RouteRule.ROUND_ROBIN])
def test_equal_shares_are_held_up_by_the_farthest_nic(rule: RouteRule) -> None:
    assert rate([1], rule) == pytest.approx(NEAR)
    assert rate([0, 1, 2, 3], rule) == pytest.approx(30e9)
    # What follows for choices that nobody published: two NICs are worse still, the near one alone is best.
    assert rate([0, 1], rule) == pytest.approx(2 * FAR)
    assert max(([1], [0, 1], [0, 1, 2], [0, 1, 2, 3]), key=lambda nics: rate(nics, rule)) == [1]


def test_the_nearest_nic_carries_more_and_weights_more_still() -> None:
    nics = [0, 1, 2, 3]
    assert rate(nics, RouteRule.NEAREST) == pytest.approx(NEAR)
    assert NEAR < rate(nics, RouteRule.WEIGHTED) <= GPU_PORT * (1 + 1e-9)


def test_a_plan_gives_far_nics_what_they_carry() -> None:
    side, ports = out_of(box("pix_and_node"), 1, [0, 1, 2, 3], RouteRule.STRIPE)
    found = 1e9 / choose(record_of([side], ports)).replay.flow_finish_s[0]
    assert found == pytest.approx(GPU_PORT, rel=1e-3)
    assert found > 1.8 * rate([0, 1, 2, 3], RouteRule.STRIPE)


def test_a_plan_serves_two_gpus_with_the_same_nics_one_after_the_other_or_apart() -> None:
    nics = [0, 1, 2, 3]
    for gpus, finish in (((1, 1), (1e9 / GPU_PORT, 2e9 / GPU_PORT)), ((1, 2), (1e9 / GPU_PORT, 1e9 / GPU_PORT))):
        found = [out_of(box("pix_and_node"), gpu, nics, RouteRule.STRIPE) for gpu in gpus]
        ports = {port.name: port for _, mine in found for port in mine}
        sides = [Side(side.routes, side.split, urgent=k == 0) for k, (side, _) in enumerate(found)]
        planned = choose(record_of(sides, list(ports.values()))).replay
        assert sorted(planned.flow_finish_s) == pytest.approx(finish, rel=1e-3)
