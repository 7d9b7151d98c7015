"""The tail of program R once more, exactly: what is left when all lanes are over, one request after another.

Program R charges the area of lateness on a coarse grid, which is the same for any order of requests that keeps a port
busy. When all lanes are over the ports do not change any more, and program E on a lane of no length knows the best
rates for a given order of requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pdmodel.allocation.course import Course
from pdmodel.allocation.courses import best_course
from pdmodel.allocation.data import AllocationData, RequestData
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.phases import FloatArray, Lane, Phase, PhaseKind
from pdmodel.transfer.flows import Flow, FlowKind

#: Share of a flow below which what is left for the tail is rounding.
CRUMB = 1e-9


def tail_in_turn(data: AllocationData, left_bytes: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Rates that are best for what is left when all lanes are over: lengths (K,) [s] and bytes per route (R, K).

    None where that is not sends alone, or memory or leases say when bytes move.

    Parameters
    ----------
    data: the record; its decode lanes run on. Write-backs are served after the schedule.
    left_bytes: what is left of each flow, shape (F,) [bytes].

    """
    awaited = np.array([flow.kind is not FlowKind.WRITEBACK for flow in data.flows], dtype=bool)
    left = np.where(awaited & (left_bytes > CRUMB * data.volume_bytes), left_bytes, 0.0)
    waiting = [flow for flow, size in zip(data.flows, left, strict=True) if size > 0]
    timed = len(data.tight_pools) or any(flow.lease_s is not None for flow in waiting)
    if not waiting or timed or any(flow.kind is not FlowKind.SEND for flow in waiting):
        return None
    rest = _rest(data, left)
    ends = Course((1,) * len(rest.requests), (0,) * len(rest.requests))
    schedule = best_course(rest, [ends]).schedule
    if schedule is None or not schedule.pieces:
        return None
    lengths = np.array([piece.duration_s for piece in schedule.pieces], dtype=float)
    return lengths, np.stack([piece.rates for piece in schedule.pieces], axis=1) * lengths


def _rest(data: AllocationData, left: FloatArray) -> AllocationData:
    """A record of what is left: one lane of one phase of 0 s, and everything released at once."""
    phase = Phase("end", PhaseKind.COMPUTE, 0.0)
    lane = Lane("end", (phase,))
    requests = tuple(
        RequestData(f"{data.lanes[one.lane].name}/{one.name}", 0, 0, 0, one.price_per_s) for one in data.requests
    )
    flows = tuple(_moved(flow, float(size)) for flow, size in zip(data.flows, left, strict=True))
    return replace(
        data,
        lanes=(lane,),
        clock=run_clock(data.ports, (lane,), data.decode_lanes),
        flows=flows,
        requests=requests,
        lane_price_per_s=np.zeros(1),
        phase_price_per_s=(np.array([sum(one.price_per_s for one in requests)]),),
        memory=(),
    )


def _moved(flow: Flow, left: float) -> Flow:
    return replace(
        flow,
        kind=FlowKind.SEND,
        request=f"{flow.lane}/{flow.request}",
        lane="end",
        release=((0, left),),
        due=((1, left),),
        lease_s=None,
    )
