import pytest

from pdmodel.report.words import group, merged_name, merged_sentences, number, percent, seconds, span, time_unit


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        (["P/gpu0/egress"], "P/gpu0/egress"),
        ([f"P/gpu{k}/egress" for k in range(8)], "P/gpu[0-7]/egress"),
        (["P/gpu0/egress", "P/gpu2/egress"], "P/gpu[0,2]/egress"),
        (["send/r0/0", "send/r0/1"], "send/r0/[0-1]"),
        (["r0 P0", "r1 P1"], "r[0-1] P[0-1]"),
        (["P/gpu9/x", "P/gpu10/x", "P/gpu11/x"], "P/gpu[9-11]/x"),
        (["fabric", "P/nic0/tx"], "fabric (+1 like it)"),
    ],
)
def test_merged_names(names: list[str], merged: str) -> None:
    assert merged_name(names) == merged


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.02871, "0.0287"),
        (12.0, "12"),
        (999.6, "1e+03"),
        (1234.0, "1234"),
        (2.5e7, "2.5e+07"),
        (None, "-"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.0042, "0.42 %"), (0.0999, "10 %"), (1.5, "150 %")])
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_seconds_and_spans() -> None:
    assert seconds(None) == "-"
    assert span(1.0, 1.0, seconds) == "1.000 s"
    assert span(1e-3, 2e-3, seconds) == "1 ms .. 2 ms"


def test_one_unit_for_a_column() -> None:
    assert time_unit([0.5, 2.0]).name == "ms"
    assert time_unit([0.5, 20.0]).name == "s"
    assert time_unit([]).name == "ms"


def test_groups_keep_their_order() -> None:
    assert group([3, 1, 5, 2], lambda value: value % 2) == [[3, 1, 5], [2]]


def test_sentences_about_alike_ports_are_one() -> None:
    far = [f"far: P/nic{nic} and P/gpu{gpu} are apart" for nic, gpu in ((1, 0), (1, 2), (0, 4))]
    # Only what was found: P/nic0 is not said to be far from P/gpu0.
    assert merged_sentences(far) == ["far: P/nic1 and P/gpu[0,2] are apart", "far: P/nic0 and P/gpu4 are apart"]
    figures = ["P/gpu0: 53 GB/s", "P/gpu1: 54 GB/s"]
    assert merged_sentences(figures) == figures
    assert merged_sentences(["a", "b", "a 2", "a 3"]) == ["a", "b", "a 2", "a 3"]
