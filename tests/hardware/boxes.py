"""Boxes for tests: shipped profiles, edits of them, and random trees."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.resources import resolve


def raw_profile(name: str = "rtx_pro_6000_wrx90_two_roots") -> dict[str, Any]:
    return json.loads(resolve("hardware_profiles", name).read_text())


def box_of(raw: dict[str, Any], node: str = "P") -> Box:
    return Box(HardwareProfile.parse(raw), node)


def shipped(name: str, node: str = "P") -> Box:
    return box_of(raw_profile(name), node)


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": "p2p"}


def with_flags(name: str = "rtx_pro_6000_wrx90_two_roots", node: str = "P", **flags: Any) -> Box:
    raw = raw_profile(name)
    raw["flags"] |= flags
    return box_of(raw, node)


@st.composite
def random_boxes(draw: st.DrawFn) -> Box:
    """Any tree: sockets, root ports with one link each, nested switches, GPUs and NICs anywhere."""
    raw = raw_profile()
    raw["collectives"] = []
    sockets = [f"socket{k}" for k in range(draw(st.integers(1, 2)))]
    ports: list[dict[str, Any]] = []
    switches: list[dict[str, Any]] = []
    attached: list[str] = []
    gpus = draw(st.integers(2, 8))
    nics = draw(st.integers(1, 3))

    def new_root_port() -> dict[str, Any]:
        port = {"name": f"root_port{len(ports)}", "socket": draw(st.sampled_from(sockets)), "gpus": []}
        ports.append(port)
        return port

    for k in range(draw(st.integers(0, 4))):
        under = draw(st.sampled_from(["new", *(switch["name"] for switch in switches)]))
        name = new_root_port()["name"] if under == "new" else under
        switches.append({"name": f"switch{k}", "under": name, "gpus": []})
    for gpu in range(gpus):
        place = draw(st.sampled_from([None, *switches])) or new_root_port()
        place["gpus"].append(gpu)
    for _ in range(nics):
        place = draw(st.sampled_from([None, *switches])) or new_root_port()
        attached.append(place["name"])
    raw["gpu"]["count"] = gpus
    raw["nics"]["attached_to"] = attached
    raw["links"]["inter_socket_gb_per_s"] = figure(50)
    groups = [
        {
            "name": f"root_complex{k}",
            "root_ports": [port["name"] for port in ports if port["socket"] == socket],
            "capacity_gb_per_s": figure(200),
        }
        for k, socket in enumerate(sockets)
    ]
    raw["tree"] = {
        "sockets": sockets,
        "root_ports": ports,
        "switches": switches,
        "root_complexes": [group for group in groups if group["root_ports"]],
    }
    raw["flags"]["acs_redirect"] = draw(st.booleans())
    return box_of(raw)
