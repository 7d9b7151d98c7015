"""Ports: one direction of one shared resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pdmodel.spec import SourceKind

REFERENCE_BYTES = 65536.0
"""A piece of this size counts with multiplicity 1 on posting and message ports, one of r bytes with 65536/r."""


class PortKind(StrEnum):
    """What a port is one direction of. ``egress`` leaves a device, ``ingress`` enters it.

    ``posting``: the threads of a rank that post descriptors; ``messages``: the work requests that a NIC takes; both as
    the bytes of `REFERENCE_BYTES` pieces that they would move, so that their unit is a port's. ``store``: what a client
    of a KV store reads or writes at most. ``receiving``: the time of a rank that receives from one sender after the
    other, in bytes of the fastest sender. ``client``: the time of a rank's client of a KV store, in bytes of pieces of
    `REFERENCE_BYTES` that it would put or get if they took no time on the way.
    """

    GPU_EGRESS = "gpu_egress"
    GPU_INGRESS = "gpu_ingress"
    UPLINK_UP = "uplink_up"
    UPLINK_DOWN = "uplink_down"
    ROOT_COMPLEX = "root_complex"
    HOST_MEMORY = "host_memory"
    INTER_SOCKET = "inter_socket"
    NIC_INGRESS = "nic_ingress"
    NIC_EGRESS = "nic_egress"
    NIC_TX = "nic_tx"
    NIC_RX = "nic_rx"
    NVLINK_EGRESS = "nvlink_egress"
    NVLINK_INGRESS = "nvlink_ingress"
    BOTH_DIRECTIONS = "both_directions"
    FABRIC = "fabric"
    POSTING = "posting"
    MESSAGES = "messages"
    STORE = "store"
    RECEIVING = "receiving"
    CLIENT = "client"
    ABSTRACT = "abstract"


PIECE_PORTS = (PortKind.POSTING, PortKind.MESSAGES)
"""Kinds of port whose bytes are those of `REFERENCE_BYTES` pieces."""
SOFTWARE_PORTS = (*PIECE_PORTS, PortKind.RECEIVING, PortKind.CLIENT)
"""Kinds of port that are no link: limits of the software that sends and receives."""


class Discipline(StrEnum):
    """How a resource divides itself (design: `shared` by input link, `fifo` a copy engine, `classes` a NIC wire)."""

    SHARED = "shared"
    FIFO = "fifo"
    CLASSES = "classes"


@dataclass(frozen=True, slots=True)
class Port:
    """One directed port with its effective capacity C_e [byte/s] and guard eps_e [byte/s]."""

    name: str
    kind: PortKind
    capacity_bytes_per_s: float
    guard_bytes_per_s: float = 0.0
    discipline: Discipline = Discipline.SHARED
    source: SourceKind = SourceKind.ASSUMED
    note: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """The ports that a transfer crosses.

    ``ports`` maps port name to multiplicity [-]: bytes on that port per byte moved (2 for a staged copy through host
    memory; h/r on the reverse direction for the read requests). ``input_links`` maps port name to the links by which
    the bytes enter the element that owns the port. ``device`` is the NIC or copy engine that moves the bytes.
    """

    name: str
    ports: Mapping[str, float]
    input_links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    device: str = ""
    fifo: bool = False
    staged: bool = False
    hazards: tuple[str, ...] = ()
