"""Ports after a calibration: what leaves them empty is explained, what fills them beyond their capacity is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdmodel.costs.box_calibration import EXPLAINED_SHARE, TableCalibration, explained, fullest, largest_rates
from pdmodel.costs.collectives.bounds import group_capacity_bytes_per_s
from pdmodel.hardware.constants import BoundBy
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind
from pdmodel.units import GB, format_rate

DERIVED_SOURCE = "from_collectives"
"""Id of the source of capacities that follow from the calibrated collectives."""

_GROUP = "every hop crosses the root complex, whose capacity is the measured rate"
_KERNEL = "NVLink is not full: steps and flags of the kernel; the rest is residual"
_FREE = "no shared link on its way is in the profile: the rest of the ports is taken as residual (optimistic)"
_PART = "fewer GPUs than the box has: what they share cannot be told; the rest is taken as residual (optimistic)"
# A port may be this much fuller than full before anything is said: the noise of a measurement.
_TOLERANCE = 1.02


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of the profile that is another one now."""

    what: str
    before: str
    after: str


def explain_ports(
    raw: dict[str, Any], tables: Sequence[TableCalibration], changes: list[Change], warnings: list[str], *, given: bool
) -> list[TableCalibration]:
    """Give each new entry of ``raw`` its ``bound_by`` where it leaves all ports below 80 %, and ports their due.

    A root complex that all hops cross gets the measured rate as its capacity (kind derived) where the profile's own
    figure is derived or assumed. Links that carry more than the profile says are corrected in a box made from the log,
    and named in one that was ``given``.

    A box made from the log whose ports could not carry staged copies that fast has P2P after all.

    Returns: the tables, with what was put into their entries.
    """
    box = Box(HardwareProfile.parse(raw), "box")
    rates = [largest_rates(box, table) for table in tables]
    if not given and _peers(raw, box, rates, changes):
        box = Box(HardwareProfile.parse(raw), "box")
        rates = [largest_rates(box, table) for table in tables]
    _overfull(raw, box, rates, (changes, warnings), given=given)
    box = Box(HardwareProfile.parse(raw), "box")
    groups = [box.port_name(group["name"]) for group in raw["tree"].get("root_complexes", []) if _soft(group, box)]
    found = []
    for table, on_ports in zip(tables, rates, strict=True):
        own = [group for group in groups if group in on_ports]
        reason = _reason(table, box, on_ports, own)
        found.append(table if reason is None else explained(table, *reason))
    _write(raw, found)
    _groups(raw, found, rates, changes)
    return found


def _peers(raw: dict[str, Any], box: Box, rates: Sequence[dict[str, float]], changes: list[Change]) -> bool:
    """Set P2P where copies through host memory would overfill the ports; whether it was set."""
    over = [
        port
        for on_ports in rates
        for port, rate in on_ports.items()
        if rate > _TOLERANCE * box.port_index[port].capacity_bytes_per_s
    ]
    if raw["flags"]["p2p"] != "refused" or box.has_nvlink or not over:
        return False
    raw["flags"]["p2p"] = "posted_writes"
    changes.append(
        Change("flags.p2p", "refused", "posted_writes, as staged copies would need more than the links have")
    )
    return True


def _reason(
    table: TableCalibration, box: Box, rates: dict[str, float], groups: Sequence[str]
) -> tuple[BoundBy, str] | None:
    """Why the entry leaves its ports below 80 %; None where a link is full, or where it is not about this box."""
    links = {port: rate for port, rate in rates.items() if port not in groups}
    port, share = fullest(box, links)
    if not port or share >= EXPLAINED_SHARE:
        return None
    if table.before is not None and table.before.bound_by is not None:
        return table.before.bound_by, table.before.reason
    if box.has_nvlink:
        return BoundBy.PROTOCOL, _KERNEL
    if table.constants.ranks < box.gpu_count:
        return BoundBy.PROTOCOL, _PART
    return (BoundBy.UNMODELLED_LINK, _GROUP) if groups else (BoundBy.PROTOCOL, _FREE)


def _soft(group: dict[str, Any], box: Box) -> bool:
    """Whether a root complex's capacity is no measurement of its own."""
    kind = box.profile.kind_of(group["capacity_gb_per_s"]["source"])
    return kind in {SourceKind.DERIVED, SourceKind.ASSUMED}


def _write(raw: dict[str, Any], tables: Sequence[TableCalibration]) -> None:
    by_key = {(t.constants.operation.value, t.constants.ranks, t.constants.nodes): t.constants for t in tables}
    for entry in raw["collectives"]:
        key = (entry["operation"], entry["ranks"], entry.get("nodes", 1))
        constants = by_key.get(key)
        if constants is not None and entry["source"] == constants.source and constants.bound_by is not None:
            entry["bound_by"], entry["reason"] = constants.bound_by.value, constants.reason


def _groups(
    raw: dict[str, Any], tables: Sequence[TableCalibration], rates: Sequence[dict[str, float]], changes: list[Change]
) -> None:
    """Capacities of the root complexes that explain a collective; those that no hop crosses are taken to be alike."""
    box = Box(HardwareProfile.parse(raw), "box")
    soft = [group for group in raw["tree"].get("root_complexes", []) if _soft(group, box)]
    names = {group["name"]: box.port_name(group["name"]) for group in soft}
    if not any(table.constants.bound_by is BoundBy.UNMODELLED_LINK for table in tables):
        return
    # One-way collectives may cross it faster than those that are bound there: all must fit.
    measured = [on_ports.get(port, 0.0) for on_ports in rates for port in names.values()]
    if not any(measured):
        return
    kept = [group_capacity_bytes_per_s(box, port) for port in names.values()]
    capacity = max(*measured, *kept)
    text = "the highest rate at which the measured collectives cross it; a link behind it is not modelled"
    _derived(raw, text)
    for group in soft:
        figure = group["capacity_gb_per_s"]
        _set(figure, capacity, f"capacity of {group['name']}", changes)
        note = {"kind": "unmodelled_link", "port": group["name"], "text": _GROUP}
        others = [one for one in raw.get("bound_by", []) if one.get("port") != group["name"]]
        raw["bound_by"] = [*others, note]


def _overfull(
    raw: dict[str, Any],
    box: Box,
    rates: Sequence[dict[str, float]],
    told: tuple[list[Change], list[str]],
    *,
    given: bool,
) -> None:
    """Ports that measured collectives fill beyond their capacity."""
    changes, warnings = told
    most: dict[str, float] = {}
    for on_ports in rates:
        for port, rate in on_ports.items():
            most[port] = max(most.get(port, 0.0), rate)
    over = {port: rate for port, rate in most.items() if rate > _TOLERANCE * box.port_index[port].capacity_bytes_per_s}
    if not given:
        for path, figures in _link_figures(raw):
            rate = max((rate for port, rate in over.items() if _is(port, path)), default=0.0)
            if rate:
                _derived(raw, "the highest rate that the measured collectives put on it")
                for figure in figures:
                    _set(figure, rate, path, changes)
        return
    for group in raw["tree"].get("root_complexes", []):
        rate = over.pop(box.port_name(group["name"]), 0.0)
        if rate and _soft(group, box):
            _derived(raw, "the highest rate that the measured collectives put on it")
            _set(group["capacity_gb_per_s"], rate, f"capacity of {group['name']}", changes)
    if over:
        warnings.append(_too_small(raw, box, over))


def _too_small(raw: dict[str, Any], box: Box, over: Mapping[str, float]) -> str:
    """Which port the log contradicts most, and what may be wrong."""
    port = max(over, key=lambda port: over[port] / box.port_index[port].capacity_bytes_per_s)
    capacity = box.port_index[port].capacity_bytes_per_s
    more = f" (and {len(over) - 1} more ports)" if len(over) > 1 else ""
    text = (
        f"the log shows {format_rate(over[port])} on {port.removeprefix('box/')}{more}, for which the profile has "
        f"{format_rate(capacity)}: plans raise times to that; correct the profile's links"
    )
    if raw["flags"]["p2p"] == "refused" and not box.has_nvlink:
        text += ", or, if the driver lets the GPUs write to each other, set flags.p2p to posted_writes"
    return text


def _link_figures(raw: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    links = raw["links"]
    for name in ("gpu", "nvlink"):
        if name in links:
            yield f"links.{name}", [links[name]["egress_gb_per_s"], links[name]["ingress_gb_per_s"]]
    yield "links.host_memory_gb_per_s", [links["host_memory_gb_per_s"]]


def _is(port: str, path: str) -> bool:
    if path == "links.host_memory_gb_per_s":
        return port.endswith("/host_memory")
    nvlink = port.rpartition("/")[2].startswith("nvlink")
    return "/gpu" in port and nvlink == (path == "links.nvlink")


def _derived(raw: dict[str, Any], note: str) -> None:
    raw["sources"] = dict(raw["sources"])
    raw["sources"].setdefault(
        DERIVED_SOURCE, {"kind": "derived", "ref": "nccl-tests logs of this machine", "note": note}
    )


def _set(figure: dict[str, Any], rate_bytes_per_s: float, what: str, changes: list[Change]) -> None:
    before = f"{figure['value']:g} GB/s"
    # Rounded up: the collective that it is from must fit.
    digits = float(f"{rate_bytes_per_s / GB * 1.0005:.4g}")
    figure["value"], figure["source"] = digits, DERIVED_SOURCE
    change = Change(what, before, f"{digits:g} GB/s")
    if change.before != change.after and change not in changes:
        changes.append(change)
