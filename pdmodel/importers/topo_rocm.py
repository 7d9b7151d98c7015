"""``rocm-smi --showtopo``: blocks of weights, hops, link types and NUMA nodes.

Hops are known to be wrong (1 wherever there is xGMI; ROCm/rocm-systems #5763, #7372): link type and weight are used.
An xGMI link weighs 15, a PCIe segment 20, and what lies between two NUMA nodes adds to it; so 40 is GPU, CPU, GPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pdmodel.importers.findings import Group, Kind, Level, Status, TopologyFindings, listed, refused

XGMI_WEIGHT, TWO_PCIE_SEGMENTS = 15, 40

_BANNER = re.compile(r"^\W*(Weight|Hops|Link Type) between two GPUs|^\W*(Numa) Nodes?\b")
_HEADER = re.compile(r"^\W*(GPU[0-9]{1,4}(?:\s+GPU[0-9]{1,4})*)\s*$")
_ROW = re.compile(r"^\W*(GPU[0-9]{1,4})\s+([0-9A-Z].*?)\s*$")
_NUMA = re.compile(r"GPU\[([0-9]{1,4})\]\s*:\s*\(Topology\) Numa (Node|Affinity): (-?[0-9]+)")
_LINKS = frozenset({"XGMI", "PCIE"})
_LEAST_WEIGHT = 10  # below it stand hops
_NEEDED = {"Link Type": "link types", "Weight": "weights"}


@dataclass(slots=True)
class _Table:
    labels: tuple[str, ...]
    rows: dict[str, list[str]] = field(default_factory=dict)

    @property
    def whole(self) -> list[str]:
        return [label for label in self.labels if len(self.rows.get(label, [])) == len(self.labels)]

    def cell(self, row: str, column: str) -> str | None:
        """The word of a pair, or of its mirror image."""
        for one, other in ((row, column), (column, row)):
            words = self.rows.get(one, [])
            place = self.labels.index(other) if other in self.labels else len(words)
            if place < len(words):
                return words[place]
        return None


def parse_rocm(lines: Sequence[str], file: str, *, ended: bool) -> TopologyFindings:
    """The findings of a capture; refused without link types and weights. ``ended``: the last line has its end."""
    tables = _tables(lines, ended=ended)
    numa = {node for line in lines for node in _NUMA.findall(line)}
    types, weights = tables.get("Link Type"), tables.get("Weight")
    usable = [table for table in (types, weights) if table is not None and table.whole]
    if not usable:
        reason = "has neither a whole row of link types nor one of weights, and hops are known to be wrong"
        return refused(file, reason, kind=Kind.ROCM_SMI)
    gpus = max((table.labels for table in usable), key=len)
    links = {one: {other: _link(types, weights, one, other) for other in gpus} for one in gpus}
    heavy = {one: {other: _weight(weights, one, other) for other in gpus} for one in gpus} if weights else {}
    nodes: dict[str, str | None] = dict.fromkeys(gpus)
    nodes.update({f"GPU{k}": value for k, what, value in sorted(numa) if what == "Node" and f"GPU{k}" in nodes})
    affinity = {f"GPU{k}": value for k, what, value in sorted(numa) if what == "Affinity"}
    gaps = _gaps(tables, gpus, nodes)
    xgmi, remarks = _fabric(gpus, links)
    groups = tuple(_groups(gpus, heavy, {gpu: affinity.get(gpu, node) for gpu, node in nodes.items()}))
    whole = [gpu for gpu in gpus if all(links[gpu][other] is not None for other in gpus)]
    return TopologyFindings(
        file,
        Kind.ROCM_SMI,
        Status.PARTIAL if gaps or len(whole) < len(gpus) else Status.COMPLETE,
        gpus=gpus,
        nvlink=False,
        fabric="xgmi" if xgmi else "",
        matrix=links,
        weights=heavy,
        rows=len(gpus),
        rows_whole=len(types.whole) if types else 0,
        numa_affinity={gpu: affinity.get(gpu, node) for gpu, node in nodes.items()},
        gpu_numa_id=nodes,
        groups=groups,
        gaps=tuple(gaps),
        warnings=(*gaps, *remarks, "rocm-smi names no NICs: which are near which GPU is not known", *_ignored(tables)),
        assumed=("link types tell no speed: every capacity is assumed until it is measured",),
    )


def _tables(lines: Sequence[str], *, ended: bool) -> dict[str, _Table]:
    """Tables by the words of their banner; the first of a kind that has rows."""
    tables: dict[str, _Table] = {}
    kind = ""
    last = max((k for k, line in enumerate(lines) if line.strip()), default=-1)
    for k, line in enumerate(lines):
        banner = _BANNER.match(line)
        if banner is not None:
            kind = banner.group(1) or banner.group(2)
            continue
        header, row = _HEADER.match(line), _ROW.match(line)
        table = tables.get(kind)
        if header is not None and kind and (table is None or not table.rows):
            tables[kind] = _Table(tuple(dict.fromkeys(header.group(1).split())))
        elif row is not None and table is not None and row.group(1) not in table.rows:
            words = row.group(2).split()
            # The last word of a text without a line end may be cut.
            words = words[:-1] if k == last and not ended and len(words) <= len(table.labels) else words
            table.rows[row.group(1)] = words if _fits(table, row.group(1), words, kind) else []
    return {name: table for name, table in tables.items() if table.rows}


def _fits(table: _Table, label: str, words: Sequence[str], kind: str) -> bool:
    """Whether a row is of this kind, has its 0 in its own column and no more words than there are columns."""
    others = [word for word in words if word != "0"]
    numbers = [int(word) if word.isdigit() and len(word) < 7 else 0 for word in others]
    if (kind == "Link Type" and any(numbers)) or (kind == "Weight" and min(numbers, default=1) < _LEAST_WEIGHT):
        return not others
    if label not in table.labels or len(words) > len(table.labels):
        return False
    own = table.labels.index(label)
    return all((word == "0") == (k == own) for k, word in enumerate(words))


def _weight(weights: _Table | None, one: str, other: str) -> int | None:
    word = None if weights is None else weights.cell(one, other)
    return int(word) if word is not None and word.isdigit() and len(word) < 7 else None


def _link(types: _Table | None, weights: _Table | None, one: str, other: str) -> str | None:
    """The link type of a pair; where that block is missing, what the weight implies."""
    if one == other:
        return "X"
    word = None if types is None else types.cell(one, other)
    if word in _LINKS:
        return word
    weight = _weight(weights, one, other)
    if types is not None or weight is None:
        return None
    return "XGMI" if weight % XGMI_WEIGHT == 0 and weight < TWO_PCIE_SEGMENTS else "PCIE"


def _gaps(tables: Mapping[str, _Table], gpus: Sequence[str], nodes: Mapping[str, str | None]) -> list[str]:
    gaps = []
    for name, what in _NEEDED.items():
        table = tables.get(name)
        if table is None:
            implied = ", taken from the weights" if name == "Link Type" else ""
            gaps.append(f"the block of {what} is missing{implied}")
            continue
        cut = [gpu for gpu in gpus if gpu not in table.whole]
        if cut:
            gaps.append(f"{what} of {listed(cut)} are not whole")
    without = [gpu for gpu, node in nodes.items() if node is None]
    if without:
        gaps.append("NUMA nodes are missing" if len(without) == len(nodes) else f"no NUMA node for {listed(without)}")
    return gaps


def _fabric(
    gpus: Sequence[str], links: Mapping[str, Mapping[str, str | None]]
) -> tuple[bool | Literal["partial"], list[str]]:
    pairs = {pair: links[pair[0]][pair[1]] for pair in itertools.combinations(gpus, 2)}
    known = [pair for pair, link in pairs.items() if link is not None]
    linked = [pair for pair in known if pairs[pair] == "XGMI"]
    if not linked or len(linked) == len(known):
        return bool(linked), []
    off = [gpu for gpu in gpus if not any(gpu in pair for pair in linked)]
    remarks = [f"{len(known) - len(linked)} of {len(known)} pairs of GPUs have no xGMI between them"]
    return "partial", [*remarks, *([f"{listed(off)} without xGMI: traffic with other GPUs is on PCIe"] if off else [])]


def _ignored(tables: Mapping[str, _Table]) -> list[str]:
    return ["hops are not used: rocm-smi is known to print them wrong"] if "Hops" in tables else []


def _groups(
    gpus: Sequence[str], weights: Mapping[str, Mapping[str, int | None]], nodes: Mapping[str, str | None]
) -> list[Group]:
    """GPUs of one NUMA node, as printed; without that, those whose path is two PCIe segments long."""
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        node = nodes.get(gpu)
        if node is not None:
            by_node.setdefault(node, []).append(gpu)
    if by_node:
        printed = f"NUMA node as printed by {Kind.ROCM_SMI.value}"
        return [Group(Level.NUMA, tuple(found), (), printed, assumed=False) for found in by_node.values() if found[1:]]
    groups: list[list[str]] = []
    for gpu in gpus:
        row = weights.get(gpu, {})
        home = next((found for found in groups if row.get(found[0]) == TWO_PCIE_SEGMENTS), None)
        if home is None:
            groups.append([gpu])
        else:
            home.append(gpu)
    why = "weight 40: two PCIe segments with one CPU between them"
    return [Group(Level.NUMA, tuple(found), (), why) for found in groups if len(found) > 1]
