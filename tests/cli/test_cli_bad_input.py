"""Everything that a user can get wrong in a file: one line with the file, the place, what was found, what is legal."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]
Change = Callable[[dict[str, Any]], object]

SCENARIO: dict[str, Any] = {
    "schema_version": 1,
    "name": "bad",
    "llm": "qwen3-32b",
    "prefill": {
        "hardware": "rtx_pro_6000_wrx90_two_roots",
        "engine": "sglang_mooncake",
        "tp_size": 4,
        "chunk_tokens": 8192,
    },
    "decode": {"hardware": "rtx_pro_6000_wrx90_two_roots", "tp_size": 4},
    "requests": [{"name": "r0", "input_tokens": 8192}],
}


def set_key(path: str, value: Any) -> Change:
    def change(raw: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        part: Any = raw
        for key in parents:
            part = part[int(key)] if key.isdigit() else part.setdefault(key, {})
        part[last] = value

    return change


CASES: list[tuple[str, Change, list[str]]] = [
    ("unknown key", set_key("prefill.tp_sise", 4), ["prefill.tp_sise: unknown key", "did you mean 'tp_size'?"]),
    ("unknown key at the top", set_key("lmm", "x"), ["lmm: unknown key", "did you mean 'llm'?"]),
    (
        "wrong unit suffix",
        set_key("network.nic_gb_per_s", 50),
        ["network.nic_gb_per_s: unknown key", "did you mean 'nic_gbit_per_s'?"],
    ),
    (
        "wrong unit suffix in a list",
        set_key("requests.0.arrival_us", 50),
        ["requests.0.arrival_us: unknown key", "did you mean 'arrival_ms'?"],
    ),
    ("missing key", lambda raw: raw.pop("llm"), ["llm: missing key"]),
    ("zero size", set_key("prefill.tp_size", 0), ["prefill.tp_size: found 0", "greater than 0"]),
    ("negative size", set_key("requests.0.input_tokens", -1), ["requests.0.input_tokens: found -1", "greater than 0"]),
    ("wrong type", set_key("prefill.tp_size", "four"), ["prefill.tp_size: found 'four'", "valid integer"]),
    ("not a number", set_key("kv_slack", float("nan")), ["kv_slack: found nan", "finite number"]),
    ("unknown choice", set_key("prefill.all_reduce", "ncll"), ["prefill.all_reduce: found 'ncll'", "'nccl'"]),
    ("schema version", set_key("schema_version", 2), ["schema_version: found 2", "1"]),
    ("all tokens cached", set_key("requests.0.cached_tokens", 8192), ["requests.0", "8192", "must be new"]),
    ("no request", set_key("requests", []), ["requests"]),
    ("heads not divided", set_key("prefill.tp_size", 3), ["prefill", "3", "64"]),
    ("more ranks than GPUs", set_key("prefill.instances", 3), ["prefill", "12", "8"]),
    ("GPU index off", set_key("prefill.gpus", [[0, 1, 2, 8]]), ["prefill.gpus", "8", "0 to 7"]),
    ("NIC index off", set_key("transfer.nics", [2]), ["transfer.nics", "found NIC 2", "0 to 1"]),
    (
        "LLM larger than memory",
        set_key("llm", "deepseek-v3"),
        ["GiB of weights", "at most 86.4 GiB", "memory_fraction 0.9"],
    ),
    ("unknown LLM", set_key("llm", "qwen3-33b"), ["llm: unknown LLM 'qwen3-33b'", "did you mean"]),
    (
        "unknown profile",
        set_key("prefill.hardware", "rtx_pro_6000"),
        ["prefill.hardware: unknown hardware profile 'rtx_pro_6000'", "did you mean"],
    ),
    (
        "unknown engine",
        set_key("prefill.engine", "sglang_moncake"),
        ["prefill.engine: unknown engine 'sglang_moncake'", "did you mean 'sglang_mooncake'?"],
    ),
    (
        "more tokens than any context",
        set_key("requests.0.input_tokens", 10**30),
        ["requests.0.input_tokens: found 1000"],
    ),
    ("more requests than any batch", set_key("decode.max_running_requests", 10**60), ["decode.max_running_requests"]),
    ("instance off", set_key("requests.0.instance", 1), ["requests.0.instance: found instance 1", "0 to 0"]),
    (
        "profile by a missing path",
        set_key("prefill.hardware", "no/box.json"),
        ["prefill.hardware: no/box.json: no such file"],
    ),
]


FILES: list[tuple[str, bytes, str]] = [
    ("nested too deeply", b"[" * 200_000, "is nested too deeply"),
    ("nested too deeply in objects", b'{"a":' * 100_000, "is nested too deeply"),
    ("a number of too many digits", b'{"a": ' + b"9" * 10_000 + b"}", "digits"),
    ("a key twice", json.dumps(SCENARIO).encode().replace(b"{", b'{"name": "first", ', 1), "'name' is given twice"),
    ("UTF-16", json.dumps(SCENARIO).encode("utf-16"), "is not UTF-8 text"),
    ("nothing", b"", "malformed JSON"),
    ("a list", b"[]", "found a JSON list"),
]


@pytest.mark.parametrize(("content", "words"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
@pytest.mark.parametrize("command", [("scenario", "validate"), ("hardware", "validate"), ("llm", "show")])
def test_files_that_are_hardly_json(
    pdmodel: Program, tmp_path: Path, content: bytes, words: str, command: tuple[str, str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    run = pdmodel(*command, str(path))
    assert (run.code, run.out) == (3, "")
    assert words in run.err
    assert run.err.count("\n") == 1


def test_a_byte_order_mark_and_windows_line_ends_are_fine(pdmodel: Program, tmp_path: Path) -> None:
    path = tmp_path / "windows.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SCENARIO, indent=1).replace("\n", "\r\n").encode())
    assert pdmodel("scenario", "validate", str(path)).code == 0


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/x.json", "a\0b", "x/" * 3000])
def test_names_that_no_file_can_have(pdmodel: Program, name: str) -> None:
    for command in (("plan",), ("hardware", "show"), ("llm", "show")):
        run = pdmodel(*command, name)
        assert (run.code, run.out) == (3, "")
        assert run.err.count("\n") == 1
        assert len(run.err) < 1000


def test_a_long_wrong_value_is_not_repeated_whole(pdmodel: Program, tmp_path: Path) -> None:
    path = written(tmp_path, set_key("prefill.all_reduce", "x\ny" * 100_000))
    run = pdmodel("scenario", "validate", str(path))
    assert run.code == 3
    assert len(run.err) < 1000
    path = written(tmp_path, set_key("k" * 1_000_000, 1))
    assert len(pdmodel("scenario", "validate", str(path)).err) < 2000


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "vocab_size", "num_experts"])
def test_counts_that_no_llm_has(pdmodel: Program, tmp_path: Path, key: str) -> None:
    from pdmodel.resources import resolve

    raw = json.loads(resolve("llms", "qwen3-30b-a3b").read_text()) | {key: 10**30}
    path = tmp_path / "huge.json"
    path.write_text(json.dumps(raw))
    run = pdmodel("llm", "show", str(path))
    assert (run.code, run.out) == (3, "")
    assert f"{key}: found" in run.err


def test_what_no_formula_covers_names_the_scenario_and_is_not_valid(pdmodel: Program, tmp_path: Path) -> None:
    """No kernel reads a cache of 32 bits: known only when the costs are asked for."""
    path = written(tmp_path, set_key("kv_dtype", "fp32"))
    for command in (("plan",), ("scenario", "validate")):
        run = pdmodel(*command, str(path))
        assert (run.code, run.out) == (3, "")
        assert run.err.startswith(f"pdmodel: {path}: no attention time for a fp32 cache")


def written(tmp_path: Path, change: Change) -> Path:
    raw = json.loads(json.dumps(SCENARIO))
    change(raw)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(raw))
    return path


def test_the_base_is_good(pdmodel: Program, tmp_path: Path) -> None:
    run = pdmodel("scenario", "validate", str(written(tmp_path, lambda raw: None)))
    assert (run.code, run.err) == (0, "")


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_line_that_says_where_and_what(pdmodel: Program, tmp_path: Path, change: Change, words: list[str]) -> None:
    path = written(tmp_path, change)
    run = pdmodel("scenario", "validate", str(path))
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: ")
    assert run.err.count("\n") == 1
    for word in words:
        assert word in run.err
    assert run.err.startswith(f"pdmodel: {path}: ")


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_plan_says_the_same_and_writes_nothing(
    pdmodel: Program, tmp_path: Path, change: Change, words: list[str]
) -> None:
    path = written(tmp_path, change)
    out = tmp_path / "out"
    out.mkdir()
    run = pdmodel("plan", str(path), "--output", str(out / "a.json"), "--plot", str(out / "a.svg"))
    assert (run.code, run.out) == (3, "")
    assert run.err.count("\n") == 1
    for word in words:
        assert word in run.err
    assert not list(out.iterdir())


def test_llm_config_that_no_formula_covers(pdmodel: Program, tmp_path: Path) -> None:
    config = {"model_type": "longcat_flash", "architectures": ["GptOssForCausalLM"], "hidden_size": 2880}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = pdmodel("llm", "show", str(tmp_path / "config.json"))
    assert (run.code, run.out) == (3, "")
    assert "longcat_flash" in run.err
    assert run.err.count("\n") == 1
