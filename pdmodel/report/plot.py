"""Pictures of a plan: what each contended port carries over time, and when which transfer moves.

Colours are those of Okabe and Ito (Color Universal Design, 2008), and every area has its own hatching, so that the
picture can be read without seeing colours.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pdmodel.allocation.data import usable_capacity
from pdmodel.errors import InputError
from pdmodel.report.files import check_target, write_whole
from pdmodel.report.series import Recorded, Steps, Window, closest_look, collective_share, whole_run
from pdmodel.report.text import contended, matters, port_groups
from pdmodel.report.words import group, merged_name, name_pattern, number
from pdmodel.timeline.phases import FloatArray
from pdmodel.units import GB, MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pdmodel.answer import FlowResult, Plan, PortResult

ENDINGS = (".png", ".svg")
MOST_PORTS, MOST_TRANSFERS = 3, 10


@dataclass(frozen=True, slots=True)
class Look:
    """How an area is filled: told apart by its hatching as well as by its colour."""

    colour: str
    hatch: str = ""
    line: str = "white"


BLACK, FAINT = "#000000", "#CCCCCC"
CRITICAL, KV, FREE = Look("#E69F00"), Look("#0072B2", "////"), Look("#F0F0F0", "..", "#999999")
TRANSFERS = {"send": KV, "load": Look("#009E73", "\\\\\\\\"), "writeback": Look("#CC79A7", "xxxx")}


def check_plot_path(path: Path) -> None:
    """Raise `InputError` where ``path`` is no picture that can be written."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"cannot draw a {path.suffix or 'file without an ending'}", file=str(path), expected="one of .png, .svg"
        )
    check_target(path)


def plot(plan: Plan, path: Path) -> None:
    """Draw the plan into ``path``, PNG or SVG by its ending; the file is whole or absent."""
    check_plot_path(path)
    write_whole(path, picture(plan, path.suffix.lower().removeprefix(".")))


def picture(plan: Plan, form: str) -> bytes:
    """The picture's bytes; ``form`` is ``png`` or ``svg``."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    # Letters stay letters in SVG, so that they can be searched; the same plan gives the same bytes.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": plan.scenario, "hatch.linewidth": 0.5}):
        metadata = {"Date": None} if form == "svg" else {}
        figure(plan).savefig(buffer, format=form, dpi=150, metadata=metadata)
    return buffer.getvalue()


def figure(plan: Plan) -> Figure:
    """The whole picture: a row a port, the transfers below; on the right two layers as they are."""
    from matplotlib.figure import Figure

    recorded = Recorded.of(plan)
    groups = _ports_to_show(plan)
    index = [plan.data.port_index[ports[0].name] for ports in groups]
    windows = [whole_run(plan, recorded)]
    zoom = closest_look(plan, recorded, index)
    if zoom is not None:
        windows.append(zoom)
    transfers = _transfers_to_show(plan)
    rows = len(plan.data.lanes) + len(transfers)
    heights = [2.0] * len(groups) + [0.5 + 0.3 * rows]
    drawn = Figure(figsize=(7.5 * len(windows) + 0.5, sum(heights) + 1.6), layout="constrained")
    axes = drawn.subplots(len(heights), len(windows), squeeze=False, sharex="col", sharey="row", height_ratios=heights)
    for column, window in enumerate(windows):
        for row, ports in enumerate(groups):
            _draw_port(axes[row, column], plan, recorded, window, ports)
        _draw_transfers(axes[-1, column], plan, recorded, window, transfers)
        _draw_time_axis(axes[-1, column], window)
        binned = recorded.cuts(window) is window.bins_s
        axes[0, column].set_title(f"{window.title} ({window.bin_words})" if binned else window.title, fontsize=10)
    for row, ports in enumerate(groups):
        axes[row, 0].set_ylabel(f"{_port_label(ports)}\n[GB/s]", fontsize=9)
    kind = plan.verdict.kind.value.replace("_", " ")
    rule = f" (= {plan.solver.rule})" if plan.solver.rule else ""
    drawn.suptitle(f"{plan.scenario}: {kind}. Ports and transfers under the plan{rule}", fontsize=12)
    _draw_legend(drawn, plan)
    return drawn


def _ports_to_show(plan: Plan) -> list[list[PortResult]]:
    """Contended ports and any that is fuller; without a contended one the busiest for each kind of traffic.

    The latter shows that the two kinds are apart.
    """
    groups = port_groups(plan.ports)
    if any(contended(port) for port in plan.ports):
        fullest = max(port.utilisation for port in plan.ports)
        return [ports for ports in groups if matters(ports[0], fullest)][:MOST_PORTS]
    busiest = sorted(groups, key=lambda ports: -ports[0].utilisation)
    kv = [ports for ports in busiest if ports[0].kv_bytes > 0][:2]
    critical = [ports for ports in busiest if ports[0].critical_bytes > 0][:1]
    return kv + critical or busiest[:1]


def _port_label(ports: list[PortResult]) -> str:
    name = merged_name([port.name for port in ports])
    return name if len(ports) == 1 else f"{name}\neach of {len(ports)} alike"


def _transfers_to_show(plan: Plan) -> list[list[FlowResult]]:
    """Those that move the same bytes and end together; where these are too many, those of one name, the last first."""
    alike = group(
        plan.flows, lambda flow: (flow.kind, name_pattern(flow.name), number(flow.bytes), number(flow.finish_s))
    )
    if len(alike) > MOST_TRANSFERS:
        named = group(plan.flows, lambda flow: (flow.kind, name_pattern(flow.name), number(flow.bytes)))
        alike = [sorted(flows, key=lambda flow: -flow.finish_s) for flows in named]
    return alike[:MOST_TRANSFERS]


def _draw_port(axes: Axes, plan: Plan, recorded: Recorded, window: Window, ports: list[PortResult]) -> None:
    p = plan.data.port_index[ports[0].name]
    capacity, guard = plan.data.capacity[p], plan.data.guard[p]
    usable = usable_capacity(capacity, guard, recorded.critical[:, p])
    free = np.maximum(usable - recorded.critical[:, p] - recorded.kv[:, p], 0.0)
    steps = recorded.steps(np.stack([recorded.critical[:, p], recorded.kv[:, p], free], axis=1) / GB, window)
    levels = np.cumsum(steps.values, axis=1)
    base = np.zeros(len(levels))
    for k, look in enumerate((CRITICAL, KV, FREE)):
        _fill(axes, steps.edges_s, (base, levels[:, k]), look)
        base = levels[:, k]
    axes.axhline(capacity / GB, color=BLACK, linewidth=1.2)
    axes.set_ylim(0, capacity / GB * 1.12)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _fill(axes: Axes, edges_s: FloatArray, between: tuple[FloatArray, FloatArray], look: Look) -> None:
    """Fill between two step functions."""
    low, high = (np.repeat(level, 2) for level in between)
    axes.fill_between(
        np.repeat(edges_s, 2)[1:-1],
        low,
        high,
        facecolor=look.colour,
        edgecolor=look.line,
        hatch=look.hatch or None,
        linewidth=0.0,
    )


def _draw_transfers(
    axes: Axes, plan: Plan, recorded: Recorded, window: Window, transfers: list[list[FlowResult]]
) -> None:
    """One band a lane (share of time in collectives) and one a transfer (height: its rate), the first on top."""
    labels: list[str] = []
    index = {flow.name: f for f, flow in enumerate(plan.data.flows)}
    for lane in range(len(plan.data.lanes)):
        cuts = recorded.cuts(window)
        share = collective_share(plan, lane, cuts)
        _band(axes, Steps(cuts, share), len(labels), CRITICAL)
        labels.append(f"{plan.data.lanes[lane].name}: collectives")
    most = max((float(recorded.flow[:, index[flows[0].name]].max()) for flows in transfers), default=0.0) or 1.0
    for flows in transfers:
        flow, row = flows[0], len(labels)
        steps = recorded.steps(recorded.flow[:, index[flow.name]] / most, window)
        _band(axes, steps, row, TRANSFERS.get(flow.kind, KV))
        for time_s, marker in ((flow.release_s, ">"), (flow.due_s, "|"), (flow.finish_s, "D")):
            if time_s is not None and window.start_s <= time_s <= window.end_s:
                axes.plot(
                    [time_s], [row + 0.05], marker, color=BLACK, markersize=9 if marker == "|" else 4, clip_on=False
                )
        labels.append(merged_name([flow.name for flow in flows]) + _how_many(flows))
    axes.set_yticks(range(len(labels)), [_short(label) for label in labels], fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    for row in range(1, len(labels)):
        axes.axhline(row - 0.5, color=FAINT, linewidth=0.4)


def _how_many(flows: list[FlowResult]) -> str:
    if len(flows) == 1:
        return ""
    together = len({number(flow.finish_s) for flow in flows}) == 1
    return f" ({len(flows)} alike)" if together else f" (the last of {len(flows)})"


def _band(axes: Axes, height: Steps, row: int, look: Look) -> None:
    foot = np.full(len(height.values), row + 0.4)
    _fill(axes, height.edges_s, (foot - 0.8 * height.values, foot), look)


def _draw_time_axis(axes: Axes, window: Window) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    length = window.end_s - window.start_s
    unit, scale = ("s", 1.0) if window.end_s >= 10 and length > 0.1 else ("ms", MS)
    digits = max(0, 1 - math.floor(math.log10(length / scale)))
    axes.set_xlim(window.start_s, window.end_s)
    axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda time_s, _: f"{time_s / scale:.{digits}f}"))
    axes.set_xlabel(f"time [{unit}]", fontsize=9)


def _short(label: str, most: int = 40) -> str:
    return label if len(label) <= most else label[: most // 2 - 1] + "…" + label[-most // 2 :]


def _draw_legend(drawn: Figure, plan: Plan) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def patch(look: Look, label: str) -> Patch:
        return Patch(facecolor=look.colour, edgecolor=look.line, hatch=look.hatch, linewidth=0.0, label=label)

    handles: list[Patch | Line2D] = [
        patch(CRITICAL, "critical (TP, CP, EP collectives)"),
        patch(KV, "KV"),
        patch(FREE, "residual left (without the guard)"),
        Line2D([], [], color=BLACK, linewidth=1.2, label="capacity"),
    ]
    kinds = dict.fromkeys(flow.kind for flow in plan.flows)
    handles += [patch(TRANSFERS.get(kind, KV), f"{kind} (height: rate)") for kind in kinds]
    for marker, label in ((">", "first release"), ("|", "due"), ("D", "finish")):
        handles.append(Line2D([], [], color=BLACK, marker=marker, linestyle="", markersize=5, label=label))
    drawn.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
