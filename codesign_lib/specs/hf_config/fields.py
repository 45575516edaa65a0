"""What one layer of a language model is, in plain checked numbers: what a `config.json` says, once read.

Sizes are elements, counts are integers, and a field that a layer does not have is ``None`` or 0.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """The small scorer of sparse attention: ``n_heads`` queries of ``d_head`` against one key a cached entry.

    ``style`` names its weights: ``dsa`` (DeepSeek-V3.2, GLM-5; queries from the query latent), ``compressed``
    (DeepSeek-V4, keys pooled over ``tokens_per_entry`` tokens) or ``block`` (MiniMax-M3; queries from the hidden
    state).
    """

    style: str
    n_heads: int
    d_head: int
    tokens_per_entry: int = 1


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Softmax attention that caches keys and values a head.

    ``kind`` is ``full``, ``sliding`` or ``chunked``; the latter two keep at most ``window_tokens``. ``kv_source_layer``
    is the layer whose cache is read instead of an own one. ``values_are_keys``: no value projection (both are cached).
    ``n_gate`` outputs of the query projection gate the result. ``qk_norm`` is ``""``, ``head`` or ``all`` (weights
    over one head, or over all of them). ``n_selected_tokens``: how many of the cached tokens a query reads.
    """

    kind: str
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    window_tokens: int | None = None
    kv_source_layer: int | None = None
    values_are_keys: bool = False
    n_gate: int = 0
    qk_norm: str = ""
    qkv_bias: bool = False
    out_bias: bool = False
    has_sinks: bool = False
    indexer: Indexer | None = None
    n_selected_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent of ``kv_rank`` + ``d_rope`` a token is cached for all heads.

    ``q_rank`` is ``None`` where queries are projected directly. ``indexer`` is ``None`` also where a layer reuses the
    tokens that an earlier layer's indexer selected (``n_selected_tokens`` is then still set).
    """

    kind: str = "latent"
    n_heads: int
    d_nope: int
    d_rope: int
    d_value: int
    q_rank: int | None
    kv_rank: int
    bias: bool = False
    n_gate: int = 0
    indexer: Indexer | None = None
    n_selected_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompressedAttention:
    """DeepSeek-V4's attention: one shared key-value head, a window of ``window_tokens`` and, where
    ``tokens_per_entry`` is above 1, one pooled entry for every so many tokens of the whole context.
    """

    kind: str = "compressed"
    n_heads: int
    d_head: int
    q_rank: int
    n_out_groups: int
    out_rank: int
    window_tokens: int
    tokens_per_entry: int = 1
    indexer: Indexer | None = None
    n_selected_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A layer that keeps a state of constant size instead of a cache.

    ``kind``: ``mamba1``, ``mamba2``, ``gated_delta``, ``kimi_delta``, ``lightning`` or ``short_conv``. The state is
    ``n_heads`` matrices of ``d_key`` × ``d_value``, ``state_bytes_per_element`` each, and a window of the last
    ``conv_tokens`` − 1 inputs of the convolution over ``n_conv`` channels. ``n_key_heads`` counts the key heads of
    delta nets and the groups of Mamba2; ``d_rank`` the rank of Mamba1's step sizes or of Kimi's gates (0: full rank).
    """

    kind: str
    n_heads: int = 0
    n_key_heads: int = 0
    d_key: int = 0
    d_value: int = 0
    n_conv: int = 0
    conv_tokens: int = 0
    d_rank: int = 0
    conv_bias: bool = False
    proj_bias: bool = False
    has_norm: bool = True
    state_bytes_per_element: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Ffn:
    """A feed-forward block: dense (``d_dense``), routed experts (``n_experts`` of ``d_expert``), or both in parallel.

    Three matrices when ``gated``, two otherwise. ``d_shared`` is the width of all shared experts together;
    ``d_latent`` the size that routed experts work in when tokens are projected down first. ``n_router_other`` counts
    parameters of the router beside its matrix. Experts that compute nothing are ``n_idle_experts`` (only routed to).
    """

    gated: bool
    d_dense: int = 0
    n_experts: int = 0
    n_active_experts: int = 0
    d_expert: int = 0
    d_shared: int = 0
    d_latent: int = 0
    n_idle_experts: int = 0
    n_router_other: int = 0
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | Recurrent


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer as the model counts them: ``mixers`` side by side (mostly one), then ``ffns`` (mostly one).

    ``n_norm_params`` are the layer's own norm weights; ``n_hyper`` the residual streams of hyper-connections (0: plain
    residual); ``d_per_layer_input`` the size of a gated per-layer embedding (Gemma 3n and 4); ``n_altup`` and
    ``d_laurel`` the streams of alternating updates and the rank of the residual beside them (Gemma 3n). Norms are
    counted when the file is read: another ``Config.d_model`` in a copy leaves them as they are.
    """

    mixers: tuple[Mixer, ...]
    ffns: tuple[Ffn, ...]
    n_norm_params: int
    n_hyper: int = 0
    d_per_layer_input: int = 0
    n_altup: int = 0
    d_laurel: int = 0
    n_other_params: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole `config.json`, read and checked.

    ``name`` is what the file calls itself ("" mostly). ``text_path`` names the sub-config that held the language model
    ("" for the top level). ``mtp_layers`` are the layers of all multi-token-prediction modules, which are not among
    ``layers``; ``n_mtp_uncounted`` more are declared, but their shape is not known. ``d_per_layer_input`` and
    ``n_vocab_per_layer_input`` describe Gemma's table of per-layer embeddings. ``n_vision_params`` counts tower and
    projector, ``None`` where their shape is not known. ``quantisation`` is the method the file declares, "" if none.
    ``notes`` say which defaults were taken and what was left out; ``unknown_keys`` which keys were not understood;
    ``used_keys`` which were read.
    """

    name: str
    architecture: str
    family: str
    text_path: str
    d_model: int
    n_vocab: int
    tied: bool
    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...]
    n_mtp_modules: int
    n_mtp_uncounted: int
    n_final_norm_params: int
    head_bias: bool
    d_per_layer_input: int
    n_vocab_per_layer_input: int
    n_context_max: int | None
    quantisation: str
    has_vision: bool
    n_vision_params: int | None
    notes: tuple[str, ...]
    unknown_keys: tuple[str, ...]
    used_keys: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        for name, least in (("d_model", 1), ("n_vocab", 1), ("n_mtp_modules", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{self.source}: {name} is {value!r:.40}; allowed: a whole number from {least}")
        if not isinstance(self.layers, tuple) or not self.layers:
            raise ValueError(f"{self.source}: layers is {self.layers!r:.40}; allowed: a tuple of at least one layer")
