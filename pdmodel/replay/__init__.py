"""Replay: what happens to collectives and KV under a policy, event by event."""

from pdmodel.replay.engine import simulate
from pdmodel.replay.memory import PoolTrace, memory_trace
from pdmodel.replay.outcome import LaneOutcome, Replay, Segment
from pdmodel.replay.policies import (
    AFTER_PREFILL,
    BYTES_OVER_BANDWIDTH,
    NO_KV,
    RESIDUAL_EDF,
    SENDS_FIRST,
    SIMPLE,
    STRICT,
    UNMANAGED,
    Cap,
    PlanPolicy,
    Policy,
    QueuePolicy,
    Reference,
    cap,
    plan,
    policy_named,
)
from pdmodel.replay.search import Band, BandPoint, CapSearch, band, best_cap

__all__ = [
    "AFTER_PREFILL",
    "BYTES_OVER_BANDWIDTH",
    "NO_KV",
    "RESIDUAL_EDF",
    "SENDS_FIRST",
    "SIMPLE",
    "STRICT",
    "UNMANAGED",
    "Band",
    "BandPoint",
    "Cap",
    "CapSearch",
    "LaneOutcome",
    "PlanPolicy",
    "Policy",
    "PoolTrace",
    "QueuePolicy",
    "Reference",
    "Replay",
    "Segment",
    "band",
    "best_cap",
    "cap",
    "memory_trace",
    "plan",
    "policy_named",
    "simulate",
]
