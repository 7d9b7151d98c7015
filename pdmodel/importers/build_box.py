"""From files of a box to its profile: better evidence overrides weaker, every figure keeps its source.

Order of evidence: a tree from an NCCL file or lspci before the hypothesis of ``topo -m``; a link's rate from measured
copies before the arithmetic of its speed and width, and that before data sheets; collectives from nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pdmodel.errors import InputError
from pdmodel.hardware.catalog import list_profiles, load_profile
from pdmodel.hardware.figures import source_ids
from pdmodel.hardware.gpu_facts import GpuFacts, gpu_facts, same_gpu
from pdmodel.hardware.profile import HardwareProfile
from pdmodel.importers import nccl_xml_findings
from pdmodel.importers.box_copies import Copies, copies
from pdmodel.importers.box_evidence import BoxEvidence, gpu_names, merged_lspci
from pdmodel.importers.box_ledger import Claim, Fact, Ledger, figure
from pdmodel.importers.box_links import Fabric, Links, links_of
from pdmodel.importers.box_nics import nics_of, placed
from pdmodel.importers.box_shape import tree_of
from pdmodel.importers.box_tree import BoxTree
from pdmodel.importers.findings import Kind, TopologyFindings
from pdmodel.importers.lspci import Lspci, is_nic
from pdmodel.importers.nccl_calibration import Calibration, Measured, calibrate
from pdmodel.importers.nccl_log import Device
from pdmodel.spec import SourceKind

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """A figure of the profile and where it is from."""

    path: str
    value: float
    source: str
    kind: SourceKind


@dataclass(frozen=True, slots=True)
class BuiltBox:
    """``raw`` is the profile as its file holds it; ``facts`` what it holds without figures, and who told them.

    ``assumed`` names every figure and every choice for which there was no evidence.
    """

    raw: Mapping[str, Any]
    profile: HardwareProfile
    taken: tuple[Taken, ...]
    facts: tuple[Fact, ...]
    conflicts: tuple[str, ...]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    calibration: Calibration | None


def build_box(evidence: BoxEvidence, name: str, progress: Progress | None = None) -> BuiltBox:
    """The profile that files of one box give.

    Parameters: ``evidence``; ``name`` of the profile; ``progress``: called with what is being done.
    Returns: `BuiltBox`, whose profile holds.
    Raises: `InputError` where no file names the GPU and nobody says it, no file tells how many there are, or a log of
    nccl-tests cannot be of this box.
    """
    ledger = Ledger()
    driver_name, facts = _gpu(evidence, ledger)
    listing = merged_lspci(evidence.lspci)
    tree, basis = tree_of(evidence, listing, ledger)
    fabric = _fabric(evidence, ledger)
    tree = placed(tree, evidence, facts.pcie_generation if facts else 4, nvlink=_expects(fabric, facts), ledger=ledger)
    found = copies(evidence.p2p, tree, ledger)
    links = links_of(tree, facts, fabric, found, ledger=ledger, basis=basis)
    flags = _flags(evidence, tree, listing, facts=facts, found=found, ledger=ledger)
    direct = flags["gpudirect_rdma"] != "none"
    vendor = _vendor(evidence)
    nics, overrides = nics_of(
        tree,
        evidence,
        links.generation,
        links.gpu_gb_per_s,
        vendor=vendor,
        ledger=ledger,
        basis=basis,
        gpudirect=direct,
    )
    raw = _assembled(name, driver_name, facts, tree=tree, links=links, nics=nics, flags=flags, ledger=ledger)
    if overrides:
        raw["links"].setdefault("overrides", {}).update(overrides)
    raw["max_read_request"] = _read_requests(evidence, listing, ledger)
    raw["guard_share"] = _guard(ledger)
    _compute(raw, driver_name, facts, ledger)
    raw["sources"] = _used(raw, ledger)
    calibration = _calibrated(raw, evidence, driver_name, ledger, progress)
    if calibration is not None:
        raw = dict(calibration.raw)
        ledger.warnings += calibration.warnings
        ledger.facts += [
            Fact(change.what, f"{change.before} -> {change.after}", "nccl-tests") for change in calibration.changes
        ]
    raw["summary"] = _summary(evidence, raw)
    return _built(raw, ledger, tree, calibration)


# ---- GPU -------------------------------------------------------------------------------------------------------------


def _gpu(evidence: BoxEvidence, ledger: Ledger) -> tuple[str, GpuFacts | None]:
    names = gpu_names(evidence)
    if evidence.gpu is None and not names:
        raise InputError(
            "no file names the GPU", expected="--gpu NAME, as nvidia-smi prints it: its data sheet is needed"
        )
    name, told_by = (evidence.gpu, "--gpu") if evidence.gpu is not None else next(iter(names.items()))
    known = gpu_facts(name)
    memory = known[0].memory_gib if known is not None else None
    for other, file in names.items():
        if other != name and not same_gpu(other, name, memory) and not (known and _sheet(other) == known[0].name):
            ledger.conflicts.append(f"GPU: {told_by} says {name}, {file} {other}: {name} is taken")
    ledger.facts.append(Fact("GPU", known[0].name if known is not None else name, told_by))
    if known is None:
        ledger.warnings.append(f"no data sheet of {name!r} is known: memory, peaks and links are placeholders")
    return name, known[0] if known is not None else None


def _sheet(name: str) -> str:
    known = gpu_facts(name)
    return known[0].name if known is not None else ""


def _gpu_section(name: str, facts: GpuFacts | None, count: int, ledger: Ledger) -> dict[str, Any]:
    if facts is None:
        source = ledger.source("gpu", "assumed", "placeholder", f"nothing is known of {name!r}: enter its data sheet")
        memory, hbm, peaks = 24.0, 900.0, {"bf16": 150.0}
    else:
        known = gpu_facts(name)
        sheet = known[1].model_dump(mode="json") if known is not None else {}
        source = ledger.source("gpu", sheet["kind"], sheet["ref"], sheet["note"])
        memory, hbm, peaks = facts.memory_gib, facts.hbm_gb_per_s, dict(facts.peak_tflops)
    return {
        "name": facts.name if facts is not None else name,
        "count": count,
        "memory_gib": figure(Claim(memory, source)),
        "hbm_gb_per_s": figure(Claim(hbm, source)),
        "peak_tflops": {dtype: figure(Claim(peak, source)) for dtype, peak in peaks.items()},
    }


# ---- NVLink, flags, settings -----------------------------------------------------------------------------------------


def _fabric(evidence: BoxEvidence, ledger: Ledger) -> Fabric:
    """NVLink as a driver shows it: the NCCL file's tags first, then the letters of ``topo -m``."""
    found = list(_fabrics(evidence))
    for other in found[1:]:
        if other.seen != found[0].seen:
            words = {True: "between all GPUs", False: "nowhere", "partial": "between some GPUs", None: "unknown"}
            ledger.conflicts.append(
                f"NVLink: {words[found[0].seen]} by {found[0].told_by}, which is taken; {words[other.seen]} by "
                f"{other.told_by}"
            )
    return found[0] if found else Fabric(None)


def _fabrics(evidence: BoxEvidence) -> Iterator[Fabric]:
    for system in evidence.nccl_xml:
        if not system.found.template:
            seen = nccl_xml_findings.joined(system.found)
            counts = [sum(link.count for link in gpu.fabric if link.kind == "nvlink") for gpu in system.found.gpus]
            yield Fabric(seen, min(counts, default=0), system.base)
    for item in evidence.topo:
        if item.found.kind is Kind.TOPO_M and item.found.nvlink is not None and item.found.gpus:
            yield Fabric(item.found.nvlink, _nvlinks(item.found.matrix, item.found.gpus), item.base)
        if item.found.kind is Kind.ROCM_SMI and item.found.gpus:
            yield Fabric(_xgmi(item.found), 0, item.base)


def _xgmi(found: TopologyFindings) -> bool | Literal["partial"]:
    """Whether rocm-smi shows xGMI between all pairs, some, or none."""
    codes = [found.matrix[one][two] for one in found.gpus for two in found.gpus if one != two]
    linked = [code == "XGMI" for code in codes if code is not None]
    return bool(linked) and (True if all(linked) else "partial" if any(linked) else False)


def _nvlinks(matrix: Mapping[str, Mapping[str, str | None]], gpus: tuple[str, ...]) -> int:
    """NVLinks of a GPU by its row: all of them go to each other GPU over a switch, else their sum is meant."""
    code = [matrix[gpus[0]][other] or "" for other in gpus[1:]]
    counts = [int(word[2:]) for word in code if word.startswith("NV") and word[2:].isdigit()]
    if not counts:
        return 0
    switched = (len(set(counts)) == 1 and sum(counts) > 18) or len(counts) == 1
    return counts[0] if switched else sum(counts)


def _expects(fabric: Fabric, facts: GpuFacts | None) -> bool:
    return fabric.seen is True or (fabric.seen is None and facts is not None and facts.nvlink_gb_per_s is not None)


def _flags(
    evidence: BoxEvidence,
    tree: BoxTree,
    listing: Lspci | None,
    *,
    facts: GpuFacts | None,
    found: Copies,
    ledger: Ledger,
) -> dict[str, Any]:
    geforce = facts.geforce if facts is not None else "geforce" in (evidence.gpu or "").lower()
    p2p: Literal["refused", "posted_writes"] = "refused" if geforce else "posted_writes"
    told_by = "its driver's default" if geforce else "assumed"
    codes = [
        (item.base, one) for item in evidence.topo for one in item.found.p2p if not set(one.capability) - set("rw")
    ]
    for base, matrix in codes:
        p2p, told_by = ("refused" if matrix.refused else "posted_writes"), f"topo -p2p, {base}"
        pairs = len(matrix.codes) * (len(matrix.codes) - 1)
        if 0 < len(matrix.refused) < pairs:
            ledger.warnings.append(
                f"{base}: P2P is refused between {len(matrix.refused)} of {pairs} pairs: a profile has one flag, so it "
                "counts as refused"
            )
    if found.refused or found.allowed:
        measured: Literal["refused", "posted_writes"] = "posted_writes" if found.allowed else "refused"
        if measured != p2p and codes:
            ledger.conflicts.append(f"P2P: {told_by} says {p2p}, the copies {measured}: the copies are taken")
        p2p, told_by = measured, "measured copies"
    ledger.facts.append(Fact("P2P", p2p, told_by))
    if told_by == "assumed":
        ledger.assumed.append(
            "P2P between GPUs is allowed by the driver: topo -p2p w, or p2pBandwidthLatencyTest, tells"
        )
    direct = [leaf.gpudirect for leaf in (*tree.gpus, *tree.nics) if leaf.gpudirect is not None]
    if direct:
        gdr, who = ("none" if not all(direct) else "full"), tree.file
    else:
        gdr, who = ("none" if geforce else "full"), "its driver's default" if geforce else "assumed"
    if who == "assumed":
        ledger.assumed.append("GPUDirect RDMA works (nvidia_peermem or DMA-BUF is there)")
    ledger.facts.append(Fact("GPUDirect RDMA", gdr, who))
    acs = listing is not None and _redirected(listing)
    if listing is not None and listing.redirects[1]:
        ledger.facts.append(Fact("ACS redirect", "on" if acs else "off", "lspci"))
    return {"p2p": p2p, "gpudirect_rdma": gdr, "acs_redirect": acs}


def _redirected(listing: Lspci) -> bool:
    """Whether a bridge above a GPU redirects P2P; of a list of settings alone, whether any does."""
    from pdmodel.importers.pci import DeviceKind, above

    gpus = listing.of_kind(DeviceKind.GPU)
    over = {bus for gpu in gpus for bus in above(gpu, listing.devices)}
    known = [
        details.redirects for bus, details in listing.details.items() if bus in over and details.redirects is not None
    ]
    return any(known) if known else listing.redirects[0] > 0


def _vendor(evidence: BoxEvidence) -> str:
    texts = [cpu.vendor for item in evidence.nccl_xml for cpu in item.found.cpus]
    for item in evidence.lspci:
        texts += [device.name for bus, device in item.found.devices.items() if bus[5:] == "00:00.0"]
    text = " ".join(texts).lower()
    return "amd" if "amd" in text else "intel" if "intel" in text else ""


def _read_requests(evidence: BoxEvidence, listing: Lspci | None, ledger: Ledger) -> dict[str, Any]:
    """MaxReadReq of NICs and GPUs as lspci shows it, else the usual setting."""
    from pdmodel.importers.lspci import gpu_name

    details = list(listing.details.values()) if listing is not None else []
    found = {
        "nic_bytes": [one.read_request_bytes for one in details if one.read_request_bytes and is_nic(one)],
        "copy_engine_bytes": [one.read_request_bytes for one in details if one.read_request_bytes and gpu_name(one)],
    }
    raw = {}
    for key, values in found.items():
        if values and evidence.lspci:
            item = next(one for one in evidence.lspci if any(d.read_request_bytes for d in one.found.details.values()))
            source = ledger.file("lspci", item, "measured", "MaxReadReq in force")
            raw[key] = figure(Claim(min(values), source))
        else:
            source = ledger.source("reads", "assumed", "lspci of common boxes", "MaxReadReq 512 is the usual setting")
            raw[key] = figure(Claim(512, source))
    return raw


def _guard(ledger: Ledger) -> dict[str, Any]:
    note = "3 % of the capacity stays free while critical traffic is active, as much as runs differ"
    return figure(Claim(0.03, ledger.source("guard", "assumed", "design choice", note)))


# ---- the profile -----------------------------------------------------------------------------------------------------


def _assembled(
    name: str, driver_name: str, facts: GpuFacts | None, *, tree: BoxTree, links: Links, nics: dict[str, Any],
    flags: dict[str, Any], ledger: Ledger,
) -> dict[str, Any]:  # fmt: skip
    from pdmodel.importers.box_shape import shape

    raw_tree, attached = shape(tree, links.uplinks, links.raw, ledger)
    return {
        "schema_version": 1,
        "name": name,
        "summary": "",
        "sources": {},
        "gpu": _gpu_section(driver_name, facts, len(tree.gpus), ledger),
        "links": links.raw,
        "nics": {**nics, "attached_to": attached},
        "tree": raw_tree,
        "flags": flags,
    }


def _compute(raw: dict[str, Any], name: str, facts: GpuFacts | None, ledger: Ledger) -> None:
    """Constants of kernels from a shipped profile of the same GPU: they belong to the GPU, not to the box."""
    for shipped in list_profiles():
        profile = load_profile(shipped)
        same = same_gpu(name, profile.gpu.name, profile.gpu.memory_gib.value)
        if not (same or (facts is not None and _sheet(profile.gpu.name) == facts.name)):
            continue
        section = profile.compute.model_dump(mode="json", exclude_defaults=True)
        if not section:
            continue
        names = {}
        for _, source in source_ids(profile.compute):
            entry = profile.sources[source].model_dump(mode="json")
            names[source] = ledger.source(f"compute_{source}", entry["kind"], entry["ref"], entry["note"])
        raw["compute"] = _renamed(section, names)
        ledger.facts.append(Fact("times of kernels", f"those of {shipped}, which has the same GPU", "shipped profile"))
        return
    ledger.assumed.append("times of kernels: no shipped profile has this GPU, so general shares of its data sheet")


def _renamed(part: Any, names: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {
            key: names.get(value, value) if key == "source" and isinstance(value, str) else _renamed(value, names)
            for key, value in part.items()
        }
    return [_renamed(item, names) for item in part] if isinstance(part, list) else part


def _used(raw: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    """Sources that a figure has, and the files from which the tree is."""
    profile = HardwareProfile.model_validate({**raw, "sources": ledger.sources})
    used = {source for _, source in source_ids(profile)}
    return {
        name: entry
        for name, entry in ledger.sources.items()
        if name in used or name.startswith(("tree", "nvlink_seen"))
    }


def _calibrated(
    raw: dict[str, Any], evidence: BoxEvidence, gpu: str, ledger: Ledger, progress: Progress | None
) -> Calibration | None:
    if not evidence.logs:
        return None
    count = raw["gpu"]["count"]
    logs = []
    for item in evidence.logs:
        tables = []
        for table in item.found.log.tables:
            known = replace(table, devices=tuple(_known(device, gpu) for device in table.devices))
            if table.ranks is None:
                ledger.assumed.append(f"{item.base} does not tell its ranks: all {count} GPUs of the box")
                known = replace(known, ranks=count, ranks_from="taken as all GPUs of the box")
            tables.append(known)
        logs.append(Measured(replace(item.found.log, tables=tuple(tables)), item.sha256))
    return calibrate(logs, raw, name=raw["name"], gpu=gpu, progress=progress)


def _known(device: Device, gpu: str) -> Device:
    """The device under the box's GPU where its own name is in no data sheet, as of an engineering sample."""
    return device if gpu_facts(device.gpu) is not None or gpu_facts(gpu) is None else replace(device, gpu=gpu)


def _summary(evidence: BoxEvidence, raw: Mapping[str, Any]) -> str:
    tools = list(dict.fromkeys(item.tool for item in evidence.files()))
    nics, count = raw["nics"], len(raw["nics"]["attached_to"])
    return (
        f"{raw['gpu']['count']} x {raw['gpu']['name']}, {count} NIC{'s' * (count > 1)} of "
        f"{nics['line_rate_gbit_per_s']['value']:g} Gbit/s, built from {', '.join(tools) or 'options alone'}; "
        "see the sources for what was measured, derived and assumed."
    )


def _built(raw: dict[str, Any], ledger: Ledger, tree: BoxTree, calibration: Calibration | None) -> BuiltBox:
    profile = HardwareProfile.parse(raw)
    taken = tuple(figures(profile.model_dump(mode="json"), profile))
    assumed = list(ledger.assumed)
    groups: dict[str, list[str]] = {}
    for one in taken:
        if one.kind is SourceKind.ASSUMED and not one.path.startswith("compute."):
            groups.setdefault(one.source, []).append(f"{one.path} = {one.value:g}")
    for source, paths in groups.items():
        entry = profile.sources[source]
        more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
        assumed.append(f"{', '.join(paths[:2])}{more}: {entry.ref}; {entry.note}")
    return BuiltBox(
        raw=raw,
        profile=profile,
        taken=taken,
        facts=tuple(ledger.facts),
        conflicts=tuple(dict.fromkeys(ledger.conflicts)),
        assumed=tuple(dict.fromkeys(assumed)),
        warnings=tuple(dict.fromkeys(ledger.warnings)),
        calibration=calibration,
    )


def figures(part: Any, profile: HardwareProfile, path: str = "") -> list[Taken]:
    """Every figure of a profile with its path, value and source."""
    if isinstance(part, dict):
        if set(part) == {"value", "source"}:
            return [Taken(path, part["value"], part["source"], profile.kind_of(part["source"]))]
        found = []
        for key, value in part.items():
            found += figures(value, profile, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(part, list):
        return [one for k, item in enumerate(part) for one in figures(item, profile, f"{path}.{k}")]
    return []
