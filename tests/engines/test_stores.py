"""Storage backends: every figure has a source, bad files are refused in one line, keys are documented."""

import json
import re
from pathlib import Path

import pytest

from pdmodel.engines.spec import Fact
from pdmodel.engines.stores import LandsIn, Reach, StoreBackend, list_stores, load_store
from pdmodel.errors import InputError
from pdmodel.spec import SourceKind

ROOT = Path(__file__).parent.parent.parent


def test_shipped_backends():
    assert {"mooncake_store", "mooncake_store_tcp", "3fs", "nixl_gds", "file"} <= set(list_stores())
    for name in list_stores():
        store = load_store(name)
        assert store.name == name
        facts = [fact for _, fact in store if isinstance(fact, Fact)]
        assert {fact.source for fact in facts} == set(store.sources), "a source that nothing names"
    # 40 GiB/s of a client with one 400 Gbit/s NIC.
    rate = load_store("3fs").read_gb_per_s
    assert rate is not None
    assert rate.value == pytest.approx(40 * 2**30 / 1e9, rel=0.01)
    assert load_store("mooncake_store_tcp").source is SourceKind.MEASURED
    assert load_store("mooncake_store").source is SourceKind.ASSUMED
    assert load_store("nixl_gds").lands_in.value is LandsIn.HBM
    assert load_store("file").reach.value is Reach.LOCAL


def test_unknown_names():
    with pytest.raises(InputError, match=r"unknown storage backend 'moncake_store'; .*did you mean 'mooncake_store'"):
        load_store("moncake_store")


def bad_file(tmp_path: Path, **changes: object) -> Path:
    folder = ROOT / "pdmodel" / "engines" / "stores"
    raw = json.loads((folder / "file.json").read_text(encoding="utf-8"))
    path = tmp_path / "mine.json"
    raw |= changes
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lease": 3}, "lease: unknown key"),
        ({"batch_pages": {"value": 0, "source": "hicache"}}, "batch_pages"),
        ({"page_objects": {"value": 0, "source": "hicache_file"}}, "page_objects"),
        ({"lease_s": {"value": 0, "source": "hicache"}}, "lease_s"),
        ({"replicas": {"value": 1, "source": "nobody"}}, "'nobody', which is not in sources"),
        ({"read_gb_per_s": None}, "disks of the box need read_gb_per_s"),
        ({"replicas": None}, "replicas: missing key"),
    ],
)
def test_bad_files(tmp_path, changes, message):
    with pytest.raises(InputError) as caught:
        load_store(bad_file(tmp_path, **changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_ones_own(tmp_path):
    changed = bad_file(tmp_path, name="mine", lease_s={"value": 5, "source": "hicache"})
    assert load_store(changed).lease_s is not None


def test_every_key_is_documented():
    page = (ROOT / "docs" / "kv_tiers.md").read_text(encoding="utf-8")
    assert not set(StoreBackend.model_fields) - set(re.findall(r"`(\w+)`", page))
