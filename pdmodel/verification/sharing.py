"""Published rates of flows that share ports, NICs and queue pairs, against replays of the same flows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pdmodel.costs.nic_choice import End, kv_ways
from pdmodel.costs.wire import payload_share
from pdmodel.engines.spec import RouteRule
from pdmodel.errors import InputError
from pdmodel.hardware import routes
from pdmodel.hardware.ports import Port, PortKind, Route
from pdmodel.hardware.topology import Box
from pdmodel.units import GB
from pdmodel.verification.emulated import replayed
from pdmodel.verification.tables import Comparison, PublishedTable, Row, boxes, keys_of, source_of
from pdmodel.verification.together import Side, together

GBIT = GB / 8
_NO_LIMIT = 1e15


# ---- PCIe ports ------------------------------------------------------------------------------------------------------
def flows_together(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Rates of several copies at once, replayed; columns box, pattern, flows, measure, total_gb_per_s.

    ``measure``: ``last``, all bytes over the time of the last copy; ``each``, the sum of the copies' own rates.
    """
    found = boxes(row["box"] for row in rows)
    for row in rows:
        box = found[row["box"]]
        copies = copies_of(box, row["pattern"])
        if len(copies) != int(row["flows"]):
            raise InputError(f"{row['pattern']!r} has {len(copies)} flows, not {row['flows']}", file=table.file)
        rates = together([Side((copy,)) for copy in copies], box.ports)
        yield Comparison(
            row=f"{row['box']} {row['pattern']}",
            predicted=rates.total if row["measure"] == "last" else float(rates.each.sum()),
            published=float(row["total_gb_per_s"]) * GB,
            keys=keys_of(table, row),
            source=source_of(row),
            limit=float(row[table.limit_column]) if table.limit_column else None,
        )


def copies_of(box: Box, pattern: str) -> list[Route]:
    """The routes of a pattern.

    Pairs ``0>4 1>5``; ``all`` pairs, those ``within:0-3``, or ``cross`` the halves; ``shift:2``, each GPU to the second
    after it; ``h2d:0-7``, ``d2h:0-3``.
    """
    kind, _, numbers = pattern.partition(":")
    count = box.gpu_count
    if kind in {"h2d", "d2h", "within"}:
        first, _, last = numbers.partition("-")
        members = range(int(first), int(last) + 1)
        if kind != "within":
            copy = routes.host_to_gpu if kind == "h2d" else routes.gpu_to_host
            return [copy(box, gpu) for gpu in members]
        pairs = list(itertools.permutations(members, 2))
    elif kind == "shift":
        pairs = [(gpu, (gpu + int(numbers)) % count) for gpu in range(count)]
    elif kind == "all":
        pairs = list(itertools.permutations(range(count), 2))
    elif kind == "cross":
        pairs = list(itertools.product(range(count // 2), range(count // 2, count)))
    else:
        pairs = [(int(one), int(two)) for one, _, two in (pair.partition(">") for pair in pattern.split())]
    return [routes.gpu_to_gpu(box, one, two) for one, two in pairs]


# ---- queue pairs of one NIC ------------------------------------------------------------------------------------------
def queue_pairs(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Rates of flows on one NIC, a queue pair each, of which the ``urgent`` first ones are served first.

    Columns table, flows, urgent, quantity (total, each, urgent, patient), gbit_per_s, rounding; parameters of a table:
    line rate and MTU of the NIC, and the ceiling of one queue pair.
    """
    for row in rows:
        given = table.parameters[row["table"]]
        wire = float(given["line_gbit_per_s"]) * payload_share(float(given["message_bytes"]), float(given["mtu_bytes"]))
        count, urgent = int(row["flows"]), int(row["urgent"])
        rates = one_nic(wire * GBIT, float(given["queue_pair_gbit_per_s"]) * GBIT, count, urgent)
        sums = {
            "total": sum(rates),
            "each": rates[-1],
            "urgent": sum(rates[:urgent]),
            "patient": sum(rates[urgent:]),
        }
        yield Comparison(
            row=f"{row['quantity']} of {count} flows, {urgent} urgent, {row['table']}",
            predicted=sums[row["quantity"]],
            published=float(row["gbit_per_s"]) * GBIT,
            keys=keys_of(table, row),
            source=source_of(row),
            rounding=float(row["rounding"]) * GBIT,
        )


def one_nic(nic_bytes_per_s: float, queue_pair_bytes_per_s: float, flows: int, urgent: int = 0) -> tuple[float, ...]:
    """Rates of flows that one NIC sends while all of them run, urgent ones first.

    A queue pair's own ceiling is a port of its own that its flow alone crosses; on the NIC's wire each queue pair is an
    input link, so that full wires are shared equally.

    Parameters: ``nic_bytes_per_s`` of the wire, ``queue_pair_bytes_per_s`` of one queue pair [byte/s]; ``flows`` > 0;
    ``urgent`` of them are served first.
    Returns: one rate per flow [byte/s].
    Validity: long messages, so that message rates and set-up do not count.
    Source: `together`.
    """
    wire = Port("nic/tx", PortKind.NIC_TX, nic_bytes_per_s)
    ceilings = [Port(f"queue_pair{k}", PortKind.ABSTRACT, queue_pair_bytes_per_s) for k in range(flows)]
    sides = [
        Side(
            (Route(port.name, {wire.name: 1.0, port.name: 1.0}, {wire.name: (port.name,)}, "nic"),),
            urgent=k < urgent,
        )
        for k, port in enumerate(ceilings)
    ]
    policy = "residual_edf" if urgent else "unmanaged"
    return tuple(together(sides, [wire, *ceilings], policy).at_once.tolist())


# ---- NICs of one GPU -------------------------------------------------------------------------------------------------
def nic_choice(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """Rate of one GPU's flow over the NICs that an engine was told to use; columns box, gpu, nics (``0 2``), rule."""
    found = boxes(row["box"] for row in rows)
    for row in rows:
        nics = [int(nic) for nic in row["nics"].split()]
        side, ports = out_of(found[row["box"]], int(row["gpu"]), nics, RouteRule(row["rule"]))
        yield Comparison(
            row=f"{row['box']}, {row['rule']} of NICs {row['nics']}",
            predicted=together([side], ports).total,
            published=float(row["gb_per_s"]) * GB,
            keys=keys_of(table, row),
            source=source_of(row),
        )


def out_of(box: Box, gpu: int, nics: Sequence[int], rule: RouteRule) -> tuple[Side, list[Port]]:
    """The flow of one GPU over listed NICs by an engine's rule, into an equal box whose own ports are no limit.

    Parameters: ``gpu``, ``nics``: by index; ``rule``: which NICs, which shares (`pdmodel.costs.nic_choice.kv_ways`).
    Returns: the flow, and the ports of both boxes.
    Raises: `InputError` for a GPU or NIC that is not there.
    Validity: what is given to a NIC stays with it, so the flow ends when the slowest NIC's share has.
    """
    there = Box(box.profile, "D" if box.node != "D" else "P")
    ports = [*box.ports, *(Port(port.name, port.kind, _NO_LIMIT) for port in there.ports)]
    source, target = (End(one, gpu, tuple(nics), listed=True) for one in (box, there))
    ways = kv_ways(source, target, rule, {port.name: port.capacity_bytes_per_s for port in ports})
    return Side(tuple(way.route for way in ways), tuple(way.share for way in ways)), ports


# ---- a ring beside KV ------------------------------------------------------------------------------------------------
def ring_beside_transfer(table: PublishedTable, rows: Sequence[Row]) -> Iterator[Comparison]:
    """A ring that fills a class-fair port beside KV that never ends: its slowdown, and the rate of the KV."""
    for row in rows:
        size, goodput = float(row["collective_bytes"]), float(row["goodput_bytes_per_s"])
        slowdown, rate = replayed(size, float(row["compute_s"]), goodput)
        for quantity, predicted in (("collective_slowdown", slowdown), ("kv_bytes_per_s", rate)):
            yield Comparison(
                row=f"{quantity}, {size:.0f} B",
                predicted=predicted,
                published=float(row[quantity]),
                keys=keys_of(table, row, quantity),
                source=source_of(row),
            )
