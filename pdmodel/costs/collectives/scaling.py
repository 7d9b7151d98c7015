"""Constants for a number of ranks, an operation or an implementation that a profile does not list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from pdmodel.costs.collectives.graphs import situation_of, switched
from pdmodel.costs.collectives.ring import all_gather_steps, all_reduce_steps
from pdmodel.costs.collectives.wire import payload_per_rank
from pdmodel.hardware.constants import (
    Algorithm,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    Implementation,
    MeasuredPoint,
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

# Send/recv and all-to-all reach all peers side by side: over NVLink, and by LL, about two hops of NCCL's ring (one to
# send, one to receive) whatever the number of ranks; by Simple over PCIe n-1. Own fit; errors in docs/collectives.md.
PEER_HOPS = 2
# An all-gather, reduce-scatter or all-to-all over P2P or NVLink runs below the rate of the all-reduce among the same
# GPUs: its kernel also copies the rank's own block, one of n. Own fit of 1 + c/n on four boxes.
OWN_BLOCK = 0.44
# What the NVLink switch reaches in an all-reduce, as a share of what a ring gets from the same links: NCCL's own figure
# for Hopper (2.30.7 src/graph/tuning.cc; 0.74 for Blackwell).
NVLS_SHARE = 0.85
# What a path through host memory reaches with traffic both ways, as a share of its rate one way: 2 x 4.0 / 11.1 GB/s
# (2 x RTX 2080 Ti under one switch) and 2 x 3.9 / 10.3 (github.com/NVIDIA/nccl, issue 384).
DUPLEX_SHARE = 0.72

# Where to look for an operation that is not listed, nearest relative first.
RELATIVES = {
    _O.ALL_REDUCE: (_O.REDUCE_SCATTER, _O.ALL_GATHER),
    _O.ALL_GATHER: (_O.REDUCE_SCATTER, _O.ALL_REDUCE),
    _O.REDUCE_SCATTER: (_O.ALL_GATHER, _O.ALL_REDUCE),
    _O.ALL_TO_ALL: (_O.ALL_GATHER, _O.REDUCE_SCATTER, _O.ALL_REDUCE),
    _O.SEND_RECV: (_O.ALL_TO_ALL, _O.ALL_GATHER, _O.ALL_REDUCE),
    _O.BROADCAST: (_O.REDUCE, _O.ALL_REDUCE),
    _O.REDUCE: (_O.BROADCAST, _O.ALL_REDUCE),
    _O.DISPATCH: (_O.ALL_TO_ALL,),
    _O.COMBINE: (_O.DISPATCH, _O.ALL_TO_ALL),
}


@dataclass(frozen=True, slots=True)
class Found:
    """Branches for one operation and number of ranks, how good they are, and what was done to get them."""

    branches: tuple[Branch, ...]
    source: SourceKind
    notes: tuple[str, ...] = ()
    table: tuple[MeasuredPoint, ...] = ()


def ring_latency_us(operation: CollectiveOperation, protocol: Protocol, ranks: int, *, nvlink: bool) -> float:
    """NCCL's own latency of a ring.

    Equation: base + steps * hop; steps 2(n-1) for an all-reduce, n-1 for all-gather and reduce-scatter, 1 for broadcast
    and reduce (their chunks follow each other), `PEER_HOPS` for send/recv and all-to-all,
    or n-1 by Simple over PCIe.

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
    elif operation in {_O.BROADCAST, _O.REDUCE}:
        steps = 1
    elif operation not in {_O.ALL_GATHER, _O.REDUCE_SCATTER}:
        steps = PEER_HOPS if nvlink or protocol is Protocol.LL else ranks - 1
    known = protocol if protocol in RING_BASE_US else Protocol.LL
    return RING_BASE_US[known] + steps * RING_STEP_US[nvlink][known]


def _algorithm(operation: CollectiveOperation, like: Algorithm) -> Algorithm:
    if operation in {_O.ALL_TO_ALL, _O.DISPATCH, _O.COMBINE}:
        return Algorithm.PAIRWISE
    return like if operation is _O.ALL_REDUCE and like is not Algorithm.PAIRWISE else Algorithm.RING


# Algorithms whose latency grows with the ring's steps; a branch of the switch takes the ring's place when it is left.
_STEPPED = {Algorithm.RING, Algorithm.TREE, Algorithm.PAIRWISE}


def rate_ratio(known: CollectiveOperation, operation: CollectiveOperation, ranks: int, *, staged: bool) -> float:
    """Payload rate per rank of one operation, as a multiple of another's among the same GPUs.

    Equation: q(operation) / q(known). Direct paths: q = 1 for all-reduce, broadcast and reduce, 1/(1 + c/n) for the
    others (`OWN_BLOCK`). Through host memory: broadcast and reduce fill each GPU's link one way and, between two GPUs,
    cross the host once, the others both ways and twice: q = 2/`DUPLEX_SHARE` there on two ranks, 1 on more (a rank in
    the middle passes on both ways), 1 else.

    Parameters: ``ranks`` n >= 2 [-]; ``staged`` True where hops go through host memory.
    Returns: the ratio [-].
    Validity: large messages; paths without limits that only one of the two meets.
    Source: own fit, see the constants; counting of crossings after data of 2 x RTX 2080 Ti.

    >>> rate_ratio(CollectiveOperation.ALL_REDUCE, CollectiveOperation.ALL_GATHER, 2, staged=False) < 1
    True
    >>> round(rate_ratio(CollectiveOperation.ALL_REDUCE, CollectiveOperation.BROADCAST, 2, staged=True), 2)
    2.78
    """

    def quality(what: CollectiveOperation) -> float:
        if staged:
            return 2 / DUPLEX_SHARE if ranks == 2 and what in {_O.BROADCAST, _O.REDUCE} else 1.0
        return 1.0 if what in {_O.ALL_REDUCE, _O.BROADCAST, _O.REDUCE} else 1 / (1 + OWN_BLOCK / ranks)

    return quality(operation) / quality(known)


def carry_over(
    known: CollectiveConstants, operation: CollectiveOperation, ranks: int, *, nvlink: bool, staged: bool = False
) -> tuple[Branch, ...]:
    """Branches of another operation or number of ranks, brought over.

    Equation: B' = B p/p' r with p, p' the payload per rank and byte of S of the known and the wanted case and r the
    operations' `rate_ratio` (over `NVLS_SHARE` from the switch to a ring); alpha' = alpha L'/L, L NCCL's latency, where
    a ring is left or entered; alpha' = alpha where peers work side by side in both (one-shot, two-shot, pairwise,
    NVLS), and no less than that of the branch before where it was no less there: a line of large messages says
    little of latency. A size at which the branch is left or entered scales with p/p' L'/L: where NCCL's own estimates
    cross.

    Parameters: ``known`` constants of this box; ``operation`` and ``ranks`` n >= 2 wanted; ``nvlink``, ``staged``: how
    the GPUs are connected.
    Returns: branches [as the profile has them].
    Raises: `CoverageError` if no formula covers the operation.
    Validity: the same links bind. It does not see that a wider ring may cross a slower link: give constants measured
    at that number of ranks where there are any. Errors on public tables: docs/collectives.md.
    Source: own derivation.
    """
    branches: list[Branch] = []
    ratio = rate_ratio(known.operation, operation, ranks, staged=staged)
    for branch in known.branches:
        algorithm = _algorithm(operation, branch.algorithm)
        payload = payload_per_rank(known.operation, branch.algorithm, known.ranks)
        wanted = payload_per_rank(operation, algorithm, ranks)
        latency = 1.0
        if (
            algorithm in _STEPPED
            and branch.algorithm in {*_STEPPED, Algorithm.NVLS}
            and not (branch.algorithm is Algorithm.PAIRWISE and algorithm is Algorithm.PAIRWISE)
        ):
            latency = ring_latency_us(operation, branch.protocol, ranks, nvlink=nvlink)
            latency /= ring_latency_us(known.operation, branch.protocol, known.ranks, nvlink=nvlink)
        faster = ratio / NVLS_SHARE if branch.algorithm is Algorithm.NVLS and algorithm is Algorithm.RING else ratio
        moved = payload / wanted * (latency if operation is not known.operation or ranks != known.ranks else 1.0)
        limits = {
            field: max(1, round(size * moved))
            for field, size in (("max_bytes", branch.max_bytes), ("from_bytes", branch.from_bytes))
            if size is not None
        }
        before = known.branches[len(branches) - 1].alpha_us if branches else branch.alpha_us
        least_us = branches[-1].alpha_us if branches and branch.alpha_us >= before else 0.0
        update = {
            "algorithm": algorithm,
            "alpha_us": max(branch.alpha_us * latency, least_us),
            "bandwidth_gb_per_s": branch.bandwidth_gb_per_s * payload / wanted * faster,
            **limits,
        }
        branches.append(branch.model_copy(update=update))
    return tuple(branches)


def between(low: CollectiveConstants, high: CollectiveConstants, ranks: int) -> tuple[Branch, ...] | None:
    """Branches for a number of ranks between two that were measured, of one operation.

    Equation: branch by branch, w = log2(n/n_1) / log2(n_2/n_1): the payload rate per rank B p is interpolated
    geometrically, alpha linearly in the ring's steps, sizes at which branches change geometrically.

    Parameters: ``low``, ``high`` of the same operation; ``ranks`` n, n_1 < n < n_2 [-].
    Returns: branches, or None where the two do not have the same protocols and algorithms in the same order.
    Validity: no cliff between n_1 and n_2 (such as a second socket that only n_2 reaches).
    Source: own derivation; errors on public tables in docs/collectives.md.
    """
    shape = [(branch.protocol, branch.algorithm) for branch in low.branches]
    if shape != [(branch.protocol, branch.algorithm) for branch in high.branches]:
        return None
    share = log2(ranks / low.ranks) / log2(high.ranks / low.ranks)
    linear = (ranks - low.ranks) / (high.ranks - low.ranks)
    found = []
    for one, two in zip(low.branches, high.branches, strict=True):
        rates = [
            branch.bandwidth_gb_per_s * payload_per_rank(low.operation, branch.algorithm, entry.ranks)
            for branch, entry in ((one, low), (two, high))
        ]
        wanted = payload_per_rank(low.operation, one.algorithm, ranks)
        update: dict[str, float | int | None] = {
            "alpha_us": one.alpha_us + linear * (two.alpha_us - one.alpha_us),
            "bandwidth_gb_per_s": rates[0] ** (1 - share) * rates[1] ** share / wanted,
        }
        for field in ("max_bytes", "from_bytes"):
            sizes = getattr(one, field), getattr(two, field)
            both = sizes[0] is not None and sizes[1] is not None
            update[field] = round(sizes[0] ** (1 - share) * sizes[1] ** share) if both else None
        found.append(one.model_copy(update=update))
    return tuple(found)


def _nearest(known: Sequence[CollectiveConstants], ranks: int) -> CollectiveConstants | None:
    return min(known, key=lambda entry: (abs(log2(entry.ranks / ranks)), -entry.ranks), default=None)


def constants_for(
    profile: HardwareProfile, operation: CollectiveOperation, implementation: Implementation, ranks: int
) -> Found | None:
    """What the profile says, or what follows from the nearest thing that it says; None if it says nothing.

    In order: the entry itself; the same operation between two numbers of ranks, or with the nearest one; NCCL's for an
    engine's kernel that is not listed (or that the box refuses); a relative operation. All but the first are *derived*.
    """
    nvlink = profile.links.nvlink is not None
    notes: tuple[str, ...] = ()
    if implementation is Implementation.VLLM_CUSTOM and (operation is not _O.ALL_REDUCE or _refuses(profile)):
        if operation is _O.ALL_REDUCE:
            notes = (f"{profile.name} refuses P2P: the engine falls back from its custom all-reduce to NCCL",)
        implementation = Implementation.NCCL
    own = [entry for entry in profile.collectives if entry.implementation is implementation and entry.nodes == 1]
    for wanted in (operation, *RELATIVES[operation]):
        entry = _nearest([entry for entry in own if entry.operation is wanted], ranks)
        if entry is None:
            continue
        kind = profile.kind_of(entry.source)
        if entry.ranks == ranks and wanted is operation:
            return Found(entry.branches, kind, notes, entry.table)
        inside = _between([entry for entry in own if entry.operation is operation], ranks)
        if inside is not None:
            low, high, lines = inside
            note = f"{operation.value} among {ranks}: derived from the same among {low.ranks} and {high.ranks}"
            kind = weakest(profile.kind_of(low.source), profile.kind_of(high.source))
            if implementation is Implementation.NCCL:
                lines = switched(lines, operation, situation_of(profile, ranks))
            return Found(lines, weakest(kind, SourceKind.DERIVED), (*notes, note))
        note = f"{operation.value} among {ranks}: derived from {wanted.value} among {entry.ranks}"
        branches = carry_over(entry, operation, ranks, nvlink=nvlink, staged=_refuses(profile))
        if implementation is Implementation.NCCL:
            branches = switched(branches, operation, situation_of(profile, ranks))
        return Found(branches, weakest(kind, SourceKind.DERIVED), (*notes, note))
    if implementation is Implementation.NCCL:
        return None
    found = constants_for(profile, operation, Implementation.NCCL, ranks)
    if found is None:
        return None
    note = f"no constants of {implementation.value} for {operation.value} on {profile.name}: NCCL's are taken"
    return Found(found.branches, weakest(found.source, SourceKind.DERIVED), (note, *found.notes))


def _between(
    known: Sequence[CollectiveConstants], ranks: int
) -> tuple[CollectiveConstants, CollectiveConstants, tuple[Branch, ...]] | None:
    """The nearest entries below and above, and what lies between them."""
    below = max((entry for entry in known if entry.ranks < ranks), key=lambda entry: entry.ranks, default=None)
    above = min((entry for entry in known if entry.ranks > ranks), key=lambda entry: entry.ranks, default=None)
    if below is None or above is None:
        return None
    lines = between(below, above, ranks)
    return None if lines is None else (below, above, lines)


def _refuses(profile: HardwareProfile) -> bool:
    return profile.links.nvlink is None and profile.flags.p2p is P2P.REFUSED
