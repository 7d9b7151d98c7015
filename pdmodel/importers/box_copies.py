"""Measured copies between GPUs and host, reduced to what the links of a box are shown to carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pdmodel.importers.box_evidence import FileOf
from pdmodel.importers.box_ledger import Ledger
from pdmodel.importers.box_tree import BoxTree
from pdmodel.importers.p2p import Measure, P2pLog, Path

Key = TypeVar("Key", int, tuple[int, int])

# Pairs this close to the fastest are as fast: measurements of one link differ by up to 4 %.
SAME = 0.95
# Both directions together below this share of twice the one are a limit of their own.
FULL_DUPLEX = 0.9


@dataclass
class Copies:
    """Rates in GB/s. ``pairs``: one way, with P2P; ``up`` and ``down``: each GPU to and from the host.

    ``both``: both directions of a pair together; ``staged``: copies without P2P.
    """

    source: str = ""
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    both: dict[tuple[int, int], float] = field(default_factory=dict)
    up: dict[int, float] = field(default_factory=dict)
    down: dict[int, float] = field(default_factory=dict)
    host_both: float | None = None
    staged: float | None = None
    refused: bool = False
    allowed: bool = False


def copies(files: Iterable[FileOf[P2pLog]], tree: BoxTree, ledger: Ledger) -> Copies:
    """All files together; a file of another number of GPUs is a conflict, and left out."""
    found = Copies()
    for item in files:
        log = item.found
        if log.gpu_count and log.gpu_count != len(tree.gpus):
            ledger.conflicts.append(
                f"{item.base} is of {log.gpu_count} GPUs, the box has {len(tree.gpus)} by {tree.file}: "
                "its figures are not used"
            )
            continue
        note = "the fastest copies of large buffers, one way, between the pairs that show a link"
        found.source = found.source or ledger.file("p2p", item, "measured", note)
        ledger.warnings += [f"{item.base}: {text}" for text in log.warnings]
        _add(found, log)
    if found.refused and found.staged:
        ledger.warnings.append(
            f"copies without P2P reach {found.staged:g} GB/s: staged through host memory, they measure no link"
        )
    return found


def _add(found: Copies, log: P2pLog) -> None:
    found.refused = found.refused or bool(log.refused)
    for one in log.find(Path.GPU_TO_GPU, Measure.ONE_WAY):
        open_pairs = {pair: rate for pair, rate in one.between.items() if pair not in log.refused and rate > 0}
        if one.p2p and open_pairs:
            found.allowed = True
            _most(found.pairs, open_pairs)
        elif one.between:
            found.staged = max(found.staged or 0.0, *one.between.values())
    for one in log.find(Path.GPU_TO_GPU, Measure.BOTH_WAYS):
        open_pairs = {pair: rate for pair, rate in one.between.items() if pair not in log.refused}
        # nvbandwidth prints each direction of its bidirectional tests; p2pBandwidthLatencyTest their sum.
        if one.p2p and log.program != "nvbandwidth":
            _most(found.both, open_pairs)
    sums = []
    for path, rates in ((Path.HOST_TO_GPU, found.down), (Path.GPU_TO_HOST, found.up)):
        for one in log.find(path, Measure.ONE_WAY):
            _most(rates, {column: rate for (_, column), rate in one.cells.items()})
        sums += [max(one.cells.values()) for one in log.find(path, Measure.BOTH_WAYS)[:1]]
    if len(sums) == 2:
        found.host_both = sum(sums)


def _most(rates: dict[Key, float], more: Mapping[Key, float]) -> None:
    for key, rate in more.items():
        rates[key] = max(rates.get(key, 0.0), rate)


def ports(found: Copies, tree: BoxTree) -> tuple[dict[int, float], dict[int, float]]:
    """Most that each GPU was seen to send and to receive, within its socket; a GPU alone on its socket is left out."""
    egress, ingress = dict(found.up), dict(found.down)
    for (source, target), rate in found.pairs.items():
        if tree.gpus[source].socket == tree.gpus[target].socket:
            egress[source] = max(egress.get(source, 0.0), rate)
            ingress[target] = max(ingress.get(target, 0.0), rate)
    if not egress and found.pairs:
        # Every pair is of two sockets: what they reach, their ports carry.
        most = max(found.pairs.values())
        return {0: most}, {0: most}
    return egress, ingress


def duplex(found: Copies, tree: BoxTree) -> float | None:
    """The most that one GPU was seen to send and receive together, within its socket or with the host."""
    rates = [
        rate for (one, two), rate in found.both.items() if rate > 0 and tree.gpus[one].socket == tree.gpus[two].socket
    ]
    return max([*rates, *([found.host_both] if found.host_both else [])], default=None)


def across(found: Copies, tree: BoxTree, *, sockets: bool) -> float | None:
    """The fastest copy between two sockets, or between two switches of one socket; None where there is none."""
    rates = []
    for (source, target), rate in found.pairs.items():
        one, two = tree.gpus[source], tree.gpus[target]
        apart = one.socket != two.socket
        switched = bool(one.chain and two.chain) and not set(one.chain) & set(two.chain)
        if apart if sockets else (switched and not apart):
            rates.append(rate)
    return max(rates, default=None)
