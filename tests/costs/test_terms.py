"""A collective's time taken apart: terms add up to it, forced branches are the profile's own lines."""

import pytest

from pdmodel.costs.collectives import collective
from pdmodel.costs.terms import branches, collective_terms
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import list_profiles, load_profile
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
    with pytest.raises(InputError, match=r"no nvls for all_reduce among 8.*one of ring with ll, ring with simple"):
        collective_terms("all_reduce", [1024], range(8), here, algorithm="nvls")
    with pytest.raises(InputError, match="ll128"):
        collective_terms("all_reduce", [1024], range(8), here, protocol="ll128")
    with pytest.raises(InputError, match="one rank"):
        collective_terms("all_reduce", [1024], [0], here, protocol="ll")


def test_nothing_travels_among_one_or_without_bytes() -> None:
    here = box("b200_8nic")
    (alone,) = collective_terms("all_reduce", [1024], [3], here)
    (empty,) = collective_terms("all_reduce", [0], range(8), here)
    for found in (alone, empty):
        assert (found.cost.time_s, found.alpha_s, found.bandwidth_bytes_per_s, found.table_factor) == (0, 0, None, 1)
