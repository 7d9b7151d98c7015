"""What an engine can do later: write-backs, and sends that wait for the end of their prefill."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pdmodel.engines.spec import EngineSpec, Knob, ReleaseAfter, Sets, Steers
from pdmodel.replay.outcome import Replay
from pdmodel.replay.policies import Policy, QueuePolicy
from pdmodel.resolve import ResolvedScenario
from pdmodel.scenario import WritePolicy

WRITE_LATER: Final = WritePolicy.WRITE_BACK.value
"""The write policy that copies what is evicted."""
AS_IT_IS: Final = "as it is"
"""How a rule is applied that needs no knob."""
OFF: Final = {"True": "False", "true": "false", "1": "0", "on": "off"}
"""A flag that is set by default, and not set, in the words of its engine."""


@dataclass(frozen=True, slots=True)
class Later:
    """Knobs that make write-backs later, and sends wait for the end of their prefill, each with its value.

    None where nothing does; no knob where sends wait anyway.
    """

    writes: Knob | None = None
    sends: tuple[tuple[Knob, str], ...] | None = None

    @classmethod
    def of(cls, resolved: ResolvedScenario) -> Later:
        """What the engine of a scenario can do."""
        return cls(later_writes(resolved.engine, resolved.spec.cache.write_policy), later_sends(resolved))

    def needs_no_gate(self, policy: QueuePolicy) -> bool:
        """Whether a rule needs nobody who holds KV back in bursts.

        Sending at will, or under a cap that a NIC can keep; later where the engine can.
        """
        if policy.critical_first or (policy.writebacks_last and self.writes is None):
            return False
        if policy.after_prefill and self.sends is None:
            return False
        return policy.cap is None or not policy.cap.needs_engine_throttle

    def how(self, policy: QueuePolicy) -> str:
        """How a rule that needs no gate is applied."""
        words = [f"{self.writes.name} {WRITE_LATER}"] if policy.writebacks_last and self.writes is not None else []
        words += [f"{knob.name} {value}" for knob, value in self.sends or ()] if policy.after_prefill else []
        return f"by {' and '.join(words)}" if words else AS_IT_IS

    def without_gates(
        self, tried: Sequence[tuple[Policy, Replay]], broken: Collection[str] = ()
    ) -> list[tuple[QueuePolicy, Replay]]:
        """Simple rules that can be applied without holding KV back in bursts.

        Of those that are not ``broken`` (by name: what breaks memory, a lease or never ends its write-backs), if there
        is one.
        """
        free = [(p, r) for p, r in tried if isinstance(p, QueuePolicy) and self.needs_no_gate(p)]
        return [pair for pair in free if pair[0].name not in broken] or free


def later_writes(engine: EngineSpec, policy: WritePolicy | None) -> Knob | None:
    """The knob that makes the write-backs of a scenario's ``policy`` later; None where nothing does.

    What is written when it is evicted is not written later by it.
    """
    if policy in {None, WritePolicy.WRITE_BACK}:
        return None
    return next((knob for knob in engine.all_knobs if knob.maps_to is Steers.WRITE_POLICY), None)


def later_sends(resolved: ResolvedScenario) -> tuple[tuple[Knob, str], ...] | None:
    """Knobs with which no KV of a request leaves before its prefill has ended; None where they are not all there.

    New tokens wait where the engine (or the scenario) releases them after the prefill, or after a chunk that is the
    whole prompt; cached ones where they do not go ahead of the chunk. Anything else takes a knob that sets this fact.
    """
    engine, chunk = resolved.engine, resolved.spec.prefill.chunk_tokens
    known = {knob.sets: knob for knob in engine.all_knobs if knob.sets is not None}
    released = {engine.release_after.value, resolved.release_after}
    whole = all(len(request.chunks(chunk)) == 1 for request in resolved.requests)
    ahead = engine.early_send.value and resolved.early_send
    needed = []
    if ReleaseAfter.PREFILL not in released and not (whole and ReleaseAfter.CHUNK in released):
        needed.append((known.get(Sets.RELEASE_AFTER), ReleaseAfter.PREFILL.value))
    if ahead and any(request.cached_tokens for request in resolved.requests):
        flag = known.get(Sets.EARLY_SEND)
        needed.append((flag, "" if flag is None else OFF.get(flag.default, "off")))
    found = tuple((knob, value) for knob, value in needed if knob is not None)
    return found if len(found) == len(needed) else None
