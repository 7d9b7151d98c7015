"""``pdmodel hardware build``: the profile of a box from the outputs of the tools that were run on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pdmodel.cli.options import DebugOption, Format, NoColourOption

if TYPE_CHECKING:
    from pdmodel.importers.box_evidence import FileOf

Found = TypeVar("Found")

EPILOG = """[b]Collect[/b]: nvidia-smi topo -m > topo.txt; sudo lspci -vvv > lspci.txt; NCCL_TOPO_DUMP_FILE=nccl.xml
with any NCCL program; p2pBandwidthLatencyTest > p2p.txt; all_reduce_perf -b 8 -e 1G -f 2 -g 8 > all.log;
ib_write_bw -a > ib.txt

[b]Example[/b]: pdmodel hardware build --topo topo.txt --gpu "NVIDIA L40S" --nics 2@200 -o my_box.json"""


def _files(flag: str, what: str) -> object:
    return typer.Option(flag, metavar="FILE", help=f"{what} May be given several times.", show_default=False)


TopoOption = Annotated[list[Path] | None, _files("--topo", "nvidia-smi topo -m, -mp, -p2p, or rocm-smi --showtopo.")]
XmlOption = Annotated[list[Path] | None, _files("--nccl-xml", "NCCL or RCCL topology file.")]
LspciOption = Annotated[list[Path] | None, _files("--lspci", "lspci -tv, or sudo lspci -vvv.")]
P2pOption = Annotated[list[Path] | None, _files("--p2p", "p2pBandwidthLatencyTest or nvbandwidth.")]
LogOption = Annotated[list[Path] | None, _files("--nccl-tests", "Log of nccl-tests.")]
PerftestOption = Annotated[list[Path] | None, _files("--perftest", "ib_write_bw, ib_read_bw or ib_send_bw.")]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="The GPU (its data sheet), if no file names it.", show_default=False),
]
NicsOption = Annotated[
    str | None,
    typer.Option("--nics", metavar="N@GBIT", help="How many NICs, and their line rate: 8@400.", show_default=False),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the profile. Default: the output's.", show_default=False)
]
BoxOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="BOX.json", help="Write the profile here. Without it only the report is printed.",
        show_default=False,
    ),
]  # fmt: skip
ReportFormatOption = Annotated[Format, typer.Option("--format", help="Form of the report on stdout.")]


def build(
    *,
    output: BoxOption = None,
    topo: TopoOption = None,
    nccl_xml: XmlOption = None,
    lspci: LspciOption = None,
    p2p: P2pOption = None,
    nccl_tests: LogOption = None,
    perftest: PerftestOption = None,
    gpu: GpuOption = None,
    nics: NicsOption = None,
    name: NameOption = None,
    form: ReportFormatOption = Format.RICH,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Build a hardware profile from files of one box; print what is from where, conflicts, and what is assumed."""
    from pdmodel.cli.progress import busy
    from pdmodel.cli.render import show
    from pdmodel.errors import InputError
    from pdmodel.importers import box_evidence as read
    from pdmodel.importers.build_box import build_box
    from pdmodel.report.built_box import built_document
    from pdmodel.report.export import to_json
    from pdmodel.report.files import check_target, write_whole

    given = [file for files in (topo, nccl_xml, lspci, p2p, nccl_tests, perftest) for file in files or ()]
    if not given:
        raise InputError("no file is given", expected="--topo, --nccl-xml, --lspci, --p2p or --nccl-tests")
    if output is not None:
        check_target(output)
        if output.resolve() in {file.resolve() for file in given}:
            raise typer.BadParameter("--output is one of the inputs")
    with busy("reading") as tell:
        evidence = read.BoxEvidence(
            topo=_read(topo, read.read_topo),
            nccl_xml=_read(nccl_xml, read.read_nccl_xml),
            lspci=_read(lspci, read.read_lspci),
            p2p=_read(p2p, read.read_p2p),
            perftest=_read(perftest, read.read_perftest),
            logs=_read(nccl_tests, read.read_log),
            gpu=gpu,
            nics=None if nics is None else read.nics_option(nics),
        )
        built = build_box(evidence, _name(name, output), progress=tell)
    if output is not None:
        write_whole(output, to_json(built.raw).encode())
    show(built_document(built, tuple(evidence.files()), output), form)


def _read(files: Sequence[Path] | None, reader: Callable[[bytes, str], FileOf[Found]]) -> tuple[FileOf[Found], ...]:
    from pdmodel.report.files import read_whole

    return tuple(reader(read_whole(file), str(file)) for file in files or ())


def _name(name: str | None, output: Path | None) -> str:
    """A name that profiles may have: the one that was asked for, else the output's."""
    from pdmodel.errors import InputError

    if name is not None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name):
            raise InputError(f"--name {name[:40]!r}", expected="a letter, then letters, digits, _ . -")
        return name
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", output.stem) if output is not None else ""
    return stem if stem[:1].isalpha() else "box"
