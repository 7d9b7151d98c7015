"""What one file about a box says, for reading: trees with their links, matrices of copies, tables of bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.export import plain
from pdmodel.report.topology import findings_document
from pdmodel.report.words import NOTHING, number

if TYPE_CHECKING:
    from pdmodel.importers.findings import TopologyFindings
    from pdmodel.importers.lspci import Lspci
    from pdmodel.importers.nccl_calibration import Measured
    from pdmodel.importers.nccl_xml import NcclSystem
    from pdmodel.importers.p2p import P2pLog
    from pdmodel.importers.pci import PciDevice
    from pdmodel.importers.perftest import PerftestLog


def nccl_document(system: NcclSystem, found: TopologyFindings) -> Document:
    """A topology file: the findings, and its tree."""
    base = findings_document(found)
    rows = [_device_row(device, depth, _cpu(system, device.host)) for device, depth in _walk(system.devices)]
    nets = [
        [
            net.name or NOTHING,
            net.bus or "the CPU",
            NOTHING if net.port is None else str(net.port),
            NOTHING if net.speed_mbit_per_s is None else number(net.speed_mbit_per_s / 1000),
            {True: "yes", False: "no", None: NOTHING}[net.gdr],
        ]
        for net in system.nets
    ]
    fabric = [
        [gpu.bus, link.kind, link.target, str(link.count), "a switch" if link.to_switch else "a GPU"]
        for gpu in system.gpus
        for link in gpu.fabric
    ]
    fabric += [
        [gpu.bus, "c2c", "the CPU", NOTHING, f"{gpu.c2c_gb_per_s:g} GB/s"] for gpu in system.gpus if gpu.c2c_gb_per_s
    ]
    sections = [*base.sections, Section("Tree", table=table(["device", "kind", "link up", "~name", "NUMA"], rows))]
    if nets:
        head = ["NIC", "at", ">port", ">Gbit/s", "GPUDirect"]
        sections.append(Section("Ports of NICs", table=table(head, nets)))
    if fabric:
        sections.append(Section("Links of GPUs", table=table(["GPU", "link", "to", ">count", "what"], fabric)))
    content = {
        **_mapping(base.content),
        "version": system.version,
        "template": system.template,
        "cpus": [plain(cpu) for cpu in system.cpus],
        "tree": [_device(device) for device in system.devices.values()],
        "gpu_tags": [plain(gpu) for gpu in system.gpus],
        "nets": [plain(net) for net in system.nets],
        "pcilinks": [list(pair) for pair in system.shortcuts],
    }
    records = (*base.records, *(Record("tree", _device(device)) for device in system.devices.values()))
    return Document(base.title, base.subtitle, tuple(sections), content, records)


def _cpu(system: NcclSystem, host: int) -> str:
    return NOTHING if not 0 <= host < len(system.cpus) else str(system.cpus[host].numa)


def lspci_document(found: Lspci, findings: TopologyFindings) -> Document:
    """An output of lspci: the findings, the way to each GPU and NIC, and details of them."""
    base = findings_document(findings)
    way = [device for device in found.devices.values() if device.kind.value in {"gpu", "nic"}]
    on_way = {bus for device in way for bus in _above(device, found.devices)} | {device.bus for device in way}
    rows = [
        _device_row(device, depth, NOTHING if device.numa is None else str(device.numa))
        for device, depth in _walk(found.devices)
        if device.bus in on_way
    ]
    details = [
        [
            one.bus,
            str(one.cap),
            str(one.status) + (" (downgraded)" if one.downgraded else ""),
            str(one.payload_bytes or NOTHING),
            str(one.read_request_bytes or NOTHING),
            {True: "redirects", False: "off", None: NOTHING}[one.redirects],
        ]
        for one in found.details.values()
        if not found.devices or one.bus in on_way
    ]
    sections = [*base.sections]
    if rows:
        sections.append(
            Section("Ways to GPUs and NICs", table=table(["device", "kind", "link", "~name", "NUMA"], rows))
        )
    if details:
        head = ["device", "LnkCap", "LnkSta", ">MaxPayload", ">MaxReadReq", "ACS"]
        sections.append(Section("Links", table=table(head, details)))
    content = {
        **_mapping(base.content),
        "root_buses": list(found.root_buses),
        "acs": {"redirecting": found.redirects[0], "ports": found.redirects[1]},
        "tree": [_device(device) for device in found.devices.values()],
        "details": [plain(one) for one in found.details.values()],
    }
    return Document(base.title, base.subtitle, tuple(sections), content, base.records)


def _above(device: PciDevice, devices: Mapping[str, PciDevice]) -> tuple[str, ...]:
    from pdmodel.importers.pci import above

    return above(device, devices)


def _walk(devices: Mapping[str, PciDevice]) -> Iterator[tuple[PciDevice, int]]:
    """Each device below its bridge, with its depth."""
    below: dict[str | None, list[PciDevice]] = {}
    for device in devices.values():
        parent = device.parent if device.parent in devices else None
        below.setdefault(parent, []).append(device)
    stack = [(device, 0) for device in reversed(below.get(None, []))]
    while stack:
        device, depth = stack.pop()
        yield device, depth
        stack += [(child, depth + 1) for child in reversed(below.get(device.bus, []))]


def _device_row(device: PciDevice, depth: int, numa: str) -> list[str]:
    return ["- " * depth + device.bus, device.kind.value, str(device.link), device.name[:60] or NOTHING, numa]


def _device(device: PciDevice) -> dict[str, Any]:
    from pdmodel.importers.pci import raw_gb_per_s

    return {
        "bus": device.bus,
        "kind": device.kind.value,
        "parent": device.parent,
        "gt_per_s": device.link.gt_per_s,
        "lanes": device.link.lanes,
        "raw_gb_per_s": raw_gb_per_s(device.link),
        "numa": device.numa,
        "ids": device.ids,
        "name": device.name,
    }


def _mapping(content: Any) -> dict[str, Any]:
    return dict(content) if isinstance(content, Mapping) else {}


# ---- measurements ----------------------------------------------------------------------------------------------------


def p2p_document(log: P2pLog) -> Document:
    """Matrices of copies."""
    gpus = [[str(index), name] for index, name in log.gpus.items()]
    sections = [Section("GPUs", table=table([">GPU", "~name"], gpus))] if gpus else []
    if log.warnings:
        sections.append(Section("To know", bullets=log.warnings))
    for one in log.matrices:
        columns = sorted({column for _, column in one.cells})
        rows = [
            [
                str(row),
                *(number(one.cells[row, column]) if (row, column) in one.cells else NOTHING for column in columns),
            ]
            for row in sorted({row for row, _ in one.cells})
        ]
        sections.append(Section(one.title, table=table(["", *(f">{column}" for column in columns)], rows)))
    content = {
        "file": log.file,
        "status": "complete",
        "program": log.program,
        "gpus": log.gpu_count,
        "gpu_names": {str(index): name for index, name in log.gpus.items()},
        "without_p2p": [list(pair) for pair in log.refused],
        "matrices": [
            {
                "title": one.title,
                "line": one.line,
                "path": one.path.value,
                "measure": one.measure.value,
                "p2p": one.p2p,
                "cells": [{"row": row, "column": column, "value": value} for (row, column), value in one.cells.items()],
            }
            for one in log.matrices
        ],
        "warnings": list(log.warnings),
    }
    records = [
        Record(
            "cells", {"title": one.title, "measure": one.measure.value, "row": row, "column": column, "value": value}
        )
        for one in log.matrices
        for (row, column), value in one.cells.items()
    ]
    return Document(log.file, f"{log.program}, {log.gpu_count} GPUs", tuple(sections), content, tuple(records))


def perftest_document(log: PerftestLog) -> Document:
    """Tables of bandwidths; the largest one way is what a profile takes."""
    rows = [
        [
            f"ib_{one.operation or '?'}_bw",
            one.device or NOTHING,
            "GPU" if one.gpu else "host",
            "both ways" if one.bidirectional else "one way",
            NOTHING if one.qps is None else str(one.qps),
            str(len(one.rows)),
            str(one.best.size_bytes),
            number(one.best.bytes_per_s / 1e9),
            number(one.best.bytes_per_s * 8 / 1e9),
        ]
        for one in log.tables
    ]
    head = ["program", "device", "memory", "direction", ">queue pairs", ">rows", ">best at [B]", ">GB/s", ">Gbit/s"]
    sections = [Section("Tables", table=table(head, rows))]
    if log.warnings:
        sections.append(Section("To know", bullets=log.warnings))
    content = {
        "file": log.file,
        "status": "complete",
        "link_type": log.link_type,
        "tables": [{**plain(one), "best_bytes_per_s": one.best.bytes_per_s} for one in log.tables],
        "warnings": list(log.warnings),
    }
    records = [
        Record("rows", {"operation": one.operation, "gpu": one.gpu, **plain(row)})
        for one in log.tables
        for row in one.rows
    ]
    return Document(log.file, f"perftest, {len(log.tables)} tables", tuple(sections), content, tuple(records))


def log_document(measured: Measured) -> Document:
    """Tables of nccl-tests."""
    log = measured.log
    rows = [
        [
            " or ".join(kind.value for kind in one.collectives),
            NOTHING if one.ranks is None else str(one.ranks),
            NOTHING if one.nodes is None else str(one.nodes),
            ", ".join(one.gpu_names) or NOTHING,
            str(len(one.rows)),
            str(max(row.size_bytes for row in one.rows)),
        ]
        for one in log.tables
    ]
    head = ["collective", ">ranks", ">nodes", "~GPUs", ">rows", ">largest [B]"]
    sections = [Section("Tables", table=table(head, rows))]
    notes = tuple(str(note) for note in log.notes)
    if notes:
        sections.append(Section("To know", bullets=notes))
    content = {
        "file": log.file,
        "status": "complete",
        "nccl_version": log.nccl_version,
        "tests_version": log.tests_version,
        "date": log.date,
        "tables": [
            {
                "collective": one.collective.value if one.collective else None,
                "collectives": [kind.value for kind in one.collectives],
                "ranks": one.ranks,
                "nodes": one.nodes,
                "gpus": list(one.gpu_names),
                "rows": [
                    {"size_bytes": row.size_bytes, "times_s": [place.time_s for place in row.places]}
                    for row in one.rows
                ],
            }
            for one in log.tables
        ],
        "warnings": list(notes),
    }
    records = [
        Record("rows", {"collective": row[0], "size_bytes": one.size_bytes, "time_s": one.places[0].time_s})
        for row, table_ in zip(rows, log.tables, strict=True)
        for one in table_.rows
    ]
    return Document(log.file, "nccl-tests", tuple(sections), content, tuple(records))


def refused_document(file: str, reason: str) -> Document:
    """A file of which nothing was taken."""
    content = {"file": file, "status": "refused", "reason": reason, "warnings": [reason]}
    return Document(file, "refused", (Section("Refused", text=(reason,)),), content, (Record("file", content),))


def joined(documents: Sequence[Document]) -> Document:
    """Several documents as one."""
    sections = tuple(
        Section(f"{one.title}: {part.title}", part.text, part.table, part.bullets, part.note)
        for one in documents
        for part in one.sections
    )
    records = tuple(record for one in documents for record in one.records)
    return Document(f"{len(documents)} files", "", sections, [one.content for one in documents], records)
