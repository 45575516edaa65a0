"""What one GPU of a layout holds of every weight: sizes of its slice, elementwise for many layouts at once.

Names and sizes are those of ``codesign_lib.specs.weights.layer_weights``; which ranks divide what is said in
:py:mod:`codesign_lib.serving.layout`. Where ranks do not divide a size it is rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.cost.tiling import padded
from codesign_lib.serving.layout import Layout
from codesign_lib.specs import weights
from codesign_lib.specs.formats import BF16, Format, Precision
from codesign_lib.specs.hf_config.fields import Attention, Ffn, Layer, Mixer
from codesign_lib.specs.models import Model
from codesign_lib.specs.models import model as as_model
from codesign_lib.specs.weights import Weight

IN_BF16 = ("router", "residual", "per-layer embedding")
"""Kinds of linear layers that checkpoints leave in BF16."""
_COLUMNS = ("q", "q and kv_a", "q_b", "kv_b", "dt", "gates")  # divided along their outputs, by tp_attention


class Shard(NamedTuple):
    """``count`` matrices of k × n on one GPU (arrays over layouts), ``of`` is the whole weight."""

    of: Weight
    k: NDArray[np.float64]
    n: NDArray[np.float64]
    count: NDArray[np.float64]

    @property
    def n_params(self) -> NDArray[np.float64]:
        """Elements of this GPU."""
        return self.k * self.n * self.count


class Kinds(NamedTuple):
    """The distinct mixers, FFNs and rests (what is neither) of a model's layers, each with how many layers have it."""

    mixers: tuple[tuple[Mixer, int], ...]
    ffns: tuple[tuple[Ffn, int], ...]
    others: tuple[tuple[Layer, int], ...]


@lru_cache(maxsize=256)
def kinds(model: Model, *, mtp: bool = False) -> Kinds:
    """The distinct kinds of a model's layers; with ``mtp`` those of its multi-token-prediction modules instead.

    >>> from codesign_lib.specs import models
    >>> [n for _, n in kinds(models.MODELS["gemma_3_27b"]).mixers]
    [52, 10]
    """
    layers = model.config.mtp_layers if mtp else model.config.layers
    found: tuple[dict, dict, dict] = ({}, {}, {})
    for layer in layers:
        rest = Layer(
            mixers=(), ffns=(), n_norm_params=layer.n_norm_params, n_hyper=layer.n_hyper, n_altup=layer.n_altup,
            d_laurel=layer.d_laurel, d_per_layer_input=layer.d_per_layer_input, n_other_params=layer.n_other_params,
        )  # fmt: skip
        for counts, parts in zip(found, (layer.mixers, layer.ffns, (rest,)), strict=True):
            for part in parts:
                counts[part] = counts.get(part, 0) + 1
    return Kinds(*(tuple(x.items()) for x in found))


def mixer_shards(mixer: Mixer, d_model: int, layout: Layout) -> Iterator[Shard]:
    """The weights of one attention or recurrent mixer on a GPU.

    Queries, keys and values are divided by heads over tp_attention and the same on all kvp ranks; keys and values that
    have fewer heads than ranks are copied. The output projection is divided by kvp · tp_attention.

    >>> from codesign_lib.specs import models
    >>> llama = models.MODELS["llama_3_1_405b"]
    >>> ((mixer, _),) = kinds(llama).mixers
    >>> helix = Layout(kvp=8, tp_attention=8, tp_ffn=64)
    >>> [(s.of.name, float(s.k), float(s.n)) for s in mixer_shards(mixer, llama.config.d_model, helix) if s.of.kind]
    [('qkv', 16384.0, 2304.0), ('out', 256.0, 16384.0)]
    """
    tp, replica = (np.asarray(x, np.float64) for x in (layout.tp_attention, layout.n_replica))
    for w in weights.layer_weights(Layer(mixers=(mixer,), ffns=(), n_norm_params=0), d_model):
        k, n, count = np.float64(w.k), np.float64(w.n), np.float64(w.count)
        if w.name == "qkv":
            n = _qkv(mixer, w.n, tp)
        elif w.name == "out_a":
            count, k = np.ceil(count / tp), np.ceil(k / np.maximum(1, tp / count))
        elif w.name == "out" or w.name.endswith(" out"):
            k = np.ceil(k / replica)
        elif w.name == "x":
            k = np.ceil(k / tp)
        elif w.name in _COLUMNS or w.name.endswith(" in"):
            shared = mixer.kv_rank + mixer.d_rope if w.name == "q and kv_a" else 0
            n = np.ceil((n - shared) / tp) + shared
        yield Shard(w, k, n, count)


def _qkv(a: Attention, n_all: int, tp: NDArray) -> NDArray:
    each = a.d_head + (0 if a.values_are_keys else a.d_value)
    return np.ceil((n_all - a.n_kv_heads * each) / tp) + np.ceil(a.n_kv_heads / tp) * each


def ffn_shards(ffn: Ffn, d_model: int, layout: Layout) -> Iterator[Shard]:
    """The weights of one feed-forward block on a GPU, routed experts among them: ceil(experts / ep) of them."""
    ranks, ep, tp = (np.asarray(x, np.float64) for x in (layout.n_dense_ranks, layout.ep, layout.tp_ffn))
    up = 2 if ffn.gated else 1
    for w in weights.layer_weights(Layer(mixers=(), ffns=(ffn,), n_norm_params=0), d_model):
        k, n, count = np.float64(w.k), np.float64(w.n), np.float64(w.count)
        routed = w.kind == "expert" or w.name == "expert bias"
        by = tp if routed else ranks
        if routed:
            count = np.ceil(count / ep)
        if w.name.endswith("down"):
            k = np.ceil(k / by)
        elif w.kind in ("ffn", "shared_expert", "expert"):
            n = up * np.ceil(n / up / by)
        yield Shard(w, k, n, count)


def other_weights(model: Model, *, mtp: bool = False) -> Iterator[tuple[Weight, int]]:
    """The weights that no GPU divides: norms, residual mixing and the like, and how many layers have each."""
    for rest, n in kinds(model, mtp=mtp).others:
        yield from ((w, n) for w in weights.layer_weights(rest, model.config.d_model))


def rest_shards(rest: Layer, d_model: int) -> Iterator[Shard]:
    """The linear layers of what is neither mixer nor FFN, whole on every GPU."""
    for w in weights.layer_weights(rest, d_model):
        if w.kind:
            yield Shard(w, np.float64(w.k), np.float64(w.n), np.float64(w.count))


def outer_shards(model: Model, layout: Layout) -> Iterator[Shard]:
    """Embedding, head and what else stands around the layers; the two tables are divided by a replica."""
    replica = np.asarray(layout.n_replica, np.float64)
    for w in weights.outer_weights(model.config):
        k, n = np.float64(w.k), np.float64(w.n)
        if w.name in ("embedding", "per-layer table"):
            k = np.ceil(k / replica)
        elif w.name in ("head", "head bias"):
            n = np.ceil(n / replica)
        yield Shard(w, k, n, np.float64(w.count))


def format_of(weight: Weight, precision: Precision) -> Format:
    """The format a weight is stored in: the mix's for linear layers, BF16 for routers, norms and embedding."""
    if weight.kind == "expert":
        return precision.experts or precision.weights
    if weight.kind == "head":
        return precision.head
    return precision.weights if weight.kind and weight.kind not in IN_BF16 else BF16


def tile_efficiency(model: Model | str, layout: Layout, *, multiple: int = 128) -> NDArray[np.float64]:
    r"""Share of the padded linear layers of a GPU that was asked for, when sizes are rounded up to ``multiple``.

    .. math:: \eta = \frac{\sum k\,n}{\sum \lceil k/q \rceil q\, \lceil n/q \rceil q}

    over the slices that a GPU holds, every one as often as it occurs (all experts, output head included). 1: nothing
    is padded. Of shape ``layout.shape``.

    >>> layout = Layout(tp_attention=[1, 4, 8], tp_ffn=[1, 4, 8])
    >>> tile_efficiency("qwen3_235b_a22b", layout).round(3)      # 1536 / 8 = 192
    array([1.   , 1.   , 0.903])
    """
    of = as_model(model)
    asked = held = np.zeros(layout.shape)
    for shard, n_layers in linear_shards(of, layout):
        each = n_layers * shard.count
        asked = asked + each * shard.k * shard.n
        held = held + each * padded(shard.k, multiple) * padded(shard.n, multiple)
    return asked / held


def linear_shards(model: Model, layout: Layout) -> Iterator[tuple[Shard, int]]:
    """Every distinct linear layer of a GPU and how many layers have it; the output head once."""
    d, found = model.config.d_model, kinds(model)
    for mixer, n in found.mixers:
        yield from ((s, n) for s in mixer_shards(mixer, d, layout) if s.of.kind)
    for ffn, n in found.ffns:
        yield from ((s, n) for s in ffn_shards(ffn, d, layout) if s.of.kind)
    yield from ((s, 1) for s in outer_shards(model, layout) if s.of.kind == "head")
