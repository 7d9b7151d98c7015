"""What importing pdmodel costs, and that what it imports is declared."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("cvxpy", "highspy", "scipy", "pandas", "matplotlib")
# The import name of a distribution, where it is not its own.
IMPORT_NAME = {"import-linter": "importlinter", "pytest-benchmark": "pytest_benchmark"}
# What a distribution brings with it at a version of its own choice, and speaks of in its interface.
PART_OF = {"pydantic_core": "pydantic"}


def loaded_by(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after ``statement``."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["pdmodel", "pdmodel.cli.main"])
def test_importing_stays_light(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


def test_kinds_of_files_are_built_when_first_used() -> None:
    """Building all of them takes a tenth of a second."""
    code = (
        "import pdmodel.planner, pdmodel.scenario as s\n"
        "print(s.Scenario.__pydantic_complete__, s.RequestSpec.parse({'name': 'r', 'input_tokens': 1}).input_tokens)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1"]


def test_library_needs_no_terminal_packages() -> None:
    assert loaded_by("import pdmodel").isdisjoint({"typer", "rich"})


def third_party_imports(folder: Path) -> dict[str, Path]:
    """The foreign top-level packages that the files of ``folder`` import, each with one file that does."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            tops = [name.partition(".")[0] for name in names]
            found.update((PART_OF.get(top, top), path) for top in tops)
    return {name: path for name, path in found.items() if name not in sys.stdlib_module_names and name != "pdmodel"}


def declared(*requirements: str) -> set[str]:
    names = {re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0] for line in requirements}
    return {IMPORT_NAME.get(name, name.replace("-", "_")) for name in names}


def test_dependencies_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = declared(*project["dependencies"])
    used = third_party_imports(ROOT / "pdmodel")
    assert used.keys() <= needed, {name: str(used[name]) for name in used.keys() - needed}
    local = {path.stem for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")}
    in_tests = third_party_imports(ROOT / "tests").keys() - local
    assert in_tests <= needed | declared(*project["optional-dependencies"]["dev"])


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pins)
    wanted = declared(*project["dependencies"], *project["optional-dependencies"]["dev"])
    assert wanted <= declared(*pins)
