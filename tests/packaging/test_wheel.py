"""A built wheel, installed where nothing else of pdmodel is, and an editable install see the shipped files."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SHIPPED = {
    "pdmodel/hardware_profiles": ROOT / "hardware_profiles",
    "pdmodel/scenarios": ROOT / "scenarios",
    "pdmodel/llm/configs": ROOT / "pdmodel" / "llm" / "configs",
    "pdmodel/engines/specs": ROOT / "pdmodel" / "engines" / "specs",
    "pdmodel/engines/backends": ROOT / "pdmodel" / "engines" / "backends",
    "pdmodel/engines/stores": ROOT / "pdmodel" / "engines" / "stores",
}

PLANNED = "rtx_pro_6000_qwen3_32b_tp4"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an empty environment with the wheel in it.

    The dependencies come from the environment of the tests by a path entry: that reads no ``.pth`` of theirs, so an
    editable pdmodel there stays unseen.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    binaries = folder / ("Scripts" if sys.platform == "win32" else "bin")
    python = binaries / "python"
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python),
        *("install", "--quiet", "--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies_of_the_tests.pth").write_text("\n".join(sorted(dependencies)), encoding="utf-8")
    found = Path(run(python, "-c", "import pdmodel; print(pdmodel.__file__)", cwd=folder).strip())
    assert found.is_relative_to(site), f"pdmodel came from {found}, not from the wheel"
    return binaries


def test_wheel_holds_the_data_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "pdmodel/py.typed" in names
    for inside, folder in SHIPPED.items():
        wanted = {f"{inside}/{path.name}" for path in folder.glob("*.json")}
        assert wanted, f"{folder} holds no JSON file"
        assert wanted <= names, sorted(wanted - names)
    published = ROOT / "tests" / "published"
    tables = {
        path.relative_to(published).as_posix() for path in published.rglob("*") if path.suffix in {".csv", ".json"}
    }
    assert {"limits.json", "collectives.csv"} <= tables
    assert {f"pdmodel/published/{name}" for name in tables} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert any(name.endswith(".dist-info/licenses/NOTICE") for name in names)
    assert not [name for name in names if name.startswith("tests/")]


KINDS = ("hardware_profiles", "scenarios", "llms", "engines", "backends", "stores")
LIST_FILES = f"""
import json
from pdmodel.resources import names
print(json.dumps({{kind: sorted(names(kind)) for kind in {KINDS}}}))
"""


def expected_names() -> dict[str, list[str]]:
    folders = dict(zip(KINDS, SHIPPED.values(), strict=True))
    return {kind: sorted(path.stem for path in folder.glob("*.json")) for kind, folder in folders.items()}


def test_wheel_finds_the_data_files(installed: Path, tmp_path: Path) -> None:
    assert json.loads(run(installed / "python", "-c", LIST_FILES, cwd=tmp_path)) == expected_names()


def test_editable_install_finds_the_data_files(tmp_path: Path) -> None:
    assert json.loads(run(sys.executable, "-c", LIST_FILES, cwd=tmp_path)) == expected_names()


def test_wheel_loads_every_profile(installed: Path, tmp_path: Path) -> None:
    code = (
        "from pdmodel.resources import names\n"
        "from pdmodel.hardware.catalog import load_profile\n"
        "print(*(load_profile(name).name for name in names('hardware_profiles')))"
    )
    assert sorted(run(installed / "python", "-c", code, cwd=tmp_path).split()) == expected_names()["hardware_profiles"]


def test_wheel_lists_profiles_and_plans(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "pdmodel", "hardware", "list", "--format", "json", cwd=tmp_path)
    assert all(f'"{name}"' in listed for name in expected_names()["hardware_profiles"])
    expected = json.loads((ROOT / "scenarios" / f"{PLANNED}.json").read_text(encoding="utf-8"))["expected_verdict"]
    plan = json.loads(run(installed / "pdmodel", "plan", PLANNED, "--format", "json", cwd=tmp_path))
    assert plan["verdict"]["kind"] == expected


def test_wheel_runs_the_published_tables(installed: Path, tmp_path: Path) -> None:
    found = json.loads(run(installed / "pdmodel", "verify", "--format", "json", cwd=tmp_path))
    assert found["within_limits"] is True
    assert len(found["tables"]) >= 8
