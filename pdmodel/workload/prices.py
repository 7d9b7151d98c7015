"""What a second costs, in GPU·s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """What a second costs [GPU·s per s]: pi of each lane, lambda of each request's user, pi_D of each decode lane."""

    lanes: Mapping[str, float]
    requests: Mapping[str, float]
    decode_lanes: Mapping[str, float]
