"""The exchange of a whole MoE layer: what routing expects, against the formulas and against itself."""

import pytest

from pdmodel.costs.moe import expected_distinct_ranks, experts_touched
from pdmodel.costs.moe_layer import moe_layer
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.catalog import load_llm

LLM = "qwen3-235b-a22b"


@pytest.fixture
def nvlink() -> Box:
    return Box(load_profile("b200_8nic"), "P")


def test_copies_order_the_exchanges(nvlink: Box) -> None:
    arch = load_llm(LLM)
    found = {
        kind: moe_layer(arch, nvlink, range(8), 512, kind)
        for kind in ("all_to_all", "dedup", "all_gather_reduce_scatter", "all_reduce", "fused")
    }
    distinct = expected_distinct_ranks(128, 8, 8)
    assert {kind: layer.copies for kind, layer in found.items()} == {
        "all_to_all": 8,
        "dedup": distinct,
        "all_gather_reduce_scatter": 8,
        "all_reduce": 0,
        "fused": 8,
    }
    sent = {kind: layer.parts["dispatch"].size_bytes for kind, layer in found.items() if "dispatch" in layer.parts}
    assert sent["dedup"] / sent["all_to_all"] == pytest.approx(distinct / 8)
    layer = found["dedup"]
    assert layer.experts_touched == experts_touched(128, 8, 8 * 512)
    assert layer.experts_touched_rank * 8 == layer.experts_touched
    (reduced,) = found["all_reduce"].parts.values()
    assert reduced.size_bytes == 8 * 512 * arch.hidden_size * 2


def test_width_of_the_dispatch(nvlink: Box) -> None:
    wide = moe_layer(load_llm(LLM), nvlink, range(8), 512, "dedup")
    narrow = moe_layer(load_llm("qwen3-235b-a22b-fp8"), nvlink, range(8), 512, "dedup")
    asked = moe_layer(load_llm(LLM), nvlink, range(8), 512, "dedup", dispatch_bytes=1)
    assert (wide.routing.dispatch_bytes, narrow.routing.dispatch_bytes, asked.routing.dispatch_bytes) == (2, 1, 1)
    assert asked.parts["dispatch"].time_s == narrow.parts["dispatch"].time_s < wide.parts["dispatch"].time_s


def test_a_fused_kernel_is_no_faster_than_its_compute(nvlink: Box) -> None:
    layer = moe_layer(load_llm("qwen3-235b-a22b-fp8"), nvlink, range(8), 4096, "fused")
    assert layer.fused is not None
    assert layer.compute_s is not None
    assert layer.fused.time_s >= max(layer.compute_s, layer.fused.exchange_s)
    assert layer.fused.exposed_s == pytest.approx(max(0.0, layer.fused.exchange_s - layer.compute_s))


def test_what_cannot_be_is_refused(nvlink: Box) -> None:
    with pytest.raises(CoverageError, match="no experts"):
        moe_layer(load_llm("qwen3-32b"), nvlink, range(8), 512, "dedup")
    with pytest.raises(InputError, match="divides"):
        moe_layer(load_llm(LLM), nvlink, range(7), 512, "dedup")
    with pytest.raises(InputError, match="0 tokens"):
        moe_layer(load_llm(LLM), nvlink, range(8), 0, "dedup")
