"""Real captures, as EXPECTED.csv has them, one by one; each in less than 50 ms."""

import csv
import time
from pathlib import Path

import pytest

from pdmodel.importers.findings import Kind, Level, Status, TopologyFindings
from pdmodel.importers.topo import read

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "topo"
LONGEST_S = 0.05


def expected() -> list[dict[str, str]]:
    if not (FOLDER / "EXPECTED.csv").is_file():
        return []
    with (FOLDER / "EXPECTED.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = expected()
pytestmark = pytest.mark.skipif(not ROWS, reason="the captures of ../shared/data/topo are not there")


def found(name: str) -> TopologyFindings:
    return read((FOLDER / name).read_bytes(), name)


def status_words(one: TopologyFindings) -> str:
    if one.kind is Kind.ROCM_SMI:
        return "rocm-smi format"
    if one.kind is Kind.TOPO_P2P:
        return "not a topo -m matrix (p2p)"
    if one.status is Status.PARTIAL:
        return f"incomplete: {one.rows_whole} of {one.rows} rows whole"
    return one.status.value


def nearest_words(one: TopologyFindings) -> str:
    parts = []
    for gpu, nics in one.nearest_nics.items():
        parts.append(f"{gpu}:" + (f"{'+'.join(nics)}@{one.distance[gpu]}" if nics else "?"))
    return " ".join(parts)


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_every_column_is_as_expected(row: dict[str, str]) -> None:
    one = found(row["file"])
    assert status_words(one) == row["status"]
    assert nearest_words(one) == row["nearest_nics_per_gpu"]
    if row["gpus"]:
        assert (len(one.gpus), len(one.nics or ())) == (int(row["gpus"]), int(row["nics"]))
        assert ("yes" if one.nvlink else "no") == row["nvlink_seen"]
    if one.status is Status.PARTIAL:
        assert one.gaps
        assert set(one.gaps) <= set(one.warnings)
    assert (one.status is Status.REFUSED) == bool(one.reason)


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_matrices_are_square_and_symmetric(row: dict[str, str]) -> None:
    one = found(row["file"])
    labels = set(one.matrix)
    for label, cells in one.matrix.items():
        assert set(cells) == labels
        assert all(one.matrix[other][label] == code for other, code in cells.items())
    assert not any("symmetric" in text for text in one.warnings)


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_a_file_takes_no_time(row: dict[str, str]) -> None:
    content = (FOLDER / row["file"]).read_bytes()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        read(content, row["file"])
        times.append(time.perf_counter() - start)
    assert min(times) < LONGEST_S


def test_rocm_files_are_read_by_type_and_weight() -> None:
    whole = found("amd_mi300a_4gpu_xgmi_showtopo.txt")
    assert (whole.status, whole.fabric, whole.nvlink, whole.nics) == (Status.COMPLETE, "xgmi", False, None)
    assert whole.numa_affinity == {"GPU0": "0", "GPU1": "1", "GPU2": "2", "GPU3": "3"}
    cut = found("amd_4gpu_pcie_showtopo_truncated.txt")
    assert (cut.status, cut.gaps, cut.weights["GPU0"]["GPU1"]) == (Status.PARTIAL, ("NUMA nodes are missing",), 52)
    assert {cut.matrix["GPU0"][other] for other in cut.gpus[1:]} == {"PCIE"}
    late = found("amd_mi300x_8gpu_xgmi_truncated.txt")
    assert late.gaps == ("the block of weights is missing", "NUMA nodes are missing")
    assert (len(late.gpus), late.fabric) == (8, "xgmi")


def test_gaps_have_names() -> None:
    assert found("a800_8gpu_9nic_interleaved_truncated.txt").gaps == (
        "no row for NIC0 to NIC8",
        "row GPU7 ends after 4 of 17 cells (line 9)",
    )
    assert found("b300_8gpu_8nic_pxb_truncated.txt").gaps == (
        "no row for GPU7 and NIC0 to NIC7",
        "row GPU6 has no cells (line 9)",
    )
    assert "row GPU4 ends in '0-23,4', which may be cut" in found("dgx2_v100_16gpu_10nic_truncated.txt").warnings


def members(name: str, level: Level) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(group.gpus, group.nics) for group in found(name).at(level)]


def test_hypotheses() -> None:
    fours = [("GPU0", "GPU1", "GPU2", "GPU3"), ("GPU4", "GPU5", "GPU6", "GPU7")]
    assert members("p40_8gpu_1nic_soc_old_driver.txt", Level.SWITCH) == [(four, ()) for four in fours]
    assert members("p40_8gpu_1nic_soc_old_driver.txt", Level.SWITCH_TREE) == [(fours[0] + fours[1], ())]
    assert members("dgx1_v100_hybrid_cube_mesh_4nic.txt", Level.ROOT_COMPLEX) == [
        (fours[0], ("mlx5_0", "mlx5_1")),
        (fours[1], ("mlx5_2", "mlx5_3")),
    ]
    assert members("dgx1_v100_hybrid_cube_mesh_4nic.txt", Level.SWITCH)[0] == (("GPU0", "GPU1"), ("mlx5_0",))
    assert members("l40s_4gpu_2nic_node_sys.txt", Level.NUMA) == [
        (("GPU0", "GPU1"), ()),
        (("GPU2", "GPU3"), ("NIC0", "NIC1")),
    ]
    assert members("rtx4090_8gpu_2nic_all_sys.txt", Level.NUMA) == [(fours[0], ()), (fours[1], ("NIC0", "NIC1"))]
    assert members("gb200_4gpu_8nic_numa_lists.txt", Level.NUMA) == [(("GPU0", "GPU1"), ()), (("GPU2", "GPU3"), ())]
    assert not members("v100_8gpu_cube_mesh_vm_numa_range.txt", Level.SWITCH)
    assert all(group.assumed for group in found("l40s_4gpu_2nic_node_sys.txt").groups)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "h200class_8gpu_8nic_half_gpus_without_pix.txt",
            "no NIC near GPU1, GPU3, GPU5 and GPU7: the nearest are at NODE",
        ),
        ("a6000_3gpu_nv4_pair_plus_node.txt", "GPU2 is off NVLink"),
        ("dell_xe9680_h100_12nic_topo_mp.txt", "topo -mp never prints NV#"),
        ("dell_xe9680_h100_12nic_topo_mp.txt", "NIC0 = NIC1 = NIC2; NIC6 = NIC7 = NIC8"),
        ("a800_8gpu_8bond_nic.txt", "GPU0 and GPU1 (NIC0, NIC1)"),
        ("pcie_8gpu_all_sys_nonic.txt", "SYS within one NUMA node"),
        ("v100_8gpu_cube_mesh_vm_numa_range.txt", "every GPU has the NUMA affinity 0-1"),
        ("a100_pcie_4gpu_1nic_evenodd_cpus.txt", "the driver cuts lists of single CPUs at 6"),
        ("rtx3090_2gpu_phb_numa_na.txt", "no NUMA affinity is given for any GPU"),
        ("p40_8gpu_1nic_soc_old_driver.txt", "the legend knows no NV#"),
        ("rtx4090_8gpu_2nic_all_sys.txt", "no legend names NIC0 and NIC1"),
    ],
)
def test_what_is_odd_is_said(name: str, words: str) -> None:
    assert any(words in text for text in found(name).warnings)


def test_nothing_is_odd_about_a_plain_box() -> None:
    assert found("h100_hgx_8gpu_8nic.txt").warnings == ()
    assert found("pcie_8gpu_pix_node_sys_banner.txt").warnings == ()


def test_names_of_the_legend_and_affinities() -> None:
    grace = found("gb200_4gpu_8nic_numa_lists.txt")
    assert grace.numa_affinity["GPU2"] == "1,19-25,27-33"
    assert grace.gpu_numa_id == {"GPU0": "2", "GPU1": "10", "GPU2": "18", "GPU3": "26"}
    assert grace.nic_names["NIC7"] == "mlx5_7"
    assert found("a100_sxm_4gpu_nv12_1nic_rocep.txt").nic_names == {"NIC0": "rocep49s0"}
    assert found("rtxpro6000_8gpu_asus_numa_suffix.txt").numa_affinity["GPU4"] == "1"
    assert found("rtxpro6000_8gpu_asus_ansi.txt").cpu_affinity["GPU7"] == "64-127,192-238"
    assert found("sm120_6gpu_pix_node_sys.txt").numa_affinity["GPU5"] == "1"
    assert found("l4_2gpu_sys_reversed_numa_markdown.txt").numa_affinity == {"GPU0": "1", "GPU1": "0"}
