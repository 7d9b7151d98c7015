"""Sizes of recurrent layers in Hugging Face configs: gated delta, KDA, lightning, Mamba, short convolutions."""

from __future__ import annotations

from collections.abc import Callable

from pdmodel.llm.hf_fields import ConfigSection
from pdmodel.llm.kinds import State

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_DTYPE = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")

_MAMBA = "mamba_d_state mamba_d_conv mamba_expand mamba_conv_bias mamba_proj_bias use_mamba_kernels mamba_hidden_act"
STATE_FIELDS: dict[str, frozenset[str]] = {
    kind: frozenset(words.split())
    for kind, words in {
        "gated_delta": "linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim "
        "linear_conv_kernel_dim mamba_ssm_dtype full_attention_interval",
        "kda": "linear_attn_config",
        "lightning": "attn_type_list layer_group_size group_norm_size num_kv_heads_for_linear_attn linear_silu "
        "linear_attn_norm_group_size",
        "mamba2": f"{_MAMBA} mamba_num_heads mamba_head_dim mamba_n_heads mamba_d_head ssm_state_size n_groups "
        "mamba_n_groups conv_kernel expand mamba_ssm_cache_dtype mamba_ssm_dtype mamba_chunk_size use_conv_bias "
        "mamba_num_groups chunk_size attn_layer_indices",
        "mamba1": f"{_MAMBA} mamba_dt_rank attn_layer_period attn_layer_offset mamba_inner_layernorms",
        "short_conv": "conv_L_cache conv_bias conv_dim conv_dim_out conv_use_xavier_init",
    }.items()
}
"""Fields that layers with a state of each kind explain."""


def state_element_bytes(section: ConfigSection) -> tuple[int, bool]:
    """Bytes of an element of the state, 4 where the config is silent, and whether the config says so."""
    key = section.present(*_STATE_DTYPE)
    if key is None:
        return 4, False
    found = section.get(key)
    if not isinstance(found, str) or found not in _DTYPE_BYTES:
        raise section.error(key, f"found {found!r}", expected="one of " + ", ".join(_DTYPE_BYTES))
    return _DTYPE_BYTES[found], True


def read_state(kind: str, section: ConfigSection, hidden: int) -> State:
    """The state of a layer of ``kind``, a key of `STATE_FIELDS`; `InputError` names a size that is missing."""
    return _READERS[kind](section, hidden)


def _gated_delta(section: ConfigSection, hidden: int) -> State:
    """Gated delta rule (Qwen3-Next): queries, keys, values go through the convolution; a gate and two scalars a head.

    Source: configuration of qwen3_next in Hugging Face transformers 4.57; Yang et al. 2024, arXiv 2412.06464.
    """
    del hidden
    key_heads, heads = section.integer("linear_num_key_heads"), section.integer("linear_num_value_heads")
    keys, values = section.integer("linear_key_head_dim"), section.integer("linear_value_head_dim")
    mixed = 2 * key_heads * keys + heads * values
    return State(
        "gated_delta",
        heads,
        keys,
        values,
        conv_elements=mixed * (section.integer("linear_conv_kernel_dim") - 1),
        in_columns=mixed + heads * values + 2 * heads,
        out_rows=heads * values,
        state_element_bytes=state_element_bytes(section)[0],
    )


def _kda(section: ConfigSection, hidden: int) -> State:
    """Kimi delta attention: equal heads of queries, keys, values, each through a convolution; two low-rank gates.

    Source: configuration of kimi_linear (Kimi-Linear-48B-A3B); Kimi Team 2025, arXiv 2510.26692.
    """
    raw = section.get("linear_attn_config")
    if not isinstance(raw, dict):
        raise section.error("linear_attn_config", f"found {raw!r}", expected="an object")
    inner = ConfigSection(raw, {}, section.file, section.path("linear_attn_config") + ".")
    heads, width = inner.integer("num_heads"), inner.integer("head_dim")
    total = heads * width
    return State(
        "kda",
        heads,
        width,
        width,
        conv_elements=3 * total * (inner.integer("short_conv_kernel_size") - 1),
        in_columns=3 * total + heads + 2 * width,
        out_rows=total,
        inner_parameters=2 * width * total,
        state_element_bytes=state_element_bytes(section)[0],
    )


def _lightning(section: ConfigSection, hidden: int) -> State:
    """Lightning attention (MiniMax-01, arXiv 2501.08313): a head-wide square per head, and an output gate."""
    heads = section.integer("num_attention_heads")
    width = section.optional_integer("head_dim", minimum=1) or hidden // heads
    return State("lightning", heads, width, width, 0, in_columns=4 * heads * width, out_rows=heads * width)


def _mamba2(section: ConfigSection, hidden: int) -> State:
    """Mamba-2 (Dao and Gu 2024, arXiv 2405.21060): heads of a width, a state of N per channel, groups of B and C."""
    heads = section.integer("mamba_num_heads", "mamba_n_heads")
    width = section.get("mamba_d_head")
    expand = section.optional_integer("mamba_expand", "expand", minimum=1) or 2
    if section.present("mamba_head_dim") or isinstance(width, int):
        width = section.integer("mamba_head_dim", "mamba_d_head")
    else:
        width = expand * hidden // heads
    size = section.integer("ssm_state_size", "mamba_d_state")
    groups = section.integer("n_groups", "mamba_n_groups", "mamba_num_groups")
    inner, mixed = heads * width, heads * width + 2 * groups * size
    return State(
        "mamba2",
        heads,
        size,
        width,
        conv_elements=mixed * (section.integer("conv_kernel", "mamba_d_conv") - 1),
        in_columns=inner + mixed + heads,
        out_rows=inner,
        state_element_bytes=state_element_bytes(section)[0],
        scan_chunk=section.optional_integer("mamba_chunk_size", "chunk_size", minimum=1) or 256,
    )


def _mamba1(section: ConfigSection, hidden: int) -> State:
    """Mamba (Gu and Dao 2023, arXiv 2312.00752): a state of N for each of expand x hidden channels."""
    inner = (section.optional_integer("mamba_expand", minimum=1) or 2) * hidden
    size = section.integer("mamba_d_state")
    rank = section.get("mamba_dt_rank")
    rank = rank if isinstance(rank, int) and not isinstance(rank, bool) else -(-hidden // 16)
    return State(
        "mamba1",
        inner,
        size,
        1,
        conv_elements=inner * (section.integer("mamba_d_conv") - 1),
        in_columns=2 * inner,
        out_rows=inner,
        inner_parameters=inner * (rank + 2 * size) + rank * inner,
        state_element_bytes=state_element_bytes(section)[0],
    )


def _short_conv(section: ConfigSection, hidden: int) -> State:
    """Gated short convolution (LFM2): the last inputs of a depthwise convolution, and no matrices."""
    kept = section.integer("conv_L_cache") - 1
    return State("short_conv", hidden, 0, 0, hidden * kept, in_columns=3 * hidden, out_rows=hidden)


_READERS: dict[str, Callable[[ConfigSection, int], State]] = {
    "gated_delta": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
    "mamba2": _mamba2,
    "mamba1": _mamba1,
    "short_conv": _short_conv,
}
