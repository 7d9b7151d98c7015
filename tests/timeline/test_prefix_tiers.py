"""A prefix on a box: layers add up to their pass, and every tier, split and rate is consistent with the others."""

import pytest

from pdmodel.costs.kv_store import backend_constants
from pdmodel.engines.catalog import load_engine
from pdmodel.engines.stores import load_store
from pdmodel.errors import CoverageError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.parallelism import Parallelism, place
from pdmodel.timeline.breakdown import Setting, prefill_breakdown, prefill_layers
from pdmodel.timeline.prefix_tiers import Prefix, PrefixStudy
from pdmodel.workload.request import CacheTier


def setting(llm: str, hardware: str, tp_size: int, ep_size: int = 1) -> Setting:
    box = Box(load_profile(hardware), "P")
    (placement,) = place(Parallelism(tp_size, 1, ep_size), 1, box.gpu_count, None)
    return Setting(load_llm(llm), box, placement)


def study(of: Setting, cached: int = 16384, store: str = "mooncake_store", new: int = 1024) -> PrefixStudy:
    backend = load_store(store)
    asked = Prefix(cached, new, 64, 4096, backend, backend_constants(backend), load_engine("sglang_mooncake"))
    return PrefixStudy(of, asked)


@pytest.mark.parametrize("llm", list_llms())
def test_layers_add_up_to_their_pass(llm: str) -> None:
    of = setting(llm, "h100_8nic", 4)
    layers = prefill_layers(of, 512, 4096)
    assert len(layers.layers_s) == of.arch.layers
    assert layers.time_s == pytest.approx(prefill_breakdown(of, 512, 4096).time_s)


@pytest.mark.parametrize(("store", "tier"), [("mooncake_store", CacheTier.HOST_MEMORY), ("3fs", CacheTier.STORE)])
def test_at_the_break_even_loading_takes_as_long_as_computing(store: str, tier: CacheTier) -> None:
    found = study(setting("qwen3-32b", "rtx_pro_6000_server", 4), store=store)
    told = found.tier(tier)
    rate = told.break_even_bytes_per_s
    assert rate is not None
    done = found.host_done_s if tier is CacheTier.HOST_MEMORY else found.store_done_s
    assert done(16384, told.size_bytes / rate) == pytest.approx(found.recompute_all_s)
    assert done(16384, told.size_bytes / told.rate_bytes_per_s) == pytest.approx(told.done_s)
    assert (told.rate_bytes_per_s > rate) == (told.done_s < found.recompute_all_s)


@pytest.mark.parametrize("llm", ["qwen3-32b", "deepseek-v3", "gpt-oss-120b"])
def test_ends_of_a_split(llm: str) -> None:
    found = study(setting(llm, "h200_nvlink_2nic", 8, 8 if llm != "qwen3-32b" else 1), cached=10_000)
    for tier in (CacheTier.HOST_MEMORY, CacheTier.STORE):
        told = found.tier(tier)
        ends = {split.loaded_tokens: split.time_s for split in told.splits}
        assert ends[0] == pytest.approx(found.recompute_all_s)
        assert ends[10_000] == pytest.approx(told.done_s)
        assert told.best.time_s <= min(ends.values())


def test_a_store_needs_a_way_to_it() -> None:
    profile = load_profile("rtx_pro_6000_server")
    bare = Box(profile.model_copy(update={"nics": None}), "P")
    (placement,) = place(Parallelism(1, 1, 1), 1, 8, None)
    of = Setting(load_llm("qwen3-8b"), bare, placement)
    with pytest.raises(CoverageError, match="has no NIC to reach mooncake_store by"):
        study(of).tier(CacheTier.STORE)
    assert study(of, store="file").tier(CacheTier.STORE).port == "the store's own limit"
    assert study(of, store="file").hand_over() is None
