"""The config reader: what it reads, what it refuses by name, and the one line it says about bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdmodel.errors import CoverageError, InputError
from pdmodel.llm.architecture import AttentionKind
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.hf_config import architecture_from_config, read_hf_config
from pdmodel.llm.kv_cache import kv_bytes_per_token

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
QWEN_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MLA = LLAMA | {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
BLOCK: dict[str, Any] = {"attention": {"num_key_value_heads": 2}, "ffn": {"intermediate_size": 1024}}
SPARSE = {"attention": {"sparsify": ["half"]}}


def read(raw: dict[str, Any]) -> Any:
    return architecture_from_config(raw, name="x", file="x.json")


def test_head_dim_explicit_wins_and_else_divides() -> None:
    assert read(LLAMA).head_dim == 64
    assert read(LLAMA | {"head_dim": 96}).head_dim == 96
    assert kv_bytes_per_token(read(LLAMA | {"head_dim": 96})) == 4 * 2 * 2 * 96 * 2
    with pytest.raises(InputError, match="head_dim: missing key"):
        read(LLAMA | {"hidden_size": 500})


def test_family_defaults() -> None:
    assert read(LLAMA | {"model_type": "qwen3"}).head_dim == 128
    assert read(LLAMA | {"model_type": "gemma"}).tied_embeddings
    absent = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read(absent).kv_heads == 8  # llama: absent means one KV head per head
    with pytest.raises(InputError, match="num_key_value_heads: missing key"):
        read(absent | {"model_type": "qwen2"})
    with pytest.raises(InputError, match="num_key_value_heads: missing key"):
        read(absent | {"model_type": "unheard_of"})


def test_nested_text_config_inherits_from_the_top() -> None:
    inner = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    raw = {
        "model_type": "some_vl",
        "text_config": inner | {"model_type": "qwen3_vl_text", "head_dim": 128},
        "vision_config": {"num_hidden_layers": 99, "num_heads": 3},
        "torch_dtype": "float16",
        "tie_word_embeddings": True,
    }
    arch = read(raw)
    assert (arch.layers, arch.head_dim, arch.qk_norm) == (4, 128, True)
    assert arch.tied_embeddings
    assert arch.dtypes.attention is WeightDtype.FP16
    raw["text_config"]["sparse_config"] = {"block": 7}
    with pytest.raises(CoverageError, match=r"text_config\.sparse_config: found a dict of 1"):
        read(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        {"model_type": "qwen2", "sliding_window": 4096},
        {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 4},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "phi3", "sliding_window": 8192, "max_position_embeddings": 4096},
        {"layer_types": ["full_attention"] * 4, "sliding_window": 128},
        {"model_type": "exaone4", "sliding_window": None, "sliding_window_pattern": "LLLG"},
        {"attn_type_list": [1, 1, 1, 1]},
        {"v_head_dim": 64},
        {"num_kv_shared_layers": 0, "index_topk": None, "attention_chunk_size": None},
        {"some_field_of_the_future": 3},
    ],
    ids=str,
)
def test_full_attention_in_disguise_is_accepted(change: dict[str, Any]) -> None:
    assert kv_bytes_per_token(read(LLAMA | change)) > 0


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("sliding_window", {"sliding_window": 4096}),
        ("layer_types", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}),
        ("layer_types", {"layer_types": ["linear_attention"] + ["full_attention"] * 3}),
        ("attn_type_list", {"attn_type_list": [0, 0, 1, 1]}),
        ("attention_chunk_size", {"attention_chunk_size": 8192}),
        ("hybrid_override_pattern", {"hybrid_override_pattern": "ME*E"}),
        ("full_attention_interval", {"full_attention_interval": 4}),
        ("linear_num_value_heads", {"linear_num_value_heads": 32}),
        ("mamba_num_heads", {"mamba_num_heads": 8}),
        ("compress_ratios", {"compress_ratios": [0, 4, 128, 4]}),
        ("num_kv_shared_layers", {"num_kv_shared_layers": 2}),
        ("block_configs", {"block_configs": [{}] * 4}),
        ("block_configs.1.attention.sparsify", {"block_configs": [BLOCK, BLOCK | SPARSE, BLOCK, BLOCK]}),
        ("sparse_config", {"sparse_config": {"block": 7}}),
        ("layer_types", {"layer_types": ["compressed_sparse_attention"] * 4}),
        ("index_topk", {"index_topk": 7}),
        ("swa_head_dim", {"swa_head_dim": 64}),
        ("cross_attention_layers", {"cross_attention_layers": [3]}),
        ("attn_output_gate", {"attn_output_gate": True}),
        ("is_encoder_decoder", {"is_encoder_decoder": True}),
        ("q_lora_rank", {"q_lora_rank": 512}),
        ("model_type", {"model_type": "longcat_flash"}),
        ("model_type", {"model_type": "mllama"}),
        ("my_kv_window", {"my_kv_window": 4}),
        ("something_new", {"model_type": "unheard_of", "something_new": 1}),
    ],
    ids=str,
)
def test_other_kinds_are_refused_by_name(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(CoverageError) as refused:
        read(LLAMA | change)
    assert refused.value.path == field
    assert str(refused.value).startswith(f"x.json: {field}: ")


def test_half_an_indexer_is_refused() -> None:
    with pytest.raises(CoverageError, match=r"index_head_dim: found 128: not supported"):
        read(MLA | {"index_head_dim": 128})
    with pytest.raises(InputError, match="index_n_heads: missing key"):
        read(MLA | {"index_head_dim": 128, "index_topk": 64})


def test_mla_ignores_kv_heads_and_head_dim() -> None:
    arch = read(MLA | {"num_key_value_heads": 3, "head_dim": 64})
    assert arch.attention is AttentionKind.MLA
    assert kv_bytes_per_token(arch) == 4 * (512 + 64) * 2
    assert arch.moe is not None
    assert arch.moe.layers == {1, 2, 3}
    assert arch.moe.shared_intermediate_size == 256
    assert read(MLA | {"use_mla": False, "kv_lora_rank": None, "v_head_dim": 64}).attention is AttentionKind.GQA
    with pytest.raises(InputError, match="v_head_dim: found null"):
        read(MLA | {"v_head_dim": None})


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, {0, 1, 2, 3}),
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"mlp_only_layers": [0]}, {1, 2, 3}),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, {1, 2}),
        ({"first_k_dense_replace": 2}, {2, 3}),
        ({"moe_layer_freq": [0, 1, 0, 1]}, {1, 3}),
    ],
    ids=str,
)
def test_which_layers_are_moe(change: dict[str, Any], layers: set[int]) -> None:
    moe = read(QWEN_MOE | change).moe
    assert moe is not None
    assert moe.layers == layers


def test_experts_of_other_notations() -> None:
    mixtral = {key: value for key, value in QWEN_MOE.items() if not key.startswith(("moe_", "num_experts"))}
    arch = read(mixtral | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert arch.moe is not None
    assert arch.moe.intermediate_size == 1024
    shared = read(QWEN_MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 77})
    assert shared.moe is not None
    assert (shared.moe.shared_intermediate_size, shared.moe.shared_gate) == (77, True)
    assert read(QWEN_MOE | {"num_experts": 0}).moe is None


@pytest.mark.parametrize(
    ("config", "attention", "experts"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, WeightDtype.FP8_BLOCK, WeightDtype.FP8_BLOCK),
        ({"quant_method": "fp8"}, WeightDtype.FP8, WeightDtype.FP8),
        ({"quant_method": "awq", "bits": 4}, WeightDtype.INT4, WeightDtype.INT4),
        ({"quant_method": "mxfp4"}, WeightDtype.BF16, WeightDtype.MXFP4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, WeightDtype.NVFP4, WeightDtype.NVFP4),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            },
            WeightDtype.BF16,
            WeightDtype.INT4,
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["gate", "model.layers.*.self_attn", "lm_head"]},
            WeightDtype.BF16,
            WeightDtype.FP8,
        ),
    ],
    ids=str,
)
def test_weight_dtypes(config: dict[str, Any], attention: WeightDtype, experts: WeightDtype) -> None:
    arch = read(QWEN_MOE | {"quantization_config": config})
    assert (arch.dtypes.attention, arch.dtypes.experts, arch.dtypes.other) == (attention, experts, WeightDtype.BF16)


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("num_hidden_layers", {"num_hidden_layers": None}, "found null; expected an integer >= 1"),
        ("num_hidden_layers", {"num_hidden_layers": 0}, "found 0; expected an integer >= 1"),
        ("num_hidden_layers", {"num_hidden_layers": True}, "found True; expected an integer >= 1"),
        ("hidden_size", {"hidden_size": "512"}, "found '512'; expected an integer >= 1"),
        ("num_key_value_heads", {"num_key_value_heads": 3}, "found 3; expected a divisor of num_attention_heads (8)"),
        ("num_key_value_heads", {"num_key_value_heads": [2, 2, 2, 2]}, "found [2, 2, 2, 2]; expected an integer >= 1"),
        ("num_experts_per_tok", {"num_experts": 4, "num_experts_per_tok": 5}, "found 5; expected at most the number"),
        ("torch_dtype", {"torch_dtype": "int3"}, "found 'int3'; expected one of bfloat16"),
        ("layer_types", {"layer_types": ["full_attention"]}, "found 1 entries; expected 4, one a layer"),
        ("quantization_config.quant_method", {"quantization_config": {"quant_method": "zip"}}, "found 'zip'"),
        (
            "quantization_config.weight_block_size",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}},
            "found [64, 64]; expected [128, 128], [32, 32] or null",
        ),
        ("tie_word_embeddings", {"tie_word_embeddings": "no"}, "found 'no'; expected true or false"),
    ],
    ids=str,
)
def test_bad_values_say_where_and_what_is_legal(path: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(LLAMA | change)
    assert caught.value.path == path
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_key_names_the_nearest() -> None:
    raw = {("num_hiden_layers" if key == "num_hidden_layers" else key): value for key, value in LLAMA.items()}
    with pytest.raises(InputError, match=r"num_hidden_layers: missing key.*did you mean 'num_hiden_layers'"):
        read(raw)


def test_files_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "My-LLM"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_llm(folder).name == "My-LLM"
    assert load_llm(folder / "config.json") == load_llm(folder)
    (tmp_path / "tiny.config.json").write_text(json.dumps(LLAMA))
    assert read_hf_config(tmp_path / "tiny.config.json").name == "tiny"
    with pytest.raises(InputError, match="no such file"):
        load_llm(str(tmp_path / "absent.json"))
    (tmp_path / "broken.json").write_text('{"a": 1,')
    with pytest.raises(InputError, match=r"broken\.json: line 1 column 9: malformed JSON"):
        load_llm(tmp_path / "broken.json")
    with pytest.raises(InputError, match=r"unknown LLM 'qwen3-33b'.*did you mean 'qwen3-32b'"):
        load_llm("qwen3-33b")


FALCON: dict[str, Any] = {
    "model_type": "falcon",
    "architectures": ["FalconForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_kv_heads": 8,
    "multi_query": True,
    "new_decoder_architecture": False,
    "parallel_attn": True,
    "alibi": False,
    "bias": False,
    "vocab_size": 1000,
}


def test_falcon_says_kv_heads_in_its_own_words() -> None:
    one = read(FALCON)
    assert (one.kv_heads, one.head_dim, one.gated_mlp, one.intermediate_size) == (1, 64, False, 2048)
    assert kv_bytes_per_token(one) == 4 * 2 * 64 * 2
    assert read(FALCON | {"multi_query": False}).kv_heads == 8
    grouped = read(FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 1000})
    assert (grouped.kv_heads, grouped.intermediate_size) == (2, 1000)
    # Falcon-180B has 8 KV heads of 64 on 80 layers: 163,840 bytes a token in BF16.
    sizes = {"num_hidden_layers": 80, "hidden_size": 14848, "num_attention_heads": 232, "vocab_size": 65024}
    large = read(FALCON | sizes | {"new_decoder_architecture": True})
    assert kv_bytes_per_token(large) == 163_840 and large.parameters == pytest.approx(180e9, rel=0.01)
    with pytest.raises(InputError, match="new_decoder_architecture: found 1; expected true or false"):
        read(FALCON | {"new_decoder_architecture": 1})
    with pytest.raises(InputError, match="num_attention_heads"):
        read(FALCON | {"num_attention_heads": "8"})


def test_what_published_configs_of_gemma_3_leave_out_is_filled_and_told() -> None:
    text = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "sliding_window": 1024,
    }
    found = read({"model_type": "gemma3", "text_config": text, "vision_config": {"num_attention_heads": 16}})
    # Gemma 3 4B: 8 heads, 4 KV heads of 256; 5 of 34 layers are global; 3.88 billion parameters beside the vision.
    assert (found.heads, found.kv_heads, found.head_dim) == (8, 4, 256)
    assert kv_bytes_per_token(found) == 5 * 2 * 4 * 256 * 2
    assert found.parameters == pytest.approx(3.88e9, rel=0.001)
    assert any("num_attention_heads 8, num_key_value_heads 4, vocab_size 262208" in note for note in found.notes)
    whole = read({"text_config": text | {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208}})
    assert not any("left out, so" in note for note in whole.notes)
    with pytest.raises(InputError, match=r"text_config.hidden_size: missing key"):
        read({"text_config": {key: value for key, value in text.items() if key != "hidden_size"}})


def test_caches_that_could_be_shared_and_are_not() -> None:
    assert kv_bytes_per_token(read(LLAMA | {"use_cla": False, "cla_share_factor": 2})) == kv_bytes_per_token(
        read(LLAMA)
    )
    with pytest.raises(CoverageError, match="cla_share_factor: found 2: not supported"):
        read(LLAMA | {"cla_share_factor": 2})
    with pytest.raises(CoverageError, match="use_cla: found True"):
        read(LLAMA | {"use_cla": True, "cla_share_factor": 2})


def test_biases_of_queries_keys_and_values_by_either_name() -> None:
    stable = LLAMA | {"model_type": "stablelm"}
    assert read(stable | {"use_qkv_bias": True}).qkv_bias and read(stable | {"qkv_bias": True}).qkv_bias
    assert not read(stable | {"use_qkv_bias": False}).qkv_bias
