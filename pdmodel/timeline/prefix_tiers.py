"""One cached prefix on one box: loads from each tier, recomputing, splits, prefetch, and the hand-over afterwards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from pdmodel.costs.fullest_port import PathTime, fullest_port
from pdmodel.costs.kv_store import (
    Chunk,
    StoreConstants,
    StoreTerms,
    ThroughStore,
    Ways,
    get_terms,
    page_objects,
    read_under_lease_s,
    through_store,
)
from pdmodel.costs.kv_tiers import (
    Fetched,
    Prefetch,
    Split,
    best_split,
    break_even_bytes_per_s,
    fetched_tokens,
    layered_s,
    rank_layer_bytes,
    simple_break_even_bytes_per_s,
)
from pdmodel.costs.nic_choice import nic_order, nics_of_memory
from pdmodel.engines.spec import EngineSpec, LoadBy
from pdmodel.engines.stores import LandsIn, Reach, StoreBackend
from pdmodel.errors import CoverageError
from pdmodel.hardware.ports import Route
from pdmodel.hardware.routes import gpu_to_wire, host_to_gpu, kv_route, nic_to_host, wire_to_gpu
from pdmodel.hardware.topology import Box
from pdmodel.llm.kinds import LayerKind
from pdmodel.timeline.breakdown import LayerTimes, Setting, prefill_layers
from pdmodel.units import GB, US
from pdmodel.workload.request import CacheTier

STORE_LIMIT = "the store's own limit"


@dataclass(frozen=True, slots=True)
class Prefix:
    """A cached prefix and what follows it, pages and chunks [tokens]; its store, the engine, the queue before [s].

    ``load_by``: who copies between host memory and HBM, None: as the engine does.
    """

    cached_tokens: int
    new_tokens: int
    page_tokens: int
    chunk_tokens: int
    backend: StoreBackend
    constants: StoreConstants
    engine: EngineSpec
    queue_s: float = 0.0
    load_by: LoadBy | None = None

    @property
    def loader(self) -> LoadBy:
        """Who copies from host memory."""
        return self.load_by or self.engine.load_by.value

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt [tokens]."""
        return self.cached_tokens + self.new_tokens

    def pages(self, tokens: int) -> int:
        """Pages of so many tokens, the last one not full."""
        return math.ceil(tokens / self.page_tokens)


@dataclass(frozen=True, slots=True)
class TierTime:
    """The whole prefix from one tier.

    ``size_bytes``: into all ranks; ``rate_bytes_per_s``: of all together, limited by ``port``; ``control_s``: calls and
    objects before the bytes; ``load_s``: alone, all told; ``done_s``: when the prefill ends; ``exposed_s``: what of it
    the loads add [s]. ``break_even_bytes_per_s``: None where no rate is high enough. ``splits``: what was looked at.
    """

    tier: CacheTier
    size_bytes: float
    rate_bytes_per_s: float
    port: str
    control_s: float
    load_s: float
    done_s: float
    exposed_s: float
    break_even_bytes_per_s: float | None
    splits: tuple[Split, ...]
    hazards: tuple[str, ...] = ()

    @property
    def best(self) -> Split:
        """The split that is quickest, of equals the one that loads most."""
        return min(reversed(self.splits), key=lambda split: split.time_s)


@dataclass(frozen=True, slots=True)
class PrefetchTime:
    """A prefetch policy: what it brings, and when the prefill ends that computes the rest [s]."""

    policy: Prefetch
    fetched: Fetched
    done_s: float


@dataclass(frozen=True, slots=True)
class HandOvers:
    """The prompt on its way to the decode side, computed afresh and with its prefix in the store already."""

    fresh: ThroughStore
    reused: ThroughStore
    size_bytes: float
    direct: PathTime
    put: PathTime
    get: PathTime


class PrefixStudy:
    """One cached prefix on one box. Times are from the request's turn, unless said."""

    def __init__(self, setting: Setting, asked: Prefix) -> None:
        self.setting, self.asked = setting, asked
        self.gpus = setting.placement.gpus
        self.tp_size = setting.placement.parallelism.tp_size
        self.decode = Box(setting.box.profile, "D")
        self.pass_layers = cache(lambda new, past: prefill_layers(setting, new, past))
        # Objects of a page of a rank: as the engine's own connector cuts it, else as the backend says.
        heads_objects = (asked.engine.page_objects or asked.backend.page_objects).value
        self.page_objects = page_objects(setting.arch, heads_objects)
        self.constants = replace(asked.constants, batch_objects=asked.backend.batch_pages.value * self.page_objects)
        self.layer_bytes = cache(
            lambda tokens: rank_layer_bytes(setting.arch, tokens, setting.kv_dtype, tp_size=self.tp_size)
        )

    # ---- compute -----------------------------------------------------------------------------------------------------
    @cached_property
    def recompute_all_s(self) -> float:
        """The whole prompt computed [s]."""
        return self._compute(0).time_s

    @cached_property
    def new_s(self) -> float:
        """The new tokens alone, the prefix being there [s]."""
        return self._compute(self.asked.cached_tokens).time_s

    @property
    def recompute_s(self) -> float:
        """What computing the prefix again adds [s]."""
        return self.recompute_all_s - self.new_s

    def _compute(self, loaded: int) -> LayerTimes:
        found: LayerTimes = self.pass_layers(self.asked.prompt_tokens - loaded, loaded)
        return found

    def _done(self, loaded: int, load_layers: Sequence[float], before_s: float) -> float:
        times = self._compute(loaded)
        return layered_s(load_layers, times.layers_s, before_s) + times.ends_s

    # ---- bytes and paths ---------------------------------------------------------------------------------------------
    def size_bytes(self, tokens: int) -> float:
        """KV of so many tokens, on all ranks together [byte]."""
        return len(self.gpus) * sum(self.layer_bytes(tokens))

    def _paths(self, routes: Sequence[tuple[Route, float]], tokens: int, *boxes: Box) -> PathTime:
        """Each route with its share of a rank's bytes."""
        one = sum(self.layer_bytes(tokens))
        capacity = {port.name: port.capacity_bytes_per_s for box in boxes for port in box.ports}
        return fullest_port([(route, share * one) for route, share in routes], capacity)

    @cached_property
    def _host_routes(self) -> list[tuple[Route, float]]:
        by_kernel = self.asked.loader is LoadBy.KERNEL
        return [(host_to_gpu(self.setting.box, gpu, by_kernel=by_kernel), 1.0) for gpu in self.gpus]

    def host_path(self, tokens: int) -> PathTime:
        """From host memory into HBM of all ranks."""
        return self._paths(self._host_routes, tokens, self.setting.box)

    @cached_property
    def _fetch_routes(self) -> list[tuple[Route, float]]:
        """From the store: over the NICs of the socket of each GPU into its memory, or from disks into the GPU."""
        box = self.setting.box
        if self.asked.backend.reach.value is Reach.LOCAL:
            if self.asked.backend.lands_in.value is LandsIn.HOST_MEMORY:
                return []
            return [(Route("disks", {box.port_name(box.gpu(gpu), "ingress"): 1.0}, {}), 1.0) for gpu in self.gpus]
        found = []
        for gpu in self.gpus:
            socket = box.socket(box.gpu(gpu))
            nics = nics_of_memory(box, socket, range(box.nic_count))
            if not nics:
                raise CoverageError(
                    f"{box.profile.name} has no NIC to reach {self.asked.backend.name} by", expected="a box with NICs"
                )
            found += [(nic_to_host(box, nic, socket), 1 / len(nics)) for nic in nics]
        return found

    def fetch_path(self, tokens: int) -> PathTime:
        """From the store to where it lands, limited by ports or by the store."""
        backend = self.asked.backend
        limit = backend.read_gb_per_s.value * GB if backend.read_gb_per_s else math.inf
        path = self._paths(self._fetch_routes, tokens, self.setting.box)
        return self._limited(path, self.size_bytes(tokens), limit)

    @staticmethod
    def _limited(path: PathTime, size_bytes: float, limit_bytes_per_s: float) -> PathTime:
        own_s = size_bytes / limit_bytes_per_s
        if own_s <= path.time_s:
            return path
        return PathTime(own_s, STORE_LIMIT, limit_bytes_per_s, path.hazards)

    def fetch_terms(self, tokens: int, bytes_s: float) -> StoreTerms:
        """Get of so many tokens: each rank asks for its own page objects, all ranks at once."""
        size = self.size_bytes(tokens)
        rate = size / bytes_s if bytes_s else math.inf
        return get_terms(size, self.asked.pages(tokens) * self.page_objects, rate, self.constants)

    @property
    def lease_read_s(self) -> float:
        """How long the read of one batch of the prefix takes: what a lease must outlast [s]."""
        tokens = self.asked.cached_tokens
        size, bytes_s = self.size_bytes(tokens), self.fetch_path(tokens).time_s
        return read_under_lease_s(size, self.asked.pages(tokens) * self.page_objects, size / bytes_s, self.constants)

    # ---- one tier ----------------------------------------------------------------------------------------------------
    def _layers_s(self, tokens: int, time_s: float) -> list[float]:
        """A load's time [s], layer by layer in proportion to their bytes."""
        sizes = self.layer_bytes(tokens)
        total = sum(sizes)
        return [time_s * size / total if total else 0.0 for size in sizes]

    def host_done_s(self, loaded: int, bytes_s: float | None = None) -> float:
        """End of the prefill, the first ``loaded`` tokens from host memory (in ``bytes_s``, if another rate) [s]."""
        time_s = self.host_path(loaded).time_s if bytes_s is None else bytes_s
        return self._done(loaded, self._layers_s(loaded, time_s), 0.0)

    def store_done_s(self, loaded: int, bytes_s: float | None = None) -> float:
        """End of the prefill, the first ``loaded`` tokens from the store: all of them, then into HBM by layers [s]."""
        if not loaded:
            return self._compute(0).time_s
        before = self.fetch_terms(loaded, self.fetch_path(loaded).time_s if bytes_s is None else bytes_s).time_s
        lands = self.asked.backend.lands_in.value is LandsIn.HBM
        into = 0.0 if lands else self.host_path(loaded).time_s
        return self._done(loaded, self._layers_s(loaded, into), before)

    def tier(self, tier: CacheTier) -> TierTime:
        """The whole prefix from one tier."""
        cached = self.asked.cached_tokens
        if tier is CacheTier.HBM:
            here = (Split(0, self.recompute_all_s), Split(cached, self.new_s))
            return TierTime(tier, self.size_bytes(cached), math.inf, "", 0.0, 0.0, self.new_s, 0.0, 0.0, here)
        from_store = tier is CacheTier.STORE
        path = self.fetch_path(cached) if from_store else self.host_path(cached)
        size, done = self.size_bytes(cached), self.store_done_s if from_store else self.host_done_s
        control = self.fetch_terms(cached, path.time_s).control_s if from_store else 0.0
        into = self.host_path(cached).time_s if from_store and self._lands_in_host else 0.0
        return TierTime(
            tier=tier,
            size_bytes=size,
            rate_bytes_per_s=size / path.time_s if path.time_s else math.inf,
            port=path.port,
            control_s=control,
            load_s=control + path.time_s + into,
            done_s=done(cached),
            exposed_s=done(cached) - self.new_s,
            break_even_bytes_per_s=break_even_bytes_per_s(lambda rate: done(cached, size / rate), self.recompute_all_s),
            splits=best_split(cached, self.asked.page_tokens, done),
            hazards=path.hazards,
        )

    @property
    def _puts_once(self) -> bool:
        return all(mixer.is_latent for mixer in self.setting.arch.distinct_mixers() if mixer.stores)

    @property
    def _lands_in_host(self) -> bool:
        return self.asked.backend.lands_in.value is LandsIn.HOST_MEMORY

    def simple_break_even(self) -> float | None:
        """Equation 2 of Mooncake (FAST 2025) [byte/s]; None for an LLM that it does not describe."""
        arch = self.setting.arch
        mixers = list(arch.distinct_mixers())
        mixer = mixers[0]
        if arch.moe is not None or len(mixers) > 1 or mixer.kind is not LayerKind.FULL:
            return None
        peak = self.setting.box.profile.gpu.peak_tflops["bf16"].value * 1e12
        return simple_break_even_bytes_per_s(
            self.asked.cached_tokens,
            arch.hidden_size,
            mixer.heads / mixer.kv_heads,
            self.setting.kv_dtype.bytes_per_element,
            len(self.gpus) * peak,
        )

    # ---- prefetch ----------------------------------------------------------------------------------------------------
    def prefetch(self, policy: Prefetch) -> PrefetchTime:
        """What a prefetch brings into host memory, and when the prefill ends; times from the request's arrival."""
        asked = self.asked
        cached, size = asked.cached_tokens, self.size_bytes(asked.cached_tokens)
        terms = self.fetch_terms(cached, self.fetch_path(cached).time_s)
        fetched = fetched_tokens(
            policy,
            cached,
            asked.page_tokens,
            size / cached,
            size / (terms.objects_s + terms.bytes_s),
            self.constants.query_rpc_s,
            asked.queue_s,
            asked.backend.batch_pages.value,
        )
        into = self.host_path(fetched.tokens).time_s if self._lands_in_host else 0.0
        done = self._done(fetched.tokens, self._layers_s(fetched.tokens, into), fetched.ready_s)
        return PrefetchTime(policy, fetched, done)

    # ---- to the decode side ------------------------------------------------------------------------------------------
    def hand_over(self) -> HandOvers | None:
        """The prompt to the decode side (a box like this one, as many ranks); None where no NIC leads there."""
        box, asked, backend = self.setting.box, self.asked, self.asked.backend
        if box.nic_count == 0 or backend.reach.value is Reach.LOCAL:
            return None
        prompt, size = asked.prompt_tokens, self.size_bytes(asked.prompt_tokens)
        nics = {gpu: nic_order(box, gpu, range(box.nic_count))[0] for gpu in self.gpus}
        direct = [(kv_route(box, gpu, nic, self.decode, nic, gpu), 1.0) for gpu, nic in nics.items()]
        # A latent is the same on every rank: one of them puts it, all of them get it.
        first = self.gpus[:1] if self._puts_once else self.gpus
        out = [(gpu_to_wire(box, gpu, nics[gpu]), 1.0) for gpu in first]
        into = [(wire_to_gpu(self.decode, nic, gpu), 1.0) for gpu, nic in nics.items()]
        write, read = (
            each.value * GB if each else math.inf for each in (backend.write_gb_per_s, backend.read_gb_per_s)
        )
        straight = self._paths(direct, prompt, box, self.decode)
        put = self._limited(self._paths(out, prompt, box), size * len(first) / len(self.gpus), write)
        get = self._limited(self._paths(into, prompt, self.decode), size, read)
        ways = Ways(
            size / straight.time_s,
            size / put.time_s,
            size / get.time_s,
            self.constants,
            setup_s=asked.engine.posting.request_overhead_us.value * US,
            replicas=backend.replicas.value,
            layers=self.setting.arch.layers,
        )
        fresh, reused = (through_store(chunks, ways) for chunks in (self._chunks(0), self._chunks(asked.cached_tokens)))
        return HandOvers(fresh, reused, size, straight, put, get)

    def _chunks(self, stored: int) -> list[Chunk]:
        """The prompt in chunks, its first ``stored`` tokens in the store; their KV goes with the first chunk."""
        asked, found, at = self.asked, [], stored
        while at < asked.prompt_tokens:
            end = min(asked.prompt_tokens, at + asked.chunk_tokens)
            past = 0 if at == stored else at
            size = self.size_bytes(end) - self.size_bytes(past)
            had = stored // asked.page_tokens if at == stored else 0
            found.append(
                Chunk(
                    self.pass_layers(end - at, at).time_s,
                    size,
                    (asked.pages(end) - asked.pages(past)) * self.page_objects,
                    min(size, self.size_bytes(had * asked.page_tokens)),
                    had * self.page_objects,
                )
            )
            at = end
        return found
