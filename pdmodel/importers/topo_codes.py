"""Codes and labels of the matrices that ``nvidia-smi topo`` prints, and text without what terminals put into it."""

from __future__ import annotations

import re

from pdmodel.importers.text_bytes import ESCAPES

P2P_CODES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_CLASSES = frozenset({"X", "SYS", "NODE", "PHB", "PXB", "PIX"})
_OLD = {"SOC": "SYS"}  # drivers before NODE existed
_NVLINK = re.compile(r"NV[1-9][0-9]{0,2}")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_NIC = re.compile(r"NIC[0-9]{1,4}")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]*[0-9][A-Za-z0-9_.-]*")
# Colour codes whose escape character was lost on the way, as log viewers leave them.
_BARE_ESCAPES = re.compile(r"\[[0-9]{1,2}(?:;[0-9]{1,3})*m")
_BLANKS = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u3000": " ", "\u200b": None, "\ufeff": None})
_DOTS = re.compile(r"[\[(<]?(?:\.{2,}|…+|⋮)[\])>]?")
_LEFT_OUT = re.compile(r"\W*(?:snip|omitted|elided|truncated|same|identical)\W*", re.IGNORECASE)


def code_of(word: str) -> str | None:
    """The code in today's spelling, or None where the word is none.

    >>> code_of("SOC"), code_of("NV18"), code_of("0-47")
    ('SYS', 'NV18', None)
    """
    word = word.strip().upper()
    if word in _CLASSES or word in P2P_CODES or _NVLINK.fullmatch(word):
        return word
    return _OLD.get(word)


def begins_code(word: str) -> bool:
    """Whether the word is a code, or one that was cut."""
    known = _CLASSES | P2P_CODES | _OLD.keys() | {"NV"}
    return code_of(word) is not None or any(code.startswith(word.upper()) for code in known if word)


def is_nvlink(code: str | None) -> bool:
    """Whether the code is NV and a count."""
    return code is not None and code.startswith("NV")


def is_gpu(label: str) -> bool:
    """Whether the label is that of a GPU."""
    return _GPU.fullmatch(label) is not None


def is_numbered_nic(label: str) -> bool:
    """Whether the label needs a legend to name the device."""
    return _NIC.fullmatch(label) is not None


def is_label(word: str) -> bool:
    """Whether a word of a header can be the label of a column: GPU0, NIC0, mlx5_0, rocep49s0, ..."""
    return code_of(word) is None and (is_gpu(word) or _DEVICE.fullmatch(word) is not None)


def is_ellipsis(word: str) -> bool:
    """Whether the word is the dots for what was left out."""
    return _DOTS.fullmatch(word) is not None


def may_leave_out(line: str) -> bool:
    """Whether a line says that lines were left out, in dots or in words."""
    return any(is_ellipsis(word) or _LEFT_OUT.fullmatch(word) for word in line.split())


def lines_of(text: str) -> list[str]:
    """Lines without escape sequences, carriage returns and blanks of other widths; `text` may end anywhere."""
    plain = _BARE_ESCAPES.sub("", ESCAPES.sub("", text)).translate(_BLANKS)
    return re.split(r"\r\n|\n|\r", plain)
