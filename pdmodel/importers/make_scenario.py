"""A scenario from a box, an LLM, degrees of parallelism and a prompt or a trace; checked before anybody writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdmodel.costs.moe import EpExchange
from pdmodel.errors import InputError, nearest
from pdmodel.hardware.catalog import load_profile
from pdmodel.llm.catalog import load_llm
from pdmodel.record import scenario_record
from pdmodel.resolve import resolve_scenario
from pdmodel.resources import resolve
from pdmodel.scenario import MOST_TOKENS, CacheSpec, DecodeSpec, PrefillSpec, Scenario, StoreSpec, TransferSpec
from pdmodel.spec import Spec
from pdmodel.workload.request import CacheTier
from pdmodel.workload.trace import Trace, at_percentile

ENGINE = "sglang_mooncake"
RUNNING_REQUESTS = (32, 16, 8, 4, 2, 1)
"""Tried from the left until weights and KV fit the decode GPUs."""
MOST_REQUESTS = 1000

_SHORT = {"tp": "tp_size", "cp": "cp_size", "ep": "ep_size"}
_SHORT_PREFILL = {**_SHORT, "chunk": "chunk_tokens"}
_SHORT_DECODE = {
    "tp": "tp_size",
    "ep": "ep_size",
    "running": "max_running_requests",
    "context": "context_tokens",
}
_ELSEWHERE = {"hardware", "engine", "gpus"}
_PARTS: Mapping[str, tuple[type[Spec], str]] = {
    "transfer": (TransferSpec, "layout=hnd,page_tokens=16"),
    "cache": (CacheSpec, "write_policy=write_through,reuse=best"),
    "store": (StoreSpec, "backend=mooncake_store,place=remote"),
}
_LISTS = {"nics", "decode_nics"}
_DECIMAL = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request of the scenario is to be; times from the first one on [s]."""

    name: str
    input_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user said. ``prefill``, ``decode``, ``transfer``, ``cache`` and ``store`` hold keys of the scenario.

    Names may be paths from here. ``cached_in``: a tier, or tokens by tier, of every request.
    """

    hardware: str
    llm: str
    prefill: Mapping[str, Any]
    decode: Mapping[str, Any]
    requests: tuple[Wanted, ...]
    decode_hardware: str | None = None
    engine: str | None = None
    name: str | None = None
    kv_dtype: str | None = None
    weight_dtype: str | None = None
    cached_in: str | Mapping[str, int] | None = None
    transfer: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)
    store: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A value that the user did not give, and why it is this one."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class MadeScenario:
    """The file as it would be written, and what was chosen for the user."""

    raw: dict[str, Any]
    chosen: tuple[Chosen, ...]


def degrees(text: str, side: str) -> dict[str, Any]:
    """Keys of ``prefill`` or ``decode`` (``side``) written as ``tp=2,cp=2,ep=4``; any key of a scenario is legal too.

    Raises: `InputError` for what is no pair, an unknown or a repeated key.

    >>> degrees("tp=2, ep=4,ep_exchange=fused", "prefill")
    {'tp_size': 2, 'ep_size': 4, 'ep_exchange': 'fused'}
    """
    short, spec = (_SHORT_PREFILL, PrefillSpec) if side == "prefill" else (_SHORT_DECODE, DecodeSpec)
    keys = [key for key in spec.model_fields if key not in _ELSEWHERE]
    found = _pairs(text, f"--{side}", keys, short, "tp=4,ep=4")
    if "tp_size" not in found:
        raise InputError(f"found {text[:80]!r}", path=f"--{side}", expected="tp=N in it")
    return found


def part(text: str, name: str) -> dict[str, Any]:
    """Keys of ``transfer``, ``cache`` or ``store`` (``name``) written as pairs; a list with ``+`` between its numbers.

    Raises: as `degrees`.

    >>> part("layout=hnd,page_tokens=16,nics=0+2,early_send=true", "transfer")
    {'layout': 'hnd', 'page_tokens': 16, 'nics': [0, 2], 'early_send': True}
    """
    spec, example = _PARTS[name]
    found = _pairs(text, f"--{name}", list(spec.model_fields), {}, example)
    return {key: [value] if key in _LISTS and isinstance(value, int) else value for key, value in found.items()}


def tiers(text: str) -> str | dict[str, Any]:
    """Where a cached prefix lies: one tier, or tokens by tier.

    >>> tiers("store"), tiers("hbm=1024,host_memory=2048")
    ('store', {'hbm': 1024, 'host_memory': 2048})
    """
    known = [tier.value for tier in CacheTier]
    if "=" in text:
        return _pairs(text, "--cached-in", known, {}, "hbm=8192,host_memory=40960")
    if text not in known:
        raise InputError(
            f"found {text[:40]!r}",
            path="--cached-in",
            expected="one of " + ", ".join(known) + ", or tokens of each, as hbm=8192,store=4096",
            nearest=nearest(text, known),
        )
    return text


def _pairs(text: str, option: str, keys: Sequence[str], short: Mapping[str, str], example: str) -> dict[str, Any]:
    """``word=value`` pairs; ``short`` are other words for some of the keys."""
    legal = [*short, *(key for key in keys if key not in short.values())]
    found: dict[str, Any] = {}
    for pair in text.split(","):
        word, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not value:
            raise InputError(f"found {pair[:40]!r}", path=option, expected=f"for instance {example}")
        key = short.get(word.lower(), word.lower())
        if key not in keys:
            raise InputError(
                f"unknown key {word[:40]!r}",
                path=option,
                expected="one of " + ", ".join(legal),
                nearest=nearest(word, legal),
            )
        if key in found:
            raise InputError(f"{word} is given twice", path=option, expected="each key once")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number, a list of numbers, a truth value, or the word itself."""
    if text in {"true", "false"}:
        return text == "true"
    pieces = text.split("+")
    if len(pieces) > 1 and all(_is_whole(piece) for piece in pieces):
        return [int(piece) for piece in pieces]
    if _is_whole(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def at_percentiles(trace: Trace, text: str) -> tuple[Wanted, ...]:
    """Requests of a trace whose prompts have the lengths at the percentiles of ``text`` ("50,90,99"), all at time 0."""
    found = []
    for word in text.split(","):
        try:
            percentile = float(word)
        except ValueError:
            percentile = -1.0
        if not 0 <= percentile <= 100:
            raise InputError(f"found {word[:40]!r}", path="--percentiles", expected="numbers of 0 to 100, as 50,90,99")
        found.append(_wanted(trace, at_percentile(trace, percentile), f"p{percentile:g}", arrival_s=0.0))
    if len({one.name for one in found}) < len(found):
        raise InputError(f"found {text[:80]!r}", path="--percentiles", expected="each percentile once")
    return tuple(found)


def first_requests(trace: Trace, count: int) -> tuple[Wanted, ...]:
    """The first ``count`` requests of a trace at the times at which they came."""
    most = min(trace.requests, MOST_REQUESTS)
    if count > most:
        raise InputError(f"found {count}", path="--first", expected=f"1 to {most}")
    return tuple(_wanted(trace, k, f"r{k}", arrival_s=float(trace.arrival_s[k])) for k in range(count))


def _wanted(trace: Trace, index: int, name: str, *, arrival_s: float) -> Wanted:
    cached = 0 if trace.cached_tokens is None else int(trace.cached_tokens[index])
    return Wanted(name, int(trace.input_tokens[index]), cached, int(trace.output_tokens[index]), arrival_s)


def make_scenario(wish: Wish, output: Path, progress: Callable[[str], None] | None = None) -> MadeScenario:
    """The scenario that is wished for, as ``output`` would hold it: looked up, placed and its timeline built.

    Chosen where the user is silent: how tokens reach experts that lie on more ranks than the TP group; the context of
    a decode step (mean prompt and half the answer); as many running requests as fit, 32 at most; requests take turns
    on the instances.

    Raises
    ------
    InputError, CoverageError with the key of the scenario as path: whatever does not fit, with what is legal.

    """
    tell = progress or (lambda _: None)
    chosen: list[Chosen] = []
    raw = _draft(wish, output, chosen)
    given = "max_running_requests" in wish.decode
    for running in (None,) if given else RUNNING_REQUESTS:
        if running is not None:
            raw["decode"]["max_running_requests"] = running
        tell("looking names up and placing ranks")
        try:
            spec = Scenario.parse(raw)
            resolved = resolve_scenario(spec, str(output))
        except InputError as error:
            if error.path == "decode.max_running_requests" and running not in (None, RUNNING_REQUESTS[-1]):
                continue
            raise _without_file(error, output) from None
        if running is not None:
            why = "as many as fit the decode GPUs" if running < RUNNING_REQUESTS[0] else "the default, and it fits"
            chosen.append(Chosen("decode.max_running_requests", running, why))
        break
    tell("building the timeline")
    try:
        scenario_record(resolved)
    except InputError as error:
        raise _without_file(error, output) from None
    return MadeScenario(raw, tuple(chosen))


def _draft(wish: Wish, output: Path, chosen: list[Chosen]) -> dict[str, Any]:
    name = wish.name if wish.name is not None else output.stem.strip() or "scenario"
    decode_hardware = wish.decode_hardware or wish.hardware
    if wish.decode_hardware is None:
        chosen.append(Chosen("decode.hardware", wish.hardware, "the same box as for prefill"))
    if wish.engine is None:
        chosen.append(Chosen("prefill.engine", ENGINE, "the default"))
    prefill = {
        "hardware": _named("hardware_profiles", wish.hardware, output),
        "engine": _named("engines", wish.engine or ENGINE, output),
        **wish.prefill,
    }
    decode = {"hardware": _named("hardware_profiles", decode_hardware, output), **wish.decode}
    raw: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "purpose": _purpose(wish),
        "llm": _named("llms", wish.llm, output),
        **({} if wish.weight_dtype is None else {"weight_dtype": wish.weight_dtype}),
        **({} if wish.kv_dtype is None else {"kv_dtype": wish.kv_dtype}),
        "prefill": prefill,
        "decode": decode,
        "requests": _requests(wish, chosen),
        **{key: dict(said) for key, said in (("transfer", wish.transfer), ("cache", wish.cache)) if said},
    }
    if wish.store:
        raw["store"] = dict(wish.store)
        if "backend" in wish.store:
            raw["store"]["backend"] = _named("stores", str(wish.store["backend"]), output)
    _exchanges(wish, raw, chosen)
    if wish.kv_dtype is None:
        chosen.append(Chosen("kv_dtype", "bf16", "the default"))
    if prefill.get("cp_size", 1) != 1 and "cp_exchange" not in prefill:
        chosen.append(Chosen("prefill.cp_exchange", "all_gather", "the default"))
    if "chunk_tokens" not in prefill:
        chosen.append(Chosen("prefill.chunk_tokens", None, "each prompt in one chunk"))
    if "context_tokens" not in decode:
        mean = sum(2 * one.input_tokens + one.output_tokens for one in wish.requests) // (2 * len(wish.requests))
        decode["context_tokens"] = min(max(mean, 1), MOST_TOKENS)
        chosen.append(Chosen("decode.context_tokens", decode["context_tokens"], "mean prompt and half the answer"))
    return raw


def _purpose(wish: Wish) -> str:
    tokens = [one.input_tokens for one in wish.requests]
    low, high = min(tokens), max(tokens)
    size = f"{low}" if low == high else f"{low} to {high}"
    sides = (
        " ".join(f"{key.removesuffix('_size').upper()}{side[key]}" for key in _SHORT.values() if key in side)
        for side in (wish.prefill, wish.decode)
    )
    many = f"{len(tokens)} requests" if len(tokens) > 1 else "One request"
    return f"{many} of {size} input tokens: prefill on {next(sides)}, decode on {next(sides)}."


def _requests(wish: Wish, chosen: list[Chosen]) -> list[dict[str, Any]]:
    instances = wish.prefill.get("instances", 1)
    several = isinstance(instances, int) and instances > 1
    found = []
    for k, one in enumerate(wish.requests):
        request: dict[str, Any] = {"name": one.name, "input_tokens": one.input_tokens}
        if one.arrival_s:
            request["arrival_ms"] = round(one.arrival_s * 1e3, 3)
        if one.cached_tokens:
            request["cached_tokens"] = one.cached_tokens
            if wish.cached_in is not None:
                request["cached_in"] = wish.cached_in if isinstance(wish.cached_in, str) else dict(wish.cached_in)
        if several and k % instances:
            request["instance"] = k % instances
        found.append(request)
    if several:
        chosen.append(Chosen("requests[].instance", f"0 to {instances - 1}", "in turn"))
    if wish.cached_in is None and any(one.cached_tokens for one in wish.requests):
        chosen.append(Chosen("requests[].cached_in", "host_memory", "the default"))
    return found


def _exchanges(wish: Wish, raw: dict[str, Any], chosen: list[Chosen]) -> None:
    """Experts that lie on more ranks than the TP group need an exchange that moves tokens."""
    try:
        moe = load_llm(wish.llm).moe
    except InputError as error:
        raise error.located(path=None if error.file else "llm") from None
    if moe is None:
        return
    for side, box in (("prefill", wish.hardware), ("decode", wish.decode_hardware or wish.hardware)):
        part = raw[side]
        degree = {key: part.get(key, 1) for key in _SHORT.values()}
        if "ep_exchange" in part or not all(isinstance(value, int) and value > 0 for value in degree.values()):
            continue
        if degree["tp_size"] % degree["ep_size"] == 0:
            continue
        nvlink = load_profile(box).links.nvlink is not None
        exchange = EpExchange.DEDUP if nvlink else EpExchange.ALL_GATHER_REDUCE_SCATTER
        part["ep_exchange"] = exchange.value
        why = (
            "experts on more ranks than TP; DeepEP's kernels, as on NVLink"
            if nvlink
            else ("experts on more ranks than TP; vLLM's default without NVLink")
        )
        chosen.append(Chosen(f"{side}.ep_exchange", exchange.value, why))


def _named(kind: str, given: str, output: Path) -> str:
    """A shipped name as it is; a path as the scenario's folder sees it, so that both can be moved together."""
    key = {"hardware_profiles": "--hardware", "llms": "--llm", "engines": "--engine", "stores": "--store"}[kind]
    try:
        found = resolve(kind, given)
    except InputError as error:
        raise error.located(path=None if error.file else key) from None
    if "/" not in given and not given.endswith(".json") and not Path(given).is_file():
        return given
    if given.startswith("~") or Path(given).is_absolute():
        return given
    path = Path(os.path.relpath(found, output.parent.resolve())).as_posix()
    return path if "/" in path or path.endswith(".json") else f"./{path}"


def _without_file(error: InputError, output: Path) -> InputError:
    """The scenario does not exist yet, so its name says nothing."""
    if error.file != str(output):
        return error
    return type(error)(error.message, path=error.path, expected=error.expected, nearest=error.nearest)


def inputs_of(wish: Wish, others: Sequence[Path]) -> list[Path]:
    """Every file that is read, so that none is written over."""
    named = [("hardware_profiles", wish.hardware), ("llms", wish.llm), ("engines", wish.engine or ENGINE)]
    if wish.decode_hardware is not None:
        named.append(("hardware_profiles", wish.decode_hardware))
    if "backend" in wish.store:
        named.append(("stores", str(wish.store["backend"])))
    return [*others, *(resolve(kind, name) for kind, name in named)]
