"""``pdmodel scenario init``: the file it writes is valid; nothing is written where something does not fit."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.importers.make_scenario import Wanted, Wish, degrees, make_scenario
from pdmodel.planner import plan
from pdmodel.resolve import load_scenario
from pdmodel.resources import resolve

Program = Callable[..., Any]
BOX, LLM = "l40s_pcie_gen4", "qwen3-32b"
BASE = ("scenario", "init", "--hardware", BOX, "--llm", LLM, "--prefill", "tp=4", "--decode", "tp=4")


def trace_file(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": 500 * k, "input_length": 1024 * (k + 1), "output_length": 100, "hash_ids": list(range(2 * k + 2))}
        for k in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_flagship_of_the_help_text(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "turn.json"
    words = ("--hardware", "h100_8nic", "--llm", "qwen3-235b-a22b-fp8", "--prefill", "tp=2,cp=2,ep=4")
    run = pdmodel("scenario", "init", *words, "--decode", "tp=8,ep=8", "--isl", "32768", "-o", str(new))
    assert (run.code, run.err) == (0, "")
    assert f"pdmodel plan {new}" in run.out
    # Experts over four ranks of which two are a TP group: somebody must choose how tokens get there, and say so.
    assert "experts on more ranks than TP" in run.out
    found = load_scenario(new)
    assert [placement.parallelism.ranks for placement in found.prefill] == [4]
    assert found.decode.parallelism.ep_size == 8
    assert [request.input_tokens for request in found.requests] == [32768]
    assert pdmodel("scenario", "validate", str(new)).code == 0


def test_the_kv_path_reaches_the_file(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "tiers.json"
    options = ("--isl", "8192", "--cached-in", "hbm=1024,host_memory=2048,store=1024")
    more = ("--transfer", "layout=hnd,page_tokens=16,nics=0,early_send=false", "--cache", "write_policy=write_through")
    run = pdmodel(*BASE, *options, *more, "--store", "backend=mooncake_store,replicas=2", "-o", str(new))
    assert (run.code, run.err) == (0, "")
    raw = json.loads(new.read_text())
    assert raw["requests"][0]["cached_tokens"] == 4096
    assert raw["requests"][0]["cached_in"] == {"hbm": 1024, "host_memory": 2048, "store": 1024}
    assert raw["transfer"] == {"layout": "hnd", "page_tokens": 16, "nics": [0], "early_send": False}
    assert raw["cache"] == {"write_policy": "write_through"}
    assert raw["store"] == {"backend": "mooncake_store", "replicas": 2}
    assert "1024 hbm, 2048 host_memory, 1024 store" in run.out
    assert "store.replicas" in run.out
    shown = json.loads(pdmodel("scenario", "show", str(new), "--format", "json").out)
    assert shown["store"] | raw["store"] == shown["store"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cached-in", "ram"), "--cached-in"),
        (("--cached-in", "hbm=1,ram=2"), "--cached-in"),
        (("--cached-in", "store=64", "--cached", "65"), "hold 64"),
        (("--transfer", "page_size=4"), "page_tokens"),
        (("--cache", "reuse"), "--cache"),
        (("--store", "backend=mooncake"), "store"),
        (("--cached", "64", "--cached-in", "store"), "store"),
    ],
)
def test_slips_of_the_kv_path_are_one_line(
    pdmodel: Program, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    new = tmp_path / "x.json"
    run = pdmodel(*BASE, "--isl", "8192", *options, "-o", str(new))
    assert run.code in {2, 3}
    assert said in run.err
    assert not new.exists()


def test_every_option_reaches_the_file(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "x.json"
    options = ("--isl", "8192", "--osl", "512", "--cached", "4096", "--chunk", "2048", "--engine", "vllm_nixl")
    more = ("--decode-hardware", "h100_8nic", "--instances", "2", "--name", "my turn", "--kv-dtype", "fp8")
    more += ("--weight-dtype", "fp8")
    assert pdmodel(*BASE, *options, *more, "-o", str(new)).code == 0
    raw = json.loads(new.read_text())
    assert raw["name"] == "my turn"
    assert (raw["kv_dtype"], raw["weight_dtype"]) == ("fp8", "fp8")
    assert raw["prefill"] == {
        "hardware": BOX,
        "engine": "vllm_nixl",
        "chunk_tokens": 2048,
        "instances": 2,
        "tp_size": 4,
    }
    assert raw["decode"]["hardware"] == "h100_8nic"
    assert raw["decode"]["context_tokens"] == 8192 + 256
    assert raw["requests"] == [
        {"name": "turn0", "input_tokens": 8192, "cached_tokens": 4096},
        {"name": "turn1", "input_tokens": 8192, "cached_tokens": 4096, "instance": 1},
    ]
    assert plan(str(new)).data.volume_bytes.sum() > 0


def test_what_nobody_gave_is_told(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "x.json"
    told = json.loads(pdmodel(*BASE, "--isl", "8192", "-o", str(new), "--format", "json").out)
    raw = json.loads(new.read_text())
    assert told["scenario"] == raw
    given = {"schema_version", "name", "purpose", "llm", "requests", "prefill.hardware", "prefill.tp_size"}
    given |= {"decode.tp_size"}
    written = {key for key in raw if key not in ("prefill", "decode")}
    written |= {f"{side}.{key}" for side in ("prefill", "decode") for key in raw[side]}
    assert written - given <= {one["key"] for one in told["chosen"]}


def test_as_many_requests_run_as_fit(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "x.json"
    words = ("scenario", "init", "--hardware", BOX, "--llm", LLM, "--prefill", "tp=4", "--isl", "65536", "-o", str(new))
    assert pdmodel(*words, "--decode", "tp=4").code == 0
    running = json.loads(new.read_text())["decode"]["max_running_requests"]
    assert 1 < running < 32
    new.unlink()
    refused = pdmodel(*words, "--decode", f"tp=4,running={2 * running}")
    assert (refused.code, new.exists()) == (3, False)
    assert "decode.max_running_requests" in refused.err
    assert pdmodel(*words, "--decode", f"tp=4,running={running}").code == 0


def test_requests_of_a_trace_by_percentile(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "x.json"
    words = (*BASE, "--trace", str(trace_file(tmp_path)), "-o", str(new))
    assert pdmodel(*words, "--percentiles", "50,90").code == 0
    assert json.loads(new.read_text())["requests"] == [
        {"name": "p50", "input_tokens": 5120, "cached_tokens": 4096},
        {"name": "p90", "input_tokens": 9216, "cached_tokens": 8192},
    ]
    assert pdmodel(*words, "--cache-blocks", "3", "--percentiles", "50").code == 0
    assert json.loads(new.read_text())["requests"][0]["cached_tokens"] == 1536
    assert pdmodel(*words).code == 0
    assert [one["name"] for one in json.loads(new.read_text())["requests"]] == ["p50", "p90", "p99"]


def test_the_first_requests_of_a_trace(pdmodel: Program, tmp_path: Path) -> None:
    new = tmp_path / "x.json"
    words = (*BASE, "--trace", str(trace_file(tmp_path)), "--first", "3", "--instances", "2", "-o", str(new))
    assert pdmodel(*words).code == 0
    assert json.loads(new.read_text())["requests"] == [
        {"name": "r0", "input_tokens": 1024},
        {"name": "r1", "input_tokens": 2048, "arrival_ms": 500.0, "cached_tokens": 1024, "instance": 1},
        {"name": "r2", "input_tokens": 3072, "arrival_ms": 1000.0, "cached_tokens": 2048},
    ]


def test_files_are_named_as_the_scenario_sees_them(
    pdmodel: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("boxes", "llms", "mine/turns", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "boxes" / "box.json").write_bytes(resolve("hardware_profiles", BOX).read_bytes())
    (tmp_path / "llms" / "config.json").write_bytes(resolve("llms", LLM).read_bytes())
    monkeypatch.chdir(tmp_path)
    sides = ("--prefill", "tp=4", "--decode", "tp=4", "--isl", "4096", "-o", "mine/turns/x.json")
    run = pdmodel("scenario", "init", "--hardware", "boxes/box.json", "--llm", "llms/config.json", *sides)
    assert (run.code, run.err) == (0, "")
    raw = json.loads(Path("mine/turns/x.json").read_text())
    assert raw["prefill"]["hardware"] == "../../boxes/box.json"
    assert raw["llm"] == "../../llms/config.json"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert pdmodel("scenario", "validate", "../mine/turns/x.json").code == 0


BAD: list[tuple[tuple[str, ...], list[str]]] = [
    (("--prefill", "tp=3"), ["prefill.tp_size", "64 attention heads"]),
    (("--prefill", "tp=16"), ["prefill.tp_size", "at most the 8 GPUs"]),
    (("--prefill", "tp=4,pp=2"), ["--prefill: unknown key 'pp'", "one of tp, cp, ep"]),
    (("--prefill", "tp"), ["--prefill: found 'tp'", "tp=4"]),
    (("--prefill", "cp=2"), ["--prefill", "tp=N"]),
    (("--prefill", "tp=4,tp_size=2"), ["--prefill: tp_size is given twice"]),
    (("--prefill", "tp=four"), ["prefill.tp_size: found 'four'"]),
    (("--prefill", "tp=0"), ["prefill.tp_size: found 0"]),
    (("--prefill", "tp=4,ep=4"), ["prefill.ep_size", "has no experts"]),
    (("--prefill", "tp=4,all_reduce=ncl"), ["prefill.all_reduce: found 'ncl'", "'nccl'"]),
    (("--decode", "tp=4,cp=2"), ["--decode: unknown key 'cp'"]),
    (("--decode", "tp=1"), ["decode.tp_size", "GiB"]),
    (("--hardware", "l40s"), ["--hardware: unknown hardware profile 'l40s'", "did you mean 'l40s_pcie_gen4'?"]),
    (("--hardware", "no/box.json"), ["no/box.json: no such file"]),
    (("--llm", "qwen3-33b"), ["--llm: unknown LLM", "did you mean"]),
    (("--engine", "vllm"), ["--engine: unknown engine 'vllm'", "did you mean 'vllm_nixl'?"]),
    (("--cached", "8192"), ["requests.0.cached_tokens", "must be new"]),
    (("--isl", "10000000"), ["GiB of KV", "at most"]),
    (("--isl", "9" * 30), ["requests.0.input_tokens"]),
    (("--isl", "9" * 900), ["requests.0.input_tokens"]),
    (("--instances", "3"), ["prefill.instances", "12 GPUs"]),
    (("--weight-dtype", "int3"), ["weight_dtype: found 'int3'", "'bf16'"]),
    (("--kv-dtype", "int3"), ["kv_dtype: found 'int3'"]),
    (("--name", "a/b"), ["name: found 'a/b'"]),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[" ".join(case[0])[:40] for case in BAD])
def test_what_does_not_fit_is_one_line(
    pdmodel: Program, tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    new = tmp_path / "x.json"
    arguments = [*BASE, "--isl", "8192", "-o", str(new)]
    if change[0] in arguments:
        arguments[arguments.index(change[0]) + 1] = change[1]
    else:
        arguments += change
    run = pdmodel(*arguments)
    assert (run.code, run.out) == (3, "")
    assert run.err.count("\n") == 1
    assert not new.exists()
    for word in words:
        assert word in run.err
    assert str(new) not in run.err


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--isl", "0"),
        ("--isl", "5", "--trace", "t"),
        ("--isl", "5", "--first", "2"),
        ("--trace", "t", "--cached", "2"),
        ("--trace", "t", "--first", "2", "--percentiles", "50"),
    ],
)
def test_options_that_exclude_each_other(pdmodel: Program, tmp_path: Path, words: tuple[str, ...]) -> None:
    run = pdmodel(*BASE, *words, "-o", str(tmp_path / "x.json"))
    assert (run.code, run.out) == (2, "")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize("words", [("--percentiles", "50,x"), ("--percentiles", "101"), ("--percentiles", "50,50")])
def test_odd_percentiles(pdmodel: Program, tmp_path: Path, words: tuple[str, ...]) -> None:
    run = pdmodel(*BASE, "--trace", str(trace_file(tmp_path)), *words, "-o", str(tmp_path / "x.json"))
    assert run.code == 3
    assert "--percentiles" in run.err


def test_more_requests_than_the_trace_has(pdmodel: Program, tmp_path: Path) -> None:
    run = pdmodel(*BASE, "--trace", str(trace_file(tmp_path)), "--first", "11", "-o", str(tmp_path / "x.json"))
    assert (run.code, "1 to 10" in run.err) == (3, True)


def test_an_input_is_not_written_over(pdmodel: Program, tmp_path: Path) -> None:
    path = trace_file(tmp_path)
    before = path.read_bytes()
    run = pdmodel(*BASE, "--trace", str(path), "-o", str(path))
    assert run.code == 2
    assert path.read_bytes() == before


def test_a_target_that_cannot_be_written(pdmodel: Program, tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "no" / "x.json"):
        run = pdmodel(*BASE, "--isl", "8192", "-o", str(target))
        assert (run.code, run.err.count("\n")) == (3, 1)


@given(st.text(max_size=30), st.sampled_from(["prefill", "decode"]))
def test_any_text_as_degrees(text: str, side: str) -> None:
    try:
        found = degrees(text, side)
    except InputError as error:
        assert len(str(error)) < 500
        return
    assert "tp_size" in found


PIECES = ["tp", "cp", "ep", "chunk", "running", "context", "instances", "ep_exchange", "cp_exchange", "=", ","]
VALUES = ["0", "1", "2", "4", "8", "-1", "1e9", "99999999999999999999999", "ring", "ulysses", "dedup", "", "٣"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_no_combination_is_a_traceback(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    sides = [
        ",".join(["tp=4", *(f"{luck.choice(PIECES)}={luck.choice(VALUES)}" for _ in range(luck.randrange(3)))])
        for _ in range(2)
    ]
    requests = tuple(
        Wanted(f"r{k}", luck.choice([1, 1000, 10**12]), luck.choice([0, 1, 999]), luck.choice([0, 7]))
        for k in range(luck.randint(1, 3))
    )
    llm = luck.choice([LLM, "qwen3-30b-a3b", "deepseek-v3"])
    try:
        prefill, decode = (degrees(text, side) for text, side in zip(sides, ("prefill", "decode"), strict=True))
        wish = Wish(hardware=BOX, llm=llm, prefill=prefill, decode=decode, requests=requests)
        made = make_scenario(wish, tmp_path / "x.json")
    except InputError as error:
        assert "\n" not in str(error)
        return
    (tmp_path / "x.json").write_text(json.dumps(made.raw))
    assert load_scenario(tmp_path / "x.json").spec.prefill.tp_size == 4
