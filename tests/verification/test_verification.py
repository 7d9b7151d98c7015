"""Every published table is met within its limits; a limit that is broken is seen; malformed tables are refused."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdmodel.errors import InputError
from pdmodel.report.validation import broken_limits
from pdmodel.resources import data_folder, names, resolve
from pdmodel.verification import Comparison, PublishedTable, read_tables, verify
from pdmodel.verification.results import compare, evaluate
from pdmodel.verification.tables import read_manifest, read_rows

TABLES = [table.name for table in read_tables()]


@pytest.mark.parametrize("name", TABLES)
def test_published_table_is_met(name: str) -> None:
    (result,) = verify([name])
    assert broken_limits([result]) == []
    assert result.bands
    assert all(band.limited for band in result.bands), "a group without a limit cannot fail"
    assert all(result.sources)


def test_every_published_file_is_verified() -> None:
    assert {Path(table.file).stem for table in read_tables()} == set(names("published"))
    assert len(TABLES) == len(set(TABLES))


def test_every_limit_is_used() -> None:
    for result in verify():
        used = {id(result.table.limit({**band.keys, "band": band.band})) for band in result.bands}
        unused = [limit.where for limit in result.table.limits if id(limit) not in used]
        assert not unused, (result.table.name, unused)


def test_figures_of_aiconfigurator_keep_their_notice() -> None:
    for path in data_folder("published").glob("*.csv"):
        with path.open(newline="", encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                if "aiconfigurator" in row["source"]:
                    assert "aiconfigurator, NVIDIA, Apache-2.0" in {row["source"][:34], row.get("notice", "")}, (
                        path.name
                    )


def test_totals_of_flows_are_their_sum() -> None:
    (flows,) = read_tables(("pcie_multiflow",))
    for row in read_rows(flows):
        total = int(row["flows"]) * float(row["per_flow_gb_per_s"])
        assert float(row["total_gb_per_s"]) == pytest.approx(total, rel=0.02)


def test_names_of_published_tables() -> None:
    assert resolve("published", "collectives").name == "collectives.csv"
    with pytest.raises(InputError, match=r"unknown published table 'colectives'.*did you mean 'collectives'"):
        resolve("published", "colectives")
    with pytest.raises(InputError, match=r"unknown table 'collectivs'.*did you mean 'collectives'"):
        verify(["collectivs"])


# ---- errors and limits on made-up rows -------------------------------------------------------------------------------
def table(**more: Any) -> PublishedTable:
    raw = {"name": "t", "file": "t.csv", "check": "none", "what": "", "evidence": "fitted", "group_by": ["box"]}
    return PublishedTable.parse({**raw, **more})


def figure(predicted: float, published: float, size: float | None = None, **more: Any) -> Comparison:
    return Comparison("row", predicted, published, {"box": "b"}, "somebody", size, **more)


def test_errors_are_relative_and_rounding_is_none() -> None:
    assert figure(110, 100).error == pytest.approx(0.1)
    assert figure(90, 100).error == pytest.approx(0.1)
    assert figure(5.4, 5.0, rounding=0.5).error == 0
    assert figure(6.0, 5.0, rounding=0.5).error == pytest.approx(0.1)


def test_bands_are_in_order_of_size_and_each_has_its_limit() -> None:
    limited = table(bands_bytes=[1024, 4096], limits=[{"where": {"band": "to 4 KiB"}, "mean": 0.1}, {"worst": 0.05}])
    found = evaluate(limited, [figure(1.04, 1, 9000), figure(1.2, 1, 4096), figure(1.0, 1, 2000), figure(1.06, 1, 1)])
    assert [band.band for band in found.bands] == ["to 1 KiB", "to 4 KiB", "above 4 KiB"]
    assert [band.within for band in found.bands] == [False, True, True]
    assert found.bands[1].mean == pytest.approx(0.1)
    assert not found.within


@pytest.mark.parametrize(("limit", "within"), [({"mean": 0.15}, True), ({"mean": 0.14}, False), ({"worst": 0.2}, True)])
def test_mean_and_worst(limit: dict[str, float], within: bool) -> None:
    result = evaluate(table(limits=[limit]), [figure(1.0999999, 1), figure(0.8000001, 1)])
    assert result.within is within
    assert result.bands[0].worst == pytest.approx(0.2)


def test_a_row_may_have_a_limit_of_its_own() -> None:
    rows = [figure(1.05, 1, limit=0.04), figure(1.0, 1, limit=0.2)]
    assert not evaluate(table(), rows).within
    assert evaluate(table(), [replace(rows[0], limit=0.06), rows[1]]).within


# ---- tables of one's own ---------------------------------------------------------------------------------------------
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "published"
    shutil.copytree(data_folder("published"), copy)
    return copy


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "limits.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
    return folder


def test_a_wrong_figure_breaks_its_limit(folder: Path) -> None:
    path = folder / "llm_facts.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(",131072,", ",131073,", 1), encoding="utf-8")
    (result,) = verify(["llm_facts"], folder)
    assert not result.within
    (sentence,) = broken_limits([result])
    assert sentence.startswith("llm_facts, kv_bytes: mean ")
    assert sentence.endswith("at kv_bytes of llama-3.1-8b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["tables"][0].update(chek="x"), "tables.0.chek: unknown key.*did you mean 'check'"),
        (lambda raw: raw["tables"][0].update(check="nothing"), "asks for 'nothing'; expected one of the checks"),
        (lambda raw: raw["tables"][0].update(file="none.csv"), "none.csv: cannot be read"),
        (lambda raw: raw["tables"][0].update(group_by=["colour"]), "lacks 'colour'"),
        (lambda raw: raw["tables"][0].update(select={"colour": "x"}), "has no column 'colour'"),
        (lambda raw: raw["tables"][0]["limits"].append({"where": {}}), "a limit without mean and worst"),
    ],
)
def test_malformed_tables(folder: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    changed(folder, change)
    with pytest.raises(InputError, match=message):
        verify(["collectives"], folder)


def test_rows_can_be_selected(folder: Path) -> None:
    changed(folder, lambda raw: raw["tables"][0].update(select={"profile": "h100_8nic"}))
    (found,) = [one for one in read_manifest(folder).tables if one.name == "collectives"]
    assert {one.keys["profile"] for one in compare(found, folder)} == {"h100_8nic"}
