import re

from hypothesis import given
from hypothesis import strategies as st

from pdmodel.report.document import table
from pdmodel.report.grid import INDENT, layout

WORDS = st.text(st.sampled_from("abcXYZ019/_-., "), max_size=30)


@given(
    st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=5),
    st.integers(60, 120),
)
def test_wrapping_loses_no_letter(cells: list[tuple[str, str, str]], width: int) -> None:
    content = table(["name", ">number", "~words"], cells)
    head, body = layout(content, width)
    assert sorted(re.sub(r"\s", "", "".join(body))) == sorted(re.sub(r"\s", "", "".join("".join(row) for row in cells)))
    assert max(len(line) for line in (*head, *body)) <= width


def test_numbers_stay_whole_while_sentences_give_way() -> None:
    content = table(["name", ">rate [GB/s]", "~why"], [["P/gpu0/egress", "53.9", "a rather long reason " * 4]])
    head, body = layout(content, 60)
    assert body[0].startswith("P/gpu0/egress    53.9  a rather long reason")
    assert all(line.startswith(" " * 23) for line in body[1:])
    assert head == ["                 rate", "name           [GB/s]  why"]


def test_headings_stand_on_the_last_line() -> None:
    head, _ = layout(table(["port", ">a heading that is long"], [["x" * 50, "1"]]), 60)
    assert head[-1].startswith("port")
    assert len(head) > 1


def test_indent_is_blank() -> None:
    assert not INDENT.strip()


def test_headings_take_as_few_lines_as_can_be() -> None:
    content = table(["a", ">first of three [ms]", ">second of three [ms]"], [["x" * 20, "1", "2"]])
    assert [len(layout(content, width)[0]) for width in (70, 50, 40)] == [1, 2, 3]


def test_no_rows() -> None:
    assert layout(table(["a", ">b"], []), 40) == (["a  b"], [])
