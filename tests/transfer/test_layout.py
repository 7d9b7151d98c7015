"""Who sends what, against ownership enumerated token by token and head by head."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.engines.spec import ContextSenders, LatentSource
from pdmodel.transfer.layout import SourceLayout, pairs

SIZES = st.sampled_from([1, 2, 4, 8])
TOKENS = 64


def heads_of(rank: int, shards: int, heads: int) -> set[int]:
    """The KV heads that a rank holds, by the rule that every engine uses."""
    return (
        {head for head in range(heads) if head * shards // heads == rank}
        if shards <= heads
        else {rank * heads // shards}
    )


@given(
    tp=SIZES,
    cp=SIZES,
    to=SIZES,
    heads=SIZES,
    exchange=st.sampled_from(CpExchange),
    senders=st.sampled_from(ContextSenders),
)
def test_every_destination_gets_each_head_of_each_token_once(
    tp: int, cp: int, to: int, heads: int, exchange: CpExchange, senders: ContextSenders
) -> None:
    layout = SourceLayout(tp, cp, exchange, heads, senders)
    held = {item.rank: item for item in layout.holdings()}
    received = dict.fromkeys(range(to), 0.0)
    for pair in pairs(layout, to):
        assert 0 <= pair.source_rank < tp * cp
        source = held[pair.source_rank]
        assert pair.heads_share <= source.heads_share + 1e-12, "sends heads that it does not hold"
        assert pair.tokens_share <= source.tokens_share + 1e-12, "sends tokens that it does not hold"
        received[pair.destination_rank] += pair.share
    for rank, share in received.items():
        assert share == pytest.approx(len(heads_of(rank, to, heads)) / heads, rel=1e-12)


@given(tp=SIZES, to=SIZES, heads=SIZES)
def test_a_source_holds_the_heads_that_it_sends(tp: int, to: int, heads: int) -> None:
    sent: dict[int, float] = {}
    for pair in pairs(SourceLayout(tp, 1, CpExchange.ALL_GATHER, heads), to):
        common = heads_of(pair.source_rank, tp, heads) & heads_of(pair.destination_rank, to, heads)
        assert pair.heads_share * heads == pytest.approx(len(common))
        sent[pair.destination_rank] = sent.get(pair.destination_rank, 0.0) + pair.heads_share
    assert sum(sent.values()) == pytest.approx(max(1.0, to / heads))


@given(
    tp=SIZES,
    cp=SIZES,
    to=SIZES,
    exchange=st.sampled_from([CpExchange.ALL_GATHER, CpExchange.RING]),
    senders=st.sampled_from(ContextSenders),
    source=st.sampled_from(LatentSource),
)
def test_every_destination_gets_the_whole_latent(
    tp: int, cp: int, to: int, exchange: CpExchange, senders: ContextSenders, source: LatentSource
) -> None:
    received = dict.fromkeys(range(to), 0.0)
    for pair in pairs(SourceLayout(tp, cp, exchange, None, senders, source), to):
        received[pair.destination_rank] += pair.share
    assert list(received.values()) == pytest.approx([1.0] * to)


def test_equal_tp_sends_rank_to_rank_with_copies() -> None:
    found = pairs(SourceLayout(8, 1, CpExchange.ALL_GATHER, 4), 8)
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(rank, rank) for rank in range(8)]
    assert {pair.heads_share for pair in found} == {0.25}


def test_one_of_two_copies_sends_to_half_as_many_ranks() -> None:
    found = pairs(SourceLayout(8, 1, CpExchange.ALL_GATHER, 4), 4)
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(0, 0), (2, 1), (4, 2), (6, 3)]


def test_latents_from_eight_to_two_ranks_use_two_senders() -> None:
    found = pairs(SourceLayout(8, 1, CpExchange.ALL_GATHER, None), 2)
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(0, 0), (4, 1)]
    shards = pairs(SourceLayout(8, 1, CpExchange.ALL_GATHER, None, latent_source=LatentSource.TOKEN_SHARDS), 2)
    assert {pair.source_rank for pair in shards} == set(range(8))


def test_a_context_parallel_group_sends_from_its_first_rank_unless_told() -> None:
    first = pairs(SourceLayout(2, 2, CpExchange.ALL_GATHER, 8), 2)
    assert {pair.source_rank for pair in first} == {0, 1}
    everyone = pairs(SourceLayout(2, 2, CpExchange.ALL_GATHER, 8, ContextSenders.ALL), 2)
    assert {pair.source_rank for pair in everyone} == {0, 1, 2, 3}
    ring = pairs(SourceLayout(2, 2, CpExchange.RING, 8), 2)
    assert {(pair.source_rank, pair.tokens_share) for pair in ring} == {(rank, 0.5) for rank in range(4)}
    ulysses = pairs(SourceLayout(2, 2, CpExchange.ULYSSES, 8), 2)
    assert {(pair.source_rank, pair.heads_share) for pair in ulysses} == {(rank, 0.25) for rank in range(4)}
