"""``pdmodel cost`` and ``pdmodel verify``: the same numbers in every form, and one line for whatever is wrong."""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from pdmodel import resources
from pdmodel.costs.collectives import collective
from pdmodel.costs.moe import EpExchange
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Implementation
from pdmodel.hardware.topology import Box

Program = Callable[..., Any]
BOX = "rtx_pro_6000_server"
RING = ("cost", "collective", "all_reduce", "--hardware", BOX)
STEP = ("cost", "step", "--llm", "qwen3-32b", "--hardware", BOX)
MOE = ("cost", "moe", "--llm", "qwen3-235b-a22b", "--hardware", "b200_8nic")


# ---- collective ------------------------------------------------------------------------------------------------------
def test_collective_is_a_list_of_what_the_formula_says(pdmodel: Program) -> None:
    run = pdmodel(*RING, "--ranks", "8", "--sizes", "1024,1048576", "--format", "json")
    assert (run.code, run.err) == (0, "")
    rows = json.loads(run.out)
    assert [row["size_bytes"] for row in rows] == [1024, 1048576]
    box = Box(load_profile(BOX), "x")
    for row in rows:
        cost = collective("all_reduce", row["size_bytes"], range(8), box)
        assert row["time_s"] == cost.time_s
        assert (row["algorithm"], row["protocol"]) == (cost.algorithm, cost.protocol)
        assert row["busbw_bytes_per_s"] == cost.busbw_bytes_per_s
        assert row["source"] == cost.source.value
        assert row["wire_bytes_per_port"] == {name.removeprefix("x/"): size for name, size in cost.wire_bytes.items()}
        line = row["alpha_s"] + row["size_bytes"] / row["bandwidth_bytes_per_s"]
        assert line * row["table_factor"] == pytest.approx(row["own_time_s"])
        assert (row["raised"], row["gpus"]) == (cost.raised, list(range(8)))
        assert isinstance(row["notes"], list)


def test_a_forced_protocol(pdmodel: Program) -> None:
    words = (*RING, "--sizes", "1KiB:1GiB:x4", "--format", "json")
    rows = json.loads(pdmodel(*words, "--algorithm", "ring", "--protocol", "LL").out)
    assert {(row["algorithm"], row["protocol"]) for row in rows} == {("ring", "ll")}
    assert len(rows) == 11
    free = json.loads(pdmodel(*words).out)
    assert rows[-1]["time_s"] > free[-1]["time_s"]
    assert rows[0]["time_s"] == pytest.approx(free[0]["time_s"])


def test_help_names_every_choice(pdmodel: Program) -> None:
    words = [" ".join(pdmodel("cost", name, "--help").out.replace("│", " ").split()) for name in ("moe", "collective")]
    assert [one.value for one in EpExchange if one.value not in words[0]] == []
    assert [one.value for one in Implementation if one.value not in words[1]] == [Implementation.DEEPGEMM.value]


def test_what_nccl_takes_is_printed_beside_the_time(pdmodel: Program) -> None:
    words = (*RING, "--sizes", "1KiB,1GiB")
    small, large = (row["selector"] for row in json.loads(pdmodel(*words, "--format", "json").out))
    assert (small["algorithm"], small["protocol"], large["protocol"]) == ("ring", "ll", "simple")
    assert 0 < small["estimate_s"] < large["estimate_s"]
    assert small["nccl_version"] == "2.30.7"
    assert any("LL128 is off" in note for note in small["notes"])
    text = " ".join(pdmodel(*words).out.split())
    assert "What NCCL takes" in text and "NCCL 2.30.7" in text
    csv_row = next(csv.DictReader(io.StringIO(pdmodel(*words, "--format", "csv").out)))
    assert json.loads(csv_row["selector"]) == small
    custom = pdmodel(*words, "--implementation", "vllm_custom", "--format", "json")
    assert [row["selector"] for row in json.loads(custom.out)] == [None, None]


def test_ring_order_and_every_form(pdmodel: Program, tmp_path: Path) -> None:
    words = ("cost", "collective", "all_gather", "--hardware", BOX, "--gpus", "0,4,1,5", "--sizes", "4MiB")
    (row,) = json.loads(pdmodel(*words, "--format", "json").out)
    assert row["gpus"] == [0, 4, 1, 5]
    assert row["ranks"] == 4
    (line,) = csv.DictReader(io.StringIO(pdmodel(*words, "--format", "csv").out))
    assert float(line["time_s"]) == row["time_s"]
    assert json.loads(line["wire_bytes_per_port"]) == row["wire_bytes_per_port"]
    assert "| 4 MiB |" in pdmodel(*words, "--format", "markdown").out
    target = tmp_path / "cost.json"
    assert pdmodel(*words, "--output", str(target)).out == ""
    assert json.loads(target.read_text(encoding="utf-8")) == [row]


def test_a_custom_all_reduce_that_the_box_refuses_says_so(pdmodel: Program) -> None:
    words = ("cost", "collective", "all_reduce", "--hardware", "rtx_5090_direct", "--ranks", "4", "--sizes", "64KiB")
    (row,) = json.loads(pdmodel(*words, "--implementation", "vllm_custom", "--format", "json").out)
    assert any("falls back" in note for note in row["notes"])
    assert "falls back" in " ".join(pdmodel(*words, "--implementation", "vllm_custom").out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("allreduce", "--sizes", "1"), "unknown operation 'allreduce'; expected one of all_reduce, "),
        (("all_reduce", "--sizes", "1K"), "--sizes: '1K' has no known unit; expected B, KiB"),
        (("all_reduce", "--sizes", "0"), "--sizes: found '0'; expected a positive"),
        (("all_reduce", "--sizes", "-5"), "--sizes: found '-5'; expected a positive"),
        (("all_reduce", "--sizes", "0.5"), "--sizes: found '0.5'; expected a positive, whole"),
        (("all_reduce", "--sizes", "1,,2"), "--sizes: '' is no size"),
        (("all_reduce", "--sizes", "big"), "--sizes: 'big' is no size"),
        (("all_reduce", "--sizes", "1:2:3"), "--sizes: '1:2:3' is no range"),
        (("all_reduce", "--sizes", "1KiB:1MiB:x1"), "--sizes: the step of '1KiB:1MiB:x1'"),
        (("all_reduce", "--sizes", "1MiB:1KiB"), "--sizes: '1MiB:1KiB' ends below its start"),
        (("all_reduce", "--sizes", "1:1GiB:+1"), "--sizes: more than 100000 sizes"),
        (("all_reduce", "--sizes", "1", "--ranks", "9"), "--ranks: found 9; expected 1 to the 8 GPUs of"),
        (("all_reduce", "--sizes", "1", "--ranks", "0"), "--ranks: found 0; expected 1 to"),
        (("all_reduce", "--sizes", "1", "--gpus", "0,8"), "--gpus: found GPU 8; expected 0 to 7"),
        (("all_reduce", "--sizes", "1", "--gpus", "0,0"), "--gpus: a GPU is listed twice"),
        (("all_reduce", "--sizes", "1", "--gpus", "a"), "--gpus: found 'a'"),
        (("all_reduce", "--sizes", "1", "--gpus", "0,1", "--ranks", "3"), "--gpus: found 2 GPUs; expected 3"),
        (("all_reduce", "--sizes", "1", "--protocol", "ll28"), "--protocol: unknown protocol 'll28'"),
        (("all_reduce", "--sizes", "1", "--protocol", "ll128"), "no ll128 for all_reduce among 8 on " + BOX),
        (("all_reduce", "--sizes", "1", "--algorithm", "nvls"), "no nvls for all_reduce among 8 on " + BOX),
        (("all_reduce", "--sizes", "1", "--implementation", "mpi"), "--implementation: unknown implementation 'mpi'"),
        (("all_reduce", "--sizes", "1", "--output", "no/a.json"), "no/a.json: no such folder"),
    ],
)
def test_bad_collectives(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel("cost", "collective", *words, "--hardware", BOX)
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: " + message)
    assert run.err.count("\n") == 1


def test_an_error_leaves_no_file(pdmodel: Program, tmp_path: Path) -> None:
    for words in (
        (*RING, "--sizes", "0"),
        (*STEP, "--phase", "prefill"),
        (*MOE, "--tokens", "0", "--exchange", "dedup"),
    ):
        assert pdmodel(*words, "--output", str(tmp_path / "out.json")).code == 3
    assert not list(tmp_path.iterdir())


def test_missing_options_are_usage(pdmodel: Program) -> None:
    for words in (RING, ("cost", "step"), MOE, ("cost", "collective", "all_reduce", "--sizes", "1")):
        run = pdmodel(*words)
        assert (run.code, run.out) == (2, "")
        assert "Missing option" in run.err


# ---- moe -------------------------------------------------------------------------------------------------------------
def test_moe_in_json(pdmodel: Program) -> None:
    words = (*MOE, "--ep", "8", "--tokens", "2048", "--exchange", "dedup", "--format", "json")
    found = json.loads(pdmodel(*words).out)
    assert found["distinct_ranks"] == pytest.approx(5.339, abs=1e-3)
    assert found["experts_touched"] == pytest.approx(128)
    dispatch, combine = found["parts"]
    assert dispatch["size_bytes"] == pytest.approx(2048 * found["distinct_ranks"] * 4096 * 2)
    assert found["time_s"] == dispatch["time_s"] + combine["time_s"]
    assert dispatch["wire_bytes_per_port"]["gpu0/nvlink_egress"] == pytest.approx(7 / 8 * dispatch["size_bytes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--llm", "qwen3-32b", "--ep", "8", "--tokens", "8", "--exchange", "dedup"), "qwen3-32b has no experts"),
        (("--ep", "7", "--tokens", "8", "--exchange", "dedup"), "128 experts on 7 ranks"),
        (("--ep", "9", "--tokens", "8", "--exchange", "dedup"), "--ep: found 9"),
        (("--ep", "8", "--tokens", "0", "--exchange", "dedup"), "--tokens: found 0"),
        (("--ep", "8", "--tokens", "8", "--exchange", "deepep"), "--exchange: unknown exchange 'deepep'"),
        (("--tokens", "8", "--exchange", "dedup", "--dispatch-dtype", "fp4"), "--dispatch-dtype: unknown"),
        (("--hardware", BOX, "--tokens", "8", "--exchange", "fused"), BOX + " has no NVLink"),
    ],
)
def test_bad_moe(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*MOE, *words)
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: " + message)
    assert run.err.count("\n") == 1


# ---- step ------------------------------------------------------------------------------------------------------------
def test_step_in_json_adds_up(pdmodel: Program) -> None:
    words = (*STEP, "--tp", "4", "--phase", "decode", "--batch", "32", "--context", "8192", "--format", "json")
    found = json.loads(pdmodel(*words).out)
    assert (found["phase"], found["tp"], found["batch"], found["context"]) == ("decode", 4, 32, 8192)
    assert sum(row["total_s"] for row in found["operations"]) == pytest.approx(found["time_s"])
    assert sum(row["time_s"] for row in found["groups"]) == pytest.approx(found["time_s"])
    assert {row["bound_by"] for row in found["operations"]} <= {
        *("compute", "memory", "overhead", "port", "protocol", "latency", "cpu")
    }
    reduces = [row for row in found["operations"] if row["group"] == "TP collectives"]
    assert sum(row["count"] for row in reduces) == 129
    assert all(row["wire_bytes_per_port"] and row["detail"] for row in reduces)
    cpu = [row for row in found["operations"] if row["group"] == "CPU and launch"]
    assert sum(row["total_s"] for row in cpu) == pytest.approx(found["cpu_launch_s"])


def test_step_without_tp_has_no_collectives(pdmodel: Program) -> None:
    found = json.loads(pdmodel(*STEP, "--phase", "prefill", "--tokens", "4096", "--format", "json").out)
    assert not [row for row in found["operations"] if row["wire_bytes_per_port"]]
    later = json.loads(
        pdmodel(*STEP, "--phase", "prefill", "--tokens", "4096", "--past", "32768", "--format", "json").out
    )
    assert later["time_s"] > 1.2 * found["time_s"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--phase", "prefil"), "--phase: unknown phase 'prefil'; expected one of prefill, decode; did you mean"),
        (("--phase", "prefill"), "--tokens: missing for prefill"),
        (("--phase", "prefill", "--tokens", "0"), "--tokens: found 0"),
        (("--phase", "prefill", "--tokens", "1", "--past", "-1"), "--past: found -1"),
        (("--phase", "decode", "--batch", "1"), "--context: missing for decode"),
        (
            ("--phase", "decode", "--batch", "1", "--context", "5", "--tokens", "3"),
            "--tokens: says nothing of a decode",
        ),
        (("--phase", "decode", "--batch", "1", "--context", "5", "--cp", "2"), "--cp: a decode step has no"),
        (("--phase", "prefill", "--tokens", "5", "--tp", "3"), "--tp: 3 shards do not divide"),
        (("--phase", "prefill", "--tokens", "5", "--tp", "0"), "--tp: found 0"),
        (("--phase", "prefill", "--tokens", "5", "--tp", "16"), "--tp x --cp: found 16; expected 1 to the 8 GPUs"),
        (("--phase", "prefill", "--tokens", "5", "--tp", "4", "--ep", "4"), "--ep: qwen3-32b has no experts"),
        (("--phase", "prefill", "--tokens", "5", "--all-reduce", "x"), "--all-reduce: unknown all-reduce 'x'"),
        (("--phase", "prefill", "--tokens", "5", "--gpus", "0,1"), "--gpus: found 2 GPUs"),
        (("--phase", "prefill", "--tokens", "5", "--kv-dtype", "fp8_ds_mla"), "KV"),
    ],
)
def test_bad_steps(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*STEP, *words)
    assert (run.code, run.out) == (3, "")
    assert message in run.err
    assert run.err.count("\n") == 1


# ---- what they look like ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "words",
    [
        (*RING, "--sizes", "1KiB:1GiB:x32"),
        (*MOE, "--tokens", "2048", "--exchange", "all_to_all"),
        (*STEP, "--tp", "4", "--phase", "decode", "--batch", "32", "--context", "8192"),
    ],
    ids=["collective", "moe", "step"],
)
def test_look(pdmodel: Program, words: tuple[str, ...], snapshot: SnapshotAssertion) -> None:
    """Titles and columns; rows and figures are tested elsewhere and may be calibrated anew."""
    text = pdmodel(*words).out
    assert all(len(line) <= 100 for line in text.splitlines())
    parts = text.partition("\n\nNotes\n")[0].partition("\n\nWarnings\n")[0].split("\n\n")
    heads = [line for part in parts for line in part.splitlines()[:2]]
    assert [" ".join(re.sub(r"\d+(\.\d+)?", "#", line).split()) for line in heads] == snapshot


# ---- verify ----------------------------------------------------------------------------------------------------------
def test_verify_in_every_form(pdmodel: Program) -> None:
    run = pdmodel("verify", "llm_facts", "mega_moe", "--format", "json")
    assert (run.code, run.err) == (0, "")
    found = json.loads(run.out)
    assert found["within_limits"] is True
    assert [table["name"] for table in found["tables"]] == ["llm_facts", "mega_moe"]
    band = found["tables"][0]["bands"][0]
    assert band.keys() >= {"rows", "mean", "mean_limit", "worst", "worst_limit", "worst_row", "within"}
    lines = list(csv.DictReader(io.StringIO(pdmodel("verify", "llm_facts", "--format", "csv").out)))
    assert [line["group"] for line in lines] == ["kv_bytes", "parameters", "active_parameters", "kv_constant_bytes"]
    text = pdmodel("verify", "llm_facts").out
    assert "every limit is kept" in text
    assert "arXiv 2412.19437" in " ".join(text.split())
    assert "Worst rows" in pdmodel("verify", "llm_facts", "--full").out


def test_verify_prints_everything_and_fails_where_a_limit_is_broken(
    pdmodel: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "published"
    shutil.copytree(resources.data_folder("published"), folder)
    path = folder / "llm_facts.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(",131072,", ",131073,", 1), encoding="utf-8")
    monkeypatch.setitem(resources._FOLDERS, "published", (folder,))
    run = pdmodel("verify", "llm_facts", "mega_moe")
    assert run.code == 6
    assert "limits that are broken: 1" in run.out
    assert "mega_moe" in run.out
    assert run.err.startswith("pdmodel: 1 limit is broken, first: llm_facts, kv_bytes: ")
    assert run.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify", "collectivs"), "unknown table 'collectivs'; expected one of collectives"),
        (("verify", "--output", "no/a.md"), "no/a.md: no such folder"),
    ],
)
def test_bad_verify(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*words)
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: " + message)
