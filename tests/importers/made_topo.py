"""Boxes as trees, printed as the drivers print them; the truth is known, so what is read can be held against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LEGEND = """
Legend:

  X    = Self
  SYS  = between NUMA nodes
  NODE = between host bridges of a NUMA node
  PHB  = a host bridge
  PXB  = several bridges
  PIX  = one bridge
"""
NVLINK_LEGEND = LEGEND + "  NV#  = # NVLinks\n"
CLASSES = ("SYS", "NODE", "PHB", "PXB", "PIX")


@dataclass(frozen=True)
class Box:
    """Each device has its place: (NUMA node, host bridge, root port, switch). Equal parts from the left share it."""

    gpus: tuple[tuple[int, int, int, int], ...]
    nics: tuple[tuple[int, int, int, int], ...] = ()
    nvlinks: int = 0
    off_nvlink: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()
    truth: dict[str, dict[str, str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        place = dict(zip(self.labels, (*self.gpus, *self.nics), strict=True))
        for one in self.labels:
            self.truth[one] = {other: self._code(one, other, place) for other in self.labels}

    @property
    def labels(self) -> tuple[str, ...]:
        nics = self.names or tuple(f"NIC{k}" for k in range(len(self.nics)))
        return (*(f"GPU{k}" for k in range(len(self.gpus))), *nics)

    def _code(self, one: str, other: str, place: Mapping[str, tuple[int, int, int, int]]) -> str:
        if one == other:
            return "X"
        linked = [label.startswith("GPU") and int(label[3:]) not in self.off_nvlink for label in (one, other)]
        if self.nvlinks and all(linked):
            return f"NV{self.nvlinks}"
        shared = 0
        for left, right in zip(place[one], place[other], strict=True):
            if left != right:
                break
            shared += 1
        return CLASSES[shared]


def hgx(gpus: int = 8, nvlinks: int = 18) -> Box:
    """A GPU and a NIC to a switch, two NUMA nodes, NVLink."""
    places = tuple((2 * k // gpus, k, k, k) for k in range(gpus))
    return Box(places, places, nvlinks)


def pcie(gpus: int = 4, nics: int = 2) -> Box:
    """Pairs of GPUs below a switch; the NICs, two ports of one card, on a bridge of the last NUMA node."""
    places = tuple((2 * k // gpus, k // 2, k // 2, k // 2) for k in range(gpus))
    return Box(places, tuple((1, 90, 90, 90) for _ in range(nics)))


def printed(
    box: Box,
    *,
    affinity: str = "cpu numa gid",
    tabs: bool = True,
    legend: str = NVLINK_LEGEND,
    code: Callable[[str], str] = str,
    lead: str = "\t",
) -> str:
    """The capture: raw with tabs, or as a terminal shows them. ``affinity``: the further columns, by short names."""
    titles = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "gid": "GPU NUMA ID"}
    columns = affinity.split()
    lines = [lead + "\t".join([*box.labels, *(titles[name] for name in columns)])]
    for k, label in enumerate(box.labels):
        cells = [code(cell).replace("X", " X ") if cell == "X" else code(cell) for cell in box.truth[label].values()]
        lines.append("\t".join([label, *cells, *_further(box, k, columns)]))
    body = "\n".join(lines) + "\n" + legend
    if box.nics and not box.names:
        body += "\nNIC Legend:\n\n" + "".join(f"  NIC{k}: mlx5_{k}\n" for k in range(len(box.nics)))
    return body if tabs else "\n".join(line.expandtabs(8).rstrip() for line in body.split("\n"))


def _further(box: Box, k: int, columns: list[str]) -> list[str]:
    if k >= len(box.gpus):
        return [""] * (len(columns) + ("gid" in columns))
    node = box.gpus[k][0]
    cells = {"cpu": f"{48 * node}-{48 * node + 47},{96 + 48 * node}-{143 + 48 * node}", "numa": str(node), "gid": "N/A"}
    found: list[str] = []
    for name in columns:
        # The driver prints an empty cell before the GPU NUMA ID.
        found += ["", cells[name]] if name == "gid" else [cells[name]]
    return found


def rocm(weight: int = 15, gpus: int = 4) -> str:
    """``rocm-smi --showtopo`` of GPUs that are all equally far from each other, one NUMA node each."""
    link = "XGMI" if weight == 15 else "PCIE"
    blocks = []
    for title, value in (("Weight", str(weight)), ("Hops", "1"), ("Link Type", link)):
        rows = [" " * 7 + "".join(f"GPU{k}".ljust(13) for k in range(gpus))]
        for row in range(gpus):
            cells = ("0" if row == k else value for k in range(gpus))
            rows.append(f"GPU{row}".ljust(7) + "".join(cell.ljust(13) for cell in cells))
        blocks.append(f" {title} between two GPUs ".center(80, "=") + "\n" + "\n".join(rows) + "\n")
    nodes = [f"GPU[{k}]\t\t: (Topology) Numa {what}: {k}\n" for k in range(gpus) for what in ("Node", "Affinity")]
    return "\n".join(blocks) + "\n" + " Numa Nodes ".center(80, "=") + "\n" + "".join(nodes)


def without_field(text: str, field_number: int, first: int = 0, last: int | None = None) -> str:
    """The text without one field of its lines with tabs, as ``cut`` takes it out."""
    lines = text.split("\n")
    for k in range(first, len(lines) if last is None else last):
        if lines[k].count("\t") >= field_number:
            fields = lines[k].split("\t")
            lines[k] = "\t".join(fields[:field_number] + fields[field_number + 1 :])
    return "\n".join(lines)
