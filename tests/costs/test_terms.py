"""A collective's time taken apart: terms add up to it, forced branches are the profile's own lines."""

import numpy as np
import pytest

from pdmodel.costs.collectives import collective
from pdmodel.costs.collectives.graphs import situation_of
from pdmodel.costs.collectives.selector import NCCL, select
from pdmodel.costs.terms import branches, collective_terms
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.catalog import list_profiles, load_profile
from pdmodel.hardware.constants import CollectiveOperation, Protocol
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind

SIZES = [1 << k for k in range(8, 31, 2)]


def box(name: str) -> Box:
    return Box(load_profile(name), "P")


@pytest.mark.parametrize("name", list_profiles())
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_terms_add_up_to_the_time(name: str, operation: str) -> None:
    here = box(name)
    for ranks in (2, 3, here.gpu_count):
        for found in collective_terms(operation, SIZES, range(ranks), here):
            cost = found.cost
            assert cost == collective(operation, cost.size_bytes, range(ranks), here)
            line = found.alpha_s + cost.size_bytes / found.bandwidth_bytes_per_s
            assert line * found.table_factor == pytest.approx(cost.own_time_s)
            assert cost.raised or cost.time_s == cost.own_time_s


@pytest.mark.parametrize("name", ["rtx_pro_6000_server", "b200_8nic"])
def test_the_free_choice_is_the_least_of_the_forced_ones_where_no_size_is_barred(name: str) -> None:
    here = box(name)
    known = branches("all_gather", range(8), here).branches
    assert len({branch.protocol for branch in known}) >= 2
    if any(branch.max_bytes or getattr(branch, "from_bytes", None) for branch in known):
        pytest.skip("the implementation leaves a branch at a size")
    free = collective_terms("all_gather", SIZES, range(8), here)
    forced = [collective_terms("all_gather", SIZES, range(8), here, protocol=branch.protocol.value) for branch in known]
    for one, others in zip(free, zip(*forced, strict=True), strict=True):
        line = one.alpha_s + one.cost.size_bytes / one.bandwidth_bytes_per_s
        assert line == pytest.approx(min(other.cost.own_time_s for other in others))


def test_a_forced_branch_keeps_its_protocol_at_every_size_and_pays_its_flags() -> None:
    here = box("rtx_pro_6000_wrx90_two_roots")
    low = collective_terms("all_reduce", SIZES, range(8), here, algorithm="ring", protocol="ll")
    simple = collective_terms("all_reduce", SIZES, range(8), here, protocol="simple")
    assert {(found.cost.algorithm, found.cost.protocol) for found in low} == {("ring", "ll")}
    for one, two in zip(low, simple, strict=True):
        assert one.cost.source is two.cost.source is SourceKind.MEASURED
        for port, size in two.cost.wire_bytes.items():
            assert one.cost.wire_bytes[port] == pytest.approx(2 * size)


def test_what_is_not_there_is_refused_with_what_is() -> None:
    here = box("rtx_pro_6000_server")
    with pytest.raises(CoverageError, match=r"no nvls for all_reduce among 8.*one of ring with ll, ring with simple"):
        collective_terms("all_reduce", [1024], range(8), here, algorithm="nvls")
    with pytest.raises(CoverageError, match="ll128"):
        collective_terms("all_reduce", [1024], range(8), here, protocol="ll128")
    with pytest.raises(InputError, match="one rank"):
        collective_terms("all_reduce", [1024], [0], here, protocol="ll")


def test_nccls_own_choice_stands_beside_the_time_forced_or_not() -> None:
    here = box("b200_8nic")
    situation = situation_of(here.profile, 8)
    choice = select(CollectiveOperation.ALL_REDUCE, np.array(SIZES, dtype=float), situation)
    free = collective_terms("all_reduce", SIZES, range(8), here)
    forced = collective_terms("all_reduce", SIZES, range(8), here, algorithm="ring")
    for k, (one, other) in enumerate(zip(free, forced, strict=True)):
        assert one.selected == other.selected
        assert (one.selected.algorithm, one.selected.protocol) == (choice.at(k).algorithm, choice.at(k).protocol)
        assert one.selected.estimate_s == choice.estimate_s[k]
        assert one.selected.version == NCCL.version
    assert [free[0].selected.algorithm.value, free[-1].selected.algorithm.value] == ["ring", "nvls"]


def test_overrides_of_the_profile_move_nccls_choice() -> None:
    here = box("rtx_pro_6000_server")
    told = here.profile.nccl.model_copy(update={"protocols": (Protocol.SIMPLE,)})
    other = Box(here.profile.model_copy(update={"nccl": told}), "P")
    one, two = (collective_terms("all_reduce", [1024], range(8), known)[0].selected for known in (here, other))
    assert (one.protocol, two.protocol) == (Protocol.LL, Protocol.SIMPLE)
    assert two.estimate_s > one.estimate_s


def test_no_choice_without_a_graph_or_without_nccl() -> None:
    here = box("b200_8nic")
    bare = Box(here.profile.model_copy(update={"nccl": None}), "P")
    assert collective_terms("all_reduce", [1024], range(8), bare)[0].selected is None
    assert collective_terms("all_reduce", [1024], [0], here)[0].selected is None
    assert collective_terms("all_reduce", [0], range(8), here)[0].selected is None
    assert collective_terms("all_reduce", [1024], range(8), here, "vllm_custom")[0].selected is None


@pytest.mark.parametrize("name", list_profiles())
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_what_is_brought_over_keeps_the_order_of_latencies(name: str, operation: str) -> None:
    here = box(name)
    for ranks in range(2, here.gpu_count + 1):
        latencies = [branch.alpha_us for branch in branches(operation, range(ranks), here).branches]
        assert latencies == sorted(latencies)


@pytest.mark.parametrize("name", list_profiles())
@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
def test_broadcast_and_reduce_on_every_box(name: str, operation: str) -> None:
    here = box(name)
    found = collective_terms(operation, SIZES, range(here.gpu_count), here)
    times = [one.cost.time_s for one in found]
    assert 0 < times[0] < times[-1]
    assert found[-1].cost.time_s > SIZES[-1] / max(port.capacity_bytes_per_s for port in here.ports)
    for protocol in {one.cost.protocol for one in found}:
        collective_terms(operation, SIZES, range(here.gpu_count), here, algorithm="ring", protocol=protocol)


def test_nothing_travels_among_one_or_without_bytes() -> None:
    here = box("b200_8nic")
    (alone,) = collective_terms("all_reduce", [1024], [3], here)
    (empty,) = collective_terms("all_reduce", [0], range(8), here)
    for found in (alone, empty):
        assert (found.cost.time_s, found.alpha_s, found.bandwidth_bytes_per_s, found.table_factor) == (0, 0, None, 1)
