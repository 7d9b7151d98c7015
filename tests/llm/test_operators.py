"""FLOP and bytes of a layer against counts made by hand."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.operators import (
    CpLayout,
    Operation,
    OperationKind,
    Stage,
    causal_pairs,
    cp_pieces,
    decode_layer,
    experts_touched,
    logits,
    prefill_layer,
)

DENSE, MOE, LATENT = load_llm("qwen3-32b"), load_llm("qwen3-235b-a22b"), load_llm("deepseek-v3")


def flop(operations: tuple[Operation, ...], *stages: Stage) -> float:
    return sum(operation.flop for operation in operations if not stages or operation.stage in stages)


def one(operations: tuple[Operation, ...], name: str) -> Operation:
    return next(operation for operation in operations if operation.name == name)


def test_dense_layer_by_hand() -> None:
    q, p = 1000, 500
    operations = prefill_layer(DENSE, 0, q, p)
    heads, kv, width, d, ff = 64, 8, 128, 5120, 25600
    assert flop(operations, Stage.QKV) == 2 * q * d * (heads + 2 * kv) * width
    assert flop(operations, Stage.O_PROJ) == 2 * q * d * heads * width
    assert flop(operations, Stage.MLP) == 6 * q * d * ff
    pairs = sum(p + i + 1 for i in range(q))
    assert flop(operations, Stage.ATTENTION) == 4 * pairs * heads * width
    assert [operation.stage for operation in operations] == sorted(
        (operation.stage for operation in operations), key=list(Stage).index
    )
    gate_up = one(operations, "gate_up")
    assert gate_up.weight_bytes == 2 * d * 2 * ff
    assert gate_up.size_bytes == gate_up.weight_bytes + 2 * q * (d + 2 * ff)
    # read input and residual, write both; read gate and up, write their product
    assert one(operations, "mlp_norm").size_bytes == q * 4 * d * 2
    assert one(operations, "activation").size_bytes == q * 3 * ff * 2


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4096), st.integers(0, 8192))
def test_ranks_share_the_work_of_a_dense_layer(tp: int, q: int, p: int) -> None:
    whole, share = prefill_layer(DENSE, 0, q, p), prefill_layer(DENSE, 0, q, p, tp_size=tp)
    assert tp * flop(share) == pytest.approx(flop(whole), rel=1e-12)
    step, part = decode_layer(DENSE, 0, q, p + 1), decode_layer(DENSE, 0, q, p + 1, tp_size=tp)
    assert tp * flop(part) == pytest.approx(flop(step), rel=1e-12)


def test_kv_heads_are_replicated_above_their_number() -> None:
    # 4 KV heads on 8 ranks: each rank holds one, so two ranks hold the same.
    part = one(decode_layer(MOE, 0, 16, 1000, tp_size=8), "attention")
    assert part.size_bytes == 16 * 1000 * 2 * 1 * 128 * 2
    assert one(prefill_layer(MOE, 0, 10, tp_size=8), "qkv").n == (64 / 8 + 2) * 128


def test_chunks_add_up_to_the_whole_prompt() -> None:
    chunks = [flop(prefill_layer(DENSE, 0, 512, 512 * k), Stage.ATTENTION) for k in range(4)]
    assert sum(chunks) == flop(prefill_layer(DENSE, 0, 2048), Stage.ATTENTION)
    steps = [causal_pairs(1, k) for k in range(2048)]
    assert sum(steps) == causal_pairs(2048, 0)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 64), st.integers(0, 4096))
def test_cp_layouts(cp: int, pieces: int, past: int) -> None:
    new = pieces * 2 * cp
    zigzag = sum(causal_pairs(*piece) for piece in cp_pieces(new, past, cp, CpLayout.ZIGZAG))
    assert cp * zigzag == pytest.approx(causal_pairs(new, past))
    contiguous = sum(causal_pairs(*piece) for piece in cp_pieces(new, past, cp, CpLayout.CONTIGUOUS))
    assert contiguous >= zigzag
    if past == 0 and new > 1000:
        assert contiguous / zigzag == pytest.approx(2 - 1 / cp, rel=1e-2)
    layers = {layout: prefill_layer(DENSE, 0, new, past, cp_size=cp, cp_layout=layout) for layout in CpLayout}
    for layout, operations in layers.items():
        expected = contiguous if layout is CpLayout.CONTIGUOUS else zigzag
        assert flop(operations, Stage.ATTENTION) == pytest.approx(expected * 4 * 64 * 128)
        assert one(operations, "gate_up").m == new / cp


def test_mla_prefill_is_expanded_and_decode_absorbed() -> None:
    heads, rank, nope, rope, value = 128, 512, 128, 64, 128
    q, p = 100, 50
    prefill = prefill_layer(LATENT, 5, q, p, tp_size=8)
    attention = one(prefill, "attention")
    assert attention.flop == 2 * causal_pairs(q, p) * heads / 8 * (nope + rope + value)
    # every chunk expands the latents of the past again
    assert one(prefill, "expand_latents").flop == 2 * (q + p) * rank * heads / 8 * (nope + value)
    assert one(prefill, "latents").n == 1536 + rank + rope  # whole on every rank
    decode = decode_layer(LATENT, 5, 7, 1000, tp_size=8, kv_dtype=KvDtype.BF16)
    attention = one(decode, "attention")
    assert attention.flop == 2 * 7 * 1000 * heads / 8 * (2 * rank + rope)
    assert attention.size_bytes == 7 * 1000 * 1152  # the latent, not divided by tp
    assert one(decode, "absorb_queries").flop == 2 * 7 * heads / 8 * nope * rank
    assert one(decode, "expand_values").flop == 2 * 7 * heads / 8 * value * rank


def test_shared_expert_and_first_dense_layer() -> None:
    dense, routed = prefill_layer(LATENT, 0, 10, tp_size=8), prefill_layer(LATENT, 3, 10, tp_size=8)
    assert {operation.stage for operation in dense} & {Stage.EXPERTS, Stage.ROUTER, Stage.SHARED_EXPERT} == set()
    assert flop(routed, Stage.SHARED_EXPERT) == 6 * 10 * 7168 * 2048 / 8
    assert flop(dense, Stage.MLP) == 6 * 10 * 7168 * 18432 / 8


def test_experts_touched() -> None:
    assert experts_touched(128, 8, 1) == pytest.approx(8)
    assert experts_touched(384, 6, 128) == pytest.approx(0.867 * 384, rel=1e-3)  # 86.7 % of 384 with top-6
    assert experts_touched(384, 6, 292) == pytest.approx(0.99 * 384, rel=1e-3)
    values = [experts_touched(128, 8, tokens) for tokens in range(1, 200)]
    assert all(a < b <= 128 for a, b in pairwise(values))


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (8, 1), (8, 2), (8, 8), (4, 8), (1, 8)])
def test_balanced_experts_share_the_work(tp: int, ep: int) -> None:
    block = one(prefill_layer(MOE, 0, 4096, tp_size=tp, ep_size=ep, expert_skew=0.0), "experts")
    assert block.kind is OperationKind.MOE
    assert block.flop == pytest.approx(6 * 4096 * 8 * 4096 * 1536 / tp)
    assert block.k == 1536 / max(1, tp // ep)
    assert block.tokens == 4096 * max(1, ep / tp)
    # all ranks over which the experts spread read all experts once
    assert block.weight_bytes * max(tp, ep) == pytest.approx(128 * 3 * 4096 * 1536 * 2, rel=1e-6)


def test_skew_fills_one_rank() -> None:
    even = one(prefill_layer(MOE, 0, 4096, tp_size=8, ep_size=8, expert_skew=0.0), "experts")
    skewed = one(prefill_layer(MOE, 0, 4096, tp_size=8, ep_size=8), "experts")
    assert skewed.m / even.m == pytest.approx(2.0)
    few = decode_layer(MOE, 0, 4, 100, tp_size=8, ep_size=8, expert_skew=0.0)
    assert one(decode_layer(MOE, 0, 4, 100, tp_size=8, ep_size=8), "experts").experts > one(few, "experts").experts
    # without expert parallelism there is no fullest rank
    assert prefill_layer(MOE, 0, 64, tp_size=8, expert_skew=0.0) == prefill_layer(MOE, 0, 64, tp_size=8)


def test_logits_split_the_vocabulary() -> None:
    assert one(logits(DENSE, 3, 4), "logits").flop == 2 * 3 * 151936 / 4 * 5120


@pytest.mark.parametrize(("tp", "ep", "message"), [(3, 1, "64 heads"), (8, 3, "128 experts"), (0, 1, "64 heads")])
def test_sizes_that_do_not_divide(tp: int, ep: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prefill_layer(MOE, 0, 10, tp_size=tp, ep_size=ep)
    with pytest.raises(InputError, match=message):
        decode_layer(MOE, 0, 10, 100, tp_size=tp, ep_size=ep)
