"""Every kind of layer on configs of made-up sizes: bytes, parameters and work against counts made by hand."""

from typing import Any

import pytest

from pdmodel.errors import CoverageError, InputError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.hf_config import architecture_from_config
from pdmodel.llm.kinds import LayerKind
from pdmodel.llm.kv_cache import (
    kv_bytes_per_layer,
    kv_bytes_per_token,
    kv_constant_bytes,
    kv_sequence_bytes,
    kv_sequence_bytes_rank,
)
from pdmodel.llm.operators import Operation, Stage, decode_layer, prefill_layer
from pdmodel.spec import SourceKind

BASE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 100_000,
    "torch_dtype": "bfloat16",
}
ROW = 2 * 2 * 64 * 2  # keys and values of two heads of 64, bf16
LATENT = BASE | {
    "model_type": "deepseek_v32",
    "kv_lora_rank": 128,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "index_head_dim": 128,
    "index_n_heads": 4,
    "index_topk": 64,
}
DELTA = BASE | {
    "model_type": "qwen3_next",
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
DELTA_STATE = 4 * 16 * 32 * 4 + (2 * 2 * 16 + 4 * 32) * 3 * 2
MAMBA = BASE | {
    "model_type": "nemotron_h",
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "ME*-M",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 32,
    "n_groups": 2,
    "conv_kernel": 4,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 48,
    "moe_latent_size": 128,
    "moe_shared_expert_intermediate_size": 96,
}
MAMBA_STATE = 8 * 16 * 32 * 4 + (8 * 16 + 2 * 2 * 32) * 3 * 2
COMPRESSED = BASE | {
    "model_type": "deepseek_v4",
    "num_key_value_heads": 1,
    "head_dim": 128,
    "sliding_window": 64,
    "compress_ratios": [0, 4, 128, 4, 0],
    "q_lora_rank": 96,
    "qk_rope_head_dim": 16,
    "o_groups": 4,
    "o_lora_rank": 32,
    "index_head_dim": 64,
    "index_n_heads": 4,
    "index_topk": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "hc_mult": 2,
}
SUMS_4, SUMS_128 = 2 * 4 * 2 * 128 * 4 + 2 * 4 * 2 * 64 * 4, 2 * 128 * 128 * 4
V41 = COMPRESSED | {
    "model_type": "deepseek_v41",
    "compress_ratios": [0, 2, 2, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3],
}
BLOCKS = BASE | {
    "model_type": "nemotron-nas",
    "num_key_value_heads": None,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 8, "window_length": 100}, "ffn": {"no_op": True}},
        {"attention": {"no_op": True}, "ffn": {"intermediate_size": 300}},
    ],
}
KDA_LINEAR = {
    "full_attn_layers": [4],
    "kda_layers": [1, 2, 3],
    "num_heads": 8,
    "head_dim": 16,
    "short_conv_kernel_size": 4,
}
KDA = {key: value for key, value in LATENT.items() if not key.startswith("index_")} | {
    "model_type": "kimi_linear",
    "linear_attn_config": KDA_LINEAR,
    "mla_use_nope": True,
}
KDA_STATE = 8 * 16 * 16 * 4 + 3 * 8 * 16 * 3 * 2
GEMMA4 = BASE | {
    "model_type": "gemma4_text",
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 50,
    "global_head_dim": 128,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 2,
}

CASES: dict[str, tuple[dict[str, Any], list[float], int]] = {
    "sliding by layer_types": (
        BASE | {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 50},
        [0, ROW, 0, ROW],
        2 * 50 * ROW,
    ),
    "sliding by pattern": (
        BASE | {"model_type": "gemma3", "sliding_window_pattern": 4, "sliding_window": 50},
        [0, 0, 0, ROW],
        3 * 50 * ROW,
    ),
    "sliding by letters": (
        BASE | {"model_type": "exaone4", "sliding_window_pattern": "LG", "sliding_window": 50},
        [0, ROW, 0, ROW],
        2 * 50 * ROW,
    ),
    "sliding by default": (BASE | {"model_type": "gpt_oss"}, [0, ROW, 0, ROW], 2 * 128 * ROW),
    "sliding everywhere": (BASE | {"model_type": "mistral", "sliding_window": 70}, [0] * 4, 4 * 70 * ROW),
    "sliding from a layer on": (
        BASE | {"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3},
        [ROW, ROW, ROW, 0],
        9 * ROW,
    ),
    "sliding with other heads": (
        BASE
        | {
            "model_type": "mimo_v2_flash",
            "hybrid_layer_pattern": [0, 1, 1, 1],
            "v_head_dim": 32,
            "sliding_window": 50,
            "swa_num_key_value_heads": 4,
            "swa_head_dim": 64,
            "swa_v_head_dim": 48,
            "attention_chunk_size": 50,
        },
        [2 * (64 + 32) * 2, 0, 0, 0],
        3 * 50 * 4 * (64 + 48) * 2,
    ),
    "a window as long as the context": (
        BASE | {"layer_types": ["sliding_attention"] * 4, "sliding_window": 100_000},
        [ROW] * 4,
        0,
    ),
    "chunked": (
        BASE | {"model_type": "llama4_text", "attention_chunk_size": 60, "no_rope_layers": [1, 0, 1, 0]},
        [0, ROW, 0, ROW],
        2 * 60 * ROW,
    ),
    "global and shared": (GEMMA4, [0, 2 * 128 * 2, 0, 0], 50 * ROW),
    "latent with indexer": (LATENT, [(128 + 16) * 2 + 132] * 4, 0),
    "indexer of an earlier layer": (
        LATENT | {"indexer_types": ["full", "shared", "shared", "full"]},
        [420, 288, 288, 420],
        0,
    ),
    "indexer by pattern": (LATENT | {"index_topk_pattern": "FSFS"}, [420, 288, 420, 288], 0),
    "indexer by frequency": (LATENT | {"index_topk_freq": 2, "index_skip_topk_offset": 1}, [420, 288, 420, 288], 0),
    "gated delta": (DELTA, [0, 0, 0, ROW], 3 * DELTA_STATE),
    "gated delta in bf16": (
        DELTA | {"mamba_ssm_dtype": "bfloat16"},
        [0, 0, 0, ROW],
        3 * (DELTA_STATE - 4 * 16 * 32 * 2),
    ),
    "lightning": (
        BASE | {"model_type": "minimax_m1", "attn_type_list": [0, 0, 1, 0]},
        [0, 0, ROW, 0],
        3 * 8 * 64 * 64 * 4,
    ),
    "lightning by groups": (
        BASE | {"model_type": "bailing_moe_linear", "layer_group_size": 3},
        [0, 0, ROW, ROW],
        2 * 8 * 64 * 64 * 4,
    ),
    "kda beside latents": (KDA, [0, 0, 0, (128 + 16) * 2], 3 * KDA_STATE),
    "mamba, experts, attention, mlp": (MAMBA, [0, 0, ROW, 0, 0], 2 * MAMBA_STATE),
    "layers by a list alone": (
        {key: value for key, value in MAMBA.items() if key not in ("num_hidden_layers", "hybrid_override_pattern")}
        | {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"]},
        [0, 0, ROW, 0, 0],
        2 * MAMBA_STATE,
    ),
    "mamba by indices": (
        BASE
        | {
            "model_type": "bamba",
            "attn_layer_indices": [2],
            "mamba_n_heads": 8,
            "mamba_d_head": "auto",
            "mamba_d_state": 32,
            "mamba_n_groups": 1,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        [0, 0, ROW, 0],
        3 * (8 * 128 * 32 * 4 + (1024 + 2 * 32) * 3 * 2),
    ),
    "mamba by period": (
        BASE
        | {
            "model_type": "jamba",
            "attn_layer_period": 4,
            "attn_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        [0, ROW, 0, 0],
        3 * (1024 * 16 * 4 + 1024 * 3 * 2),
    ),
    "short convolutions": (
        BASE | {"model_type": "lfm2", "layer_types": ["conv", "conv", "full_attention", "conv"], "conv_L_cache": 3},
        [0, 0, ROW, 0],
        3 * 512 * 2 * 2,
    ),
    "compressed": (COMPRESSED, [0, 64 + 8, 2, 64 + 8], 4 * 64 * 256 + 2 * SUMS_4 + SUMS_128),
    "compressed with sources": (V41, [0, (256 + 34) / 2, 0, 256 + 34], 4 * 64 * 256 + 2 * 2 * 128 * 4),
    "blocks": (BLOCKS, [ROW, 0, 0, 0], 100 * 2 * 64 * 2),
}


def read(raw: dict[str, Any]) -> Architecture:
    return architecture_from_config(raw, name="x", file="x.json")


@pytest.mark.parametrize("case", CASES)
def test_bytes_of_every_kind(case: str) -> None:
    raw, layers, constant = CASES[case]
    arch = read(raw)
    assert list(kv_bytes_per_layer(arch)) == layers
    assert kv_bytes_per_token(arch) == sum(layers)
    assert kv_constant_bytes(arch) == constant
    assert kv_sequence_bytes(arch, 50_000) == 50_000 * sum(layers) + constant
    assert kv_constant_bytes(arch, tokens=0) == 0
    # A short sequence fills windows in part only; a state is whole from the first token on.
    assert kv_constant_bytes(arch, tokens=1) <= constant
    assert kv_sequence_bytes_rank(arch, 50_000, "bf16", 1) == pytest.approx(kv_sequence_bytes(arch, 50_000))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tp_size", [1, 2])
def test_work_of_every_kind(case: str, tp_size: int) -> None:
    """Every layer has work unless it is nothing at all, and ranks share what is split by heads."""
    arch = read(CASES[case][0])
    for layer in range(arch.layers):
        mixer = arch.mixer(layer)
        for operations in (
            prefill_layer(arch, layer, 300, 200, tp_size=tp_size),
            decode_layer(arch, layer, 3, 500, tp_size=tp_size),
        ):
            stages = {operation.stage for operation in operations}
            assert (Stage.ATTENTION in stages) == (Stage.O_PROJ in stages) == (mixer.kind is not LayerKind.NONE)
            assert (Stage.MLP in stages) == (arch.mlp_width(layer) > 0)
            assert (Stage.EXPERTS in stages) == arch.is_moe_layer(layer)
            assert all(operation.size_bytes > 0 and operation.flop >= 0 for operation in operations)


def test_parameters_follow_the_kinds() -> None:
    delta = read(DELTA)
    mixed = 2 * 2 * 16 + 4 * 32
    linear = 512 * (mixed + 4 * 32 + 2 * 4) + 512 * 4 * 32
    full = 512 * (8 * 64 * 2 + 2 * 2 * 64) + 512 * 8 * 64  # with the gate of the output
    assert [delta.mixer(layer).parameters(512) for layer in range(4)] == [linear] * 3 + [full]
    mamba = read(MAMBA)
    assert [mamba.layer_parameters(layer).mlp for layer in range(5)] == [0, 0, 0, 2 * 512 * 1024, 0]
    assert mamba.layer_parameters(1).experts == 16 * 2 * 128 * 48
    assert mamba.layer_parameters(1).shared_expert == 2 * 512 * 96 + 2 * 512 * 128
    latent = read(LATENT)
    indexer = 96 * 4 * 128 + 512 * (4 + 128)
    plain = 96 * (512 + 8 * 48) + 512 * (128 + 16) + 128 * 8 * (32 + 40) + 8 * 40 * 512
    assert latent.mixer(0).parameters(512) == plain + indexer
    blocks = read(BLOCKS)
    assert [blocks.mlp_width(layer) for layer in range(4)] == [512, 0, 0, 300]
    assert blocks.layer_parameters(1).total == 0


def one(operations: tuple[Operation, ...], name: str) -> Operation:
    return next(operation for operation in operations if operation.name == name)


def test_windows_and_blocks_by_hand() -> None:
    arch = read(CASES["sliding by layer_types"][0])
    attention = one(prefill_layer(arch, 0, 300, 20), "attention")
    assert attention.flop == 4 * 8 * 64 * sum(min(20 + k, 50) for k in range(1, 301))
    assert attention.basis is SourceKind.DERIVED
    assert one(prefill_layer(arch, 1, 300, 20), "attention").basis is SourceKind.MEASURED
    assert one(decode_layer(arch, 0, 3, 500), "attention").size_bytes == 3 * 50 * ROW
    chunked = read(CASES["chunked"][0])
    attention = one(prefill_layer(chunked, 0, 300, 20), "attention")
    assert attention.flop == 4 * 8 * 64 * sum((20 + k - 1) % 60 + 1 for k in range(1, 301))


def test_sparse_latents_by_hand() -> None:
    arch = read(LATENT)
    prefill, decode = prefill_layer(arch, 0, 300, 20), decode_layer(arch, 0, 3, 500)
    assert one(prefill, "index_scores").flop == 2 * 4 * 128 * sum(20 + k for k in range(1, 301))
    assert one(prefill, "attention").flop == 2 * 8 * (2 * 128 + 16) * sum(min(20 + k, 64) for k in range(1, 301))
    assert one(decode, "index_scores").size_bytes == 3 * 500 * 132
    assert one(decode, "attention").size_bytes == 3 * 64 * 288
    shared = read(LATENT | {"indexer_types": ["full", "shared", "shared", "full"]})
    assert "index_scores" not in {operation.name for operation in prefill_layer(shared, 1, 300)}


def test_compressed_attention_by_hand() -> None:
    arch = read(COMPRESSED)
    window = sum(min(20 + k, 64) for k in range(1, 301))
    scale = 4 * 8 * 128
    assert one(prefill_layer(arch, 0, 300, 20), "attention").flop == scale * window
    picked = sum(min(20 + k, 4 * 32) for k in range(1, 301)) / 4
    assert one(prefill_layer(arch, 1, 300, 20), "attention").flop == scale * (window + picked)
    dense = sum(20 + k for k in range(1, 301)) / 128
    assert one(prefill_layer(arch, 2, 300, 20), "attention").flop == pytest.approx(scale * (window + dense))
    decode = decode_layer(arch, 1, 3, 1000)
    assert one(decode, "index_scores").size_bytes == 3 * 250 * 32
    assert one(decode, "attention").size_bytes == 3 * (64 + 32) * 256
    # two residual streams: 12 values per hidden one instead of 4
    assert one(decode, "attention_norm").size_bytes == 3 * 12 * 512 * 2


def test_recurrent_layers_by_hand() -> None:
    arch = read(DELTA)
    scan = one(prefill_layer(arch, 0, 300, 20), "scan")
    assert scan.flop == pytest.approx(300 * 4 * (4 * 16 * 32 + 2 * 64 * (16 + 32)))
    update = one(decode_layer(arch, 0, 3, 1000, tp_size=2), "state_update")
    assert update.size_bytes == 3 * 2 * 4 * 16 * 32 * 4 / 2
    assert decode_layer(arch, 0, 3, 1000) == decode_layer(arch, 0, 3, 100_000)


def test_fp8_cache_leaves_states_and_index_keys_alone() -> None:
    assert kv_bytes_per_token(read(LATENT), KvDtype.FP8) == 4 * (144 + 132)
    assert kv_bytes_per_token(read(LATENT), KvDtype.FP8_DS_MLA) == 4 * (128 + 4 + 32 + 132)
    assert kv_constant_bytes(read(DELTA), KvDtype.FP8) == 3 * DELTA_STATE
    assert kv_bytes_per_token(read(DELTA), KvDtype.FP8) == ROW / 2
    with pytest.raises(CoverageError, match="fp8_ds_mla"):
        kv_bytes_per_token(read(DELTA), KvDtype.FP8_DS_MLA)
    assert kv_bytes_per_token(read(KDA), KvDtype.FP8_DS_MLA) == 128 + 4 + 32


def test_what_was_inferred_is_said() -> None:
    assert any("repeats" in note for note in read(CASES["sliding by default"][0]).notes)
    assert any("FP32" in note for note in read(DELTA).notes)
    assert not any("FP32" in note for note in read(DELTA | {"mamba_ssm_dtype": "float32"}).notes)
    assert any("is absent" in note for note in read(BASE | {"model_type": "mistral"}).notes)
    assert any("not known" in note for note in read(BASE | {"model_type": "unheard_of"}).notes)


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("linear_key_head_dim", {key: value for key, value in DELTA.items() if key != "linear_key_head_dim"}),
        ("mamba_ssm_dtype", DELTA | {"mamba_ssm_dtype": ["float32"]}),
        ("linear_attn_config.full_attn_layers", KDA | {"linear_attn_config": KDA_LINEAR | {"full_attn_layers": [3]}}),
        ("indexer_types", LATENT | {"indexer_types": ["full", ["shared"], "full", "full"]}),
        ("compress_ratios", COMPRESSED | {"compress_ratios": [0, 4, 8, 4]}),
        ("compress_ratios", COMPRESSED | {"compress_ratios": [0, 4, 4]}),
        ("num_kv_shared_layers", GEMMA4 | {"num_kv_shared_layers": 4}),
        ("attn_layer_indices", CASES["mamba by indices"][0] | {"attn_layer_indices": [7]}),
        ("hybrid_layer_pattern", CASES["sliding with other heads"][0] | {"hybrid_layer_pattern": [0, 1, 2, 1]}),
        ("block_configs", BLOCKS | {"block_configs": BLOCKS["block_configs"][:3]}),
        ("hybrid_override_pattern", MAMBA | {"hybrid_override_pattern": "MEX-M"}),
        ("swa_num_key_value_heads", CASES["sliding with other heads"][0] | {"swa_num_key_value_heads": 3}),
    ],
)
def test_what_does_not_agree_is_refused_by_name(path: str, raw: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        read(raw)
    assert refused.value.path == path
