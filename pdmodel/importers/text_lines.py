"""Lines of a large text file, a part of it in memory at a time, whatever its encoding and its line ends."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pdmodel.errors import InputError
from pdmodel.importers.text_bytes import ESCAPES

BytesRead = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes in all (0: not known)."""

CHUNK_BYTES = 2**20
LONGEST_LINE = 2**24
"""Characters; a longer line is no line."""

_BINARY = {
    b"\x1f\x8b": "is compressed with gzip",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd",
    b"PK\x03\x04": "is a zip archive",
    b"PAR1": "is a Parquet file",
}


def read_lines(path: Path, expected: str, progress: BytesRead | None = None) -> Iterator[str]:
    """Each line without its end: UTF-8 with or without a byte order mark, UTF-16 with one; LF, CRLF or CR.

    What is no UTF-8 becomes a replacement character, so that one odd letter costs no more than its line.

    Parameters
    ----------
    path: the file.
    expected: what ought to be in it, for errors.
    progress: told after every part how many bytes are read.

    Raises
    ------
    InputError: no file, not readable, empty, no text, a line beyond `LONGEST_LINE`.

    """
    try:
        with path.open("rb") as file:
            yield from _lines(file, path, expected, progress)
    except FileNotFoundError:
        raise InputError("no such file", file=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder", file=str(path), expected=expected) from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    except ValueError as error:  # a name with a NUL in it
        raise InputError(f"is no file name ({error})", expected=expected) from None


def _lines(file: BinaryIO, path: Path, expected: str, progress: BytesRead | None) -> Iterator[str]:
    total = path.stat().st_size
    chunk = file.read(CHUNK_BYTES)
    if not chunk.strip():
        raise InputError("is empty", file=str(path), expected=expected)
    letters = codecs.getincrementaldecoder(_encoding(chunk, path, expected))("replace")
    decoder = io.IncrementalNewlineDecoder(letters, translate=True)
    rest, number, done = "", 1, 0
    while chunk:
        done += len(chunk)
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        number += len(lines)
        if len(rest) > LONGEST_LINE:
            raise InputError(
                f"longer than {LONGEST_LINE} letters", file=str(path), path=f"line {number}", expected=expected
            )
        yield from lines
        if progress is not None:
            progress(done, total)
        chunk = file.read(CHUNK_BYTES)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield from rest.split("\n")


def _encoding(head: bytes, path: Path, expected: str) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head.startswith(b"version https://git-lfs"):
        raise InputError("is a pointer of Git LFS, not the file itself", file=str(path), expected="git lfs pull")
    what = next((words for magic, words in _BINARY.items() if head.startswith(magic)), None)
    if what is None and b"\x00" in head[:4096]:
        what = "is no text"
    if what is not None:
        raise InputError(what, file=str(path), expected=expected)
    return "utf-8-sig"


def plain(line: str) -> str:
    r"""The line without the colours of a terminal.

    >>> plain("\x1b[31mred\x1b[0m"), plain("plain")
    ('red', 'plain')
    """
    return ESCAPES.sub("", line) if "\x1b" in line else line
