"""Published times of expert-parallel exchanges: DeepEP's kernels and DeepGEMM's fused one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from pdmodel.costs.deepep import Direction, expected_distinct_nodes, low_latency_s, normal_s
from pdmodel.costs.fused import fused_kernel_s
from pdmodel.costs.moe import Routing, expected_distinct_ranks
from pdmodel.units import GB, US
from pdmodel.verification.tables import Comparison, PublishedTable, Row, source_of

# The figures of DeepEP are for a gate of 256 experts on nodes of 8; V1's tables follow DeepSeek-V3, at most 4 nodes.
_EXPERTS, _NODE, _NODE_LIMIT = 256, 8, 4


def deepep_times(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Latency, or the time that follows from a published rate; rates count what stays on the own rank or node."""
    for row in rows:
        direction: Direction = "dispatch" if row["op"] == "dispatch" else "combine"
        ranks = prod(int(part) for part in row["ep"].split("x"))
        nodes = max(1, ranks // _NODE)
        shape = Routing(int(row["tokens"]), int(row["hidden"]), _EXPERTS, int(row["topk"]))
        if row["mode"] == "low_latency":
            predicted, published = low_latency_s(shape, direction, "h800", ranks), float(row["latency_us"]) * US
        else:
            limit = _NODE_LIMIT if row["version"] == "V1" else None
            gpu = "h800" if limit else "b200_v2" if row["arch"] == "SM100" and nodes == 1 else "h100_v2"
            predicted = normal_s(shape, direction, gpu, sms=int(row["sms"]), ranks=ranks, node_limit=limit)
            copies = (
                expected_distinct_nodes(_EXPERTS, shape.top_k, nodes, limit)
                if nodes > 1
                else expected_distinct_ranks(_EXPERTS, shape.top_k, ranks)
            )
            width = shape.dispatch_row_bytes if direction == "dispatch" else shape.combine_row_bytes
            published = shape.tokens * copies * width / (float(row["bandwidth_GBps"]) * GB)
        name = f"{row['version']} {row['arch']} {row['mode']} {direction} EP {row['ep']}"
        keys = {column: row[column] for column in table.group_by}
        yield Comparison(name, predicted, published, keys, source_of(row))


def fused_moe_times(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Time of the whole fused layer on eight GPUs."""
    for row in rows:
        shape = Routing(int(row["tokens_per_rank"]), int(row["hidden_size"]), int(row["experts"]), int(row["top_k"]))
        predicted = fused_kernel_s(shape, int(row["intermediate_size"]), 8, "b200")
        keys = {column: row[column] for column in table.group_by}
        name = f"{row['llm']} {row['tokens_per_rank']} tokens"
        yield Comparison(name, predicted, float(row["time_us"]) * US, keys, source_of(row))
