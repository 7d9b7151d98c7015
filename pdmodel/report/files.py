"""Files that are whole or absent: checked before the work, written beside their place, then renamed."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pdmodel.errors import InputError


def check_target(path: Path) -> None:
    """Raise `InputError` where ``path`` cannot be written, before any work is done."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"the name of the file is too long: {path.name[:40]!r}...") from None
    if path.is_dir():
        raise InputError("is a folder", file=str(path), expected="a file name")
    folder = path.resolve().parent
    if not folder.exists():
        raise InputError(f"no such folder {str(folder)!r}", file=str(path))
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder", file=str(path))
    target = path if path.exists() and not path.is_file() else folder
    if not os.access(target, os.W_OK):
        raise InputError("permission denied", file=str(path))


def read_whole(path: Path) -> bytes:
    """The bytes of a file; `InputError` where it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError("no such file", file=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder", file=str(path), expected="a file") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None


def write_whole(path: Path, content: bytes) -> None:
    """Write ``content`` to a neighbour of ``path`` and rename it; a device or pipe is written to directly.

    Raises `InputError` where the file system refuses; nothing is left behind then.
    """
    check_target(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        _replace(path.resolve(), content)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=str(path)) from None


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def _umask() -> int:
    """The mask of new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
