"""``nvidia-smi topo -m``, ``-mp``, ``-p2p`` and ``rocm-smi --showtopo``: parsed, parsed in part, or refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pdmodel.importers.findings import Kind, P2pMatrix, Status, TopologyFindings, listed, refused
from pdmodel.importers.text_bytes import decoded
from pdmodel.importers.topo_affinity import affinities_of
from pdmodel.importers.topo_blocks import Block, blocks_of
from pdmodel.importers.topo_codes import P2P_CODES, is_gpu, is_numbered_nic, is_nvlink, lines_of
from pdmodel.importers.topo_hypothesis import Seen, interpret

_COMMAND = re.compile(r"topo\s+(?:-(?P<short>[a-z0-9]+)|--(?P<long>[a-z-]+))(?:\s+(?P<what>[rwnap]+)\b)?")
_LEGEND_CODE = re.compile(r"^\W*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#)\s+=\s")
_LEGEND_NIC = re.compile(r"\b(NIC[0-9]{1,4}):\s+([A-Za-z]\S{0,63})\s*$")
_ROCM = re.compile(r"(?:Weight|Hops|Link Type) between two GPUs|\(Topology\) Numa")


def read(content: bytes, file: str) -> TopologyFindings:
    """The findings in the bytes of a file; one that is no text is refused."""
    text = decoded(content)
    return refused(file, "is no text") if text is None else parse(text, file)


def parse(text: str, file: str) -> TopologyFindings:
    """Read a capture.

    Parameters
    ----------
    text: the capture with whatever stands around it; it may be cut anywhere.
    file: its name, for messages.

    Returns
    -------
    `TopologyFindings`; ``refused`` with the reason where nothing certain can be taken from it. Never raises for what
    a text holds.

    """
    lines = lines_of(text)
    if _ROCM.search(text):
        from pdmodel.importers.topo_rocm import parse_rocm

        return parse_rocm(lines, file, ended=text.endswith(("\n", "\r")))
    ended = text.endswith(("\n", "\r"))
    blocks, headless = blocks_of(lines, ended=ended)
    matrices = [block for block in blocks if block.rows and not _is_p2p(block)]
    p2p = tuple(_p2p(block, lines) for block in blocks if _is_p2p(block))
    if not matrices:
        return _without(blocks, headless, p2p, file)
    chosen = next((block for block in matrices if block.complete), matrices[0])
    reason = _why_refused(chosen)
    if reason:
        return refused(file, reason, kind=_kind(chosen, lines))
    last = max((row for row in chosen.rows.values()), key=lambda row: row.line)
    cut = last.label if not ended and not any(line.strip() for line in lines[last.line :]) else None
    return replace(_findings(chosen, matrices, lines, file, cut), p2p=p2p)


def _is_p2p(block: Block) -> bool:
    """Whether the codes are those of ``topo -p2p``, which prints a matrix of the same form."""
    codes = [cell for row in block.rows.values() for cell in row.cells if cell not in {None, "X"}]
    return bool(codes) and 2 * sum(code in P2P_CODES for code in codes) > len(codes)


def _command_before(block: Block, lines: Sequence[str]) -> re.Match[str] | None:
    """The last ``topo`` command line above a matrix."""
    found = (_COMMAND.search(line) for line in reversed(lines[: block.header.line - 1]) if "topo" in line)
    return next((match for match in found if match), None)


def _p2p(block: Block, lines: Sequence[str]) -> P2pMatrix:
    command = _command_before(block, lines)
    asked = (command.group("what") or "") if command and (command.group("short") or "").startswith("p2p") else ""
    labels = block.header.labels
    codes = {
        label: {
            other: code if code in P2P_CODES | {"X"} else None for other, code in zip(labels, row.cells, strict=False)
        }
        for label, row in block.rows.items()
    }
    return P2pMatrix(asked, codes)


def _without(
    blocks: Sequence[Block], headless: Sequence[int], p2p: tuple[P2pMatrix, ...], file: str
) -> TopologyFindings:
    """The refusal of a text in which no distances are."""
    if p2p:
        kinds = sorted({code for matrix in p2p for _, _, code in matrix.refused})
        says = "all pairs OK" if not kinds else "pairs refused: " + ", ".join(kinds)
        reason = f"is a matrix of topo -p2p ({says}), not of topo -m: it tells no distances"
        gpus = tuple(dict.fromkeys(label for matrix in p2p for label in matrix.codes))
        return replace(refused(file, reason, kind=Kind.TOPO_P2P), gpus=gpus, p2p=p2p)
    if headless:
        reason = f"line {headless[0]} is a row of a matrix without a header: which column is which cannot be told"
        return refused(file, reason, kind=Kind.TOPO_M)
    if blocks:
        return refused(file, f"line {blocks[0].header.line} is the header of a matrix without rows", kind=Kind.TOPO_M)
    return refused(file, "holds no matrix of nvidia-smi topo or rocm-smi --showtopo")


def _why_refused(block: Block) -> str:
    if block.header.elided:
        return f"columns are left out in the header (line {block.header.line})"
    if block.elided is not None and not block.complete:
        return f"rows or cells are left out (line {block.elided})"
    if not any(row.whole for row in block.rows.values()):
        worst = next(iter(block.rows.values()))
        return f"no row of the matrix is whole: row {worst.label} {worst.problem or 'is not'} (line {worst.line})"
    return ""


def _kind(block: Block, lines: Sequence[str]) -> Kind:
    """``-mp`` never prints NV#: told by the command, or by a legend that does not explain it."""
    if any(is_nvlink(cell) for row in block.rows.values() for cell in row.cells):
        return Kind.TOPO_M
    command = _command_before(block, lines)
    if command is not None:
        asked = command.group("short") or command.group("long")
        return Kind.TOPO_MP if asked in {"mp", "matrix_pci", "matrix-pci"} else Kind.TOPO_M
    explained = _legend_codes(lines)
    return Kind.TOPO_MP if {"PIX", "NODE"} <= explained and "NV#" not in explained else Kind.TOPO_M


def _legend_codes(lines: Sequence[str]) -> set[str]:
    return {match.group(1) for line in lines if (match := _LEGEND_CODE.match(line))}


def _findings(
    block: Block, matrices: Sequence[Block], lines: Sequence[str], file: str, cut: str | None
) -> TopologyFindings:
    labels = block.labels
    gpus = tuple(label for label in labels if is_gpu(label))
    nics = tuple(label for label in labels if not is_gpu(label))
    legend = {match.group(1): match.group(2) for line in lines if (match := _LEGEND_NIC.search(line))}
    names = {nic: legend.get(nic, nic) for nic in nics if nic in legend or not is_numbered_nic(nic)}
    kind = _kind(block, lines)
    affinities = affinities_of(block, cut=cut)
    matrix, uneven = _mirrored(block)
    pcie, others = _others(block, matrices, matrix)
    seen = Seen(gpus, nics, matrix, pcie, affinities.numa, kind)
    meaning = interpret(seen)
    gaps = _gaps(block)
    whole = sum(label in block.rows and block.rows[label].whole for label in labels)
    unnamed = [nic for nic in nics if nic not in names]
    warnings = [
        *gaps,
        *uneven,
        *others,
        *([f"no legend names {listed(unnamed)}"] if unnamed else []),
        *affinities.warnings,
        *meaning.warnings,
        *_silent(kind, block, lines),
    ]
    return TopologyFindings(
        file,
        kind,
        Status.PARTIAL if whole < len(labels) or gaps else Status.COMPLETE,
        gpus=gpus,
        nics=nics,
        nic_names=names,
        nvlink=meaning.nvlink,
        fabric="nvlink" if meaning.nvlink else "",
        nearest_nics=meaning.nearest,
        distance=meaning.distance,
        matrix=matrix,
        pcie_matrix=pcie,
        rows=len(labels),
        rows_whole=whole,
        cpu_affinity=affinities.cpu,
        numa_affinity=affinities.numa,
        gpu_numa_id=affinities.gid,
        groups=meaning.groups,
        twins=meaning.twins,
        gaps=tuple(gaps),
        warnings=tuple(dict.fromkeys(warnings)),
        assumed=meaning.assumed,
    )


def _gaps(block: Block) -> list[str]:
    """What is missing, by name."""
    missing = [label for label in block.labels if label not in block.rows]
    gaps = [f"no row for {listed(missing)}"] if missing else []
    gaps += [
        f"row {row.label} {row.problem or 'is not whole'} (line {row.line})"
        for row in block.rows.values()
        if not row.whole or row.problem
    ]
    lost = [label for label in block.labels if label not in block.header.labels]
    if lost:
        gaps.append(f"no column for {listed(lost)}")
    gaps += [f"row {label} is there twice, with other cells" for label in dict.fromkeys(block.repeated)]
    return gaps


def _mirrored(block: Block) -> tuple[dict[str, dict[str, str | None]], list[str]]:
    """Codes between all devices, missing ones from their mirror image; and where the two halves contradict."""
    columns = {label: k for k, label in enumerate(block.header.labels)}

    def cell(row: str, column: str) -> str | None:
        there = block.rows.get(row)
        code = None if there is None or column not in columns else there.cells[columns[column]]
        return None if code in P2P_CODES else code

    labels = block.labels
    matrix: dict[str, dict[str, str | None]] = {label: {} for label in labels}
    uneven = []
    for i, row in enumerate(labels):
        for k, column in enumerate(labels):
            one, other = cell(row, column), cell(column, row)
            matrix[row][column] = "X" if row == column else one or other
            if i < k and one and other and one != other:
                uneven.append(f"{row}-{column} is {one} in one half and {other} in the other")
    if len(uneven) > 3:
        uneven = [*uneven[:3], f"{len(uneven) - 3} more pairs differ between the halves"]
    return matrix, [f"not symmetric: {what}" for what in uneven]


def _others(
    block: Block, matrices: Sequence[Block], matrix: dict[str, dict[str, str | None]]
) -> tuple[dict[str, dict[str, str | None]], list[str]]:
    """Further matrices of the file: the PCIe side of NVLink pairs from a ``-mp`` of the same box, else a warning."""
    pcie: dict[str, dict[str, str | None]] = {}
    remarks = []
    for other in matrices:
        if other is block:
            continue
        where = f"a second matrix (line {other.header.line})"
        second, _ = _mirrored(other)
        if set(second) != set(matrix):
            remarks.append(f"{where} is of other devices ({listed(tuple(second))}) and is left out")
            continue
        differing = [(row, column) for row in matrix for column in matrix if second[row][column] != matrix[row][column]]
        if not differing:
            remarks.append(f"{where} says the same")
        elif not pcie and all(
            is_nvlink(matrix[row][column]) and not is_nvlink(second[row][column]) for row, column in differing
        ):
            pcie = {row: {column: second[row][column] for at, column in differing if at == row} for row in matrix}
            remarks.append(f"{where} gives the PCIe distances of pairs on NVLink")
        else:
            row, column = differing[0]
            remarks.append(
                f"{where} contradicts the first one that is whole (line {block.header.line}), which is taken: "
                f"{row}-{column} is {second[row][column] or 'unknown'} there, {matrix[row][column] or 'unknown'} here"
            )
    return pcie, remarks


def _silent(kind: Kind, block: Block, lines: Sequence[str]) -> list[str]:
    """What this kind of output cannot show."""
    if kind is Kind.TOPO_MP:
        return ["topo -mp never prints NV#: whether the GPUs have NVLink is not known"]
    explained = _legend_codes(lines)
    seen = any(is_nvlink(cell) for row in block.rows.values() for cell in row.cells)
    if explained and "NV#" not in explained and not seen:
        return ["the legend knows no NV#, as of an old driver: NVLink would not show"]
    return []
