"""How full a measured collective leaves the ports of its box, and what explains the rest."""

from __future__ import annotations

from dataclasses import dataclass

from pdmodel.costs.collectives.protocol import fastest_branch, usable, wire_factor
from pdmodel.costs.collectives.wire import wire_per_byte
from pdmodel.hardware.constants import BoundBy, CollectiveConstants
from pdmodel.hardware.topology import Box
from pdmodel.units import GIB

# A collective below this share of every port needs a reason in the profile.
EXPLAINED_SHARE = 0.8
# Large enough that alpha does not count.
LARGE_BYTES = GIB


@dataclass(frozen=True, slots=True)
class Saturation:
    """The fullest port while a large collective of one profile entry runs."""

    constants: CollectiveConstants
    gpus: tuple[int, ...]
    port: str
    rate_bytes_per_s: float
    share: float

    @property
    def explained(self) -> bool:
        """Whether the port binds it, or the profile says what does."""
        return self.share >= EXPLAINED_SHARE or self.constants.bound_by is not None


def large_rates(box: Box, constants: CollectiveConstants, gpus: tuple[int, ...]) -> dict[str, float]:
    """Rate on every port while a large collective runs at its own speed.

    Equation: W_e f S / t(S) at S = 1 GiB, before any raise.

    Parameters: ``gpus`` as many as ``constants.ranks``, in ring order.
    Returns: port to rate [byte/s].
    Validity: the entry's measured sizes reach far into the last branch.
    Source: `wire_per_byte`, `fastest_branch`.
    """
    time_s, branch = fastest_branch(usable(constants.branches, nvlink=box.has_nvlink), LARGE_BYTES, constants.table)
    wire = wire_per_byte(box, gpus, constants.operation, branch.algorithm)
    scale = LARGE_BYTES * wire_factor(branch.protocol) / time_s
    return {port: share * scale for port, share in wire.ports.items()}


def saturation(box: Box, constants: CollectiveConstants, gpus: tuple[int, ...] | None = None) -> Saturation:
    """The fullest port under one entry of the profile; ``gpus`` None: the first ones of the box."""
    order = tuple(range(constants.ranks)) if gpus is None else gpus
    rates = large_rates(box, constants, order)
    shares = {port: rate / box.port_index[port].capacity_bytes_per_s for port, rate in rates.items()}
    port = max(shares, key=shares.__getitem__)
    return Saturation(constants, order, port, rates[port], shares[port])


def unexplained(box: Box) -> tuple[Saturation, ...]:
    """Entries of the profile that leave every port below `EXPLAINED_SHARE` and give no ``bound_by``."""
    found = [saturation(box, entry) for entry in box.profile.collectives if entry.nodes == 1]
    return tuple(one for one in found if not one.explained)


def group_capacity_bytes_per_s(box: Box, port: str) -> float:
    """What a group port must carry by the measurements that the profile calls ``unmodelled_link``.

    Equation: C_e = max over these entries of W_e f S / t(S).

    Parameters: ``port`` by its full name.
    Returns: [byte/s]; 0 if no such entry passes the port.
    Validity: as `large_rates`; the capacity written in a profile is this, with a source of kind derived.
    Source: own definition.
    """
    known = [entry for entry in box.profile.collectives if entry.nodes == 1]
    entries = [entry for entry in known if entry.bound_by is BoundBy.UNMODELLED_LINK]
    rates = [large_rates(box, entry, tuple(range(entry.ranks))).get(port, 0.0) for entry in entries]
    return max(rates, default=0.0)
