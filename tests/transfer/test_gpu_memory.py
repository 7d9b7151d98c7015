"""Memory that KV fills and leaves: what appears when, what empties it, how many hand-offs fit."""

from typing import Any

import pytest

from pdmodel.errors import InputError
from pdmodel.llm.kv_cache import kv_sequence_bytes_rank
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.flows import FlowKind, MemoryKind, MemoryPool
from pdmodel.transfer.marks import phase_marks
from pdmodel.transfer.memory import hand_off_cap, hand_offs_in_flight, memory_notes, pool_bytes, running_bytes
from pdmodel.units import GIB

REQUESTS = [
    {"name": "A", "input_tokens": 16384},
    {"name": "B", "input_tokens": 20480, "cached_tokens": 4096, "arrival_ms": 10},
]


def built(variant: Any, **changes: Any) -> tuple[Any, Any, tuple[MemoryPool, ...], tuple[Any, ...]]:
    resolved = variant("urgent_user", {"requests": REQUESTS} | changes)
    lanes = timeline(resolved)
    found = build_transfers(resolved, lanes)
    return resolved, lanes, found.memory, found.flows


def test_a_pool_for_every_gpu_that_kv_lies_on(variant: Any) -> None:
    resolved, _, pools, _ = built(variant)
    assert [pool.name for pool in pools] == [f"P/gpu{k}/hbm" for k in range(4)] + [f"D/gpu{k}/hbm" for k in range(8)]
    prefill, decode = pools[0], pools[-1]
    assert (prefill.kind, decode.kind) == (MemoryKind.PREFILL_HBM, MemoryKind.DECODE_HBM)
    memory = resolved.prefill_box.profile.gpu.memory_gib.value * GIB
    assert prefill.capacity_bytes == 0.9 * memory - resolved.arch.weights_bytes_per_rank(4, 1)
    assert prefill.base_bytes == 0
    # 32 running requests of 16,384 tokens, and SGLang's 512 tokens beside each.
    assert decode.base_bytes == 32 * kv_sequence_bytes_rank(resolved.arch, 16384 + 512, "bf16", 8)
    assert pool_bytes(resolved, "decode") == decode.capacity_bytes
    assert running_bytes(resolved) == decode.base_bytes


def test_what_is_held_is_all_that_a_rank_keeps_and_leaves_with_the_sends(variant: Any) -> None:
    resolved, lanes, pools, flows = built(variant)
    sends = {flow.name: flow for flow in flows if flow.kind is FlowKind.SEND}
    for pool in pools:
        shards = 4 if pool.kind is MemoryKind.PREFILL_HBM else 8
        held = {"A": 0.0, "B": 0.0}
        for lane, _, request, size in pool.appears:
            assert lane == "prefill0"
            held[request] += size
        for request in resolved.requests:
            kept = kv_sequence_bytes_rank(resolved.arch, request.input_tokens, "bf16", shards)
            assert held[request.name] == pytest.approx(kept)
            left = sum(
                -weight * sends[name].volume_bytes
                for name, weight in pool.moved.items()
                if sends[name].request == request.name
            )
            assert left == pytest.approx(kept)
    chunks = phase_marks(lanes.lanes[0])
    steps = [(k, request) for _, k, request, _ in pools[0].appears]
    assert steps == [(chunks["A"][n].start, "A") for n in range(2)] + [(chunks["B"][n].start, "B") for n in range(2)]
    first = next(size for _, _, request, size in pools[0].appears if request == "B")
    assert first == pytest.approx(kv_sequence_bytes_rank(resolved.arch, 4096 + 8192, "bf16", 4))


def test_who_pulls_reserves_when_the_transfer_starts(variant: Any) -> None:
    _, lanes, pools, _ = built(variant)
    chunks = phase_marks(lanes.lanes[0])
    assert [k for _, k, *_ in pools[-1].appears] == [chunks[name][0].start for name in "AB"]
    _, lanes, pools, _ = built(variant, prefill={"engine": "vllm_nixl"})
    chunks = phase_marks(lanes.lanes[0])
    assert [k for _, k, *_ in pools[-1].appears] == [chunks[name][-1].end for name in "AB"]


def test_latents_and_context_parallel_ranks(variant: Any) -> None:
    """Every TP rank keeps a latent whole; ranks of a ring share the tokens."""
    changes = {"requests": [{"name": "r", "input_tokens": 16384}], "decode": {"memory_fraction": 1.0}}
    resolved = variant("mla_deepseek_v3_pcie", changes)
    pool = build_transfers(resolved, timeline(resolved)).memory[0]
    whole = kv_sequence_bytes_rank(resolved.arch, 16384, "bf16", 1)
    assert sum(size for *_, size in pool.appears) == pytest.approx(whole)
    ring = variant("seed_h200_nvlink", {"prefill": {"cp_exchange": "ring"}})
    shared = build_transfers(ring, timeline(ring)).memory[0]
    whole = kv_sequence_bytes_rank(ring.arch, 32768, "bf16", 2)
    assert sum(size for *_, size in shared.appears) == pytest.approx(whole / 2)


def test_hand_offs_that_fit_beside_a_full_batch(variant: Any) -> None:
    # aiconfigurator pull request 1380: pool tokens // sequence - max_num_seqs.
    assert hand_offs_in_flight(1_000_000, 32 * 20_000, 20_000) == 1_000_000 // 20_000 - 32
    assert hand_offs_in_flight(100, 120, 10) == 0
    with pytest.raises(InputError):
        hand_offs_in_flight(1, 1, 0)
    resolved, _, pools, _ = built(variant)
    pool = pools[-1]
    longest = max(size for *_, size in pool.appears)
    assert hand_off_cap(resolved) == int((pool.capacity_bytes - pool.base_bytes) // longest)


def test_what_is_assumed_is_said(variant: Any) -> None:
    assert memory_notes(variant("urgent_user"))[0].startswith("90% of a GPU's memory")
    both = {"prefill": {"memory_fraction": 0.8}, "decode": {"memory_fraction": 0.8}}
    notes = memory_notes(variant("urgent_user", both))
    assert notes == ("a delivered request takes the decode memory of one that is finished",)
    resolved = variant("urgent_user", both)
    memory = resolved.decode_box.profile.gpu.memory_gib.value * GIB
    assert pool_bytes(resolved, "decode") == 0.8 * memory - resolved.arch.weights_bytes_per_rank(8, 1)
