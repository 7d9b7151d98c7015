"""Whatever is wrong with a scenario is one line: file, JSON path, what was found, what is legal."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdmodel.errors import CoverageError, InputError
from pdmodel.record import scenario_record
from pdmodel.resolve import load_scenario

TURN = {"name": "turn", "input_tokens": 65536, "cached_tokens": 63488}

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    # name, changes, JSON path, words of the message
    ("unknown key", {"prefill": {"tp_sise": 8}}, "prefill.tp_sise", "unknown key.*did you mean 'tp_size'"),
    ("wrong unit", {"requests": [{**TURN, "arrival_s": 1}]}, "requests.0.arrival_s", "unknown key.*'arrival_ms'"),
    ("wrong unit of a rate", {"network": {"fabric_gb_per_s": 50}}, "network.fabric_gb_per_s", "'fabric_gbit_per_s'"),
    ("zero", {"prefill": {"tp_size": 0}}, "prefill.tp_size", "found 0"),
    ("negative", {"requests": [{"name": "x", "input_tokens": -5}]}, "requests.0.input_tokens", "found -5"),
    ("tier", {"requests": [{**TURN, "cached_in": "l2"}]}, "requests.0.cached_in", "found 'l2': expected one of hbm"),
    ("tier of some", {"requests": [{**TURN, "cached_in": {"disk": 63488}}]}, "requests.0.cached_in", "tokens of each"),
    ("what tier", {"requests": [{**TURN, "cached_in": {"disk": 9}}]}, "requests.0.cached_in", "found 'disk: 9'"),
    ("store", {"store": {"backend": "3sf"}, "transfer": {"through": "store"}}, "store.backend", "did you mean '3fs'"),
    ("tokens of a tier", {"requests": [{**TURN, "cached_in": {"hbm": -1}}]}, "requests.0.cached_in", "tokens of each"),
    ("weight of KV", {"sharing": {"kv_weight": 1e308}}, "sharing.kv_weight", r"found 1e\+308"),
    ("no weight of KV", {"sharing": {"kv_weight": 1e-300}}, "sharing.kv_weight", "found 1e-300"),
    ("zero rate", {"network": {"nic_gbit_per_s": 0}}, "network.nic_gbit_per_s", "found 0"),
    ("no request", {"requests": []}, "requests", "at least 1"),
    ("missing", {"llm": None}, "llm", "missing key"),
    ("heads", {"prefill": {"tp_size": 6, "ep_size": 1, "gpus": None}}, "prefill.tp_size", "do not divide the 64"),
    (
        "KV heads",
        {"llm": "mixtral-8x7b", "prefill": {"tp_size": 8, "cp_size": 1}, "decode": {"tp_size": 16, "ep_size": 1}},
        "decode.tp_size",
        "16 ranks; expected at most the 8 GPUs",
    ),
    ("ranks", {"prefill": {"tp_size": 16, "ep_size": 16, "gpus": None}}, "prefill.tp_size", "at most the 8 GPUs"),
    (
        "instances",
        {"prefill": {"instances": 2, "gpus": None}},
        "prefill.instances",
        "need 16 GPUs; expected at most the 8",
    ),
    ("experts", {"prefill": {"ep_size": 3}}, "prefill.ep_size", "a divisor of tp_size x cp_size = 8"),
    ("no experts", {"llm": "qwen3-32b"}, "prefill.ep_size", "has no experts"),
    ("FP8 blocks", {"prefill": {"ep_size": 1}}, "prefill.ep_size", "no multiple of the FP8 block of 128"),
    ("EP over CP", {"prefill": {"tp_size": 2, "cp_size": 4}}, "prefill.ep_size", "another ep_exchange"),
    (
        "EP partly",
        {"prefill": {"ep_size": 4, "ep_exchange": "all_to_all"}},
        "prefill.ep_size",
        "moves tokens between 8",
    ),
    (
        "memory",
        {"weight_dtype": "bf16", "prefill": {"tp_size": 4, "ep_size": 4, "gpus": None}},
        "prefill.tp_size",
        "GiB",
    ),
    ("decode memory", {"decode": {"max_running_requests": 64}}, "decode.max_running_requests", "at most 91.2 GiB"),
    (
        "weights over the fraction",
        {"prefill": {"memory_fraction": 0.25}},
        "prefill.memory_fraction",
        "at most 24.0 GiB",
    ),
    ("KV over the fraction", {"decode": {"memory_fraction": 0.85}}, "decode.memory_fraction", "0.85 of the 96.0 GiB"),
    (
        "KV over the default fraction",
        {"decode": {"memory_fraction": None, "max_running_requests": 16, "context_tokens": 60000}},
        "decode.max_running_requests",
        "memory_fraction 0.9 of the 96.0 GiB",
    ),
    (
        "all cached",
        {"requests": [{**TURN, "cached_tokens": 65536}]},
        "requests.0.cached_tokens",
        "found 65536: at least one of the 65536",
    ),
    ("profile", {"prefill": {"hardware": "rtx_pro_6000_wrx90"}}, "prefill.hardware", "unknown hardware profile"),
    ("engine", {"prefill": {"engine": "sglang_moncake"}}, "prefill.engine", "did you mean 'sglang_mooncake'"),
    ("LLM", {"llm": "qwen3-235b"}, "llm", "unknown LLM 'qwen3-235b'.*did you mean 'qwen3-235b-a22b'"),
    ("NIC", {"transfer": {"nics": [0, 2]}}, "transfer.nics", "found NIC 2; expected 0 to 1"),
    ("decode NIC", {"transfer": {"decode_nics": [5]}}, "transfer.decode_nics", "found NIC 5"),
    ("NIC twice", {"transfer": {"nics": [0, 0]}}, "transfer.nics", "each NIC once"),
    ("NIC rate", {"network": {"nic_gbit_per_s": 800}}, "network.nic_gbit_per_s", "at most the 400"),
    ("GPU", {"prefill": {"gpus": [[0, 1, 2, 3, 4, 5, 6, 8]]}}, "prefill.gpus.0", "found GPU 8; expected 0 to 7"),
    ("GPU twice", {"prefill": {"gpus": [[0, 1, 2, 3, 4, 5, 6, 6]]}}, "prefill.gpus.0", "GPU 6 holds two ranks"),
    ("GPUs", {"prefill": {"gpus": [[0, 1]]}}, "prefill.gpus.0", "found 2 GPUs; expected 8"),
    ("instance", {"requests": [{**TURN, "instance": 1}]}, "requests.0.instance", "found instance 1"),
    ("names", {"requests": [TURN, TURN]}, "requests.1.name", "a second request called 'turn'"),
    (
        "tiny chunks",
        {"prefill": {"chunk_tokens": 1}},
        "prefill.chunk_tokens",
        "2048 chunks of 94 layers; expected at most",
    ),
    ("word", {"prefill": {"all_reduce": "fast"}}, "prefill.all_reduce", "'nccl', 'vllm_custom', 'pcie_push' or 'pcie_"),
    ("version", {"schema_version": 2}, "schema_version", "found 2"),
]


@pytest.mark.parametrize(("changes", "path", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_line(variant, changes: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        variant("agentic_turn_pcie", changes)
    error = caught.value
    assert "\n" not in str(error)
    assert error.file == "agentic_turn_pcie.json"
    assert (error.path or "") == path
    assert error.exit_code == 3


def test_pages_of_all_layers_are_in_one_order(variant) -> None:
    changes = {"decode": {"tp_size": 4}, "transfer": {"cross_layer": True, "layout": "nhd", "decode_layout": "hnd"}}
    mixed = variant("layout_mismatch", changes)
    with pytest.raises(CoverageError, match=r"\.json: transfer\.cross_layer: blocks of several layers in different"):
        scenario_record(mixed)


def test_kv_heads_that_can_neither_be_cut_nor_copied(variant) -> None:
    # 40 query heads divide by 5, 10 KV heads would not by 4: a changed architecture is needed to see it.
    from dataclasses import replace

    from pdmodel.parallelism import Parallelism, check_parallelism

    arch = replace(variant("urgent_user").arch, kv_heads=6, name="odd")
    with pytest.raises(InputError, match="6 KV heads of odd cannot be cut or copied evenly over 4"):
        check_parallelism(Parallelism(tp_size=4), arch)


def test_ulysses_has_no_heads_to_cut_in_a_latent(variant) -> None:
    changes = {"prefill": {"tp_size": 4, "cp_size": 2, "cp_exchange": "ulysses", "ep_exchange": "all_to_all"}}
    with pytest.raises(CoverageError, match=r"prefill.cp_exchange: ulysses.*a latent has none"):
        variant("mla_deepseek_v3_pcie", changes)


def test_files_that_are_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_scenario(tmp_path / "nothing.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"name": "x",}')
    with pytest.raises(InputError, match="line 1 column 14: malformed JSON"):
        load_scenario(broken)
    with pytest.raises(InputError, match=r"unknown scenario 'agentic_turn'.*did you mean"):
        load_scenario("agentic_turn")


def test_paths_are_found_beside_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdmodel.resources import resolve

    mine = tmp_path / "mine"
    mine.mkdir()
    box = json.loads(resolve("hardware_profiles", "rtx_pro_6000_wrx90_two_roots").read_text())
    (mine / "box.json").write_text(json.dumps(box | {"name": "beside_it"}))
    scenario = json.loads(resolve("scenarios", "agentic_turn_pcie").read_text())
    scenario["prefill"]["hardware"] = "box.json"
    (mine / "turn.json").write_text(json.dumps(scenario))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box.json").write_text(json.dumps(box | {"name": "in_the_working_directory"}))
    assert load_scenario("mine/turn.json").prefill_box.profile.name == "beside_it"
    (mine / "box.json").unlink()
    assert load_scenario("mine/turn.json").prefill_box.profile.name == "in_the_working_directory"
    (tmp_path / "box.json").unlink()
    with pytest.raises(InputError, match=r"^mine/turn\.json: prefill\.hardware: box\.json: no such file"):
        load_scenario("mine/turn.json")


def test_a_broken_profile_is_named_as_its_own_file(tmp_path: Path) -> None:
    from pdmodel.resources import resolve

    raw = json.loads(resolve("hardware_profiles", "rtx_pro_6000_wrx90_two_roots").read_text())
    raw["gpu"]["count"] = -1
    profile = tmp_path / "mine.json"
    profile.write_text(json.dumps(raw))
    scenario = json.loads(resolve("scenarios", "agentic_turn_pcie").read_text())
    scenario["prefill"]["hardware"] = str(profile)
    path = tmp_path / "turn.json"
    path.write_text(json.dumps(scenario))
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert caught.value.file == str(profile)
    assert caught.value.path == "gpu.count"
