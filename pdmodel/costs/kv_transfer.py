"""Time of one KV transfer by a transfer engine: set-up, and the slowest of bytes, descriptors and messages."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.spec import SourceKind
from pdmodel.units import MS, US


@dataclass(frozen=True, slots=True)
class TransferConstants:
    """What a transfer engine costs beside the bytes.

    ``setup_s`` t0, software of one request; ``descriptor_s`` tau, one thread's time to post one descriptor; ``threads``
    W that post; ``messages_per_s`` mu, what the NIC's queue pairs take. ``ref`` says where the numbers are from.
    ``sharpness`` p: how little the limits disturb one another where they meet (`joint_s`).
    """

    setup_s: float
    descriptor_s: float
    threads: int
    messages_per_s: float
    source: SourceKind
    ref: str
    sharpness: float = math.inf

    def __post_init__(self) -> None:
        if (
            self.setup_s < 0
            or self.descriptor_s < 0
            or self.threads < 1
            or self.messages_per_s <= 0
            or self.sharpness < 1
        ):
            raise InputError("transfer constants out of range", expected="t0, tau >= 0; threads, p >= 1; mu > 0")


# tau: 3.06 us (sglang pull request 40500), 3.75 us (vllm issue 50913), 3.75 us (sglang pull request 35186): median.
DESCRIPTOR_S = 3.75 * US
# 7.0 to 7.3 million messages/s and queue pair, GPU memory, up to 1 KiB (perftest, 100G, DMA-BUF).
MESSAGES_PER_S_AND_QP = 7.0e6

MOONCAKE_SGLANG = TransferConstants(
    setup_s=1.84 * MS,
    descriptor_s=DESCRIPTOR_S,
    threads=4,
    messages_per_s=2 * MESSAGES_PER_S_AND_QP,
    source=SourceKind.DERIVED,
    ref="Mooncake docs sglang-benchmark-results-v1 (t0); SGLang 0.5.23 (4 transfer queues); Mooncake config.h (2 QPs)",
)
MOONCAKE_VLLM = TransferConstants(
    setup_s=0.385 * MS,
    descriptor_s=DESCRIPTOR_S,
    threads=1,
    messages_per_s=2 * MESSAGES_PER_S_AND_QP,
    source=SourceKind.DERIVED,
    ref="Mooncake docs vllm-v1-pd-performance (t0); vLLM connector posts from one thread; Mooncake config.h (2 QPs)",
)


def joint_s(*terms_s: float, sharpness: float = math.inf) -> float:
    """Time of several limits that act at once.

    Equation: (sum t^p)^(1/p); p = inf: max t.

    Parameters: ``terms_s`` t >= 0 [s]; ``sharpness`` p >= 1 [-].
    Returns: [s], at least the largest term, at most their sum.
    Raises: `InputError` for p < 1 or t < 0.
    Validity: p is measured at the knee, where two terms are equal: there T = 2^(1/p) t.
    Source: p = inf as perftest's message rate shows; Mooncake's efa_transport.md has a soft knee, p = 5.

    >>> joint_s(3.0, 4.0), joint_s(3.0, 4.0, sharpness=2)
    (4.0, 5.0)
    """
    if sharpness < 1 or min(terms_s, default=0.0) < 0:
        raise InputError(f"sharpness {sharpness:g} of terms {terms_s}", expected="p >= 1, times of 0 or more")
    largest = max(terms_s, default=0.0)
    if largest == 0 or math.isinf(sharpness):
        return largest
    return float(largest * sum((term / largest) ** sharpness for term in terms_s) ** (1 / sharpness))


def transfer_s(size_bytes: float, descriptors: float, path_bytes_per_s: float, constants: TransferConstants) -> float:
    """Time of one transfer between two ranks.

    Equation: T = t0 + max( V / B_path, N tau / W, N / mu ), the maximum softened at knees as `joint_s` has it.

    Parameters: ``size_bytes`` V >= 0 [byte]; ``descriptors`` N >= 0, contiguous on both sides [-];
    ``path_bytes_per_s`` B > 0, the least port of the route [byte/s]; ``constants`` t0 [s], tau [s], W [-], mu [1/s].
    Returns: T [s]; 0 when nothing is moved.
    Raises: `InputError` outside these ranges.
    Validity: posting and moving overlap perfectly; a deep queue (one descriptor at a time costs about 6 us each
    instead). N comes from the layouts of both sides.
    Source: fits every table of tests/published/kv_transfer.csv within its stated error; form as Mooncake's, NIXL's
    and perftest's figures suggest.

    >>> constants = TransferConstants(1e-3, 4e-6, 2, 1e7, SourceKind.ASSUMED, "example")
    >>> transfer_s(1e9, 1, 5e10, constants), transfer_s(1e6, 10_000, 5e10, constants)
    (0.021, 0.021)
    """
    if size_bytes < 0 or descriptors < 0:
        raise InputError(f"a transfer of {size_bytes:g} bytes in {descriptors:g} descriptors", expected="0 or more")
    if path_bytes_per_s <= 0:
        raise InputError(f"a path of {path_bytes_per_s:g} byte/s", expected="a positive rate")
    if size_bytes == 0:
        return 0.0
    posting = descriptors * constants.descriptor_s / constants.threads
    wire, messages = size_bytes / path_bytes_per_s, descriptors / constants.messages_per_s
    return constants.setup_s + joint_s(wire, posting, messages, sharpness=constants.sharpness)


def descriptor_rate_bytes_per_s(
    descriptor_bytes: float, path_bytes_per_s: float, constants: TransferConstants
) -> float:
    """Rate that a transfer reaches with descriptors of one size, without its set-up.

    Equation: min( B_path, W r / tau, mu r ), softened as `joint_s` has it.

    Parameters: ``descriptor_bytes`` r > 0 [byte]; ``path_bytes_per_s`` B > 0 [byte/s].
    Returns: [byte/s].
    Raises: `InputError` outside these ranges.
    Validity: many descriptors of equal size.
    Source: `transfer_s` with N = V / r.
    """
    if descriptor_bytes <= 0 or path_bytes_per_s <= 0:
        raise InputError(f"descriptors of {descriptor_bytes:g} bytes", expected="positive sizes and rates")
    wire, posting = descriptor_bytes / path_bytes_per_s, constants.descriptor_s / constants.threads
    return descriptor_bytes / joint_s(wire, posting, 1 / constants.messages_per_s, sharpness=constants.sharpness)


def knee_bytes(path_bytes_per_s: float, constants: TransferConstants) -> float:
    """Descriptor size below which posting, and not the path, sets the rate.

    Equation: r = tau B / W.

    Returns: [byte].
    Validity: tau above W/mu, as with every engine measured.
    Source: `descriptor_rate_bytes_per_s`.
    """
    return constants.descriptor_s * path_bytes_per_s / constants.threads
