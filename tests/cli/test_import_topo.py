"""``pdmodel import topo``: one file whole, several as a table; exit code 3 where one is refused."""

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "importers"))
from made_boxes import hgx_xml
from made_topo import Box, hgx, printed, rocm

KEYS = ["status", "gpus", "nics", "nvlink", "nearest_nics", "distance", "warnings"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    lost = Box(hgx(4).gpus, hgx(4).nics, 18, frozenset({1}))
    whole = printed(lost)
    texts = {
        "whole": whole,
        "cut": whole[: whole.index("NIC1\t", 80)],
        "refused": "GPU0\t X \tNV18\n",
        "p2p": "\tGPU0\tGPU1\nGPU0\tX\tGNS\nGPU1\tGNS\tX\n",
        "rocm": rocm(),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return {name: str(tmp_path / f"{name}.txt") for name in texts}


def test_json_of_one_file(pdmodel: Callable[..., object], files: dict[str, str]) -> None:
    run = pdmodel("import", "topo", files["whole"], "--format", "json")
    assert (run.code, run.err) == (0, "")
    content = json.loads(run.out)
    assert {key: content[key] for key in KEYS[:-1]} == {
        "status": "complete",
        "gpus": 4,
        "nics": 4,
        "nvlink": "partial",
        "nearest_nics": {f"GPU{k}": [f"NIC{k}"] for k in range(4)},
        "distance": {f"GPU{k}": "PIX" for k in range(4)},
    }
    assert content["nic_names"] == {f"NIC{k}": f"mlx5_{k}" for k in range(4)}
    assert "GPU1 is off NVLink: traffic with the other GPUs is on PCIe" in content["warnings"]
    assert {group["level"] for group in content["groups"]} == {"switch", "numa"}
    assert all(group["assumed"] for group in content["groups"])
    assert content["matrix"]["GPU0"]["NIC3"] == "SYS"


def test_json_of_a_part(pdmodel: Callable[..., object], files: dict[str, str]) -> None:
    run = pdmodel("import", "topo", files["cut"], "--format", "json")
    content = json.loads(run.out)
    assert (run.code, content["status"], content["rows_whole"], content["rows"]) == (0, "partial", 5, 8)
    assert content["gaps"] == ["no row for NIC1 to NIC3"]
    assert content["matrix"]["NIC1"]["NIC2"] is None


@pytest.mark.parametrize("name", ["refused", "p2p"])
def test_a_refused_file(pdmodel: Callable[..., object], files: dict[str, str], name: str) -> None:
    run = pdmodel("import", "topo", files[name], "--format", "json")
    content = json.loads(run.out)
    assert (run.code, content["status"]) == (3, "refused")
    assert content["reason"]
    assert content["warnings"] == [content["reason"]]
    assert run.err == f"pdmodel: {files[name]}: {content['reason']}\n"
    assert set(KEYS) <= content.keys()
    assert (content["nearest_nics"], content["nvlink"]) == ({}, None)


def test_a_file_that_is_not_there(pdmodel: Callable[..., object], tmp_path: Path) -> None:
    run = pdmodel("import", "topo", str(tmp_path / "none.txt"))
    assert (run.code, run.out) == (3, "")
    assert run.err.count("\n") == 1
    assert "no such file" in run.err


def test_text_of_one_file(pdmodel: Callable[..., object], files: dict[str, str]) -> None:
    text = pdmodel("import", "topo", files["whole"]).out
    for words in ("To know", "Nearest NICs", "Hypothesis", "Matrix", "Assumed", "GPU1 is off NVLink", "(assumed)"):
        assert words in text
    assert "xGMI" in pdmodel("import", "topo", files["rocm"]).out
    assert "GNS" in pdmodel("import", "topo", files["p2p"]).out


def test_table_of_several_files(pdmodel: Callable[..., object], files: dict[str, str]) -> None:
    names = [files[name] for name in ("whole", "cut", "refused", "rocm")]
    run = pdmodel("import", "topo", *names)
    assert run.code == 3
    assert run.err.count("\n") == 1
    assert "2 complete, 1 partial, 1 refused" in run.out
    assert [one["status"] for one in json.loads(pdmodel("import", "topo", *names, "--format", "json").out)] == [
        "complete",
        "partial",
        "refused",
        "complete",
    ]
    rows = list(csv.DictReader(io.StringIO(pdmodel("import", "topo", *names, "--format", "csv").out)))
    assert [row["file"] for row in rows] == names
    assert "| partial: 5 of 8 rows whole |" in pdmodel("import", "topo", *names, "--format", "markdown").out


def test_output_goes_to_a_file(pdmodel: Callable[..., object], files: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    run = pdmodel("import", "topo", files["whole"], "-o", str(target))
    assert (run.code, run.out) == (0, "")
    assert json.loads(target.read_text(encoding="utf-8"))["gpus"] == 4


def test_one_table_of_matrices_and_topology_files(
    pdmodel: Callable[..., object], files: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "nccl.xml").write_text("<!-- of a tool -->\n" + hgx_xml(8), encoding="utf-8")
    (tmp_path / "cut.xml").write_text(hgx_xml(8)[:500], encoding="utf-8")
    xml, cut = str(tmp_path / "nccl.xml"), str(tmp_path / "cut.xml")
    run = pdmodel("import", "topo", files["whole"], xml, cut, "--format", "json")
    whole, nccl, refused = json.loads(run.out)
    assert run.code == 3 and (whole["status"], nccl["status"], refused["status"]) == ("complete", "complete", "refused")
    assert (nccl["gpus"], nccl["nics"], nccl["nvlink"], nccl["distance"]["GPU0"]) == (8, 8, True, "PIX")
    assert "line" in refused["reason"] and "column" in refused["reason"]
    assert run.err.startswith(f"pdmodel: {cut}: line ")
