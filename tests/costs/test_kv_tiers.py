"""Loads beside compute, break-even, splits and prefetch of a cached prefix."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pdmodel.costs.fullest_port import fullest_port
from pdmodel.costs.kv_tiers import (
    Prefetch,
    best_split,
    break_even_bytes_per_s,
    equal_layers_exposed_s,
    fetched_tokens,
    layered_s,
    prefetch_timeout_s,
    rank_layer_bytes,
    simple_break_even_bytes_per_s,
)
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import host_to_gpu
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.kv_cache import kv_sequence_bytes


@pytest.mark.parametrize(("peak_tflops", "gb_per_s"), [(312, 5.9), (989, 18.6)])
def test_equation_2_of_mooncake(peak_tflops, gb_per_s):
    found = simple_break_even_bytes_per_s(8192, 8192, 8, 2, 8 * peak_tflops * 1e12)
    assert found / 1e9 == pytest.approx(gb_per_s, rel=0.02)


def test_longer_prefixes_pay_from_lower_rates():
    rates = [simple_break_even_bytes_per_s(tokens, 8192, 8, 2, 1e15) for tokens in (1024, 8192, 65536)]
    assert rates == sorted(rates, reverse=True)
    with pytest.raises(InputError):
        simple_break_even_bytes_per_s(0, 8192, 8, 2, 1e15)


@given(load=st.floats(1e-6, 1), compute=st.floats(1e-6, 1), layers=st.integers(1, 100))
def test_equal_layers(load, compute, layers):
    whole = layered_s([load] * layers, [compute] * layers)
    assert whole - layers * compute == pytest.approx(equal_layers_exposed_s(load, compute, layers), rel=1e-9, abs=1e-9)
    assert whole >= max(load, compute) * layers


@given(
    size=st.floats(1e3, 1e12), fixed=st.floats(0, 1), other=st.floats(1.001, 10), scale=st.sampled_from([1e-6, 1, 1e6])
)
def test_break_even_is_where_both_take_the_same(size, fixed, other, scale):
    rate = size / (other - fixed)
    found = break_even_bytes_per_s(lambda rate: fixed + size / rate, other)
    if 1e4 < rate < 1e14:
        assert found == pytest.approx(rate, rel=1e-9)
        if 1e4 < rate * scale < 1e14:
            scaled = break_even_bytes_per_s(lambda rate: fixed + scale * size / rate, other)
            assert scaled == pytest.approx(scale * rate, rel=1e-9)


def test_always_and_never():
    assert break_even_bytes_per_s(lambda rate: 0.0, 1.0) == 0.0
    assert break_even_bytes_per_s(lambda rate: 2.0 + 1 / rate, 1.0) is None


@given(
    tokens=st.integers(0, 5000),
    page=st.integers(1, 64),
    load=st.floats(1e-6, 1e-3),
    new=st.floats(0, 1),
    layers=st.integers(1, 40),
)
@example(tokens=1198, page=1, load=0.0006412414692498793, new=0.65625, layers=6)  # two valleys of nearly one depth
def test_best_split_is_that_of_every_page(tokens, page, load, new, layers):
    """Equal layers, causal attention: compute falls with the square of what is loaded."""

    def time_s(k):
        compute = (new + (tokens**2 - k**2) * 1e-7) / layers
        return layered_s([k * load / layers] * layers, [compute] * layers)

    found = best_split(tokens, page, time_s)
    best = min(found, key=lambda split: split.time_s)
    every = min(time_s(min(tokens, k)) for k in range(0, tokens + page, page))
    assert best.time_s == pytest.approx(every, rel=1e-9)
    assert {0, tokens} <= {split.loaded_tokens for split in found}
    assert all(split.loaded_tokens % page == 0 or split.loaded_tokens == tokens for split in found)


def test_few_points_still_end_at_a_page():
    looked = best_split(100_000, 1, lambda k: abs(k - 77_777), most_at_once=5)
    assert min(looked, key=lambda split: split.time_s).loaded_tokens == 77_777
    with pytest.raises(InputError):
        best_split(10, 1, float, most_at_once=4)


# ---- bytes and ports -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("llm", ["qwen3-8b", "llama-3.1-70b", "gpt-oss-120b", "mimo-v2-flash"])
def test_ranks_share_heads(llm):
    arch = load_llm(llm)
    whole = kv_sequence_bytes(arch, 4096)
    assert sum(rank_layer_bytes(arch, 4096)) == pytest.approx(whole)
    for tp_size in (2, 4):
        assert tp_size * sum(rank_layer_bytes(arch, 4096, tp_size=tp_size)) == pytest.approx(whole)


def test_latents_and_copies_of_heads():
    latent, grouped = load_llm("deepseek-v3"), load_llm("qwen3-235b-a22b")
    assert rank_layer_bytes(latent, 1024, tp_size=8) == rank_layer_bytes(latent, 1024)
    four, eight = (sum(rank_layer_bytes(grouped, 1024, tp_size=tp)) for tp in (4, 8))
    assert four == eight == 1024 * 2 * 94 * 128 * 2
    assert sum(rank_layer_bytes(latent, 0)) == 0


def test_the_fullest_port_of_loads():
    box = Box(load_profile("rtx_pro_6000_server"), "P")
    loads = [(host_to_gpu(box, gpu), 1e9) for gpu in range(8)]
    capacity = {port.name: port.capacity_bytes_per_s for port in box.ports}
    found = fullest_port(loads, capacity)
    demand: dict[str, float] = {}
    for route, size in loads:
        for port, multiplicity in route.ports.items():
            demand[port] = demand.get(port, 0.0) + multiplicity * size
    assert found.time_s == max(size / box.port_index[port].capacity_bytes_per_s for port, size in demand.items())
    assert found.bytes_per_s == box.port_index[found.port].capacity_bytes_per_s
    assert fullest_port([], capacity).time_s == 0
    with pytest.raises(InputError, match="no box here has the port"):
        fullest_port([(Route("r", {"D/gpu0/ingress": 1.0}, {}), 1.0)], capacity)


# ---- prefetch --------------------------------------------------------------------------------------------------------
def test_timeout_of_sglang():
    assert prefetch_timeout_s(4096) == 2.0
    slow = fetched_tokens(Prefetch.TIMEOUT, 65536, 64, 1e5, 1e8)
    # 8,192 tokens a batch of 8.192 s; the time allowed is 17 s.
    assert (slow.tokens, slow.allowed_s, slow.wait_s) == (16384, 17.0, 17.0)


def test_short_prefixes_are_not_fetched():
    assert fetched_tokens(Prefetch.WAIT_COMPLETE, 255, 16, 1e5, 1e9).tokens == 0
    assert fetched_tokens(Prefetch.WAIT_COMPLETE, 256, 16, 1e5, 1e9).tokens == 256
    assert fetched_tokens(Prefetch.WAIT_COMPLETE, 400, 512, 1e5, 1e9).tokens == 0


@given(
    tokens=st.integers(256, 200_000),
    page=st.sampled_from([1, 16, 64, 256]),
    rate=st.floats(1e6, 1e12),
    setup=st.floats(0, 0.01),
    queue=st.floats(0, 100),
)
def test_policies_wait_longer_for_more(tokens, page, rate, setup, queue):
    none, some, everything = (
        fetched_tokens(policy, tokens, page, 1e5, rate, setup, queue)
        for policy in (Prefetch.BEST_EFFORT, Prefetch.TIMEOUT, Prefetch.WAIT_COMPLETE)
    )
    assert none.tokens <= some.tokens <= everything.tokens == tokens // page * page
    assert none.ready_s <= some.ready_s <= max(everything.ready_s, some.allowed_s)
    assert none.wait_s == 0
    batches = math.ceil(everything.tokens / page / 128)
    end = batches * setup + everything.tokens * 1e5 / rate
    assert everything.ready_s == pytest.approx(max(queue, end))
    for found in (none, some, everything):
        assert found.ready_s >= queue
        assert found.tokens * 1e5 / rate <= found.ready_s * (1 + 1e-9)


def test_nonsense():
    with pytest.raises(InputError):
        fetched_tokens(Prefetch.TIMEOUT, 512, 0, 1e5, 1e9)
    with pytest.raises(InputError):
        layered_s([1.0], [1.0], before_s=-1.0)
    with pytest.raises(InputError):
        equal_layers_exposed_s(1.0, 1.0, 0)
    with pytest.raises(InputError):
        rank_layer_bytes(load_llm("qwen3-8b"), -1)
