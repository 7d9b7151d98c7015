"""``pdmodel cost``: one formula at a time, with its terms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

if TYPE_CHECKING:
    from pdmodel.hardware.topology import Box

app = typer.Typer(no_args_is_help=True, help="Evaluate one cost: a collective, an expert-parallel exchange, a step.")

HardwareOption = Annotated[
    str, typer.Option("--hardware", metavar="BOX", help="Name of a known profile (pdmodel hardware list), or a path.")
]
GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="LIST", help="GPUs in ring order, such as 0,1,2,3. Default: the first ones."),
]


@app.command(
    "collective",
    epilog="Example: pdmodel cost collective all_reduce --hardware b200_8nic --ranks 8 --sizes 1KiB:1GiB:x4",
)
def collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OPERATION", help="all_reduce, all_gather, reduce_scatter, all_to_all, send_recv and the like."
        ),
    ],
    *,
    hardware: HardwareOption,
    sizes: Annotated[
        str,
        typer.Option(
            "--sizes", metavar="LIST", help="Bytes as nccl-tests prints them: 1024,4MiB or a range 1KiB:64MiB:x2."
        ),
    ],
    ranks: Annotated[
        int | None, typer.Option("--ranks", metavar="N", help="Number of GPUs. Default: as many as --gpus, or all.")
    ] = None,
    gpus: GpusOption = None,
    implementation: Annotated[
        str, typer.Option("--implementation", metavar="NAME", help="nccl, vllm_custom or deepep.")
    ] = "nccl",
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", metavar="NAME", help="Only this algorithm, such as ring or nvls.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option("--protocol", metavar="NAME", help="Only this protocol, such as ll or simple.")
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """Time, branch and wire bytes of one collective at one or more sizes. JSON: a list, one object for each size."""
    from pdmodel.cli.render import deliver
    from pdmodel.cli.sizes import choice, parse_sizes
    from pdmodel.costs.terms import branches, collective_terms
    from pdmodel.hardware.constants import Algorithm, CollectiveOperation, Implementation, Protocol
    from pdmodel.report.costs import collective_document

    _writable(output)
    kind = choice(operation, [member.value for member in CollectiveOperation], "operation")
    offered = [member.value for member in Implementation if member is not Implementation.DEEPGEMM]
    what = choice(implementation, offered, "--implementation")
    forced = {
        "algorithm": algorithm and choice(algorithm, [member.value for member in Algorithm], "--algorithm"),
        "protocol": protocol and choice(protocol, [member.value for member in Protocol], "--protocol"),
    }
    box = _box(hardware)
    order = _gpus(box, ranks, gpus)
    terms = collective_terms(
        kind, parse_sizes(sizes), order, box, what, algorithm=forced["algorithm"], protocol=forced["protocol"]
    )
    known = branches(kind, order, box, what).branches
    deliver(collective_document(terms, known, order, box), resolved_format(form, output), output)


def _writable(output: Path | None) -> None:
    from pdmodel.report.files import check_target

    if output is not None:
        check_target(output)


def _box(name: str) -> Box:
    from pdmodel.hardware.catalog import load_profile
    from pdmodel.hardware.topology import Box

    return Box(load_profile(name), "box")


def _gpus(box: Box, ranks: int | None, listed: str | None, option: str = "--ranks") -> tuple[int, ...]:
    """The GPUs that take part, in ring order."""
    from pdmodel.cli.sizes import parse_indices
    from pdmodel.errors import InputError

    if ranks is not None and not 1 <= ranks <= box.gpu_count:
        raise InputError(f"found {ranks}", path=option, expected=f"1 to the {box.gpu_count} GPUs of {box.profile.name}")
    if listed is None:
        return tuple(range(ranks or box.gpu_count))
    order = parse_indices(listed, "--gpus")
    if max(order) >= box.gpu_count:
        raise InputError(
            f"found GPU {max(order)}", path="--gpus", expected=f"0 to {box.gpu_count - 1} of {box.profile.name}"
        )
    if len(set(order)) < len(order):
        raise InputError("a GPU is listed twice", path="--gpus", expected="each GPU once")
    if ranks is not None and len(order) != ranks:
        raise InputError(f"found {len(order)} GPUs", path="--gpus", expected=f"{ranks}, as {option} says")
    return order
