"""Where shipped data files lie, in a wheel and in an editable install, and how a name becomes a file.

Hardware profiles and scenarios are folders at the top of the repository, published tables one among its tests; a wheel
carries them inside the package. LLM configurations and engine specs always lie inside the package.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pdmodel.errors import InputError, nearest

PROFILES_PATH = "PDMODEL_PROFILES_PATH"
"""Environment variable: folders, separated as in PATH, searched for hardware profiles before the shipped ones."""

LONGEST_SHOWN = 80
"""Letters of a bad name that a message repeats."""

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = {
    "hardware_profiles": (_PACKAGE / "hardware_profiles", _PACKAGE.parent / "hardware_profiles"),
    "scenarios": (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios"),
    "llms": (_PACKAGE / "llm" / "configs",),
    "engines": (_PACKAGE / "engines" / "specs",),
    "stores": (_PACKAGE / "engines" / "stores",),
    "backends": (_PACKAGE / "engines" / "backends",),
    "published": (_PACKAGE / "published", _PACKAGE.parent / "tests" / "published"),
}
_WORDS = {
    "hardware_profiles": "hardware profile",
    "scenarios": "scenario",
    "llms": "LLM",
    "engines": "engine",
    "stores": "storage backend",
    "backends": "transfer backend",
    "published": "published table",
}


def data_folder(kind: str) -> Path:
    """The folder of the shipped files of ``kind``: hardware_profiles | scenarios | llms | engines | stores | published.

    Raises
    ------
    InputError: unknown kind, or the installation lacks the folder.

    """
    if kind not in _FOLDERS:
        raise InputError(f"unknown kind of data {kind!r}", expected="one of " + ", ".join(_FOLDERS))
    for folder in _FOLDERS[kind]:
        if folder.is_dir():
            return folder
    raise InputError("the installation has no such folder", file=str(_FOLDERS[kind][-1]))


def names(kind: str) -> list[str]:
    """The names that `resolve` knows for ``kind``, sorted: file names without their ending."""
    return sorted({path.stem for folder in _search_path(kind) for path in folder.glob(f"*{_ending(kind)}")})


def resolve(kind: str, name_or_path: str | os.PathLike[str]) -> Path:
    """The file that a name or a path means.

    Something with a slash, ending in ``.json`` (a published table in ``.csv``), or that is a file here is a path;
    anything else is a name, looked up in the folders of ``PDMODEL_PROFILES_PATH`` (hardware profiles only) and then
    among the shipped files.

    Raises
    ------
    InputError: no such file, or an unknown name (with the nearest known one).

    """
    text = os.fspath(name_or_path)
    path = _path(text)
    if "/" in text or os.sep in text or text.endswith(_ending(kind)) or path.is_file():
        if not path.exists():
            raise InputError("no such file", file=text)
        return path
    for folder in _search_path(kind):
        candidate = folder / f"{text}{_ending(kind)}"
        if candidate.is_file():
            return candidate
    known = names(kind)
    raise InputError(
        f"unknown {_WORDS[kind]} {text!r}",
        expected="a path, or one of " + ", ".join(known),
        nearest=nearest(text, known),
    )


def _ending(kind: str) -> str:
    return ".csv" if kind == "published" else ".json"


def _path(text: str) -> Path:
    """``text`` as a path that the file system can be asked for; `InputError` for what can be neither path nor name."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{shown!r} is no file name: {reason}", expected="a name or a path") from None
    return path


def _search_path(kind: str) -> Iterator[Path]:
    if kind == "hardware_profiles":
        for part in os.environ.get(PROFILES_PATH, "").split(os.pathsep):
            if part:
                folder = Path(part).expanduser()
                if not folder.is_dir():
                    raise InputError(f"{PROFILES_PATH} names {part!r}, which is no folder")
                yield folder
    yield data_folder(kind)
