"""Data sheets of GPUs, found by the name that the driver prints."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import Field

from pdmodel.hardware.figures import Source
from pdmodel.spec import Spec

# Words of a name that say who made it, or which memory, and not which GPU it is.
_NOISE = re.compile(
    r"^(?:nvidia|geforce|tesla|quadro|blackwell|ada|generation|server|workstation|edition|max|q|hbm\d\w?)$"
)
_FORM = re.compile(r"^(sxm|pcie|nvl)\d?$")
_MEMORY = re.compile(r"^(\d{1,4})gi?b$")


class GpuFacts(Spec):
    """One GPU: ``pattern`` matches its name in lower case with blanks between words; peaks are dense.

    ``nvlink_gb_per_s``: raw, one direction, all links; None: PCIe alone. ``geforce``: its driver refuses P2P over PCIe
    and GPUDirect RDMA.
    """

    pattern: str
    name: str
    memory_gib: Annotated[float, Field(gt=0)]
    hbm_gb_per_s: Annotated[float, Field(gt=0)]
    peak_tflops: dict[str, float]
    pcie_generation: Annotated[int, Field(ge=1, le=7)]
    nvlink_gb_per_s: Annotated[float, Field(gt=0)] | None = None
    geforce: bool = False
    source: str


class _File(Spec):
    gpus: tuple[GpuFacts, ...]
    sources: dict[str, Source]


@cache
def _file() -> _File:
    text = resources.files("pdmodel.hardware").joinpath("gpu_facts.json").read_text(encoding="utf-8")
    return _File.parse(json.loads(text), file="gpu_facts.json")


def gpu_facts(name: str) -> tuple[GpuFacts, Source] | None:
    """The data sheet of the GPU that the driver calls ``name``, and where it is from; None if none is known.

    >>> gpu_facts("NVIDIA H100 80GB HBM3")[0].name, gpu_facts("NVIDIA GeForce RTX 5090")[0].geforce
    ('H100 SXM5', True)
    >>> gpu_facts("NVIDIA RTX 6000D") is None
    True
    """
    plain = " ".join(word for word in _words(name) if word not in {"nvidia", "geforce", "tesla"})
    for gpu in _file().gpus:
        if re.fullmatch(rf"(?:{gpu.pattern})(?: \d+gb| hbm\d\w?| sxm\d?| pcie)*", plain):
            return gpu, _file().sources[gpu.source]
    return None


@dataclass(frozen=True, slots=True)
class GpuName:
    """What a name says: the GPU, how it is mounted, how much memory it has."""

    words: tuple[str, ...]
    form: str | None
    memory_gib: float | None


def gpu_name(text: str) -> GpuName:
    """The parts of a name.

    >>> gpu_name("NVIDIA A100-SXM4-40GB")
    GpuName(words=('a100',), form='sxm', memory_gib=40.0)
    """
    words, form, memory = [], None, None
    for word in _words(text):
        if found := _FORM.match(word):
            form = found[1]
        elif found := _MEMORY.match(word):
            memory = float(found[1])
        elif not _NOISE.match(word):
            words.append(word)
    return GpuName(tuple(words), form, memory)


def same_gpu(one: str, two: str, memory_gib: float | None = None) -> bool:
    """Whether two names can mean one GPU; ``memory_gib`` is what the second has, if its name does not say.

    >>> same_gpu("NVIDIA H100 80GB HBM3", "H100 SXM5"), same_gpu("NVIDIA GeForce RTX 5090 D", "RTX 5090")
    (True, False)
    >>> same_gpu("NVIDIA A100-SXM4-40GB", "A100 SXM4", 80)
    False
    """
    first, second = gpu_name(one), gpu_name(two)
    if first.words != second.words or (first.form and second.form and first.form != second.form):
        return False
    other = second.memory_gib or memory_gib
    return not (first.memory_gib and other and abs(first.memory_gib / other - 1) > 0.12)


def _words(name: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
