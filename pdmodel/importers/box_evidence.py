"""Files of one box, read: each with its name and what identifies it, by the tool that wrote it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pdmodel.errors import InputError
from pdmodel.importers import lspci, nccl_tests, nccl_xml, p2p, perftest, topo
from pdmodel.importers.findings import Kind, TopologyFindings
from pdmodel.importers.nccl_calibration import Measured
from pdmodel.importers.pci import DeviceKind
from pdmodel.importers.text_bytes import text_of

Found = TypeVar("Found")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FileOf(Generic[Found]):
    """A file's name, its SHA-256, what was read from it, and the tool in words."""

    file: str
    sha256: str
    found: Found
    tool: str

    @property
    def base(self) -> str:
        """The name without folders."""
        return re.split(r"[/\\]", self.file)[-1]

    def source(self, kind: str, note: str) -> dict[str, str]:
        """The file as a source of a profile."""
        return {"kind": kind, "ref": f"{self.tool}, file {self.base}, sha256 {self.sha256}", "note": note}


@dataclass(frozen=True, slots=True)
class NicsOption:
    """``--nics N@GBIT``: how many adapters, and the line rate of each [Gbit/s]."""

    count: int
    gbit_per_s: float


@dataclass(frozen=True, slots=True)
class BoxEvidence:
    """All that is known of a box: files by kind, and what its owner says of it."""

    topo: tuple[FileOf[TopologyFindings], ...] = ()
    nccl_xml: tuple[FileOf[nccl_xml.NcclSystem], ...] = ()
    lspci: tuple[FileOf[lspci.Lspci], ...] = ()
    p2p: tuple[FileOf[p2p.P2pLog], ...] = ()
    perftest: tuple[FileOf[perftest.PerftestLog], ...] = ()
    logs: tuple[FileOf[Measured], ...] = ()
    gpu: str | None = None
    nics: NicsOption | None = None

    def files(self) -> Iterator[FileOf[Any]]:
        """Every file, in the order of the fields."""
        for part in (self.topo, self.nccl_xml, self.lspci, self.p2p, self.perftest, self.logs):
            yield from part


def nics_option(text: str) -> NicsOption:
    """``N@GBIT`` as typed.

    >>> nics_option("2@200")
    NicsOption(count=2, gbit_per_s=200.0)
    """
    found = re.fullmatch(r"([0-9]{1,3})@([0-9]{1,4}(?:\.[0-9]{1,3})?)(?:G|Gbit|Gb)?", text.strip())
    if found is None or int(found[1]) < 1 or float(found[2]) <= 0:
        raise InputError(f"--nics {text[:40]!r}", expected="N@GBIT, such as 8@400: how many, and Gbit/s of each")
    return NicsOption(int(found[1]), float(found[2]))


def digest(content: bytes) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(content).hexdigest()


def read_topo(content: bytes, file: str) -> FileOf[TopologyFindings]:
    """A matrix of distances, or of P2P capabilities; `InputError` with the reason for one that is refused."""
    found = topo.read(content, file)
    if found.status == "refused" and not found.p2p:
        raise InputError(found.reason, file=file, expected="nvidia-smi topo -m, or rocm-smi --showtopo")
    return FileOf(file, digest(content), found, found.kind.value)


def read_nccl_xml(content: bytes, file: str) -> FileOf[nccl_xml.NcclSystem]:
    """An NCCL or RCCL topology file."""
    return FileOf(file, digest(content), nccl_xml.parse(content, file), Kind.NCCL_XML.value)


def read_lspci(content: bytes, file: str) -> FileOf[lspci.Lspci]:
    """The output of lspci."""
    return FileOf(file, digest(content), lspci.parse(text_of(content, file), file), "lspci")


def read_p2p(content: bytes, file: str) -> FileOf[p2p.P2pLog]:
    """The output of p2pBandwidthLatencyTest or nvbandwidth."""
    found = p2p.parse(text_of(content, file), file)
    return FileOf(file, digest(content), found, found.program)


def read_perftest(content: bytes, file: str) -> FileOf[perftest.PerftestLog]:
    """The output of ib_write_bw and its like."""
    return FileOf(file, digest(content), perftest.parse(text_of(content, file), file), "perftest")


def read_log(content: bytes, file: str, ranks: int | None = None) -> FileOf[Measured]:
    """A log of nccl-tests; ``ranks`` where it does not tell."""
    found = nccl_tests.parse(nccl_tests.decoded(content, file), file, ranks=ranks)
    checksum = digest(content)
    return FileOf(file, checksum, Measured(found, checksum), "nccl-tests")


def merged_lspci(files: Sequence[FileOf[lspci.Lspci]]) -> lspci.Lspci | None:
    """Several outputs of one machine as one: the largest tree, details of all, counts of ACS added."""
    if not files:
        return None
    found = [item.found for item in files]
    largest = max(found, key=lambda one: len(one.devices))
    details: dict[str, lspci.Details] = {}
    for one in found:
        details.update(one.details)
    redirects = sum(one.redirects[0] for one in found), sum(one.redirects[1] for one in found)
    return lspci.with_details(largest, details, redirects)


def gpu_names(evidence: BoxEvidence) -> Mapping[str, str]:
    """Names of the GPUs by the files, name -> file, the surest first."""
    names: dict[str, str] = {}
    for log in evidence.logs:
        for table in log.found.log.tables:
            for device in table.devices:
                names.setdefault(device.gpu, log.base)
    for item in evidence.p2p:
        for name in item.found.gpus.values():
            names.setdefault(name, item.base)
    for system in evidence.nccl_xml:
        for card in system.found.of_kind(DeviceKind.GPU):
            if card.name:
                names.setdefault(card.name, system.base)
    for listing in evidence.lspci:
        for card in listing.found.of_kind(DeviceKind.GPU):
            names.setdefault(card.name, listing.base)
        for details in listing.found.details.values():
            if not listing.found.devices and (name := lspci.gpu_name(details)):
                names.setdefault(name, listing.base)
    return names
