"""NICs of a box: where they hang, their line rate, what they reach, and how far GPU memory is from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pdmodel.importers.box_evidence import BoxEvidence, FileOf
from pdmodel.importers.box_ledger import Claim, Fact, Ledger, both_ways, figure
from pdmodel.importers.box_links import arithmetic, assumed_link
from pdmodel.importers.box_tree import BoxTree, Leaf, classes
from pdmodel.importers.pci import Link
from pdmodel.importers.perftest import BandwidthTable, PerftestLog

# An adapter that an x16 slot of that generation feeds [Gbit/s], and the share of the wire that is useful.
_FEEDS = {1: 10, 2: 40, 3: 100, 4: 200, 5: 400, 6: 800}
_USEFUL = 0.92
_RATES = (10, 25, 40, 50, 100, 200, 400, 800, 1600)
# Share of its rate that a NIC keeps on GPU memory through the CPU, by vendor of the CPU; and across sockets.
_THROUGH_CPU = {"amd": 0.8, "intel": 0.55, "": 0.7}
_ACROSS = 0.4
# Below this share of the line rate a measurement is hardly of that NIC.
_SLOW = 0.6
_FAR = ("PHB", "NODE", "SYS")


def placed(tree: BoxTree, evidence: BoxEvidence, generation: int, *, nvlink: bool, ledger: Ledger) -> BoxTree:
    """The tree with its NICs settled: those of the files, else those of ``--nics``, else one that is assumed."""
    real = tuple(nic for nic in tree.nics if nic.bus or tree.hypothesis)
    virtual = len(tree.nics) - len(real)
    if virtual and real:
        ledger.warnings.append(f"{virtual} NICs without a PCIe device (virtual) are left out")
        tree = replace(tree, nics=real)
    asked = evidence.nics
    if tree.nics:
        ports = sum(max(1, len(nic.ports)) for nic in tree.nics)
        if asked is not None and asked.count not in {len(tree.nics), ports}:
            ledger.conflicts.append(
                f"--nics says {asked.count} NICs, {tree.file} {len(tree.nics)} ({ports} ports): the file is taken"
            )
        return tree
    if asked is None:
        ledger.warnings.append("no file names a NIC, nor does --nics N@GBIT: one that fills an x16 slot is assumed")
    count = asked.count if asked is not None else 1
    if nvlink and count == len(tree.gpus) and not any(gpu.chain for gpu in tree.gpus):
        ledger.assumed.append("each GPU shares a switch with one NIC, as boxes of NVLink GPUs are built")
        gpus = tuple(replace(gpu, chain=(f"pair{k}",), root_port=f"pair{k}") for k, gpu in enumerate(tree.gpus))
        nics = tuple(
            Leaf(f"NIC{k}", gpu.chain, gpu.root_port, gpu.host_bridge, gpu.socket, ports=(f"NIC{k}",))
            for k, gpu in enumerate(gpus)
        )
        return replace(tree, gpus=gpus, nics=nics)
    ledger.assumed.append(
        f"{count} NIC{'s' * (count > 1)} on root ports of their own, in turn over {len(tree.sockets)} sockets"
    )
    nics = tuple(_alone(k, tree) for k in range(count))
    return replace(tree, nics=nics)


def _alone(k: int, tree: BoxTree) -> Leaf:
    socket = tree.sockets[k % len(tree.sockets)]
    neighbour = next((gpu for gpu in tree.gpus if gpu.socket == socket), tree.gpus[0])
    bridge = neighbour.host_bridge if not neighbour.host_bridge.startswith("alone:") else f"alone:nic{k}"
    return Leaf(f"NIC{k}", (), f"nic{k}", bridge, socket, ports=(f"NIC{k}",))


def nics_of(
    tree: BoxTree, evidence: BoxEvidence, generation: int, gpu_gb_per_s: float, *, vendor: str, ledger: Ledger,
    basis: str, gpudirect: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """``nics`` as a profile's file holds it but for ``attached_to``, and links of single NICs that differ."""
    line = _line_rate(tree, evidence, generation, ledger, basis)
    tables = [(item, table) for item in evidence.perftest for table in item.found.tables]
    line, achievable = _achievable(line, tables, ledger)
    capacities = [_pcie(nic, generation, basis, ledger) for nic in tree.nics]
    common = Counter((claim.value, claim.source) for claim in capacities).most_common(1)[0][0]
    pcie = Claim(*common)
    overrides = {f"nic{k}": both_ways(claim, claim) for k, claim in enumerate(capacities) if claim != pcie}
    raw: dict[str, Any] = {
        "line_rate_gbit_per_s": figure(line),
        "achievable_gb_per_s": figure(achievable),
        "pcie": both_ways(pcie, pcie),
    }
    if gpudirect:
        rates = _far_rates(tree, min(achievable.value, gpu_gb_per_s), vendor, tables, ledger)
        if rates:
            raw["gpu_rate"] = rates
    return raw, overrides


def _pcie(nic: Leaf, generation: int, basis: str, ledger: Ledger) -> Claim:
    if nic.link.generation is None or nic.link.idle or not basis:
        return assumed_link(generation, "a NIC on as fast a link as the GPUs", ledger)
    return arithmetic(Link(nic.link.gt_per_s, nic.link.lanes or 16), basis, ledger)


def _line_rate(tree: BoxTree, evidence: BoxEvidence, generation: int, ledger: Ledger, basis: str) -> Claim:
    claims = []
    told = [nic.gbit_per_s for nic in tree.nics if nic.gbit_per_s]
    if told and basis:
        most = Counter(told).most_common(1)[0][0]
        if len(set(told)) > 1 or len(told) < len(tree.nics):
            rates = ", ".join(f"{rate:g}" for rate in sorted(set(told)))
            ledger.warnings.append(f"NICs of several rates ({rates} Gbit/s): a profile has one, {most:g} is taken")
        entry = ledger.sources[basis]
        note = "speeds of all ports of a NIC together"
        claims.append(Claim(most, ledger.source("nic_speed", "datasheet", entry["ref"], note)))
    asked = evidence.nics
    if asked is not None:
        ports = [max(1, len(nic.ports)) for nic in tree.nics]
        by_port = asked.count == sum(ports) != len(ports)
        rate = asked.gbit_per_s * (max(ports) if by_port else 1)
        text = f"--nics {asked.count}@{asked.gbit_per_s:g}"
        note = f"{max(ports)} ports a card" if by_port else "line rate of each NIC"
        claims.append(Claim(rate, ledger.source("nics", "datasheet", text, note)))
    if not claims:
        source = ledger.source(
            "nic", "assumed", "no file tells the speed of the NICs", f"what a Gen{generation} x16 slot feeds"
        )
        claims.append(Claim(_FEEDS[generation], source))
    return ledger.choose("nics.line_rate", "Gbit/s", claims)


def _rate(table: BandwidthTable) -> float:
    """GB/s one way."""
    return table.best.bytes_per_s / (2 if table.bidirectional else 1) / 1e9


def _achievable(
    line: Claim, tables: Sequence[tuple[FileOf[PerftestLog], BandwidthTable]], ledger: Ledger
) -> tuple[Claim, Claim]:
    """Line rate and payload that is reached; a line rate that was only assumed gives way to a measurement."""
    host = [pair for pair in tables if not pair[1].gpu]
    best = max(host or tables, key=lambda pair: _rate(pair[1]), default=None)
    if best is None:
        note = f"{100 * _USEFUL:.0f} % of the line rate is useful"
        return line, Claim(_USEFUL * line.value / 8, ledger.source("nic_useful", "assumed", "wire overheads", note))
    item, table = best
    memory = "GPU" if table.gpu else "host"
    direction = "half of both ways" if table.bidirectional else "one way"
    note = f"ib_{table.operation or 'write'}_bw of {table.best.size_bytes} B messages, {memory} memory, {direction}"
    value, source = _rate(table), ledger.file("perftest", item, "measured", note)
    if value > line.value / 8:
        if ledger.kind(line.source) == "assumed":
            rate = next((rate for rate in _RATES if rate / 8 >= value), _RATES[-1])
            line = Claim(
                rate, ledger.source("nic_measured", "derived", "perftest", "the rate that what is reached needs")
            )
        else:
            ledger.conflicts.append(
                f"nics: {item.base} reaches {value:.4g} GB/s, more than the line rate of {line.value:g} Gbit/s: "
                "cut to the line rate"
            )
            value = line.value / 8
    elif ledger.kind(line.source) == "assumed" and value < _SLOW * line.value / 8:
        rate = next(rate for rate in _RATES if rate / 8 >= value)
        line = Claim(
            rate, ledger.source("nic_measured", "derived", "perftest", "the least rate that fits what is reached")
        )
    elif value < _SLOW * line.value / 8:
        ledger.conflicts.append(
            f"nics: {item.base} reaches {value:.4g} GB/s of a line rate of {line.value / 8:.4g}: the measurement is "
            "taken; was it of this NIC, and of one port?"
        )
    ledger.warnings += [f"{item.base}: {text}" for text in item.found.warnings]
    return line, Claim(min(value, line.value / 8), source)


def _far_rates(
    tree: BoxTree,
    least: float,
    vendor: str,
    tables: Sequence[tuple[FileOf[PerftestLog], BandwidthTable]],
    ledger: Ledger,
) -> dict[str, Any]:
    """What a NIC reaches on GPU memory through the CPU, by distance: measured at the nearest, assumed beyond it."""
    letters = classes(tree)
    ports = [nic.label for nic in tree.nics]
    seen = {letters[gpu.label][port] for gpu in tree.gpus for port in ports}
    on_gpu = [(item, table) for item, table in tables if table.gpu]
    rates: dict[str, Any] = {}
    for letter in _FAR:
        if letter not in seen:
            continue
        share = _ACROSS if letter == "SYS" else _THROUGH_CPU[vendor]
        where = "across sockets" if letter == "SYS" else f"through the CPU ({vendor.upper() or 'vendor not known'})"
        note = f"{share:g} of what NIC and GPU carry, {where}; published figures lie between 0.3 and 0.9"
        source = ledger.source("far_nic", "assumed", "a share for NICs far from GPUs", note)
        claim = Claim(share * least, source)
        if on_gpu and letter == min(seen & set(_FAR), key=_FAR.index) and not seen & {"PIX", "PXB"}:
            item, table = max(on_gpu, key=lambda pair: _rate(pair[1]))
            note = "GPU memory in the test; its GPU is taken as the nearest to the NIC"
            measured = Claim(_rate(table), ledger.file("perftest_gpu", item, "measured", note))
            claim = ledger.choose(f"nics.gpu_rate.{letter.lower()}", "GB/s", [measured, claim])
        rates[letter.lower()] = {"read_gb_per_s": figure(claim), "write_gb_per_s": figure(claim)}
    if rates:
        ledger.facts.append(Fact("NICs far from GPUs", ", ".join(rates), "distances"))
    return rates
