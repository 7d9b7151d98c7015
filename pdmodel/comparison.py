"""One scenario under several engines: each planned as `pdmodel plan` does, side by side."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdmodel.allocation.data import AllocationData
from pdmodel.answer import Plan
from pdmodel.costs.fullest_port import fullest_port
from pdmodel.engines.catalog import list_engines, load_engine
from pdmodel.engines.spec import EngineSpec, KvPath
from pdmodel.errors import InputError
from pdmodel.hardware.ports import PortKind, Route
from pdmodel.planner import plan
from pdmodel.replay.policies import UNMANAGED
from pdmodel.resolve import ResolvedScenario, read_scenario, resolve_scenario
from pdmodel.scenario import Scenario, StoreSpec
from pdmodel.transfer.flows import FlowKind
from pdmodel.transfer.sends import parts_of

BOUND_BY = {
    PortKind.POSTING: "descriptors",
    PortKind.MESSAGES: "messages",
    PortKind.STORE: "store",
    PortKind.RECEIVING: "receiving",
    PortKind.CLIENT: "store",
}
"""What holds sends up, by the port that they need longest; bandwidth is all the others."""
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class UnderEngine:
    """What an engine makes of the scenario; times of the worst request [s], costs [GPU·s].

    ``descriptors``: of all sends. ``bound_by``: whichever takes longest of bandwidth, descriptors, messages, store,
    receiving and control, and ``port`` where that is one. ``applicable``: the policy that can be applied today, and its
    cost.
    """

    descriptors: int
    bound_by: str
    port: str | None
    ttft_unmanaged_s: float
    ttft_plan_s: float
    decode_stall_s: float
    control_s: float
    verdict: str
    plan_is: str
    cost_unmanaged: float
    cost_plan: float
    applicable: str
    applicable_cost: float


@dataclass(frozen=True, slots=True)
class Compared:
    """An engine, with what comes of it (None: the scenario cannot run under it, and ``refused`` says why)."""

    engine: EngineSpec
    found: UnderEngine | None
    refused: str = ""


def compare_engines(
    scenario: str | os.PathLike[str] | Scenario,
    engines: Sequence[str] | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> tuple[Compared, ...]:
    """The scenario planned under each engine, in the order given.

    Parameters
    ----------
    scenario: name of a shipped scenario, path of a scenario file, or a `Scenario` as written. What its ``transfer``
        says holds for every engine.
    engines: names or paths; None: all that are shipped.
    progress: told which engine is planned, and what is being done.

    Returns
    -------
    A row for each engine; one that cannot run the scenario has no result.

    Raises
    ------
    InputError: an unknown engine, one given twice, or a scenario that no engine can run. SolverError: no optimum.

    """
    spec, file = (scenario, "") if isinstance(scenario, Scenario) else read_scenario(scenario)
    wanted = _wanted(list_engines() if engines is None else engines)
    say = progress or _quiet
    rows: list[Compared] = []
    first: InputError | None = None
    for name, engine in wanted:
        say(engine.name)
        try:
            resolved = resolve_scenario(with_engine(spec, name, engine), file)
            found = plan(resolved, progress=lambda now, engine=engine: say(f"{engine.name}: {now}"))  # type: ignore[misc]
            rows.append(Compared(engine, under_engine(resolved, found)))
        except InputError as error:
            first = first or error
            rows.append(Compared(engine, None, str(error)))
    if first is not None and all(row.found is None for row in rows):
        raise first
    return tuple(rows)


def with_engine(spec: Scenario, name: str, engine: EngineSpec) -> Scenario:
    """The scenario under an engine; one that sends through a store gets the default store where there is none."""
    changed = spec.model_copy(update={"prefill": spec.prefill.model_copy(update={"engine": name})})
    if engine.through.value is KvPath.STORE and spec.store is None:
        changed = changed.model_copy(update={"store": StoreSpec()})
    return changed


def under_engine(resolved: ResolvedScenario, found: Plan) -> UnderEngine:
    """The row of a planned scenario."""
    unmanaged = next(row for row in found.policies if row.name == UNMANAGED.name)
    bound_by, port = send_bound(found.data, found.times.control_s)
    descriptors = sum(part.pieces.descriptors for request in resolved.requests for part in parts_of(resolved, request))
    return UnderEngine(
        descriptors=descriptors,
        bound_by=bound_by,
        port=port,
        ttft_unmanaged_s=unmanaged.ttft_s,
        ttft_plan_s=found.times.ttft_s,
        decode_stall_s=found.times.decode_stall_s,
        control_s=found.times.control_s,
        verdict=found.verdict.kind.value,
        plan_is=found.solver.rule or "plan",
        cost_unmanaged=unmanaged.cost,
        cost_plan=found.replay.cost,
        applicable=found.applicable.policy,
        applicable_cost=found.applicable.cost,
    )


def send_bound(data: AllocationData, control_s: float) -> tuple[str, str | None]:
    """What the sends of one request take longest for, the worst request's.

    Equation: max over requests and ports of sum_f V_f s_r m_{r,e} / C_e, against ``control_s``; s: the engine's split.

    Parameters: ``control_s``: the control plane's part [s].
    Returns: the word for it and the port, or None where it is the control plane or nothing is sent.
    Validity: each request alone, all of it ready; ports that posting can never fill are not among the record's.
    """
    capacity = {port.name: port.capacity_bytes_per_s for port in data.ports}
    moved: dict[str, list[tuple[Route, float]]] = defaultdict(list)
    for flow in data.flows:
        if flow.kind is FlowKind.SEND:
            moved[flow.request] += [
                (r, flow.volume_bytes * share) for share, r in zip(flow.split, flow.routes, strict=True)
            ]
    longest = max((fullest_port(pairs, capacity) for pairs in moved.values()), key=lambda one: one.time_s, default=None)
    if longest is None or control_s >= longest.time_s:
        return CONTROL, None
    return BOUND_BY.get(data.ports[data.port_index[longest.port]].kind, "bandwidth"), longest.port


def _wanted(engines: Sequence[str]) -> list[tuple[str, EngineSpec]]:
    """Engines by the name or path that they were asked for by."""
    if not engines:
        raise InputError("no engine is named", path="engines", expected="one of " + ", ".join(list_engines()))
    twice = next((name for k, name in enumerate(engines) if name in engines[:k]), None)
    if twice is not None:
        raise InputError(f"{twice!r} is named twice", path="engines", expected="each engine once")
    found = []
    for name in engines:
        try:
            found.append((name, load_engine(name)))
        except InputError as error:
            raise error.located(path="engines") from None
    return found


def _quiet(_: str) -> None:
    """Tells nobody."""
