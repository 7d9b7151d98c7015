"""How each kind of published table is predicted: rows in, comparisons out, nothing else."""

from __future__ import annotations

import math
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
from pdmodel.costs.wire import payload_share
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kv_cache import kv_bytes_per_token, kv_constant_bytes
from pdmodel.parallelism import Parallelism, place
from pdmodel.spec import SourceKind
from pdmodel.timeline.breakdown import Group, Setting, prefill_breakdown
from pdmodel.units import GB, MS, US
from pdmodel.verification.exchanges import deepep_times, fused_moe_times
from pdmodel.verification.sharing import flows_together, nic_choice, queue_pairs, ring_beside_transfer
from pdmodel.verification.stores import reuse_break_even, store_times
from pdmodel.verification.tables import Comparison, PublishedTable, Row, boxes, keys_of, source_of

Check = Callable[[PublishedTable, Sequence[Row]], Iterable[Comparison]]
_SHIPPED_CONSTANTS = {"mooncake_vllm": MOONCAKE_VLLM, "mooncake_sglang": MOONCAKE_SGLANG}


# ---- collectives -----------------------------------------------------------------------------------------------------
def collective_time(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Time of one collective; columns profile, implementation, operation, ranks, size_bytes, time_us."""
    found = boxes(row["profile"] for row in rows)
    for row in rows:
        size, ranks = float(row["size_bytes"]), int(row["ranks"])
        cost = collective(row["operation"], size, range(ranks), found[row["profile"]], row["implementation"])
        yield Comparison(
            row=f"{row['profile']} {row['implementation']} {row['operation']} among {ranks}, {size:.0f} B",
            predicted=cost.time_s,
            published=float(row["time_us"]) * US,
            keys=keys_of(table, row),
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
            keys=keys_of(table, row, kind="mixture of experts" if load_llm(row["llm"]).moe else "dense"),
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
            keys=keys_of(table, row),
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
                keys=keys_of(table, row, quantity),
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
                keys=keys_of(table, row, quantity),
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
            keys=keys_of(table, row),
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


def payload(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Rate of RDMA messages on a RoCE wire; columns line_gbit_per_s, mtu_bytes, size_bytes, gbit_per_s."""
    for row in rows:
        size, mtu = float(row["size_bytes"]), float(row["mtu_bytes"])
        yield Comparison(
            row=f"MTU {mtu:.0f}, {size:.0f} B",
            predicted=float(row["line_gbit_per_s"]) * payload_share(size, mtu),
            published=float(row["gbit_per_s"]),
            keys=keys_of(table, row),
            source=source_of(row),
            size_bytes=size,
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
            keys=keys_of(table, row),
            source=source_of(row),
            rounding=float(row["rounding"]),
        )


CHECKS: dict[str, Check] = {
    "collective_time": collective_time,
    "step_compute": step_compute,
    "prefill_parts": prefill_parts,
    "llm_facts": llm_facts,
    "fused_moe_rates": fused_moe_rates,
    "kv_transfer": kv_transfer,
    "kv_layout": kv_layout,
    "payload": payload,
    "flows_together": flows_together,
    "queue_pairs": queue_pairs,
    "nic_choice": nic_choice,
    "ring_beside_transfer": ring_beside_transfer,
    "deepep_times": deepep_times,
    "fused_moe_times": fused_moe_times,
    "store_times": store_times,
    "reuse_break_even": reuse_break_even,
}
