"""What a file says about a topology, for reading: one file with its groups and matrix, several as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.importers.findings import Level, Status, listed
from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.export import plain
from pdmodel.report.words import NOTHING

if TYPE_CHECKING:
    from pdmodel.importers.findings import Group, TopologyFindings

_LEVELS = {
    Level.CARD: "one card",
    Level.SWITCH: "one switch and its uplink",
    Level.SWITCH_TREE: "switches below one root port",
    Level.ROOT_COMPLEX: "one host bridge",
    Level.NUMA: "one NUMA node",
}


def findings_content(found: TopologyFindings) -> dict[str, Any]:
    """The JSON form: counts, then what they are of; null where the file does not tell."""
    told = found.status is not Status.REFUSED or bool(found.gpus)
    return {
        "file": found.file,
        "kind": found.kind.value,
        "status": found.status.value,
        "reason": found.reason,
        "gpus": len(found.gpus) if told else None,
        "nics": None if found.nics is None else len(found.nics),
        "nvlink": found.nvlink,
        "fabric": found.fabric,
        "nearest_nics": plain(found.nearest_nics),
        "distance": plain(found.distance),
        "warnings": [*([found.reason] if found.reason else []), *found.warnings],
        "gaps": list(found.gaps),
        "rows": found.rows,
        "rows_whole": found.rows_whole,
        "gpu_names": list(found.gpus),
        "nic_names": {nic: found.nic_names.get(nic) for nic in found.nics or ()},
        "twins": plain(found.twins),
        "groups": [
            {
                "level": group.level.value,
                "gpus": list(group.gpus),
                "nics": list(group.nics),
                "assumed": group.assumed,
                "why": group.why,
            }
            for group in found.groups
        ],
        "cpu_affinity": plain(found.cpu_affinity),
        "numa_affinity": plain(found.numa_affinity),
        "gpu_numa_id": plain(found.gpu_numa_id),
        "matrix": plain(found.matrix),
        "pcie_matrix": plain(found.pcie_matrix),
        "weights": plain(found.weights),
        "p2p": [{"capability": one.capability, "codes": plain(one.codes)} for one in found.p2p],
        "assumed": list(found.assumed),
    }


def findings_document(found: TopologyFindings) -> Document:
    """One file."""
    sections = [Section("Found", table=table(["what", "~value"], _facts(found)))]
    if found.warnings:
        sections.append(Section("To know", bullets=found.warnings))
    if found.nearest_nics:
        sections.append(Section("Nearest NICs", table=table(["GPU", "distance", "~NICs"], _near_rows(found))))
    if found.groups:
        rows = [[_LEVELS[one.level], listed(one.gpus) or NOTHING, listed(one.nics) or NOTHING] for one in found.groups]
        reasons = tuple(dict.fromkeys(f"{_LEVELS[one.level]}: {one.why}{_mark(one)}" for one in found.groups))
        head = ["may share", "~GPUs", "~NICs"]
        sections.append(Section("Hypothesis", table=table(head, rows), bullets=reasons))
    if found.matrix:
        labels = list(found.matrix)
        rows = [[row, *(found.matrix[row].get(column) or "?" for column in labels)] for row in labels]
        sections.append(Section("Matrix", table=table(["", *labels], rows)))
    if found.p2p:
        sections.append(_p2p_section(found))
    if found.assumed:
        sections.append(Section("Assumed", bullets=found.assumed))
    content = findings_content(found)
    return Document(found.file, _result(found), tuple(sections), content, tuple(_records(found, content)))


def findings_table(files: Sequence[TopologyFindings]) -> Document:
    """Several files, one a line."""
    rows = [
        [
            found.file,
            _result(found),
            str(len(found.gpus) or NOTHING),
            NOTHING if found.nics is None else str(len(found.nics)),
            _fabric(found),
            "; ".join(found.warnings) or NOTHING,
        ]
        for found in files
    ]
    head = ["file", "~result", ">GPUs", ">NICs", "NVLink", "~warnings"]
    counts = {status: sum(found.status is status for found in files) for status in Status}
    note = ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)
    section = Section("Files", table=table(head, rows), note=note)
    content = [findings_content(found) for found in files]
    keys = ("file", "kind", "status", "reason", "gpus", "nics", "nvlink", "fabric", "warnings")
    records = tuple(Record("files", {key: one[key] for key in keys}) for one in content)
    return Document(f"{len(files)} files", "", (section,), content, records)


def _result(found: TopologyFindings) -> str:
    """The status in a sentence, as a table of files has it."""
    if found.status is Status.REFUSED:
        return f"refused: {found.reason}"
    if found.status is Status.PARTIAL and found.rows_whole < found.rows:
        return f"partial: {found.rows_whole} of {found.rows} rows whole"
    return found.status.value


def _fabric(found: TopologyFindings) -> str:
    if found.fabric == "xgmi":
        return "xGMI"
    return {True: "yes", False: "no", None: NOTHING, "partial": "partial"}[found.nvlink]


def _facts(found: TopologyFindings) -> list[list[str]]:
    names = [f"{nic} ({name})" if (name := found.nic_names.get(nic, nic)) != nic else nic for nic in found.nics or ()]
    facts = {
        "output of": found.kind.value,
        "GPUs": listed(found.gpus) or NOTHING,
        "NICs": NOTHING if found.nics is None else ", ".join(names) or "none",
        "xGMI" if found.fabric == "xgmi" else "NVLink": "yes" if found.fabric == "xgmi" else _fabric(found),
        "NUMA": _by_value(found.numa_affinity),
        "CPUs": _by_value(found.cpu_affinity),
        "memory of GPUs on NUMA node": _by_value(found.gpu_numa_id),
    }
    return [[key, value] for key, value in facts.items() if value]


def _by_value(column: Mapping[str, str | None]) -> str:
    """``0: GPU0 to GPU3; 1: ...``; empty where nothing is known."""
    values = dict.fromkeys(value for value in column.values() if value is not None)
    parts = [f"{value}: {listed([name for name, own in column.items() if own == value])}" for value in values]
    return "; ".join(parts)


def _near_rows(found: TopologyFindings) -> list[list[str]]:
    return [[gpu, found.distance[gpu] or "?", listed(nics) or "?"] for gpu, nics in found.nearest_nics.items()]


def _mark(group: Group) -> str:
    return " (assumed)" if group.assumed else ""


def _p2p_section(found: TopologyFindings) -> Section:
    words = {"r": "read", "w": "write", "n": "NVLink", "a": "atomics", "p": "PCIe"}
    rows = [
        [", ".join(words.get(letter, letter) for letter in one.capability) or NOTHING, row, column, str(code)]
        for one in found.p2p
        for row, cells in one.codes.items()
        for column, code in cells.items()
        if row != column
    ]
    return Section("P2P", table=table(["of", "from", "to", "status"], rows))


def _records(found: TopologyFindings, content: Mapping[str, Any]) -> list[Record]:
    keys = ("file", "kind", "status", "reason", "gpus", "nics", "nvlink", "fabric", "rows", "rows_whole")
    records = [Record("file", {key: content[key] for key in keys})]
    records += [
        Record("nearest_nics", {"gpu": gpu, "distance": found.distance[gpu], "nics": list(nics)})
        for gpu, nics in found.nearest_nics.items()
    ]
    records += [Record("groups", group) for group in content["groups"]]
    records += [
        Record("matrix", {"from": row, "to": column, "code": code})
        for row, cells in found.matrix.items()
        for column, code in cells.items()
        if row != column
    ]
    records += [Record("warnings", {"text": text}) for text in found.warnings]
    return [*records, *(Record("assumed", {"text": text}) for text in found.assumed)]
