"""All-reduce kernels made for boxes without NVLink: two-shot, by writes to every peer or by loads from every peer.

Nothing measured tells their time on a box of this package: it is assumed, from ports and the box's least latency. They
run only where they are asked for.
"""

from __future__ import annotations

from pdmodel.costs.collectives.scaling import Found, constants_for, ring_latency_us
from pdmodel.costs.collectives.wire import wire_per_byte
from pdmodel.errors import InputError
from pdmodel.hardware.constants import Algorithm, Branch, CollectiveOperation, Implementation, Protocol
from pdmodel.hardware.profile import P2P, HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind
from pdmodel.units import GB

PCIE_KERNELS = {
    Implementation.PCIE_PUSH: Algorithm.TWO_SHOT_PUSH,
    Implementation.PCIE_PULL: Algorithm.TWO_SHOT,
}
# Payload rate of one peer mapping alone, and while each of four ranks drives its three peers [GB/s]:
# github.com/vllm-project/vllm issue 56128, all 12 directed links, 1.3 MB each, mapping by cudaIpcOpenMemHandle.
ALONE_GB_PER_S = {Implementation.PCIE_PUSH: 44.78, Implementation.PCIE_PULL: 42.83}
CONCURRENT_GB_PER_S = {Implementation.PCIE_PUSH: 25.40, Implementation.PCIE_PULL: 20.60}


def concurrent_share(implementation: Implementation, ranks: int) -> float:
    """Payload rate while every rank drives all its peers, as a share of the rate of one mapping alone.

    Equation: 1 for n <= 2; else r_n / r_1, r the measured rates of payload by stores (push) or loads (pull). The loads'
    own requests, which then share their links with data, are part of r_n: they are not to be counted once more.

    Parameters: ``implementation`` pcie_push or pcie_pull; ``ranks`` n >= 2 [-].
    Returns: the share [-].
    Validity: measured on four ranks of one PCIe box, taken for any n > 2 and any box. Kernels that write to one peer at
    a time (FlashInfer's pull request 4393) are made to lose less: for them it is a lower bound.
    Source: vLLM issue 56128 (see `ALONE_GB_PER_S`).

    >>> concurrent_share(Implementation.PCIE_PUSH, 2)
    1.0
    >>> round(concurrent_share(Implementation.PCIE_PUSH, 4), 3), round(concurrent_share(Implementation.PCIE_PULL, 4), 3)
    (0.567, 0.481)
    """
    return CONCURRENT_GB_PER_S[implementation] / ALONE_GB_PER_S[implementation] if ranks > 2 else 1.0


def check_pcie_kernel(profile: HardwareProfile, implementation: Implementation) -> None:
    """`InputError` where a PCIe kernel cannot run, or has no place: P2P refused, or NVLink there."""
    if implementation not in PCIE_KERNELS:
        return
    if profile.links.nvlink is not None:
        raise InputError(
            f"{implementation.value} is for GPUs without NVLink; {profile.name} has it", expected="nccl or vllm_custom"
        )
    if profile.flags.p2p is P2P.REFUSED:
        raise InputError(f"{implementation.value} needs P2P, which {profile.name} refuses", expected="nccl")


def pcie_constants(
    box: Box, gpus: tuple[int, ...], operation: CollectiveOperation, implementation: Implementation
) -> Found:
    """The line of a PCIe-native all-reduce kernel: what the profile lists for it, else one from the ports.

    Equation: t = alpha + S max_e max(W_e / C_e, V_e / (C_e f)), W the two-shot wire bytes per byte of S from the routes
    (2 S/n on every ordered pair: posted writes, or loads of 128 bytes with a request of 24 the other way each), V those
    of the payload alone, f `concurrent_share`, alpha the box's least latency of an all-reduce (its engine's kernel or
    NCCL's LL among as many ranks).

    Parameters: ``gpus`` two or more; ``implementation`` one of `PCIE_KERNELS`.
    Returns: one branch, kind assumed, with its notes; or the profile's own branches.
    Raises: `InputError`: another operation than all_reduce; `check_pcie_kernel`.
    Validity: assumed. One-shot for small messages is left out: its limit is tuned on each machine.
    Source: FlashInfer pull requests 4393 and 5023, vLLM issue 56128: form; no table of this package has their times.
    """
    name = implementation.value
    if operation is not CollectiveOperation.ALL_REDUCE:
        raise InputError(f"{name} has no {operation.value}", expected="all_reduce, or --implementation nccl")
    check_pcie_kernel(box.profile, implementation)
    listed = any(entry.implementation is implementation and entry.nodes == 1 for entry in box.profile.collectives)
    if listed and (own := constants_for(box.profile, operation, implementation, len(gpus))):
        return own
    alpha_us, whence = _least_latency(box, len(gpus))
    share = concurrent_share(implementation, len(gpus))
    _, per_byte = wire_per_byte(box, gpus, operation, PCIE_KERNELS[implementation]).slowest(box)
    # Every pair goes both ways, so what posted writes put on a port is the payload of loads.
    _, payload = wire_per_byte(box, gpus, operation, Algorithm.TWO_SHOT_PUSH).slowest(box)
    branch = Branch(
        protocol=Protocol.CUSTOM,
        algorithm=PCIE_KERNELS[implementation],
        alpha_us=alpha_us,
        bandwidth_gb_per_s=1 / max(per_byte, payload / share) / GB,
    )
    loss = f" at {share:.2f} of its capacity, as measured with every rank driving all peers" if share < 1 else ""
    note = (
        f"{name} is assumed, nothing measured on {box.profile.name}: the slowest port{loss} (vLLM issue 56128; form "
        f"after FlashInfer pull requests 4393, 5023), and {alpha_us:.3g} us from {whence}"
    )
    return Found((branch,), SourceKind.ASSUMED, (note,))


def _least_latency(box: Box, ranks: int) -> tuple[float, str]:
    """The least alpha of an all-reduce by an engine's kernel or NCCL's LL [us], and what it is."""
    known = [
        (branch.alpha_us, f"{kind.value} by {branch.protocol.value}")
        for kind in (Implementation.VLLM_CUSTOM, Implementation.NCCL)
        if (found := constants_for(box.profile, CollectiveOperation.ALL_REDUCE, kind, ranks))
        for branch in found.branches
        if branch.protocol in {Protocol.CUSTOM, Protocol.LL}
    ]
    rated = ring_latency_us(CollectiveOperation.ALL_REDUCE, Protocol.LL, ranks, nvlink=False)
    return min(known, default=(rated, "NCCL's own rating of LL"))
