"""Every capture of a real machine: read as expected or refused, and fast."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pdmodel.errors import InputError
from pdmodel.importers import lspci, lspci_findings, nccl_xml, nccl_xml_findings, p2p, perftest
from pdmodel.importers.findings import Status, TopologyFindings

SHARED = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the captures of real machines are not beside this checkout"
)
SLOWEST_S = 0.05

# file: GPUs, NICs, joined, nearest of the first GPU, its class, words of the warnings
XML: dict[str, tuple[int, int, object, tuple[str, ...], str, tuple[str, ...]]] = {
    "aws_p4d_a100_8gpu_4efa_template.xml": (8, 4, False, ("NIC0",), "PIX", ("template",)),
    "aws_p4de_a100_8gpu_4efa_template.xml": (8, 4, False, ("NIC0",), "PIX", ("template",)),
    "aws_p5_h100_autogen_fragment.xml": (1, 1, True, ("rdmap82s0",), "PIX", ("no speed, no width",)),
    "azure_nc48v4_a100_2gpu.xml": (2, 1, True, ("eth0",), "PHB", ("virtual", "gdr=0")),
    "azure_ndv2_v100_8gpu_1nic_template.xml": (8, 1, False, ("NIC0",), "PHB", ("template",)),
    "azure_ndv4_a100_8gpu_8nic_template.xml": (8, 8, False, ("NIC0", "NIC1"), "PIX", ("template", "4 NUMA nodes")),
    "oci_a100_8gpu_flattened_nps4_template.xml": (8, 8, False, ("NIC0", "NIC1"), "PIX", ("template", "4 NUMA nodes")),
    "oci_h100_8gpu_16port_full_dump.xml": (
        8,
        16,
        True,
        ("mlx5_0", "mlx5_1"),
        "PXB",
        ("5 GT/s x16, slower", "one card"),
    ),
    "rccl_16p1h.xml": (16, 8, "partial", ("mlx5_0", "mlx5_1"), "PXB", ("xGMI joins some pairs",)),
    "rccl_8p6l_4nic.xml": (8, 4, "partial", ("mlx5_0", "mlx5_1"), "PHB", ("xGMI joins some pairs",)),
    "rccl_8p_940.xml": (8, 8, True, ("mlx5_0",), "PXB", ("xGMI joins all pairs",)),
    "rccl_8p_pcie.xml": (8, 1, False, ("mlx5_0",), "PXB", ()),
    "rccl_8p_pcie_2nic.xml": (8, 2, False, ("mlx5_0",), "PXB", ()),
}
LSPCI = {
    "asus_esc8000a_e12_4x_rtx6000ada_4mlx5_lspci_tv.txt": (Status.COMPLETE, 4, 4),
    "asus_esc8000a_e12_acsctl.txt": (Status.PARTIAL, 0, 0),
    "asus_esc8000a_e12_gpu_lspci_vvv.txt": (Status.PARTIAL, 0, 0),
    "asus_esc8000a_e12_nic_lspci_vvv.txt": (Status.PARTIAL, 0, 0),
    "asus_esc8000a_e13p_8x_rtxpro6000_pex890xx_lspci_vvv_full.txt": (Status.COMPLETE, 8, 0),
    "wrx90_2gpu_2mlx5_lspci_tv.txt": (Status.COMPLETE, 2, 2),
    "wrx90_nic_lspci_vvv.txt": (Status.PARTIAL, 0, 0),
}
PERFTEST = {
    "ib_write_bw_cuda_dmabuf_100g_sweep.txt": 92.44,
    "ib_write_bw_dc_2qp_100g_sweep.txt": 97.56,
    "ib_write_bw_lat_dgx_spark_cx7.txt": 111.71,
    "perftest_100g_roce_k8s.txt": 92.48,
    "misc_points.txt": None,
    "nccl2409_h100_cx7_400g.txt": None,
}


def timed(read: Callable[[], TopologyFindings]) -> TopologyFindings:
    """The findings; the fastest of three readings is within the limit, so that a busy machine does not decide."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        found = read()
        times.append(time.perf_counter() - start)
    assert min(times) <= SLOWEST_S
    return found


@pytest.mark.parametrize("file", sorted(XML))
def test_nccl_files(file):
    content = (SHARED / "nccl_topology_xml" / file).read_bytes()
    found = timed(lambda: nccl_xml_findings.findings(nccl_xml.parse(content, file)))
    gpus, nics, joined, nearest, distance, words = XML[file]
    assert found.status is Status.COMPLETE
    assert (len(found.gpus), len(found.nics or ())) == (gpus, nics)
    assert nccl_xml_findings.joined(nccl_xml.parse(content, file)) == joined
    assert found.nvlink == (False if found.fabric == "xgmi" else joined)
    assert (found.nearest_nics["GPU0"], found.distance["GPU0"]) == (nearest, distance)
    text = "\n".join(found.warnings)
    assert all(word in text for word in words), text


def test_no_nccl_file_is_forgotten():
    assert {path.name for path in (SHARED / "nccl_topology_xml").glob("*.xml")} == set(XML)


@pytest.mark.parametrize("file", sorted(LSPCI))
def test_lspci_files(file):
    text = (SHARED / "lspci" / file).read_text()
    found = timed(lambda: lspci_findings.findings(lspci.parse(text, file)))
    status, gpus, nics = LSPCI[file]
    assert (found.status, len(found.gpus), len(found.nics or ())) == (status, gpus, nics)


def test_lspci_and_topo_of_one_machine_agree():
    from pdmodel.importers import topo

    pairs = {
        "asus_esc8000a_e12_4x_rtx6000ada_4mlx5_lspci_tv.txt": "rtx6000ada_4gpu_4nic.txt",
        "asus_esc8000a_e13p_8x_rtxpro6000_pex890xx_lspci_vvv_full.txt": "rtxpro6000_8gpu_asus_ansi.txt",
    }
    for listing, letters in pairs.items():
        tree = lspci_findings.findings(lspci.parse((SHARED / "lspci" / listing).read_text(), listing))
        told = topo.read((SHARED / "topo" / letters).read_bytes(), letters)
        known = tree.numa_affinity["GPU0"] is not None
        for one in told.gpus:
            for two in told.gpus:
                code = told.matrix[one][two]
                # Without NUMA nodes a drawing cannot tell NODE from SYS.
                assert tree.matrix[one][two] == code or (not known and {code, tree.matrix[one][two]} == {"NODE", "SYS"})


@pytest.mark.parametrize("file", sorted(PERFTEST))
def test_perftest_files(file):
    text = (SHARED / "perftest_logs" / file).read_text()
    gbit = PERFTEST[file]
    if gbit is None:
        with pytest.raises(InputError, match="no table"):
            perftest.parse(text, file)
        return
    best = max(table.best.bytes_per_s for table in perftest.parse(text, file).tables)
    assert best * 8 / 1e9 == pytest.approx(gbit, rel=1e-3)


def test_p2p_files():
    folder = SHARED / "nccl_logs"
    plain = p2p.parse((folder / "p2p_rtx2080tix2.txt").read_text(), "a")
    assert plain.refused == ((0, 1), (1, 0)) and plain.gpus[0] == "NVIDIA GeForce RTX 2080 Ti"
    turin = p2p.parse((folder / "p2p_rtxpro6000x4_rtx5090x2_turin.txt").read_text(), "b")
    assert turin.gpu_count == 6 and max(turin.matrices[0].between.values()) == 56.57
    for file in sorted(folder.glob("*.txt")):
        if not file.name.startswith("p2p_"):
            with pytest.raises(InputError):
                p2p.parse(file.read_text(), file.name)
