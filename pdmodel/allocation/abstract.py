"""Abstract cases: ports, phases and flows as plain numbers in any consistent units, without a machine behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field, FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.spec import Spec
from pdmodel.timeline.phases import Clock, Lane, Phase, PhaseKind
from pdmodel.transfer.flows import Flow, FlowKind, MemoryKind, MemoryPool

Step = tuple[NonNegativeInt, NonNegativeFloat]
#: A step on the first lane, or on the lane that the third figure names.
LaneStep = Step | tuple[NonNegativeInt, NonNegativeFloat, NonNegativeInt]
#: Bytes due may exceed bytes released by rounding only.
ROUNDING = 1e-9
#: Critical bytes may exceed what a port carries by the rounding of printed figures only.
OVERFULL = 1e-3


class _Part(Spec):
    """Further keys are notes: a case may carry its name, its optimum, where it is from."""

    model_config = ConfigDict(extra="ignore")


class AbstractPort(_Part):
    """Capacity and guard of a port."""

    capacity: PositiveFloat
    guard: NonNegativeFloat = 0.0


class AbstractPhase(_Part):
    """Duration at full speed, critical bytes per port, and the interval on the clock without KV where it is given."""

    duration: NonNegativeFloat
    bytes: dict[str, NonNegativeFloat]
    start: NonNegativeFloat | None = None
    end: NonNegativeFloat | None = None

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.start is not None and self.end is not None and self.end < self.start:
            message = f"a phase ends at {self.end:g}, before its start at {self.start:g}"
            raise ValueError(message)
        if self.duration == 0 and any(self.bytes.values()):
            message = "a phase of no duration carries bytes"
            raise ValueError(message)
        return self


Phases = Annotated[tuple[AbstractPhase, ...], Field(min_length=1)]


class AbstractLane(_Part):
    """A lane and what a second of its delay costs."""

    price: NonNegativeFloat
    phases: Phases

    def spans(self) -> list[tuple[float, float, float]]:
        """(start, end, duration) of each phase on the clock: back to back where no start and end are given."""
        now, found = 0.0, []
        for phase in self.phases:
            start = now if phase.start is None else phase.start
            now = start + phase.duration if phase.end is None else phase.end
            found.append((start, now, phase.duration))
        return found


class AbstractFlow(_Part):
    """A flow of lane number ``lane``; a write-back has no due, price or lease."""

    name: str
    kind: FlowKind
    routes: Annotated[tuple[dict[str, PositiveFloat], ...], Field(min_length=1)]
    release: tuple[Step, ...]
    due: tuple[Step, ...]
    price: NonNegativeFloat
    quantum: PositiveFloat | None = None
    lane: NonNegativeInt = 0
    lease: PositiveFloat | None = None

    @model_validator(mode="before")
    @classmethod
    def _nobody_waits_for_a_writeback(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping) or raw.get("kind") != FlowKind.WRITEBACK:
            return raw
        wrong = next((key for key in ("due", "price", "lease") if raw.get(key)), None)
        if wrong is not None:
            message = f"{raw.get('name')}: a write-back has no {wrong}: nobody waits for it"
            raise ValueError(message)
        return {**raw, "due": (), "price": 0.0}

    @model_validator(mode="after")
    def _all_due_bytes_exist(self) -> Self:
        released, due = sum(size for _, size in self.release), sum(size for _, size in self.due)
        if due > released * (1 + ROUNDING):
            message = f"{self.name}: {due:g} bytes are due, {released:g} are released"
            raise ValueError(message)
        for gate in {k for k, _ in self.due} if self.kind is FlowKind.LOAD else ():
            wanted = sum(size for k, size in self.due if k <= gate)
            there = sum(size for k, size in self.release if k <= gate)
            if wanted > there * (1 + ROUNDING):
                message = f"{self.name}: {wanted:g} bytes are due at phase {gate}, {there:g} are released by then"
                raise ValueError(message)
        return self


class AbstractPool(_Part):
    """Memory: bytes that appear as phases start, and what a byte of each flow adds (+) or takes away (-)."""

    capacity: NonNegativeFloat
    base: NonNegativeFloat = 0.0
    appears: tuple[LaneStep, ...] = ()
    moved: dict[str, FiniteFloat] = Field(default_factory=dict)
    kind: MemoryKind = MemoryKind.HOST
    held_until_done: bool = True

    def steps(self) -> list[tuple[int, int, float]]:
        """(lane, k, bytes)."""
        return [(int(step[2]) if len(step) > 2 else 0, int(step[0]), float(step[1])) for step in self.appears]


class AbstractCase(_Part):
    """The whole case: ``phases`` and ``lane_price`` are short for one lane."""

    ports: dict[str, AbstractPort]
    flows: tuple[AbstractFlow, ...]
    phases: Phases | None = None
    lane_price: NonNegativeFloat | None = None
    lanes: Annotated[tuple[AbstractLane, ...], Field(min_length=1)] | None = None
    tail: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    memory: dict[str, AbstractPool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.lanes is None and (self.phases is None or self.lane_price is None):
            message = "a case needs phases and lane_price, or lanes"
            raise ValueError(message)
        names = [flow.name for flow in self.flows]
        if len(set(names)) != len(names):
            message = f"two flows are called {next(name for name in names if names.count(name) > 1)!r}"
            raise ValueError(message)
        for k, lane in enumerate(self.all_lanes):
            for i, phase in enumerate(lane.phases):
                self._check_ports(phase.bytes, f"lane {k} phase {i}")
                self._check_rates(phase, f"lane {k} phase {i}")
        for flow in self.flows:
            for route in flow.routes:
                self._check_ports(route, f"flow {flow.name}")
            if flow.lane >= len(self.all_lanes):
                message = f"flow {flow.name}: there is no lane {flow.lane}"
                raise ValueError(message)
            last = len(self.all_lanes[flow.lane].phases)
            wrong = [k for k, _ in (*flow.release, *flow.due) if k > last]
            if wrong:
                message = f"flow {flow.name}: phase {wrong[0]} of {last} (0 to {last} are legal)"
                raise ValueError(message)
        for name, pool in self.memory.items():
            self._check_pool(name, pool, names)
        return self

    def _check_pool(self, name: str, pool: AbstractPool, flows: list[str]) -> None:
        for lane, k, _ in pool.steps():
            if lane >= len(self.all_lanes):
                message = f"memory {name}: there is no lane {lane}"
                raise ValueError(message)
            last = len(self.all_lanes[lane].phases)
            if k > last:
                message = f"memory {name}: phase {k} of {last} (0 to {last} are legal)"
                raise ValueError(message)
        unknown = [flow for flow in pool.moved if flow not in flows]
        if unknown:
            message = f"memory {name}: unknown flow {unknown[0]!r} (flows: {', '.join(flows)})"
            raise ValueError(message)

    def _check_ports(self, used: dict[str, float], where: str) -> None:
        unknown = [name for name in used if name not in self.ports]
        if unknown:
            message = f"{where}: unknown port {unknown[0]!r} (ports: {', '.join(self.ports)})"
            raise ValueError(message)

    def _check_rates(self, phase: AbstractPhase, where: str) -> None:
        for name, size in phase.bytes.items():
            most = self.ports[name].capacity * phase.duration
            if size > most * (1 + OVERFULL):
                message = f"{where}: {size:g} bytes on {name}, which carries {most:g} in that time"
                raise ValueError(message)

    @property
    def all_lanes(self) -> tuple[AbstractLane, ...]:
        """The lanes, the short form included."""
        if self.lanes is not None:
            return self.lanes
        return (AbstractLane.model_construct(price=self.lane_price or 0.0, phases=self.phases or ()),)

    def all_ports(self) -> tuple[Port, ...]:
        """The ports of the record."""
        return tuple(Port(name, PortKind.ABSTRACT, port.capacity, port.guard) for name, port in self.ports.items())

    def timeline_lanes(self) -> tuple[Lane, ...]:
        """Lanes whose phases may start where the clock says: a gap before a phase is its request's arrival."""
        found = []
        for k, lane in enumerate(self.all_lanes):
            name, end, phases = f"lane{k}", 0.0, []
            for i, (phase, (start, until, duration)) in enumerate(zip(lane.phases, lane.spans(), strict=True)):
                phases.append(
                    Phase(
                        id=str(i),
                        kind=PhaseKind.COLLECTIVE if any(phase.bytes.values()) else PhaseKind.COMPUTE,
                        duration_s=duration,
                        wire_bytes=phase.bytes,
                        request=name,
                        layer=i,
                        not_before_s=start if start > end else 0.0,
                    )
                )
                end = until
            found.append(Lane(name, tuple(phases)))
        return tuple(found)

    def all_flows(self) -> tuple[Flow, ...]:
        """Flows of the record; the engine's rule is the first route."""
        return tuple(
            Flow(
                name=flow.name,
                kind=flow.kind,
                request=f"lane{flow.lane}",
                lane=f"lane{flow.lane}",
                source=flow.name,
                destination="",
                routes=tuple(Route(f"{flow.name}/route{k}", route) for k, route in enumerate(flow.routes)),
                release=flow.release,
                due=flow.due,
                split=(1.0,) + (0.0,) * (len(flow.routes) - 1),
                lease_s=flow.lease,
            )
            for flow in self.flows
        )

    def all_pools(self) -> tuple[MemoryPool, ...]:
        """Memory pools of the record; what appears on a lane belongs to its one request."""
        return tuple(
            MemoryPool(
                name=name,
                kind=pool.kind,
                capacity_bytes=pool.capacity,
                base_bytes=pool.base,
                appears=tuple((f"lane{lane}", k, f"lane{lane}", size) for lane, k, size in pool.steps()),
                moved=pool.moved,
                held_until_done=pool.held_until_done,
            )
            for name, pool in self.memory.items()
        )

    def clock(self) -> Clock:
        """The lanes on one clock."""
        spans = [lane.spans() for lane in self.all_lanes]
        edges = np.unique([time for lane in spans for start, end, _ in lane for time in (start, end)] or [0.0])
        phase = np.full((len(spans), len(edges) - 1), -1, dtype=np.int64)
        speed = np.zeros(phase.shape)
        for k, lane in enumerate(spans):
            for i, (start, end, duration) in enumerate(lane):
                inside = slice(int(np.searchsorted(edges, start)), int(np.searchsorted(edges, end)))
                phase[k, inside], speed[k, inside] = i, duration / (end - start) if end > start else 1.0
        return Clock(edges, phase, speed)
