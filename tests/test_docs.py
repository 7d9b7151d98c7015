"""What the pages say about the code is true: links lead somewhere, names exist, exit codes are the errors' own."""

import doctest
import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from pdmodel import errors
from pdmodel.allocation.limits import MemoryRow
from pdmodel.allocation.terms import CriticalDelay, Term
from pdmodel.cli.main import app
from pdmodel.engines.spec import EngineSpec
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.planner import plan
from pdmodel.replay.policies import NAMED
from pdmodel.resolve import resolve_scenario
from pdmodel.scenario import Scenario

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAME_IN_FILE = re.compile(r"`(\w+)`(?: and `(\w+)`)? in \[[^\]]*\]\(([^)]+\.py)\)")
SOURCE = {path: path.read_text(encoding="utf-8") for path in (ROOT / "pdmodel").rglob("*.py")}


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_where_the_page_says(page: Path) -> None:
    for *names, link in NAME_IN_FILE.findall(page.read_text(encoding="utf-8")):
        text = SOURCE[(page.parent / link).resolve()]
        for name in filter(None, names):
            assert re.search(rf"^\s*(?:def|class) {name}\b|^\s*{name}\b.*[:=]", text, re.MULTILINE), (
                f"{link} has no {name}"
            )


def test_nomenclature_uses_the_names_of_the_code() -> None:
    words = set(re.findall(r"\w+", "\n".join(SOURCE.values())))
    table = (ROOT / "docs" / "nomenclature.md").read_text(encoding="utf-8")
    named = [
        name for row in table.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row.split("|")[2])
    ]
    assert len(named) > 30
    assert not set(named) - words


def test_exit_codes_are_documented() -> None:
    table = (ROOT / "docs" / "exit_codes.md").read_text(encoding="utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d) \|", table, re.MULTILINE)}
    classes = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PdmodelError)
    ]
    assert listed == {0, 2} | {kind.exit_code for kind in classes}
    for kind in classes:
        assert f"`{kind.__name__}`" in table


@pytest.mark.parametrize(("spec", "depth"), [(Scenario, 2), (HardwareProfile, 1), (EngineSpec, 1)])
def test_every_key_of_a_file_is_documented(spec: type[BaseModel], depth: int) -> None:
    schema = spec.model_json_schema()
    keys = set(schema["properties"])
    if depth > 1:
        parts = [name for name in schema["$defs"] if name.endswith("Spec")]
        keys |= {key for name in parts for key in schema["$defs"][name].get("properties", {})}
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "files.md").read_text(encoding="utf-8")))
    assert not keys - documented


def test_examples_of_files_are_legal(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)]
    boxes = [example for example in examples if "tree" in example]
    scenarios = [example for example in examples if "requests" in example]
    assert len(boxes) == len(scenarios) == 1
    assert len(examples) == 2
    file = tmp_path / "my_box.json"
    file.write_text(json.dumps(boxes[0]), encoding="utf-8")
    resolve_scenario(Scenario.parse(scenarios[0]))
    for side in ("prefill", "decode"):
        scenarios[0][side]["hardware"] = "my_box.json"
    found = plan(resolve_scenario(Scenario.parse(scenarios[0]), str(tmp_path / "my_turn.json")))
    assert found.data.volume_bytes.sum() > 0
    assert any("compute constants of my_box" in sentence for sentence in found.assumed)


def test_python_page_runs() -> None:
    failed, attempted = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False)
    assert attempted > 30
    assert not failed


def test_every_policy_is_documented() -> None:
    page = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    assert not {name for name in [*NAMED, "cap", "plan"] if f"`{name}`" not in page}


def test_every_term_of_the_programs_is_documented() -> None:
    page = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    terms = {term.__name__ for term in Term.__subclasses__() if term.equation}
    assert {CriticalDelay.__name__, MemoryRow.__name__} < terms
    assert not {name for name in terms if f"`{name}`" not in page}


COMMANDS = [
    f"{group.name} {command.name}"
    for group in app.registered_groups
    for command in group.typer_instance.registered_commands
] + [command.name for command in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_page_names_every_command(command: str) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (`(\w+)[^|]*)\|", text.partition("| command | does |")[2], re.MULTILINE))
    rows = {row for row, name in table.items() if name == command.split(maxsplit=1)[0]}
    assert any(re.search(rf"\b{command.rsplit(maxsplit=1)[-1]}`", row) for row in rows), command
