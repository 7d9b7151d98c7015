"""Clients of a store: one law for scenarios, `cost kv-tier` and the formulas, whatever the size of objects."""

import json
from typing import Any

import pytest

from pdmodel.costs.fullest_port import fullest_port
from pdmodel.costs.kv_store import backend_constants, get_terms, put_terms
from pdmodel.hardware.ports import PortKind
from pdmodel.llm.kv_cache import kv_bytes_per_token
from pdmodel.resolve import ResolvedScenario
from pdmodel.resources import resolve
from pdmodel.timeline.breakdown import Setting
from pdmodel.timeline.build import timeline
from pdmodel.timeline.prefix_tiers import Prefix, PrefixStudy
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.control import control
from pdmodel.transfer.flows import Transfers
from pdmodel.transfer.prefetch import fetch_alone_s
from pdmodel.transfer.store_sends import forwarded_s
from pdmodel.workload.request import CacheTier

CACHED = 16_384


def turn(backend: str = "mooncake_store", page_tokens: int = 64, **more: Any) -> dict[str, Any]:
    request = {"name": "turn", "input_tokens": CACHED + 4096, "cached_tokens": CACHED, "cached_in": "store"}
    return {
        "requests": [request],
        "store": {"backend": backend},
        "transfer": {"page_tokens": page_tokens},
        "cache": {"prefetch": "wait_complete"},
        **more,
    }


def built(resolved: ResolvedScenario) -> Transfers:
    return build_transfers(resolved, timeline(resolved))


def alone_s(resolved: ResolvedScenario, part: str) -> float:
    """What the flows with this in their names take together, alone on their ports [s]."""
    found = built(resolved)
    capacity = {port.name: port.capacity_bytes_per_s for port in (*resolved.ports, *found.ports)}
    moved = [(flow.routes[0], flow.volume_bytes) for flow in found.flows if part in flow.name]
    return fullest_port(moved, capacity).time_s


@pytest.mark.parametrize("backend", ["mooncake_store", "mooncake_store_tcp", "3fs", "file"])
@pytest.mark.parametrize("page_tokens", [1, 16, 64])
@pytest.mark.parametrize("base", ["agentic_turn_pcie", "mla_deepseek_v3_pcie"])
def test_a_prefetch_takes_what_kv_tier_says(variant, base: str, backend: str, page_tokens: int) -> None:
    resolved = variant(base, turn(backend, page_tokens))
    setting = Setting(resolved.arch, resolved.prefill_box, resolved.prefill[0], kv_dtype=resolved.spec.kv_dtype)
    store = resolved.store
    assert store is not None
    constants = backend_constants(store.backend)
    study = PrefixStudy(setting, Prefix(CACHED, 4096, page_tokens, 4096, store.backend, constants, resolved.engine))
    terms = study.fetch_terms(CACHED, study.fetch_path(CACHED).time_s)
    assert terms.objects_s > 0
    assert alone_s(resolved, "/prefetch/") == pytest.approx(terms.objects_s + terms.bytes_s, rel=1e-9)
    assert fetch_alone_s(resolved, resolved.requests[0]) == pytest.approx(terms.objects_s + terms.bytes_s, rel=1e-9)
    assert control(resolved, resolved.requests[0]).query_s == pytest.approx(terms.rpc_s)
    assert terms.time_s == pytest.approx(study.tier(CacheTier.STORE).control_s + terms.bytes_s)


def put_client_s(resolved: ResolvedScenario, part: str) -> float:
    """What the first flow with this in its name takes of the client that puts it [s]."""
    found = built(resolved)
    flow = next(flow for flow in found.flows if part in flow.name)
    port = next(port for port in found.ports if port.name == "P/gpu0/store_put")
    return flow.volume_bytes * flow.routes[0].ports[port.name] / port.capacity_bytes_per_s


@pytest.mark.parametrize("page_tokens", [4, 64])
def test_copies_are_written_so_many_times_under_one_put(variant, page_tokens: int) -> None:
    """One PutStart and one PutEnd an object, R writes: k o + R V / B, of write-backs and of sends."""
    back, sent = {}, {}
    for replicas in (1, 3):
        store = {"backend": "mooncake_store", "replicas": replicas}
        cache = {"write_policy": "write_through", "write_to": "store"}
        changes = turn(page_tokens=page_tokens) | {"store": store, "cache": cache}
        resolved = variant("agentic_turn_pcie", changes)
        assert resolved.store is not None
        back[replicas] = put_client_s(resolved, "/writeback/P0>store")
        # eight ranks keep each of four heads twice, and put it under their own keys, over two NICs of 46 GB/s
        size, objects = 2 * 4096 * 192_512, 2 * 4096 // page_tokens
        terms = put_terms(size, objects, 2 * 46e9, resolved.store.constants, replicas=replicas)
        assert back[replicas] == pytest.approx(terms.objects_s + terms.bytes_s, rel=0.02)
        through = {"transfer": {"through": "store", "page_tokens": page_tokens}, "store": store}
        sent[replicas] = put_client_s(variant("rtx_pro_6000_qwen3_235b", through), "left/send/P0")
    for times, tokens in ((back, 4096), (sent, 32_768)):
        objects_s = 2 * tokens // page_tokens * 11.4e-6
        assert times[3] - objects_s == pytest.approx(3 * (times[1] - objects_s), rel=1e-9)


def test_objects_of_a_page(variant, tmp_path) -> None:
    """Keys and values apart under SGLang, together under vLLM; a latent is one; a file may say otherwise."""
    whole = 64 * 512 * 94  # 64 tokens of one of four heads, 94 layers

    def object_s(resolved: ResolvedScenario) -> float:
        """Time of the objects in a page of rank 0's client [s]."""
        found = built(resolved)
        flow = next(flow for flow in found.flows if "/prefetch/P0" in flow.name)
        port = next(port for port in found.ports if port.name == "P/gpu0/store_get")
        assert port.kind is PortKind.CLIENT
        byte_s = flow.routes[0].ports[port.name] / port.capacity_bytes_per_s
        capacity = {one.name: one.capacity_bytes_per_s for one in resolved.ports}
        others = [one for one in found.flows if "/prefetch/" in one.name]
        ways = [(one.routes[0], one.volume_bytes) for one in others]
        load = {name: sum(r.ports.get(name, 0.0) * v for r, v in ways) for name in flow.routes[0].ports}
        longest = max(load[name] / capacity[name] for name in load if name in capacity)
        return (byte_s - longest / flow.volume_bytes) * whole

    assert object_s(variant("agentic_turn_pcie", turn())) == pytest.approx(2 * 9.3e-6)
    vllm = turn(prefill={"engine": "vllm_mooncake_store"}, transfer={"page_tokens": 64, "through": "direct"})
    assert object_s(variant("agentic_turn_pcie", vllm)) == pytest.approx(9.3e-6)
    raw = json.loads(resolve("stores", "mooncake_store").read_text())
    raw["page_objects"]["value"] = 5
    path = tmp_path / "five.json"
    path.write_text(json.dumps(raw))
    assert object_s(variant("agentic_turn_pcie", turn(str(path)))) == pytest.approx(5 * 9.3e-6)
    latent = variant("mla_deepseek_v3_pcie", turn())
    assert latent.store is not None
    page = 64 * kv_bytes_per_token(latent.arch, latent.spec.kv_dtype)
    assert object_s(latent) / whole * page == pytest.approx(9.3e-6)


def test_the_last_batch_through_the_store(variant) -> None:
    """Put as a whole before it is got: the shorter of both, objects and bytes in series."""
    changes = {"transfer": {"through": "store"}, "store": {"backend": "mooncake_store"}}
    resolved = variant("rtx_pro_6000_qwen3_235b", changes)
    assert resolved.store is not None
    size = 8192 * kv_bytes_per_token(resolved.arch, resolved.spec.kv_dtype)
    terms = get_terms(size, 256, 46e9, resolved.store.constants)
    assert forwarded_s(resolved, resolved.requests[0]) == pytest.approx(terms.objects_s + terms.bytes_s, rel=0.01)
    none = variant("rtx_pro_6000_qwen3_235b")
    assert forwarded_s(none, none.requests[0]) == 0.0


def test_a_store_whose_objects_cost_nothing_has_no_clients(variant, tmp_path) -> None:
    raw = json.loads(resolve("stores", "mooncake_store").read_text())
    for key in ("object_get_us", "object_put_us"):
        raw[key]["value"] = 0
    path = tmp_path / "free.json"
    path.write_text(json.dumps(raw))
    found = built(variant("agentic_turn_pcie", turn(str(path))))
    assert not [port for port in found.ports if port.kind is PortKind.CLIENT]
