"""How both sides of a scenario lay KV out and who sends, as `pdmodel.costs.kv_layout` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.kv_layout import CopySender, Exchange, Order, Placement, Split
from pdmodel.engines.spec import LatentSource, ReleaseAfter
from pdmodel.llm.operators import CpLayout
from pdmodel.resolve import ResolvedScenario
from pdmodel.workload.request import Request


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank keeps of the KV: ``heads_share`` of a token's KV, for ``tokens_share`` of the tokens [-]."""

    rank: int
    heads_share: float
    tokens_share: float

    @property
    def share(self) -> float:
        """Share of all the KV of a request [-]."""
        return self.heads_share * self.tokens_share


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """The prefill side: rank = cp_rank * tp_size + tp_rank. ``kv_heads`` None: a latent, whole on every TP rank."""

    tp_size: int
    cp_size: int
    exchange: CpExchange
    kv_heads: int | None

    @property
    def shards(self) -> int:
        """Head shards: TP ranks, times CP ranks for Ulysses."""
        return self.tp_size * (self.cp_size if self.exchange is CpExchange.ULYSSES else 1)

    def holdings(self) -> tuple[Holding, ...]:
        """What each rank holds after the prefill: a KV all-gather leaves all tokens on each CP rank, a ring 1/cp."""
        heads = 1.0 if self.kv_heads is None else 1.0 / min(self.shards, self.kv_heads)
        tokens = 1.0 / self.cp_size if self.exchange is CpExchange.RING else 1.0
        return tuple(Holding(rank, heads, tokens) for rank in range(self.tp_size * self.cp_size))


def source_layout(resolved: ResolvedScenario, heads: int | None) -> SourceLayout:
    """How the prefill side holds what ``heads`` split (None: latents)."""
    part = resolved.spec.prefill
    return SourceLayout(part.tp_size, part.cp_size, part.cp_exchange, heads)


HEAD_COPIES = CopySender.CYCLIC
"""Copy i of a KV head takes it from copy i mod r_P: equal TP sizes send rank to rank, copies included."""
LATENT_COPIES = {LatentSource.ONE_RANK: CopySender.PROPORTIONAL, LatentSource.TOKEN_SHARDS: CopySender.SHARES}
"""Latents: rank floor(d tp_P / tp_D) sends to d, or every rank an equal part."""


def source_placement(
    tp_size: int,
    cp_size: int,
    exchange: CpExchange,
    cp_split: CpLayout = CpLayout.ZIGZAG,
    *,
    page_tokens: int = 64,
    order: Order = Order.NHD,
) -> Placement:
    """Where KV lies after a prefill: an all-gather leaves all of it on each CP rank, a ring shares, Ulysses cuts heads.

    >>> source_placement(4, 2, CpExchange.ULYSSES).ulysses, source_placement(4, 2, CpExchange.RING).split.value
    (2, 'zigzag')
    """
    if exchange is CpExchange.ULYSSES:
        return Placement(tp_size * cp_size, page_tokens=page_tokens, order=order, ulysses=cp_size)
    shared = exchange is CpExchange.RING and cp_size > 1
    return Placement(tp_size, cp_size, Split(cp_split.value) if shared else Split.WHOLE, page_tokens, order)


def exchange_of(resolved: ResolvedScenario, request: Request | None = None) -> Exchange:
    """Both sides of a scenario and the rules of its engine between them.

    ``request``: with the cuts between its chunks, where the engine sends chunk by chunk.
    """
    part = resolved.spec.prefill
    return Exchange(
        source_placement(
            part.tp_size,
            part.cp_size,
            part.cp_exchange,
            part.cp_split,
            page_tokens=resolved.page_tokens,
            order=resolved.layout,
        ),
        _destination(resolved),
        copies=HEAD_COPIES,
        latent_copies=LATENT_COPIES[resolved.latent_source],
        context_senders=resolved.context_senders,
        pages=resolved.pages,
        layers_together=resolved.cross_layer,
        chunk_tokens=resolved.staging_tokens or None,
        cuts=() if request is None else _cuts(resolved, request),
    )


def _destination(resolved: ResolvedScenario) -> Placement:
    part = resolved.spec.decode
    split = Split(part.dcp_split) if part.dcp_size > 1 else Split.WHOLE
    shards = part.tp_size // part.dcp_size
    return Placement(shards, part.dcp_size, split, resolved.decode_page_tokens, resolved.decode_layout)


def _cuts(resolved: ResolvedScenario, request: Request) -> tuple[int, ...]:
    """Tokens after which the engine sends what it has: the cached prefix where it goes first, then each chunk."""
    ends: Sequence[int] = ()
    if resolved.release_after is not ReleaseAfter.PREFILL:
        chunks = request.chunks(resolved.spec.prefill.chunk_tokens)
        ends = [before + new for new, before in chunks][:-1]
    early = [request.cached_tokens] if resolved.early_send and request.cached_tokens else []
    return tuple(sorted({*early, *ends}))
