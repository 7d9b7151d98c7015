"""What a KV store costs: calls to its master, objects, bytes; and the way through it against a direct write.

A Put is two calls (PutStart allocates, PutEnd makes the object readable) around the write; a Get is one (the list of
replicas, with a lease on them) before the read. Calls take batches of objects. Bytes never pass the master.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pdmodel.costs.kv_layout.law import completion_s
from pdmodel.engines.stores import StoreBackend
from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture
from pdmodel.spec import SourceKind
from pdmodel.units import US


@dataclass(frozen=True, slots=True)
class StoreConstants:
    """What a store costs beside the bytes.

    ``query_rpc_s``: the call before a read; ``put_rpc_s``: the two calls around a write, together [s].
    ``object_put_s``, ``object_get_s``: of one object in a batch [s]. ``batch_objects``: what one call takes [-].
    ``lease_s``: how long after its query a read must have ended [s]; infinite where nothing expires.
    ``source``, ``ref``: where the numbers are from.
    """

    query_rpc_s: float
    put_rpc_s: float
    object_put_s: float
    object_get_s: float
    batch_objects: int
    lease_s: float
    source: SourceKind
    ref: str

    def __post_init__(self) -> None:
        least = min(self.query_rpc_s, self.put_rpc_s, self.object_put_s, self.object_get_s)
        if not least >= 0 or self.batch_objects < 1 or not self.lease_s > 0:
            raise InputError("store constants out of range", expected="times of 0 or more; batch and lease above 0")


MOONCAKE_STORE_TCP = StoreConstants(
    query_rpc_s=153 * US,
    put_rpc_s=272 * US,
    object_put_s=11.4 * US,
    object_get_s=9.3 * US,
    batch_objects=128,
    lease_s=10.0,
    source=SourceKind.MEASURED,
    ref="Mooncake Store 0.3.13 over TCP between namespaces of one host: fit to tests/published/store_timings.csv; "
    "batch of SGLang's HiCache; lease of Mooncake docs design/store/mooncake-store.md",
)


def page_objects(arch: Architecture, heads_objects: int) -> int:
    """Objects of one page of a rank: so many of what KV heads keep, and one of latents.

    Parameters: ``heads_objects``: K and V in one object, or apart (2).
    Validity: windows, states and index keys are counted with what they lie beside, not as objects of their own.
    Source: SGLang mem_cache/storage/mooncake_store/mooncake_store.py.

    >>> from pdmodel.llm.catalog import load_llm
    >>> page_objects(load_llm("qwen3-8b"), 2), page_objects(load_llm("deepseek-v3"), 2)
    (2, 1)
    """
    keeping = [mixer for mixer in arch.distinct_mixers() if mixer.stores]
    return objects_of([None if mixer.is_latent else 1 for mixer in keeping], heads_objects)


def objects_of(heads: Iterable[int | None], heads_objects: int) -> int:
    """Objects of a page with these kinds of KV in it; None: a latent."""
    kinds = {kind is None for kind in heads}
    return heads_objects * (False in kinds) + (True in kinds)


def backend_constants(
    backend: StoreBackend, lease_s: float | None = None, *, page_objects: int | None = None
) -> StoreConstants:
    """The constants of a storage backend.

    Parameters: ``lease_s``: another lease than the backend's own [s]; ``page_objects``: of one page of a rank, if not
    as many as the backend makes of KV heads.
    """
    lease = lease_s or (backend.lease_s.value if backend.lease_s else math.inf)
    return StoreConstants(
        query_rpc_s=backend.query_rpc_us.value * US,
        put_rpc_s=backend.put_rpc_us.value * US,
        object_put_s=backend.object_put_us.value * US,
        object_get_s=backend.object_get_us.value * US,
        batch_objects=backend.batch_pages.value * (page_objects or backend.page_objects.value),
        lease_s=lease,
        source=backend.source,
        ref=f"storage backend {backend.name}",
    )


def batches(objects: int, constants: StoreConstants) -> int:
    """Calls that ``objects`` take: ceil(k / batch) [-].

    >>> batches(0, MOONCAKE_STORE_TCP), batches(128, MOONCAKE_STORE_TCP), batches(129, MOONCAKE_STORE_TCP)
    (0, 1, 2)
    """
    if objects < 0:
        raise InputError(f"{objects} objects", expected="0 or more")
    return math.ceil(objects / constants.batch_objects)


@dataclass(frozen=True, slots=True)
class StoreTerms:
    """One Put or Get, term by term [s]; they follow one another. ``calls``: batches that went to the master."""

    rpc_s: float
    objects_s: float
    bytes_s: float
    calls: int

    @property
    def time_s(self) -> float:
        """The sum [s]."""
        return self.rpc_s + self.objects_s + self.bytes_s

    @property
    def control_s(self) -> float:
        """All that is not bytes [s]."""
        return self.rpc_s + self.objects_s


def put_terms(
    size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants, *, replicas: int = 1
) -> StoreTerms:
    """The terms of putting ``objects`` objects of ``size_bytes`` together.

    Equation: T = ceil(k/m) rpc_put + k o_put + R V / B.

    Parameters: ``size_bytes`` V >= 0 of one copy [byte]; ``objects`` k >= 0 [-]; ``bytes_per_s`` B > 0, the least port
    of the route and the store's own limit [byte/s]; ``constants``; ``replicas`` R >= 1, each written by the client.
    Returns: `StoreTerms` [s].
    Raises: `InputError` outside these ranges, and for bytes without an object.
    Validity: one client that waits for each batch; a master that is not busy; 16 KiB to 32 MiB an object, up to 64
    objects a call, one replica, were measured (TCP). Over RDMA the calls are taken to cost the same.
    Source: fit to tests/published/store_timings.csv, worst error 10 %; Mooncake docs design/store/mooncake-store.md.

    >>> put_terms(1e9, 256, 20e9, MOONCAKE_STORE_TCP).calls
    2
    """
    _check(size_bytes, objects, bytes_per_s)
    if replicas < 1:
        raise InputError(f"{replicas} replicas", expected="1 or more")
    calls = batches(objects, constants)
    return StoreTerms(
        calls * constants.put_rpc_s, objects * constants.object_put_s, replicas * size_bytes / bytes_per_s, calls
    )


def get_terms(size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants) -> StoreTerms:
    """The terms of getting ``objects`` objects of ``size_bytes`` together.

    Equation: T = ceil(k/m) rpc_query + k o_get + V / B.

    Parameters, Returns, Raises, Validity, Source: as `put_terms`; worst error 10 %.
    """
    _check(size_bytes, objects, bytes_per_s)
    calls = batches(objects, constants)
    return StoreTerms(calls * constants.query_rpc_s, objects * constants.object_get_s, size_bytes / bytes_per_s, calls)


def _check(size_bytes: float, objects: int, bytes_per_s: float) -> None:
    if size_bytes < 0 or objects < 0 or (size_bytes > 0 and objects == 0):
        raise InputError(f"{size_bytes:g} bytes in {objects} objects", expected="0 or more of both, together")
    if not bytes_per_s > 0:
        raise InputError(f"a store at {bytes_per_s:g} byte/s", expected="a positive rate")


def put_s(size_bytes: float, bytes_per_s: float, constants: StoreConstants, *, replicas: int = 1) -> float:
    """Time of putting one object [s]; `put_terms` with k = 1.

    >>> round(put_s(1 << 20, 1.82e9, MOONCAKE_STORE_TCP) * 1e6)
    860
    """
    return put_terms(size_bytes, 1, bytes_per_s, constants, replicas=replicas).time_s


def get_s(size_bytes: float, bytes_per_s: float, constants: StoreConstants) -> float:
    """Time of getting one object [s]; `get_terms` with k = 1.

    >>> round(get_s(1 << 20, 1.95e9, MOONCAKE_STORE_TCP) * 1e6)
    700
    """
    return get_terms(size_bytes, 1, bytes_per_s, constants).time_s


def batch_put_s(
    size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants, *, replicas: int = 1
) -> float:
    """Time of putting ``objects`` objects of ``size_bytes`` together [s]; `put_terms`.

    >>> round(batch_put_s(64 * 65536, 64, 1.82e9, MOONCAKE_STORE_TCP) * 1e6)
    3306
    """
    return put_terms(size_bytes, objects, bytes_per_s, constants, replicas=replicas).time_s


def batch_get_s(size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants) -> float:
    """Time of getting ``objects`` objects of ``size_bytes`` together [s]; `get_terms`.

    >>> round(batch_get_s(64 * 65536, 64, 1.95e9, MOONCAKE_STORE_TCP) * 1e6)
    2899
    """
    return get_terms(size_bytes, objects, bytes_per_s, constants).time_s


# ---- leases ----------------------------------------------------------------------------------------------------------
def read_under_lease_s(size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants) -> float:
    """The longest that one lease must hold: the read of one batch, from the answer to its query.

    Equation: (V / ceil(k/m)) / B + min(k, m) o_get.

    Parameters: as `get_terms`.
    Returns: [s]; 0 without objects.
    Raises: as `get_terms`.
    Validity: batches of equal bytes; each batch asks anew when the one before is through.
    Source: Mooncake Store fails a Get that outlasts its lease with LEASE_EXPIRED (pull request 778, issue 3076).

    >>> read_under_lease_s(8 << 20, 1, 25e6, MOONCAKE_STORE_TCP) > 0.3
    True
    """
    _check(size_bytes, objects, bytes_per_s)
    calls = batches(objects, constants)
    if calls == 0:
        return 0.0
    return size_bytes / calls / bytes_per_s + min(objects, constants.batch_objects) * constants.object_get_s


def lease_holds(size_bytes: float, objects: int, bytes_per_s: float, constants: StoreConstants) -> bool:
    """Whether every batch is read before its lease ends; see `read_under_lease_s`.

    >>> lease_holds(8 << 20, 1, 25e6, MOONCAKE_STORE_TCP), lease_holds(8 << 20, 1, 0.5e6, MOONCAKE_STORE_TCP)
    (True, False)
    """
    return read_under_lease_s(size_bytes, objects, bytes_per_s, constants) < constants.lease_s


def lease_bytes_per_s(size_bytes: float, objects: int, constants: StoreConstants) -> float:
    """The rate below which a Get loses its lease [byte/s]: B in `read_under_lease_s` = lease; 0 without a lease.

    Raises: `InputError` as `get_terms`, and where the objects alone outlast the lease.

    >>> lease_bytes_per_s(1e9, 1, MOONCAKE_STORE_TCP) > 1e8
    True
    """
    _check(size_bytes, objects, 1.0)
    calls = batches(objects, constants)
    if calls == 0 or math.isinf(constants.lease_s):
        return 0.0
    left = constants.lease_s - min(objects, constants.batch_objects) * constants.object_get_s
    if left <= 0:
        raise InputError(f"a lease of {constants.lease_s:g} s", expected="longer than the objects of one batch take")
    return size_bytes / calls / left


# ---- through the store, or directly ----------------------------------------------------------------------------------
def flow_shop_s(stages: Sequence[Sequence[float]]) -> float:
    """When the last piece has passed all stages, pieces in order, one at a time in each stage.

    Equation: F_{s,j} = max(F_{s,j-1}, F_{s-1,j}) + t_{s,j}; the last of them. It is the longest monotone path through
    the table, for two stages max_j ( sum_{i<=j} t_1 + sum_{i>=j} t_2 ); for equal pieces sum_s t_s + (n-1) max_s t_s.

    Parameters: ``stages`` t >= 0, shape (stages, pieces), every stage with equally many [s].
    Returns: F from the start of the first piece [s]; 0 without pieces.
    Raises: `InputError` for rows of different lengths and negative times.
    Validity: a piece is handed on whole (store and forward); stages do not share a port.
    Source: permutation flow shop (Johnson 1954).

    >>> flow_shop_s([[1.0, 1.0], [2.0, 2.0], [1.0, 1.0]])
    6.0
    """
    if len({len(stage) for stage in stages}) > 1:
        raise InputError("stages with different numbers of pieces", expected="one time for each piece and stage")
    if any(time < 0 for stage in stages for time in stage):
        raise InputError("a time of a stage is negative", expected="0 or more")
    done = [0.0] * (len(stages[0]) if stages else 0)
    for stage in stages:
        free = 0.0
        for j, time in enumerate(stage):
            free = done[j] = max(free, done[j]) + time
    return done[-1] if done else 0.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One prefill chunk: computed in ``compute_s`` [s], leaves ``size_bytes`` of KV [byte] in ``objects`` objects.

    ``stored_bytes``, ``stored_objects``: of these what the store has already, so that it is got, but not put.
    """

    compute_s: float
    size_bytes: float
    objects: int
    stored_bytes: float = 0.0
    stored_objects: int = 0


@dataclass(frozen=True, slots=True)
class Ways:
    """Rates and constants of both ways from P to D.

    ``direct_bytes_per_s``: GPU to GPU; ``setup_s``: what the transfer engine takes once [s]. ``put_bytes_per_s``: P to
    the store, ``get_bytes_per_s``: the store to D. ``layers``: pieces of a chunk that a direct write sends one by one.
    """

    direct_bytes_per_s: float
    put_bytes_per_s: float
    get_bytes_per_s: float
    constants: StoreConstants
    setup_s: float = 0.0
    replicas: int = 1
    layers: int = 1


@dataclass(frozen=True, slots=True)
class ThroughStore:
    """When KV is on the decode side, from the start of the prefill, by each way [s].

    ``by_layer_s``, ``by_chunk_s``: direct writes of layers and of chunks. ``copied_s``: through the store, bytes alone,
    a chunk is got while the next one is put. ``forwarded_s``: with calls and objects. ``after_put_s``: the gets begin
    when all is put, as where D is told of a request when P is through.
    ``puts``, ``gets``: terms of all chunks together.
    """

    prefill_s: float
    by_layer_s: float
    by_chunk_s: float
    copied_s: float
    forwarded_s: float
    after_put_s: float
    puts: StoreTerms
    gets: StoreTerms

    def exposed_s(self, done_s: float) -> float:
        """What is left to wait for after the prefill [s]."""
        return done_s - self.prefill_s

    @property
    def store_costs_s(self) -> float:
        """What the store adds to the wait, against the direct write of layers [s]."""
        return self.after_put_s - self.by_layer_s

    @property
    def lost_overlap_s(self) -> float:
        """The part of it that gets beside compute would hide: they wait for the last put [s]."""
        return self.after_put_s - self.forwarded_s

    @property
    def second_copy_s(self) -> float:
        """The part of it that comes from whole chunks, each moved twice, less the set-up of a direct write [s]."""
        return self.copied_s - self.by_layer_s

    @property
    def control_s(self) -> float:
        """The part of it that calls and objects take and no byte hides [s]."""
        return self.forwarded_s - self.copied_s


def through_store(chunks: Sequence[Chunk], ways: Ways) -> ThroughStore:
    """Hand over a prefill's KV directly and through a store.

    Equation: direct: F = t0 + max_j ( C_j + sum_{k>=j} v_k / B ), pieces = layers or chunks (`completion_s`). Store:
    flow shop of compute, put, get over chunks (`flow_shop_s`); or all puts, then all gets.

    Parameters: ``chunks`` in order, at least one; ``ways``.
    Returns: `ThroughStore`; store_costs = lost_overlap + second_copy + control.
    Raises: `InputError` for no chunk, negative sizes, rates that are not positive.
    Validity: one request alone; an object holds all layers of its tokens (page-first), so none is whole before the
    chunk ends; P puts one chunk at a time. What D takes to hear of an object is in its query.
    Source: `put_terms`, `get_terms`, `completion_s`.

    >>> ways = Ways(10e9, 10e9, 10e9, MOONCAKE_STORE_TCP, layers=10)
    >>> found = through_store([Chunk(1.0, 5e9, 100), Chunk(1.0, 5e9, 100)], ways)
    >>> round(found.by_layer_s, 2), found.by_chunk_s, round(found.forwarded_s, 2), round(found.after_put_s, 2)
    (2.05, 2.5, 3.0, 3.5)
    """
    if not chunks:
        raise InputError("a prefill without chunks", expected="at least one")
    if ways.layers < 1 or ways.setup_s < 0:
        raise InputError(f"{ways.layers} layers, a set-up of {ways.setup_s:g} s", expected="1 or more, 0 or more")
    constants, compute = ways.constants, [chunk.compute_s for chunk in chunks]
    sizes = [chunk.size_bytes for chunk in chunks]
    pieces = [time / ways.layers for time in compute for _ in range(ways.layers)]
    layers = [size / ways.layers for size in sizes for _ in range(ways.layers)]
    # What the store has already can be got at once: a piece that is neither computed nor put.
    parts = [part for chunk in chunks for part in _parts(chunk)]
    puts = [
        put_terms(size, objects, ways.put_bytes_per_s, constants, replicas=ways.replicas)
        if put
        else StoreTerms(0.0, 0.0, 0.0, 0)
        for _, size, objects, put in parts
    ]
    gets = [get_terms(size, objects, ways.get_bytes_per_s, constants) for _, size, objects, _ in parts]
    stages = [[part[0] for part in parts], [each.time_s for each in puts], [each.time_s for each in gets]]
    bytes_alone = [[each.bytes_s for each in terms] for terms in (puts, gets)]
    return ThroughStore(
        prefill_s=sum(compute),
        by_layer_s=ways.setup_s + completion_s(pieces, layers, ways.direct_bytes_per_s),
        by_chunk_s=ways.setup_s + completion_s(compute, sizes, ways.direct_bytes_per_s),
        copied_s=flow_shop_s([stages[0], *bytes_alone]),
        forwarded_s=flow_shop_s(stages),
        after_put_s=flow_shop_s(stages[:2]) + sum(stages[2]),
        puts=_together(puts),
        gets=_together(gets),
    )


def _parts(chunk: Chunk) -> list[tuple[float, float, int, bool]]:
    """Time to compute, bytes, objects of what the store has of a chunk and of what it has not; whether it is put."""
    found = [(0.0, chunk.stored_bytes, chunk.stored_objects, False)] if chunk.stored_objects else []
    rest = chunk.size_bytes - chunk.stored_bytes, chunk.objects - chunk.stored_objects
    return [*found, (chunk.compute_s, *rest, True)]


def _together(terms: Sequence[StoreTerms]) -> StoreTerms:
    return StoreTerms(
        sum(each.rpc_s for each in terms),
        sum(each.objects_s for each in terms),
        sum(each.bytes_s for each in terms),
        sum(each.calls for each in terms),
    )
