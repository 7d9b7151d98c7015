"""Constants for a number of ranks, an operation or an implementation that a profile does not list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from pdmodel.costs.collectives.ring import all_gather_steps, all_reduce_steps
from pdmodel.costs.collectives.wire import payload_per_rank
from pdmodel.hardware.constants import (
    Algorithm,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    Implementation,
    Protocol,
)
from pdmodel.hardware.profile import P2P, HardwareProfile
from pdmodel.spec import SourceKind, weakest

_O = CollectiveOperation

# Latency of NCCL's ring [us]: base, and per step on NVLink and on PCIe. NCCL 2.30.7 src/graph/tuning.cc, baseLat and
# hwLat. It is a shape to scale measured latencies by, not a prediction of them.
RING_BASE_US = {Protocol.LL: 6.6, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4}
RING_STEP_US = {
    True: {Protocol.LL: 0.6, Protocol.LL128: 1.9, Protocol.SIMPLE: 3.4},
    False: {Protocol.LL: 1.0, Protocol.LL128: 2.5, Protocol.SIMPLE: 5.7},
}

# Where to look for an operation that is not listed, nearest relative first.
RELATIVES = {
    _O.ALL_REDUCE: (_O.REDUCE_SCATTER, _O.ALL_GATHER),
    _O.ALL_GATHER: (_O.REDUCE_SCATTER, _O.ALL_REDUCE),
    _O.REDUCE_SCATTER: (_O.ALL_GATHER, _O.ALL_REDUCE),
    _O.ALL_TO_ALL: (_O.ALL_GATHER, _O.REDUCE_SCATTER, _O.ALL_REDUCE),
    _O.SEND_RECV: (_O.ALL_TO_ALL, _O.ALL_GATHER, _O.ALL_REDUCE),
    _O.DISPATCH: (_O.ALL_TO_ALL,),
    _O.COMBINE: (_O.DISPATCH, _O.ALL_TO_ALL),
}


@dataclass(frozen=True, slots=True)
class Found:
    """Branches for one operation and number of ranks, how good they are, and what was done to get them."""

    branches: tuple[Branch, ...]
    source: SourceKind
    notes: tuple[str, ...] = ()


def ring_latency_us(operation: CollectiveOperation, protocol: Protocol, ranks: int, *, nvlink: bool) -> float:
    """NCCL's own latency of a ring.

    Equation: base + steps * hop; steps 2(n-1) for an all-reduce, 1 for send/recv, else n-1.

    Parameters: ``ranks`` n >= 2 [-]; ``nvlink`` False for PCIe.
    Returns: [us].
    Validity: one node. Measured latencies are 0.9 to 2 times this; used for ratios alone.
    Source: NCCL 2.30.7 src/graph/tuning.cc.

    >>> ring_latency_us(CollectiveOperation.ALL_REDUCE, Protocol.LL, 4, nvlink=False)
    12.6
    """
    steps = all_gather_steps(ranks)
    if operation is _O.ALL_REDUCE:
        steps = all_reduce_steps(ranks)
    elif operation is _O.SEND_RECV:
        steps = 1
    known = protocol if protocol in RING_BASE_US else Protocol.LL
    return RING_BASE_US[known] + steps * RING_STEP_US[nvlink][known]


def _algorithm(operation: CollectiveOperation, like: Algorithm) -> Algorithm:
    if operation in {_O.ALL_TO_ALL, _O.DISPATCH, _O.COMBINE}:
        return Algorithm.PAIRWISE
    return like if operation is _O.ALL_REDUCE and like is not Algorithm.PAIRWISE else Algorithm.RING


def carry_over(
    known: CollectiveConstants, operation: CollectiveOperation, ranks: int, *, nvlink: bool
) -> tuple[Branch, ...]:
    """Branches of another operation or number of ranks, brought over.

    Equation: the payload rate per rank is kept, B' = B p/p' with p, p' the payload per rank and byte of S of the known
    and the wanted case; alpha' = alpha L'/L for rings, L NCCL's latency; alpha' = alpha where peers work side by side
    (one-shot, two-shot, pairwise, NVLS).

    Parameters: ``known`` constants of this box; ``operation`` and ``ranks`` n >= 2 wanted.
    Returns: branches [as the profile has them].
    Raises: `CoverageError` if no formula covers the operation.
    Validity: the same links bind. It does not see that a wider ring may cross a slower link: give constants measured
    at that number of ranks where there are any.
    Source: own derivation; on the tables of one box it is within 30 % (tests/costs).
    """
    branches = []
    for branch in known.branches:
        algorithm = _algorithm(operation, branch.algorithm)
        payload = payload_per_rank(known.operation, branch.algorithm, known.ranks)
        wanted = payload_per_rank(operation, algorithm, ranks)
        alpha = branch.alpha_us
        if branch.algorithm is Algorithm.RING and algorithm is Algorithm.RING:
            alpha *= ring_latency_us(operation, branch.protocol, ranks, nvlink=nvlink)
            alpha /= ring_latency_us(known.operation, branch.protocol, known.ranks, nvlink=nvlink)
        update = {
            "algorithm": algorithm,
            "alpha_us": alpha,
            "bandwidth_gb_per_s": branch.bandwidth_gb_per_s * payload / wanted,
        }
        branches.append(branch.model_copy(update=update))
    return tuple(branches)


def _nearest(known: Sequence[CollectiveConstants], ranks: int) -> CollectiveConstants | None:
    return min(known, key=lambda entry: (abs(log2(entry.ranks / ranks)), -entry.ranks), default=None)


def constants_for(
    profile: HardwareProfile, operation: CollectiveOperation, implementation: Implementation, ranks: int
) -> Found | None:
    """What the profile says, or what follows from the nearest thing that it says; None if it says nothing.

    In order: the entry itself; the same operation with the nearest number of ranks; NCCL's for an engine's kernel that
    is not listed (or that the box refuses); a relative operation. All but the first are *derived*.
    """
    nvlink = profile.links.nvlink is not None
    notes: tuple[str, ...] = ()
    if implementation is Implementation.VLLM_CUSTOM and (operation is not _O.ALL_REDUCE or _refuses(profile)):
        if operation is _O.ALL_REDUCE:
            notes = (f"{profile.name} refuses P2P: the engine falls back from its custom all-reduce to NCCL",)
        implementation = Implementation.NCCL
    own = [entry for entry in profile.collectives if entry.implementation is implementation]
    for wanted in (operation, *RELATIVES[operation]):
        entry = _nearest([entry for entry in own if entry.operation is wanted], ranks)
        if entry is None:
            continue
        kind = profile.kind_of(entry.source)
        if entry.ranks == ranks and wanted is operation:
            return Found(entry.branches, kind, notes)
        note = f"{operation.value} among {ranks}: derived from {wanted.value} among {entry.ranks}"
        branches = carry_over(entry, operation, ranks, nvlink=nvlink)
        return Found(branches, weakest(kind, SourceKind.DERIVED), (*notes, note))
    if implementation is Implementation.NCCL:
        return None
    found = constants_for(profile, operation, Implementation.NCCL, ranks)
    if found is None:
        return None
    note = f"no constants of {implementation.value} for {operation.value} on {profile.name}: NCCL's are taken"
    return Found(found.branches, weakest(found.source, SourceKind.DERIVED), (note, *found.notes))


def _refuses(profile: HardwareProfile) -> bool:
    return profile.links.nvlink is None and profile.flags.p2p is P2P.REFUSED
