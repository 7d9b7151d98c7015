"""What a well-formed hardware profile must also satisfy to mean something: each check raises with the JSON path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pdmodel.errors import InputError, nearest
from pdmodel.hardware.figures import source_ids

if TYPE_CHECKING:
    from pdmodel.hardware.profile import HardwareProfile


def check_profile(profile: HardwareProfile, file: str | None = None) -> None:
    """All checks.

    Raises
    ------
    InputError: the first thing that does not hold.

    """
    try:
        _check_sources(profile)
        _check_tree(profile)
        _check_gpus(profile)
        _check_nics(profile)
        _check_links(profile)
        _check_root_complexes(profile)
        _check_bound_by(profile)
        _check_collectives(profile)
    except InputError as error:
        raise error.located(file=file) from None


def _known(name: str, legal: Iterable[str], what: str, path: str) -> None:
    legal = list(legal)
    if name not in legal:
        raise InputError(
            f"{what} {name!r} does not exist",
            path=path,
            expected="one of " + ", ".join(legal) if legal else f"a {what} in the file",
            nearest=nearest(name, legal),
        )


def _check_sources(profile: HardwareProfile) -> None:
    for path, source in source_ids(profile):
        _known(source, profile.sources, "source", path)


def _check_tree(profile: HardwareProfile) -> None:
    tree = profile.tree
    ports = [port.name for port in tree.root_ports]
    switches = [switch.name for switch in tree.switches]
    for name, count in Counter([*tree.sockets, *ports, *switches]).items():
        if count > 1:
            raise InputError(f"the name {name!r} is used {count} times", path="tree", expected="unique names")
    for k, port in enumerate(tree.root_ports):
        _known(port.socket, tree.sockets, "socket", f"tree.root_ports.{k}.socket")
    for k, switch in enumerate(tree.switches):
        _known(switch.under, [*ports, *switches], "root port or switch", f"tree.switches.{k}.under")
    parent = {switch.name: switch.under for switch in tree.switches}
    for k, switch in enumerate(tree.switches):
        seen, current = {switch.name}, switch.under
        while current in parent:
            if current in seen:
                raise InputError(f"switch {switch.name!r} hangs under itself", path=f"tree.switches.{k}.under")
            seen.add(current)
            current = parent[current]
    _check_root_ports(profile)


def _check_root_ports(profile: HardwareProfile) -> None:
    """A root port is one link: a switch, one GPU or one NIC."""
    tree = profile.tree
    attached = profile.nics.attached_to if profile.nics else ()
    for k, port in enumerate(tree.root_ports):
        children = [f"gpu{gpu}" for gpu in port.gpus]
        children += [switch.name for switch in tree.switches if switch.under == port.name]
        children += [f"nic{nic}" for nic, where in enumerate(attached) if where == port.name]
        if len(children) > 1:
            raise InputError(
                f"root port {port.name!r} holds {', '.join(children)}",
                path=f"tree.root_ports.{k}",
                expected="one link a root port: a switch, a GPU or a NIC",
            )


def _check_gpus(profile: HardwareProfile) -> None:
    places: dict[int, str] = {}
    count = profile.gpu.count
    holders = [(f"tree.root_ports.{k}.gpus", port.gpus) for k, port in enumerate(profile.tree.root_ports)]
    holders += [(f"tree.switches.{k}.gpus", switch.gpus) for k, switch in enumerate(profile.tree.switches)]
    for path, gpus in holders:
        for gpu in gpus:
            if gpu >= count:
                raise InputError(f"GPU {gpu} does not exist", path=path, expected=f"0 to {count - 1}")
            if gpu in places:
                raise InputError(f"GPU {gpu} is also in {places[gpu]}", path=path, expected="each GPU in one place")
            places[gpu] = path
    missing = [gpu for gpu in range(count) if gpu not in places]
    if missing:
        raise InputError(
            f"GPU {missing[0]} is nowhere in the tree",
            path="tree",
            expected=f"each of the {count} GPUs (gpu.count) in one place",
        )
    if not profile.gpu.peak_tflops:
        raise InputError("no peak is given", path="gpu.peak_tflops", expected='at least {"bf16": {...}}')


def _check_nics(profile: HardwareProfile) -> None:
    if profile.nics is None:
        return
    places = [port.name for port in profile.tree.root_ports] + [switch.name for switch in profile.tree.switches]
    for k, where in enumerate(profile.nics.attached_to):
        _known(where, places, "root port or switch", f"nics.attached_to.{k}")
    line = profile.nics.line_rate_gbit_per_s.value / 8
    if profile.nics.achievable_gb_per_s.value > line:
        raise InputError(
            f"found {profile.nics.achievable_gb_per_s.value}",
            path="nics.achievable_gb_per_s.value",
            expected=f"at most the line rate, {line:g} GB/s",
        )


def _check_links(profile: HardwareProfile) -> None:
    links, tree = profile.links, profile.tree
    for k, switch in enumerate(tree.switches):
        if switch.uplink is None and links.uplink is None:
            raise InputError(
                f"switch {switch.name!r} has no uplink",
                path=f"tree.switches.{k}",
                expected="uplink here, or links.uplink",
            )
    if len(tree.sockets) > 1 and links.inter_socket_gb_per_s is None:
        raise InputError("missing key", path="links.inter_socket_gb_per_s", expected="a figure, as there are sockets")
    devices = [f"gpu{k}" for k in range(profile.gpu.count)]
    devices += [f"nic{k}" for k in range(profile.nics.count if profile.nics else 0)]
    for name in links.overrides:
        _known(name, devices, "device", f"links.overrides.{name}")


def _check_root_complexes(profile: HardwareProfile) -> None:
    tree = profile.tree
    ports = [port.name for port in tree.root_ports]
    for name, count in Counter(group.name for group in tree.root_complexes).items():
        if count > 1:
            raise InputError(f"the name {name!r} is used {count} times", path="tree.root_complexes")
    socket = {port.name: port.socket for port in tree.root_ports}
    for k, group in enumerate(tree.root_complexes):
        for member, name in enumerate(group.root_ports):
            _known(name, ports, "root port", f"tree.root_complexes.{k}.root_ports.{member}")
        if len({socket[name] for name in group.root_ports}) > 1:
            raise InputError(
                "root ports of two sockets", path=f"tree.root_complexes.{k}.root_ports", expected="ports of one socket"
            )


def _check_bound_by(profile: HardwareProfile) -> None:
    from pdmodel.hardware.topology import Box  # a box is built of a profile that holds so far

    ports = [port.name.removeprefix("box/") for port in Box(profile, "box").ports]
    for k, note in enumerate(profile.bound_by):
        if note.port is not None and note.port not in ports:
            raise InputError(
                f"port {note.port!r} does not exist",
                path=f"bound_by.{k}.port",
                expected=f"a port of the box, such as {ports[0]}",
                nearest=nearest(note.port, ports),
            )


def _check_collectives(profile: HardwareProfile) -> None:
    seen: set[tuple[str, str, int, int]] = set()
    for k, entry in enumerate(profile.collectives):
        if entry.ranks > profile.gpu.count * entry.nodes:
            boxes = f" in each of {entry.nodes} nodes" if entry.nodes > 1 else ""
            raise InputError(
                f"found {entry.ranks}",
                path=f"collectives.{k}.ranks",
                expected=f"at most {profile.gpu.count} GPUs{boxes}",
            )
        key = (entry.operation.value, entry.implementation.value, entry.ranks, entry.nodes)
        if key in seen:
            raise InputError(f"{key[1]} {key[0]} among {key[2]} is given twice", path=f"collectives.{k}")
        seen.add(key)
