"""A number with the quality of the constants that it was made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pdmodel.spec import SourceKind, weakest


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` in the unit of whoever made it, and the weakest source kind among its constants."""

    value: float
    source: SourceKind


def total(estimates: Iterable[Estimate]) -> Estimate:
    """Sum of several estimates, as good as the worst of them.

    >>> total([Estimate(1.0, SourceKind.MEASURED), Estimate(2.0, SourceKind.ASSUMED)])
    Estimate(value=3.0, source=<SourceKind.ASSUMED: 'assumed'>)
    """
    parts = list(estimates)
    return Estimate(sum(part.value for part in parts), weakest(*(part.source for part in parts)))
