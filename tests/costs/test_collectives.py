"""Formulas of the collectives against a simulation of their steps, and what they put on the ports of a box."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.collectives import collective, fastest_branch, ranges, saturation, unexplained, wire_per_byte
from pdmodel.costs.collectives.all_to_all import all_to_all_bytes, pairs
from pdmodel.costs.collectives.bandwidth import busbw_factor
from pdmodel.costs.collectives.bounds import group_capacity_bytes_per_s
from pdmodel.costs.collectives.custom import one_shot_pair_bytes, two_shot_pair_bytes
from pdmodel.costs.collectives.nvls import nvls_all_reduce_bytes
from pdmodel.costs.collectives.protocol import branch_time_s, usable, wire_factor
from pdmodel.costs.collectives.ring import (
    all_gather_bytes,
    all_gather_steps,
    all_reduce_bytes,
    all_reduce_steps,
    reduce_scatter_bytes,
    ring_hops,
)
from pdmodel.costs.collectives.scaling import carry_over, constants_for
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import Algorithm, Branch, CollectiveOperation, Implementation, Protocol
from pdmodel.hardware.topology import Box
from pdmodel.resources import names
from pdmodel.spec import SourceKind

WRX90, SERVER, GEFORCE, H100 = (
    "rtx_pro_6000_wrx90_two_roots",
    "rtx_pro_6000_server",
    "rtx_5090_direct",
    "h100_8nic",
)


def box(name: str, **changes: object) -> Box:
    profile = load_profile(name)
    return Box(profile.model_copy(update=changes), "P")


# ---- formulas ------------------------------------------------------------------------------------------------------
def run_ring(ranks: int, *, reduce: bool, gather: bool) -> tuple[int, list[int], list[dict[int, frozenset[int]]]]:
    """Steps, chunks sent per rank, and what each rank holds: chunk -> ranks whose input is in it."""
    held = [{c: frozenset({r}) for c in range(ranks)} for r in range(ranks)]
    if not reduce:
        held = [{r: frozenset({r})} for r in range(ranks)]
    sent = [0] * ranks
    steps = 0
    for phase in [kind for kind, wanted in (("reduce", reduce), ("gather", gather)) if wanted]:
        for step in range(ranks - 1):
            steps += 1
            # In the reduce phase chunk r - step moves on from rank r; it ends, complete, at rank chunk - 1.
            start = 1 if phase == "gather" and reduce else 0
            moves = [(r, (r + start - step) % ranks) for r in range(ranks)]
            moved = [(r, (r + 1) % ranks, chunk, held[r][chunk]) for r, chunk in moves]
            for source, target, chunk, value in moved:
                sent[source] += 1
                had = held[target].get(chunk, frozenset()) if phase == "reduce" else frozenset()
                held[target][chunk] = had | value
    return steps, sent, held


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_ring_bytes_and_steps_are_those_of_a_ring_that_runs(ranks):
    size = 1000.0
    steps, sent, held = run_ring(ranks, reduce=True, gather=True)
    assert all(held[r][c] == frozenset(range(ranks)) for r in range(ranks) for c in range(ranks))
    assert steps == all_reduce_steps(ranks)
    assert [chunks * size / ranks for chunks in sent] == pytest.approx([all_reduce_bytes(size, ranks)] * ranks)

    steps, sent, held = run_ring(ranks, reduce=True, gather=False)
    assert all(held[r][(r + 1) % ranks] == frozenset(range(ranks)) for r in range(ranks))
    assert steps == all_gather_steps(ranks)
    assert [chunks * size / ranks for chunks in sent] == pytest.approx([reduce_scatter_bytes(size, ranks)] * ranks)

    steps, sent, held = run_ring(ranks, reduce=False, gather=True)
    assert all(len(holding) == ranks for holding in held)
    assert [chunks * size / ranks for chunks in sent] == pytest.approx([all_gather_bytes(size, ranks)] * ranks)


@given(ranks=st.integers(1, 16), size=st.floats(1, 1e10))
def test_bytes_agree_with_busbw_and_each_other(ranks, size):
    assert all_reduce_bytes(size, ranks) == pytest.approx(busbw_factor(CollectiveOperation.ALL_REDUCE, ranks) * size)
    assert all_to_all_bytes(size, ranks) == pytest.approx(busbw_factor(CollectiveOperation.ALL_TO_ALL, ranks) * size)
    halves = reduce_scatter_bytes(size, ranks) + all_gather_bytes(size, ranks)
    assert halves == pytest.approx(all_reduce_bytes(size, ranks))
    assert (ranks - 1) * two_shot_pair_bytes(size, ranks) == pytest.approx(all_reduce_bytes(size, ranks))
    assert one_shot_pair_bytes(size, ranks) >= two_shot_pair_bytes(size, ranks)
    if ranks > 3:
        assert nvls_all_reduce_bytes(size, ranks) < all_reduce_bytes(size, ranks)


def test_wire_factors():
    assert wire_factor(Protocol.LL) == 2
    assert wire_factor(Protocol.LL128) == pytest.approx(128 / 120)
    assert wire_factor(Protocol.SIMPLE) == wire_factor(Protocol.CUSTOM) == 1


def test_no_ranks_and_double_ranks_are_refused():
    with pytest.raises(InputError):
        all_reduce_bytes(1, 0)
    with pytest.raises(InputError, match="twice"):
        ring_hops((0, 1, 0))
    with pytest.raises(InputError, match="twice"):
        pairs((1, 1))


# ---- branches ------------------------------------------------------------------------------------------------------
LL = Branch(protocol=Protocol.LL, algorithm=Algorithm.RING, alpha_us=10, bandwidth_gb_per_s=1)
SIMPLE = Branch(protocol=Protocol.SIMPLE, algorithm=Algorithm.RING, alpha_us=30, bandwidth_gb_per_s=11)


def test_the_least_branch_wins_and_ranges_say_where():
    assert branch_time_s((LL, SIMPLE), 1000) == (pytest.approx(11e-6), Protocol.LL)
    assert branch_time_s((LL, SIMPLE), 1.1e6) == (pytest.approx(130e-6), Protocol.SIMPLE)
    (zero, first), (crossing, second) = ranges((LL, SIMPLE))
    assert (zero, first, second) == (0, LL, SIMPLE)
    assert crossing == pytest.approx(20e-6 / (1 / 1e9 - 1 / 11e9))
    assert fastest_branch((LL, SIMPLE), crossing)[0] == pytest.approx(30e-6 + crossing / 11e9)


def test_a_branch_ends_at_its_limit():
    limited = LL.model_copy(update={"max_bytes": 100})
    slow = SIMPLE.model_copy(update={"alpha_us": 1000})
    assert branch_time_s((limited, slow), 100)[1] is Protocol.LL
    assert branch_time_s((limited, slow), 101)[1] is Protocol.SIMPLE
    with pytest.raises(InputError, match="no branch"):
        branch_time_s((limited,), 101)
    with pytest.raises(InputError, match="positive"):
        branch_time_s((LL,), 0)


def test_ll128_stays_off_pcie():
    ll128 = LL.model_copy(update={"protocol": Protocol.LL128})
    assert usable((LL, ll128, SIMPLE), nvlink=False) == (LL, SIMPLE)
    assert usable((LL, ll128, SIMPLE), nvlink=True) == (LL, ll128, SIMPLE)


# ---- on a box ------------------------------------------------------------------------------------------------------
def test_a_ring_of_eight_crosses_both_uplinks_once_each_way():
    size = 64e6
    cost = collective("all_reduce", size, range(8), box(WRX90))
    per_hop = all_reduce_bytes(size, 8)
    assert (cost.protocol, cost.algorithm) == ("simple", "ring")
    for port in ("P/gpu0/egress", "P/gpu5/ingress", "P/switch0/up", "P/switch0/down", "P/switch1/up", "P/switch1/down"):
        assert cost.wire_bytes[port] == pytest.approx(per_hop), port
    assert "P/root_complex0" not in cost.wire_bytes  # on this box it counts host traffic alone
    assert cost.busbw_bytes_per_s == pytest.approx(per_hop / cost.time_s)


def test_rank_order_decides_how_often_the_ring_crosses():
    # 0, 4, 1, 5 ... crosses on every hop: four up and four down on each uplink.
    cost = collective("all_reduce", 64e6, (0, 4, 1, 5, 2, 6, 3, 7), box(WRX90))
    assert cost.wire_bytes["P/switch0/up"] == pytest.approx(4 * all_reduce_bytes(64e6, 8))
    assert cost.raised


def test_a_ring_inside_one_switch_leaves_the_uplink_alone():
    cost = collective("all_reduce", 64e6, range(4), box(WRX90))
    assert not any("switch" in port for port in cost.wire_bytes)
    assert cost.source is SourceKind.DERIVED
    assert "among 4: derived from all_reduce among 8" in cost.notes[0]


def test_ll_doubles_the_wire():
    cost = collective("all_reduce", 16384, range(8), box(WRX90))
    assert cost.protocol == "ll"
    assert cost.wire_bytes["P/gpu0/egress"] == pytest.approx(2 * all_reduce_bytes(16384, 8))


def test_through_host_memory_every_hop_writes_and_reads_it():
    size = 64e6
    cost = collective("all_reduce", size, range(4), box(GEFORCE))
    hop = all_reduce_bytes(size, 4)
    assert cost.wire_bytes["P/gpu1/ingress"] == pytest.approx(hop)
    # The receiver's loads ask for 128 bytes with 24 each.
    assert cost.wire_bytes["P/gpu1/egress"] == pytest.approx(hop * (1 + 24 / 128))
    assert cost.wire_bytes["P/socket0/host_memory"] == pytest.approx(4 * 2 * hop)
    assert cost.wire_bytes["P/root_complex0"] == pytest.approx(4 * 2 * hop)


def test_custom_all_reduce_loads_from_its_peer():
    size = 1e6
    cost = collective("all_reduce", size, (0, 1), box(SERVER), "vllm_custom")
    assert (cost.algorithm, cost.protocol) == ("one_shot", "custom")
    assert cost.wire_bytes["P/gpu0/egress"] == pytest.approx(size * (1 + 24 / 128))
    assert cost.wire_bytes["P/gpu0/ingress"] == pytest.approx(size * (1 + 24 / 128))


def test_custom_all_reduce_among_more_than_two_pcie_gpus_is_nccls_ring():
    cost = collective("all_reduce", 64e6, range(4), box(SERVER), "vllm_custom")
    assert cost.algorithm == "ring"
    assert cost.wire_bytes["P/gpu0/egress"] == pytest.approx(1.5 * 64e6)


def test_custom_all_reduce_falls_back_where_p2p_is_refused():
    there = box(GEFORCE)
    custom = collective("all_reduce", 64e6, range(4), there, "vllm_custom")
    assert custom.time_s == collective("all_reduce", 64e6, range(4), there).time_s
    assert "refuses P2P" in custom.notes[0]


def test_nvls_and_two_shot_stay_on_nvlink():
    there = box(H100)
    nvls = collective("all_reduce", 256e6, range(8), there)
    assert nvls.algorithm == "nvls"
    assert nvls.wire_bytes["P/gpu3/nvlink_egress"] == pytest.approx(256e6 * 9 / 8)
    assert nvls.wire_bytes["P/gpu3/nvlink_ingress"] == pytest.approx(256e6 * 9 / 8)
    two_shot = collective("all_reduce", 2e6, range(4), there, "vllm_custom")
    assert two_shot.algorithm == "two_shot"
    assert two_shot.wire_bytes["P/gpu0/nvlink_ingress"] == pytest.approx(1.5 * 2e6)
    assert all("nvlink" in port for port in {**nvls.wire_bytes, **two_shot.wire_bytes})


def test_all_to_all_counts_every_pair():
    size = 80e6
    cost = collective("all_to_all", size, range(8), box(WRX90))
    scale = wire_factor(Protocol(cost.protocol))
    assert cost.wire_bytes["P/gpu0/egress"] == pytest.approx(scale * 7 / 8 * size)
    assert cost.wire_bytes["P/switch0/up"] == pytest.approx(scale * 16 / 8 * size)


def test_a_port_raises_a_time_that_its_constants_understate():
    fast = Branch(protocol=Protocol.SIMPLE, algorithm=Algorithm.RING, alpha_us=5, bandwidth_gb_per_s=40)
    entry = load_profile(WRX90).collectives[0].model_copy(update={"branches": (fast,)})
    there = box(WRX90, collectives=(entry,))
    cost = collective("all_reduce", 100e6, range(8), there)
    assert cost.own_time_s == pytest.approx(5e-6 + 100e6 / 40e9)
    assert cost.time_s == pytest.approx(1.75 * 100e6 / 56.3e9)
    assert cost.raised
    (warning,) = cost.warnings
    assert "P/gpu" in warning and "56.3 GB/s" in warning and "2.5 ms" in warning and "3.11 ms" in warning
    assert max(cost.demand_bytes_per_s[p] / there.port_index[p].capacity_bytes_per_s for p in cost.wire_bytes) <= 1


@pytest.mark.parametrize("name", names("hardware_profiles"))
def test_shipped_constants_fit_their_ports_and_grow_with_size(name):
    there = box(name)
    for entry in there.profile.collectives:
        what = (entry.operation.value, entry.implementation.value, entry.ranks)
        costs = [collective(what[0], 256 * 2.0 ** (k / 2), range(entry.ranks), there, what[1]) for k in range(2 * 22)]
        assert not any(cost.raised for cost in costs), what
        # Measured points go through what was measured; lines alone never fall.
        assert entry.table or all(one.time_s <= two.time_s for one, two in pairwise(costs)), what
        for cost in costs:
            for port, rate in cost.demand_bytes_per_s.items():
                assert rate <= there.port_index[port].capacity_bytes_per_s * (1 + 1e-9)


@pytest.mark.parametrize("name", names("hardware_profiles"))
def test_every_shipped_collective_fills_a_port_or_says_why_not(name):
    assert unexplained(box(name)) == ()


def test_an_unexplained_collective_is_found():
    there = box(SERVER)
    entry = next(one for one in there.profile.collectives if one.ranks == 2)
    bare = box(SERVER, collectives=(entry.model_copy(update={"bound_by": None, "reason": ""}),))
    (found,) = unexplained(bare)
    assert found.share == pytest.approx(38.6 / 53.1, rel=0.01)
    assert saturation(there, entry).explained


@pytest.mark.parametrize(("name", "tolerance"), [(SERVER, 0.03), (GEFORCE, 0.03)])
def test_group_capacities_are_the_measured_rates(name, tolerance):
    there = box(name)
    groups = [port for port in there.ports if port.kind.value == "root_complex"]
    assert groups
    for port in groups:
        measured = group_capacity_bytes_per_s(there, port.name)
        assert measured <= port.capacity_bytes_per_s <= measured * (1 + tolerance)
        assert port.source is SourceKind.DERIVED


# ---- what is not listed --------------------------------------------------------------------------------------------
def test_ranks_in_between_have_a_busbw_in_between():
    there = box(SERVER)
    four, six, eight = (collective("all_reduce", 512e6, range(n), there) for n in (4, 6, 8))
    assert eight.busbw_bytes_per_s < six.busbw_bytes_per_s < four.busbw_bytes_per_s
    assert six.source is SourceKind.DERIVED


def test_carrying_over_lands_near_what_was_measured():
    # Entries that a profile lists, predicted from their neighbours in it: large messages, all boxes with a table.
    errors = defaultdict(list)
    for name in (SERVER, H100):
        profile = load_profile(name)
        for operation in (CollectiveOperation.ALL_GATHER, CollectiveOperation.REDUCE_SCATTER):
            for ranks in (4, 8):
                reduce = constants_for(profile, CollectiveOperation.ALL_REDUCE, Implementation.NCCL, ranks)
                known = constants_for(profile, operation, Implementation.NCCL, ranks)
                entry = next(
                    e
                    for e in profile.collectives
                    if e.operation.value == "all_reduce" and e.ranks == ranks and e.implementation.value == "nccl"
                )
                assert reduce and known and reduce.branches == entry.branches
                carried = carry_over(entry, operation, ranks, nvlink=profile.links.nvlink is not None)
                for size in (64e6, 512e6):
                    error = fastest_branch(carried, size)[0] / fastest_branch(known.branches, size)[0] - 1
                    errors[name].append(abs(error))
    assert max(errors[SERVER]) < 0.15
    assert max(errors[H100]) < 0.30


def test_a_box_without_constants_assumes_a_share_of_its_ports():
    cost = collective("all_reduce", 256e6, range(8), box(WRX90, collectives=()))
    assert cost.source is SourceKind.ASSUMED
    assert cost.busbw_bytes_per_s == pytest.approx(0.8 * 56.3e9, rel=0.02)
    assert "no constants" in cost.notes[0]


def test_send_recv_follows_from_the_all_to_all():
    cost = collective("send_recv", 64e6, range(2), box(SERVER))
    assert cost.wire_bytes["P/gpu0/egress"] == pytest.approx(64e6)
    assert cost.busbw_bytes_per_s == pytest.approx(51.45e9 / 2, rel=0.02)


def test_nothing_to_move_takes_no_time():
    there = box(SERVER)
    for cost in (collective("all_reduce", 0, range(4), there), collective("all_gather", 1e6, (3,), there)):
        assert (cost.time_s, cost.wire_bytes, cost.busbw_bytes_per_s) == (0, {}, 0)


def test_bad_calls_are_refused_by_name():
    there = box(SERVER)
    with pytest.raises(InputError, match="all_reduce"):
        collective("allreduce", 1, (0, 1), there)
    with pytest.raises(InputError, match="vllm_custom"):
        collective("all_reduce", 1, (0, 1), there, "vllm")
    with pytest.raises(InputError, match="0 or more"):
        collective("all_reduce", -1, (0, 1), there)
    with pytest.raises(InputError, match="does not exist"):
        collective("all_reduce", 1e6, (0, 8), there)
    with pytest.raises(InputError, match="twice"):
        collective("all_reduce", 1e6, (0, 0), there)
    with pytest.raises(CoverageError):
        wire_per_byte(there, (0, 1), CollectiveOperation.ALL_GATHER, Algorithm.NVLS)
    with pytest.raises(CoverageError):
        wire_per_byte(there, (0, 1), CollectiveOperation.ALL_REDUCE, Algorithm.NVLS)
