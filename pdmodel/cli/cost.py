"""``pdmodel cost``: one formula at a time, with its terms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdmodel.cli import cost_kv, cost_tier
from pdmodel.cli.options import DebugOption, FormatOption, NoColourOption, OutputOption, resolved_format

if TYPE_CHECKING:
    from pdmodel.hardware.topology import Box

app = typer.Typer(no_args_is_help=True, help="Evaluate one cost: a collective, an exchange, a step, a KV transfer.")
app.command(cost_kv.NAME, epilog=cost_kv.EPILOG)(cost_kv.kv_transfer)
app.command(cost_tier.NAME, epilog=cost_tier.EPILOG)(cost_tier.kv_tier)

HardwareOption = Annotated[
    str, typer.Option("--hardware", metavar="BOX", help="Name of a known profile (pdmodel hardware list), or a path.")
]
GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", metavar="LIST", help="GPUs in ring order, such as 0,1,2,3. Default: the first ones."),
]

ImplementationOption = Annotated[
    str,
    typer.Option(
        "--implementation",
        metavar="NAME",
        help="nccl, vllm_custom, deepep, deepep_ll, or pcie_push, pcie_pull (assumed).",
    ),
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
    implementation: ImplementationOption = "nccl",
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


LlmOption = Annotated[
    str,
    typer.Option("--llm", metavar="LLM", help="Name of a shipped LLM (pdmodel llm list), or a path to config.json."),
]


@app.command(
    "moe",
    epilog="Example: pdmodel cost moe --llm qwen3-235b-a22b --hardware b200_8nic --ep 8 --tokens 2048 --exchange dedup",
)
def moe(
    *,
    llm: LlmOption,
    hardware: HardwareOption,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="Tokens of one rank, before dispatch.")],
    exchange: Annotated[
        str,
        typer.Option(
            "--exchange",
            metavar="NAME",
            help="all_reduce, all_gather_reduce_scatter, all_to_all, dedup, low_latency or fused.",
        ),
    ],
    ep: Annotated[
        int | None, typer.Option("--ep", metavar="N", help="Ranks that share the experts. Default: --gpus, or all.")
    ] = None,
    gpus: GpusOption = None,
    dispatch: Annotated[
        str | None,
        typer.Option(
            "--dispatch-dtype", metavar="NAME", help="bf16 or fp8 on the way out. Default: as experts are kept."
        ),
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """What one MoE layer exchanges: ranks and experts that tokens reach, bytes, dispatch and combine."""
    from pdmodel.cli.render import deliver
    from pdmodel.cli.sizes import choice
    from pdmodel.costs.moe import EpExchange
    from pdmodel.costs.moe_layer import moe_layer
    from pdmodel.llm.catalog import load_llm
    from pdmodel.report.costs import moe_document

    _writable(output)
    kind = choice(exchange, [member.value for member in EpExchange], "--exchange")
    widths = {"bf16": 2, "fp8": 1}
    width = None if dispatch is None else widths[choice(dispatch, [*widths], "--dispatch-dtype")]
    _positive(tokens, "--tokens")
    arch, box = load_llm(llm), _box(hardware)
    order = _gpus(box, ep, gpus, "--ep")
    layer = moe_layer(arch, box, order, tokens, kind, dispatch_bytes=width)
    deliver(moe_document(arch, kind, layer, box), resolved_format(form, output), output)


@app.command(
    "step",
    epilog="Examples: pdmodel cost step --llm qwen3-32b --hardware rtx_pro_6000_server --tp 4 --phase prefill --tokens "
    "8192\n\npdmodel cost step --llm qwen3-32b --hardware h100_8nic --tp 8 --phase decode --batch 32 --context 8192",
)
def step(
    *,
    llm: LlmOption,
    hardware: HardwareOption,
    phase: Annotated[str, typer.Option("--phase", metavar="NAME", help="prefill or decode.")],
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks that share the heads.")] = 1,
    cp: Annotated[int, typer.Option("--cp", metavar="N", help="Ranks that share the sequence (prefill).")] = 1,
    ep: Annotated[int, typer.Option("--ep", metavar="N", help="Ranks that share the experts.")] = 1,
    tokens: Annotated[
        int | None, typer.Option("--tokens", metavar="N", help="Prefill: new tokens of the chunk.", show_default=False)
    ] = None,
    past: Annotated[
        int | None,
        typer.Option("--past", metavar="N", help="Prefill: tokens whose KV is there. Default: 0.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Decode: running requests.", show_default=False)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="N", help="Decode: mean tokens that one attends to.", show_default=False),
    ] = None,
    gpus: GpusOption = None,
    all_reduce: Annotated[
        str, typer.Option("--all-reduce", metavar="NAME", help="nccl, vllm_custom, pcie_push or pcie_pull.")
    ] = "nccl",
    ep_exchange: Annotated[
        str, typer.Option("--ep-exchange", metavar="NAME", help="As --exchange of cost moe.")
    ] = "all_reduce",
    cp_exchange: Annotated[
        str, typer.Option("--cp-exchange", metavar="NAME", help="all_gather, ring or ulysses.")
    ] = "all_gather",
    weights: Annotated[
        str | None,
        typer.Option("--weight-dtype", metavar="NAME", help="bf16, fp8, ... Default: as the LLM is published."),
    ] = None,
    kv: Annotated[str, typer.Option("--kv-dtype", metavar="NAME", help="bf16, fp16, fp8 or fp8_ds_mla.")] = "bf16",
    form: FormatOption = None,
    output: OutputOption = None,
    debug: DebugOption = False,
    no_colour: NoColourOption = False,
) -> None:
    """One prefill chunk or decode step, operation by operation: time, what binds it, collectives, CPU and launch."""
    from pdmodel.cli.render import deliver
    from pdmodel.cli.steps import Asked, broken_down
    from pdmodel.llm.catalog import load_llm
    from pdmodel.report.costs import step_document

    _writable(output)
    words = {"all_reduce": all_reduce, "ep_exchange": ep_exchange, "cp_exchange": cp_exchange, "kv_dtype": kv}
    asked = Asked(phase, tokens, past, batch, context, (tp, cp, ep), weights, words)
    asked.sizes()
    box = _box(hardware)
    facts, found = broken_down(asked, load_llm(llm), box, _gpus(box, tp * cp, gpus, "--tp x --cp"))
    deliver(step_document(f"{facts['phase']} step", facts, found, box), resolved_format(form, output), output)


def _positive(value: int, option: str) -> None:
    from pdmodel.errors import InputError

    if value < 1:
        raise InputError(f"found {value}", path=option, expected="a positive number")
