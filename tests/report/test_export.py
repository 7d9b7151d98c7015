import csv
import io
import json
from collections import Counter

import numpy as np
import pytest
from sample_plan import sample_plan

from pdmodel.report import plan_document, plan_to_dict, to_csv, to_json, to_markdown, to_text
from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.export import PLAN_KEYS, plain, plan_records

PLAN = sample_plan()


def test_json_holds_what_the_interface_promises() -> None:
    content = json.loads(to_json(plan_to_dict(PLAN)))
    assert tuple(content) == PLAN_KEYS
    assert content["schema_version"] == 1
    assert content["verdict"] == {"kind": "contended", "text": PLAN.verdict.text}
    assert {"loss_max_s", "kv_to_critical_ratio"} <= content["bound"].keys()
    assert {
        "prefill_s",
        "ttft_s",
        "decode_stall_s",
        "load_stall_s",
        "prefill_slowdown_s",
    } <= content["times"].keys()
    for part in ("policies", "references"):
        for row in content[part]:
            assert {
                "name",
                "ttft_s",
                "prefill_slowdown_s",
                "decode_stall_s",
                "load_stall_s",
                "cost",
            } <= row.keys()
    for row in content["ports"]:
        assert {
            "name",
            "kind",
            "capacity_bytes_per_s",
            "critical_bytes",
            "kv_bytes",
            "utilisation",
            "shadow_price",
        } <= row.keys()
    for row in content["flows"]:
        assert {"name", "kind", "bytes", "release_s", "due_s", "finish_s", "route"} <= row.keys()
    assert {"path", "status", "objective", "gap", "wall_s"} <= content["solver"].keys()
    assert content["assumed"] == list(PLAN.assumed)
    assert content["hazards"] == list(PLAN.hazards)
    assert content["provenance"] == dict(PLAN.provenance)
    assert len(content["schedule"]) == len(PLAN.schedule)


def test_json_numbers_are_those_of_the_plan() -> None:
    content = json.loads(to_json(plan_to_dict(PLAN)))
    assert content["policies"][0]["cost"] == PLAN.policies[0].cost
    assert content["ports"][0]["capacity_bytes_per_s"] == 56e9
    assert content["schedule"][2]["rule"] == "contended: throttled"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (np.float64(2.5), 2.5),
        (np.int64(3), 3),
        (True, True),
        ((1, None), [1, None]),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (PLAN.verdict.kind, "contended"),
    ],
)
def test_plain_values(value: object, expected: object) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


def test_csv_is_one_table_with_every_record() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(plan_records(PLAN)))))
    counted = Counter(row["section"] for row in rows)
    assert counted["policies"] == len(PLAN.policies)
    assert counted["ports"] == len(PLAN.ports)
    assert counted["flows"] == len(PLAN.flows)
    assert counted["schedule"] == len(PLAN.schedule)
    assert counted["verdict"] == counted["bound"] == counted["times"] == counted["solver"] == 1
    assert counted["assumed"] == 2
    assert all(None not in row for row in rows), "every row has the columns of the heading"
    port = next(row for row in rows if row["section"] == "ports")
    assert float(port["utilisation"]) == PLAN.ports[0].utilisation
    assert port["ttft_s"] == ""


def test_csv_quotes_what_needs_it() -> None:
    records = (Record("a", {"text": 'one, "two"\nthree', "flag": True, "list": [1, 2]}), Record("b", {"other": None}))
    rows = list(csv.reader(io.StringIO(to_csv(records))))
    assert rows == [
        ["section", "text", "flag", "list", "other"],
        ["a", 'one, "two"\nthree', "true", "1;2", ""],
        ["b", "", "", "", ""],
    ]


def test_markdown_tables_survive_bars_and_newlines() -> None:
    section = Section(
        "S", text=("words",), table=table(["a|b", ">n"], [["x|y\nz", "1"]]), bullets=("one|two",), note="n"
    )
    lines = to_markdown(Document("T", "", (section,), {})).splitlines()
    assert lines == [
        "# T",
        "",
        "## S",
        "",
        "words",
        "",
        "| a\\|b | n |",
        "| --- | ---: |",
        "| x\\|y z | 1 |",
        "",
        "- one\\|two",
        "",
        "*n*",
    ]


def test_markdown_and_text_show_the_same_sections() -> None:
    document = plan_document(PLAN, full=True, full_schedule=True)
    text, markdown = to_text(document), to_markdown(document)
    for section in document.sections:
        assert f"## {section.title}" in markdown
        assert f"\n{section.title}\n" in text
        for row in section.table.rows if section.table else ():
            for cell in row:
                assert cell.replace("|", "\\|") in markdown
