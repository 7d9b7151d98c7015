"""From files to a box: what overrides what, what is a conflict, what is assumed, and that the box plans."""

import json

import pytest
from made_boxes import (
    DRAWING,
    GPU_TEXT,
    gpu_tag,
    hgx_xml,
    net,
    nvbandwidth,
    p2p_log,
    pci,
    perftest,
    switched_lspci,
    system,
    vvv,
)
from made_logs import made_log
from made_topo import Box as MadeBox
from made_topo import hgx, pcie, printed

from pdmodel.errors import InputError
from pdmodel.hardware.profile import Distance, HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.importers import box_evidence as read
from pdmodel.importers.build_box import build_box
from pdmodel.spec import SourceKind

READERS = {
    "topo": read.read_topo,
    "nccl_xml": read.read_nccl_xml,
    "lspci": read.read_lspci,
    "p2p": read.read_p2p,
    "perftest": read.read_perftest,
    "logs": read.read_log,
}
PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


def built(gpu=None, nics=None, **texts):
    files = {
        kind: tuple(
            READERS[kind](text.encode(), f"{kind}{k}.txt")
            for k, text in enumerate([given] if isinstance(given, str) else given)
        )
        for kind, given in texts.items()
    }
    option = None if nics is None else read.nics_option(nics)
    return build_box(read.BoxEvidence(gpu=gpu, nics=option, **files), "box")


def kind_of(box, path):
    found = {one.path: one for one in box.taken}[path]
    return found.value, found.kind


def conflicts(box, *words):
    return [text for text in box.conflicts if all(word in text for word in words)]


# ---- trees -----------------------------------------------------------------------------------------------------------


def test_letters_alone_give_a_tree_and_everything_is_assumed():
    made = pcie(4)
    box = built("NVIDIA L40S", topo=printed(made))
    links = [one for one in box.taken if one.path.startswith(("links.", "nics.", "tree."))]
    assert links and all(one.kind is SourceKind.ASSUMED for one in links)
    there = Box(box.profile, "box")
    for a in range(4):
        for b in range(4):
            if a != b:
                assert there.distance(f"gpu{a}", f"gpu{b}").value == made.truth[f"GPU{a}"][f"GPU{b}"].lower()
    assert there.distance("gpu0", "nic0") is Distance.SYS
    assert there.distance("nic0", "nic1") is Distance.PIX  # one card, whose slot they share
    assert box.profile.links.gpu.egress_gb_per_s.value == pytest.approx(26.53, abs=0.01)
    assert any("hypothesis" in fact.value for fact in box.facts)
    assert any("links.gpu.egress_gb_per_s" in text for text in box.assumed)


@pytest.mark.parametrize(
    "places",
    [
        ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4)),
        ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 1)),
        ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2)),
    ],
)
def test_every_class_of_distance_comes_back(places):
    made = MadeBox(places, places[:1])
    there = Box(built("NVIDIA L40S", topo=printed(made, affinity="")).profile, "box")
    for a in range(len(places)):
        for b in range(len(places)):
            if a != b:
                assert there.distance(f"gpu{a}", f"gpu{b}").value == made.truth[f"GPU{a}"][f"GPU{b}"].lower()


def test_a_tree_of_the_machine_beats_letters_and_differences_are_told():
    box = built(nccl_xml=hgx_xml(4, nvlinks=0), topo=printed(pcie(4)))
    assert conflicts(box, "topo0.txt differs from nccl_xml0.txt")
    assert Box(box.profile, "box").distance("gpu0", "nic0") is Distance.PIX
    assert built(nccl_xml=hgx_xml(8), topo=printed(hgx())).conflicts == ()
    assert conflicts(built(nccl_xml=hgx_xml(8), topo=printed(hgx(4))), "4 GPUs")


def test_lspci_tells_what_links_can_do():
    box = built(lspci=switched_lspci(uplink="16GT/s"))
    assert kind_of(box, "links.gpu.egress_gb_per_s") == (53.07, SourceKind.DERIVED)
    assert kind_of(box, "links.uplink.up_gb_per_s") == (26.53, SourceKind.DERIVED)
    assert kind_of(box, "max_read_request.nic_bytes") == (4096, SourceKind.MEASURED)
    assert kind_of(box, "max_read_request.copy_engine_bytes") == (256, SourceKind.MEASURED)
    assert box.profile.nics is not None and box.profile.nics.count == 2  # two functions are one card
    assert box.profile.flags.acs_redirect is False
    assert built(lspci=switched_lspci(acs="+")).profile.flags.acs_redirect is True


def test_a_drawing_takes_its_sockets_from_letters():
    places = ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 1, 1), (1, 2, 2, 2))
    with_letters = built(lspci=DRAWING, topo=printed(MadeBox(places, places[1:2])), nics="2@200")
    assert len(with_letters.profile.tree.sockets) == 2
    alone = built(lspci=DRAWING)
    assert len(alone.profile.tree.sockets) == 1 and any("one socket" in text for text in alone.assumed)


def test_a_root_port_with_several_links_is_a_switch_whose_ports_are_missing():
    whole = switched_lspci(1)
    start = whole.index("01:00.0 PCI bridge")
    without_upstream = whole[:start] + whole[whole.index("02:00.0 PCI bridge") :]
    box = built(lspci=without_upstream.replace("secondary=01", "secondary=02"))
    assert any("several links below it" in text for text in box.warnings)
    assert {len(port.gpus) for port in box.profile.tree.root_ports} == {0}
    assert not any("several links" in text for text in built(lspci=whole).warnings)


def test_one_device_of_lspci_stands_for_all():
    slow = vvv("01:00.0", GPU_TEXT, cap="32GT/s, Width x8")
    box = built(topo=printed(pcie()), lspci=slow)
    assert kind_of(box, "links.gpu.egress_gb_per_s")[0] == pytest.approx(26.53, abs=0.01)
    assert any("all GPUs have the link" in text for text in box.assumed)


def test_without_any_tree_gpus_sit_directly_on_one_socket():
    box = built(p2p=p2p_log(4, lambda a, b: 50.0))
    assert len(box.profile.tree.root_ports) == 5 and any("no file tells the tree" in text for text in box.assumed)


# ---- links -----------------------------------------------------------------------------------------------------------


def test_a_matrix_of_p2p_alone_tells_how_many_gpus_and_that_they_stage():
    text = "\tGPU0\tGPU1\n GPU0\tX\tCNS\t\n GPU1\tCNS\tX\t\n"
    box = built(topo=text, gpu="L40S", nics="1@100")
    assert (box.profile.gpu.count, box.profile.flags.p2p) == (2, "refused")
    assert any("no file tells the tree" in text for text in box.assumed)


def test_measured_copies_beat_arithmetic():
    box = built(topo=printed(pcie(4)), p2p=p2p_log(4, lambda a, b: 56.0 if a // 2 == b // 2 else 45.0))
    assert kind_of(box, "links.gpu.egress_gb_per_s") == (56.0, SourceKind.MEASURED)
    assert kind_of(box, "links.inter_socket_gb_per_s") == (45.0, SourceKind.MEASURED)
    assert box.profile.flags.p2p.value == "posted_writes"


def test_a_contradiction_is_printed_with_both_sources():
    box = built(topo=printed(pcie(4)), lspci=vvv("01:00.0", GPU_TEXT), p2p=p2p_log(4, lambda a, b: 26.0))
    assert kind_of(box, "links.gpu.egress_gb_per_s") == (26.0, SourceKind.MEASURED)
    assert conflicts(box, "links.gpu", "26 GB/s is taken", "53.07 GB/s", "p2p0.txt", "lspci0.txt")


def test_a_slow_slot_gets_a_link_of_its_own():
    box = built(topo=printed(MadeBox(((0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 2, 2)))), gpu=PRO,
                p2p=p2p_log(3, lambda a, b: 13.0 if 2 in {a, b} else 56.0))  # fmt: skip
    assert box.profile.links.overrides["gpu2"].egress_gb_per_s.value == 13.0
    assert "gpu0" not in box.profile.links.overrides


def test_uplinks_carry_what_copies_between_switches_reach():
    made = MadeBox(((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 1), (0, 0, 1, 1)))
    box = built(topo=printed(made), p2p=p2p_log(4, lambda a, b: 56.0 if a // 2 == b // 2 else 40.0))
    assert kind_of(box, "links.uplink.up_gb_per_s") == (40.0, SourceKind.DERIVED)
    assert kind_of(box, "links.gpu.egress_gb_per_s")[0] == 56.0


def test_links_that_are_not_full_duplex_are_capped():
    box = built(topo=printed(pcie(2, 0)), p2p=p2p_log(2, lambda a, b: 50.0, both=1.2))
    assert box.profile.links.gpu.both_gb_per_s is None  # the two GPUs are on two sockets: not a port's figure
    same = built(topo=printed(MadeBox(((0, 0, 0, 0), (0, 0, 0, 0)))), p2p=p2p_log(2, lambda a, b: 50.0, both=1.2))
    assert same.profile.links.gpu.both_gb_per_s is not None
    assert same.profile.links.gpu.both_gb_per_s.value == pytest.approx(60.0)


def test_host_copies_measure_the_port():
    box = built(nccl_xml=hgx_xml(2), p2p=nvbandwidth(
        {"host_to_device_memcpy_ce": [[55.4, 55.3]], "device_to_host_memcpy_ce": [[54.9, 55.0]]}))  # fmt: skip
    assert kind_of(box, "links.gpu.ingress_gb_per_s") == (55.4, SourceKind.MEASURED)
    assert kind_of(box, "links.gpu.egress_gb_per_s") == (55.0, SourceKind.MEASURED)
    assert kind_of(box, "links.nvlink.egress_gb_per_s")[1] is SourceKind.ASSUMED


def test_copies_of_another_number_of_gpus_are_not_used():
    box = built(topo=printed(pcie(4)), p2p=p2p_log(6, lambda a, b: 50.0))
    assert conflicts(box, "6 GPUs", "not used")
    assert kind_of(box, "links.gpu.egress_gb_per_s")[1] is SourceKind.ASSUMED


def test_idle_and_bogus_links_are_no_capacity():
    box = built(nccl_xml=hgx_xml(8, uplink="5.0 GT/s PCIe", gpu_speed="2.5 GT/s PCIe"))
    assert kind_of(box, "links.gpu.egress_gb_per_s") == (53.07, SourceKind.ASSUMED)
    assert kind_of(box, "links.uplink.up_gb_per_s")[1] is SourceKind.ASSUMED or box.profile.links.uplink is None
    slow = built(nccl_xml=hgx_xml(8, uplink="16.0 GT/s PCIe", gpu_speed="16.0 GT/s PCIe"))
    assert kind_of(slow, "links.gpu.egress_gb_per_s") == (26.53, SourceKind.DERIVED)
    assert conflicts(slow, "16 GT/s", "Gen5", "slower slot")


def test_lspci_corrects_a_sleeping_link_of_the_nccl_file():
    caps = vvv("00:01.0", "PCI bridge: X", secondary="01", port="Root Port") + vvv("01:00.0", GPU_TEXT)
    box = built(PRO, nccl_xml=hgx_xml(4, nvlinks=0, gpu_speed="16 GT/s"), lspci=caps)
    assert conflicts(box, "0000:01:00.0", "lspci is taken")


# ---- NVLink ----------------------------------------------------------------------------------------------------------


def test_nvlink_by_letters_by_file_and_by_data_sheet():
    assert kind_of(built("NVIDIA H100 80GB HBM3", topo=printed(hgx())), "links.nvlink.egress_gb_per_s")[0] == 391.5
    measured = built(nccl_xml=hgx_xml(4), p2p=p2p_log(4, lambda a, b: 380.0, name="NVIDIA H100 80GB HBM3"))
    assert kind_of(measured, "links.nvlink.egress_gb_per_s") == (380.0, SourceKind.MEASURED)
    assert kind_of(measured, "links.gpu.egress_gb_per_s")[0] == 53.07  # PCIe was not measured
    off = built("NVIDIA H100 80GB HBM3", topo=printed(pcie(4)))
    assert off.profile.links.nvlink is None and conflicts(off, "NVLink", "shows none")
    template = hgx_xml(2).replace("<gpu", "<no").replace("</gpu", "</no")
    sheet = built("NVIDIA H100 80GB HBM3", nccl_xml=template)
    assert sheet.profile.links.nvlink is not None and any("NVLink between all GPUs" in text for text in sheet.assumed)


def test_nvlink_of_some_pairs_is_left_out_and_said():
    made = MadeBox(hgx(4).gpus, hgx(4).nics, 18, frozenset({2}))
    box = built("NVIDIA H100 80GB HBM3", topo=printed(made))
    assert box.profile.links.nvlink is None
    assert any("some pairs" in text for text in box.warnings) and any(
        "GPU2 is off NVLink" in text for text in box.warnings
    )


def test_fewer_nvlinks_than_the_data_sheet():
    box = built("NVIDIA H100 80GB HBM3", topo=printed(hgx(4, 8)))
    assert kind_of(box, "links.nvlink.egress_gb_per_s") == (pytest.approx(0.87 * 200), SourceKind.DERIVED)
    assert conflicts(box, "links.nvlink")


# ---- NICs, flags, GPU ------------------------------------------------------------------------------------------------


def test_nics_of_files_of_options_and_of_nobody():
    file = built(nccl_xml=hgx_xml(4, ports=2))
    assert file.profile.nics is not None and file.profile.nics.count == 4
    assert kind_of(file, "nics.line_rate_gbit_per_s") == (800, SourceKind.DATASHEET)  # two ports a card
    option = built("NVIDIA L40S", "2@100", topo=printed(MadeBox(((0, 0, 0, 0), (1, 1, 1, 1)))))
    assert kind_of(option, "nics.line_rate_gbit_per_s")[0] == 100 and any(
        "2 NICs on root ports" in t for t in option.assumed
    )
    nobody = built("NVIDIA L40S", topo=printed(MadeBox(((0, 0, 0, 0), (1, 1, 1, 1)))))
    assert kind_of(nobody, "nics.line_rate_gbit_per_s") == (200, SourceKind.ASSUMED)
    assert any("--nics" in text for text in nobody.warnings)
    both = built(nics="2@100", nccl_xml=hgx_xml(4))
    assert conflicts(both, "--nics says 2") and conflicts(both, "nics.line_rate", "400", "100")
    paired = built("NVIDIA H100 80GB HBM3", "4@400", topo=printed(MadeBox(hgx(4).gpus, (), 18)))
    assert Box(paired.profile, "box").distance("gpu3", "nic3") is Distance.PIX


def test_nics_that_may_be_one_are_told_as_assumed():
    made = MadeBox(((0, 0, 0, 0), (0, 0, 0, 0)), ((0, 0, 0, 0), (0, 0, 0, 0)))
    assert any(
        "NIC0 and NIC1 are NICs of their own" in text for text in built("NVIDIA L40S", topo=printed(made)).assumed
    )
    card = built("NVIDIA L40S", topo=printed(pcie()))  # one card: its slot bounds both
    assert not any("NICs of their own" in text for text in card.assumed)


def test_perftest_tells_what_a_nic_reaches():
    box = built("NVIDIA H100 80GB HBM3", topo=printed(hgx()), perftest=perftest(gbit=390))
    assert kind_of(box, "nics.achievable_gb_per_s") == (48.75, SourceKind.MEASURED)
    raised = built("NVIDIA L40S", topo=printed(pcie()), perftest=perftest(gbit=390))
    assert kind_of(raised, "nics.line_rate_gbit_per_s") == (400, SourceKind.DERIVED)
    cut = built("NVIDIA L40S", "2@200", topo=printed(pcie()), perftest=perftest(gbit=390))
    assert kind_of(cut, "nics.achievable_gb_per_s")[0] == 25.0 and conflicts(cut, "more than the line rate")
    slow = built(nccl_xml=hgx_xml(), perftest=perftest(gbit=92))
    assert conflicts(slow, "perftest0.txt", "was it of this NIC")
    far = built(
        "NVIDIA L40S", "2@200", topo=printed(pcie()), perftest=[perftest(gbit=190), perftest(gbit=88, cuda=True)]
    )
    assert kind_of(far, "nics.gpu_rate.node.read_gb_per_s") == (11.0, SourceKind.MEASURED)
    assert kind_of(far, "nics.gpu_rate.sys.read_gb_per_s")[1] is SourceKind.ASSUMED


def test_p2p_and_gpudirect_flags():
    geforce = built("NVIDIA GeForce RTX 5090", topo=printed(pcie()))
    assert geforce.profile.flags.p2p.value == "refused" and geforce.profile.flags.gpudirect_rdma.value == "none"
    patched = built(
        "NVIDIA GeForce RTX 5090",
        topo=printed(pcie()),
        p2p=p2p_log(4, lambda a, b: 50.0, name="NVIDIA GeForce RTX 5090"),
    )
    assert patched.profile.flags.p2p.value == "posted_writes"
    staged = built(p2p=p2p_log(2, lambda a, b: 5.7, access=False))
    assert staged.profile.flags.p2p.value == "refused"
    assert any("staged" in text for text in staged.warnings)
    assert kind_of(staged, "links.gpu.egress_gb_per_s")[1] is SourceKind.ASSUMED
    matrix = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"
    made = printed(MadeBox(((0, 0, 0, 0), (0, 0, 1, 1))))
    assert built(PRO, topo=[made, matrix]).profile.flags.p2p.value == "refused"
    closed = system(
        {
            0: pci("0000:01:00.0", "gpu", gpu_tag(0, gdr=0))
            + pci("0000:02:00.0", "nic", "<nic>" + net("m", 0, gdr=0) + "</nic>")
        }
    )
    assert built(nccl_xml=closed).profile.flags.gpudirect_rdma.value == "none"


def test_the_gpu_is_named_by_files_or_by_hand():
    with pytest.raises(InputError, match="no file names the GPU"):
        built(topo=printed(pcie()))
    with pytest.raises(InputError, match="how many GPUs"):
        built(PRO, perftest=perftest())
    named = built(nccl_xml=hgx_xml())
    assert named.profile.gpu.name == "H100 SXM5"
    other = built(PRO, nccl_xml=hgx_xml())
    assert conflicts(other, "GPU", "H100 SXM5 80GB") and other.profile.gpu.name == "RTX PRO 6000 Blackwell"
    strange = built("ACME 9000", topo=printed(pcie()))
    assert any("no data sheet" in text for text in strange.warnings)
    assert kind_of(strange, "gpu.memory_gib")[1] is SourceKind.ASSUMED


def test_nics_option():
    assert read.nics_option("8@400") == read.NicsOption(8, 400.0)
    for wrong in ("8", "0@400", "8@0", "a@b", "8@400@1"):
        with pytest.raises(InputError, match="N@GBIT"):
            read.nics_option(wrong)


def test_collectives_come_from_logs_of_nccl_tests():
    log = made_log(ranks=4, gpu=PRO)
    box = built(topo=printed(pcie(4)), logs=log)
    assert [(entry.operation.value, entry.ranks) for entry in box.profile.collectives] == [("all_reduce", 4)]
    assert box.profile.kind_of(box.profile.collectives[0].source) is SourceKind.MEASURED
    assert box.calibration is not None


# ---- the whole -------------------------------------------------------------------------------------------------------

EVERYTHING = {
    "topo": printed(pcie(4)),
    "nccl_xml": hgx_xml(4, nvlinks=0),
    "lspci": switched_lspci(),
    "p2p": p2p_log(4, lambda a, b: 55.0),
    "perftest": perftest(),
}


def test_every_figure_has_a_source_that_names_its_file():
    box = built(PRO, **EVERYTHING)
    again = HardwareProfile.parse(json.loads(json.dumps(box.raw)))
    assert again == box.profile
    files = [source for source in box.profile.sources.values() if "sha256" in source.ref]
    names = ("nccl_xml0.txt", "lspci0.txt", "p2p0.txt", "perftest0.txt")
    assert all(any(name in source.ref for source in files) for name in names)
    assert all(len(source.ref.split("sha256 ")[1][:64]) == 64 for source in files)


@pytest.mark.parametrize("left_out", sorted(EVERYTHING))
def test_any_mix_gives_a_box(left_out):
    files = {kind: text for kind, text in EVERYTHING.items() if kind != left_out}
    box = built(PRO, **files)
    assert box.profile.gpu.count == 4
    kinds = [one.kind for one in box.taken if one.path.startswith("links.gpu.egress")]
    assert kinds == [SourceKind.DERIVED if left_out == "p2p" else SourceKind.MEASURED]
