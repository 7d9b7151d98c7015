"""Replay: what happens to collectives and KV under a policy, event by event."""

from pdmodel.simulate.engine import simulate
from pdmodel.simulate.outcome import LaneOutcome, Replay, Segment
from pdmodel.simulate.policies import (
    AFTER_PREFILL,
    BYTES_OVER_BANDWIDTH,
    NO_KV,
    RESIDUAL_EDF,
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

__all__ = [
    "AFTER_PREFILL",
    "BYTES_OVER_BANDWIDTH",
    "NO_KV",
    "RESIDUAL_EDF",
    "SIMPLE",
    "STRICT",
    "UNMANAGED",
    "Cap",
    "LaneOutcome",
    "PlanPolicy",
    "Policy",
    "QueuePolicy",
    "Reference",
    "Replay",
    "Segment",
    "cap",
    "plan",
    "policy_named",
    "simulate",
]
