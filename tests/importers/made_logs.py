"""Logs of nccl-tests in every layout, made from times that are known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

WIDTH = 4
PARTS = {"all_gather", "reduce_scatter", "alltoall"}
SIZES = tuple(2**k for k in range(3, 31))


def two_lines(size: float, *, ll=(21e-6, 9.1e9), simple=(46e-6, 22.4e9)) -> float:
    """Time of a call [s]: the lesser of two lines."""
    return min(ll[0] + size / ll[1], simple[0] + size / simple[1])


@dataclass(frozen=True)
class Layout:
    """How a version of nccl-tests, and what ran it, prints."""

    header: bool = True
    devices: bool = True
    columns: tuple[str, ...] = ("redop", "root")
    check: str | None = "#wrong"
    in_place: bool = True
    wide: bool = False
    validated: bool = True
    prefix: str = ""
    marks: bool = True
    summary: bool = True
    program: bool = False
    old_algbw: bool = False


CLASSIC = Layout()
LAYOUTS = {
    "classic": CLASSIC,
    "wide": replace(CLASSIC, wide=True, program=True),
    "validation off": replace(CLASSIC, validated=False),
    "srun": replace(CLASSIC, prefix=" 0: "),
    "mpirun": replace(CLASSIC, prefix="[1,0]<stdout>:"),
    "pod": replace(CLASSIC, prefix="worker-0: "),
    "no in-place columns": replace(CLASSIC, in_place=False),
    "no check columns": replace(CLASSIC, check=None),
    "no marks": replace(CLASSIC, marks=False),
    "old error": replace(CLASSIC, columns=("redop",), check="error"),
    "no summary": replace(CLASSIC, summary=False),
}


def number(time_us: float) -> str:
    return f"{time_us:.2f}" if time_us < 100 else f"{time_us:.1f}" if time_us < 1e4 else f"{time_us:.0f}"


def made_log(
    operation: str = "all_reduce",
    ranks: int = 8,
    *,
    time_s: Callable[[float], float] = two_lines,
    sizes: Sequence[int] = SIZES,
    layout: Layout = CLASSIC,
    gpu: str = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    nodes: int = 1,
    noise: float = 0.005,
    seed: int = 1,
) -> str:
    """The text of a log; times scatter by ``noise`` around ``time_s``, the same for the same ``seed``."""
    random = np.random.default_rng(seed)
    lines = []
    mark = "# " if layout.marks else "  "
    if layout.program:
        lines.append(f"# Collective test starting: {operation}_perf")
    if layout.header:
        per = ranks // nodes
        lines.append(
            f"{mark}nThread 1 nGpus {per if nodes == 1 else 1} minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor)"
        )
        lines.append("#")
        if layout.devices:
            lines.append(f"{mark}Using devices")
            lines += [
                f"{mark} Rank {k:2d} Group  0 Pid {4000 + k:6d} on   host{k // per} "
                f"device {k % per:2d} [0x{17 + k % per:02x}] {gpu}"
                for k in range(ranks)
            ]
            lines.append("#")
    place = ["time", "algbw", "busbw", *([layout.check] if layout.check else [])]
    names = ["size", "count", "type", *layout.columns, *place, *(place if layout.in_place else [])]
    lines.append(mark + " ".join(f"{name:>12}" for name in names))
    lines.append(mark + "        (B)    (elements)      (us)  (GB/s)  (GB/s)")
    busbws = []
    parts = ranks if operation in PARTS else 1
    for size in [size - size % (parts * WIDTH) for size in sizes]:
        redop = "sum" if operation in {"all_reduce", "reduce_scatter", "reduce"} else "none"
        root = "0" if operation in {"broadcast", "reduce"} else "-1"
        words = [str(size), str(size // parts // WIDTH), "float"]
        words += [{"redop": redop, "root": root}[name] for name in layout.columns]
        for k in range(2 if layout.in_place else 1):
            time = time_s(size) * math.exp(random.normal(0, noise)) if size else 3e-7
            time = float(number(time * 1e6)) * 1e-6
            algbw = size / time / 1e9 * ((ranks - 1) / ranks if layout.old_algbw else 1)
            busbw = algbw * factor(operation, ranks)
            busbws.append(round(busbw, 2))
            words += [number(time * 1e6), f"{algbw:.2f}", f"{busbw:.2f}"]
            if layout.check == "error":
                words.append("2e-07" if redop == "sum" else "0e+00")
            elif layout.check:
                checked = layout.validated and not (k == 1 and operation == "alltoall")
                words.append("0" if checked else "N/A")
        wide = 10 if layout.wide else 8
        lines.append("  " + " ".join(f"{word:>{wide}}" for word in words))
    if layout.summary:
        lines += [f"{mark}Out of bounds values : 0 OK", f"{mark}Avg bus bandwidth    : {np.mean(busbws):.4g}", "#"]
    return "".join(f"{layout.prefix}{line}\n" for line in lines)


def factor(operation: str, ranks: int) -> float:
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "sendrecv": 1.0, "broadcast": 1.0, "reduce": 1.0}.get(operation, share)
