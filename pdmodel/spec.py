"""Base of everything that a user writes in a file: frozen, unknown keys refused, every figure with its source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from pdmodel.errors import InputError, nearest

SCHEMA_VERSION = 1
LONGEST_SHOWN = 120
"""Letters of a wrong value or key that a message repeats."""


class SourceKind(StrEnum):
    """Where a number comes from, best first. Results keep the weakest kind of what they are made of."""

    MEASURED = "measured"
    DATASHEET = "datasheet"
    DERIVED = "derived"
    ASSUMED = "assumed"

    @property
    def rank(self) -> int:
        """0 for the best kind, 3 for the weakest."""
        return list(SourceKind).index(self)


def weakest(*kinds: SourceKind) -> SourceKind:
    """The weakest of several kinds of source.

    >>> weakest(SourceKind.MEASURED, SourceKind.DERIVED).value
    'derived'
    """
    return max(kinds, key=lambda kind: kind.rank, default=SourceKind.MEASURED)


class Spec(BaseModel):
    """A part of an input file."""

    # Built when first used: a command reads few kinds of files.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )

    @classmethod
    def parse(cls, raw: Mapping[str, Any], *, file: str | None = None) -> Self:
        """Validate ``raw``; the first error becomes one `InputError` with file, JSON path and the nearest legal key."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise _input_errors(cls, error, raw, file)[0] from None

    @classmethod
    def problems(cls, raw: Mapping[str, Any], *, file: str | None = None) -> list[InputError]:
        """All that is wrong with the keys and values of ``raw``, the one that `parse` would raise first."""
        try:
            cls.model_validate(raw)
        except ValidationError as error:
            return _input_errors(cls, error, raw, file)
        return []

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON Schema (draft 2020-12) of the file."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read one JSON file."""
        return cls.parse(read_json(path), file=str(path))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``; `InputError` with line and column where it is malformed."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_each_key_once)
    except FileNotFoundError:
        raise InputError("no such file", file=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a folder", file=str(path), expected="a JSON file") from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=str(path), expected="a JSON file") from None
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=str(path)) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"malformed JSON: {error.msg}", file=str(path), path=f"line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError("is nested too deeply", file=str(path), expected="a JSON object") from None
    except ValueError as error:  # a number of thousands of digits, a key given twice
        raise InputError(str(error).split(";")[0], file=str(path)) from None
    if not isinstance(raw, dict):
        raise InputError(f"found a JSON {type(raw).__name__}", file=str(path), expected="a JSON object")
    return raw


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; JSON itself would let the last of equal keys win without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        times = Counter(key for key, _ in pairs)
        twice = next(key for key in times if times[key] > 1)
        message = f"the key {_clipped(twice)} is given twice in one object"
        raise ValueError(message)
    return found


def _clipped(value: Any) -> str:
    """How a message repeats what it found: one line of moderate length."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _legal_keys(spec: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The legal keys of the (nested) spec in which ``location``'s last part was found."""
    current: type[BaseModel] | None = spec
    for part in location[:-1]:
        if isinstance(part, int) or current is None:
            continue
        known = current.model_fields.get(part)
        current = next(_specs_in(known.annotation), None) if known else current
    return list(current.model_fields) if current else []


def _specs_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _specs_in(argument)


def _input_errors(
    spec: type[BaseModel], error: ValidationError, raw: Mapping[str, Any], file: str | None
) -> list[InputError]:
    # An unknown key says more than the "field required" that it usually causes.
    problems = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    # A list with a wrong item is also called too short, as pydantic leaves that item out.
    inside = [problem["loc"] for problem in problems]
    told = [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(len(loc) > len(problem["loc"]) and loc[: len(problem["loc"])] == problem["loc"] for loc in inside)
    ]
    return [_input_error(spec, problem, raw, file) for problem in told]


def _input_error(spec: type[BaseModel], problem: ErrorDetails, raw: Mapping[str, Any], file: str | None) -> InputError:
    location = problem["loc"]
    path = ".".join(part if len(part) <= LONGEST_SHOWN else _clipped(part) for part in map(str, location))
    if problem["type"] == "extra_forbidden":
        legal = _legal_keys(spec, location)
        return InputError(
            "unknown key",
            file=file,
            path=path,
            expected="one of " + ", ".join(sorted(legal)) if legal else None,
            nearest=nearest(str(location[-1]), legal),
        )
    if problem["type"] == "missing":
        return InputError("missing key", file=file, path=path)
    message = problem["msg"].removeprefix("Value error, ")
    found = _value_at(raw, location)
    return InputError(f"found {_clipped(found)}: {message}" if found is not None else message, file=file, path=path)


def _value_at(raw: Any, location: tuple[int | str, ...]) -> Any:
    for part in location:
        try:
            raw = raw[part]
        except (KeyError, IndexError, TypeError):
            return None
    return raw if not isinstance(raw, dict | list) else None
