"""DeepEP's two exchanges in closed form: normal (a copy per rank, two levels between nodes), low latency (k copies)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pdmodel.costs.moe import Routing, expected_distinct_ranks
from pdmodel.errors import CoverageError, InputError, nearest
from pdmodel.units import GB, US

Direction = Literal["dispatch", "combine"]
# A low-latency message carries its source index beside values and scales; DeepEP csrc/kernels/internode_ll.cu (V1).
MESSAGE_BYTES = 16


@dataclass(frozen=True, slots=True)
class LowLatency:
    """Constants of one direction: latency, bytes over NVLink; ``rdma_gb_per_s`` where nodes are crossed."""

    base_us: float
    per_expert_us: float
    per_hidden_us: float
    nvlink_gb_per_s: float
    rdma_gb_per_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Normal:
    """Constants of one direction of the normal kernels: alpha, what an SM moves, what the links carry."""

    alpha_us: float
    sm_gb_per_s: float
    nvlink_gb_per_s: float
    rdma_gb_per_s: float | None
    source: str


_AIC = "aiconfigurator 0.12.0 (NVIDIA, Apache-2.0)"
_LEGACY = "DeepEP docs/legacy.md (V1, H800, 8 x 400 Gbit/s)"
# Fitted on the token counts 1, 4, 16, ... of the tables named; errors on the others in docs/collectives.md.
LOW_LATENCY: Mapping[tuple[str, Direction], LowLatency] = {
    ("h100", "dispatch"): LowLatency(8.21, 0.01217, 2.22e-4, 290.0, None, f"{_AIC}, h100_sxm sglang 0.5.12"),
    ("h100", "combine"): LowLatency(9.58, 0.00451, 2.38e-4, 251.5, None, f"{_AIC}, h100_sxm sglang 0.5.12"),
    ("b200", "dispatch"): LowLatency(13.35, 0.02388, 2.51e-4, 562.7, None, f"{_AIC}, b200_sxm sglang 0.5.12"),
    ("b200", "combine"): LowLatency(14.56, 0.01327, 2.58e-4, 693.4, None, f"{_AIC}, b200_sxm sglang 0.5.12"),
    # Base from 16 ranks (118 and 195 us), NVLink from 8 (77 and 114 us), RDMA the NIC's line rate.
    ("h800", "dispatch"): LowLatency(42.0, 0.0, 0.0, 210.0, 50.0, _LEGACY),
    ("h800", "combine"): LowLatency(48.0, 0.0, 0.0, 222.0, 50.0, _LEGACY),
}
NORMAL: Mapping[tuple[str, Direction], Normal] = {
    ("h100", "dispatch"): Normal(26.0, 15.8, 400.0, None, f"{_AIC}, h100_sxm sglang 0.5.12"),
    ("h100", "combine"): Normal(40.0, 19.0, 400.0, None, f"{_AIC}, h100_sxm sglang 0.5.12"),
    # The published rates at 24 and 64 SMs, 8192 tokens.
    ("b200_v2", "dispatch"): Normal(0.0, 34.0, 727.0, None, "DeepEP README (V2, SM100, EP8)"),
    ("b200_v2", "combine"): Normal(0.0, 37.6, 741.0, None, "DeepEP README (V2, SM100, EP8)"),
    # SMs as on B200, links as with V1; RDMA 0.9 of the line rate, from 2 nodes of 8 (90 GB/s, half of it local).
    ("h100_v2", "dispatch"): Normal(0.0, 34.0, 400.0, 45.0, "DeepEP README (V2, SM90, EP 8 x 2)"),
    ("h100_v2", "combine"): Normal(0.0, 37.6, 400.0, 45.0, "DeepEP README (V2, SM90, EP 8 x 2)"),
    # NVLink from 8 ranks; RDMA as with V2.
    ("h800", "dispatch"): Normal(0.0, 15.8, 153.0, 45.0, f"{_LEGACY}; DeepEP README (V2)"),
    ("h800", "combine"): Normal(0.0, 19.0, 158.0, 45.0, f"{_LEGACY}; DeepEP README (V2)"),
}
# SMs and links limit the normal kernels together: a soft minimum with this exponent (own fit, 4 to 24 SMs).
SOFTNESS = 4.0

_C = TypeVar("_C", LowLatency, Normal)


def _constants(table: Mapping[tuple[str, Direction], _C], gpu: str, direction: Direction) -> _C:
    found = table.get((gpu, direction))
    if found is None:
        known = sorted({name for name, _ in table})
        raise CoverageError(
            f"no DeepEP constants for GPU {gpu!r}", expected="one of " + ", ".join(known), nearest=nearest(gpu, known)
        )
    return found


def low_latency_bytes(routing: Routing, direction: Direction) -> float:
    """Payload that one rank sends in a low-latency exchange, its own copies included.

    Equation: T k (H + 4 H/128 + 16) out (FP8 with scales and the source's index), T k 2 H back: a copy per expert.

    Returns: [byte].
    Source: DeepEP docs/legacy.md: 128 tokens, 8 experts, H 7168: 98 GB/s * 77 us; recomputed.
    """
    row = routing.dispatch_row_bytes + MESSAGE_BYTES if direction == "dispatch" else routing.combine_row_bytes
    return routing.tokens * routing.top_k * row


def low_latency_s(routing: Routing, direction: Direction, gpu: str, ranks: int = 8, ranks_per_node: int = 8) -> float:
    """Time of one low-latency dispatch or combine.

    Equation: t = a + a_E E + a_H H + max(V share_in / B_nvlink, V share_out / B_rdma); share_out = (n - g)/n, the part
    for other nodes of g ranks; share_in = g/n.

    Parameters: ``routing`` tokens T of one rank; ``gpu`` h100, b200 or h800; ``ranks`` n, ``ranks_per_node`` g [-].
    Returns: [s].
    Raises: `CoverageError` for a GPU without constants, or nodes without an RDMA rate.
    Validity: balanced experts; 1 to 1024 tokens.
    Source: own form; constants in `LOW_LATENCY`.
    """
    constants = _constants(LOW_LATENCY, gpu, direction)
    check_nodes(ranks, ranks_per_node)
    size = low_latency_bytes(routing, direction)
    local = min(ranks_per_node, ranks) / ranks
    moving = size * local / (constants.nvlink_gb_per_s * GB)
    if local < 1:
        if constants.rdma_gb_per_s is None:
            raise CoverageError(f"no RDMA rate of the low-latency kernels on {gpu}", expected="one node, or h800")
        moving = max(moving, size * (1 - local) / (constants.rdma_gb_per_s * GB))
    base = constants.base_us + constants.per_expert_us * routing.experts + constants.per_hidden_us * routing.hidden_size
    return base * US + moving


def check_nodes(ranks: int, ranks_per_node: int) -> None:
    """Refuse ranks that do not fill their nodes."""
    if ranks < 1 or ranks_per_node < 1 or (ranks > ranks_per_node and ranks % ranks_per_node):
        raise InputError(f"{ranks} ranks on nodes of {ranks_per_node}", expected="nodes that are full")


def expected_distinct_nodes(experts: int, top_k: int, nodes: int, node_limit: int | None = None) -> float:
    """Expected number of nodes that hold at least one of a token's experts.

    Equation: m (1 - C(E' - E'/m, k) / C(E', k)) with m = min(N, limit) and E' = E m / N: a group-limited gate first
    chooses m nodes.

    Parameters: ``nodes`` N; ``node_limit`` of the gate (DeepSeek-V3: 4), None for none.
    Returns: 1 .. m [-].
    Source: `expected_distinct_ranks` with nodes for ranks; DeepSeek-V3, arXiv 2412.19437, section 2.1.2.

    >>> round(expected_distinct_nodes(256, 8, 2), 2), round(expected_distinct_nodes(256, 8, 8, 4), 2)
    (1.99, 3.63)
    """
    reached = nodes if node_limit is None else min(nodes, node_limit)
    return expected_distinct_ranks(experts * reached // nodes, top_k, reached)


def two_level_bytes(
    routing: Routing, direction: Direction, ranks: int, ranks_per_node: int, node_limit: int | None = None
) -> tuple[float, float]:
    """What one rank's NIC and NVLink carry in a normal exchange over several nodes.

    Equation: NIC: T D_N (N-1)/N row, D_N the distinct nodes: a token crosses to a node once. NVLink: T D_R row, D_R the
    distinct ranks, own included: there it is forwarded to each rank. combine is dispatch mirrored.

    Returns: (RDMA, NVLink) [byte].
    Raises: `InputError` for ranks that do not fill nodes.
    Validity: balanced experts; NIC i of a node talks to NIC i of the others.
    Source: DeepEP README (normal kernels forward from RDMA to NVLink); counting.
    """
    check_nodes(ranks, ranks_per_node)
    row = routing.dispatch_row_bytes if direction == "dispatch" else routing.combine_row_bytes
    nodes = max(1, ranks // ranks_per_node)
    reached = nodes if node_limit is None else min(nodes, node_limit)
    near = expected_distinct_ranks(routing.experts * reached // nodes, routing.top_k, ranks * reached // nodes)
    far = expected_distinct_nodes(routing.experts, routing.top_k, nodes, node_limit) * (nodes - 1) / nodes
    return routing.tokens * far * row, routing.tokens * near * row


def normal_s(
    routing: Routing,
    direction: Direction,
    gpu: str,
    *,
    sms: int = 20,
    ranks: int = 8,
    ranks_per_node: int = 8,
    node_limit: int | None = None,
) -> float:
    """Time of one normal (high-throughput) dispatch or combine.

    Equation: t = a + max(V_nvlink / B, V_rdma / B_rdma); B = ((s b)^-q + B_nvlink^-q)^(-1/q), q = `SOFTNESS`, b what
    one of the s SMs moves.

    Parameters: ``gpu`` h100 or h800 (V1), h100_v2 or b200_v2; ``sms`` s given to the kernels [-]; ``node_limit`` of
    the gate.
    Returns: [s].
    Raises: `CoverageError` for a GPU without constants, or nodes without an RDMA rate.
    Validity: balanced experts; 512 tokens and more within 15 % on average, fewer by latency.
    Source: own form; constants in `NORMAL`.
    """
    constants = _constants(NORMAL, gpu, direction)
    rdma, nvlink = two_level_bytes(routing, direction, ranks, ranks_per_node, node_limit)
    by_sms, by_links = sms * constants.sm_gb_per_s, constants.nvlink_gb_per_s
    rate = float((by_sms**-SOFTNESS + by_links**-SOFTNESS) ** (-1 / SOFTNESS))
    moving = nvlink / (rate * GB)
    if rdma > 0:
        if constants.rdma_gb_per_s is None:
            raise CoverageError(f"no RDMA rate of the normal kernels on {gpu}", expected="one node, or h800")
        moving = max(moving, rdma / (constants.rdma_gb_per_s * GB))
    return constants.alpha_us * US + moving
