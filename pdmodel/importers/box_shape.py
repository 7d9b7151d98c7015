"""The tree of a box: chosen from all files that tell one, and written as a profile holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pdmodel.errors import InputError
from pdmodel.importers.box_evidence import BoxEvidence, FileOf
from pdmodel.importers.box_ledger import Claim, Fact, Ledger, figure
from pdmodel.importers.box_tree import (
    BoxTree,
    Leaf,
    classes,
    from_findings,
    from_lspci,
    from_nccl,
    with_link_caps,
    with_sockets,
)
from pdmodel.importers.findings import TopologyFindings
from pdmodel.importers.lspci import Lspci
from pdmodel.importers.nccl_xml_findings import findings as nccl_findings
from pdmodel.importers.topo_codes import is_nvlink


def tree_of(evidence: BoxEvidence, listing: Lspci | None, ledger: Ledger) -> tuple[BoxTree, str]:
    """The best tree that the files tell, and the source id of its links ("" where it tells none).

    Raises: `InputError` where nothing tells how many GPUs there are.
    """
    letters = _letters(evidence)
    hypothesis = from_findings(letters.found) if letters is not None else None
    told = from_lspci(listing) if listing is not None else None
    for item in evidence.topo:
        ledger.warnings += [f"{item.base}: {text}" for text in item.found.warnings]
    for system in evidence.nccl_xml:
        ledger.warnings += [f"{system.base}: {text}" for text in nccl_findings(system.found).warnings]
    for other in evidence.lspci:
        ledger.warnings += [f"{other.base}: {text}" for text in other.found.warnings]
    for item in evidence.topo:
        if letters is not None and item.found.gpus not in {(), letters.found.gpus}:
            ledger.conflicts.append(
                f"{item.base} is of {len(item.found.gpus)} GPUs, {letters.base} of {len(letters.found.gpus)}: "
                "the latter is taken"
            )
    if evidence.nccl_xml:
        return _by_nccl(evidence, listing, told, hypothesis, ledger)
    if told is not None and listing is not None:
        return _by_lspci(evidence, told, hypothesis, ledger)
    if hypothesis is not None and letters is not None:
        ledger.file("tree", letters, "assumed", "the tree is a hypothesis from distance classes")
        ledger.assumed += letters.found.assumed
        ledger.assumed += [f"{letters.base}: {text}" for text in hypothesis.remarks]
        ledger.facts.append(Fact("tree", "a hypothesis from distance classes", letters.base))
        ledger.assumed += _twins(letters.found, hypothesis)
        if not hypothesis.sockets_known:
            ledger.assumed.append("all GPUs on one socket: no file tells sockets")
        return with_details(hypothesis, listing, ledger, evidence)
    return with_details(_direct(evidence, ledger), listing, ledger, evidence)


def _twins(found: TopologyFindings, tree: BoxTree) -> list[str]:
    """NICs that may be one, and which the tree has as several with links of their own."""
    chains = {nic.label: nic.chain for nic in tree.nics}
    gpus = {name for gpu in tree.gpus for name in gpu.chain}
    return [
        f"{' and '.join(twins)} are NICs of their own, each with its whole rate; if they are one port, give each "
        "a share of it with --nics"
        for twins in found.twins
        if any(chains.get(label, ())[:1] and chains[label][0] in gpus for label in twins)
    ]


def _letters(evidence: BoxEvidence) -> FileOf[TopologyFindings] | None:
    """The matrix of distances that shows most PCIe classes: ``-mp`` shows those that NVLink hides."""
    usable = [item for item in evidence.topo if item.found.gpus and item.found.status != "refused"]
    shown = [
        (sum(not is_nvlink(code) for cells in item.found.matrix.values() for code in cells.values()), -k, item)
        for k, item in enumerate(usable)
    ]
    return max(shown, key=lambda one: one[:2])[2] if shown else None


def _by_nccl(
    evidence: BoxEvidence, listing: Lspci | None, told: BoxTree | None, hypothesis: BoxTree | None, ledger: Ledger
) -> tuple[BoxTree, str]:
    item = evidence.nccl_xml[0]
    tree = from_nccl(item.found)
    for other in evidence.nccl_xml[1:]:
        ledger.warnings.append(f"{other.base}: a second NCCL file is not used")
    basis = ledger.file("tree", item, "derived", "the tree, links and NICs as NCCL sees them")
    kind = "a template" if item.found.template else "the tree of the machine"
    ledger.facts.append(Fact("tree", kind, item.base))
    for weaker in (told, hypothesis):
        if weaker is not None:
            ledger.conflicts += _differences(tree, weaker)
    if listing is not None:
        tree, differ = with_link_caps(tree, listing)
        ledger.conflicts += differ
    return tree, basis


def _by_lspci(evidence: BoxEvidence, told: BoxTree, hypothesis: BoxTree | None, ledger: Ledger) -> tuple[BoxTree, str]:
    item = max(evidence.lspci, key=lambda one: len(one.found.devices))
    basis = ledger.file("tree", item, "derived", "the tree, and LnkCap of both ends of each link")
    ledger.facts.append(Fact("tree", "the tree of the machine", item.base))
    ledger.warnings += [f"{item.base}: {text}" for text in told.remarks]
    if not told.sockets_known and hypothesis is not None and len(hypothesis.gpus) == len(told.gpus):
        told = with_sockets(told, hypothesis)
        ledger.facts.append(Fact("sockets", f"{len(told.sockets)}", hypothesis.file))
    elif not told.sockets_known:
        ledger.assumed.append("all root buses on one socket: lspci -tv tells no NUMA nodes")
    if hypothesis is not None:
        ledger.conflicts += _differences(told, hypothesis)
    return told, basis


def with_details(tree: BoxTree, listing: Lspci | None, ledger: Ledger, evidence: BoxEvidence) -> tuple[BoxTree, str]:
    """Links from lspci of single devices, for a tree that has none: the first GPU stands for all, as does a NIC."""
    from pdmodel.importers.lspci import gpu_name, is_nic

    if listing is None or not listing.details:
        return tree, ""
    item = next(one for one in evidence.lspci if one.found.details)
    gpus = [one for one in listing.details.values() if gpu_name(one) and one.cap.generation]
    nics = [one for one in listing.details.values() if is_nic(one) and one.cap.generation]
    if not gpus and not nics:
        return tree, ""
    basis = ledger.file("links", item, "derived", "LnkCap of a GPU and of a NIC, taken for all of the box")
    if gpus:
        tree = replace(tree, gpus=tuple(replace(leaf, link=gpus[0].cap) for leaf in tree.gpus))
        ledger.assumed.append(f"all GPUs have the link of {gpus[0].bus}: {gpus[0].cap}")
    if nics:
        tree = replace(tree, nics=tuple(replace(leaf, link=nics[0].cap) for leaf in tree.nics))
        ledger.assumed.append(f"all NICs have the link of {nics[0].bus}: {nics[0].cap}")
    return tree, basis


def _direct(evidence: BoxEvidence, ledger: Ledger) -> BoxTree:
    """No file tells a tree: as many GPUs as copies, topo -p2p or collectives name, side by side on one socket."""
    counts = [(item.found.gpu_count, item.base) for item in evidence.p2p if item.found.gpu_count]
    counts += [(len(matrix.codes), item.base) for item in evidence.topo for matrix in item.found.p2p if matrix.codes]
    for item in evidence.logs:
        ranks = [(table.ranks, table.nodes or 1) for table in item.found.log.tables if table.ranks is not None]
        counts += [(-(-total // nodes), item.base) for total, nodes in ranks]
    if not counts:
        raise InputError(
            "no file tells how many GPUs there are",
            expected="--topo, --nccl-xml, --lspci, --p2p or --nccl-tests with a file that does",
        )
    count, file = max(counts)
    ledger.assumed.append(f"{count} GPUs on one socket, each on a root port of its own: no file tells the tree")
    ledger.facts.append(Fact("tree", f"{count} GPUs without a tree", file))
    gpus = tuple(Leaf(f"GPU{k}", (), f"gpu{k}", "all", "all") for k in range(count))
    return BoxTree("options", file, gpus, (), ("all",), {}, hypothesis=True, sockets_known=False)


def _differences(tree: BoxTree, weaker: BoxTree) -> list[str]:
    """Where a weaker file says other things about the same box."""
    if len(tree.gpus) != len(weaker.gpus):
        return [f"{weaker.file} has {len(weaker.gpus)} GPUs, {tree.file} {len(tree.gpus)}: the latter is taken"]
    near = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 2, "SYS": 3}
    one, two = classes(tree), classes(weaker)
    pairs = []
    for i, (a, x) in enumerate(zip(tree.gpus, weaker.gpus, strict=True)):
        for b, y in list(zip(tree.gpus, weaker.gpus, strict=True))[i + 1 :]:
            first, second = one[a.label][b.label], two[x.label][y.label]
            unsure = not weaker.sockets_known or not tree.sockets_known
            if near[first] != near[second] and not (unsure and min(near[first], near[second]) >= 2):
                pairs.append(f"{a.label}-{b.label} {first}, there {second}")
    if not pairs:
        return []
    more = f" and {len(pairs) - 1} more pairs" if len(pairs) > 1 else ""
    return [f"{weaker.file} differs from {tree.file}, which is taken: {pairs[0]}{more}"]


# ---- as a profile holds it -------------------------------------------------------------------------------------------


def shape(
    tree: BoxTree, uplinks: Mapping[str, dict[str, Any]], links: Mapping[str, Any], ledger: Ledger
) -> tuple[dict[str, Any], list[str]]:
    """``tree`` of a profile, and ``attached_to`` of its NICs."""
    leaves = (*tree.gpus, *tree.nics)
    sockets = {name: f"socket{k}" for k, name in enumerate(tree.sockets)}
    roots: dict[str, Leaf] = {}
    for leaf in leaves:
        roots.setdefault(_root(leaf), leaf)
    ports = {name: f"root_port{k}" for k, name in enumerate(roots)}
    switches: dict[str, str] = {}
    under: dict[str, str] = {}
    for leaf in leaves:
        for place, name in enumerate(leaf.chain):
            switches.setdefault(name, f"switch{len(switches)}")
            above = leaf.chain[place + 1] if place + 1 < len(leaf.chain) else None
            under.setdefault(
                name, switches.setdefault(above, f"switch{len(switches)}") if above else ports[_root(leaf)]
            )
    holder = {leaf.label: switches[leaf.chain[0]] if leaf.chain else ports[_root(leaf)] for leaf in leaves}
    raw_ports = []
    for name, leaf in roots.items():
        port: dict[str, Any] = {"name": ports[name], "socket": sockets[leaf.socket]}
        gpus = [k for k, gpu in enumerate(tree.gpus) if holder[gpu.label] == ports[name]]
        raw_ports.append({**port, "gpus": gpus} if gpus else port)
    raw_switches = []
    for name, label in switches.items():
        switch: dict[str, Any] = {"name": label, "under": under[name]}
        gpus = [k for k, gpu in enumerate(tree.gpus) if holder[gpu.label] == label]
        if gpus:
            switch["gpus"] = gpus
        if name in uplinks:
            switch["uplink"] = uplinks[name]
        raw_switches.append(switch)
    raw = {
        "sockets": list(sockets.values()),
        "root_ports": raw_ports,
        "switches": raw_switches,
        "root_complexes": _complexes(roots, ports, links, ledger),
    }
    return raw, [holder[nic.label] for nic in tree.nics]


def _root(leaf: Leaf) -> str:
    """Key of the root port: devices without a switch have one each, whatever they are called."""
    return leaf.root_port if leaf.chain else f"{leaf.root_port}/{leaf.label}"


def _complexes(
    roots: Mapping[str, Leaf], ports: Mapping[str, str], links: Mapping[str, Any], ledger: Ledger
) -> list[dict[str, Any]]:
    """Host bridges as groups of root ports; no limit is known, so all links together in both directions."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, leaf in roots.items():
        groups.setdefault((leaf.socket, leaf.host_bridge), []).append(ports[name])
    link = links["gpu"]
    rate = link["egress_gb_per_s"]["value"] + link["ingress_gb_per_s"]["value"]
    note = "all of its links in both directions: no limit, until a measurement shows one"
    source = ledger.source("root_complex", "assumed", "what a host bridge carries is not told by any file", note)
    return [
        {
            "name": f"root_complex{k}",
            "root_ports": members,
            "capacity_gb_per_s": figure(Claim(rate * len(members), source)),
        }
        for k, members in enumerate(groups.values())
    ]
