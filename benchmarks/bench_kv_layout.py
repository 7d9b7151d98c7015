"""Layouts in closed form: how long pairs, bytes and descriptors take, and how that grows with the prompt.

    python benchmarks/bench_kv_layout.py [--runs 20]

A closed form does not walk over tokens; where pages are owned in turns it walks over pages. The ratio of 131,072 tokens
to 1,024 says how much, and travels between machines; milliseconds do not.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

from pdmodel.costs.kv_layout import (
    CopySender,
    Exchange,
    Order,
    Pages,
    Placement,
    Setting,
    Split,
    caches,
    engine_constants,
    engine_slicing,
    even_path,
    fixes,
    hand_over,
    pairs,
)
from pdmodel.engines.catalog import load_engine
from pdmodel.llm.catalog import load_llm

TARGET_MS = 100.0
SHORT, LONG = 1024, 131_072
CASES = {
    "Qwen3-32B TP4 > TP8, NHD": ("qwen3-32b", Exchange(Placement(4), Placement(8))),
    "Qwen3-32B TP4 > TP8, HND, staged": (
        "qwen3-32b",
        Exchange(Placement(4, order=Order.HND), Placement(8, order=Order.HND), chunk_tokens=8192),
    ),
    "Qwen3-235B TP8 > TP8, copies": (
        "qwen3-235b-a22b",
        Exchange(Placement(8), Placement(8), copies=CopySender.PROPORTIONAL, pages=Pages.SCATTERED),
    ),
    "Llama-70B TP2 CP4 zigzag > TP8": ("llama-3.1-70b", Exchange(Placement(2, 4, Split.ZIGZAG), Placement(8))),
    "DeepSeek-V3 TP8 > DCP8, token cyclic": (
        "deepseek-v3",
        Exchange(Placement(8), Placement(1, 8, Split.TOKEN_CYCLIC), copies=CopySender.SHARES),
    ),
    "DeepSeek-V3 CP8 cyclic pages > DCP8 cyclic": (
        "deepseek-v3",
        Exchange(Placement(1, 8, Split.PAGE_CYCLIC), Placement(1, 8, Split.TOKEN_CYCLIC)),
    ),
}


def least_ms(work: Callable[[], object], runs: int) -> float:
    """The least time of several runs after one unmeasured [ms]."""
    work()
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return 1e3 * min(took)


def main() -> None:
    """One line a case: pairs of a short and of a long prompt, their ratio, the whole hand-over, all fixes of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    engine = load_engine("sglang_mooncake")
    setting = Setting(even_path(), engine_constants(engine), engine_slicing(engine))
    print(f"{'':44} {'1k ms':>8} {'128k ms':>8} {'growth':>7} {'time ms':>8} {'fixes ms':>9}")
    for name, (llm, exchange) in CASES.items():
        arch = load_llm(llm)
        short, long = caches(arch, SHORT), caches(arch, LONG)
        small, large = (least_ms(partial(pairs, exchange, kept), runs) for kept in (short, long))
        whole = least_ms(partial(hand_over, exchange, long, setting), runs)
        better = least_ms(partial(fixes, exchange, long, setting), max(1, runs // 5))
        over = "  OVER" if whole > TARGET_MS else ""
        print(f"{name:44} {small:8.2f} {large:8.2f} {large / small:7.2f} {whole:8.2f} {better:9.2f}{over}")


if __name__ == "__main__":
    main()
