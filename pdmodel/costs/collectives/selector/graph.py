"""Bandwidth of NCCL's graph: what its search settles on, which may be far from what the wires carry."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.costs.collectives.selector.constants import NCCL, TuningConstants, generation
from pdmodel.errors import InputError

# What a graph counts with when no speed of the list fits: src/graph/search.cc, "simple order".
FALLBACK_GB_PER_S = 0.1
# Channels are laid twice where one carries at least this [GB/s], src/graph/search.cc.
DOUBLED_FROM_GB_PER_S = 25.0


@dataclass(frozen=True, slots=True)
class Search:
    """What the search finds: speed b per channel [GB/s], channels K of the graph, whether it fell back."""

    channel_gb_per_s: float
    channels: int
    fallback: bool

    @property
    def bus_gb_per_s(self) -> float:
        """X = K b [GB/s]."""
        return self.channels * self.channel_gb_per_s


def search_speed(narrowest_gb_per_s: float, compute_capability: float, constants: TuningConstants = NCCL) -> Search:
    """The graph of a PCIe ring whose narrowest link is rated ``narrowest_gb_per_s``.

    Equation: b = the largest speed of the generation's list that is no more than the rating; none: 0.1 GB/s, one
    channel, in order of index. A speed of 25 GB/s or more is laid out as two channels of half of it.

    Parameters: ``narrowest_gb_per_s`` NCCL's rating of the link, not its real rate [GB/s].
    Returns: `Search`.
    Raises: `InputError` if the rating is not positive.
    Validity: one node without NVLink, every hop once over the narrowest link.
    Source: NCCL 2.30.7 src/graph/search.cc (speed arrays, fallback, duplication).

    >>> search_speed(16.0, 12.0)
    Search(channel_gb_per_s=0.1, channels=1, fallback=True)
    >>> search_speed(24.0, 8.9)
    Search(channel_gb_per_s=20, channels=1, fallback=False)
    >>> search_speed(48.0, 12.0)
    Search(channel_gb_per_s=22.5, channels=2, fallback=False)
    """
    if narrowest_gb_per_s <= 0:
        raise InputError(f"a link rated {narrowest_gb_per_s:g} GB/s", expected="a positive rating")
    fitting = [speed for speed in constants.speeds[generation(compute_capability)] if speed <= narrowest_gb_per_s]
    if not fitting:
        return Search(FALLBACK_GB_PER_S, 1, fallback=True)
    best = max(fitting)
    if best >= DOUBLED_FROM_GB_PER_S:
        return Search(best / 2, 2, fallback=False)
    return Search(best, 1, fallback=False)
