r"""Attention over a key-value cache that is cut along the sequence, merged exactly.

Every shard attends to the tokens that it holds and keeps, a query head, its output O, the largest logit M and the sum
Z of exponentials below it. Shards are merged by

.. math:: O = \sum_i w_i O_i, \qquad w_i = \frac{Z_i\,e^{M_i - M}}{\sum_j Z_j\,e^{M_j - M}}
              = e^{L_i - L}, \qquad L = \log \sum_i e^{L_i}

with :math:`M = \max_i M_i` and :math:`L_i = M_i + \log Z_i`. M and Z are kept apart because their sum L loses the
digits of Z where logits are large; TensorRT-LLM sends two numbers a head as well.

Shapes: queries (…, H, d), keys (…, S, K, d), values (…, S, K, v), mask (…, H, S) or what broadcasts to it, True where
a query head sees a token; outputs (…, H, v). Query head h reads key-value head ⌊h K / H⌋. Leading axes broadcast, so
several queries of one sequence are an axis of the queries against an axis of 1 of the keys. Everything is computed in
float64, whatever comes in.

A query head that sees nothing (an empty shard, a mask of False) has output 0 and L = −∞, and so it has no weight in a
merge; one that sees nothing in any shard keeps output 0 and −∞.

Source of the method: Helix Parallelism, arXiv:2507.07120; Online normalizer calculation for softmax, arXiv:1805.02867.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.quantities import as_floats, positive


class Partial(NamedTuple):
    """What attention over some of the tokens leaves: outputs (…, H, v), ``peak`` M and ``total`` Z (…, H)."""

    out: NDArray[np.float64]
    peak: NDArray[np.float64]
    total: NDArray[np.float64]

    @property
    def lse(self) -> NDArray[np.float64]:
        """The logarithm of the sum of exponentials, L = M + log Z; −∞ where nothing was seen."""
        with np.errstate(divide="ignore"):
            return self.peak + np.log(self.total)


def attend(
    queries: ArrayLike, keys: ArrayLike, values: ArrayLike, *, mask: ArrayLike | None = None, scale: float | None = None
) -> Partial:
    r"""Attention of queries to the tokens given: grouped-query, H a multiple of K; MHA is K = H, MQA is K = 1.

    .. math:: O = \frac{1}{Z} \sum_s e^{x_s - M} v_s, \qquad x_s = \text{scale} \cdot q \cdot k_s

    ``scale`` is 1/√d if not given. Raises ValueError for shapes that do not fit, numbers that are not finite, a mask
    that is not boolean, and logits that overflow.

    >>> whole = attend(np.ones((2, 4)), np.ones((3, 1, 4)), [[[1.0]], [[2.0]], [[6.0]]])
    >>> whole.out.tolist(), whole.total.tolist()
    ([[3.0], [3.0]], [3.0, 3.0])
    """
    q, k, v = _finite("attend", queries=queries, keys=keys, values=values)
    for name, x, least in (("queries", q, 2), ("keys", k, 3), ("values", v, 3)):
        if x.ndim < least:
            raise ValueError(f"attend: {name} has the shape {x.shape}; allowed: {least} axes and more")
    n_heads, d, (n_tokens, n_kv_heads) = q.shape[-2], q.shape[-1], k.shape[-3:-1]
    if k.shape[-1] != d or v.shape[-3:-1] != (n_tokens, n_kv_heads):
        raise ValueError(
            f"attend: queries {q.shape}, keys {k.shape}, values {v.shape}; "
            "allowed: (…, H, d), (…, S, K, d), (…, S, K, v)"
        )
    if not n_kv_heads or n_heads % n_kv_heads:
        raise ValueError(f"attend: {n_heads} query heads on {n_kv_heads} key-value heads; allowed: a multiple of them")
    (scale,) = positive("attend", scale=1 / np.sqrt(d) if scale is None else scale)
    grouped = q.reshape(*q.shape[:-2], n_kv_heads, n_heads // n_kv_heads, d)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = scale * np.einsum("...kgd,...skd->...kgs", grouped, k)
    logits = logits.reshape(*logits.shape[:-3], n_heads, n_tokens)
    if not np.all(np.isfinite(logits)):
        raise ValueError("attend: queries · keys overflow; allowed: finite logits")
    if mask is not None:
        logits = np.where(_seen(mask, logits.shape), logits, -np.inf)
    peak = np.max(logits, axis=-1, initial=-np.inf)
    below = np.exp(logits - np.where(np.isfinite(peak), peak, 0.0)[..., None])
    total = np.sum(below, axis=-1)
    weights = below / np.where(total > 0, total, 1.0)[..., None]
    weights = weights.reshape(*weights.shape[:-2], n_kv_heads, n_heads // n_kv_heads, n_tokens)
    out = np.einsum("...kgs,...skv->...kgv", weights, v)
    return Partial(out.reshape(*out.shape[:-3], n_heads, v.shape[-1]), peak, total)


def merge(parts: Iterable[Partial]) -> Partial:
    """Attention over all shards from what each of them left: the formula of this module, exact, in any order.

    Merging may be done in steps, a Partial is what it yields. No part at all: ValueError.

    >>> q, k, v = np.ones((1, 2)), np.ones((4, 1, 2)), np.arange(4.0).reshape(4, 1, 1)
    >>> uneven = merge([attend(q, k[:3], v[:3]), attend(q, k[3:], v[3:]), attend(q, k[4:], v[4:])])
    >>> float(uneven.out[0, 0]), float(uneven.lse[0]) == float(attend(q, k, v).lse[0])
    (1.5, True)
    """
    out, peaks, totals = (np.stack(np.broadcast_arrays(*x)) for x in zip(*_given(parts), strict=True))
    peak = np.max(peaks, axis=0)
    # where no shard saw anything, all totals are 0 and any finite peak will do
    with np.errstate(invalid="ignore"):
        shares = totals * np.exp(peaks - np.where(np.isfinite(peak), peak, 0.0))
    total = np.sum(shares, axis=0)
    weights = shares / np.where(total > 0, total, 1.0)
    return Partial(np.sum(weights[..., None] * out, axis=0), peak, total)


def absorbed(
    queries_nope: ArrayLike,
    queries_rope: ArrayLike,
    latents: ArrayLike,
    keys_rope: ArrayLike,
    *,
    key_up: ArrayLike,
    mask: ArrayLike | None = None,
) -> Partial:
    r"""Latent attention (MLA): all H heads read one latent of rank r and one rotary key of size ρ a token.

    .. math:: x_s = \frac{(W_h^\top q_h) \cdot c_s + q^\rho_h \cdot k^\rho_s}{\sqrt{d + \rho}}

    Shapes: queries (…, H, d) and (…, H, ρ), latents (…, S, r), rotary keys (…, S, ρ), ``key_up`` W (H, d, r). Outputs
    are in the latent (…, H, r): shards are merged there, and then :py:func:`expanded`.

    >>> x = np.random.default_rng(0).normal
    >>> how = dict(latents=x(size=(9, 6)), keys_rope=x(size=(9, 2)), key_up=x(size=(4, 3, 6)))
    >>> absorbed(x(size=(4, 3)), x(size=(4, 2)), **how).out.shape
    (4, 6)
    """
    q, q_rope, c, k_rope, up = _finite(
        "absorbed", queries_nope=queries_nope, queries_rope=queries_rope, latents=latents, keys_rope=keys_rope,
        key_up=key_up,
    )  # fmt: skip
    ranks = up.shape[-1:] == c.shape[-1:] and up.shape[-3:-1] == q.shape[-2:]
    if min(q.ndim, q_rope.ndim, c.ndim, k_rope.ndim) < 2 or not ranks or k_rope.shape[-2] != c.shape[-2]:
        shapes = ", ".join(str(x.shape) for x in (q, q_rope, c, k_rope, up))
        raise ValueError(f"absorbed: {shapes}; allowed: (…, H, d), (…, H, ρ), (…, S, r), (…, S, ρ), (H, d, r)")
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by attend
        both = np.concatenate([np.einsum("...hd,hdr->...hr", q, up), q_rope], axis=-1)
    keys, values = np.concatenate([c, k_rope], axis=-1)[..., None, :], c[..., None, :]
    return attend(both, keys, values, mask=mask, scale=1 / np.sqrt(q.shape[-1] + q_rope.shape[-1]))


def expanded(outputs: ArrayLike, value_up: ArrayLike) -> NDArray[np.float64]:
    """Outputs in the latent (…, H, r) through every head's ``value_up`` (H, r, v): (…, H, v)."""
    out, up = _finite("expanded", outputs=outputs, value_up=value_up)
    return np.einsum("...hr,hrv->...hv", out, up)


def owners(n_tokens: int, *, n_shards: int, block_tokens: int = 16) -> NDArray[np.int64]:
    r"""The shard that holds each of ``n_tokens`` tokens when they are appended round-robin, a block at a time.

    .. math:: \lfloor t / \text{block} \rfloor \bmod \text{shards}

    A token's owner does not depend on how many follow. Blocks of 16 tokens in the Helix paper, 32 in TensorRT-LLM.
    Counts are whole and at least 1 (``n_tokens`` 0), else ValueError.

    >>> owners(7, n_shards=3, block_tokens=2)
    array([0, 0, 1, 1, 2, 2, 0])
    """
    for name, value, least in (("n_tokens", n_tokens, 0), ("n_shards", n_shards, 1), ("block_tokens", block_tokens, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"owners: {name} is {value!r}; allowed: whole numbers from {least}")
    return np.arange(n_tokens) // block_tokens % n_shards


def attend_sharded(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    owner: ArrayLike,
    mask: ArrayLike | None = None,
    scale: float | None = None,
) -> list[Partial]:
    """:py:func:`attend` once a shard; ``owner`` (S,) names each token's shard, numbered from 0. Merge what it returns.

    >>> q, k, v = np.ones((2, 4)), np.ones((5, 1, 4)), np.arange(5.0).reshape(5, 1, 1)
    >>> parts = attend_sharded(q, k, v, owner=owners(5, n_shards=2, block_tokens=1))
    >>> [float(p.total[0]) for p in parts], float(merge(parts).out[0, 0])
    ([3.0, 2.0], 2.0)
    """
    k, v, owner = np.asarray(keys), np.asarray(values), np.asarray(owner)
    if owner.ndim != 1 or owner.dtype.kind not in "iu" or k.ndim < 3 or owner.size != k.shape[-3] or np.any(owner < 0):
        raise ValueError(
            f"attend_sharded: owner of shape {owner.shape} and type {owner.dtype} for keys of shape {k.shape}; "
            "allowed: a whole number from 0 for each of S tokens"
        )
    some = None if mask is None else np.asarray(mask)
    for name, x, axis in (("values", v, -3), ("mask", some, -1)):
        if (
            x is not None
            and x.ndim
            and (x.ndim < -axis or x.shape[axis] != owner.size)
            and (axis == -3 or x.shape[-1] != 1)
        ):
            raise ValueError(f"attend_sharded: {name} of shape {x.shape}; allowed: {owner.size} tokens, as keys have")
    parts = []
    for shard in range(int(owner.max(initial=0)) + 1):
        held = np.flatnonzero(owner == shard)
        seen = some[..., held] if some is not None and some.ndim and some.shape[-1] != 1 else some
        parts.append(attend(queries, k[..., held, :, :], v[..., held, :, :], mask=seen, scale=scale))
    return parts


def _finite(subject: str, **arrays: ArrayLike) -> list[NDArray[np.float64]]:
    found = as_floats(subject, **arrays)
    for name, array in zip(arrays, found, strict=True):
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{subject}: {name} is infinite; allowed: finite numbers")
    return found


def _seen(mask: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    seen = np.asarray(mask)
    if seen.dtype != bool:
        raise ValueError(f"attend: mask of type {seen.dtype}; allowed: booleans, True where a token is seen")
    try:
        return np.broadcast_to(seen, np.broadcast_shapes(seen.shape, shape))
    except ValueError:
        raise ValueError(f"attend: mask of shape {seen.shape}; allowed: what broadcasts to {shape}") from None


def _given(parts: Iterable[Partial]) -> list[Partial]:
    given = list(parts)
    if not given:
        raise ValueError("merge: no parts; allowed: one and more")
    return given
