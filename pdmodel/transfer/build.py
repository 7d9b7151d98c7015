"""Flows of a scenario: what is sent and loaded, on which routes, released and due at which phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Through
from pdmodel.timeline.phases import Timeline
from pdmodel.transfer.flows import Flow, Transfers
from pdmodel.transfer.host_memory import host_pools
from pdmodel.transfer.loads import loads
from pdmodel.transfer.marks import phase_marks
from pdmodel.transfer.memory import gpu_pools
from pdmodel.transfer.nics import NicLists, Routes
from pdmodel.transfer.posting import Posting
from pdmodel.transfer.prefetch import prefetches
from pdmodel.transfer.receiving import received_in_turn
from pdmodel.transfer.sends import sends
from pdmodel.transfer.store import StoreWays
from pdmodel.transfer.store_sends import store_sends
from pdmodel.transfer.writebacks import writebacks


def build_transfers(resolved: ResolvedScenario, timeline: Timeline, lists: NicLists | None = None) -> Transfers:
    """Flows of a scenario, the resources that they use beside the ports of the boxes, and the memory that they fill.

    A load flow per prefill rank with a cached prefix: released when the request starts, layer by layer in order, due at
    the attention of each layer. A send flow per (source rank, destination rank): new tokens released as the engine
    releases them; cached tokens at the attention of their layer (`early_send`) or with the first chunk's; due when the
    request's prefill ends on the clock without KV. ``lists``: other NICs than the scenario's for sends, GPU by GPU.
    """
    found: list[Flow] = []
    tiers: list[Flow] = []
    routes, posting, ways = Routes(resolved, lists=lists), Posting(resolved), StoreWays.of(resolved)
    marks_of = {lane.name: phase_marks(lane) for lane in timeline.lanes}
    for instance, (lane_name, placement) in enumerate(zip(resolved.lane_names, resolved.prefill, strict=True)):
        marks = marks_of.get(lane_name, {})
        for number, request in enumerate(resolved.requests_of(instance)):
            chunks = marks[request.name]
            found += loads(resolved, request, lane_name, placement, chunks)
            tiers += prefetches(resolved, request, lane_name, placement, chunks, ways=ways)
            tiers += writebacks(resolved, request, lane_name, placement, chunks, ways=ways)
            if ways is not None and resolved.through is Through.STORE:
                put = store_sends(resolved, request, lane_name, placement, chunks, ways=ways, timeline=timeline)
                tiers += _queued(resolved, put, number)
                continue
            sent = sends(resolved, request, lane_name, placement, chunks, routes=routes, posting=posting)
            found += _queued(resolved, sent, number)
    flows, ports = posting.settled(found, routes.capacity)
    flows, turns = received_in_turn(
        resolved, flows, routes.capacity | {port.name: port.capacity_bytes_per_s for port in ports}
    )
    limits = ways.crossed(tiers) if ways else ()
    flows, ports = (*flows, *tiers), (*ports, *turns, *limits)
    return Transfers(flows, ports, (*gpu_pools(resolved, marks_of, flows), *host_pools(resolved, flows)))


def _queued(resolved: ResolvedScenario, flows: Sequence[Flow], number: int) -> Iterator[Flow]:
    """The sends of an instance's ``number``-th request, in the queue that is its turn: with W of them a request waits
    for the one W before it, and shares with those between.
    """
    queue = number % resolved.engine.parallel_transfers.value
    return (replace(flow, queue=queue) for flow in flows)


def build_flows(resolved: ResolvedScenario, timeline: Timeline) -> tuple[Flow, ...]:
    """The flows of `build_transfers` alone."""
    return build_transfers(resolved, timeline).flows
