"""``pdmodel cost kv-transfer``: the same numbers as the formulas in every form, and one line for whatever is wrong."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from pdmodel.costs.kv_layout import (
    CopySender,
    Exchange,
    Placement,
    Setting,
    Split,
    caches,
    engine_constants,
    engine_slicing,
    even_path,
    hand_over,
)
from pdmodel.engines.catalog import load_engine
from pdmodel.llm.catalog import load_llm

Program = Callable[..., Any]
BASE = ("cost", "kv-transfer", "--llm", "qwen3-8b", "--tokens", "32768", "--page-tokens", "64")
MISMATCH = (*BASE, "--prefill", "tp=4,cp=1", "--decode", "tp=8")


def document(pdmodel: Program, *words: str) -> dict[str, Any]:
    run = pdmodel(*words, "--format", "json")
    assert (run.code, run.err) == (0, "")
    found: dict[str, Any] = json.loads(run.out)
    return found


def test_json_is_what_the_formulas_say(pdmodel: Program) -> None:
    found = document(pdmodel, *MISMATCH, "--layout", "nhd")
    engine = load_engine("sglang_mooncake")
    setting = Setting(even_path(), engine_constants(engine), engine_slicing(engine))
    exchange = Exchange(Placement(4), Placement(8), CopySender.CYCLIC)
    wanted = hand_over(exchange, caches(load_llm("qwen3-8b"), 32768), setting)
    assert found["time_s"] == wanted.terms.time_s
    assert (found["pairs"], found["bytes"], found["descriptors"]) == (8, 4_831_838_208, 18_874_368)
    assert (found["bytes_per_pair"], found["run_bytes"]) == (4_831_838_208 / 8, 256)
    terms = found["terms"]
    assert set(terms) == {"setup_s", "bandwidth_s", "descriptors_s", "messages_s", "staging_s"}
    slowest = max(terms["bandwidth_s"], terms["descriptors_s"], terms["messages_s"])
    assert found["time_s"] == pytest.approx(terms["setup_s"] + slowest + terms["staging_s"])
    assert len(found["per_pair"]) == 8
    assert sum(pair["bytes"] for pair in found["per_pair"]) == found["bytes"]


def test_a_mismatch_with_and_without_staging(pdmodel: Program) -> None:
    # 10.5 s and 0.2 s were published (sglang pull request 39992); the order of magnitude is what counts.
    before = document(pdmodel, *MISMATCH, "--hardware", "rtx_pro_6000_server")
    after = document(pdmodel, *MISMATCH, "--hardware", "rtx_pro_6000_server", "--staged", "8192")
    assert 5 < before["time_s"] < 50
    assert 0.05 < after["time_s"] < 0.5
    assert (before["bound_by"], after["bound_by"]) == ("descriptors", "bandwidth")
    assert after["port"].startswith(("P/", "D/"))
    assert before["fix"]["lever"] in {"staging", "HND"}
    assert before["fix"]["saved_s"] == pytest.approx(before["time_s"] - before["fix"]["time_s"])
    assert after["fix"]["lever"] == "NIC list"  # other NICs are idle
    assert after["terms"]["staging_s"] > 0


def test_figures_of_the_page(pdmodel: Program) -> None:
    assert document(pdmodel, *MISMATCH)["time_s"] == pytest.approx(16.0, abs=0.1)
    assert document(pdmodel, *MISMATCH, "--staged", "8192")["time_s"] == pytest.approx(0.027, abs=5e-4)
    served = document(pdmodel, *MISMATCH, "--staged", "8192", "--hardware", "rtx_pro_6000_server")
    assert served["time_s"] == pytest.approx(0.134, abs=1e-3)


def test_orders_pages_and_blocks(pdmodel: Program) -> None:
    hnd = document(pdmodel, *MISMATCH, "--layout", "hnd")
    assert hnd["run_bytes"] == 64 * 256
    mixed = document(pdmodel, *BASE, "--prefill", "tp=4", "--decode", "tp=4", "--decode-layout", "hnd")
    assert mixed["run_bytes"] == pytest.approx(256, rel=0.01)
    same = (*BASE, "--prefill", "tp=4", "--decode", "tp=4")
    scattered = document(pdmodel, *same, "--scattered")
    assert scattered["run_bytes"] == 64 * 2 * 256
    blocks = document(pdmodel, *same, "--scattered", "--cross-layer")
    assert blocks["run_bytes"] == 64 * 2 * 256 * 72


def test_an_engine_says_what_the_options_do_not(pdmodel: Program) -> None:
    # TensorRT-LLM packs into 512 MB, pages of 32, hnd; a rank keeps 36 layers x 2 x 2 heads x 256 B = 36,864 B a token.
    packed = document(pdmodel, *MISMATCH, "--page-tokens", "32", "--engine", "tensorrt_llm")
    assert (packed["layout"], packed["staged_tokens"]) == ("hnd", 512_000_000 // 36_864)
    assert packed["descriptors"] == 8 * 72 * 3
    whole = document(pdmodel, *MISMATCH, "--engine", "tensorrt_llm", "--layout", "nhd", "--staged", "0")
    assert (whole["layout"], whole["run_bytes"]) == ("nhd", 256)
    assert "staged_tokens" not in whole


def test_context_parallel_sides(pdmodel: Program) -> None:
    words = ("cost", "kv-transfer", "--llm", "deepseek-v3", "--tokens", "32768", "--prefill", "tp=4,cp=2")
    cyclic = document(pdmodel, *words, "--decode", "tp=8,dcp=8", "--cp-split", "zigzag")
    assert (cyclic["pairs"], cyclic["run_bytes"]) == (16, 1152)
    assert cyclic["dcp_split"] == "token_cyclic"
    pages = document(pdmodel, *words, "--decode", "tp=8,dcp=8", "--cp-split", "zigzag", "--dcp-split", "page_cyclic")
    assert pages["descriptors"] * 64 == cyclic["descriptors"]
    heads = document(pdmodel, *BASE, "--prefill", "tp=2,cp=2", "--decode", "tp=4", "--cp-split", "ulysses")
    assert [(row["source_rank"], row["destination_rank"]) for row in heads["per_pair"]] == [
        (0, 0), (2, 1), (1, 2), (3, 3)
    ]  # fmt: skip
    once = document(pdmodel, *words, "--decode", "tp=8", "--gather")
    every = document(pdmodel, *words, "--decode", "tp=8", "--copies", "shares")
    assert every["bytes"] == 8 * once["bytes"]
    assert Split.ZIGZAG.value == cyclic["cp_split"]


def test_every_form(pdmodel: Program) -> None:
    rows = list(csv.DictReader(io.StringIO(pdmodel(*MISMATCH, "--format", "csv").out)))
    assert [row["section"] for row in rows].count("per_pair") == 8
    assert rows[0]["section"] == "kv_transfer"
    assert float(rows[0]["descriptors_s"]) == pytest.approx(16.04, rel=1e-3)
    text = " ".join(pdmodel(*MISMATCH).out.split())
    assert "Where the time goes" in text
    assert "Cheapest fix: staging" in text
    assert "| descriptors |" in pdmodel(*MISMATCH, "--format", "markdown").out
    hazards = pdmodel(*MISMATCH, "--hardware", "rtx_pro_6000_server").out
    assert "far_nic" in hazards


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prefill", "tp=4,pp=2"), "--prefill: found 'pp=2'; expected tp=N and cp=N, each once"),
        (("--prefill", "tp=4,tp=2"), "--prefill: found 'tp=2'"),
        (("--prefill", "tp=0"), "--prefill: found 'tp=0'; expected a number from 1"),
        (("--prefill", "4"), "--prefill: found '4'"),
        (("--prefill", "tp=3"), "3 head shards of 8 KV heads; expected one that divides the other"),
        (("--decode", "tp=8,dcp=3"), "--decode: found 'tp=8,dcp=3'; expected dcp that divides tp"),
        (("--layout", "hdn"), "--layout: unknown layout 'hdn'; expected one of nhd, hnd; did you mean "),
        (("--cp-split", "zigzags"), "unknown cp-split 'zigzags'"),
        (("--tokens", "0"), "--tokens: found 0"),
        (("--tokens", str(2**63)), "--tokens: found 9223372036854775808; expected at most 10000000"),
        (("--page-tokens", str(10**20)), "--page-tokens: found 100000000000000000000; expected at most"),
        (("--staged", str(10**20)), "--staged: found 100000000000000000000; expected at most"),
        (("--prefill", "tp=64,cp=64"), "--prefill: found 'tp=64,cp=64'; expected at most 1024 ranks"),
        (("--decode", "tp=4096"), "--decode: found 'tp=4096'; expected at most 1024 ranks"),
        (("--page-tokens", "0"), "--page-tokens: found 0"),
        (("--staged", "-1"), "--staged: found -1"),
        (("--threads", "0"), "--threads: found 0"),
        (("--engine", "sglang_moncake"), "did you mean 'sglang_mooncake'"),
        (("--decode-hardware", "b200_8nic"), "--decode-hardware: needs --hardware"),
        (("--decode", "tp=16", "--hardware", "b200_8nic"), "--decode: 16 ranks on the 8 GPUs of b200_8nic"),
        (("--kv-dtype", "fp8_ds_mla"), "is a layout of latents"),
        (
            ("--prefill", "tp=4", "--decode", "tp=4", "--layout", "nhd", "--decode-layout", "hnd", "--cross-layer"),
            "--cross-layer: blocks of several layers in different orders; expected nhd or hnd on both sides",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*MISMATCH, *words)
    assert run.code == 3
    assert run.out == ""
    assert message in run.err
    assert run.err.count("\n") == 1
