"""The text of a file that a tool wrote, whatever its encoding."""

from __future__ import annotations

import re

from pdmodel.errors import InputError

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""What terminals put into text: colours, titles, movements."""


def decoded(content: bytes) -> str | None:
    """The text of a file: UTF-8, UTF-16 with or without its mark, else Latin letters; None for what is no text."""
    if content[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return content.decode("utf-16", errors="replace")
    sample = content[:4096]
    if b"\x00" in sample:
        for encoding, nulls in (("utf-16-le", sample[1::2]), ("utf-16-be", sample[::2])):
            if nulls.count(0) > 0.9 * len(nulls):
                return content.decode(encoding, errors="replace")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def text_of(content: bytes, file: str, expected: str = "the output of a tool") -> str:
    """The text of a file; `InputError` for what is none, with what was ``expected`` there."""
    text = decoded(content)
    if text is None:
        raise InputError("is no text", file=file, expected=expected)
    return text
