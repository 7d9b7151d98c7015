"""Compute time of one prefill chunk and of one decode step on one rank, layer by layer, without collectives.

Layers that are alike (mixer, experts or not, width of the MLP) are priced once. Kernels follow one another: what an
engine overlaps (a shared expert beside the routed ones) is summed. Time of the CPU is a term of its own, zero unless
the profile says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.costs.device import Device
from pdmodel.costs.estimate import Estimate
from pdmodel.costs.kernels import operation_s
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype
from pdmodel.llm.operators import (
    EXPERT_SKEW,
    CpLayout,
    Operation,
    Stage,
    decode_layer,
    embedding,
    logits,
    prefill_layer,
)
from pdmodel.spec import SourceKind, weakest


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """One operation of a rank and its time [s]."""

    operation: Operation
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class StageCost:
    """Consecutive operations between which nothing is sent."""

    stage: Stage
    operations: tuple[TimedOperation, ...]

    @property
    def time_s(self) -> float:
        """Sum over the operations [s]."""
        return sum(timed.estimate.value for timed in self.operations)

    @property
    def hbm_bytes(self) -> float:
        """Bytes from and to HBM [byte]."""
        return sum(timed.operation.size_bytes for timed in self.operations)

    @property
    def flop(self) -> float:
        """Work [FLOP]."""
        return sum(timed.operation.flop for timed in self.operations)

    @property
    def source(self) -> SourceKind:
        """The weakest source among the operations that make up at least 5 % of the stage's time."""
        least = 0.05 * self.time_s
        return weakest(*(timed.estimate.source for timed in self.operations if timed.estimate.value >= least))


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer's stages in order. ``launch_s``: time of the CPU that is not hidden, spent once in the layer [s].

    ``first``: the first layer of the LLM that is like it; the same for all that are.
    """

    moe: bool
    stages: tuple[StageCost, ...]
    launch_s: float = 0.0
    first: int = 0

    @property
    def time_s(self) -> float:
        """Sum over the stages and the launch term [s]."""
        return sum(stage.time_s for stage in self.stages) + self.launch_s

    @property
    def hbm_bytes(self) -> float:
        """Bytes from and to HBM [byte]."""
        return sum(stage.hbm_bytes for stage in self.stages)

    def stage(self, stage: Stage) -> StageCost | None:
        """One of its stages, or None where the layer has none of that name."""
        return next((cost for cost in self.stages if cost.stage is stage), None)

    def seconds(self, *stages: Stage) -> float:
        """Time of the named stages together, 0 for those that the layer lacks [s]."""
        return sum(cost.time_s for cost in self.stages if cost.stage in stages)


@dataclass(frozen=True, slots=True)
class PassCost:
    """One pass of one rank: embedding, layers (those of one kind are the same object), logits where computed."""

    embedding: StageCost
    layers: tuple[LayerCost, ...]
    logits: StageCost | None
    launch_s: float = 0.0

    @property
    def time_s(self) -> float:
        """Sum over all parts, collectives left out [s]."""
        ends = self.embedding.time_s + (self.logits.time_s if self.logits else 0.0)
        return ends + sum(count * layer.time_s for layer, count in self.kinds()) + self.launch_s

    @property
    def hbm_bytes(self) -> float:
        """Bytes from and to HBM [byte]."""
        ends = self.embedding.hbm_bytes + (self.logits.hbm_bytes if self.logits else 0.0)
        return ends + sum(count * layer.hbm_bytes for layer, count in self.kinds())

    @property
    def source(self) -> SourceKind:
        """The weakest source among the stages that make up at least 5 % of the pass."""
        least = 0.05 * self.time_s
        stages = [(stage, count * stage.time_s) for layer, count in self.kinds() for stage in layer.stages]
        return weakest(*(stage.source for stage, time_s in stages if time_s >= least))

    def kinds(self) -> list[tuple[LayerCost, int]]:
        """Each kind of layer once, in order of layers, and how many there are of it."""
        count: dict[int, int] = {}
        known: dict[int, LayerCost] = {}
        for layer in self.layers:
            count[layer.first] = count.get(layer.first, 0) + 1
            known.setdefault(layer.first, layer)
        return [(known[first], number) for first, number in count.items()]


def prefill_pass(
    arch: Architecture,
    profile: HardwareProfile,
    new_tokens: int,
    past_tokens: int = 0,
    *,
    tp_size: int = 1,
    cp_size: int = 1,
    ep_size: int = 1,
    kv_dtype: KvDtype = KvDtype.BF16,
    cp_layout: CpLayout = CpLayout.ZIGZAG,
    expert_skew: float = EXPERT_SKEW,
    last_chunk: bool = True,
) -> PassCost:
    """Compute of one prefill chunk on the slowest rank of an instance.

    Parameters
    ----------
    arch, profile: the LLM; the box whose GPUs compute.
    new_tokens, past_tokens: tokens that the chunk computes, tokens before it whose KV is there [count].
    tp_size, cp_size, ep_size: ranks that share heads, tokens, experts.
    kv_dtype, cp_layout, expert_skew: as in `pdmodel.llm.operators.prefill_layer`.
    last_chunk: the first output token is sampled: final norm and output head for one row.

    Raises
    ------
    InputError: tp_size does not divide the heads, or ep_size the experts.
    CoverageError: no formula covers a dtype on this GPU.

    """
    device = Device.of(profile)
    layers: dict[int, LayerCost] = {}
    firsts = arch.first_layers()
    for layer in dict.fromkeys(firsts.values()):
        operations = prefill_layer(
            arch,
            layer,
            new_tokens,
            past_tokens,
            tp_size=tp_size,
            cp_size=cp_size,
            ep_size=ep_size,
            kv_dtype=kv_dtype,
            cp_layout=cp_layout,
            expert_skew=expert_skew,
        )
        layers[layer] = _layer(arch, layer, operations, device)
    return PassCost(
        embedding=_stages(embedding(arch, new_tokens / cp_size), device)[0],
        layers=tuple(layers[first] for first in firsts.values()),
        logits=_stages(logits(arch, 1, tp_size), device)[0] if last_chunk else None,
        launch_s=device.launch_pass_s,
    )


def decode_step(
    arch: Architecture,
    profile: HardwareProfile,
    batch: int,
    context_tokens: float,
    *,
    tp_size: int = 1,
    ep_size: int = 1,
    dcp_size: int = 1,
    kv_dtype: KvDtype = KvDtype.BF16,
    expert_skew: float = EXPERT_SKEW,
) -> PassCost:
    """Compute of one decode step on one rank.

    ``batch`` requests produce one token each; a request attends to ``context_tokens`` in the mean, the new one
    included, and ``dcp_size`` TP ranks share these. Other arguments and errors as in `prefill_pass`.
    """
    device = Device.of(profile)
    layers: dict[int, LayerCost] = {}
    firsts = arch.first_layers()
    for layer in dict.fromkeys(firsts.values()):
        operations = decode_layer(
            arch,
            layer,
            batch,
            context_tokens,
            tp_size=tp_size,
            ep_size=ep_size,
            dcp_size=dcp_size,
            kv_dtype=kv_dtype,
            expert_skew=expert_skew,
        )
        layers[layer] = _layer(arch, layer, operations, device)
    return PassCost(
        embedding=_stages(embedding(arch, batch), device)[0],
        layers=tuple(layers[first] for first in firsts.values()),
        logits=_stages(logits(arch, batch, tp_size), device)[0],
        launch_s=device.launch_pass_s,
    )


def _layer(arch: Architecture, layer: int, operations: tuple[Operation, ...], device: Device) -> LayerCost:
    stages = _stages(operations, device)
    # A layer that computes nothing launches nothing.
    return LayerCost(arch.is_moe_layer(layer), stages, device.launch_layer_s if stages else 0.0, layer)


def _stages(operations: tuple[Operation, ...], device: Device) -> tuple[StageCost, ...]:
    grouped: dict[Stage, list[TimedOperation]] = {}
    for operation in operations:
        grouped.setdefault(operation.stage, []).append(TimedOperation(operation, operation_s(operation, device)))
    return tuple(StageCost(stage, tuple(timed)) for stage, timed in grouped.items())
