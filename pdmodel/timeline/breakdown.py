"""One prefill pass or one decode step, operation by operation: what the timeline merges into phases, apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pdmodel.costs.context_parallel import CpExchange
from pdmodel.costs.device import Device
from pdmodel.costs.estimate import Estimate
from pdmodel.costs.kernels import operation_s
from pdmodel.costs.moe import EpExchange
from pdmodel.costs.step import PassCost, StageCost, TimedOperation, decode_step, prefill_pass
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.operators import CpLayout, Operation, OperationKind, Stage
from pdmodel.parallelism import Placement
from pdmodel.spec import SourceKind, weakest
from pdmodel.timeline.assumptions import ComputeEvidence
from pdmodel.timeline.exchanges import Exchanges, Slot
from pdmodel.timeline.layers import Pass, embedding_slots, layer_slots
from pdmodel.timeline.phases import PhaseKind
from pdmodel.units import US

#: A collective that fills its fullest port so far is bound by it; one that fills it less than `IDLE_SHARE` waits.
FULL_SHARE, IDLE_SHARE = 0.8, 0.1


class Group(StrEnum):
    """Parts of a step that are added up."""

    ATTENTION = "attention"
    MLP = "mlp"
    EXPERTS = "experts"
    ENDS = "embed, logits"
    TP = "TP collectives"
    CP = "CP exchange"
    EP = "EP exchange"
    CPU = "CPU and launch"


class Bound(StrEnum):
    """What sets the time of a row.

    compute, memory, overhead: the greatest term of a kernel. port: a collective fills its fullest port to 80 % or more;
    latency: to less than 10 %; protocol: in between (steps, flags, few channels). cpu: work of the CPU.
    """

    COMPUTE = "compute"
    MEMORY = "memory"
    OVERHEAD = "overhead"
    PORT = "port"
    PROTOCOL = "protocol"
    LATENCY = "latency"
    CPU = "cpu"


_GROUPS = {
    Stage.QKV: Group.ATTENTION,
    Stage.ATTENTION: Group.ATTENTION,
    Stage.O_PROJ: Group.ATTENTION,
    Stage.MLP: Group.MLP,
    Stage.ROUTER: Group.EXPERTS,
    Stage.SHARED_EXPERT: Group.EXPERTS,
    Stage.EXPERTS: Group.EXPERTS,
    Stage.EMBEDDING: Group.ENDS,
    Stage.LOGITS: Group.ENDS,
}


@dataclass(frozen=True, slots=True)
class StepRow:
    """One operation or exchange of a rank, ``count`` times in the step, each ``time_s`` [s].

    ``compute_s``, ``memory_s``, ``overhead_s``: the terms of a kernel's formula, each alone [s]; its corner is soft, so
    they add up to more than the time or less. ``flop``, ``hbm_bytes`` and ``wire_bytes`` (of all groups that exchange
    at the same time) are those of one call [FLOP], [byte].
    """

    group: Group
    name: str
    count: int
    time_s: float
    bound_by: Bound
    source: SourceKind
    flop: float = 0.0
    hbm_bytes: float = 0.0
    compute_s: float = 0.0
    memory_s: float = 0.0
    overhead_s: float = 0.0
    wire_bytes: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    @property
    def total_s(self) -> float:
        """All calls together [s]."""
        return self.count * self.time_s


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The rows of a step: layers of one kind, compute and then exchanges. ``notes`` say what was derived or assumed."""

    rows: tuple[StepRow, ...]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()

    @property
    def time_s(self) -> float:
        """The whole step [s]."""
        return sum(row.total_s for row in self.rows)

    @property
    def kernel_overhead_s(self) -> float:
        """Launch, prologue and tail of all kernels, a part of their times [s]."""
        return sum(row.count * row.overhead_s for row in self.rows)

    @property
    def source(self) -> SourceKind:
        """The weakest source among the rows that make up at least 5 % of the step."""
        return weakest(*(row.source for row in self.rows if row.total_s >= 0.05 * self.time_s))

    def by_group(self) -> dict[Group, float]:
        """Seconds of each group that occurs, in the order of `Group`; the CPU's is always there."""
        occur = {row.group for row in self.rows}
        return {group: sum(row.total_s for row in self.rows if row.group is group) for group in Group if group in occur}


@dataclass(frozen=True, slots=True)
class Setting:
    """Who computes, where, and how the ranks exchange; degrees that fit (`pdmodel.resolve.check_degrees`)."""

    arch: Architecture
    box: Box
    placement: Placement
    kv_dtype: KvDtype = KvDtype.BF16
    all_reduce: str = "nccl"
    ep_exchange: EpExchange = EpExchange.ALL_REDUCE
    cp_exchange: CpExchange = CpExchange.ALL_GATHER
    cp_split: CpLayout = CpLayout.ZIGZAG


def prefill_breakdown(
    setting: Setting, new_tokens: int, past_tokens: int = 0, *, last_chunk: bool = True
) -> StepBreakdown:
    """One prefill chunk on the slowest rank: the sum is the duration of the chunk in the timeline.

    Parameters: ``new_tokens`` >= 1 of the chunk, ``past_tokens`` >= 0 before it, both of the whole instance [count];
    ``last_chunk``: the first output token is sampled.
    Returns: `StepBreakdown`.
    Raises: `InputError` and `CoverageError` as `prefill_pass` and `collective`.
    Source: `prefill_pass`, `layer_slots`.
    """
    cost = _prefill_cost(setting, new_tokens, past_tokens, last_chunk=last_chunk)
    return _breakdown(setting, cost, new_tokens, past_tokens)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """A pass as times of its layers, exchanges included [s]; ``ends_s``: embedding, logits and launch of the pass."""

    layers_s: tuple[float, ...]
    ends_s: float

    @property
    def time_s(self) -> float:
        """The whole pass [s]."""
        return sum(self.layers_s) + self.ends_s


def prefill_layers(setting: Setting, new_tokens: int, past_tokens: int = 0) -> LayerTimes:
    """One prefill pass on the slowest rank, layer by layer.

    Parameters, Raises: as `prefill_breakdown`.
    Returns: `LayerTimes`; their sum is the time of `prefill_breakdown`.
    Source: `prefill_pass`, `layer_slots`.
    """
    cost = _prefill_cost(setting, new_tokens, past_tokens)
    shape = _pass(setting, new_tokens, past_tokens)
    known = {}
    for layer, _ in cost.kinds():
        slots = layer_slots(shape, _times(layer.stages), moe=layer.moe, layer=layer.first)
        known[layer.first] = layer.launch_s + sum(slot.duration_s for slot in slots)
    ends = sum(slot.duration_s for slot in embedding_slots(shape, _times([cost.embedding])))
    ends += cost.launch_s + (cost.logits.time_s if cost.logits else 0.0)
    return LayerTimes(tuple(known[layer.first] for layer in cost.layers), ends)


def decode_breakdown(setting: Setting, batch: int, context_tokens: float) -> StepBreakdown:
    """One decode step: the sum is ``step_s`` of the decode lane.

    Parameters: ``batch`` >= 1 requests; ``context_tokens`` >= 1, the mean that a request attends to [count].
    Returns, Raises, Source: as `prefill_breakdown`, with `decode_step`.
    """
    ranks = setting.placement.parallelism
    cost = decode_step(
        setting.arch,
        setting.box.profile,
        batch,
        context_tokens,
        tp_size=ranks.tp_size,
        ep_size=ranks.ep_size,
        dcp_size=ranks.dcp_size,
        kv_dtype=setting.kv_dtype,
    )
    return _breakdown(setting, cost, batch, 0)


def _prefill_cost(setting: Setting, new_tokens: int, past_tokens: int, *, last_chunk: bool = True) -> PassCost:
    ranks = setting.placement.parallelism
    return prefill_pass(
        setting.arch,
        setting.box.profile,
        new_tokens,
        past_tokens,
        tp_size=ranks.tp_size,
        cp_size=ranks.cp_size,
        ep_size=ranks.ep_size,
        kv_dtype=setting.kv_dtype,
        cp_layout=setting.cp_split,
        last_chunk=last_chunk,
    )


def _pass(setting: Setting, tokens: int, past_tokens: int) -> Pass:
    return Pass(
        setting.arch,
        setting.kv_dtype,
        tokens,
        Exchanges(setting.box, setting.placement, setting.box.ports, setting.all_reduce),
        ep_exchange=setting.ep_exchange,
        cp_exchange=setting.cp_exchange,
        past_tokens=past_tokens,
    )


def _breakdown(setting: Setting, cost: PassCost, tokens: int, past_tokens: int) -> StepBreakdown:
    shape = _pass(setting, tokens, past_tokens)
    exchanges = shape.exchanges
    evidence = ComputeEvidence()
    evidence.add(cost)
    rows = _merged(_rows(shape, cost, Device.of(setting.box.profile)))
    return StepBreakdown(
        rows,
        warnings=tuple(exchanges.warnings),
        notes=(*exchanges.assumed, *evidence.notes(setting.box.profile.name)),
        hazards=tuple(exchanges.hazards),
    )


def _rows(shape: Pass, cost: PassCost, device: Device) -> Iterator[StepRow]:
    ports = {port.name: port.capacity_bytes_per_s for port in shape.exchanges.box.ports}
    yield from _compute_rows(cost.embedding, 1, device)
    yield from _exchange_rows(embedding_slots(shape, _times([cost.embedding])), {}, 1, ports)
    for layer, count in cost.kinds():
        for stage in layer.stages:
            yield from _compute_rows(stage, count, device)
        times = _times(layer.stages)
        yield from _exchange_rows(layer_slots(shape, times, moe=layer.moe, layer=layer.first), times, count, ports)
    if cost.logits is not None:
        yield from _compute_rows(cost.logits, 1, device)
    yield from _cpu_rows(cost, shape.exchanges.box.profile)


def _times(stages: Iterable[StageCost]) -> dict[Stage, Estimate]:
    return {stage.stage: Estimate(stage.time_s, stage.source) for stage in stages}


def _compute_rows(stage: StageCost, count: int, device: Device) -> Iterator[StepRow]:
    for timed in stage.operations:
        row = _kernel_row(_GROUPS[stage.stage], timed, count, device)
        call_s = _call_s(timed.operation, device)
        if call_s:
            # Work of the CPU that the formula adds to a product: a row of its own here.
            yield StepRow(Group.CPU, "eager_calls", count, call_s, Bound.CPU, row.source)
            row = replace(row, time_s=row.time_s - call_s, overhead_s=row.overhead_s - call_s)
        yield row


def _call_s(operation: Operation, device: Device) -> float:
    """What launching a product outside of a graph takes [s]; 0 where graphs are replayed."""
    if operation.kind is not OperationKind.GEMM or not device.eager_calls:
        return 0.0
    return device.gemm(operation.dtype)[0].call_us * US


def _kernel_row(group: Group, timed: TimedOperation, count: int, device: Device) -> StepRow:
    operation = timed.operation
    compute, memory, overhead = kernel_terms(operation, device)
    largest = max(
        (compute, Bound.COMPUTE), (memory, Bound.MEMORY), (overhead, Bound.OVERHEAD), key=lambda term: term[0]
    )
    return StepRow(
        group=group,
        name=f"shared_{operation.name}" if operation.stage is Stage.SHARED_EXPERT else operation.name,
        count=count,
        time_s=timed.estimate.value,
        bound_by=largest[1],
        source=timed.estimate.source,
        flop=operation.flop,
        hbm_bytes=operation.size_bytes,
        compute_s=compute,
        memory_s=memory,
        overhead_s=overhead,
    )


def kernel_terms(operation: Operation, device: Device) -> tuple[float, float, float]:
    """What an operation's formula gives for its FLOP alone, for its bytes alone, and for neither.

    Equation: o = t(0, 0); compute = t(FLOP, 0) - o; memory = t(0, bytes) - o, with t the formula that prices it.

    Parameters: ``operation``, ``device``: as `operation_s`.
    Returns: compute, memory, overhead [s]; overhead holds what goes with rows, depth and calls: launch, tail, latency
    of the inner loop, quantising.
    Raises: `CoverageError` as `operation_s`.
    Validity: that of the formula. Source: own definition.
    """
    # A product's work follows from its shape: without columns there is none. Elsewhere n is no work.
    columns = 0.0 if operation.kind is OperationKind.GEMM else operation.n
    still = replace(operation, size_bytes=0.0, weight_bytes=0.0, tokens=0.0)
    overhead = operation_s(replace(still, flop=0.0, n=columns), device).value
    compute = operation_s(still, device).value
    memory = operation_s(replace(operation, flop=0.0, n=columns), device).value
    return max(0.0, compute - overhead), max(0.0, memory - overhead), overhead


def _exchange_rows(
    slots: Iterable[Slot], times: Mapping[Stage, Estimate], count: int, ports: Mapping[str, float]
) -> Iterator[StepRow]:
    """The slots in which ranks exchange; of a fused one, what it takes longer than its compute."""
    for slot in slots:
        if slot.kind is PhaseKind.COMPUTE:
            continue
        name, time_s = slot.operation, slot.duration_s
        if slot.kind is PhaseKind.FUSED:
            hidden = times[Stage(slot.operation)].value
            name, time_s = f"{slot.operation}_exposed", max(0.0, slot.duration_s - hidden)
        fullest = max((size / ports[port] for port, size in slot.wire_bytes.items()), default=0.0)
        share = fullest / slot.duration_s if slot.duration_s else 0.0
        bound = Bound.PORT if share >= FULL_SHARE else Bound.LATENCY if share < IDLE_SHARE else Bound.PROTOCOL
        yield StepRow(
            _exchange_group(slot),
            name,
            count,
            time_s,
            bound,
            slot.source,
            wire_bytes=slot.wire_bytes,
            detail=slot.detail,
        )


def _exchange_group(slot: Slot) -> Group:
    if slot.operation.startswith(("cp_", "dcp_")) or slot.operation == Stage.ATTENTION.value:
        return Group.CP
    if slot.operation.startswith("ep_") or slot.operation == Stage.EXPERTS.value:
        return Group.EP
    return Group.TP


def _cpu_rows(cost: PassCost, profile: HardwareProfile) -> Iterator[StepRow]:
    """Work of the CPU that the GPU does not hide; assumed to be none where the profile says nothing."""
    layers = sum(layer.launch_s for layer in cost.layers) / max(1, len(cost.layers))
    launch = profile.compute.launch
    source = profile.kind_of(launch.source) if launch else SourceKind.ASSUMED
    yield StepRow(Group.CPU, "launch_per_layer", len(cost.layers), layers, Bound.CPU, source)
    yield StepRow(Group.CPU, "launch_per_step", 1, cost.launch_s, Bound.CPU, source)


def _merged(rows: Iterable[StepRow]) -> tuple[StepRow, ...]:
    """Rows that dense and MoE layers have alike as one, at the place of the first."""
    found: dict[tuple[Group, str, float, float], StepRow] = {}
    for row in rows:
        key = (row.group, row.name, row.time_s, row.hbm_bytes)
        found[key] = replace(found[key], count=found[key].count + row.count) if key in found else row
    return tuple(found.values())
