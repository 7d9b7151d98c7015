"""The tiers that a scenario's KV goes through: its store looked up, what does not fit refused, the rest said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pdmodel.costs.kv_store import StoreConstants, backend_constants
from pdmodel.engines.spec import EngineSpec, LoadBy
from pdmodel.engines.stores import LandsIn, Reach, StoreBackend
from pdmodel.errors import CoverageError, InputError
from pdmodel.scenario import RequestSpec, Scenario, StorePlace, StoreSpec, Through, WritePolicy
from pdmodel.spec import SourceKind
from pdmodel.units import GB
from pdmodel.workload.request import CacheTier


@dataclass(frozen=True, slots=True)
class Store:
    """A scenario's KV store: what the scenario says, its backend, and objects of a page of a rank with KV heads."""

    spec: StoreSpec
    backend: StoreBackend
    page_objects: int

    @property
    def is_local(self) -> bool:
        """Whether it is on disks of the node, and reached without a NIC."""
        return self.backend.reach.value is Reach.LOCAL

    @property
    def lease_s(self) -> float:
        """How long after its query a read must have ended [s]; infinite where nothing expires."""
        return self.constants.lease_s

    @property
    def replicas(self) -> int:
        """Copies that a put makes."""
        return self.spec.replicas or self.backend.replicas.value

    @property
    def constants(self) -> StoreConstants:
        """What calls and objects cost."""
        return backend_constants(self.backend, self.spec.lease_s, page_objects=self.page_objects)

    @property
    def batch_pages(self) -> int:
        """Pages of a rank that one call takes."""
        return self.backend.batch_pages.value

    def limit(self, *, put: bool) -> tuple[float, SourceKind, str] | None:
        """What a client writes or reads at most [byte/s], with its source; None where only ports of boxes limit it."""
        fact = self.backend.write_gb_per_s if put else self.backend.read_gb_per_s
        if fact is None:
            return None
        source = self.backend.sources[fact.source]
        return fact.value * GB, source.kind, f"a client of {self.backend.name}: {source.ref}"


def find_store(
    spec: Scenario, through: Through, engine: EngineSpec, load: Callable[[str], StoreBackend]
) -> Store | None:
    """The store of a scenario, None where it has none.

    Parameters
    ----------
    spec: the scenario as written.
    through: how KV is handed over.
    engine: whose connector it is.
    load: looks a backend up.

    Raises
    ------
    InputError: something uses a store and none is given; a policy that never writes to it; a store that the other node
    cannot reach. CoverageError: a store that reads into HBM.

    """
    wanted = _uses(spec, through)
    if spec.store is None:
        if wanted:
            raise InputError(
                f"{wanted[0]} needs a store, and none is given",
                path="store",
                expected='a store, such as {"backend": "mooncake_store", "place": "remote"}',
            )
        return None
    backend = load(spec.store.backend)
    store = Store(spec.store, backend, (engine.page_objects or backend.page_objects).value)
    if wanted and store.backend.lands_in.value is LandsIn.HBM:
        raise CoverageError(
            f"{store.backend.name} reads into HBM: scenarios fetch into host memory",
            path="store.backend",
            expected="a backend that lands in host_memory (`cost kv-tier` covers this one)",
        )
    if store.is_local and through is Through.STORE:
        raise InputError(
            f"{store.backend.name} is on disks of one node: the other one cannot get what is put there",
            path="store.backend",
            expected="a backend that is reached over the network",
        )
    if spec.cache.write_policy is WritePolicy.WRITE_BACK and spec.cache.write_to is CacheTier.STORE:
        # SGLang's hiradix_cache.py: what an eviction copies to host memory is not backed up to storage.
        raise InputError(
            "write_back copies to host memory alone", path="cache.write_to", expected="host_memory, or another policy"
        )
    return store


def _uses(spec: Scenario, through: Through) -> list[str]:
    """What of a scenario needs a store."""
    found = ["transfer.through: store"] if through is Through.STORE else []
    if spec.cache.write_policy is not None and spec.cache.write_to is CacheTier.STORE:
        found.append("cache.write_to: store")
    for k, request in enumerate(spec.requests):
        tiers = request.cached_in
        if request.cached_tokens and (
            tiers is CacheTier.STORE or (isinstance(tiers, dict) and tiers.get(CacheTier.STORE))
        ):
            found.append(f"requests.{k}.cached_in: store")
    return found


def _is_loaded(request: RequestSpec) -> bool:
    """Whether some of the prefix is in a tier below HBM."""
    tiers = request.cached_in
    lower = sum(tokens for tier, tokens in tiers.items() if tier is not CacheTier.HBM) if isinstance(tiers, dict) else 1
    return bool(request.cached_tokens and lower and tiers is not CacheTier.HBM)


def loads_by_kernel(spec: Scenario, engine: EngineSpec) -> bool:
    """Whether a kernel on SMs copies between host memory and HBM, by the scenario's word, else the engine's."""
    return (spec.cache.load_by or engine.load_by.value) is LoadBy.KERNEL


def tier_notes(spec: Scenario, store: Store | None, through: Through, engine: EngineSpec) -> tuple[str, ...]:
    """What is taken for granted about the tiers."""
    cache, notes = spec.cache, []
    uses = _uses(spec, through)
    if store is not None and uses:
        if not store.is_local and store.spec.place is StorePlace.REMOTE:
            notes.append("the other nodes of the store have memory and NICs to spare: this side's ports alone count")
        if store.limit(put=False) is not None or store.limit(put=True) is not None:
            notes.append(f"limits of {store.backend.name} are of a node, however many ranks ask")
        if store.backend.assumed:
            notes.append(f"storage backend {store.backend.name}: no figure for {', '.join(store.backend.assumed)}")
        if not store.is_local and store.spec.place is StorePlace.PREFILL_HOST:
            notes.append("the store has memory of its own on the prefill node, and how full it is is not followed")
        if through is Through.STORE:
            notes.append("a put and the get that follows it are one flow: the get runs object by object behind the put")
    copies = cache.write_policy is not None or any(_is_loaded(request) for request in spec.requests)
    if copies and loads_by_kernel(spec, engine):
        notes.append("kernels that copy between host memory and HBM take no SMs from the forward pass (in truth some)")
    if cache.write_policy is WritePolicy.WRITE_BACK:
        notes.append("the prefill GPUs' KV pool is full: what enters pushes as much out, which nobody waits for")
    if cache.write_policy is WritePolicy.WRITE_THROUGH_SELECTIVE:
        notes.append("what a request finds in HBM is used for the second time, and lies in no lower tier yet")
    return tuple(notes)
