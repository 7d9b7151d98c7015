"""Critical traffic as activities of the sharing rule: what each phase and each decode lane puts on the ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.hardware.ports import Port
from pdmodel.timeline.phases import DecodeLane, Lane
from pdmodel.timeline.sharing import Row, share_rows

IDLE = 0
"""The signature of a phase, or of a lane between phases, that uses no port."""


@dataclass(slots=True)
class CriticalTraffic:
    """Lanes and decode lanes in the numbering of the sharing rule: ports in order of their names.

    ``place`` maps port name to number. ``rows`` are the distinct activities; ``signature[l][i]`` is the one of phase i
    of lane l, `IDLE` if it uses no port. Consumption at unit speed is a = b / tau [byte/s]; a critical activity is
    alone in its class, so its weight on a port is the number of input links that it uses there (1 where none is named).
    """

    names: tuple[str, ...]
    place: dict[str, int]
    capacity: list[float]
    guard: list[float]
    rows: list[Row]
    signature: list[list[int]]
    work_s: list[list[float]]
    not_before_s: list[list[float]]
    decode_rows: list[Row]

    def active(self, signatures: Sequence[int]) -> list[Row]:
        """The critical activities that run together, decode lanes last."""
        return [self.rows[s] for s in signatures if s != IDLE] + self.decode_rows

    def usable(self, active: Sequence[Row]) -> list[float]:
        """Usable capacity of every port [byte/s] while ``active`` run: min(C, max(C - eps, sum of a))."""
        usable = list(self.capacity)
        demand: dict[int, float] = {}
        for row in active:
            for e, need, _ in row:
                demand[e] = demand.get(e, 0.0) + need
        for e, total in demand.items():
            usable[e] = min(usable[e], max(usable[e] - self.guard[e], total))
        return usable

    def speeds(self, signatures: Sequence[int]) -> tuple[list[float], list[float]]:
        """Speeds without KV: of each lane (1 where it is idle) and of each decode lane."""
        active = self.active(signatures)
        found = iter(share_rows(active, [1.0] * len(active), self.usable(active)) if active else ())
        lanes = [1.0 if s == IDLE else next(found) for s in signatures]
        return lanes, list(found)

    @property
    def collide(self) -> bool:
        """Whether two lanes, or a lane and a decode lane, put bytes on one port."""
        seen: set[int] = set()
        groups = [[self.rows[s] for s in set(lane)] for lane in self.signature] + [[row] for row in self.decode_rows]
        for group in groups:
            mine = {e for row in group for e, _, _ in row}
            if mine & seen:
                return True
            seen |= mine
        return False


def critical_traffic(
    ports: Sequence[Port], lanes: Sequence[Lane], decode_lanes: Sequence[DecodeLane] = ()
) -> CriticalTraffic:
    """The critical traffic of lanes on ports. A port that is not among ``ports`` is an `InputError`."""
    ordered = sorted(ports, key=lambda port: port.name)
    place = {port.name: k for k, port in enumerate(ordered)}
    rows: list[Row] = [()]
    number: dict[Row, int] = {(): IDLE}
    signature: list[list[int]] = []
    for lane in lanes:
        # Phases of equal layers usually hold the very same mappings: look their row up by identity first.
        known: dict[tuple[int, int, float], int] = {}
        mine = []
        for phase in lane.phases:
            if not phase.wire_bytes or phase.duration_s <= 0:
                mine.append(IDLE)
                continue
            key = (id(phase.wire_bytes), id(phase.input_links), phase.duration_s)
            found = known.get(key)
            if found is None:
                row = critical_row(place, phase.wire_bytes, phase.input_links, 1.0 / phase.duration_s)
                found = known[key] = number.setdefault(row, len(rows))
                if found == len(rows):
                    rows.append(row)
            mine.append(found)
        signature.append(mine)
    return CriticalTraffic(
        names=tuple(port.name for port in ordered),
        place=place,
        capacity=[port.capacity_bytes_per_s for port in ordered],
        guard=[port.guard_bytes_per_s for port in ordered],
        rows=rows,
        signature=signature,
        work_s=[[phase.duration_s for phase in lane.phases] for lane in lanes],
        not_before_s=[[phase.not_before_s for phase in lane.phases] for lane in lanes],
        decode_rows=[critical_row(place, lane.mean_bytes_per_s, lane.input_links, 1.0) for lane in decode_lanes],
    )


def critical_row(
    place: Mapping[str, int],
    sizes: Mapping[str, float],
    input_links: Mapping[str, tuple[str, ...]],
    per_s: float,
) -> Row:
    """One critical activity: bytes per port times ``per_s`` [1/s] is its consumption at unit speed."""
    unknown = [name for name in sizes if name not in place]
    if unknown:
        raise InputError(f"critical traffic on port {unknown[0]!r}", expected="a port of the record")
    return tuple(
        sorted(
            (place[name], size * per_s, float(max(1, len(input_links.get(name, ())))))
            for name, size in sizes.items()
            if size > 0
        )
    )
