"""Rules of the house that no linter knows."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "pdmodel").rglob("*.py"))
LONGEST_MODULE, LONGEST_FUNCTION = 500, 60
# Absolute paths that exist on one machine only. Split, so that this file does not hold what it looks for.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "ho" + "me", "o" + "pt")) + r")/")


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines < LONGEST_MODULE, f"{path.relative_to(ROOT)} has {lines} lines"
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            assert length < LONGEST_FUNCTION, f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_they_are(path: Path) -> None:
    tree = parsed(path)
    bare = [f"{name} (line {line})" for name, line in bound_names(tree) if name.lower() in {"model", "models"}]
    assert not bare, f"{path.relative_to(ROOT)}: say llm, costs or program instead of {bare}"
    tunnels = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.kwarg is not None
    ]
    assert not tunnels, f"{path.relative_to(ROOT)}: **kwargs in {tunnels}"
    asserts = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert not asserts, f"{path.relative_to(ROOT)}: assert in lines {asserts}: raise an error that a user can read"


def text_files() -> list[Path]:
    """The files under version control; outside a checkout, those of the folders that would be."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    folders = ("pdmodel", "tests", "docs", "benchmarks", "hardware_profiles", "scenarios")
    return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".json"}]


def test_no_paths_of_one_machine() -> None:
    found = []
    for path in text_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert not found
