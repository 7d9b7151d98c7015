"""Published rates of several transfers at once, predicted as the least over ports of capacity over demand."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from pathlib import Path

import pytest
from boxes import shipped, three_switches, turin, with_flags

from pdmodel.hardware import routes
from pdmodel.hardware.ports import Route
from pdmodel.hardware.topology import Box

ROWS = list(csv.DictReader((Path(__file__).parents[1] / "published" / "pcie_multiflow.csv").read_text().splitlines()))


def box_named(name: str) -> Box:
    make = {
        "three_switches": three_switches,
        "turin": turin,
        "two_roots": lambda: shipped("rtx_pro_6000_wrx90_two_roots"),
        "two_roots_acs": lambda: with_flags(acs_redirect=True),
    }
    return make[name]()


def flows(box: Box, pattern: str) -> list[Route]:
    if pattern == "all":
        pairs = list(itertools.permutations(range(8), 2))
    elif pattern == "cross":
        pairs = list(itertools.product(range(4), range(4, 8)))
    elif pattern.startswith(("h2d:", "d2h:")):
        first, last = map(int, pattern[4:].split("-"))
        copy = routes.host_to_gpu if pattern.startswith("h2d") else routes.gpu_to_host
        return [copy(box, gpu) for gpu in range(first, last + 1)]
    else:
        pairs = [tuple(map(int, pair.split(">"))) for pair in pattern.split()]
    return [routes.gpu_to_gpu(box, one, two) for one, two in pairs]


def total_bytes_per_s(box: Box, found: list[Route]) -> float:
    """Equal rates: each flow gets the least over ports of capacity / summed multiplicity."""
    demand: Counter[str] = Counter()
    for route in found:
        demand.update(route.ports)
    return len(found) * min(box.port_index[port].capacity_bytes_per_s / share for port, share in demand.items())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['box']}:{row['pattern']}")
def test_total_rate(row: dict[str, str]) -> None:
    box = box_named(row["box"])
    found = flows(box, row["pattern"])
    assert len(found) == int(row["flows"])
    assert float(row["total_gb_per_s"]) == pytest.approx(int(row["flows"]) * float(row["per_flow_gb_per_s"]), rel=0.02)
    measured = float(row["total_gb_per_s"]) * 1e9
    assert total_bytes_per_s(box, found) == pytest.approx(measured, rel=float(row["tolerance"]))
