"""The facts of an LLM that traffic, memory and compute follow from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pdmodel.llm.dtypes import WeightDtype


class AttentionKind(StrEnum):
    """GQA covers MHA (kv_heads = heads) and MQA (kv_heads = 1); MLA caches one latent per token and layer."""

    GQA = "gqa"
    MLA = "mla"


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Ranks and head widths of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    ``q_lora_rank`` None: queries are projected directly from the hidden state.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Routed experts of the layers in ``layers``, ``top_k`` per token, and the experts that every token visits.

    ``shared_intermediate_size`` is the width of all shared experts together, 0 when there are none.
    ``shared_gate``: the shared expert's output is scaled by a learnt gate (one row of hidden size).
    """

    experts: int
    top_k: int
    intermediate_size: int
    layers: frozenset[int]
    shared_intermediate_size: int = 0
    shared_gate: bool = False


@dataclass(frozen=True, slots=True)
class WeightDtypes:
    """Storage of the matrices of a layer; embedding, head, norms, biases and router stay in ``other``."""

    attention: WeightDtype
    mlp: WeightDtype
    experts: WeightDtype
    shared_expert: WeightDtype
    other: WeightDtype
    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer by the part that holds them; ``other`` is norms, biases, router and gates."""

    attention: int
    mlp: int
    experts: int
    shared_expert: int
    other: int

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.attention + self.mlp + self.experts + self.shared_expert + self.other


@dataclass(frozen=True, slots=True)
class Architecture:
    """One decoder-only LLM, dense or MoE.

    Widths are those of the whole LLM, before any split over ranks. ``head_dim`` is the width of a query head (MLA:
    nope + rope), ``v_head_dim`` that of a value head. ``mtp_layers`` counts multi-token-prediction layers, which are
    left out of layers, parameters and KV. ``gated_mlp``: gate, up and down matrices; else up and down only.
    ``qk_norm``: queries and keys are normalised per head before the rotation.
    """

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    attention: AttentionKind
    intermediate_size: int
    vocab_size: int
    dtypes: WeightDtypes
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    tied_embeddings: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    gated_mlp: bool = True
    mtp_layers: int = 0
    max_context_tokens: int | None = None
    file: str = field(default="", compare=False)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether layer ``layer`` (0-based) routes its tokens to experts."""
        return self.moe is not None and layer in self.moe.layers

    @property
    def dense_layer(self) -> int | None:
        """The first layer with a dense MLP, or None."""
        return next((layer for layer in range(self.layers) if not self.is_moe_layer(layer)), None)

    @property
    def attention_parameters(self) -> int:
        """Parameters of the projections of one layer, without norms and biases [count]."""
        if self.mla is not None:
            mla, heads = self.mla, self.heads
            query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
            query = (
                self.hidden_size * query_width
                if mla.q_lora_rank is None
                else mla.q_lora_rank * (self.hidden_size + query_width)
            )
            latent = self.hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim)
            expansion = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
            return query + latent + expansion + heads * mla.v_head_dim * self.hidden_size
        return self.hidden_size * self.head_dim * 2 * (self.heads + self.kv_heads)

    def layer_parameters(self, layer: int) -> LayerParameters:
        """Parameters of one layer: every matrix, norm and bias that the checkpoint holds for it [count]."""
        matrices = 3 if self.gated_mlp else 2
        other = self._norm_and_bias_parameters()
        if self.moe is None or layer not in self.moe.layers:
            mlp = matrices * self.hidden_size * self.intermediate_size
            return LayerParameters(self.attention_parameters, mlp, 0, 0, other)
        moe = self.moe
        other += self.hidden_size * (moe.experts + int(moe.shared_gate))
        return LayerParameters(
            self.attention_parameters,
            0,
            moe.experts * matrices * self.hidden_size * moe.intermediate_size,
            matrices * self.hidden_size * moe.shared_intermediate_size,
            other,
        )

    def _norm_and_bias_parameters(self) -> int:
        norms = 2 * self.hidden_size
        biases = self.hidden_size if self.output_bias else 0
        if self.mla is not None:
            return norms + biases + (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank
        if self.qk_norm:
            norms += 2 * self.head_dim
        if self.qkv_bias:
            biases += self.head_dim * (self.heads + 2 * self.kv_heads)
        return norms + biases

    @property
    def embedding_parameters(self) -> int:
        """Token embedding and output head; once when they are tied [count]."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """All parameters: layers, final norm, embedding and head; without multi-token-prediction layers [count]."""
        layers = sum(self.layer_parameters(layer).total for layer in range(self.layers))
        return layers + self.embedding_parameters + self.hidden_size

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the routed experts it is not sent to [count].

        Embedding and head count in full, as in the published "A22B" figures.
        """
        idle = 0
        if self.moe is not None:
            matrices = 3 if self.gated_mlp else 2
            expert = matrices * self.hidden_size * self.moe.intermediate_size
            idle = len(self.moe.layers) * (self.moe.experts - self.moe.top_k) * expert
        return self.parameters - idle

    @property
    def weights_bytes(self) -> float:
        """Bytes of all weights with block scales; embedding, head, norms, biases, router in ``dtypes.other`` [byte]."""
        dtypes = self.dtypes
        size = (self.embedding_parameters + self.hidden_size) * dtypes.other.bytes_per_parameter
        for layer in range(self.layers):
            part = self.layer_parameters(layer)
            size += part.attention * dtypes.attention.bytes_per_parameter
            size += part.mlp * dtypes.mlp.bytes_per_parameter
            size += part.experts * dtypes.experts.bytes_per_parameter
            size += part.shared_expert * dtypes.shared_expert.bytes_per_parameter
            size += part.other * dtypes.other.bytes_per_parameter
        return size

    def weights_bytes_per_rank(self, tp_size: int, ep_size: int = 1) -> float:
        """Bytes of weights that one GPU holds [byte].

        Matrices, embedding and head split over ``tp_size`` ranks; routed experts over max(tp_size, ep_size) ranks
        (ep_size <= tp_size regroups the same shards; a larger ep_size spreads experts over several TP groups); norms,
        biases, router and, for MLA, the projections down to the latents are replicated.
        """
        dtypes = self.dtypes
        size = self.hidden_size * dtypes.other.bytes_per_parameter
        size += self.embedding_parameters * dtypes.other.bytes_per_parameter / tp_size
        replicated = 0
        if self.mla is not None:
            replicated = self.hidden_size * (
                (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
            )
        for layer in range(self.layers):
            part = self.layer_parameters(layer)
            attention = replicated + (part.attention - replicated) / tp_size
            size += attention * dtypes.attention.bytes_per_parameter
            size += part.mlp * dtypes.mlp.bytes_per_parameter / tp_size
            size += part.experts * dtypes.experts.bytes_per_parameter / max(tp_size, ep_size)
            size += part.shared_expert * dtypes.shared_expert.bytes_per_parameter / tp_size
            size += part.other * dtypes.other.bytes_per_parameter
        return size
