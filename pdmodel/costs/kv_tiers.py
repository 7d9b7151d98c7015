"""The tiers of a prefix cache: what loading takes, what computing again takes, and where one beats the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pdmodel.costs.kv_store import flow_shop_s
from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.kv_cache import constant_bytes, growing_bytes

PREFETCH_THRESHOLD_TOKENS = 256
PREFETCH_TIMEOUT_S, PREFETCH_TIMEOUT_S_PER_1024 = 1.0, 0.25
"""SGLang 0.5.23 (HiCache): prefetch_threshold, prefetch_timeout_base, prefetch_timeout_per_ki_token."""

LOWEST_BYTES_PER_S, HIGHEST_BYTES_PER_S = 1e3, 1e15


class Prefetch(StrEnum):
    """How long a request waits for what the store has of its prefix: not at all, until all is there, for a time.

    What is not there by then is computed again.
    """

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


# ---- bytes -----------------------------------------------------------------------------------------------------------
def rank_layer_bytes(
    arch: Architecture, tokens: int, kv_dtype: KvDtype | str = KvDtype.BF16, *, tp_size: int = 1
) -> tuple[float, ...]:
    """What one tensor-parallel rank keeps of a prefix, layer by layer.

    Equation: (n g_l + s_l) / min(T, H_l), g what a token adds, s what the sequence keeps beside (windows, states);
    latents are whole on every rank.

    Parameters: ``tokens`` n >= 0; ``kv_dtype`` of the cache; ``tp_size`` T >= 1 [-].
    Returns: one figure for each layer [byte].
    Raises: `InputError` outside these ranges; `CoverageError` as `growing_bytes`.
    Validity: T and the KV heads divide one another; states are split as the heads of their layer are.
    Source: `pdmodel.llm.kv_cache`.

    >>> from pdmodel.llm.catalog import load_llm
    >>> sum(rank_layer_bytes(load_llm("qwen3-8b"), 1024, tp_size=4)) == 1024 * 147456 / 4
    True
    """
    if tokens < 0 or tp_size < 1:
        raise InputError(f"{tokens} tokens on {tp_size} ranks", expected="0 or more, 1 or more")
    dtype = kv_dtype if isinstance(kv_dtype, KvDtype) else KvDtype.parse(kv_dtype)
    found = []
    for layer in range(arch.layers):
        mixer = arch.mixer(layer)
        whole = tokens * growing_bytes(mixer, dtype) + constant_bytes(mixer, dtype, tokens)
        found.append(whole / min(tp_size, mixer.cache_heads or 1))
    return tuple(found)


# ---- load beside compute ---------------------------------------------------------------------------------------------
def layered_s(load_s: Sequence[float], compute_s: Sequence[float], before_s: float = 0.0) -> float:
    """When a prefill ends whose layers wait for their cached KV, loaded in order of layers.

    Equation: F = t_0 + max_j ( sum_{i<=j} l_i + sum_{i>=j} c_i ), a two-stage flow shop; exposed = F - sum c.

    Parameters: ``load_s`` l, ``compute_s`` c >= 0 of each layer, equal shapes (L,) [s]; ``before_s`` t_0 >= 0: what
    must end before the first layer is loaded [s].
    Returns: F from the arrival [s].
    Raises: `InputError` for lengths that differ and negative times.
    Validity: the first chunk computes all layers while loads run; an engine that copies layer i + 1 while it computes
    layer i (SGLang's layer-done events).
    Source: `flow_shop_s`.

    >>> layered_s([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]), layered_s([2.0, 2.0], [1.0, 1.0], before_s=0.5)
    (7.0, 5.5)
    """
    if before_s < 0:
        raise InputError(f"{before_s:g} s before the first layer", expected="0 or more")
    return before_s + flow_shop_s([load_s, compute_s])


def equal_layers_exposed_s(load_s: float, compute_s: float, layers: int) -> float:
    """What loads of equal layers add to a prefill.

    Equation: l + (L - 1) max(0, l - c); l the load, c the compute of one layer.

    Parameters: ``load_s``, ``compute_s`` >= 0 of one layer [s]; ``layers`` L >= 1 [-].
    Returns: [s].
    Raises: `InputError` outside these ranges.
    Source: `layered_s` with equal entries.

    >>> equal_layers_exposed_s(2.0, 1.0, 3), layered_s([2.0] * 3, [1.0] * 3) - 3.0
    (4.0, 4.0)
    """
    if min(load_s, compute_s) < 0 or layers < 1:
        raise InputError(f"{layers} layers", expected="1 or more, times of 0 or more")
    return load_s + (layers - 1) * max(0.0, load_s - compute_s)


# ---- load or recompute -----------------------------------------------------------------------------------------------
def simple_break_even_bytes_per_s(  # noqa: PLR0917 (the letters of the paper's equation)
    tokens: float,
    hidden_size: int,
    group: float,
    element_bytes: float,
    flop_per_s: float,
    attention_factor: float = 4.0,
    linear_factor: float = 22.0,
) -> float:
    """The bandwidth above which loading the KV of a prefix beats computing it, by peak rates alone.

    Equation: B = G 2 d s / ( gqa (a p d + b d^2) ): bytes of a token and layer over its FLOP, at the peak.

    Parameters: ``tokens`` p > 0, of the prefix; ``hidden_size`` d; ``group`` gqa, query heads per KV head [-];
    ``element_bytes`` s of the cache [byte]; ``flop_per_s`` G of all GPUs [FLOP/s]; a, b: FLOP of attention and of the
    matrices, per token and layer in units of p d and d^2.
    Returns: B [byte/s].
    Raises: `InputError` for figures that are not positive.
    Validity: heads of d / (number of heads), MLP of LLaMA's width, compute at the peak, no overlap, no latency.
    Source: Mooncake (FAST 2025), equation 2: 6 and 19 GB/s for LLaMA3-70B, p = 8192, on 8 A800 and 8 H800.

    >>> round(simple_break_even_bytes_per_s(8192, 8192, 8, 2, 8 * 312e12) / 1e9, 2)
    5.86
    """
    figures = (tokens, hidden_size, group, element_bytes, flop_per_s, attention_factor, linear_factor)
    if not min(figures) > 0:
        raise InputError("a figure of the break-even is not positive", expected="positive figures")
    work = attention_factor * tokens * hidden_size + linear_factor * hidden_size**2
    return flop_per_s * 2 * hidden_size * element_bytes / (group * work)


def break_even_bytes_per_s(time_s: Callable[[float], float], other_s: float) -> float | None:
    """The rate at which loading takes as long as computing again.

    Equation: B with T(B) = T', by bisection of log B; T does not grow with B.

    Parameters: ``time_s`` T: what a rate [byte/s] gives, all told [s]; ``other_s`` T', without loading [s].
    Returns: B [byte/s]; 0 where loading wins at every rate, None where it never does (its latency alone is longer).
    Validity: rates between 1 kB/s and 1 PB/s.
    Source: own definition.

    >>> round(break_even_bytes_per_s(lambda rate: 1.0 + 1e9 / rate, 1.5))
    2000000000
    """
    low, high = LOWEST_BYTES_PER_S, HIGHEST_BYTES_PER_S
    if time_s(low) <= other_s:
        return 0.0
    if time_s(high) > other_s:
        return None
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        if time_s(middle) > other_s:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


@dataclass(frozen=True, slots=True)
class Split:
    """The first ``loaded_tokens`` of a prefix are loaded, the rest is computed again: ``time_s`` all told [s]."""

    loaded_tokens: int
    time_s: float


def best_split(
    cached_tokens: int, page_tokens: int, time_s: Callable[[int], float], most_at_once: int = 64
) -> tuple[Split, ...]:
    """How much of a prefix to load: whole pages from its start.

    Equation: argmin_k T(k), k = 0, g, 2g, ..., n. All pages up to ``most_at_once``; else so many, evenly spread, and
    again between the neighbours of each that is less than they are, until each page there is looked at.

    Parameters: ``cached_tokens`` n >= 0, ``page_tokens`` g >= 1; ``time_s`` T of the tokens that are loaded [s].
    Returns: what was looked at, in order of tokens; the ends are among it.
    Raises: `InputError` outside these ranges.
    Validity: a valley narrower than one part of the first round may be missed. Where the time of a layer's load grows
    and that of its compute falls with k, T has valleys at the ends and where the two are equal, no others.
    Source: own definition.

    >>> min(best_split(10_000, 16, lambda k: max(k / 1e4, 1.5 - k / 1e4)), key=lambda split: split.time_s).loaded_tokens
    7504
    """
    if cached_tokens < 0 or page_tokens < 1 or most_at_once < 5:
        raise InputError(
            f"{cached_tokens} tokens in pages of {page_tokens}", expected="0 or more, 1 or more, 5 at once"
        )
    pages = math.ceil(cached_tokens / page_tokens)
    looked: dict[int, float] = {}

    def look(page: int) -> float:
        if page not in looked:
            looked[page] = time_s(min(cached_tokens, page * page_tokens))
        return looked[page]

    spans = [(0, pages)]
    while spans:
        first, last = spans.pop()
        step = max(1, math.ceil((last - first) / (most_at_once - 1)))
        points = [*range(first, last, step), last]
        times = [math.inf, *(look(page) for page in points), math.inf]
        if step > 1:
            spans += [
                (max(first, page - step), min(last, page + step))
                for k, page in enumerate(points)
                if times[k] >= times[k + 1] < times[k + 2]  # of equals the one that loads most
            ]
    return tuple(Split(min(cached_tokens, page * page_tokens), looked[page]) for page in sorted(looked))


# ---- prefetch --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fetched:
    """What a prefetch has brought: ``tokens``; from its start until the request goes on ``ready_s``; of that the
    request waited ``wait_s`` on the prefetch alone [s]. ``allowed_s``: when it would have been cut off (inf: never).
    """

    tokens: int
    ready_s: float
    wait_s: float
    allowed_s: float


def prefetch_timeout_s(tokens: int) -> float:
    """How long a prefetch may take: 1.0 s + 0.25 s per 1024 tokens [s]; SGLang 0.5.23's defaults.

    >>> prefetch_timeout_s(63488)
    16.5
    """
    return PREFETCH_TIMEOUT_S + PREFETCH_TIMEOUT_S_PER_1024 * tokens / 1024


def fetched_tokens(  # noqa: PLR0917 (what a prefetch is told)
    policy: Prefetch,
    tokens: int,
    page_tokens: int,
    bytes_per_token: float,
    bytes_per_s: float,
    setup_s: float = 0.0,
    queue_s: float = 0.0,
    batch_pages: int = 128,
) -> Fetched:
    """What is there of a prefix when its request goes on.

    Equation: batches of m pages, each b = t_0 + V_batch / B; as many as end by w, the last of fewer pages.
    best_effort: w = q; wait_complete: w = inf; timeout: w = max(q, 1.0 s + 0.25 s n/1024). Goes on at max(q, min(w,
    end of the last)).

    Parameters: ``tokens`` n >= 0 that the store has; ``page_tokens`` g >= 1; ``bytes_per_token`` v >= 0 [byte];
    ``bytes_per_s`` B > 0, objects included; ``setup_s`` t_0 >= 0 of a batch: its call [s]; ``queue_s`` q >= 0: how long
    the request would have waited anyway [s]; ``batch_pages`` m >= 1.
    Returns: `Fetched`; no tokens below the threshold of 256 (or one page), whole pages else.
    Raises: `InputError` outside these ranges.
    Validity: the prefetch starts when the request arrives; a batch that is cut off counts for nothing.
    Source: SGLang 0.5.23, hiradix_cache.py (can_terminate_prefetch), cache_controller.py (storage_batch_size).

    >>> fetched_tokens(Prefetch.BEST_EFFORT, 32768, 64, 1e5, 1e9, queue_s=2.0).tokens
    16384
    >>> fetched_tokens(Prefetch.TIMEOUT, 32768, 64, 1e5, 1e9).wait_s
    3.2768
    """
    if min(tokens, bytes_per_token, setup_s, queue_s) < 0 or min(page_tokens, batch_pages) < 1 or not bytes_per_s > 0:
        raise InputError(f"a prefetch of {tokens} tokens at {bytes_per_s:g} byte/s", expected="positive figures")
    whole = tokens // page_tokens * page_tokens
    allowed = {
        Prefetch.BEST_EFFORT: queue_s,
        Prefetch.WAIT_COMPLETE: math.inf,
        Prefetch.TIMEOUT: max(queue_s, prefetch_timeout_s(whole)),
    }[policy]
    if whole < max(PREFETCH_THRESHOLD_TOKENS, page_tokens):
        return Fetched(0, queue_s, 0.0, allowed)
    batch = batch_pages * page_tokens
    each = setup_s + batch * bytes_per_token / bytes_per_s
    full, rest = divmod(whole, batch)
    end = full * each + (setup_s + rest * bytes_per_token / bytes_per_s if rest else 0.0)
    if end <= allowed:
        ready = max(queue_s, end)
        return Fetched(whole, ready, ready - queue_s, allowed)
    done = min(full, math.floor(allowed / each * (1 + 1e-12)))
    return Fetched(done * batch, allowed, allowed - queue_s, allowed)
