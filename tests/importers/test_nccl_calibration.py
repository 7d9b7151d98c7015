"""From logs to profiles: known constants come back, logs that do not fit are refused, real ones are sensible."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from made_logs import CLASSIC, SIZES, made_log, two_lines

from pdmodel.costs.collectives import collective
from pdmodel.errors import InputError
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.constants import BoundBy, CollectiveOperation, Protocol
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.importers.nccl_calibration import Calibration, Measured, calibrate
from pdmodel.importers.nccl_log import Collective
from pdmodel.importers.nccl_tests import parse
from pdmodel.resources import resolve
from pdmodel.spec import SourceKind, read_json

WRX90 = "rtx_pro_6000_wrx90_two_roots"
LOG = Path(__file__).parents[1] / "data" / "nccl_tests" / "all_reduce_8x_rtx_pro_6000.log"
AR = CollectiveOperation.ALL_REDUCE


def base(name: str = WRX90):
    return read_json(resolve("hardware_profiles", name))


def measured(text: str, file: str = "my.log", **given) -> Measured:
    return Measured(parse(text, file, **given), hashlib.sha256(text.encode()).hexdigest())


def calibrated(*texts: str, profile: str | None = WRX90, **options) -> Calibration:
    logs = [measured(text, f"log{k}") for k, text in enumerate(texts)]
    return calibrate(logs, None if profile is None else base(profile), name="mine", **options)


# ---- the fit ---------------------------------------------------------------------------------------------------------
def test_known_lines_come_back():
    found = calibrated(made_log(noise=0.005))
    (table,) = found.tables
    ll, simple = table.constants.branches
    assert (ll.protocol, simple.protocol) == (Protocol.LL, Protocol.SIMPLE)
    assert ll.alpha_us == pytest.approx(21, rel=0.03)
    assert ll.bandwidth_gb_per_s == pytest.approx(9.1, rel=0.06)
    assert simple.alpha_us == pytest.approx(46, rel=0.1)
    assert simple.bandwidth_gb_per_s == pytest.approx(22.4, rel=0.02)
    assert table.overall.held_out < 0.012
    assert sum(band.sizes for band in table.bands) == len(SIZES)
    box = Box(found.profile, "P")
    for size in SIZES:
        assert collective("all_reduce", size, range(8), box).time_s == pytest.approx(two_lines(size), rel=0.03)


def test_a_jump_is_found_where_it_is():
    def jump(size: float) -> float:
        return 20e-6 + size / 4e9 if size <= 1 << 20 else 60e-6 + size / 21e9

    (table,) = calibrated(made_log(time_s=jump)).tables
    edges = {branch.from_bytes for branch in table.constants.branches} - {None}
    assert edges
    assert all(1 << 20 < edge < 1 << 21 for edge in edges)
    assert table.overall.fit < 0.01


def test_a_hiccup_of_one_place_does_not_count():
    lines = made_log().splitlines()
    row = next(k for k, line in enumerate(lines) if line.split()[:1] == ["65536"])
    words = lines[row].split()
    words[5], words[6], words[7] = (
        f"{float(words[5]) * 3:.2f}",
        f"{float(words[6]) / 3:.2f}",
        f"{float(words[7]) / 3:.2f}",
    )
    lines[row] = " ".join(words)
    (table,) = calibrated("\n".join(lines)).tables
    assert table.overall.worst < 0.03
    assert table.bands[1].noise > 0.1


def test_large_sizes_alone_keep_a_latency():
    log = made_log(sizes=SIZES[-4:])
    (table,) = calibrated(log).tables
    assert any("latency" in note for note in table.notes)
    assert any("none is held out" in note for note in table.notes)
    assert table.overall.held_out is None
    first = table.constants.branches[0]
    assert 5 < first.alpha_us < 40
    box = Box(calibrated(log).profile, "P")
    assert collective("all_reduce", SIZES[-1], range(8), box).time_s == pytest.approx(two_lines(SIZES[-1]), rel=0.02)


# ---- the profile -----------------------------------------------------------------------------------------------------
def test_the_new_profile_holds_and_says_where_it_is_from():
    found = calibrated(LOG.read_text())
    profile = HardwareProfile.parse(found.raw)
    assert profile == found.profile
    assert profile.name == "mine"
    (entry,) = [entry for entry in profile.collectives if entry.implementation.value == "nccl"]
    source = profile.sources[entry.source]
    assert source.kind is SourceKind.MEASURED
    assert hashlib.sha256(LOG.read_bytes()).hexdigest() in source.ref
    assert "NCCL 2.28.9" in source.note
    assert "date not in the log" in source.note
    assert load_profile(WRX90).gpu == profile.gpu


def test_an_all_reduce_alone_leaves_the_others_derived():
    found = calibrated(made_log())
    assert {CollectiveOperation.ALL_GATHER, CollectiveOperation.REDUCE_SCATTER, CollectiveOperation.ALL_TO_ALL} <= set(
        found.derived
    )
    assert [entry.operation for entry in found.dropped] == [AR, CollectiveOperation.ALL_TO_ALL]
    box = Box(found.profile, "P")
    gathered = collective("all_gather", 1 << 28, range(8), box)
    assert gathered.source is SourceKind.DERIVED
    assert gathered.time_s == pytest.approx(two_lines(1 << 28) / 2, rel=0.1)


def test_more_logs_make_more_of_it_measured():
    gather = made_log("all_gather", sizes=SIZES[5:], time_s=lambda size: 14e-6 + size / 35e9)
    found = calibrated(made_log(), gather)
    assert CollectiveOperation.ALL_GATHER not in found.derived
    cost = collective("all_gather", 1 << 28, range(8), Box(found.profile, "P"))
    assert cost.source is SourceKind.MEASURED
    assert cost.time_s == pytest.approx(14e-6 + (1 << 28) / 35e9, rel=0.02)


def test_one_log_after_the_other_keeps_the_first():
    first = calibrated(made_log())
    gather = measured(made_log("all_gather", sizes=SIZES[5:]), "two")
    second = calibrate([gather], first.raw, name="again")
    assert {entry.operation for entry in second.profile.collectives} == {AR, CollectiveOperation.ALL_GATHER}
    again = calibrate([measured(made_log(seed=5), "three")], second.raw, name="again")
    assert len(again.profile.collectives) == 2
    assert "three" in again.profile.sources["nccl_tests_all_reduce_8"].ref


def test_keep_leaves_the_other_collectives_alone():
    found = calibrated(made_log(), keep=True)
    assert {entry.operation for entry in found.profile.collectives} == {AR, CollectiveOperation.ALL_TO_ALL}
    assert [entry.operation for entry in found.dropped] == [AR]


def test_small_and_large_sizes_may_be_two_logs():
    found = calibrated(made_log(sizes=SIZES[:14]), made_log(sizes=SIZES[14:], seed=2))
    (table,) = found.tables
    assert len(table.table.sizes) == len(SIZES)
    assert found.profile.sources["nccl_tests_all_reduce_8"].ref.count("sha256") == 2


def test_sizes_without_a_power_of_two_and_huge_ones():
    sizes = [3 * 4**k for k in range(3, 19)]
    (table,) = calibrated(made_log(sizes=sizes, time_s=lambda size: two_lines(size) * 1.01)).tables
    assert table.overall.held_out < 0.03


def test_kernels_of_engines_stay():
    log = made_log(gpu="NVIDIA RTX PRO 6000 Blackwell Server Edition", ranks=4)
    found = calibrated(log, profile="rtx_pro_6000_server")
    own = [e for e in load_profile("rtx_pro_6000_server").collectives if e.implementation.value != "nccl"]
    assert [e for e in found.profile.collectives if e.implementation.value != "nccl"] == own


def test_a_shared_link_gets_the_measured_rate():
    # 4x RTX 5090 through host memory: each hop writes and reads once, half of what the ports could carry.
    log = made_log(gpu="NVIDIA GeForce RTX 5090", time_s=lambda size: 30e-6 + size / 10e9)
    found = calibrated(log, profile="rtx_5090_direct")
    (entry,) = [entry for entry in found.profile.collectives if entry.ranks == 8]
    assert entry.bound_by is BoundBy.UNMODELLED_LINK
    groups = found.profile.tree.root_complexes
    assert {found.profile.kind_of(group.capacity_gb_per_s.source) for group in groups} == {SourceKind.DERIVED}
    # Two sockets of four GPUs: 8 hops of 1.75 S written and read, half of them on each.
    assert groups[0].capacity_gb_per_s.value == pytest.approx(4 * 2 * 1.75 * 10, rel=0.15)
    assert any(change.what == "capacity of root_complex0" for change in found.changes)
    cost = collective("all_reduce", 1 << 28, range(8), Box(found.profile, "P"))
    assert not cost.raised


def test_links_that_the_log_contradicts_are_named():
    log = made_log(time_s=lambda size: 30e-6 + size / 40e9)
    assert any("correct the profile's links" in text for text in calibrated(log).warnings)


# ---- a box from the header -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("gpu", "name", "nvlink", "p2p"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090", False, "refused"),
        ("NVIDIA L40S", "L40S", False, "posted_writes"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5", True, "posted_writes"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB", False, "posted_writes"),
    ],
)
def test_a_box_is_made_from_the_header(gpu, name, nvlink, p2p):
    found = calibrated(made_log(gpu=gpu, ranks=4, time_s=lambda size: 20e-6 + size / 8e9), profile=None)
    profile = found.profile
    assert (profile.gpu.name, profile.gpu.count) == (name, 4)
    assert (profile.links.nvlink is not None) == nvlink
    assert profile.flags.p2p.value == p2p
    assert profile.kind_of(profile.links.gpu.egress_gb_per_s.source) is SourceKind.ASSUMED
    cost = collective("all_reduce", 1 << 28, range(4), Box(profile, "P"))
    assert cost.time_s == pytest.approx(20e-6 + (1 << 28) / 8e9, rel=0.02)
    assert not cost.raised


def test_geforce_that_is_too_fast_for_staging_has_p2p():
    found = calibrated(made_log(gpu="NVIDIA GeForce RTX 5090", time_s=lambda size: 30e-6 + size / 27e9), profile=None)
    assert found.profile.flags.p2p.value == "posted_writes"
    assert any(change.what == "flags.p2p" for change in found.changes)


def test_a_gpu_that_nobody_knows_is_a_placeholder():
    found = calibrated(made_log(gpu="NVIDIA Graphics Device"), profile=None)
    assert any("placeholders" in text for text in found.warnings)
    assert found.profile.kind_of("gpu") is SourceKind.ASSUMED


def test_a_log_of_several_nodes_is_kept_with_them():
    log = made_log(ranks=16, nodes=2, gpu="NVIDIA H100 80GB HBM3", layout=replace(CLASSIC, wide=True))
    for profile in (None, "h100_8nic"):
        found = calibrated(log, profile=profile)
        (entry,) = [entry for entry in found.profile.collectives if entry.nodes == 2]
        assert (entry.ranks, entry.operation) == (16, AR)
        assert any("with its nodes" in text for text in found.warnings)
    # What the profile knows of one box is not touched.
    one = [entry for entry in found.profile.collectives if entry.nodes == 1]
    assert one == list(load_profile("h100_8nic").collectives)


# ---- refusals --------------------------------------------------------------------------------------------------------
REFUSED = {
    "another gpu": (made_log(gpu="NVIDIA L40S"), WRX90, "line 4: GPU 'NVIDIA L40S'"),
    "more ranks": (made_log(ranks=16), WRX90, "16 ranks; expected at most the 8 GPUs"),
    "one rank": (made_log(ranks=1), WRX90, "one rank: nothing was sent"),
    "no gpu": (made_log(layout=replace(CLASSIC, devices=False)), None, "--gpu NAME"),
    "no ranks": (
        made_log(layout=replace(CLASSIC, header=False), sizes=SIZES[:18], time_s=lambda _: 5e-3),
        WRX90,
        "--ranks N",
    ),
    "small sizes": (made_log(sizes=SIZES[:14]), WRX90, "that shows latency, no bandwidth"),
    "one size": (made_log(sizes=SIZES[-1:]), WRX90, "at least 2"),
    "ambiguous": (
        made_log("all_gather", layout=replace(CLASSIC, validated=False), sizes=SIZES[5:]),
        WRX90,
        "--collective NAME",
    ),
}


@pytest.mark.parametrize(("text", "profile", "message"), REFUSED.values(), ids=REFUSED)
def test_logs_that_do_not_do_are_refused(text, profile, message):
    with pytest.raises(InputError) as caught:
        calibrated(text, profile=profile)
    assert message in str(caught.value)
    assert "log0: line " in str(caught.value)


def test_force_takes_them_and_says_so():
    found = calibrated(made_log(gpu="NVIDIA L40S"), force=True)
    assert any(text.startswith("forced: ") and "L40S" in text for text in found.warnings)
    assert "GPU NVIDIA L40S" in found.profile.sources["nccl_tests_all_reduce_8"].note
    wide = calibrated(made_log(ranks=16), force=True)
    (entry,) = wide.profile.collectives
    assert (entry.ranks, entry.nodes) == (8, 1)
    assert any("brought" in text for text in wide.warnings)


def test_rows_left_out_are_refused_where_they_hide_something():
    lines = made_log().splitlines()
    rows = [k for k, line in enumerate(lines) if line.split()[:1] and line.split()[0].isdigit()]
    cut = [*lines[: rows[2]], "   ...", *lines[rows[-2] :]]
    with pytest.raises(InputError, match=f"line {rows[2] + 1}: rows are left out between"):
        calibrated("\n".join(cut))
    near = [*lines[: rows[5]], "...", *lines[rows[7] :]]
    assert any("rows are left out here" in text for text in calibrated("\n".join(near)).warnings)


def test_logs_of_two_machines_do_not_mix():
    with pytest.raises(InputError, match="log1: line 4: GPU 'NVIDIA L40S'; expected 'NVIDIA RTX PRO 6000"):
        calibrated(made_log(), made_log("all_gather", gpu="NVIDIA L40S", sizes=SIZES[5:]))


def test_two_ranks_on_one_gpu_measure_no_link():
    text = made_log(ranks=2).replace("device  1 [0x12]", "device  0 [0x11]")
    with pytest.raises(InputError, match="share GPU 0x11"):
        calibrated(text)


# ---- logs of real machines -------------------------------------------------------------------------------------------
LOGS = Path(__file__).parents[2].parent / "shared" / "data" / "nccl_logs"
needs_logs = pytest.mark.skipif(not LOGS.is_dir(), reason=f"the logs are not at {LOGS}")

# File, what has to be said by hand, operation, ranks, nodes, least and largest latency [us] and large-message busbw
# [GB/s], largest mean error of sizes held out (None: too few sizes). busbw as the logs print it, within a few per cent.
SENSIBLE = [
    ("a100pcie40x4_intel", {}, "all_reduce", 4, 1, (20, 26), (4.8, 5.7), 0.06),
    ("a100sxm40x16_oke_partial", {}, "all_reduce", 16, 2, (30, 42), (90, 200), 0.06),
    ("a100sxm80x4_nvswitch", {"gpu": "NVIDIA A100-SXM4-80GB"}, "all_reduce", 4, 1, (5, 20), (225, 240), None),
    ("a40x2_node_p2poff", {"gpu": "NVIDIA A40"}, "all_reduce", 2, 1, (5, 20), (3.6, 4.1), None),
    ("b200x16_gcp_a4_dstack", {"gpu": "NVIDIA B200", "nodes": 2}, "all_reduce", 16, 2, (15, 60), (650, 710), 0.05),
    ("b200x16_gke_a4", {}, "all_reduce", 16, 2, (15, 60), (660, 710), 0.05),
    ("b200x16_lambda_dstack", {"gpu": "NVIDIA B200", "nodes": 2}, "all_reduce", 16, 2, (30, 45), (690, 740), 0.08),
    ("gb200x1440_coreweave", {}, "all_reduce", 1440, 360, (900, 4000), (400, 440), 0.03),
    ("gb200x144_coreweave", {"ranks": 128, "nodes": 32}, "all_reduce", 128, 32, (50, 400), (790, 850), 0.03),
    ("h100_coreweave_64r", {"gpu": "NVIDIA H100", "nodes": 12}, "all_reduce", 96, 12, (50, 300), (380, 400), None),
    ("h100x16_gcp_a3mega", {}, "all_reduce", 16, 2, (115, 130), (330, 350), 0.03),
    ("h100x16_ib_issue290_default", {}, "all_reduce", 16, 2, (15, 60), (150, 160), 0.08),
    ("h100x16_ib_issue290_ring", {}, "all_reduce", 16, 2, (15, 60), (85, 93), 0.08),
    ("h100x8_nvlink_host", {}, "all_reduce", 8, 1, (10, 25), (460, 490), None),
    ("h100x8_nvlink_issue290", {}, "all_reduce", 8, 1, (10, 25), (465, 490), 0.03),
    ("h200x16_roce_nccl2.30.4", {}, "all_reduce", 16, 2, (38, 48), (475, 495), 0.08),
    ("l40s_2node_1gpu", {}, "all_reduce", 2, 2, (11, 14), (7.8, 8.3), 0.04),
    (
        "rtx2080tix2_nvlink_old_allgather",
        {"gpu": "NVIDIA GeForce RTX 2080 Ti", "nodes": 1},
        "all_gather",
        2,
        1,
        (4, 15),
        (20, 23),
        0.05,
    ),
    ("rtx2080tix2_pcie3_shm_all_gather", {}, "all_gather", 2, 1, (9, 11), (3.5, 4.0), 0.05),
    ("rtx2080tix2_pcie3_shm_all_reduce", {}, "all_reduce", 2, 1, (11, 13), (3.9, 4.1), 0.04),
    ("rtx2080tix2_pcie3_shm_alltoall", {}, "all_to_all", 2, 1, (12, 14), (4.4, 4.8), 0.05),
    ("rtx2080tix2_pcie3_shm_broadcast", {}, "broadcast", 2, 1, (11, 12), (10.9, 11.2), 0.05),
    ("rtx4090x2_cross_numa_weak", {}, "all_reduce", 2, 1, (10, 13), (3.6, 3.9), 0.06),
    ("rtx4090x4_epyc_p2pdriver", {}, "all_reduce", 4, 1, (17, 20), (25, 26), 0.04),
    ("rtx4090x4_two_switch_weak", {}, "all_reduce", 4, 1, (17, 22), (2.5, 2.7), 0.05),
    ("rtx4090x8_epyc_shm", {}, "all_reduce", 8, 1, (37, 45), (14.3, 15.6), 0.08),
    ("rtx5090x8_p2psys_nccl2.29.7", {}, "all_reduce", 8, 1, (23, 26), (44, 49), 0.06),
    ("rtx6000d_x16_allreduce", {}, "all_reduce", 16, 2, (50, 62), (45, 49), 0.06),
    ("rtxpro_x16_alltoall_p2poff_shmoff", {}, "all_to_all", 16, 2, (45, 55), (43, 48), 0.08),
]
UNFIT = {
    "aws_topology_aware_elided": "line 5: rows are left out between 16 B and 17179869184 B",
    "gb200x144_coreweave": "line 1: rank 143 is listed, but busbw / algbw = 1.984 is that of 128 ranks",
    "gb300_azure_zero_row": "busbw / algbw = 0.9972 is 2(n-1)/n for no number of ranks",
    "h100_coreweave_64r": "no Rank line names the GPUs",
    "h20x16_old_error_format": "the number of ranks is not in the log",
    "p2p_rtx2080tix2": "line 1: no data rows: this is the output of p2pBandwidthLatencyTest",
    "p2p_rtxpro6000x4_rtx5090x2_turin": "line 1: no data rows: this is the output of p2pBandwidthLatencyTest",
    "rtx5090_2ranks_1gpu_socket_allgather": "line 7: ranks 0 and 1 share GPU 0000:02:00",
}


def from_file(name: str, given: dict) -> Calibration:
    options = dict(given)
    gpu = options.pop("gpu", None)
    path = LOGS / f"{name}.txt"
    return calibrate([measured(path.read_text(encoding="utf-8"), path.name, **options)], None, name="mine", gpu=gpu)


@needs_logs
@pytest.mark.parametrize(
    ("name", "given", "operation", "ranks", "nodes", "alpha_us", "busbw", "limit"),
    SENSIBLE,
    ids=[s[0] for s in SENSIBLE],
)
def test_real_logs_give_sensible_constants(name, given, operation, ranks, nodes, alpha_us, busbw, limit):
    found = from_file(name, given)
    (table,) = found.tables
    constants = table.constants
    assert (constants.operation.value, constants.ranks, constants.nodes) == (operation, ranks, nodes)
    assert alpha_us[0] <= constants.branches[0].alpha_us <= alpha_us[1]
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(operation, (ranks - 1) / ranks)
    assert busbw[0] <= constants.branches[-1].bandwidth_gb_per_s * share <= busbw[1]
    assert (table.overall.held_out is None) == (limit is None)
    if limit is not None:
        assert table.overall.held_out <= limit
    HardwareProfile.parse(found.raw)


@needs_logs
@pytest.mark.parametrize(("name", "message"), UNFIT.items(), ids=UNFIT)
def test_real_logs_that_cannot_do_say_why(name, message):
    with pytest.raises(InputError) as caught:
        from_file(name, {})
    assert message in str(caught.value)


@needs_logs
def test_every_log_is_in_one_of_the_lists():
    assert {path.stem for path in LOGS.glob("*.txt")} == {name for name, *_ in SENSIBLE} | set(UNFIT)


@needs_logs
def test_the_logs_of_one_machine_together():
    names = ["all_gather", "all_reduce", "alltoall", "broadcast"]
    paths = [LOGS / f"rtx2080tix2_pcie3_shm_{name}.txt" for name in names]
    found = calibrate([measured(path.read_text(), path.name) for path in paths], None, name="mine")
    assert len(found.tables) == 4
    assert found.profile.gpu.name == "RTX 2080 Ti"
    for table in found.tables:
        for size in table.table.sizes:
            cost = collective(table.constants.operation.value, size, range(2), Box(found.profile, "P"))
            assert not cost.raised, cost.warnings


@needs_logs
def test_a_shipped_box_on_a_real_log_of_its_gpu():
    path = LOGS / "h100x8_nvlink_issue290.txt"
    found = calibrate([measured(path.read_text(), path.name)], base("h100_8nic"), name="mine")
    (table,) = found.tables
    assert table.constants.ranks == 8
    with pytest.raises(InputError, match="L40S"):
        calibrate([measured((LOGS / "l40s_2node_1gpu.txt").read_text(), "l40s")], base("h100_8nic"), name="mine")


def test_kinds_of_collectives_are_the_profiles_words():
    known = {operation.value for operation in CollectiveOperation}
    assert {one.value for one in Collective} - known == {"gather", "scatter", "hypercube"}
