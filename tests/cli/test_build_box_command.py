"""``pdmodel hardware build`` and ``pdmodel import`` of files about boxes; from raw files to a plan, three times."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Program = Callable[..., Any]
ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "data" / "boxes"
SHARED = ROOT.parent / "shared" / "data"

LLAMA = "llama-3.1-8b"
BOXES: dict[str, tuple[dict[str, list[str]], dict[str, list[str]], tuple[int, int, bool]]] = {
    # name: own files, files of shared data, (GPUs, NICs, NVLink)
    "l40s": (
        {"--topo": ["l40s_topo.txt"], "--gpu": ["NVIDIA L40S"], "--nics": ["2@200"]},
        {"--topo": ["topo/l40s_4gpu_2nic_node_sys.txt"], "--gpu": ["NVIDIA L40S"], "--nics": ["2@200"]},
        (4, 2, False),
    ),
    "rtx_pro_6000": (
        {
            "--topo": ["rtx_pro_6000_topo.txt"],
            "--p2p": ["rtx_pro_6000_p2p.txt"],
            "--nccl-tests": ["rtx_pro_6000_all_reduce.log"],
            "--nics": ["2@400"],
        },
        {
            "--topo": ["topo/rtxpro6000_8gpu_asus_ansi.txt"],
            "--lspci": ["lspci/asus_esc8000a_e13p_8x_rtxpro6000_pex890xx_lspci_vvv_full.txt"],
            "--nccl-tests": ["nccl_logs/rtxpro_x16_alltoall_p2poff_shmoff.txt"],
            "--gpu": ["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
            "--nics": ["2@400"],
        },
        (8, 2, False),
    ),
    "h100": (
        {"--topo": ["h100_topo.txt"], "--nccl-tests": ["h100_all_reduce.log"], "--nics": ["8@400"]},
        {
            "--topo": ["topo/h100_hgx_8gpu_8nic.txt"],
            "--nccl-tests": ["nccl_logs/h100x8_nvlink_host.txt"],
            "--nics": ["8@400"],
        },
        (8, 8, True),
    ),
}


def words(options: dict[str, list[str]], folder: Path) -> list[str]:
    files = {"--topo", "--p2p", "--nccl-tests", "--lspci", "--nccl-xml", "--perftest"}
    return [
        part
        for option, values in options.items()
        for value in values
        for part in (option, str(folder / value) if option in files else value)
    ]


@pytest.mark.parametrize("where", ["own", "shared"])
@pytest.mark.parametrize("name", sorted(BOXES))
def test_from_raw_files_to_a_plan(
    name: str, where: str, pdmodel: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, shared, (gpus, nics, nvlink) = BOXES[name]
    if where == "shared" and not SHARED.is_dir():
        pytest.skip("the captures of real machines are not beside this checkout")
    monkeypatch.chdir(tmp_path)
    given = words(own, OWN) if where == "own" else words(shared, SHARED)
    run = pdmodel("hardware", "build", *given, "-o", "box.json", "--format", "json")
    assert (run.code, run.err) == (0, "")
    report = json.loads(run.out)
    profile = json.loads(Path("box.json").read_text())
    assert profile == report["profile"]
    assert (profile["gpu"]["count"], len(profile["nics"]["attached_to"])) == (gpus, nics)
    assert ("nvlink" in profile["links"]) == nvlink
    assert report["assumed"] and all(len(item["sha256"]) == 64 for item in report["files"])
    assert pdmodel("hardware", "validate", "box.json").code == 0
    assert pdmodel("hardware", "show", "box.json").code == 0

    scenario = {
        "schema_version": 1,
        "name": "turn",
        "purpose": "one prompt",
        "llm": LLAMA,
        "kv_dtype": "bf16",
        "prefill": {"hardware": "box.json", "engine": "sglang_mooncake", "tp_size": gpus},
        "decode": {"hardware": "box.json", "tp_size": gpus, "max_running_requests": 16, "context_tokens": 8192},
        "requests": [{"name": "prompt", "input_tokens": 16384}],
    }
    Path("turn.json").write_text(json.dumps(scenario))
    run = pdmodel("plan", "turn.json", "--format", "json")
    assert (run.code, run.err) == (0, "")
    plan = json.loads(run.out)
    sent = sum(flow["bytes"] for flow in plan["flows"] if flow["kind"] == "send")
    assert sent == pytest.approx(16384 * 32 * 2 * 8 * 128 * 2)  # layers x 2 x heads x head_dim x 2 bytes
    assert plan["assumed"], "what the box assumes, the plan says"


def test_the_report_says_what_is_from_where(pdmodel: Program, tmp_path: Path) -> None:
    given = words(BOXES["rtx_pro_6000"][0], OWN)
    run = pdmodel("hardware", "build", *given, "--name", "mine")
    assert run.code == 0
    for title in ("Files", "Figures", "Tree and flags", "Assumed"):
        assert f"\n{title}\n" in run.out
    assert re.search(r"links\.gpu\.egress_gb_per_s +55\.6 +measured +p2pBandwidthLatencyTest", run.out)
    assert re.search(r"all_reduce among 8 .*measured", run.out)
    assert "not written" in " ".join(run.out.lower().split())
    for form in ("csv", "markdown"):
        assert pdmodel("hardware", "build", *given, "--format", form).code == 0


def test_build_refuses_with_one_line(pdmodel: Program, tmp_path: Path) -> None:
    topo = str(OWN / "h100_topo.txt")
    cases = {
        (): "no file is given",
        ("--topo", topo): "no file names the GPU",
        ("--topo", str(OWN / "README.md")): "holds no matrix",
        ("--topo", str(tmp_path / "none.txt")): "no such file",
        ("--nccl-xml", topo): "line 1 column",
        ("--topo", topo, "--gpu", "H100", "--nics", "8"): "N@GBIT",
        ("--topo", topo, "--gpu", "H100", "--name", "1 x"): "--name",
    }
    for given, what in cases.items():
        run = pdmodel("hardware", "build", *given)
        assert run.code == 3 and what in run.err and run.err.count("\n") == 1, (given, run.err)
    target = tmp_path / "box.json"
    assert pdmodel("hardware", "build", "--topo", topo, "-o", str(target)).code == 3
    assert not target.exists()
    assert pdmodel("hardware", "build", "--topo", topo, "--gpu", "H100", "-o", topo).code == 2


@pytest.mark.parametrize("kind", ["nccl-xml", "lspci", "p2p", "perftest", "nccl-tests"])
def test_import_shows_one_file_and_refuses_others_with_3(kind: str, pdmodel: Program, tmp_path: Path) -> None:
    texts = {
        "nccl-xml": '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200" '
        'link_speed="32.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="90" gdr="1"/></pci></cpu></system>',
        "lspci": "-[0000:00]---01.0-[01]----00.0  NVIDIA Corporation AD102GL [L40S]\n",
        "p2p": (OWN / "rtx_pro_6000_p2p.txt").read_text(),
        "perftest": " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 9 98.0 97.5 0.186\n",
        "nccl-tests": (OWN / "h100_all_reduce.log").read_text(),
    }
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(texts[kind])
    bad.write_text("nothing of the kind\n")
    for form in ("rich", "json", "csv", "markdown"):
        run = pdmodel("import", kind, str(good), "--format", form)
        assert (run.code, run.err) == (0, "") and run.out
    document = json.loads(pdmodel("import", kind, str(good), "--format", "json").out)
    assert document["status"] == "complete" and isinstance(document["warnings"], list)
    run = pdmodel("import", kind, str(bad), "--format", "json")
    assert run.code == 3 and run.err.count("\n") == 1
    refused = json.loads(run.out)
    assert refused["status"] == "refused" and refused["reason"]
    run = pdmodel("import", kind, str(good), str(bad), "--format", "json")
    assert run.code == 3
    assert [one["status"] for one in json.loads(run.out)] == ["complete", "refused"]
    assert pdmodel("import", kind, str(tmp_path / "none")).code == 3


def test_import_of_a_topology_has_the_common_keys(pdmodel: Program, tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text(
        '<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200" link_speed="" link_width="0"/>'
        '<pci busid="0000:02:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/></cpu></system>'
    )
    found = json.loads(pdmodel("import", "nccl-xml", str(file), "--format", "json").out)
    assert (found["status"], found["gpus"], found["nics"], found["nvlink"]) == ("complete", 1, 1, False)
    assert found["nearest_nics"] == {"GPU0": ["NIC0"]} and found["distance"] == {"GPU0": "PHB"}
    assert [device["lanes"] for device in found["tree"]] == [None, 16]
