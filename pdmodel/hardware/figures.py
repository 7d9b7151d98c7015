"""Figures of a hardware profile: a value and the id of its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from pdmodel.spec import SourceKind, Spec
from pdmodel.units import GB


class Source(Spec):
    """Where figures come from: ``ref`` is what a reader looks up, ``note`` how the figure follows from it."""

    kind: SourceKind
    ref: Annotated[str, Field(min_length=1)]
    note: str = ""


class Figure(Spec):
    """A positive number and the id of its source in the profile's ``sources``; the unit is in the key that holds it."""

    value: Annotated[float, Field(gt=0)]
    source: str


class Share(Spec):
    """A share of something, 0 to 1, and the id of its source."""

    value: Annotated[float, Field(ge=0, lt=1)]
    source: str


class DeviceLink(Spec):
    """The PCIe (or NVLink) link of a device, bytes leaving it and entering it.

    ``both_gb_per_s`` caps the two directions together, where a link is not full duplex.
    """

    egress_gb_per_s: Figure
    ingress_gb_per_s: Figure
    both_gb_per_s: Figure | None = None


class Uplink(Spec):
    """The link of a switch towards the CPU; ``both_gb_per_s`` caps the two directions together."""

    up_gb_per_s: Figure
    down_gb_per_s: Figure
    both_gb_per_s: Figure | None = None


def rate(figure: Figure) -> float:
    """A figure in GB/s as byte/s.

    >>> rate(Figure(value=53.9, source="x"))
    53900000000.0
    """
    return figure.value * GB


def source_ids(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every ``source`` id inside ``part``, with its JSON path.

    >>> list(source_ids(Uplink(up_gb_per_s=Figure(value=1, source="a"), down_gb_per_s=Figure(value=2, source="b"))))
    [('up_gb_per_s.source', 'a'), ('down_gb_per_s.source', 'b')]
    """
    if isinstance(part, Source):
        return
    if isinstance(part, BaseModel):
        for key in type(part).model_fields:
            value = getattr(part, key)
            where = f"{path}.{key}" if path else key
            if key == "source" and isinstance(value, str):
                yield where, value
            else:
                yield from source_ids(value, where)
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from source_ids(value, f"{path}.{key}" if path else str(key))
    elif isinstance(part, list | tuple):
        for k, value in enumerate(part):
            yield from source_ids(value, f"{path}.{k}")
