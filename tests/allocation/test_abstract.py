"""Abstract cases: what is wrong is one line that says where."""

import copy

import pytest
from test_programs import one_collective

from pdmodel.allocation.data import AllocationData
from pdmodel.allocation.program_e import solve_elastic
from pdmodel.allocation.program_r import solve_residual
from pdmodel.errors import InputError
from pdmodel.replay.engine import simulate


def renamed(case):
    case["fows"] = case.pop("flows")


def writeback(**more):
    return {"name": "back", "kind": "writeback", "routes": [{"e": 1}], "release": [[0, 1.0]], **more}


def memory(case, **more):
    case["memory"] = {"m": {"capacity": 1.0, **more}}


MISTAKES = {
    "missing flows": (renamed, "flows: missing key"),
    "negative duration": (lambda c: c["phases"][0].update(duration=-1), "phases.0.duration: found -1"),
    "unknown port of a route": (lambda c: c["flows"][0]["routes"].append({"zz": 1}), "unknown port 'zz' (ports: e)"),
    "unknown port of a phase": (lambda c: c["phases"][0]["bytes"].update(zz=1.0), "lane 0 phase 0: unknown port 'zz'"),
    "phase that is not there": (lambda c: c["flows"][0]["release"].append([99, 1.0]), "phase 99 of"),
    "lane that is not there": (lambda c: c["flows"][0].update(lane=3), "there is no lane 3"),
    "unknown kind": (lambda c: c["flows"][0].update(kind="snd"), "found 'snd'"),
    "port without capacity": (lambda c: c["ports"]["e"].update(capacity=0), "ports.e.capacity: found 0"),
    "more due than released": (lambda c: c["flows"][0].update(due=[[1, 1e9]]), "1e+09 bytes are due"),
    "no price of the lane": (lambda c: c.pop("lane_price"), "needs phases and lane_price, or lanes"),
    "no route": (lambda c: c["flows"][0].update(routes=[]), "flows.0.routes"),
    "no phase": (lambda c: c.update(phases=[]), "phases"),
    "no tail": (lambda c: c.update(tail=[]), "tail"),
    "an end before the start": (
        lambda c: c["phases"][0].update(start=2.0, end=1.0),
        "ends at 1, before its start at 2",
    ),
    "bytes in no time": (lambda c: c["phases"][0].update(duration=0.0, bytes={"e": 1.0}), "no duration carries bytes"),
    "more than the port carries": (lambda c: c["phases"][0]["bytes"].update(e=1e6), "1e+06 bytes on e, which carries"),
    "two flows of a name": (lambda c: c["flows"].append(c["flows"][0]), "two flows are called"),
    "a load due before it is there": (
        lambda c: c["flows"][0].update(kind="load", release=[[1, 3.0]], due=[[0, 3.0]]),
        "3 bytes are due at phase 0, 0 are released by then",
    ),
    "a price of a write-back": (
        lambda c: c["flows"].append(writeback(price=2.0)),
        "back: a write-back has no price: nobody waits for it",
    ),
    "a due of a write-back": (lambda c: c["flows"].append(writeback(due=[[1, 1.0]])), "back: a write-back has no due"),
    "a send without a price": (lambda c: c["flows"][0].pop("price"), "flows.0.price: missing key"),
    "no lease": (lambda c: c["flows"][0].update(lease=0.0), "flows.0.lease: found 0"),
    "no capacity of memory": (lambda c: c.update(memory={"m": {}}), "memory.m.capacity: missing key"),
    "memory of nothing": (lambda c: c.update(memory={"m": {"capacity": -1.0}}), "memory.m.capacity: found -1"),
    "unknown flow of memory": (lambda c: memory(c, moved={"zz": 1.0}), "memory m: unknown flow 'zz' (flows: f)"),
    "memory at no phase": (lambda c: memory(c, appears=[[5, 1.0]]), "memory m: phase 5 of 1 (0 to 1 are legal)"),
    "memory of no lane": (lambda c: memory(c, appears=[[0, 1.0, 4]]), "memory m: there is no lane 4"),
    "memory without end": (lambda c: memory(c, moved={"f": float("inf")}), "memory.m.moved.f"),
    "unknown kind of memory": (lambda c: memory(c, kind="hbn"), "memory.m.kind: found 'hbn'"),
    "infinite": (lambda c: c["ports"]["e"].update(capacity=float("inf")), "ports.e.capacity"),
    "not a number": (lambda c: c["ports"]["e"].update(capacity=float("nan")), "ports.e.capacity"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake):
    change, expected = MISTAKES[mistake]
    case = copy.deepcopy(one_collective())
    change(case)
    with pytest.raises(InputError) as error:
        AllocationData.from_dict(case)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_writeback_needs_neither_due_nor_price():
    case = copy.deepcopy(one_collective())
    case["flows"].append(writeback())
    memory(case, appears=[[0, 2.0], [1, 1.0, 0]], moved={"f": -1.0}, kind="prefill_hbm", base=0.5)
    data = AllocationData.from_dict(case)
    assert (data.flows[1].due, data.flows[1].kind, data.flow_price_per_s[1]) == ((), "writeback", 0.0)
    (pool,) = data.memory
    assert (pool.name, pool.kind, pool.capacity_bytes, pool.base_bytes) == ("m", "prefill_hbm", 1.0, 0.5)
    assert pool.appears == (("lane0", 0, "lane0", 2.0), ("lane0", 1, "lane0", 1.0))
    assert dict(pool.moved) == {"f": -1.0}


def test_notes_are_no_mistake():
    case = {**one_collective(), "name": "case", "optimum_e": 1.0}
    assert solve_elastic(AllocationData.from_dict(case)).objective == pytest.approx(
        solve_elastic(AllocationData.from_dict(one_collective())).objective
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(flows=[]),
        lambda c: c["flows"][0].update(release=[[0, 0.0]], due=[[0, 0.0]]),
        lambda c: c["flows"][0].update(release=[], due=[]),
    ],
    ids=["no flows", "no bytes", "no steps"],
)
def test_nothing_to_move_costs_nothing(change):
    case = copy.deepcopy(one_collective())
    change(case)
    data = AllocationData.from_dict(case)
    assert solve_elastic(data).objective == 0.0
    assert solve_residual(data).objective == 0.0
    assert simulate(data, "unmanaged").cost == 0.0


def test_a_phase_of_no_duration_takes_no_time():
    case = copy.deepcopy(one_collective())
    case["phases"].insert(0, {"duration": 0.0, "bytes": {}})
    for flow in case["flows"]:
        flow["release"] = [[k + 1, size] for k, size in flow["release"]]
        flow["due"] = [[k + 1, size] for k, size in flow["due"]]
    with_it, without = AllocationData.from_dict(case), AllocationData.from_dict(one_collective())
    assert solve_elastic(with_it).objective == pytest.approx(solve_elastic(without).objective)
    assert simulate(with_it, "unmanaged").cost == pytest.approx(simulate(without, "unmanaged").cost)
