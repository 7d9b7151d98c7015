"""Pairs, bytes and descriptors of a re-layout, against enumeration of every token, head and buffer."""

import importlib.util
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdmodel.costs.kv_layout import (
    Cache,
    CopySender,
    Exchange,
    Order,
    Pages,
    Pair,
    Placement,
    Side,
    Split,
    caches,
    comb,
    common_runs,
    descriptors,
    pairs,
)
from pdmodel.engines.spec import ContextSenders
from pdmodel.errors import CoverageError, InputError
from pdmodel.llm.catalog import list_llms, load_llm
from pdmodel.llm.kv_cache import kv_sequence_bytes

ORACLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "oracles" / "kv_layout_oracle.py"
SPLITS = {
    "contig": Split.CONTIGUOUS,
    "zigzag": Split.ZIGZAG,
    "cyclic": Split.TOKEN_CYCLIC,
    "cyclic_page": Split.PAGE_CYCLIC,
}


# ---- the same by enumeration -----------------------------------------------------------------------------------------
def kept_tokens(split: Split, part: int, parts: int, tokens: int, page: int) -> list[int]:
    """Tokens of one part, by asking each token where it belongs."""
    stretch = {Split.CONTIGUOUS: -(-tokens // parts), Split.ZIGZAG: -(-tokens // (2 * parts))}

    def owner(token: int) -> int:
        if split is Split.CONTIGUOUS:
            return token // stretch[split]
        if split is Split.ZIGZAG:
            return min(token // stretch[split], 2 * parts - 1 - token // stretch[split])
        return (token if split is Split.TOKEN_CYCLIC else token // page) % parts

    return [token for token in range(tokens) if split is Split.WHOLE or owner(token) == part]


def kept_heads(shard: int, shards: int, heads: int) -> list[int]:
    return [head for head in range(heads) if head * shards // heads <= shard <= ((head + 1) * shards - 1) // heads]


def address(place: Placement, exchange: Exchange, shape: tuple[int, int], at: tuple[int, int, int]) -> int:
    """Row number of (buffer, head, place in order) in a rank's memory; scattered pages lie apart."""
    (heads, buffers), (buffer, head, index) = shape, at
    page, slot = divmod(index, place.page_tokens)
    size = place.page_tokens * heads
    inside = slot * heads + head if place.order is Order.NHD else head * place.page_tokens + slot
    gap = 1000 * page if exchange.pages is Pages.SCATTERED else 0
    if exchange.layers_together:
        return (page * buffers + buffer) * size + inside + gap
    return buffer * 10**7 + page * size + inside + gap


def sending_part(place: Placement, exchange: Exchange, count: int, index: int, copy: tuple[int, int]) -> bool:
    """Whether place ``index`` of ``count`` falls to ``copy`` = (number, of how many), in whole pages."""
    number, of = copy
    pages = -(-count // place.page_tokens)
    return index // place.page_tokens // -(-pages // of) == number


def brute(exchange: Exchange, cache: Cache) -> dict[tuple[int, int], tuple[int, int]]:
    """(rows, descriptors) of every pair: a descriptor starts wherever the row before is not sent right before."""
    moved: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for key, here, there in movements(exchange, cache):
        moved.setdefault(key, set()).add((here, there))
    return {
        key: (len(rows), sum((here - 1, there - 1) not in rows for here, there in rows)) for key, rows in moved.items()
    }


def movements(exchange: Exchange, cache: Cache) -> Iterator[tuple[tuple[int, int], int, int]]:
    ours, theirs, heads, tokens = exchange.source, exchange.destination, cache.heads or 1, cache.rows
    held = [kept_tokens(ours.split, part, ours.parts, tokens, ours.page_tokens) for part in range(ours.parts)]
    places = [{token: index for index, token in enumerate(part)} for part in held]
    for shard in range(theirs.shards):
        wanted = kept_heads(shard, theirs.shards, heads)
        twins = [s for s in range(theirs.shards) if kept_heads(s, theirs.shards, heads) == wanted]
        for part in range(theirs.parts):
            mine = kept_tokens(theirs.split, part, theirs.parts, tokens, theirs.page_tokens)
            for index, token in enumerate(mine):
                twin = (twins.index(shard), len(twins))
                if token < cache.first_row:
                    continue
                if exchange.gather and not sending_part(theirs, exchange, len(mine), index, twin):
                    continue
                for there, head in enumerate(wanted):
                    rank_of = (twin[0] * theirs.parts + part, twin[1] * theirs.parts)
                    sender, context = source_of(exchange, places, (token, head, heads), shard, rank_of)
                    shape = kept_heads(sender, ours.shards, heads)
                    at = (shape.index(head), places[context][token])
                    rank = (context * ours.shards + sender, shard * theirs.parts + part)
                    for buffer in range(cache.buffers):
                        yield (
                            rank,
                            address(ours, exchange, (len(shape), cache.buffers), (buffer, *at)),
                            address(theirs, exchange, (len(wanted), cache.buffers), (buffer, there, index)),
                        )


def source_of(
    exchange: Exchange, places: list[dict[int, int]], what: tuple[int, int, int], shard: int, twin: tuple[int, int]
) -> tuple[int, int]:
    token, head, heads = what
    ours = exchange.source
    copies = [s for s in range(ours.shards) if head in kept_heads(s, ours.shards, heads)]
    contexts = [part for part in range(ours.parts) if token in places[part]]
    if ours.split is Split.WHOLE and exchange.context_senders is ContextSenders.FIRST:
        contexts = contexts[:1]
    if exchange.copies is CopySender.SHARES:
        many = [(copy, context) for copy in copies for context in contexts]
        for number, (copy, context) in enumerate(many):
            index, count = places[context][token], len(places[context])
            if sending_part(ours, exchange, count, index, (number, len(many))):
                return copy, context
    one = {
        CopySender.SPREAD: shard % len(copies),
        CopySender.FIRST: 0,
        CopySender.CYCLIC: twin[0] % len(copies),
        CopySender.PROPORTIONAL: twin[0] * len(copies) // twin[1],
    }[exchange.copies]
    for number, context in enumerate(contexts):
        if sending_part(ours, exchange, len(places[context]), places[context][token], (number, len(contexts))):
            return copies[one], context
    raise LookupError(token)


# ---- any exchange ----------------------------------------------------------------------------------------------------
HEADS = (1, 2, 3, 4, 6)


@st.composite
def placements(draw: st.DrawFn, heads: int, *, source: bool) -> Placement:
    shards = draw(st.sampled_from([n for n in range(1, 2 * heads + 1) if n % heads == 0 or heads % n == 0]))
    parts = draw(st.sampled_from([1, 1, 2, 3]))
    splits = list(Split) if source or parts == 1 else [split for split in Split if split is not Split.WHOLE]
    page, order = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from(list(Order)))
    return Placement(shards, parts, draw(st.sampled_from(splits)), page, order)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Exchange, Cache]:
    heads = draw(st.sampled_from(HEADS))
    one, two = draw(placements(heads, source=True)), draw(placements(heads, source=False))
    together = draw(st.booleans()) and one.order is two.order
    exchange = Exchange(
        one,
        two,
        copies=draw(st.sampled_from(list(CopySender))),
        context_senders=draw(st.sampled_from(list(ContextSenders))),
        pages=draw(st.sampled_from(list(Pages))),
        layers_together=together,
        gather=draw(st.booleans()),
    )
    tokens = draw(st.integers(1, 30))
    first = draw(st.sampled_from([0, 0, tokens // 2]))
    cache = Cache("any", heads, 1.0, tokens, draw(st.sampled_from([1, 2])), first)
    if exchange.copies is CopySender.SHARES and one.split is not Split.WHOLE:
        exchange = Exchange(one, two, pages=exchange.pages, layers_together=together, gather=exchange.gather)
    return exchange, cache


@settings(max_examples=2500, deadline=None)
@given(cases())
def test_pairs_bytes_and_descriptors_are_those_of_enumeration(case: tuple[Exchange, Cache]) -> None:
    exchange, cache = case
    found = {(p.source_rank, p.destination_rank): (p.size_bytes, p.descriptors) for p in pairs(exchange, [cache])}
    assert found == brute(exchange, cache)


@st.composite
def oracle_cases(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([1, 2, 4, 8]))
    shards = [n for n in range(1, 2 * heads + 1) if n % heads == 0 or heads % n == 0]
    mode = st.sampled_from(list(SPLITS))
    one, two = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 4]))
    orders = st.sampled_from(["NHD", "HND"])
    page = draw(st.sampled_from([1, 2, 4, 8]))
    return {
        "H": heads,
        "n": 2 * one * two * draw(st.integers(1, 4)) * draw(st.sampled_from([1, page])),
        "g": page,
        "d": 256,
        "Tp": draw(st.sampled_from(shards)),
        "Td": draw(st.sampled_from(shards)),
        "Cp": one,
        "Cd": two,
        "pm": draw(mode),
        "dm": draw(mode),
        "play": draw(orders),
        "dlay": draw(orders),
    }


@pytest.fixture(scope="module")
def oracle() -> Any:
    if not ORACLE.is_file():
        pytest.skip("needs the shared reference for layouts beside the repository")
    spec = importlib.util.spec_from_file_location("kv_layout_oracle", ORACLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=2000, deadline=None)
@given(case=oracle_cases())
def test_equal_to_the_shared_reference(oracle: Any, case: dict[str, Any]) -> None:
    found = asked(case)
    wanted = {
        (shard[1] * case["Tp"] + shard[0], target[0] * case["Cd"] + target[1]): (size, runs)
        for (shard, target), (size, runs, _) in oracle.plan(**case).items()
    }
    assert {(p.source_rank, p.destination_rank): (p.size_bytes, p.descriptors) for p in found} == wanted


def asked(case: dict[str, Any]) -> tuple[Pair, ...]:
    one = Placement(case["Tp"], case["Cp"], SPLITS[case["pm"]], case["g"], Order(case["play"].lower()))
    two = Placement(case["Td"], case["Cd"], SPLITS[case["dm"]], case["g"], Order(case["dlay"].lower()))
    return pairs(Exchange(one, two), [Cache("one", case["H"], case["d"], case["n"], 1)])


# ---- figures by hand, and published ones -----------------------------------------------------------------------------
def test_a_head_split_is_a_descriptor_a_token_with_nhd_and_a_page_with_hnd() -> None:
    kept = caches(load_llm("qwen3-32b"), 32768)
    for order, count in ((Order.NHD, 32768), (Order.HND, 32768 // 64)):
        found = pairs(Exchange(Placement(4, order=order), Placement(8, order=order)), kept)
        assert len(found) == 8
        assert {pair.descriptors for pair in found} == {2 * 64 * count}
        assert {pair.size_bytes for pair in found} == {2 * 64 * 32768 * 128 * 2}


def test_staging_leaves_one_descriptor_a_buffer_and_chunk() -> None:
    kept = caches(load_llm("qwen3-32b"), 32768)
    found = pairs(Exchange(Placement(4), Placement(8), chunk_tokens=8192), kept)
    assert {pair.descriptors for pair in found} == {2 * 64 * 4}
    zigzag = Exchange(Placement(4, 2, Split.ZIGZAG), Placement(8), chunk_tokens=8192)
    assert {pair.descriptors for pair in pairs(zigzag, kept)} == {2 * 64 * 4}


def test_scattered_pages_are_a_descriptor_each() -> None:
    kept = caches(load_llm("qwen3-8b"), 32768)
    together, apart = (pairs(Exchange(Placement(4), Placement(4), pages=pages), kept) for pages in Pages)
    assert {pair.descriptors for pair in together} == {72}
    assert {pair.descriptors for pair in apart} == {72 * 512}
    blocks = pairs(Exchange(Placement(4), Placement(4), pages=Pages.SCATTERED, layers_together=True), kept)
    assert {pair.descriptors for pair in blocks} == {512}


def test_copies_of_heads_are_sent_as_mooncake_published() -> None:
    # 32,768 tokens of Qwen3-235B, TP8 on both sides: 12.62 GB (Mooncake docs, sglang-benchmark-results-v1).
    arch = load_llm("qwen3-235b-a22b")
    kept = caches(arch, 32768)
    found = pairs(Exchange(Placement(8), Placement(8), copies=CopySender.PROPORTIONAL), kept)
    assert sum(pair.size_bytes for pair in found) == 2 * kv_sequence_bytes(arch, 32768) == 12_616_466_432
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(rank, rank) for rank in range(8)]
    once = pairs(Exchange(Placement(8), Placement(8), gather=True), kept)
    assert sum(pair.size_bytes for pair in once) == kv_sequence_bytes(arch, 32768)


def test_token_cyclic_latents_are_the_published_168_thousand_descriptors() -> None:
    # sglang pull request 35186: 56k tokens, DCP8, 24 MLA layers, rows of 576 bytes: 168 k descriptors a decode rank.
    rows = Cache("latent", None, 576, 56_000, 24)
    found = pairs(Exchange(Placement(1), Placement(1, 8, Split.TOKEN_CYCLIC)), [rows])
    assert len(found) == 8
    assert {(pair.descriptors, pair.size_bytes) for pair in found} == {(168_000, 168_000 * 576)}
    pages = pairs(Exchange(Placement(1), Placement(1, 8, Split.PAGE_CYCLIC)), [rows])
    assert {pair.descriptors for pair in pages} <= {24 * 109, 24 * 110}


@pytest.mark.parametrize(
    ("rule", "senders", "largest"),
    [(CopySender.FIRST, 1, 1.0), (CopySender.PROPORTIONAL, 2, 0.5), (CopySender.SHARES, 8, 0.125)],
)
def test_who_sends_a_latent_that_all_ranks_keep(rule: CopySender, senders: int, largest: float) -> None:
    found = pairs(Exchange(Placement(8), Placement(2), copies=rule), [Cache("latent", None, 1152, 32768, 61)])
    sent = {rank: sum(p.size_bytes for p in found if p.source_rank == rank) for rank in range(8)}
    total = 2 * 61 * 32768 * 1152
    assert sum(sent.values()) == total
    assert sum(size > 0 for size in sent.values()) == senders
    assert max(sent.values()) == total * largest


def test_ranks_that_share_the_tokens_of_a_latent_each_take_it_from_a_rank_of_their_own() -> None:
    # sglang pull request 35186: TP8 to TP8 with DCP8, 168 k rows of 576 bytes for each rank, 1.23 GB/s over eight NICs.
    rows = Cache("latent", None, 576, 56_000, 24)
    exchange = Exchange(
        Placement(8), Placement(1, 8, Split.TOKEN_CYCLIC), CopySender.CYCLIC, latent_copies=CopySender.PROPORTIONAL
    )
    found = pairs(exchange, [rows])
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(rank, rank) for rank in range(8)]
    posted_s = max(pair.descriptors for pair in found) * 3.75e-6
    assert sum(pair.size_bytes for pair in found) / posted_s == pytest.approx(1.23e9, rel=0.01)
    halved = pairs(replace(exchange, source=Placement(4)), [rows])
    assert [pair.source_rank for pair in halved] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_context_parallel_ranks_that_all_keep_the_kv() -> None:
    kept = [Cache("kv", 8, 256, 4096, 2)]
    first, every = (
        pairs(Exchange(Placement(2, 4), Placement(2), context_senders=rule), kept)
        for rule in (ContextSenders.FIRST, ContextSenders.ALL)
    )
    assert {pair.source_rank for pair in first} == {0, 1}
    assert {pair.source_rank for pair in every} == set(range(8))
    assert sum(pair.size_bytes for pair in first) == sum(pair.size_bytes for pair in every)


def test_ulysses_shards_are_neighbours_of_one_tp_rank() -> None:
    found = pairs(Exchange(Placement(4, ulysses=2), Placement(4)), [Cache("kv", 8, 256, 64, 2)])
    assert [(pair.source_rank, pair.destination_rank) for pair in found] == [(0, 0), (2, 1), (1, 2), (3, 3)]


def test_states_go_once_and_windows_as_tails() -> None:
    state, tail = Cache("state", 4, 1000.0, 1, 3, once=True), Cache("window", 4, 10.0, 1000, 2, first_row=900)
    ring = Placement(2, 2, Split.CONTIGUOUS, page_tokens=50)
    found = pairs(Exchange(ring, Placement(4, page_tokens=50)), [state])
    assert sum(pair.size_bytes for pair in found) == state.size_bytes == 12_000
    assert {pair.descriptors for pair in found} == {3}
    found = pairs(Exchange(ring, Placement(4, page_tokens=50)), [tail])
    assert sum(pair.size_bytes for pair in found) == tail.size_bytes == 100 * 4 * 10 * 2
    assert {pair.source_rank for pair in found} == {2, 3}  # the last part keeps the end


@pytest.mark.parametrize("name", list_llms())
def test_caches_are_all_that_a_sequence_keeps(name: str) -> None:
    arch = load_llm(name)
    assert sum(cache.size_bytes for cache in caches(arch, 32768)) == kv_sequence_bytes(arch, 32768)


def test_layouts_that_do_not_fit() -> None:
    kept = [Cache("kv", 8, 256, 64, 2)]
    with pytest.raises(InputError, match="3 head shards of 8 KV heads"):
        pairs(Exchange(Placement(3), Placement(4)), kept)
    with pytest.raises(InputError, match="keep the same tokens"):
        Exchange(Placement(4), Placement(4, 2))
    with pytest.raises(InputError, match="staging"):
        Exchange(Placement(4), Placement(4), chunk_tokens=0)
    with pytest.raises(InputError, match="Ulysses"):
        Placement(3, ulysses=2)
    with pytest.raises(InputError):
        caches(load_llm("qwen3-8b"), 0)
    with pytest.raises(InputError):
        comb(Split.ZIGZAG, 2, 2, 16, 4)
    runs = common_runs(comb(Split.WHOLE, 0, 1, 16, 4), comb(Split.WHOLE, 0, 1, 16, 4))
    sides = Side(Order.NHD, 4, 4), Side(Order.HND, 4, 4)
    with pytest.raises(CoverageError, match="several layers"):
        descriptors(runs, 4, *sides, layers_together=8)
    with pytest.raises(InputError, match="5 heads"):
        descriptors(runs, 5, *sides)


@given(st.data())
def test_closed_forms_of_pairs_and_bytes(data: st.DataObject) -> None:
    # Pairs: max of the distinct shards of both sides x copies at the destination x context-parallel parts.
    heads = data.draw(st.sampled_from([1, 2, 4, 8]))
    degrees = st.sampled_from([1, 2, 4, 8, 16])
    ours, theirs, parts = data.draw(degrees), data.draw(degrees), data.draw(st.sampled_from([1, 2, 4]))
    cache = Cache("kv", heads, 256.0, 1024, 2)
    found = pairs(Exchange(Placement(ours, parts, Split.ZIGZAG), Placement(theirs)), [cache])
    copies = max(1, theirs // heads)
    assert len(found) == max(min(ours, heads), min(theirs, heads)) * copies * parts
    assert sum(pair.size_bytes for pair in found) == cache.size_bytes * copies
    shared = min(max(1, heads // ours), max(1, heads // theirs))
    assert {pair.size_bytes for pair in found} == {2 * 1024 / parts * shared * 256}


# ---- what is sent apart ----------------------------------------------------------------------------------------------
@given(st.data())
def test_cuts_are_what_sending_the_parts_alone_comes_to(data: st.DataObject) -> None:
    tokens, page = data.draw(st.integers(2, 300)), data.draw(st.sampled_from([1, 4, 16]))
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, tokens - 1), max_size=4))))
    orders = data.draw(st.tuples(st.sampled_from(Order), st.sampled_from(Order)))
    ours, theirs = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([1, 2, 4]))
    exchange = Exchange(Placement(ours, page_tokens=page, order=orders[0]), Placement(theirs, 1, page_tokens=page))
    whole = pairs(replace(exchange, cuts=cuts), [Cache("kv", 4, 256.0, tokens, 2)])
    bounds = [0, *cuts, tokens]
    for pair in whole:
        # [first, last) alone: what there is up to `last` from row `first` on.
        alone = 0
        for first, last in itertools.pairwise(bounds):
            part = pairs(exchange, [Cache("kv", 4, 256.0, last, 2, first_row=first)])
            alone += sum(
                one.descriptors
                for one in part
                if (one.source_rank, one.destination_rank) == (pair.source_rank, pair.destination_rank)
            )
        assert pair.descriptors == alone
    uncut = pairs(exchange, [Cache("kv", 4, 256.0, tokens, 2)])
    assert sum(pair.size_bytes for pair in whole) == sum(pair.size_bytes for pair in uncut)
    assert sum(pair.descriptors for pair in whole) >= sum(pair.descriptors for pair in uncut)


def test_chunks_of_aligned_ranks_are_a_descriptor_each() -> None:
    cache = Cache("kv", 8, 256.0, 32768, 10)
    exchange = Exchange(Placement(4), Placement(4), cuts=(8192, 16384, 24576))
    assert {pair.descriptors for pair in pairs(exchange, [cache])} == {40}
    ring = replace(exchange, source=Placement(4, 2, Split.ZIGZAG))
    found = pairs(ring, [cache])
    assert sum(pair.size_bytes for pair in found) == cache.size_bytes
    assert {pair.descriptors for pair in found} == {40}  # a rank has a part of every chunk
