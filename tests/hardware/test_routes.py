"""Routes: conservation, what two transfers share, reverse-direction requests, staging, input links, hazards."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from boxes import box_of, random_boxes, raw_profile, shipped, with_flags
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.hardware import routes
from pdmodel.hardware.catalog import list_profiles
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.hardware.profile import Distance
from pdmodel.hardware.routes import Transport
from pdmodel.hardware.topology import Box

TWO_ROOTS = "rtx_pro_6000_wrx90_two_roots"


def directed_edges(box: Box) -> dict[str, dict[str, str]]:
    """The box as a graph, from its file alone: element -> neighbour -> port. Root ports are folded into sockets."""
    tree, nics = box.profile.tree, box.profile.nics
    graph: dict[str, dict[str, str]] = defaultdict(dict)

    def link(child: str, parent: str, up: str, down: str) -> None:
        graph[child][parent] = f"{box.node}/{child}/{up}"
        graph[parent][child] = f"{box.node}/{child}/{down}"

    for holder in (*tree.root_ports, *tree.switches):
        for gpu in holder.gpus:
            link(f"gpu{gpu}", holder.name, "egress", "ingress")
    for nic, place in enumerate(nics.attached_to if nics else ()):
        link(f"nic{nic}", place, "egress", "ingress")
    for switch in tree.switches:
        link(switch.name, switch.under, "up", "down")
    for port in tree.root_ports:
        graph[port.name][port.socket], graph[port.socket][port.name] = "", ""
    for one, two in itertools.permutations(tree.sockets, 2):
        graph[one][two] = f"{box.node}/{one}/to_{two}"
    return graph


def shortest(box: Box, source: str, destination: str) -> set[str]:
    """The ports on the shortest path, by breadth-first search."""
    graph = directed_edges(box)
    paths, queue = {source: [""]}, [source]
    while queue:
        current = queue.pop(0)
        for neighbour, port in graph[current].items():
            if neighbour not in paths:
                paths[neighbour] = [*paths[current], port]
                queue.append(neighbour)
    return set(paths[destination]) - {""}


def links_only(box: Box, route: Route) -> dict[str, float]:
    """A route without the limits that are no links."""
    other = {PortKind.ROOT_COMPLEX, PortKind.BOTH_DIRECTIONS, PortKind.HOST_MEMORY, PortKind.NIC_TX, PortKind.NIC_RX}
    return {
        name: share
        for name, share in route.ports.items()
        if box.port_index[name].kind not in other and "/reads_" not in name and "/writes_" not in name
    }


def imbalance(box: Box, route: Route) -> float:
    """Largest difference between the bytes that enter and leave a switch."""
    net: dict[str, float] = defaultdict(float)
    for element, step in box.steps.items():
        up, down = route.ports.get(step.up, 0.0), route.ports.get(step.down, 0.0)
        net[step.parent] += up - down
        net[element] += down - up
    return max((abs(net[switch.name]) for switch in box.profile.tree.switches), default=0.0)


def every_route(box: Box) -> list[Route]:
    found = []
    for gpu in range(box.gpu_count):
        found += [routes.host_to_gpu(box, gpu), routes.gpu_to_host(box, gpu)]
        for nic in range(box.nic_count):
            found += [routes.gpu_to_nic(box, gpu, nic), routes.nic_to_gpu(box, nic, gpu)]
        for other in set(range(box.gpu_count)) - {gpu}:
            found.append(routes.gpu_to_gpu(box, gpu, other))
            found.append(routes.gpu_to_gpu(box, gpu, other, Transport.SHM))
    return found


@pytest.mark.parametrize("name", list_profiles())
def test_every_route_of_a_shipped_box_conserves_bytes_and_names_its_ports(name: str) -> None:
    box = shipped(name)
    for route in every_route(box):
        assert imbalance(box, route) < 1e-12, route
        assert set(route.ports) == set(route.input_links) <= set(box.port_index), route
        assert all(share > 0 for share in route.ports.values())


@settings(max_examples=60, deadline=None)
@given(random_boxes())
def test_any_tree_conserves_bytes(box: Box) -> None:
    for route in every_route(box):
        assert imbalance(box, route) < 1e-12, route
        assert set(route.ports) == set(route.input_links) <= set(box.port_index), route


@settings(max_examples=60, deadline=None)
@given(random_boxes(), st.data())
def test_a_write_takes_the_shortest_path_and_two_writes_share_exactly_what_is_on_both(
    box: Box, data: st.DataObject
) -> None:
    pairs = list(itertools.permutations(range(box.gpu_count), 2))
    chosen = data.draw(st.lists(st.sampled_from(pairs), min_size=2, max_size=2))
    acs = box.profile.flags.acs_redirect
    expected, found = [], []
    for source, destination in chosen:
        same_root = box.root_port(f"gpu{source}") == box.root_port(f"gpu{destination}")
        if acs and same_root:
            root = box.root_port(f"gpu{source}")
            expected.append(shortest(box, f"gpu{source}", root) | shortest(box, root, f"gpu{destination}"))
        else:
            expected.append(shortest(box, f"gpu{source}", f"gpu{destination}"))
        found.append(set(links_only(box, routes.gpu_to_gpu(box, source, destination))))
    assert found == expected
    assert found[0] & found[1] == expected[0] & expected[1]


def test_a_switch_keeps_local_traffic_off_its_uplink_unless_acs_redirects_it() -> None:
    box, acs = shipped(TWO_ROOTS), with_flags(acs_redirect=True)
    assert set(routes.gpu_to_gpu(box, 0, 1).ports) == {"P/gpu0/egress", "P/gpu1/ingress"}
    assert {"P/switch0/up", "P/switch0/down"} <= set(routes.gpu_to_gpu(acs, 0, 1).ports)
    assert {"P/switch0/up", "P/switch0/down"} <= set(routes.gpu_to_nic(acs, 0, 0).ports)


def test_a_nic_reads_a_gpu_with_requests_the_other_way() -> None:
    route = routes.gpu_to_nic(shipped(TWO_ROOTS), 0, 0)
    assert route.ports == {
        "P/gpu0/egress": 1.0,
        "P/nic0/ingress": 1.0,
        "P/nic0/egress": 24 / 512,
        "P/gpu0/ingress": 24 / 512,
    }
    assert route.device == "P/nic0"
    assert not route.fifo


def test_a_nic_writes_a_gpu_without_requests() -> None:
    route = routes.nic_to_gpu(shipped(TWO_ROOTS, "D"), 0, 0)
    assert route.ports == {"D/nic0/egress": 1.0, "D/gpu0/ingress": 1.0}


def test_a_hop_through_host_memory_crosses_it_twice_and_the_receiver_asks() -> None:
    route = routes.gpu_to_gpu(shipped(TWO_ROOTS), 0, 1, Transport.SHM)
    assert route.ports == {
        "P/gpu0/egress": 1.0,
        "P/switch0/up": 1.0 + 24 / 128,
        "P/root_complex0": 2.0,
        "P/socket0/host_memory": 2.0,
        "P/switch0/down": 1.0,
        "P/gpu1/ingress": 1.0,
        "P/gpu1/egress": 24 / 128,
    }


def test_the_buffer_of_a_hop_lies_on_the_receivers_socket() -> None:
    route = routes.gpu_to_gpu(shipped("rtx_5090_direct"), 0, 4)
    assert route.ports["P/socket1/host_memory"] == 2.0
    assert "P/socket0/host_memory" not in route.ports
    assert route.ports["P/socket0/to_socket1"] == 1.0
    assert "P/socket1/to_socket0" not in route.ports


def test_peer_loads_take_the_same_ports_as_writes_and_requests_back() -> None:
    box = shipped(TWO_ROOTS)
    write, read = routes.gpu_to_gpu(box, 0, 4), routes.gpu_to_gpu(box, 0, 4, Transport.PEER_READ)
    assert {name: read.ports[name] for name in write.ports} == dict(write.ports)
    back = {"P/gpu4/egress", "P/switch1/up", "P/switch0/down", "P/gpu0/ingress"}
    assert {name: share for name, share in read.ports.items() if name not in write.ports} == dict.fromkeys(
        back, 24 / 128
    )


def test_the_copy_engine_is_one_queue_per_direction() -> None:
    box = shipped(TWO_ROOTS)
    h2d, d2h = routes.host_to_gpu(box, 5), routes.gpu_to_host(box, 5)
    assert h2d.fifo and d2h.fifo
    assert (h2d.device, d2h.device) == ("P/gpu5/h2d", "P/gpu5/d2h")
    assert h2d.ports["P/switch1/up"] == h2d.ports["P/gpu5/egress"] == 24 / 512
    assert set(d2h.ports) == {"P/gpu5/egress", "P/switch1/up", "P/root_complex0", "P/socket0/host_memory"}


def test_nvlink_boxes_use_only_nvlink_between_gpus() -> None:
    box = shipped("h200_nvlink_2nic")
    for transport in (None, Transport.NVLINK, Transport.PEER_READ):
        assert routes.gpu_to_gpu(box, 0, 7, transport).ports == {
            "P/gpu0/nvlink_egress": 1.0,
            "P/gpu7/nvlink_ingress": 1.0,
        }
    kv = routes.kv_route(box, 0, 0, shipped("h200_nvlink_2nic", "D"), 0, 0)
    assert not any("nvlink" in name for name in kv.ports)


def test_kv_with_gpudirect_on_both_sides() -> None:
    route = routes.kv_route(shipped(TWO_ROOTS), 0, 0, shipped("h100_8nic", "D"), 3, 2)
    full = {name for name, share in route.ports.items() if share == 1.0}
    assert full == {
        "P/gpu0/egress",
        "P/nic0/ingress",
        "P/nic0/tx",
        "D/nic3/rx",
        "D/nic3/egress",
        "D/gpu2/ingress",
    }
    assert not route.staged
    assert route.hazards == ()


def test_kv_staged_crosses_host_memory_twice_on_each_side() -> None:
    one, two = shipped("rtx_5090_direct"), shipped("rtx_5090_direct", "D")
    route = routes.kv_route(one, 0, 0, two, 1, 5)
    assert route.staged
    assert route.ports["P/socket0/host_memory"] == route.ports["D/socket1/host_memory"] == 2.0
    assert route.ports["P/root_complex0"] == route.ports["D/root_complex1"] == 2.0
    assert sum("staged" in hazard for hazard in route.hazards) == 2


def test_a_nic_that_may_only_write_stages_on_the_sending_side_alone() -> None:
    one = with_flags(gpudirect_rdma="write_only")
    two = with_flags(node="D", gpudirect_rdma="write_only")
    route = routes.kv_route(one, 0, 0, two, 0, 0)
    assert route.ports["P/socket0/host_memory"] == 2.0
    assert "D/socket0/host_memory" not in route.ports


def test_the_fabric_is_a_port_only_where_the_scenario_bounds_it() -> None:
    one, two = shipped(TWO_ROOTS), shipped(TWO_ROOTS, "D")
    fabric = Port("fabric", PortKind.FABRIC, 50e9)
    assert routes.kv_route(one, 0, 0, two, 0, 0, fabric).ports["fabric"] == 1.0
    assert not any(name == "fabric" for name in routes.kv_route(one, 0, 0, two, 0, 0).ports)


def test_input_links_are_what_a_port_arbitrates_between() -> None:
    box = shipped(TWO_ROOTS)
    ring = routes.gpu_to_gpu(box, 3, 4)
    assert ring.input_links["P/gpu3/egress"] == ("sm",)
    assert ring.input_links["P/switch0/up"] == ("P/gpu3/egress",)
    assert ring.input_links["P/switch1/down"] == ("root_port0",)
    assert ring.input_links["P/gpu4/ingress"] == ("P/switch1/down",)
    load = routes.host_to_gpu(box, 4)
    assert load.input_links["P/switch1/down"] == ("host_memory",)
    assert load.input_links["P/gpu4/ingress"] == ("P/switch1/down",)
    assert load.input_links["P/gpu4/egress"] == ("copy_engine",)
    kv = routes.gpu_to_nic(box, 4, 1)
    assert kv.input_links["P/gpu4/egress"] == ("nic1",)
    assert kv.input_links["P/nic1/ingress"] == ("P/gpu4/egress",)
    assert kv.input_links["P/gpu4/ingress"] == ("P/nic1/egress",)
    assert routes.gpu_to_gpu(box, 5, 4).input_links["P/gpu4/ingress"] == ("P/gpu5/egress",)


@pytest.mark.parametrize(
    ("name", "one", "two", "distance"),
    [
        (TWO_ROOTS, "gpu0", "nic0", Distance.PIX),
        (TWO_ROOTS, "gpu0", "gpu4", Distance.PHB),
        ("h100_8nic", "gpu0", "gpu2", Distance.PHB),
        ("h100_8nic", "gpu0", "nic7", Distance.SYS),
        ("rtx_pro_6000_server", "gpu0", "nic0", Distance.PHB),
    ],
)
def test_distances(name: str, one: str, two: str, distance: Distance) -> None:
    box = shipped(name)
    assert box.distance(one, two) is box.distance(two, one) is distance


def test_node_and_pxb_distances() -> None:
    raw = raw_profile()
    group = raw["tree"]["root_complexes"][0]
    raw["tree"]["root_complexes"] = [
        {**group, "name": f"quadrant{k}", "root_ports": [f"root_port{k}"]} for k in range(2)
    ]
    assert box_of(raw).distance("gpu0", "gpu4") is Distance.NODE
    raw["tree"]["switches"].append({"name": "leaf", "under": "switch0", "gpus": [3]})
    raw["tree"]["switches"][0]["gpus"] = [0, 1, 2]
    assert box_of(raw).distance("gpu0", "gpu3") is Distance.PXB


def test_a_far_nic_is_slower_and_flagged() -> None:
    box = shipped("rtx_pro_6000_server")
    near, far = routes.gpu_to_nic(box, 0, 0), routes.gpu_to_nic(box, 0, 1)
    rates = [min(box.port_index[name].capacity_bytes_per_s for name in route.ports) for route in (near, far)]
    assert rates == [36.8e9, 18.4e9]
    assert any("SYS" in hazard for hazard in far.hazards)
    assert not routes.gpu_to_nic(shipped(TWO_ROOTS), 0, 0).hazards


def test_hazards_of_sharing_are_on_the_routes_that_meet_them() -> None:
    box = shipped(TWO_ROOTS)
    assert not routes.gpu_to_gpu(box, 0, 1).hazards
    assert "posted_write_collapse" in routes.gpu_to_gpu(box, 0, 4).hazards[0]
    assert "p2p_all_to_all_collapse" in routes.gpu_to_gpu(shipped("l40s_pcie_gen4"), 0, 1).hazards[0]
    assert "host_duplex_collapse" in routes.gpu_to_gpu(shipped("rtx_5090_direct"), 0, 1).hazards[0]


def test_a_cap_on_both_directions_takes_their_sum() -> None:
    raw = raw_profile()
    raw["links"]["gpu"]["both_gb_per_s"] = {"value": 60, "source": "p2p"}
    raw["links"]["uplink"]["both_gb_per_s"] = {"value": 70, "source": "p2p"}
    route = routes.gpu_to_gpu(box_of(raw), 0, 1, Transport.SHM)
    assert route.ports["P/gpu1/both"] == 1.0 + 24 / 128
    assert route.ports["P/switch0/both"] == 2.0 + 24 / 128


def test_merge_adds_multiplicities() -> None:
    one = Route("a", {"x": 1.0}, {"x": ("p",)}, device="", hazards=("h",))
    two = Route("b", {"x": 0.5, "y": 1.0}, {"x": ("p", "q"), "y": ("r",)}, device="nic", staged=True, hazards=("h",))
    merged = routes.merge(one, two)
    assert merged == Route(
        "a>b", {"x": 1.5, "y": 1.0}, {"x": ("p", "q"), "y": ("r",)}, "nic", staged=True, hazards=("h",)
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda box: routes.gpu_to_gpu(box, 0, 8), "GPU 8 does not exist on P; expected 0 to 7"),
        (lambda box: routes.gpu_to_gpu(box, 2, 2), "GPU 2 cannot send to itself"),
        (lambda box: routes.gpu_to_nic(box, 0, 2), "NIC 2 does not exist on P; expected 0 to 1"),
        (lambda box: routes.nic_to_gpu(box, -1, 0), "NIC -1 does not exist"),
        (lambda box: routes.gpu_to_gpu(box, 0, 1, Transport.NVLINK), "has no NVLink"),
        (lambda box: routes.host_to_gpu(box, 0, "socket7"), "socket 'socket7' does not exist"),
    ],
)
def test_what_is_not_there_is_refused(call: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        call(shipped(TWO_ROOTS))  # type: ignore[operator]


def test_refused_p2p_is_refused() -> None:
    for transport in (Transport.P2P_WRITE, Transport.PEER_READ):
        with pytest.raises(InputError, match=f"refuses {transport.value}; expected shm"):
            routes.gpu_to_gpu(shipped("rtx_5090_direct"), 0, 1, transport)


def test_ports_carry_capacity_guard_and_source() -> None:
    port: Port = shipped(TWO_ROOTS).port_index["P/switch0/up"]
    assert port.capacity_bytes_per_s == 56.3e9
    assert port.guard_bytes_per_s == pytest.approx(0.03 * 56.3e9)
    assert (port.kind, port.source.value) == (PortKind.UPLINK_UP, "measured")
