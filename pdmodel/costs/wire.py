"""What of a wire's rate is payload: the headers that RDMA puts around every packet."""

from __future__ import annotations

import math
from enum import StrEnum

from pdmodel.errors import InputError

REMOTE_ADDRESS_BYTES = 16
"""RETH, in the first packet of a write or a read request (InfiniBand Architecture Specification, 9.3)."""


class Framing(StrEnum):
    """How packets are framed."""

    ROCE_V2 = "roce_v2"
    INFINIBAND = "infiniband"


# RoCEv2 over IPv4: preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4, gap 12. InfiniBand: LRH 8, BTH 12,
# ICRC 4, VCRC 2.
PACKET_BYTES = {Framing.ROCE_V2: 82, Framing.INFINIBAND: 26}


def payload_share(size_bytes: float, mtu_bytes: float, framing: Framing = Framing.ROCE_V2) -> float:
    """Share of a wire's rate that the bytes of RDMA messages get.

    Equation: S / (S + ceil(S / MTU) h + 16).

    Parameters: ``size_bytes`` S > 0 of one message [byte]; ``mtu_bytes`` MTU > 0, path MTU of RDMA [byte];
    ``framing``: header bytes h of a packet, 82 or 26.
    Returns: [-], in (0, 1).
    Raises: `InputError` for sizes of 0 or less.
    Validity: IPv4 without VLAN tags; acknowledgements go the other way; no losses; messages follow one another.
    Source: IEEE 802.3; RFC 791, 768; InfiniBand Architecture Specification volume 1, annex A17 (RoCEv2). Held against
    tests/published/rdma_payload.csv.

    >>> round(payload_share(65536, 1024), 4), round(payload_share(65536, 4096), 4)
    (0.9256, 0.9801)
    """
    if not size_bytes > 0 or not mtu_bytes > 0:
        raise InputError(f"messages of {size_bytes:g} bytes, MTU {mtu_bytes:g}", expected="positive sizes")
    packets = math.ceil(size_bytes / mtu_bytes)
    return size_bytes / (size_bytes + packets * PACKET_BYTES[framing] + REMOTE_ADDRESS_BYTES)
