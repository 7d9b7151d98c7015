"""``pdmodel import topo``: what one file, or each of several, says about a topology."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli.options import DebugOption, Format, FormatOption, NoColourOption, OutputOption, resolved_format
from pdmodel.errors import InputError

if TYPE_CHECKING:
    from pdmodel.importers.findings import TopologyFindings

EPILOG = "Example: nvidia-smi topo -m > topo.txt; pdmodel import topo topo.txt"
REFUSED = InputError.exit_code


def topo(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Outputs of nvidia-smi topo -m, -mp, -p2p or rocm-smi --showtopo; topology files of NCCL, too.",
        ),
    ],
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show a topology: GPUs, NICs, NVLink, nearest NICs, what is missing, and who may share an uplink.

    One FILE is shown whole, several as a table. Exit code 3 if any is refused; the reason is printed all the same.
    """
    show_findings([_findings(file) for file in files], resolved_format(form, output), output)


def _findings(file: Path) -> TopologyFindings:
    """What a matrix, or a topology file of NCCL, says."""
    from pdmodel.importers import nccl_xml
    from pdmodel.importers.findings import Kind, refused
    from pdmodel.importers.nccl_xml_findings import findings
    from pdmodel.importers.topo import read
    from pdmodel.report.files import read_whole

    content = read_whole(file)
    if not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return read(content, str(file))
    try:
        return findings(nccl_xml.parse(content, str(file)))
    except InputError as error:
        where = f"{error.path}: " if error.path else ""
        return refused(str(file), f"{where}{error.message}", kind=Kind.NCCL_XML)


def show_findings(found: Sequence[TopologyFindings], form: Format, output: Path | None) -> None:
    """Print findings, and on stderr why files were refused; exit with 3 if any was."""
    from pdmodel.cli.render import deliver
    from pdmodel.importers.findings import Status
    from pdmodel.report.topology import findings_document, findings_table

    deliver(findings_document(found[0]) if len(found) == 1 else findings_table(found), form, output)
    refused = [one for one in found if one.status is Status.REFUSED]
    for one in refused:
        sys.stderr.write(f"pdmodel: {one.file}: {one.reason}\n")
    if refused:
        raise typer.Exit(REFUSED)
