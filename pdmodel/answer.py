"""The answer to a scenario: what `pdmodel plan` prints and `--format json` writes, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pdmodel.allocation.data import AllocationData
from pdmodel.replay.outcome import Replay
from pdmodel.spec import SCHEMA_VERSION, SourceKind
from pdmodel.transfer.breakdown import TransferTime


class VerdictKind(StrEnum):
    """In the order in which they are tested."""

    INFEASIBLE = "infeasible"
    NO_SHARED_PORT = "no_shared_port"
    HEADROOM = "headroom"
    CONTENDED = "contended"
    UNCERTAIN = "uncertain"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence with the number that carries it."""

    kind: VerdictKind
    text: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that KV can cost the critical traffic of a prefill lane without holds, on the worst lane.

    ``loss_max_s``: sum over flow classes of V_f * max_e m/C (None: two lanes' critical traffic shares a port, no bound
    exists). ``loss_max_aligned_s``: what lasts longest on one port, when all ranks' bursts coincide.
    ``share_of_prefill`` is ``loss_max_s`` over that lane's prefill without KV. ``kv_to_critical_ratio``: the largest
    V_e/B_e over ports that carry KV and a prefill's critical bytes, else a decode lane's (None: no such port); ``port``
    is where.
    """

    loss_max_s: float | None
    loss_max_aligned_s: float | None
    share_of_prefill: float | None
    kv_to_critical_ratio: float | None
    port: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Times:
    """Times of the plan's replay, worst request [s]. ``prefill_no_kv_s`` is the clock without KV.

    ``control_s`` is the control plane's part of ``ttft_s`` (and, but for what comes before the prefill, of
    ``decode_stall_s``): what no schedule changes.
    """

    prefill_s: float
    prefill_no_kv_s: float
    ttft_s: float
    decode_stall_s: float
    load_stall_s: float
    prefill_slowdown_s: float
    control_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy (or reference) replayed: worst request's times [s], the control plane's included, cost [GPU·s].

    ``cost_low`` and ``cost_high`` are the ends of the band over kv_weight and interference. ``breaks``: the memory or
    the lease that it does not keep, empty if it keeps all.
    """

    name: str
    ttft_s: float
    prefill_s: float
    prefill_slowdown_s: float
    decode_stall_s: float
    load_stall_s: float
    cost: float
    cost_low: float | None = None
    cost_high: float | None = None
    ttft_low_s: float | None = None
    ttft_high_s: float | None = None
    note: str = ""
    breaks: str = ""


@dataclass(frozen=True, slots=True)
class PortResult:
    """One port under the plan. ``utilisation`` = bytes / (C * (prefill end + tail)); ``shadow_price`` [GPU·s per GB/s],
    None where no program was solved.
    """

    name: str
    kind: str
    capacity_bytes_per_s: float
    capacity_source: SourceKind
    critical_bytes: float
    kv_bytes: float
    utilisation: float
    shadow_price: float | None


@dataclass(frozen=True, slots=True)
class FlowResult:
    """One flow under the plan. ``route`` is the one that carries most of it; times on the replay's clock [s]."""

    name: str
    kind: str
    bytes: float
    release_s: float
    due_s: float | None
    finish_s: float
    route: str


class Rule(StrEnum):
    """The four rules of pacing, read off a schedule interval by interval."""

    IDLE = "idle: full rate"
    HEADROOM = "headroom: go on"
    CONTENDED = "contended: throttled"
    OVERDRAFT = "deadline near: overdraft"


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """Run-length over equal layers: in these phases, this flow runs at this rate. ``slot``: phase | wait | tail."""

    lane: str
    slot: str
    request: str
    chunk: int
    operation: str
    first_layer: int
    last_layer: int
    flow: str
    route: str
    rate_bytes_per_s: float
    offset_s: float
    duration_s: float
    hold_s: float
    rule: Rule


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to set: ``value`` with ``unit`` for ``name`` of ``where`` on side P or D, and why."""

    name: str
    value: str
    unit: str
    where: str
    side: str
    reason: str


class Gate(StrEnum):
    """Who can pace KV in a kind of phase."""

    GATEABLE = "gateable"
    CLASS_ONLY = "class_only"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Enforceability:
    """Whether the plan's pacing in one kind of phase can be applied, and the times that decide it [s]."""

    phase_kind: str
    gate: Gate
    burst_s: float
    gap_s: float
    needed_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Applicable:
    """What can be applied today: the plan, or the cheapest policy that needs no gate that the engine lacks.

    ``cost`` [GPU·s]; ``worth_of_gates`` is what the plan saves over it, and so what the missing gates are worth.
    """

    policy: str
    cost: float
    worth_of_gates: float
    text: str


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """What KV fills of one pool of memory under the plan: the most [bytes], when [s], and ``at`` in words."""

    pool: str
    kind: str
    capacity_bytes: float
    peak_bytes: float
    peak_s: float
    at: str


@dataclass(frozen=True, slots=True)
class ReuseResult:
    """Load or recompute, of what one tier holds of one request's prefix.

    ``load_s``: what the loads of the tier take alone on the fullest port; ``recompute_s``: what computing its tokens
    again adds to the prefill. The costs [GPU·s] are whole: compute, delays and waiting users of all requests, with all
    of this request's prefix loaded, with none of it (what is in HBM aside), and as planned; of the first two that was
    not worth planning, under the better of two simple rules. ``splits`` of this request were looked at, ``planned`` of
    them planned.
    """

    request: str
    tier: str
    cached_tokens: int
    loaded_tokens: int
    recomputed_tokens: int
    load_s: float
    recompute_s: float
    cost_load_all: float
    cost_recompute_all: float
    cost_best: float
    splits: int
    planned: int


@dataclass(frozen=True, slots=True)
class SolverResult:
    """``path``: bound | no_shared_port | certified | closed_form | program_e | program_r | policy:NAME.

    ``rule`` is the simple policy that the plan is, empty when the plan is a schedule of its own.
    """

    path: str
    status: str
    objective: float
    gap: float
    wall_s: float
    variables: int = 0
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole answer. ``data`` and ``replay`` carry the evidence for plots and checks; they are not in the JSON.

    ``hand_offs_in_flight``: those that the decode side has memory for beside its running requests, for the longest
    prompt (None: it reserves nothing).
    """

    scenario: str
    purpose: str
    verdict: Verdict
    bound: Bound
    times: Times
    policies: tuple[PolicyResult, ...]
    references: tuple[PolicyResult, ...]
    ports: tuple[PortResult, ...]
    flows: tuple[FlowResult, ...]
    schedule: tuple[ScheduleRow, ...]
    settings: tuple[Setting, ...]
    enforceability: tuple[Enforceability, ...]
    applicable: Applicable
    solver: SolverResult
    assumed: tuple[str, ...]
    hazards: tuple[str, ...]
    warnings: tuple[str, ...]
    provenance: Mapping[str, str]
    data: AllocationData = field(repr=False)
    replay: Replay = field(repr=False)
    missed_deadlines: tuple[str, ...] = ()
    reuse: tuple[ReuseResult, ...] = ()
    transfer_times: tuple[TransferTime, ...] = ()
    memory: tuple[MemoryResult, ...] = ()
    hand_offs_in_flight: int | None = None
    schema_version: int = SCHEMA_VERSION
