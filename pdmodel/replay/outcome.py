"""What a replay measured."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pdmodel.timeline.phases import FloatArray


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """Times of one lane: phase starts and ends (n,) [s], loss of speed, holds and gate waits per phase (n,) [s].

    ``loss_s[i]`` is the integral of (1 - x) dt over phase i; ``wait_s[i]`` the wait before phase i that its loads
    caused (wait holds included).
    """

    start_s: FloatArray
    end_s: FloatArray
    loss_s: FloatArray
    hold_s: FloatArray
    wait_s: FloatArray


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of constant rates, kept on request: critical and KV rate per port (P,), rate per flow (F,)."""

    start_s: float
    end_s: float
    critical: FloatArray
    kv: FloatArray
    flow_rate: FloatArray


@dataclass(frozen=True, slots=True)
class Replay:
    """One policy replayed. Times [s], cost [GPU·s].

    ``cost`` = sum over lanes of pi * (prefill_slowdown_s + load_stall_s) + sum over requests of lambda * user_delay_s
    + sum over decode lanes of pi_D * decode_loss_s. Arrays: lanes (L,), requests (Q,), flows (F,), ports (P,), decode
    lanes (D,). ``kv_bytes`` and ``critical_bytes`` are what crossed each port until the last send was delivered;
    ``end_s`` is when lanes, sends and loads are over. Nobody waits for write-backs: they count in no time, and in the
    cost only by what they slow down. ``writeback_end_s``: when the last one is over; None where there are none.
    ``expired``: names of the flows that outlive their lease. ``route_bytes``: what each route moved, (R,).
    """

    policy: str
    lanes: tuple[LaneOutcome, ...]
    flow_finish_s: FloatArray
    prefill_s: FloatArray
    prefill_slowdown_s: FloatArray
    load_stall_s: FloatArray
    decode_stall_s: FloatArray
    user_delay_s: FloatArray
    ttft_s: FloatArray
    decode_loss_s: FloatArray
    cost: float
    kv_bytes: FloatArray
    critical_bytes: FloatArray
    end_s: float
    events: int
    diagnostics: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    expired: tuple[str, ...] = ()
    writeback_end_s: float | None = None
    route_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
