"""Control messages around a request's KV: latency that no schedule changes, so that none is planned in microseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import Through
from pdmodel.transfer.prefetch import fetch_alone_s
from pdmodel.transfer.sends import staging_latency_s
from pdmodel.transfer.store_sends import forwarded_s
from pdmodel.units import US
from pdmodel.workload.request import CacheTier, Request


@dataclass(frozen=True, slots=True)
class Control:
    """Latency of one request beside its bytes [s].

    ``handshake_s``: without it no request is scheduled. ``query_s``: the store is asked what it has, before it is
    fetched. ``before_s``: what of both the prefill waits for. ``set_up_s``: software of the last transfer. ``store_s``:
    of the last batch through a store, its calls, and that it is put as a whole. ``hand_over_s``: from the last byte
    until the decode side may schedule the request.
    """

    handshake_s: float
    query_s: float
    before_s: float
    set_up_s: float
    store_s: float
    hand_over_s: float
    staging_s: float = 0.0

    @property
    def after_s(self) -> float:
        """What comes after the last byte, and adds to the stall."""
        return self.set_up_s + self.store_s + self.hand_over_s + self.staging_s

    @property
    def total_s(self) -> float:
        """Both: what is added to the time to the first token."""
        return self.before_s + self.after_s


def control(resolved: ResolvedScenario, request: Request, queue_s: float = 0.0) -> Control:
    """Latency of the messages around a request's KV.

    Equation: query q: ceil(k/m) rpc of k pages in batches of m, where the store has some of the prefix. Handshake h and
    query start when the request arrives; p: its prefetch alone, w: its wait in the queue, both of which a replay has:
    before = max(h, q + p, w) - max(p, w). Directly: set-up t0 of the engine. Through a store: instead of
    it two calls around the last put, one before its get, and `forwarded_s`, of a batch of at most m pages of every
    rank; earlier batches have theirs behind the bytes of others.

    Parameters
    ----------
    resolved: the scenario.
    request: one of its requests.
    queue_s: how long it waits for those before it anyway [s].

    Returns
    -------
    `Control` [s].

    Notes
    -----
    Validity: an idle master; ranks call at the same time; the wait is that of the clock without KV.
    Source: the engine's file (``posting.request_overhead_us``, ``control``), the storage backend's file.

    """
    engine, store = resolved.engine, resolved.store
    query = through = 0.0
    stored = request.cached_by(CacheTier.STORE)
    if store is not None and stored:
        constants = store.constants
        query = math.ceil(stored / (resolved.page_tokens * store.batch_pages)) * constants.query_rpc_s
    fetch = fetch_alone_s(resolved, request)
    handshake = engine.control.handshake_us.value * US
    staging = staging_latency_s(resolved, request) if resolved.through is Through.DIRECT else 0.0
    set_up = engine.posting.request_overhead_us.value * US
    if store is not None and resolved.through is Through.STORE:
        set_up, through = 0.0, store.constants.put_rpc_s + store.constants.query_rpc_s + forwarded_s(resolved, request)
    return Control(
        handshake_s=handshake,
        query_s=query,
        before_s=max(handshake, query + fetch, queue_s) - max(fetch, queue_s),
        set_up_s=set_up,
        store_s=through,
        hand_over_s=engine.control.hand_over_us.value * US,
        staging_s=staging,
    )
