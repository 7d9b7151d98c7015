"""A box of which nothing is known but the GPUs that a log names: data sheets where there are any, the rest assumed."""

from __future__ import annotations

from typing import Any

from pdmodel.hardware.gpu_facts import gpu_facts

# PCIe x16, one direction [GB/s]: 128b/130b over 16 lanes, and 128-byte packets with 24 bytes of overhead each.
_RAW_GB_PER_S = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
_PAYLOAD = 128 / (128 + 24)
# An adapter that an x16 slot of that generation feeds [Gbit/s], and the share of the wire that is useful.
_NIC_GBIT_PER_S = {3: 100, 4: 200, 5: 400, 6: 800}
_NIC_SHARE = 0.92
# Share of raw NVLink that collectives can reach, as in the shipped profiles.
_NVLINK_SHARE = 0.87
_HOST_MEMORY_GB_PER_S = 345.6

_ASSUMED = {
    "tree": ("a log does not show the tree", "one socket, each GPU on a root port of its own: see nvidia-smi topo -m"),
    "dram": ("DDR5-4800, 12 channels", "75 % of 460.8 GB/s, reads and writes together"),
    "nic": ("a log of one box shows no NIC", "one adapter that fills an x16 slot; 92 % of its line rate is useful"),
    "reads": ("lspci of common boxes", "MaxReadReq 512 is the usual setting"),
    "guard": (
        "design choice",
        "3 % of the capacity stays free while critical traffic is active, as much as runs differ",
    ),
}


def minimal_box(name: str, driver_name: str, gpus: int) -> dict[str, Any]:
    """A profile, as its file holds it, for ``gpus`` GPUs that the driver calls ``driver_name``.

    Direct attach: one socket, a root port for each GPU and for one NIC, one root complex over all of them whose
    capacity starts at all links together. GeForce: P2P and GPUDirect RDMA refused, as the driver does.

    Parameters: ``name`` of the box.
    Returns: keys and values of a `HardwareProfile` without collectives.
    """
    known = gpu_facts(driver_name)
    sources = {key: _source("assumed", ref, note) for key, (ref, note) in _ASSUMED.items()}
    if known is None:
        note = f"nothing is known of {driver_name!r}: enter its data sheet"
        sources["gpu"] = _source("assumed", "placeholder", note)
        facts = {"name": driver_name, "memory_gib": 24, "hbm_gb_per_s": 900, "peak_tflops": {"bf16": 150}}
        generation, nvlink, geforce = 4, None, "geforce" in driver_name.lower()
    else:
        gpu, source = known
        sources["gpu"] = source.model_dump(mode="json")
        facts = gpu.model_dump(include={"name", "memory_gib", "hbm_gb_per_s", "peak_tflops"})
        generation, nvlink, geforce = gpu.pcie_generation, gpu.nvlink_gb_per_s, gpu.geforce
    raw = _RAW_GB_PER_S[generation]
    sources["pcie"] = _source(
        "assumed", "PCIe arithmetic", f"Gen{generation} x16, {raw:g} GB/s raw, 128-byte packets with 24 bytes each"
    )
    if nvlink is not None:
        sources["nvlink"] = _source(
            "assumed", "NVLink data sheet", f"87 % of the raw {nvlink:g} GB/s per direction, as collectives reach"
        )
    return {
        "schema_version": 1,
        "name": name,
        "summary": f"{gpus} x {facts['name']}, made from an nccl-tests log: the collectives are measured; "
        "the tree, the links and the NIC are assumed.",
        "sources": sources,
        "gpu": _gpu(facts, gpus),
        "links": _links(raw, nvlink),
        "nics": _nics(generation, raw, gpus),
        "tree": _tree(gpus, raw),
        "flags": {"p2p": "refused" if geforce else "posted_writes", "gpudirect_rdma": "none" if geforce else "full"},
        "max_read_request": {"nic_bytes": _figure(512, "reads"), "copy_engine_bytes": _figure(512, "reads")},
        "guard_share": _figure(0.03, "guard"),
    }


def _source(kind: str, ref: str, note: str) -> dict[str, str]:
    return {"kind": kind, "ref": ref, "note": note}


def _figure(value: float, source: str) -> dict[str, Any]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _both_ways(value: float, source: str) -> dict[str, Any]:
    return {"egress_gb_per_s": _figure(value, source), "ingress_gb_per_s": _figure(value, source)}


def _gpu(facts: dict[str, Any], gpus: int) -> dict[str, Any]:
    return {
        "name": facts["name"],
        "count": gpus,
        "memory_gib": _figure(facts["memory_gib"], "gpu"),
        "hbm_gb_per_s": _figure(facts["hbm_gb_per_s"], "gpu"),
        "peak_tflops": {dtype: _figure(value, "gpu") for dtype, value in facts["peak_tflops"].items()},
    }


def _links(raw: float, nvlink: float | None) -> dict[str, Any]:
    links: dict[str, Any] = {
        "gpu": _both_ways(raw * _PAYLOAD, "pcie"),
        "host_memory_gb_per_s": _figure(_HOST_MEMORY_GB_PER_S, "dram"),
    }
    if nvlink is not None:
        links["nvlink"] = _both_ways(nvlink * _NVLINK_SHARE, "nvlink")
    return links


def _nics(generation: int, raw: float, gpus: int) -> dict[str, Any]:
    line = _NIC_GBIT_PER_S[generation]
    return {
        "line_rate_gbit_per_s": _figure(line, "nic"),
        "achievable_gb_per_s": _figure(line / 8 * _NIC_SHARE, "nic"),
        "pcie": _both_ways(raw * _PAYLOAD, "pcie"),
        "attached_to": [f"root_port{gpus}"],
    }


def _tree(gpus: int, raw: float) -> dict[str, Any]:
    ports: list[dict[str, Any]] = [{"name": f"root_port{k}", "socket": "socket0", "gpus": [k]} for k in range(gpus)]
    ports.append({"name": f"root_port{gpus}", "socket": "socket0"})
    # Every link in both directions at once: no limit, until a collective shows one.
    total = 2 * (gpus + 1) * raw * _PAYLOAD
    group = {
        "name": "root_complex0",
        "root_ports": [port["name"] for port in ports],
        "capacity_gb_per_s": _figure(total, "tree"),
    }
    return {"sockets": ["socket0"], "root_ports": ports, "root_complexes": [group]}
