"""Profiles: every shipped one loads and names its sources; bad ones are refused in one line that says where."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from boxes import box_of, raw_profile, shipped

from pdmodel.errors import InputError
from pdmodel.hardware.catalog import list_profiles, load_profile
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.resources import data_folder, names, resolve
from pdmodel.spec import SourceKind

GPU_FACTS = Path(__file__).parents[2].parent / "shared" / "data" / "gpu_facts.csv"
SHIPPED = {
    "b200_8nic",
    "h100_8nic",
    "h200_nvlink_2nic",
    "l40s_pcie_gen4",
    "rtx_5090_direct",
    "rtx_pro_6000_server",
    "rtx_pro_6000_wrx90_two_roots",
}


def numbers_outside_figures(part: Any, path: str = "") -> list[str]:
    """JSON paths of numbers that are not in an object with a ``source``."""
    if isinstance(part, dict):
        if "source" in part:
            return []
        return [found for key, value in part.items() for found in numbers_outside_figures(value, f"{path}.{key}")]
    if isinstance(part, list):
        return [found for k, value in enumerate(part) for found in numbers_outside_figures(value, f"{path}.{k}")]
    return [path] if isinstance(part, int | float) and not isinstance(part, bool) else []


def test_the_boxes_that_ship() -> None:
    assert set(list_profiles()) == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_number_of_a_shipped_profile_has_a_source_and_every_source_a_use(name: str) -> None:
    raw = raw_profile(name)
    counts = {".schema_version", ".gpu.count"}
    bare = {path for path in numbers_outside_figures(raw) if not path.startswith(".tree.")}
    assert bare == counts
    text = json.dumps({key: value for key, value in raw.items() if key != "sources"})
    for source in raw["sources"]:
        assert f'"source": "{source}"' in text, source


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_shipped_profile_loads_under_its_own_name(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert Box(profile, "P").gpu_count == 8
    assert {port.source for port in Box(profile, "P").ports} <= set(SourceKind)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_links_stay_below_what_the_wire_can_carry(name: str) -> None:
    raw_gb_per_s = 31.51 if name == "l40s_pcie_gen4" else 63.02
    for port in shipped(name).ports:
        if port.kind.value in {"gpu_egress", "gpu_ingress", "uplink_up", "uplink_down", "nic_egress", "nic_ingress"}:
            assert port.capacity_bytes_per_s < 0.9 * raw_gb_per_s * 1e9 or port.source is SourceKind.DERIVED, port
            assert port.capacity_bytes_per_s < raw_gb_per_s * 1e9


@pytest.mark.skipif(not GPU_FACTS.exists(), reason="the table of GPU facts is not part of the repository")
@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("b200_8nic", "B200-SXM"),
        ("h100_8nic", "H100-SXM5"),
        ("h200_nvlink_2nic", "H200-SXM"),
        ("l40s_pcie_gen4", "L40S"),
        ("rtx_5090_direct", "RTX 5090"),
        ("rtx_pro_6000_server", "RTX PRO 6000 Blackwell"),
        ("rtx_pro_6000_wrx90_two_roots", "RTX PRO 6000 Blackwell"),
    ],
)
def test_gpu_figures_are_those_of_the_table(name: str, gpu: str) -> None:
    row = next(row for row in csv.DictReader(GPU_FACTS.read_text().splitlines()) if row["gpu"] == gpu)
    spec = load_profile(name).gpu
    assert spec.memory_gib.value == float(row["memory_GB"])
    assert spec.hbm_gb_per_s.value == float(row["mem_bw_GBps"])
    for dtype, peak in spec.peak_tflops.items():
        assert peak.value == float(row[f"{dtype}_dense_TFLOPS"])


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that sets one value; the last part of ``path`` may be new."""

    def edit(raw: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        target: Any = raw
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            target[int(last)] = value
        else:
            target[last] = value

    return edit


FIGURE = {"value": 1, "source": "p2p"}
BAD = [
    (_set("gpus", {}), "gpus: unknown key; expected one of", "did you mean 'gpu'?"),
    (_set("links.gpu.egress_gbit_per_s", FIGURE), "links.gpu.egress_gbit_per_s: unknown key", "'egress_gb_per_s'?"),
    (_set("links.gpu.egress_gb_per_s.sorce", "x"), "egress_gb_per_s.sorce: unknown key", "'source'?"),
    (_set("links.gpu.egress_gb_per_s.value", -3), "egress_gb_per_s.value: found -3", "greater than 0"),
    (_set("links.gpu.egress_gb_per_s.value", 0), "egress_gb_per_s.value: found 0", "greater than 0"),
    (_set("links.gpu.egress_gb_per_s.value", "fast"), "egress_gb_per_s.value: found 'fast'", "valid number"),
    (_set("links.gpu.egress_gb_per_s.source", "p2q"), "links.gpu.egress_gb_per_s.source: source 'p2q'", "'p2p'?"),
    (_set("gpu.count", 0), "gpu.count: found 0", "greater than or equal to 1"),
    (_set("gpu.count", 9), "tree: GPU 8 is nowhere", "each of the 9 GPUs"),
    (_set("gpu.peak_tflops", {}), "gpu.peak_tflops: no peak", "bf16"),
    (_set("schema_version", 2), "schema_version: found 2", "should be 1"),
    (_set("name", "a b"), "name: found 'a b'", "pattern"),
    (_set("tree.switches.1.gpus", [3, 4, 5, 6, 7]), "tree.switches.1.gpus: GPU 3 is also in", "tree.switches.0.gpus"),
    (_set("tree.switches.1.gpus", [4, 5, 6]), "tree: GPU 7 is nowhere", "in one place"),
    (_set("tree.switches.1.gpus", [4, 5, 6, 8]), "tree.switches.1.gpus: GPU 8 does not exist", "0 to 7"),
    (_set("tree.switches.1.under", "root_port2"), "tree.switches.1.under: root port or switch", "'root_port1'?"),
    (_set("tree.switches.1.under", "switch1"), "tree.switches.1.under: switch 'switch1' hangs under itself", ""),
    (_set("tree.switches.1.under", "root_port0"), "tree.root_ports.0: root port 'root_port0' holds", "one link"),
    (_set("tree.switches.1.name", "switch0"), "tree: the name 'switch0' is used 2 times", "unique"),
    (_set("tree.root_ports.0.socket", "socket1"), "tree.root_ports.0.socket: socket 'socket1'", "'socket0'?"),
    (_set("tree.sockets", ["socket0", "socket1"]), "links.inter_socket_gb_per_s: missing key", ""),
    (_set("tree.root_complexes.0.root_ports", ["root_port9"]), "root_complexes.0.root_ports.0: root port", "did you"),
    (_set("tree.root_complexes.0.counts", ["host"]), "root_complexes.0.counts.0: found 'host'", "host_read"),
    (_set("nics.attached_to", ["switch0", "switch7"]), "nics.attached_to.1: root port or switch 'switch7'", "did you"),
    (_set("nics.attached_to", ["root_port0"]), "tree.root_ports.0: root port 'root_port0' holds", "nic0"),
    (_set("nics.achievable_gb_per_s.value", 51), "nics.achievable_gb_per_s.value: found 51", "at most the line rate"),
    (_set("nics.gpu_rate", {"pics": {}}), "nics.gpu_rate.pics", "pix"),
    (_set("links.uplink", None), "tree.switches.0: switch 'switch0' has no uplink", "links.uplink"),
    (_set("links.overrides", {"gpu8": {"egress_gb_per_s": FIGURE, "ingress_gb_per_s": FIGURE}}), "gpu8", "device"),
    (_set("flags.p2p", "yes"), "flags.p2p: found 'yes'", "posted_writes"),
    (_set("guard_share.value", 1.0), "guard_share.value: found 1.0", "less than 1"),
    (_set("hazards.0.kind", "fire"), "hazards.0.kind: found 'fire'", "posted_write_collapse"),
    (_set("sources.p2p.kind", "guess"), "sources.p2p.kind: found 'guess'", "measured"),
]


@pytest.mark.parametrize(("edit", "text", "more"), BAD, ids=[text for _, text, _ in BAD])
def test_a_bad_profile_is_refused_in_one_line_with_file_and_path(
    edit: Callable[[dict[str, Any]], None], text: str, more: str, tmp_path: Path
) -> None:
    raw = raw_profile()
    edit(raw)
    path = tmp_path / "box.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert text in message
    assert more in message
    assert "\n" not in message
    assert caught.value.exit_code == 3


def test_a_missing_key_and_malformed_json(tmp_path: Path) -> None:
    raw = raw_profile()
    del raw["tree"]
    path = tmp_path / "box.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"box\.json: tree: missing key"):
        load_profile(path)
    path.write_text('{"name": }')
    with pytest.raises(InputError, match=r"box\.json: line 1 column 10: malformed JSON"):
        load_profile(path)


def test_a_note_on_a_port_that_does_not_exist() -> None:
    raw = raw_profile()
    raw["bound_by"] = [{"kind": "unmodelled_link", "port": "root_complex1", "text": "x"}]
    with pytest.raises(InputError, match=r"bound_by\.0\.port: port 'root_complex1'.*did you mean 'root_complex0'"):
        box_of(raw)


def test_an_override_gives_one_device_a_link_of_its_own() -> None:
    raw = raw_profile()
    half = {"egress_gb_per_s": {"value": 28, "source": "p2p"}, "ingress_gb_per_s": {"value": 27, "source": "p2p"}}
    raw["links"]["overrides"] = {"gpu3": half}
    box = box_of(raw)
    assert box.port_index["P/gpu3/egress"].capacity_bytes_per_s == 28e9
    assert box.port_index["P/gpu3/ingress"].capacity_bytes_per_s == 27e9
    assert box.port_index["P/gpu2/egress"].capacity_bytes_per_s == 56.3e9


# ---- names and paths -------------------------------------------------------------------------------------------------
def test_names_resolve_like_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped_path = data_folder("hardware_profiles") / "h100_8nic.json"
    assert resolve("hardware_profiles", "h100_8nic") == shipped_path
    assert resolve("hardware_profiles", str(shipped_path)) == shipped_path
    with pytest.raises(InputError, match=r"unknown hardware profile 'h100_8nics'.*did you mean 'h100_8nic'"):
        resolve("hardware_profiles", "h100_8nics")
    with pytest.raises(InputError, match=r"^none/there\.json: no such file"):
        resolve("hardware_profiles", "none/there.json")
    with pytest.raises(InputError, match="unknown kind of data 'gpus'"):
        names("gpus")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h100_8nic").mkdir()
    assert resolve("hardware_profiles", "h100_8nic") == shipped_path


def test_own_folders_of_profiles_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("h100_8nic", "mine"):
        raw = raw_profile()
        raw["name"] = name
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    shipped = set(list_profiles())
    monkeypatch.setenv("PDMODEL_PROFILES_PATH", str(tmp_path))
    assert load_profile("mine").name == "mine"
    assert load_profile("h100_8nic").gpu.name == "RTX PRO 6000 Blackwell"
    assert set(list_profiles()) == {*shipped, "mine"}
    monkeypatch.setenv("PDMODEL_PROFILES_PATH", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="PDMODEL_PROFILES_PATH names"):
        list_profiles()


def test_the_schema_knows_every_key_of_a_profile() -> None:
    schema = HardwareProfile.json_schema()
    assert set(schema["properties"]) == set(HardwareProfile.model_fields)
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema
