"""Inputs for reading: boxes with their ports and sources, scenarios key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, Table, table
from pdmodel.report.words import NOTHING, gb_per_s, group, merged_name, name_pattern, number, percent
from pdmodel.units import GIB

if TYPE_CHECKING:
    from pdmodel.hardware.profile import HardwareProfile
    from pdmodel.hardware.topology import Box
    from pdmodel.scenario import Scenario

WHAT_NEXT = {
    "hardware": "pdmodel hardware show NAME",
    "llm": "pdmodel llm show NAME",
    "engine": "pdmodel engine show NAME, pdmodel engine compare SCENARIO",
    "scenario": "pdmodel plan NAME",
}


def hardware_list(profiles: Sequence[HardwareProfile]) -> Document:
    """The known boxes, one a line."""
    rows = [
        {
            "name": profile.name,
            "gpu": profile.gpu.name,
            "gpus": profile.gpu.count,
            "nics": profile.nics.count if profile.nics else 0,
            "nvlink": profile.links.nvlink is not None,
            "p2p": profile.flags.p2p.value,
            "gpudirect_rdma": profile.flags.gpudirect_rdma.value,
            "summary": profile.summary,
        }
        for profile in profiles
    ]
    heads = ["name", "~GPU", ">GPUs", ">NICs", "NVLink", "P2P", "GPUDirect"]
    return _listing("hardware", "Hardware profiles", heads, rows, about="summary")


def hardware_document(profile: HardwareProfile, box: Box, *, full: bool = False) -> Document:
    """A box: what it is, its ports with capacity and source, what is known of its collectives, its sources."""
    ports = _port_rows(profile, box)
    facts = {
        "GPUs": f"{profile.gpu.count} x {profile.gpu.name}, {number(profile.gpu.memory_gib.value)} GiB each, "
        f"HBM {number(profile.gpu.hbm_gb_per_s.value)} GB/s",
        "peaks": ", ".join(f"{dtype} {number(peak.value)} TFLOP/s" for dtype, peak in profile.gpu.peak_tflops.items()),
        "NICs": f"{profile.nics.count} x {number(profile.nics.line_rate_gbit_per_s.value)} Gbit/s"
        if profile.nics
        else "none",
        "GPU to GPU": "NVLink" if profile.links.nvlink else f"PCIe, P2P {profile.flags.p2p.value}",
        "GPUDirect RDMA": profile.flags.gpudirect_rdma.value,
        "guard": f"{percent(profile.guard_share.value)} of each port while critical traffic is on it",
    }
    sections = [
        Section("Box", table=table(["what", "~value"], list(facts.items()))),
        _ports_section(ports, full=full),
        *([_collectives_section(profile)] if profile.collectives else []),
        *([_hazards_section(profile)] if profile.hazards else []),
        _sources_section(profile),
    ]
    content = {"profile": profile.model_dump(mode="json"), "ports": ports}
    records = [Record("ports", row) for row in ports]
    records += [
        Record("sources", {"name": name, **source.model_dump(mode="json")}) for name, source in profile.sources.items()
    ]
    return Document(profile.name, profile.summary, tuple(sections), content, tuple(records))


def _port_rows(profile: HardwareProfile, box: Box) -> list[dict[str, Any]]:
    """Ports under their names without the node; ``sources`` are the ids whose kind and note the port carries."""
    rows = []
    for port in box.ports:
        ids = [k for k, source in profile.sources.items() if (source.kind, source.note) == (port.source, port.note)]
        rows.append(
            {
                "name": port.name.removeprefix(box.node + "/"),
                "kind": port.kind.value,
                "capacity_bytes_per_s": port.capacity_bytes_per_s,
                "guard_bytes_per_s": port.guard_bytes_per_s,
                "discipline": port.discipline.value,
                "source": port.source.value,
                "sources": ids,
                "note": port.note,
            }
        )
    return rows


def _port_cells(row: Mapping[str, Any]) -> list[str]:
    rates = [gb_per_s(row["capacity_bytes_per_s"]), gb_per_s(row["guard_bytes_per_s"])]
    return [*rates, row["source"], " or ".join(row["sources"]) or row["note"] or NOTHING]


def _ports_section(ports: Sequence[Mapping[str, Any]], *, full: bool) -> Section:
    alike = (
        [[port] for port in ports]
        if full
        else group(ports, lambda row: (name_pattern(row["name"]), row["kind"], *_port_cells(row)))
    )
    rows = [[merged_name([row["name"] for row in found]), *_port_cells(found[0])] for found in alike]
    head = ["port", ">capacity [GB/s]", ">guard [GB/s]", "source", "~from"]
    note = f"{len(ports)} ports" + ("." if full else "; alike ones share a line, --full lists each.")
    return Section("Ports", table=table(head, rows), note=note)


def _collectives_section(profile: HardwareProfile) -> Section:
    from pdmodel.costs.collectives import fastest_branch

    rows = []
    for constants in profile.collectives:
        _, first = fastest_branch(constants.branches, 1)
        _, last = fastest_branch(constants.branches, GIB)
        fit = NOTHING if constants.mean_error is None else percent(constants.mean_error)
        protocols = ", ".join(dict.fromkeys(branch.protocol.value for branch in constants.branches))
        rows.append(
            [
                constants.operation.value,
                constants.implementation.value,
                str(constants.ranks) + (f" on {constants.nodes} nodes" if constants.nodes > 1 else ""),
                protocols,
                number(first.alpha_us),
                number(last.bandwidth_gb_per_s),
                fit,
                constants.source,
            ]
        )
    head = ["operation", "by", ">ranks", "protocols", ">alpha [us]", ">algbw [GB/s]", ">mean error", "source"]
    return Section("Collectives", table=table(head, rows))


def _hazards_section(profile: HardwareProfile) -> Section:
    return Section("Hazards", bullets=tuple(f"{hazard.kind.value}: {hazard.text}" for hazard in profile.hazards))


def _sources_section(profile: HardwareProfile) -> Section:
    lines = [
        f"{name} ({source.kind.value}): {source.ref}" + (f": {source.note}" if source.note else "")
        for name, source in profile.sources.items()
    ]
    return Section("Sources", bullets=tuple(lines))


def scenario_list(scenarios: Sequence[Scenario]) -> Document:
    """The shipped scenarios, one a line, with what each is for."""
    rows = [
        {
            "name": scenario.name,
            "llm": scenario.llm,
            "prefill": scenario.prefill.hardware,
            "expected_verdict": scenario.expected_verdict or "",
            "purpose": scenario.purpose,
        }
        for scenario in scenarios
    ]
    return _listing("scenario", "Scenarios", ["name", "LLM", "prefill on", "expected"], rows, about="purpose")


def scenario_document(scenario: Scenario, file: str) -> Document:
    """A scenario with every default filled in, key by key."""
    content = scenario.model_dump(mode="json")
    pairs = list(_flat(content))
    rows = [[key, NOTHING if value is None else str(value)] for key, value in pairs if key not in {"name", "purpose"}]
    section = Section(
        "Scenario",
        table=table(["key", "~value"], rows),
        note=f"From {file}. -: left to the engine, the profile or the default.",
    )
    records = tuple(Record("scenario", {"key": key, "value": value}) for key, value in pairs)
    return Document(scenario.name, scenario.purpose, (section,), content, records)


def problems_document(checked: Sequence[tuple[str, Sequence[Exception]]]) -> Document:
    """What validation found: a line a file that holds, a line a problem otherwise."""
    rows, files = [], []
    for file, problems in checked:
        files.append({"file": file, "valid": not problems, "problems": [str(problem) for problem in problems]})
        rows += [[file, "ok"]] if not problems else [[file, str(problem)] for problem in problems]
    section = Section("Files", table=table(["file", "~result"], rows))
    records = tuple(Record("files", {"file": row[0], "result": row[1]}) for row in rows)
    return Document("Validation", "", (section,), {"files": files}, records)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves with their JSON path; a list of plain values is one leaf."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for k, item in enumerate(value):
            yield from _flat(item, f"{path}.{k}")
    elif isinstance(value, list):
        yield path, ", ".join(str(item) for item in value)
    elif not isinstance(value, Mapping):
        yield path, value


def _listing(kind: str, title: str, heads: Sequence[str], rows: Sequence[Mapping[str, Any]], about: str) -> Document:
    """A table of names and facts, and below it what each one is ``about``."""
    words = {True: "yes", False: "no"}
    cells = [
        [words[value] if isinstance(value, bool) else str(value) for key, value in row.items() if key != about]
        for row in rows
    ]
    return list_document(kind, title, rows, table(heads, cells), tuple(f"{row['name']}: {row[about]}" for row in rows))


def list_document(
    kind: str, title: str, rows: Sequence[Mapping[str, Any]], content: Table, bullets: tuple[str, ...] = ()
) -> Document:
    """A list of what is known of a kind, one a line, and what to ask next."""
    section = Section(f"{len(rows)} known", table=content, bullets=bullets, note=f"Next: {WHAT_NEXT[kind]}")
    records = tuple(Record(kind, row) for row in rows)
    return Document(title, "", (section,), {kind: [dict(row) for row in rows]}, records)
