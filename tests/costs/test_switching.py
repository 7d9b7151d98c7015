"""Branches with ranges, tables that lines are bent through, lines carried over, what NICs carry, uncalibrated rings."""

from __future__ import annotations

import numpy as np
import pytest
from collective_fits import DATA, rows
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.calibration import CollectiveRow
from pdmodel.costs.collectives import collective, wire_per_byte
from pdmodel.costs.collectives.graphs import situation_of
from pdmodel.costs.collectives.nodes import Spread, nic_bound_s, nic_bytes
from pdmodel.costs.collectives.predict import predict
from pdmodel.costs.collectives.protocol import fastest_branch
from pdmodel.costs.collectives.scaling import DUPLEX_SHARE, between, carry_over, rate_ratio
from pdmodel.costs.collectives.selector import Situation
from pdmodel.costs.collectives.uncalibrated import uncalibrated
from pdmodel.costs.switching import fit_switched, points_of, settle
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Algorithm as A
from pdmodel.hardware.constants import Branch, CollectiveConstants, MeasuredPoint
from pdmodel.hardware.constants import CollectiveOperation as O
from pdmodel.hardware.constants import Protocol as P
from pdmodel.hardware.topology import Box

LL = Branch(protocol=P.LL, algorithm=A.RING, alpha_us=10, bandwidth_gb_per_s=1, max_bytes=99_999)
SIMPLE = Branch(protocol=P.SIMPLE, algorithm=A.RING, alpha_us=50, bandwidth_gb_per_s=10, from_bytes=100_000)
SIZES = np.exp2(np.arange(8, 27))


# ---- ranges and tables ---------------------------------------------------------------------------------------------
def test_times_fall_where_the_range_ends():
    # LL would need 110 us at 100 kB, Simple 60: the lines cross at 44 kB, NCCL switches at 100 kB.
    times, index = predict((LL, SIMPLE), np.array([99_999.0, 100_000.0]))
    assert times == pytest.approx([109.999e-6, 60e-6])
    assert index.tolist() == [0, 1]
    assert fastest_branch((LL, SIMPLE), 60_000)[1] is LL
    assert fastest_branch((LL, SIMPLE), 99_999.5)[0] == pytest.approx(60e-6, rel=1e-3)


@given(st.floats(1, 1e10))
def test_one_size_is_the_same_as_many(size):
    many, index = predict((LL, SIMPLE), np.array([size, 1.0]))
    one, branch = fastest_branch((LL, SIMPLE), size)
    assert one == pytest.approx(many[0]) and branch is (LL, SIMPLE)[index[0]]


def test_lines_pass_through_the_table_and_no_point_works_across_a_switch():
    table = tuple(
        MeasuredPoint(size_bytes=size, time_us=time)
        for size, time in ((1000, 12.0), (64_000, 70.0), (200_000, 66.0), (10_000_000, 1100.0))
    )
    sizes = np.array([point.size_bytes for point in table], dtype=float)
    times, _ = predict((LL, SIMPLE), sizes, table)
    assert times * 1e6 == pytest.approx([12.0, 70.0, 66.0, 1100.0])
    assert fastest_branch((LL, SIMPLE), 64_000, table)[0] == pytest.approx(70e-6)
    # Beyond the last point of a branch its ratio is kept: 70/74 at the end of LL, 66/70 at the start of Simple.
    edge, _ = predict((LL, SIMPLE), np.array([99_999.0, 100_000.0]), table)
    assert edge * 1e6 == pytest.approx([109.999 * 70 / 74, 60 * 66 / 70])
    large, _ = predict((LL, SIMPLE), np.array([1e9]), table)
    assert large[0] == pytest.approx((50e-6 + 0.1) * 1100 / 1050)


def test_bad_ranges_and_tables_are_refused():
    with pytest.raises(InputError, match="positive"):
        predict((LL, SIMPLE), np.array([1.0, 0.0]))
    with pytest.raises(InputError, match="no branch"):
        predict((), np.array([1.0]))
    with pytest.raises(InputError, match="no branch serves"):
        predict((LL,), np.array([1e6]))
    good = {"operation": "all_reduce", "ranks": 2, "source": "x"}
    line = {"protocol": "ll", "algorithm": "ring", "alpha_us": 1, "bandwidth_gb_per_s": 1}
    with pytest.raises(InputError, match="smaller sizes"):
        CollectiveConstants.parse({**good, "branches": [{**line, "from_bytes": 8}]})
    points = [{"size_bytes": 8, "time_us": 1}, {"size_bytes": 8, "time_us": 1}]
    with pytest.raises(InputError, match="do not rise"):
        CollectiveConstants.parse({**good, "branches": [line], "table": points})


# ---- the fit -------------------------------------------------------------------------------------------------------
RING = Situation(8, 1, 20.0, 12.0, nvlink=False)


def measured(noise: float = 0.0) -> np.ndarray:
    """LL up to 512 KiB, then Simple, as NCCL takes them at 20 GB/s among 8."""
    times = np.where(SIZES < 700_000, 25e-6 + SIZES / 4e9, 60e-6 + SIZES / 14e9)
    return times * np.exp(np.random.default_rng(3).normal(0, noise, SIZES.size))


def test_the_fit_finds_both_lines_and_the_fall_between_them():
    found = fit_switched(SIZES, measured(), O.ALL_REDUCE, 8, RING, source="x", carry_table=False)
    ll, simple = found.branches
    assert (ll.alpha_us, ll.bandwidth_gb_per_s) == (pytest.approx(25, rel=1e-3), pytest.approx(4, rel=1e-3))
    assert (simple.alpha_us, simple.bandwidth_gb_per_s) == (pytest.approx(60, rel=1e-3), pytest.approx(14, rel=1e-3))
    assert found.max_error == pytest.approx(0, abs=1e-3)
    before, after = (fastest_branch(found.branches, float(size))[0] for size in (1 << 19, 1 << 20))
    assert after < before


def test_left_out_sizes_are_closer_than_by_interpolation():
    times = measured(0.01)
    known = fit_switched(SIZES[::2], times[::2], O.ALL_REDUCE, 8, RING, source="x")
    ours = np.abs(predict(known.branches, SIZES[1::2], known.table)[0] / times[1::2] - 1).mean()
    plain = np.exp(np.interp(np.log(SIZES[1::2]), np.log(SIZES[::2]), np.log(times[::2])))
    assert ours < 0.02
    assert ours < 0.5 * np.abs(plain / times[1::2] - 1).mean()


def test_ranges_without_a_size_are_left_out_and_one_point_scales_nccls_line():
    few = np.array([1024.0, 4096.0, 1 << 24])
    found = fit_switched(few, np.array([25e-6, 26e-6, 1.3e-3]), O.ALL_REDUCE, 8, RING, source="x", carry_table=False)
    assert len(found.branches) == 2
    assert predict(found.branches, few)[0][2] == pytest.approx(1.3e-3, rel=1e-3)
    only = fit_switched(few[:2], np.array([25e-6, 26e-6]), O.ALL_REDUCE, 8, RING, source="x")
    assert [line.protocol for line in only.branches] == [P.LL]
    assert only.branches[0].max_bytes is None
    plain = fit_switched(few, np.array([25e-6, 26e-6, 1.3e-3]), O.ALL_REDUCE, 8, None, source="x")
    assert len(plain.branches) == 1


def test_a_hiccup_is_left_out():
    assert settle([100.0, 102.0]) == pytest.approx(101, rel=1e-3)
    assert settle([240.7, 125.7]) == 125.7
    sizes, times = points_of([CollectiveRow(O.ALL_REDUCE, 8, 8.0, t) for t in (1e-6, 3e-6)], O.ALL_REDUCE, 8)
    assert (sizes.tolist(), times.tolist()) == ([8.0], [1e-6])
    with pytest.raises(InputError, match="no row"):
        points_of([], O.ALL_REDUCE, 8)


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measurements are not at {DATA}")
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("operation", [O.ALL_REDUCE, O.ALL_GATHER, O.REDUCE_SCATTER, O.ALL_TO_ALL])
def test_shipped_tables_are_what_the_fit_returns(operation, ranks):
    profile = load_profile("rtx_pro_6000_server")
    sizes, times = points_of(rows("nccl:rtx_pro_6000_server__nccl-2.29.2"), operation, ranks)
    found = fit_switched(sizes, times, operation, ranks, situation_of(profile, ranks), source="nccl_table")
    shipped = next(
        entry
        for entry in profile.collectives
        if (entry.operation, entry.ranks, entry.implementation.value) == (operation, ranks, "nccl")
    )
    assert found == shipped.model_copy(update={"bound_by": None, "reason": ""})


def test_an_all_reduce_of_eight_falls_between_512_kib_and_1_mib():
    # aiconfigurator, NVIDIA, Apache-2.0: rtx_pro_6000_server, NCCL 2.29.2: 156.1 us and 131.5 us.
    box = Box(load_profile("rtx_pro_6000_server"), "P")
    half, whole = (collective("all_reduce", size, range(8), box) for size in (1 << 19, 1 << 20))
    assert (half.protocol, whole.protocol) == ("ll", "simple")
    assert half.time_s == pytest.approx(156.1e-6, rel=1e-3)
    assert whole.time_s == pytest.approx(131.5e-6, rel=1e-3)


# ---- carried over --------------------------------------------------------------------------------------------------
def entry(ranks: int, *lines: Branch) -> CollectiveConstants:
    return CollectiveConstants(operation=O.ALL_REDUCE, ranks=ranks, branches=lines, source="x")


def test_rates_of_other_operations():
    assert rate_ratio(O.ALL_REDUCE, O.ALL_REDUCE, 4, staged=False) == 1
    assert rate_ratio(O.ALL_REDUCE, O.REDUCE_SCATTER, 8, staged=False) == pytest.approx(1 / 1.055)
    assert rate_ratio(O.ALL_GATHER, O.REDUCE_SCATTER, 8, staged=False) == 1
    assert rate_ratio(O.ALL_REDUCE, O.ALL_GATHER, 2, staged=True) == 1
    # 4.0 GB/s of all-reduce, 11.1 of broadcast between two GPUs through host memory.
    assert 4.0 * rate_ratio(O.ALL_REDUCE, O.BROADCAST, 2, staged=True) == pytest.approx(11.1, rel=0.01)
    assert rate_ratio(O.ALL_REDUCE, O.BROADCAST, 4, staged=True) == 1
    assert 0 < DUPLEX_SHARE < 1


def test_lines_of_another_operation_keep_payload_rate_and_nccls_latency():
    line = Branch(protocol=P.LL, algorithm=A.RING, alpha_us=20.6, bandwidth_gb_per_s=4, max_bytes=1000)
    known = entry(8, line, SIMPLE)
    found, _ = carry_over(known, O.ALL_GATHER, 8, nvlink=False)
    assert found.alpha_us == pytest.approx(13.6)
    assert found.bandwidth_gb_per_s == pytest.approx(8 / 1.055)
    assert found.max_bytes == round(1000 * 2 * 13.6 / 20.6)
    sent, _ = carry_over(known, O.ALL_TO_ALL, 8, nvlink=False)
    assert sent.algorithm is A.PAIRWISE and sent.alpha_us == pytest.approx(8.6)


def test_between_two_numbers_of_ranks():
    two = Branch(protocol=P.LL, algorithm=A.RING, alpha_us=6, bandwidth_gb_per_s=40)
    eight = Branch(protocol=P.LL, algorithm=A.RING, alpha_us=24, bandwidth_gb_per_s=10 / 1.75)
    found = between(entry(2, two), entry(8, eight), 4)
    assert found is not None
    assert found[0].alpha_us == pytest.approx(12)
    assert found[0].bandwidth_gb_per_s * 1.5 == pytest.approx(20)
    other = eight.model_copy(update={"protocol": P.SIMPLE})
    assert between(entry(2, two), entry(8, other), 4) is None


# ---- wire ----------------------------------------------------------------------------------------------------------
def test_broadcast_reduce_and_tree_on_the_wire():
    box = Box(load_profile("rtx_pro_6000_wrx90_two_roots"), "P")
    gpus = (0, 1, 2)
    out = wire_per_byte(box, gpus, O.BROADCAST, A.RING).ports
    assert [out.get(f"P/gpu{k}/egress", 0) for k in gpus] == pytest.approx([1, 1, 0])
    assert [out.get(f"P/gpu{k}/ingress", 0) for k in gpus] == pytest.approx([0, 1, 1])
    back = wire_per_byte(box, gpus, O.REDUCE, A.RING).ports
    assert [back.get(f"P/gpu{k}/ingress", 0) for k in gpus] == pytest.approx([1, 1, 0])
    tree = wire_per_byte(box, gpus, O.ALL_REDUCE, A.TREE).ports
    assert [tree[f"P/gpu{k}/egress"] for k in gpus] == pytest.approx([1, 2, 1])
    cost = collective("broadcast", 1e8, range(8), box)
    assert cost.busbw_bytes_per_s == pytest.approx(1e8 / cost.time_s)
    assert cost.source.value == "derived"
    with pytest.raises(CoverageError):
        wire_per_byte(box, gpus, O.BROADCAST, A.TREE)


def test_the_all_to_all_collapse_is_no_hazard_of_a_ring():
    profile = load_profile("rtx_pro_6000_server")
    hazard = {"kind": "p2p_all_to_all_collapse", "text": "seen", "source": next(iter(profile.sources))}
    box = Box(type(profile).parse({**profile.model_dump(mode="json"), "hazards": [hazard]}), "P")
    assert collective("all_to_all", 1e8, range(8), box).hazards
    assert not collective("all_reduce", 1e8, range(8), box).hazards


def test_what_nics_carry():
    spread = Spread(16, 2, 8)
    assert nic_bytes(O.ALL_REDUCE, A.RING, 16e9, spread) == pytest.approx(1.875 * 16e9 / 8)
    assert nic_bytes(O.ALL_REDUCE, A.NVLS_TREE, 16e9, spread) == pytest.approx(2e9)
    assert nic_bytes(O.ALL_REDUCE, A.TREE, 16e9, Spread(32, 4, 8)) == pytest.approx(4e9)
    assert nic_bytes(O.ALL_GATHER, A.PAT, 8.0, Spread(4, 4, 1)) == 6
    # 2 x 8 H200, a 400 Gbit/s NIC for each GPU, NCCL 2.30.4: 16 GiB in 66.3 ms. A ring would need 61 GB/s of each NIC;
    # the tree of NVLink switches needs 32.
    needs = [nic_bytes(O.ALL_REDUCE, how, 16 << 30, spread) / 66.33e-3 for how in (A.RING, A.NVLS_TREE)]
    assert needs[0] > 50e9 > needs[1]
    assert nic_bound_s(O.ALL_REDUCE, A.NVLS_TREE, 16 << 30, spread, needs[1]) == pytest.approx(66.33e-3)
    assert nic_bound_s(O.ALL_REDUCE, A.RING, 8e9, spread, 50e9, alpha_s=1e-5, inside_s=1.0) == pytest.approx(1.00001)
    with pytest.raises(CoverageError):
        nic_bytes(O.ALL_GATHER, A.PAT, 8.0, spread)
    with pytest.raises(CoverageError):
        nic_bytes(O.ALL_GATHER, A.TREE, 8.0, spread)
    with pytest.raises(InputError):
        Spread(9, 2, 1)
    with pytest.raises(InputError):
        nic_bound_s(O.ALL_REDUCE, A.RING, 8.0, spread, 0.0)


def test_uncalibrated_rings():
    # 4 x RTX 4090 with P2P: 25.8 GB/s between neighbours, 25.3 of busbw.
    lines = uncalibrated(O.ALL_REDUCE, Situation(4, 1, 15.0, 8.9, nvlink=False), 25.8, "gen4")
    size = 1 << 30
    assert 1.5 * size / fastest_branch(lines, size)[0] == pytest.approx(25.3e9, rel=0.01)
    assert fastest_branch(lines, 1024)[0] == pytest.approx(18.46e-6, rel=0.25)
    with pytest.raises(InputError, match="gen9"):
        uncalibrated(O.ALL_REDUCE, RING, 25.0, "gen9")
    with pytest.raises(InputError, match="positive"):
        uncalibrated(O.ALL_REDUCE, RING, 0.0, "gen4")
