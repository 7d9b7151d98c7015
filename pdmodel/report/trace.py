"""A recorded workload for reading: how many requests, how long, how much of them was cached, what is odd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdmodel.report.document import Document, Record, Section, table
from pdmodel.report.words import NOTHING, number, percent

if TYPE_CHECKING:
    from pdmodel.importers.traces import ImportedTrace
    from pdmodel.workload.trace import Distribution, TraceSummary


def trace_document(found: ImportedTrace, figures: TraceSummary) -> Document:
    """What one trace says."""
    content = _content(found, figures)
    sections = [_requests_section(found, figures), _tokens_section(figures)]
    if found.bad_lines:
        rows = [[str(bad.line), bad.reason] for bad in found.bad_lines]
        more = found.malformed - len(rows)
        note = f"{more} more. --strict refuses the file." if more else "--strict refuses the file."
        sections.append(Section("Malformed lines", table=table([">line", "~why"], rows), note=note))
    if found.warnings:
        sections.append(Section("To know", bullets=found.warnings))
    records = [Record("trace", {"name": key, "value": value}) for key, value in content.items() if _plain(value)]
    records += [
        Record("tokens", {"column": key, **content[key]})
        for key in ("input_tokens", "output_tokens", "cached_tokens")
        if content[key] is not None
    ]
    records += [Record("malformed", {"line": bad.line, "reason": bad.reason}) for bad in found.bad_lines]
    records += [Record("warnings", {"text": text}) for text in found.warnings]
    return Document("Trace", found.file, tuple(sections), content, tuple(records))


def _requests_section(found: ImportedTrace, figures: TraceSummary) -> Section:
    rows = [
        ["format", found.kind.value],
        ["requests", str(figures.requests)],
        ["duration", f"{number(figures.duration_s)} s"],
        ["rate", f"{number(figures.requests_per_s)} requests/s"],
        [
            "input",
            f"{number(figures.input_tokens_per_s)} tokens/s, "
            f"{number(figures.busiest_input_tokens_per_s)} in the busiest 10 s",
        ],
        ["malformed lines", f"{found.malformed} of {found.lines}"],
    ]
    if figures.hit_rate is not None:
        size = "without an end" if found.cache_blocks is None else f"of {found.cache_blocks} blocks"
        cache = f"cache {size}, {found.block_tokens} tokens a block"
        rows.insert(5, ["prefix hits", f"{percent(figures.hit_rate)} of the input tokens: {cache}"])
    return Section("Requests", table=table(["what", "~value"], rows))


def _tokens_section(figures: TraceSummary) -> Section:
    rows = [
        [name, f"{one.mean:.0f}", *(str(value) for value in (one.p50, one.p90, one.p99, one.max))]
        if one is not None
        else [name, *[NOTHING] * 5]
        for name, one in (
            ("input", figures.input_tokens),
            ("output", figures.output_tokens),
            ("cached", figures.cached_tokens),
        )
    ]
    return Section("Tokens of a request", table=table(["tokens", ">mean", ">p50", ">p90", ">p99", ">largest"], rows))


def _content(found: ImportedTrace, figures: TraceSummary) -> dict[str, Any]:
    return {
        "file": found.file,
        "status": "partial" if found.malformed else "complete",
        "format": found.kind.value,
        "requests": figures.requests,
        "duration_s": figures.duration_s,
        "requests_per_s": figures.requests_per_s,
        "input_tokens_per_s": figures.input_tokens_per_s,
        "busiest_10s_input_tokens_per_s": figures.busiest_input_tokens_per_s,
        "input_tokens": _distribution(figures.input_tokens),
        "output_tokens": _distribution(figures.output_tokens),
        "cached_tokens": _distribution(figures.cached_tokens),
        "hit_rate": figures.hit_rate,
        "block_tokens": found.block_tokens,
        "cache_blocks": found.cache_blocks,
        "lines": found.lines,
        "malformed": found.malformed,
        "malformed_lines": [{"line": bad.line, "reason": bad.reason} for bad in found.bad_lines],
        "warnings": list(found.warnings),
    }


def _distribution(one: Distribution | None) -> dict[str, float] | None:
    return None if one is None else {"mean": one.mean, "p50": one.p50, "p90": one.p90, "p99": one.p99, "max": one.max}


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)
