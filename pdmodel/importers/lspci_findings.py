"""What lspci says about a box, in the form of all topology files."""

from __future__ import annotations

from pdmodel.importers.box_tree import classes, from_lspci
from pdmodel.importers.findings import Kind, Status, TopologyFindings
from pdmodel.importers.lspci import Lspci
from pdmodel.importers.pci import DeviceKind

_RANK = {name: k for k, name in enumerate(("PIX", "PXB", "PHB", "NODE", "SYS"))}


def findings(found: Lspci) -> TopologyFindings:
    """GPUs and NICs in the order of their bus ids; partial where there is no tree, or no GPU in it.

    lspci shows NVSwitches and not who is on NVLink: ``nvlink`` is None where there are some, else False.
    """
    tree = from_lspci(found)
    if tree is None:
        what = "no GPU in the tree" if found.devices else "no tree"
        return TopologyFindings(
            found.file, Kind.LSPCI, Status.PARTIAL, reason=what, gaps=(what,), warnings=found.warnings
        )
    matrix = classes(tree)
    labels = [label for nic in tree.nics for label in nic.ports]
    nearest: dict[str, tuple[str, ...]] = {}
    distance: dict[str, str | None] = {}
    for gpu in tree.gpus if labels else ():
        cells = matrix[gpu.label]
        least = min((cells[label] for label in labels), key=_RANK.__getitem__, default=None)
        distance[gpu.label] = least
        nearest[gpu.label] = tuple(label for label in labels if cells[label] == least)
    twins = tuple(nic.ports for nic in tree.nics if len(nic.ports) > 1)
    warnings = [*found.warnings]
    warnings += [f"{' and '.join(ports)} are functions of one card: they share its PCIe link" for ports in twins]
    if not tree.sockets_known:
        warnings.append("all root buses are taken as one socket")
    if not labels:
        warnings.append("there is no RDMA adapter by name")
    switches = found.of_kind(DeviceKind.NVSWITCH)
    if switches:
        warnings.append(f"{len(switches)} NVSwitches: the GPUs are on NVLink by the look of it")
    return TopologyFindings(
        file=found.file,
        kind=Kind.LSPCI,
        status=Status.COMPLETE,
        gpus=tuple(gpu.label for gpu in tree.gpus),
        nics=tuple(labels),
        nic_names={label: nic.bus for nic in tree.nics for label in nic.ports},
        nvlink=None if switches else False,
        nearest_nics=nearest,
        distance=distance,
        matrix=matrix,
        pcie_matrix=matrix,
        numa_affinity={
            leaf.label: leaf.socket.removeprefix("numa") if tree.sockets_known else None for leaf in tree.gpus
        },
        twins=twins,
        warnings=tuple(dict.fromkeys(warnings)),
    )
