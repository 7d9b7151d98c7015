import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdmodel.hardware.catalog import list_profiles, load_profile
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.llm.kv_cache import kv_bytes_per_token
from pdmodel.resources import names, resolve

Program = Callable[..., Any]
BOX = "rtx_pro_6000_wrx90_two_roots"


def box_with(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    raw = json.loads(resolve("hardware_profiles", BOX).read_text())
    change(raw)
    path = tmp_path / "box.json"
    path.write_text(json.dumps(raw))
    return path


# ---- hardware --------------------------------------------------------------------------------------------------------


def test_hardware_list_in_every_form(pdmodel: Program) -> None:
    known = list_profiles()
    assert len(known) >= 7
    text = pdmodel("hardware", "list").out
    assert all(name in text.replace("\n", "") for name in known if len(name) < 20)
    assert [row["name"] for row in json.loads(pdmodel("hardware", "list", "--format", "json").out)["hardware"]] == known
    rows = csv.DictReader(io.StringIO(pdmodel("hardware", "list", "--format", "csv").out))
    assert [row["name"] for row in rows] == known
    assert all(name in pdmodel("hardware", "list", "--format", "markdown").out for name in known)


def test_hardware_show_has_ports_capacities_and_sources(pdmodel: Program) -> None:
    run = pdmodel("hardware", "show", BOX)
    assert run.code == 0
    assert "gpu[0-7]/egress" in run.out
    profile = load_profile(BOX)
    for name, source in profile.sources.items():
        assert f"- {name} ({source.kind.value})" in run.out
    full = pdmodel("hardware", "show", BOX, "--full").out
    assert all(f"gpu{k}/egress" in full for k in range(8))


def test_hardware_show_json_matches_the_ports(pdmodel: Program) -> None:
    from pdmodel.hardware.topology import Box

    content = json.loads(pdmodel("hardware", "show", BOX, "--format", "json").out)
    ports = Box(load_profile(BOX), "x").ports
    assert {row["name"]: row["capacity_bytes_per_s"] for row in content["ports"]} == {
        port.name.removeprefix("x/"): port.capacity_bytes_per_s for port in ports
    }
    assert content["profile"]["name"] == BOX


def test_every_shipped_file_validates(pdmodel: Program) -> None:
    run = pdmodel("hardware", "validate", *list_profiles())
    assert (run.code, run.err) == (0, "")
    if names("scenarios"):
        run = pdmodel("scenario", "validate", *names("scenarios"))
        assert (run.code, run.err) == (0, "")


def test_hardware_validate_lists_all_problems(pdmodel: Program, tmp_path: Path) -> None:
    def spoil(raw: dict[str, Any]) -> None:
        raw["gpu"]["cout"] = 8
        raw["gpu"]["memory_gib"]["value"] = -96
        del raw["summary"]

    path = box_with(tmp_path, spoil)
    run = pdmodel("hardware", "validate", str(path), BOX)
    assert run.code == 3
    lines = run.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"pdmodel: {path}: ") for line in lines)
    assert "gpu.cout: unknown key; expected one of " in run.err
    assert "did you mean 'count'?" in run.err
    assert "gpu.memory_gib.value: found -96" in run.err
    assert "summary: missing key" in run.err
    assert BOX in run.out


def test_hardware_validate_in_json(pdmodel: Program, tmp_path: Path) -> None:
    path = box_with(tmp_path, lambda raw: raw.update(extra=1))
    run = pdmodel("hardware", "validate", str(path), BOX, "--format", "json")
    assert run.code == 3
    bad, good = json.loads(run.out)["files"]
    assert (bad["valid"], len(bad["problems"])) == (False, 1)
    assert good == {"file": BOX, "valid": True, "problems": []}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1 column 2: malformed JSON"),
        ("[]", "found a JSON list; expected a JSON object"),
        ("\xff", "is not UTF-8 text"),
    ],
)
def test_files_that_are_no_json(pdmodel: Program, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("latin-1"))
    for kind in ("hardware", "scenario"):
        run = pdmodel(kind, "validate", str(path))
        assert (run.code, run.out) == (3, "")
        assert run.err.startswith(f"pdmodel: {path}: ")
        assert words in run.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("hardware", "show", "rtx_pro_600"), "unknown hardware profile 'rtx_pro_600'"),
        (("hardware", "show", "no/such.json"), "no/such.json: no such file"),
        (("hardware", "validate", "nothing"), "unknown hardware profile 'nothing'"),
        (("scenario", "show", "nothing"), "unknown scenario 'nothing'"),
        (("scenario", "validate", "no/such.json"), "no/such.json: no such file"),
        (("llm", "show", "qwen"), "unknown LLM 'qwen'"),
        (("llm", "show", "no/config.json"), "no/config.json: no such file"),
        (("llm", "list", "--output", "no/a.json"), "no/a.json: no such folder"),
    ],
)
def test_names_and_paths_that_do_not_exist(pdmodel: Program, words: tuple[str, ...], message: str) -> None:
    run = pdmodel(*words)
    assert (run.code, run.out) == (3, "")
    assert run.err.startswith("pdmodel: " + message)
    assert run.err.count("\n") == 1


def test_own_profiles_are_found(pdmodel: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box_with(tmp_path, lambda raw: raw.update(name="box"))
    monkeypatch.setenv("PDMODEL_PROFILES_PATH", str(tmp_path))
    assert "box" in [row["name"] for row in json.loads(pdmodel("hardware", "list", "--format", "json").out)["hardware"]]
    assert pdmodel("hardware", "show", "box").out.startswith("box\n")


@pytest.mark.parametrize("kind", ["hardware", "scenario"])
def test_schemas(pdmodel: Program, tmp_path: Path, kind: str) -> None:
    schema = json.loads(pdmodel(kind, "schema").out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["additionalProperties"] is False
    assert "schema_version" in schema["properties"]
    assert pdmodel(kind, "schema", "--output", str(tmp_path / "s.json")).out == ""
    assert json.loads((tmp_path / "s.json").read_text()) == schema


# ---- llm -------------------------------------------------------------------------------------------------------------


def test_llm_list_in_every_form(pdmodel: Program) -> None:
    known = list_llms()
    content = json.loads(pdmodel("llm", "list", "--format", "json").out)["llm"]
    assert [row["name"] for row in content] == known
    for row in content:
        assert row["kv_bf16_bytes_per_token"] == kv_bytes_per_token(load_llm(row["name"]))
    for form in ("rich", "csv", "markdown"):
        assert all(name in pdmodel("llm", "list", "--format", form).out for name in known)


def test_llm_show_counts_bytes(pdmodel: Program) -> None:
    content = json.loads(pdmodel("llm", "show", "deepseek-v3", "--format", "json").out)
    arch = load_llm("deepseek-v3")
    assert content["parameters"] == arch.parameters
    assert content["weights_bytes"] == arch.weights_bytes
    kept = {row["kv_dtype"]: row["bytes_per_token"] for row in content["kv_cache"]}
    # 61 layers x (512 + 64) values
    assert kept["bf16"] == 61 * 576 * 2
    assert "fp8_ds_mla" in kept
    text = pdmodel("llm", "show", "deepseek-v3").out
    assert "70272" in text
    assert "One latent a token" in text


def test_llm_show_leaves_out_layouts_that_do_not_apply(pdmodel: Program) -> None:
    content = json.loads(pdmodel("llm", "show", "qwen3-32b", "--format", "json").out)
    assert "fp8_ds_mla" not in {row["kv_dtype"] for row in content["kv_cache"]}


# ---- scenario --------------------------------------------------------------------------------------------------------


def test_scenario_list_has_purpose_and_expected_verdict(pdmodel: Program) -> None:
    run = pdmodel("scenario", "list", "--format", "json")
    rows = json.loads(run.out)["scenario"]
    assert [row["name"] for row in rows] == names("scenarios")
    assert all(row["purpose"] and row["expected_verdict"] for row in rows)
    text = pdmodel("scenario", "list").out
    assert all(row["name"] in text and row["expected_verdict"] in text for row in rows)


@pytest.mark.parametrize("name", names("scenarios"))
def test_a_scenario_shown_as_json_is_a_scenario_again(pdmodel: Program, tmp_path: Path, name: str) -> None:
    path = tmp_path / "again.json"
    assert pdmodel("scenario", "show", name, "--output", str(path)).code == 0
    assert pdmodel("scenario", "validate", str(path)).code == 0
    assert pdmodel("scenario", "show", str(path), "--format", "json").out == path.read_text()


def test_scenario_show_fills_defaults_in(pdmodel: Program) -> None:
    name = names("scenarios")[0]
    text = pdmodel("scenario", "show", name).out
    assert "prefill.tp_size" in text
    assert "kv_slack" in text
    assert "first_token_by" in text
