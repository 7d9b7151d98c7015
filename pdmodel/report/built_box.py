"""A box that was built from files, for reading: what was taken from where, what contradicts, what had to be assumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.export import plain
from pdmodel.report.words import NOTHING, merged_name, number

if TYPE_CHECKING:
    from pdmodel.importers.box_evidence import FileOf
    from pdmodel.importers.build_box import BuiltBox, Taken


def built_document(built: BuiltBox, files: Sequence[FileOf[Any]], output: Path | None) -> Document:
    """The report; ``output`` is where the profile is written, if it is."""
    sections = [Section("Files", table=table(["file", "output of", "sha256"], [_file(item) for item in files]))]
    sections.append(Section("Figures", table=table(["figure", ">value", "kind", "~from"], _rows(built))))
    facts = [[fact.what, fact.value, fact.told_by] for fact in built.facts]
    sections.append(Section("Tree and flags", table=table(["what", "~value", "~told by"], facts)))
    for title, texts in (("Conflicts", built.conflicts), ("Assumed", built.assumed), ("To know", built.warnings)):
        if texts:
            sections.append(Section(title, bullets=texts))
    if output is not None:
        sections.append(
            Section("Next", text=(f"pdmodel hardware show {output}", f'in a scenario: "hardware": "{output}"'))
        )
    where = "not written: give --output BOX.json" if output is None else f"written to {output}"
    subtitle = f"{built.profile.summary} {where[0].upper()}{where[1:]}."
    return Document(
        built.profile.name, subtitle, tuple(sections), _content(built, files, output), tuple(_records(built, files))
    )


def _file(item: FileOf[Any]) -> list[str]:
    return [item.file, item.tool, item.sha256[:12]]


def _rows(built: BuiltBox) -> list[list[str]]:
    """Figures, alike ones in one row; those of kernels are the shipped profile's and not listed one by one."""
    groups: dict[tuple[str, float, str], list[Taken]] = {}
    for one in built.taken:
        if not one.path.startswith(("compute.", "collectives.")):
            words = one.path.split(".")
            key = ".".join("*" if word.isdigit() else word for word in words)
            groups.setdefault((key, one.value, one.source), []).append(one)
    rows = []
    for (key, value, source), found in groups.items():
        name = merged_name([one.path for one in found]) if len(found) > 1 else found[0].path
        entry = built.profile.sources[source]
        ref = entry.ref.split(", sha256")[0]
        rows.append([name if len(name) < 60 else key, number(value), found[0].kind.value, ref or NOTHING])
    for collective in built.profile.collectives:
        entry = built.profile.sources[collective.source]
        what = f"{collective.operation.value} among {collective.ranks}"
        rows.append([what, f"{len(collective.branches)} branches", entry.kind.value, entry.ref.split(", sha256")[0]])
    return rows


def _content(built: BuiltBox, files: Sequence[FileOf[Any]], output: Path | None) -> dict[str, Any]:
    return {
        "name": built.profile.name,
        "output": None if output is None else str(output),
        "files": [{"file": item.file, "tool": item.tool, "sha256": item.sha256} for item in files],
        "figures": [plain(one) for one in built.taken],
        "facts": [plain(one) for one in built.facts],
        "conflicts": list(built.conflicts),
        "assumed": list(built.assumed),
        "warnings": list(built.warnings),
        "profile": plain(built.raw),
    }


def _records(built: BuiltBox, files: Sequence[FileOf[Any]]) -> list[Record]:
    records = [Record("files", {"file": item.file, "tool": item.tool, "sha256": item.sha256}) for item in files]
    records += [Record("figures", plain(one)) for one in built.taken]
    records += [Record("facts", plain(one)) for one in built.facts]
    for section, texts in (("conflicts", built.conflicts), ("assumed", built.assumed), ("warnings", built.warnings)):
        records += [Record(section, {"text": text}) for text in texts]
    return records
