"""Which algorithm and protocol NCCL takes: its published cost form and constants, kept apart from real times."""

from pdmodel.costs.collectives.selector.availability import Connection, Situation, Transport, connection, enabled
from pdmodel.costs.collectives.selector.constants import NCCL, TuningConstants
from pdmodel.costs.collectives.selector.graph import FALLBACK_GB_PER_S, Search, search_speed
from pdmodel.costs.collectives.selector.tuner import (
    Candidate,
    Choice,
    candidates,
    evaluate,
    latency_us,
    select,
    switches,
)

__all__ = [
    "FALLBACK_GB_PER_S",
    "NCCL",
    "Candidate",
    "Choice",
    "Connection",
    "Search",
    "Situation",
    "Transport",
    "TuningConstants",
    "candidates",
    "connection",
    "enabled",
    "evaluate",
    "latency_us",
    "search_speed",
    "select",
    "switches",
]
