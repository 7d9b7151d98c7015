"""NCCL's own choice on a box, beside the box's times: what it takes, and what it believes that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pdmodel.costs.collectives.graphs import situation
from pdmodel.costs.collectives.selector import NCCL, select
from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Implementation, Protocol
from pdmodel.hardware.topology import Box


@dataclass(frozen=True, slots=True)
class Selected:
    """NCCL's choice for one size. ``estimate_s`` is its own estimate [s], made for choosing: no prediction.

    ``version``: the NCCL whose cost form and constants these are. ``notes``: what is not available, and why.
    """

    algorithm: Algorithm
    protocol: Protocol
    estimate_s: float
    version: str
    notes: tuple[str, ...] = ()


def selected(
    operation: str, sizes_bytes: Sequence[float], gpus: Sequence[int], box: Box, implementation: str = "nccl"
) -> tuple[Selected | None, ...]:
    """What NCCL takes among ``gpus`` at each size, by its published cost form and the box's graph.

    Parameters: ``sizes_bytes`` S >= 0 [byte], as nccl-tests prints them.
    Returns: one for each size; None where nothing travels, where another library runs, or where neither the profile
    nor its tree says what NCCL's graph is.
    Validity: NCCL's overrides in the profile are followed, a forced branch of `collective_terms` is not.
    Source: `pdmodel.costs.collectives.selector`.
    """
    order = tuple(gpus)
    here = situation(box, order) if Implementation(implementation) is Implementation.NCCL and len(order) > 1 else None
    if here is None:
        return (None,) * len(sizes_bytes)
    choice = select(CollectiveOperation(operation), np.asarray(sizes_bytes, dtype=np.float64), here)
    return tuple(
        None
        if size <= 0
        else Selected(
            choice.at(k).algorithm, choice.at(k).protocol, float(choice.estimate_s[k]), NCCL.version, choice.notes
        )
        for k, size in enumerate(sizes_bytes)
    )
