"""A recorded workload: when requests came, how long their prompts and answers were, and how much was cached."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 10.0
"""Width of the windows whose busiest is reported."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival, one element of each array a request; the first one arrives at 0.

    ``cached_tokens`` of ``input_tokens`` were in the prefix cache; None where the trace does not say what is shared.
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64] | None = None

    @property
    def requests(self) -> int:
        """Their number."""
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last [s]."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles (nearest rank: each is a value that occurs) and largest value of a column."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """A trace in figures. Rates are None where all requests come at once, cached tokens where nothing is known of them.

    ``hit_rate``: cached tokens over all input tokens. ``busiest_input_tokens_per_s``: of windows of `WINDOW_S`.
    """

    requests: int
    duration_s: float
    requests_per_s: float | None
    input_tokens_per_s: float | None
    busiest_input_tokens_per_s: float | None
    input_tokens: Distribution
    output_tokens: Distribution
    cached_tokens: Distribution | None
    hit_rate: float | None


def nearest_rank(count: int, percentile: float) -> int:
    """Index of the percentile among ``count`` sorted values: ceil(percentile / 100 * count) - 1, at least 0.

    >>> nearest_rank(10, 50), nearest_rank(10, 99), nearest_rank(1, 0)
    (4, 9, 0)
    """
    return max(math.ceil(percentile / 100 * count - 1e-9), 1) - 1


def distribution(values: NDArray[np.int64]) -> Distribution:
    """Mean, percentiles and largest of at least one value.

    >>> distribution(np.array([4, 1, 3, 2]))
    Distribution(mean=2.5, p50=2, p90=4, p99=4, max=4)
    """
    ordered = np.sort(values)
    p50, p90, p99 = (int(ordered[nearest_rank(len(ordered), percentile)]) for percentile in (50, 90, 99))
    return Distribution(float(ordered.mean()), p50, p90, p99, int(ordered[-1]))


def summary(trace: Trace) -> TraceSummary:
    """The figures of a trace of at least one request."""
    duration_s, tokens = trace.duration_s, float(trace.input_tokens.sum())
    busiest = None
    if duration_s > 0:
        _, window = np.unique(np.floor(trace.arrival_s / WINDOW_S), return_inverse=True)
        busiest = float(np.bincount(window, weights=trace.input_tokens).max() / min(WINDOW_S, duration_s))
    cached = trace.cached_tokens
    return TraceSummary(
        requests=trace.requests,
        duration_s=duration_s,
        requests_per_s=trace.requests / duration_s if duration_s > 0 else None,
        input_tokens_per_s=tokens / duration_s if duration_s > 0 else None,
        busiest_input_tokens_per_s=busiest,
        input_tokens=distribution(trace.input_tokens),
        output_tokens=distribution(trace.output_tokens),
        cached_tokens=None if cached is None else distribution(cached),
        hit_rate=None if cached is None else float(cached.sum()) / tokens,
    )


def at_percentile(trace: Trace, percentile: float) -> int:
    """Index of the request whose prompt has the length at that percentile (nearest rank; of equal ones the first).

    >>> at_percentile(Trace(np.arange(3.0), np.array([30, 10, 20]), np.array([1, 1, 1])), 50)
    2
    """
    order = np.argsort(trace.input_tokens, kind="stable")
    length = trace.input_tokens[order[nearest_rank(trace.requests, percentile)]]
    return int(np.argmax(trace.input_tokens == length))
