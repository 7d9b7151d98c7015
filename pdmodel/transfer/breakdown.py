"""Where the time of a transfer goes, request by request, and the cheapest change that would shorten it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.kv_layout import (
    HandOver,
    Pages,
    Path,
    Setting,
    caches,
    cheapest,
    engine_constants,
    engine_slicing,
    fixes,
    hand_over,
    route_path,
)
from pdmodel.costs.kv_layout.timing import NIC_CHOICES
from pdmodel.costs.nic_choice import Way
from pdmodel.engines.spec import RouteRule
from pdmodel.parallelism import Placement
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Through
from pdmodel.transfer.layout import exchange_of
from pdmodel.transfer.nics import Routes
from pdmodel.units import GB, US, format_seconds
from pdmodel.workload.request import Request


@dataclass(frozen=True, slots=True)
class TransferTime:
    """Where the time of one request's direct hand-over goes, alone on the ports and all of it ready to be sent [s].

    ``time_s`` = ``setup_s`` + max(``bandwidth_s``, ``descriptors_s``, ``messages_s``) + ``staging_s`` + ``control_s``.
    ``setup_s``: software of the request. ``staging_s``: packing of the first chunk and unpacking of the last.
    ``control_s``: from the last byte until decode may schedule the request. ``run_bytes``: mean length of a descriptor.
    ``port``: the fullest one. ``fix``: the cheapest change that helps, with its ``fix_lever`` (of
    `pdmodel.costs.kv_layout`) and the time with it; empty and None where none does.
    """

    request: str
    bytes: float
    pairs: int
    senders: int
    descriptors: int
    run_bytes: float
    bandwidth_s: float
    descriptors_s: float
    messages_s: float
    setup_s: float
    staging_s: float
    control_s: float
    time_s: float
    bound_by: str
    port: str
    fix_lever: str = ""
    fix: str = ""
    fix_time_s: float | None = None


def transfer_breakdown(resolved: ResolvedScenario) -> tuple[TransferTime, ...]:
    """Where the time of each request's direct hand-over goes, on the scenario's boxes, layouts and engine.

    Returns: one per request in their order; none where KV goes through a store.
    Raises: as `pdmodel.costs.kv_layout.hand_over`.
    """
    if resolved.through is not Through.DIRECT:
        return ()
    routes = {rule: Routes(resolved, rule) for rule in (resolved.route_rule, *_other_rules(resolved))}
    return tuple(_of_request(resolved, request, routes) for request in resolved.requests)


def page_notes(resolved: ResolvedScenario) -> tuple[str, ...]:
    """That pages lie one behind the other, where nothing says so and it matters: scattered, descriptors would be the
    limit.
    """
    if resolved.through is not Through.DIRECT or resolved.staging_tokens or resolved.spec.transfer.pages is not None:
        return ()
    routes = {resolved.route_rule: Routes(resolved)}
    request = max(resolved.requests, key=lambda request: request.input_tokens)
    setting = _setting(resolved, resolved.prefill[request.instance], routes)
    exchange, kept = exchange_of(resolved, request), caches(resolved.arch, request.input_tokens, resolved.spec.kv_dtype)
    together = hand_over(exchange, kept, setting).terms
    apart = hand_over(replace(exchange, pages=Pages.SCATTERED), kept, setting).terms
    pieces_s = max(apart.descriptors_s, apart.messages_s)
    if pieces_s <= max(together.bandwidth_s, together.descriptors_s, together.messages_s):
        return ()
    return (
        "the pages of a request lie one behind the other on both sides (transfer.pages); scattered, the descriptors of "
        f"{request.name} would take {format_seconds(pieces_s)}, its bytes {format_seconds(apart.bandwidth_s)}",
    )


def _other_rules(resolved: ResolvedScenario) -> tuple[RouteRule, ...]:
    if len(resolved.nics) == 1:
        return ()
    return tuple(rule for rule in NIC_CHOICES if rule is not resolved.route_rule)


def _of_request(resolved: ResolvedScenario, request: Request, routes: dict[RouteRule, Routes]) -> TransferTime:
    setting = _setting(resolved, resolved.prefill[request.instance], routes)
    exchange = exchange_of(resolved, request)
    kept = caches(resolved.arch, request.input_tokens, resolved.spec.kv_dtype)
    found = hand_over(exchange, kept, setting)
    best = cheapest(found, fixes(exchange, kept, setting))
    row = _row(request.name, found, resolved.engine.control.hand_over_us.value * US)
    if best is None:
        return row
    with_it = best.result.terms.time_s + row.control_s
    return replace(row, fix_lever=best.lever.value, fix=best.what, fix_time_s=with_it)


def _row(request: str, found: HandOver, control_s: float) -> TransferTime:
    terms = found.terms
    latest = max(terms.bandwidth_s, terms.descriptors_s, terms.messages_s, terms.setup_s, terms.staging_s)
    return TransferTime(
        request=request,
        bytes=found.size_bytes,
        pairs=len(found.pairs),
        senders=found.senders,
        descriptors=found.descriptors,
        run_bytes=found.run_bytes,
        bandwidth_s=terms.bandwidth_s,
        descriptors_s=terms.descriptors_s,
        messages_s=terms.messages_s,
        setup_s=terms.setup_s,
        staging_s=terms.staging_s,
        control_s=control_s,
        time_s=terms.time_s + control_s,
        bound_by="control" if control_s > latest else terms.bound_by.value,
        port=found.path.port,
    )


def _setting(resolved: ResolvedScenario, placement: Placement, routes: dict[RouteRule, Routes]) -> Setting:
    memory = min(box.profile.gpu.hbm_gb_per_s.value for box in (resolved.prefill_box, resolved.decode_box)) * GB
    others = _other_rules(resolved)
    box = resolved.decode_box

    def receiving(rank: int) -> str:
        return box.port_name(box.gpu(resolved.decode.gpus[rank]), "receiving")

    return Setting(
        _path(resolved, placement, routes[resolved.route_rule]),
        engine_constants(resolved.engine, resolved.posting_threads),
        engine_slicing(resolved.engine),
        memory,
        resolved.engine.mode.value,
        tuple((NIC_CHOICES[rule], _path(resolved, placement, routes[rule])) for rule in routes if rule in others),
        receiving if resolved.engine.control.sequential_receive.value else None,
    )


def _path(resolved: ResolvedScenario, placement: Placement, routes: Routes) -> Path:
    return route_path(_between(placement.gpus, resolved.decode.gpus, routes), routes.capacity)


def _between(ours: Sequence[int], theirs: Sequence[int], routes: Routes) -> Callable[[int, int], Sequence[Way]]:
    def ways(source: int, target: int) -> Sequence[Way]:
        return routes.between(ours[source], theirs[target])

    return ways
