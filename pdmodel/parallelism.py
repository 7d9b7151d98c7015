"""Tensor, context and expert parallelism of one instance, and which GPU holds which rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdmodel.errors import InputError
from pdmodel.llm.architecture import Architecture

MOST_RANKS = 1024
"""Degrees above it are not proposed."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """Degrees of parallelism of one instance.

    Attention runs on ``cp_size`` sequence shards of ``tp_size`` head shards each. Experts run on the same GPUs:
    ``ep_size`` groups of whole experts, each expert cut over the ranks that remain. At decode ``dcp_size`` neighbours
    among the TP ranks may share the tokens of the KV heads that each would keep (decode context parallelism).

    >>> Parallelism(tp_size=4, cp_size=2, ep_size=8).ranks
    8
    """

    tp_size: int = 1
    cp_size: int = 1
    ep_size: int = 1
    dcp_size: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of the instance."""
        return self.tp_size * self.cp_size


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of one instance on GPUs of one box: rank = cp_rank * tp_size + tp_rank sits on ``gpus[rank]``."""

    parallelism: Parallelism
    gpus: tuple[int, ...]

    def tp_group(self, cp_rank: int) -> tuple[int, ...]:
        """The GPUs that share the heads of one sequence shard, in ring order."""
        size = self.parallelism.tp_size
        return self.gpus[cp_rank * size : (cp_rank + 1) * size]

    def cp_group(self, tp_rank: int) -> tuple[int, ...]:
        """The GPUs that share the sequence of one head shard, in ring order."""
        return self.gpus[tp_rank :: self.parallelism.tp_size]

    @property
    def tp_groups(self) -> tuple[tuple[int, ...], ...]:
        """All tensor-parallel groups; they communicate at the same time."""
        return tuple(self.tp_group(rank) for rank in range(self.parallelism.cp_size))

    @property
    def cp_groups(self) -> tuple[tuple[int, ...], ...]:
        """All context-parallel groups; they communicate at the same time."""
        return tuple(self.cp_group(rank) for rank in range(self.parallelism.tp_size))

    @property
    def dcp_groups(self) -> tuple[tuple[int, ...], ...]:
        """The GPUs that share the tokens of the same KV heads at decode; they communicate at the same time."""
        size = self.parallelism.dcp_size
        return tuple(self.gpus[k : k + size] for k in range(0, len(self.gpus), size))


def place(
    parallelism: Parallelism, instances: int, gpu_count: int, gpus: Sequence[Sequence[int]] | None
) -> tuple[Placement, ...]:
    """Ranks of all instances of one box on its GPUs: as listed, else in order.

    Raises `InputError` (path ``gpus``, ``instances`` or ``tp_size``, for the caller to complete) for more ranks than
    GPUs, an index that the box does not have, or a GPU used twice.
    """
    needed = parallelism.ranks * instances
    if needed > gpu_count:
        degrees = f"tp_size x cp_size = {parallelism.ranks} ranks"
        raise InputError(
            degrees if instances == 1 else f"{instances} instances of {degrees} need {needed} GPUs",
            path="tp_size" if instances == 1 else "instances",
            expected=f"at most the {gpu_count} GPUs of the box",
        )
    if gpus is None:
        return tuple(
            Placement(parallelism, tuple(range(k * parallelism.ranks, (k + 1) * parallelism.ranks)))
            for k in range(instances)
        )
    if len(gpus) != instances:
        raise InputError(
            f"found {len(gpus)} lists", path="gpus", expected=f"one list for each of {instances} instances"
        )
    used: set[int] = set()
    for k, ranks in enumerate(gpus):
        if len(ranks) != parallelism.ranks:
            raise InputError(
                f"found {len(ranks)} GPUs", path=f"gpus.{k}", expected=f"{parallelism.ranks}, one for each rank"
            )
        for gpu in ranks:
            if not 0 <= gpu < gpu_count:
                raise InputError(f"found GPU {gpu}", path=f"gpus.{k}", expected=f"0 to {gpu_count - 1}")
            if gpu in used:
                raise InputError(f"GPU {gpu} holds two ranks", path=f"gpus.{k}", expected="each GPU once")
            used.add(gpu)
    return tuple(Placement(parallelism, tuple(ranks)) for ranks in gpus)


def check_parallelism(
    parallelism: Parallelism, arch: Architecture, *, heads_over_cp: bool = False, weight_block: int | None = None
) -> None:
    """Refuse degrees that the LLM cannot be cut by.

    Parameters
    ----------
    parallelism, arch: what is cut, and what it is cut into.
    heads_over_cp: True for Ulysses, which shards heads over CP ranks too.
    weight_block: side of the blocks in which FP8 weights are scaled (128), or None; a shard must hold whole blocks.

    Raises
    ------
    InputError with the key (``tp_size``, ``cp_size``, ``ep_size``) as path.

    """
    shards = parallelism.tp_size * (parallelism.cp_size if heads_over_cp else 1)
    key = "cp_size" if heads_over_cp and parallelism.cp_size > 1 else "tp_size"
    for mixer in arch.distinct_mixers():
        if mixer.heads % shards:
            raise InputError(
                f"{shards} shards do not divide the {mixer.heads} {'state' if mixer.state else 'attention'} heads "
                f"of {arch.name}",
                path=key,
                expected=_divisors(mixer.heads),
            )
        heads = mixer.kv_heads if mixer.is_latent else mixer.cache_heads or 1
        if heads and not _cuts_evenly(heads, shards):
            raise InputError(
                f"{heads} KV heads of {arch.name} cannot be cut or copied evenly over {shards} shards",
                path=key,
                expected=f"a divisor or a multiple of {heads}",
            )
    _check_experts(parallelism, arch)
    if weight_block is not None:
        _check_blocks(parallelism, arch, weight_block)


def _check_experts(parallelism: Parallelism, arch: Architecture) -> None:
    if arch.moe is None:
        if parallelism.ep_size != 1:
            raise InputError(f"{arch.name} has no experts", path="ep_size", expected="1")
        return
    if parallelism.ranks % parallelism.ep_size:
        raise InputError(
            f"found {parallelism.ep_size}",
            path="ep_size",
            expected=f"a divisor of tp_size x cp_size = {parallelism.ranks}",
        )
    if arch.moe.experts % parallelism.ep_size:
        raise InputError(
            f"{parallelism.ep_size} ranks do not divide the {arch.moe.experts} experts of {arch.name}",
            path="ep_size",
            expected=_divisors(arch.moe.experts),
        )


def _check_blocks(parallelism: Parallelism, arch: Architecture, block: int) -> None:
    cut = [("tp_size", "MLP", arch.intermediate_size, parallelism.tp_size)] if arch.intermediate_size else []
    if arch.moe is not None:
        cut = [("ep_size", "expert", arch.moe.intermediate_size, parallelism.ranks // parallelism.ep_size)]
    for key, what, width, shards in cut:
        if shards > 1 and (width % shards or (width // shards) % block):
            raise InputError(
                f"{what} width {width} of {arch.name} over {shards} ranks gives {width / shards:g}, "
                f"no multiple of the FP8 block of {block}",
                path=key,
                expected="another degree (whole experts: a larger ep_size)" if arch.moe else "a smaller tp_size",
            )


def _cuts_evenly(kv_heads: int, shards: int) -> bool:
    return kv_heads % shards == 0 or shards % kv_heads == 0


def _divisors(number: int) -> str:
    return "one of " + ", ".join(str(k) for k in range(1, min(number, MOST_RANKS) + 1) if number % k == 0)
