"""Every weight of a model, layer by layer: the one list behind its linear layers and its parameter counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from codesign_lib.specs.hf_config.fields import (
    Attention,
    CompressedAttention,
    Config,
    Ffn,
    Indexer,
    LatentAttention,
    Layer,
    Recurrent,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Weight:
    """``count`` equal tensors of k × n elements; of each, a token reads ``read_fraction``.

    ``kind`` is the kind of linear layer it is, or "" for what is no matrix product (norms, biases, convolutions).
    """

    name: str
    part: str
    k: int
    n: int
    count: int = 1
    kind: str = ""
    read_fraction: float = 1.0

    @property
    def n_params(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.k * self.n * self.count


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """One kind of linear layer: ``count`` of them in the network, each a k×n weight.

    ``tokens_fraction``: the share of tokens that reaches each one, top-k / experts for experts routed in balance, else
    1. ``kind``: ``attention recurrent indexer ffn expert shared_expert router latent`` (to and from the experts'
    smaller size) ``residual`` (hyper-connections and the like), ``per-layer embedding`` or ``head``.
    """

    name: str
    k: int
    n: int
    count: int
    kind: str
    tokens_fraction: float = 1.0

    @property
    def n_params(self) -> int:
        return self.k * self.n * self.count


def _linear(name: str, kind: str, k: int, n: int, *, count: int = 1, part: str = "", read: float = 1.0) -> Weight:
    return Weight(name=name, part=part or kind, k=k, n=n, count=count, kind=kind, read_fraction=read)


def _vector(name: str, part: str, n: int, *, count: int = 1, read: float = 1.0) -> Weight:
    return Weight(name=name, part=part, k=1, n=n, count=count, read_fraction=read)


def layer_weights(layer: Layer, d_model: int) -> Iterator[Weight]:
    """The weights of one layer; projections that engines fuse (QKV, gate and up) are one."""
    d = d_model
    for mixer in layer.mixers:
        yield from _MIXERS[type(mixer)](mixer, d)
    for ffn in layer.ffns:
        yield from _ffn(ffn, d)
    yield _vector("norms", "norms", layer.n_norm_params)
    if layer.n_hyper:
        streams = layer.n_hyper
        n_out = (2 + streams) * streams
        yield _linear("hyper-connection", "residual", streams * d, n_out, count=2)
        yield _vector("hyper-connection base and scale", "residual", n_out + 3, count=2)
    if layer.n_altup:
        n = layer.n_altup
        yield _linear("altup router", "residual", d, n)
        yield _vector("altup coefficients, scale and norm", "residual", n * n + n**3 + 2 * d)
    if layer.d_laurel:
        yield _linear("laurel left", "residual", d, layer.d_laurel)
        yield _linear("laurel right", "residual", layer.d_laurel, d)
        yield _vector("laurel norm", "norms", d)
    yield _vector("activation", "ffn", layer.n_other_params)
    if layer.d_per_layer_input:
        yield _linear("per-layer gate", "per-layer embedding", d, layer.d_per_layer_input)
        yield _linear("per-layer out", "per-layer embedding", layer.d_per_layer_input, d)
        yield _vector("per-layer norm", "norms", d)


def outer_weights(config: Config) -> Iterator[Weight]:
    """What stands around the layers: embedding, final norm, output head. A tied head is the embedding's table."""
    d, vocab = config.d_model, config.n_vocab
    yield Weight(name="embedding", part="embedding", k=vocab, n=d, read_fraction=0.0)
    yield _vector("final norm", "norms", config.n_final_norm_params)
    streams = config.layers[0].n_hyper
    if streams:
        yield _linear("hyper-connection head", "residual", streams * d, streams)
        yield _vector("hyper-connection head base and scale", "residual", streams + 1)
    if config.layers[0].n_altup > 1:
        yield _linear("altup projections", "residual", d, d, count=2 * (config.layers[0].n_altup - 1))
    if config.d_per_layer_input:
        width = config.d_per_layer_input * len(config.layers)
        yield Weight(name="per-layer table", part="per-layer embedding", k=config.n_vocab_per_layer_input, n=width,
                     read_fraction=0.0)  # fmt: skip
        yield _linear("per-layer model projection", "per-layer embedding", d, width)
        yield _vector("per-layer projection norm", "norms", config.d_per_layer_input)
    yield _linear("head", "head", d, vocab)
    if config.head_bias:
        yield _vector("head bias", "head", vocab)


def mtp_weights(config: Config) -> Iterator[Weight]:
    """What the multi-token-prediction modules own: a projection of two hidden states, three norms, their layers.

    Embedding and output head are the main model's.
    """
    d = config.d_model
    if config.n_mtp_modules:
        yield _linear("mtp projection", "projection", 2 * d, d, count=config.n_mtp_modules)
        yield _vector("mtp norms", "norms", 3 * d, count=config.n_mtp_modules)
    yield from all_layers(config.mtp_layers, d)


def _attention(a: Attention, d: int) -> Iterator[Weight]:
    n_kv = 0 if a.kv_source_layer is not None else a.n_kv_heads
    n_qkv = a.n_heads * a.d_head + a.n_gate + n_kv * (a.d_head + (0 if a.values_are_keys else a.d_value))
    yield _linear("qkv" if n_kv else "q", "attention", d, n_qkv)
    yield _linear("out", "attention", a.n_heads * a.d_value, d)
    if a.qkv_bias:
        yield _vector("qkv bias", "attention", n_qkv)
    if a.out_bias:
        yield _vector("out bias", "attention", d)
    if a.has_sinks:
        yield _vector("sinks", "attention", a.n_heads)
    if a.qk_norm:
        # "heads": weights of their own for every head (Cohere); "all": one norm over all heads together, as many.
        q, k = (1, min(n_kv, 1)) if a.qk_norm == "head" else (a.n_heads, n_kv)
        yield _vector("q and k norm", "norms", (q + k) * a.d_head)
    if a.indexer:
        yield from _indexer(a.indexer, d, d)


def _latent(a: LatentAttention, d: int) -> Iterator[Weight]:
    n_q = a.n_heads * (a.d_nope + a.d_rope)
    if a.q_rank is None:
        yield _linear("q and kv_a", "attention", d, n_q + a.kv_rank + a.d_rope + a.n_gate)
    else:
        yield _linear("q_a and kv_a", "attention", d, a.q_rank + a.kv_rank + a.d_rope + a.n_gate)
        yield _vector("q_a norm", "norms", a.q_rank)
        yield _linear("q_b", "attention", a.q_rank, n_q)
    yield _vector("kv_a norm", "norms", a.kv_rank)
    yield _linear("kv_b", "attention", a.kv_rank, a.n_heads * (a.d_nope + a.d_value))
    yield _linear("out", "attention", a.n_heads * a.d_value, d)
    if a.bias:
        yield _vector("q_a, kv_a and out bias", "attention", (a.q_rank or 0) + a.kv_rank + a.d_rope + d)
    if a.indexer:
        yield from _indexer(a.indexer, d, a.q_rank or d)


def _compressed(a: CompressedAttention, d: int) -> Iterator[Weight]:
    n_q = a.n_heads * a.d_head
    yield _linear("q_a and kv", "attention", d, a.q_rank + a.d_head)
    yield _vector("q_a and kv norm", "norms", a.q_rank + a.d_head)
    yield _linear("q_b", "attention", a.q_rank, n_q)
    yield _linear("out_a", "attention", n_q // a.n_out_groups, a.out_rank, count=a.n_out_groups)
    yield _linear("out", "attention", a.n_out_groups * a.out_rank, d)
    yield _vector("sinks", "attention", a.n_heads)
    if a.tokens_per_entry > 1:
        yield from _compressor(
            "attention", "compressor", a.tokens_per_entry, a.d_head, d, overlap=a.indexer is not None
        )
    if a.indexer:
        yield from _compressor("indexer", "indexer compressor", a.indexer.tokens_per_entry, a.indexer.d_head, d)
        yield from _indexer(a.indexer, d, a.q_rank)


def _compressor(kind: str, name: str, ratio: int, d_head: int, d: int, *, overlap: bool = True) -> Iterator[Weight]:
    # Entries pooled from overlapping windows come from two projections, and so have twice the width.
    width = d_head * (2 if overlap else 1)
    yield _linear(name, kind, d, 2 * width)
    yield _vector(f"{name} positions", kind, ratio * width)
    yield _vector(f"{name} norm", "norms", d_head)


def _indexer(x: Indexer, d: int, d_query: int) -> Iterator[Weight]:
    yield _linear("indexer q", "indexer", d_query, x.n_heads * x.d_head)
    if x.style == "block":
        yield _linear("indexer k", "indexer", d, x.d_head)
        yield _vector("indexer norms", "norms", 2 * x.d_head)
    elif x.style == "dsa":
        yield _linear("indexer k and weights", "indexer", d, x.d_head + x.n_heads)
        yield _vector("indexer k norm", "norms", 2 * x.d_head)
    else:
        yield _linear("indexer weights", "indexer", d, x.n_heads)


def _recurrent(r: Recurrent, d: int) -> Iterator[Weight]:
    n_value = r.n_heads * r.d_value
    if r.kind == "mamba2":
        n_in = 2 * n_value + 2 * r.n_key_heads * r.d_key + r.n_heads
        other, norm = 3 * r.n_heads, n_value  # A, D and the step size's bias a head
    elif r.kind == "mamba1":
        n_in, other, norm = 2 * n_value, n_value * (r.d_key + 1), r.d_rank + 2 * r.d_key
        yield _linear("x", "recurrent", n_value, r.d_rank + 2 * r.d_key)
        yield _linear("dt", "recurrent", r.d_rank, n_value)
        yield _vector("dt bias", "recurrent", n_value)
    elif r.kind == "gated_delta":
        n_in, other, norm = r.n_conv + n_value + 2 * r.n_heads, 2 * r.n_heads, r.d_value
    elif r.kind == "kimi_delta":
        # q, k, v, beta and the first halves of the forget and output gates share one input.
        n_in, other, norm = r.n_conv + r.n_heads + 2 * (r.d_rank or n_value), r.n_heads + n_value, r.d_value
        if r.d_rank:
            yield _linear("gates", "recurrent", r.d_rank, n_value, count=2)
    elif r.kind == "lightning":
        n_in, other, norm = 4 * n_value, 0, n_value
    else:
        n_in, n_value, other, norm = 3 * d, d, 0, 0
    yield _linear(f"{r.kind} in", "recurrent", d, n_in)
    yield _linear(f"{r.kind} out", "recurrent", n_value, d)
    if r.proj_bias:
        yield _vector(f"{r.kind} bias", "recurrent", n_in + d)
    yield _vector(f"{r.kind} convolution", "recurrent", r.n_conv * (r.conv_tokens + r.conv_bias))
    yield _vector(f"{r.kind} other", "recurrent", other)
    yield _vector(f"{r.kind} norm", "norms", norm if r.has_norm else 0)


def _ffn(f: Ffn, d: int) -> Iterator[Weight]:
    up = 2 if f.gated else 1
    first = "gate_up" if f.gated else "up"
    if f.d_dense:
        yield _linear(first, "ffn", d, up * f.d_dense)
        yield _linear("down", "ffn", f.d_dense, d)
        if f.bias:
            yield _vector("ffn bias", "ffn", up * f.d_dense + d)
    if not f.n_experts:
        return
    n_targets = f.n_experts + f.n_idle_experts
    read, inner = f.n_active_experts / n_targets, f.d_latent or d
    yield _linear("router", "router", d, n_targets)
    yield _vector("router other", "router", f.n_router_other + n_targets * f.router_bias)
    experts = dict(part="experts", count=f.n_experts, read=read)
    if f.d_latent:
        yield _linear("latent in", "latent", d, f.d_latent, part="experts")
        yield _linear("latent out", "latent", f.d_latent, d, part="experts")
    yield _linear(f"expert {first}", "expert", inner, up * f.d_expert, **experts)
    yield _linear("expert down", "expert", f.d_expert, inner, **experts)
    if f.expert_bias:
        yield _vector("expert bias", "experts", up * f.d_expert + inner, count=f.n_experts, read=read)
    if f.d_shared:
        yield _linear(f"shared {first}", "shared_expert", d, up * f.d_shared, part="shared experts")
        yield _linear("shared down", "shared_expert", f.d_shared, d, part="shared experts")
        if f.bias:
            yield _vector("shared bias", "shared experts", up * f.d_shared + d)
    if f.shared_gate:
        yield _vector("shared gate", "shared experts", d)


_MIXERS = {
    Attention: _attention,
    LatentAttention: _latent,
    CompressedAttention: _compressed,
    Recurrent: _recurrent,
}


def all_layers(layers: Iterable[Layer], d_model: int) -> Iterator[Weight]:
    """The weights of these layers, those of equal layers counted together, in order of first appearance."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    for layer, n in counts.items():
        for weight in layer_weights(layer, d_model):
            yield replace(weight, count=weight.count * n)
