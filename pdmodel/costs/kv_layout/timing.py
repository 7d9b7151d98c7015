"""What a hand-over takes: the law of a transfer on the pairs of a layout, over a path, with an engine's constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.fullest_port import PathTime, fullest_port
from pdmodel.costs.kv_layout.caches import Cache
from pdmodel.costs.kv_layout.law import MOONCAKE_SLICES, Slicing, Terms, slices, staging_s, transfer_terms
from pdmodel.costs.kv_layout.pairs import Exchange, Pair, pairs
from pdmodel.costs.kv_transfer import TransferConstants
from pdmodel.costs.nic_choice import End, Way, kv_ways
from pdmodel.engines.spec import EngineSpec, Mode, RouteRule
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind
from pdmodel.units import GB, US

# What one 400G NIC takes out of GPU memory, 391.5 Gb/s (github.com/NVIDIA/nccl/issues/2409); the path without a box.
NIC_BYTES_PER_S = 48.9 * GB
# Memory of an RTX PRO 6000 Blackwell, 1,792 GB/s (NVIDIA data sheet): what packs and unpacks without a box.
HBM_BYTES_PER_S = 1792 * GB


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


def route_path(ways: Callable[[int, int], Sequence[Way]], capacity: Mapping[str, float]) -> Path:
    """A path made of routes: each port's bytes over its capacity.

    Equation: max_e sum_{pairs, ways} m_e s V / C_e, s: the share of a way.

    Parameters: ``ways``: of (source rank, destination rank); ``capacity`` C of every port [byte/s].
    Returns: a function of the pairs.
    Validity: nothing else on the ports; bytes stay on the way that the rule gave them.
    Source: one bottleneck; a request is over when its last way is.
    """

    def time(found: Sequence[Pair]) -> PathTime:
        moved = (
            (way.route, way.share * pair.size_bytes)
            for pair in found
            for way in ways(pair.source_rank, pair.destination_rank)
        )
        return fullest_port(moved, capacity)

    return time


def one_sender_at_a_time(path: Path, name: Callable[[int], str]) -> Path:
    """A path to ranks that receive from one sender after the other.

    Equation: max( T(all), max_d sum_s T(s -> d) ), T: the path's time of some of the pairs.

    Parameters: ``path``; ``name``: of the port that stands for a destination rank.
    Returns: a function of the pairs.
    Validity: as ``path``; no pause between two senders.
    Source: TensorRT-LLM docs, features/disagg-serving.md (TRTLLM_ENABLE_KVCACHE_RECEIVE_PARALLEL is off).
    """

    def time(found: Sequence[Pair]) -> PathTime:
        longest = path(found)
        received: dict[int, list[Pair]] = defaultdict(list)
        for pair in found:
            received[pair.destination_rank].append(pair)
        for rank, pairs_in in received.items():
            turns_s = sum(path([pair]).time_s for pair in pairs_in)
            if turns_s > longest.time_s * (1 + 1e-9):
                size = sum(pair.size_bytes for pair in pairs_in)
                longest = PathTime(turns_s, name(rank), size / turns_s, longest.hazards)
        return longest

    return time


def box_path(source: Box, destination: Box, rule: RouteRule = RouteRule.NEAREST) -> Path:
    """The path through two boxes, rank r on GPU r, as `route_path`.

    Parameters: ``source``, ``destination``: boxes of different nodes; ``rule``: which NICs a rank uses (`kv_ways`).
    Returns: a function of the pairs.
    Raises: `CoverageError` for a box without NICs; `InputError` for a rank without a GPU.
    Validity: as `route_path`; a fabric that does not block.
    Source: `pdmodel.hardware.routes.kv_route`.
    """
    for box in (source, destination):
        if box.nic_count == 0:
            raise CoverageError(f"{box.profile.name} has no NIC to send KV with", expected="a box with NICs")
    capacity = {port.name: port.capacity_bytes_per_s for box in (source, destination) for port in box.ports}
    known: dict[tuple[int, int], tuple[Way, ...]] = {}

    def ways(one: int, two: int) -> tuple[Way, ...]:
        if (one, two) not in known:
            known[one, two] = kv_ways(End.of(source, one), End.of(destination, two), rule, capacity)
        return known[one, two]

    return route_path(ways, capacity)


NIC_CHOICES = {
    RouteRule.NEAREST: "the nearest NIC alone",
    RouteRule.STRIPE: "every NIC, in equal parts",
    RouteRule.WEIGHTED: "every NIC, as much as each path carries",
}
"""What a list of NICs, or an engine that weighs paths, can set instead of the rule in force."""


def box_choices(source: Box, destination: Box, rule: RouteRule = RouteRule.NEAREST) -> tuple[tuple[str, Path], ...]:
    """Other NICs than those of ``rule``: what is done, and `box_path` with it."""
    return tuple((what, box_path(source, destination, other)) for other, what in NIC_CHOICES.items() if other != rule)


def engine_constants(engine: EngineSpec, threads: int | None = None) -> TransferConstants:
    """The law's constants of an engine.

    Parameters: ``threads`` W that post one request; None: the engine's.
    Returns: t0, tau, W and mu of a NIC's queue pairs.
    Source: the engine's file and its backend's.
    """
    posting = engine.posting
    return TransferConstants(
        setup_s=posting.request_overhead_us.value * US,
        descriptor_s=posting.descriptor_us.value * US,
        threads=threads or engine.posting_threads.value,
        messages_per_s=posting.nic_messages_per_s,
        source=SourceKind.DERIVED,
        ref=f"engine {engine.name}",
    )


def staged_tokens(engine: EngineSpec, bytes_per_token: float) -> int:
    """Tokens that an engine packs into one buffer before it sends them; 0: it does not pack.

    Parameters: ``bytes_per_token``: of one rank [byte].
    Source: the engine's file: a number of tokens, or the size of the buffer.
    """
    size_bytes = engine.staging_bytes.value
    return max(1, int(size_bytes / bytes_per_token)) if size_bytes else engine.staging_tokens.value


def engine_slicing(engine: EngineSpec) -> Slicing:
    """How an engine's backend cuts descriptors, and the rest that it does not cut off."""
    posting = engine.posting
    return Slicing(float(posting.slice_bytes.value), float(posting.fragment_bytes.value))


@dataclass(frozen=True, slots=True)
class Setting:
    """What a hand-over meets beside its layout: path, engine, memory [byte/s].

    ``mode``: who posts, the senders (push) or the receivers (pull). ``other_paths``: what else one could do about NICs.
    ``receiving``: where a rank receives from one sender after the other, the name of the port that stands for that.
    """

    path: Path
    constants: TransferConstants
    slicing: Slicing = MOONCAKE_SLICES
    hbm_bytes_per_s: float = HBM_BYTES_PER_S
    mode: Mode = Mode.PUSH
    other_paths: tuple[tuple[str, Path], ...] = ()
    receiving: Callable[[int], str] | None = None

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


def work_requests(pair: Pair, slicing: Slicing = MOONCAKE_SLICES) -> int:
    """Work requests of one pair: its descriptors, each cut into slices [-]."""
    return sum(count * slices(size, slicing) for count, size in pair.pieces)


def hand_over(exchange: Exchange, kept: Sequence[Cache], setting: Setting) -> HandOver:
    """Time of handing a sequence over, all of it ready to be sent.

    Equation: T = t0 + max( max_e V_e/C_e, max_s N_s tau/W, max_s M_s/mu ) + staging; M = N x slices of their mean
    length; s: who posts, senders or receivers. Where a rank receives from one sender after the other, all that it
    receives is posted in turn, too.

    Parameters: ``exchange``, ``kept``: as `pairs`; ``setting``: path, engine constants, memory.
    Returns: `HandOver`.
    Raises: as `pairs` and the path.
    Validity: as `transfer_terms`; one request alone.
    Source: `transfer_terms`, `pairs`.
    """
    found = pairs(exchange, kept)
    posted: dict[tuple[str, int], int] = defaultdict(int)
    messages: dict[tuple[str, int], float] = defaultdict(float)
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for pair in found:
        by = [("from", pair.source_rank) if setting.mode is Mode.PUSH else ("to", pair.destination_rank)]
        if setting.receiving is not None and setting.mode is Mode.PUSH:
            by.append(("to", pair.destination_rank))
        for end in by:
            posted[end] += pair.descriptors
            messages[end] += work_requests(pair, setting.slicing)
        sent[pair.source_rank] += pair.size_bytes
        received[pair.destination_rank] += pair.size_bytes
    in_turn = setting.receiving
    path = (setting.path if in_turn is None else one_sender_at_a_time(setting.path, in_turn))(found)
    packing = 0.0
    if exchange.chunk_tokens is not None:
        chunks = -(-max(cache.rows * cache.tokens_per_row for cache in kept) // exchange.chunk_tokens)
        packing = staging_s(max(sent.values()), max(received.values()), chunks, setting.hbm_bytes_per_s)
    terms = transfer_terms(
        path.time_s, max(posted.values()), max(messages.values()), setting.constants, staging_s=packing
    )
    return HandOver(found, terms, path)
