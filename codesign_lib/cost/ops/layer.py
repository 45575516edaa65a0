"""A whole layer of any kind as work, part by part: its linear layers, its mixers, its experts.

The parts run one after the other, so a layer's time is the sum of theirs; ``sum(parts.values(), start=NOTHING)`` is
the work of all. Everything is on one GPU: nothing is divided, nothing communicated. Ignored: norms, rotary
embeddings, residual additions, biases, writing the cache, convolutions of prefill's first tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from codesign_lib.cost import ops
from codesign_lib.cost.ops import attention, moe, recurrent
from codesign_lib.cost.roofline import Work
from codesign_lib.specs import weights
from codesign_lib.specs.formats import BF16, Precision, as_precision
from codesign_lib.specs.hf_config.fields import (
    CompressedAttention,
    Ffn,
    LatentAttention,
    Layer,
    Mixer,
    Recurrent,
)  # fmt: skip
from codesign_lib.specs.models import Model
from codesign_lib.specs.quantities import not_negative, positive

NOTHING = Work(0.0, 0.0)
IN_BF16 = Precision(weights=BF16, activations=BF16, kv=BF16)


def decode(
    layer: Layer,
    d_model: int,
    n_context: ArrayLike,
    *,
    n_batch: ArrayLike = 1,
    precision: Precision = IN_BF16,
    routing: str = "random",
) -> dict[str, Work]:
    """One new token in each of ``n_batch`` sequences of ``n_context`` tokens, the new one included.

    Parts: the kinds of ``models.LinearLayer`` (``attention ffn expert …``) with their weights, and ``mixing``, what
    attention and recurrent mixers do with cache and state, and ``indexing``. Latent attention is absorbed.

    >>> from codesign_lib.specs import models
    >>> r1 = models.MODELS["deepseek_r1"]
    >>> parts = decode(r1.config.layers[-1], r1.config.d_model, 4096, n_batch=64)
    >>> sorted(parts)
    ['attention', 'expert', 'mixing', 'router', 'shared_expert']
    """
    as_precision("layer.decode", precision)
    (s,), (b,) = positive("layer.decode", n_context=n_context), positive("layer.decode", n_batch=n_batch)
    return _parts(layer, d_model, b, np.ones(()), s - 1, precision, routing, decoding=True)


def prefill(
    layer: Layer,
    d_model: int,
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_batch: ArrayLike = 1,
    precision: Precision = IN_BF16,
    routing: str = "random",
) -> dict[str, Work]:
    """``n_new`` tokens behind ``n_prefix`` in each of ``n_batch`` sequences; parts as in :py:func:`decode`.

    Latent attention is absorbed where that takes fewer FLOPs: without selection below
    :py:func:`codesign_lib.cost.ops.attention.latent_crossover` new tokens. With one, fewer FLOPs may take longer:
    :py:func:`mixing_forms` gives both forms.
    """
    as_precision("layer.prefill", precision)
    n, b = positive("layer.prefill", n_new=n_new, n_batch=n_batch)
    (p,) = not_negative("layer.prefill", n_prefix=n_prefix)
    return _parts(layer, d_model, b, n, p, precision, routing, decoding=False)


def mixing_forms(
    mixer: Mixer, n_new: ArrayLike, n_prefix: ArrayLike = 0, *, n_batch: ArrayLike = 1, precision: Precision = IN_BF16
) -> tuple[Work, ...]:
    """What a mixer does with a chunk, in every form with the same result: latent attention absorbed and expanded.

    Other mixers have one form. Which of two is faster only a chip tells. Sizes as in :py:func:`prefill`.

    >>> from codesign_lib.specs import models
    >>> r1, v3_2 = (models.MODELS[x].config.layers[-1].mixers[0] for x in ("deepseek_r1", "deepseek_v3_2"))
    >>> [[f"{w.flops:.1e}" for w in mixing_forms(x, 4096, 65_536)] for x in (r1, v3_2)]   # all tokens, or 2,048 a query
    [['7.7e+13', '2.5e+13'], ['2.3e+12', '2.9e+12']]
    """
    n, b = positive("layer.mixing_forms", n_new=n_new, n_batch=n_batch)
    (p,) = not_negative("layer.mixing_forms", n_prefix=n_prefix)
    as_precision("layer.mixing_forms", precision)
    if not isinstance(mixer, LatentAttention):
        return (_mixing(mixer, b, n, p, precision, decoding=False),)
    sizes = dict(n_heads=mixer.n_heads, kv_rank=mixer.kv_rank, d_rope=mixer.d_rope, d_nope=mixer.d_nope)
    sizes |= dict(d_value=mixer.d_value, window_tokens=mixer.n_selected_tokens, n_batch=b, kv=precision.kv)
    return tuple(attention.latent_prefill(n, p, **sizes, absorbed=x) for x in (True, False))


def indexing(
    mixer: Mixer, n_new: ArrayLike, n_prefix: ArrayLike = 0, *, n_batch: ArrayLike = 1, precision: Precision = IN_BF16
) -> Work | None:
    """What a mixer's indexer does with a chunk; None where it has none."""
    x = getattr(mixer, "indexer", None)
    if x is None:
        return None
    sizes = dict(n_heads=x.n_heads, d_head=x.d_head, tokens_per_entry=x.tokens_per_entry)
    return attention.index(n_new, n_prefix, **sizes, n_batch=n_batch, kv=precision.kv)


def model_decode(model: Model, n_context: ArrayLike, **how) -> dict[str, Work]:
    """All layers of a model, and its output head as part ``head``: :py:func:`decode` added up by part.

    >>> from codesign_lib.specs import models
    >>> parts = model_decode(models.MODELS["llama_3_1_70b"], 8192, n_batch=8)
    >>> f"{float(parts['mixing'].bytes) / 1e9:.1f} GB"
    '21.5 GB'
    """
    config, found = model.config, {}
    counts = {layer: config.layers.count(layer) for layer in dict.fromkeys(config.layers)}
    for layer, n in counts.items():
        for part, work in decode(layer, config.d_model, n_context, **how).items():
            found[part] = found.get(part, NOTHING) + n * work
    precision = how.get("precision", IN_BF16)
    b = how.get("n_batch", 1)
    head = ops.linear(b, config.d_model, config.n_vocab, inputs=precision.head, weights=precision.head, outputs=BF16)
    return found | {"head": head}


def _parts(layer: Layer, d: int, b, n, p, precision: Precision, routing: str, *, decoding: bool) -> dict[str, Work]:
    found: dict[str, Work] = {}
    formats = dict(inputs=precision.activations, weights=precision.weights, outputs=BF16)
    for w in weights.layer_weights(layer, d):
        if w.kind and w.kind != "expert":
            found[w.kind] = found.get(w.kind, NOTHING) + w.count * ops.linear(b * n, w.k, w.n, **formats)
    for ffn in layer.ffns:
        if ffn.n_experts:
            found["expert"] = found.get("expert", NOTHING) + _experts(ffn, d, b * n, formats, routing)
    for mixer in layer.mixers:
        found["mixing"] = found.get("mixing", NOTHING) + _mixing(mixer, b, n, p, precision, decoding)
        if scored := indexing(mixer, n, p, n_batch=b, precision=precision):
            found["indexing"] = found.get("indexing", NOTHING) + scored
    return found


def _experts(f: Ffn, d: int, m, formats: dict, routing: str) -> Work:
    tokens = np.ceil(m)  # routed tokens are whole
    targets = f.n_experts + f.n_idle_experts
    share = f.n_experts / targets  # experts that compute nothing take their share of the tokens
    awake = share * moe.woken(tokens, n_experts=targets, n_chosen=f.n_active_experts, routing=routing)
    pairs = share * m * f.n_active_experts
    return moe.experts(pairs, awake, d_model=f.d_latent or d, d_expert=f.d_expert, gated=f.gated, **formats)


def _mixing(mixer: Mixer, b, n, p, precision: Precision, decoding: bool) -> Work:
    if isinstance(mixer, Recurrent):
        return recurrent.decode(mixer, b) if decoding else recurrent.prefill(mixer, n, n_batch=b)
    if isinstance(mixer, CompressedAttention):
        return _compressed(mixer, b, n, p, precision)
    window = mixer.n_selected_tokens
    if isinstance(mixer, LatentAttention):
        if decoding:
            s = p + n if window is None else np.minimum(p + n, window)
            sizes = dict(n_heads=mixer.n_heads, kv_rank=mixer.kv_rank, d_rope=mixer.d_rope)
            return attention.latent_decode(s, **sizes, n_batch=b, kv=precision.kv)
        absorbed, expanded = mixing_forms(mixer, n, p, n_batch=b, precision=precision)
        cheaper = absorbed.flops < expanded.flops
        return Work(*(np.where(cheaper, x, y) for x, y in zip(_fields(absorbed), _fields(expanded), strict=True)))
    sizes = dict(n_heads=mixer.n_heads, n_kv_heads=mixer.n_kv_heads, d_head=mixer.d_head, d_value=mixer.d_value)
    sizes |= dict(n_batch=b, kv=precision.kv)
    limits = [x for x in (window, mixer.window_tokens) if x is not None]
    if mixer.kind == "chunked":
        if decoding:
            return attention.decode(p % mixer.window_tokens + 1, **sizes)
        return attention.prefill(n, p, **sizes, chunk_tokens=mixer.window_tokens)
    if decoding:
        return attention.decode(p + 1, **sizes, window_tokens=min(limits, default=None))
    return attention.prefill(n, p, **sizes, window_tokens=min(limits, default=None))


def _compressed(a: CompressedAttention, b, n, p, precision: Precision) -> Work:
    """A window of raw tokens and the pooled entries of the whole context, one key-value head; values are the keys."""
    seen = attention.pairs(n, p, window_tokens=a.window_tokens)
    kept = np.minimum(p, a.window_tokens) + n
    if a.tokens_per_entry > 1:
        # each query sees the entries before it, or as many as are selected
        chosen = None if a.n_selected_tokens is None else a.n_selected_tokens * a.tokens_per_entry
        far, entries = attention.pairs(n, p, window_tokens=chosen) / a.tokens_per_entry, (p + n) / a.tokens_per_entry
        if chosen is not None:
            entries = np.minimum(entries, n * a.n_selected_tokens)
        seen, kept = seen + far, kept + entries
    seen = b * a.n_heads * seen
    moved = b * a.d_head * (precision.kv.bytes_per_element * kept + 2 * BF16.bytes_per_element * a.n_heads * n)
    return Work(4 * seen * a.d_head, moved, seen)


def _fields(work: Work) -> tuple:
    return work.flops, work.bytes, work.exps
