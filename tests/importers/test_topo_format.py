"""What the drivers, terminals and people do to a matrix, each with a text of its own."""

from dataclasses import replace

import pytest
from made_topo import LEGEND, NVLINK_LEGEND, Box, hgx, pcie, printed, rocm, without_field

from pdmodel.importers.findings import Kind, Level, Status, TopologyFindings
from pdmodel.importers.topo import parse, read

SMALL = hgx(4)


def right(found: TopologyFindings, box: Box, status: Status = Status.COMPLETE) -> None:
    assert (found.status, found.reason) == (status, "")
    assert found.matrix == box.truth


# 1 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
@pytest.mark.parametrize("box", [hgx(), pcie(), hgx(2, 0), Box(((0, 0, 0, 0),))], ids=["hgx", "pcie", "two", "one"])
def test_tabs_or_what_a_terminal_makes_of_them(box: Box, tabs: bool) -> None:
    found = parse(printed(box, tabs=tabs), "t")
    right(found, box)
    assert found.numa_affinity == {f"GPU{k}": str(place[0]) for k, place in enumerate(box.gpus)}
    assert found.cpu_affinity["GPU0"] == "0-47,96-143"


def test_columns_narrower_than_their_tab_stop() -> None:
    text = "      GPU0  GPU1  CPU Affinity\nGPU0   X    NV12   0-23\nGPU1  NV12   X     24-47\n"
    found = parse(text, "t")
    assert (found.matrix["GPU1"]["GPU0"], found.cpu_affinity) == ("NV12", {"GPU0": "0-23", "GPU1": "24-47"})


# 2 ------------------------------------------------------------------------------------------------------------------


def test_underlined_header() -> None:
    text = printed(SMALL).replace("\tGPU0\t", "\t\x1b[4mGPU0\t", 1).replace("GPU NUMA ID\n", "GPU NUMA ID\x1b[0m\n", 1)
    assert text.count("\x1b") == 2
    right(parse(text, "t"), SMALL)
    right(parse(text.replace("\x1b", ""), "t"), SMALL)  # the escape character was lost on the way


# 3 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
@pytest.mark.parametrize("affinity", ["", "cpu", "cpu numa", "cpu numa gid", "numa"])
def test_columns_after_the_matrix(affinity: str, tabs: bool) -> None:
    found = parse(printed(SMALL, affinity=affinity, tabs=tabs), "t")
    right(found, SMALL)
    assert found.numa_affinity.get("GPU3") == ("1" if "numa" in affinity else None)
    assert found.cpu_affinity.get("GPU3") == ("48-95,144-191" if "cpu" in affinity else None)
    assert found.gpu_numa_id.get("GPU3") is None


def test_heading_numa_and_numa_without_heading() -> None:
    text = printed(SMALL, affinity="cpu numa").replace("NUMA Affinity", "NUMA")
    assert parse(text, "t").numa_affinity["GPU2"] == "1"
    bare = "\tGPU0\tGPU1\nGPU0\t X \tSYS\tNUMA 0\nGPU1\tSYS\t X \tNUMA 3\n"
    assert parse(bare, "t").numa_affinity == {"GPU0": "0", "GPU1": "3"}


# 4 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
def test_empty_cells_before_filled_ones(tabs: bool) -> None:
    text = printed(SMALL).replace("0-47,96-143\t", "\t").replace("48-95,144-191\t", "\t")
    found = parse(text if tabs else "\n".join(line.expandtabs(8) for line in text.split("\n")), "t")
    right(found, SMALL)
    assert set(found.cpu_affinity.values()) == {None}
    assert found.numa_affinity == {"GPU0": "0", "GPU1": "0", "GPU2": "1", "GPU3": "1"}
    assert "no CPU list is given for any GPU" in found.warnings


def test_empty_cells_below_their_headings() -> None:
    text = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      PHB                     0               N/A\n"
        "GPU1    PHB      X      8-15            0               N/A\n"
    )
    found = parse(text, "t")
    assert found.cpu_affinity == {"GPU0": None, "GPU1": "8-15"}
    assert found.numa_affinity == {"GPU0": "0", "GPU1": "0"}


# 5 ------------------------------------------------------------------------------------------------------------------


def glued(first: str, second: str) -> str:
    return (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        f"GPU0     X      SYS     {first:<31} N/A\n"
        f"GPU1    SYS      X      {second:<31} N/A\n"
    )


def test_glued_cells_are_split_as_a_neighbour_says() -> None:
    found = parse(glued("0-45,92-1370", "0-45,92-137     0"), "t")
    assert found.cpu_affinity == {"GPU0": "0-45,92-137", "GPU1": "0-45,92-137"}
    assert found.numa_affinity == {"GPU0": "0", "GPU1": "0"}
    assert any("run into each other" in text and "neighbouring row" in text for text in found.warnings)


def test_glued_cells_are_split_where_ranges_then_match_and_marked_assumed() -> None:
    found = parse(glued("0-45,92-1370", "46-91,138-1831"), "t")
    assert found.numa_affinity == {"GPU0": "0", "GPU1": "1"}
    assert sum("assumed" in text for text in found.warnings) == 2


def test_glued_cells_of_a_terminal() -> None:
    text = printed(SMALL).replace("0-47,96-143\t0\t\t", "0-47,96-1430\t\t").replace("\t1\t\tN/A", "1\t\tN/A")
    for form in (text, "\n".join(line.expandtabs(8) for line in text.split("\n"))):
        found = parse(form, "t")
        right(found, SMALL)
        assert found.numa_affinity == {"GPU0": "0", "GPU1": "0", "GPU2": "1", "GPU3": "1"}
        assert found.cpu_affinity["GPU3"] == "48-95,144-191"


def test_glued_cells_that_cannot_be_split_are_unknown() -> None:
    found = parse(glued("0-45,92-99990", "46-91,138-99991"), "t")
    assert found.numa_affinity == found.cpu_affinity == {"GPU0": None, "GPU1": None}
    assert any("cannot be split" in text for text in found.warnings)


# 6 ------------------------------------------------------------------------------------------------------------------


def test_lists_and_ranges_of_cpus_and_nodes() -> None:
    text = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV18\t0,2,4,6,8,10\t0,3-9,11-17\t\t2\nGPU1\tNV18\t X \t72-143\t0-1\t\t10\n"
    )
    for form in (text, text.expandtabs(8)):
        found = parse(form, "t")
        assert found.cpu_affinity == {"GPU0": "0,2,4,6,8,10", "GPU1": "72-143"}
        assert found.numa_affinity == {"GPU0": "0,3-9,11-17", "GPU1": "0-1"}
        assert found.gpu_numa_id == {"GPU0": "2", "GPU1": "10"}
        assert any("cuts lists of single CPUs at 6" in warning for warning in found.warnings)


# 7 ------------------------------------------------------------------------------------------------------------------


def test_nics_of_old_drivers_have_their_names_as_labels_in_any_order() -> None:
    box = replace(hgx(4), names=("mlx5_0", "mlx5_2", "mlx4_1", "rocep49s0"))
    found = parse(printed(box), "t")
    right(found, box)
    assert found.nics == box.names
    assert found.nearest_nics["GPU1"] == ("mlx5_2",)
    assert found.nic_names["mlx4_1"] == "mlx4_1"


@pytest.mark.parametrize("name", ["mlx5_bond_0", "mlx5_gdr_0", "mlx5_stor_0", "rocep49s0", "rdmap110s0"])
def test_names_in_the_legend(name: str) -> None:
    found = parse(printed(SMALL).replace("NIC0: mlx5_0", f"NIC0: {name}"), "t")
    assert found.nic_names == {"NIC0": name, "NIC1": "mlx5_1", "NIC2": "mlx5_2", "NIC3": "mlx5_3"}
    assert found.nearest_nics["GPU0"] == ("NIC0",)


# 8 ------------------------------------------------------------------------------------------------------------------


def test_soc_is_sys_of_old_drivers() -> None:
    text = printed(pcie(), legend=LEGEND.replace("SYS ", "SOC ").replace("  NODE = between host bridges", "  - = "))
    old = text.replace("SYS", "SOC").replace("NODE", "PHB")
    found = parse(old, "t")
    assert found.status is Status.COMPLETE
    assert found.matrix["GPU0"]["GPU3"] == "SYS"
    assert (found.kind, found.distance["GPU0"]) == (Kind.TOPO_M, "SYS")
    assert any("NVLink would not show" in warning for warning in found.warnings)


def test_topo_mp_never_shows_nvlink() -> None:
    box = hgx(4, 0)
    for text in (printed(box, legend=LEGEND), "$ nvidia-smi topo -mp\n" + printed(box, legend="")):
        found = parse(text, "t")
        right(found, box)
        assert (found.kind, found.nvlink) == (Kind.TOPO_MP, False)
        assert any("whether the GPUs have NVLink is not known" in warning for warning in found.warnings)
    assert parse(printed(box), "t").kind is Kind.TOPO_M


def test_every_code() -> None:
    places = ((0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 2, 3), (1, 2, 3, 4))
    box = Box(places)
    assert set(box.truth["GPU0"].values()) == {"X", "PIX", "PXB", "PHB", "NODE", "SYS"}
    right(parse(printed(box), "t"), box)
    assert parse(printed(box, code=str.lower), "t").matrix == box.truth


# 9 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["OK", "CNS", "GNS", "TNS", "NS", "DR", "U"])
def test_p2p_matrices_are_told_apart(code: str) -> None:
    text = f"$ nvidia-smi topo -p2p rw\n \tGPU0\tGPU1\t\n GPU0\tX\t{code}\t\n GPU1\t{code}\tX\t\n"
    found = parse(text, "t")
    assert (found.status, found.kind) == (Status.REFUSED, Kind.TOPO_P2P)
    assert "topo -p2p" in found.reason
    assert found.p2p[0].capability == "rw"
    assert len(found.p2p[0].refused) == (0 if code == "OK" else 2)
    assert found.gpus == ("GPU0", "GPU1")


def test_p2p_beside_a_matrix_of_distances() -> None:
    box = hgx(2, 0)
    for letter in "rwn":
        p2p = f"nvidia-smi topo -p2p {letter}\n\tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tCNS\tX\n"
        found = parse("$ nvidia-smi topo -m\n" + printed(box) + p2p, "t")
        right(found, box)
        assert found.p2p[0].refused == (("GPU0", "GPU1", "CNS"), ("GPU1", "GPU0", "CNS"))
        assert found.p2p[0].capability == letter


# 10 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
@pytest.mark.parametrize(
    "around",
    [
        "user@box:~$ nvidia-smi topo -m\n{}user@box:~$ exit\n",
        "GPU Topology:\n{}\nulimit soft: 1048576\n",
        "====\n# Date: 2026\n====\n{}====\n",
        "The box:\n\n```\n{}```\n",
        "- **topology:** \tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\n\n```\n{}```\n",
        "GPU 0: NVIDIA (UUID: GPU-0)\n\t Link 0: 25 GB/s\n{}",
    ],
)
def test_text_around(around: str, tabs: bool) -> None:
    right(parse(around.format(printed(SMALL, tabs=tabs)), "t"), SMALL)


@pytest.mark.parametrize("prefix", ["#", "# ", "> ", "// ", "2026-01-02 10:00:00 | ", "[rank0]: ", "| "])
@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
def test_every_line_behind_a_prefix(prefix: str, tabs: bool) -> None:
    text = "".join(f"{prefix}{line}\n" for line in printed(SMALL, tabs=tabs).rstrip("\n").split("\n"))
    found = parse(text, "t")
    right(found, SMALL)
    assert found.nic_names["NIC3"] == "mlx5_3"


def test_markdown_table() -> None:
    rows = [line.split("\t") for line in printed(SMALL, affinity="cpu numa", legend="").split("\n\n")[0].split("\n")]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    found = parse("\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]), "t")
    right(found, SMALL)
    assert found.numa_affinity["GPU3"] == "1"


def test_two_matrices_of_one_box() -> None:
    plain = printed(SMALL)
    assert "a second matrix (line 27) says the same" in parse(plain + plain, "t").warnings
    found = parse("$ nvidia-smi topo -m\n" + plain + "$ nvidia-smi topo -mp\n" + printed(hgx(4, 0)), "t")
    right(found, SMALL)
    assert found.pcie_matrix["GPU0"] == {"GPU1": "NODE", "GPU2": "SYS", "GPU3": "SYS"}
    assert any("gives the PCIe distances of pairs on NVLink" in warning for warning in found.warnings)


def test_two_matrices_of_two_boxes() -> None:
    found = parse(printed(SMALL) + printed(pcie()), "t")
    right(found, SMALL)
    assert any("of other devices (GPU0 to GPU3, NIC0 and NIC1) and is left out" in text for text in found.warnings)
    other = parse(printed(hgx(4, 12)) + printed(SMALL), "t")
    assert any("contradicts the first one" in text and "NV18 there, NV12 here" in text for text in other.warnings)
    cut = "\n".join(printed(SMALL).split("\n")[:4]) + "\n"
    right(parse(cut + printed(SMALL), "t"), SMALL)  # the one that is whole is taken


# 11 -----------------------------------------------------------------------------------------------------------------


def test_missing_rows_and_legends_are_gaps_by_name() -> None:
    lines = printed(SMALL).split("\n")
    found = parse("\n".join(lines[:7]) + "\n", "t")
    assert (found.status, found.rows_whole, found.rows) == (Status.PARTIAL, 6, 8)
    assert found.gaps == ("no row for NIC2 and NIC3",)
    assert "no legend names NIC0 to NIC3" in found.warnings
    assert found.matrix["NIC2"]["GPU3"] == "NODE"  # from the mirror image
    assert found.matrix["NIC2"]["NIC3"] is None
    assert found.nearest_nics["GPU3"] == ("NIC3",)


def test_a_row_cut_in_a_cell() -> None:
    text = printed(SMALL)
    cut = text[: text.index("GPU3\t", text.index("GPU2\t", 40)) + len("GPU3\tNV18\tNV1")]
    found = parse(cut, "t")
    assert found.status is Status.PARTIAL
    assert found.matrix["GPU3"]["GPU1"] == "NV18"  # NV1 is not believed
    assert found.matrix["GPU3"]["NIC0"] is None
    assert (found.nearest_nics["GPU3"], found.distance["GPU3"]) == ((), None)
    assert "nearest NICs of GPU3 are not known" in found.warnings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GPU0\t X \tNV18\nGPU1\tNV18\t X \n", "without a header"),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "without rows"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tSYS\n...\nGPU2\tSYS\tSYS\t X \n", "left out (line 3)"),
        ("\tGPU0\tGPU1\t...\tGPU7\nGPU0\t X \tPIX\t...\tSYS\n", "left out in the header (line 1)"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tSYS\n(GPU1 omitted)\nGPU2\tSYS\tSYS\t X \n", "left out (line 3)"),
        ("\tGPU0\tGPU1\tGPU2\nGPU0\t X \t...\tSYS\nGPU2\tSYS\t...\t X \n", "left out (line 2)"),
        ("\tGPU0\tGPU1\nGPU0\tPIX\t X \n", "no row of the matrix is whole"),
        ("", "no matrix"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "no matrix"),
    ],
)
def test_refused_with_the_reason(text: str, words: str) -> None:
    found = parse(text, "t")
    assert found.status is Status.REFUSED
    assert words in found.reason
    assert "\n" not in found.reason


def test_words_behind_the_last_row_may_say_that_the_rest_was_cut() -> None:
    text = printed(SMALL)
    found = parse(text[: text.index("NIC2\t", 80)] + "(output truncated)\n", "t")
    assert (found.status, found.gaps) == (Status.PARTIAL, ("no row for NIC2 and NIC3",))


def test_dots_after_a_whole_matrix_leave_nothing_out() -> None:
    right(parse(printed(SMALL) + "...\n", "t"), SMALL)


# 12 -----------------------------------------------------------------------------------------------------------------


def test_asymmetric_cells_are_named() -> None:
    lines = printed(pcie()).split("\n")
    lines[4] = lines[4].replace("SYS", "NODE", 1)
    found = parse("\n".join(lines), "t")
    assert "not symmetric: GPU0-GPU3 is SYS in one half and NODE in the other" in found.warnings


def test_numbers_of_nvlinks_may_differ() -> None:
    text = printed(hgx(4)).replace("NV18\tNV18\tNV18", "NV1\tNV18\tNV18", 1).replace("NV18\t X ", "NV1\t X ", 1)
    found = parse(text, "t")
    assert (found.nvlink, found.matrix["GPU1"]["GPU0"]) == (True, "NV1")
    assert "pairs have different numbers of NVLinks: NV1, NV18" in found.warnings


@pytest.mark.parametrize("off", [0, 2])
def test_a_gpu_that_lost_its_nvlink(off: int) -> None:
    box = replace(hgx(4), off_nvlink=frozenset({off}))
    found = parse(printed(box), "t")
    right(found, box)
    assert found.nvlink == "partial"
    assert f"GPU{off} is off NVLink: traffic with the other GPUs is on PCIe" in found.warnings


def test_letters_that_fit_no_tree() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\tSYS\nGPU1\tPIX\t X \tPIX\nGPU2\tSYS\tPIX\t X \n"
    assert any(warning.startswith("fits no tree: GPU0-GPU1 is PIX") for warning in parse(text, "t").warnings)


# 13 -----------------------------------------------------------------------------------------------------------------


def test_two_nics_that_may_be_one_port() -> None:
    place = (0, 0, 0, 0)
    box = Box((place, (1, 1, 1, 1)), (place, place, (1, 1, 1, 1)))
    found = parse(printed(box), "t")
    assert found.nearest_nics == {"GPU0": ("NIC0", "NIC1"), "GPU1": ("NIC2",)}
    assert found.twins == (("NIC0", "NIC1"),)
    assert any("NIC0 = NIC1" in warning and "must not be added" in warning for warning in found.warnings)


def test_gpus_without_a_near_nic_and_gpus_that_share_one() -> None:
    box = Box(((0, 0, 0, 0), (0, 1, 1, 1), (0, 0, 0, 0)), ((0, 0, 0, 0),), 18)
    found = parse(printed(box), "t")
    assert found.distance == {"GPU0": "PIX", "GPU1": "NODE", "GPU2": "PIX"}
    assert "no NIC near GPU1: the nearest are at NODE, through the CPU" in found.warnings
    assert "GPUs that share their nearest NICs: GPU0 and GPU2 (NIC0)" in found.warnings
    switch = found.at(Level.SWITCH)
    assert [(group.gpus, group.nics, group.assumed) for group in switch] == [(("GPU0", "GPU2"), ("NIC0",), True)]


# 14 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", ["", " ", "     ", "  \t", "\t\t"])
@pytest.mark.parametrize("tabs", [True, False], ids=["tabs", "blanks"])
def test_whatever_leads_the_header(lead: str, tabs: bool) -> None:
    found = parse(printed(SMALL, lead=lead, tabs=tabs), "t")
    right(found, SMALL)
    assert found.numa_affinity["GPU3"] == "1"


# rows that were damaged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", range(1, 9))
@pytest.mark.parametrize("field_number", range(1, 9))
def test_a_cell_that_is_missing_moves_no_others(line: int, field_number: int) -> None:
    text = without_field(printed(SMALL), field_number, line, line + 1)
    found = parse(text, "t")
    assert found.status is Status.PARTIAL
    assert all(
        code in {None, SMALL.truth[row][column]} for row in found.matrix for column, code in found.matrix[row].items()
    )
    assert any(SMALL.labels[line - 1] in gap for gap in found.gaps)


# AMD ----------------------------------------------------------------------------------------------------------------


def test_rocm_smi() -> None:
    found = parse(rocm(), "t")
    assert (found.status, found.kind, found.fabric, found.nvlink) == (Status.COMPLETE, Kind.ROCM_SMI, "xgmi", False)
    assert found.weights["GPU0"] == {"GPU0": 0, "GPU1": 15, "GPU2": 15, "GPU3": 15}
    assert found.matrix["GPU3"] == {"GPU0": "XGMI", "GPU1": "XGMI", "GPU2": "XGMI", "GPU3": "X"}
    assert found.numa_affinity["GPU2"] == "2"
    assert "hops are not used: rocm-smi is known to print them wrong" in found.warnings
    assert (found.nics, found.nearest_nics) == (None, {})


def test_rocm_smi_without_link_types_takes_them_from_weights_and_says_so() -> None:
    for weight, link in ((15, "XGMI"), (40, "PCIE"), (52, "PCIE"), (72, "PCIE")):
        text = rocm(weight)
        found = parse(text[: text.index("Link Type") - 20], "t")
        assert (found.status, found.matrix["GPU0"]["GPU1"]) == (Status.PARTIAL, link)
        assert "the block of link types is missing, taken from the weights" in found.gaps


def test_rocm_smi_weights_tell_numa_nodes_where_none_are_printed() -> None:
    text = rocm(52).replace("GPU0   0            52", "GPU0   0            40").replace("GPU1   52 ", "GPU1   40 ")
    found = parse(text[: text.index(" Numa Nodes")], "t")
    assert [group.gpus for group in found.groups] == [("GPU0", "GPU1")]
    assert found.groups[0].assumed


def test_rocm_smi_with_hops_alone_is_refused() -> None:
    text = rocm()
    start, end = text.index(" Hops"), text.index(" Link Type")
    found = parse(text[start:end], "t")
    assert (found.status, found.kind) == (Status.REFUSED, Kind.ROCM_SMI)
    assert "hops are known to be wrong" in found.reason


# bytes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding: str, end: str) -> None:
    text = ("Müller's box\n" + printed(SMALL)).replace("\n", end)
    right(read(text.encode(encoding), "t"), SMALL)


@pytest.mark.parametrize(
    "content", [b"\x7fELF\x00\x01\x00\x00\x02", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", b"", b"\xff\xfe"]
)
def test_bytes_that_are_no_text(content: bytes) -> None:
    assert read(content, "t").status is Status.REFUSED


def test_blanks_of_other_widths() -> None:
    text = printed(SMALL, tabs=False).replace("    ", "\u00a0\u00a0  ")
    right(parse(text, "t"), SMALL)
    assert NVLINK_LEGEND in printed(SMALL)
