"""Tiers of a prefix cache: what moves between HBM, host memory and the store, on which ports, and when."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.ports import PortKind
from pdmodel.llm.kv_cache import kv_bytes_per_token
from pdmodel.resolve import ResolvedScenario
from pdmodel.resources import resolve
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.control import control
from pdmodel.transfer.flows import Flow, FlowKind, MemoryKind, Transfers
from pdmodel.transfer.prefetch import fetch_alone_s, is_prefetch, queueing_s, settled
from pdmodel.transfer.store_sends import forwarded_s

PER_TOKEN = 192_512  # Qwen3-235B, bf16: 2 x 94 x 4 x 128 x 2 B; TP8 keeps each of its four heads twice
TIERS = {"hbm": 16_384, "host_memory": 30_720, "store": 16_384}
STORE = {"store": {"backend": "mooncake_store"}}


def turn(cached_in: Any = None, **more: Any) -> dict[str, Any]:
    """Changes of agentic_turn_pcie: 62k of 64k tokens cached in tiers, and a store."""
    tiers = TIERS if cached_in is None else cached_in
    request = {
        "name": "turn",
        "input_tokens": 65_536,
        "cached_tokens": sum(tiers.values()),
        "cached_in": tiers,
    }
    return {"requests": [request], **STORE, **more}


def built(resolved: ResolvedScenario) -> Transfers:
    return build_transfers(resolved, timeline(resolved))


def named(found: Transfers, part: str) -> list[Flow]:
    return [flow for flow in found.flows if part in flow.name]


def total(flows: list[Flow]) -> float:
    return sum(flow.volume_bytes for flow in flows)


# ---- the prefix hit, split over tiers --------------------------------------------------------------------------------
def test_bytes_of_every_tier(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn())
    found = built(resolved)
    twice = 2 * PER_TOKEN
    assert total(named(found, "/load/")) == twice * (30_720 + 16_384)
    assert total(named(found, "/prefetch/")) == twice * 16_384
    assert total(named(found, "/send/")) == PER_TOKEN * 65_536
    assert not named(found, "/writeback/")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hbm=st.integers(0, 3000),
    host=st.integers(0, 3000),
    store=st.integers(0, 3000),
    new=st.integers(1, 3000),
    tp_size=st.sampled_from([1, 2, 4, 8]),
    llm=st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "llama-2-7b", "deepseek-v3"]),
    policy=st.sampled_from(["write_through", "write_through_selective", "write_back"]),
)
def test_every_byte_is_loaded_fetched_and_written_once(
    variant, hbm: int, host: int, store: int, new: int, tp_size: int, llm: str, policy: str
) -> None:
    if llm == "deepseek-v3":
        tp_size = 8
    tiers = {"hbm": hbm, "host_memory": host, "store": store}
    changes = {
        "llm": llm,
        "prefill": {
            "tp_size": tp_size,
            "ep_size": 1,
            "cp_size": 1,
            "gpus": None,
            "instances": 1,
            "chunk_tokens": 2048,
            "ep_exchange": "all_reduce",
        },
        "decode": {"tp_size": tp_size, "ep_size": 1, "ep_exchange": "all_reduce", "max_running_requests": 1},
        "requests": [
            {
                "name": "r",
                "input_tokens": hbm + host + store + new,
                "cached_tokens": hbm + host + store,
                "cached_in": tiers,
            }
        ],
        "cache": {"write_policy": policy},
        **STORE,
    }
    resolved = variant("seed_h200_nvlink", changes)
    found = built(resolved)
    arch = resolved.arch
    latent = llm == "deepseek-v3"
    kept = kv_bytes_per_token(arch, "bf16") * (tp_size if latent else max(1.0, tp_size / arch.kv_heads))
    assert total(named(found, "/load/")) == pytest.approx(kept * (host + store))
    assert total(named(found, "/prefetch/")) == pytest.approx(kept * store)
    written = {"write_through": new, "write_through_selective": hbm, "write_back": new + host + store}[policy]
    assert total(named(found, "/writeback/")) == pytest.approx(kept * written)
    for flow in named(found, "/writeback/"):
        assert flow.kind is FlowKind.WRITEBACK and not flow.due
    for pool in found.memory:
        if pool.kind is MemoryKind.HOST:
            assert set(pool.moved.values()) == {1.0} and not pool.held_until_done


def test_what_lies_in_hbm_leaves_at_once_and_gates_nothing(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn({"hbm": 63_488}))
    found = built(resolved)
    send, *_ = named(found, "/send/")
    assert not named(found, "/load/") and not named(found, "/prefetch/")
    assert send.release[0] == (0, 63_488 * 512 * 94)
    late = variant("agentic_turn_pcie", turn({"hbm": 63_488}, transfer={"early_send": False}))
    (step,) = named(built(late), "/send/")[0].release
    assert step[1] == 65_536 * 512 * 94


def test_hbm_and_loaded_tokens_are_released_apart(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn())
    clock = timeline(resolved)
    found = build_transfers(resolved, clock)
    send, load = named(found, "/send/")[0], named(found, "/load/")[0]
    start = load.release[0][0]
    assert clock.lanes[0].phases[start - 1].operation == "prefetched"
    assert send.release[0] == (start, 16_384 * 512 * 94)
    assert [k for k, _ in send.release[1:-1]] == [k for k, _ in load.due]
    assert {size for _, size in load.due} == {47_104 * 512}


# ---- prefetch --------------------------------------------------------------------------------------------------------
def test_a_prefetch_gates_the_first_phase_and_loads_follow_it(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn())
    clock = timeline(resolved)
    found = build_transfers(resolved, clock)
    for flow in named(found, "/prefetch/"):
        gate = flow.due[0][0]
        assert is_prefetch(flow) and flow.kind is FlowKind.LOAD and flow.release == ((0, flow.volume_bytes),)
        phase = clock.lanes[0].phases[gate]
        assert phase.operation == "prefetched" and phase.duration_s == 0
        assert flow.destination == "P/socket0/host_memory"
    assert {flow.release[0][0] for flow in named(found, "/load/")} == {gate + 1}


def test_a_prefetch_crosses_every_nic_of_the_socket_alike(variant) -> None:
    (route,) = named(built(variant("agentic_turn_pcie", turn())), "/prefetch/P0")[0].routes
    assert {name: share for name, share in route.ports.items() if not name.endswith("store_get")} == {
        "P/nic0/rx": 0.5, "P/nic1/rx": 0.5, "P/nic0/egress": 0.5, "P/nic1/egress": 0.5,
        "P/switch0/up": 0.5, "P/switch1/up": 0.5, "P/root_complex0": 1.0, "P/socket0/host_memory": 1.0,
    }  # fmt: skip
    one = variant("agentic_turn_pcie", turn(transfer={"nics": [1]}, network={"fabric_gbit_per_s": 400}))
    (route,) = named(built(one), "/prefetch/P0")[0].routes
    assert route.ports["P/nic1/rx"] == route.ports["fabric"] == 1.0 and "P/nic0/rx" not in route.ports
    assert route.device == "P/nic1"


@pytest.mark.parametrize(
    ("place", "crossed", "spared"),
    [
        ("prefill_host", {"P/socket0/host_memory": 2.0}, ["P/nic0/rx", "D/nic0/tx"]),
        ("decode_host", {"D/socket0/host_memory": 1.0, "D/nic0/tx": 0.5, "P/nic0/rx": 0.5}, []),
        ("remote", {"P/socket0/host_memory": 1.0, "P/nic0/rx": 0.5}, ["D/nic0/tx"]),
    ],
)
def test_where_the_store_lies(variant, place: str, crossed: dict[str, float], spared: list[str]) -> None:
    changes = turn(store={"backend": "mooncake_store", "place": place})
    ports = named(built(variant("agentic_turn_pcie", changes)), "/prefetch/P0")[0].routes[0].ports
    assert {name: ports[name] for name in crossed} == crossed
    assert not ports.keys() & set(spared)


def test_a_client_has_limits_of_its_own(variant) -> None:
    found = built(variant("agentic_turn_pcie", turn(store={"backend": "3fs"})))
    (port,) = [port for port in found.ports if port.kind is PortKind.STORE]
    assert port.name == "P/store/get" and port.capacity_bytes_per_s == pytest.approx(42.9e9)
    assert all(flow.routes[0].ports["P/store/get"] == 1.0 for flow in named(found, "/prefetch/"))
    disk = built(variant("agentic_turn_pcie", turn(store={"backend": "file"})))
    ports = named(disk, "/prefetch/P0")[0].routes[0].ports
    assert ports.pop("P/gpu0/store_get") > 0
    assert ports == {"P/socket0/host_memory": 1.0, "P/store/get": 1.0}


def test_leases_are_of_batches(variant) -> None:
    lease = named(built(variant("agentic_turn_pcie", turn())), "/prefetch/")[0].lease_s
    assert lease == 2 * 10.0, "16,384 tokens are 256 pages, two batches of 128"
    changes = turn(store={"backend": "mooncake_store", "lease_s": 0.5})
    assert named(built(variant("agentic_turn_pcie", changes)), "/prefetch/")[0].lease_s == 1.0
    none = built(variant("agentic_turn_pcie", turn(store={"backend": "3fs"})))
    assert named(none, "/prefetch/")[0].lease_s is None


# ---- prefetch policies -----------------------------------------------------------------------------------------------
def slow(policy: str, store: int = 16_384, **more: Any) -> dict[str, Any]:
    """A store of 1.95 GB/s: 385,024 B a token of all ranks, 5,064 tokens a second."""
    return turn(
        {"host_memory": 30_720, "store": store},
        store={"backend": "mooncake_store_tcp"},
        cache={"prefetch": policy, **more},
    )


def test_waiting_for_all_recomputes_nothing(variant) -> None:
    resolved = settled(variant("agentic_turn_pcie", slow("wait_complete")))
    assert resolved.requests[0].cached_tokens == 47_104 and not resolved.warnings
    assert settled(resolved) is resolved


def test_best_effort_of_a_request_that_waits_for_nobody_fetches_nothing(variant) -> None:
    resolved = settled(variant("agentic_turn_pcie", slow("best_effort")))
    (request,) = resolved.requests
    assert request.cached_tokens == 30_720 and request.new_tokens == 34_816
    (said,) = resolved.warnings
    assert "16384 of 16384 tokens" in said and "computed again" in said
    assert timeline(resolved).warnings[0] == said
    assert not named(built(resolved), "/prefetch/")


def test_a_timeout_fetches_whole_batches_in_its_time(variant) -> None:
    resolved = settled(variant("agentic_turn_pcie", slow("timeout", 32_768)))
    # 1 s + 0.25 s x 32 = 9 s at 5,064 tokens/s is all; a store half as fast has 22,000 tokens by then
    assert resolved.requests[0].new_tokens == 65_536 - 63_488
    raw = json.loads(resolve("stores", "mooncake_store_tcp").read_text())
    assert raw["read_gb_per_s"]["value"] == 1.95


def test_a_slow_store_times_out(variant, tmp_path) -> None:
    raw = json.loads(resolve("stores", "mooncake_store_tcp").read_text())
    raw["read_gb_per_s"]["value"] = 0.5
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(raw))
    changes = slow("timeout")
    changes["store"] = {"backend": str(path)}
    resolved = settled(variant("agentic_turn_pcie", changes))
    # 5 s at 0.5 GB/s is 6,493 tokens: no whole batch of 8,192
    assert resolved.requests[0].new_tokens == 65_536 - 30_720
    changes["cache"] = {"prefetch": "wait_complete"}
    assert not settled(variant("agentic_turn_pcie", changes)).warnings


def test_less_than_a_page_and_too_few_tokens_are_computed(variant) -> None:
    odd = settled(variant("agentic_turn_pcie", turn({"host_memory": 30_720, "store": 16_400})))
    assert odd.requests[0].new_tokens == 65_536 - 30_720 - 16_384 and "whole or not at all" in odd.warnings[0]
    few = settled(variant("agentic_turn_pcie", turn({"host_memory": 30_720, "store": 255})))
    assert few.requests[0].new_tokens == 65_536 - 30_720 and "256" in few.warnings[0]


def test_a_queued_request_has_its_prefetch_behind_others(variant) -> None:
    requests = [
        {"name": "A", "input_tokens": 24_576},
        {"name": "B", "input_tokens": 40_960, "cached_tokens": 36_864, "cached_in": {"store": 36_864}, "arrival_ms": 5},
    ]
    changes = {"requests": requests, "store": {"backend": "mooncake_store_tcp"}, "cache": {"prefetch": "best_effort"}}
    raw = variant("urgent_user", changes)
    resolved = settled(raw)
    fetched = resolved.requests[1].cached_tokens
    wait = queueing_s(resolved)["B"]
    assert 0 < fetched < 36_864 and fetched % 8_192 == 0
    rate = 1.95e9 / kv_bytes_per_token(resolved.arch, resolved.spec.kv_dtype)  # TP4: no copies
    assert fetched <= wait * rate < fetched + 8_192 * 1.05
    flow = named(built(resolved), "B/prefetch/")[0]
    assert flow.release[0][0] == 0, "from its arrival on, while A runs"


# ---- loads and write-backs by kernels --------------------------------------------------------------------------------
def test_a_kernel_loads_128_bytes_at_a_time_beside_everything_else(variant) -> None:
    engine, kernel = (
        built(variant("agentic_turn_pcie", turn(cache={"load_by": by, "write_policy": "write_through"})))
        for by in ("copy_engine", "kernel")
    )
    for found, share, fifo, link in ((engine, 24 / 512, True, "copy_engine"), (kernel, 24 / 128, False, "sm")):
        (load,) = named(found, "/load/P0")[0].routes
        assert load.ports["P/gpu0/egress"] == pytest.approx(share) and load.fifo is fifo
        (back,) = named(found, "/writeback/P0")[0].routes
        assert back.input_links["P/gpu0/egress"] == (link,) and back.fifo is fifo
    assert engine.flows[0].routes[0].device == "P/gpu0/h2d" and kernel.flows[0].routes[0].device == ""


def test_who_copies_is_the_engines_word_unless_the_scenario_has_one(variant) -> None:
    for engine, said, by_kernel in (
        ("sglang_mooncake", {}, True),
        ("sglang_nixl", {}, True),
        ("vllm_nixl", {}, False),
        ("sglang_mooncake", {"load_by": "copy_engine"}, False),
        ("vllm_nixl", {"load_by": "kernel"}, True),
    ):
        resolved = variant("agentic_turn_pcie", turn(prefill={"engine": engine}, cache=said))
        (load,) = named(built(resolved), "/load/P0")[0].routes
        assert load.fifo is not by_kernel
        assert any("SMs" in note for note in resolved.assumed) is by_kernel
    hbm = variant("agentic_turn_pcie", turn({"hbm": 63_488}))
    assert not any("SMs" in note for note in hbm.assumed), "nothing is copied"


# ---- write-backs -----------------------------------------------------------------------------------------------------
def test_write_through_leaves_when_the_prefill_ends(variant) -> None:
    resolved = variant(
        "agentic_turn_pcie", turn(prefill={"chunk_tokens": 512}, cache={"write_policy": "write_through"})
    )
    clock = timeline(resolved)
    flows = named(build_transfers(resolved, clock), "/writeback/")
    assert {flow.release for flow in flows} == {((len(clock.lanes[0].phases), 2_048 * 512 * 94),)}
    assert {flow.destination for flow in flows} == {"P/socket0/host_memory"}


def test_write_through_to_the_store_is_one_chain(variant) -> None:
    cache = {"write_policy": "write_through", "write_to": "store"}
    once, twice = (
        built(variant("agentic_turn_pcie", turn(cache=cache, store={"backend": "mooncake_store", "replicas": count})))
        for count in (1, 2)
    )
    for found, count in ((once, 1), (twice, 2)):
        (flow,) = named(found, "/writeback/P0>store")
        ports = flow.routes[0].ports
        assert ports["P/gpu0/egress"] == 1.0 and ports["P/nic0/tx"] == 0.5 * count
        assert ports["P/socket0/host_memory"] == 1.0 + count and flow.destination == "P/store"
        assert total(named(found, "/writeback/")) == 2 * PER_TOKEN * 2_048


def test_a_latent_is_written_to_the_store_once_but_fetched_by_every_rank(variant) -> None:
    request = {"name": "r", "input_tokens": 16_384, "cached_tokens": 8_192, "cached_in": "store"}
    cache = {"write_policy": "write_through", "write_to": "store"}
    resolved = variant("mla_deepseek_v3_pcie", {"requests": [request], "cache": cache, **STORE})
    found = built(resolved)
    latent = 8_192 * kv_bytes_per_token(resolved.arch, resolved.spec.kv_dtype)
    assert [flow.name for flow in named(found, "/writeback/") if flow.name.endswith(">store")] == [
        "r/writeback/P0>store"
    ]
    assert total(named(found, ">store")) == latent and total(named(found, ">host")) == 7 * latent
    assert total(named(found, "/prefetch/")) == 8 * latent == total(named(found, "/load/"))


def test_eviction_starts_with_the_request_and_never_reaches_the_store(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn(cache={"write_policy": "write_back"}))
    clock = timeline(resolved)
    found = build_transfers(resolved, clock)
    start = named(found, "/load/")[0].release[0][0]
    assert {flow.release[0][0] for flow in named(found, "/writeback/")} == {start}
    assert any("full" in note for note in clock.assumed)
    with pytest.raises(InputError, match="write_back copies to host memory alone") as caught:
        variant("agentic_turn_pcie", turn(cache={"write_policy": "write_back", "write_to": "store"}))
    assert caught.value.path == "cache.write_to"


# ---- host memory -----------------------------------------------------------------------------------------------------
def test_host_memory_has_what_is_found_there_and_takes_what_comes(variant) -> None:
    cache = {"write_policy": "write_through", "host_memory_gib": 256}
    found = built(variant("agentic_turn_pcie", turn(cache=cache)))
    (pool,) = [pool for pool in found.memory if pool.kind is MemoryKind.HOST]
    assert pool.name == "P/socket0/kv" and pool.capacity_bytes == 256 * 2**30
    assert pool.base_bytes == 2 * PER_TOKEN * 30_720
    assert set(pool.moved) == {flow.name for flow in found.flows if is_prefetch(flow) or "/writeback/" in flow.name}
    default = built(variant("agentic_turn_pcie", turn()))
    (pool,) = [pool for pool in default.memory if pool.kind is MemoryKind.HOST]
    hbm = next(pool for pool in default.memory if pool.kind is MemoryKind.PREFILL_HBM)
    assert pool.capacity_bytes == pytest.approx(2.0 * 8 * hbm.capacity_bytes)
    assert not [pool for pool in built(variant("agentic_turn_pcie")).memory if pool.kind is MemoryKind.HOST]


# ---- sends through the store -----------------------------------------------------------------------------------------
def through(**more: Any) -> dict[str, Any]:
    return {"transfer": {"through": "store"}, **STORE, **more}


def test_through_a_store_every_byte_is_put_once_and_got_as_often_as_it_is_kept(variant) -> None:
    direct = built(variant("rtx_pro_6000_qwen3_235b"))
    stored = built(variant("rtx_pro_6000_qwen3_235b", through()))
    assert total(named(stored, "/send/")) == pytest.approx(total(named(direct, "/send/")))
    for flow in named(stored, "/send/"):
        (route,) = flow.routes
        assert sum(m for port, m in route.ports.items() if port.startswith("P/nic") and port.endswith("tx")) == 1.0
        assert sum(m for port, m in route.ports.items() if port.startswith("D/nic") and port.endswith("rx")) == 1.0
        assert not route.fifo and flow.lease_s is not None
    latent = variant("mla_deepseek_v3_pcie", through())
    flows = named(built(latent), "/send/")
    assert len(flows) == 8 and {flow.source for flow in flows} == {"P/gpu0"}
    assert sum(flow.routes[0].ports["P/gpu0/egress"] for flow in flows) == pytest.approx(1.0, rel=1e-3)
    assert {flow.routes[0].ports[f"D/gpu{k}/ingress"] for k, flow in enumerate(flows)} == {1.0}


def test_copies_on_the_decode_side_share_one_put(variant) -> None:
    changes = through(
        llm="qwen3-8b",
        prefill={"tp_size": 1, "ep_size": 1, "instances": 1, "gpus": None},
        decode={"tp_size": 8, "ep_size": 1, "max_running_requests": 1},
        requests=[{"name": "r", "input_tokens": 8_192}],
    )
    flows = named(built(variant("rtx_pro_6000_qwen3_235b", changes)), "/send/")
    put = sum(flow.volume_bytes * flow.routes[0].ports["P/nic0/tx"] for flow in flows)
    assert put == pytest.approx(8_192 * kv_bytes_per_token(variant("rtx_pro_6000_qwen3_235b", changes).arch, "bf16"))


def test_replicas_are_put_and_one_is_got(variant) -> None:
    changes = through(store={"backend": "mooncake_store", "replicas": 3})
    (route,) = named(built(variant("rtx_pro_6000_qwen3_235b", changes)), "/send/P0")[0].routes
    assert route.ports["P/gpu0/egress"] == 3.0 and route.ports["P/nic0/tx"] == 3.0 and route.ports["D/nic0/rx"] == 1.0


def test_a_backend_has_copies_of_its_own(variant, tmp_path) -> None:
    raw = json.loads(resolve("stores", "mooncake_store").read_text())
    raw["replicas"]["value"] = 2
    path = tmp_path / "double.json"
    path.write_text(json.dumps(raw))
    for said, count in (({}, 2), ({"replicas": 1}, 1)):
        changes = through(store={"backend": str(path), **said})
        (route,) = named(built(variant("rtx_pro_6000_qwen3_235b", changes)), "/send/P0")[0].routes
        assert route.ports["P/nic0/tx"] == count


@pytest.mark.parametrize("release", ["kv_write", "layer", "chunk", "prefill"])
def test_an_object_is_whole_when_its_chunk_is(variant, release: str) -> None:
    changes = through()
    changes["transfer"]["release_after"] = release
    resolved = variant("rtx_pro_6000_qwen3_235b", changes)
    clock = timeline(resolved)
    send = named(build_transfers(resolved, clock), "left/send/")[0]
    ends = {k + 1 for k, phase in enumerate(clock.lanes[0].phases) if phase.chunk >= 0}
    assert len(send.release) == (1 if release == "prefill" else 4) and {k for k, _ in send.release} <= ends


def test_what_the_store_has_is_got_and_not_put(variant) -> None:
    resolved = variant("agentic_turn_pcie", turn(transfer={"through": "store"}))
    found = built(resolved)
    stored, put = named(found, "/stored"), [f for f in named(found, "/send/") if not f.name.endswith("/stored")]
    assert total(stored) == PER_TOKEN * 16_384 and total(put) == PER_TOKEN * (65_536 - 16_384)
    assert all(not any(port.startswith("P/") for port in flow.routes[0].ports) for flow in stored)
    cache = {"write_policy": "write_through", "write_to": "store"}
    all_there = built(variant("agentic_turn_pcie", turn(transfer={"through": "store"}, cache=cache)))
    assert total(named(all_there, "/stored")) == PER_TOKEN * 63_488


# ---- control ---------------------------------------------------------------------------------------------------------
def test_control_of_the_ways(variant) -> None:
    direct = variant("rtx_pro_6000_qwen3_235b")
    plain = control(direct, direct.requests[0])
    assert plain.set_up_s == pytest.approx(1.84e-3) and plain.query_s == plain.store_s == 0
    resolved = variant("rtx_pro_6000_qwen3_235b", through())
    found = control(resolved, resolved.requests[0])
    # one batch of 128 pages, keys and values apart, of each of four ranks, into one NIC of 46 GB/s
    batch = 8_192 * PER_TOKEN / 46e9 + 256 * 9.3e-6
    assert forwarded_s(resolved, resolved.requests[0]) == pytest.approx(batch, rel=0.02)
    assert found.set_up_s == 0 and found.store_s == pytest.approx(425e-6 + batch, rel=0.02)
    tiers = variant("agentic_turn_pcie", turn())
    assert control(tiers, tiers.requests[0]).query_s == pytest.approx(2 * 153e-6)


def test_a_request_waits_for_what_its_queue_and_prefetch_do_not_hide(variant) -> None:
    """2 ms of handshake start when it arrives, as does the query."""
    direct = variant("rtx_pro_6000_qwen3_235b")
    waits = {0.0: 2e-3, 1.5e-3: 0.5e-3, 3e-3: 0.0}
    for queue_s, left in waits.items():
        found = control(direct, direct.requests[0], queue_s)
        assert found.before_s == pytest.approx(left) and found.total_s == pytest.approx(left + found.after_s)
    tiers = variant("agentic_turn_pcie", turn())
    request, query = tiers.requests[0], 2 * 153e-6
    fetch = fetch_alone_s(tiers, request)
    assert fetch > 2e-3, "the handshake is over before it is"
    assert control(tiers, request).before_s == pytest.approx(query)
    assert control(tiers, request, fetch + 0.75 * query).before_s == pytest.approx(0.25 * query)
    assert control(tiers, request, 1.0).before_s == 0.0


# ---- what does not fit -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        (turn(store=None), "store", "requests.0.cached_in: store needs a store"),
        ({"transfer": {"through": "store"}}, "store", "transfer.through: store needs a store"),
        ({"cache": {"write_policy": "write_through", "write_to": "store"}}, "store", "cache.write_to: store needs"),
        ({"transfer": {"through": "store"}, "store": {"backend": "file"}}, "store.backend", "disks of one node"),
        (turn(store={"backend": "mooncake_stor"}), None, "mooncake_stor"),
    ],
)
def test_what_does_not_fit_is_refused(variant, changes: dict[str, Any], path: str | None, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        variant("agentic_turn_pcie", changes)
    assert path is None or caught.value.path == path


def test_tiers_must_add_up(variant) -> None:
    changes = turn()
    changes["requests"][0]["cached_tokens"] = 63_000
    with pytest.raises(InputError, match="the tiers hold 63488 tokens, cached_tokens is 63000"):
        variant("agentic_turn_pcie", changes)


def test_a_store_that_reads_into_hbm_is_not_covered(variant) -> None:
    with pytest.raises(CoverageError, match="reads into HBM"):
        variant("agentic_turn_pcie", turn(store={"backend": "nixl_gds"}))


def test_what_is_assumed_of_the_store_is_said(variant) -> None:
    notes = timeline(variant("agentic_turn_pcie", turn())).assumed
    assert any("other nodes of the store" in note for note in notes)
    assert any("object_get_us" in note for note in notes)
    beside = "memory of its own on the prefill node"
    for place in ("prefill_host", "remote"):
        here = variant("agentic_turn_pcie", turn(store={"backend": "mooncake_store", "place": place}))
        assert any(beside in note for note in here.assumed) is (place == "prefill_host")
