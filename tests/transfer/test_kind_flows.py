"""Flows of LLMs whose layers differ: what grows leaves chunk by chunk, windows and states once, with the last chunk."""

from typing import Any

import pytest

from pdmodel.errors import CoverageError, InputError
from pdmodel.llm.kv_cache import constant_bytes, growing_bytes, kv_bytes_per_token, kv_constant_bytes, kv_sequence_bytes
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_flows
from pdmodel.transfer.flows import Flow, FlowKind
from pdmodel.transfer.marks import phase_marks

PROMPT, CACHED, CHUNK = 20_000, 6_000, 4_000


def changes(llm: str, tp: int = 4, decode_tp: int = 4, release: str = "layer", **prefill: Any) -> dict[str, Any]:
    one = {"instances": 1, "gpus": None, "ep_size": 1, "ep_exchange": "all_reduce", "cp_size": 1}
    return {
        "llm": llm,
        "weight_dtype": "int4",
        "prefill": one | {"tp_size": tp, "chunk_tokens": CHUNK, "cp_exchange": "all_gather"} | prefill,
        "decode": {"tp_size": decode_tp, "ep_size": 1, "ep_exchange": "all_reduce", "max_running_requests": 2},
        "requests": [{"name": "r", "input_tokens": PROMPT, "cached_tokens": CACHED}],
        "transfer": {"release_after": release, "early_send": True},
    }


def flows_of(resolved: Any) -> tuple[Any, list[Flow], list[Flow]]:
    built = timeline(resolved)
    flows = build_flows(resolved, built)
    return (
        built,
        [flow for flow in flows if flow.kind is FlowKind.SEND],
        [flow for flow in flows if flow.kind is FlowKind.LOAD],
    )


@pytest.mark.parametrize(
    ("llm", "tp", "decode_tp"),
    [
        ("gpt-oss-120b", 4, 2),
        ("gpt-oss-120b", 2, 8),
        ("qwen3-next-80b-a3b", 1, 2),
        ("mimo-v2-flash", 4, 2),
        ("llama-4-maverick", 4, 8),
        ("nemotron-3-super-120b", 2, 1),
    ],
)
def test_every_byte_moves_once(variant: Any, llm: str, tp: int, decode_tp: int) -> None:
    """With no more ranks than KV heads nothing is copied: flows carry what a sequence keeps, no more, no less."""
    resolved = variant("seed_h200_nvlink", changes(llm, tp, decode_tp))
    arch = resolved.arch
    _, sends, loads = flows_of(resolved)
    assert sum(flow.volume_bytes for flow in sends) == pytest.approx(kv_sequence_bytes(arch, PROMPT))
    assert sum(flow.volume_bytes for flow in loads) == pytest.approx(kv_sequence_bytes(arch, CACHED))
    for flow in (*sends, *loads):
        assert sum(size for _, size in flow.due) == pytest.approx(flow.volume_bytes)
        for phase, _ in flow.due:
            due = sum(size for k, size in flow.due if k <= phase)
            assert sum(size for k, size in flow.release if k <= phase) >= due * (1 - 1e-12)


def test_windows_and_states_leave_once_with_the_last_chunk(variant: Any) -> None:
    for llm in ("gpt-oss-120b", "qwen3-next-80b-a3b"):
        resolved = variant("seed_h200_nvlink", changes(llm, tp=1, decode_tp=1))
        built, (send,), _ = flows_of(resolved)
        chunks = phase_marks(built.lanes[0])["r"]
        arch = resolved.arch
        last = len(chunks) - 1
        sizes = [new for new, _ in resolved.requests[0].chunks(CHUNK)]
        expected: dict[int, float] = {}
        for number, chunk in enumerate(chunks):
            assert len(chunk.layers) == arch.layers
            for layer, marks in chunk.layers.items():
                mixer = arch.mixer(layer)
                size = sizes[number] * growing_bytes(mixer)
                size += constant_bytes(mixer, "bf16", PROMPT) if number == last else 0
                expected[marks.end] = expected.get(marks.end, 0.0) + size
                if number == 0:
                    expected[marks.attention] = expected.get(marks.attention, 0.0) + CACHED * growing_bytes(mixer)
        assert dict(send.release) == pytest.approx({phase: size for phase, size in expected.items() if size})


@pytest.mark.parametrize("release", ["kv_write", "attention", "chunk", "prefill"])
def test_constants_follow_the_engine(variant: Any, release: str) -> None:
    resolved = variant("seed_h200_nvlink", changes("qwen3-next-80b-a3b", tp=2, decode_tp=2, release=release))
    built, sends, _ = flows_of(resolved)
    chunks = phase_marks(built.lanes[0])["r"]
    for flow in sends:
        assert sum(size for _, size in flow.release) == pytest.approx(flow.volume_bytes)
        before_last = sum(size for phase, size in flow.release if phase <= chunks[-1].start)
        if release == "prefill":
            assert before_last == pytest.approx(CACHED * kv_bytes_per_token(resolved.arch) / 2)
        else:
            done = PROMPT - (PROMPT - CACHED) % CHUNK
            assert before_last == pytest.approx(done * kv_bytes_per_token(resolved.arch) / 2)


def test_a_short_prompt_fills_windows_in_part(variant: Any) -> None:
    short = changes("gpt-oss-120b", tp=2, decode_tp=2)
    short["requests"] = [{"name": "r", "input_tokens": 50}]
    resolved = variant("seed_h200_nvlink", short)
    _, sends, loads = flows_of(resolved)
    assert not loads
    assert sum(flow.volume_bytes for flow in sends) == pytest.approx(50 * 36 * 2048)


def test_heads_of_every_kind_are_copied_on_their_own(variant: Any) -> None:
    """Qwen3-Next: 2 KV heads on 8 ranks are kept four times, the 32 heads of the state are not."""
    resolved = variant("seed_h200_nvlink", changes("qwen3-next-80b-a3b", tp=8, decode_tp=8))
    arch = resolved.arch
    _, sends, _ = flows_of(resolved)
    sent = PROMPT * kv_bytes_per_token(arch) * 4 + kv_constant_bytes(arch)
    assert sum(flow.volume_bytes for flow in sends) == pytest.approx(sent)


def test_entries_that_no_head_splits_go_whole_to_every_rank(variant: Any) -> None:
    resolved = variant("seed_h200_nvlink", changes("deepseek-v4-flash", tp=8, decode_tp=4))
    _, sends, _ = flows_of(resolved)
    assert len(sends) == 4
    for flow in sends:
        assert flow.volume_bytes == pytest.approx(kv_sequence_bytes(resolved.arch, PROMPT))


def test_layers_that_keep_nothing_have_no_load(variant: Any) -> None:
    resolved = variant("seed_h200_nvlink", changes("nemotron-3-super-120b", tp=2, decode_tp=2))
    built, _, loads = flows_of(resolved)
    phases = built.lanes[0].phases
    kept = [layer for layer in range(resolved.arch.layers) if resolved.arch.mixer(layer).cache_heads]
    for load in loads:
        assert [phases[k].layer for k, _ in load.due] == kept
    # a layer of experts alone has one all-reduce, and so has a layer of Mamba alone
    of_layer = [phase.operation for phase in phases if phase.chunk == 0 and phase.layer == 1]
    assert [name for name in of_layer if name.startswith("tp_")] == ["tp_all_reduce_mlp"]
    of_mamba = [phase.operation for phase in phases if phase.chunk == 0 and phase.layer == 0]
    assert [name for name in of_mamba if name.startswith("tp_")] == ["tp_all_reduce_attn"]


def test_context_parallel_ranks_of_recurrent_layers_are_refused(variant: Any) -> None:
    with pytest.raises(CoverageError, match=r"prefill\.cp_size: qwen3-next-80b-a3b has recurrent layers"):
        variant("seed_h200_nvlink", changes("qwen3-next-80b-a3b", tp=2, cp_size=2))
    with pytest.raises(CoverageError, match="compressed attention: ring has none"):
        variant("seed_h200_nvlink", changes("deepseek-v4-flash", tp=4, cp_size=2, cp_exchange="ring"))
    assert timeline(variant("seed_h200_nvlink", changes("deepseek-v4-flash", tp=4, cp_size=2))).lanes
    assert timeline(variant("seed_h200_nvlink", changes("gpt-oss-120b", tp=2, cp_size=2, cp_exchange="ring"))).lanes


def test_memory_counts_windows_once_and_states_per_request(variant: Any) -> None:
    many = changes("nemotron-3-super-120b", tp=8, decode_tp=8)
    many["decode"] |= {"max_running_requests": 1, "context_tokens": 2_000_000}
    variant("seed_h200_nvlink", many)
    many["decode"] |= {"max_running_requests": 8000, "context_tokens": 1000}
    with pytest.raises(InputError, match="GiB of KV"):
        variant("seed_h200_nvlink", many)


def test_degrees_must_cut_every_kind(variant: Any) -> None:
    with pytest.raises(InputError, match="40 attention heads"):
        variant("seed_h200_nvlink", changes("llama-4-maverick", tp=3))
