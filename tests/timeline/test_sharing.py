"""The sharing rule: hand-made cases, its own defining equations on random ones, and its fallback."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.timeline import sharing
from pdmodel.timeline.sharing import SharingCounts, share, share_rows

INF = np.inf


def ones_like(demand):
    return np.ones_like(np.asarray(demand, dtype=float))


def shared(demand, limit, capacity, weight=None):
    demand = np.asarray(demand, dtype=float)
    weight = ones_like(demand) if weight is None else np.asarray(weight, dtype=float)
    return share(demand, np.asarray(limit, dtype=float), weight, np.asarray(capacity, dtype=float))


def test_collective_and_kv_halve_a_port() -> None:
    # A ring that fills a port of 10 alone (a = 10, x <= 1) beside one KV queue: theta = 5, so x = 5/10 and KV 5.
    assert shared([[10], [1]], [1, INF], [10]) == pytest.approx([0.5, 5.0])


def test_what_a_small_demand_leaves_goes_to_the_other() -> None:
    # The collective wants 3 of 10: less than its half, so KV takes the other 7.
    assert shared([[3], [1]], [1, INF], [10]) == pytest.approx([1.0, 7.0])


def test_weights_set_the_shares() -> None:
    # Weight 2 for KV: theta = 10/3; the collective gets 10/3 of its 10, KV 20/3.
    assert shared([[10], [1]], [1, INF], [10], [[1], [2]]) == pytest.approx([1 / 3, 20 / 3])


def test_three_flows_on_two_links() -> None:
    # The textbook case: one flow over both links of 10 and 4, one on each: 2 and 2 on the link of 4, 8 on the other.
    assert shared([[1, 1], [1, 0], [0, 1]], [INF] * 3, [10, 4]) == pytest.approx([2.0, 8.0, 2.0])


def test_multiplicity_counts_consumption() -> None:
    # A staged copy crosses host memory twice: of a port of 12 both take 6, so the copy moves 3 a second.
    assert shared([[2], [1]], [INF, INF], [12]) == pytest.approx([3.0, 6.0])


def test_limits_hold_and_free_the_rest() -> None:
    assert shared([[1], [1]], [2, INF], [10]) == pytest.approx([2.0, 8.0])


def test_activity_without_demand_runs_at_its_limit() -> None:
    assert shared([[0.0], [1.0]], [1, INF], [10]) == pytest.approx([1.0, 10.0])


def test_a_port_without_capacity_stops_what_crosses_it() -> None:
    assert shared([[1, 1], [1, 0]], [INF, INF], [6, 0]) == pytest.approx([0.0, 6.0])


def test_exactly_full_is_not_slowed() -> None:
    assert shared([[7], [3]], [1, 1], [10])[0] == 1.0


def test_ring_with_weights_of_one_input_link() -> None:
    # Four NIC queues behind one input link of a port (w = 1/4 each) count once beside the ring: 5 for it, 1.25 each.
    weight = [[1.0]] + [[0.25]] * 4
    assert shared([[10]] + [[1]] * 4, [1] + [INF] * 4, [10], weight) == pytest.approx([0.5] + [1.25] * 4)


@st.composite
def problems(draw):
    activities, ports = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    need = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 0.05])
    demand = np.array([[draw(need) for _ in range(ports)] for _ in range(activities)])
    scale = np.array([draw(st.sampled_from([1.0, 1.0, 7.0])) for _ in range(activities)])
    limit = np.array([draw(st.sampled_from([1.0, 0.3, INF])) for _ in range(activities)])
    limit[(demand == 0).all(axis=1)] = 1.0
    weight = np.array([[draw(st.sampled_from([1.0, 0.5, 2.0])) for _ in range(ports)] for _ in range(activities)])
    capacity = np.array([draw(st.sampled_from([0.0, 1.0, 4.0, 10.0])) for _ in range(ports)])
    return demand * scale[:, None], limit, weight, capacity


def check(demand, limit, weight, capacity, speed, *, filled: bool = False) -> None:
    """No port above its capacity, and every activity held by its limit or by a full port where none has more.

    ``filled``: progressive filling answered, which promises no more than a full port on the way of each activity.
    """
    used = demand.T @ speed
    assert np.all(used <= capacity * (1 + 1e-9) + 1e-12)
    full = used >= capacity * (1 - 1e-9)
    share_of = np.divide(demand * speed[:, None], weight)
    for a in range(len(speed)):
        if speed[a] >= limit[a] * (1 - 1e-9):
            continue
        held = [
            e
            for e in range(len(capacity))
            if demand[a, e] > 0 and full[e] and (filled or share_of[a, e] >= share_of[:, e].max() * (1 - 1e-6) - 1e-12)
        ]
        assert held, f"activity {a} could go faster"


@given(problems())
def test_bottleneck_max_min(problem) -> None:
    demand, limit, weight, capacity = problem
    counts = SharingCounts()
    rows = [
        tuple((int(e), float(demand[a, e]), float(weight[a, e])) for e in np.flatnonzero(demand[a]))
        for a in range(len(limit))
    ]
    speed = share_rows(rows, limit.tolist(), capacity.tolist(), counts)
    np.testing.assert_array_equal(share(demand, limit, weight, capacity), speed)
    check(*problem, np.array(speed), filled=counts.progressive > 0)


def test_where_sweeps_circle_progressive_filling_answers() -> None:
    """Weights that differ from port to port can leave no level at which all agree; still no capacity is wasted."""
    demand = np.array([[1.0, 0, 1], [1, 1, 0], [0, 0, 1], [0, 1, 1]])
    weight = np.array([[1.0, 1, 2], [2, 0.5, 1], [1, 1, 0.5], [1, 0.5, 1]])
    speed = share(demand, np.ones(4), weight, np.ones(3))
    assert speed == pytest.approx([0.5, 0.5, 0.25, 0.25])
    check(demand, np.ones(4), weight, np.ones(3), speed, filled=True)


@given(problems())
def test_scale_of_bytes_does_not_matter(problem) -> None:
    demand, limit, weight, capacity = problem
    critical = np.isfinite(limit)
    scaled = demand * np.where(critical[:, None], 1e6, 1.0)
    found = share(scaled, limit, weight, capacity * 1e6)
    expected = share(demand, limit, weight, capacity) * np.where(critical, 1.0, 1e6)
    assert found == pytest.approx(expected, rel=1e-9)


def test_progressive_filling_answers_when_sweeps_do_not_settle(monkeypatch) -> None:
    rows = [((0, 1.0, 1.0), (1, 1.0, 1.0)), ((0, 1.0, 1.0),), ((1, 1.0, 1.0),)]
    counts = SharingCounts()
    expected = share_rows(rows, [INF] * 3, [10.0, 4.0], counts)
    assert (counts.solved, counts.progressive) == (1, 0)
    monkeypatch.setattr(sharing, "LONGEST_SEARCH", 0)
    assert share_rows(rows, [INF] * 3, [10.0, 4.0], counts) == pytest.approx(expected)
    assert (counts.solved, counts.progressive) == (2, 1)


@given(problems())
def test_progressive_filling_keeps_to_capacity(problem) -> None:
    demand, limit, weight, capacity = problem
    rows = [tuple((e, demand[a, e], weight[a, e]) for e in np.flatnonzero(demand[a])) for a in range(len(limit))]
    tight = [
        (e, capacity[e], [(a, j, n, w) for a, row in enumerate(rows) for j, (p, n, w) in enumerate(row) if p == e])
        for e in range(len(capacity))
    ]
    speed = np.array(sharing._fill(rows, list(limit), tight))
    assert np.all(demand.T @ speed <= capacity * (1 + 1e-9) + 1e-12)
    assert np.all(speed <= limit)
