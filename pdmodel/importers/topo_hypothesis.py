"""What distance classes say about a box: NVLink, nearest NICs, and who may share a switch, a bridge, a NUMA node.

The classes are those of the legend that the tool prints: PIX at most one bridge, PXB several bridges and no host
bridge, PHB a host bridge, NODE between host bridges of one NUMA node, SYS between NUMA nodes. They tell no link speed,
hide virtual switches, and a VM may flatten or invent them: every group is an assumption.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdmodel.importers.findings import NEAR, PCIE_CLASSES, Group, Kind, Level, Matrix, listed
from pdmodel.importers.topo_codes import is_nvlink

_RANK = {name: k for k, name in enumerate(PCIE_CLASSES)}
_LEVELS = {
    Level.SWITCH: ("PIX",),
    Level.SWITCH_TREE: ("PIX", "PXB"),
    Level.ROOT_COMPLEX: ("PIX", "PXB", "PHB"),
    Level.NUMA: ("PIX", "PXB", "PHB", "NODE"),
}
_WHY = {
    Level.CARD: "PIX to each other: one card with several ports or functions, or cards behind one switch",
    Level.SWITCH: "PIX to each other: one switch, whose uplink they share",
    Level.SWITCH_TREE: "PIX or PXB to each other: switches below one root port, whose link they share",
    Level.ROOT_COMPLEX: "PHB to each other: one host bridge",
    Level.NUMA: "NODE or nearer to each other: one NUMA node",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Devices with their codes and NUMA nodes, as read. ``nics`` is empty where the tool lists none."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    matrix: Matrix
    pcie_matrix: Matrix
    numa: Mapping[str, str | None]
    kind: Kind

    def distance(self, one: str, other: str) -> str | None:
        """The PCIe class of a pair; None where it is not known or hidden by NVLink."""
        code = self.matrix[one][other]
        if is_nvlink(code):
            code = self.pcie_matrix.get(one, {}).get(other)
        return code if code in _RANK else None


@dataclass(frozen=True, slots=True)
class Meaning:
    """What `interpret` makes of it; fields as in `TopologyFindings`."""

    nvlink: bool | Literal["partial"] | None
    nearest: dict[str, tuple[str, ...]]
    distance: dict[str, str | None]
    groups: tuple[Group, ...]
    twins: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]
    assumed: tuple[str, ...]


def interpret(seen: Seen) -> Meaning:
    """The hypothesis that the classes allow, with what is odd about them."""
    nvlink, remarks = _nvlink(seen)
    nearest, distance = _nearest(seen)
    twins = _twins(seen)
    groups = (*_cards(seen), *_groups(seen))
    warnings = [
        *remarks,
        *_near_remarks(nearest, distance),
        *_twin_remarks(twins),
        *_contradictions(seen),
        *_numa_remarks(seen),
    ]
    return Meaning(nvlink, nearest, distance, groups, twins, tuple(warnings), tuple(_assumed(seen, groups)))


def _nvlink(seen: Seen) -> tuple[bool | Literal["partial"], list[str]]:
    """Whether pairs are on NVLink, and which GPUs are off it."""
    codes = {pair: seen.matrix[pair[0]][pair[1]] for pair in itertools.combinations(seen.gpus, 2)}
    linked = {pair for pair, code in codes.items() if is_nvlink(code)}
    if not linked:
        return False, []
    known = {pair for pair, code in codes.items() if code is not None}
    off = [gpu for gpu in seen.gpus if any(gpu in pair for pair in known) and not any(gpu in pair for pair in linked)]
    remarks = []
    if off:
        whose = "is" if len(off) == 1 else "are"
        remarks.append(f"{listed(off)} {whose} off NVLink: traffic with the other GPUs is on PCIe")
    among = {pair for pair in known - linked if not set(pair) & set(off)}
    if among:
        remarks.append(
            f"{len(among)} of {len(known)} pairs of GPUs have no NVLink between them, e.g. {'-'.join(min(among))}"
        )
    counts = sorted({str(codes[pair]) for pair in linked})
    if len(counts) > 1:
        remarks.append(f"pairs have different numbers of NVLinks: {', '.join(counts)}")
    return (True if linked == known else "partial"), remarks


def _nearest(seen: Seen) -> tuple[dict[str, tuple[str, ...]], dict[str, str | None]]:
    """By GPU the NICs at the least class; a GPU with an unknown cell has none, since that NIC may be nearer."""
    nearest: dict[str, tuple[str, ...]] = {}
    distance: dict[str, str | None] = {}
    for gpu in seen.gpus if seen.nics else ():
        classes = {nic: seen.matrix[gpu][nic] for nic in seen.nics}
        if any(code not in _RANK for code in classes.values()):
            nearest[gpu], distance[gpu] = (), None
            continue
        least = min(_RANK[str(code)] for code in classes.values())
        nearest[gpu] = tuple(nic for nic, code in classes.items() if _RANK[str(code)] == least)
        distance[gpu] = PCIE_CLASSES[least]
    return nearest, distance


def _near_remarks(nearest: Mapping[str, tuple[str, ...]], distance: Mapping[str, str | None]) -> Iterator[str]:
    if not nearest:
        return
    unknown = [gpu for gpu, found in distance.items() if found is None]
    if unknown:
        yield f"nearest NICs of {listed(unknown)} are not known"
    far = {name: [gpu for gpu, found in distance.items() if found == name] for name in PCIE_CLASSES if name not in NEAR}
    for name, gpus in far.items():
        if gpus:
            yield f"no NIC near {listed(gpus)}: the nearest are at {name}, through the CPU"
    sharing: dict[tuple[str, ...], list[str]] = {}
    for gpu, nics in nearest.items():
        if distance[gpu] in NEAR:
            sharing.setdefault(nics, []).append(gpu)
    shared = [f"{listed(gpus)} ({', '.join(nics)})" for nics, gpus in sharing.items() if len(gpus) > 1]
    if shared:
        yield f"GPUs that share their nearest NICs: {'; '.join(shared)}"


def _twins(seen: Seen) -> tuple[tuple[str, ...], ...]:
    """NICs at PIX to each other that are equally far from everything else."""

    def alike(one: str, other: str) -> bool:
        rest = [name for name in (*seen.gpus, *seen.nics) if name not in {one, other}]
        return seen.matrix[one][other] == "PIX" and all(
            seen.matrix[one][name] == seen.matrix[other][name] and seen.matrix[one][name] is not None for name in rest
        )

    pairs = [pair for pair in itertools.combinations(seen.nics, 2) if alike(*pair)]
    return tuple(members for members in _components(seen.nics, pairs) if len(members) > 1)


def _twin_remarks(twins: Sequence[Sequence[str]]) -> Iterator[str]:
    if twins:
        names = "; ".join(" = ".join(members) for members in twins)
        yield (
            f"may be ports of one card, or functions of one port (VF and PF): {names}. Their rates must not be added "
            "before that is known"
        )


def _components(names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Connected sets of names, in the order of ``names``."""
    member = {name: {name} for name in names}
    for one, other in pairs:
        if member[one] is not member[other]:
            joined = member[one] | member[other]
            for name in joined:
                member[name] = joined
    order = {name: k for k, name in enumerate(names)}
    unique = {id(found): found for found in member.values()}
    return [tuple(sorted(found, key=order.__getitem__)) for found in unique.values()]


def _pairs(seen: Seen, classes: Iterable[str]) -> list[tuple[str, str]]:
    wanted = set(classes)
    return [
        pair
        for pair in itertools.combinations((*seen.gpus, *seen.nics), 2)
        if seen.distance(*pair) in wanted or seen.distance(pair[1], pair[0]) in wanted
    ]


def _group(level: Level, members: Sequence[str], seen: Seen, why: str) -> Group:
    gpus = tuple(name for name in members if name in seen.gpus)
    return Group(level, gpus, tuple(name for name in members if name not in seen.gpus), why)


def _cards(seen: Seen) -> Iterator[Group]:
    """NICs that share one PCIe link, as far as PIX among NICs tells."""
    pairs = [pair for pair in _pairs(seen, ("PIX",)) if set(pair) <= set(seen.nics)]
    for members in _components(seen.nics, pairs):
        if len(members) > 1:
            yield _group(Level.CARD, members, seen, _WHY[Level.CARD])


def _groups(seen: Seen) -> Iterator[Group]:
    """Groups with at least one GPU; a level that adds nothing to the one below it is left out."""
    names = (*seen.gpus, *seen.nics)
    hidden = any(is_nvlink(seen.matrix[one][other]) for one, other in itertools.combinations(seen.gpus, 2))
    found: set[tuple[str, ...]] = set()
    for level, classes in _LEVELS.items():
        pairs = _pairs(seen, classes)
        why = _WHY[level]
        if level is Level.NUMA:
            equal = list(_same_numa(seen))
            why += "; NUMA affinity of the GPUs" if equal else ""
            pairs += equal
        if hidden and not seen.pcie_matrix:
            why += " (NVLink hides the distances between GPUs: they follow from the NICs)" if seen.nics else ""
        for members in _components(names, pairs):
            if len(members) > 1 and members not in found and not set(members) <= set(seen.nics):
                found.add(members)
                yield _group(level, members, seen, why)


def _same_numa(seen: Seen) -> Iterator[tuple[str, str]]:
    """Pairs of GPUs with the same NUMA affinity; a list that every GPU has tells nothing."""
    by_node: dict[str, list[str]] = {}
    for gpu in seen.gpus:
        node = seen.numa.get(gpu)
        if node is not None:
            by_node.setdefault(node, []).append(gpu)
    for node, gpus in by_node.items():
        if node.isdigit() or len(by_node) > 1:
            yield from itertools.pairwise(gpus)


def _contradictions(seen: Seen) -> Iterator[str]:
    """Three devices whose classes fit no tree: the two larger of three distances are equal in every tree."""
    names = (*seen.gpus, *seen.nics)
    rank = {
        (one, other): _RANK.get(str(seen.distance(one, other)), -1) for one in names for other in names if one != other
    }
    found = [
        (one, middle, other)
        for one, other in itertools.combinations(names, 2)
        if rank[one, other] > 0
        for middle in names
        if middle not in {one, other}
        and min(rank[one, middle], rank[middle, other]) >= 0
        and max(rank[one, middle], rank[middle, other]) < rank[one, other]
    ]
    if found:
        one, middle, other = found[0]
        yield (
            f"fits no tree: {one}-{middle} is {seen.distance(one, middle)}, {middle}-{other} "
            f"{seen.distance(middle, other)}, but {one}-{other} {seen.distance(one, other)} ({len(found)} such triples)"
        )


def _numa_remarks(seen: Seen) -> Iterator[str]:
    nodes = {gpu: node for gpu in seen.gpus if (node := seen.numa.get(gpu)) is not None}
    inside, across = [], []
    for one, other in itertools.combinations(nodes, 2):
        distance = seen.distance(one, other)
        if distance == "SYS" and nodes[one] == nodes[other] and nodes[one].isdigit():
            inside.append(f"{one}-{other}")
        elif distance in {"PIX", "PXB", "PHB", "NODE"} and nodes[one] != nodes[other]:
            across.append(f"{one}-{other}")
    if inside:
        yield (
            f"SYS within one NUMA node ({inside[0]}, {len(inside)} pairs): SYS does not mean another socket here "
            "(sub-NUMA or NPS setting, or several host bridges)"
        )
    if across:
        yield f"{across[0]} is {seen.distance(*across[0].split('-'))} across two NUMA nodes ({len(across)} pairs)"
    spans = {node for node in nodes.values() if not node.isdigit()}
    if spans and len(set(nodes.values())) == 1 and len(seen.gpus) > 1:
        yield f"every GPU has the NUMA affinity {spans.pop()}: a VM or container may have flattened the distances"
    all_far = [seen.matrix[gpu][nic] == "SYS" for gpu in seen.gpus for nic in seen.nics]
    if len(all_far) > 1 and all(all_far) and len(seen.nics) > 1:
        yield "every NIC is SYS from every GPU: as VMs and Grace systems print it, not a measured distance"


def _assumed(seen: Seen, groups: Sequence[Group]) -> Iterator[str]:
    yield "classes tell no link speed: every capacity is assumed until a bandwidth test, an NCCL XML or lspci is there"
    if groups:
        yield "groups follow from the classes alone; a two-flow test tells whether an uplink is shared"
    hidden = any(is_nvlink(seen.matrix[one][other]) for one, other in itertools.combinations(seen.gpus, 2))
    if hidden and not seen.pcie_matrix:
        yield "the PCIe place of GPUs on NVLink follows from their NICs only; topo -mp would show it"
