"""``pdmodel import hf-config``: what it says, what it refuses, and that no damage to a config gives a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.importers.hf_config import read_config
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.llm.kv_cache import kv_bytes_per_token, kv_constant_bytes, kv_sequence_bytes
from pdmodel.planner import plan
from pdmodel.resources import resolve

Program = Callable[..., Any]
CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "hf_configs"
SHIPPED = {name: json.loads(resolve("llms", name).read_text()) for name in list_llms()}


@pytest.mark.parametrize("name", list_llms())
def test_json_of_every_shipped_kind(pdmodel: Program, name: str) -> None:
    content = json.loads(pdmodel("import", "hf-config", str(resolve("llms", name)), "--format", "json").out)
    arch = load_llm(name)
    assert content["layers"] == arch.layers == len(content["kv_bytes_per_layer"])
    assert content["kv_bytes_per_token"] == kv_bytes_per_token(arch) == sum(content["kv_bytes_per_layer"])
    assert content["kv_constant_bytes"] == kv_constant_bytes(arch)
    assert content["parameters"] == arch.parameters
    assert content["kv_dtype"] == "bf16"
    assert sum(kind["count"] for kind in content["layer_kinds"]) == arch.layers
    assert isinstance(content["warnings"], list)


def test_other_dtypes_and_unknown_ones(pdmodel: Program) -> None:
    path = str(resolve("llms", "gpt-oss-120b"))
    content = json.loads(pdmodel("import", "hf-config", path, "--kv-dtype", "fp8", "--format", "json").out)
    assert (content["kv_bytes_per_token"], content["kv_constant_bytes"]) == (18_432, 2_359_296)
    refused = pdmodel("import", "hf-config", path, "--kv-dtype", "fp7")
    assert refused.code == 3 and "--kv-dtype: unknown KV dtype 'fp7'" in refused.err
    refused = pdmodel("import", "hf-config", path, "--kv-dtype", "fp8_ds_mla")
    assert refused.code == 3 and "a layout of latents" in refused.err


def test_a_refused_file_names_the_field_and_ends_with_3(pdmodel: Program, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SHIPPED["qwen3-8b"] | {"sparse_config": {"block": 64}}))
    run = pdmodel("import", "hf-config", str(path))
    assert run.code == 3
    assert run.err.startswith(f"pdmodel: {path}: sparse_config: found a dict of 1: not supported")
    assert run.err.count("\n") == 1


def test_several_files_as_a_table(pdmodel: Program, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"model_type": "rwkv"}))
    run = pdmodel("import", "hf-config", str(resolve("llms", "deepseek-v4-flash")), str(bad))
    assert run.code == 3
    assert "5,872" in run.out and "16,982,016" in run.out and "Refused" in run.out
    assert "model_type: found 'rwkv'" in run.err
    content = json.loads(
        pdmodel("import", "hf-config", *(str(resolve("llms", name)) for name in list_llms()), "--format", "json").out
    )
    assert [row["name"] for row in content["llms"]] == list_llms() and content["refused"] == []


def test_infinity_and_weights_in_an_unknown_format_are_read(tmp_path: Path) -> None:
    raw = SHIPPED["nemotron-3-super-120b"] | {"time_step_limit": [0.0, float("inf")]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(raw | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED"}}))
    found = read_config(tmp_path)
    assert "Infinity" in path.read_text()
    assert (found.bytes_per_token, found.constant_bytes) == (8192, 170_229_760)
    assert any(text.startswith("quantization_config.quant_algo") for text in found.warnings)


@pytest.mark.skipif(not CONFIGS.exists(), reason="the folder of published configs is not beside the repository")
@pytest.mark.parametrize(
    "name",
    ["gpt-oss-120b", "qwen3-next-80b-a3b", "mimo-v2-flash", "gemma-4-26b-a4b", "llama-4-maverick", "minimax-m1"],
)
def test_a_plan_from_a_published_config(name: str, tmp_path: Path) -> None:
    raw = json.loads(resolve("scenarios", "seed_h200_nvlink").read_text())
    degrees = {"tp_size": 8, "ep_size": 8, "ep_exchange": "all_reduce", "gpus": None}
    raw |= {"llm": str(CONFIGS / f"{name}.config.json"), "expected_verdict": None}
    raw["prefill"] |= degrees | {"cp_size": 1, "instances": 1}
    raw["decode"] |= degrees | {"max_running_requests": 8}
    raw["requests"] = [{"name": "r", "input_tokens": 16_384, "cached_tokens": 4096}]
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(raw))
    found = plan(str(path))
    arch = read_config(CONFIGS / f"{name}.config.json").arch
    sent = sum(flow.bytes for flow in found.flows if flow.kind == "send")
    # All of a sequence at least once; heads that eight ranks cannot share are copied, at most eight times.
    assert 1 - 1e-9 <= sent / kv_sequence_bytes(arch, 16_384) <= 8
    assert found.times.prefill_s >= found.times.prefill_no_kv_s * (1 - 1e-9) > 0


# ---- damage ----------------------------------------------------------------------------------------------------------
ODD = st.sampled_from(
    [None, True, False, 0, -1, 1, 3, 10**30, 0.5, float("inf"), "", "full", "x" * 300, [], [0], [None], [[1]], {}]
) | st.dictionaries(st.sampled_from(["attention", "num_heads", "head_dim"]), st.integers(-1, 9), max_size=2)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gives_a_traceback(data: st.DataObject, tmp_path: Path) -> None:
    raw = dict(SHIPPED[data.draw(st.sampled_from(sorted(SHIPPED)))])
    for key in data.draw(st.lists(st.sampled_from(sorted(raw)), max_size=3, unique=True)):
        if data.draw(st.booleans()):
            raw[key] = data.draw(ODD)
        else:
            del raw[key]
    other = SHIPPED[data.draw(st.sampled_from(sorted(SHIPPED)))]
    for key in data.draw(st.lists(st.sampled_from(sorted(other)), max_size=2)):
        raw[key] = other[key]
    path = tmp_path / "config.json"
    text = json.dumps(raw)
    if data.draw(st.integers(0, 9)) == 0:
        text = text[: data.draw(st.integers(0, len(text)))]
    path.write_text(text)
    try:
        found = read_config(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert found.bytes_per_token >= 0 and found.constant_bytes >= 0
        assert found.arch.parameters > 0
