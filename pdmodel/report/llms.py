"""LLMs for reading: shape, parameters, weights, what a token adds to a sequence and what a sequence keeps besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.export import plain
from pdmodel.report.inputs import list_document
from pdmodel.report.words import NOTHING
from pdmodel.units import GIB, format_bytes

if TYPE_CHECKING:
    from pdmodel.importers.hf_config import KindOfLayer, LlmFindings
    from pdmodel.llm.architecture import Architecture


def llm_list(llms: Sequence[Architecture]) -> Document:
    """The shipped LLMs, one a line."""
    from pdmodel.llm.kv_cache import kv_bytes_per_token, kv_constant_bytes

    rows: list[dict[str, Any]] = [
        {
            "name": arch.name,
            "attention": attention_kinds(arch),
            "layers": arch.layers,
            "experts": arch.moe.experts if arch.moe else 0,
            "parameters": arch.parameters,
            "active_parameters": arch.active_parameters,
            "weights_bytes": arch.weights_bytes,
            "kv_bf16_bytes_per_token": kv_bytes_per_token(arch),
            "kv_bf16_constant_bytes": kv_constant_bytes(arch),
        }
        for arch in llms
    ]
    cells = [
        [
            str(row["name"]),
            str(row["attention"]),
            str(row["layers"]),
            str(row["experts"] or NOTHING),
            _billions(arch.parameters),
            _billions(arch.active_parameters),
            f"{arch.weights_bytes / GIB:.1f}",
            str(row["kv_bf16_bytes_per_token"]),
            format_bytes(float(row["kv_bf16_constant_bytes"])) if row["kv_bf16_constant_bytes"] else NOTHING,
        ]
        for row, arch in zip(rows, llms, strict=True)
    ]
    head = [
        "name",
        "attention",
        ">layers",
        ">experts",
        ">params",
        ">active",
        ">weights [GiB]",
        ">KV bf16 [B/token]",
        ">constant",
    ]
    return list_document("llm", "LLMs", rows, table(head, cells))


def llm_document(arch: Architecture) -> Document:
    """An LLM: shape, parameters, weights, KV bytes per token for each way to store them."""
    kv = _kv_rows(arch)
    shape = {
        "attention": attention_words(arch),
        "layers": arch.layers,
        "hidden_size": arch.hidden_size,
        "heads": arch.heads,
        "kv_heads": arch.kv_heads,
        "head_dim": arch.head_dim,
        "intermediate_size": arch.intermediate_size,
        "vocab_size": arch.vocab_size,
        **({f"mla_{key}": value for key, value in plain(arch.mla).items()} if arch.mla else {}),
        **(_moe_facts(arch) if arch.moe else {}),
        "parameters": arch.parameters,
        "active_parameters": arch.active_parameters,
        "weights_bytes": arch.weights_bytes,
        "attention_dtype": arch.dtypes.attention.value,
        "mlp_dtype": (arch.dtypes.experts if arch.moe else arch.dtypes.mlp).value,
    }
    words = {
        "parameters": _billions(arch.parameters),
        "active_parameters": _billions(arch.active_parameters),
        "weights_bytes": f"{arch.weights_bytes / GIB:.1f} GiB",
    }
    rows = [[key, words.get(key, NOTHING if value is None else str(value))] for key, value in shape.items()]
    kv_rows = [
        [
            str(row["kv_dtype"]),
            str(row["bytes_per_token_layer"]),
            str(row["bytes_per_token"]),
            format_bytes(float(row["constant_bytes"])) if row["constant_bytes"] else NOTHING,
            format_bytes(float(row["bytes_of_32768_tokens"])),
        ]
        for row in kv
    ]
    kv_head = ["stored as", ">bytes per token and layer, at most", ">bytes per token", ">constant", ">32,768 tokens"]
    note = "One latent a token, the same on every TP rank." if arch.mla else "All heads together; TP ranks divide them."
    sections = (
        Section("Architecture", table=table(["what", ">value"], rows)),
        Section("KV cache", table=table(kv_head, kv_rows), note=note, bullets=arch.notes),
    )
    records = [Record("architecture", {"name": key, "value": value}) for key, value in shape.items()]
    records += [Record("kv_cache", row) for row in kv]
    return Document(
        arch.name, arch.file, sections, {"name": arch.name, **shape, "file": arch.file, "kv_cache": kv}, tuple(records)
    )


def _kv_rows(arch: Architecture) -> list[dict[str, Any]]:
    """What a token adds and a sequence keeps, for each way to store it."""
    from pdmodel.errors import CoverageError
    from pdmodel.llm.dtypes import KvDtype
    from pdmodel.llm.kv_cache import kv_bytes_per_layer, kv_constant_bytes, kv_sequence_bytes

    kv: list[dict[str, Any]] = []
    for dtype in KvDtype:
        try:
            layers = kv_bytes_per_layer(arch, dtype)
        except CoverageError:
            continue  # a layout that this kind of attention does not have
        kv.append(
            {
                "kv_dtype": dtype.value,
                "bytes_per_token_layer": max(layers),
                "bytes_per_token": sum(layers),
                "constant_bytes": kv_constant_bytes(arch, dtype),
                "bytes_of_32768_tokens": kv_sequence_bytes(arch, 32768, dtype),
            }
        )
    return kv


def _moe_facts(arch: Architecture) -> dict[str, int]:
    if arch.moe is None:
        return {}
    return {
        "experts": arch.moe.experts,
        "top_k": arch.moe.top_k,
        "expert_intermediate_size": arch.moe.intermediate_size,
        "shared_intermediate_size": arch.moe.shared_intermediate_size,
        "moe_layers": len(arch.moe.layers),
    }


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} B"


def attention_words(arch: Architecture) -> str:
    """The kinds of layers in a few words: ``gqa``, ``mla``, or how many there are of each."""
    if not arch.mixers:
        return arch.attention.value
    counts: dict[str, int] = {}
    for mixer in arch.mixers:
        name = mixer.state.name if mixer.state is not None else mixer.kind.value
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def attention_kinds(arch: Architecture) -> str:
    """The same in a word: which kinds there are.

    >>> from pdmodel.llm.catalog import load_llm
    >>> attention_kinds(load_llm("gpt-oss-120b")), attention_kinds(load_llm("deepseek-v3.2"))
    ('swa+gqa', 'mla+dsa')
    """
    words = {
        "chunked": "chunk",
        "full": "gqa",
        "sliding_window": "swa",
        "latent": "mla",
        "linear": "state",
        "compressed": "csa",
    }
    kinds = [words.get(mixer.kind.value, mixer.kind.value) for mixer in arch.distinct_mixers()]
    sparse = any(mixer.mla is not None and mixer.indexer is not None for mixer in arch.distinct_mixers())
    return "+".join(dict.fromkeys([kind for kind in kinds if kind != "none"] + (["dsa"] if sparse else [])))


# ---- a config --------------------------------------------------------------------------------------------------------
def config_document(found: LlmFindings) -> Document:
    """What one ``config.json`` says."""
    content = _config_content(found)
    kinds = content["layer_kinds"]
    rows = [
        ["layers", str(found.arch.layers)],
        ["KV bytes per token", _whole(found.bytes_per_token)],
        ["KV bytes besides", _whole(found.constant_bytes)],
        ["stored as", found.kv_dtype.value],
        ["parameters", _billions(found.arch.parameters)],
        ["of them active", _billions(found.arch.active_parameters)],
        ["weights", f"{found.arch.weights_bytes / GIB:.1f} GiB"],
    ]
    heads = ["layers", ">count", ">bytes per token", ">of a token kept", ">besides", "~what"]
    cells = [
        [
            row["kind"],
            str(row["count"]),
            _whole(row["bytes_per_token"]),
            _whole(row["entry_bytes"]),
            _whole(row["constant_bytes"]),
            row["what"],
        ]
        for row in kinds
    ]
    sections = (
        Section("LLM", table=table(["what", ">value"], rows)),
        Section("What a sequence keeps", table=table(heads, cells)),
        *([Section("Inferred, left out", bullets=found.warnings)] if found.warnings else []),
    )
    records = [Record("llm", {key: value for key, value in content.items() if not isinstance(value, list)})]
    records += [Record("layers", row) for row in kinds]
    return Document(found.arch.name, found.arch.file, sections, content, tuple(records))


def config_table(found: Sequence[LlmFindings], refused: Sequence[tuple[str, str]]) -> Document:
    """Several configs, one a line, and why others were refused."""
    rows = [{key: value for key, value in _config_content(one).items() if key != "layer_kinds"} for one in found]
    heads = ["name", ">layers", "kinds", ">KV [B/token]", ">besides [B]", ">parameters", "~warnings"]
    cells = [
        [
            one.arch.name,
            str(one.arch.layers),
            attention_words(one.arch),
            _whole(one.bytes_per_token),
            _whole(one.constant_bytes),
            _billions(one.arch.parameters),
            "; ".join(one.warnings) or NOTHING,
        ]
        for one in found
    ]
    sections = (
        Section("Configs", table=table(heads, cells)),
        *([Section("Refused", bullets=tuple(reason for _, reason in refused))] if refused else []),
    )
    content = {"llms": rows, "refused": [{"file": file, "reason": reason} for file, reason in refused]}
    records = [Record("llm", {key: value for key, value in row.items() if not isinstance(value, list)}) for row in rows]
    records += [Record("refused", {"file": file, "reason": reason}) for file, reason in refused]
    return Document("LLMs", f"{len(found)} read, {len(refused)} refused", sections, content, tuple(records))


def _config_content(found: LlmFindings) -> dict[str, Any]:
    arch = found.arch
    return {
        "name": arch.name,
        "file": arch.file,
        "layers": arch.layers,
        "kv_dtype": found.kv_dtype.value,
        "kv_bytes_per_token": found.bytes_per_token,
        "kv_constant_bytes": found.constant_bytes,
        "kv_bytes_per_layer": list(found.per_layer),
        "parameters": arch.parameters,
        "active_parameters": arch.active_parameters,
        "weights_bytes": arch.weights_bytes,
        "layer_kinds": [_kind_row(kind) for kind in found.kinds],
        "warnings": list(found.warnings),
    }


def _kind_row(kind: KindOfLayer) -> dict[str, Any]:
    return {
        "kind": kind.mixer.kind.value,
        "count": kind.count,
        "bytes_per_token": kind.growing_bytes,
        "entry_bytes": kind.entry_bytes,
        "constant_bytes": kind.constant_bytes,
        "what": _what(kind),
    }


def _what(kind: KindOfLayer) -> str:
    """Heads, window, ratio, indexer or state of a kind of layer, in words."""
    mixer = kind.mixer
    words = []
    if mixer.state is not None:
        matrices = f"{mixer.state.heads} x {mixer.state.key_dim} x {mixer.state.value_dim}"
        return f"{mixer.state.name} state {matrices}"
    if mixer.mla is not None:
        words.append(f"latent {mixer.mla.kv_lora_rank} + {mixer.mla.qk_rope_head_dim}")
    elif mixer.compression is not None:
        ratio = mixer.compression.ratio
        own = "" if mixer.compression.owner or not ratio else ", entries of another layer"
        words.append(f"entry of {mixer.head_dim}" + (f", one per {ratio} tokens{own}" if ratio else " a token"))
    elif mixer.heads:
        words.append(f"{mixer.kv_heads} KV heads of {mixer.head_dim}")
        if mixer.v_head_dim != mixer.head_dim:
            words.append(f"values of {mixer.v_head_dim}")
    if mixer.window is not None:
        words.append(f"window of {mixer.window}")
    if mixer.indexer is not None:
        words.append(f"indexer key of {mixer.indexer.key_bytes} B" if mixer.indexer.owner else "picks of another layer")
    if not mixer.stores:
        words.append("cache of another layer")
    return ", ".join(words) or "mixes no tokens"


def _whole(size: float) -> str:
    return f"{size:,.0f}" if float(size).is_integer() else f"{size:,.2f}"
