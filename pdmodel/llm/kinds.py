"""What mixes the tokens of one layer: kinds of attention and of recurrent state, with the sizes that caches follow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LayerKind(StrEnum):
    """full: every earlier key. window: the last ``window`` ones. chunked: those of the same block of ``window`` tokens.

    latent: one latent per token (MLA), with an indexer where the attention is sparse (DSA). compressed: a window, and
    one entry per ``ratio`` tokens (CSA, HCA, CSA2). linear: a state of fixed size. none: the layer mixes no tokens.
    """

    FULL = "full"
    WINDOW = "sliding_window"
    CHUNKED = "chunked"
    LATENT = "latent"
    COMPRESSED = "compressed"
    LINEAR = "linear"
    NONE = "none"


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
class Indexer:
    """Picks the ``top_k`` entries that a query attends to: ``heads`` query heads against one key of ``head_dim``.

    ``key_bytes``: of one cached key, scales included, whatever the KV dtype [byte]. ``owner``: the layer computes and
    keeps keys; else it uses those, or the picks, of an earlier layer. ``picks``: it picks anew.
    """

    heads: int
    head_dim: int
    top_k: int
    key_bytes: int
    owner: bool = True
    picks: bool = True


@dataclass(frozen=True, slots=True)
class Compression:
    """Compressed attention of DeepSeek-V4: one shared key-value entry of ``Mixer.head_dim`` per ``ratio`` tokens.

    ``ratio`` 0: the window alone. ``owner``: the layer computes and keeps the entries; else it reads those of an
    earlier layer. ``state_bytes``: running sums of entries that are not full yet, per sequence [byte].
    ``overlap``: each entry is made of two windows of tokens. Ranks of the projections as in MLA; the output goes
    through ``o_groups`` groups of rank ``o_lora_rank``.
    """

    ratio: int
    owner: bool
    state_bytes: int
    overlap: bool
    q_lora_rank: int
    qk_rope_head_dim: int
    o_groups: int
    o_lora_rank: int


@dataclass(frozen=True, slots=True)
class State:
    """What a recurrent layer keeps of a sequence, however long: ``heads`` matrices of key_dim x value_dim, conv inputs.

    ``state_element_bytes`` of the matrices, ``conv_element_bytes`` of the inputs that the convolution sees again.
    ``in_columns``, ``out_rows``: columns of the input projection, rows of the output's. ``inner_parameters``: all other
    matrices. ``scan_chunk``: tokens that the prefill's kernel treats at once.
    """

    name: str
    heads: int
    key_dim: int
    value_dim: int
    conv_elements: int
    in_columns: int
    out_rows: int
    inner_parameters: int = 0
    state_element_bytes: int = 4
    conv_element_bytes: int = 2
    scan_chunk: int = 64

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the matrices [byte]."""
        return self.heads * self.key_dim * self.value_dim * self.state_element_bytes

    @property
    def size_bytes(self) -> int:
        """All that is kept of a sequence [byte].

        >>> State("gated_delta", 32, 128, 128, (2 * 16 + 32) * 128 * 3, 0, 0).size_bytes
        2146304
        """
        return self.matrix_bytes + self.conv_elements * self.conv_element_bytes


@dataclass(frozen=True, slots=True)
class Mixer:
    """The token-mixing part of one layer; equal layers have equal mixers.

    ``heads``, ``kv_heads``, ``head_dim``, ``v_head_dim``: as in `pdmodel.llm.architecture.Architecture`, of this layer.
    ``window``: tokens that a query sees (window, compressed) or of a block (chunked). ``stores`` False: keys and values
    are those of an earlier layer, and none are kept. ``output_gate``: a gate as wide as the queries scales the output.
    ``one_projection``: keys and values come from one projection (both are kept).
    """

    kind: LayerKind
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int | None = None
    stores: bool = True
    output_gate: bool = False
    one_projection: bool = False
    mla: MlaSpec | None = None
    indexer: Indexer | None = None
    compression: Compression | None = None
    state: State | None = None

    @property
    def is_latent(self) -> bool:
        """Whether what is kept is one latent per token, equal on all TP ranks, and not split by heads."""
        return self.kind in (LayerKind.LATENT, LayerKind.COMPRESSED)

    @property
    def cache_heads(self) -> int | None:
        """Heads that TP ranks can share what is kept by; None for latents, which every rank keeps whole [count]."""
        if self.is_latent:
            return None
        return self.state.heads if self.state is not None else self.kv_heads

    def parameters(self, hidden_size: int) -> int:
        """Parameters of its matrices, without norms and biases [count]."""
        if self.kind is LayerKind.NONE:
            return 0
        if self.state is not None:
            return hidden_size * (self.state.in_columns + self.state.out_rows) + self.state.inner_parameters
        if self.mla is not None:
            return self._latent_parameters(self.mla, hidden_size) + self._indexer_parameters(hidden_size)
        if self.compression is not None:
            return self._compressed_parameters(self.compression, hidden_size) + self._indexer_parameters(hidden_size)
        query = self.heads * self.head_dim * (2 if self.output_gate else 1)
        return hidden_size * (query + self.cached_columns + self.heads * self.v_head_dim)

    @property
    def cached_columns(self) -> int:
        """Columns of the projections to keys and values, all heads; 0 where another layer's are read [count]."""
        if not self.stores:
            return 0
        return self.kv_heads * (self.head_dim + (0 if self.one_projection else self.v_head_dim))

    def _latent_parameters(self, mla: MlaSpec, hidden_size: int) -> int:
        width = self.heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        query = hidden_size * width if mla.q_lora_rank is None else mla.q_lora_rank * (hidden_size + width)
        latent = hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim)
        expansion = mla.kv_lora_rank * self.heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        return query + latent + expansion + self.heads * mla.v_head_dim * hidden_size

    def _compressed_parameters(self, part: Compression, hidden_size: int) -> int:
        width = self.heads * self.head_dim
        query = part.q_lora_rank * (hidden_size + width)
        output = width * part.o_lora_rank + part.o_groups * part.o_lora_rank * hidden_size
        return query + hidden_size * (self.head_dim + self.compressor_columns) + output

    @property
    def compressor_columns(self) -> int:
        """Columns of the projections that make compressed entries: values and gates, twice where windows overlap."""
        part = self.compression
        if part is None or not part.owner:
            return 0
        # An entry per token needs no gate: there is nothing to weigh.
        return self.head_dim * (1 if part.ratio == 1 else 2) * (2 if part.overlap else 1)

    def _indexer_parameters(self, hidden_size: int) -> int:
        if self.indexer is None or not self.indexer.picks:
            return 0
        rank = self.mla.q_lora_rank if self.mla is not None else self.compression.q_lora_rank if self.compression else 0
        queries = (rank or hidden_size) * self.indexer.heads * self.indexer.head_dim
        return queries + hidden_size * (self.indexer.heads + self.index_columns)

    @property
    def index_columns(self) -> int:
        """Columns of the projections that make the indexer's keys [count]."""
        if self.indexer is None or not self.indexer.owner:
            return 0
        if self.compression is None or not self.compression.overlap:
            return self.indexer.head_dim
        return 4 * self.indexer.head_dim

    @property
    def replicated_columns(self) -> int:
        """Columns of projections from the hidden state that every TP rank computes in whole: latents, indexers."""
        if self.mla is not None:
            down = (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank + self.mla.qk_rope_head_dim
        elif self.compression is not None:
            down = self.compression.q_lora_rank + self.head_dim + self.compressor_columns
        else:
            return 0
        picks = self.indexer is not None and self.indexer.picks
        return down + (self.indexer.heads + self.index_columns if picks and self.indexer is not None else 0)
