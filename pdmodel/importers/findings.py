"""What a file says about the topology of a box, in one form for every tool that prints it.

Letters and trees say who hangs where; they say no speed. What is inferred from letters is a hypothesis and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Matrix = Mapping[str, Mapping[str, str | None]]
"""Row label -> column label -> code; None where the file does not tell."""

NEAR = ("PIX", "PXB")
"""Classes that stay below one root port: GPU and NIC reach each other without the CPU."""
PCIE_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of ``nvidia-smi topo -m`` from near to far; NVLink, printed as NV and a count, hides them."""


class Status(StrEnum):
    """How much of a file could be used."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    REFUSED = "refused"


class Kind(StrEnum):
    """The tool whose output a file is."""

    TOPO_M = "nvidia-smi topo -m"
    TOPO_MP = "nvidia-smi topo -mp"
    TOPO_P2P = "nvidia-smi topo -p2p"
    ROCM_SMI = "rocm-smi --showtopo"
    NCCL_XML = "NCCL topology XML"
    LSPCI = "lspci"
    UNKNOWN = "unknown"


class Level(StrEnum):
    """What the members of a group share, from near to far."""

    CARD = "card"
    SWITCH = "switch"
    SWITCH_TREE = "switch_tree"
    ROOT_COMPLEX = "root_complex"
    NUMA = "numa"


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs and NICs that share something on their way to the CPU.

    ``card``: NICs alone that share one PCIe link; ``switch``: one switch and its uplink; ``switch_tree``: several
    switches below one root port; ``root_complex``: one host bridge; ``numa``: one NUMA node. ``why`` says from what.
    """

    level: Level
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    why: str
    assumed: bool = True


@dataclass(frozen=True, slots=True)
class P2pMatrix:
    """One ``topo -p2p`` matrix: ``capability`` is r, w, n, a or p as typed, "" where the file does not say."""

    capability: str
    codes: Matrix

    @property
    def refused(self) -> tuple[tuple[str, str, str], ...]:
        """Ordered pairs whose code is not OK, with the code."""
        return tuple(
            (row, column, code)
            for row, cells in self.codes.items()
            for column, code in cells.items()
            if code not in {None, "X", "OK"} and code is not None
        )


@dataclass(frozen=True, slots=True)
class TopologyFindings:
    """What one file says.

    Attributes
    ----------
    file, kind, status: where it is from, what it is, how much of its matrix or tree holds.
    reason: why it was refused.
    gpus, nics: labels in the order of the file; ``nics`` is None where the tool names none.
    nic_names: label -> device name, where a legend gives it.
    nvlink: True where every known pair of GPUs is on NVLink, "partial" where some are, None where the tool cannot say.
    fabric: nvlink, xgmi or "" (none is seen).
    nearest_nics: GPU -> the NICs at the least distance; () where the row does not tell.
    distance: GPU -> class of that distance; None where the row does not tell.
    matrix: codes between all devices, a missing cell filled from its mirror image.
    pcie_matrix: PCIe classes of pairs that ``matrix`` shows as NVLink, where a ``topo -mp`` of the same box was there.
    weights: rocm-smi's weights of pairs.
    rows, rows_whole: rows that the header announces, and those that have all of their cells.
    cpu_affinity, numa_affinity, gpu_numa_id: as printed; None where empty, N/A or doubtful.
    groups: the hypothesis, from near to far. ``twins``: NICs that may be one physical port or card.
    p2p: ``topo -p2p`` matrices. ``gaps``: what is missing, by name (also among ``warnings``).
    assumed: what the hypothesis rests on.

    """

    file: str
    kind: Kind
    status: Status
    reason: str = ""
    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] | None = None
    nic_names: Mapping[str, str] = field(default_factory=dict)
    nvlink: bool | Literal["partial"] | None = None
    fabric: str = ""
    nearest_nics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distance: Mapping[str, str | None] = field(default_factory=dict)
    matrix: Matrix = field(default_factory=dict)
    pcie_matrix: Matrix = field(default_factory=dict)
    weights: Mapping[str, Mapping[str, int | None]] = field(default_factory=dict)
    rows: int = 0
    rows_whole: int = 0
    cpu_affinity: Mapping[str, str | None] = field(default_factory=dict)
    numa_affinity: Mapping[str, str | None] = field(default_factory=dict)
    gpu_numa_id: Mapping[str, str | None] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    twins: tuple[tuple[str, ...], ...] = ()
    p2p: tuple[P2pMatrix, ...] = ()
    gaps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    def at(self, level: Level) -> tuple[Group, ...]:
        """The groups of one level."""
        return tuple(group for group in self.groups if group.level is level)


def refused(file: str, reason: str, *, kind: Kind = Kind.UNKNOWN, warnings: tuple[str, ...] = ()) -> TopologyFindings:
    """Findings that say only why nothing was taken from the file."""
    return TopologyFindings(file, kind, Status.REFUSED, reason, warnings=warnings)


def listed(names: Sequence[str]) -> str:
    """Names for a sentence, consecutive numbers folded.

    >>> listed(["GPU0"]), listed(["GPU0", "GPU1", "NIC4"]), listed(["GPU5", "GPU6", "GPU7", "mlx5_1"])
    ('GPU0', 'GPU0, GPU1 and NIC4', 'GPU5 to GPU7 and mlx5_1')
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1] if parts else "") if part)


def _follows(one: str, other: str) -> bool:
    """Whether two names differ by one in the number at their end."""
    left, right = (name.rstrip("0123456789") for name in (one, other))
    numbers = one[len(left) :], other[len(right) :]
    return left == right and all(numbers) and int(numbers[1]) == int(numbers[0]) + 1
