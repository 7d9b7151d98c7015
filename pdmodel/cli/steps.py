"""What ``pdmodel cost step`` was asked: its options checked, and the step broken down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from pdmodel.cli.sizes import choice
from pdmodel.costs.context_parallel import CpExchange, check_context_parallel
from pdmodel.costs.moe import EpExchange
from pdmodel.errors import CoverageError, InputError
from pdmodel.llm.dtypes import KvDtype, WeightDtype
from pdmodel.llm.kv_cache import is_latent, kv_bytes_per_token
from pdmodel.parallelism import Parallelism, place
from pdmodel.resolve import check_degrees, with_weights
from pdmodel.scenario import AllReduce
from pdmodel.timeline.breakdown import Setting, StepBreakdown, decode_breakdown, prefill_breakdown

if TYPE_CHECKING:
    from pdmodel.hardware.topology import Box
    from pdmodel.llm.architecture import Architecture

_Word = TypeVar("_Word", bound=StrEnum)
_OPTIONS = {"tp_size": "--tp", "cp_size": "--cp", "ep_size": "--ep", "gpus": "--gpus", "gpus.0": "--gpus"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed: phase and sizes, None where left out; degrees of TP, CP, EP; the words of other options."""

    phase: str
    tokens: int | None
    past: int | None
    batch: int | None
    context: int | None
    degrees: tuple[int, int, int]
    weights: str | None
    words: Mapping[str, str]

    def sizes(self) -> dict[str, int]:
        """The sizes of the phase; `InputError` for one that is missing, that is not positive, or of the other phase."""
        choice(self.phase, ["prefill", "decode"], "--phase")
        given = {"--tokens": self.tokens, "--past": self.past, "--batch": self.batch, "--context": self.context}
        mine = ("--tokens", "--past") if self.phase.lower() == "prefill" else ("--batch", "--context")
        for option, value in given.items():
            if option not in mine and value is not None:
                raise InputError(
                    f"says nothing of a {self.phase} step", path=option, expected=" and ".join(mine) + " there"
                )
        found = {option: 0 if option == "--past" and given[option] is None else given[option] for option in mine}
        for option, value in found.items():
            if value is None:
                raise InputError(f"missing for {self.phase}", path=option, expected="a positive number")
            if value < (0 if option == "--past" else 1):
                raise InputError(f"found {value}", path=option, expected="a positive number")
        for option, value in zip(("--tp", "--cp", "--ep"), self.degrees, strict=True):
            if value < 1:
                raise InputError(f"found {value}", path=option, expected="a positive number")
        return {option.lstrip("-"): value for option, value in found.items() if value is not None}


def broken_down(
    asked: Asked, arch: Architecture, box: Box, gpus: Sequence[int]
) -> tuple[dict[str, Any], StepBreakdown]:
    """What was asked, key by key, and the step. Raises `InputError` with the option that is wrong."""
    sizes, degrees, words, weights = asked.sizes(), asked.degrees, asked.words, asked.weights
    stored = None if weights is None else _word(WeightDtype, weights, "--weight-dtype")
    exchange = _word(EpExchange, words["ep_exchange"], "--ep-exchange")
    cp_exchange = _word(CpExchange, words["cp_exchange"], "--cp-exchange")
    parallelism, arch = Parallelism(*degrees), with_weights(arch, stored)
    over_cp = cp_exchange is CpExchange.ULYSSES and parallelism.cp_size > 1
    if "batch" in sizes and parallelism.cp_size > 1:
        raise InputError("a decode step has no context parallelism here", path="--cp", expected="1")
    if over_cp and is_latent(arch):
        raise CoverageError("ulysses shards KV heads, and a latent has none", path="--cp-exchange", expected="ring")
    kv_dtype = _word(KvDtype, words["kv_dtype"], "--kv-dtype")
    try:
        kv_bytes_per_token(arch, kv_dtype)  # a layout that this kind of attention does not have is refused
        if parallelism.cp_size > 1:
            check_context_parallel(arch, cp_exchange)
        check_degrees(parallelism, arch, exchange, heads_over_cp=over_cp)
        (placement,) = place(parallelism, 1, box.gpu_count, (tuple(gpus),))
    except InputError as error:
        path = _OPTIONS.get(error.path or "", error.path)
        raise type(error)(error.message, path=path, expected=error.expected, nearest=error.nearest) from None
    setting = Setting(
        arch,
        box,
        placement,
        kv_dtype=kv_dtype,
        all_reduce=_word(AllReduce, words["all_reduce"], "--all-reduce").value,
        ep_exchange=exchange,
        cp_exchange=cp_exchange,
    )
    facts = {
        "llm": arch.name,
        "hardware": box.profile.name,
        "phase": "decode" if "batch" in sizes else "prefill",
        **dict(zip(("tp", "cp", "ep"), degrees, strict=True)),
        **sizes,
        "weights": arch.dtypes.attention.value,
        "kv_dtype": setting.kv_dtype.value,
        "all_reduce": setting.all_reduce,
        "ep_exchange": exchange.value if arch.moe else "none",
        "gpus": ",".join(map(str, gpus)),
    }
    if "batch" in sizes:
        return facts, decode_breakdown(setting, sizes["batch"], sizes["context"])
    return facts, prefill_breakdown(setting, sizes["tokens"], sizes["past"])


def _word(kind: type[_Word], text: str, option: str) -> _Word:
    return kind(choice(text, [member.value for member in kind], option))
