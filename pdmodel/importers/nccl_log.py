"""What an nccl-tests log says: tables of measured calls, and the facts of their headers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Collective(StrEnum):
    """The programs of nccl-tests, in the words of pdmodel where it has a formula for what they measure."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    HYPERCUBE = "hypercube"


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth knowing about a log that is no error, and the line it is about (0: no single line)."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True, slots=True)
class Place:
    """One measurement of a row, out of place or in place.

    ``time_s`` is one call; ``algbw_bytes_per_s`` and ``busbw_bytes_per_s`` are as printed (None: N/A); ``wrong`` is the
    number of wrong values, None where results were not checked.
    """

    time_s: float
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One size: ``size_bytes`` and ``count`` (elements) as printed; ``redop`` and ``root`` None where not printed."""

    line: int
    size_bytes: int
    count: int
    type: str
    redop: str | None
    root: int | None
    out_of_place: Place | None
    in_place: Place | None

    @property
    def places(self) -> tuple[Place, ...]:
        """What was measured: out of place first."""
        return tuple(place for place in (self.out_of_place, self.in_place) if place is not None)


@dataclass(frozen=True, slots=True)
class Device:
    """A ``Rank`` line of the header."""

    line: int
    rank: int
    host: str
    device: int
    bus: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one run of one program.

    ``collectives`` are what the rows can be of, one unless the log does not tell; ``ranks`` and ``nodes`` are None
    where it does not tell. ``*_from`` say in words what they were read from.
    """

    line: int
    rows: tuple[Row, ...]
    collectives: tuple[Collective, ...]
    collective_from: str
    ranks: int | None
    ranks_from: str
    nodes: int | None
    nodes_from: str
    devices: tuple[Device, ...]
    checked: bool
    left_out: tuple[int, ...] = ()

    @property
    def collective(self) -> Collective | None:
        """The collective, if the log tells."""
        return self.collectives[0] if len(self.collectives) == 1 else None

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The GPUs of the header, each name once."""
        return tuple(dict.fromkeys(device.gpu for device in self.devices))

    @property
    def shared_gpus(self) -> tuple[tuple[Device, Device], ...]:
        """Pairs of ranks on one and the same GPU."""
        seen: dict[tuple[str, str, int], Device] = {}
        pairs = []
        for device in self.devices:
            key = (device.host, device.bus, device.device)
            if key in seen:
                pairs.append((seen[key], device))
            else:
                seen[key] = device
        return tuple(pairs)


@dataclass(frozen=True, slots=True)
class NcclTestsLog:
    """A log file: its tables, the versions it names, the first date in it, and what to know about it."""

    file: str
    tables: tuple[Table, ...]
    nccl_version: str | None
    tests_version: str | None
    date: str | None
    notes: tuple[Note, ...]
