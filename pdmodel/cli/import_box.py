"""``pdmodel import nccl-xml``, ``lspci``, ``p2p``, ``perftest`` and ``nccl-tests``: what files about a box say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli.import_topo import REFUSED, show_findings
from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format
from pdmodel.errors import InputError

if TYPE_CHECKING:
    from pdmodel.cli.options import Format
    from pdmodel.importers.findings import TopologyFindings
    from pdmodel.report.document import Document

XML_EPILOG = "Example: NCCL_TOPO_DUMP_FILE=topo.xml all_reduce_perf -g 8; pdmodel import nccl-xml topo.xml"
LSPCI_EPILOG = "Example: sudo lspci -vvv > lspci.txt; pdmodel import lspci lspci.txt"
P2P_EPILOG = "Example: p2pBandwidthLatencyTest > p2p.txt; pdmodel import p2p p2p.txt"
PERFTEST_EPILOG = "Example: ib_write_bw -a SERVER > ib.txt; pdmodel import perftest ib.txt"
LOG_EPILOG = "Example: pdmodel import nccl-tests all_reduce.log"


def _files(what: str) -> object:
    return typer.Argument(metavar="FILE...", help=what)


def nccl_xml(
    files: Annotated[list[Path], _files("Topology files of NCCL or RCCL.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show an NCCL topology file: its tree with speeds and widths, GPUs, NICs, NVLink, and links that look wrong.

    One FILE is shown whole, several as a table. Exit code 3 if any is refused.
    """
    from pdmodel.cli.render import deliver
    from pdmodel.importers import nccl_xml as importer
    from pdmodel.importers.findings import Kind
    from pdmodel.importers.nccl_xml_findings import findings
    from pdmodel.report.box_files import nccl_document

    chosen = resolved_format(form, output)
    if len(files) == 1:
        try:
            system = importer.parse(_content(files[0]), str(files[0]))
        except InputError as error:
            show_findings([_refused(error, files[0], Kind.NCCL_XML)], chosen, output)
            return
        deliver(nccl_document(system, findings(system)), chosen, output)
        return
    show_findings(
        [_found(file, Kind.NCCL_XML, lambda data, name: findings(importer.parse(data, name))) for file in files],
        chosen,
        output,
    )


def lspci(
    files: Annotated[list[Path], _files("Outputs of lspci -tv or lspci -vvv.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show what lspci says: the tree, links (LnkCap, LnkSta), MaxPayload, MaxReadReq, ACS, NUMA nodes.

    One FILE is shown whole, several as a table. Exit code 3 if any is refused.
    """
    from pdmodel.cli.render import deliver
    from pdmodel.importers import lspci as importer
    from pdmodel.importers.findings import Kind
    from pdmodel.importers.lspci_findings import findings
    from pdmodel.importers.text_bytes import text_of
    from pdmodel.report.box_files import lspci_document

    chosen = resolved_format(form, output)
    if len(files) == 1:
        try:
            found = importer.parse(text_of(_content(files[0]), str(files[0])), str(files[0]))
        except InputError as error:
            show_findings([_refused(error, files[0], Kind.LSPCI)], chosen, output)
            return
        deliver(lspci_document(found, findings(found)), chosen, output)
        return

    def read(data: bytes, name: str) -> TopologyFindings:
        return findings(importer.parse(text_of(data, name), name))

    show_findings([_found(file, Kind.LSPCI, read) for file in files], chosen, output)


def p2p(
    files: Annotated[list[Path], _files("Outputs of p2pBandwidthLatencyTest or nvbandwidth.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show measured copies between GPUs and host: each matrix, pairs without P2P. Exit code 3 if any is refused."""
    from pdmodel.importers.box_evidence import read_p2p
    from pdmodel.report.box_files import p2p_document

    _deliver([lambda data, name: p2p_document(read_p2p(data, name).found)] * len(files), files, form, output)


def perftest(
    files: Annotated[list[Path], _files("Outputs of ib_write_bw, ib_read_bw or ib_send_bw.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show tables of perftest in GB/s. Exit code 3 if any is refused."""
    from pdmodel.importers.box_evidence import read_perftest
    from pdmodel.report.box_files import perftest_document

    _deliver([lambda data, name: perftest_document(read_perftest(data, name).found)] * len(files), files, form, output)


def nccl_tests(
    files: Annotated[list[Path], _files("Logs of nccl-tests.")],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show logs of nccl-tests: collective, ranks, GPUs, rows, and what to know. Exit code 3 if any is refused."""
    from pdmodel.importers.box_evidence import read_log
    from pdmodel.report.box_files import log_document

    _deliver([lambda data, name: log_document(read_log(data, name).found)] * len(files), files, form, output)


def _deliver(
    readers: Sequence[Callable[[bytes, str], Document]],
    files: Sequence[Path],
    form: Format | None,
    output: Path | None,
) -> None:
    """One document as it is, several one after the other; refusals as the last thing, then exit code 3."""
    from pdmodel.cli.render import deliver
    from pdmodel.report.box_files import joined, refused_document

    documents, refused = [], []
    for reader, file in zip(readers, files, strict=True):
        try:
            documents.append(reader(_content(file), str(file)))
        except InputError as error:
            refused.append(error.located(file=str(file)))
            documents.append(refused_document(str(file), str(refused[-1])))
    deliver(documents[0] if len(documents) == 1 else joined(documents), resolved_format(form, output), output)
    for problem in refused:
        sys.stderr.write(f"pdmodel: {problem}\n")
    if refused:
        raise typer.Exit(REFUSED)


def _content(file: Path) -> bytes:
    from pdmodel.report.files import read_whole

    return read_whole(file)


def _found(file: Path, kind: object, read: Callable[[bytes, str], TopologyFindings]) -> TopologyFindings:
    try:
        return read(_content(file), str(file))
    except InputError as error:
        return _refused(error, file, kind)


def _refused(error: InputError, file: Path, kind: object) -> TopologyFindings:
    from pdmodel.importers.findings import Kind, refused

    where = f"{error.path}: " if error.path else ""
    known = kind if isinstance(kind, Kind) else Kind.UNKNOWN
    return refused(str(file), f"{where}{error.message}", kind=known)
