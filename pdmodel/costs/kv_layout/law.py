"""How long a transfer takes, term by term: set-up, bytes, descriptors, messages; and when it ends beside a prefill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pdmodel.costs.kv_transfer import TransferConstants, joint_s
from pdmodel.errors import InputError
from pdmodel.units import KIB


class Term(StrEnum):
    """What holds a transfer up."""

    SETUP = "set-up"
    BANDWIDTH = "bandwidth"
    DESCRIPTORS = "descriptors"
    MESSAGES = "messages"
    STAGING = "staging"


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a transfer engine cuts a descriptor into work requests; ``fragment_bytes``: a rest that is not cut off."""

    slice_bytes: float
    fragment_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.slice_bytes <= 0 or self.fragment_bytes < 0:
            raise InputError(f"slices of {self.slice_bytes:g} bytes", expected="a positive size")


MOONCAKE_SLICES = Slicing(64 * KIB, 16 * KIB)
"""Mooncake transfer engine 0.3.13: slice_size and fragment_limit of its config.h."""


def slices(size_bytes: float, slicing: Slicing = MOONCAKE_SLICES) -> int:
    """Work requests of one descriptor.

    Equation: 1 + max(0, ceil((r - s - f)/s)): slices of s, but a rest of up to s + f goes out whole.

    Parameters: ``size_bytes`` r >= 0 [byte]; ``slicing`` s > 0, f >= 0 [byte].
    Returns: work requests [-]; 0 for no bytes.
    Raises: `InputError` for r < 0.
    Validity: engines that cut; one that does not has s as large as its largest descriptor.
    Source: Mooncake rdma_transport.cpp (slice lengths), config.h (65,536 and 16,384 bytes).

    >>> [slices(size) for size in (1, 65536, 81920, 81921, 147456, 147457)]
    [1, 1, 1, 2, 2, 3]
    """
    if size_bytes < 0:
        raise InputError(f"a descriptor of {size_bytes:g} bytes", expected="0 or more")
    if size_bytes == 0:
        return 0
    over = size_bytes - slicing.slice_bytes - slicing.fragment_bytes
    return 1 + max(0, math.ceil(over / slicing.slice_bytes))


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of one transfer [s]; the middle three run at once, the slowest counts."""

    setup_s: float
    bandwidth_s: float
    descriptors_s: float
    messages_s: float
    staging_s: float = 0.0
    sharpness: float = math.inf

    @property
    def time_s(self) -> float:
        """Set-up, the slowest of the three, and what staging adds [s]."""
        moving = joint_s(self.bandwidth_s, self.descriptors_s, self.messages_s, sharpness=self.sharpness)
        return self.setup_s + moving + self.staging_s

    @property
    def bound_by(self) -> Term:
        """The largest term."""
        named = {
            Term.BANDWIDTH: self.bandwidth_s,
            Term.DESCRIPTORS: self.descriptors_s,
            Term.MESSAGES: self.messages_s,
            Term.SETUP: self.setup_s,
            Term.STAGING: self.staging_s,
        }
        return max(named, key=lambda term: named[term])


def transfer_terms(
    bandwidth_s: float,
    descriptors: float,
    messages: float,
    constants: TransferConstants,
    *,
    staging_s: float = 0.0,
) -> Terms:
    """The terms of one sender's transfer.

    Equation: T = t0 + max( V/B_path, N tau/W, M/mu ) + staging.

    Parameters: ``bandwidth_s`` V/B_path, of the port that takes longest [s]; ``descriptors`` N, that one sender posts;
    ``messages`` M >= N, work requests after slicing [-]; ``constants`` t0, tau, W, mu.
    Returns: `Terms`.
    Raises: `InputError` for negative arguments.
    Validity: a deep queue; posting, sending and the wire overlap as the constants' sharpness says.
    Source: as `pdmodel.costs.kv_transfer.transfer_s`.

    >>> from pdmodel.costs.kv_transfer import MOONCAKE_VLLM
    >>> terms = transfer_terms(0.1, 1e6, 1e6, MOONCAKE_VLLM)
    >>> round(terms.time_s, 5), terms.bound_by.value
    (3.75038, 'descriptors')
    """
    if min(bandwidth_s, descriptors, messages, staging_s) < 0:
        raise InputError("a term of a transfer is negative", expected="0 or more")
    return Terms(
        constants.setup_s,
        bandwidth_s,
        descriptors * constants.descriptor_s / constants.threads,
        messages / constants.messages_per_s,
        staging_s,
        constants.sharpness,
    )


def staging_s(sent_bytes: float, received_bytes: float, chunks: int, hbm_bytes_per_s: float) -> float:
    """What packing before and unpacking after the wire add.

    Equation: (2 V_s + 2 V_r) / (n B_hbm): each is read and written once; of n chunks all but the first pack, and all
    but the last unpack, are hidden behind the wire.

    Parameters: ``sent_bytes`` V_s of the largest sender, ``received_bytes`` V_r of the largest receiver >= 0 [byte];
    ``chunks`` n >= 1; ``hbm_bytes_per_s`` B > 0 [byte/s].
    Returns: [s].
    Raises: `InputError` outside these ranges.
    Validity: kernels that reach the memory's rate; the wire is slower than memory, as always.
    Source: bytes read and written by a gather and a scatter.

    >>> staging_s(1e9, 1e9, 4, 2e12)
    0.0005
    """
    if min(sent_bytes, received_bytes) < 0 or chunks < 1 or hbm_bytes_per_s <= 0:
        raise InputError(f"staging in {chunks} chunks at {hbm_bytes_per_s:g} byte/s", expected="positive figures")
    return 2 * (sent_bytes + received_bytes) / (chunks * hbm_bytes_per_s)


def completion_s(compute_s: Sequence[float], size_bytes: Sequence[float], rate_bytes_per_s: float) -> float:
    """When the last byte is over, if each piece is sent as soon as it is computed.

    Equation: F = max_j ( C_j + sum_{k >= j} v_k / B ), C_j = sum_{i <= j} c_i.

    Parameters: ``compute_s`` c >= 0, ``size_bytes`` v >= 0: of each piece in order, equal shapes (n,) [s], [byte];
    ``rate_bytes_per_s`` B > 0, constant [byte/s].
    Returns: F from the start of the first piece [s]; 0 without pieces.
    Raises: `InputError` for lengths that differ, negative figures, B <= 0.
    Validity: one link, pieces in order, no cost per piece (add it to v/B).
    Source: two machines in a row (Johnson 1954); a piece waits for its compute, and for the pieces before it.

    >>> completion_s([1.0, 1.0, 1.0], [2e9, 2e9, 2e9], 1e9), completion_s([1.0, 1.0], [5e8, 5e8], 1e9)
    (7.0, 2.5)
    """
    if len(compute_s) != len(size_bytes):
        raise InputError(f"{len(compute_s)} times and {len(size_bytes)} sizes", expected="one of each for every piece")
    if rate_bytes_per_s <= 0 or min([*compute_s, *size_bytes], default=0.0) < 0:
        raise InputError("a piece or a rate is negative", expected="0 or more, a positive rate")
    finish = computed = 0.0
    for compute, size in zip(compute_s, size_bytes, strict=True):
        computed += compute
        # The largest of C_j + v_j/B + ... up to here: either this piece is the first to wait for, or an earlier one is.
        finish = max(finish, computed) + size / rate_bytes_per_s
    return finish


def equal_pieces_s(compute_s: float, transfer_s: float, pieces: int) -> float:
    """`completion_s` for equal pieces.

    Equation: c + (n - 1) max(c, x) + x.

    Parameters: ``compute_s`` c, ``transfer_s`` x = v/B of one piece >= 0 [s]; ``pieces`` n >= 1 [-].
    Returns: [s].
    Raises: `InputError` outside these ranges.
    Source: `completion_s` with equal entries.

    >>> equal_pieces_s(1.0, 2.0, 3)
    7.0
    """
    if min(compute_s, transfer_s) < 0 or pieces < 1:
        raise InputError(f"{pieces} pieces", expected="1 or more, times of 0 or more")
    return compute_s + (pieces - 1) * max(compute_s, transfer_s) + transfer_s


def hiding_bytes_per_s(compute_s: Sequence[float], size_bytes: Sequence[float]) -> float:
    """The least rate at which nothing but the last piece is left to send when the last piece is computed.

    Equation: B* = max_{j < n} sum_{j <= k < n} v_k / sum_{j < k <= n} c_k; from B* on, F = C_n + v_n / B.

    Parameters: as `completion_s`.
    Returns: B* [byte/s]; 0 for one piece, infinite where pieces must move in no time.
    Raises: `InputError` for lengths that differ or negative figures.
    Validity: as `completion_s`.
    Source: `completion_s` set equal to C_n + v_n / B.

    >>> hiding_bytes_per_s([1.0, 1.0, 1.0], [2e9, 2e9, 5e9]), hiding_bytes_per_s([1.0, 2.0, 1.0], [2e9, 2e9, 5e9])
    (2000000000.0, 2000000000.0)
    """
    completion_s(compute_s, size_bytes, 1.0)  # the same figures are refused
    moved = time = least = 0.0
    for size, compute in zip(reversed(size_bytes[:-1]), reversed(compute_s[1:]), strict=True):
        moved, time = moved + size, time + compute
        if moved > 0:
            least = max(least, moved / time if time > 0 else math.inf)
    return least
