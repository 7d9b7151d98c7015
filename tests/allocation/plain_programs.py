"""Programs E and R written a second time, on dense matrices with scipy's linprog, from the raw case alone.

No reduction, no scaling, no state variables: slow and plain, so that a mistake in pdmodel's forms shows. A case is the
dictionary that `AllocationData.from_dict` takes; decode lanes are (price, {port: mean rate}) pairs.
"""

import numpy as np
from scipy.optimize import linprog


def usable(port, demand):
    """Capacity for critical traffic and KV together."""
    if demand <= 0:
        return port["capacity"]
    return min(port["capacity"], max(port["capacity"] - port["guard"], demand))


def routes_of(case):
    return [(f, route) for f, flow in enumerate(case["flows"]) for route in flow["routes"]]


class Rows:
    """A linear program written row by row, variables by name."""

    def __init__(self):
        self.keys, self.low, self.high, self.cost, self.rows, self.values = {}, [], [], [], [], []

    def var(self, key, price=0.0, low=0.0, high=np.inf):
        self.keys[key] = len(self.keys)
        self.cost.append(price)
        self.low.append(low)
        self.high.append(high)

    def at_most(self, terms, value):
        self.rows.append(terms)
        self.values.append(value)

    def solve(self, cost=None):
        matrix = np.zeros((len(self.rows), len(self.keys)))
        for k, terms in enumerate(self.rows):
            for key, weight in terms:
                matrix[k, self.keys[key]] += weight
        bounds = np.array([self.low, self.high]).T
        result = linprog(self.cost if cost is None else cost, A_ub=matrix, b_ub=np.array(self.values), bounds=bounds)
        assert result.status == 0, result.message
        return result.fun

    def least(self, kind):
        """The least sum of the variables of a kind; from then on they may be no more than that."""
        keys = [key for key in self.keys if key[0] == kind]
        if not keys:
            return 0.0
        found = self.solve(cost=[float(key[0] == kind) for key in self.keys])
        self.at_most([(key, 1.0) for key in keys], found * (1 + 1e-9) + 1e-9)
        return found


class Answer(float):
    """A cost, with what memory and leases lack at the least."""

    memory: float
    lease: float


def answered(lp, constant=0.0):
    memory, lease = lp.least("x"), lp.least("z")
    found = Answer(lp.solve() - constant)
    found.memory, found.lease = memory, lease
    return found


def volume(flow):
    return sum(size for _, size in flow["release"])


def memory_rows(lp, case, boundaries, sent_by, appeared_by):
    """What is in a pool when a slot ends, with what appears as the next one starts."""
    for name, pool in case.get("memory", {}).items():
        lp.var(("x", name))
        for now, after in boundaries:
            level = pool.get("base", 0.0) + max(appeared_by(pool, now), appeared_by(pool, after))
            terms = [(key, w) for f, w in pool["moved"].items() for key in (sent_by(f, now) if now is not None else [])]
            lp.at_most([*terms, (("x", name), -1.0)], pool["capacity"] - level)


def elastic_cost(case, decode=()):
    """Optimal cost of program E: slots are wait 0, phase 0, wait 1, phase 1, ..., tail, and a free one after it.

    Only write-backs move in that one, and decode lanes give nothing there.
    """
    phases, ports, flows, routes = case["phases"], case["ports"], case["flows"], routes_of(case)
    tail = 2 * len(phases)
    slots = tail + 2
    gates = {k for flow in flows if flow["kind"] == "load" for k, _ in flow["due"]}
    lp, constant = Rows(), 0.0
    for i, phase in enumerate(phases):
        price = phase.get("price", case["lane_price"])
        lp.var(("t", 2 * i), price, high=np.inf if i in gates else 0.0)
        lp.var(("t", 2 * i + 1), price, low=phase["duration"])
        constant += price * phase["duration"]
    lp.var(("t", tail), sum(flow["price"] for flow in flows if flow["kind"] == "send"))
    lp.var(("t", tail + 1))
    for s in range(slots):
        for r, (f, _) in enumerate(routes):
            lp.var(("y", r, s), high=0.0 if s > tail and flows[f]["kind"] != "writeback" else np.inf)
        for d, (price, _) in enumerate(decode):
            lp.var(("loss", d, s), price, high=0.0 if s > tail else np.inf)
            for name in ports:
                lp.var(("o", d, name, s))
    for s in range(slots):
        phase = phases[s // 2] if s % 2 and s < tail else {"duration": 1.0, "bytes": {}}
        for name, port in ports.items():
            critical = phase["bytes"].get(name, 0.0)
            steady = [rates.get(name, 0.0) for _, rates in decode]
            open_rate = usable(port, critical / phase["duration"] + sum(steady))
            terms = [(("y", r, s), route.get(name, 0.0)) for r, (_, route) in enumerate(routes)]
            terms += [(("o", d, name, s), -1.0) for d in range(len(decode))]
            lp.at_most([*terms, (("t", s), sum(steady) - open_rate)], -critical)
            for d, rate in enumerate(steady):
                lp.at_most([(("o", d, name, s), 1.0), (("t", s), -rate)], 0.0)
                lp.at_most([(("o", d, name, s), 1.0), (("loss", d, s), -rate)], 0.0)
    for f, flow in enumerate(flows):
        mine = [r for r, (owner, _) in enumerate(routes) if owner == f]
        for s in range(slots):
            sent = [(("y", r, t), 1.0) for r in mine for t in range(s + 1)]
            lp.at_most(sent, sum(size for k, size in flow["release"] if 2 * k <= s))
            owed = 0.0
            if flow["kind"] == "load" and s % 2 == 0 and s < tail:
                owed = sum(size for k, size in flow["due"] if k <= s // 2)
            if s == slots - 1:
                owed = sum(size for _, size in flow["release"])
            lp.at_most([(key, -1.0) for key, _ in sent], -owed)
        if flow.get("lease"):
            end = 2 * max(k for k, _ in flow["due"]) if flow["kind"] == "load" else tail
            lp.var(("z", f))
            first = 2 * min(k for k, _ in flow["release"])
            lp.at_most([*((("t", s), 1.0) for s in range(first, end + 1)), (("z", f), -1.0)], flow["lease"])

    def sent_by(name, s):
        return [("y", r, t) for r, (f, _) in enumerate(routes) if flows[f]["name"] == name for t in range(s + 1)]

    def appeared_by(pool, s):
        return sum(size for k, size, *_ in pool["appears"] if s is not None and 2 * k <= s)

    memory_rows(lp, case, [(None, 0), *((s, min(s + 1, tail + 1)) for s in range(slots))], sent_by, appeared_by)
    return answered(lp, constant)


def residual_cost(case, decode=(), groups=None, quantum=None):
    """Optimal cost of program R. ``groups``: group of each flow, sharing one lateness; default: each its own."""
    lanes = case.get("lanes") or [{"price": case["lane_price"], "phases": back_to_back(case["phases"])}]
    ports, flows, routes = case["ports"], case["flows"], routes_of(case)
    names = list(ports)
    groups = groups or list(range(len(flows)))
    edges = sorted({t for lane in lanes for p in lane["phases"] for t in (p["start"], p["end"])})
    length = np.array([*np.diff(edges), *case["tail"]])
    count, clock = len(length), len(edges) - 1
    begin = [*edges[:-1], *([edges[-1]] * len(case["tail"]))]
    lp = Rows()
    running = [
        [
            (n, i)
            for n, lane in enumerate(lanes)
            for i, p in enumerate(lane["phases"])
            if p["start"] <= begin[j] < p["end"]
        ]
        if j < clock
        else []
        for j in range(count)
    ]
    for j in range(count):
        for r in range(len(routes)):
            lp.var(("y", r, j))
        for g in sorted(set(groups)):
            price = (
                max(flow.get("price", 0.0) for flow, owner in zip(flows, groups, strict=True) if owner == g)
                * length[j]
                / 2
            )
            lp.var(("start", g, j), price)
            lp.var(("end", g, j), price)
        for d, (price, _) in enumerate(decode):
            lp.var(("loss", d, j), price, high=length[j])
            for name in names:
                lp.var(("od", d, name, j))
        for name in names:
            achieved = 0.0
            for n, i in running[j]:
                p = lanes[n]["phases"][i]
                achieved += p["bytes"].get(name, 0.0) / (p["end"] - p["start"])
            lp.var(("o", name, j), high=achieved * length[j])
    for n, lane in enumerate(lanes):
        for i in range(len(lane["phases"])):
            lp.var(("delay", n, i), lane["phases"][i].get("price", lane["price"]))
    open_rate = {}
    for j in range(count):
        for name in names:
            full = [lanes[n]["phases"][i] for n, i in running[j]]
            demand = sum(p["bytes"].get(name, 0.0) / p["duration"] for p in full)
            steady = sum(rates.get(name, 0.0) for _, rates in decode)
            achieved = sum(p["bytes"].get(name, 0.0) / (p["end"] - p["start"]) for p in full)
            open_rate[name, j] = usable(ports[name], demand + steady)
            terms = [(("y", r, j), route.get(name, 0.0)) for r, (_, route) in enumerate(routes)]
            terms += [(("od", d, name, j), -1.0) for d in range(len(decode))]
            room = max(0.0, open_rate[name, j] - achieved - steady) * length[j]
            lp.at_most([*terms, (("o", name, j), -1.0)], room)
            for d, (_, rates) in enumerate(decode):
                lp.at_most([(("od", d, name, j), 1.0), (("loss", d, j), -rates.get(name, 0.0))], 0.0)
    for n, lane in enumerate(lanes):
        for i, p in enumerate(lane["phases"]):
            inside = [j for j in range(count) if (n, i) in running[j]]
            for name in names:
                if p["bytes"].get(name, 0.0) > 0:
                    terms = [(("o", name, j), 1.0 / open_rate[name, j]) for j in inside]
                    lp.at_most([*terms, (("delay", n, i), -1.0)], 0.0)
    for f, flow in enumerate(flows):
        phases = lanes[flow.get("lane", 0)]["phases"]
        moment = [p["start"] for p in phases] + [phases[-1]["end"]]
        before_end = [moment[0], *(p["end"] for p in phases)]
        q = quantum[f] if quantum is not None else flow.get("quantum", 1.0)
        for j in range(count):
            now = begin[j] if j < clock else np.inf
            sent = [(("y", r, t), 1.0) for r, (owner, _) in enumerate(routes) if owner == f for t in range(j + 1)]
            earlier = [(key, 1.0) for key, _ in sent if key[2] < j]
            lp.at_most(sent, sum(size for k, size in flow["release"] if before_end[k] <= now))
            owed = sum(size for k, size in flow.get("due", []) if before_end[k] <= now)
            lp.at_most([(key, -1.0) for key, _ in earlier] + [(("start", groups[f], j), -q)], -owed)
            lp.at_most([(key, -1.0) for key, _ in sent] + [(("end", groups[f], j), -q)], -owed)
        lp.at_most([(key, -1.0) for key, _ in sent], -sum(size for _, size in flow["release"]))
        if flow.get("lease"):
            lp.var(("z", f))
            until = before_end[min(k for k, _ in flow["release"])] + flow["lease"]
            ends = edges[0] + np.cumsum(length)
            within = [(key, -1.0) for key, _ in sent if ends[key[2]] <= until + 1e-9]
            lp.at_most([*within, (("z", f), -1.0)], -volume(flow))

    def sent_by(name, j):
        return [("y", r, t) for r, (f, _) in enumerate(routes) if flows[f]["name"] == name for t in range(j + 1)]

    def appeared_by(pool, j):
        total = 0.0
        for k, size, *lane in pool["appears"]:
            phases = lanes[lane[0] if lane else 0]["phases"]
            at = phases[0]["start"] if k == 0 else phases[k - 1]["end"]
            total += size if j is not None and (j >= clock or at <= begin[j]) else 0.0
        return total

    memory_rows(lp, case, [(None, 0), *((j, min(j + 1, count - 1)) for j in range(count))], sent_by, appeared_by)
    return answered(lp)


def back_to_back(phases):
    now, out = 0.0, []
    for phase in phases:
        out.append({**phase, "start": now, "end": now + phase["duration"]})
        now += phase["duration"]
    return out


def random_case(rng, *, loads=True, phases=(2, 8), ports=(1, 4), flows=(1, 4)):
    """One lane of alternating compute and collectives; sends released on the way, loads due at gates."""
    names = [f"port{k}" for k in range(rng.integers(*ports))]
    capacity = {name: float(rng.uniform(5, 60)) for name in names}
    spec = {name: {"capacity": c, "guard": float(c * rng.choice([0.0, 0.05, 0.3]))} for name, c in capacity.items()}
    lane = []
    for i in range(rng.integers(*phases)):
        duration = float(rng.uniform(0.1, 2.0))
        load = rng.uniform(0.0, 1.0, len(names)) * (rng.random(len(names)) < 0.8) * (i % 2)
        size = {n: float(x * capacity[n] * duration) for n, x in zip(names, load, strict=True) if x > 0}
        lane.append({"duration": duration, "bytes": size})
    horizon = sum(p["duration"] for p in lane)
    made = []
    for k in range(rng.integers(*flows)):
        kind = "load" if loads and rng.random() < 0.4 else "send"
        routes = []
        for _ in range(rng.integers(1, 3)):
            crossed = [n for n in names if rng.random() < 0.6] or [str(rng.choice(names))]
            routes.append({n: float(rng.choice([1.0, 1.0, 2.0, 0.05])) for n in crossed})
        volume = float(horizon * np.mean(list(capacity.values())) * rng.uniform(0.02, 0.8))
        places = len(lane) + (kind == "send")
        steps = sorted(int(x) for x in rng.choice(places, size=min(places, int(rng.integers(1, 4))), replace=False))
        sizes = [float(x) for x in rng.dirichlet(np.ones(len(steps))) * volume]
        curve = [[k, x] for k, x in zip(steps, sizes, strict=True)]
        total = float(sum(sizes))
        made.append(
            {
                "name": f"flow{k}",
                "kind": kind,
                "routes": routes,
                "release": curve if kind == "send" else [[0, total]],
                "due": curve if kind == "load" else [[len(lane), total]],
                "price": float(rng.choice([0.25, 1.0, 3.0])),
                "quantum": total * float(rng.uniform(0.1, 1.0)),
            }
        )
    longest = 2.2 * sum(x["quantum"] for x in made) * 10 / min(capacity.values()) + 0.5
    tail = [longest * w for w in (0.05, 0.1, 0.3, 0.8)]
    return {"ports": spec, "phases": lane, "tail": tail, "lane_price": float(rng.choice([1.0, 3.0])), "flows": made}


def random_lanes(rng, lanes=2):
    """Several lanes on one clock, some phases slower than alone, gaps between some; decode lanes and late groups."""
    case = random_case(rng, phases=(2, 6))
    ports = case["ports"]
    made = []
    for _ in range(lanes):
        now, phases = float(rng.choice([0.0, 0.3])), []
        for phase in random_case(rng, phases=(2, 6))["phases"]:
            lasts = phase["duration"] * float(rng.choice([1.0, 1.0, 1.5]))
            used = dict(zip(ports, phase["bytes"].values(), strict=False))
            limit = {n: min(x, 0.9 * ports[n]["capacity"] * phase["duration"]) for n, x in used.items()}
            phases.append({"duration": phase["duration"], "start": now, "end": now + lasts, "bytes": limit})
            now += lasts + float(rng.choice([0.0, 0.0, 0.2]))
        made.append({"price": float(rng.choice([1.0, 2.0])), "phases": phases})
    flows = []
    for k, flow in enumerate(case["flows"]):
        lane = int(rng.integers(lanes))
        count = len(made[lane]["phases"])
        last = count if flow["kind"] == "send" else count - 1
        fold = {"release": last, "due": count if flow["kind"] == "send" else last}
        curves = {
            name: [[min(i, fold[name]), x] for i, x in flow[name]]
            if name == "release" or flow["kind"] == "load"
            else [[count, sum(x for _, x in flow["due"])]]
            for name in ("release", "due")
        }
        flows.append({**flow, **curves, "lane": lane, "name": f"flow{k}"})
    return {"ports": ports, "lanes": made, "tail": case["tail"], "flows": flows}


def random_decode(rng, ports):
    """One or two decode lanes with a mean demand on some ports."""
    return [
        (float(rng.uniform(0.2, 3.0)), {n: float(p["capacity"] * rng.uniform(0.05, 0.45)) for n, p in ports.items()})
        for _ in range(int(rng.integers(1, 3)))
    ]


def layered_case(rng, lanes=1):
    """Few kinds of phases repeated many times, releases and gates between some: what the exact reduction merges."""
    names = ["a", "b"]
    ports = {n: {"capacity": float(rng.uniform(8, 20)), "guard": 0.5} for n in names}
    kinds = [{n: float(0.8 * p["capacity"] * x) for (n, p), x in zip(ports.items(), rng.random(2), strict=True)}, {}]
    made = []
    for _ in range(lanes):
        now, phases = 0.0, []
        for i in range(int(rng.integers(8, 14))):
            duration = float(rng.choice([0.2, 0.5]))
            size = {n: rate * duration for n, rate in kinds[i % 2].items()}
            pace = 1.0 if lanes == 1 or rng.random() < 0.7 else 1.25
            phases.append({"duration": duration, "start": now, "end": now + duration * pace, "bytes": size})
            now += duration * pace
        made.append({"price": float(rng.choice([1.0, 3.0])), "phases": phases})
    flows = []
    for k in range(3):
        lane = int(rng.integers(lanes))
        count = len(made[lane]["phases"])
        kind = "load" if k == 0 else "send"
        steps = sorted(int(x) for x in rng.choice(count, size=2, replace=False))
        sizes = [float(x) for x in rng.uniform(1.0, 9.0, 2)]
        curve = [[i, x] for i, x in zip(steps, sizes, strict=True)]
        routes = [{"a": 1.0, "b": 0.1}, {"b": 1.0}][: int(rng.integers(1, 3))]
        flow = {
            "name": f"flow{k}",
            "kind": kind,
            "routes": routes,
            "lane": lane,
            "price": float(rng.choice([0.5, 2.0])),
        }
        flow["release"] = curve if kind == "send" else [[0, sum(sizes)]]
        flow["due"] = curve if kind == "load" else [[count, sum(sizes)]]
        flows.append({**flow, "quantum": float(rng.uniform(1.0, 5.0))})
    case = {"ports": ports, "tail": [0.5, 2.0, 8.0], "flows": flows, "lanes": made}
    if lanes == 1:
        case |= {"phases": made[0]["phases"], "lane_price": made[0]["price"]}
    return case


def with_writebacks(case, rng, count=2):
    """The case with write-backs on some of its ports, released on the way."""
    names, phases = list(case["ports"]), case["phases"]
    flows = list(case["flows"])
    for k in range(count):
        steps = sorted(int(x) for x in rng.choice(len(phases) + 1, size=2, replace=False))
        size = volume(flows[0]) * rng.uniform(0.2, 1.5, 2)
        routes = [{str(n): float(rng.choice([1.0, 2.0])) for n in rng.permutation(names)[:2]} for _ in range(2)]
        curve = [[i, float(x)] for i, x in zip(steps, size, strict=True)]
        flows.append({"name": f"back{k}", "kind": "writeback", "routes": routes[: k + 1], "release": curve})
    tail = [3 * x for x in case["tail"]]
    return {**case, "flows": flows, "tail": tail}


def with_memory(case, share=0.2):
    """The case with a pool that every phase fills and sends empty.

    It holds the largest step and ``share`` of the rest; with a negative share not even that.
    """
    phases = case["phases"]
    sends = {f["name"]: -1.0 for f in case["flows"] if f["kind"] != "load"}
    total = sum(volume(f) for f in case["flows"] if f["name"] in sends)
    grown = [[k, total * 1e-6] for k in range(len(phases) + 1)]
    grown += [list(step) for f in case["flows"] if f["name"] in sends for step in f["release"]]
    largest = max((sum(x for i, x in grown if i == k) for k, _ in grown), default=0.0)
    pool = {"capacity": 1.0 + largest + (total - largest) * share, "base": 1.0, "appears": grown, "moved": sends}
    return {**case, "memory": {"hbm": pool}}


def with_leases(case, rng):
    """The case with leases on its sends and loads: what their phases take, and some more."""
    tau, flows = [p["duration"] for p in case["phases"]], []
    for flow in case["flows"]:
        first = min(k for k, _ in flow["release"])
        end = max(k for k, _ in flow["due"]) if flow["kind"] == "load" else len(tau)
        spare = float(rng.choice([0.02, 0.1, 0.5])) * sum(tau)
        flows.append({**flow, "lease": sum(tau[first:end]) + spare} if flow["kind"] != "writeback" else flow)
    return {**case, "flows": flows}
