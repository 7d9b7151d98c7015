"""Protocols and the least-of-branches time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pdmodel.costs.collectives.predict import predict
from pdmodel.errors import InputError
from pdmodel.hardware.constants import Branch, MeasuredPoint, Protocol
from pdmodel.units import GB, US

# Payload bytes of every wire byte. NCCL 2.30.7 src/device/prims_ll.h (4 B of data beside 4 B of flag) and
# prims_ll128.h (120 of 128 B); Simple and the engines' kernels carry payload only.
EFFICIENCY = {Protocol.LL: 4 / 8, Protocol.LL128: 120 / 128, Protocol.SIMPLE: 1.0, Protocol.CUSTOM: 1.0}


def wire_factor(protocol: Protocol) -> float:
    """Wire bytes per byte of payload: the reciprocal of what the protocol's lines carry.

    Equation: 8/4 for LL, 128/120 for LL128, 1 for Simple. PCIe and NVLink headers are in the ports' capacities.

    Returns: the factor [-].
    Source: NCCL 2.30.7 src/device/prims_ll.h, prims_ll128.h.

    >>> wire_factor(Protocol.LL)
    2.0
    """
    return 1 / EFFICIENCY[protocol]


def usable(branches: Sequence[Branch], *, nvlink: bool) -> tuple[Branch, ...]:
    """Branches that the box can take: LL128 needs its 128-byte lines whole and in order, so not over PCIe in a node.

    Source: NCCL 2.30.7 src/graph/tuning.cc (LL128 only where the node's own links are NVLink).
    """
    return tuple(branch for branch in branches if nvlink or branch.protocol is not Protocol.LL128)


def branch_time_s(branches: Sequence[Branch], size_bytes: float) -> tuple[float, Protocol]:
    """Time [s] and protocol of a collective of ``size_bytes`` S [byte]; see `fastest_branch`."""
    time_s, branch = fastest_branch(branches, size_bytes)
    return time_s, branch.protocol


def fastest_branch(
    branches: Sequence[Branch], size_bytes: float, table: Sequence[MeasuredPoint] = ()
) -> tuple[float, Branch]:
    """Time of a collective and the branch that gives it: `predict` for one size.

    Equation: t = min over k with from_k <= S <= max_k of alpha_k + S / B_k, bent through ``table``.

    Parameters: ``branches`` of one operation, implementation and number of ranks; ``size_bytes`` S > 0 [byte], as
    nccl-tests prints it (see `pdmodel.hardware.constants.Branch`).
    Returns: time [s], branch.
    Raises: `InputError` if S is not positive or there is no branch.
    Validity: sizes inside those fitted; outside, the last line goes on.
    Source: protocols as NCCL 2.30.7 src/graph/tuning.cc has them; constants from the profile of the box.
    """
    if table:
        times, index = predict(branches, np.array([size_bytes], dtype=np.float64), table)
        return float(times[0]), branches[int(index[0])]
    if size_bytes <= 0:
        raise InputError(f"a collective of {size_bytes:g} bytes", expected="a positive size")
    allowed = [branch for branch in branches if _allows(branch, size_bytes)]
    if not allowed:
        times, index = predict(branches, np.array([size_bytes], dtype=np.float64))
        return float(times[0]), branches[int(index[0])]
    lines = [branch.alpha_us * US + size_bytes / (branch.bandwidth_gb_per_s * GB) for branch in allowed]
    best = min(range(len(lines)), key=lines.__getitem__)
    return lines[best], allowed[best]


def _allows(branch: Branch, size_bytes: float) -> bool:
    return (branch.from_bytes or 0) <= size_bytes <= (branch.max_bytes or float("inf"))


def ranges(branches: Sequence[Branch]) -> tuple[tuple[float, Branch], ...]:
    """Which branch serves which sizes: (from this size on [byte], branch), the first from 0."""
    marks = {0.0}
    for k, one in enumerate(branches):
        if one.max_bytes is not None:
            marks.add(float(one.max_bytes))
        if one.from_bytes is not None:
            marks.add(float(one.from_bytes))
        for two in branches[k + 1 :]:
            slope = 1 / one.bandwidth_gb_per_s - 1 / two.bandwidth_gb_per_s
            if slope and (crossing := (two.alpha_us - one.alpha_us) * US * GB / slope) > 0:
                marks.add(crossing)
    found: list[tuple[float, Branch]] = []
    for mark in sorted(marks):
        _, branch = fastest_branch(branches, mark * (1 + 1e-9) + 1e-9)
        if not found or found[-1][1] is not branch:
            found.append((mark, branch))
    return tuple(found)
