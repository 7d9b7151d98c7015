"""What an LLM keeps of one sequence, as buffers of equal rows: the things that a transfer copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.kinds import LayerKind, Mixer
from pdmodel.llm.kv_cache import entry_bytes


@dataclass(frozen=True, slots=True)
class Cache:
    """``buffers`` equal buffers: ``rows`` rows, from row ``first_row`` of the sequence on, of ``heads`` heads each.

    ``heads`` None: one row for all heads, which every TP rank keeps whole. ``row_bytes``: of one head [byte].
    ``tokens_per_row``: tokens that one row stands for. ``once``: of a sequence, not of its tokens (states). ``grows``:
    each token adds to it for good; else it is complete with the last one (windows, states).
    """

    name: str
    heads: int | None
    row_bytes: float
    rows: int
    buffers: int
    first_row: int = 0
    tokens_per_row: int = 1
    once: bool = False
    grows: bool = True

    @property
    def size_bytes(self) -> float:
        """All buffers together, each head once [byte]."""
        return self.buffers * (self.rows - self.first_row) * (self.heads or 1) * self.row_bytes


def caches(arch: Architecture, tokens: int, kv_dtype: KvDtype | str = KvDtype.BF16) -> tuple[Cache, ...]:
    """The buffers of a sequence of ``tokens``; layers that keep alike are counted together.

    Equation: full: keys n H_kv d b, values n H_kv d_v b. Latent: n entries, and an indexer's keys. Window, chunked:
    keys and values of the last min(n, w). Compressed: a window of entries, floor(n/m) entries and keys, running sums.
    Linear: one state of a sequence.

    Parameters: ``tokens`` n >= 1 [-]; ``kv_dtype`` of the cache.
    Returns: `Cache` objects; their bytes are those of `pdmodel.llm.kv_cache.kv_sequence_bytes` where n is a multiple
    of each m.
    Raises: `InputError` for n < 1; `CoverageError` as `entry_bytes`.
    Validity: an engine that keeps no more of a window than the window; whole entries alone are sent.
    Source: as `pdmodel.llm.kv_cache`.
    """
    if tokens < 1:
        raise InputError(f"a sequence of {tokens} tokens", expected="1 or more")
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    found: list[Cache] = []
    for mixer, layers in Counter(arch.mixer(layer) for layer in range(arch.layers)).items():
        if mixer.stores and mixer.kind is not LayerKind.NONE:
            found += _of_mixer(mixer, tokens, dtype, layers)
    return tuple(cache for cache in found if cache.size_bytes > 0)


def _of_mixer(mixer: Mixer, tokens: int, dtype: KvDtype, layers: int) -> Iterator[Cache]:
    kind = mixer.kind.value
    if mixer.state is not None:
        heads = mixer.state.heads
        yield Cache(f"{kind} state", heads, mixer.state.size_bytes / heads, 1, layers, once=True, grows=False)
        return
    first, grows = 0 if mixer.window is None else max(0, tokens - mixer.window), mixer.window is None
    size = entry_bytes(mixer, dtype)
    if mixer.is_latent:
        compression = mixer.compression
        yield Cache(f"{kind} window" if compression else kind, None, size, tokens, layers, first, grows=grows)
        rows, step = tokens, 1
        if compression is not None:
            yield Cache(f"{kind} sums", None, compression.state_bytes, 1, layers, once=True, grows=False)
            owner = compression.owner and compression.ratio > 0
            step = compression.ratio if owner else 1
            rows = tokens // step if owner else 0
            if rows:
                yield Cache(f"{kind} entries", None, size, rows, layers, tokens_per_row=step)
        if mixer.indexer is not None and mixer.indexer.owner and rows:
            yield Cache(f"{kind} indexer keys", None, mixer.indexer.key_bytes, rows, layers, tokens_per_row=step)
        return
    keys = size * mixer.head_dim // (mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim))
    values = size // mixer.kv_heads - keys
    if keys == values:
        yield Cache(f"{kind} keys and values", mixer.kv_heads, keys, tokens, 2 * layers, first, grows=grows)
    else:
        yield Cache(f"{kind} keys", mixer.kv_heads, keys, tokens, layers, first, grows=grows)
        yield Cache(f"{kind} values", mixer.kv_heads, values, tokens, layers, first, grows=grows)
