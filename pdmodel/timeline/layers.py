"""One layer of one pass as slots in order: compute, context-parallel exchange, TP collectives, expert exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdmodel.costs.collectives import CollectiveCost
from pdmodel.costs.context_parallel import CpExchange, CpLayer, context_parallel_layer, one_after_another
from pdmodel.costs.decode_context import decode_context_layer, shares_tokens
from pdmodel.costs.estimate import Estimate
from pdmodel.costs.moe import EpExchange, Routing, ep_exchange, fused_moe
from pdmodel.errors import CoverageError
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.operators import Stage
from pdmodel.timeline.exchanges import Exchanges, Slot, add_up
from pdmodel.timeline.phases import PhaseKind

ACTIVATION_BYTES = 2
StageTimes = Mapping[Stage, Estimate]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one forward pass of an instance moves, and how its ranks exchange it.

    ``tokens`` are the new ones of the whole instance, ``past_tokens`` those before them, whose KV is there.
    """

    arch: Architecture
    kv_dtype: KvDtype
    tokens: int
    exchanges: Exchanges
    ep_exchange: EpExchange
    cp_exchange: CpExchange = CpExchange.ALL_GATHER
    past_tokens: int = 0

    @property
    def hidden_bytes(self) -> float:
        """The hidden states of the tokens of one TP group [byte]."""
        tp_tokens = self.tokens / self.exchanges.placement.parallelism.cp_size
        return tp_tokens * self.arch.hidden_size * ACTIVATION_BYTES


def layer_slots(shape: Pass, times: StageTimes, *, moe: bool, layer: int = 0) -> Iterator[Slot]:
    """The slots of one layer; ``layer``: one of those whose stages ``times`` are of.

    TP: an all-reduce after attention and one after the MLP (or the experts). Where tokens travel to experts each rank
    keeps its share of the tokens between the two: reduce-scatter after attention, all-gather after the combine, the
    same bytes as one all-reduce. A layer without attention, or without an MLP, has one exchange only.
    """
    tp_size = shape.exchanges.placement.parallelism.tp_size
    travels = moe and shape.ep_exchange is not EpExchange.ALL_REDUCE
    yield from _compute(times, Stage.QKV)
    yield from _attention(shape, times, layer)
    yield from _compute(times, Stage.O_PROJ)
    if tp_size > 1 and Stage.O_PROJ in times:
        if travels:
            yield shape.exchanges.over_tp("tp_reduce_scatter_attn", "reduce_scatter", shape.hidden_bytes)
        else:
            yield shape.exchanges.over_tp("tp_all_reduce_attn", "all_reduce", shape.hidden_bytes)
    if travels:
        yield from _travelling_experts(shape, times)
        if tp_size > 1:
            yield shape.exchanges.over_tp("tp_all_gather_mlp", "all_gather", shape.hidden_bytes)
        return
    for stage in (Stage.ROUTER, Stage.SHARED_EXPERT, Stage.EXPERTS) if moe else (Stage.MLP,):
        yield from _compute(times, stage)
    if tp_size > 1 and (moe or Stage.MLP in times):
        yield shape.exchanges.over_tp("tp_all_reduce_mlp", "all_reduce", shape.hidden_bytes)


def embedding_slots(shape: Pass, times: StageTimes) -> Iterator[Slot]:
    """Look-up in a vocabulary-parallel embedding: each rank has some rows, so an all-reduce follows."""
    yield from _compute(times, Stage.EMBEDDING)
    if shape.exchanges.placement.parallelism.tp_size > 1:
        yield shape.exchanges.over_tp("embedding_all_reduce", "all_reduce", shape.hidden_bytes)


def logits_slots(times: StageTimes) -> Iterator[Slot]:
    """Final norm and output head for the last token of each request."""
    yield from _compute(times, Stage.LOGITS)


def _compute(times: StageTimes, stage: Stage) -> Iterator[Slot]:
    if stage in times:
        yield Slot(stage.value, PhaseKind.COMPUTE, times[stage].value, times[stage].source)


def _attention(shape: Pass, times: StageTimes, layer: int) -> Iterator[Slot]:
    """Attention with what context-parallel ranks exchange before, beside and after it."""
    exchanges = shape.exchanges
    if Stage.ATTENTION not in times:
        return
    if exchanges.placement.parallelism.dcp_size > 1 and shares_tokens(shape.arch.mixer(layer)):
        yield from _shared_attention(shape, times, layer)
        return
    if exchanges.placement.parallelism.cp_size == 1:
        yield from _compute(times, Stage.ATTENTION)
        return
    # In a ring each rank keeps the KV of its own tokens only, so that of earlier ones goes round again.
    around = shape.tokens + (shape.past_tokens if shape.cp_exchange is CpExchange.RING else 0)
    groups = [
        context_parallel_layer(
            shape.cp_exchange.value,
            around,
            shape.arch,
            shape.kv_dtype,
            tp_size=exchanges.placement.parallelism.tp_size,
            gpus=group,
            box=exchanges.box,
            layer=layer,
        )
        for group in exchanges.placement.cp_groups
    ]
    yield from _cp_exchange(exchanges, "cp_" + shape.cp_exchange.value, [group.before for group in groups])
    if any(group.beside for group in groups):
        yield _ring_attention(exchanges, times[Stage.ATTENTION], groups)
    else:
        yield from _compute(times, Stage.ATTENTION)
    yield from _cp_exchange(exchanges, f"cp_{shape.cp_exchange.value}_back", [group.after for group in groups])


def _shared_attention(shape: Pass, times: StageTimes, layer: int) -> Iterator[Slot]:
    """Attention at decode over tokens that ranks share: queries are gathered, outputs brought together."""
    exchanges, mixer = shape.exchanges, shape.arch.mixer(layer)
    tp_size = exchanges.placement.parallelism.tp_size
    groups = [
        decode_context_layer(mixer, shape.tokens, tp_size=tp_size, gpus=group, box=exchanges.box)
        for group in exchanges.placement.dcp_groups
    ]
    yield from _cp_exchange(exchanges, "dcp_queries", [group.before for group in groups])
    yield from _compute(times, Stage.ATTENTION)
    yield from _cp_exchange(exchanges, "dcp_outputs", [group.after for group in groups])


def _cp_exchange(exchanges: Exchanges, name: str, parts: Sequence[Sequence[CollectiveCost]]) -> Iterator[Slot]:
    costs = [cost for cost in map(one_after_another, parts) if cost is not None]
    if costs:
        yield exchanges.together(name, costs)


def _ring_attention(exchanges: Exchanges, attention: Estimate, groups: list[CpLayer]) -> Slot:
    """Blocks of KV go round while attention runs: P - 1 exchanges, each beside one of P equal blocks of attention.

    T = attention + (P - 1) max(0, exchange - attention / P); the bytes are spread over all of it.
    """
    steps = len(groups[0].beside)
    once = exchanges.together("cp_ring", [group.beside[0] for group in groups])
    exposed = steps * max(0.0, once.duration_s - attention.value / (steps + 1))
    wire = {port: size * steps for port, size in once.wire_bytes.items()}
    duration, source = exchanges.raised("attention", attention.value + exposed, wire, attention.source)
    return Slot(Stage.ATTENTION.value, PhaseKind.FUSED, duration, source, wire, once.input_links)


def _travelling_experts(shape: Pass, times: StageTimes) -> Iterator[Slot]:
    """Router, dispatch, experts, combine; or one fused kernel for the last three."""
    exchanges, arch = shape.exchanges, shape.arch
    if arch.moe is None:
        raise CoverageError(f"{arch.name} has no experts to exchange tokens with")
    yield from _compute(times, Stage.ROUTER)
    yield from _compute(times, Stage.SHARED_EXPERT)
    narrow = arch.dtypes.experts not in (WeightDtype.BF16, WeightDtype.FP16, WeightDtype.FP32)
    routing = Routing(
        tokens=shape.tokens / exchanges.placement.parallelism.ranks,
        hidden_size=arch.moe.width(arch.hidden_size),
        experts=arch.moe.experts,
        top_k=arch.moe.top_k,
        dispatch_bytes=1 if narrow else 2,
    )
    group = exchanges.placement.gpus
    if shape.ep_exchange is EpExchange.FUSED:
        compute = times[Stage.EXPERTS]
        fused = fused_moe(routing, compute.value, group, exchanges.box)
        wire, links = add_up([(fused.wire_bytes, fused.input_links)])
        duration, source = exchanges.raised("experts", fused.time_s, wire, compute.source)
        yield Slot(Stage.EXPERTS.value, PhaseKind.FUSED, duration, source, wire, links)
        return
    dispatch, combine = ep_exchange(shape.ep_exchange.value, routing, group, exchanges.box)
    yield exchanges.together("ep_dispatch", [dispatch])
    yield from _compute(times, Stage.EXPERTS)
    yield exchanges.together("ep_combine", [combine])
