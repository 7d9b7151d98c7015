"""The published tables: CSV files with a source in every row, and one JSON file that says how near they must be met."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pdmodel.errors import InputError, nearest
from pdmodel.hardware.catalog import load_profile
from pdmodel.hardware.topology import Box
from pdmodel.resources import data_folder
from pdmodel.spec import Spec
from pdmodel.units import GIB, KIB, MIB

LIMITS_FILE = "limits.json"
BAND = "band"
Row = Mapping[str, str]


class Evidence(StrEnum):
    """fitted: constants were fitted to the same measurements, so the error is how well the form follows them.

    foretold: nothing was fitted to these rows. exact: figures that follow from a definition.
    """

    FITTED = "fitted"
    FORETOLD = "foretold"
    EXACT = "exact"


class Limit(Spec):
    """The largest relative errors allowed in the groups whose columns (and ``band``) are as ``where`` says.

    ``mean`` and ``worst`` are of |predicted / published - 1| [-]; ``reason``: why it is as wide as it is.
    """

    where: dict[str, str] = Field(default_factory=dict)
    mean: Annotated[float, Field(ge=0)] | None = None
    worst: Annotated[float, Field(ge=0)] | None = None
    reason: str = ""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.mean is None and self.worst is None:
            message = "a limit without mean and worst limits nothing"
            raise ValueError(message)
        return self

    def holds_for(self, keys: Mapping[str, str]) -> bool:
        """Whether the group with these keys is meant."""
        return all(keys.get(column) == value for column, value in self.where.items())


class PublishedTable(Spec):
    """One table. ``check`` names the function that predicts its rows (`pdmodel.verification.checks.CHECKS`).

    ``group_by``: columns (or what the check adds, as ``quantity``) that errors are averaged by. ``bands_bytes``: upper
    ends of the bands of message size. ``select``: the rows that count, by column. ``limit_column``: a column with the
    largest relative error allowed in that row. ``parameters``: what the check needs besides, by the value of ``table``
    or of a profile.
    """

    name: str
    file: str
    check: str
    what: str
    evidence: Evidence
    select: dict[str, str] = Field(default_factory=dict)
    group_by: tuple[str, ...] = ()
    bands_bytes: tuple[int, ...] = ()
    limit_column: str | None = None
    limits: tuple[Limit, ...] = ()
    parameters: dict[str, dict[str, float | str]] = Field(default_factory=dict)

    def band(self, size_bytes: float | None) -> str:
        """The name of the band of a size; empty where the table has none.

        >>> table = PublishedTable(name="t", file="", check="", what="", evidence="fitted", bands_bytes=(65536,))
        >>> table.band(65536), table.band(65537)
        ('to 64 KiB', 'above 64 KiB')
        """
        if size_bytes is None or not self.bands_bytes:
            return ""
        end = next((end for end in self.bands_bytes if size_bytes <= end), None)
        return f"above {_size(self.bands_bytes[-1])}" if end is None else f"to {_size(end)}"

    def limit(self, keys: Mapping[str, str]) -> Limit | None:
        """The first limit that is meant for a group, or None."""
        return next((limit for limit in self.limits if limit.holds_for(keys)), None)


class Manifest(Spec):
    """The whole file of limits."""

    schema_version: Literal[1]
    tables: tuple[PublishedTable, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published figure and what the package says.

    ``rounding``: half a unit of the last digit that was published, in the figure's own unit; a difference within it is
    none. ``keys``: the columns that it is grouped by. ``limit``: a limit of this row's own, or None.
    """

    row: str
    predicted: float
    published: float
    keys: Mapping[str, str]
    source: str
    size_bytes: float | None = None
    rounding: float = 0.0
    limit: float | None = None

    @property
    def error(self) -> float:
        """|predicted - published|, less the rounding, over the published figure [-]."""
        return max(0.0, abs(self.predicted - self.published) - self.rounding) / abs(self.published)


def read_manifest(folder: Path | None = None) -> Manifest:
    """The file of limits; `InputError` where it is malformed."""
    return Manifest.load((folder or data_folder("published")) / LIMITS_FILE)


def read_tables(names: tuple[str, ...] = (), folder: Path | None = None) -> tuple[PublishedTable, ...]:
    """The published tables, all of them or those named; `InputError` for an unknown name."""
    tables = read_manifest(folder).tables
    known = [table.name for table in tables]
    for name in names:
        if name not in known:
            raise InputError(
                f"unknown table {name!r}", expected="one of " + ", ".join(known), nearest=nearest(name, known)
            )
    return tuple(table for table in tables if not names or table.name in names)


def read_rows(table: PublishedTable, folder: Path | None = None) -> list[Row]:
    """The rows of a table that count; `InputError` where the file or a column is missing."""
    path = (folder or data_folder("published")) / table.file
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    if not rows:
        raise InputError("has no rows", file=str(path))
    for column in ("source", *table.select):
        if column not in rows[0]:
            raise InputError(f"has no column {column!r}", file=str(path))
    return [row for row in rows if all(row[column] == value for column, value in table.select.items())]


def keys_of(table: PublishedTable, row: Row, quantity: str = "", kind: str = "") -> dict[str, str]:
    """The columns that a row's errors are averaged by; ``quantity`` and ``kind`` are what checks add to a row."""
    added = {"quantity": quantity, "kind": kind}
    return {column: added.get(column) or row[column] for column in table.group_by}


def boxes(names: Iterable[str]) -> dict[str, Box]:
    """Boxes by the names in a table: profiles that are shipped, or that lie beside the tables."""
    own = data_folder("published") / "boxes"
    found = {}
    for name in names:
        if name not in found:
            path = own / f"{name}.json"
            found[name] = Box(load_profile(str(path) if path.is_file() else name), "P")
    return found


def source_of(row: Row) -> str:
    """Where a row's figure is from, led by the notice that its licence asks for."""
    notice = row.get("notice") or ""
    return row["source"] if not notice or row["source"].startswith(notice) else f"{notice}: {row['source']}"


def _size(size_bytes: int) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes % scale == 0:
            return f"{size_bytes / scale:.0f} {unit}"
    return f"{size_bytes} B"
