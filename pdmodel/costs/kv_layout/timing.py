"""What a hand-over takes: the law of a transfer on the pairs of a layout, over a path, with an engine's constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.kv_layout.caches import Cache
from pdmodel.costs.kv_layout.law import MOONCAKE_SLICES, Slicing, Terms, slices, staging_s, transfer_terms
from pdmodel.costs.kv_layout.pairs import Exchange, Pair, pairs
from pdmodel.costs.kv_transfer import MESSAGES_PER_S_AND_QP, TransferConstants
from pdmodel.engines.spec import EngineSpec, RouteRule
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.routes import kv_route, nearest_nics
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind
from pdmodel.units import GB, US

# What one 400G NIC takes out of GPU memory, 391.5 Gb/s (github.com/NVIDIA/nccl/issues/2409); the path without a box.
NIC_BYTES_PER_S = 48.9 * GB
# Memory of an RTX PRO 6000 Blackwell, 1,792 GB/s (NVIDIA data sheet): what packs and unpacks without a box.
HBM_BYTES_PER_S = 1792 * GB
# One thread posts a request: 1.71 million descriptors took 5.2 s with SGLang's four queues (sglang pull request 40500).
POSTING_THREADS = 1


@dataclass(frozen=True, slots=True)
class PathTime:
    """The port that takes longest: its time [s], its name, its rate [byte/s]; hazards of the routes."""

    time_s: float
    port: str
    bytes_per_s: float
    hazards: tuple[str, ...] = ()


Path = Callable[[Sequence[Pair]], PathTime]


def even_path(bytes_per_s: float = NIC_BYTES_PER_S) -> Path:
    """A path on which every rank has a NIC of its own.

    Equation: max( max_source sum V, max_destination sum V ) / B.

    Parameters: ``bytes_per_s`` B > 0 [byte/s].
    Returns: a function of the pairs.
    Raises: `InputError` for B <= 0.
    Validity: a fabric that does not block; GPUDirect.
    Source: one port of each NIC and direction.
    """
    if bytes_per_s <= 0:
        raise InputError(f"a NIC of {bytes_per_s:g} byte/s", expected="a positive rate")

    def time(found: Sequence[Pair]) -> PathTime:
        load: dict[str, float] = defaultdict(float)
        for pair in found:
            load[f"P/rank{pair.source_rank}/nic"] += pair.size_bytes
            load[f"D/rank{pair.destination_rank}/nic"] += pair.size_bytes
        port = max(load, key=lambda name: load[name])
        return PathTime(load[port] / bytes_per_s, port, bytes_per_s)

    return time


def box_path(source: Box, destination: Box, rule: RouteRule = RouteRule.NEAREST) -> Path:
    """The path through two boxes, rank r on GPU r: each port's bytes over its capacity.

    Equation: max_e sum_pairs m_e V / C_e; a rank's bytes are spread evenly over the NICs that ``rule`` gives it.

    Parameters: ``source``, ``destination``: boxes of different nodes; ``rule``: nearest NICs (all of a tie), or all.
    Returns: a function of the pairs.
    Raises: `CoverageError` for a box without NICs; `InputError` for a rank without a GPU.
    Validity: nothing else on the ports; a fabric that does not block.
    Source: `pdmodel.hardware.routes.kv_route`.
    """
    for box in (source, destination):
        if box.nic_count == 0:
            raise CoverageError(f"{box.profile.name} has no NIC to send KV with", expected="a box with NICs")
    capacity = {port.name: port.capacity_bytes_per_s for box in (source, destination) for port in box.ports}

    def nics(box: Box, gpu: int) -> tuple[int, ...]:
        return tuple(range(box.nic_count)) if rule is RouteRule.STRIPE else nearest_nics(box, gpu)

    def time(found: Sequence[Pair]) -> PathTime:
        load: dict[str, float] = defaultdict(float)
        hazards: dict[str, None] = {}
        for pair in found:
            one, two = pair.source_rank, pair.destination_rank
            ways = [(here, there) for here in nics(source, one) for there in nics(destination, two)]
            for here, there in ways:
                route = kv_route(source, one, here, destination, there, two)
                hazards.update(dict.fromkeys(route.hazards))
                for name, multiplicity in route.ports.items():
                    load[name] += multiplicity * pair.size_bytes / len(ways)
        port = max(load, key=lambda name: load[name] / capacity[name])
        return PathTime(load[port] / capacity[port], port, capacity[port], tuple(hazards))

    return time


def engine_constants(engine: EngineSpec, threads: int = POSTING_THREADS) -> TransferConstants:
    """The law's constants of an engine.

    Parameters: ``threads`` W that post one request.
    Returns: t0, tau, W and mu = queue pairs x 7 million a second.
    Source: the engine's file; perftest logs for mu (`pdmodel.costs.kv_transfer`).
    """
    posting = engine.posting
    return TransferConstants(
        setup_s=posting.request_overhead_us.value * US,
        descriptor_s=posting.descriptor_us.value * US,
        threads=threads,
        messages_per_s=posting.queue_pairs.value * MESSAGES_PER_S_AND_QP,
        source=SourceKind.DERIVED,
        ref=f"engine {engine.name}",
    )


def engine_slicing(engine: EngineSpec) -> Slicing:
    """How an engine cuts descriptors: its slice, and Mooncake's rest in proportion to it."""
    size = float(engine.posting.slice_bytes.value)
    return Slicing(size, size * MOONCAKE_SLICES.fragment_bytes / MOONCAKE_SLICES.slice_bytes)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a hand-over meets beside its layout: path, engine, memory [byte/s]."""

    path: Path
    constants: TransferConstants
    slicing: Slicing = MOONCAKE_SLICES
    hbm_bytes_per_s: float = HBM_BYTES_PER_S

    def with_threads(self, threads: int) -> Setting:
        """The same with another number of posting threads."""
        return replace(self, constants=replace(self.constants, threads=threads))


@dataclass(frozen=True, slots=True)
class HandOver:
    """The cost of handing a sequence over: pairs, terms, and the port that takes longest."""

    pairs: tuple[Pair, ...]
    terms: Terms
    path: PathTime

    @property
    def size_bytes(self) -> float:
        """Bytes on the wire [byte]."""
        return sum(pair.size_bytes for pair in self.pairs)

    @property
    def descriptors(self) -> int:
        """Descriptors of all pairs [-]."""
        return sum(pair.descriptors for pair in self.pairs)

    @property
    def run_bytes(self) -> float:
        """Mean length of a descriptor [byte]."""
        return self.size_bytes / self.descriptors

    @property
    def senders(self) -> int:
        """Ranks that send [-]."""
        return len({pair.source_rank for pair in self.pairs})


def hand_over(exchange: Exchange, kept: Sequence[Cache], setting: Setting) -> HandOver:
    """Time of handing a sequence over, all of it ready to be sent.

    Equation: T = t0 + max( max_e V_e/C_e, max_s N_s tau/W, max_s M_s/mu ) + staging; M = N x slices of their mean
    length; s: senders.

    Parameters: ``exchange``, ``kept``: as `pairs`; ``setting``: path, engine constants, memory.
    Returns: `HandOver`.
    Raises: as `pairs` and the path.
    Validity: as `transfer_terms`; one request alone.
    Source: `transfer_terms`, `pairs`.
    """
    found = pairs(exchange, kept)
    posted: dict[int, int] = defaultdict(int)
    messages: dict[int, float] = defaultdict(float)
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for pair in found:
        posted[pair.source_rank] += pair.descriptors
        messages[pair.source_rank] += sum(count * slices(size, setting.slicing) for count, size in pair.pieces)
        sent[pair.source_rank] += pair.size_bytes
        received[pair.destination_rank] += pair.size_bytes
    path = setting.path(found)
    packing = 0.0
    if exchange.chunk_tokens is not None:
        chunks = -(-max(cache.rows * cache.tokens_per_row for cache in kept) // exchange.chunk_tokens)
        packing = staging_s(max(sent.values()), max(received.values()), chunks, setting.hbm_bytes_per_s)
    terms = transfer_terms(
        path.time_s, max(posted.values()), max(messages.values()), setting.constants, staging_s=packing
    )
    return HandOver(found, terms, path)
