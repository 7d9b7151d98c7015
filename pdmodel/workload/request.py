"""One request: how many tokens, when, on which instance, and what its user's waiting is worth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CacheTier(StrEnum):
    """Where the KV of the cached prefix lies before the request starts."""

    HOST_MEMORY = "host_memory"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a prefill instance.

    ``input_tokens`` counts the whole prompt, ``cached_tokens`` of it are not computed but loaded from ``cached_in``.
    ``user_price_gpus`` is lambda [GPU·s per s], or None: decode GPUs over running requests.
    """

    name: str
    arrival_s: float
    input_tokens: int
    cached_tokens: int = 0
    cached_in: CacheTier = CacheTier.HOST_MEMORY
    instance: int = 0
    user_price_gpus: float | None = None

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
