"""Published figures of KV stores and of reuse: times of Put and Get, the bandwidth from which loading pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdmodel.costs.kv_store import MOONCAKE_STORE_TCP, batch_get_s, batch_put_s
from pdmodel.costs.kv_tiers import simple_break_even_bytes_per_s
from pdmodel.llm.catalog import load_llm
from pdmodel.llm.dtypes import KvDtype
from pdmodel.units import GB, US
from pdmodel.verification.tables import Comparison, PublishedTable, Row, source_of


def store_times(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Put and Get of equal objects; columns operation, objects, object_bytes, path_bytes_per_s, time_us."""
    laws = {"put": batch_put_s, "batch_put": batch_put_s, "get": batch_get_s, "batch_get": batch_get_s}
    for row in rows:
        objects, size = int(row["objects"]), float(row["object_bytes"])
        path = float(row["path_bytes_per_s"])
        yield Comparison(
            row=f"{row['link']}: {row['operation']} of {objects} x {size:.0f} B",
            predicted=laws[row["operation"]](objects * size, objects, path, MOONCAKE_STORE_TCP),
            published=float(row["time_us"]) * US,
            keys={column: row[column] for column in table.group_by},
            source=source_of(row),
            size_bytes=size,
        )


def reuse_break_even(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """The bandwidth from which loading a prefix beats computing it; columns llm, prefix_tokens, gpus, peak_tflops."""
    for row in rows:
        arch = load_llm(row["llm"])
        mixer = arch.mixer(0)
        rate = simple_break_even_bytes_per_s(
            float(row["prefix_tokens"]),
            arch.hidden_size,
            mixer.heads / mixer.kv_heads,
            KvDtype.BF16.bytes_per_element,
            int(row["gpus"]) * float(row["peak_tflops"]) * 1e12,
        )
        yield Comparison(
            row=f"{row['llm']}, {row['prefix_tokens']} tokens, {row['gpus']} x {row['peak_tflops']} TFLOP/s",
            predicted=rate / GB,
            published=float(row["gb_per_s"]),
            keys={column: row[column] for column in table.group_by},
            source=source_of(row),
            rounding=float(row["rounding"]),
        )
