"""Memory over time: by hand, and against what a plain sum over a replay's segments says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay_lanes import records
from test_writebacks_replayed import PREFILL, TWO, flow, no_holds, phase, prefetches, record

from pdmodel.errors import InputError
from pdmodel.replay import NO_KV, SENDS_FIRST, SIMPLE, memory_trace, plan, simulate
from pdmodel.transfer.flows import MemoryKind, MemoryPool


def pool(capacity=100.0, base=0.0, appears=(), moved=None, *, held=True, name="pool") -> MemoryPool:
    return MemoryPool(name, MemoryKind.PREFILL_HBM, capacity, base, appears, moved or {}, held)


def traced(data, policy, *pools, recorded=True):
    data = replace(data, memory=pools)
    return memory_trace(data, simulate(data, policy, record=recorded))


def test_kv_of_a_request_stays_until_its_last_flow_is_done() -> None:
    # Two chunks of 10 bytes; the send takes them on port f at 10 byte/s, the write-back on e.
    flows = [
        flow("send", "send", ((1, 10.0), (2, 10.0)), ((2, 20.0),), port="f"),
        flow("back", "writeback", ((2, 5.0),)),
    ]
    appears = (("a", 0, "r", 10.0), ("a", 1, "r", 10.0))
    moved = {"send": -0.5, "back": -2.0}
    data = record([phase("r", 1.0), phase("r", 1.0)], flows)
    held, linear = traced(data, "strict", *(pool(30.0, 3.0, appears, moved, held=h) for h in (True, False)))
    assert list(zip(held.times_s, held.bytes, strict=True)) == [
        (0.0, 3.0),
        (0.0, 13.0),
        (1.0, 13.0),
        (1.0, 23.0),
        (3.0, 23.0),
        (3.0, 3.0),
    ]
    assert (held.peak_bytes, held.peak_s, held.at) == (23.0, 1.0, "r, chunk 0")
    assert held.fits
    assert held.exact
    assert linear.peak_bytes == 23.0
    assert np.interp([1.5, 2.25, 3.0], linear.times_s, linear.bytes) == pytest.approx([20.5, 11.75, 3.0])


def test_bytes_that_fill_a_pool_count_as_they_arrive() -> None:
    (host,) = traced(record(TWO, prefetches()), "unmanaged", pool(11.0, 0.0, (), {"early": 1.0, "late": 1.0}))
    assert host.times_s[[0, -1]] == pytest.approx([0.0, 3.5])
    assert np.interp([0.1, 1.0, 1.5, 2.0, 2.5, 3.4], host.times_s, host.bytes) == pytest.approx([1, 2, 2, 7, 12, 12])
    assert not host.fits
    assert host.text == "pool holds 12 B of 11 B at 2.500 s (s, chunk 0)"
    # Without segments all of it counts from the arrival on.
    (most,) = traced(
        record(TWO, prefetches()), "unmanaged", pool(11.0, 0.0, (), {"early": 1.0, "late": 1.0}), recorded=False
    )
    assert (most.peak_bytes, most.peak_s, most.exact) == (12.0, 1.5, False)
    assert most.text.startswith("pool holds at most 12 B of 11 B at 1.500 s")


def test_words_for_when_the_peak_is() -> None:
    later = flow("back", "writeback", ((1, 5.0),), request="s")
    data = record([phase("r", 1.0), phase("s", 1.0, arrival=3.0)], [later])
    for appears, words in (
        ((("a", 0, "s", 1.0),), "s, chunk 0"),  # not before the request is there
        ((("a", 1, "r", 1.0),), "before s"),
        ((("a", 2, "s", 1.0),), "after the last prefill"),
    ):
        assert traced(data, "strict", pool(appears=appears))[0].at == words
    stalled = record([PREFILL[0], PREFILL[1]], [flow("load", "load", ((1, 5.0),), ((1, 5.0),))])
    assert traced(stalled, "strict", pool(appears=(("a", 1, "r", 1.0),)))[0].at == "r waits for its prefix"


def test_an_empty_pool_has_a_trace_and_wrong_names_are_errors() -> None:
    data = record(PREFILL, [flow("send", "send", ((1, 5.0),), ((2, 5.0),))])
    (empty,) = traced(data, "strict", pool(base=7.0))
    assert (empty.peak_bytes, list(empty.bytes), empty.at) == (7.0, [7.0], "")
    assert memory_trace(data, simulate(data, "strict")) == ()
    with pytest.raises(InputError, match="'sned'"):
        traced(data, "strict", pool(moved={"sned": 1.0}))
    with pytest.raises(InputError, match="lane 'b'"):
        traced(data, "strict", pool(appears=(("b", 0, "r", 1.0),)))
    # The reference without KV moves nothing: what appears stays.
    (kept,) = traced(data, NO_KV, pool(appears=(("a", 0, "r", 5.0),), moved={"send": -1.0}))
    assert kept.bytes[-1] == 5.0


# ---- random cases --------------------------------------------------------------------------------------------------
@st.composite
def filled(draw):
    """Records with pools of all sorts."""
    data = draw(records())
    pools = []
    for number in range(draw(st.integers(1, 2))):
        weight = st.sampled_from([0.0, 1.0, 0.5, -1.0, -0.25])
        moved = {one.name: draw(weight) for one in data.flows}
        appears = []
        for request in data.requests:
            lane = data.lanes[request.lane].name
            steps = draw(st.sets(st.integers(0, request.last_phase + 1)))
            appears += [(lane, k, request.name, draw(st.sampled_from([1.0, 8.0]))) for k in steps]
        held = draw(st.booleans())
        names = {name: w for name, w in moved.items() if w}
        pools.append(pool(20.0, 2.0, tuple(appears), names, held=held, name=f"pool{number}"))
    return replace(data, memory=tuple(pools))


def plain_sum(data, replay, one: MemoryPool, time: float) -> float:
    """What a pool holds at a moment at which nothing jumps."""
    total = one.base_bytes
    for lane, k, request, size in one.appears:
        number = data.lane_index[lane]
        phases = data.lanes[number].phases
        began = replay.lanes[number].end_s[k - 1] if k else phases[0].not_before_s
        arrival = next(p.not_before_s for p in phases if p.request == request)
        total += size * (max(began, arrival) < time)
    for name, weight in one.moved.items():
        f = next(k for k, each in enumerate(data.flows) if each.name == name)
        moved = sum(s.flow_rate[f] * max(min(s.end_s, time) - s.start_s, 0.0) for s in replay.segments)
        if weight < 0 and one.held_until_done:
            mine = [
                replay.flow_finish_s[k]
                for k, each in enumerate(data.flows)
                if one.moved.get(each.name, 0.0) < 0
                and (each.lane, each.request) == (data.flows[f].lane, data.flows[f].request)
            ]
            moved = data.volume_bytes[f] * (max(mine) < time)
        total += weight * moved
    return total


@settings(max_examples=60)
@given(filled(), st.sampled_from([*SIMPLE, SENDS_FIRST, None]))
def test_traces_are_plain_sums_over_segments(data, policy) -> None:
    rule = policy or (plan(no_holds(len(data.lanes[0].phases))) if len(data.lanes) == 1 else SENDS_FIRST)
    replay = simulate(data, rule, record=True)
    bounds = memory_trace(data, replace(replay, segments=()))
    for one, trace, bound in zip(data.memory, memory_trace(data, replay), bounds, strict=True):
        assert np.all(np.diff(trace.times_s) >= 0)
        times = np.unique(trace.times_s)
        probes = np.concatenate([(times[:-1] + times[1:]) / 2, [times[-1] + 1.0]])
        probes = probes[np.abs(probes[:, None] - times[None, :]).min(axis=1) > 1e-9]
        found = np.array([plain_sum(data, replay, one, time) for time in probes])
        assert np.interp(probes, trace.times_s, trace.bytes) == pytest.approx(found, abs=1e-6)
        assert trace.peak_bytes >= found.max(initial=one.base_bytes) - 1e-6
        assert trace.peak_bytes == trace.bytes.max()
        # Between two jumps the trace is linear, so its peak is at a point; just beside it the plain sum is as high.
        beside = [plain_sum(data, replay, one, trace.peak_s + step) for step in (-1e-7, 1e-7)]
        assert max(beside) >= trace.peak_bytes - 1e-4
        assert np.all(np.interp(probes, bound.times_s, bound.bytes) >= found - 1e-6)
        assert bound.peak_bytes >= trace.peak_bytes - 1e-6


@settings(max_examples=40)
@given(filled())
def test_held_memory_is_never_less_than_what_the_rows_of_programs_count(data) -> None:
    replay = simulate(data, "unmanaged", record=True)
    linear = replace(data, memory=tuple(replace(one, held_until_done=False) for one in data.memory))
    held = replace(data, memory=tuple(replace(one, held_until_done=True) for one in data.memory))
    for least, most in zip(memory_trace(linear, replay), memory_trace(held, replay), strict=True):
        # Points of the linear trace are within what is held, from the left or from the right.
        above = np.interp(least.times_s, most.times_s, most.bytes)
        inside = (np.abs(least.times_s[:, None] - most.times_s[None, :]) > 1e-9).all(axis=1)
        assert np.all(above[inside] >= least.bytes[inside] - 1e-6)
        assert most.bytes[-1] == pytest.approx(least.bytes[-1], abs=1e-6)
