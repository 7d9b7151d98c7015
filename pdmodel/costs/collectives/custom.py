"""Custom all-reduce of the engines: kernels that load from their peers' memory."""

from __future__ import annotations

from pdmodel.costs.collectives.ring import check_ranks

# vLLM csrc/custom_all_reduce.cuh (v0.24): with more than two ranks one-shot below these sizes, two-shot from them on.
ONE_SHOT_LIMIT_BYTES = {4: 512 * 1024, 6: 256 * 1024, 8: 256 * 1024}
# vLLM custom_all_reduce.py (v0.24): max_size 8192 * 1024; from there on the engine calls NCCL.
CUSTOM_LIMIT_BYTES = 8192 * 1024


def one_shot_pair_bytes(size_bytes: float, ranks: int) -> float:
    """What each rank loads from each peer when it adds up all inputs itself.

    Equation: S from each of n-1 peers, (n-1) S per rank and direction.

    Parameters: ``size_bytes`` S [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per ordered pair of ranks [byte].
    Raises: `InputError` if n < 1.
    Validity: n <= 8; small S (see `ONE_SHOT_LIMIT_BYTES`), and two ranks up to `CUSTOM_LIMIT_BYTES`.
    Source: vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_1stage.

    >>> one_shot_pair_bytes(8.0, 2)
    8.0
    """
    check_ranks(ranks)
    return size_bytes if ranks > 1 else 0.0


def two_shot_pair_bytes(size_bytes: float, ranks: int) -> float:
    """What each rank loads from each peer when slices are reduced first and then gathered.

    Equation: 2 S/n from each of n-1 peers, 2 (n-1)/n S per rank and direction, as a ring.

    Parameters: ``size_bytes`` S [byte]; ``ranks`` n >= 1 [-].
    Returns: bytes per ordered pair of ranks [byte].
    Raises: `InputError` if n < 1.
    Validity: n <= 8 on NVLink; vLLM and SGLang switch it off on more than two GPUs that have PCIe alone.
    Source: vLLM csrc/custom_all_reduce.cuh, cross_device_reduce_2stage.

    >>> two_shot_pair_bytes(8.0, 4)
    4.0
    """
    check_ranks(ranks)
    return 2 * size_bytes / ranks if ranks > 1 else 0.0
