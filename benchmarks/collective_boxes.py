"""Public tables of collectives beside the repository, and what NCCL's search finds on their boxes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from pdmodel.costs.calibration import CollectiveRow, FloatArray, aiconfigurator_rows, nccl_tests_rows
from pdmodel.costs.collectives.selector import Situation
from pdmodel.costs.switching import points_of, settle
from pdmodel.hardware.constants import CollectiveOperation as O

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "collectives"


@dataclass(frozen=True)
class Table:
    """Sizes and times to fit (settled from in place and out of place) and times to predict (out of place)."""

    name: str
    operation: O
    ranks: int
    sizes: FloatArray
    fitted: FloatArray
    wanted: FloatArray
    disagreement: float | None
    situation: Situation | None

    def part(self, first: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Every second size from ``first`` on: sizes, times to fit, times to predict."""
        return self.sizes[first::2], self.fitted[first::2], self.wanted[first::2]


def pcie(ranks: int, bus: float, capability: float, channels: int = 1, peers: int = 1) -> Situation:
    """One node whose graph counts with ``bus`` GB/s."""
    return Situation(ranks, channels, bus / channels, capability, nvlink=False, peer_channels=peers)


def nvlink(ranks: int, channels: int, speed: float, capability: float, nvls: tuple[int, float] = (0, 0.0)) -> Situation:
    """One node with an NVLink switch."""
    return Situation(
        *(ranks, channels, speed, capability, True),
        nvls_channels=nvls[0],
        nvls_channel_gb_per_s=nvls[1] or None,
    )


# Graphs by NCCL's ratings of the links (PCIe gen4 24, gen5 48; AMD sockets 16, Sapphire Rapids 22; NVLink 20, 20.6 and
# 40.1 a link) and its list of speeds; the RTX PRO 6000 server is taken to be Sapphire Rapids, which its tables fit.
# None: no log or topology says.
H100_NVLS, B200_NVLS = (8, 40.0), (8, 90.0)
AICONFIGURATOR = {
    "rtx_pro_6000_server__nccl-2.29.2": {2: pcie(2, 48, 12.0, 2), 4: pcie(4, 48, 12.0, 2), 8: pcie(8, 20, 12.0)},
    "l40s__nccl-2.27.3": {2: pcie(2, 48, 8.9, 2, 2), 4: pcie(4, 20, 8.9, 1, 2), 8: pcie(8, 20, 8.9, 1, 2)},
    "a100_sxm__nccl-2.27.3": {n: nvlink(n, 12, 20, 8.0) for n in (2, 4, 8)},
    "h100_sxm__nccl-2.29.2": {
        2: nvlink(2, 18, 20, 9.0),
        4: nvlink(4, 18, 20, 9.0, H100_NVLS),
        8: nvlink(8, 12, 30, 9.0, H100_NVLS),
    },
}
FALLBACK_8 = Situation(8, 1, 0.1, 12.0, nvlink=False)
NCCL_TESTS: dict[str, Situation | None] = {
    "a100pcie40x4_intel": pcie(4, 10, 8.0),
    "a100sxm40x16_oke_partial": None,
    "b200x16_gke_a4": None,
    "b200x16_lambda_dstack": None,
    "b200x8_gke_a4": nvlink(8, 8, 90, 10.0, B200_NVLS),
    "h100x16_gcp_a3mega": None,
    "h200x16_roce_nccl2.30.4": None,
    "l40s_2node_1gpu": None,
    "rtx2080tix2_pcie3_shm_all_gather": pcie(2, 12, 7.5),
    "rtx2080tix2_pcie3_shm_all_reduce": pcie(2, 12, 7.5),
    "rtx2080tix2_pcie3_shm_alltoall": pcie(2, 12, 7.5),
    "rtx2080tix2_pcie3_shm_broadcast": pcie(2, 12, 7.5),
    "rtx4090x2_cross_numa_weak": pcie(2, 6, 8.9),
    "rtx4090x4_epyc_p2pdriver": pcie(4, 15, 8.9),
    "rtx4090x4_two_switch_weak": pcie(4, 6, 8.9),
    "rtx4090x8_epyc_shm": pcie(8, 15, 8.9),
    "rtx5090x8_p2psys_nccl2.29.7": FALLBACK_8,
    "rtx6000d_x16_allreduce": None,
    "rtxpro_x16_alltoall_p2poff_shmoff": None,
}


@cache
def aiconfigurator(name: str) -> dict[tuple[O, int], Table]:
    """The four collectives among 2, 4 and 8 GPUs; NVIDIA, Apache-2.0."""
    with (DATA / "aiconfigurator" / f"{name}__nccl_perf.csv").open() as lines:
        rows = aiconfigurator_rows(lines, {"nccl_dtype": "half"})
    found = {}
    for operation, ranks in dict.fromkeys((row.operation, row.ranks) for row in rows):
        sizes, times = points_of(rows, operation, ranks)
        graph = AICONFIGURATOR.get(name, {}).get(ranks)
        found[operation, ranks] = Table(name, operation, ranks, sizes, times, times, None, graph)
    return found


@cache
def nccl_tests(name: str) -> Table:
    """One table of nccl-tests: fitted to both places, held against out of place."""
    text = (DATA / "measured" / f"{name}.csv").read_text().splitlines()
    out = _by_size(nccl_tests_rows(text))
    inside = _by_size(nccl_tests_rows(text, ("in",)))
    row = next(iter(out.values()))
    sizes = np.array(sorted(out))
    wanted = np.array([out[size].time_s for size in sizes])
    both = [[out[size].time_s] + ([inside[size].time_s] if size in inside else []) for size in sizes]
    gap = float(np.mean([abs(t[1] / t[0] - 1) for t in both])) if all(len(t) == 2 for t in both) else None
    fitted = np.array([settle(times) for times in both])
    return Table(name, row.operation, row.ranks, sizes, fitted, wanted, gap, NCCL_TESTS.get(name))


def _by_size(rows: list[CollectiveRow]) -> dict[float, CollectiveRow]:
    return {row.size_bytes: row for row in rows}


def published(name: str) -> list[dict[str, str]]:
    """Rows of a table of published figures."""
    with (DATA / "published" / f"{name}.csv").open() as lines:
        return list(csv.DictReader(lines))
