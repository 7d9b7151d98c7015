"""Program E on abstract cases with plain matrices: an independent bound, and a schedule to replay.

Minimise lane_price * (sum of stretches and waits) + (sum of the sends' prices) * tail, subject to, in every slot,
bytes on a port <= usable capacity * length of the slot; bytes moved <= bytes released; loads there when their phase
starts. Slots: wait 0, phase 0, wait 1, phase 1, ..., tail; only phases that gate a load may be waited for.
"""

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog

from pdmodel.allocation.schedule import Piece, Schedule


def usable(port, size, duration):
    if size <= 0:
        return port["capacity"]
    return min(port["capacity"], max(port["capacity"] - port["guard"], size / duration))


def elastic(case):
    """The optimal cost, and the schedule that has it."""
    ports, phases, flows = case["ports"], case["phases"], case["flows"]
    slots = 2 * len(phases) + 1
    routes = [(f, route) for f, flow in enumerate(flows) for route in flow["routes"]]
    columns = slots + len(routes) * slots  # lengths, then bytes per (route, slot)

    def moved(r, s):
        return slots + r * slots + s

    price, low, high = np.zeros(columns), np.zeros(columns), np.full(columns, np.inf)
    gated = {k for flow in flows if flow["kind"] == "load" for k, _ in flow["due"]}
    for i, phase in enumerate(phases):
        price[2 * i] = price[2 * i + 1] = case["lane_price"]
        high[2 * i] = np.inf if i in gated else 0.0
        low[2 * i + 1] = phase["duration"]
    price[-1 - len(routes) * slots] = sum(flow["price"] for flow in flows if flow["kind"] == "send")
    rows, bounds = [], []

    def at_most(terms, bound):
        row = np.zeros(columns)
        for column, factor in terms:
            row[column] += factor
        rows.append(row)
        bounds.append(bound)

    for s in range(slots):
        for name, port in ports.items():
            size = phases[s // 2]["bytes"].get(name, 0.0) if s % 2 else 0.0
            room = usable(port, size, phases[s // 2]["duration"]) if s % 2 else port["capacity"]
            at_most([(moved(r, s), route.get(name, 0)) for r, (_, route) in enumerate(routes)] + [(s, -room)], -size)
    for f, flow in enumerate(flows):
        mine = [r for r, (owner, _) in enumerate(routes) if owner == f]
        for s in range(slots):
            before = [(moved(r, past), 1.0) for r in mine for past in range(s + 1)]
            at_most(before, sum(size for k, size in flow["release"] if k <= s // 2))
            if flow["kind"] == "load" and s % 2 == 0 and s < slots - 1:
                at_most([(c, -1.0) for c, _ in before], -sum(size for k, size in flow["due"] if k <= s // 2))
        at_most([(c, -1.0) for c, _ in before], -sum(size for _, size in flow["release"]))
    found = linprog(price, A_ub=np.array(rows), b_ub=bounds, bounds=np.column_stack([low, high]), method="highs")
    assert found.status == 0, found.message
    base = case["lane_price"] * sum(phase["duration"] for phase in phases)
    length, sent = found.x[:slots], found.x[slots:].reshape(len(routes), slots)
    return found.fun - base, timetable(case, routes, length, np.maximum(sent, 0.0))


def timetable(case, routes, length, sent):
    """Constant rates over every slot, and the holds that make slots last as long as planned."""
    phases, pieces = case["phases"], []
    work_hold, wait_hold = np.zeros(len(phases)), np.zeros(len(phases))
    for s, lasts in enumerate(length):
        rates = sent[:, s] / lasts if lasts > 1e-9 else np.zeros(len(routes))
        if lasts > 1e-9:
            pieces.append(Piece(0, s, 0.0, float(lasts), rates))
        i = s // 2
        if s == len(length) - 1:
            continue
        if s % 2:
            speed, duration = 1.0, phases[i]["duration"]
            for name, size in phases[i]["bytes"].items():
                if size > 0:
                    taken = sum(route.get(name, 0) * rate for (_, route), rate in zip(routes, rates, strict=True))
                    speed = min(speed, (usable(case["ports"][name], size, duration) - taken) / (size / duration))
            work_hold[i] = max(lasts - duration / speed, 0.0)
        else:
            ready = 0.0
            for f, flow in enumerate(case["flows"]):
                mine = [r for r, (owner, _) in enumerate(routes) if owner == f]
                if flow["kind"] == "load" and any(k == i for k, _ in flow["due"]):
                    missing = sum(size for k, size in flow["due"] if k <= i) - sent[mine, :s].sum()
                    if missing > 1e-9 and rates[mine].sum() > 0:
                        ready = max(ready, missing / rates[mine].sum())
            wait_hold[i] = max(lasts - ready, 0.0)
    return Schedule(tuple(pieces), (work_hold,), (wait_hold,))


@st.composite
def cases(draw, most_ports=3, most_phases=7, kinds=("send", "send", "load")):
    """Abstract cases: several ports, guards, gates, multiplicities; plain numbers, so that ties happen."""
    names = [f"e{k}" for k in range(draw(st.integers(1, most_ports)))]
    ports = {
        name: {"capacity": draw(st.sampled_from([8.0, 10.0, 25.0])), "guard": draw(st.sampled_from([0.0, 0.5, 1.0]))}
        for name in names
    }
    phases = []
    for _ in range(draw(st.integers(2, most_phases))):
        duration = draw(st.sampled_from([0.2, 0.5, 1.0, 1.7]))
        sizes = {}
        if draw(st.booleans()):
            for name in names:
                part = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
                if part:
                    sizes[name] = part * duration * (ports[name]["capacity"] - ports[name]["guard"])
        phases.append({"duration": duration, "bytes": sizes})
    flows = [draw(_flow(f"f{k}", names, len(phases), kinds)) for k in range(draw(st.integers(1, 3)))]
    return {"ports": ports, "phases": phases, "lane_price": draw(st.sampled_from([1.0, 4.0])), "flows": flows}


@st.composite
def _flow(draw, name, names, count, kinds):
    kind = draw(st.sampled_from(kinds))
    routes = []
    for _ in range(draw(st.integers(1, 2))):
        crossed = draw(st.sets(st.sampled_from(names), min_size=1))
        routes.append({port: draw(st.sampled_from([1, 1, 2])) for port in sorted(crossed)})
    size = st.sampled_from([0.5, 2.0, 7.0, 30.0])
    if kind == "send":
        steps = draw(st.sets(st.integers(0, count), min_size=1, max_size=3))
        release = [[k, draw(size)] for k in sorted(steps)]
        due = [[count, sum(part for _, part in release)]]
    else:
        steps = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
        due = [[k, draw(size)] for k in sorted(steps)]
        release = [[draw(st.integers(0, min(steps))), sum(part for _, part in due)]]
    return {
        "name": name,
        "kind": kind,
        "routes": routes,
        "release": release,
        "due": due,
        "price": draw(st.sampled_from([0.5, 1.0, 4.0])),
        "quantum": 1.0,
    }
