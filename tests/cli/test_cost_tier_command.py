"""``pdmodel cost kv-tier``: what the formulas say in every form, and one line for whatever is wrong."""

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from pdmodel.costs.kv_store import backend_constants, get_terms
from pdmodel.engines.stores import load_store
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.kv_cache import kv_bytes_per_token

Program = Callable[..., Any]
DENSE = ("cost", "kv-tier", "--llm", "llama-3.1-70b", "--hardware", "h100_8nic", "--prefill", "tp=8")
TURN = (*DENSE, "--cached", "8k", "--new", "512")
AGENTIC = (
    *("cost", "kv-tier", "--llm", "qwen3-235b-a22b-fp8", "--hardware", "rtx_pro_6000_wrx90_two_roots"),
    *("--prefill", "tp=8,ep=8", "--cached", "62k", "--new", "2k"),
)


def document(pdmodel: Program, *words: str) -> dict[str, Any]:
    run = pdmodel(*words, "--format", "json")
    assert (run.code, run.err) == (0, "")
    found: dict[str, Any] = json.loads(run.out)
    return found


def test_json_is_what_the_formulas_say(pdmodel: Program) -> None:
    found = document(pdmodel, *TURN)
    hbm, host, store = found["tiers"]
    size = 8192 * kv_bytes_per_token(load_llm("llama-3.1-70b"))
    assert hbm["bytes"] == host["bytes"] == store["bytes"] == size
    assert found["recompute_all_s"] == pytest.approx(found["hbm_s"] + found["recompute_s"])
    step = document(
        pdmodel, *("cost", "step", "--llm", "llama-3.1-70b", "--hardware", "h100_8nic", "--tp", "8"),
        *("--phase", "prefill", "--tokens", "512", "--past", "8192"),
    )  # fmt: skip
    assert found["hbm_s"] == pytest.approx(step["time_s"])
    assert hbm["prefill_s"] == found["hbm_s"]
    # 128 pages, keys and values apart
    terms = get_terms(size, 256, store["rate_bytes_per_s"], backend_constants(load_store("mooncake_store")))
    assert store["control_s"] == pytest.approx(terms.control_s)
    assert store["load_s"] == pytest.approx(terms.time_s + host["load_s"])
    assert store["prefill_s"] == pytest.approx(terms.time_s + host["prefill_s"])
    for tier in (host, store):
        assert tier["prefill_s"] == pytest.approx(found["hbm_s"] + tier["exposed_s"])
        assert 0 < tier["exposed_s"] <= tier["load_s"]
    # Equation 2 for eight GPUs of 989 TFLOP/s, as the paper has it; what GPUs reach is less.
    assert found["equation_2_bytes_per_s"] == pytest.approx(18.6e9, rel=0.02)
    assert 0 < host["break_even_bytes_per_s"] < found["equation_2_bytes_per_s"]


def test_each_tier_costs_more_than_the_one_above(pdmodel: Program) -> None:
    found = document(pdmodel, *AGENTIC)
    times = [tier["prefill_s"] for tier in found["tiers"]]
    assert times == sorted(times)
    assert times[-1] < found["recompute_all_s"]
    assert {tier["better"] for tier in found["tiers"]} == {"load"}
    assert all(tier["best_s"] <= tier["prefill_s"] for tier in found["tiers"])
    assert found["equation_2_bytes_per_s"] is None
    assert found["tiers"][0]["rate_bytes_per_s"] is None


def test_where_computing_beats_loading(pdmodel: Program) -> None:
    words = ("cost", "kv-tier", "--llm", "qwen3-8b", "--hardware", "rtx_pro_6000_server", "--prefill", "tp=1")
    found = document(pdmodel, *words, "--cached", "32k", "--new", "1k", "--store", "mooncake_store_tcp")
    host, store = found["tiers"][1:]
    assert (host["better"], store["better"]) == ("load", "recompute")
    assert store["best_loaded_tokens"] == 0
    assert store["best_s"] == pytest.approx(found["recompute_all_s"])
    assert store["rate_bytes_per_s"] < store["break_even_bytes_per_s"]
    assert store["port"] == "the store's own limit"


def test_part_of_a_prefix_can_be_worth_loading(pdmodel: Program) -> None:
    # Latents are on every rank: the links of 8 GPUs load them nearly as slowly as the layers are computed.
    words = ("cost", "kv-tier", "--llm", "deepseek-v3", "--hardware", "h200_nvlink_2nic", "--prefill", "tp=8,ep=8")
    (host,) = document(pdmodel, *words, "--cached", "62k", "--new", "2k", "--tier", "host_memory")["tiers"]
    assert 0 < host["best_loaded_tokens"] < 63488
    assert host["best_s"] < host["prefill_s"]
    assert host["bytes"] == 8 * 63488 * kv_bytes_per_token(load_llm("deepseek-v3"))


def test_prefetch_policies(pdmodel: Program) -> None:
    words = (*DENSE, "--cached", "100000", "--new", "512", "--store", "mooncake_store_tcp", "--tier", "store")
    none, all_, some = document(pdmodel, *words, "--queue-ms", "2000")["prefetch"]
    assert [one["policy"] for one in (none, all_, some)] == ["best_effort", "wait_complete", "timeout"]
    assert [one["chosen"] for one in (none, all_, some)] == [False, False, True]
    # 1.95 GB/s bring 8,192 tokens of 2.68 GB in 1.4 s.
    assert none["fetched_tokens"] == 8192
    assert all_["fetched_tokens"] == 100_000 // 64 * 64
    assert some["fetched_tokens"] == all_["fetched_tokens"]
    assert none["ready_s"] == pytest.approx(2.0)
    assert none["prefill_end_s"] < all_["prefill_end_s"]


def test_the_store_connector(pdmodel: Program) -> None:
    found = document(pdmodel, *AGENTIC)["hand_over"]
    ways = {row["name"]: row for row in found["ways"]}
    for column in ("fresh_s", "reused_s"):
        parts = sum(row[column] for row in found["ways"] if row["kind"] == "part")
        assert ways["store_costs_s"][column] == pytest.approx(parts)
        assert ways["after_put_s"][column] - ways["by_layer_s"][column] == pytest.approx(parts)
        assert ways["lost_overlap_s"][column] > 0.5 * parts
    assert (found["fresh_put_calls"], found["reused_put_calls"]) == (8, 1)
    assert (found["put_port"], found["get_port"]) == ("P/nic0/tx", "D/nic0/rx")
    # Twice the bytes through the same ports, once put and once got.
    assert found["put_bytes_s"] == pytest.approx(found["get_bytes_s"])


def test_latents_are_put_once_and_got_by_every_rank(pdmodel: Program) -> None:
    words = ("cost", "kv-tier", "--llm", "deepseek-v3", "--hardware", "h200_nvlink_2nic", "--prefill", "tp=8,ep=8")
    words = (*words, "--cached", "8k", "--new", "2k", "--store", "mooncake_store_tcp")
    found = document(pdmodel, *words)["hand_over"]
    assert found["get_bytes_s"] / found["put_bytes_s"] == pytest.approx(8 * 1.82 / 1.95)


def test_disks_of_the_box_and_boxes_without_nics(pdmodel: Program) -> None:
    assert document(pdmodel, *TURN, "--store", "file")["hand_over"] is None
    gds = document(pdmodel, *TURN, "--store", "nixl_gds")
    store = gds["tiers"][2]
    # Straight into HBM: no second copy, no overlap.
    assert store["exposed_s"] == pytest.approx(store["load_s"])
    run = pdmodel(*TURN, "--tier", "host_memory", "--format", "json")
    assert json.loads(run.out)["prefetch"] == []


def test_a_lease_that_does_not_hold(pdmodel: Program) -> None:
    words = (*TURN, "--store", "mooncake_store_tcp", "--tier", "store")
    held, lost = document(pdmodel, *words), document(pdmodel, *words, "--lease-s", "1")
    assert held["lease_read_s"] == lost["lease_read_s"] == pytest.approx(8192 * 327_680 / 1.95e9, rel=0.01)
    assert (held["lease_s"], lost["lease_s"]) == (10, 1)
    assert "lease_expired" in pdmodel(*words, "--lease-s", "1").out
    assert "lease_expired" not in pdmodel(*words).out
    assert document(pdmodel, *TURN, "--store", "3fs")["lease_s"] is None


def test_every_form(pdmodel: Program) -> None:
    rows = list(csv.DictReader(io.StringIO(pdmodel(*TURN, "--format", "csv").out)))
    sections = [row["section"] for row in rows]
    assert [sections.count(name) for name in ("kv_tier", "tiers", "prefetch", "hand_over")] == [1, 3, 3, 8]
    assert "| host memory |" in pdmodel(*TURN, "--format", "markdown").out


@pytest.mark.parametrize("width", [80, 100])
def test_look(pdmodel: Program, monkeypatch: pytest.MonkeyPatch, width: int, snapshot: SnapshotAssertion) -> None:
    """All words; figures may be calibrated anew."""
    monkeypatch.setenv("COLUMNS", str(width))
    text = pdmodel(*AGENTIC).out
    assert all(len(line) <= width for line in text.splitlines())
    (head,) = (k for k, line in enumerate(text.splitlines()) if line.split()[:2] == ["tier", "GB/s"])
    assert all(len(line) < width for line in text.splitlines()[head - 1 : head + 4])
    assert [" ".join(re.sub(r"\d+(\.\d+)?", "#", line).split()) for line in text.splitlines()] == snapshot


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cached", "0"), "--cached: found '0'; expected a positive number of tokens such as 512 or 62k"),
        (("--cached", "62kk"), "--cached: found '62kk'"),
        (("--new", "1.5"), "--new: found '1.5'"),
        (("--cached", "1" * 30), "--cached: found '1111"),
        (("--cached", "200000k"), "such as 512 or 62k, at most 10000000"),
        (("--cached", "100k", "--chunk-tokens", "1"), "--chunk-tokens: found 1; expected 11 or more for 102912 tokens"),
        (("--prefill", "tp=3"), "--prefill: 3 shards do not divide the 64 attention heads"),
        (("--prefill", "tp=16"), "--prefill: tp_size x cp_size = 16 ranks; expected at most the 8 GPUs"),
        (("--prefill", "tp=8,pp=2"), "--prefill: found 'pp=2'"),
        (("--tier", "l2"), "--tier: unknown tier 'l2'; expected one of hbm, host_memory, store"),
        (("--store", "3f"), "unknown storage backend '3f'; expected a path, or one of 3fs"),
        (("--prefetch", "best"), "--prefetch: unknown prefetch 'best'; expected one of best_effort"),
        (("--kv-dtype", "fp8_ds_mla"), "--kv-dtype: KV dtype 'fp8_ds_mla' is a layout of latents"),
        (("--queue-ms", "-1"), "--queue-ms: found -1; expected 0 or more"),
        (("--queue-ms", "nan"), "--queue-ms: found nan"),
        (("--lease-s", "0"), "--lease-s: found 0; expected a positive number of seconds"),
        (("--page-tokens", "0"), "--page-tokens: found 0"),
        (("--chunk-tokens", "0"), "--chunk-tokens: found 0"),
        (("--engine", "sglang_moncake"), "did you mean 'sglang_mooncake'"),
        (("--hardware", "h100"), "unknown hardware profile 'h100'"),
        (("--llm", "llama"), "unknown LLM 'llama'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*TURN, *words)
    assert run.code == 3
    assert run.out == ""
    assert message in run.err
    assert run.err.count("\n") == 1


def test_who_loads(pdmodel: Program) -> None:
    """As the engine does, unless asked for: a kernel's short reads put more requests on what leaves the GPU."""
    words = (*TURN, "--tier", "host_memory")
    found = {by: document(pdmodel, *words, *by)["load_by"] for by in ((), ("--engine", "vllm_nixl"))}
    assert found == {(): "kernel", ("--engine", "vllm_nixl"): "copy_engine"}
    assert document(pdmodel, *words, "--load-by", "copy_engine")["load_by"] == "copy_engine"
    assert "take no SMs" in pdmodel(*words).out
    assert "take no SMs" not in pdmodel(*words, "--load-by", "copy_engine").out
    run = pdmodel(*words, "--load-by", "kernels")
    assert run.code != 0 and "--load-by" in run.err and "copy_engine" in run.err
