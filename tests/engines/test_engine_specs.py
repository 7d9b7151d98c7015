import json
from pathlib import Path

import pytest

from pdmodel.engines.catalog import host_knobs, list_engines, load_engine
from pdmodel.engines.spec import EngineSpec, Mode, Piece, ReleaseAfter, Steers, TransferBackend
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
    knobs = [knob.name for knob in spec.knobs]
    assert len(knobs) == len(set(knobs))


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
