"""Files of boxes that were damaged: findings, a refusal with its place, or a box that holds; nothing else."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_boxes import DRAWING, hgx_xml, nvbandwidth, p2p_log, perftest, switched_lspci
from made_topo import hgx, pcie, printed

from pdmodel.errors import InputError
from pdmodel.hardware.topology import Box
from pdmodel.importers import box_evidence as read
from pdmodel.importers import lspci_findings, nccl_xml_findings
from pdmodel.importers.build_box import build_box
from pdmodel.report.box_files import lspci_document, nccl_document, p2p_document, perftest_document
from pdmodel.report.built_box import built_document
from pdmodel.report.export import to_csv, to_json, to_markdown

GPU = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
EXAMPLES = settings(max_examples=60, deadline=None)
RATES = {"host_to_device_memcpy_ce": [[55.3, 55.2]], "device_to_device_memcpy_read_ce": [[None, 50.0], [50.1, None]]}
KINDS = {
    "nccl_xml": (read.read_nccl_xml, (hgx_xml(4), hgx_xml(2, uplink="5.0 GT/s PCIe", ports=2, nvlinks=0))),
    "lspci": (read.read_lspci, (DRAWING, switched_lspci(1))),
    "p2p": (read.read_p2p, (p2p_log(3, lambda a, b: 50.0), nvbandwidth(RATES))),
    "perftest": (read.read_perftest, (perftest(), perftest("ib_read_bw", unit="MiB/sec", cuda=True, both=True))),
    "topo": (read.read_topo, (printed(pcie()), printed(hgx(4)))),
}


@st.composite
def damaged(draw, text: str) -> bytes:
    """Cut, shuffled, thinned, coloured, in another encoding, with bytes changed."""
    lines = text.split("\n")
    for _ in range(draw(st.integers(0, 3))):
        what = draw(st.sampled_from(["cut", "drop", "swap", "column", "twice", "letter", "colour", "word"]))
        k = draw(st.integers(0, max(0, len(lines) - 1)))
        if what == "cut":
            lines = lines[: k + 1]
            lines[-1] = lines[-1][: draw(st.integers(0, len(lines[-1])))]
        elif what == "drop" and len(lines) > 1:
            del lines[k]
        elif what == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[k], lines[other] = lines[other], lines[k]
        elif what == "column":
            lines = [" ".join(word for n, word in enumerate(line.split(" ")) if n != k % 9) for line in lines]
        elif what == "twice":
            lines.insert(k, lines[k])
        elif what == "letter" and lines[k]:
            at = draw(st.integers(0, len(lines[k]) - 1))
            lines[k] = lines[k][:at] + draw(st.characters(codec="utf-8")) + lines[k][at + 1 :]
        elif what == "colour":
            lines[k] = "\x1b[4m" + lines[k] + "\x1b[0m"
        elif what == "word":
            words = lines[k].split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(
                st.sampled_from(["-1", "1e999", "99999999999", "", "nan"])
            )
            lines[k] = " ".join(words)
    ending = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1"]))
    return ending.join(lines).encode(encoding, errors="replace")


def printed_whole(document) -> None:
    assert to_json(document.content) and to_csv(document.records) is not None and to_markdown(document)


@pytest.mark.parametrize(("kind", "which"), [(kind, k) for kind in KINDS for k in range(2)])
def test_damaged_files_are_read_or_refused(kind, which):
    reader, texts = KINDS[kind]

    @EXAMPLES
    @given(damaged(texts[which]))
    def run(content: bytes) -> None:
        try:
            item = reader(content, "file")
        except InputError as error:
            assert "\n" not in str(error) and str(error).startswith("file")
            return
        show(kind, item.found)
        built(kind, item)

    run()


def show(kind: str, found) -> None:
    if kind == "nccl_xml":
        printed_whole(nccl_document(found, nccl_xml_findings.findings(found)))
    elif kind == "lspci":
        printed_whole(lspci_document(found, lspci_findings.findings(found)))
    elif kind in {"p2p", "perftest"}:
        printed_whole({"p2p": p2p_document, "perftest": perftest_document}[kind](found))


def built(kind: str, item) -> None:
    """Whatever was read gives a box that holds, with a tree from elsewhere where it has none."""
    files = {kind: (item,)}
    if kind == "perftest":
        files["topo"] = (read.read_topo(printed(pcie()).encode(), "topo"),)
    try:
        box = build_box(read.BoxEvidence(gpu=GPU, **files), "box")
    except InputError as error:
        assert "how many GPUs" in str(error)
        return
    assert Box(box.profile, "box").gpu_count >= 1
    assert all(one.value > 0 for one in box.taken)
    printed_whole(built_document(box, (item,), None))


@EXAMPLES
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_or_read(content):
    for reader, _ in KINDS.values():
        try:
            reader(content, "file")
        except InputError as error:
            assert "\n" not in str(error)


NAMES = partial(
    st.sampled_from,
    ["GPU0", "<pci", "Device: 0,", "BW peak[Gb/sec]", "#bytes", "Running x.", "+-01.0-[01]", "\\-", "[0000:00]"],
)


@EXAMPLES
@given(st.lists(st.one_of(NAMES(), st.text(max_size=12)), max_size=40))
def test_pieces_of_formats_in_any_order(words):
    for joint in (" ", "\n"):
        for reader, _ in KINDS.values():
            try:
                reader(joint.join(words).encode(errors="replace"), "file")
            except InputError:
                continue
