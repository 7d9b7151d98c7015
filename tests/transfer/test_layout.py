"""Who sends what, against ownership enumerated token by token and head by head."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.kv_layout import Cache, Exchange, Placement, pairs
from pdmodel.engines.spec import ContextSenders, LatentSource
from pdmodel.timeline.build import timeline
from pdmodel.transfer.build import build_flows
from pdmodel.transfer.layout import HEAD_COPIES, LATENT_COPIES, SourceLayout, exchange_of, source_placement
from pdmodel.transfer.sends import parts_of

SIZES = st.sampled_from([1, 2, 4, 8])
TOKENS = 64 * 64  # of whole pages on every rank


def shares(
    tp: int,
    cp: int,
    exchange: CpExchange,
    heads: int | None,
    to: int,
    senders: ContextSenders = ContextSenders.FIRST,
    latent: LatentSource = LatentSource.ONE_RANK,
) -> dict[tuple[int, int], float]:
    """Share of all the KV by (source rank, destination rank), under the rules of scenarios."""
    cache = Cache("kv", heads, 256.0, TOKENS, 2)
    found = pairs(
        Exchange(
            source_placement(tp, cp, exchange),
            Placement(to),
            copies=HEAD_COPIES,
            latent_copies=LATENT_COPIES[latent],
            context_senders=senders,
        ),
        [cache],
    )
    return {(pair.source_rank, pair.destination_rank): pair.size_bytes / cache.size_bytes for pair in found}


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
    held = {item.rank: item for item in SourceLayout(tp, cp, exchange, heads).holdings()}
    received, sent = dict.fromkeys(range(to), 0.0), dict.fromkeys(held, 0.0)
    for (source, destination), share in shares(tp, cp, exchange, heads, to, senders).items():
        assert share <= held[source].share + 1e-12, "sends what it does not hold"
        received[destination] += share
        sent[source] += share
    for rank, share in received.items():
        assert share == pytest.approx(len(heads_of(rank, to, heads)) / heads, rel=1e-12)


@given(tp=SIZES, to=SIZES, heads=SIZES)
def test_a_source_holds_the_heads_that_it_sends(tp: int, to: int, heads: int) -> None:
    sent: dict[int, float] = {}
    for (source, destination), share in shares(tp, 1, CpExchange.ALL_GATHER, heads, to).items():
        common = heads_of(source, tp, heads) & heads_of(destination, to, heads)
        assert share * heads == pytest.approx(len(common))
        sent[destination] = sent.get(destination, 0.0) + share
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
    for (_, destination), share in shares(tp, cp, exchange, None, to, senders, source).items():
        received[destination] += share
    assert list(received.values()) == pytest.approx([1.0] * to)


def test_equal_tp_sends_rank_to_rank_with_copies() -> None:
    assert shares(8, 1, CpExchange.ALL_GATHER, 4, 8) == {(rank, rank): 0.25 for rank in range(8)}


def test_one_of_two_copies_sends_to_half_as_many_ranks() -> None:
    assert list(shares(8, 1, CpExchange.ALL_GATHER, 4, 4)) == [(0, 0), (2, 1), (4, 2), (6, 3)]


def test_latents_from_eight_to_two_ranks_use_two_senders() -> None:
    assert list(shares(8, 1, CpExchange.ALL_GATHER, None, 2)) == [(0, 0), (4, 1)]
    every = shares(8, 1, CpExchange.ALL_GATHER, None, 2, latent=LatentSource.TOKEN_SHARDS)
    assert every == {(source, to): 1 / 8 for to in range(2) for source in range(8)}


def test_a_context_parallel_group_sends_from_its_first_rank_unless_told() -> None:
    first = shares(2, 2, CpExchange.ALL_GATHER, 8, 2)
    assert {source for source, _ in first} == {0, 1}
    everyone = shares(2, 2, CpExchange.ALL_GATHER, 8, 2, ContextSenders.ALL)
    assert {source for source, _ in everyone} == {0, 1, 2, 3}
    ring = shares(2, 2, CpExchange.RING, 8, 2)
    assert ring == {(rank, rank % 2): 0.25 for rank in range(4)}
    ulysses = shares(2, 2, CpExchange.ULYSSES, 8, 2)
    assert ulysses == {(0, 0): 0.25, (2, 0): 0.25, (1, 1): 0.25, (3, 1): 0.25}


@pytest.mark.parametrize(
    ("split", "first", "second"),
    [("zigzag", 2, 1), ("contiguous", 1, 1), ("token_cyclic", 16384, 16384), ("page_cyclic", 256, 256)],
)
def test_the_split_of_a_ring_reaches_pairs_and_descriptors(variant: Any, split: str, first: int, second: int) -> None:
    """Two ranks with half of 32,768 tokens each, one KV head on both sides, pages of 64: stretches of a buffer."""
    prefill = {"tp_size": 4, "cp_size": 2, "ep_size": 8, "instances": 1, "gpus": None, "cp_exchange": "ring"}
    changes = {
        "prefill": prefill | {"cp_split": split},
        "transfer": {"release_after": "prefill", "staging_tokens": 0},
        "requests": [{"name": "r", "input_tokens": 32768}],
    }
    resolved = variant("seed_h200_nvlink", changes)
    exchange, (request,) = exchange_of(resolved), resolved.requests
    assert (exchange.source.split.value, exchange.source.parts) == (split, 2)
    buffers = 2 * resolved.arch.layers
    for part in parts_of(resolved, request):
        assert part.pieces.size_bytes == buffers * 16384 * 256
        assert part.pieces.descriptors == buffers * (first, second)[part.source_rank // 4]
    flows = build_flows(resolved, timeline(resolved))
    assert len(flows) == 16
    assert {flow.volume_bytes for flow in flows} == {buffers * 16384 * 256.0}
    whole = variant("seed_h200_nvlink", changes | {"prefill": prefill | {"cp_exchange": "all_gather"}})
    assert exchange_of(whole).source.split.value == "whole"
