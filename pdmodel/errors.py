"""The error tree. Each error knows its exit code; the command line prints one line and never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PdmodelError(Exception):
    """Root of every error that pdmodel raises on purpose."""

    exit_code = 1


class InputError(PdmodelError):
    """Something that a user handed in is wrong: one line that says where, what was found, and what is legal.

    Parameters
    ----------
    message: what is wrong, with the value that was found.
    file: the file it was found in, as the user named it.
    path: JSON path (``prefill.tp_size``) or line (``line 12``) inside the file.
    expected: what is legal there.
    nearest: the nearest legal value, if there is one.

    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        path: str | None = None,
        expected: str | None = None,
        nearest: str | None = None,
    ) -> None:
        self.message, self.file, self.path = message, file, path
        self.expected, self.nearest = expected, nearest
        where = ": ".join(part for part in (file, path) if part)
        text = f"{where}: {message}" if where else message
        if expected:
            text += f"; expected {expected}"
        if nearest:
            text += f"; did you mean {nearest!r}?"
        super().__init__(text)

    def located(self, *, file: str | None = None, path: str | None = None) -> InputError:
        """The same error with the file or the path filled in where it was missing."""
        return type(self)(
            self.message,
            file=self.file or file,
            path=self.path or path,
            expected=self.expected,
            nearest=self.nearest,
        )


class CoverageError(InputError):
    """The input is well formed, but no formula or constant covers it; named, never guessed."""


class SolverError(PdmodelError):
    """The solver gave no optimum."""

    exit_code = 5


class DeadlineError(PdmodelError):
    """Under ``--strict``: the plan misses a deadline."""

    exit_code = 4


class VerificationError(PdmodelError):
    """A published table is not met within its limit."""

    exit_code = 6


def nearest(word: str, legal: Iterable[str]) -> str | None:
    """The legal word that begins with ``word``, else the one that looks most like it, or None.

    >>> nearest("tp_sise", ["tp_size", "cp_size"]), nearest("qwen3-235b", ["qwen3-32b", "qwen3-235b-a22b"])
    ('tp_size', 'qwen3-235b-a22b')
    """
    known = list(legal)
    begins = sorted((candidate for candidate in known if word and candidate.startswith(word)), key=len)
    found = begins or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return found[0] if found else None
