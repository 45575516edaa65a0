r"""Attention as work: FLOPs, bytes and exponentials of decoding and of prefill, by what is cached.

A query attends to keys; every pair of one query head and one key is :math:`2(d_k + d_v)` FLOP and one exponential.
Causal means causal: a chunk of n tokens behind p cached ones has :math:`np + n^2/2` pairs a head, half of what
formulas for the full square count.

Ignored: the projections before and after (linear layers), rotary embeddings, writing the new keys and values to the
cache, selecting the best tokens of sparse attention once they are scored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.roofline import Work
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.quantities import common_shape, flags, not_negative, positive


def pairs(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    window_tokens: ArrayLike | None = None,
    chunk_tokens: ArrayLike | None = None,
    causal: bool = True,
) -> NDArray[np.float64]:
    r"""Query-key pairs a head of ``n_new`` tokens behind ``n_prefix`` cached ones.

    .. math:: \int_0^n \min(p + x, w)\,dx = n p + \tfrac{1}{2} n^2 \text{ without a window}

    ``window_tokens``: a query sees at most so many tokens (a sliding window, or what sparse attention selects).
    ``chunk_tokens``: it sees its own chunk only, chunks being cut from the start of the context. ``causal=False``
    counts every new token against all (p + n). As an integral it gives a token half of itself. Tokens are finite; new
    ones, window and chunk above 0, else ValueError.

    >>> float(pairs(1000, 500)), float(pairs(1000, 500, window_tokens=600)), float(pairs(1000, 500, chunk_tokens=500))
    (1000000.0, 595000.0, 250000.0)
    """
    flags("pairs", causal=causal)
    (n,), (p,) = positive("pairs", n_new=n_new), not_negative("pairs", n_prefix=n_prefix)
    common_shape("pairs", n_new=n, n_prefix=p)
    if window_tokens is not None and chunk_tokens is not None:
        raise ValueError("pairs: window_tokens and chunk_tokens are both given; allowed: one of them, or neither")
    if not causal:
        if window_tokens is not None or chunk_tokens is not None:
            raise ValueError("pairs: causal=False takes no window_tokens and no chunk_tokens")
        return n * (p + n)
    if chunk_tokens is not None:
        (size,) = positive("pairs", chunk_tokens=chunk_tokens)
        common_shape("pairs", n_new=n, n_prefix=p, chunk_tokens=size)
        return _triangles(p + n, size) - _triangles(p, size)
    if window_tokens is None:
        return n * (p + n / 2)
    (window,) = positive("pairs", window_tokens=window_tokens)
    common_shape("pairs", n_new=n, n_prefix=p, window_tokens=window)
    growing = np.clip(window - p, 0, n)
    return growing * (p + growing / 2) + (n - growing) * np.minimum(window, p + n)


def _triangles(n: NDArray, size: NDArray) -> NDArray:
    return (np.floor(n / size) * size**2 + (n % size) ** 2) / 2


def decode(
    n_context: ArrayLike,
    *,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike,
    d_value: ArrayLike | None = None,
    n_batch: ArrayLike = 1,
    window_tokens: ArrayLike | None = None,
    kv: Format | str = BF16,
    activations: Format | str = BF16,
) -> Work:
    r"""One new token in each of ``n_batch`` sequences that have ``n_context`` tokens, the new one included.

    .. math:: \text{flops} = 2 B H s (d_k + d_v), \quad
              \text{bytes} = B (b_{kv} K s + b_a H)(d_k + d_v), \quad \text{exps} = B H s

    with s the context or the window, H query and K key-value heads: MHA has K = H, MQA K = 1, GQA what is between.
    Sizes broadcast and are finite and above 0, else ValueError. Source: NVIDIA, Co-designing AI model attention for
    fast, interactive long-context inference, 2026 (there without the queries' and outputs' bytes).

    >>> w = decode(131_072, n_heads=64, n_kv_heads=8, d_head=128, kv="fp8")
    >>> round(float(w.intensity), 1)                             # 2·G with one byte an element
    16.0
    """
    sizes = dict(n_context=n_context, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, n_batch=n_batch)
    s, h, k, d, b = positive("attention.decode", **sizes)
    (v,) = (d,) if d_value is None else positive("attention.decode", d_value=d_value)
    if window_tokens is not None:
        s = np.minimum(s, positive("attention.decode", window_tokens=window_tokens)[0])
    _check_heads("attention.decode", h, k)
    seen = b * h * s
    return Work(2 * seen * (d + v), b * (_size(kv) * k * s + _size(activations) * h) * (d + v), seen)


def prefill(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike,
    d_value: ArrayLike | None = None,
    n_batch: ArrayLike = 1,
    window_tokens: ArrayLike | None = None,
    chunk_tokens: ArrayLike | None = None,
    causal: bool = True,
    kv: Format | str = BF16,
    activations: Format | str = BF16,
) -> Work:
    r"""``n_new`` tokens of a prompt behind ``n_prefix`` cached ones, in each of ``n_batch`` sequences.

    .. math:: \text{flops} = 2 B H A (d_k + d_v), \quad
              \text{bytes} = B (b_{kv} K (p' + n) + b_a H n)(d_k + d_v), \quad \text{exps} = B H A

    with A the :py:func:`pairs` and p′ the part of the prefix that a window leaves. Every key, value, query and output
    crosses HBM once. Sizes broadcast and are finite and above 0 (the prefix at least 0), else ValueError.

    >>> w = prefill(8192, n_heads=64, n_kv_heads=8, d_head=128)
    >>> float(w.flops) == 2 * 64 * 8192**2 * 128, float(w.exps) == 64 * 8192**2 / 2
    (True, True)
    """
    subject = "attention.prefill"
    sizes = dict(n_new=n_new, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head, n_batch=n_batch)
    n, h, k, d, b = positive(subject, **sizes)
    (p,) = not_negative(subject, n_prefix=n_prefix)
    (v,) = (d,) if d_value is None else positive(subject, d_value=d_value)
    _check_heads(subject, h, k)
    seen = b * h * pairs(n, p, window_tokens=window_tokens, chunk_tokens=chunk_tokens, causal=causal)
    if window_tokens is not None:
        p = np.minimum(p, window_tokens)
    elif chunk_tokens is not None:
        p = p % np.asarray(chunk_tokens, np.float64)
    moved = b * (_size(kv) * k * (p + n) + _size(activations) * h * n) * (d + v)
    return Work(2 * seen * (d + v), moved, seen)


def latent_decode(
    n_context: ArrayLike,
    *,
    n_heads: ArrayLike,
    kv_rank: ArrayLike,
    d_rope: ArrayLike,
    n_batch: ArrayLike = 1,
    kv: Format | str = BF16,
    activations: Format | str = BF16,
) -> Work:
    r"""Multi-head latent attention (MLA), absorbed: all heads read one latent of rank r and a rotary part ρ a token.

    .. math:: \text{flops} = 2 B H s\,(2r + \rho), \quad
              \text{bytes} = B \left(b_{kv}\,s\,(r + \rho) + b_a H (2r + \rho)\right)

    The up-projections moved into queries and outputs are linear layers. Sizes are finite and above 0, else ValueError.

    >>> w = latent_decode(10**9, n_heads=128, kv_rank=512, d_rope=64)
    >>> round(float(w.intensity), 1)
    241.8
    """
    sizes = dict(n_context=n_context, n_heads=n_heads, kv_rank=kv_rank, d_rope=d_rope, n_batch=n_batch)
    s, h, r, rope, b = positive("attention.latent_decode", **sizes)
    seen, both = b * h * s, 2 * r + rope
    return Work(2 * seen * both, b * (_size(kv) * s * (r + rope) + _size(activations) * h * both), seen)


def latent_prefill(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_heads: ArrayLike,
    kv_rank: ArrayLike,
    d_nope: ArrayLike,
    d_rope: ArrayLike,
    d_value: ArrayLike,
    n_batch: ArrayLike = 1,
    absorbed: bool = False,
    window_tokens: ArrayLike | None = None,
    kv: Format | str = BF16,
    activations: Format | str = BF16,
) -> Work:
    r"""Multi-head latent attention over a chunk: ``absorbed``, or with keys and values expanded for every head.

    .. math:: \text{flops} = 2 B H A\,(2r + \rho) \quad\text{or}\quad 2 B H \left(A\,(d_n + \rho + d_v)
              + r\,p\,(d_n + d_v)\right)

    A are the :py:func:`pairs`. Expanding the new tokens is a linear layer of its own, whose outputs are read; expanding
    the prefix again is counted here, its latents read, its keys and values written and read. With ``window_tokens``,
    what sparse attention selects for a query, p is at most n times as many. Without, expanded is the cheaper from
    :py:func:`latent_crossover` new tokens.

    >>> sizes = dict(n_heads=128, kv_rank=512, d_nope=128, d_rope=64, d_value=128)
    >>> a, e = (latent_prefill(1024, 65_536, absorbed=x, **sizes) for x in (True, False))
    >>> bool(a.flops > e.flops)
    True
    """
    subject = "attention.latent_prefill"
    sizes = dict(n_heads=n_heads, kv_rank=kv_rank, d_nope=d_nope, d_rope=d_rope, d_value=d_value, n_batch=n_batch)
    h, r, nope, rope, v, b = positive(subject, **sizes)
    (n,), (p,) = positive(subject, n_new=n_new), not_negative(subject, n_prefix=n_prefix)
    each = pairs(n, p, window_tokens=window_tokens)
    common_shape(subject, n_new=each, **dict(zip(sizes, (h, r, nope, rope, v, b), strict=True)))
    seen = b * h * each
    if window_tokens is not None:
        p = np.minimum(p, n * np.asarray(window_tokens, np.float64))
    latent = b * _size(kv) * (r + rope)
    if absorbed:
        return Work(2 * seen * (2 * r + rope), latent * (p + n) + b * _size(activations) * h * n * (2 * r + rope), seen)
    heads = b * _size(activations) * h * (nope + rope + v)
    expanding = 2 * b * h * r * p * (nope + v)
    return Work(2 * seen * (nope + rope + v) + expanding, latent * p + heads * (n + p + (p + n)), seen)


def latent_crossover(*, kv_rank: ArrayLike, d_nope: ArrayLike, d_value: ArrayLike) -> NDArray[np.float64]:
    r"""New tokens from which expanding the latent takes fewer FLOPs than absorbing it; infinite where it never does.

    .. math:: L^* = \frac{r\,d}{2r - d}, \qquad d = d_n + d_v

    A pair costs 4r absorbed and 2d expanded, and expanding one key for one head 2rd; the rotary part is the same.

    >>> float(latent_crossover(kv_rank=512, d_nope=128, d_value=128).round(1))
    170.7
    """
    r, nope, v = positive("attention.latent_crossover", kv_rank=kv_rank, d_nope=d_nope, d_value=d_value)
    d = nope + v
    with np.errstate(divide="ignore"):
        return r * d / np.maximum(2 * r - d, 0)


def index(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_heads: ArrayLike,
    d_head: ArrayLike,
    tokens_per_entry: ArrayLike = 1,
    n_batch: ArrayLike = 1,
    kv: Format | str = BF16,
) -> Work:
    r"""The scorer of sparse attention: its heads against one key for every ``tokens_per_entry`` cached tokens.

    .. math:: \text{flops} = 2 B H_x A\, d_x / e, \qquad \text{bytes} = B\, b\, d_x (p + n) / e

    It reads the whole context whatever is selected afterwards; picking the best scores is not priced.

    >>> float(index(1, 131_071, n_heads=64, d_head=128, kv="fp8").bytes) == 131_072 * 128
    True
    """
    subject = "attention.index"
    sizes = dict(n_new=n_new, n_heads=n_heads, d_head=d_head, tokens_per_entry=tokens_per_entry, n_batch=n_batch)
    n, h, d, e, b = positive(subject, **sizes)
    (p,) = not_negative(subject, n_prefix=n_prefix)
    return Work(2 * b * h * pairs(n, p) * d / e, b * _size(kv) * d * (p + n) / e)


def _size(fmt: Format | str) -> float:
    return as_format(fmt).bytes_per_element


def _check_heads(subject: str, n_heads: NDArray, n_kv_heads: NDArray) -> None:
    if np.any(n_heads % n_kv_heads):
        heads, kv = (x[n_heads % n_kv_heads != 0][0] for x in np.broadcast_arrays(n_heads, n_kv_heads))
        raise ValueError(f"{subject}: n_heads is {heads:g}; allowed: a multiple of n_kv_heads, {kv:g}")
