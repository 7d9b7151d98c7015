"""``pdmodel hardware``: the files that describe boxes."""

from __future__ import annotations

from typing import Annotated

import typer

from pdmodel.cli import build_box
from pdmodel.cli.options import (
    DebugOption,
    FilesArgument,
    FormatOption,
    FullOption,
    NoColourOption,
    OutputOption,
    resolved_format,
)

app = typer.Typer(no_args_is_help=True, help="Build, list, show and check hardware profiles; print their JSON Schema.")
app.command("build", epilog=build_box.EPILOG)(build_box.build)

ProfileArgument = Annotated[
    str, typer.Argument(metavar="PROFILE", help="Name of a known profile (pdmodel hardware list), or a path.")
]


@app.command("list", epilog="Example: pdmodel hardware list")
def list_all(
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """List the known boxes. PDMODEL_PROFILES_PATH names further folders, searched first."""
    from pdmodel.cli.render import deliver
    from pdmodel.hardware.catalog import list_profiles, load_profile
    from pdmodel.report.inputs import hardware_list

    deliver(hardware_list([load_profile(name) for name in list_profiles()]), resolved_format(form, output), output)


@app.command("show", epilog="Example: pdmodel hardware show rtx_pro_6000_server")
def show(
    profile: ProfileArgument,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    full: FullOption = False,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Show a box: its ports with capacity (GB/s), guard and source, its collectives, hazards and sources."""
    from pdmodel.cli.render import deliver
    from pdmodel.hardware.catalog import load_profile
    from pdmodel.hardware.topology import Box
    from pdmodel.report.inputs import hardware_document

    found = load_profile(profile)
    deliver(hardware_document(found, Box(found, "box"), full=full), resolved_format(form, output), output)


@app.command("validate", epilog="Example: pdmodel hardware validate hardware_profiles/my_box.json")
def validate(
    files: FilesArgument,
    *,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Check hardware profiles: one line for each problem, exit code 3 if there are any."""
    from pdmodel.cli.checking import check_files
    from pdmodel.hardware.catalog import load_profile
    from pdmodel.hardware.profile import HardwareProfile
    from pdmodel.hardware.topology import Box

    def load(name: str) -> object:
        return Box(load_profile(name), "box").ports

    check_files("hardware_profiles", files, (HardwareProfile, load), resolved_format(form, output), output)


@app.command("schema", epilog="Example: pdmodel hardware schema --output hardware.schema.json")
def schema(*, output: OutputOption = None, debug: DebugOption = False, no_colour: NoColourOption = False) -> None:
    """Print the JSON Schema of hardware profiles."""
    from pdmodel.cli.render import deliver_schema
    from pdmodel.hardware.profile import HardwareProfile

    deliver_schema(HardwareProfile.json_schema(), output)
