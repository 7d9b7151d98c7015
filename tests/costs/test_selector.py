"""NCCL's choice: its form against figures worked by hand, what it may take, and where public tables switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pdmodel.costs.calibration import nccl_tests_rows
from pdmodel.costs.collectives.graphs import (
    fallback_note,
    ring_connections,
    search_ring,
    situation,
    situation_of,
    switched,
)
from pdmodel.costs.collectives.selector import (
    Situation,
    Transport,
    candidates,
    connection,
    enabled,
    evaluate,
    latency_us,
    search_speed,
    select,
    switches,
)
from pdmodel.costs.switching import points_of
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Algorithm as A
from pdmodel.hardware.constants import CollectiveOperation as O
from pdmodel.hardware.constants import Protocol as P
from pdmodel.hardware.profile import Distance
from pdmodel.hardware.topology import Box

DATA = Path(__file__).parents[3] / "shared" / "data" / "collectives" / "measured"


def pcie(ranks: int, bus: float, capability: float = 8.9) -> Situation:
    return Situation(ranks, 1, bus, capability, nvlink=False)


H100 = Situation(8, 12, 30.0, 9.0, nvlink=True, nvls_channels=8, nvls_channel_gb_per_s=40.0)


def by_name(operation: O, situation: Situation) -> dict[tuple[A, P], tuple[float, float]]:
    found = candidates(operation, situation)
    return {(one.algorithm, one.protocol): (one.latency_us, one.bandwidth_gb_per_s) for one in found}


# ---- the form ------------------------------------------------------------------------------------------------------
def test_ring_by_hand():
    found = by_name(O.ALL_REDUCE, pcie(8, 15.0))
    assert found[A.RING, P.LL] == (pytest.approx(6.6 + 14 * 1.0), pytest.approx(7.5 * 8 / 14))
    assert found[A.RING, P.SIMPLE] == (pytest.approx(8.4 + 14 * 5.7), pytest.approx(15 * 8 / 14))
    assert (A.RING, P.LL128) not in found
    gathered = by_name(O.ALL_GATHER, pcie(8, 15.0))
    assert gathered[A.RING, P.SIMPLE] == (pytest.approx(8.4 + 7 * 5.7), pytest.approx(15 * 8 / 7))
    assert set(gathered) == {(A.RING, P.LL), (A.RING, P.SIMPLE)}
    assert by_name(O.BROADCAST, pcie(8, 15.0))[A.RING, P.SIMPLE] == (pytest.approx(14.1), pytest.approx(15.0))


def test_nvlink_by_hand():
    found = by_name(O.ALL_REDUCE, H100)
    # 8 channels x 40 x 0.85 x 7/8, twice for the all-reduce: 476 GB/s of busbw, 272 of algbw.
    assert found[A.NVLS, P.SIMPLE] == (25.0, pytest.approx(272.0))
    assert found[A.RING, P.LL128][1] == pytest.approx(0.92 * 360 * 8 / 14)
    assert found[A.RING, P.LL][1] == pytest.approx(141.0 * 8 / 14)
    assert found[A.TREE, P.SIMPLE] == (pytest.approx(8.4 + 2 * 7 * 4.0), pytest.approx(0.92 * 360 / 2))
    assert by_name(O.ALL_GATHER, H100)[A.NVLS, P.SIMPLE][1] == pytest.approx(8 * 40 * 0.85 * 7 / 8 * 7 / 8)


def test_more_nodes():
    two = Situation(16, 8, 24.0, 9.0, True, nodes=2, nvls_channels=8, inter_gb_per_s=24.0)
    found = by_name(O.ALL_REDUCE, two)
    assert (A.NVLS_TREE, P.SIMPLE) in found and (A.NVLS, P.SIMPLE) not in found
    assert found[A.TREE, P.LL][0] == pytest.approx(6.8 + 2 * (7 * 0.6 + 5.0))
    assert found[A.RING, P.LL][0] == pytest.approx(6.6 + 28 * 1.0 + 2 * 2.7)
    single = Situation(4, 2, 12.0, 8.9, nvlink=False, nodes=4)
    assert (A.PAT, P.SIMPLE) in by_name(O.ALL_GATHER, single)
    assert by_name(O.ALL_GATHER, single)[A.PAT, P.SIMPLE] == (pytest.approx(8 + 2 * 14.0 / 3.5 + 11.2), 18.0)
    # One rank a node counts as local: LL128 may run over the network.
    assert (A.RING, P.LL128) in by_name(O.ALL_REDUCE, single)
    assert (A.RING, P.LL128) not in by_name(O.ALL_REDUCE, replace(single, near_nic=False))


def test_a_tree_is_corrected_by_size_and_a_ring_over_nodes_has_a_plateau():
    found = candidates(O.ALL_REDUCE, H100)
    tree = next(k for k, one in enumerate(found) if (one.algorithm, one.protocol) == (A.TREE, P.LL))
    size = np.array([262144.0, 2.0**30])
    times = evaluate(O.ALL_REDUCE, size, H100, found)[tree] * 1e6
    one = found[tree]
    factors = np.array([0.4, 1.0])
    assert times == pytest.approx(one.latency_us + size / (1000 * one.bandwidth_gb_per_s * factors))
    two = Situation(16, 8, 24.0, 9.0, True, nodes=2, algorithms=(A.RING,), protocols=(P.SIMPLE,))
    (ring,) = candidates(O.ALL_REDUCE, two)
    low, high = evaluate(O.ALL_REDUCE, np.array([64.0 * 128 - 1, 64.0 * 128]), two)[0] * 1e6
    assert high - low == pytest.approx(0.4 * ring.latency_us, rel=0.01)


def test_fewer_than_two_ranks_and_operations_without_a_table_are_refused():
    with pytest.raises(InputError, match="1 ranks"):
        candidates(O.ALL_REDUCE, pcie(1, 15))
    with pytest.raises(InputError, match="no cost table"):
        candidates(O.ALL_TO_ALL, pcie(4, 15))


def test_selection_is_the_least_estimate():
    sizes = np.exp2(np.arange(3, 34, 0.25))
    choice = select(O.ALL_REDUCE, sizes, H100)
    times = evaluate(O.ALL_REDUCE, sizes, H100)
    assert choice.estimate_s == pytest.approx(times.min(axis=0))
    marks = switches(O.ALL_REDUCE, H100)
    assert [(one, two) for _, one, two in marks] == [(A.RING, P.LL), (A.NVLS, P.SIMPLE)]
    # From 512 to 1118 KiB by LL, then NVLS: H100's table jumps from 25.4 us at 1 MiB to 38.2 us at 2 MiB.
    assert 1 << 20 < marks[1][0] < 2 << 20


# ---- what may be taken ---------------------------------------------------------------------------------------------
def test_transports():
    assert connection(Distance.PIX, p2p_allowed=True).transport is Transport.P2P
    assert connection(Distance.NODE, p2p_allowed=True).transport is Transport.SHM
    assert connection(Distance.SYS, p2p_allowed=True, p2p_level=Distance.SYS).transport is Transport.P2P
    assert connection(Distance.SYS, p2p_allowed=True, amd_with_two_gpus=True).transport is Transport.P2P
    assert connection(Distance.PIX, p2p_allowed=True, p2p_level=Distance.PIX).transport is Transport.P2P
    assert connection(Distance.PXB, p2p_allowed=True, p2p_level=Distance.PIX).transport is Transport.SHM
    refused = connection(Distance.PIX, p2p_allowed=False)
    assert refused.transport is Transport.SHM and "refuses" in refused.reason
    assert connection(Distance.PIX, p2p_allowed=False, shm_disabled=True).transport is Transport.NET
    assert connection(Distance.PIX, p2p_allowed=True, same_node=False).transport is Transport.NET
    assert connection(Distance.SYS, p2p_allowed=True, nvlink=True).transport is Transport.P2P


def test_overrides_narrow_the_choice():
    forced = replace(H100, protocols=(P.SIMPLE,), algorithms=(A.RING,))
    assert enabled(O.ALL_REDUCE, forced)[0] == ((A.RING, P.SIMPLE),)
    pairs, notes = enabled(O.ALL_GATHER, replace(H100, algorithms=(A.TREE,)))
    assert {one for one, _ in pairs} == {A.RING}
    assert any("leaves nothing" in note for note in notes)
    pairs, notes = enabled(O.ALL_REDUCE, replace(pcie(8, 15), protocols=(P.LL128,)))
    assert (A.RING, P.LL128) in pairs
    assert any("corrupted" in note for note in notes)
    assert any("LL128 is off" in note for note in enabled(O.ALL_REDUCE, pcie(8, 15))[1])
    assert enabled(O.ALL_TO_ALL, replace(H100, algorithms=(A.TREE,)))[0] == ((A.PAIRWISE, P.LL), (A.PAIRWISE, P.SIMPLE))


def test_all_to_all_leaves_ll_at_16_kib_a_peer_and_channel():
    for ranks, channels in ((2, 1), (8, 1), (4, 2)):
        where = replace(pcie(ranks, 20), peer_channels=channels)
        limit = 16384 * ranks * channels
        choice = select(O.ALL_TO_ALL, np.array([limit, limit * 1.01]), where)
        assert [choice.at(k).protocol for k in (0, 1)] == [P.LL, P.SIMPLE]


def test_the_search_falls_back_where_blackwell_meets_slow_sockets():
    assert search_speed(16, 12.0).fallback
    assert search_speed(6, 10.0).bus_gb_per_s == 0.1
    assert not search_speed(16, 8.9).fallback
    assert search_speed(22, 12.0).bus_gb_per_s == 20
    assert search_speed(48, 12.0).bus_gb_per_s == 45
    assert search_speed(10, 9.0).channel_gb_per_s == 6
    with pytest.raises(InputError):
        search_speed(0, 9.0)


@pytest.mark.parametrize(("ranks", "first"), [(4, 2048), (8, 4096)])
def test_without_a_graph_small_messages_leave_ll_at_a_few_kib(ranks, first):
    # Measured: 15.9 to 26.2 us at 2 KiB on 4 x RTX 5090, 24.5 to 36.3 us at 4 KiB on 8 x RTX 5090.
    sizes = np.array([first / 2, first])
    choice = select(O.ALL_REDUCE, sizes, Situation(ranks, 1, 0.1, 12.0, nvlink=False))
    assert [choice.at(k).protocol for k in (0, 1)] == [P.LL, P.SIMPLE]


@pytest.mark.parametrize(
    ("operation", "ranks", "last_ll"),
    [(O.ALL_REDUCE, 2, 512), (O.ALL_GATHER, 2, 1024), (O.ALL_GATHER, 4, 1024), (O.REDUCE_SCATTER, 2, 1024)],
)
def test_a100_leaves_ll_where_its_tables_jump(operation, ranks, last_ll):
    # aiconfigurator, NVIDIA, Apache-2.0: a100_sxm, NCCL 2.27.3: 19.4 to 40.8 us, 19.9 to 38.1, 22.5 to 52.9, 19.4 to
    # 34.9.
    sizes = np.array([last_ll, 2 * last_ll]) * 1024.0
    choice = select(operation, sizes, Situation(ranks, 12, 20.0, 8.0, nvlink=True))
    assert [choice.at(k).protocol for k in (0, 1)] == [P.LL, P.SIMPLE]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the measurements are not at {DATA}")
@pytest.mark.parametrize(
    ("name", "ranks", "bus", "capability"),
    [
        ("rtx4090x8_epyc_shm", 8, 15, 8.9),
        ("rtx4090x4_epyc_p2pdriver", 4, 15, 8.9),
        ("rtx4090x4_intel_p2psys_partial", 4, 15, 8.9),
        ("rtx4090x2_cross_numa_weak", 2, 6, 8.9),
        ("rtx4090x4_two_switch_weak", 4, 6, 8.9),
        ("rtx5090x8_p2psys_nccl2.29.7", 8, 0.1, 12.0),
    ],
)
def test_switch_points_of_geforce_boxes(name, ranks, bus, capability):
    with (DATA / f"{name}.csv").open() as lines:
        sizes, times = points_of(nccl_tests_rows(lines, ("out", "in")), O.ALL_REDUCE, ranks)
    near = (sizes >= 1 << 10) & (sizes <= 8 << 20)
    sizes, times = sizes[near], times[near]
    growth = np.log2(times[1:] / times[:-1])
    change = np.diff(growth)
    jumps = np.flatnonzero((growth[:-1] < 0.1) & (change > 0.3))
    measured = sizes[(int(jumps[0]) if jumps.size else int(change.argmin())) + 2]
    choice = select(O.ALL_REDUCE, sizes, pcie(ranks, bus, capability))
    assert next(s for k, s in enumerate(sizes) if choice.at(k).protocol is P.SIMPLE) == measured


# ---- profiles ------------------------------------------------------------------------------------------------------
def test_profiles_tell_their_graphs():
    server = load_profile("rtx_pro_6000_server")
    eight = situation_of(server, 8)
    assert eight is not None and eight.bus_gb_per_s == 20 and not eight.nvlink
    assert situation_of(server, 3) is None
    geforce = load_profile("rtx_5090_direct")
    assert geforce.nccl is not None
    note = fallback_note(geforce.nccl.graphs[0])
    assert note is not None and "NCCL_GRAPH_FILE" in note
    assert server.nccl is not None and fallback_note(server.nccl.graphs[0]) is None
    more = server.model_copy(update={"nccl": server.nccl.model_copy(update={"min_channels": 8})})
    copied = situation_of(more, 8)
    assert copied is not None and copied.channels == 4 and copied.bus_gb_per_s == pytest.approx(20)


def test_lines_are_put_where_nccl_switches():
    server = load_profile("rtx_pro_6000_server")
    entry = next(e for e in server.collectives if e.operation is O.ALL_REDUCE and e.ranks == 8)
    bare = [line.model_copy(update={"from_bytes": None, "max_bytes": None}) for line in entry.branches]
    ll, simple = switched(bare, O.ALL_REDUCE, situation_of(server, 8))
    assert ll.max_bytes is not None and simple.from_bytes == ll.max_bytes + 1
    assert 1 << 19 < simple.from_bytes < 1 << 20
    assert switched(bare, O.ALL_REDUCE, None) == tuple(bare)
    assert latency_us(O.ALL_REDUCE, A.RING, P.LL, pcie(8, 20)) == pytest.approx(20.6)


def box_of(name: str, **changes: object) -> Box:
    profile = load_profile(name)
    assert profile.nccl is not None
    return Box(profile.model_copy(update={"nccl": profile.nccl.model_copy(update=changes)}), "P")


def test_the_tree_gives_the_graph_that_the_profile_states():
    # Sapphire Rapids sockets are rated 22, AMD's 16: below the least speed of Blackwell.
    server = box_of("rtx_pro_6000_server")
    eight, four = search_ring(server, range(8)), search_ring(server, range(4))
    assert eight is not None and eight.bus_gb_per_s == 20
    assert four is not None and four.bus_gb_per_s == 45
    geforce = search_ring(box_of("rtx_5090_direct"), range(8))
    assert geforce is not None and geforce.fallback
    assert search_ring(box_of("rtx_5090_direct", cpu_link_gb_per_s=None), range(8)) is None
    l40s = search_ring(box_of("l40s_pcie_gen4"), range(4))
    assert l40s is not None and l40s.bus_gb_per_s == 20
    assert search_ring(box_of("h100_8nic"), range(8)) is None
    six = situation(server, range(6))
    assert six is not None and six.bus_gb_per_s == 20 and situation_of(server.profile, 6) is None


def test_hops_of_a_ring_by_level_and_driver():
    near = ring_connections(box_of("rtx_pro_6000_wrx90_two_roots", p2p_level=None), range(8))
    assert [hop.transport for hop in near].count(Transport.SHM) == 2
    far = ring_connections(box_of("rtx_pro_6000_wrx90_two_roots"), range(8))
    assert {hop.transport for hop in far} == {Transport.P2P}
    assert {hop.transport for hop in ring_connections(box_of("rtx_5090_direct"), range(4))} == {Transport.SHM}
    assert {hop.reason for hop in ring_connections(box_of("h100_8nic"), range(8))} == {"NVLink"}
