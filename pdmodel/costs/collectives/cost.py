"""Time of a collective on a box, and the bytes that it puts on every port while it lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from pdmodel.costs.collectives.bandwidth import busbw_factor
from pdmodel.costs.collectives.graphs import situation, switched
from pdmodel.costs.collectives.pcie import PCIE_KERNELS, pcie_constants
from pdmodel.costs.collectives.protocol import fastest_branch, usable, wire_factor
from pdmodel.costs.collectives.ring import check_ranks
from pdmodel.costs.collectives.scaling import Found, constants_for, ring_latency_us
from pdmodel.costs.collectives.wire import wire_per_byte
from pdmodel.errors import InputError, nearest
from pdmodel.hardware.constants import Algorithm, Branch, CollectiveOperation, Implementation, Protocol
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind, weakest
from pdmodel.units import GB, format_bytes, format_rate, format_seconds

# Share of the slowest port that a collective is taken to reach where nothing is known about the box: the middle of
# measured rings on PCIe (0.49 to 0.98 of a port) and NVLink (0.71 to 0.94).
ASSUMED_SHARE = 0.8

_Name = TypeVar("_Name", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """One call: its time [s] and, per port, the bytes on the wire [byte] (payload, flags, read requests).

    ``own_time_s`` is what the constants say; ``time_s`` is longer where a port needs longer (``raised``, with a warning
    that names the port and both figures). ``notes`` say what was derived or assumed.
    """

    operation: CollectiveOperation
    implementation: Implementation
    ranks: int
    size_bytes: float
    time_s: float
    own_time_s: float
    algorithm: str
    protocol: str
    busbw_bytes_per_s: float
    wire_bytes: Mapping[str, float]
    input_links: Mapping[str, tuple[str, ...]]
    source: SourceKind
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    hazards: tuple[str, ...] = field(default_factory=tuple)

    @property
    def raised(self) -> bool:
        """Whether a port, and not the constants, sets the time."""
        return self.time_s > self.own_time_s

    @property
    def demand_bytes_per_s(self) -> dict[str, float]:
        """Mean rate on each port while the collective lasts, never above the port's capacity [byte/s]."""
        return {port: size / self.time_s for port, size in self.wire_bytes.items()} if self.time_s else {}


def _named(kind: type[_Name], word: str, what: str) -> _Name:
    try:
        return kind(word)
    except ValueError:
        legal = [member.value for member in kind]
        raise InputError(
            f"unknown {what} {word!r}", expected="one of " + ", ".join(legal), nearest=nearest(word, legal)
        ) from None


def default_branches(
    operation: CollectiveOperation, gpus: tuple[int, ...], box: Box, share: float = ASSUMED_SHARE
) -> tuple[Branch, ...]:
    """NCCL's lines for a box about which nothing was measured.

    Equation: Simple: B = u / max_e (W_e / C_e), W the wire bytes per byte of S; LL: half of that, as NCCL rates it.
    alpha = base + steps * hop (`ring_latency_us`).

    Parameters: ``share`` u of the slowest port that is reached [-].
    Returns: branches LL and Simple.
    Validity: assumed; small messages within a factor of two, large ones within 40 %.
    Source: NCCL 2.30.7 src/graph/tuning.cc (LL min(llMax, x/2), latencies); share: see `ASSUMED_SHARE`.
    """
    exchange = operation in {CollectiveOperation.ALL_TO_ALL, CollectiveOperation.DISPATCH, CollectiveOperation.COMBINE}
    algorithm = Algorithm.PAIRWISE if exchange else Algorithm.RING
    _, slowest = wire_per_byte(box, gpus, operation, algorithm).slowest(box)
    return tuple(
        Branch(
            protocol=protocol,
            algorithm=algorithm,
            alpha_us=ring_latency_us(operation, protocol, len(gpus), nvlink=box.has_nvlink),
            bandwidth_gb_per_s=part * share / slowest / GB,
        )
        for protocol, part in ((Protocol.LL, 0.5), (Protocol.SIMPLE, 1.0))
    )


def collective(
    operation: str, size_bytes: float, gpus: Sequence[int], box: Box, implementation: str = "nccl"
) -> CollectiveCost:
    """One collective among GPUs of a box.

    Equation: t = max( min_k (alpha_k + S/B_k), max_e W_e S f / C_e ), with the branches of the profile (or what follows
    from them), W_e the wire bytes of the branch's algorithm per byte of S on port e, f the protocol's wire factor.

    Parameters
    ----------
    operation: all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast, reduce, dispatch or combine.
    size_bytes: S >= 0 as nccl-tests prints it: all_reduce the buffer; all_gather what each rank holds afterwards;
        reduce_scatter what each rank holds before; all_to_all, dispatch, combine what each rank sends to all ranks, its
        own share included; send_recv, broadcast, reduce the message, with the first GPU as root [byte].
    gpus: indices in ring order. The ring runs once, in this direction.
    box: where.
    implementation: nccl, vllm_custom, deepep, deepep_ll, pcie_push or pcie_pull.

    Returns
    -------
    `CollectiveCost`; nothing on the wire and no time for one GPU or no bytes.

    Raises
    ------
    InputError: a word that is not one of these, a negative size, a GPU twice or not there; a PCIe kernel on a box, or
        for an operation, that it is not made for (`pcie_constants`).

    Notes
    -----
    Validity: one box, idle ports, all ranks at once. Critical traffic never exceeds a port: where the constants would
    have it so, the time is raised. Source: design of this package; constants and their sources are in the profile.

    """
    kind, what = (
        _named(CollectiveOperation, operation, "operation"),
        _named(Implementation, implementation, "implementation"),
    )
    order = tuple(gpus)
    check_ranks(len(order))
    if size_bytes < 0:
        raise InputError(f"a collective of {size_bytes:g} bytes", expected="0 or more")
    if len(order) == 1 or size_bytes == 0:
        for gpu in order:
            box.gpu(gpu)
        return CollectiveCost(
            kind, what, len(order), size_bytes, 0.0, 0.0, "none", "none", 0.0, {}, {}, SourceKind.MEASURED
        )
    found = pcie_constants(box, order, kind, what) if what in PCIE_KERNELS else None
    found = found or constants_for(box.profile, kind, what, len(order))
    if found is None:
        note = (
            f"no constants for {kind.value} on {box.profile.name}: {ASSUMED_SHARE:.0%} of the slowest port is assumed"
        )
        lines = switched(default_branches(kind, order, box), kind, situation(box, order))
        found = Found(lines, SourceKind.ASSUMED, (note,))
    return _cost(kind, what, size_bytes, order, box, found)


def _cost(  # noqa: PLR0917  (the parts of one call, in the order of `collective`)
    operation: CollectiveOperation,
    implementation: Implementation,
    size_bytes: float,
    gpus: tuple[int, ...],
    box: Box,
    found: Found,
) -> CollectiveCost:
    own_time_s, branch = fastest_branch(usable(found.branches, nvlink=box.has_nvlink), size_bytes, found.table)
    wire = wire_per_byte(box, gpus, operation, branch.algorithm)
    scale = size_bytes * wire_factor(branch.protocol)
    port, per_byte = wire.slowest(box)
    time_s, warnings, source = own_time_s, [], found.source
    # A hair of tolerance: capacities that were derived from the same constants meet them exactly.
    if per_byte * scale > own_time_s * (1 + 1e-9):
        time_s = per_byte * scale
        source = weakest(source, box.port_index[port].source)
        capacity = format_rate(box.port_index[port].capacity_bytes_per_s)
        warnings.append(
            f"{operation.value} of {format_bytes(size_bytes)} among GPUs {list(gpus)} of {box.node}: its constants say "
            f"{format_seconds(own_time_s)}, but {port} ({capacity}) needs {format_seconds(time_s)} for "
            f"{format_bytes(wire.ports[port] * scale)}; raised to that"
        )
    return CollectiveCost(
        operation=operation,
        implementation=implementation,
        ranks=len(gpus),
        size_bytes=size_bytes,
        time_s=time_s,
        own_time_s=own_time_s,
        algorithm=branch.algorithm.value,
        protocol=branch.protocol.value,
        busbw_bytes_per_s=busbw_factor(operation, len(gpus)) * size_bytes / time_s,
        wire_bytes={name: share * scale for name, share in wire.ports.items()},
        input_links=wire.input_links,
        source=source,
        warnings=tuple(warnings),
        notes=found.notes,
        hazards=wire.hazards,
    )
