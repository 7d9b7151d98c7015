"""Laws of a KV store, and the way through it against a direct write; measured times are in tests/verification."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.kv_layout.law import completion_s, equal_pieces_s
from pdmodel.costs.kv_store import (
    MOONCAKE_STORE_TCP,
    Chunk,
    StoreConstants,
    Ways,
    backend_constants,
    batch_get_s,
    batch_put_s,
    flow_shop_s,
    get_s,
    get_terms,
    lease_bytes_per_s,
    lease_holds,
    put_s,
    put_terms,
    read_under_lease_s,
    through_store,
)
from pdmodel.engines.stores import load_store
from pdmodel.errors import InputError
from pdmodel.spec import SourceKind

FREE = StoreConstants(0, 0, 0, 0, 128, math.inf, SourceKind.ASSUMED, "made up")
TIMES = st.lists(st.floats(0, 10), min_size=1, max_size=6)


@given(size=st.floats(1, 1e12), objects=st.integers(1, 10_000), rate=st.floats(1e6, 1e12), copies=st.integers(1, 3))
def test_terms_are_calls_objects_and_bytes(size, objects, rate, copies):
    constants = MOONCAKE_STORE_TCP
    put = put_terms(size, objects, rate, constants, replicas=copies)
    get = get_terms(size, objects, rate, constants)
    calls = -(-objects // 128)
    assert put.calls == get.calls == calls
    assert put.time_s == pytest.approx(calls * 272e-6 + objects * 11.4e-6 + copies * size / rate)
    assert get.time_s == pytest.approx(calls * 153e-6 + objects * 9.3e-6 + size / rate)
    for scale in (1e-6, 1e6):
        assert get_terms(size * scale, objects, rate * scale, constants).time_s == pytest.approx(get.time_s)


def test_batching_saves_calls():
    single = 64 * put_s(65536, 1.82e9, MOONCAKE_STORE_TCP)
    together = batch_put_s(64 * 65536, 64, 1.82e9, MOONCAKE_STORE_TCP)
    assert single - together == pytest.approx(63 * 272e-6)
    assert batch_get_s(65536, 1, 1.95e9, MOONCAKE_STORE_TCP) == get_s(65536, 1.95e9, MOONCAKE_STORE_TCP)


def test_the_lease_that_was_measured():
    # 8 MB at 200 Mbit/s take 340 ms; with a lease of 300 ms the Get failed, with 2 s it did not.
    short, long = (
        StoreConstants(153e-6, 272e-6, 11.4e-6, 9.3e-6, 128, lease, SourceKind.MEASURED, "made up")
        for lease in (0.3, 2.0)
    )
    assert read_under_lease_s(8 << 20, 1, 24.82e6, short) == pytest.approx(0.338, rel=0.01)
    assert not lease_holds(8 << 20, 1, 24.82e6, short)
    assert lease_holds(8 << 20, 1, 24.82e6, long)


@given(size=st.floats(1, 1e12), objects=st.integers(1, 1000))
def test_the_least_rate_of_a_lease_is_where_it_stops_to_hold(size, objects):
    rate = lease_bytes_per_s(size, objects, MOONCAKE_STORE_TCP)
    assert lease_holds(size, objects, rate * 1.001, MOONCAKE_STORE_TCP)
    assert not lease_holds(size, objects, rate * 0.999, MOONCAKE_STORE_TCP)
    assert lease_bytes_per_s(size, objects, FREE) == 0


@given(first=TIMES, data=st.data())
def test_a_flow_shop_is_its_longest_path(first, data):
    stages = [first] + [
        data.draw(st.lists(st.floats(0, 10), min_size=len(first), max_size=len(first))) for _ in range(2)
    ]
    n = len(first)
    paths = (
        sum(stages[0][: a + 1]) + sum(stages[1][a : b + 1]) + sum(stages[2][b:])
        for a, b in itertools.combinations_with_replacement(range(n), 2)
    )
    assert flow_shop_s(stages) == pytest.approx(max(paths))
    # Two stages: bytes that leave as they are computed.
    assert flow_shop_s(stages[:2]) == pytest.approx(completion_s(stages[0], stages[1], 1.0))


@given(one=st.floats(0, 10), two=st.floats(0, 10), pieces=st.integers(1, 20))
def test_equal_pieces(one, two, pieces):
    assert flow_shop_s([[one] * pieces, [two] * pieces]) == pytest.approx(equal_pieces_s(one, two, pieces))


def test_empty_and_crooked_shops():
    assert flow_shop_s([]) == flow_shop_s([[], []]) == 0
    for bad in ([[1.0], [1.0, 2.0]], [[1.0], [-1.0]]):
        with pytest.raises(InputError):
            flow_shop_s(bad)


CHUNKS = st.lists(
    st.builds(Chunk, st.floats(0.01, 2), st.floats(1e6, 1e10), st.integers(1, 500)), min_size=1, max_size=6
)


@given(chunks=CHUNKS, rate=st.floats(1e8, 1e11), layers=st.integers(1, 80))
def test_the_store_is_never_quicker_where_nothing_is_stored(chunks, rate, layers):
    found = through_store(chunks, Ways(rate, rate, rate, MOONCAKE_STORE_TCP, layers=layers))
    order = [found.by_layer_s, found.by_chunk_s, found.copied_s, found.forwarded_s, found.after_put_s]
    assert all(one <= two * (1 + 1e-9) for one, two in itertools.pairwise(order))
    assert found.by_layer_s >= found.prefill_s
    assert found.store_costs_s == pytest.approx(found.lost_overlap_s + found.second_copy_s + found.control_s)
    assert found.puts.bytes_s == pytest.approx(sum(chunk.size_bytes for chunk in chunks) / rate)


def test_the_claim_about_overlap_as_a_number():
    # Eight chunks of 1 s and 5 GB at 10 GB/s: a layer of 80 is left over directly; the store has all gets to do.
    chunks = [Chunk(1.0, 5e9, 128)] * 8
    found = through_store(chunks, Ways(10e9, 10e9, 10e9, FREE, layers=80))
    assert found.exposed_s(found.by_layer_s) == pytest.approx(0.5 / 80)
    assert found.exposed_s(found.by_chunk_s) == pytest.approx(0.5)
    assert found.exposed_s(found.forwarded_s) == pytest.approx(1.0)
    assert found.exposed_s(found.after_put_s) == pytest.approx(0.5 + 8 * 0.5)
    assert found.lost_overlap_s == pytest.approx(3.5)


def test_what_is_stored_is_not_put_and_can_be_got_at_once():
    whole = Chunk(1.0, 6e9, 110)
    reused = Chunk(1.0, 6e9, 110, stored_bytes=5e9, stored_objects=100)
    ways = Ways(10e9, 10e9, 10e9, FREE)
    assert through_store([whole], ways).forwarded_s == pytest.approx(1.0 + 0.6 + 0.6)
    found = through_store([reused], ways)
    assert found.forwarded_s == pytest.approx(1.0 + 0.1 + 0.1)
    assert found.after_put_s == pytest.approx(1.0 + 0.1 + 0.6)
    assert found.forwarded_s < found.by_chunk_s


def test_replicas_are_written_by_the_client():
    one, three = (through_store([Chunk(1.0, 1e9, 1)], Ways(1e9, 1e9, 1e9, FREE, replicas=r)) for r in (1, 3))
    assert three.after_put_s - one.after_put_s == pytest.approx(2.0)


def test_constants_of_backends():
    constants = backend_constants(load_store("mooncake_store_tcp"), page_objects=1)
    shipped = MOONCAKE_STORE_TCP
    names = ("query_rpc_s", "put_rpc_s", "object_put_s", "object_get_s", "batch_objects", "lease_s")
    assert [getattr(constants, name) for name in names] == pytest.approx([getattr(shipped, name) for name in names])
    assert constants.source is SourceKind.MEASURED
    assert backend_constants(load_store("3fs")).lease_s == math.inf
    assert backend_constants(load_store("mooncake_store"), 2.0).lease_s == 2.0


def test_nonsense():
    constants = MOONCAKE_STORE_TCP
    for bad in ((-1, 1, 1e9), (1, 0, 1e9), (1, -1, 1e9), (1, 1, 0), (1, 1, math.nan)):
        with pytest.raises(InputError):
            get_terms(*bad, constants)
    with pytest.raises(InputError):
        put_terms(1, 1, 1e9, constants, replicas=0)
    with pytest.raises(InputError):
        through_store([], Ways(1e9, 1e9, 1e9, constants))
    with pytest.raises(InputError):
        StoreConstants(0, 0, 0, 0, 0, 1, SourceKind.ASSUMED, "made up")
    with pytest.raises(InputError):
        lease_bytes_per_s(1.0, 128, StoreConstants(0, 0, 0, 1.0, 128, 10, SourceKind.ASSUMED, "made up"))
