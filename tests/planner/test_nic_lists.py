"""NICs that a plan uses and an engine's rule does not: what they are worth, and what a list of NICs brings of it."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pdmodel.answer import Gate, Verdict, VerdictKind
from pdmodel.engines.catalog import list_engines, load_engine
from pdmodel.engines.spec import RouteRule
from pdmodel.nic_lists import (
    Listed,
    NicChoice,
    limits_of_lists,
    moved_share,
    nic_knob,
    nic_settings,
    nic_weights,
    rule_share,
    saved_by_list,
    with_nics,
)
from pdmodel.nic_plan import shortfall_of
from pdmodel.planner import plan, simulate
from pdmodel.record import earliest_record, scenario_record
from pdmodel.replay.policies import UNMANAGED
from pdmodel.report.text import plan_document
from pdmodel.resolve import load_scenario
from pdmodel.scenario import Scenario
from pdmodel.transfer.build import build_transfers
from pdmodel.transfer.nics import NicLists
from pdmodel.verdict import port_shortfall

# One near NIC of 42 GB/s and three far ones of 7.5 GB/s: Mooncake issue 813 (tests/transfer/test_nics.py).
FAR_NICS = str(Path(__file__).resolve().parents[1] / "published" / "boxes" / "pix_and_node.json")
FOUR = {"nics": [0, 1, 2, 3], "decode_nics": [0, 1, 2, 3]}


def issue_813(variant, engine="sglang_mooncake", **transfer):
    one = {"tp_size": 1, "ep_size": 1, "ep_exchange": "all_reduce", "hardware": FAR_NICS}
    prefill = one | {"cp_size": 1, "instances": 1, "gpus": None, "chunk_tokens": None, "engine": engine}
    changes = {
        "llm": "qwen3-8b",
        "prefill": prefill,
        "decode": one | {"max_running_requests": 2, "context_tokens": 32768},
        "requests": [{"name": "r", "input_tokens": 32768, "user_price_gpus": 8}],
        "transfer": {"release_after": "prefill", "alternative_nics": 3} | transfer,
    }
    return variant("seed_h200_nvlink", changes)


@pytest.fixture(scope="module")
def spread(variant):
    return plan(issue_813(variant, route_rule="random", **FOUR))


@cache
def shipped(name):
    return plan(name)


def costs(found):
    return {policy.name: policy.cost for policy in found.policies}


# ---- one near NIC, three far ones ------------------------------------------------------------------------------------
def test_the_first_screen_says_what_nics_are_worth(spread) -> None:
    assert spread.verdict.kind is VerdictKind.NO_SHARED_PORT
    cost = costs(spread)
    assert cost["unmanaged"] > cost["nic_list"] > cost["plan"]
    gain, saved = cost["unmanaged"] - cost["plan"], cost["unmanaged"] - cost["nic_list"]
    words = f"But the choice of NICs is worth up to {gain:.3g} GPU·s (48.1% of the prefill); a list of NICs saves "
    assert words + f"{saved:.3g}." in spread.verdict.text


def test_the_list_that_is_set_is_what_an_engine_does_with_it(spread, variant) -> None:
    """The near NIC alone: 42 GB/s instead of 30 GB/s, as if the scenario said so."""
    alone = scenario_record(issue_813(variant, route_rule="random", nics=[0], decode_nics=[0]))[1]
    assert costs(spread)["nic_list"] == pytest.approx(simulate(alone, UNMANAGED).cost, rel=1e-9)
    lines = [(line.name, line.value, line.where, line.side) for line in spread.settings]
    assert lines == [("--disaggregation-ib-device", "nic0", "engine", side) for side in "PD"]
    for line in spread.settings:
        assert "59 % nic0, 14 % each nic1-3, and a list can exclude a NIC, not weigh it" in line.reason


def test_what_can_be_applied_is_the_list(spread) -> None:
    found, cost = spread.applicable, costs(spread)
    assert (found.policy, found.cost) == ("nic_list", cost["nic_list"])
    assert found.worth_of_gates == pytest.approx(cost["nic_list"] - cost["plan"])
    assert found.text.startswith("a list can exclude a NIC, not weigh it; unmanaged on P nic0, D nic0 (0.92 GPU·s)")
    (row,) = spread.enforceability
    assert (row.phase_kind, row.gate) == ("choice of NICs", Gate.NEITHER)
    sections = {section.title: section for section in plan_document(spread).sections}
    assert "nic_list (best simple)" in {row[0] for row in sections["Times"].table.rows}
    assert len(sections["What to set: knobs"].bullets) == 2
    assert spread.applicable.text in sections["Enforceability"].bullets


# ---- a list of more NICs than the plan may use -----------------------------------------------------------------------
def four_of_eight(*user_prices, tokens=2048):
    """TP1 to TP4 in pieces of 256 B: work requests bind: two NICs by the rule, three as planned, four by a list."""
    requests = [{"name": f"r{k}", "input_tokens": tokens, "user_price_gpus": p} for k, p in enumerate(user_prices)]
    decode = {"hardware": "b200_8nic", "tp_size": 4, "ep_size": 4, "ep_exchange": "all_to_all"}
    return Scenario.parse(
        {
            "schema_version": 1,
            "name": "four_of_eight",
            "llm": "qwen3-30b-a3b",
            "prefill": {"hardware": "b200_8nic", "engine": "sglang_nixl", "tp_size": 1},
            "decode": decode,
            "requests": requests,
            "transfer": {"route_rule": "round_robin", "posting_threads": 1000},
        }
    )


@cache
def few_nics(*user_prices, tokens=2048):
    return plan(four_of_eight(*user_prices, tokens=tokens))


@pytest.mark.parametrize("prices", [(8,), (0.1, 8)])
def test_a_plan_is_no_dearer_than_a_list_in_its_table(prices) -> None:
    found = few_nics(*prices)
    cost = costs(found)
    assert cost["plan"] <= min(cost.values()) * (1 + 1e-9)
    assert cost["nic_list"] < 0.51 * cost["unmanaged"]
    assert cost["plan"] == found.replay.cost
    lines = {(line.side, line.value) for line in found.settings}
    assert lines == {(side, "nic0, nic1, nic2, nic3") for side in "PD"}


def test_a_list_that_is_cheaper_is_the_plan() -> None:
    found = few_nics(8, tokens=64)
    cost = costs(found)
    assert cost["plan"] == cost["nic_list"] == pytest.approx(0.5 * cost["unmanaged"], rel=1e-3)
    assert (found.solver.path, found.solver.rule, found.solver.status) == ("policy:nic_list", "nic_list", "accepted")
    assert simulate(found.data, UNMANAGED).cost == pytest.approx(cost["plan"])  # the record is that of the list
    assert (found.applicable.policy, found.applicable.worth_of_gates) == ("nic_list", 0.0)
    assert found.applicable.text == "nic_list needs no gate: it can be applied by a list of NICs"
    saved = cost["unmanaged"] - cost["nic_list"]
    assert {line.reason for line in found.settings} == {f"saves {saved:.3g} GPU·s (default all)"}
    (row,) = found.enforceability
    assert (row.gate, row.text) == (Gate.GATEABLE, "a list of NICs does it")
    assert f"the choice of NICs is worth up to {saved:.3g} GPU·s" in found.verdict.text
    table = next(part for part in plan_document(found).sections if part.title == "Times").table
    assert "plan (= nic_list)" in {row[0] for row in table.rows}


def test_on_a_list_it_is_planned_again() -> None:
    """Two users, one of them 80 times as urgent: whose KV goes first is worth more than the list brings."""
    found = few_nics(0.1, 8)
    cost = costs(found)
    assert found.solver.rule == "" and cost["plan"] < 0.9 * cost["nic_list"]
    assert simulate(found.data, "strict").cost == pytest.approx(cost["nic_list"])
    assert found.applicable.policy == "nic_list"
    assert found.applicable.text.startswith("of the plan, not everything can be gated today; unmanaged on P nic0, nic1")
    assert "what lists of NICs cannot do" not in found.applicable.text


def test_infeasible_is_what_fails_with_a_list_and_without(variant) -> None:
    """All four GPUs across the socket are late by far more than what leaves each of them by either NIC."""
    one = {"name": "r", "input_tokens": 32768, "cached_tokens": 32704, "cached_in": "hbm"}
    resolved = variant("far_nics", {"requests": [one]})
    timeline, _ = scenario_record(resolved)
    far = NicLists(dict.fromkeys(range(4), (1,)))
    eager = earliest_record(resolved, timeline, far)
    late_s = port_shortfall(eager, 0.0).late_s
    assert shortfall_of(resolved, timeline, eager, 1.01 * late_s, far) is None
    assert shortfall_of(resolved, timeline, eager, 0.5 * late_s, None).late_s == late_s
    assert port_shortfall(earliest_record(resolved, timeline), 0.5 * late_s) is None
    assert shortfall_of(resolved, timeline, eager, 0.5 * late_s, far) is None
    assert shortfall_of(resolved, timeline, eager, 0.0, far).late_s == late_s


# ---- several GPUs behind one NIC -------------------------------------------------------------------------------------
def test_one_rank_of_four_takes_the_far_nic() -> None:
    """Three quarters by the near NIC, a quarter across the socket at 22 GB/s: 203 ms instead of 272 ms."""
    found = shipped("far_nics")
    (line,) = found.settings  # decode ranks have their NICs, four each
    assert (line.name, line.value, line.side) == ("device_name", "gpu0: nic1; gpu1-3: nic0", "P")
    assert "one value for the process of each rank; the plan sends 68 % nic0, 32 % nic1, and" in line.reason
    cost = costs(found)
    assert cost["nic_list"] / cost["unmanaged"] == pytest.approx(0.75, rel=1e-3)  # of the sends, which is all of it
    assert (cost["unmanaged"], cost["nic_list"], cost["plan"]) == pytest.approx((1.10, 0.823, 0.742), rel=0.01)
    assert {flow.route.split(">")[1] for flow in found.flows} == {"P/nic0"}


def test_weights_that_no_list_gives_are_no_setting(variant) -> None:
    """One GPU sends 46 GB/s by its NIC and could send 55 GB/s by two: a list under `nearest` has one NIC in use."""
    one = {"tp_size": 1, "ep_size": 1, "ep_exchange": "all_reduce"}
    two = {"tp_size": 2, "ep_size": 1, "gpus": [0, 4], "ep_exchange": "all_reduce", "max_running_requests": 8}
    changes = {
        "llm": "qwen3-8b",
        "prefill": one | {"gpus": [[0]]},
        "decode": two,
        "requests": [{"name": "r", "input_tokens": 32768, "user_price_gpus": 8}],
        "transfer": {"route_rule": "nearest", "staging_tokens": 8192},
    }
    found = plan(variant("far_nics", changes))
    assert costs(found)["plan"] < 0.9 * costs(found)["unmanaged"]
    assert found.settings == ()
    assert "; no list of NICs that was tried saves a tenth of it." in found.verdict.text
    assert found.applicable.policy == "unmanaged"
    assert "unmanaged (" in found.applicable.text and "what lists of NICs cannot do would be worth" in (
        found.applicable.text
    )


def test_an_engine_that_gates_does_not_weigh_nics(variant) -> None:
    """Layer by layer and gateable, as pacing goes: its NICs are still those of a list."""
    changes = {
        "prefill": {"engine": "layerwise"},
        "requests": [{"name": "fresh", "input_tokens": 32768, "user_price_gpus": 4}],
        "transfer": {"release_after": "prefill"},
    }
    found = plan(variant("far_nics", changes))
    assert found.applicable.policy == "nic_list"
    assert found.settings[0].name == "MC_TE_FILTERS"


def test_no_nic_is_listed_for_less_than_a_per_cent(variant) -> None:
    """A plan that sends a third by another NIC, and wins less than 1 % by it, says nothing of it."""
    found = plan(variant("far_nics", {"requests": [{"name": "r", "input_tokens": 32768, "user_price_gpus": 0.6}]}))
    share = moved_share(found.data, found.replay.route_bytes)
    assert not found.solver.rule and np.abs(share - rule_share(found.data)).max() > 0.3
    assert "choice of NICs" not in found.verdict.text
    assert found.settings == () and "nic_list" not in costs(found)
    assert found.enforceability == ()
    assert found.applicable.text == "KV meets no collective: nothing has to be held back"


def test_headroom_has_nothing_to_set() -> None:
    found = shipped("agentic_turn_one_switch")
    assert not found.solver.rule and found.verdict.kind is VerdictKind.HEADROOM
    assert "choice of NICs" not in found.verdict.text and found.settings == ()


@pytest.mark.parametrize("policy", ["unmanaged", "strict", "plan"])
def test_routes_hold_all_bytes_of_their_flows(policy) -> None:
    found = shipped("agentic_turn_one_switch")
    replay = found.replay if policy == "plan" else simulate(found.data, policy)
    size = np.bincount(found.data.route_flow, weights=replay.route_bytes, minlength=len(found.data.flows))
    assert size == pytest.approx(found.data.volume_bytes, rel=1e-6)
    if policy != "plan":
        assert moved_share(found.data, replay.route_bytes) == pytest.approx(rule_share(found.data), abs=1e-9)


def test_lists_are_all_there_is() -> None:
    resolved = load_scenario("far_nics")
    timeline, _ = scenario_record(resolved)
    flows = build_transfers(resolved, timeline, NicLists({0: (1,)})).flows
    by_source = {flow.source: [route.device for route in flow.routes] for flow in flows}
    assert by_source == {"P/gpu0": ["P/nic1"]} | {f"P/gpu{gpu}": ["P/nic0"] for gpu in (1, 2, 3)}


# ---- words -----------------------------------------------------------------------------------------------------------
def choice(*, listed_cost=None, **changes):
    found = NicChoice(
        rule=RouteRule.RANDOM,
        gain=0.5,
        paced_cost=None,
        prefill={0: {0: 0.5, 1: 0.5}},
        decode={0: {0: 1.0}},
        equal=True,
        steady=True,
        listed=None,
    )
    if listed_cost is not None:
        replay = replace(simulate("rtx_pro_6000_qwen3_32b_tp4", UNMANAGED), cost=listed_cost)
        found = replace(found, listed=Listed(NicLists({0: (0, 1)}), UNMANAGED, replay))
    return replace(found, **changes)


def test_a_list_that_does_it_is_a_setting_and_no_limit() -> None:
    found = choice(listed_cost=1.001)
    (row,) = nic_weights(found, 1.0, 1.0)
    assert (row.gate, row.text) == (Gate.GATEABLE, "a list of NICs does it")
    (row,) = nic_weights(found, 0.9, 1.0)
    assert (row.gate, row.text) == (Gate.NEITHER, "a list leaves the rest to the engine's rule (random)")
    rules = [(UNMANAGED, replace(found.listed.replay, cost=1.5))]
    (line,) = nic_settings(found, load_engine("vllm_nixl"), rules)
    assert (line.name, line.value, line.side) == ("UCX_NET_DEVICES", "nic0, nic1", "P")
    assert saved_by_list(found, rules) == pytest.approx(0.499)
    small = replace(found, gain=10.0)
    assert saved_by_list(small, rules) == 0.0
    assert nic_settings(small, load_engine("vllm_nixl"), rules) == ()


def test_what_a_list_cannot_do() -> None:
    assert limits_of_lists(choice(equal=False)) == "a list can exclude a NIC, not weigh it"
    assert limits_of_lists(choice(steady=False)) == "no list changes from phase to phase"
    assert " and " in limits_of_lists(choice(steady=False, equal=False))


def test_pacing_and_nics_are_told_apart() -> None:
    contended = Verdict(VerdictKind.CONTENDED, "contended: pacing is worth 50% to 60%.")
    text = with_nics(contended, choice(), 0.0, 1.0).text
    assert text.startswith("contended: pacing is worth 50% to 60%. Of this the choice of NICs is worth up to 0.5 GPU·s")
    assert with_nics(contended, None, 0.0, 1.0) is contended


def test_every_engine_that_leaves_nics_to_a_plan_takes_a_list() -> None:
    engines = [load_engine(name) for name in list_engines()]
    assert all(nic_knob(engine) is not None for engine in engines if not engine.routes_fixed.value)
    assert {nic_knob(engine) for engine in engines if engine.routes_fixed.value} == {None}
