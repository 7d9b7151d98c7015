"""NCCL topology files: the tree, links, NVLink, ports; links that cannot be; files that are refused."""

import pytest
from made_boxes import gpu_tag, hgx_xml, net, pci, system

from pdmodel.errors import InputError
from pdmodel.importers.findings import Kind, Status
from pdmodel.importers.nccl_xml import MOST_LEVELS, parse
from pdmodel.importers.nccl_xml_findings import findings
from pdmodel.importers.pci import DeviceKind, Link


def found(text):
    return findings(parse(text, "topo.xml"))


def test_an_hgx_box_is_read_whole():
    result = found(hgx_xml())
    assert (result.status, result.kind) == (Status.COMPLETE, Kind.NCCL_XML)
    assert result.gpus == tuple(f"GPU{k}" for k in range(8))
    assert result.nvlink is True and result.fabric == "nvlink"
    assert result.nearest_nics == {f"GPU{k}": (f"mlx5_{k}",) for k in range(8)}
    assert set(result.distance.values()) == {"PIX"}
    assert result.matrix["GPU0"]["GPU5"] == "NV18"
    assert result.pcie_matrix["GPU0"]["GPU3"] == "PHB" and result.pcie_matrix["GPU0"]["GPU5"] == "SYS"
    assert result.numa_affinity["GPU7"] == "1"
    assert result.warnings == ()


def test_the_tree_has_each_link_with_speed_and_width():
    read = parse(hgx_xml(2, gpu_speed="16 GT/s"), "topo.xml")
    gpu = read.devices["0000:01:00.0"]
    assert (gpu.kind, gpu.parent, gpu.link) == (DeviceKind.GPU, "0000:00:00.0", Link(16.0, 16))
    assert read.devices["0000:00:00.0"].parent is None
    assert gpu.name == "H100 SXM5 80GB" and gpu.numa == 0
    assert read.nets[0].speed_mbit_per_s == 400000 and read.nets[0].gdr is True and read.nets[0].port == 1


@pytest.mark.parametrize(
    ("text", "speed"),
    [("32.0 GT/s PCIe", 32.0), ("16 GT/s", 16.0), ("8", None), ("", None), ("64.0 GT/s PCIe", 64.0), ("17 GT/s", None)],
)
def test_speeds_in_every_spelling(text, speed):
    read = parse(system({0: pci("0000:01:00.0", "gpu", gpu_tag(0), speed=text, width=0)}), "x.xml")
    assert read.devices["0000:01:00.0"].link == Link(speed, None)


def test_links_that_are_not_told_are_unknown_and_said():
    result = found(system({0: pci("0000:01:00.0", "gpu", gpu_tag(0), speed="", width=0)}))
    assert any("no speed, no width" in text and "8 GT/s" in text for text in result.warnings)


def test_an_idle_gpu_and_a_bogus_uplink_are_told_apart():
    idle = found(hgx_xml(gpu_speed="2.5 GT/s PCIe"))
    assert any("asleep" in text and "0000:01:00.0" in text for text in idle.warnings)
    bogus = found(hgx_xml(uplink="5.0 GT/s PCIe"))
    assert any("slower than the links above and below" in text and "5 more" in text for text in bogus.warnings)
    assert not any("asleep" in text for text in bogus.warnings)


def test_a_slow_switch_with_slow_devices_is_believed():
    result = found(hgx_xml(uplink="16.0 GT/s PCIe", gpu_speed="16.0 GT/s PCIe"))
    assert not any("slower" in text for text in result.warnings)


def test_two_ports_of_a_card_share_its_link():
    result = found(hgx_xml(4, ports=2))
    assert result.nearest_nics["GPU1"] == ("mlx5_2", "mlx5_3")
    assert result.twins == tuple((f"mlx5_{2 * k}", f"mlx5_{2 * k + 1}") for k in range(4))
    assert any("ports of one card" in text for text in result.warnings)


def test_templates_tell_gpus_and_nics_by_class():
    inner = "".join(pci(f"000{k}:00:00.0", "gpu") for k in (3, 1)) + pci("0101:00:00.0", "nic")
    result = found(system({0: pci("ffff:ff:01.0", "bridge", inner), 1: pci("0005:00:00.0", "0x120000")}))
    # Drivers number by bus id, not by the order of the file.
    assert result.gpus == ("GPU0", "GPU1", "GPU2") and result.nics == ("NIC0",)
    assert result.distance == {"GPU0": "PIX", "GPU1": "PIX", "GPU2": "SYS"}
    assert any("template" in text for text in result.warnings)
    assert result.nvlink is False


def test_two_switch_levels_are_pxb_and_a_shortcut_spares_the_cpu():
    leaf = [pci(f"0000:{k}2:00.0", "bridge", pci(f"0000:{k}3:00.0", "gpu", gpu_tag(k))) for k in range(2)]
    tree = found(system({0: pci("0000:01:00.0", "bridge", "".join(leaf))}))
    assert tree.pcie_matrix["GPU0"]["GPU1"] == "PXB"
    apart = [
        pci(f"0000:{k}1:00.0", "bridge", pci(f"0000:{k}3:00.0", "gpu", gpu_tag(k)) + join)
        for k, join in enumerate(('<pcilink target="0000:11:00.0"/>', ""))
    ]
    assert found(system({0: "".join(apart)})).pcie_matrix["GPU0"]["GPU1"] == "PXB"
    assert found(system({0: "".join(apart).replace("pcilink", "other")})).pcie_matrix["GPU0"]["GPU1"] == "PHB"


def test_a_gpu_off_the_fabric_and_pairs_without_links():
    text = hgx_xml(4).replace('<nvlink target="0000:c2:00.0" count="18" tclass="0x068000"/>', "")
    result = found(text)
    assert result.nvlink == "partial"
    assert any(text.startswith("GPU2 without") for text in result.warnings)


def test_direct_links_count_by_pair_and_xgmi_is_named():
    one = '<xgmi target="0000:22:00.0" count="4" tclass="0x038000"/>'
    two = '<xgmi target="0000:11:00.0" count="4" tclass="0x038000"/>'
    text = system(
        {0: pci("0000:11:00.0", "0x038000", gpu_tag(0, one)) + pci("0000:22:00.0", "0x038000", gpu_tag(1, two))},
        version=2,
    )
    result = found(text)
    assert (result.fabric, result.matrix["GPU0"]["GPU1"]) == ("xgmi", "XGMI")
    assert any("xGMI joins all pairs" in text for text in result.warnings)
    assert parse(text, "x").version == 2


def test_c2c_and_virtual_nics():
    text = system(
        {
            0: pci("0000:01:00.0", "gpu", gpu_tag(0, '<c2c bw="44712" count="10"/>'))
            + "<nic>"
            + net("eth0", 0, gdr=0)
            + "</nic>"
        }
    )
    read = parse(text, "x.xml")
    assert read.gpus[0].c2c_gb_per_s == pytest.approx(447.12)
    result = findings(read)
    assert result.distance == {"GPU0": "PHB"}
    assert any("virtual" in text for text in result.warnings) and any("gdr=0" in text for text in result.warnings)


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "line 1 column 1", "no element found"),
        ("<system>\n<cpu>\n</system>", "line 3 column 3", "mismatched tag"),
        ('<system version="1">\n <cpu numaid="0>', "line 2", ""),
        ("<graphs></graphs>", "line 1 column 1", "root is <graphs>"),
        ("<system></system>", "line 1", "no GPU"),
        ('GPU0 <system version="1"/>', "line 1 column 1", ""),
    ],
)
def test_what_is_no_topology_is_refused_with_its_place(text, where, what):
    with pytest.raises(InputError) as caught:
        parse(text, "topo.xml")
    assert str(caught.value).startswith("topo.xml: " + where)
    assert what in str(caught.value)


def test_entities_are_refused_before_they_grow():
    bomb = '<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;">]><system>&b;</system>'
    with pytest.raises(InputError, match="declares an entity"):
        parse(bomb, "topo.xml")
    outside = '<!DOCTYPE system [<!ENTITY a SYSTEM "file:///etc/hostname">]><system>&a;</system>'
    with pytest.raises(InputError, match="declares an entity"):
        parse(outside, "topo.xml")


def test_depth_has_an_end():
    deep = "".join(f'<pci busid="0000:{k:02x}:00.0" class="0x060400">' for k in range(MOST_LEVELS + 1))
    with pytest.raises(InputError, match="nested more than"):
        parse(f'<system><cpu numaid="0">{deep}', "topo.xml")


def test_other_encodings_and_names_that_come_twice():
    text = hgx_xml(2)
    wide = ('<?xml version="1.0" encoding="utf-16"?>' + text).encode("utf-16")
    assert findings(parse(wide, "x")).gpus == ("GPU0", "GPU1")
    assert findings(parse(b"\xef\xbb\xbf" + text.encode(), "x")).gpus == ("GPU0", "GPU1")
    same = text.replace("mlx5_1", "mlx5_0")
    assert findings(parse(same, "x")).nics == ("NIC0", "NIC1")
    twice = text.replace("0000:11:00.0", "0000:01:00.0")
    assert any("is there twice" in warning for warning in findings(parse(twice, "x")).warnings)
