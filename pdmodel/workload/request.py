"""One request: how many tokens, when, on which instance, and what its user's waiting is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class CacheTier(StrEnum):
    """Where the KV of the cached prefix lies before the request starts, nearest first: L1, L2, L3.

    The prefix is split in this order: the first tokens lie in ``hbm``, the next in ``host_memory``, the last in
    ``store``.
    """

    HBM = "hbm"
    HOST_MEMORY = "host_memory"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a prefill instance.

    ``input_tokens`` counts the whole prompt, ``cached_tokens`` of it are not computed but loaded; ``cached_in`` says
    from which tier how many (left out: all from host memory).
    ``user_price_gpus`` is lambda [GPU·s per s], or None: decode GPUs over running requests.
    """

    name: str
    arrival_s: float
    input_tokens: int
    cached_tokens: int = 0
    cached_in: Mapping[CacheTier, int] = field(default_factory=dict)
    instance: int = 0
    user_price_gpus: float | None = None

    def cached_by(self, tier: CacheTier) -> int:
        """Tokens of the cached prefix that lie in a tier."""
        if not self.cached_in:
            return self.cached_tokens if tier is CacheTier.HOST_MEMORY else 0
        return self.cached_in.get(tier, 0)

    @property
    def loaded_tokens(self) -> int:
        """Tokens of the cached prefix that are not in HBM yet."""
        return self.cached_tokens - self.cached_by(CacheTier.HBM)

    def keeping(self, tokens: int) -> Request:
        """The same request with the first ``tokens`` of its cached prefix used, and the rest of it computed again.

        >>> kept = Request("r", 0.0, 10, 6, {CacheTier.HBM: 2, CacheTier.STORE: 4}).keeping(3)
        >>> kept.new_tokens, kept.cached_by(CacheTier.STORE)
        (7, 1)
        """
        left, tiers = min(tokens, self.cached_tokens), {}
        for tier in CacheTier:
            used = min(left, self.cached_by(tier))
            if used:
                tiers[tier] = used
            left -= used
        return replace(self, cached_tokens=sum(tiers.values()), cached_in=tiers)

    @property
    def new_tokens(self) -> int:
        """Tokens that are computed."""
        return self.input_tokens - self.cached_tokens

    def chunks(self, chunk_tokens: int | None) -> tuple[tuple[int, int], ...]:
        """(new tokens, tokens before them) of each chunk, in order.

        >>> Request("r", 0.0, 10, cached_tokens=3).chunks(4)
        ((4, 3), (3, 7))
        """
        size = chunk_tokens or self.new_tokens
        starts = range(self.cached_tokens, self.input_tokens, size)
        return tuple((min(size, self.input_tokens - start), start) for start in starts)
