"""Which leading blocks of a prompt a prefix cache already holds, for requests that come one after another."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

DENSE_IDS = 2**24
"""Ids below it cost a byte each; a trace numbers its blocks from 0."""


class PrefixCache(Protocol):
    """A cache of blocks; ``add`` is called once for each request, in the order in which they come."""

    def add(self, blocks: Sequence[int]) -> int:
        """Put all blocks of one prompt into the cache; how many leading ones it already held."""
        ...


class EndlessCache:
    """A cache that never evicts.

    >>> cache = EndlessCache()
    >>> cache.add([0, 1, 2]), cache.add([0, 1, 7, 2])
    (0, 2)
    """

    def __init__(self) -> None:
        self._dense = bytearray()
        self._others: set[int] = set()

    def add(self, blocks: Sequence[int]) -> int:
        """Put all blocks of one prompt into the cache; how many leading ones it already held."""
        if not blocks:
            return 0
        top = max(blocks)
        if min(blocks) < 0 or top >= DENSE_IDS:
            return self._add_any(blocks)
        held, hits = self._dense, 0
        self._reach(top)
        for block in blocks:
            if not held[block]:
                break
            hits += 1
        for block in blocks[hits:]:
            held[block] = 1
        return hits

    def _add_any(self, blocks: Sequence[int]) -> int:
        hits = next((k for k, block in enumerate(blocks) if not self._holds(block)), len(blocks))
        for block in blocks[hits:]:
            if 0 <= block < DENSE_IDS:
                self._reach(block)
                self._dense[block] = 1
            else:
                self._others.add(block)
        return hits

    def _reach(self, block: int) -> None:
        missing = block + 1 - len(self._dense)
        if missing > 0:
            self._dense.extend(bytes(max(missing, len(self._dense) // 2)))

    def _holds(self, block: int) -> bool:
        return block in self._others or (0 <= block < len(self._dense) and self._dense[block] == 1)


class LruCache:
    """A cache of ``capacity_blocks`` blocks that evicts the one that was used longest ago.

    Blocks of one prompt count as used from the last to the first, so that of equally old ones the tail goes first:
    a block is useless without those before it.

    >>> cache = LruCache(3)
    >>> cache.add([0, 1, 2]), cache.add([0, 5]), cache.add([0, 1, 2])
    (0, 1, 2)
    """

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, blocks: Sequence[int]) -> int:
        """Put all blocks of one prompt into the cache; how many leading ones it already held."""
        held, hits = self._blocks, 0
        use = held.move_to_end
        for block in blocks:
            if block not in held:
                break
            hits += 1
        for block in reversed(blocks[hits:]):
            if block in held:
                use(block)
            else:
                held[block] = None
        for block in reversed(blocks[:hits]):
            use(block)
        while len(held) > self.capacity_blocks:
            held.popitem(last=False)
        return hits


def prefix_cache(capacity_blocks: int | None) -> PrefixCache:
    """A cache of so many blocks, or one without an end."""
    return EndlessCache() if capacity_blocks is None else LruCache(capacity_blocks)


def cached_tokens(hits: int, block_tokens: int, input_tokens: int) -> int:
    """Tokens of a prompt that ``hits`` leading blocks hold; the last one is computed in any case, for its logits.

    >>> cached_tokens(2, 512, 4000), cached_tokens(8, 512, 4000), cached_tokens(0, 512, 1)
    (1024, 3999, 0)
    """
    return min(hits * block_tokens, input_tokens - 1)
