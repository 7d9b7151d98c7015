"""Storage backends of a prefix cache's last tier: what a client reads and writes, what calls and objects cost."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pdmodel.engines.spec import EngineSource, Fact
from pdmodel.resources import names, resolve
from pdmodel.spec import SourceKind, Spec, weakest


class Reach(StrEnum):
    """How a client reaches the bytes: over the box's NICs, or on disks of the box (no port of the profile)."""

    NETWORK = "network"
    LOCAL = "local"


class LandsIn(StrEnum):
    """Where a read ends: in host memory (from there into HBM layer by layer), or in HBM itself."""

    HOST_MEMORY = "host_memory"
    HBM = "hbm"


class StoreBackend(Spec):
    """One storage backend, as one client sees it.

    ``read_gb_per_s``, ``write_gb_per_s``: the store's own limit; left out where the box's ports alone limit it.
    ``query_rpc_us``: the call before a read; ``put_rpc_us``: the calls around a write together; of a batch of up to
    ``batch_pages`` of a rank. ``object_get_us``, ``object_put_us``: of each object in it. ``page_objects``: of a page
    of a rank with KV heads, under SGLang's HiCache (a latent is one). ``lease_s``: how long after its query a read must
    have ended; left out where nothing expires. ``replicas``: copies that the client itself writes.
    """

    schema_version: Literal[1]
    name: str
    summary: str
    found_in: tuple[str, ...]
    sources: dict[str, EngineSource]
    reach: Fact[Reach]
    lands_in: Fact[LandsIn]
    read_gb_per_s: Fact[PositiveFloat] | None = None
    write_gb_per_s: Fact[PositiveFloat] | None = None
    query_rpc_us: Fact[NonNegativeFloat]
    put_rpc_us: Fact[NonNegativeFloat]
    object_get_us: Fact[NonNegativeFloat]
    object_put_us: Fact[NonNegativeFloat]
    batch_pages: Fact[PositiveInt]
    page_objects: Fact[PositiveInt]
    lease_s: Fact[PositiveFloat] | None = None
    replicas: Fact[PositiveInt]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name, fact in self:
            if isinstance(fact, Fact) and fact.source not in self.sources:
                message = f"{name} names the source {fact.source!r}, which is not in sources"
                raise ValueError(message)
        if self.reach.value is Reach.LOCAL and (self.read_gb_per_s is None or self.write_gb_per_s is None):
            message = "disks of the box need read_gb_per_s and write_gb_per_s: no port of a profile limits them"
            raise ValueError(message)
        return self

    @property
    def source(self) -> SourceKind:
        """The weakest source among calls and objects."""
        facts = (self.query_rpc_us, self.put_rpc_us, self.object_get_us, self.object_put_us)
        return weakest(*(self.sources[fact.source].kind for fact in facts))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the facts that nobody measured or published."""
        return tuple(
            name
            for name, fact in self
            if isinstance(fact, Fact) and self.sources[fact.source].kind is SourceKind.ASSUMED
        )


def list_stores() -> list[str]:
    """Names of the shipped storage backends."""
    return names("stores")


def load_store(name_or_path: str | os.PathLike[str]) -> StoreBackend:
    """A storage backend by name or path; `InputError` for an unknown name or a file that is not a backend."""
    return StoreBackend.load(resolve("stores", name_or_path))
