"""Ways between host memory, NICs, disks and the wire, held against the walk from GPU to NIC and by hand."""

import pytest
from boxes import random_boxes, shipped
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.errors import InputError
from pdmodel.hardware import routes
from pdmodel.hardware.catalog import list_profiles
from pdmodel.hardware.topology import Box

TWO_ROOTS = "rtx_pro_6000_wrx90_two_roots"


def test_a_nic_and_host_memory_by_hand() -> None:
    box = shipped(TWO_ROOTS)
    share = 24 / box.profile.max_read_request.nic_bytes.value
    into, out = routes.nic_to_host(box, 0), routes.host_to_nic(box, 0)
    assert into.ports == {
        "P/nic0/rx": 1.0,
        "P/nic0/egress": 1.0,
        "P/switch0/up": 1.0,
        "P/root_complex0": 1.0,
        "P/socket0/host_memory": 1.0,
    }
    assert out.ports == {
        "P/socket0/host_memory": 1.0,
        "P/root_complex0": 1.0,
        "P/switch0/down": 1.0,
        "P/nic0/ingress": 1.0,
        "P/nic0/egress": share,
        "P/switch0/up": share,
        "P/nic0/tx": 1.0,
    }
    assert into.device == out.device == "P/nic0" and not into.fifo and not out.fifo


@pytest.mark.parametrize("name", list_profiles())
def test_the_wire_is_crossed_once_and_memory_once(name: str) -> None:
    box = shipped(name)
    for nic in range(box.nic_count):
        for socket in box.profile.tree.sockets:
            into, out = routes.nic_to_host(box, nic, socket), routes.host_to_nic(box, nic, socket)
            memory = f"P/{socket}/host_memory"
            assert into.ports[memory] == out.ports[memory] == 1.0
            assert into.ports[f"P/nic{nic}/rx"] == out.ports[f"P/nic{nic}/tx"] == 1.0
            far = box.socket(f"nic{nic}") != socket
            assert any("/to_" in port and m == 1.0 for port, m in into.ports.items()) is far
            assert set(into.ports) | set(out.ports) <= set(box.port_index)
        for gpu in range(box.gpu_count):
            whole = routes.kv_route(box, gpu, nic, shipped(name, "D"), nic, gpu)
            out, into = routes.gpu_to_wire(box, gpu, nic), routes.wire_to_gpu(shipped(name, "D"), nic, gpu)
            assert routes.merge(out, into).ports == whole.ports


@settings(max_examples=25)
@given(box=random_boxes(), data=st.data())
def test_staged_sends_are_two_walks(box: Box, data: st.DataObject) -> None:
    """Without GPUDirect a GPU's way to the wire is its copy into host memory and the NIC's way out of it."""
    if not box.nic_count:
        return
    gpu = data.draw(st.integers(0, box.gpu_count - 1))
    nic = data.draw(st.integers(0, box.nic_count - 1))
    home = box.socket(box.gpu(gpu))
    one = routes.merge(routes.gpu_to_host(box, gpu), routes.host_to_nic(box, nic, home))
    staged = routes.gpu_to_wire(box, gpu, nic)
    if staged.staged:
        assert staged.ports == pytest.approx(one.ports)


def test_kernels_load_128_bytes_at_a_time_and_queue_behind_nothing() -> None:
    box = shipped(TWO_ROOTS)
    engine, kernel = routes.host_to_gpu(box, 0), routes.host_to_gpu(box, 0, by_kernel=True)
    assert engine.fifo and engine.device == "P/gpu0/h2d" and not kernel.fifo and not kernel.device
    assert kernel.ports["P/gpu0/egress"] == 24 / 128 and kernel.input_links["P/gpu0/egress"] == ("sm",)
    out, by_kernel = routes.gpu_to_host(box, 0), routes.gpu_to_host(box, 0, by_kernel=True)
    assert out.ports == by_kernel.ports and out.fifo and not by_kernel.fifo
    assert by_kernel.input_links["P/gpu0/egress"] == ("sm",)


def test_copies_and_turns() -> None:
    box = shipped(TWO_ROOTS)
    assert routes.host_copy(box, "socket0", "socket0").ports == {"P/socket0/host_memory": 2.0}
    assert routes.host_disk(box, "socket0", write=True).ports == {"P/socket0/host_memory": 1.0}
    ways = [routes.nic_to_host(box, nic) for nic in (0, 1)]
    both = routes.striped(ways)
    assert both.ports["P/nic0/rx"] == both.ports["P/nic1/rx"] == 0.5 and both.ports["P/socket0/host_memory"] == 1.0
    assert not both.device and routes.striped(ways[:1]) is ways[0]
    assert routes.weighed(ways[0], 3.0).ports["P/nic0/rx"] == 3.0
    with pytest.raises(InputError, match="socket 'socket7' does not exist"):
        routes.nic_to_host(box, 0, "socket7")
    with pytest.raises(InputError, match="NIC 9 does not exist"):
        routes.host_to_nic(box, 9)


def test_between_sockets_the_link_is_crossed() -> None:
    two = next(box for box in (shipped(name) for name in list_profiles()) if len(box.profile.tree.sockets) == 2)
    one, other = two.profile.tree.sockets
    ports = routes.host_copy(two, one, other).ports
    assert ports[two.inter_socket(one, other)] == 1.0 and ports[two.port_name(one, "host_memory")] == 1.0
