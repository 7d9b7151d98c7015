"""Links of a box by all that is known of them: measured copies, else what files say of a link, else data sheets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdmodel.hardware.gpu_facts import GpuFacts
from pdmodel.importers.box_copies import FULL_DUPLEX, SAME, Copies, across, duplex, ports
from pdmodel.importers.box_ledger import Claim, Fact, Ledger, both_ways, figure
from pdmodel.importers.box_tree import BoxTree, Leaf
from pdmodel.importers.findings import listed
from pdmodel.importers.pci import SPEEDS, Link, capacity_gb_per_s

# Share of raw NVLink that copies and collectives reach, as in the shipped profiles.
NVLINK_SHARE = 0.87
# One NVLink of the third and fourth generation, one direction [GB/s]; the second has the same.
NVLINK_GB_PER_S = 25.0
# 75 % of DDR5-4800 on 12 channels [GB/s], reads and writes together.
HOST_MEMORY_GB_PER_S = 345.6
_SPEED_OF = {generation: speed for speed, generation in SPEEDS.items()}
_PACKETS = "packets of 128 bytes with 24 bytes each; 256-byte packets reach 6 % more: a measurement raises it"


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVLink or xGMI between the GPUs: ``seen`` as in `TopologyFindings`, None where no file can show it.

    ``links``: links that each GPU has, 0 where only their presence is known.
    """

    seen: bool | Literal["partial"] | None
    links: int = 0
    told_by: str = ""


@dataclass(frozen=True, slots=True)
class Links:
    """``links`` as a profile's file holds it, uplinks of single switches, and the capacity of a GPU's link."""

    raw: dict[str, Any]
    uplinks: Mapping[str, dict[str, Any]]
    gpu_gb_per_s: float
    generation: int


def links_of(
    tree: BoxTree, facts: GpuFacts | None, fabric: Fabric, found: Copies, *, ledger: Ledger, basis: str
) -> Links:
    """All links of the box. ``basis``: source id of what the tree's file says of links ("" where it says none)."""
    generation = facts.pcie_generation if facts is not None else 4
    nvlink = _nvlink(facts, fabric, found, tree, ledger)
    capacities = [_gpu_claim(leaf, generation, facts is not None, basis, ledger) for leaf in tree.gpus]
    ledger.conflicts += _slots(tree, facts)
    measured = (
        found if nvlink is None else Copies(found.source, up=found.up, down=found.down, host_both=found.host_both)
    )
    raw: dict[str, Any] = {}
    raw["gpu"], overrides, port = _gpu_links(capacities, measured, tree, ledger)
    uplinks = _uplinks(tree, generation, measured, basis=basis, ledger=ledger)
    if uplinks:
        common = Counter(str(link) for link in uplinks.values()).most_common(1)[0][0]
        raw["uplink"] = next(link for link in uplinks.values() if str(link) == common)
    raw["host_memory_gb_per_s"] = _host_memory(len(tree.sockets), ledger)
    if len(tree.sockets) > 1:
        raw["inter_socket_gb_per_s"] = _inter_socket(tree, measured, port, ledger)
    if nvlink is not None:
        raw["nvlink"] = nvlink
    if overrides:
        raw["overrides"] = overrides
    own = {name: link for name, link in uplinks.items() if link != raw.get("uplink")}
    return Links(raw, own, port, generation)


def _gpu_claim(leaf: Leaf, generation: int, sure: bool, basis: str, ledger: Ledger) -> Claim:
    """What the GPU's link carries by arithmetic: as the file says, though never above the GPU's own generation."""
    link, own = leaf.link, leaf.link.generation
    if own is None:
        return assumed_link(generation, "the data sheet's generation, x16" if sure else "Gen4 x16", ledger)
    if sure and own > generation:
        link = Link(_SPEED_OF[generation], link.lanes)
    return arithmetic(Link(link.gt_per_s, link.lanes or 16), basis, ledger)


def _slots(tree: BoxTree, facts: GpuFacts | None) -> Iterator[str]:
    """GPUs whose link is of another generation by the file than by the data sheet."""
    if facts is None:
        return
    found: dict[Link, list[str]] = {}
    for leaf in tree.gpus:
        if leaf.link.generation not in {None, facts.pcie_generation}:
            found.setdefault(leaf.link, []).append(leaf.label)
    for link, labels in found.items():
        faster = (link.generation or 0) > facts.pcie_generation
        what = "the data sheet is taken" if faster else "the file is taken (a slower slot or switch)"
        yield f"link of {listed(labels)}: {tree.file} says {link}, the data sheet Gen{facts.pcie_generation}: {what}"


def arithmetic(link: Link, basis: str, ledger: Ledger) -> Claim:
    """Capacity of a link whose speed and width a file says."""
    capacity = capacity_gb_per_s(link)
    if capacity is None:
        return assumed_link(4, "Gen4 x16", ledger)
    entry = ledger.sources[basis]
    source = ledger.source("pcie", "derived", entry["ref"], f"PCIe arithmetic for {link}: {_PACKETS}")
    return Claim(capacity, source)


def assumed_link(generation: int, why: str, ledger: Ledger) -> Claim:
    """Capacity of a link of which only a generation is known, or nothing."""
    link = Link(_SPEED_OF[generation], 16)
    capacity = capacity_gb_per_s(link) or 0.0
    return Claim(capacity, ledger.source("pcie_assumed", "assumed", f"PCIe arithmetic, {link}", f"{why}; {_PACKETS}"))


def _gpu_links(
    capacities: Sequence[Claim], found: Copies, tree: BoxTree, ledger: Ledger
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """The common link, links of GPUs that differ, and the common capacity."""
    egress, ingress = ports(found, tree) if found.source else ({}, {})
    common = Counter((claim.value, claim.source) for claim in capacities).most_common(1)[0][0]
    stated = Claim(*common)
    overrides: dict[str, Any] = {}
    if not egress or not ingress:
        for k, claim in enumerate(capacities):
            if claim != stated:
                overrides[f"gpu{k}"] = both_ways(claim, claim)
        return both_ways(stated, stated), overrides, stated.value
    out, into = Claim(max(egress.values()), found.source), Claim(max(ingress.values()), found.source)
    out = ledger.choose("links.gpu, egress", "GB/s", [out, stated])
    into = ledger.choose("links.gpu, ingress", "GB/s", [into, stated])
    together = duplex(found, tree)
    both = None
    if together is not None and together < FULL_DUPLEX * (out.value + into.value):
        both = Claim(together, found.source)
        ledger.facts.append(Fact("full duplex", f"no: {together:.4g} GB/s both ways together", found.source))
    for k in sorted({*egress, *ingress}):
        own = egress.get(k, out.value), ingress.get(k, into.value)
        if own[0] < SAME * out.value or own[1] < SAME * into.value:
            overrides[f"gpu{k}"] = both_ways(Claim(own[0], found.source), Claim(own[1], found.source), both)
    return both_ways(out, into, both), overrides, min(out.value, into.value)


def _uplinks(tree: BoxTree, generation: int, found: Copies, *, basis: str, ledger: Ledger) -> dict[str, dict[str, Any]]:
    """Every switch's uplink by its name in the tree."""
    names = list(dict.fromkeys(name for leaf in (*tree.gpus, *tree.nics) for name in leaf.chain))
    floor = across(found, tree, sockets=False) if found.source else None
    uplinks = {}
    for name in names:
        link = tree.links.get(name)
        if link is not None and link.generation is not None and basis:
            claim = arithmetic(Link(link.gt_per_s, link.lanes or 16), basis, ledger)
        else:
            claim = assumed_link(generation, "an uplink as wide as the links of the GPUs", ledger)
        if floor is not None:
            entry = ledger.sources[found.source]
            note = "copies between GPUs below two switches reach this: an uplink carries at least that much"
            source = ledger.source("p2p_uplinks", "derived", entry["ref"], note)
            claim = ledger.choose("uplinks", "GB/s", [Claim(floor, source), claim])
        uplinks[name] = {"up_gb_per_s": figure(claim), "down_gb_per_s": figure(claim)}
    return uplinks


def _host_memory(sockets: int, ledger: Ledger) -> dict[str, Any]:
    value, more = HOST_MEMORY_GB_PER_S, ""
    if sockets > 2:
        value, more = 2 * HOST_MEMORY_GB_PER_S / sockets, f"; two sockets' worth over {sockets} NUMA domains"
    note = f"75 % of 460.8 GB/s a socket, reads and writes together{more}"
    return figure(Claim(value, ledger.source("dram", "assumed", "DDR5-4800, 12 channels", note)))


def _inter_socket(tree: BoxTree, found: Copies, port: float, ledger: Ledger) -> dict[str, Any]:
    one_flow = across(found, tree, sockets=True) if found.source else None
    if one_flow is not None and one_flow < SAME * port:
        entry = ledger.sources[found.source]
        note = "one copy between sockets, below what the ports carry; several together were not measured"
        return figure(Claim(one_flow, ledger.source("p2p_sockets", "measured", entry["ref"], note)))
    note = "two flows of a GPU's link each; single ones keep a port's rate on AMD boards"
    return figure(Claim(2 * port, ledger.source("inter_socket", "assumed", "the link between sockets", note)))


def _nvlink(
    facts: GpuFacts | None, fabric: Fabric, found: Copies, tree: BoxTree, ledger: Ledger
) -> dict[str, Any] | None:
    """NVLink of each GPU; None where there is none, or not between all pairs."""
    if fabric.seen == "partial":
        ledger.warnings.append(
            "NVLink joins some pairs of GPUs only: a profile has one fabric for all or none, so it is left out and "
            "traffic between GPUs is counted on PCIe"
        )
        return None
    sheet = facts.nvlink_gb_per_s if facts is not None else None
    if fabric.seen is False or len(tree.gpus) < 2 or (fabric.seen is None and sheet is None):
        if fabric.seen is False and sheet is not None and len(tree.gpus) > 1:
            ledger.conflicts.append(
                f"NVLink: {fabric.told_by} shows none, the data sheet of {facts.name if facts else ''} has it: "
                "the file is taken"
            )
        return None
    if fabric.seen is None and facts is not None:
        ledger.assumed.append(f"NVLink between all GPUs, as {facts.name} has it: no file can show it")
    if found.pairs:
        most = Claim(max(found.pairs.values()), found.source)
        return both_ways(most, most)
    if sheet is not None and facts is not None:
        note = f"87 % of the raw {sheet:g} GB/s per direction of {facts.name}, as collectives reach"
        claim = Claim(NVLINK_SHARE * sheet, ledger.source("nvlink", "assumed", "NVLink data sheet", note))
        counted = [rate * NVLINK_GB_PER_S * fabric.links for rate in (1, 2)]
        if fabric.links and not any(abs(rate / sheet - 1) < 0.1 for rate in counted):
            note = f"87 % of {fabric.links} links of {NVLINK_GB_PER_S:g} GB/s, as {fabric.told_by} counts them"
            source = ledger.source("nvlink_counted", "derived", "links as counted", note)
            ledger.sources.pop("nvlink", None)
            whole = ledger.source("nvlink_sheet", "datasheet", f"data sheet of {facts.name}", "")
            claims = [Claim(NVLINK_SHARE * counted[0], source), Claim(NVLINK_SHARE * sheet, whole)]
            claim = ledger.choose("links.nvlink", "GB/s", claims)
        return both_ways(claim, claim)
    note = f"87 % of {fabric.links or 1} links of {NVLINK_GB_PER_S:g} GB/s; no data sheet of this GPU is known"
    rate = NVLINK_SHARE * NVLINK_GB_PER_S * (fabric.links or 1)
    claim = Claim(rate, ledger.source("nvlink", "assumed", "links as counted", note))
    return both_ways(claim, claim)
