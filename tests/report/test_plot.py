from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_plan import NIC, RANKS, UPLINK, sample_plan

from pdmodel.errors import InputError, PdmodelError
from pdmodel.report.plot import _transfers_to_show, check_plot_path, figure, picture, plot
from pdmodel.report.series import MOST_STEPS, Recorded, binned, closest_look, whole_run

PLAN, LONG = sample_plan(), sample_plan(layers=750)


@given(
    st.lists(st.tuples(st.floats(0.01, 2.0), st.floats(0.0, 50.0), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 40),
)
def test_bins_conserve_the_area(stretches: list[tuple[float, float, bool]], count: int) -> None:
    now, start, end, value = 0.0, [], [], []
    for length, height, gap in stretches:
        now += 0.5 if gap else 0.0
        start.append(now)
        now += length
        end.append(now)
        value.append(height)
    first, last, values = np.array(start), np.array(end), np.array(value)
    edges = np.linspace(0.0, now + 1.0, count + 1)
    mean = binned(first, last, values, edges)
    assert (mean * np.diff(edges)).sum() == pytest.approx((values * (last - first)).sum(), abs=1e-9)
    assert mean.min() >= -1e-9
    assert mean.max() <= values.max() + 1e-9


def test_bins_at_the_breakpoints_give_the_values_back() -> None:
    edges = np.array([0.0, 1.0, 3.0, 4.0])
    values = np.array([[1.0, 10.0], [2.0, 0.0], [5.0, 7.0]])
    assert binned(edges[:-1], edges[1:], values, edges) == pytest.approx(values)


def test_a_bin_of_no_length_is_empty() -> None:
    edges = np.array([0.0, 1.0, 1.0, 3.0])
    assert binned(np.array([0.0]), np.array([3.0]), np.array([2.0]), edges) == pytest.approx([2.0, 0.0, 2.0])


def test_many_transfers_share_a_band_by_name() -> None:
    flows = [replace(PLAN.flows[0], name=f"turn/prefetch/P{k}", finish_s=0.001 * k) for k in range(12)]
    (found,) = _transfers_to_show(replace(PLAN, flows=tuple(flows)))
    assert len(found) == 12
    assert found[0].name == "turn/prefetch/P11"
    few = _transfers_to_show(replace(PLAN, flows=tuple(flows[:4])))
    assert [one.name for (one,) in few] == [flow.name for flow in flows[:4]]


def test_a_short_run_is_drawn_as_it_is_and_a_long_one_binned() -> None:
    for plan, exact in ((PLAN, True), (LONG, False)):
        recorded = Recorded.of(plan)
        window = whole_run(plan, recorded)
        cuts = recorded.cuts(window)
        assert (cuts is not window.bins_s) is exact
        assert len(cuts) <= MOST_STEPS + 10
        kv = recorded.steps(recorded.kv, window)
        total = (kv.values * np.diff(kv.edges_s)[:, None]).sum(axis=0)
        assert total == pytest.approx(plan.replay.kv_bytes, rel=1e-9)


def test_the_closer_look_is_where_kv_meets_collectives() -> None:
    recorded = Recorded.of(LONG)
    window = closest_look(LONG, recorded, [0])
    assert window is not None
    inside = (recorded.start_s >= window.start_s) & (recorded.end_s <= window.end_s)
    assert recorded.kv[inside, 0].min() > 0
    assert recorded.critical[inside, 0].max() > 0
    assert window.title.startswith("lane0, r0, chunk 0, layers ")
    assert closest_look(PLAN, Recorded.of(PLAN), [0]) is None


def test_the_picture_says_what_it_shows() -> None:
    svg = picture(LONG, "svg").decode()
    words = ["sample: contended", "P/switch0/down", "each of 2 alike", "[GB/s]", "time [ms]", "critical (TP, CP, EP"]
    words += [
        "residual left",
        "capacity",
        "load (height: rate)",
        "send (height: rate)",
        "means over 3 layers",
        "layers",
    ]
    for word in words:
        assert word in svg, word


def test_areas_are_told_apart_by_hatching() -> None:
    hatches = {patch.get_hatch() for patch in figure(PLAN).legends[0].get_patches()}
    assert hatches == {"", "////", "..", "\\\\\\\\"}


def test_ports_drawn_are_the_contended_ones() -> None:
    labels = [axes.get_ylabel() for axes in figure(PLAN).axes]
    assert [label for label in labels if label] == [
        f"{UPLINK}\n[GB/s]",
        "P/gpu[0-1]/ingress\neach of 2 alike\n[GB/s]",
    ]


def test_without_a_contended_port_both_kinds_are_drawn_apart() -> None:
    ports = tuple(
        replace(port, kv_bytes=0.0) if port.name in RANKS else replace(port, critical_bytes=0.0) for port in PLAN.ports
    )
    labels = [axes.get_ylabel() for axes in figure(replace(PLAN, ports=ports)).axes]
    assert [label.partition("\n")[0] for label in labels if label] == [UPLINK, NIC, "P/gpu[0-1]/ingress"]


def test_a_full_port_is_drawn_although_it_carries_only_kv() -> None:
    ports = tuple(
        replace(port, utilisation=0.99, shadow_price=0.01) if port.name == NIC else port for port in PLAN.ports
    )
    labels = [axes.get_ylabel() for axes in figure(replace(PLAN, ports=ports)).axes]
    assert [label.partition("\n")[0] for label in labels if label] == [NIC, UPLINK, "P/gpu[0-1]/ingress"]


def test_stacks_do_not_exceed_the_capacity() -> None:
    drawn = figure(PLAN)
    for axes in drawn.axes[:2]:
        capacity = max(line.get_ydata()[0] for line in axes.get_lines())
        tops = [path.vertices[:, 1].max() for patch in axes.collections for path in patch.get_paths()]
        assert max(tops) <= capacity * (1 + 1e-9)


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("SVG", b"<?xml")])
def test_files_by_ending(tmp_path: Path, ending: str, magic: bytes) -> None:
    path = tmp_path / f"plan.{ending}"
    plot(PLAN, path)
    assert path.read_bytes().startswith(magic)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_plan_gives_the_same_svg() -> None:
    assert picture(PLAN, "svg") == picture(PLAN, "svg")


@pytest.mark.parametrize("name", ["plan.pdf", "plan"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"cannot draw a .*; expected one of \.png, \.svg"):
        check_plot_path(tmp_path / name)


def test_a_plan_without_recording_cannot_be_drawn() -> None:
    with pytest.raises(PdmodelError, match="not recorded"):
        figure(replace(PLAN, replay=replace(PLAN.replay, segments=())))
