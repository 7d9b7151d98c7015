"""Decode context parallelism: TP ranks that would keep the same KV heads share their tokens, and what they exchange."""

from __future__ import annotations

from collections.abc import Sequence

from pdmodel.costs.collectives.cost import collective
from pdmodel.costs.context_parallel import ACTIVATION_BYTES, CpLayer
from pdmodel.errors import CoverageError, InputError
from pdmodel.hardware.topology import Box
from pdmodel.llm.architecture import Architecture
from pdmodel.llm.kinds import LayerKind, Mixer

LSE_BYTES = 4
"""The logarithm of a softmax's sum, one a head and token, in FP32."""
EXCHANGE_NOTE = (
    "ranks that share the tokens of a sequence at decode gather queries and sums, and scatter outputs, as vLLM does"
)


def shares_tokens(mixer: Mixer) -> bool:
    """Whether the ranks of a group share the tokens of a layer: full attention and latents; states have none."""
    return mixer.kind in (LayerKind.FULL, LayerKind.LATENT)


def check_decode_context(arch: Architecture, tp_size: int, dcp_size: int) -> None:
    """Refuse groups that the TP ranks do not form, heads that are not copied, and layers that no formula covers.

    Raises: `InputError`; `CoverageError` for windows, compressed attention and indexers.
    Source: vLLM docs, serving/context_parallel_deployment.md (at most tp_size / KV heads); SGLang docs,
    advanced_features/dcp.md (a divisor of tp_size; states are unchanged).
    """
    if dcp_size == 1:
        return
    if tp_size % dcp_size:
        raise InputError(f"found {dcp_size}", expected=f"a divisor of tp_size {tp_size}")
    for mixer in arch.distinct_mixers():
        if mixer.kind in (LayerKind.NONE, LayerKind.LINEAR):
            continue
        if not shares_tokens(mixer) or mixer.indexer is not None:
            what = "an indexer" if shares_tokens(mixer) else f"{mixer.kind.value} attention"
            raise CoverageError(
                f"{arch.name} has {what}: how ranks share its tokens at decode is not known", expected="1"
            )
        if (tp_size // dcp_size) % mixer.kv_heads and not mixer.is_latent:
            raise InputError(
                f"{dcp_size} ranks would share the tokens of a head, {tp_size} TP ranks keep {mixer.kv_heads} KV heads "
                f"of {arch.name}",
                expected=f"a divisor of {tp_size // mixer.kv_heads}" if tp_size >= mixer.kv_heads else "1",
            )


def decode_context_layer(mixer: Mixer, batch: float, *, tp_size: int, gpus: Sequence[int], box: Box) -> CpLayer:
    """What one group exchanges in one layer of a decode step, in order.

    Equation: all-gather of the queries, n H D q b; all-gather of the sums, n H D D 4; reduce-scatter of the outputs,
    n H D v b: H query heads of a rank, q = v = head size, or for latents q = rank + rotary part and v = rank; b = 2.

    Parameters
    ----------
    mixer: of the layer; ``batch`` n of its queries [-].
    tp_size: ranks that share the query heads.
    gpus: the group, D of them.
    box: where.

    Returns
    -------
    `CpLayer`: queries before attention, the rest after it.

    Raises
    ------
    As `collective`.

    Notes
    -----
    Validity: one query a request; engines that replicate the projections of the queries gather none (left out). Other
    groups exchange at the same time. Source: vLLM v1/attention/ops/common.py (cp_lse_ag_out_rs), arXiv 2507.07120.

    """
    rows = batch * mixer.heads / tp_size * len(gpus)
    query, output = mixer.head_dim, mixer.v_head_dim
    if mixer.mla is not None:
        query, output = mixer.mla.kv_lora_rank + mixer.mla.qk_rope_head_dim, mixer.mla.kv_lora_rank
    return CpLayer(
        before=(collective("all_gather", rows * query * ACTIVATION_BYTES, gpus, box),),
        after=(
            collective("all_gather", rows * LSE_BYTES * len(gpus), gpus, box),
            collective("reduce_scatter", rows * output * ACTIVATION_BYTES, gpus, box),
        ),
    )
