"""A collective's time taken apart: its branch's alpha and bandwidth, one branch forced, every branch that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdmodel.costs.collectives.cost import CollectiveCost, collective, default_branches
from pdmodel.costs.collectives.pcie import PCIE_KERNELS, pcie_constants
from pdmodel.costs.collectives.protocol import fastest_branch, usable
from pdmodel.costs.collectives.scaling import Found, constants_for
from pdmodel.costs.collectives.selected import Selected, selected
from pdmodel.errors import CoverageError, InputError, nearest
from pdmodel.hardware.constants import Branch, CollectiveConstants, CollectiveOperation, Implementation, MeasuredPoint
from pdmodel.hardware.topology import Box
from pdmodel.spec import SourceKind, weakest
from pdmodel.units import GB, US


@dataclass(frozen=True, slots=True)
class Terms:
    """One call and the line that gives its time: alpha + S/B. ``branch`` None: no line.

    A measured table of the box may bend the line (``table_factor``), and a port may raise the time. ``selected``: what
    NCCL would take at this size, where its graph of the box is known.
    """

    cost: CollectiveCost
    branch: Branch | None
    selected: Selected | None = None

    @property
    def alpha_s(self) -> float:
        """The line's constant part [s]; 0 where nothing travels."""
        return self.branch.alpha_us * US if self.branch else 0.0

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """The line's bandwidth B, as algbw [byte/s]; None where nothing travels."""
        return self.branch.bandwidth_gb_per_s * GB if self.branch else None

    @property
    def table_factor(self) -> float:
        """What the box's measured table makes of the line, own time over alpha + S/B [-]; 1 where it has none."""
        rate = self.bandwidth_bytes_per_s
        return 1.0 if rate is None else self.cost.own_time_s / (self.alpha_s + self.cost.size_bytes / rate)


def branches(operation: str, gpus: Sequence[int], box: Box, implementation: str = "nccl") -> Found:
    """Every line that the box has for an operation among ``gpus``: the profile's, or what follows from it.

    Parameters: as `pdmodel.costs.collectives.cost.collective`.
    Returns: `Found`, its branches those that the box can take.
    Raises: `InputError`, as `collective`.
    Source: `constants_for`, else `default_branches` (assumed).
    """
    order = tuple(gpus)
    collective(operation, 1.0, order, box, implementation)  # checks the words and the GPUs
    if len(order) == 1:
        return Found((), SourceKind.MEASURED)
    kind, what = CollectiveOperation(operation), Implementation(implementation)
    found = pcie_constants(box, order, kind, what) if what in PCIE_KERNELS else None
    found = found or constants_for(box.profile, kind, what, len(order))
    if found is None:
        found = Found(default_branches(kind, order, box), SourceKind.ASSUMED)
    return replace(found, branches=usable(found.branches, nvlink=box.has_nvlink))


def collective_terms(
    operation: str,
    sizes_bytes: Sequence[float],
    gpus: Sequence[int],
    box: Box,
    implementation: str = "nccl",
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> tuple[Terms, ...]:
    """One collective at several sizes with its terms, by the fastest branch or by one that is forced.

    Equation: t = max( alpha + S/B, max_e W_e S f / C_e ): see `pdmodel.costs.collectives.cost.collective`. Where an
    algorithm or a protocol is forced the least is taken over the branches that have it, at every size.

    Parameters: ``sizes_bytes`` S >= 0 [byte]; ``algorithm`` and ``protocol`` by name, None for any.
    Returns: one `Terms` for each size, in order.
    Raises: `InputError`: as `collective`; `CoverageError`: a branch that the box does not have, naming those it has.
    Validity: as `collective`. A forced branch is followed beyond the size at which its implementation leaves it.
    """
    order = tuple(gpus)
    found = branches(operation, order, box, implementation)
    choices = selected(operation, sizes_bytes, order, box, implementation)
    if algorithm is None and protocol is None:
        return tuple(
            _terms(collective(operation, size, order, box, implementation), found.branches, choice)
            for size, choice in zip(sizes_bytes, choices, strict=True)
        )
    if len(order) == 1:
        raise InputError("one rank exchanges nothing by any algorithm", expected="2 ranks or more")
    forced = _matching(found.branches, algorithm, protocol, f"{operation} among {len(order)} on {box.profile.name}")
    # A profile whose only constants are these; its own best source, as `found` says how good they are.
    best = min(box.profile.sources, key=lambda name: box.profile.kind_of(name).rank)
    entry = CollectiveConstants(
        operation=CollectiveOperation(operation),
        ranks=len(order),
        branches=forced,
        table=_points(found, algorithm, protocol),
        source=best,
    )
    alone = Box(box.profile.model_copy(update={"collectives": (entry,)}), box.node)
    return tuple(
        _terms(
            _as_found(collective(operation, size, order, alone), found, Implementation(implementation)),
            forced,
            choice,
        )
        for size, choice in zip(sizes_bytes, choices, strict=True)
    )


def _matching(known: Sequence[Branch], algorithm: str | None, protocol: str | None, what: str) -> tuple[Branch, ...]:
    """The branches that were asked for, without the sizes at which their implementation leaves them."""
    found = tuple(
        branch.model_copy(update={"max_bytes": None, "from_bytes": None})
        for branch in known
        if algorithm in (None, branch.algorithm.value) and protocol in (None, branch.protocol.value)
    )
    if found:
        return found
    legal = list(dict.fromkeys(f"{branch.algorithm.value} with {branch.protocol.value}" for branch in known))
    wanted = " with ".join(word for word in (algorithm, protocol) if word)
    raise CoverageError(
        f"no {wanted} for {what}", expected="one of " + ", ".join(legal), nearest=nearest(wanted, legal)
    )


def _points(found: Found, algorithm: str | None, protocol: str | None) -> tuple[MeasuredPoint, ...]:
    """Measured points that the forced branches were measured by."""
    return tuple(
        point
        for point in found.table
        if (branch := fastest_branch(found.branches, point.size_bytes)[1])
        and algorithm in (None, branch.algorithm.value)
        and protocol in (None, branch.protocol.value)
    )


def _as_found(cost: CollectiveCost, found: Found, implementation: Implementation) -> CollectiveCost:
    """A cost by forced branches, as good as what the branches came from."""
    if cost.algorithm == "none":
        return replace(cost, implementation=implementation)
    source = weakest(found.source, cost.source) if cost.raised else found.source
    return replace(cost, implementation=implementation, source=source, notes=found.notes)


def _terms(cost: CollectiveCost, known: Sequence[Branch], choice: Selected | None) -> Terms:
    """The cost with the branch that gave it: the fastest of those with its algorithm and protocol."""
    mine = [
        branch for branch in known if (branch.algorithm.value, branch.protocol.value) == (cost.algorithm, cost.protocol)
    ]
    return Terms(cost, fastest_branch(mine, cost.size_bytes)[1] if mine else None, choice)
