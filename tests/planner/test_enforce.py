"""Who can pace what: bursts, gaps and bytes in flight worked by hand."""

from dataclasses import replace

import pytest

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Gate
from pdmodel.enforce import (
    applicable,
    enforceability,
    phase_bursts,
    send_order,
    settings,
    work_requests_within,
)
from pdmodel.engines.catalog import host_knobs, load_engine
from pdmodel.engines.spec import Knob
from pdmodel.hardware.ports import Port, PortKind
from pdmodel.later import Later, later_sends, later_writes
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import AFTER_PREFILL, SENDS_FIRST, STRICT, UNMANAGED, cap
from pdmodel.scenario import WritePolicy

GB = 1e9


def burst_case(*, burst_s=4e-3, gap_s=4e-3, guard=0.05, layers=4, kind="send", after_prefill=False):
    """Layers of compute and a collective on one 50 GB/s port; KV of each layer is 8 MB."""
    phases = []
    for _ in range(layers):
        phases += [{"duration": gap_s, "bytes": {}}, {"duration": burst_s, "bytes": {"e": 40 * GB * burst_s}}]
    steps = [[2 * k if kind == "load" else 2 * k + 1, 8e6] for k in range(layers)]
    total = [[0 if kind == "load" else 2 * layers, 8e6 * layers]]
    steps = total if after_prefill else steps
    return AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50 * GB, "guard": guard * 50 * GB}},
            "phases": phases,
            "lane_price": 5.0,
            "flows": [
                {
                    "name": "f",
                    "kind": kind,
                    "routes": [{"e": 1}],
                    "release": total if kind == "load" else steps,
                    "due": {"send": total, "load": steps, "writeback": []}[kind],
                    "price": 0.0 if kind == "writeback" else 1.0,
                    "quantum": None,
                }
            ],
        }
    )


def judged(data, engine):
    bursts = phase_bursts(data, engine)
    return bursts, enforceability(bursts, engine)


def test_long_bursts_of_a_layerwise_engine_are_gateable_with_fewer_work_requests():
    """A burst of 4 ms under a guard of 2.5 GB/s admits 10 MB; slices of 64 KiB on 2 queue pairs: 76 work requests."""
    engine = load_engine("layerwise")
    (burst,), (found,) = judged(burst_case(), engine)
    assert burst.guard_bytes == pytest.approx(10e6)
    assert (burst.burst_s, burst.gap_s) == (pytest.approx(4e-3), pytest.approx(4e-3))
    assert engine.posting.in_flight_bytes == 32 * 2**20
    assert work_requests_within(burst, engine) == 76
    assert found.gate is Gate.GATEABLE
    assert "76 work requests in flight instead of 256" in found.text


def test_short_gaps_are_the_nics():
    """A gap of 20 us is shorter than the 30 us that it takes to see it."""
    _, (found,) = judged(burst_case(burst_s=6e-5, gap_s=2e-5), load_engine("layerwise"))
    assert found.gate is Gate.CLASS_ONLY
    assert found.needed_s == pytest.approx(30e-6 + 65536 / 50e9)
    assert "the gap is shorter" in found.text


def test_an_engine_that_submits_chunks_cannot_gate():
    _, (found,) = judged(burst_case(), load_engine("sglang_mooncake"))
    assert found.gate is Gate.CLASS_ONLY
    assert "submits a whole chunk" in found.text


def test_loads_that_no_nic_carries_are_nobodys():
    """8 MB a layer are in flight where the guard admits 2.5 GB/s for 1 ms."""
    _, (found,) = judged(burst_case(burst_s=1e-3, kind="load"), load_engine("layerwise"))
    assert found.gate is Gate.NEITHER
    assert "2.5 MB a burst" in found.text


def test_no_collective_beside_kv_is_nothing_to_enforce():
    alone = AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50.0}, "other": {"capacity": 50.0}},
            "phases": [{"duration": 1.0, "bytes": {"other": 20.0}}],
            "lane_price": 2.0,
            "flows": [
                {
                    "name": "f",
                    "kind": "send",
                    "routes": [{"e": 1}],
                    "release": [[0, 10.0]],
                    "due": [[1, 10.0]],
                    "price": 1.0,
                }
            ],
        }
    )
    assert phase_bursts(alone, load_engine("layerwise")) == ()


@pytest.mark.parametrize("rule", [UNMANAGED, cap("e", 1e9)])
def test_rules_without_gates_can_be_applied(rule):
    data = burst_case()
    found = applicable([(rule, simulate(data, rule))], rule, 1.0, (), 1.0)
    assert (found.policy, found.worth_of_gates) == (rule.name, 0.0)


def test_missing_gates_have_a_worth():
    """`strict` cannot be gated by an engine that submits chunks: `unmanaged` is left, at its own cost."""
    data, engine = burst_case(), load_engine("sglang_mooncake")
    tried = [(UNMANAGED, simulate(data, UNMANAGED)), (STRICT, simulate(data, STRICT))]
    _, judgement = judged(data, engine)
    found = applicable(tried, STRICT, tried[1][1].cost, judgement, 0.16)
    assert found.policy == "unmanaged"
    assert found.cost == tried[0][1].cost
    assert found.worth_of_gates == pytest.approx(tried[0][1].cost - tried[1][1].cost)
    assert found.worth_of_gates > 0


def test_a_lane_without_a_collective_has_no_bursts():
    """One GPU, or an instance without requests: nothing to gate, and nothing to fail on."""
    data = AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50 * GB}},
            "phases": [{"duration": 1e-3, "bytes": {}}],
            "lane_price": 1.0,
            "flows": [
                {
                    "name": "f",
                    "kind": "send",
                    "routes": [{"e": 1}],
                    "release": [[1, GB]],
                    "due": [[1, GB]],
                    "price": 1.0,
                }
            ],
        }
    )
    assert phase_bursts(data, load_engine("layerwise")) == ()


# ---- what follows from the facts of an engine ------------------------------------------------------------------------


def changed(name="layerwise", *, backend=None, **facts):
    """A shipped engine with other facts (and facts of its backend)."""
    engine = load_engine(name)

    def fact(old, value):
        return old.model_copy(update={"value": type(old.value)(value)})

    update = {key: fact(getattr(engine, key), value) for key, value in facts.items()}
    if backend:
        update["backend"] = engine.backend.model_copy(update=backend)
    return engine.model_copy(update=update)


def test_who_reads_does_not_see_the_bursts_of_the_other_side():
    """The same pieces and gaps: an engine that pulls is on the other side of the wire."""
    _, (found,) = judged(burst_case(), changed(mode="pull"))
    assert found.gate is Gate.CLASS_ONLY
    assert "the decode side reads, and does not see the bursts of the prefill side" in found.text


def test_a_put_into_a_store_is_submitted_beside_the_bursts():
    _, (found,) = judged(burst_case(), changed(mode="pull", through="store"))
    assert found.gate is Gate.GATEABLE


def test_fewer_work_requests_need_a_knob_for_them():
    """TENT posts as the classic engine does; no setting of its work requests is known."""
    tent = load_engine("mooncake_tent")
    assert tent.posting.in_flight_bytes == load_engine("layerwise").posting.in_flight_bytes
    _, (found,) = judged(burst_case(), tent)
    assert found.gate is Gate.CLASS_ONLY
    assert "33.6 MB in flight, the guard admits 10 MB a burst" in found.text


def test_what_is_sent_after_the_prefill_meets_no_collective_of_its_own():
    assert judged(burst_case(after_prefill=True), load_engine("vllm_nixl")) == ((), ())
    unmanaged = simulate(burst_case(after_prefill=True), UNMANAGED)
    found = applicable([(UNMANAGED, unmanaged)], STRICT, 1.0, (), 1.0)
    assert (found.policy, found.text) == ("strict", "KV meets no collective: nothing has to be held back")


def test_what_is_sent_after_the_prefill_meets_other_instances():
    case = two_lanes()
    ((burst,), (found,)) = judged(case, load_engine("tensorrt_llm"))
    assert burst.burst_s == pytest.approx(4e-3)
    assert found.gate is Gate.CLASS_ONLY
    assert "submits a whole request" in found.text


def two_lanes():
    """Lane 0 sends after its prefill; lane 1 runs collectives on the same port meanwhile."""

    def lane(start):
        phases = []
        for k in range(4):
            at = start + 8e-3 * k
            phases.append({"start": at, "end": at + 4e-3, "duration": 4e-3, "bytes": {}})
            phases.append({"start": at + 4e-3, "end": at + 8e-3, "duration": 4e-3, "bytes": {"e": 1.6e8}})
        return {"price": 5.0, "phases": phases}

    return AllocationData.from_dict(
        {
            "ports": {"e": {"capacity": 50 * GB, "guard": 2.5 * GB}},
            "lanes": [lane(0.0), lane(16e-3)],
            "flows": [
                {
                    "name": "f",
                    "kind": "send",
                    "lane": 0,
                    "routes": [{"e": 1}],
                    "release": [[8, 3.2e7]],
                    "due": [[8, 3.2e7]],
                    "price": 1.0,
                    "quantum": None,
                }
            ],
        }
    )


def test_a_buffer_is_submitted_at_a_time():
    """16 MB of a request of 32 MB are packed into the buffer."""
    whole, packed = (changed("tensorrt_llm", staging_bytes=size) for size in (0, 16_000_000))
    assert [phase_bursts(two_lanes(), engine)[0].piece_bytes for engine in (whole, packed)] == [32e6, 16e6]


def test_write_backs_follow_the_write_policy():
    case = burst_case(burst_s=1e-3, kind="writeback")
    _, (found,) = judged(case, load_engine("sglang_mooncake"))
    assert found.phase_kind.endswith("beside write-backs")
    assert found.gate is Gate.NEITHER
    assert "--hicache-write-policy says when they are made" in found.text
    _, (bare,) = judged(case, load_engine("layerwise"))
    assert "smaller copies, submitted later, would" in bare.text


def test_a_policy_that_writes_back_last_is_a_setting():
    engine = load_engine("sglang_mooncake")
    rule = replace(UNMANAGED, name="later", writebacks_last=True)

    def lines(engine, written):
        later = Later(later_writes(engine, written))
        return settings(
            (), (), (), engine=engine, host=host_knobs(), policy=rule, nic_rate_bytes_per_s=0.0, later=later
        )

    (line,) = lines(engine, WritePolicy.WRITE_THROUGH)
    assert (line.name, line.value, line.side) == ("--hicache-write-policy", "write_back", "P")
    assert lines(engine, WritePolicy.WRITE_BACK) == lines(load_engine("layerwise"), WritePolicy.WRITE_THROUGH) == ()


def test_later_write_backs_need_a_knob():
    """Without one, `sends_first` is what no engine does: `unmanaged` is left, though it costs more."""
    data = burst_case(burst_s=1e-3, kind="writeback")
    late = simulate(data, UNMANAGED)
    tried = [(UNMANAGED, replace(late, cost=3.0)), (SENDS_FIRST, replace(late, policy="sends_first", cost=1.0))]
    (knob, none) = (
        later_writes(load_engine(name), WritePolicy.WRITE_THROUGH) for name in ("sglang_mooncake", "vllm_mooncake")
    )
    assert none is None and later_writes(load_engine("sglang_mooncake"), WritePolicy.WRITE_BACK) is None
    assert [p.name for p, _ in Later(none).without_gates(tried)] == ["unmanaged"]
    chosen = applicable(tried, SENDS_FIRST, 1.0, (), 1.0, later=Later(knob))
    assert chosen.text == "sends_first needs no gate: it can be applied by --hicache-write-policy write_back"
    _, judgement = judged(data, load_engine("sglang_mooncake"))
    with_knob, without = (applicable(tried, STRICT, 0.5, judgement, 1.0, later=Later(one)) for one in (knob, none))
    assert (with_knob.policy, with_knob.cost, with_knob.worth_of_gates) == ("sends_first", 1.0, 0.5)
    assert "can be applied by --hicache-write-policy write_back, and" in with_knob.text
    assert (without.policy, without.cost, without.worth_of_gates) == ("unmanaged", 3.0, 2.5)


EARLY = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
TURN, PROMPT = "agentic_turn_pcie", "rtx_pro_6000_qwen3_235b"


@pytest.mark.parametrize(
    ("scenario", "engine", "transfer", "found"),
    [
        # One chunk: only the cached prefix leaves before it ends.
        (TURN, "sglang_mooncake", {}, [(EARLY, "False")]),
        (TURN, "sglang_mooncake", {"early_send": False}, []),
        # Four chunks of a fresh prompt, sent one by one: nothing keeps them back.
        (PROMPT, "sglang_mooncake", {}, None),
        (PROMPT, "sglang_mooncake", {"release_after": "prefill"}, []),
        # By layer, without a knob for it.
        (TURN, "layerwise", {}, None),
        (TURN, "mooncake_tent", {}, None),
        # After the prefill, by what they are.
        (PROMPT, "vllm_nixl", {}, []),
        (TURN, "tensorrt_llm", {"release_after": "chunk", "early_send": True}, []),
    ],
)
def test_who_can_send_after_the_prefill(variant, scenario, engine, transfer, found) -> None:
    changes = {"prefill": {"engine": engine}, "transfer": {"release_after": None, "early_send": None} | transfer}
    sends = later_sends(variant(scenario, changes))
    assert (None if sends is None else [(knob.name, value) for knob, value in sends]) == found


def test_a_knob_that_sets_the_release_makes_sends_wait(variant) -> None:
    resolved = variant(PROMPT, {"transfer": {"release_after": None}})
    given = {"name": "--send-after", "unit": "event", "default": "chunk", "side": "P", "process": "engine"}
    knob = Knob(**given, maps_to="release", sets="release_after", effect="when KV leaves", source="sglang_wheel")
    engine = resolved.engine.model_copy(update={"knobs": (knob,)})
    later = Later.of(replace(resolved, engine=engine))
    assert later.sends == ((knob, "prefill"),)
    assert later.how(AFTER_PREFILL) == "by --send-after prefill"
    assert later.how(UNMANAGED) == "as it is"
    (line,) = settings(
        (), (), (), engine=engine, host=host_knobs(), policy=AFTER_PREFILL, nic_rate_bytes_per_s=0.0, later=later
    )
    assert (line.name, line.value, line.side) == ("--send-after", "prefill", "P")


def test_sends_that_cannot_wait_are_no_rule_that_can_be_applied() -> None:
    """`after_prefill` is cheapest, and the engine sends chunk by chunk: `unmanaged` is left."""
    data = burst_case()
    late = simulate(data, UNMANAGED)
    tried = [(UNMANAGED, replace(late, cost=3.0)), (AFTER_PREFILL, replace(late, policy="after_prefill", cost=1.0))]
    _, judgement = judged(data, load_engine("sglang_mooncake"))
    for gates in (judgement, ()):
        found = applicable(tried, AFTER_PREFILL, 1.0, gates, 1.0)
        assert (found.policy, found.cost, found.worth_of_gates) == ("unmanaged", 3.0, 2.0)
        assert found.text.startswith("no knob makes sends wait for the end of their prefill; unmanaged (3 GPU·s)")
        does = applicable(tried, AFTER_PREFILL, 1.0, gates, 1.0, later=Later(sends=()))
        assert (does.policy, does.cost) == ("after_prefill", 1.0)


def test_what_breaks_a_limit_is_not_applied_while_something_else_is_there():
    data = burst_case()
    late = simulate(data, UNMANAGED)
    tried = [(UNMANAGED, replace(late, cost=1.0)), (AFTER_PREFILL, replace(late, policy="after_prefill", cost=2.0))]
    _, judgement = judged(data, load_engine("sglang_mooncake"))
    found = [
        applicable(tried, STRICT, 0.5, judgement, 1.0, later=Later(sends=()), broken=broken).policy
        for broken in ((), {"unmanaged"}, {"after_prefill"}, {"unmanaged", "after_prefill"})
    ]
    assert found == ["unmanaged", "after_prefill", "unmanaged", "unmanaged"]


def test_what_a_nic_carries_is_told_by_its_ports():
    """A load that crosses a NIC's port comes from a store: a class of the NIC can hold it."""
    case = burst_case(burst_s=1e-3, kind="load")
    over_nic = replace(case, ports=(replace(case.ports[0], kind=PortKind.NIC_RX),))
    _, (found,) = judged(over_nic, load_engine("sglang_mooncake"))
    assert found.gate is Gate.CLASS_ONLY
    assert "submits what it has of a request (8 MB a route) in one go" in found.text


def test_copies_into_hbm_are_not_held_by_what_holds_prefetches():
    """16 MB a layer from host memory beside 8 MB a layer over a NIC: each is judged by its own pieces."""
    phases = [{"duration": 4e-3, "bytes": {}}, {"duration": 1e-3, "bytes": {"e": 40e6}}] * 4
    loads = [
        {
            "name": f"load over {' and '.join(route)}",
            "kind": "load",
            "routes": [dict.fromkeys(route, 1)],
            "release": [[0, 4 * size]],
            "due": [[2 * k, size] for k in range(4)],
            "price": 1.0,
        }
        for route, size in ((("e", "nic"), 8e6), (("e",), 16e6))
    ]
    ports = {"e": {"capacity": 50 * GB, "guard": 2.5 * GB}, "nic": {"capacity": 50 * GB}}
    case = AllocationData.from_dict({"ports": ports, "phases": phases, "lane_price": 5.0, "flows": loads})
    both = replace(case, ports=(case.ports[0], replace(case.ports[1], kind=PortKind.NIC_RX)))
    _, found = judged(both, load_engine("sglang_mooncake"))
    assert [(one.phase_kind.partition(" beside ")[2], one.gate) for one in found] == [
        ("prefetches", Gate.CLASS_ONLY),
        ("prefix loads", Gate.NEITHER),
    ]
    assert "(8 MB a route)" in found[0].text
    assert "16 MB in flight" in found[1].text


def test_a_nic_behind_a_copy_does_not_hold_it():
    """A write-back into a store leaves HBM by a copy, whatever its NIC does later."""
    case = burst_case(burst_s=1e-3, kind="writeback")
    over_nic = replace(case, ports=(replace(case.ports[0], kind=PortKind.NIC_TX),))
    _, (found,) = judged(over_nic, load_engine("sglang_mooncake"))
    assert found.gate is Gate.NEITHER


def test_posting_threads_slow_a_slice_and_are_no_port_of_a_collective():
    """Descriptors of 4 KiB at 3.4 us: 64 KiB take 54 us to post, more than a gap of 60 us less 30 us admits."""
    case = burst_case(gap_s=60e-6)
    posting = Port("posting", PortKind.POSTING, 65536 / 3.4e-6)
    slow = replace(
        case,
        ports=(*case.ports, posting),
        flows=tuple(
            replace(flow, routes=tuple(replace(route, ports={**route.ports, "posting": 16.0}) for route in flow.routes))
            for flow in case.flows
        ),
    )
    engine = load_engine("layerwise")
    (quick, posted) = (phase_bursts(data, engine)[0] for data in (case, slow))
    assert posted.rate_bytes_per_s == pytest.approx(4096 / 3.4e-6)
    assert posted.guard_bytes == quick.guard_bytes
    _, (found,) = judged(slow, engine)
    assert found.gate is Gate.CLASS_ONLY
    assert found.needed_s == pytest.approx(30e-6 + 16 * 3.4e-6)


@pytest.mark.parametrize(
    ("name", "gate", "text"),
    [
        ("layerwise", Gate.GATEABLE, "may submit the urgent request first"),
        ("sglang_mooncake", Gate.NEITHER, "one request at a time, in order of arrival"),
        ("vllm_mooncake", Gate.NEITHER, "up to 10 requests at a time, in order of arrival"),
        ("tensorrt_llm", Gate.NEITHER, "one request at a time, in order of arrival"),
    ],
)
def test_whose_sends_go_first(name, gate, text):
    (found,) = send_order(two_requests(), load_engine(name))
    assert (found.gate, found.phase_kind) == (gate, "sends beside sends of other requests")
    assert text in found.text


def test_classes_of_the_transfer_engine_order_requests():
    """SGLang over TENT: the engine submits chunks, and TENT sorts them."""
    tent = load_engine("mooncake_tent").backend
    (found,) = send_order(two_requests(), load_engine("sglang_mooncake").model_copy(update={"backend": tent}))
    assert found.gate is Gate.GATEABLE
    assert found.text == (
        "mooncake_tent keeps 3 levels among its own transfers, the earliest deadline first; what waits for 10 ms "
        "moves up one"
    )


def test_one_request_has_no_order():
    assert send_order(burst_case(), load_engine("sglang_mooncake")) == ()
    assert send_order(burst_case(kind="load"), load_engine("sglang_mooncake")) == ()


def two_requests():
    case = burst_case()
    (flow,) = case.flows
    return replace(case, flows=(flow, replace(flow, name="g", request="another")))
