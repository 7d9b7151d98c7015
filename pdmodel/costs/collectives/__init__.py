"""Collectives: one algorithm a file; `cost` puts them on a box, `bounds` holds them against its ports."""

from pdmodel.costs.collectives.bandwidth import busbw_factor
from pdmodel.costs.collectives.bounds import Saturation, saturation, unexplained
from pdmodel.costs.collectives.cost import CollectiveCost, collective
from pdmodel.costs.collectives.protocol import branch_time_s, fastest_branch, ranges, wire_factor
from pdmodel.costs.collectives.wire import Wire, wire_per_byte

__all__ = [
    "CollectiveCost",
    "Saturation",
    "Wire",
    "branch_time_s",
    "busbw_factor",
    "collective",
    "fastest_branch",
    "ranges",
    "saturation",
    "unexplained",
    "wire_factor",
    "wire_per_byte",
]
