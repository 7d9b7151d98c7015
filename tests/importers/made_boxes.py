"""Files of boxes that do not exist, written as the tools write them: what is in them is known to the last link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

LANE = {"gpu": "0x030200", "nic": "0x020700", "bridge": "0x060400"}


def pci(
    bus: str, kind: str, inner: str = "", *, speed: str = "32.0 GT/s PCIe", width: int = 16, ids: str = "0x10de 0x2330"
) -> str:
    vendor, device = ids.split()
    opening = (
        f'<pci busid="{bus}" class="{LANE.get(kind, kind)}" vendor="{vendor}" device="{device}" '
        f'link_speed="{speed}" link_width="{width}"'
    )
    return f"{opening}>{inner}</pci>\n" if inner else f"{opening}/>\n"


def gpu_tag(device: int, inner: str = "", *, sm: int = 90, gdr: int = 1) -> str:
    return f'<gpu dev="{device}" sm="{sm}" rank="{device}" gdr="{gdr}">{inner}</gpu>'


def net(name: str, device: int, *, speed: int = 400000, gdr: int = 1, port: int = 1) -> str:
    return (
        f'<net name="{name}" dev="{device}" speed="{speed}" port="{port}" latency="0.0" guid="0x{device:x}" '
        f'maxconn="131072" gdr="{gdr}"/>'
    )


def system(cpus: Mapping[int, str], *, vendor: str = "GenuineIntel", version: int = 1) -> str:
    parts = [
        f'<cpu numaid="{numa}" affinity="0000ffff" arch="x86_64" vendor="{vendor}" familyid="6" modelid="143">\n'
        f"{inner}</cpu>\n"
        for numa, inner in cpus.items()
    ]
    return f'<system version="{version}">\n{"".join(parts)}</system>\n'


def hgx_xml(
    gpus: int = 8,
    *,
    uplink: str = "32.0 GT/s PCIe",
    gpu_speed: str = "32.0 GT/s PCIe",
    ports: int = 1,
    nvlinks: int = 18,
) -> str:
    """A switch for each GPU and its NIC, half of them on each socket; all GPUs on NVSwitches."""
    cpus = {0: "", 1: ""}
    for k in range(gpus):
        links = f'<nvlink target="0000:c{k}:00.0" count="{nvlinks}" tclass="0x068000"/>' if nvlinks else ""
        card = pci(f"0000:{k}1:00.0", "gpu", gpu_tag(k, links), speed=gpu_speed)
        nets = "".join(net(f"mlx5_{ports * k + p}", ports * k + p, port=p + 1) for p in range(ports))
        nic = pci(f"0000:{k}2:00.0", "nic", f"<nic>{nets}</nic>", ids="0x15b3 0x1021")
        cpus[2 * k // gpus] += pci(f"0000:{k}0:00.0", "bridge", card + nic, speed=uplink, ids="0x1000 0xc030")
    return system(cpus)


def matrix(title: str, cells: Callable[[int, int], float], gpus: int, corner: str = "D\\D") -> str:
    lines = [title, f"   {corner}" + "".join(f"{k:>8}" for k in range(gpus))]
    lines += [f"{row:>6}" + "".join(f"{cells(row, k):>8.2f}" for k in range(gpus)) for row in range(gpus)]
    return "\n".join(lines) + "\n"


def p2p_log(
    gpus: int,
    one_way: Callable[[int, int], float],
    *,
    both: float = 1.95,
    name: str = "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    access: bool = True,
) -> str:
    """p2pBandwidthLatencyTest; ``both``: both directions together as a multiple of one."""
    text = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
    text += "".join(f"Device: {k}, {name}, pciBusID: {k}1, pciDeviceID: 0, pciDomainID:0\n" for k in range(gpus))
    can = "CAN" if access else "CANNOT"
    text += "".join(f"Device={a} {can} Access Peer Device={b}\n" for a in range(gpus) for b in range(gpus) if a != b)
    text += "\nP2P Connectivity Matrix\n     D\\D" + "".join(f"{k:>6}" for k in range(gpus)) + "\n"
    text += "".join(f"{a:>8}" + "".join(f"{int(access or a == b):>6}" for b in range(gpus)) + "\n" for a in range(gpus))

    def own(a: int, b: int) -> float:
        return 1400.0 if a == b else one_way(a, b)

    text += matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", lambda a, b: 1400 if a == b else 20, gpus)
    text += matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", own, gpus)
    text += matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", lambda a, b: both * own(a, b), gpus)
    text += matrix("P2P=Enabled Latency (P2P Writes) Matrix (us)", lambda a, b: 2.0 if a == b else 0.4, gpus, "GPU")
    return text + "\n" + matrix("", lambda a, b: 2.0, gpus, "CPU").lstrip("\n")


def nvbandwidth(tests: Mapping[str, Sequence[Sequence[float | None]]], name: str = "NVIDIA H100 80GB HBM3") -> str:
    columns = max(len(row) for rows in tests.values() for row in rows)
    text = "nvbandwidth Version: v0.8\n\nCUDA Runtime Version: 12080\n\n"
    text += "".join(f"Device {k}: {name} (00000000:{k}1:00)\n" for k in range(columns)) + "\n"
    for test, rows in tests.items():
        text += f"Running {test}.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        text += "  " + "".join(f"{k:>10}" for k in range(columns)) + "\n"
        for k, row in enumerate(rows):
            text += f" {k}" + "".join("       N/A" if value is None else f"{value:>10.2f}" for value in row) + "\n"
        text += f"\nSUM {test} 1.0\n\n"
    return text


def perftest(
    program: str = "ib_write_bw", *, gbit: float = 390.0, unit: str = "Gb/sec", cuda: bool = False, both: bool = False
) -> str:
    """A sweep whose large messages reach ``gbit`` Gbit/s."""
    title = {"ib_write_bw": "RDMA_Write", "ib_read_bw": "RDMA_Read", "ib_send_bw": "Send"}[program]
    head = "initializing CUDA\nPicking GPU number 0\n" if cuda else ""
    scale = {"Gb/sec": 1.0, "MB/sec": 1e9 / 8 / 2**20, "MiB/sec": 1e9 / 8 / 2**20}[unit]
    kind = "Bidirectional BW" if both else "BW"
    text = f"{head}{'-' * 80}\n                    {title} {kind} Test\n"
    text += " Dual-port       : OFF\t\tDevice         : mlx5_2\n"
    text += " Number of qps   : 2\t\tTransport type : IB\n Mtu             : 4096[B]\n Link type       : IB\n"
    text += f"{'-' * 80}\n #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]\n"
    for size in (2, 1024, 65536, 1048576):
        rate = gbit if size >= 65536 else gbit * size / 65536
        text += f" {size:<10} 5000             {rate * scale * 1.001:.2f}            {rate * scale:.2f}"
        text += f"\t\t   {rate * 1e9 / 8 / size / 1e6:.6f}\n"
    return text + "-" * 80 + "\n"


def vvv(
    bus: str,
    text: str,
    *,
    numa: int | None = 0,
    secondary: str = "",
    cap: str = "32GT/s, Width x16",
    sta: str = "32GT/s, Width x16",
    port: str = "Endpoint",
    read: int = 512,
    acs: str = "",
) -> str:
    """A device of ``lspci -vvv``."""
    lines = [f"{bus} {text}", "\tControl: I/O- Mem+ BusMaster+"]
    if numa is not None:
        lines.append(f"\tNUMA node: {numa}")
    if secondary:
        lines.append(f"\tBus: primary={bus[-7:-5]}, secondary={secondary}, subordinate={secondary}, sec-latency=0")
    lines += [
        f"\tCapabilities: [78] Express (v2) {port}, MSI 00",
        "\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0",
        f"\t\t\tMaxPayload 256 bytes, MaxReadReq {read} bytes",
        f"\t\tLnkCap:\tPort #0, Speed {cap}, ASPM L1",
        f"\t\tLnkSta:\tSpeed {sta}",
    ]
    if acs:
        lines.append(f"\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir{acs} CmpltRedir{acs} UpstreamFwd- EgressCtrl-")
    return "\n".join(lines) + "\n\n"


GPU_TEXT = "3D controller: NVIDIA Corporation Device 2bb5 (rev a1)"
NIC_TEXT = "Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]"
SWITCH_TEXT = "PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch (rev b0) (prog-if 00 [Normal decode])"


def switched_lspci(
    sockets: int = 2, *, gpus: int = 2, idle: bool = True, acs: str = "-", uplink: str = "32GT/s"
) -> str:
    """On each socket a switch with ``gpus`` GPUs and one NIC: root port, upstream port, downstream ports, devices."""
    text = ""
    for k in range(sockets):
        root = f"{k}0"
        text += vvv(f"{root}:00.0", "Host bridge: Advanced Micro Devices, Inc. [AMD] Device 153a", numa=k)
        text += vvv(f"{root}:01.1", "PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153e", numa=k,
                    secondary=f"{k}1", port="Root Port (Slot+)", cap=f"{uplink}, Width x16", acs=acs)  # fmt: skip
        text += vvv(f"{k}1:00.0", SWITCH_TEXT, numa=k, secondary=f"{k}2", port="Upstream Port",
                    cap=f"{uplink}, Width x16")  # fmt: skip
        for port in range(gpus + 1):
            bus = f"{k}{3 + port}"
            text += vvv(f"{k}2:0{port}.0", SWITCH_TEXT, numa=k, secondary=bus, port="Downstream Port (Slot+)", acs=acs)
            if port < gpus:
                sta = "2.5GT/s (downgraded), Width x16" if idle else "32GT/s, Width x16"
                text += vvv(f"{bus}:00.0", GPU_TEXT, numa=k, sta=sta, read=256)
            else:
                text += vvv(f"{bus}:00.0", NIC_TEXT, numa=k, read=4096)
                text += vvv(f"{bus}:00.1", NIC_TEXT, numa=k, read=4096)
    return text


DRAWING = """\
-+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           +-01.1-[01]--+-00.0  NVIDIA Corporation AD102GL [L40S]
 |           |            \\-00.1  NVIDIA Corporation AD102 High Definition Audio Controller
 |           +-05.2-[74-75]----00.0-[75]----00.0  ASPEED Technology, Inc. ASPEED Graphics Family
 |           \\-07.1-[03]----00.0  Intel Corporation Ethernet Controller X710 for 10GBASE-T
 +-[0000:40]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
 |           \\-01.1-[41-46]----00.0-[42-46]--+-00.0-[43]----00.0  NVIDIA Corporation AD102GL [L40S]
 |                                           +-04.0-[44]----00.0  NVIDIA Corporation AD102GL [L40S]
 |                                           +-08.0-[45]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           |            \\-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
 |                                           \\-0c.0-[46]--
 \\-[0000:80]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4
             \\-01.1-[81]----00.0  NVIDIA Corporation AD102GL [L40S]
"""
