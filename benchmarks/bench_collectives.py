"""Evaluations of (size, algorithm, protocol) a second on one core: NCCL's estimates, and times of a profile's entry."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.selector import Situation, candidates, evaluate
from pdmodel.hardware.constants import Algorithm, Branch, CollectiveOperation, MeasuredPoint, Protocol

SIZES = np.exp2(np.linspace(3, 34, 100_000))
TARGET = 1_000_000
REPEATS = 5


def best_s(call: object) -> float:
    """Least time of some calls [s]."""
    assert callable(call)
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    where = Situation(8, 12, 30.0, 9.0, nvlink=True, nvls_channels=8, nvls_channel_gb_per_s=40.0)
    found = candidates(CollectiveOperation.ALL_REDUCE, where)
    took = best_s(lambda: evaluate(CollectiveOperation.ALL_REDUCE, SIZES, where, found))
    lines = tuple(
        Branch(protocol=protocol, algorithm=Algorithm.RING, alpha_us=alpha, bandwidth_gb_per_s=rate)
        for protocol, alpha, rate in (
            (Protocol.LL, 10.0, 5.0),
            (Protocol.LL128, 20.0, 100.0),
            (Protocol.SIMPLE, 40.0, 200.0),
        )
    )
    table = tuple(MeasuredPoint(size_bytes=8 << k, time_us=float(10 + 2**k / 1e4)) for k in range(28))
    rows = (
        ("NCCL's estimates", len(found), took),
        ("lines of a profile", len(lines), best_s(lambda: predict(lines, SIZES))),
        ("lines and a table", len(lines), best_s(lambda: predict(lines, SIZES, table))),
    )
    print(f"target: {TARGET:,} evaluations a second, {SIZES.size:,} sizes at a time")
    for name, count, seconds in rows:
        rate = count * SIZES.size / seconds
        print(f"{name:20} {count} branches {seconds * 1e3:8.2f} ms {rate / 1e6:8.1f} million a second")


if __name__ == "__main__":
    main()
