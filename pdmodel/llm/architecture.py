"""The facts of an LLM that traffic, memory and compute follow from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.kinds import LayerKind, Mixer, MlaSpec


class AttentionKind(StrEnum):
    """GQA covers MHA (kv_heads = heads) and MQA (kv_heads = 1); MLA caches one latent per token and layer."""

    GQA = "gqa"
    MLA = "mla"


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Routed experts of the layers in ``layers``, ``top_k`` per token, and the experts that every token visits.

    ``shared_intermediate_size`` is the width of all shared experts together, 0 when there are none.
    ``shared_gate``: the shared expert's output is scaled by a learnt gate (one row of hidden size). ``latent_size``:
    width on which the routed experts work, projected to before and back after them; None: the hidden size.
    """

    experts: int
    top_k: int
    intermediate_size: int
    layers: frozenset[int]
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    latent_size: int | None = None

    def width(self, hidden_size: int) -> int:
        """Width of what routed experts take and give, and of what travels to them [count]."""
        return self.latent_size or hidden_size


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

    Where layers differ, ``mixers`` has one entry per layer, and heads and widths above are those of the first layer
    that keeps keys; ``mlp_widths`` has the width of each layer's dense MLP, 0 for none (MoE layers are those of
    ``moe``). ``residual_streams``: parallel residual streams that are mixed (mHC). ``notes``: what the reader inferred.
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
    mixers: tuple[Mixer, ...] = ()
    mlp_widths: tuple[int, ...] = ()
    residual_streams: int = 1
    notes: tuple[str, ...] = field(default=(), compare=False)
    file: str = field(default="", compare=False)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether layer ``layer`` (0-based) routes its tokens to experts."""
        return self.moe is not None and layer in self.moe.layers

    def mixer(self, layer: int) -> Mixer:
        """What mixes the tokens of layer ``layer`` (0-based)."""
        if self.mixers:
            return self.mixers[layer]
        kind = LayerKind.LATENT if self.mla is not None else LayerKind.FULL
        return Mixer(kind, self.heads, self.kv_heads, self.head_dim, self.v_head_dim, mla=self.mla)

    def mlp_width(self, layer: int) -> int:
        """Width of the dense MLP of layer ``layer``; 0 where it has none, as layers of routed experts [count]."""
        if self.is_moe_layer(layer):
            return 0
        return self.mlp_widths[layer] if self.mlp_widths else self.intermediate_size

    def layer_group(self, layer: int) -> tuple[Mixer, bool, int]:
        """What layers must have alike to cost the same: mixer, experts or not, width of the dense MLP."""
        return self.mixer(layer), self.is_moe_layer(layer), self.mlp_width(layer)

    def first_layers(self) -> dict[int, int]:
        """For every layer the first one that costs the same, in order of layers."""
        if not self.mixers and not self.mlp_widths:
            firsts: dict[bool, int] = {}
            return {layer: firsts.setdefault(self.is_moe_layer(layer), layer) for layer in range(self.layers)}
        known: dict[tuple[Mixer, bool, int], int] = {}
        return {layer: known.setdefault(self.layer_group(layer), layer) for layer in range(self.layers)}

    def distinct_mixers(self) -> tuple[Mixer, ...]:
        """Every mixer that occurs, once, in order of layers."""
        return tuple(dict.fromkeys(self.mixers)) if self.mixers else (self.mixer(0),)

    def layer_parameters(self, layer: int) -> LayerParameters:
        """Parameters of one layer: every matrix, norm and bias that the checkpoint holds for it [count]."""
        matrices, mixer, moe = (3 if self.gated_mlp else 2), self.mixer(layer), self.moe
        attention = mixer.parameters(self.hidden_size)
        other = self._norm_and_bias_parameters(layer, mixer)
        if moe is None or layer not in moe.layers:
            return LayerParameters(attention, matrices * self.hidden_size * self.mlp_width(layer), 0, 0, other)
        other += self.hidden_size * (moe.experts + int(moe.shared_gate))
        latents = 2 * self.hidden_size * moe.latent_size if moe.latent_size else 0
        return LayerParameters(
            attention,
            0,
            moe.experts * matrices * moe.width(self.hidden_size) * moe.intermediate_size,
            matrices * self.hidden_size * moe.shared_intermediate_size + latents,
            other,
        )

    def _norm_and_bias_parameters(self, layer: int, mixer: Mixer) -> int:
        mlp = self.is_moe_layer(layer) or self.mlp_width(layer) > 0
        norms = self.hidden_size * (int(mixer.kind is not LayerKind.NONE) + int(mlp))
        if mixer.kind is LayerKind.NONE or mixer.state is not None:
            return norms
        biases = self.hidden_size if self.output_bias else 0
        if mixer.mla is not None:
            return norms + biases + (mixer.mla.q_lora_rank or 0) + mixer.mla.kv_lora_rank
        if mixer.compression is not None:
            return norms + biases + mixer.compression.q_lora_rank + mixer.head_dim
        if self.qk_norm:
            norms += 2 * mixer.head_dim
        if self.qkv_bias:
            biases += mixer.heads * mixer.head_dim + mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
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
            expert = matrices * self.moe.width(self.hidden_size) * self.moe.intermediate_size
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
        biases, router, projections down to latents and indexers are replicated.
        """
        dtypes = self.dtypes
        size = self.hidden_size * dtypes.other.bytes_per_parameter
        size += self.embedding_parameters * dtypes.other.bytes_per_parameter / tp_size
        for layer in range(self.layers):
            part = self.layer_parameters(layer)
            replicated = self.hidden_size * self.mixer(layer).replicated_columns
            attention = replicated + (part.attention - replicated) / tp_size
            size += attention * dtypes.attention.bytes_per_parameter
            size += part.mlp * dtypes.mlp.bytes_per_parameter / tp_size
            size += part.experts * dtypes.experts.bytes_per_parameter / max(tp_size, ep_size)
            size += part.shared_expert * dtypes.shared_expert.bytes_per_parameter / tp_size
            size += part.other * dtypes.other.bytes_per_parameter
        return size
