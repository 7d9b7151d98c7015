"""What would make a hand-over faster, each priced by the same law: threads, senders, pages, order, staging, NICs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pdmodel.costs.fullest_port import PathTime
from pdmodel.costs.kv_layout.caches import Cache
from pdmodel.costs.kv_layout.descriptors import Order
from pdmodel.costs.kv_layout.pairs import CopySender, Exchange, Pair
from pdmodel.costs.kv_layout.timing import HandOver, Setting, hand_over
from pdmodel.engines.spec import ContextSenders

# Tokens of a staged chunk: SGLang's default --chunked-prefill-size.
CHUNK_TOKENS = 8192
# A fix that saves less than this share of the time is not named.
LEAST_GAIN = 0.1
# The cheapest fix that takes at most so many times what the best one takes is the one to name.
GOOD_ENOUGH = 1.5


class Lever(StrEnum):
    """What is changed, cheapest first: three flags, a restart, another attention kernel, memory, hardware."""

    THREADS = "threads"
    NIC_LIST = "NIC list"
    SENDERS = "senders"
    PAGE_SIZE = "page size"
    HND = "HND"
    STAGING = "staging"
    NIC = "NIC"


@dataclass(frozen=True, slots=True)
class Fix:
    """One change and what the hand-over takes with it."""

    lever: Lever
    what: str
    result: HandOver


def fixes(exchange: Exchange, kept: Sequence[Cache], setting: Setting) -> tuple[Fix, ...]:
    """Every change that applies to this hand-over, with its cost, in order of `Lever`.

    Parameters: as `hand_over`.
    Returns: fixes, whether they help or not.
    Raises: as `hand_over`.
    Validity: one change at a time; threads that post in parallel share no lock.
    Source: `hand_over` of the changed layout or setting.
    """
    return tuple(
        Fix(lever, what, hand_over(changed, kept, other)) for lever, what, changed, other in _changes(exchange, setting)
    )


def _changes(exchange: Exchange, setting: Setting) -> Iterator[tuple[Lever, str, Exchange, Setting]]:
    source, destination = exchange.source, exchange.destination
    threads = 4 * setting.constants.threads
    yield Lever.THREADS, f"{threads} posting threads", exchange, setting.with_threads(threads)
    for what, path in setting.other_paths:
        yield Lever.NIC_LIST, what, exchange, replace(setting, path=path)
    if source.parts > 1 and exchange.context_senders is ContextSenders.FIRST:
        changed = replace(exchange, context_senders=ContextSenders.ALL)
        yield Lever.SENDERS, "every context-parallel rank sends", changed, setting
    if CopySender.SHARES not in (exchange.copies, exchange.latent_copies):
        changed = replace(exchange, copies=CopySender.SHARES, latent_copies=None)
        yield Lever.SENDERS, "every rank that keeps a copy sends a share", changed, setting
    if exchange.chunk_tokens is None:
        size = 4 * max(source.page_tokens, destination.page_tokens)
        one, two = replace(source, page_tokens=size), replace(destination, page_tokens=size)
        changed = replace(exchange, source=one, destination=two)
        yield Lever.PAGE_SIZE, f"pages of {size} tokens", changed, setting
        if Order.NHD in (source.order, destination.order):
            one, two = replace(source, order=Order.HND), replace(destination, order=Order.HND)
            changed = replace(exchange, source=one, destination=two)
            yield Lever.HND, "HND pages on both sides", changed, setting
        what = f"packed in chunks of {CHUNK_TOKENS} tokens"
        yield Lever.STAGING, what, replace(exchange, chunk_tokens=CHUNK_TOKENS), setting
    yield Lever.NIC, "twice the bandwidth", exchange, _wider(setting)


def _wider(setting: Setting) -> Setting:
    path = setting.path

    def time(found: Sequence[Pair]) -> PathTime:
        one = path(found)
        return replace(one, time_s=one.time_s / 2, bytes_per_s=one.bytes_per_s * 2)

    return replace(setting, path=time)


def cheapest(now: HandOver, found: Sequence[Fix]) -> Fix | None:
    """The first fix, in order of `Lever`, that saves a tenth and takes at most 1.5 times what the best one takes.

    Parameters: ``now``: the hand-over as it is; ``found``: `fixes`.
    Returns: None where none saves a tenth.
    Validity: the order of effort is a judgement: flags before restarts, memory before hardware.
    """
    times = {id(fix): fix.result.terms.time_s for fix in found}
    helpful = [fix for fix in found if times[id(fix)] <= (1 - LEAST_GAIN) * now.terms.time_s]
    if not helpful:
        return None
    order, best = list(Lever), min(times[id(fix)] for fix in helpful)
    enough = [fix for fix in helpful if times[id(fix)] <= GOOD_ENOUGH * best]
    return min(enough, key=lambda fix: (order.index(fix.lever), times[id(fix)]))
