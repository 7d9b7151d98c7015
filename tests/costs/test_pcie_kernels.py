"""All-reduce kernels made for PCIe: bytes by hand, the assumed time, where they are refused, no default."""

import json
from pathlib import Path

import pytest

from pdmodel.costs.collectives import collective
from pdmodel.costs.collectives.pcie import concurrent_share, pcie_constants
from pdmodel.costs.terms import collective_terms
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import (
    Algorithm,
    Branch,
    CollectiveConstants,
    CollectiveOperation,
    Implementation,
    Protocol,
)
from pdmodel.hardware.profile import P2P
from pdmodel.hardware.topology import Box
from pdmodel.resolve import load_scenario
from pdmodel.spec import SourceKind
from pdmodel.timeline.build import timeline
from pdmodel.timeline.phases import PhaseKind
from pdmodel.units import GB, GIB, KIB, MIB

SERVER, WRX90, GEFORCE, H100 = "rtx_pro_6000_server", "rtx_pro_6000_wrx90_two_roots", "rtx_5090_direct", "h100_8nic"
KERNELS = ("pcie_push", "pcie_pull")
SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "rtx_pro_6000_qwen3_32b_tp4.json"


def box(name: str) -> Box:
    return Box(load_profile(name), "P")


@pytest.mark.parametrize(("ranks", "out"), [(2, 1.0), (4, 1.5)])
def test_push_writes_a_ring_s_bytes_and_nothing_back(ranks: int, out: float) -> None:
    size = 8e6
    cost = collective("all_reduce", size, range(ranks), box(SERVER), "pcie_push")
    assert (cost.algorithm, cost.protocol, cost.source) == ("two_shot_push", "custom", SourceKind.ASSUMED)
    for gpu in range(ranks):
        assert cost.wire_bytes[f"P/gpu{gpu}/egress"] == pytest.approx(out * size)
        assert cost.wire_bytes[f"P/gpu{gpu}/ingress"] == pytest.approx(out * size)


@pytest.mark.parametrize(("ranks", "out"), [(2, 1.0), (4, 1.5)])
def test_pull_adds_requests_in_the_other_direction(ranks: int, out: float) -> None:
    size = 8e6
    cost = collective("all_reduce", size, range(ranks), box(SERVER), "pcie_pull")
    assert (cost.algorithm, cost.protocol, cost.source) == ("two_shot", "custom", SourceKind.ASSUMED)
    for gpu in range(ranks):
        assert cost.wire_bytes[f"P/gpu{gpu}/egress"] == pytest.approx(out * size * (1 + 24 / 128))
        assert cost.wire_bytes[f"P/gpu{gpu}/ingress"] == pytest.approx(out * size * (1 + 24 / 128))


def test_push_under_one_switch_stays_off_the_uplinks_and_crosses_them_by_hand() -> None:
    inside = collective("all_reduce", 1e6, range(4), box(WRX90), "pcie_push")
    assert not any("/up" in port or "root" in port for port in inside.wire_bytes)
    across = collective("all_reduce", 1e6, (0, 1, 4, 5), box(WRX90), "pcie_push")
    # Two GPUs on this side write 2 S/4 to each of two on the other.
    assert across.wire_bytes["P/switch0/up"] == pytest.approx(4 * 2 * 1e6 / 4)


def test_time_is_latency_and_the_slowest_port() -> None:
    here, size = box(SERVER), float(GIB)
    push, pull = (collective("all_reduce", size, (0, 1), here, name) for name in KERNELS)
    (line,) = pcie_constants(here, (0, 1), CollectiveOperation.ALL_REDUCE, Implementation.PCIE_PUSH).branches
    needed = max(bytes_ / here.port_index[port].capacity_bytes_per_s for port, bytes_ in push.wire_bytes.items())
    assert push.time_s == pytest.approx(line.alpha_us * 1e-6 + needed)
    assert pull.time_s - line.alpha_us * 1e-6 == pytest.approx((1 + 24 / 128) * needed)
    engine = next(
        entry
        for entry in here.profile.collectives
        if entry.implementation is Implementation.VLLM_CUSTOM and entry.ranks == 2
    )
    assert line.alpha_us <= min(branch.alpha_us for branch in engine.branches)
    assert not push.raised
    assert not push.warnings
    assert "assumed" in push.notes[0]
    assert "56128" in push.notes[0]


def test_more_than_two_ranks_reach_what_was_measured_of_concurrent_peers() -> None:
    assert concurrent_share(Implementation.PCIE_PUSH, 4) == pytest.approx(25.40 / 44.78)
    assert concurrent_share(Implementation.PCIE_PULL, 4) == pytest.approx(20.60 / 42.83)
    here, size = box(SERVER), 64.0 * GIB
    push, pull = (collective("all_reduce", size, range(4), here, name) for name in KERNELS)
    needed = max(bytes_ / here.port_index[port].capacity_bytes_per_s for port, bytes_ in push.wire_bytes.items())
    assert push.time_s == pytest.approx(needed * 44.78 / 25.40, rel=1e-4)
    assert pull.time_s == pytest.approx(needed * 42.83 / 20.60, rel=1e-4)


def test_two_ranks_against_nccl() -> None:
    """FlashInfer reports 1.35 times NCCL at many rows between two GPUs; docs/collectives.md says what comes out."""
    for size, ratio in ((256 * MIB, 1.40), (GIB, 1.37), (64 * KIB, 1.65)):
        nccl, push = (collective("all_reduce", size, (0, 1), box(SERVER), name) for name in ("nccl", "pcie_push"))
        assert nccl.time_s / push.time_s == pytest.approx(ratio, abs=0.006)
    for ranks, ratio in ((4, 0.68), (8, 0.55)):
        nccl, push = (collective("all_reduce", 256 * MIB, range(ranks), box(SERVER), n) for n in ("nccl", "pcie_push"))
        assert nccl.time_s / push.time_s == pytest.approx(ratio, abs=0.006)


def test_constants_that_a_profile_lists_are_taken() -> None:
    profile = load_profile(SERVER)
    line = Branch(protocol=Protocol.CUSTOM, algorithm=Algorithm.TWO_SHOT_PUSH, alpha_us=5.0, bandwidth_gb_per_s=40.0)
    entry = CollectiveConstants(
        operation=CollectiveOperation.ALL_REDUCE,
        implementation=Implementation.PCIE_PUSH,
        ranks=2,
        branches=(line,),
        source=profile.collectives[0].source,
    )
    listed = Box(profile.model_copy(update={"collectives": (*profile.collectives, entry)}), "P")
    cost = collective("all_reduce", 4e8, (0, 1), listed, "pcie_push")
    assert cost.time_s == pytest.approx(5e-6 + 4e8 / (40 * GB))
    assert cost.source is not SourceKind.ASSUMED


def test_a_box_without_constants_gets_nccls_own_rating_of_latency() -> None:
    bare = Box(load_profile(SERVER).model_copy(update={"collectives": ()}), "P")
    found = pcie_constants(bare, (0, 1), CollectiveOperation.ALL_REDUCE, Implementation.PCIE_PULL)
    assert found.branches[0].alpha_us == pytest.approx(6.6 + 2 * 1.0)
    assert "rating" in found.notes[0]


@pytest.mark.parametrize("name", KERNELS)
def test_refused_in_one_line(name: str) -> None:
    for where, words in ((GEFORCE, f"{name} needs P2P, which rtx_5090_direct refuses"), (H100, "without NVLink")):
        with pytest.raises(InputError, match=words) as refused:
            collective("all_reduce", 1e6, (0, 1), box(where), name)
        assert "\n" not in str(refused.value)
    with pytest.raises(InputError, match=f"{name} has no all_gather"):
        collective("all_gather", 1e6, (0, 1), box(SERVER), name)
    assert load_profile(GEFORCE).flags.p2p is P2P.REFUSED


def test_one_rank_exchanges_nothing() -> None:
    assert collective("all_reduce", 1e6, (0,), box(SERVER), "pcie_push").time_s == 0


def test_terms_and_a_forced_branch() -> None:
    (term,) = collective_terms("all_reduce", [MIB], range(2), box(SERVER), "pcie_push")
    assert term.selected is None
    assert term.branch is not None
    assert term.cost.time_s == pytest.approx(term.branch.alpha_us * 1e-6 + MIB / (term.branch.bandwidth_gb_per_s * GB))
    (forced,) = collective_terms("all_reduce", [MIB], range(2), box(SERVER), "pcie_push", algorithm="two_shot_push")
    assert forced.cost == term.cost


def scenario(folder: Path, side: str, word: str | None, hardware: str | None = None) -> str:
    body = json.loads(SCENARIO.read_text(encoding="utf-8"))
    for part in ("prefill", "decode"):
        body[part].pop("all_reduce", None)
    if word is not None:
        body[side]["all_reduce"] = word
    if hardware is not None:
        body[side]["hardware"] = hardware
    target = folder / f"{side}_{word}.json"
    target.write_text(json.dumps(body), encoding="utf-8")
    return str(target)


def test_scenarios_take_it_and_have_nccl_by_default(tmp_path: Path) -> None:
    spec = load_scenario(scenario(tmp_path, "prefill", None)).spec
    assert (spec.prefill.all_reduce.value, spec.decode.all_reduce.value) == ("nccl", "nccl")
    found = timeline(load_scenario(scenario(tmp_path, "prefill", "pcie_push")))
    assert any("pcie_push is assumed" in note for note in found.assumed)
    phases = [phase for lane in found.lanes for phase in lane.phases if phase.kind is PhaseKind.COLLECTIVE]
    assert phases
    assert {phase.source for phase in phases} == {SourceKind.ASSUMED}


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_scenarios_refuse_it_where_p2p_is_refused(tmp_path: Path, side: str) -> None:
    with pytest.raises(InputError, match="pcie_pull needs P2P") as refused:
        load_scenario(scenario(tmp_path, side, "pcie_pull", GEFORCE))
    assert refused.value.path == f"{side}.all_reduce"
