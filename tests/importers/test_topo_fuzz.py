"""Captures that were damaged: never a traceback, never a cell that is wrong, never complete with something missing."""

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_topo import Box, hgx, pcie, printed, rocm, without_field

from pdmodel.importers.findings import Matrix, Status, TopologyFindings
from pdmodel.importers.topo import parse, read
from pdmodel.report.export import to_csv, to_json, to_markdown
from pdmodel.report.topology import findings_document, findings_table

EXAMPLES = settings(max_examples=150, deadline=None)
places = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 1))


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Trees of any shape: equal numbers on the left share what they stand for."""

    def tree(place: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        node, bridge, port, switch = place
        return (
            node,
            10 * node + bridge,
            100 * node + 10 * bridge + port,
            1000 * node + 100 * bridge + 10 * port + switch,
        )

    gpus = draw(st.lists(places.map(tree), min_size=1, max_size=8))
    nics = draw(st.lists(places.map(tree), max_size=5))
    return Box(
        tuple(gpus),
        tuple(nics),
        draw(st.sampled_from([0, 0, 4, 18])),
        draw(st.frozensets(st.integers(0, 7), max_size=2)),
        tuple(f"mlx5_{len(nics) - k}" for k in range(len(nics))) if draw(st.booleans()) else (),
    )


@st.composite
def captures(draw: st.DrawFn) -> tuple[Box, str]:
    box = draw(boxes())
    affinity = draw(st.sampled_from(["", "cpu", "cpu numa", "cpu numa gid"]))
    return box, printed(box, affinity=affinity, tabs=draw(st.booleans()))


def known_cells_are_right(matrix: Matrix, box: Box) -> bool:
    return all(
        code is None or box.truth[row].get(column) == code
        for row, cells in matrix.items()
        if row in box.truth
        for column, code in cells.items()
        if column in box.truth
    )


def honest(found: TopologyFindings, box: Box) -> None:
    """Refused with a reason, partial with a gap, or complete and right."""
    if found.status is Status.REFUSED:
        assert found.reason
    elif found.status is Status.PARTIAL:
        assert found.gaps
    else:
        assert found.matrix == box.truth
    assert known_cells_are_right(found.matrix, box)
    for gpu, nics in found.nearest_nics.items():
        known = {nic: found.matrix[gpu][nic] for nic in found.nics or ()}
        assert bool(nics) == (None not in known.values())
        assert all(known[nic] == found.distance[gpu] for nic in nics)


def writes(found: TopologyFindings) -> None:
    for document in (findings_document(found), findings_table([found, found])):
        assert to_json(document.content)
        assert to_csv(document.records)
        assert to_markdown(document)


@EXAMPLES
@given(captures())
def test_whole_captures_are_right(capture: tuple[Box, str]) -> None:
    box, text = capture
    found = parse(text, "t")
    assert found.status is Status.COMPLETE
    assert found.matrix == box.truth
    assert (len(found.gpus), len(found.nics or ())) == (len(box.gpus), len(box.nics))
    pairs = [box.truth[one][other] for one in found.gpus for other in found.gpus if one < other]
    linked = [code.startswith("NV") for code in pairs]
    assert found.nvlink == ((all(linked) or "partial") if any(linked) else False)
    for group in found.groups:
        assert group.assumed
        assert group.gpus or len(group.nics) > 1
    writes(found)


@EXAMPLES
@given(captures(), st.floats(0, 1))
def test_truncated_anywhere(capture: tuple[Box, str], share: float) -> None:
    box, text = capture
    found = parse(text[: int(share * len(text))], "t")
    honest(found, box)
    writes(found)


@EXAMPLES
@given(captures(), st.data())
def test_lines_in_any_order(capture: tuple[Box, str], data: st.DataObject) -> None:
    box, text = capture
    lines = text.split("\n")
    if data.draw(st.booleans()):
        lines = [lines[0], *data.draw(st.permutations(lines[1:]))]
        assert parse("\n".join(lines) + "\n", "t").matrix == box.truth
    else:
        honest(parse("\n".join(data.draw(st.permutations(lines))) + "\n", "t"), box)


@EXAMPLES
@given(captures(), st.data())
def test_lines_left_out_or_repeated(capture: tuple[Box, str], data: st.DataObject) -> None:
    box, text = capture
    lines = text.split("\n")
    chosen = sorted(data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=2 * len(lines))))
    honest(parse("\n".join(lines[k] for k in chosen) + "\n", "t"), box)


@EXAMPLES
@given(boxes(), st.integers(0, 18), st.booleans(), st.data())
def test_fields_left_out(box: Box, field_number: int, everywhere: bool, data: st.DataObject) -> None:
    text = printed(box)
    lines = text.count("\n")
    first = 0 if everywhere else data.draw(st.integers(0, lines - 1))
    found = parse(without_field(text, field_number, first, lines if everywhere else first + 1), "t")
    assert (found.status is Status.PARTIAL) <= bool(found.gaps)
    if found.status is Status.COMPLETE:
        # A GPU's row may have lost a cell behind the matrix, the header any column that a row does not have either.
        assert all(box.truth[row][column] == code for row in found.matrix for column, code in found.matrix[row].items())
    writes(found)


@EXAMPLES
@given(boxes(), st.integers(0, 120), st.integers(1, 20))
def test_columns_of_letters_left_out(box: Box, start: int, width: int) -> None:
    text = "\n".join(line[:start] + line[start + width :] for line in printed(box, tabs=False).split("\n"))
    found = parse(text, "t")
    assert (found.status is Status.PARTIAL) <= bool(found.gaps)
    if found.status is Status.COMPLETE and found.gpus == box.labels[: len(box.gpus)]:
        assert known_cells_are_right(found.matrix, box)
    writes(found)


@EXAMPLES
@given(captures(), st.sampled_from(["utf-8", "utf-16", "utf-16-be", "cp1252"]), st.sampled_from(["\r\n", "\r", "\n"]))
def test_encodings_line_ends_and_colour(capture: tuple[Box, str], encoding: str, end: str) -> None:
    box, text = capture
    coloured = (
        text.replace("GPU0", "\x1b[4mGPU0", 1).replace("\n", "\x1b[0m\n", 1).replace("PIX", "\x1b[1;32mPIX\x1b[m")
    )
    found = read(coloured.replace("\n", end).encode(encoding), "t")
    assert found.status is Status.COMPLETE
    assert found.matrix == box.truth


@EXAMPLES
@given(captures(), st.sampled_from(["utf-8", "utf-16", "cp1252"]), st.data())
def test_bytes_that_were_damaged(capture: tuple[Box, str], encoding: str, data: st.DataObject) -> None:
    content = bytearray(capture[1].encode(encoding))
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[position] = data.draw(st.integers(0, 255))
    writes(read(bytes(content), "t"))


@EXAMPLES
@given(st.one_of(st.binary(max_size=400), st.text(alphabet="GPUNIC01 \t\n|X.SYSVPHB", max_size=400).map(str.encode)))
def test_anything(content: bytes) -> None:
    writes(read(content, "t"))


@EXAMPLES
@given(st.sampled_from([15, 40, 52]), st.integers(1, 8), st.floats(0, 1), st.booleans(), st.data())
def test_rocm_smi(weight: int, gpus: int, share: float, shuffled: bool, data: st.DataObject) -> None:
    text = rocm(weight, gpus)
    link = "XGMI" if weight == 15 else "PCIE"
    if shuffled:
        found = parse("\n".join(data.draw(st.permutations(text.split("\n")))) + "\n", "t")
    else:
        found = parse(text[: int(share * len(text))], "t")
    assert all(
        code in {None, "X" if row == column else link}
        for row, cells in found.matrix.items()
        for column, code in cells.items()
    )
    assert all(value in {None, 0, weight} for cells in found.weights.values() for value in cells.values())
    assert (found.status is Status.PARTIAL) <= bool(found.gaps)
    writes(found)


@pytest.mark.parametrize("text", [printed(hgx()), printed(pcie(), tabs=False), rocm()], ids=["hgx", "pcie", "rocm"])
def test_cut_at_every_letter(text: str) -> None:
    whole = parse(text, "t")
    for end in range(len(text)):
        found = parse(text[:end], "t")
        for row, cells in found.matrix.items():
            assert all(code in {None, whole.matrix[row][column]} for column, code in cells.items())
        for name in ("cpu_affinity", "numa_affinity"):
            for gpu, value in getattr(found, name).items():
                assert value in {None, getattr(whole, name)[gpu]} or "may be cut" in str(found.warnings)
    assert {item.name for item in fields(whole)} > {"status", "reason", "gaps"}
