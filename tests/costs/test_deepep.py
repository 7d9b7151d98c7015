"""DeepEP's kernels and the fused kernel against published times; expected copies against enumeration."""

from __future__ import annotations

import csv
from itertools import combinations
from pathlib import Path

import pytest

from pdmodel.costs.deepep import (
    expected_distinct_nodes,
    low_latency_bytes,
    low_latency_s,
    normal_s,
    two_level_bytes,
)
from pdmodel.costs.fused import fused_kernel_s
from pdmodel.costs.moe import Routing, ep_exchange, expected_distinct_ranks
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box

PUBLISHED = Path(__file__).parents[1] / "published"
SHAPE = Routing(128, 7168, 256, 8)


def published(name, **wanted):
    with (PUBLISHED / f"{name}.csv").open() as lines:
        return [row for row in csv.DictReader(lines) if all(row[key] == value for key, value in wanted.items())]


def test_low_latency_bytes_as_published():
    # 77 us at 98.5 GB/s and 114 us at 128.8 GB/s.
    assert low_latency_bytes(SHAPE, "dispatch") / 77e-6 == pytest.approx(98.5e9, rel=0.003)
    assert low_latency_bytes(SHAPE, "combine") / 114e-6 == pytest.approx(128.8e9, rel=0.003)


@pytest.mark.parametrize("row", published("deepep", mode="low_latency"), ids=lambda row: f"{row['op']}-{row['ep']}")
def test_low_latency_over_nodes(row):
    shape = Routing(int(row["tokens"]), int(row["hidden"]), 256, int(row["topk"]))
    time_s = low_latency_s(shape, row["op"], "h800", int(row["ep"]))
    assert time_s * 1e6 == pytest.approx(float(row["latency_us"]), rel=0.15)


@pytest.mark.parametrize(
    "row",
    [row for row in published("deepep") if row["mode"] != "low_latency"],
    ids=lambda row: f"{row['version']}-{row['arch']}-{row['op']}-{row['ep']}-{row['sms']}",
)
def test_normal_kernels_as_published(row):
    ranks = 1
    for part in row["ep"].split("x"):
        ranks *= int(part)
    nodes, limit = max(1, ranks // 8), 4 if row["version"] == "V1" else None
    shape = Routing(int(row["tokens"]), int(row["hidden"]), 256, int(row["topk"]))
    gpu = "h800" if limit else "b200_v2" if (row["arch"], nodes) == ("SM100", 1) else "h100_v2"
    time_s = normal_s(shape, row["op"], gpu, sms=int(row["sms"]), ranks=ranks, node_limit=limit)
    width = shape.dispatch_row_bytes if row["op"] == "dispatch" else shape.combine_row_bytes
    copies = expected_distinct_nodes(256, 8, nodes, limit) if nodes > 1 else expected_distinct_ranks(256, 8, 8)
    assert shape.tokens * copies * width / time_s / 1e9 == pytest.approx(float(row["bandwidth_GBps"]), rel=0.15)


def test_two_levels_by_enumeration():
    # 8 experts on 4 ranks of 2 nodes, 2 each: ranks and nodes that each choice of 3 visits.
    chosen = list(combinations(range(8), 3))
    ranks = sum(len({expert // 2 for expert in one}) for one in chosen) / len(chosen)
    nodes = sum(len({expert // 4 for expert in one}) for one in chosen) / len(chosen)
    shape = Routing(10, 128, 8, 3)
    rdma, nvlink = two_level_bytes(shape, "combine", 4, 2)
    assert nvlink == pytest.approx(10 * ranks * 256)
    assert rdma == pytest.approx(10 * nodes / 2 * 256)
    assert two_level_bytes(shape, "combine", 4, 4) == (0.0, pytest.approx(10 * ranks * 256))


def test_a_gate_with_a_node_limit_by_enumeration():
    # 8 nodes of 2 experts, 3 of the 6 experts of 3 nodes.
    chosen = list(combinations(range(6), 3))
    nodes = sum(len({expert // 2 for expert in one}) for one in chosen) / len(chosen)
    assert expected_distinct_nodes(16, 3, 8, 3) == pytest.approx(nodes)


def test_what_is_not_covered_is_refused():
    with pytest.raises(CoverageError, match="h1000"):
        low_latency_s(SHAPE, "dispatch", "h1000")
    with pytest.raises(CoverageError, match="RDMA"):
        low_latency_s(SHAPE, "dispatch", "h100", 16)
    with pytest.raises(CoverageError, match="RDMA"):
        normal_s(SHAPE, "dispatch", "h100", ranks=16)
    with pytest.raises(InputError, match="12 ranks"):
        low_latency_s(SHAPE, "dispatch", "h800", 12)
    with pytest.raises(CoverageError, match="b300"):
        fused_kernel_s(SHAPE, 2048, 8, "b300")


def test_low_latency_sends_a_copy_for_each_expert():
    box = Box(load_profile("h100_8nic"), "P")
    few = ep_exchange("low_latency", SHAPE, range(8), box)
    assert few[0].implementation.value == "deepep_ll"
    assert few[1].wire_bytes["P/gpu0/nvlink_egress"] == pytest.approx(128 * 8 * 14336 * 7 / 8)
    # 7168 values, 8 of 256: 69.5 us and 55.1 us in the table's neighbourhood; the normal kernels need longer.
    normal = ep_exchange("dedup", SHAPE, range(8), box)
    assert few[0].time_s < normal[0].time_s


@pytest.mark.parametrize("row", published("mega_moe"), ids=lambda row: f"{row['llm']}-{row['tokens_per_rank']}")
def test_the_fused_kernel_on_b200(row):
    shape = Routing(int(row["tokens_per_rank"]), int(row["hidden_size"]), int(row["experts"]), int(row["top_k"]))
    time_us = fused_kernel_s(shape, int(row["intermediate_size"]), 8, "b200") * 1e6
    assert time_us == pytest.approx(float(row["time_us"]), rel=0.06)
