"""Constants of a box that no formula gives: what its collectives reach, fitted to measurements of that box."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from pdmodel.hardware.compute import ComputeConstants
from pdmodel.spec import Spec

__all__ = [
    "Algorithm",
    "BoundBy",
    "Branch",
    "CollectiveConstants",
    "CollectiveOperation",
    "ComputeConstants",
    "Implementation",
    "Protocol",
]


class CollectiveOperation(StrEnum):
    """A collective, or one half (``dispatch``, ``combine``) of an expert-parallel exchange."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    DISPATCH = "dispatch"
    COMBINE = "combine"


class Implementation(StrEnum):
    """Whose kernel runs: NCCL's, the engine's custom all-reduce (vLLM's; SGLang's is the same), DeepEP's exchange.

    ``deepgemm``: the exchange inside DeepGEMM's fused kernel; it has no constants of its own.
    """

    NCCL = "nccl"
    VLLM_CUSTOM = "vllm_custom"
    DEEPEP = "deepep"
    DEEPGEMM = "deepgemm"


class Protocol(StrEnum):
    """NCCL's wire protocols; ``custom`` is whatever an engine's own kernel does (payload only)."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"
    CUSTOM = "custom"


class Algorithm(StrEnum):
    """How the bytes travel. ``pairwise``: every rank to every other; ``one_shot``, ``two_shot``: loads from peers."""

    RING = "ring"
    NVLS = "nvls"
    PAIRWISE = "pairwise"
    ONE_SHOT = "one_shot"
    TWO_SHOT = "two_shot"


class BoundBy(StrEnum):
    """Why a measured collective leaves every port of the profile below 80 % of its capacity.

    ``unmodelled_link``: something on its way that the tree does not show; the group port that it passes has the
    measured rate as its capacity (kind derived). ``protocol``: steps, flags, few channels; the rest is free for others.
    """

    UNMODELLED_LINK = "unmodelled_link"
    PROTOCOL = "protocol"


class Branch(Spec):
    """One straight line of a collective's time: alpha + S / B.

    ``bandwidth_gb_per_s`` is algbw, S/B with S as nccl-tests prints it. ``max_bytes``: the implementation leaves this
    branch above that size (a limit in its code, not a crossing of lines).
    """

    protocol: Protocol
    algorithm: Algorithm
    alpha_us: Annotated[float, Field(gt=0)]
    bandwidth_gb_per_s: Annotated[float, Field(gt=0)]
    max_bytes: Annotated[int, Field(gt=0)] | None = None


class CollectiveConstants(Spec):
    """Time of one operation among ``ranks`` GPUs of this box: the least of its branches that the size allows.

    ``mean_error`` and ``max_error`` are relative errors of the fit on the rows named by ``source``; null where
    nothing was fitted. ``bound_by`` goes with ``reason``: see `BoundBy`.
    """

    operation: CollectiveOperation
    implementation: Implementation = Implementation.NCCL
    ranks: Annotated[int, Field(ge=2)]
    branches: Annotated[tuple[Branch, ...], Field(min_length=1)]
    source: str
    bound_by: BoundBy | None = None
    reason: str = ""
    mean_error: Annotated[float, Field(ge=0)] | None = None
    max_error: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if all(branch.max_bytes is not None for branch in self.branches):
            message = "every branch has max_bytes: nothing covers larger sizes; leave it out of the last one"
            raise ValueError(message)
        if self.bound_by is not None and not self.reason:
            message = "bound_by without a reason"
            raise ValueError(message)
        return self
