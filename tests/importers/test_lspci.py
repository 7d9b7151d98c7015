"""lspci: the drawing of -tv, the tree of -vvv, what links can do, ACS, and files of one device."""

import pytest
from made_boxes import DRAWING, GPU_TEXT, NIC_TEXT, switched_lspci, vvv

from pdmodel.errors import InputError
from pdmodel.importers.findings import Status
from pdmodel.importers.lspci import link_of, parse
from pdmodel.importers.lspci_findings import findings
from pdmodel.importers.pci import DeviceKind, Link, above


def test_the_drawing_tells_the_tree():
    found = parse(DRAWING, "tv.txt")
    assert found.root_buses == ("0000:00", "0000:40", "0000:80")
    gpus = [device.bus for device in found.of_kind(DeviceKind.GPU)]
    assert gpus == ["0000:01:00.0", "0000:43:00.0", "0000:44:00.0", "0000:81:00.0"]
    assert above(found.devices["0000:44:00.0"], found.devices) == ("0000:42:04.0", "0000:41:00.0", "0000:40:01.1")
    assert found.devices["0000:01:00.0"].name == "L40S"
    assert found.devices["0000:01:00.1"].kind is DeviceKind.OTHER  # sound
    result = findings(found)
    assert result.nics == ("NIC0", "NIC1") and result.twins == (("NIC0", "NIC1"),)
    assert result.matrix["GPU1"]["GPU2"] == "PIX" and result.distance["GPU1"] == "PIX"
    assert result.matrix["GPU0"]["GPU1"] == "NODE"
    assert any("1 Ethernet ports" in text for text in result.warnings)
    assert any("one socket" in text for text in result.warnings)
    assert set(result.numa_affinity.values()) == {None}


def test_a_drawing_with_one_root_bus_and_indented():
    text = "-[0000:00]-+-00.0  Intel Corporation Device 1\n"
    text += "           \\-01.0-[01]----00.0  NVIDIA Corporation GA102GL [RTX A6000]\n"
    assert [d.bus for d in parse(text, "x").of_kind(DeviceKind.GPU)] == ["0000:01:00.0"]
    shifted = "\n".join("    " + line for line in text.splitlines())
    assert [d.bus for d in parse(shifted, "x").of_kind(DeviceKind.GPU)] == ["0000:01:00.0"]


def test_the_tree_follows_from_bus_numbers():
    found = parse(switched_lspci(), "vvv.txt")
    result = findings(found)
    assert result.status is Status.COMPLETE and len(result.gpus) == 4
    assert result.matrix["GPU0"]["GPU1"] == "PIX" and result.matrix["GPU1"]["GPU2"] == "SYS"
    assert result.nearest_nics["GPU2"] == ("NIC2", "NIC3")
    gpu = found.of_kind(DeviceKind.GPU)[0]
    assert gpu.name == "RTX PRO 6000 Blackwell Server Edition" and gpu.numa == 0


def test_an_idle_gpu_keeps_what_its_link_can_do():
    found = parse(switched_lspci(), "vvv.txt")
    gpu = found.of_kind(DeviceKind.GPU)[0]
    assert link_of(gpu, found) == Link(32.0, 16)
    assert found.details[gpu.bus].status == Link(2.5, 16) and found.details[gpu.bus].downgraded
    assert any("idle GPU" in text for text in found.warnings)
    assert not any("idle GPU" in text for text in parse(switched_lspci(idle=False), "x").warnings)


def test_the_slower_end_of_a_link_counts():
    found = parse(switched_lspci(uplink="16GT/s"), "vvv.txt")
    assert link_of(found.devices["0000:01:00.0"], found) == Link(16.0, 16)


def test_packets_and_acs():
    found = parse(switched_lspci(acs="+"), "vvv.txt")
    nic = found.of_kind(DeviceKind.NIC)[0]
    assert found.details[nic.bus].read_request_bytes == 4096
    assert found.details[nic.bus].payload_bytes == 256
    assert found.redirects == (8, 8)
    assert any("ACS redirects" in text for text in found.warnings)
    assert parse(switched_lspci(), "x").redirects == (0, 8)


def test_a_narrow_link_is_said():
    text = switched_lspci().replace("2.5GT/s (downgraded), Width x16", "32GT/s, Width x8 (downgraded)", 1)
    assert any("8 of 16 lanes" in warning for warning in parse(text, "x").warnings)


def test_one_device_is_part_of_a_box():
    found = parse("$ sudo lspci -vvv -s 01:00.0\n" + vvv("01:00.0", GPU_TEXT), "gpu.txt")
    result = findings(found)
    assert result.status is Status.PARTIAL and result.reason == "no tree"
    assert found.details["0000:01:00.0"].cap == Link(32.0, 16)
    acs = parse("\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd-\n", "acs.txt")
    assert acs.redirects == (1, 1) and findings(acs).status is Status.PARTIAL


def test_domains_and_a_bridge_that_is_its_own_parent():
    text = vvv("0001:00:01.0", "PCI bridge: X", secondary="01") + vvv("0001:01:00.0", NIC_TEXT)
    assert parse(text, "x").devices["0001:01:00.0"].parent == "0001:00:01.0"
    loop = vvv("01:00.0", "PCI bridge: X", secondary="01") + vvv("01:01.0", GPU_TEXT)
    assert findings(parse(loop, "x")).gpus == ("GPU0",)


def test_other_text_is_refused():
    for text in ("", "GPU0\tGPU1\n", "<system/>"):
        with pytest.raises(InputError, match="no line is of lspci"):
            parse(text, "x.txt")


@pytest.mark.parametrize(
    "text",
    [
        "3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)",
        "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)",
        "VGA compatible controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1) (prog-if 00 [VGA controller])",
        "0302: 10de:2330 (rev a1)",
    ],
)
def test_names_and_numbers_of_a_gpu(text):
    found = parse(vvv("00:01.0", "PCI bridge: X", secondary="01") + vvv("01:00.0", text), "x")
    assert [device.name for device in found.of_kind(DeviceKind.GPU)] == ["H100 SXM5 80GB"]


def test_numbers_of_a_nic_and_of_an_nvswitch():
    text = vvv("00:01.0", "0604: 8086:1234", secondary="01") + vvv("01:00.0", "0207: 15b3:1021")
    found = parse(text + vvv("02:00.0", "Bridge: NVIDIA Corporation GH100 [H100 NVSwitch] (rev a1)"), "x")
    assert [device.bus for device in found.of_kind(DeviceKind.NIC)] == ["0000:01:00.0"]
    assert [device.bus for device in found.of_kind(DeviceKind.NVSWITCH)] == ["0000:02:00.0"]
