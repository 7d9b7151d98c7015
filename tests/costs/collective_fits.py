"""Which rows of which table each fitted entry of a shipped profile comes from; the tables lie beside the repository.

aiconfigurator, NVIDIA, Apache-2.0, for every table under ``aiconfigurator``.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pdmodel.costs.calibration import CollectiveRow, Shape, aiconfigurator_rows, busbw_row, nccl_tests_rows
from pdmodel.costs.collectives.custom import CUSTOM_LIMIT_BYTES, ONE_SHOT_LIMIT_BYTES
from pdmodel.costs.moe import expected_distinct_ranks
from pdmodel.hardware.constants import Algorithm as A
from pdmodel.hardware.constants import CollectiveOperation as O
from pdmodel.hardware.constants import Implementation as I
from pdmodel.hardware.constants import Protocol as P

DATA = Path(__file__).parents[3] / "shared" / "data"
MIB = 1 << 20

NVLINK_RING = (Shape(P.LL, A.RING), Shape(P.LL128, A.RING), Shape(P.SIMPLE, A.RING))
NVLS = (Shape(P.LL, A.RING), Shape(P.LL128, A.RING), Shape(P.SIMPLE, A.NVLS))
NVLINK_PAIRS = (Shape(P.LL, A.PAIRWISE), Shape(P.SIMPLE, A.PAIRWISE), Shape(P.SIMPLE, A.PAIRWISE))
DEEPEP = (Shape(P.CUSTOM, A.PAIRWISE),)


@dataclass(frozen=True)
class Fitted:
    """One entry: ``table`` names the reader below."""

    profile: str
    operation: O
    ranks: int
    table: str
    shapes: tuple[Shape, ...]
    source: str
    implementation: I = I.NCCL

    @property
    def name(self) -> str:
        return f"{self.profile}-{self.implementation.value}-{self.operation.value}-{self.ranks}"


def one_shot(ranks: int, limit: int = CUSTOM_LIMIT_BYTES) -> Shape:
    return Shape(P.CUSTOM, A.ONE_SHOT, min(ONE_SHOT_LIMIT_BYTES.get(ranks, limit), limit) - 1)


def pcie_ring(ll_limit: int | None = None) -> tuple[Shape, ...]:
    """NCCL's ring; ``ll_limit`` where the table shows the size after which NCCL leaves LL."""
    return Shape(P.LL, A.RING, ll_limit), Shape(P.SIMPLE, A.RING)


def vllm(
    ranks: int, *, pcie: bool = False, limit: int = CUSTOM_LIMIT_BYTES, ll_limit: int | None = None
) -> tuple[Shape, ...]:
    """What vLLM's dispatcher runs; more than two GPUs on PCIe alone have NCCL's ring (custom_all_reduce.py)."""
    if pcie:
        return (one_shot(2), Shape(P.SIMPLE, A.RING)) if ranks == 2 else pcie_ring(ll_limit)
    if ranks == 2:
        return (one_shot(2, limit), Shape(P.SIMPLE, A.RING), Shape(P.SIMPLE, A.RING))
    if ranks == 4:
        return (one_shot(4), Shape(P.CUSTOM, A.TWO_SHOT), Shape(P.SIMPLE, A.RING))
    return (one_shot(8), Shape(P.CUSTOM, A.NVLS), Shape(P.SIMPLE, A.NVLS))


def _nccl(
    profile: str, table: str, *, nvlink: bool, ranks: tuple[int, ...] = (2, 4, 8), ll_limit: int | None = None
) -> list[Fitted]:
    found = []
    for operation in (O.ALL_REDUCE, O.ALL_GATHER, O.REDUCE_SCATTER, O.ALL_TO_ALL):
        for n in ranks:
            limit = ll_limit if n > 2 else None
            shapes = NVLINK_RING if nvlink else pcie_ring(limit)
            if operation is O.ALL_TO_ALL:
                # NCCL sends by LL up to 16 KiB a peer and channel; the tables that show it have two channels.
                pairs = (Shape(P.LL, A.PAIRWISE, limit and 32 * 1024 * n), Shape(P.SIMPLE, A.PAIRWISE))
                shapes = NVLINK_PAIRS if nvlink else pairs
            elif operation is O.ALL_REDUCE and nvlink and n == 8:
                shapes = NVLS
            found.append(Fitted(profile, operation, n, table, shapes, "nccl_table"))
    return found


def _custom(
    profile: str,
    table: str,
    source: str = "vllm_table",
    *,
    pcie: bool = False,
    limit: int = CUSTOM_LIMIT_BYTES,
    ll_limit: int | None = None,
) -> list[Fitted]:
    shapes = {n: vllm(n, pcie=pcie, limit=limit, ll_limit=ll_limit) for n in (2, 4, 8)}
    return [Fitted(profile, O.ALL_REDUCE, n, table, shapes[n], source, I.VLLM_CUSTOM) for n in shapes]


# LL, two bytes on the wire a byte, may not need more than a port of 56.3 GB/s at the size where NCCL leaves it:
# 18.2 us + S/B >= 2 * 2(n-1)/n * S / 56.3 at S = 1 MiB.
WRX90 = (Shape(P.LL, A.RING, MIB, 22.3), Shape(P.SIMPLE, A.RING))

FITTED: tuple[Fitted, ...] = (
    *_custom("rtx_pro_6000_server", "vllm:rtx_pro_6000_server__vllm-0.24.0", pcie=True),
    Fitted("rtx_pro_6000_wrx90_two_roots", O.ALL_REDUCE, 8, "tests:rtxpro6000x8_wrx90_2roots", WRX90, "nccl_log"),
    *_nccl("l40s_pcie_gen4", "nccl:l40s__nccl-2.27.3", nvlink=False, ll_limit=MIB),
    *_custom("l40s_pcie_gen4", "vllm:l40s__vllm-0.22.0", pcie=True, ll_limit=MIB),
    *_nccl("h100_8nic", "nccl:h100_sxm__nccl-2.29.2", nvlink=True),
    *_custom("h100_8nic", "vllm:h100_sxm__vllm-0.24.0"),
    *(
        Fitted("h100_8nic", op, 8, "deepep:h100_sxm__sglang-0.5.12", DEEPEP, "deepep_table", I.DEEPEP)
        for op in (O.DISPATCH, O.COMBINE)
    ),
    *_nccl("b200_8nic", "nccl:gb200__nccl-2.29.2", nvlink=True, ranks=(2, 4)),
    Fitted(
        "b200_8nic", O.ALL_REDUCE, 8, "b200_all_reduce", (Shape(P.LL128, A.RING), Shape(P.SIMPLE, A.NVLS)), "nccl_log"
    ),
    Fitted(
        "b200_8nic",
        O.ALL_GATHER,
        8,
        "steps:b200_sxm:Nccl",
        (Shape(P.LL128, A.RING), Shape(P.SIMPLE, A.RING, None, 783 / (7 / 8))),
        "step_table",
    ),
    *_custom("b200_8nic", "steps:b200_sxm:CustomAllReduce", "step_table", limit=2 * MIB),
    *_custom("h200_nvlink_2nic", "steps:h200_sxm:CustomAllReduce", "step_table"),
)


@cache
def rows(table: str) -> tuple[CollectiveRow, ...]:
    """The rows of a table; FileNotFoundError where the data are not beside the repository."""
    kind, _, name = table.partition(":")
    folder = DATA / "collectives"
    if kind == "nccl":
        with (folder / "aiconfigurator" / f"{name}__nccl_perf.csv").open() as lines:
            return tuple(aiconfigurator_rows(lines, {"nccl_dtype": "half"}))
    if kind == "vllm":
        with (folder / "aiconfigurator" / f"{name}__custom_allreduce_perf.csv").open() as lines:
            return tuple(aiconfigurator_rows(lines, {"backend": "vllm_graph"}))
    if kind == "tests":
        with (folder / "measured" / f"{name}.csv").open() as lines:
            return tuple(nccl_tests_rows(lines))
    if kind == "b200_all_reduce":
        return _b200_all_reduce()
    if kind == "deepep":
        return _deepep(name)
    return _steps(*name.split(":"))


def _b200_all_reduce() -> tuple[CollectiveRow, ...]:
    """A published sweep up to 1 GiB, and four points of aiconfigurator's b200_sxm table (NCCL, n = 8)."""
    sweep = [row for row in rows("tests:b200x8_gke_a4") if row.size_bytes <= 1 << 30]
    points = [
        CollectiveRow(O.ALL_REDUCE, 8, size, time_us * 1e-6)
        for size, time_us in ((512, 25.1), (MIB, 30.1), (16 * MIB, 99.0))
    ]
    return (*sweep, *points, busbw_row(O.ALL_REDUCE, 8, 512 * MIB, 704e9))


def _deepep(name: str) -> tuple[CollectiveRow, ...]:
    """DeepEP's normal kernels on 20 SMs; size = tokens x distinct ranks x row (FP8 with scales out, bf16 back)."""
    found = []
    with (DATA / "collectives" / "aiconfigurator" / f"{name}__wideep_deepep_normal_perf.csv").open() as lines:
        for record in csv.DictReader(lines):
            if record["dispatch_sms"] != "20" or record["node_num"] != "1":
                continue
            tokens, hidden = float(record["num_token"]), float(record["hidden_size"])
            copies = tokens * expected_distinct_ranks(int(record["num_experts"]), int(record["num_topk"]), 8)
            for operation, width in ((O.DISPATCH, hidden * (1 + 4 / 128)), (O.COMBINE, hidden * 2)):
                time_us = float(record[f"{operation.value}_transmit_us"]) + float(
                    record[f"{operation.value}_notify_us"]
                )
                found.append(CollectiveRow(operation, 8, copies * width, time_us * 1e-6))
    return tuple(found)


def _steps(system: str, kind: str) -> tuple[CollectiveRow, ...]:
    """Calls inside the step times: sizes are tokens x hidden x 2 bytes (all-gather: what every rank ends with)."""
    folder = DATA / "step_times"
    with gzip.open(folder / "dev.csv.gz", "rt") as lines:
        steps = {record["row_id"]: record for record in csv.DictReader(lines) if record["system"] == system}
    found = {}
    with gzip.open(folder / "dev_ops.csv.gz", "rt") as lines:
        for record in csv.DictReader(lines):
            step = steps.get(record["row_id"])
            backend = "sglang" if kind == "Nccl" else "vllm"
            if step is None or record["kind"] != kind or step["backend"] != backend:
                continue
            tokens = float(step["new_tokens"] if step["phase"] == "prefill" else step["batch"])
            operation = O.ALL_GATHER if kind == "Nccl" else O.ALL_REDUCE
            key = (operation, int(record["comm_n"]), tokens * float(record["comm_hidden"]) * 2)
            found[key] = CollectiveRow(*key, float(record["ms_per_call"]) * 1e-3)
    return tuple(found.values())
