"""Mixture of experts: what routing touches, and what an expert-parallel exchange moves between the GPUs of a box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb

from pdmodel.costs.collectives.cost import CollectiveCost, collective
from pdmodel.costs.collectives.wire import wire_per_byte
from pdmodel.errors import CoverageError, InputError, nearest
from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Implementation
from pdmodel.hardware.topology import Box

# One FP32 scale for every 128 FP8 values (DeepEP README, DeepGEMM README).
SCALE_BLOCK, SCALE_BYTES = 128, 4
# Rate of the serial reduction at the end of DeepGEMM's fused kernel; tests/test_mega_moe.py at 54e2261.
FUSED_TAIL_BYTES_PER_S = 6.5e12


class EpExchange(StrEnum):
    """How tokens reach their experts.

    all_reduce: they do not travel; every rank has all tokens, and the all-reduce after the block (counted with TP) adds
    up. all_gather_reduce_scatter: vLLM's default on PCIe. all_to_all: NCCL, a copy per expert. dedup: a copy per *rank*
    (DeepEP's normal kernels). low_latency: a copy per expert (DeepEP's kernels for decode). fused: one kernel, a copy
    per expert, the exchange spread over the compute (DeepGEMM mega-MoE).
    """

    ALL_REDUCE = "all_reduce"
    ALL_GATHER_REDUCE_SCATTER = "all_gather_reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    DEDUP = "dedup"
    LOW_LATENCY = "low_latency"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Routing:
    """Tokens on their way to experts, and how they are written on the wire.

    ``tokens`` are those of one rank before dispatch. ``dispatch_bytes`` and ``combine_bytes`` are bytes per value;
    one byte means FP8 with its scales.
    """

    tokens: float
    hidden_size: int
    experts: int
    top_k: int
    dispatch_bytes: int = 1
    combine_bytes: int = 2

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise InputError(f"{self.tokens:g} tokens", expected="0 or more")
        if not 1 <= self.top_k <= self.experts:
            raise InputError(f"{self.top_k} of {self.experts} experts per token", expected="1 to the number of experts")

    @property
    def dispatch_row_bytes(self) -> float:
        """One token on its way out [byte]."""
        scales = SCALE_BYTES * self.hidden_size / SCALE_BLOCK if self.dispatch_bytes == 1 else 0.0
        return self.hidden_size * self.dispatch_bytes + scales

    @property
    def combine_row_bytes(self) -> float:
        """One token on its way back [byte]."""
        return float(self.hidden_size * self.combine_bytes)


def experts_touched(experts: int, top_k: int, tokens: float) -> float:
    """Expected number of experts that at least one token visits.

    Equation: E (1 - (1 - k/E)^t).

    Parameters: ``experts`` E >= 1 [-]; ``top_k`` k, 1..E [-]; ``tokens`` t >= 0 [-].
    Returns: 0..E [-].
    Raises: `InputError` outside these.
    Validity: tokens choose independently, every expert alike; real routing touches fewer.
    Source: DeepSeekMoE, arXiv 2401.06066, uniform gate; elementary probability.

    >>> experts_touched(8, 2, 1), round(experts_touched(128, 8, 64), 1)
    (2.0, 125.9)
    """
    if tokens < 0 or not 1 <= top_k <= experts:
        raise InputError(f"{top_k} of {experts} experts for {tokens:g} tokens", expected="1 <= top_k <= experts")
    missed: float = (1 - top_k / experts) ** tokens
    return experts * (1 - missed)


def expected_distinct_ranks(experts: int, top_k: int, ranks: int) -> float:
    """Expected number of ranks that hold at least one of a token's experts, the own rank included.

    Equation: n (1 - C(E - E/n, k) / C(E, k)).

    Parameters: ``experts`` E, a multiple of n [-]; ``top_k`` k, 1..E distinct experts [-]; ``ranks`` n >= 1 [-].
    Returns: min(1, k) .. min(n, k) [-].
    Raises: `InputError` if n does not divide E or k is out of range.
    Validity: uniform gate without groups; E/n experts on every rank.
    Source: DeepEP V2 deep_ep/elastic.py (dd758caf).

    >>> round(expected_distinct_ranks(256, 8, 8), 2), expected_distinct_ranks(8, 8, 4)
    (5.29, 4.0)
    """
    if ranks < 1 or experts % ranks:
        raise InputError(f"{experts} experts on {ranks} ranks", expected="a number of ranks that divides the experts")
    if not 1 <= top_k <= experts:
        raise InputError(f"{top_k} of {experts} experts per token", expected="1 to the number of experts")
    return ranks * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))


def ep_exchange(kind: str, routing: Routing, gpus: Sequence[int], box: Box) -> tuple[CollectiveCost, CollectiveCost]:
    """Dispatch and combine of one MoE layer.

    Equation, with T tokens a rank, n ranks, row bytes r_d (out) and r_c (back):
    all_reduce: nothing. all_gather_reduce_scatter: all-gather of n T r_d, reduce-scatter of n T r_c. all_to_all: T k r.
    dedup: T E_R r, E_R = `expected_distinct_ranks`. low_latency: T k r. fused: T k r with no scales, on the wire for
    V/C of the slowest port (see `fused_moe` for the time of the whole kernel). Of each, (n-1)/n leaves the GPU.

    Parameters
    ----------
    kind: one of `EpExchange`.
    routing: tokens of one rank and their widths.
    gpus: the expert-parallel group, in ring order.
    box: where.

    Returns
    -------
    (dispatch, combine).

    Raises
    ------
    InputError: unknown kind; ranks that do not divide the experts.
    CoverageError: fused without NVLink (one kernel on memory that all GPUs map).

    Notes
    -----
    Validity: balanced experts. A hot expert's rank takes in more; that is not in these numbers. Source: vLLM
    all2all.py (all-gather and reduce-scatter), DeepEP README and elastic.py, DeepGEMM mega_moe.

    """
    try:
        exchange = EpExchange(kind)
    except ValueError:
        legal = [member.value for member in EpExchange]
        raise InputError(
            f"unknown EP exchange {kind!r}", expected="one of " + ", ".join(legal), nearest=nearest(kind, legal)
        ) from None
    ranks, tokens = len(gpus), routing.tokens
    out, back = routing.dispatch_row_bytes, routing.combine_row_bytes
    if exchange is EpExchange.ALL_REDUCE:
        return collective("all_gather", 0.0, gpus, box), collective("reduce_scatter", 0.0, gpus, box)
    if exchange is EpExchange.ALL_GATHER_REDUCE_SCATTER:
        gathered = collective("all_gather", ranks * tokens * out, gpus, box)
        return gathered, collective("reduce_scatter", ranks * tokens * back, gpus, box)
    if exchange is EpExchange.ALL_TO_ALL:
        copies = tokens * routing.top_k
        return collective("all_to_all", copies * out, gpus, box), collective("all_to_all", copies * back, gpus, box)
    if exchange is EpExchange.DEDUP:
        copies = tokens * expected_distinct_ranks(routing.experts, routing.top_k, ranks)
        dispatch = collective("dispatch", copies * out, gpus, box, "deepep")
        return dispatch, collective("combine", copies * back, gpus, box, "deepep")
    if exchange is EpExchange.LOW_LATENCY:
        sent = tokens * routing.top_k
        dispatch = collective("dispatch", sent * out, gpus, box, "deepep_ll")
        return dispatch, collective("combine", sent * back, gpus, box, "deepep_ll")
    sizes = fused_bytes(routing)
    return _flat("dispatch", sizes[0], gpus, box), _flat("combine", sizes[1], gpus, box)


# ---- fused ---------------------------------------------------------------------------------------------------------
def fused_bytes(routing: Routing) -> tuple[float, float]:
    """What the fused kernel sends per rank, own rank included: out, back [byte].

    Equation: T k H b_d and T k H b_c: a copy per expert; with FP8 out and BF16 back, 3 T k H in all.

    Returns: (dispatch, combine) [byte].
    Validity: scales (1/32 of the FP8 bytes) are left out, as the published bandwidths leave them out.
    Source: DeepGEMM tests/test_mega_moe.py at 54e2261.
    """
    copies = routing.tokens * routing.top_k * routing.hidden_size
    return copies * routing.dispatch_bytes, copies * routing.combine_bytes


def _flat(operation: str, size_bytes: float, gpus: Sequence[int], box: Box) -> CollectiveCost:
    """Bytes of a fused kernel: no latency of their own, the time is what the slowest port needs."""
    if not box.has_nvlink:
        raise CoverageError(
            f"{box.profile.name} has no NVLink: the fused kernel reads and writes its peers' memory over it",
            expected="another EP exchange, such as all_gather_reduce_scatter",
        )
    kind, order = CollectiveOperation(operation), tuple(gpus)
    if len(order) == 1 or size_bytes == 0:
        return collective(operation, 0.0, gpus, box)
    wire = wire_per_byte(box, order, kind, Algorithm.PAIRWISE)
    port, per_byte = wire.slowest(box)
    time_s = per_byte * size_bytes
    return CollectiveCost(
        operation=kind,
        implementation=Implementation.DEEPGEMM,
        ranks=len(order),
        size_bytes=size_bytes,
        time_s=time_s,
        own_time_s=time_s,
        algorithm="fused",
        protocol="none",
        busbw_bytes_per_s=(len(order) - 1) / len(order) * size_bytes / time_s,
        wire_bytes={name: share * size_bytes for name, share in wire.ports.items()},
        input_links=wire.input_links,
        source=box.port_index[port].source,
        hazards=wire.hazards,
    )


@dataclass(frozen=True, slots=True)
class FusedMoe:
    """One layer in one kernel: the exchange runs flat beside the compute.

    ``time_s`` T of the whole kernel; ``exposed_s`` what the exchange adds, max(0, V/B - compute); ``tail_s`` the serial
    reduction at the end, in ``time_s``; ``wire_bytes`` V per port, ``demand_bytes_per_s`` the flat rate V/T.
    """

    time_s: float
    exchange_s: float
    exposed_s: float
    tail_s: float
    wire_bytes: Mapping[str, float]
    input_links: Mapping[str, tuple[str, ...]]

    @property
    def demand_bytes_per_s(self) -> dict[str, float]:
        """The critical demand on every port, flat over the kernel [byte/s]."""
        return {port: size / self.time_s for port, size in self.wire_bytes.items()} if self.time_s else {}


def fused_tail_s(routing: Routing) -> float:
    """The reduction over a token's copies that ends the fused kernel.

    Equation: T H b_c (1 + k) / 6.5e12 byte/s: every copy read, the sum written.

    Returns: [s].
    Validity: B-series GPUs (HBM and L2 of that class).
    Source: DeepGEMM tests/test_mega_moe.py at 54e2261.
    """
    return routing.tokens * routing.combine_row_bytes * (1 + routing.top_k) / FUSED_TAIL_BYTES_PER_S


def fused_moe(routing: Routing, compute_s: float, gpus: Sequence[int], box: Box) -> FusedMoe:
    """A whole MoE layer by one kernel that overlaps exchange and compute.

    Equation: T = max(compute, V/B) + tail; exposed = max(0, V/B - compute); V/B the time that the slowest port needs
    for dispatch and combine together.

    Parameters: ``compute_s`` of the experts alone, HBM included [s].
    Returns: `FusedMoe`.
    Raises: `CoverageError` without NVLink.
    Validity: enough waves of experts to overlap (512 tokens a rank and more); below, latency governs (56 us for one
    token on 8 B-series GPUs).
    Source: DeepGEMM tests/test_mega_moe.py at 54e2261; figures of pull request 316.
    """
    dispatch, combine = ep_exchange(EpExchange.FUSED.value, routing, gpus, box)
    exchange = dispatch.time_s + combine.time_s
    tail = fused_tail_s(routing)
    ports = {*dispatch.wire_bytes, *combine.wire_bytes}
    wire = {port: dispatch.wire_bytes.get(port, 0.0) + combine.wire_bytes.get(port, 0.0) for port in sorted(ports)}
    return FusedMoe(
        time_s=max(compute_s, exchange) + tail,
        exchange_s=exchange,
        exposed_s=max(0.0, exchange - compute_s),
        tail_s=tail,
        wire_bytes=wire,
        input_links=dispatch.input_links or combine.input_links,
    )


def fused_flop(routing: Routing, intermediate_size: int) -> float:
    """Floating-point operations of a gated MoE layer on one rank with balanced experts.

    Equation: 2 T k 3 H I.

    Parameters: ``intermediate_size`` I of one expert [-].
    Returns: [FLOP].
    Validity: gate, up and down matrices.
    Source: DeepGEMM tests/test_mega_moe.py at 54e2261.
    """
    return 2.0 * routing.tokens * routing.top_k * 3 * routing.hidden_size * intermediate_size
