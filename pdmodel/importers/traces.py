"""Recorded workloads from files: read line by line, prefix hits from the ids of blocks, malformed lines counted."""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pdmodel.errors import InputError
from pdmodel.importers.text_lines import BytesRead, plain, read_lines
from pdmodel.importers.trace_formats import (
    KNOWN,
    MalformedLine,
    NoHeading,
    Parser,
    TraceFormat,
    check,
    parser_of,
)
from pdmodel.workload.prefix_cache import cached_tokens, prefix_cache
from pdmodel.workload.trace import Trace

BLOCK_TOKENS = 512
"""Of the published Mooncake traces."""
SHOWN_LINES = 5
"""Malformed lines that are kept with their reason."""
LINES_BEFORE_HEADING = 20
LINES_OF_SAMPLE = 1000
_USUAL_BLOCKS = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace and what to know about its file.

    ``bad_lines`` are the first of ``malformed`` lines. ``block_tokens`` and ``cache_blocks`` (None: without an end) are
    the cache with which the prefix hits were found.
    """

    file: str
    kind: TraceFormat
    trace: Trace
    lines: int
    malformed: int
    bad_lines: tuple[BadLine, ...]
    block_tokens: int
    cache_blocks: int | None
    warnings: tuple[str, ...]


@dataclass
class _Columns:
    """Requests as they are read, 32 bytes each."""

    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    prompt: array[int] = field(default_factory=lambda: array("q"))
    answer: array[int] = field(default_factory=lambda: array("q"))
    cached: array[int] = field(default_factory=lambda: array("q"))
    with_blocks: int = 0
    other_counts: int = 0
    sample: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class _Reader:
    file: str
    strict: bool
    block_tokens: int
    cache_blocks: int | None
    columns: _Columns = field(default_factory=_Columns)
    malformed: int = 0
    bad: list[BadLine] = field(default_factory=list)
    lines: int = 0

    def refuse(self, number: int, reason: str) -> None:
        """Count a malformed line; the first is the last one where the user is strict."""
        if self.strict:
            raise InputError(reason, file=self.file, path=f"line {number}", expected="a request on every line")
        self.malformed += 1
        if len(self.bad) < SHOWN_LINES:
            self.bad.append(BadLine(number, reason))

    def heading(self, numbered: Iterator[tuple[int, str]]) -> tuple[TraceFormat, Parser, Iterable[tuple[int, str]]]:
        """The format by the first line that shows it; the lines that follow, that one included if it is a request."""
        first: tuple[int, str] | None = None
        tried: list[tuple[int, str]] = []
        for number, line in numbered:
            self.lines = number
            if not line.strip():
                continue
            try:
                kind, parser, request = parser_of(plain(line))
            except (NoHeading, MalformedLine) as error:
                first = first or (number, str(error))
                tried.append((number, str(error)))
                if len(tried) > LINES_BEFORE_HEADING:
                    break
                continue
            for one in tried:
                self.refuse(*one)
            return kind, parser, itertools.chain([(number, line)], numbered) if request else numbered
        if first is None:
            raise InputError("is empty", file=self.file, expected=KNOWN)
        raise InputError(first[1], file=self.file, path=f"line {first[0]}", expected=KNOWN)

    def read(self, parser: Parser, numbered: Iterable[tuple[int, str]]) -> None:
        """All requests that follow."""
        cache = prefix_cache(self.cache_blocks)
        columns, block_tokens = self.columns, self.block_tokens
        arrive, prompt_of, answer_of = columns.arrival_s.append, columns.prompt.append, columns.answer.append
        cached_of = columns.cached.append
        number = self.lines
        for number, line in numbered:
            if not line or line.isspace():
                continue
            try:
                request = parser(plain(line))
                check(request)
            except MalformedLine as error:
                self.refuse(number, str(error))
                continue
            arrival_s, prompt, answer, blocks = request
            arrive(arrival_s)
            prompt_of(prompt)
            answer_of(answer)
            if blocks is None:
                cached_of(0)
            else:
                cached_of(cached_tokens(cache.add(blocks), block_tokens, prompt))
                self._count(prompt, blocks)
        self.lines = number

    def _count(self, prompt: int, blocks: Sequence[int]) -> None:
        columns, block = self.columns, self.block_tokens
        columns.with_blocks += 1
        if not prompt // block <= len(blocks) <= -(-prompt // block):
            columns.other_counts += 1
            if len(columns.sample) < LINES_OF_SAMPLE:
                columns.sample.append((prompt, len(blocks)))


def read_trace(
    path: str | os.PathLike[str],
    *,
    block_tokens: int = BLOCK_TOKENS,
    cache_blocks: int | None = None,
    strict: bool = False,
    progress: BytesRead | None = None,
) -> ImportedTrace:
    """Read a Mooncake, Azure or BurstGPT trace; the format is seen from the file.

    Parameters
    ----------
    path: the file.
    block_tokens: tokens of a block that ``hash_ids`` number.
    cache_blocks: capacity of the prefix cache, least recently used first out; None: nothing is ever evicted.
    strict: refuse the file at the first malformed line.
    progress: called with the bytes read and the bytes in all.

    Returns
    -------
    `ImportedTrace` of at least one request, in order of arrival. Hits are found in the order of the file.

    Raises
    ------
    InputError: no file, no text, an unknown format, missing columns, no request in it; under ``strict`` any bad line.

    """
    for name, value in (("block_tokens", block_tokens), ("cache_blocks", cache_blocks)):
        if value is not None and value < 1:
            raise InputError(f"found {value}", path=name, expected="at least 1")
    reader = _Reader(os.fspath(path), strict, block_tokens, cache_blocks)
    numbered = enumerate(read_lines(Path(path), KNOWN, progress), start=1)
    kind, parser, rest = reader.heading(iter(numbered))
    reader.read(parser, rest)
    if not reader.columns.arrival_s:
        if reader.bad:
            worst = reader.bad[0]
            raise InputError(
                f"{worst.reason}; not one of {reader.malformed} lines is a request",
                file=reader.file,
                path=f"line {worst.line}",
                expected=KNOWN,
            )
        raise InputError("no request below the heading", file=reader.file, path="line 1", expected=KNOWN)
    return _imported(reader, kind)


def _imported(reader: _Reader, kind: TraceFormat) -> ImportedTrace:
    columns = reader.columns
    arrival_s = np.frombuffer(columns.arrival_s, dtype=np.float64)
    order = np.argsort(arrival_s, kind="stable")
    prompt, answer, cached = (
        np.frombuffer(column, dtype=np.int64)[order] for column in (columns.prompt, columns.answer, columns.cached)
    )
    late = int(np.count_nonzero(np.diff(arrival_s) < 0))
    trace = Trace(
        # Seconds since 1970 leave a float less than a microsecond.
        arrival_s=np.round(arrival_s[order] - arrival_s.min(), 6),
        input_tokens=prompt,
        output_tokens=answer,
        cached_tokens=cached if columns.with_blocks else None,
    )
    return ImportedTrace(
        file=reader.file,
        kind=kind,
        trace=trace,
        lines=reader.lines,
        malformed=reader.malformed,
        bad_lines=tuple(reader.bad),
        block_tokens=reader.block_tokens,
        cache_blocks=reader.cache_blocks,
        warnings=tuple(_warnings(reader, kind, trace, late)),
    )


def _warnings(reader: _Reader, kind: TraceFormat, trace: Trace, late: int) -> Iterator[str]:
    columns = reader.columns
    if reader.malformed:
        yield f"{reader.malformed} of {reader.lines} lines are malformed and left out"
    if late:
        yield f"{late} times a request came before the one above it: sorted; prefix hits follow the order of the file"
    if columns.other_counts:
        fits = [b for b in _USUAL_BLOCKS if all(p // b <= n <= -(-p // b) for p, n in columns.sample)]
        hint = f": --block-tokens {fits[0]} would fit" if len(fits) == 1 else ""
        yield (
            f"{columns.other_counts} requests do not have a block for every {reader.block_tokens} input tokens{hint}; "
            "cached tokens are wrong where blocks have another size"
        )
    if kind is TraceFormat.MOONCAKE:
        without = trace.requests - columns.with_blocks
        if without:
            yield f"{without} of {trace.requests} requests have no hash_ids: nothing of them counts as cached"
        arrival_ms = trace.arrival_s * 1e3
        if np.any(np.abs(arrival_ms - np.rint(arrival_ms)) > 1e-3):
            yield "some timestamps are no whole numbers; they are read as milliseconds"
    else:
        yield f"a trace of {kind.value} does not say what prompts share: no cached tokens"
    silent = int(np.count_nonzero(trace.output_tokens == 0))
    if silent:
        yield f"{silent} requests have no output tokens (they failed, or only their prompt was wanted)"
    if trace.duration_s == 0 and trace.requests > 1:
        yield "all requests come at the same time: no rate"
