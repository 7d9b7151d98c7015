"""``pdmodel calibrate``: constants of a box from measurements of that box."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pdmodel.cli.options import DebugOption, Format, NoColourOption

if TYPE_CHECKING:
    from pdmodel.importers.nccl_calibration import Measured
    from pdmodel.importers.nccl_log import Collective

app = typer.Typer(no_args_is_help=True, help="Fit the constants of a box to measurements of that box.")

EPILOG = """[b]Measure[/b]: all_reduce_perf -b 8 -e 1G -f 2 -g 8 > all_reduce.log; all_gather_perf, reduce_scatter_perf
and alltoall_perf improve what follows from the all-reduce.

[b]Examples[/b]: pdmodel calibrate nccl-tests all_reduce.log --profile rtx_5090_direct -o my_box.json

pdmodel calibrate nccl-tests *.log -o my_box.json"""


LogsArgument = Annotated[list[Path], typer.Argument(metavar="LOG...", help="Logs of nccl-tests of one machine.")]
NewOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="NEW.json",
        help="Write the new profile here. Without it only the report is printed.",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="BOX",
        help="The box to calibrate: a name (pdmodel hardware list) or a path. Default: one made from the header.",
        show_default=False,
    ),
]
CollectiveOption = Annotated[
    str | None, typer.Option("--collective", metavar="NAME", help="What the logs are of, where they do not tell.")
]
RanksOption = Annotated[int | None, typer.Option("--ranks", min=1, help="Number of ranks, where logs do not tell.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes, where logs do not tell.")]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help="The GPUs, where the logs do not name them.")
]
ReportFormatOption = Annotated[Format, typer.Option("--format", help="Form of the report on stdout.")]
KeepOption = Annotated[
    bool,
    typer.Option(
        "--keep", metavar="", help="Keep the profile's other NCCL collectives; default: they follow from the logs."
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", metavar="", help="Take logs whose GPUs or ranks are not the box's.")
]


@app.command("nccl-tests", epilog=EPILOG)
def nccl_tests(
    logs: LogsArgument,
    *,
    output: NewOption = None,
    profile: ProfileOption = None,
    collective: CollectiveOption = None,
    ranks: RanksOption = None,
    nodes: NodesOption = None,
    gpu: GpuOption = None,
    keep: KeepOption = False,
    force: ForceOption = False,
    form: ReportFormatOption = Format.RICH,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Fit the collectives of a box to nccl-tests logs; print the errors by size and what changed."""
    from pdmodel.cli.progress import busy
    from pdmodel.cli.render import show
    from pdmodel.importers.nccl_calibration import calibrate
    from pdmodel.report.calibration import calibration_document
    from pdmodel.report.export import to_json
    from pdmodel.report.files import check_target, write_whole

    if output is not None:
        check_target(output)
        if output.resolve() in {log.resolve() for log in logs}:
            raise typer.BadParameter("--output is one of the logs")
    base = _base(profile)
    with busy("calibrating") as tell:
        kind = _collective(collective)
        measured = [_read(log, kind, ranks, nodes) for log in logs]
        found = calibrate(measured, base, name=_name(output, base), gpu=gpu, force=force, keep=keep, progress=tell)
    document = calibration_document(found, measured, output)
    if output is not None:
        write_whole(output, to_json(found.raw).encode())
    show(document, form)


def _base(profile: str | None) -> dict[str, Any] | None:
    """The profile's file, after it was checked."""
    from pdmodel.hardware.profile import HardwareProfile
    from pdmodel.resources import resolve
    from pdmodel.spec import read_json

    if profile is None:
        return None
    path = resolve("hardware_profiles", profile)
    raw = read_json(path)
    HardwareProfile.parse(raw, file=str(path))
    return raw


def _name(output: Path | None, base: dict[str, Any] | None) -> str:
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", output.stem) if output is not None else ""
    if stem[:1].isalpha():
        return stem
    return f"{base['name'] if base is not None else 'box'}_calibrated"


def _collective(name: str | None) -> Collective | None:
    from pdmodel.errors import InputError, nearest
    from pdmodel.importers.nccl_log import Collective

    if name is None:
        return None
    legal = [one.value for one in Collective]
    if name not in legal:
        raise InputError(
            f"unknown collective {name!r}", expected="one of " + ", ".join(legal), nearest=nearest(name, legal)
        )
    return Collective(name)


def _read(log: Path, collective: Collective | None, ranks: int | None, nodes: int | None) -> Measured:
    import hashlib

    from pdmodel.importers.nccl_calibration import Measured
    from pdmodel.importers.nccl_tests import decoded, parse
    from pdmodel.report.files import read_whole

    content = read_whole(log)
    text = decoded(content, str(log))
    found = parse(text, str(log), collective=collective, ranks=ranks, nodes=nodes)
    return Measured(found, hashlib.sha256(content).hexdigest())
