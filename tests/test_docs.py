"""What the pages say about the code is true: links lead somewhere, names exist, exit codes are the errors' own."""

import re
from pathlib import Path

import pytest

from pdmodel import errors

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
