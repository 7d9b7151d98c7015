import json
from pathlib import Path
from typing import Any

import pytest

from pdmodel.engines.catalog import host_knobs, list_backends, list_engines, load_backend, load_engine
from pdmodel.engines.spec import EngineSpec, KvPath, Mode, Piece, ReleaseAfter, RouteRule, Steers, TransferBackend
from pdmodel.errors import InputError
from pdmodel.resources import resolve

SHIPPED = {
    "layerwise": ("mooncake_te", Mode.PUSH, ReleaseAfter.LAYER, Piece.LAYER),
    "mooncake_te": ("mooncake_te", Mode.PUSH, ReleaseAfter.LAYER, Piece.LAYER),
    "mooncake_tent": ("mooncake_tent", Mode.PUSH, ReleaseAfter.LAYER, Piece.LAYER),
    "sglang_mooncake": ("mooncake_te", Mode.PUSH, ReleaseAfter.CHUNK, Piece.CHUNK),
    "sglang_nixl": ("nixl_ucx", Mode.PUSH, ReleaseAfter.CHUNK, Piece.CHUNK),
    "tensorrt_llm": ("nixl_ucx", Mode.PUSH, ReleaseAfter.PREFILL, Piece.REQUEST),
    "vllm_mooncake": ("mooncake_te", Mode.PUSH, ReleaseAfter.PREFILL, Piece.REQUEST),
    "vllm_mooncake_store": ("mooncake_te", Mode.PULL, ReleaseAfter.PREFILL, Piece.REQUEST),
    "vllm_nixl": ("nixl_ucx", Mode.PULL, ReleaseAfter.PREFILL, Piece.REQUEST),
}


def test_engines_that_ship_send_when_they_say_they_do() -> None:
    assert {
        name: (engine.backend.name, engine.mode.value, engine.release_after.value, engine.piece.value)
        for name, engine in ((name, load_engine(name)) for name in list_engines())
    } == SHIPPED


def test_mooncake_cannot_recall_32_mib_per_nic_pair() -> None:
    assert load_engine("sglang_mooncake").posting.in_flight_bytes == 32 * 2**20


@pytest.mark.parametrize("name", list_engines())
def test_every_source_is_used_and_every_knob_is_unique(name: str) -> None:
    text = resolve("engines", name).read_text()
    spec = load_engine(name)
    assert spec.name == name
    for source in spec.sources:
        assert f'"source": "{source}"' in text, f"{source} is named nowhere"
    knobs = [knob.name for knob in spec.all_knobs]
    assert len(knobs) == len(set(knobs))
    assert all(knob.effect and knob.unit and knob.default for knob in spec.all_knobs)


@pytest.mark.parametrize("name", list_backends())
def test_backends_name_their_sources(name: str) -> None:
    text = resolve("backends", name).read_text()
    spec = load_backend(name)
    assert spec.name == name
    for source in spec.sources:
        assert f'"source": "{source}"' in text, f"{source} is named nowhere"


def test_equal_ids_of_sources_mean_the_same_everywhere() -> None:
    """An engine and its backend are shown with one list of sources."""
    known: dict[str, str] = {}
    for spec in [*map(load_engine, list_engines()), *map(load_backend, list_backends())]:
        for name, source in spec.sources.items():
            assert known.setdefault(name, source.ref) == source.ref, name


def test_a_rate_can_only_be_set_on_the_nic() -> None:
    assert any(knob.maps_to is Steers.RATE_CAP for knob in host_knobs().knobs)
    for name in list_engines():
        assert not any(knob.maps_to is Steers.RATE_CAP for knob in load_engine(name).all_knobs)


def test_a_source_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    raw = json.loads(resolve("engines", "layerwise").read_text())
    raw["mode"]["source"] = "hearsay"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match="mode names the source 'hearsay'"):
        load_engine(path)


def test_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'sglang'.*did you mean 'sglang_nixl'"):
        load_engine("sglang")


def test_unknown_key_in_an_engine_and_in_its_backend() -> None:
    raw = json.loads(resolve("engines", "layerwise").read_text())
    raw["control"]["handshake_ms"] = 64
    with pytest.raises(InputError, match=r"control.handshake_ms: unknown key.*handshake_us"):
        EngineSpec.parse(raw, file="x.json")
    raw = json.loads(resolve("backends", "mooncake_te").read_text())
    raw["posting"]["slice_kb"] = 64
    with pytest.raises(InputError, match=r"x.json: posting.slice_kb: unknown key.*slice_bytes"):
        TransferBackend.parse(raw, file="x.json")


# ---- engine and backend ----------------------------------------------------------------------------------------------


def written(tmp_path: Path, change: Any, name: str = "layerwise") -> Path:
    raw = json.loads(resolve("engines", name).read_text())
    change(raw)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(raw))
    return path


def test_what_an_engine_overrides_is_its_own() -> None:
    """SGLang's 1.84 ms and one NIC a rank; slices, queue pairs and descriptors stay Mooncake's."""
    sglang, bare = load_engine("sglang_mooncake"), load_engine("mooncake_te")
    assert (sglang.posting.request_overhead_us.value, bare.posting.request_overhead_us.value) == (1840, 370)
    assert (sglang.route_rule.value, bare.route_rule.value) == (RouteRule.NEAREST, RouteRule.RANDOM)
    assert sglang.posting.descriptor_us == bare.posting.descriptor_us
    assert sglang.posting.nic_messages_per_s == pytest.approx(14e6)
    assert sglang.posting is sglang.posting


def test_facts_of_both_files_with_their_sources() -> None:
    facts = load_engine("sglang_mooncake").facts
    fact, source = facts["posting.request_overhead_us"]
    assert fact.value == 1840 and "171 GB/s" in source.ref
    assert facts["route_rule"][1].kind.value == "assumed"
    assert facts["posting.slice_bytes"][0].value == 65536
    assert facts["control.hand_over_us"][0].value > 0
    assert not [name for name in facts if name.startswith("overrides.")]


def test_published_constants() -> None:
    """vllm#50913: hand-over 197 ms, 29 ms of it KV. SGLang keeps 512 tokens free; TensorRT-LLM packs."""
    assert load_engine("vllm_nixl").control.hand_over_us.value == pytest.approx((197 - 29) * 1000)
    assert load_engine("vllm_nixl").lease_s.value == 30  # type: ignore[union-attr]
    assert load_engine("sglang_mooncake").reserved_tokens.value == 512
    trt = load_engine("tensorrt_llm")
    assert (trt.staging_bytes.value, trt.parallel_transfers.value) == (512_000_000, 1)
    assert trt.control.sequential_receive.value
    assert load_engine("vllm_mooncake_store").through.value is KvPath.STORE


def test_tent_keeps_three_levels_and_picks_nics_itself() -> None:
    tent = load_engine("mooncake_tent").backend
    assert tent.priorities is not None
    assert (tent.priorities.levels.value, tent.priorities.promotion_us.value) == (3, 10_000)
    assert tent.priorities.slot_us.value == 2_000 and tent.priorities.deadlines.value
    assert tent.routes_fixed.value
    assert not load_engine("sglang_mooncake").routes_fixed.value


def test_efa_posts_as_many_as_the_published_sweep() -> None:
    """16 threads at 10.8 us an operation: 1.48 million/s, 97 GB/s in blocks of 64 KiB."""
    posting = load_backend("mooncake_efa").posting
    rate = 16e6 / posting.descriptor_us.value
    assert rate * 65536 == pytest.approx(97.11e9, rel=0.02)
    assert 16 * posting.nic_messages_per_s == pytest.approx(1.47e6, rel=0.01)


def test_a_backend_is_a_name_a_path_or_written_out(tmp_path: Path) -> None:
    raw = json.loads(resolve("backends", "mooncake_te").read_text())
    raw["posting"]["slice_bytes"]["value"] = 131072
    (tmp_path / "my_backend.json").write_text(json.dumps(raw))
    beside = load_engine(written(tmp_path, lambda engine: engine.update(backend="my_backend.json")))
    inside = load_engine(written(tmp_path, lambda engine: engine.update(backend=raw)))
    assert beside == inside
    assert beside.posting.slice_bytes.value == 131072


def test_unknown_backend_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, lambda engine: engine.update(backend="mooncake"))
    with pytest.raises(InputError, match=r"mine.json: backend: unknown transfer backend 'mooncake'.*'mooncake_te'"):
        load_engine(path)


def test_a_backend_that_is_wrong_is_told_with_its_own_file(tmp_path: Path) -> None:
    raw = json.loads(resolve("backends", "nixl_ucx").read_text())
    raw["posting"]["queue_pairs"]["value"] = 0
    (tmp_path / "bad.json").write_text(json.dumps(raw))
    path = written(tmp_path, lambda engine: engine.update(backend="bad.json"))
    with pytest.raises(InputError, match=r"bad.json: posting.queue_pairs.value: found 0"):
        load_engine(path)


def test_a_backend_that_is_missing(tmp_path: Path) -> None:
    path = written(tmp_path, lambda engine: engine.update(backend="not_there.json"))
    with pytest.raises(InputError, match=r"mine.json: backend: not_there.json: no such file; expected a path from"):
        load_engine(path)


def test_a_backend_that_cannot_be_read_is_told_with_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    path = written(tmp_path, lambda engine: engine.update(backend=str(tmp_path / "folder.json")))
    with pytest.raises(InputError, match=r"/folder.json: is a folder; expected a JSON file"):
        load_engine(path)


def test_a_buffer_has_one_size(tmp_path: Path) -> None:
    def both(engine: dict[str, Any]) -> None:
        engine["staging_tokens"]["value"] = engine["staging_bytes"]["value"] = 8192

    with pytest.raises(InputError, match="a buffer has one size"):
        load_engine(written(tmp_path, both))


def test_a_knob_is_the_engines_or_the_backends(tmp_path: Path) -> None:
    def twice(engine: dict[str, Any]) -> None:
        engine["knobs"] = [{**engine["knobs"][0], "name": "MC_MAX_WR"}]

    with pytest.raises(InputError, match=r"the knob 'MC_MAX_WR' is the backend's \(mooncake_te\) already"):
        load_engine(written(tmp_path, twice))


def test_an_override_with_a_source_that_is_not_listed(tmp_path: Path) -> None:
    def hearsay(engine: dict[str, Any]) -> None:
        engine["overrides"]["route_rule"]["source"] = "hearsay"

    with pytest.raises(InputError, match=r"overrides.route_rule names the source 'hearsay'"):
        load_engine(written(tmp_path, hearsay))
