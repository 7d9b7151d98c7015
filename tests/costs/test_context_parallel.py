"""Bytes of the context-parallel exchanges against a count of who holds what before and after."""

import pytest

from pdmodel.costs.collectives.protocol import wire_factor
from pdmodel.costs.context_parallel import (
    CpExchange,
    all_gather_layer_bytes,
    context_parallel_layer,
    kv_row_bytes,
    one_after_another,
    ring_layer_bytes,
    ulysses_sizes,
)
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Protocol
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm

TOKENS = 8192
QWEN, DEEPSEEK = load_llm("qwen3-235b-a22b"), load_llm("deepseek-v3")


@pytest.fixture
def box():
    return Box(load_profile("rtx_pro_6000_wrx90_two_roots"), "P")


def layer(kind, arch, box, ranks=4, tp_size=1):
    return context_parallel_layer(kind, TOKENS, arch, "bf16", tp_size=tp_size, gpus=range(ranks), box=box)


def payload(cost, port="P/gpu0/ingress"):
    return cost.wire_bytes[port] / wire_factor(Protocol(cost.protocol))


def test_kv_rows_of_a_tp_rank():
    # Qwen3-235B: 4 KV heads of 128, keys and values, 2 bytes.
    assert kv_row_bytes(QWEN, "bf16", 1) == 2048
    assert kv_row_bytes(QWEN, "bf16", 4) == 512
    assert kv_row_bytes(QWEN, "fp8", 8) == 256  # a head copied on two ranks
    assert kv_row_bytes(DEEPSEEK, "bf16", 8) == 1152  # the whole latent on every rank


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_rank_ends_with_all_rows(ranks):
    # Each rank holds N/P rows and must take in the other ones.
    missing = (TOKENS - TOKENS / ranks) * 512
    assert all_gather_layer_bytes(TOKENS, 512, ranks) == missing
    assert ring_layer_bytes(TOKENS, 512, ranks) == missing


@pytest.mark.parametrize("arch", [QWEN, DEEPSEEK], ids=lambda arch: arch.name)
def test_all_gather_and_ring_move_the_same_bytes(arch, box):
    gathered = layer("all_gather", arch, box)
    rounds = layer("ring", arch, box)
    assert (len(gathered.before), len(gathered.beside), len(gathered.after)) == (1, 0, 0)
    assert (len(rounds.before), len(rounds.beside), len(rounds.after)) == (0, 3, 0)
    row = kv_row_bytes(arch, "bf16", 1)
    assert payload(gathered.before[0]) == pytest.approx(0.75 * TOKENS * row)
    assert sum(payload(cost) for cost in rounds.beside) == pytest.approx(0.75 * TOKENS * row)


def owned(tokens, heads, width, bytes_per_value=2):
    return tokens * heads * width * bytes_per_value


@pytest.mark.parametrize(("ranks", "tp_size"), [(2, 1), (4, 1), (4, 2), (8, 1)])
def test_ulysses_gqa_by_ownership(ranks, tp_size):
    before, after = ulysses_sizes(TOKENS, QWEN, ranks, tp_size)
    share = TOKENS / ranks
    heads, kv_heads = 64 // tp_size, max(1, 4 // tp_size)
    # What a rank takes in: for its heads (KV heads copied where ranks outnumber them), the rows of the other ranks.
    mine, my_kv = heads / ranks, max(kv_heads / ranks, 1)
    taken_in = owned(TOKENS - share, mine, 128) + 2 * owned(TOKENS - share, my_kv, 128)
    assert before * (ranks - 1) / ranks == pytest.approx(taken_in)
    # And afterwards: its own rows from the heads of the others.
    assert after * (ranks - 1) / ranks == pytest.approx(owned(share, heads - mine, 128))


def test_ulysses_gathers_the_latents_of_mla(box):
    found = layer("ulysses", DEEPSEEK, box)
    queries, latents = found.before
    assert queries.operation.value == "all_to_all"
    assert payload(queries) == pytest.approx(0.75 * TOKENS / 4 * 128 * 192 * 2)
    assert latents.operation.value == "all_gather"
    assert payload(latents) == pytest.approx(0.75 * TOKENS * 1152)
    assert payload(found.after[0]) == pytest.approx(0.75 * TOKENS / 4 * 128 * 128 * 2)


def test_one_rank_exchanges_nothing(box):
    for kind in CpExchange:
        found = layer(kind.value, QWEN, box, ranks=1)
        assert (found.before, found.beside, found.after) == ((), (), ())
    assert one_after_another(()) is None


def test_exchanges_add_up(box):
    costs = layer("ring", QWEN, box).beside
    total = one_after_another(costs)
    assert total is not None
    assert total.time_s == pytest.approx(3 * costs[0].time_s)
    assert total.wire_bytes["P/gpu0/egress"] == pytest.approx(3 * costs[0].wire_bytes["P/gpu0/egress"])
    assert total.input_links == dict(costs[0].input_links)


def test_bad_degrees_and_kinds_are_refused(box):
    with pytest.raises(InputError, match="do not divide"):
        ulysses_sizes(TOKENS, QWEN, 3, 1)
    with pytest.raises(InputError, match="all_gather"):
        layer("allgather", QWEN, box)
    with pytest.raises(InputError):
        ring_layer_bytes(1, 1, 0)
