"""Routing in expectation against enumeration, and the bytes of every form of expert parallelism."""

from itertools import combinations, product

import pytest

from pdmodel.costs.collectives.protocol import wire_factor
from pdmodel.costs.moe import (
    EpExchange,
    Routing,
    ep_exchange,
    expected_distinct_ranks,
    experts_touched,
    fused_moe,
    fused_tail_s,
)
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Protocol
from pdmodel.hardware.topology import Box

ROUTING = Routing(tokens=1024, hidden_size=4096, experts=256, top_k=8)


@pytest.fixture
def pcie():
    return Box(load_profile("rtx_pro_6000_wrx90_two_roots"), "P")


@pytest.fixture
def nvlink():
    return Box(load_profile("b200_8nic"), "P")


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(8, 1, 4), (8, 2, 4), (8, 3, 2), (6, 4, 3), (8, 8, 8)])
def test_distinct_ranks_by_enumeration(experts, top_k, ranks):
    size = experts // ranks
    visits = [len({expert // size for expert in chosen}) for chosen in combinations(range(experts), top_k)]
    assert expected_distinct_ranks(experts, top_k, ranks) == pytest.approx(sum(visits) / len(visits))


def test_distinct_ranks_as_published():
    # Remote ranks of a token: 4.63 of 7 for 8 of 256 experts on 8 ranks, 3.89 for 6 of 256.
    assert expected_distinct_ranks(256, 8, 8) * 7 / 8 == pytest.approx(4.63, abs=0.005)
    assert expected_distinct_ranks(256, 6, 8) * 7 / 8 == pytest.approx(3.89, abs=0.005)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 3, 2)])
def test_experts_touched_by_enumeration(experts, top_k, tokens):
    choices = list(combinations(range(experts), top_k))
    touched = [len(set().union(*chosen)) for chosen in product(choices, repeat=tokens)]
    assert experts_touched(experts, top_k, tokens) == pytest.approx(sum(touched) / len(touched))


def test_impossible_routing_is_refused():
    with pytest.raises(InputError, match="divides"):
        expected_distinct_ranks(256, 8, 7)
    with pytest.raises(InputError):
        experts_touched(8, 9, 1)
    with pytest.raises(InputError):
        Routing(tokens=-1, hidden_size=8, experts=8, top_k=2)
    with pytest.raises(InputError):
        Routing(tokens=1, hidden_size=8, experts=8, top_k=0)


def test_rows_on_the_wire():
    assert ROUTING.dispatch_row_bytes == 4096 + 4 * 32
    assert ROUTING.combine_row_bytes == 8192
    bf16 = Routing(tokens=1, hidden_size=4096, experts=8, top_k=2, dispatch_bytes=2)
    assert bf16.dispatch_row_bytes == 8192


def payload(cost, port="P/gpu0/egress"):
    return cost.wire_bytes[port] / wire_factor(Protocol(cost.protocol))


def test_without_an_exchange_nothing_moves(pcie):
    dispatch, combine = ep_exchange("all_reduce", ROUTING, range(8), pcie)
    assert (dispatch.time_s, dispatch.wire_bytes, combine.time_s, combine.wire_bytes) == (0, {}, 0, {})


def test_all_gather_and_reduce_scatter_move_every_token_to_every_rank(pcie):
    dispatch, combine = ep_exchange("all_gather_reduce_scatter", ROUTING, range(8), pcie)
    assert (dispatch.operation.value, combine.operation.value) == ("all_gather", "reduce_scatter")
    assert payload(dispatch) == pytest.approx(7 * 1024 * ROUTING.dispatch_row_bytes)
    assert payload(combine) == pytest.approx(7 * 1024 * ROUTING.combine_row_bytes)
    assert payload(combine, "P/switch0/up") == pytest.approx(7 * 1024 * ROUTING.combine_row_bytes)


def test_all_to_all_sends_a_copy_per_expert_and_dedup_one_per_rank(pcie):
    dispatch, combine = ep_exchange("all_to_all", ROUTING, range(8), pcie)
    assert payload(dispatch) == pytest.approx(7 / 8 * 1024 * 8 * ROUTING.dispatch_row_bytes)
    assert payload(combine) == pytest.approx(7 / 8 * 1024 * 8 * ROUTING.combine_row_bytes)
    once, back = ep_exchange("dedup", ROUTING, range(8), pcie)
    distinct = expected_distinct_ranks(256, 8, 8)
    assert payload(once) == pytest.approx(7 / 8 * 1024 * distinct * ROUTING.dispatch_row_bytes)
    assert payload(back) == pytest.approx(7 / 8 * 1024 * distinct * ROUTING.combine_row_bytes)
    assert once.time_s < dispatch.time_s
    assert any("deepep" in note for note in once.notes)


def test_dedup_on_nvlink_meets_the_published_bandwidth(nvlink):
    # DeepEP README, V2, SM100, EP8, 8192 tokens of 7168, 24 SMs: 643 GB/s out, 675 back, local rank included.
    routing = Routing(tokens=8192, hidden_size=7168, experts=256, top_k=8)
    for cost, published in zip(ep_exchange("dedup", routing, range(8), nvlink), (643e9, 675e9), strict=True):
        assert cost.size_bytes / cost.time_s == pytest.approx(published, rel=0.01)
        assert cost.implementation.value == "deepep"


def test_low_latency_bytes_as_published():
    # DeepEP docs/legacy.md: 128 tokens x 8 copies; 7168 + 224 + 16 bytes in 77 us is 98 GB/s, 14336 back in 114 us 127.
    routing = Routing(tokens=128, hidden_size=7168, experts=256, top_k=8)
    assert 128 * 8 * (routing.dispatch_row_bytes + 16) / 77e-6 == pytest.approx(98e9, rel=0.01)
    assert 128 * 8 * routing.combine_row_bytes / 114e-6 == pytest.approx(127e9, rel=0.02)


def test_a_fused_kernel_is_flat_and_hides_behind_compute(nvlink):
    routing = Routing(tokens=8192, hidden_size=4096, experts=256, top_k=6)
    compute = 1283.1e-6 - fused_tail_s(routing)
    layer = fused_moe(routing, compute, range(8), nvlink)
    assert layer.exposed_s == 0
    assert layer.time_s == pytest.approx(1283.1e-6)
    port = "P/gpu0/nvlink_egress"
    assert layer.wire_bytes[port] == pytest.approx(7 / 8 * 3 * 8192 * 6 * 4096)
    assert layer.demand_bytes_per_s[port] == pytest.approx(layer.wire_bytes[port] / layer.time_s)
    # Published: 499 GB/s while it runs, the local eighth included.
    assert layer.demand_bytes_per_s[port] * 8 / 7 == pytest.approx(499e9 * compute / 1283.1e-6, rel=0.005)


def test_a_fused_kernel_exposes_what_compute_cannot_hide(nvlink):
    layer = fused_moe(ROUTING, 1e-6, range(8), nvlink)
    assert layer.exchange_s == pytest.approx(layer.wire_bytes["P/gpu0/nvlink_egress"] / 783e9)
    assert layer.exposed_s == pytest.approx(layer.exchange_s - 1e-6)
    assert layer.time_s == pytest.approx(layer.exchange_s + layer.tail_s)
    idle = fused_moe(Routing(tokens=0, hidden_size=8, experts=8, top_k=1), 0.0, range(8), nvlink)
    assert (idle.time_s, idle.demand_bytes_per_s) == (0, {})


def test_fused_needs_nvlink_and_kinds_are_named(pcie):
    with pytest.raises(CoverageError, match="NVLink"):
        ep_exchange("fused", ROUTING, range(8), pcie)
    with pytest.raises(InputError, match="all_to_all"):
        ep_exchange("alltoall", ROUTING, range(8), pcie)


def test_one_rank_exchanges_nothing(nvlink):
    for kind in EpExchange:
        for cost in ep_exchange(kind.value, ROUTING, (0,), nvlink):
            assert (cost.time_s, cost.wire_bytes) == (0, {})
