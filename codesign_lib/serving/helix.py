r"""Closed forms of attention and FFN cut differently on the same GPUs: Helix parallelism, layer by layer.

A step reads the key-value cache and the weights. Tensor parallelism (TP) divides both, but the cache only down to one
key-value head a GPU; key-value parallelism (KVP) cuts the cache along the sequence as well. Helix takes KVP × TP for
attention and all GPUs as TP (or EP) for the FFN; between the two, the shards' outputs are exchanged and merged
(:py:mod:`codesign_lib.serving.sharded_attention`).

Only HBM traffic at full bandwidth is priced: no arithmetic, no communication, no launches. Sizes are finite and above
0, head and GPU counts whole, else ValueError. Source: Helix Parallelism, arXiv:2507.07120, appendix A.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import common_shape, flags, not_negative, positive

STATISTICS_BYTES = 8
"""Largest logit and sum of exponentials, FP32 each, that go with a head's output (TensorRT-LLM technical blog 22)."""


def kv_read_s(
    n_context: ArrayLike,
    *,
    n_batch: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike,
    tp: ArrayLike = 1,
    kvp: ArrayLike = 1,
    chip: Chip | str,
    fmt: Format | str,
) -> NDArray[np.float64]:
    r"""Seconds in which a GPU reads its part of one layer's cache.

    .. math:: T_{KV} = B \cdot 2 \left\lceil K / \text{TP} \right\rceil d\,\frac{S}{\text{KVP}}\,\frac{b}{W}

    ``tp`` beyond the key-value heads changes nothing: they are copied.

    >>> how = dict(n_batch=8, n_kv_heads=8, d_head=128, chip="gb200", fmt="fp4_payload")
    >>> (1e6 * kv_read_s(1e6, **how, tp=[1, 8, 64])).round().tolist()
    [1024.0, 128.0, 128.0]
    """
    subject = "kv_read_s"
    s, b, d = positive(subject, n_context=n_context, n_batch=n_batch, d_head=d_head)
    k, tp, kvp = whole(subject, n_kv_heads=n_kv_heads, tp=tp, kvp=kvp)
    common_shape(subject, n_context=s, n_batch=b, d_head=d, n_kv_heads=k, tp=tp, kvp=kvp)
    return b * 2 * np.ceil(k / tp) * d * (s / kvp) * as_format(fmt).bytes_per_element / as_chip(chip).hbm_bytes_per_s


def weight_read_s(
    *,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike,
    d_ffn: ArrayLike,
    tp_attention: ArrayLike = 1,
    tp_ffn: ArrayLike = 1,
    chip: Chip | str,
    fmt: Format | str,
) -> NDArray[np.float64]:
    r"""Seconds in which a GPU reads its part of one dense layer's weights, the hidden size being H = Q d.

    .. math:: T_W = \left(2 H \frac{Q}{\text{TP}_A} d + 2 H \left\lceil \frac{K}{\text{TP}_A} \right\rceil d
              + \frac{3 H F}{\text{TP}_F}\right) \frac{b}{W}

    Helix: ``tp_attention`` up to the key-value heads, ``tp_ffn`` all GPUs.

    >>> how = dict(n_heads=128, n_kv_heads=8, d_head=128, d_ffn=65_536, chip="gb200", fmt="fp4_payload")
    >>> [round(1e6 * float(weight_read_s(**how, tp_attention=tp, tp_ffn=64)), 2) for tp in (64, 8)]
    [3.93, 7.6]
    """
    subject = "weight_read_s"
    sizes = dict(n_heads=n_heads, n_kv_heads=n_kv_heads, tp_attention=tp_attention, tp_ffn=tp_ffn)
    q, k, tpa, tpf = whole(subject, **sizes)
    d, f = positive(subject, d_head=d_head, d_ffn=d_ffn)
    common_shape(subject, n_heads=q, n_kv_heads=k, tp_attention=tpa, tp_ffn=tpf, d_head=d, d_ffn=f)
    if np.any(tpa > q):
        ranks, heads = (x[tpa > q].flat[0] for x in np.broadcast_arrays(tpa, q))
        raise ValueError(f"{subject}: tp_attention is {ranks:g}; allowed: at most n_heads, {heads:g}")
    h = q * d
    n_params = 2 * h * (q / tpa) * d + 2 * h * np.ceil(k / tpa) * d + 3 * h * f / tpf
    return n_params * as_format(fmt).bytes_per_element / as_chip(chip).hbm_bytes_per_s


def crossover_tokens(
    *,
    n_batch: ArrayLike,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike,
    d_ffn: ArrayLike,
    tp: ArrayLike,
    kvp: ArrayLike = 1,
    chip: Chip | str,
    fmt: Format | str,
) -> NDArray[np.float64]:
    """Context from which a GPU reads its cache longer than its weights: :py:func:`kv_read_s` = ``weight_read_s``.

    Cache and weights in one format; ``tp`` is the FFN's too.

    >>> sizes = dict(n_batch=8, n_heads=128, n_kv_heads=8, d_head=128, d_ffn=65_536, tp=8)
    >>> float(crossover_tokens(**sizes, chip="gb200", fmt="fp4_payload"))
    231424.0
    """
    how = dict(n_kv_heads=n_kv_heads, d_head=d_head, chip=chip, fmt=fmt)
    weights_s = weight_read_s(n_heads=n_heads, d_ffn=d_ffn, tp_attention=tp, tp_ffn=tp, **how)
    return weights_s / kv_read_s(1, n_batch=n_batch, tp=tp, kvp=kvp, **how)


def exchange_bytes(
    *,
    n_batch: ArrayLike,
    n_heads: ArrayLike,
    d_value: ArrayLike,
    tp: ArrayLike = 1,
    kvp: ArrayLike,
    fmt: Format | str = BF16,
) -> NDArray[np.float64]:
    r"""Bytes that a GPU sends so that the shards' outputs can be merged, a layer: whatever the context.

    .. math:: B\,\frac{Q}{\text{TP}}\,(b\,v + 8)\,\frac{\text{KVP} - 1}{\text{KVP}}

    Each of the other KVP − 1 GPUs gets its slice of the output and the two FP32 numbers of each head. ``d_value`` is
    the latent rank where outputs are merged in the latent.

    >>> float(exchange_bytes(n_batch=8, n_heads=128, d_value=128, tp=8, kvp=8)), float(8 * 16 * 128 * 2 * 7 / 8)
    (29568.0, 28672.0)
    """
    subject = "exchange_bytes"
    q, tp, kvp = whole(subject, n_heads=n_heads, tp=tp, kvp=kvp)
    b, v = positive(subject, n_batch=n_batch, d_value=d_value)
    common_shape(subject, n_heads=q, tp=tp, kvp=kvp, n_batch=b, d_value=v)
    return b * q / tp * (as_format(fmt).bytes_per_element * v + STATISTICS_BYTES) * (kvp - 1) / kvp


def batchwise_s(
    n_requests: ArrayLike, compute_s: ArrayLike, exchange_s: ArrayLike, *, overlapped: bool
) -> NDArray[np.float64]:
    r"""Seconds of n requests' attention, each followed by its exchange, one after the other or overlapped (HOP-B).

    .. math:: n\,(a + c) \qquad\text{or}\qquad a + (n - 1) \max(a, c) + c

    ``compute_s`` and ``exchange_s`` are a request's. Overlapped, a request's exchange runs beside the next one's
    attention. What a smaller batch loses in efficiency is not counted.

    >>> [float(batchwise_s(8, 2.0, 1.2, overlapped=x)) for x in (False, True)]
    [25.6, 17.2]
    """
    (n,) = whole("batchwise_s", n_requests=n_requests)
    a, c = not_negative("batchwise_s", compute_s=compute_s, exchange_s=exchange_s)
    common_shape("batchwise_s", n_requests=n, compute_s=a, exchange_s=c)
    flags("batchwise_s", overlapped=overlapped)
    return a + (n - 1) * np.maximum(a, c) + c if overlapped else n * (a + c)


def attention_dp_tokens(
    *, weight_bytes: ArrayLike, kv_bytes_per_token: ArrayLike, n_kv_heads: ArrayLike = 1, n_gpus: ArrayLike
) -> NDArray[np.float64]:
    r"""Tokens in flight, all requests together, from which data-parallel attention reads less than TP; else infinite.

    .. math:: \frac{w}{n} + t\,k\,\frac{\lceil K/n \rceil}{K} = w + \frac{t\,k}{n}
              \quad\Rightarrow\quad t = \frac{w}{k}\,\frac{1 - 1/n}{\lceil K/n \rceil / K - 1/n}

    w: attention weights; k: cache bytes a token, stored once; K: key-value heads. The busiest TP rank holds ⌈K/n⌉ of
    them, copies beyond K GPUs; DP copies the weights. With one key-value head (or a latent) it is w/k at any number of
    GPUs; where n divides K, TP reads no more of the cache than DP. Reads alone, with all weights divided by TP: no
    arithmetic, communication or launches, which in whole steps move it several times further
    (``decode.decode_step_s``).

    >>> float(attention_dp_tokens(weight_bytes=187e6, kv_bytes_per_token=1152, n_gpus=8).round(-2))
    162300.0
    """
    subject = "attention_dp_tokens"
    w, k = positive(subject, weight_bytes=weight_bytes, kv_bytes_per_token=kv_bytes_per_token)
    heads, n = whole(subject, n_kv_heads=n_kv_heads, n_gpus=n_gpus)
    common_shape(subject, weight_bytes=w, kv_bytes_per_token=k, n_kv_heads=heads, n_gpus=n)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = w / k * (1 - 1 / n) / (np.ceil(heads / n) / heads - 1 / n)
    return np.where(heads % n != 0, found, np.inf)[()]
