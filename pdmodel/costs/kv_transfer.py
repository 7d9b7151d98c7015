"""Time of one KV transfer by a transfer engine: set-up, and the slowest of bytes, descriptors and messages."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.spec import SourceKind
from pdmodel.units import MS, US


@dataclass(frozen=True, slots=True)
class TransferConstants:
    """What a transfer engine costs beside the bytes.

    ``setup_s`` t0, software of one request; ``descriptor_s`` tau, one thread's time to post one descriptor; ``threads``
    W that post; ``messages_per_s`` mu, what the NIC's queue pairs take. ``ref`` says where the numbers are from.
    """

    setup_s: float
    descriptor_s: float
    threads: int
    messages_per_s: float
    source: SourceKind
    ref: str

    def __post_init__(self) -> None:
        if self.setup_s < 0 or self.descriptor_s < 0 or self.threads < 1 or self.messages_per_s <= 0:
            raise InputError("transfer constants out of range", expected="t0, tau >= 0; threads >= 1; mu > 0")


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
    setup_s=0.37 * MS,
    descriptor_s=DESCRIPTOR_S,
    threads=1,
    messages_per_s=2 * MESSAGES_PER_S_AND_QP,
    source=SourceKind.DERIVED,
    ref="Mooncake docs vllm-v1-pd-performance (t0); vLLM connector posts from one thread; Mooncake config.h (2 QPs)",
)


def transfer_s(size_bytes: float, descriptors: float, path_bytes_per_s: float, constants: TransferConstants) -> float:
    """Time of one transfer between two ranks.

    Equation: T = t0 + max( V / B_path, N tau / W, N / mu ).

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
    return constants.setup_s + max(size_bytes / path_bytes_per_s, posting, descriptors / constants.messages_per_s)


def descriptor_rate_bytes_per_s(
    descriptor_bytes: float, path_bytes_per_s: float, constants: TransferConstants
) -> float:
    """Rate that a transfer reaches with descriptors of one size, without its set-up.

    Equation: min( B_path, W r / tau, mu r ).

    Parameters: ``descriptor_bytes`` r > 0 [byte]; ``path_bytes_per_s`` B > 0 [byte/s].
    Returns: [byte/s].
    Raises: `InputError` outside these ranges.
    Validity: many descriptors of equal size.
    Source: `transfer_s` with N = V / r.
    """
    if descriptor_bytes <= 0 or path_bytes_per_s <= 0:
        raise InputError(f"descriptors of {descriptor_bytes:g} bytes", expected="positive sizes and rates")
    limits = [path_bytes_per_s, constants.messages_per_s * descriptor_bytes]
    if constants.descriptor_s > 0:
        limits.append(constants.threads * descriptor_bytes / constants.descriptor_s)
    return min(limits)


def knee_bytes(path_bytes_per_s: float, constants: TransferConstants) -> float:
    """Descriptor size below which posting, and not the path, sets the rate.

    Equation: r = tau B / W.

    Returns: [byte].
    Validity: tau above W/mu, as with every engine measured.
    Source: `descriptor_rate_bytes_per_s`.
    """
    return constants.descriptor_s * path_bytes_per_s / constants.threads
