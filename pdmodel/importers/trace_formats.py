"""The formats of recorded workloads: how the heading shows which it is, and how a line becomes a request.

Sources: Mooncake traces (FAST'25 release: timestamp [ms], input_length, output_length, hash_ids of 512-token blocks),
Azure LLM inference traces of 2023 and 2024 (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT v1 and later
(Timestamp [s], Request tokens, Response tokens, among others).
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pdmodel.errors import nearest
from pdmodel.scenario import MOST_TOKENS

LATEST_S = 1e12
"""Seconds; a later time of arrival is a slip."""


class TraceFormat(StrEnum):
    """Whose trace it is."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"


Parsed = tuple[float, int, int, Sequence[int] | None]
"""Arrival [s], input tokens, output tokens, ids of the prompt's blocks (None: the line has none)."""
Parser = Callable[[str], Parsed]


class MalformedLine(ValueError):
    """A line that is no request; the message says why."""


class NoHeading(ValueError):
    """A heading that no format has; the message says why."""


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The columns of a format that count, and how its times are written."""

    kind: TraceFormat
    columns: tuple[str, str, str]
    time: Callable[[str], float]


_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)


def _date_s(text: str) -> float:
    """Seconds since 1970; a time without a zone is one of UTC."""
    date = datetime.fromisoformat(text.strip())
    return (date - (_EPOCH if date.tzinfo is None else _EPOCH_UTC)).total_seconds()


CSV_FORMATS = (
    CsvFormat(TraceFormat.AZURE, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _date_s),
    CsvFormat(TraceFormat.BURSTGPT, ("Timestamp", "Request tokens", "Response tokens"), float),
)
KNOWN = (
    "a Mooncake trace (JSON lines with timestamp, input_length, output_length), an Azure trace (CSV with TIMESTAMP, "
    "ContextTokens, GeneratedTokens) or a BurstGPT trace (CSV with Timestamp, Request tokens, Response tokens)"
)


def parser_of(line: str) -> tuple[TraceFormat, Parser, bool]:
    """What the first line shows: the format, how its lines are read, whether this line is a request already.

    Raises: `NoHeading`.
    """
    if line.lstrip().startswith("{"):
        return TraceFormat.MOONCAKE, mooncake_request, True
    if line.lstrip().startswith("["):
        raise NoHeading("begins as a list, not with one JSON object a line")
    delimiter = max(",;\t", key=line.count)
    cells = _cells(line, delimiter)
    plain = [_plain(cell) for cell in cells]
    shared = {form: [column for column in form.columns if _plain(column) in plain] for form in reversed(CSV_FORMATS)}
    form = max(shared, key=lambda one: len(shared[one]))
    # Both have a column for the time, so that alone does not tell which it is.
    if not any(column in shared[form] for column in form.columns[1:]):
        raise NoHeading("has no heading of a known trace" if len(shared[form]) == 0 else "has no columns of tokens")
    missing = [column for column in form.columns if column not in shared[form]]
    if missing:
        like = nearest(missing[0], [cell.strip() for cell in cells[:100]])
        hint = f" (is it {_shown(like)}?)" if like is not None and _plain(like) not in map(_plain, shared[form]) else ""
        raise NoHeading(f"the heading has no column {missing[0]!r}{hint}")
    places = [plain.index(_plain(column)) for column in form.columns]
    return form.kind, csv_parser(form, places, len(cells), delimiter), False


def csv_parser(form: CsvFormat, places: Sequence[int], width: int, delimiter: str) -> Parser:
    """How a line of ``width`` cells is read, of which those at ``places`` are arrival, input and output."""
    when, prompt, answer = places
    time = form.time

    def request(line: str) -> Parsed:
        cells = line.split(delimiter)
        if '"' in line:
            cells = _cells(line, delimiter)
        if len(cells) != width:
            raise MalformedLine(f"{len(cells)} values where the heading has {width} columns")
        try:
            found = (time(cells[when]), int(cells[prompt]), int(cells[answer]), None)
        except (ValueError, OverflowError):
            found = _slowly(form, (cells[when], cells[prompt], cells[answer]))
        return found

    return request


def _slowly(form: CsvFormat, cells: tuple[str, str, str]) -> tuple[float, int, int, None]:
    """A line that is not written as usual: say which cell is wrong, or read it after all."""
    try:
        arrival_s = form.time(cells[0])
    except (ValueError, OverflowError):
        raise MalformedLine(f"{form.columns[0]} is {_shown(cells[0])}, no time") from None
    counts = []
    for name, text in zip(form.columns[1:], cells[1:], strict=True):
        try:
            value = float(text)
        except ValueError:
            raise MalformedLine(f"{name} is {_shown(text)}, no number of tokens") from None
        counts.append(_whole(name, value))
    return arrival_s, counts[0], counts[1], None


def mooncake_request(line: str) -> Parsed:
    """A line of JSON."""
    try:
        raw = json.loads(line)
    except json.JSONDecodeError as error:
        raise MalformedLine(f"malformed JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise MalformedLine("malformed JSON: nested too deeply") from None
    except ValueError:
        raise MalformedLine("a number of too many digits") from None
    if type(raw) is not dict:
        raise MalformedLine(f"a JSON {type(raw).__name__}, no object")
    try:
        time, prompt, answer = raw["timestamp"], raw["input_length"], raw["output_length"]
    except KeyError as error:
        like = nearest(str(error.args[0]), raw)
        hint = f" (is it {_shown(like)}?)" if like is not None else ""
        raise MalformedLine(f"no key {error.args[0]!r}{hint}") from None
    if type(prompt) is not int:
        prompt = _whole("input_length", prompt)
    if type(answer) is not int:
        answer = _whole("output_length", answer)
    if type(time) not in (int, float):
        raise MalformedLine(f"timestamp is {_shown(time)}, no time in milliseconds")
    blocks = raw.get("hash_ids")
    if blocks is not None and (type(blocks) is not list or not {*map(type, blocks)} <= {int}):
        raise MalformedLine("hash_ids is no list of whole numbers")
    try:
        return time / 1e3, prompt, answer, blocks
    except OverflowError:
        raise MalformedLine("timestamp is beyond any time") from None


def check(request: Parsed) -> None:
    """Figures that no request has; `MalformedLine` says which."""
    arrival_s, prompt, answer, _ = request
    if not 0 <= arrival_s <= LATEST_S:
        word = "before 0" if arrival_s < 0 else "no time" if math.isnan(arrival_s) else "beyond any time"
        raise MalformedLine(f"the time of arrival is {word}")
    if not 0 < prompt <= MOST_TOKENS:
        raise MalformedLine("no input tokens" if prompt == 0 else f"{_shown(prompt)} input tokens")
    if not 0 <= answer <= MOST_TOKENS:
        raise MalformedLine(f"{_shown(answer)} output tokens")


def _whole(name: str, value: Any) -> int:
    if type(value) is float and math.isfinite(value) and value == int(value):
        return int(value)
    raise MalformedLine(f"{name} is {_shown(value)}, no number of tokens")


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error as error:
        raise MalformedLine(f"malformed CSV: {error}") from None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."
