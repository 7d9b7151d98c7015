"""The timeline of a scenario: every prefill lane's phases in order, the decode lane's step, the clock without KV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdmodel.costs.estimate import Estimate
from pdmodel.costs.step import LayerCost, PassCost, StageCost, decode_step, prefill_pass
from pdmodel.engines.spec import ReleaseAfter
from pdmodel.llm.operators import Stage
from pdmodel.resolve import ResolvedScenario
from pdmodel.spec import SourceKind
from pdmodel.timeline.assumptions import ComputeEvidence
from pdmodel.timeline.clock import run_clock
from pdmodel.timeline.exchanges import Exchanges, Slot, add_up, merged
from pdmodel.timeline.layers import Pass, StageTimes, embedding_slots, layer_slots, logits_slots
from pdmodel.timeline.phases import DecodeLane, Lane, Phase, PhaseKind, Timeline
from pdmodel.workload.request import CacheTier, Request

#: Outside every layer (embedding, logits), and before every chunk (the arrival of a request).
NO_LAYER, NO_CHUNK = -1, -1
PREFETCHED = "prefetched"
"""The operation that waits for a prefetch from the store: the last phase before the request's first chunk."""


@dataclass(frozen=True, slots=True)
class PassSlots:
    """One pass: what comes before the layers, each kind of layer, the kind of each layer, and what comes after."""

    before: tuple[Slot, ...]
    by_kind: dict[int, tuple[Slot, ...]]
    kinds: tuple[int, ...]
    after: tuple[Slot, ...]

    def in_order(self) -> Iterator[tuple[int, Slot]]:
        """(layer, slot) of the whole pass."""
        for slot in self.before:
            yield NO_LAYER, slot
        for layer, kind in enumerate(self.kinds):
            for slot in self.by_kind[kind]:
                yield layer, slot
        for slot in self.after:
            yield NO_LAYER, slot


def timeline(resolved: ResolvedScenario) -> Timeline:
    """The critical timeline of a scenario.

    Each prefill instance is a lane: its requests in order of arrival, each chunk by chunk and layer by layer, compute
    and exchanges alternating. The decode instance is one step that repeats: its demand is the mean over the step, with
    the peak beside it. The clock runs all lanes together, without KV.

    Raises
    ------
    InputError, CoverageError: whatever no formula covers.

    """
    lanes, used, evidence = [], [], ComputeEvidence()
    for instance, (name, placement) in enumerate(zip(resolved.lane_names, resolved.prefill, strict=True)):
        exchanges = Exchanges(resolved.prefill_box, placement, resolved.ports, resolved.spec.prefill.all_reduce.value)
        phases = tuple(
            phase
            for request in resolved.requests_of(instance)
            for phase in _request_phases(resolved, request, exchanges, evidence)
        )
        if phases:
            lanes.append(Lane(name, phases, placement.parallelism.ranks))
            used.append(exchanges)
    used.append(Exchanges(resolved.decode_box, resolved.decode, resolved.ports, resolved.spec.decode.all_reduce.value))
    decode = decode_lane(resolved, used[-1])
    assumed = dict.fromkeys(evidence.notes(resolved.prefill_box.profile.name))
    prefill_ep, decode_ep = resolved.spec.prefill.ep_size, resolved.spec.decode.ep_size
    assumed.update(dict.fromkeys(evidence.routing_notes(resolved.arch.moe, prefill_ep, decode_ep)))
    assumed.update({note: None for exchanges in used for note in exchanges.assumed})
    longest, known = max(request.input_tokens for request in resolved.requests), resolved.arch.max_context_tokens
    if known is not None and longest > known:
        assumed[f"{resolved.arch.name} serves {longest} tokens by position scaling; its file names {known}"] = None
    assumed.update({f"{resolved.arch.name}: {note}": None for note in resolved.arch.notes})
    assumed.update(dict.fromkeys(resolved.assumed))
    if resolved.fabric is None:
        assumed["the fabric between the nodes is non-blocking (no fabric_gbit_per_s given)"] = None
    return Timeline(
        ports=resolved.ports,
        lanes=tuple(lanes),
        decode_lanes=(decode,),
        clock=run_clock(resolved.ports, lanes, (decode,)),
        warnings=tuple(dict.fromkeys((*resolved.warnings, *(text for one in used for text in one.warnings)))),
        assumed=tuple(assumed),
        hazards=tuple(dict.fromkeys(text for exchanges in used for text in exchanges.hazards)),
    )


def decode_lane(resolved: ResolvedScenario, exchanges: Exchanges) -> DecodeLane:
    """One decode step for all running requests, as mean and peak demand per port.

    Mean: bytes of the step over its duration. Peak: the greatest b/tau of its exchanges.
    """
    spec, placement = resolved.spec.decode, resolved.decode
    shape = Pass(
        resolved.arch, resolved.spec.kv_dtype, spec.max_running_requests, exchanges, ep_exchange=spec.ep_exchange
    )
    cost = decode_step(
        resolved.arch,
        resolved.decode_box.profile,
        spec.max_running_requests,
        spec.context_tokens,
        tp_size=placement.parallelism.tp_size,
        ep_size=placement.parallelism.ep_size,
        dcp_size=placement.parallelism.dcp_size,
        kv_dtype=resolved.spec.kv_dtype,
    )
    slots = [slot for _, slot in _pass_slots(shape, cost, frozenset()).in_order()]
    step_s = sum(slot.duration_s for slot in slots)
    wire, links = add_up([(slot.wire_bytes, slot.input_links) for slot in slots])
    peak: dict[str, float] = {}
    for slot in slots:
        for port, size in slot.wire_bytes.items():
            peak[port] = max(peak.get(port, 0.0), size / slot.duration_s)
    return DecodeLane(
        name=resolved.decode_lane_name,
        step_s=step_s,
        mean_bytes_per_s={port: size / step_s for port, size in wire.items()},
        peak_bytes_per_s=peak,
        input_links=links,
        gpus=placement.parallelism.ranks,
    )


def _request_phases(
    resolved: ResolvedScenario, request: Request, exchanges: Exchanges, evidence: ComputeEvidence
) -> Iterator[Phase]:
    chunks = request.chunks(resolved.spec.prefill.chunk_tokens)
    if request.cached_tokens and request.arrival_s > 0:
        # Loads start when the request has arrived, not when the phase before it ends.
        yield _instant(request, "arrival")
    if request.cached_by(CacheTier.STORE):
        # Loads into HBM, and compute, start when all that the store sends is in host memory: this phase waits for it.
        yield _instant(request, PREFETCHED)
    for number, (new_tokens, past_tokens) in enumerate(chunks):
        shape, cost = _prefill_cost(resolved, exchanges, new_tokens, past_tokens, last_chunk=number == len(chunks) - 1)
        evidence.add(cost)
        slots = _pass_slots(shape, cost, _cuts(resolved, gated=number == 0 and request.loaded_tokens > 0))
        yield from _phases(slots, request, number)


def _instant(request: Request, operation: str) -> Phase:
    """A phase of no length before a request's first chunk."""
    return Phase(
        id=f"{request.name}/{operation}",
        kind=PhaseKind.COMPUTE,
        duration_s=0.0,
        operation=operation,
        request=request.name,
        chunk=NO_CHUNK,
        not_before_s=request.arrival_s,
        source=SourceKind.MEASURED,
    )


def _phases(slots: PassSlots, request: Request, chunk: int) -> Iterator[Phase]:
    for layer, slot in slots.in_order():
        place = f"{request.name}/c{chunk}/" if layer == NO_LAYER else f"{request.name}/c{chunk}/l{layer}/"
        yield Phase(
            id=place + slot.operation,
            kind=slot.kind,
            duration_s=slot.duration_s,
            wire_bytes=slot.wire_bytes,
            input_links=slot.input_links,
            operation=slot.operation,
            request=request.name,
            chunk=chunk,
            layer=layer,
            not_before_s=request.arrival_s,
            source=slot.source,
        )


def _cuts(resolved: ResolvedScenario, *, gated: bool) -> frozenset[str]:
    """Operations before which compute is cut, because KV is released there or a load is waited for."""
    cuts = set()
    if gated or resolved.release_after is ReleaseAfter.KV_WRITE:
        cuts.add(Stage.ATTENTION.value)
    if resolved.release_after is ReleaseAfter.ATTENTION:
        cuts.add(Stage.O_PROJ.value)
    return frozenset(cuts)


def _prefill_cost(
    resolved: ResolvedScenario, exchanges: Exchanges, new_tokens: int, past_tokens: int, *, last_chunk: bool
) -> tuple[Pass, PassCost]:
    part, placement = resolved.spec.prefill, exchanges.placement
    shape = Pass(
        resolved.arch,
        resolved.spec.kv_dtype,
        new_tokens,
        exchanges,
        ep_exchange=part.ep_exchange,
        cp_exchange=part.cp_exchange,
        past_tokens=past_tokens,
    )
    cost = prefill_pass(
        resolved.arch,
        resolved.prefill_box.profile,
        new_tokens,
        past_tokens,
        tp_size=placement.parallelism.tp_size,
        cp_size=placement.parallelism.cp_size,
        ep_size=placement.parallelism.ep_size,
        kv_dtype=resolved.spec.kv_dtype,
        cp_layout=part.cp_split,
        last_chunk=last_chunk,
    )
    return shape, cost


def _pass_slots(shape: Pass, cost: PassCost, cuts: frozenset[str]) -> PassSlots:
    return PassSlots(
        before=merged(embedding_slots(shape, _ends(cost.embedding, cost.launch_s)), cuts),
        by_kind={
            layer.first: merged(layer_slots(shape, _stage_times(layer), moe=layer.moe, layer=layer.first), cuts)
            for layer, _ in cost.kinds()
        },
        kinds=tuple(layer.first for layer in cost.layers),
        after=tuple(logits_slots(_ends(cost.logits))) if cost.logits else (),
    )


def _stage_times(layer: LayerCost) -> StageTimes:
    """Time of each stage; what the CPU does not hide of a layer is spent before its first stage."""
    return {
        cost.stage: Estimate(cost.time_s + (layer.launch_s if cost is layer.stages[0] else 0.0), cost.source)
        for cost in layer.stages
    }


def _ends(cost: StageCost, launch_s: float = 0.0) -> StageTimes:
    return {cost.stage: Estimate(cost.time_s + launch_s, cost.source)}
