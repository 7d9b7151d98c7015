"""Synthetic records for benchmarks: a TP ring over the uplinks of two switches, prefix loads from host memory, sends.

Shapes follow a prefill of ``chunks`` chunks through ``layers`` layers on ``classes`` classes of ranks (their demand
differs slightly, so that nothing collapses); figures are those of a PCIe Gen5 x16 box in order of magnitude only.
"""

import numpy as np

from pdmodel.allocation.data import AllocationData

GB = 1e9


def one_lane(layers: int, chunks: int, classes: int = 4, *, layerwise: bool = True, pressure: float = 1.0) -> dict:
    """One lane: 4 phases a layer and chunk; loads gate each layer of the first chunk; sends by layer or by chunk."""
    rng = np.random.default_rng(3)
    ports = {"host": {"capacity": 114 * GB, "guard": 2 * GB}}
    for switch in range(2):
        for way in ("up", "down"):
            ports[f"switch{switch}/{way}"] = {"capacity": 50 * GB, "guard": 1 * GB}
        ports[f"nic{switch}/tx"] = {"capacity": 46 * GB, "guard": 0.0}
    for rank in range(classes):
        for way in ("egress", "ingress"):
            ports[f"gpu{rank}/{way}"] = {"capacity": (53.0 - 0.1 * rank) * GB, "guard": 1 * GB}
    phases, gates, releases = [], [], []
    for chunk in range(chunks):
        for layer in range(layers):
            if chunk == 0:
                gates.append(len(phases))
            for part in range(2):
                compute = float((0.35 if part else 0.25) * 1e-3 * rng.uniform(0.98, 1.02))
                phases.append({"duration": compute, "bytes": {}})
                size = 16e6 * (1.0 + 0.03 * part)
                used = {f"gpu{r}/{w}": size for r in range(classes) for w in ("egress", "ingress")}
                used |= {f"switch{s}/{w}": size for s in range(2) for w in ("up", "down")}
                phases.append({"duration": size / (44 * GB), "bytes": used | {"host": 2 * size}})
            if layerwise or layer == layers - 1:
                releases.append(len(phases))
    horizon = sum(p["duration"] for p in phases)
    flows = []
    for rank in range(classes):
        switch = rank % 2
        load = pressure * 0.9 * GB * horizon * 8 / classes / chunks**0.5
        flows.append(
            {
                "name": f"load{rank}",
                "kind": "load",
                "routes": [{"host": 1.0, f"switch{switch}/down": 1.0, f"gpu{rank}/ingress": 1.0}],
                "release": [[0, load]],
                "due": [[k, load / len(gates)] for k in gates],
                "price": 8.0,
                "quantum": load / len(gates) / 2,
            }
        )
        send = pressure * 5 * GB * horizon * 4 / classes
        routes = [{f"gpu{rank}/egress": 1.0, f"nic{switch}/tx": 1.0}]
        other = 1 - switch
        across = {f"switch{switch}/up": 1.0, f"switch{other}/down": 1.0, f"nic{other}/tx": 1.0}
        routes.append({f"gpu{rank}/egress": 1.0} | across)
        flows.append(
            {
                "name": f"send{rank}",
                "kind": "send",
                "routes": routes,
                "release": [[k, send / len(releases)] for k in releases],
                "due": [[len(phases), send]],
                "price": 1.0,
                "quantum": send / 2,
            }
        )
    return {"ports": ports, "phases": phases, "lane_price": 12.0, "flows": flows}


def record(layers: int, chunks: int, classes: int = 4, *, layerwise: bool = True, pressure: float = 1.0):
    return AllocationData.from_dict(one_lane(layers, chunks, classes, layerwise=layerwise, pressure=pressure))
