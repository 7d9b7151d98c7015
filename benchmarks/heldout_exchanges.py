"""What NCCL's constants and a P2P test alone foretell, and expert-parallel exchanges; for `heldout_collectives`."""

from __future__ import annotations

import csv
from itertools import product

import numpy as np
from collective_boxes import (
    AICONFIGURATOR,
    B200_NVLS,
    DATA,
    FALLBACK_8,
    H100_NVLS,
    aiconfigurator,
    nccl_tests,
    nvlink,
    pcie,
    published,
)

from pdmodel.costs.calibration import FloatArray, robust_line
from pdmodel.costs.collectives.nodes import Spread, nic_bound_s
from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.selector import Situation, select
from pdmodel.costs.collectives.uncalibrated import uncalibrated
from pdmodel.costs.deepep import (
    Direction,
    expected_distinct_nodes,
    low_latency_bytes,
    low_latency_s,
    normal_s,
    two_level_bytes,
)
from pdmodel.costs.fused import fused_kernel_s
from pdmodel.costs.moe import Routing, expected_distinct_ranks
from pdmodel.hardware.constants import Algorithm as A
from pdmodel.hardware.constants import CollectiveOperation as O
from pdmodel.hardware.constants import Protocol as P
from pdmodel.importers.nccl_tests import parse

SMALL, LARGE, HUGE = 256 << 10, 4 << 20, 1 << 30
# Rates of a P2P test between neighbours [GB/s] (p2p_bandwidth_latency.csv; the 5090 box: a port's practical rate).
UNCALIBRATED = (
    ("rtx4090x8_epyc_shm", pcie(8, 15, 8.9), 19.3, "host"),
    ("rtx4090x4_epyc_p2pdriver", pcie(4, 15, 8.9), 25.8, "gen4"),
    ("rtx5090x8_p2psys_nccl2.29.7", FALLBACK_8, 55.6, "gen5"),
    ("rtxpro6000x8_wrx90_2roots", pcie(8, 45, 12.0, 2), 56.3, "gen5"),
    ("rtx2080tix2_pcie3_shm_all_reduce", pcie(2, 12, 7.5), 5.7, "host"),
)
SWITCHES = (
    ("rtx4090x8_epyc_shm", pcie(8, 15, 8.9)),
    ("rtx4090x4_epyc_p2pdriver", pcie(4, 15, 8.9)),
    ("rtx4090x4_intel_p2psys_partial", pcie(4, 15, 8.9)),
    ("rtx4090x2_cross_numa_weak", pcie(2, 6, 8.9)),
    ("rtx4090x4_two_switch_weak", pcie(4, 6, 8.9)),
    ("rtx5090x8_p2psys_nccl2.29.7", FALLBACK_8),
)
# Two nodes with a NIC for each GPU; line rates of the data sheets of A3 Mega and A4, assumed for the H200 nodes.
NODES = (("h100x16_gcp_a3mega", 200), ("b200x16_gke_a4", 400), ("h200x16_roce_nccl2.30.4", 400))
LEVEL, JUMP = 0.1, 0.3


def percent(errors: FloatArray) -> str:
    return f"{errors.mean():.1%}" if errors.size else "–"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def uncalibrated_text() -> str:
    rows = []
    for name, situation, rate, path in UNCALIBRATED:
        table = nccl_tests(name)
        lines = uncalibrated(table.operation, situation, rate, path)
        error = np.abs(predict(lines, table.sizes)[0] / table.wanted - 1)
        middle = (table.sizes > SMALL) & (table.sizes <= LARGE)
        cells = [percent(error[table.sizes <= SMALL]), percent(error[middle]), percent(error[table.sizes > LARGE])]
        rows.append([name, f"{situation.bus_gb_per_s:g}", f"{rate:g}, {path}", *cells])
    return markdown(["table", "graph GB/s", "P2P GB/s", "up to 256 KiB", "to 4 MiB", "above"], rows)


def measured_switch(sizes: FloatArray, times: FloatArray) -> float:
    """The first size of the next protocol, by the growth g = log2 t(2S)/t(S).

    A lone jump from a level line, else the sharpest fall of g (a line's own growth never falls).
    """
    growth = np.log2(times[1:] / times[:-1])
    change = np.diff(growth)
    jumps = np.flatnonzero((growth[:-1] < LEVEL) & (change > JUMP))
    at = int(jumps[0]) if jumps.size else int(change.argmin())
    return float(sizes[at + 2])


def switches_text() -> str:
    rows = []
    for name, situation in SWITCHES:
        table = nccl_tests(name)
        near = (table.sizes >= 1 << 10) & (table.sizes <= 8 << 20)
        found = measured_switch(table.sizes[near], table.fitted[near])
        choice = select(O.ALL_REDUCE, table.sizes, situation)
        chosen = next(s for k, s in enumerate(table.sizes) if choice.at(k).protocol is P.SIMPLE)
        same = "yes" if found == chosen else "no"
        rows.append([name, f"{situation.bus_gb_per_s:g}", f"{found / 1024:g}", f"{chosen / 1024:g}", same])
    return markdown(["table", "graph GB/s", "measured KiB", "selector KiB", "same"], rows)


def constants_text() -> str:
    """NCCL's constants as a predictor of 1 GiB and more."""
    rows = []
    cases: tuple[tuple[str, Situation], ...] = (
        ("h100x8_nvlink_host", nvlink(8, 12, 30, 9.0, H100_NVLS)),
        ("h100x8_nvlink_issue290", nvlink(8, 12, 30, 9.0, H100_NVLS)),
        ("b200x8_gke_a4", nvlink(8, 8, 90, 10.0, B200_NVLS)),
    )
    for name, situation in cases:
        table = nccl_tests(name)
        error = np.abs(select(O.ALL_REDUCE, table.sizes, situation).estimate_s / table.wanted - 1)
        for words, least in (("1 GiB and more", HUGE), ("8 GiB and more", 8 * HUGE)):
            large = error[table.sizes >= least]
            if large.size:
                rows.append([name, "all_reduce, 8", words, percent(large), f"{large.max():.1%}"])
    rows.append(_log_row("a100sxm80x4_nvswitch", nvlink(4, 12, 20, 8.0)))
    for name in AICONFIGURATOR:
        if "sxm" not in name:
            continue
        for operation in (O.ALL_REDUCE, O.ALL_GATHER, O.REDUCE_SCATTER):
            table = aiconfigurator(name)[operation, 8]
            assert table.situation is not None
            error = np.abs(select(operation, table.sizes, table.situation).estimate_s / table.wanted - 1)[-1:]
            rows.append([name.partition("__")[0], f"{operation.value}, 8", "512 MiB", percent(error), "–"])
    return markdown(["table", "operation, ranks", "sizes", "mean", "worst"], rows)


def _log_row(name: str, situation: Situation) -> list[str]:
    """The same for a log of nccl-tests, all of its sizes."""
    text = (DATA.parent / "nccl_logs" / f"{name}.txt").read_text(encoding="utf-8")
    rows = parse(text, name).tables[0].rows
    sizes = np.array([float(row.size_bytes) for row in rows if row.out_of_place])
    times = np.array([row.out_of_place.time_s for row in rows if row.out_of_place])
    error = np.abs(select(O.ALL_REDUCE, sizes, situation).estimate_s / times - 1)
    return [name, f"all_reduce, {situation.ranks}", "1 GiB and more", percent(error), f"{error.max():.1%}"]


def nodes_text() -> str:
    """Two nodes of eight GPUs, a NIC for each: the time at which the NICs are done."""
    rows = []
    for name, line_gbit in NODES:
        known = parse((DATA.parent / "nccl_logs" / f"{name}.txt").read_text(encoding="utf-8"), name).tables[0].rows
        errors = []
        for row in known:
            if row.size_bytes >= HUGE:
                rate = 0.95 * line_gbit / 8 * 1e9
                bound_s = nic_bound_s(O.ALL_REDUCE, A.NVLS_TREE, row.size_bytes, Spread(16, 2, 8), rate)
                errors.append(bound_s / min(place.time_s for place in row.places) - 1)
        signed = np.array(errors)
        rows.append([name, f"{line_gbit}", str(signed.size), f"{signed.mean():+.1%}", f"{np.abs(signed).max():.1%}"])
    return markdown(["log", "line rate of a NIC [Gbit/s]", "sizes", "mean, signed", "worst"], rows)


# ---- expert parallel -----------------------------------------------------------------------------------------------
def _records(name: str) -> list[dict[str, str]]:
    with (DATA / "aiconfigurator" / f"{name}_perf.csv").open() as lines:
        return list(csv.DictReader(lines))


def _low_latency(name: str, gpu: str) -> list[list[str]]:
    directions: tuple[Direction, ...] = ("dispatch", "combine")
    rows = []
    for direction in directions:
        errors: list[float] = []
        for record in _records(name):
            tokens = int(record["num_token"])
            if tokens in {1, 4, 16, 64, 256, 1024}:
                continue
            shape = Routing(tokens, int(record["hidden_size"]), int(record["num_experts"]), int(record["num_topk"]))
            errors.append(abs(low_latency_s(shape, direction, gpu) * 1e6 / float(record[f"{direction}_avg_t_us"]) - 1))
        found = np.array(errors)
        rows.append(["low latency", gpu, direction, f"{found.size} left out", percent(found), f"{found.max():.0%}"])
    return rows


def _normal(name: str, gpu: str) -> list[list[str]]:
    records = _records(name)
    tokens = sorted({int(record["num_token"]) for record in records})
    directions: tuple[Direction, ...] = ("dispatch", "combine")
    rows = []
    for direction in directions:
        errors: list[float] = []
        for record in records:
            if int(record["num_token"]) in tokens[::2]:
                continue
            shape = Routing(
                int(record["num_token"]),
                int(record["hidden_size"]),
                int(record["num_experts"]),
                int(record["num_topk"]),
            )
            time_us = float(record[f"{direction}_transmit_us"]) + float(record[f"{direction}_notify_us"])
            errors.append(abs(normal_s(shape, direction, gpu, sms=int(record["dispatch_sms"])) * 1e6 / time_us - 1))
        found = np.array(errors)
        rows.append(["normal", gpu, direction, f"{found.size} left out", percent(found), f"{found.max():.0%}"])
    return rows


def _row_bytes(direction: str, hidden: int) -> float:
    return hidden * (1 + 4 / 128) if direction == "dispatch" else 2.0 * hidden


def _published() -> list[list[str]]:
    found: dict[tuple[str, str, str], list[float]] = {}
    for record in published("deepep"):
        ranks = int(np.prod([int(part) for part in record["ep"].split("x")]))
        shape = Routing(int(record["tokens"]), int(record["hidden"]), 256, int(record["topk"]))
        direction: Direction = "dispatch" if record["op"] == "dispatch" else "combine"
        nodes = max(1, ranks // 8)
        if record["mode"] == "low_latency":
            value = low_latency_s(shape, direction, "h800", ranks) * 1e6 / float(record["latency_us"])
        else:
            first = record["version"] == "V1"
            gpu = "h800" if first else "b200_v2" if record["arch"] == "SM100" and nodes == 1 else "h100_v2"
            limit = 4 if first else None
            time_s = normal_s(shape, direction, gpu, sms=int(record["sms"]), ranks=ranks, node_limit=limit)
            copies = (
                expected_distinct_nodes(256, shape.top_k, nodes, limit)
                if nodes > 1
                else expected_distinct_ranks(256, shape.top_k, 8)
            )
            rate = shape.tokens * copies * _row_bytes(direction, shape.hidden_size) / time_s / 1e9
            value = rate / float(record["bandwidth_GBps"])
        found.setdefault((record["version"], record["mode"], direction), []).append(abs(value - 1))
    return [
        [f"{mode}, published {version}", "H800, H100, B200", op, f"{len(e)}", f"{np.mean(e):.1%}", f"{max(e):.0%}"]
        for (version, mode, op), e in found.items()
    ]


def deepep_text() -> str:
    rows = [
        *_low_latency("h100_sxm__sglang-0.5.12__wideep_deepep_ll", "h100"),
        *_low_latency("b200_sxm__sglang-0.5.12__wideep_deepep_ll", "b200"),
        *_normal("h100_sxm__sglang-0.5.12__wideep_deepep_normal", "h100"),
        *_published(),
    ]
    return markdown(["kernels", "GPU", "direction", "points", "mean", "worst"], rows)


def calls_text() -> str:
    """vLLM's calls of DeepEP: the form t = a + V/B with a and B of their own, every second token count left out."""
    rows = []
    records = _records("h100_sxm__vllm-0.24.0__moe_a2a")
    directions: tuple[Direction, ...] = ("dispatch", "combine")
    for backend, direction in product(dict.fromkeys(record["comm_backend"] for record in records), directions):
        mine = [one for one in records if (one["comm_backend"], one["phase"]) == (backend, direction)]
        shapes = [
            Routing(int(one["num_tokens"]), int(one["hidden_size"]), int(one["num_experts"]), int(one["topk"]), 2)
            for one in mine
        ]
        size = np.array(
            [
                low_latency_bytes(shape, direction)
                if backend == "deepep_ll"
                else two_level_bytes(shape, direction, 8, 8)[1]
                for shape in shapes
            ]
        )
        tokens, time_s = np.array([s.tokens for s in shapes]), np.array([float(one["latency"]) for one in mine]) / 1e6
        fitted = np.isin(tokens, np.unique(tokens)[::2])
        base_s, rate = robust_line(size[fitted], time_s[fitted])
        error = np.abs((base_s + size / rate) / time_s - 1)[~fitted]
        straight = []
        for kind in sorted({(s.hidden_size, s.experts, s.top_k) for s in shapes}):
            one = np.array([(s.hidden_size, s.experts, s.top_k) == kind for s in shapes])
            known, left = one & fitted, one & ~fitted
            guess = np.interp(np.log(tokens[left]), np.log(tokens[known]), np.log(time_s[known]))
            straight.extend(np.abs(np.exp(guess) / time_s[left] - 1))
        cells = [f"{base_s * 1e6:.0f}", f"{rate / 1e9:.0f}", str(error.size), percent(error), f"{error.max():.0%}"]
        rows.append([backend, direction, *cells, percent(np.array(straight))])
    return markdown(["calls", "direction", "a [us]", "B [GB/s]", "left out", "mean", "worst", "log-log"], rows)


def fused_text() -> str:
    rows = []
    for name, gpu in (("SM100", "b200"), ("H200", "h200")):
        errors = []
        for record in published("mega_moe"):
            if record["gpu"] != name:
                continue
            shape = Routing(
                int(record["tokens_per_rank"]), int(record["hidden"]), int(record["experts"]), int(record["topk"])
            )
            time_us = fused_kernel_s(shape, int(record["intermediate"]), int(record["ep"]), gpu) * 1e6
            errors.append(abs(time_us / float(record["time_us"]) - 1))
        rows.append([gpu, str(len(errors)), f"{np.mean(errors):.1%}", f"{max(errors):.1%}"])
    return markdown(["GPU", "points", "mean", "worst"], rows)
