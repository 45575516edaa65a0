r"""Attention and FFN on different GPUs (AFD): the batch is cut into micro-batches that go round between the two.

A micro-batch needs :math:`T_a` for attention, :math:`T_e` for the FFN and :math:`T_c` each way between them, a layer,
for L layers. While one is under way, others are computed. Four stations (attention, the way there, FFN, the way back)
serve one micro-batch at a time, first come, first served; all micro-batches are alike.

Ignored: what smaller micro-batches lose in efficiency (ask the times of the size that is meant), layers that differ,
jitter. Times are seconds and at least 0, counts whole, else ValueError.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.specs.quantities import common_shape, not_negative, positive


def step_s(
    attention_s: ArrayLike, ffn_s: ArrayLike, transfer_s: ArrayLike, *, n_layers: ArrayLike, n_micro: ArrayLike
) -> NDArray[np.float64]:
    r"""Seconds until all micro-batches are through all layers.

    .. math:: T = R + (m - 1) F + (L - 1) \max(m F, R), \qquad R = T_a + T_e + 2 T_c, \quad F = \max(T_a, T_e, T_c)

    With :math:`m F \ge R` the slowest station never waits, and it is :math:`R + F (m L - 1)`, the formula of
    MegaScale-Infer (arXiv:2504.02263), which asks for :math:`T_c \le F` besides. With fewer micro-batches every layer
    waits for the round trip R.

    >>> step_s(1.0, 1.0, 0.5, n_layers=10, n_micro=[1, 2, 3, 4])
    array([30., 31., 32., 42.])
    """
    a, e, c = not_negative("afd.step_s", attention_s=attention_s, ffn_s=ffn_s, transfer_s=transfer_s)
    n, m = whole("afd.step_s", n_layers=n_layers, n_micro=n_micro)
    common_shape("afd.step_s", attention_s=a, ffn_s=e, transfer_s=c, n_layers=n, n_micro=m)
    trip, slowest = a + e + 2 * c, np.maximum(np.maximum(a, e), c)
    return trip + (m - 1) * slowest + (n - 1) * np.maximum(m * slowest, trip)


def micro_batches(attention_s: ArrayLike, ffn_s: ArrayLike, transfer_s: ArrayLike) -> NDArray[np.float64]:
    r"""Least number of micro-batches that keeps the slowest station busy: :math:`\lceil R / F \rceil`.

    With :math:`T_a = T_e` it is :math:`\lceil 2 (1 + T_c / T_f) \rceil`: 3 up to half of T_f, 4 up to T_f. All times 0:
    ValueError.

    >>> micro_batches(1.0, 1.0, [0.0, 0.5, 1.0]).tolist()
    [2.0, 3.0, 4.0]
    """
    a, e, c = not_negative("micro_batches", attention_s=attention_s, ffn_s=ffn_s, transfer_s=transfer_s)
    slowest = np.maximum(np.maximum(a, e), c)
    if np.any(slowest <= 0):
        raise ValueError("micro_batches: all times are 0; allowed: one above 0")
    # 1e-12: a ratio that is whole must not hang on the last bit
    return np.ceil((a + e + 2 * c) / slowest - 1e-12)


def simulated_s(attention_s: float, ffn_s: float, transfer_s: float, *, n_layers: int, n_micro: int) -> float:
    """The same by a discrete-event simulation: queues before four stations, events in the order of time. Scalars.

    >>> simulated_s(1.0, 1.0, 0.5, n_layers=10, n_micro=4)
    42.0
    """
    times = not_negative("simulated_s", attention_s=attention_s, ffn_s=ffn_s, transfer_s=transfer_s)
    counts = whole("simulated_s", n_layers=n_layers, n_micro=n_micro)
    if any(x.ndim for x in (*times, *counts)):
        raise ValueError("simulated_s: arrays are given; allowed: one number each, as in afd.step_s for many")
    layers, jobs = (int(x) for x in counts)
    a, e, c = (float(x) for x in times)
    takes, queues, busy = (a, c, e, c), [deque(range(jobs)), deque(), deque(), deque()], [False] * 4
    events: list[tuple[float, int, int]] = []  # end of service, station, job
    left, now = [layers] * jobs, 0.0

    def start(station: int) -> None:
        if queues[station] and not busy[station]:
            busy[station] = True
            heapq.heappush(events, (now + takes[station], station, queues[station].popleft()))

    start(0)
    while events:
        now, station, job = heapq.heappop(events)
        busy[station] = False
        after = (station + 1) % 4
        left[job] -= after == 0
        if left[job]:
            queues[after].append(job)
        start(after)
        start(station)
    return now


def tokens_per_expert(
    n_micro_tokens: ArrayLike, *, n_attention: ArrayLike, n_experts: ArrayLike, n_chosen: ArrayLike
) -> NDArray[np.float64]:
    r"""Tokens that an expert gets from ``n_attention`` attention GPUs, each with a micro-batch: :math:`b_a n_a c / E`.

    >>> float(tokens_per_expert(156, n_attention=4, n_experts=8, n_chosen=2))
    156.0
    """
    (b,) = positive("tokens_per_expert", n_micro_tokens=n_micro_tokens)
    n, e, c = whole("tokens_per_expert", n_attention=n_attention, n_experts=n_experts, n_chosen=n_chosen)
    common_shape("tokens_per_expert", n_micro_tokens=b, n_attention=n, n_experts=e, n_chosen=c)
    if np.any(c > e):
        chosen, of = (x[c > e].flat[0] for x in np.broadcast_arrays(c, e))
        raise ValueError(f"tokens_per_expert: n_chosen is {chosen:g}; allowed: at most n_experts, {of:g}")
    return b * n * c / e


def throughput_ratio(
    ratio: ArrayLike, attention_s: ArrayLike, transfer_s: ArrayLike, *, ffn_fixed_s: ArrayLike, ffn_s: ArrayLike
) -> NDArray[np.float64]:
    r"""Micro-batches a second and GPU, r attention GPUs feeding one FFN GPU.

    .. math:: \frac{r}{(r + 1) \max(T_a, T_c, T_0 + r\,T_1)}

    ``ffn_fixed_s`` T₀ is what the FFN takes whatever comes (reading weights), ``ffn_s`` T₁ what one attention GPU's
    micro-batch adds; each attention GPU has its own link.
    """
    subject = "throughput_ratio"
    (r,) = positive(subject, ratio=ratio)
    a, c, fixed, each = not_negative(
        subject, attention_s=attention_s, transfer_s=transfer_s, ffn_fixed_s=ffn_fixed_s, ffn_s=ffn_s
    )
    common_shape(subject, ratio=r, attention_s=a, transfer_s=c, ffn_fixed_s=fixed, ffn_s=each)
    slowest = np.maximum(np.maximum(a, c), fixed + r * each)
    if np.any(slowest <= 0):
        raise ValueError(f"{subject}: all times are 0; allowed: one above 0")
    return r / ((r + 1) * slowest)


def best_ratio(
    attention_s: ArrayLike, transfer_s: ArrayLike, *, ffn_fixed_s: ArrayLike, ffn_s: ArrayLike
) -> NDArray[np.float64]:
    r"""Attention GPUs an FFN GPU that give the most :py:func:`throughput_ratio`; not rounded.

    .. math:: r^* = \max\left(\frac{T_a - T_0}{T_1}, \frac{T_c - T_0}{T_1}, \sqrt{\frac{T_0}{T_1}}\right)

    Up to the first two the FFN waits and more attention is free; beyond them :math:`r / (r+1)(T_0 + r T_1)` has its
    top at the third. The form :math:`\max\{r_A, r_C, r_\text{peak}\}` is that of arXiv:2601.21351, for an attention
    time that is averaged over growing contexts there; what is in it is derived here. T₁ must be above 0.

    >>> float(best_ratio(10.0, 2.0, ffn_fixed_s=1.0, ffn_s=1.0)), float(best_ratio(1.0, 2.0, ffn_fixed_s=9.0, ffn_s=1.0))
    (9.0, 3.0)
    """  # noqa: E501
    subject = "best_ratio"
    (each,) = positive(subject, ffn_s=ffn_s)
    a, c, fixed = not_negative(subject, attention_s=attention_s, transfer_s=transfer_s, ffn_fixed_s=ffn_fixed_s)
    common_shape(subject, ffn_s=each, attention_s=a, transfer_s=c, ffn_fixed_s=fixed)
    return np.maximum((np.maximum(a, c) - fixed) / each, np.sqrt(fixed / each))


def speedup(
    *,
    batch_ratio: ArrayLike,
    attention_s: ArrayLike,
    dense_s: ArrayLike,
    moe_s: ArrayLike,
    n_attention: ArrayLike,
    n_ffn: ArrayLike,
    n_micro: ArrayLike = 2,
) -> NDArray[np.float64]:
    r"""Tokens a second and GPU with AFD over those without, from where the time goes without it.

    .. math:: \beta\,\frac{T_a + T_d + T_m}{\beta\,T_a + m\,T_d}\,\frac{M}{M + N}

    β is how many times as many requests an attention GPU holds once the experts' weights are gone (``batch_ratio``):
    attention T_a grows with them. The dense layers T_d stay with attention and take as long for each of m
    micro-batches, and the experts' time T_m is hidden on the N FFN GPUs, which must be fast enough for it. Times may
    be shares. Source: FastAFD, hao-ai-lab blog, 2026-07-04.

    >>> shares = dict(attention_s=0.434, dense_s=0.162, moe_s=0.405)
    >>> round(float(speedup(batch_ratio=72 / 48, **shares, n_attention=17, n_ffn=1)), 3)
    1.454
    """
    subject = "afd.speedup"
    beta, a = positive(subject, batch_ratio=batch_ratio, attention_s=attention_s)
    d, moe = not_negative(subject, dense_s=dense_s, moe_s=moe_s)
    m, n, micro = whole(subject, n_attention=n_attention, n_ffn=n_ffn, n_micro=n_micro)
    return beta * (a + d + moe) / (beta * a + micro * d) * m / (m + n)
