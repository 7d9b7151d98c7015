"""The book that is kept while a box is built: sources, what was taken from where, conflicts, what had to be assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pdmodel.importers.box_evidence import FileOf
from pdmodel.spec import SourceKind

DIFFERS = 0.1
"""Two claims that differ by more than this share of the one that is taken are a conflict."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one source says a figure is."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a profile holds without a figure, such as its tree, and who told it."""

    what: str
    value: str
    told_by: str


@dataclass
class Ledger:
    """Filled in the order in which the box is built."""

    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def source(self, name: str, kind: str, ref: str, note: str) -> str:
        """Id of a source; one that is there with the same content is used again."""
        entry = {"kind": kind, "ref": ref, "note": note}
        number, free = 1, name
        while free in self.sources and self.sources[free] != entry:
            number += 1
            free = f"{name}_{number}"
        self.sources[free] = entry
        return free

    def file(self, name: str, item: FileOf[Any], kind: str, note: str) -> str:
        """Id of a file as a source."""
        entry = item.source(kind, note)
        return self.source(name, entry["kind"], entry["ref"], entry["note"])

    def kind(self, source: str) -> SourceKind:
        """How good a source is."""
        return SourceKind(self.sources[source]["kind"])

    def choose(self, what: str, unit: str, claims: Sequence[Claim]) -> Claim:
        """The first of the claims, best first; another that differs is a conflict unless it was only assumed."""
        best = claims[0]
        for other in claims[1:]:
            if self.kind(other.source) is SourceKind.ASSUMED or abs(other.value - best.value) <= DIFFERS * best.value:
                continue
            self.conflicts.append(
                f"{what}: {best.value:.4g} {unit} is taken ({self._says(best.source)}); {other.value:.4g} {unit} by "
                f"{self._says(other.source)}"
            )
        return best

    def _says(self, source: str) -> str:
        entry = self.sources[source]
        return f"{entry['kind']}, {entry['ref'].split(', sha256')[0]}"


def figure(claim: Claim) -> dict[str, Any]:
    """A figure as a profile's file holds it."""
    return {"value": float(f"{claim.value:.4g}"), "source": claim.source}


def both_ways(egress: Claim, ingress: Claim, both: Claim | None = None) -> dict[str, Any]:
    """A device's link as a profile's file holds it."""
    link = {"egress_gb_per_s": figure(egress), "ingress_gb_per_s": figure(ingress)}
    return link if both is None else {**link, "both_gb_per_s": figure(both)}
