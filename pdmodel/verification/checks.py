"""How each kind of published table is predicted: rows in, comparisons out, nothing else."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from pdmodel.costs.collectives import collective
from pdmodel.costs.kv_layout import Cache, Exchange, Placement, Split, caches, pairs
from pdmodel.costs.kv_transfer import (
    MOONCAKE_SGLANG,
    MOONCAKE_VLLM,
    TransferConstants,
    descriptor_rate_bytes_per_s,
    transfer_s,
)
from pdmodel.costs.moe import Routing, fused_bytes, fused_flop, fused_tail_s
from pdmodel.costs.step import PassCost, decode_step, prefill_pass
from pdmodel.errors import InputError
from pdmodel.hardware import routes
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.ports import Route
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kv_cache import kv_bytes_per_token, kv_constant_bytes
from pdmodel.parallelism import Parallelism, place
from pdmodel.resources import data_folder
from pdmodel.spec import SourceKind
from pdmodel.timeline.breakdown import Group, Setting, prefill_breakdown
from pdmodel.units import GB, MS, US
from pdmodel.verification.exchanges import deepep_times, fused_moe_times
from pdmodel.verification.stores import reuse_break_even, store_times
from pdmodel.verification.tables import Comparison, PublishedTable, Row, source_of

Check = Callable[[PublishedTable, Sequence[Row]], Iterable[Comparison]]
_SHIPPED_CONSTANTS = {"mooncake_vllm": MOONCAKE_VLLM, "mooncake_sglang": MOONCAKE_SGLANG}


def _keys(table: PublishedTable, row: Row, quantity: str = "", kind: str = "") -> dict[str, str]:
    added = {"quantity": quantity, "kind": kind}
    return {column: added.get(column) or row[column] for column in table.group_by}


def _boxes(names: Iterable[str]) -> dict[str, Box]:
    """Boxes by the names in a table: profiles that are shipped, or that lie beside the tables."""
    own = data_folder("published") / "boxes"
    found = {}
    for name in names:
        if name not in found:
            path = own / f"{name}.json"
            found[name] = Box(load_profile(str(path) if path.is_file() else name), "P")
    return found


# ---- collectives -----------------------------------------------------------------------------------------------------
def collective_time(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Time of one collective; columns profile, implementation, operation, ranks, size_bytes, time_us."""
    boxes = _boxes(row["profile"] for row in rows)
    for row in rows:
        size, ranks = float(row["size_bytes"]), int(row["ranks"])
        cost = collective(row["operation"], size, range(ranks), boxes[row["profile"]], row["implementation"])
        yield Comparison(
            row=f"{row['profile']} {row['implementation']} {row['operation']} among {ranks}, {size:.0f} B",
            predicted=cost.time_s,
            published=float(row["time_us"]) * US,
            keys=_keys(table, row),
            source=source_of(row),
            size_bytes=size,
        )


# ---- compute ---------------------------------------------------------------------------------------------------------
def stored_as(arch: Architecture, dtype: WeightDtype) -> Architecture:
    """The LLM with every large matrix of one dtype, the rest in BF16, as the tables of step times have it."""
    stored = {"attention": dtype, "mlp": dtype, "experts": dtype, "shared_expert": dtype}
    return replace(arch, dtypes=replace(arch.dtypes, **stored, other=WeightDtype.BF16, block=None))


def step_cost(row: Row) -> PassCost:
    """The pass that a row of step times is about."""
    arch = stored_as(load_llm(row["llm"]), WeightDtype(row["weight_dtype"]))
    profile, kv_dtype = load_profile(row["profile"]), KvDtype(row["kv_dtype"])
    tp_size, ep_size = int(row["tp"]), int(row["ep"])
    if row["phase"] == "prefill":
        new_tokens = int(row["new_tokens"])
        return prefill_pass(arch, profile, new_tokens, tp_size=tp_size, ep_size=ep_size, kv_dtype=kv_dtype)
    batch, context = int(row["batch"]), float(row["context_tokens"])
    return decode_step(arch, profile, batch, context, tp_size=tp_size, ep_size=ep_size, kv_dtype=kv_dtype)


def step_compute(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Compute of one step; columns profile, llm, weight_dtype, kv_dtype, phase, tp, ep, sizes, compute_ms."""
    for row in rows:
        size = (
            f"{row['new_tokens']} tokens" if row["phase"] == "prefill" else f"{row['batch']} x {row['context_tokens']}"
        )
        yield Comparison(
            row=f"{row['llm']} {row['weight_dtype']} on {row['profile']}, tp {row['tp']} ep {row['ep']}, "
            f"{row['phase']} {size}",
            predicted=step_cost(row).time_s,
            published=float(row["compute_ms"]) * MS,
            keys=_keys(table, row, kind="mixture of experts" if load_llm(row["llm"]).moe else "dense"),
            source=source_of(row),
        )


def prefill_parts(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """A prefill's whole time and that of its all-reduces; columns quantity, value_ms, profile, llm, tp, new_tokens."""
    for row in rows:
        box, ranks = Box(load_profile(row["profile"]), "P"), Parallelism(tp_size=int(row["tp"]))
        (placement,) = place(ranks, 1, box.gpu_count, None)
        kernel = str(table.parameters[row["profile"]]["all_reduce"])
        setting = Setting(load_llm(row["llm"]), box, placement, all_reduce=kernel)
        step = prefill_breakdown(setting, int(row["new_tokens"]))
        predicted = {"prefill_operations": step.time_s, "all_reduce": step.by_group()[Group.TP]}
        yield Comparison(
            row=f"{row['quantity']} of {row['llm']}, {row['new_tokens']} tokens, tp {row['tp']}",
            predicted=predicted[row["quantity"]],
            published=float(row["value_ms"]) * MS,
            keys=_keys(table, row),
            source=source_of(row),
        )


# ---- LLMs and experts ------------------------------------------------------------------------------------------------
def llm_facts(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """KV bytes per token, bytes that a sequence keeps besides, and parameters of LLMs; an empty cell is no figure."""
    for row in rows:
        arch = load_llm(row["llm"])
        figures = {
            "kv_bytes": (float(kv_bytes_per_token(arch)), row["kv_bytes_per_token_bf16"]),
            "kv_constant_bytes": (float(kv_constant_bytes(arch)), row["kv_constant_bytes_bf16"]),
            "parameters": (float(arch.parameters), row["parameters"]),
            "active_parameters": (float(arch.active_parameters), row["active_parameters"]),
        }
        for quantity, (predicted, published) in figures.items():
            if not published:
                continue
            yield Comparison(
                row=f"{quantity} of {row['llm']}",
                predicted=predicted,
                published=float(published),
                keys=_keys(table, row, quantity),
                source=source_of(row),
            )


def fused_moe_rates(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Rates of the fused MoE kernel at its published time, FLOP and bytes as counted here; figures are whole units."""
    for row in rows:
        routing = Routing(
            tokens=float(row["tokens_per_rank"]),
            hidden_size=int(row["hidden_size"]),
            experts=int(row["experts"]),
            top_k=int(row["top_k"]),
        )
        time_s = float(row["time_us"]) * US
        rate = sum(fused_bytes(routing)) / (time_s - fused_tail_s(routing)) / GB
        figures = {
            "tflops": fused_flop(routing, int(row["intermediate_size"])) / time_s / 1e12,
            "interconnect_gb_per_s": rate,
        }
        for quantity, predicted in figures.items():
            yield Comparison(
                row=f"{quantity} of {row['llm']}, {row['tokens_per_rank']} tokens a rank",
                predicted=predicted,
                published=float(row[quantity]),
                keys=_keys(table, row, quantity),
                source=source_of(row),
                rounding=0.5,
            )


# ---- KV transfers ----------------------------------------------------------------------------------------------------
def kv_transfer(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Time or rate of a transfer by its bytes and descriptors (one, if no size of them is given), or the rate of many
    descriptors by theirs alone; constants by ``table``.
    """
    for row in rows:
        given = table.parameters[row["table"]]
        path, constants = float(given["path_gb_per_s"]) * GB, _constants(row["table"], table)
        if row["size_bytes"]:
            size = float(row["size_bytes"])
            count = size / float(row["descriptor_bytes"]) if row["descriptor_bytes"] else 1
            time_s = transfer_s(size, count, path, constants)
            if row["time_us"]:
                predicted, published = time_s, float(row["time_us"]) * US
            else:
                predicted, published = size / time_s, float(row["rate_gb_per_s"]) * GB
        else:
            size = float(row["descriptor_bytes"])
            predicted, published = descriptor_rate_bytes_per_s(size, path, constants), float(row["rate_gb_per_s"]) * GB
        yield Comparison(
            row=f"{row['table']}, {size:.0f} B",
            predicted=predicted,
            published=published,
            keys=_keys(table, row),
            source=source_of(row),
            size_bytes=size,
        )


def _constants(name: str, table: PublishedTable) -> TransferConstants:
    given = table.parameters[name]
    if "constants" in given:
        return _SHIPPED_CONSTANTS[str(given["constants"])]
    return TransferConstants(
        setup_s=float(given["setup_us"]) * US,
        descriptor_s=float(given["descriptor_us"]) * US,
        threads=int(given["threads"]),
        messages_per_s=float(given["messages_per_s"]),
        source=SourceKind.MEASURED,
        ref=str(given["ref"]),
        sharpness=float(given.get("sharpness", math.inf)),
    )


def kv_layout(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Bytes of all pairs, or descriptors of one pair; caches of ``llm``, or of equal rows that no rank splits."""
    for row in rows:
        tokens = int(row["tokens"])
        if row["llm"]:
            kept = caches(load_llm(row["llm"]), tokens)
        else:
            kept = (Cache("rows", None, float(row["row_bytes"]), tokens, int(row["buffers"])),)
        target = Placement(int(row["decode_shards"]), int(row["decode_parts"]), Split(row["decode_split"]))
        found = pairs(Exchange(Placement(int(row["prefill_shards"])), target), kept)
        whole = row["quantity"] == "bytes"
        yield Comparison(
            row=f"{row['llm'] or 'rows'}, {row['quantity']}, {tokens} tokens",
            predicted=sum(pair.size_bytes for pair in found) if whole else found[0].descriptors,
            published=float(row["value"]),
            keys=_keys(table, row),
            source=source_of(row),
            rounding=float(row["rounding"]),
        )


# ---- ports -----------------------------------------------------------------------------------------------------------
def flows_together(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Total rate of several copies at once: equal rates, each the least over ports of capacity over demand."""
    boxes = _boxes(row["box"] for row in rows)
    for row in rows:
        box = boxes[row["box"]]
        found = _flows(box, row["pattern"])
        if len(found) != int(row["flows"]):
            raise InputError(f"{row['pattern']!r} has {len(found)} flows, not {row['flows']}", file=table.file)
        yield Comparison(
            row=f"{row['box']} {row['pattern']}",
            predicted=total_bytes_per_s(box, found),
            published=float(row["total_gb_per_s"]) * GB,
            keys=_keys(table, row),
            source=source_of(row),
            limit=float(row[table.limit_column]) if table.limit_column else None,
        )


def _flows(box: Box, pattern: str) -> list[Route]:
    """The routes of a pattern: pairs ``0>4 1>5``, ``all`` pairs, ``cross`` the halves, ``h2d:0-7``, ``d2h:0-3``."""
    if pattern.startswith(("h2d:", "d2h:")):
        first, last = map(int, pattern[4:].split("-"))
        copy = routes.host_to_gpu if pattern.startswith("h2d") else routes.gpu_to_host
        return [copy(box, gpu) for gpu in range(first, last + 1)]
    half = box.gpu_count // 2
    if pattern == "all":
        pairs = list(itertools.permutations(range(box.gpu_count), 2))
    elif pattern == "cross":
        pairs = list(itertools.product(range(half), range(half, box.gpu_count)))
    else:
        pairs = [(int(one), int(two)) for one, _, two in (pair.partition(">") for pair in pattern.split())]
    return [routes.gpu_to_gpu(box, one, two) for one, two in pairs]


def total_bytes_per_s(box: Box, flows: Sequence[Route]) -> float:
    """Rate of all flows together where each has the same: n min_e C_e / sum_f m_f,e [byte/s]."""
    demand: Counter[str] = Counter()
    for route in flows:
        demand.update(route.ports)
    return len(flows) * min(box.port_index[port].capacity_bytes_per_s / share for port, share in demand.items())


def ring_beside_transfer(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """A ring that fills a class-fair port beside KV that never ends: its slowdown, and the rate of the KV."""
    from pdmodel.verification.emulated import replayed

    for row in rows:
        size, goodput = float(row["collective_bytes"]), float(row["goodput_bytes_per_s"])
        slowdown, rate = replayed(size, float(row["compute_s"]), goodput)
        for quantity, predicted in (("collective_slowdown", slowdown), ("kv_bytes_per_s", rate)):
            yield Comparison(
                row=f"{quantity}, {size:.0f} B",
                predicted=predicted,
                published=float(row[quantity]),
                keys=_keys(table, row, quantity),
                source=source_of(row),
            )


CHECKS: dict[str, Check] = {
    "collective_time": collective_time,
    "step_compute": step_compute,
    "prefill_parts": prefill_parts,
    "llm_facts": llm_facts,
    "fused_moe_rates": fused_moe_rates,
    "kv_transfer": kv_transfer,
    "kv_layout": kv_layout,
    "flows_together": flows_together,
    "ring_beside_transfer": ring_beside_transfer,
    "deepep_times": deepep_times,
    "fused_moe_times": fused_moe_times,
    "store_times": store_times,
    "reuse_break_even": reuse_break_even,
}
