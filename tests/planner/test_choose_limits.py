"""What competes to be the plan: write-backs, leases and memory in `choose`."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import pdmodel.choose as choose_module
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_r import solve_residual
from pdmodel.allocation.solution import Solution
from pdmodel.choose import choose
from pdmodel.errors import SolverError
from pdmodel.planner import plan
from pdmodel.resolve import resolve_scenario
from pdmodel.scenario import Scenario
from pdmodel.timeline.phases import DecodeLane
from pdmodel.verdict import shares_port


def case(**changes) -> AllocationData:
    """A send released at half time that a collective on its port leaves no room; a second phase on another port."""
    send = {"name": "send", "kind": "send", "routes": [{"e": 1}], "release": [[0, 10.0]], "due": [[3, 10.0]]}
    base = {
        "ports": {"e": {"capacity": 10.0}, "f": {"capacity": 10.0}},
        "phases": [
            {"duration": 1.0, "bytes": {"e": 8.0}},
            {"duration": 1.0, "bytes": {"e": 10.0}},
            {"duration": 1.0, "bytes": {"e": 10.0}},
        ],
        "lane_price": 5.0,
        "flows": [{**send, "price": 1.0}],
    }
    return AllocationData.from_dict({**base, **changes})


def flow(name: str, kind: str, release, due=(), price=0.0, **more):
    return {"name": name, "kind": kind, "routes": [{"e": 1}], "release": release, "due": due, "price": price, **more}


def test_a_plan_that_keeps_its_leases_beats_cheaper_ones_that_do_not() -> None:
    free = choose(case())
    # Two bytes leave beside the first collective, eight in the tail: 0.8 s, at a price of 1.
    assert free.replay.cost == pytest.approx(0.8)
    assert free.replay.flow_finish_s == pytest.approx([3.8])
    assert (free.broken, free.warnings, free.replay.expired) == ({}, (), ())
    leased = choose(case(flows=[flow("send", "send", [[0, 10.0]], [[3, 10.0]], 1.0, lease=2.9)]))
    assert leased.replay.expired == ()
    # Eight bytes go at the collectives' expense, at a price of 5.
    assert leased.replay.flow_finish_s[0] <= 2.9 * (1 + 1e-9)
    assert leased.replay.cost == pytest.approx(4.0)
    assert set(leased.broken) >= {"strict", "residual_edf"}
    assert leased.broken["strict"] == "the lease of send (2.900 s) cannot be kept"


def test_a_lease_that_nothing_keeps_is_said_and_the_least_cost_is_the_plan() -> None:
    choice = choose(case(flows=[flow("send", "send", [[0, 10.0]], [[3, 10.0]], 1.0, lease=0.5)]))
    assert choice.replay.expired == ("send",)
    assert choice.warnings == ("the lease of send (500 ms) cannot be kept",)
    assert choice.replay.cost <= min(replay.cost for _, replay in choice.policies) * (1 + 1e-9)


def pool(capacity: float, *, held: bool = False):
    return {
        "hbm": {
            "capacity": capacity,
            "base": 1.0,
            "appears": [[0, 10.0], [2, 5.0]],
            "moved": {"send": -1.0},
            "held_until_done": held,
        }
    }


def test_a_plan_that_fits_its_memory_beats_cheaper_ones_that_do_not() -> None:
    wide, tight = choose(case(memory=pool(20.0))), choose(case(memory=pool(12.0)))
    assert wide.replay.cost == pytest.approx(0.8)
    assert (wide.broken, wide.overfull) == ({}, ())
    # Four bytes have to leave before the last phase: two of them at the second collective's expense.
    assert tight.overfull == ()
    assert tight.memory[0].peak_bytes == pytest.approx(12.0)
    assert tight.replay.cost > 0.8
    assert tight.broken["strict"].startswith("hbm holds 14 B of 12 B at 2.000 s")
    assert tight.best_rule.policy not in tight.broken


SHORT, LONG = {"duration": 1.0, "bytes": {"e": 0.01}}, {"duration": 300.0, "bytes": {"f": 10.0}}
FAST_PATHS = {
    "certified": [SHORT, SHORT],
    "bound": [SHORT, LONG],
    "no_shared_port": [{"duration": 1.0, "bytes": {"f": 10.0}}] * 2,
}


@pytest.mark.parametrize("path", FAST_PATHS)
@pytest.mark.parametrize("limit", ["memory", "lease"])
def test_answers_without_a_solver_keep_limits_too(path: str, limit: str) -> None:
    # Both flows are due at the end, so every rule lets them share the port; a plan lets the limited one go first.
    flows = [flow("other", "send", [[0, 10.0]], [[2, 10.0]], 1.0), flow("limited", "send", [[0, 8.0]], [[2, 8.0]], 1.0)]
    free = choose(case(phases=FAST_PATHS[path], flows=flows))
    assert (free.solver.path, free.broken) == (path, {})
    assert free.replay.flow_finish_s[1] > 1.5
    more = {"flows": [flows[0], {**flows[1], "lease": 1.0}]}
    if limit == "memory":
        # Of 14 bytes 8 fit when the second phase begins.
        appears = [[0, 8.0], [1, 6.0]]
        more = {
            "memory": {
                "hbm": {"capacity": 8.0, "appears": appears, "moved": {"limited": -1.0}, "held_until_done": False}
            }
        }
    choice = choose(case(**{"phases": FAST_PATHS[path], "flows": flows, **more}))
    assert (choice.overfull, choice.replay.expired, choice.solver.path) == ((), (), "program_e")
    assert set(choice.broken) == {"unmanaged", "strict", "residual_edf", "after_prefill"}
    assert choice.replay.cost == pytest.approx(free.replay.cost, abs=1e-9)


def test_what_fits_nowhere_is_shown_with_its_peak() -> None:
    # Freed as a whole: the send is not over before the last phase, whatever the plan.
    choice = choose(case(memory=pool(3.0, held=True)))
    (over,) = choice.overfull
    assert over.text == "hbm holds 16 B of 3 B at 2.000 s (lane0, chunk 0, layer 2)"
    assert choice.replay.cost < 10


def test_write_backs_bring_the_rule_that_defers_them() -> None:
    assert "sends_first" not in {policy.name for policy, _ in choose(case()).policies}
    flows = [flow("send", "send", [[3, 10.0]], [[3, 10.0]], 1.0), flow("back", "writeback", [[0, 10.0]])]
    choice = choose(case(flows=flows))
    costs = {policy.name: replay.cost for policy, replay in choice.policies}
    # At will, the write-back takes 10 bytes from the collectives: a second, at a price of 5. Deferred, it is free.
    assert costs["unmanaged"] > 4.0
    assert costs["sends_first"] == pytest.approx(1.0)
    assert choice.replay.cost == pytest.approx(1.0)
    # Two bytes beside the first collective, eight after the send.
    edf = next(replay for policy, replay in choice.policies if policy.name == "residual_edf")
    assert (edf.writeback_end_s, edf.end_s) == pytest.approx((4.8, 4.0))


def test_write_backs_that_are_never_over_do_not_compete() -> None:
    # Port f belongs to a decode lane for good; giving the write-back room costs the lane that room.
    data = case(
        flows=[
            flow("send", "send", [[0, 1.0]], [[3, 1.0]], 1.0),
            {**flow("back", "writeback", [[0, 1.0]]), "routes": [{"f": 1}]},
        ]
    )
    lane = DecodeLane("d", 0.01, {"f": 10.0}, {"f": 10.0})
    data = replace(data, decode_lanes=(lane,), decode_price_per_s=np.array([2.0]))
    choice = choose(data)
    assert choice.broken["strict"] == "write-backs are never over"
    assert np.isfinite(choice.replay.writeback_end_s)
    assert choice.replay.cost == pytest.approx(2.0 * 0.1)


def test_write_backs_alone_can_cost_a_prefill_and_the_plan_avoids_it() -> None:
    data = case(flows=[flow("back", "writeback", [[0, 10.0]])])
    assert shares_port(data)
    choice = choose(data)
    assert choice.unmanaged.favourable.replay.cost > 1.0
    assert choice.replay.cost == pytest.approx(0.0, abs=1e-12)
    assert all(point.unmanaged > point.plan for point in choice.band if point.interference == 0.0)
    assert choice.replay.writeback_end_s == pytest.approx(3.8)


def no_optimum(*_, **__) -> None:
    message = "program has no optimum: out of order"
    raise SolverError(message)


def test_without_an_optimum_the_best_rule_is_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that sends the record to the programs, none of which has an answer."""
    data = case(flows=[flow("send", "send", [[0, 10.0]], [[3, 10.0]], 1.0, lease=2.9)])
    monkeypatch.setattr("pdmodel.allocation.solver.solve_terms", no_optimum)
    choice = choose(data)
    assert (choice.solver.path, choice.solver.status) == (f"policy:{choice.policy.name}", "accepted")
    assert choice.solver.objective == choice.replay.cost
    assert choice.replay.cost == min(replay.cost for _, replay in choice.policies if not replay.expired)
    assert "out of order" in choice.warnings[-1]
    assert choice.warnings[-1].endswith("the plan is the best of the simple rules")
    assert choice.shadow_price is None


def test_without_an_optimum_of_one_program_the_other_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = case(flows=[flow("send", "send", [[0, 10.0]], [[3, 10.0]], 1.0, lease=2.9)])
    monkeypatch.setattr("pdmodel.allocation.program_e.solve_limited", no_optimum)
    choice = choose(data)
    assert choice.warnings == ("program has no optimum: out of order",)
    assert choice.solver.path in {"program_r", f"policy:{choice.policy.name}"}
    assert not choice.replay.expired


def test_without_an_optimum_or_a_rule_that_ends_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    data = case(flows=[flow("send", "send", [[0, 10.0]], [[3, 10.0]], 1.0, lease=2.9)])
    monkeypatch.setattr("pdmodel.allocation.solver.solve_terms", no_optimum)
    plain = choose_module.simulate
    monkeypatch.setattr(choose_module, "simulate", lambda *a, **k: replace(plain(*a, **k), cost=np.inf))
    monkeypatch.setattr("pdmodel.replay.search.simulate", lambda *a, **k: replace(plain(*a, **k), cost=np.inf))
    with pytest.raises(SolverError, match="out of order"):
        choose(data)


def test_figures_of_very_different_size_still_have_an_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of 0.1 s for some 3 s of KV behind phases of microseconds: the interior point calls that infeasible."""
    lane = {"hardware": "l40s_pcie_gen4", "tp_size": 1}
    data = {
        "schema_version": 1,
        "name": "m",
        "llm": "llama-2-7b",
        "prefill": lane | {"engine": "sglang_mooncake"},
        "decode": lane | {"context_tokens": 512},
        "requests": [
            {"name": "r0", "input_tokens": 255, "cached_tokens": 39},
            {"name": "r1", "input_tokens": 63, "cached_tokens": 47},
        ],
        "transfer": {"through": "store"},
        "store": {"lease_s": 0.1},
        "network": {"fabric_gbit_per_s": 1},
    }
    resolved = resolve_scenario(Scenario.model_validate(data))
    simplex = plan(resolved)
    monkeypatch.setattr("pdmodel.allocation.solver.SIMPLEX_LIMIT", 0)
    interior = plan(resolved)
    assert interior.solver.path == simplex.solver.path == "program_e"
    assert interior.solver.objective == pytest.approx(simplex.solver.objective, rel=1e-6)
    assert not any("optimum" in warning for warning in interior.warnings)


@pytest.mark.parametrize(("large", "rounds"), [(10**9, 3), (0, 1)])
def test_large_programs_have_one_round(monkeypatch: pytest.MonkeyPatch, large: int, rounds: int) -> None:
    monkeypatch.setattr(choose_module, "LARGE_INTERVALS", large)
    monkeypatch.setattr("pdmodel.allocation.program_r.next_quantum", lambda _, solution: solution.quantum_bytes / 2)
    costs, looked = iter((3.0, 2.0, 1.0)), []

    def take(*found: Solution) -> float:
        looked.append(found)
        return next(costs)

    choose_module._residual(case(), take)
    assert len(looked) == rounds


def test_a_later_round_without_an_optimum_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(data: AllocationData) -> Iterator[Solution]:
        yield solve_residual(data)
        no_optimum()

    monkeypatch.setattr("pdmodel.allocation.program_r.quantum_rounds", rounds)
    looked: list[Solution] = []
    choose_module._residual(case(), lambda *found: looked.extend(found) or 1.0)
    assert looked
    monkeypatch.setattr("pdmodel.allocation.program_r.quantum_rounds", no_optimum)
    with pytest.raises(SolverError):
        choose_module._residual(case(), lambda *_: 1.0)
