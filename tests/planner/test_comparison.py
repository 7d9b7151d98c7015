"""One scenario under several engines."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdmodel import comparison
from pdmodel.comparison import CONTROL, compare_engines, send_bound, with_engine
from pdmodel.engines.catalog import load_engine
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.planner import plan
from pdmodel.record import scenario_record
from pdmodel.resolve import load_scenario, read_scenario
from pdmodel.resources import resolve
from pdmodel.transfer.sends import parts_of

SCENARIO = "rtx_pro_6000_qwen3_32b_tp4"


def test_a_row_is_the_plan_of_that_engine():
    (row,) = compare_engines(SCENARIO, ["vllm_nixl"])
    alone = plan(SCENARIO)  # its own engine
    assert row.engine.name == "vllm_nixl" and row.found is not None
    assert row.found.ttft_plan_s == alone.times.ttft_s
    assert row.found.cost_plan == alone.replay.cost
    assert row.found.verdict == alone.verdict.kind.value
    assert row.found.applicable == alone.applicable.policy
    unmanaged = next(policy for policy in alone.policies if policy.name == "unmanaged")
    assert (row.found.ttft_unmanaged_s, row.found.cost_unmanaged) == (unmanaged.ttft_s, unmanaged.cost)


def test_engines_differ_as_their_facts_do():
    """Layer by layer hides what a send after the prefill exposes; the rest of the stall is the control plane's."""
    told: list[str] = []
    rows = compare_engines(SCENARIO, ["layerwise", "vllm_nixl", "mooncake_te"], progress=told.append)
    layerwise, nixl, bare = (row.found for row in rows)
    assert layerwise is not None and nixl is not None and bare is not None
    # What TTFT has of the control plane before the prefill, no stall has: 2 ms of handshake, none without an engine.
    exposed = [row.decode_stall_s - row.control_s + 2e-3 * (row is not bare) for row in (layerwise, nixl, bare)]
    assert exposed[1] > exposed[0] >= 0
    assert exposed[0] == pytest.approx(exposed[2], abs=1e-6)
    assert nixl.control_s > layerwise.control_s > bare.control_s > 0
    assert [name for name in told if ":" not in name] == ["layerwise", "vllm_nixl", "mooncake_te"]
    assert any(text.startswith("vllm_nixl: ") for text in told)


def test_descriptors_are_those_of_all_requests():
    (row,) = compare_engines("urgent_user", ["sglang_mooncake"])
    resolved = load_scenario("urgent_user")
    assert resolved.engine.name == "sglang_mooncake" and row.found is not None
    each = [sum(part.pieces.descriptors for part in parts_of(resolved, request)) for request in resolved.requests]
    assert row.found.descriptors == sum(each)
    assert min(each) > 0 and len(each) > 1


def test_heads_that_are_split_cost_descriptors_by_layout():
    """Four ranks to eight: a token at a time (NHD), a page of 16 (HND), or packed."""
    spec, _ = read_scenario(SCENARIO)
    wider = spec.model_copy(update={"decode": spec.decode.model_copy(update={"tp_size": 8})})
    rows = compare_engines(wider, ["sglang_mooncake", "vllm_mooncake", "vllm_nixl", "tensorrt_llm"])
    nhd, pushed, pulled, packed = (row.found for row in rows)
    assert nhd is not None and pushed is not None and pulled is not None and packed is not None
    assert nhd.descriptors == 16 * pushed.descriptors == 16 * pulled.descriptors
    assert packed.descriptors < pushed.descriptors / 100
    assert (nhd.bound_by, pushed.bound_by, packed.bound_by) == ("descriptors", "descriptors", "control")
    waits = [row.decode_stall_s - row.control_s for row in (nhd, pushed, pulled, packed)]
    assert waits[0] > 50 * waits[3]
    assert waits[0] > waits[1] > waits[2] > waits[3]


def test_an_engine_by_path_beside_shipped_ones(tmp_path: Path):
    raw = json.loads(resolve("engines", "layerwise").read_text())
    raw["name"] = "mine"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(raw))
    mine, shipped = compare_engines(SCENARIO, [str(path), "layerwise"])
    assert mine.engine.name == "mine"
    assert mine.found == shipped.found


def test_what_an_engine_cannot_run_is_said_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch):
    def refusing(resolved, progress):
        if resolved.engine.name == "vllm_mooncake":
            raise CoverageError("memory of the decode side: 120 GiB at 0.4 s", expected="at most 96 GiB")
        return plan(resolved, progress=progress)

    monkeypatch.setattr(comparison, "plan", refusing)
    refused, other = compare_engines(SCENARIO, ["vllm_mooncake", "layerwise"])
    assert refused.found is None
    assert refused.refused == "memory of the decode side: 120 GiB at 0.4 s; expected at most 96 GiB"
    assert other.found is not None and not other.refused


def test_a_scenario_that_nobody_can_run_is_an_error(tmp_path: Path):
    raw = json.loads(resolve("scenarios", SCENARIO).read_text())
    raw["prefill"]["tp_size"] = 512
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"wide.json: prefill"):
        compare_engines(path, ["layerwise", "vllm_nixl"])


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (["sglang"], r"engines: unknown engine 'sglang'.*did you mean 'sglang_nixl'"),
        (["vllm_nixl", "vllm_nixl"], r"engines: 'vllm_nixl' is named twice; expected each engine once"),
        ([], r"engines: no engine is named; expected one of layerwise, "),
    ],
)
def test_engines_that_cannot_be_compared(engines: list[str], message: str):
    with pytest.raises(InputError, match=message):
        compare_engines(SCENARIO, engines)


def test_unknown_scenario():
    with pytest.raises(InputError, match="unknown scenario 'nope'"):
        compare_engines("nope")


def test_an_engine_that_goes_through_a_store_gets_one():
    spec, _ = read_scenario(SCENARIO)
    assert spec.store is None
    found = with_engine(spec, "vllm_mooncake_store", load_engine("vllm_mooncake_store"))
    assert found.store is not None and found.store.backend == "mooncake_store"
    assert with_engine(spec, "vllm_mooncake", load_engine("vllm_mooncake")).store is None
    given = found.model_copy(update={"store": found.store.model_copy(update={"replicas": 2})})
    kept = with_engine(given, "vllm_mooncake_store", load_engine("vllm_mooncake_store"))
    assert kept.store is not None and kept.store.replicas == 2


def test_what_sends_take_longest_for():
    """The fullest port of a request; a posting port of a tenth of its rate makes it descriptors."""
    _, data = scenario_record(load_scenario(SCENARIO))
    what, port = send_bound(data, 0.0)
    assert what == "bandwidth" and port in data.port_index
    sent = dict.fromkeys(data.port_index, 0.0)
    for flow in data.flows:
        for share, route in zip(flow.split, flow.routes, strict=True):
            for name, crossings in route.ports.items():
                sent[name] += flow.volume_bytes * share * crossings
    longest = max(sent[p.name] / p.capacity_bytes_per_s for p in data.ports)
    assert sent[port] / data.ports[data.port_index[port]].capacity_bytes_per_s == pytest.approx(longest)
    assert send_bound(data, longest * 1.01) == (CONTROL, None)
    assert send_bound(data, longest * 0.99) == (what, port)
    slow = Port("P/gpu0/posting", PortKind.POSTING, data.ports[data.port_index[port]].capacity_bytes_per_s / 10)
    posted = replace(
        data,
        ports=(*(p for p in data.ports if p.name != slow.name), slow),
        flows=tuple(
            replace(flow, routes=tuple(replace(r, ports={**r.ports, slow.name: 1.0}) for r in flow.routes))
            for flow in data.flows
        ),
    )
    assert send_bound(posted, 0.0) == ("descriptors", slow.name)


def test_nothing_sent_is_bound_by_the_control_plane():
    _, data = scenario_record(load_scenario(SCENARIO))
    assert send_bound(replace(data, flows=()), 0.0) == (CONTROL, None)
