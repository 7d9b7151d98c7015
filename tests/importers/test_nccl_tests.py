"""Logs of every layout give the same rows; what a log does not tell, or tells wrongly, is one line with its place."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_logs import CLASSIC, LAYOUTS, SIZES, made_log, two_lines

from pdmodel.errors import InputError
from pdmodel.importers.nccl_calibration import Measured, calibrate
from pdmodel.importers.nccl_log import Collective, NcclTestsLog
from pdmodel.importers.nccl_tests import decoded, parse

LOG = made_log()
LINES = LOG.splitlines()
FIRST_ROW = next(k for k, line in enumerate(LINES) if line.split()[:1] == ["8"])


def changed(line: int, text: str) -> str:
    return "\n".join([*LINES[:line], text, *LINES[line + 1 :]])


def only(log: NcclTestsLog):
    (table,) = log.tables
    return table


# ---- layouts ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_every_layout_gives_the_same_rows(layout, ending):
    log = parse(made_log(layout=layout).replace("\n", ending), "x.log")
    table = only(log)
    assert table.collective is Collective.ALL_REDUCE
    assert (table.ranks, table.nodes, len(table.devices)) == (8, 1, 8)
    assert [row.size_bytes for row in table.rows] == list(SIZES)
    assert all(row.count * 4 == row.size_bytes for row in table.rows)
    for row in table.rows:
        for place in row.places:
            assert place.time_s == pytest.approx(two_lines(row.size_bytes), rel=0.03)
        assert (row.in_place is None) == (not layout.in_place)
    assert table.checked == (layout.check is not None and layout.validated)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", Collective.ALL_REDUCE),
        ("all_gather", Collective.ALL_GATHER),
        ("reduce_scatter", Collective.REDUCE_SCATTER),
        ("alltoall", Collective.ALL_TO_ALL),
        ("sendrecv", Collective.SEND_RECV),
        ("broadcast", Collective.BROADCAST),
        ("reduce", Collective.REDUCE),
    ],
)
@pytest.mark.parametrize("devices", [True, False])
def test_the_collective_follows_from_the_columns(operation, expected, devices):
    layout = replace(CLASSIC, devices=devices)
    table = only(parse(made_log(operation, 4, layout=layout, sizes=SIZES[4:]), "x.log"))
    assert table.collective is expected
    assert table.ranks == 4


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8, 16, 64, 96, 144])
def test_ranks_follow_from_the_figures_alone(ranks):
    layout = replace(CLASSIC, header=False)
    sizes = [size for size in SIZES if size >= 4096]
    fast = made_log(ranks=ranks, layout=layout, sizes=sizes, time_s=lambda size: 5e-5 + size / 300e9)
    assert only(parse(fast, "x.log")).ranks == ranks


def test_gathers_and_exchanges_that_nothing_checked_need_a_word():
    text = made_log("all_gather", 4, layout=replace(CLASSIC, validated=False), sizes=SIZES[4:])
    assert set(only(parse(text, "x.log")).collectives) == {Collective.ALL_GATHER, Collective.ALL_TO_ALL}
    assert only(parse(text, "runs/box_alltoall.log")).collective is Collective.ALL_TO_ALL
    assert only(parse(text, "x.log", collective=Collective.ALL_GATHER)).collective is Collective.ALL_GATHER
    named = text.replace("# nThread", "# Collective test starting: alltoall_perf\n# nThread")
    assert only(parse(named, "x.log")).collective is Collective.ALL_TO_ALL


def test_old_gathers_print_the_bandwidth_of_a_part():
    layout = replace(CLASSIC, columns=(), check="error", old_algbw=True, header=False)
    log = parse(made_log("all_gather", 2, layout=layout, sizes=SIZES[10:]), "x.log")
    assert only(log).ranks == 2
    assert any("algbw of 1/2" in note.text for note in log.notes)
    assert only(log).rows[-1].places[0].time_s == pytest.approx(two_lines(SIZES[-1]), rel=0.03)


def test_rows_without_a_heading():
    body = "\n".join(LINES[FIRST_ROW:])
    assert len(only(parse(body, "x.log")).rows) == len(SIZES)


def test_versions_and_date():
    head = "Mon Jan  6 10:11:12 UTC 2025\n# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907\n"
    log = parse(head + LOG, "x.log")
    assert (log.nccl_version, log.tests_version, log.date) == ("2.29.7", "2.18.0", "Mon Jan  6 10:11:12 UTC 2025")
    assert parse("NCCL version 2.27.3+cuda12.9 2025-03-04T05:06\n" + LOG, "x").nccl_version == "2.27.3"
    assert parse(LOG, "x").date is None


def test_several_tables_in_one_file():
    other = made_log("all_gather", 4, sizes=SIZES[4:], seed=3)
    first, second = parse(LOG + other, "x.log").tables
    assert (first.collective, first.ranks, second.collective, second.ranks) == (
        Collective.ALL_REDUCE,
        8,
        Collective.ALL_GATHER,
        4,
    )


def test_ranks_of_two_jobs_are_kept_apart_by_their_prefix():
    one = made_log(layout=replace(CLASSIC, prefix="0: ")).splitlines()
    two = made_log(layout=replace(CLASSIC, prefix="1: "), time_s=lambda size: 3 * two_lines(size)).splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    first, second = parse(mixed, "x.log").tables
    assert len(first.rows) == len(second.rows) == len(SIZES)
    assert second.rows[-1].places[0].time_s == pytest.approx(3 * first.rows[-1].places[0].time_s, rel=0.05)


def test_two_jobs_in_one_file_are_noticed():
    twice = LOG + "\n".join(made_log(time_s=lambda size: 5 * two_lines(size)).splitlines()[FIRST_ROW:])
    assert any("two jobs" in note.text for note in parse(twice, "x.log").notes)


def test_what_is_dropped_is_told():
    zero = changed(FIRST_ROW - 1, LINES[FIRST_ROW - 1] + "\n  0  0 float sum -1 0.02 0.00 0.00 0 0.01 0.00 0.00 0")
    log = parse(zero, "x.log")
    assert any("size 0" in note.text for note in log.notes)
    cut = parse("\n".join(LINES[:-4]) + "\n" + LINES[-4][:40], "x.log")
    assert len(only(cut).rows) == len(SIZES) - 1
    assert any("row dropped" in note.text and note.line == len(LINES) - 3 for note in cut.notes)
    lone = parse(changed(FIRST_ROW + 20, "    ..."), "x.log")
    assert only(lone).left_out == (FIRST_ROW + 21,)
    assert any("mean busbw" in note.text for note in parse("\n".join(LINES[:-12] + LINES[-3:]), "x.log").notes)
    odd = LINES[FIRST_ROW + 24].split()
    odd[6] = "999.99"
    assert any("row dropped" in note.text for note in parse(changed(FIRST_ROW + 24, " ".join(odd)), "x.log").notes)


def test_a_time_that_is_not_there_leaves_the_other_place():
    words = LINES[FIRST_ROW].split()
    words[5:8] = ["N/A"] * 3
    row = only(parse(changed(FIRST_ROW, " ".join(words)), "x.log")).rows[0]
    assert row.out_of_place is None
    assert row.places[0].time_s == pytest.approx(two_lines(8), rel=0.03)


def test_other_encodings():
    assert only(parse(decoded(LOG.encode("utf-16"), "x"), "x")).ranks == 8
    assert only(parse("\ufeff" + LOG, "x")).ranks == 8
    with pytest.raises(InputError, match="no text"):
        decoded(b"\x7fELF\x00\x00", "x")


# ---- mistakes --------------------------------------------------------------------------------------------------------
def row_with(column: int, word: str, *, row: int = 0) -> str:
    words = LINES[FIRST_ROW + row].split()
    words[column] = word
    return changed(FIRST_ROW + row, "  " + " ".join(words))


NO_ROWS = "\n".join([*LINES[:FIRST_ROW], *LINES[-3:]])
MISTAKES = {
    "empty": ("", "line 1: no data rows"),
    "prose": ("no table\nhere\n", "line 3: no data rows to the end of the file"),
    "heading alone": (NO_ROWS, f"line {FIRST_ROW - 1}: no data rows below the heading"),
    "wrong values": (row_with(8, "3"), f"line {FIRST_ROW + 1}: 3 wrong values"),
    "wrong in place": (row_with(12, "1", row=4), f"line {FIRST_ROW + 5}: 1 wrong values"),
    "out of bounds": (LOG.replace("values : 0 OK", "values : 7 FAILED"), "7 out-of-bounds values"),
    "word as time": (row_with(5, "fast"), f"line {FIRST_ROW + 1}: found 'fast' as time"),
    "negative time": (row_with(5, "-1.0"), "found '-1.0' as time"),
    "time of nothing": (row_with(5, "0.00", row=3), f"line {FIRST_ROW + 4}: a time of 0"),
    "every time N/A": (
        "\n".join(
            " ".join([*w[:5], *["N/A"] * 8]) if (w := line.split())[:1] and w[0].isdigit() else line for line in LINES
        ),
        f"line {FIRST_ROW + 1}: no usable row: no time: N/A",
    ),
    "milliseconds": (
        "\n".join(
            " ".join([*w[:5], f"{float(w[5]) / 1e3:.4f}", *w[6:9], f"{float(w[9]) / 1e3:.4f}", *w[10:]])
            if (w := line.split())[:1] and w[0].isdigit()
            else line
            for line in LINES
        ),
        "the times look like milliseconds",
    ),
    "milliseconds in one place": (
        "\n".join(
            " ".join([*w[:5], f"{float(w[5]) / 1e3:.4f}", *w[6:]])
            if (w := line.split())[:1] and w[0].isdigit()
            else line
            for line in LINES
        ),
        "but 1073741824 B in 48.192 us are 2.228e+04 GB/s: the times look like milliseconds",
    ),
    "columns deleted": (
        "\n".join(" ".join(w[:5]) if (w := line.split())[:1] and w[0].isdigit() else line for line in LINES),
        f"line {FIRST_ROW + 1}: no usable row: 5 values where 13 columns belong",
    ),
    "a column deleted throughout": (
        "\n".join(
            " ".join(word for k, word in enumerate(w) if k != 11 + (w[0] == "#")) if len(w) > 12 else line
            for line in LINES
            if (w := line.split()) or True
        ),
        f"line {FIRST_ROW + 1}: rank 7 is listed (line 11), but busbw / algbw",
    ),
    "two columns deleted throughout": (
        "\n".join(
            " ".join(word for k, word in enumerate(w) if k not in {9, 10}) if len(w) > 12 else line
            for line in LINES
            if (w := line.split()) or True
        ),
        "algbw is printed as 0 GB/s, but ",
    ),
    "heading without type": (LOG.replace("type", "kind"), "the heading has no column 'type'"),
    "count and size": (row_with(1, "3"), f"line {FIRST_ROW + 1}: a count of 3 float does not go into 8 B"),
    "two programs": (LOG.replace("# nThread", "# all_gather_perf\n# nThread"), "the log is said to be of all_gather"),
    "rank count": (LOG.replace("Rank  7", "Rank 15"), "rank 15 is listed, but busbw / algbw = 1.75 is that of 8 ranks"),
    "another program": ("[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n", "p2pBandwidthLatencyTest"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_with_its_place(text, message):
    with pytest.raises(InputError) as caught:
        parse(text, "x.log")
    assert message in str(caught.value)
    assert str(caught.value).startswith("x.log: line ")
    assert "\n" not in str(caught.value)


# ---- anything --------------------------------------------------------------------------------------------------------
BASES = [
    LOG,
    made_log("alltoall", 4, layout=LAYOUTS["wide"], sizes=SIZES[4:]),
    made_log("all_gather", 2, layout=LAYOUTS["mpirun"], sizes=(0, *SIZES[4:])),
    made_log("reduce_scatter", 16, layout=LAYOUTS["old error"], sizes=SIZES[6:], nodes=2),
]


@st.composite
def spoilt(draw):
    text = draw(st.sampled_from(BASES))
    for kind in draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)):
        lines = text.split("\n")
        if kind == 0:
            text = text[: draw(st.integers(0, len(text)))]
        elif kind == 1:
            text = "\n".join(draw(st.permutations(lines)))
        elif kind == 2:
            text = text.replace("\n", "\r\n")
        elif kind == 3:
            text = "\n".join(f"\x1b[1;3{k % 8}m{line}\x1b[0m" for k, line in enumerate(lines))
        elif kind == 4:
            column = draw(st.integers(0, 12))
            text = "\n".join(" ".join(w[:column] + w[column + 1 :]) for line in lines if (w := line.split()) or True)
        elif kind == 5:
            at = draw(st.integers(0, max(len(text) - 1, 0)))
            text = text[:at] + draw(st.text(max_size=8)) + text[at + draw(st.integers(0, 5)) :]
        elif kind == 6:
            drop = draw(st.sets(st.integers(0, len(lines)), max_size=12))
            text = "\n".join(line for k, line in enumerate(lines) if k not in drop)
        else:
            other = draw(st.sampled_from(BASES)).split("\n")
            at = draw(st.integers(0, len(lines)))
            text = "\n".join([*lines[:at], *other, *lines[at:]])
    return text


@settings(max_examples=250)
@given(spoilt())
def test_nothing_but_an_input_error_comes_out_of_a_spoilt_log(text):
    try:
        log = parse(text, "x.log")
        calibrate([Measured(log, "0" * 64)], None, name="box")
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert all(row.places and row.size_bytes > 0 for table in log.tables for row in table.rows)


def test_ranks_by_hand_win_and_the_logs_own_are_told():
    log = parse(LOG, "x.log", ranks=4)
    assert (only(log).ranks, only(log).ranks_from) == (4, "given by hand")
    assert any("the log tells of 8 (Rank lines)" in note.text for note in log.notes)
    assert not any("given by hand" in note.text for note in parse(LOG, "x.log", ranks=8).notes)


def test_progress_is_told():
    told = []
    parse(LOG + "\n" * 20_001, "x.log", progress=told.append)
    assert told
    assert "line 10000" in told[0]
