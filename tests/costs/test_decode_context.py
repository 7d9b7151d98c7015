"""Decode context parallelism: pairs, memory, attention over a part of the tokens, and what it exchanges."""

from collections.abc import Sequence
from typing import Any

import pytest

from pdmodel.costs.decode_context import check_decode_context, decode_context_layer, shares_tokens
from pdmodel.costs.kv_layout import Cache, Exchange, Placement, Split, pairs
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.llm.operators import Operation, Stage, decode_layer
from pdmodel.timeline.breakdown import Group, Setting, decode_breakdown
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.flows import MemoryKind
from pdmodel.transfer.memory import decode_bytes, running_bytes
from pdmodel.transfer.sends import parts_of

LATENT, GQA = load_llm("deepseek-v3"), load_llm("qwen3-235b-a22b")


def one(operations: Sequence[Operation], name: str) -> Operation:
    (found,) = [operation for operation in operations if operation.name == name]
    return found


@pytest.mark.parametrize(("arch", "layer", "width"), [(LATENT, 5, 512), (GQA, 0, 128)])
@pytest.mark.parametrize("dcp", [2, 4])
def test_attention_reads_a_part_of_the_tokens_for_all_queries(arch: Any, layer: int, width: int, dcp: int) -> None:
    whole = decode_layer(arch, layer, 16, 8192, tp_size=16)
    part = decode_layer(arch, layer, 16, 8192, tp_size=16, dcp_size=dcp)
    before, after = one(whole, "attention"), one(part, "attention")
    assert after.flop == pytest.approx(before.flop)  # as many pairs: dcp times the heads, 1/dcp of the tokens
    assert after.size_bytes == pytest.approx(before.size_bytes / dcp)
    assert after.context_tokens == 8192 / dcp
    merge = one(part, "correct_parts")
    assert merge.stage is Stage.ATTENTION
    assert merge.size_bytes == 16 * 2 * arch.mixer(layer).heads / 16 * dcp * width * 2
    others = [[x for x in found if x.name not in ("attention", "correct_parts")] for found in (whole, part)]
    assert others[0] == others[1]


def test_what_is_exchanged_by_hand() -> None:
    box = Box(load_profile("b200_8nic"), "D")
    mixer = LATENT.mixer(5)
    found = decode_context_layer(mixer, 64, tp_size=8, gpus=range(4), box=box)
    rows = 64 * 128 / 8 * 4
    assert [cost.size_bytes for cost in (*found.before, *found.after)] == [rows * 576 * 2, rows * 4 * 4, rows * 512 * 2]
    mixer = GQA.mixer(0)
    found = decode_context_layer(mixer, 32, tp_size=8, gpus=(0, 1), box=box)
    rows = 32 * 64 / 8 * 2
    assert [cost.size_bytes for cost in (*found.before, *found.after)] == [rows * 128 * 2, rows * 4 * 2, rows * 128 * 2]


def mla(dcp: int, **decode: Any) -> dict[str, Any]:
    return {
        "decode": {"dcp_size": dcp} | decode,
        "requests": [{"name": "r", "input_tokens": 16384}],
        "transfer": {"release_after": "prefill", "staging_tokens": 0},
    }


@pytest.mark.parametrize(("split", "descriptors"), [("token_cyclic", 16384 // 8), ("page_cyclic", 16384 // 64 // 8)])
def test_sends_and_memory_of_a_scenario(variant: Any, split: str, descriptors: int) -> None:
    name = "mla_deepseek_v3_pcie"
    whole, shared = variant(name, mla(1)), variant(name, mla(8, dcp_split=split))
    (request,) = shared.requests
    one, eight = parts_of(whole, request), parts_of(shared, request)
    assert [(part.source_rank, part.destination_rank) for part in eight] == [(rank, rank) for rank in range(8)]
    assert len(one) == 8
    for full, part in zip(one, eight, strict=True):
        assert part.pieces.size_bytes == full.pieces.size_bytes / 8
        assert part.pieces.descriptors == shared.arch.layers * descriptors
    for tokens in (16384, 9000):
        held = decode_bytes(whole, tokens) / tokens
        assert decode_bytes(shared, 16384) == held * 16384 / 8
    pages = {"token_cyclic": 1126, "page_cyclic": 18 * 64}[split]  # 9001 tokens: 1,126 or 18 pages of 64 at the most
    assert decode_bytes(shared, 9001) == pytest.approx(decode_bytes(whole, pages))
    # What the running requests hold shrinks with it.
    assert running_bytes(shared) == pytest.approx(running_bytes(whole) / 8, rel=0.02)
    built = timeline(shared)
    transfers = build_transfers(shared, built)
    (pool, *_) = [pool for pool in transfers.memory if pool.kind is MemoryKind.DECODE_HBM]
    assert pool.base_bytes == running_bytes(shared)
    assert sum(size for *_, size in pool.appears) == decode_bytes(shared, 16384)
    assert sum(flow.volume_bytes for flow in transfers.flows) == sum(part.pieces.size_bytes for part in eight)


def test_more_requests_run_where_each_rank_keeps_a_part(variant: Any) -> None:
    many = {"max_running_requests": 64, "context_tokens": 16384, "memory_fraction": 0.95}
    with pytest.raises(InputError, match=r"decode.max_running_requests: .*GiB of KV"):
        variant("mla_deepseek_v3_pcie", mla(1, **many))
    assert variant("mla_deepseek_v3_pcie", mla(8, **many)).decode.parallelism.dcp_size == 8


def test_the_step_has_the_exchanges_and_less_attention(variant: Any) -> None:
    name = "mla_deepseek_v3_pcie"
    whole, shared = variant(name, mla(1)), variant(name, mla(8))
    one, eight = timeline(whole), timeline(shared)
    note = "ranks that share the tokens of a sequence at decode gather queries"
    assert not any(line.startswith(note) for line in one.assumed)
    assert any(line.startswith(note) for line in eight.assumed)
    (lane,), (other,) = one.decode_lanes, eight.decode_lanes
    assert sum(other.mean_bytes_per_s.values()) * other.step_s > sum(lane.mean_bytes_per_s.values()) * lane.step_s
    box, decode = shared.decode_box, shared.spec.decode
    setting = Setting(
        shared.arch, box, shared.decode, shared.spec.kv_dtype, decode.all_reduce.value, decode.ep_exchange
    )
    rows = decode_breakdown(setting, decode.max_running_requests, decode.context_tokens)
    assert rows.time_s == pytest.approx(other.step_s)
    assert {row.name: row.count for row in rows.rows if row.group is Group.CP} == {
        "dcp_queries": shared.arch.layers,
        "dcp_outputs": shared.arch.layers,
    }
    assert shared.decode.dcp_groups == (shared.decode.gpus,)
    assert variant(name, mla(2)).decode.dcp_groups == tuple(shared.decode.gpus[k : k + 2] for k in range(0, 8, 2))


def test_a_state_has_no_tokens_to_share() -> None:
    """Eight ranks in two groups of four: each keeps one of the eight heads of a state, as without groups."""
    state = Cache("state", 8, 100.0, 1, 3, once=True, grows=False)
    alone = pairs(Exchange(Placement(8), Placement(8)), [state])
    assert pairs(Exchange(Placement(8), Placement(2, 4, Split.TOKEN_CYCLIC)), [state]) == alone


@pytest.mark.parametrize(
    ("llm", "tp", "dcp", "words"),
    [
        ("deepseek-v3", 8, 3, "found 3; expected a divisor of tp_size 8"),
        ("qwen3-235b-a22b", 8, 4, "8 TP ranks keep 4 KV heads .*expected a divisor of 2"),
        ("qwen3-32b", 8, 2, "8 TP ranks keep 8 KV heads .*expected a divisor of 1"),
        ("qwen3-32b", 4, 2, "4 TP ranks keep 8 KV heads .*expected 1"),
    ],
)
def test_groups_that_cannot_be(llm: str, tp: int, dcp: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_decode_context(load_llm(llm), tp, dcp)


def test_every_llm_is_covered_or_refused_in_one_line(variant: Any) -> None:
    refused = set()
    for name in list_llms():
        arch = load_llm(name)
        check_decode_context(arch, 8, 1)
        try:
            check_decode_context(arch, 1024, 2)
        except CoverageError as error:
            assert "\n" not in str(error)
            refused.add(name)
    kinds = {name: load_llm(name).distinct_mixers() for name in list_llms()}
    assert "deepseek-v3" not in refused
    assert {
        name
        for name, mixers in kinds.items()
        if any(m.indexer is not None or m.window is not None or m.compression is not None for m in mixers)
    } == refused
    assert any(not shares_tokens(mixer) for mixers in kinds.values() for mixer in mixers)
    with pytest.raises(InputError, match=r"mla_deepseek_v3_pcie.json: decode.dcp_size: found 3"):
        variant("mla_deepseek_v3_pcie", mla(3))
