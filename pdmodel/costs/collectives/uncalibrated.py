"""A ring's branches where nothing was calibrated: NCCL's graph says what is taken, a P2P test how fast the wire is."""

from __future__ import annotations

from itertools import pairwise

from pdmodel.costs.collectives.selector import Situation, latency_us, switches
from pdmodel.costs.collectives.wire import payload_per_rank
from pdmodel.errors import InputError
from pdmodel.hardware.constants import Algorithm, Branch, CollectiveOperation, Protocol

# What a ring gets of the one-way rate of a P2P test between neighbours. PCIe Gen4 and NVLink run at it; on Gen5 the
# kernel's stores are slower than copies; through host memory traffic both ways meets itself. Own ratios, of 2 to 4
# boxes each (docs/collectives.md): 0.98 and 1.0; 0.82 and 0.83; 0.70, 0.71 and 0.77.
RING_SHARE = {"gen4": 0.98, "gen5": 0.82, "host": 0.72}
# Rate of LL lines on PCIe as a share of Simple's (0.33 to 0.65 measured; half of the wire carries flags).
LL_SHARE = 0.42
# Measured latency over NCCL's own: LL 0.9 to 1.4 on single-die hosts (1.8 to 2.0 on EPYC with four domains a socket and
# old Intel); Simple 1.1 to 1.5 before Blackwell, 0.4 to 0.7 on Blackwell.
LL_LATENCY = 1.2
SIMPLE_LATENCY = {True: 0.6, False: 1.35}


def uncalibrated(
    operation: CollectiveOperation, situation: Situation, p2p_gb_per_s: float, path: str
) -> tuple[Branch, ...]:
    """Branches of a ring on PCIe from NCCL's graph and a P2P bandwidth test.

    Equation: the ranges of `switches`; Simple: B = u p2p / payload; LL: a share `LL_SHARE` of that; alpha = NCCL's
    latency times `LL_LATENCY` or `SIMPLE_LATENCY`.

    Parameters: ``situation`` NCCL's graph (`pdmodel.costs.collectives.selector.search_speed` gives one from the
    topology); ``p2p_gb_per_s`` one-way rate between the slowest neighbours of the ring, by
    p2pBandwidthLatencyTest or nvbandwidth [GB/s]; ``path`` gen4, gen5 (posted writes) or host (through host memory).
    Returns: branches, from the smallest sizes on.
    Raises: `InputError` for another path or a rate that is not positive.
    Validity: one node, PCIe; rings alone. Errors on public tables: docs/collectives.md.
    Source: own ratios of public measurements, named beside the constants.
    """
    if path not in RING_SHARE:
        raise InputError(f"unknown path {path!r}", expected="one of " + ", ".join(RING_SHARE))
    if p2p_gb_per_s <= 0:
        raise InputError(f"a P2P rate of {p2p_gb_per_s:g} GB/s", expected="a positive rate")
    marks = switches(operation, situation)
    edges = [mark for mark, _, _ in marks]
    ends = [end for _, end in pairwise([*edges, float("inf")])]
    found = []
    for (start, _, protocol), end in zip(marks, ends, strict=True):
        rate = RING_SHARE[path] * p2p_gb_per_s / payload_per_rank(operation, Algorithm.RING, situation.ranks)
        factor = LL_LATENCY if protocol is Protocol.LL else SIMPLE_LATENCY[situation.compute_capability >= 10]
        found.append(
            Branch(
                protocol=protocol,
                algorithm=Algorithm.RING,
                alpha_us=factor * latency_us(operation, Algorithm.RING, protocol, situation),
                bandwidth_gb_per_s=rate * (LL_SHARE if protocol is Protocol.LL else 1.0),
                from_bytes=round(start) if start else None,
                max_bytes=None if end == float("inf") else round(end) - 1,
            )
        )
    return tuple(found)
