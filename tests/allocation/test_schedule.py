import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from plain_programs import random_case, random_lanes
from test_programs import one_collective, with_decode

from pdmodel.allocation.collapse import no_collapse
from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.elastic import ElasticAnswer, elastic_form, postpone_holds
from pdmodel.allocation.network import network
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.allocation.pull_forward import earliest_due_first, pull_forward
from pdmodel.allocation.schedule import elastic_schedule
from pdmodel.replay.engine import simulate
from pdmodel.replay.policies import STRICT, PlanPolicy


def moved(data, schedule):
    """Bytes of each route in each slot of lane 0, and how long the planned slots last."""
    slots = 2 * len(data.lanes[0].phases) + 1
    size, lasts = np.zeros((len(data.routes), slots)), np.zeros(slots)
    for piece in schedule.pieces:
        size[:, piece.slot] += piece.rates * piece.duration_s
        lasts[piece.slot] += piece.duration_s
    return size, lasts


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_of_e_is_feasible_and_replays_to_its_numbers(seed):
    data = AllocationData.from_dict(random_case(np.random.default_rng([61, seed])))
    solution = solve_elastic(data)
    size, lasts = moved(data, solution.schedule)
    count = len(data.lanes[0].phases)
    for f, flow in enumerate(data.flows):
        sent = size[data.route_flow == f].sum(axis=0).cumsum()
        released = np.zeros(len(sent))
        for k, part in flow.release:
            released[2 * k :] += part
        assert (sent <= released + 1e-9 * flow.volume_bytes).all()
        assert sent[-1] == pytest.approx(flow.volume_bytes, rel=1e-9)
        if flow.kind == "load":
            for k, _ in flow.due:
                assert sent[2 * k] >= sum(part for i, part in flow.due if i <= k) - 1e-9 * flow.volume_bytes
    usable = np.tile(data.idle_usable, (2 * count + 1, 1))
    usable[1::2] = data.lane_usable[0]
    critical = np.zeros_like(usable)
    critical[1::2] = data.critical_bytes[0]
    planned = lasts > 0
    load = (size.T @ data.consumption + critical)[planned]
    assert (load <= usable[planned] * lasts[planned, None] * (1 + 1e-9) + 1e-9).all()
    replay = simulate(data, PlanPolicy(solution.schedule))
    assert replay.cost == pytest.approx(solution.objective, rel=1e-6, abs=1e-9)
    assert replay.prefill_slowdown_s.sum() == pytest.approx(solution.elastic.prefill_slowdown_s, rel=1e-6, abs=1e-9)
    assert replay.load_stall_s.sum() == pytest.approx(solution.elastic.load_stall_s, rel=1e-6, abs=1e-9)
    assert replay.decode_stall_s.max() == pytest.approx(solution.elastic.tail_s, rel=1e-6, abs=1e-9)


def test_a_plan_beside_a_decode_lane_costs_what_e_says():
    """The decode lane is on a port of its own among critical traffic; KV crosses that port too."""
    dear = 0
    for seed in range(25):
        rng = np.random.default_rng([62, seed])
        case = random_case(rng, ports=(1, 3))
        case["ports"]["nic"] = {"capacity": 20.0, "guard": 1.0}
        for flow in case["flows"]:
            flow["routes"] = [{**route, "nic": 1.0} for route in flow["routes"]]
        data = with_decode(AllocationData.from_dict(case), [(0.4, {"nic": 14.0})])
        solution = solve_elastic(data)
        dear += solution.elastic.decode_loss_s.sum() > 1e-3
        replay = simulate(data, PlanPolicy(solution.schedule))
        assert replay.cost == pytest.approx(solution.objective, rel=1e-6, abs=1e-9)
        assert replay.decode_loss_s == pytest.approx(solution.elastic.decode_loss_s, rel=1e-6, abs=1e-9)
    assert dear > 10


def test_holds_are_pauses_that_the_plan_wants():
    """Two loads on two ports: the collective on port a is stretched by hand, and the plan says for how long."""
    flow = {"name": "l", "kind": "load", "routes": [{"a": 1}], "release": [[0, 6.0]], "due": [[1, 6.0]], "price": 1.0}
    phases = [{"duration": 1.0, "bytes": {}}, {"duration": 1.0, "bytes": {"a": 5.0}}]
    case = {"ports": {"a": {"capacity": 4.0}}, "phases": phases, "lane_price": 2.0, "flows": [flow]}
    case["phases"][1]["bytes"] = {"a": 2.0}
    solution = solve_elastic(AllocationData.from_dict(case))
    assert solution.objective == pytest.approx(2.0 * 0.5)
    assert solution.elastic.load_stall_s == pytest.approx(0.5)  # a wait at the gate, not a pause inside compute
    assert solution.schedule.phase_hold_s[0].tolist() == [0.0, 0.0]
    assert solution.schedule.wait_hold_s[0].tolist() == [0.0, 0.0]
    assert [(p.slot, round(p.duration_s, 9)) for p in solution.schedule.pieces] == [(1, 1.0), (2, 0.5)]


def test_a_stretched_collective_runs_slower_and_needs_no_hold():
    case = one_collective(price=5.0)
    solution = solve_elastic(AllocationData.from_dict(case))
    (piece,) = solution.schedule.pieces
    assert (piece.slot, piece.duration_s) == (1, pytest.approx(1.3))
    assert piece.rates == pytest.approx([3.0 / 1.3])
    assert solution.schedule.phase_hold_s[0] == pytest.approx([0.0])


def test_a_wait_longer_than_its_gate_moves_on():
    flow = {"name": "l", "kind": "load", "routes": [{"a": 1}], "release": [[0, 6.0]], "due": [[0, 2.0], [1, 4.0]]}
    case = {"ports": {"a": {"capacity": 4.0}}, "phases": [{"duration": 0.25, "bytes": {"a": 1.0}}] * 2}
    data = AllocationData.from_dict(case | {"lane_price": 2.0, "flows": [flow | {"price": 1.0}]})
    net = network(data, no_collapse(data))
    form = elastic_form(data, net)
    first, second = form.wait_slot
    sent, stretch = np.zeros((1, len(form.tau_s))), np.zeros(len(form.tau_s))
    sent[0, first], stretch[first] = 6.0, 1.5  # everything before phase 0, though 2 bytes would do
    after = postpone_holds(form, net, ElasticAnswer(sent, stretch, np.zeros((0, len(stretch)))))
    assert after.stretch[[first, second]] == pytest.approx([0.5, 1.0])
    assert after.sent[0, [first, second]] == pytest.approx([2.0, 4.0])


def test_a_wait_hold_begins_when_the_last_load_is_there():
    loads = [
        {"name": name, "kind": "load", "routes": [{name: 1}], "release": [[0, 4.0]], "due": [[0, 4.0]], "price": 1.0}
        for name in ("a", "b")
    ]
    case = {"ports": {"a": {"capacity": 10.0}, "b": {"capacity": 10.0}}, "phases": [{"duration": 1.0, "bytes": {}}]}
    data = AllocationData.from_dict(case | {"lane_price": 2.0, "flows": loads})
    size = np.array([[6.0, 0.0, 0.0], [10.0, 0.0, 0.0]])  # 2 s of 3 and 5 byte/s: the gate is met after 4/3 s
    schedule = elastic_schedule(data, np.array([2.0, 1.5, 0.0]), size)
    assert schedule.wait_hold_s[0] == pytest.approx([2.0 - 4.0 / 3.0])
    assert schedule.phase_hold_s[0] == pytest.approx([0.5])  # compute has nothing that slows it down


def small_network(data):
    return network(data, no_collapse(data))


@pytest.mark.parametrize("seed", range(20))
def test_pulled_bytes_leave_no_move_to_make(seed):
    rng = np.random.default_rng([63, seed])
    data = AllocationData.from_dict(random_case(rng, ports=(1, 4)))
    net, slots = small_network(data), 9
    start = rng.uniform(0, 1, (len(data.routes), slots)) * (rng.random((len(data.routes), slots)) < 0.4)
    room = start.T @ net.consumption + rng.uniform(0, 1, (slots, len(net.ports))) * (rng.random((slots, 1)) < 0.6)
    total = np.array([start[data.route_flow == f].sum(axis=0) for f in range(len(data.flows))])
    released = np.minimum(total.cumsum(axis=1) + rng.uniform(0, 2, total.shape).cumsum(axis=1), total.sum(1)[:, None])
    order = np.arange(len(data.flows))
    after = pull_forward(start, room, released=released, net=net, order=order)
    flows = np.array([after[data.route_flow == f].sum(axis=0) for f in range(len(data.flows))])
    assert flows.sum(axis=1) == pytest.approx(total.sum(axis=1))
    assert (flows.cumsum(axis=1) >= total.cumsum(axis=1) - 1e-9).all()
    assert (flows.cumsum(axis=1) <= released + 1e-9).all()
    assert (after.T @ net.consumption <= room + 1e-9).all()
    assert (after >= 0).all()
    left = room - after.T @ net.consumption
    for s in range(slots):
        for r, f in enumerate(data.route_flow):
            may = released[f, s] - flows[f].cumsum()[s]
            fits = min(left[s, p] / m for p, m in enumerate(net.consumption[r]) if m > 0)
            assert min(may, fits) <= 1e-9 * max(1.0, total[f].sum())
    again = pull_forward(after, room, released=released, net=net, order=order)
    assert again == pytest.approx(after, abs=1e-9)


def test_pulling_forward_has_something_to_do():
    data = AllocationData.from_dict(one_collective())
    net = small_network(data)
    after = pull_forward(
        np.array([[0.0, 0.0, 5.0]]),
        np.array([[1.0], [2.0], [5.0]]),
        released=np.array([[0.5, 5.0, 5.0]]),
        net=net,
        order=np.array([0]),
    )
    assert after.tolist() == [[0.5, 2.0, 2.5]]


def test_earliest_due_goes_first():
    loads = [
        {"name": f"l{k}", "kind": "load", "routes": [{"e": 1}], "release": [[0, 1.0]], "due": [[k, 1.0]], "price": 1.0}
        for k in (2, 0, 1)
    ]
    send = {**loads[0], "name": "s", "kind": "send", "due": [[2, 1.0]]}
    case = one_collective() | {"phases": [{"duration": 1.0, "bytes": {}}] * 3, "flows": [send, *loads]}
    data = AllocationData.from_dict(case)
    assert earliest_due_first(data, np.arange(4)).tolist() == [2, 3, 1, 0]


# ---- program R -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(25))
def test_a_plan_of_r_keeps_to_the_clock(seed):
    case = random_lanes(np.random.default_rng([64, seed]))
    data = AllocationData.from_dict(case)
    solution = solve_residual(data)
    sent = sum((piece.rates * piece.duration_s for piece in solution.schedule.pieces), np.zeros(len(data.routes)))
    assert np.bincount(data.route_flow, sent) == pytest.approx(data.volume_bytes, rel=1e-9)
    lane_of = data.flow_lane[data.route_flow]
    for piece in solution.schedule.pieces:
        assert not piece.rates[lane_of != piece.lane].any()
        assert (piece.rates @ data.consumption <= data.capacity * (1 + 1e-9)).all()
    for lane in range(len(data.lanes)):
        for one, other in pairwise(p for p in solution.schedule.pieces if p.lane == lane):
            assert (one.slot, one.offset_s + one.duration_s) <= (
                other.slot,
                other.offset_s + 1e-9,
            ) or one.slot < other.slot
    replay = simulate(data, PlanPolicy(solution.schedule))
    assert np.isfinite(replay.cost)


def urgent_user(last_kv=8.0, price=8.0):
    """Request A's KV is released when its phase ends; B's collectives follow; A's user waits at 8 a second."""
    flow = {
        "name": "A",
        "kind": "send",
        "routes": [{"e": 1}],
        "release": [[1, last_kv]],
        "due": [[1, last_kv]],
        "price": price,
    }
    phases = [{"duration": 1.0, "bytes": {}}]
    for _ in range(30):
        phases += [{"duration": 0.1, "bytes": {"e": 0.9}}, {"duration": 0.01, "bytes": {}}]
    case = {"ports": {"e": {"capacity": 10.0}}, "phases": phases, "lane_price": 1.0, "flows": [flow]}
    data = AllocationData.from_dict(case)
    (lane,), (whole,) = data.lanes, data.requests
    named = tuple(dataclasses.replace(p, request="B" if i else "A") for i, p in enumerate(lane.phases))
    prices = np.full(len(phases), 2.0)
    prices[0] += price
    return dataclasses.replace(
        data,
        lanes=(dataclasses.replace(lane, phases=named),),
        flows=(dataclasses.replace(data.flows[0], request="A"),),
        requests=(
            dataclasses.replace(whole, name="A", last_phase=0, price_per_s=price),
            dataclasses.replace(whole, name="B", first_phase=1, price_per_s=1.0),
        ),
        lane_price_per_s=np.array([1.0]),
        phase_price_per_s=(prices,),
    )


def test_an_urgent_request_overdraws_the_next_ones_collectives():
    """At 1 byte/s beside B's collectives the last byte is seconds late; at full rate 0.8 s, and B loses about that."""
    plan_of = {}
    for price in (8.0, 0.01):
        data = urgent_user(price=price)
        solution = solve_residual(data)
        during = [p.rates[0] for p in solution.schedule.pieces if p.slot % 2 and p.slot % 4 == 3]
        plan_of[price] = simulate(data, PlanPolicy(solution.schedule)), simulate(data, STRICT), max(during)
    urgent, strict, rate = plan_of[8.0]
    assert rate > 3.0  # overdraft: the residual is 1
    assert urgent.cost < 0.7 * strict.cost
    assert urgent.user_delay_s[0] < 0.5 * strict.user_delay_s[0]
    assert urgent.prefill_slowdown_s.sum() > strict.prefill_slowdown_s.sum() + 0.3
    patient, strict, rate = plan_of[0.01]
    assert rate == pytest.approx(1.0)
    assert patient.cost == pytest.approx(strict.cost, rel=1e-2)  # the last interval is used up evenly


def test_delayed_phases_get_longer_pieces():
    data = urgent_user()
    solution = solve_residual(data)
    lasts = {p.slot: p.duration_s for p in solution.schedule.pieces}
    delay = sum(lasts[s] - data.duration_s[0][s // 2] for s in lasts if s % 2)
    assert delay > 0.3
    assert simulate(data, PlanPolicy(solution.schedule)).prefill_slowdown_s.sum() == pytest.approx(delay, rel=1e-6)
