"""The critical timeline: phases in order on lanes, with the bytes that each phase puts on every port."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from pdmodel.hardware.ports import Port
from pdmodel.spec import SourceKind

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class PhaseKind(StrEnum):
    """Compute uses no port; a collective does; a fused kernel spreads its traffic over its compute."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Phase:
    """One interval of a lane: tau_i [s] at full speed and b_{e,i} [bytes] per port.

    ``input_links`` says by which link the bytes of a port enter the element that owns it. ``not_before_s`` is the
    arrival of the phase's request: the phase cannot start earlier.
    """

    id: str
    kind: PhaseKind
    duration_s: float
    wire_bytes: Mapping[str, float] = field(default_factory=dict)
    input_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    operation: str = ""
    request: str = ""
    chunk: int = 0
    layer: int = -1
    not_before_s: float = 0.0
    source: SourceKind = SourceKind.ASSUMED


@dataclass(frozen=True, slots=True)
class Lane:
    """A prefill instance: phases one after another on ``gpus`` GPUs."""

    name: str
    phases: tuple[Phase, ...]
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class DecodeLane:
    """A decode instance: one step, repeated; its demand on a port [byte/s] is the mean over the step."""

    name: str
    step_s: float
    mean_bytes_per_s: Mapping[str, float]
    peak_bytes_per_s: Mapping[str, float]
    input_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Clock:
    """The lanes' phases on one clock, piecewise constant with exact breakpoints.

    ``edges_s`` (J+1,) are the breakpoints; ``phase`` (L, J) is the index of the phase that lane l runs in interval j,
    -1 when it runs none; ``speed`` (L, J) is its speed x, 1 at full speed.
    """

    edges_s: FloatArray
    phase: IntArray
    speed: FloatArray


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the lanes would do without KV, and the ports that they do it on.

    ``warnings``: figures that were raised or stretched; ``assumed``: inputs without a measurement; ``hazards``: what
    the box may do to these collectives that no capacity expresses.
    """

    ports: tuple[Port, ...]
    lanes: tuple[Lane, ...]
    decode_lanes: tuple[DecodeLane, ...]
    clock: Clock
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()
