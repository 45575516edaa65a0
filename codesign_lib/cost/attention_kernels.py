r"""Seconds that real attention kernels take, from few fitted numbers, and the roofline beside them.

**Decoding** (one new token a sequence). A cache of s tokens is read by B·K streams, one a sequence and key-value head:

.. math:: t = t_0 + \left(C^{3/2} + M^{3/2}\right)^{2/3}, \qquad
          C = \min\left(c \max(1, w),\; c\,w + \tau\right), \quad
          c = t_g + \frac{2 s d\,b}{\beta}, \quad w = \frac{BK}{S}

* M: keys, values, queries and outputs at :math:`e_m` of the bandwidth (``memory_fraction``);
* c: one stream on one SM of S: a fixed cost :math:`t_g` (``stream_s``) and its bytes at β (``stream_bytes_per_s``);
  with too few streams for all SMs a stream is split, for τ (``split_s``);
* :math:`t_0`: ``launch_s``.

``repeated=True`` is how tables are measured: the same cache read again and again, of which what fits stays in L2; a
share :math:`1/(1 + (\text{cache}/0.6\,L_2)^6)` then costs no HBM traffic. In a network the other layers have
evicted it, so the default is False.

**Prefill.** Rows are taken 128 at a time, a block a head (a CTA), causal blocks of growing length:

.. math:: t = t_0 + \frac{\text{pairs}}{S}\,x + \frac{\text{blocks}}{S}\,t_g + \alpha\,(128\,\text{keys}\,x + t_g) + M,
          \qquad x = \frac{1}{e_c} \sqrt{\left(\frac{2 (d_k + d_v)}{P/S}\right)^2 + \left(\frac{1}{X/S}\right)^2}

x is one query-key pair on one SM: its products at the peak P and its exponential at the rate X
(``compute_fraction``); t_g (``block_s``) a block's own cost; α (``longest_ratio``) how much of the longest block, that
of the last rows, is waited for alone. The softmax does not know the head size, which is why a head of 64 costs more
than half of one of 128.

Every efficiency is at most 1 and the result never below the bound. A ``memory_fraction`` that the fit left at 1, or
drove far below what HBM gives (0.01 to 0.04 of TensorRT-LLM's unfused kernels on Blackwell, whose time grows with every
query head), is no efficiency of the memory but carries what else grows with those bytes. Fitted on head size 128
without window; other head sizes and windows follow from the form (``tools/validate_attention.py`` prints how well).
Ignored: writing the cache, page tables, the choice of another kernel from one size to the next, clocks under load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, roofline
from codesign_lib.cost.blocks import in_blocks
from codesign_lib.cost.ops import attention
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import common_shape, flags, not_negative

ROWS = 128
"""Query rows of a block in prefill."""
L2_SHARE = 0.6
"""Share of L2 that a cache read again and again can count on."""
HOPPER = ("h100_sxm", "h200_sxm")


@dataclass(frozen=True, kw_only=True)
class DecodeKernel:
    """One of an engine's decoding kernels: the numbers it uses, for which query heads a key-value head it is taken.

    ``groups``: least and most of them. ``per_head``: every query head is a stream of its own, reading the cache again
    (from L2), where otherwise the heads of a group share one stream.
    """

    numbers: str
    groups: tuple[int, int]
    per_head: bool
    source: str


_FUSED, _UNFUSED = "attention_decode", "attention_decode_unfused"
_CLIFF = "steps in the measured tables: above 32 query heads a key-value head the time is ten times as long"
_XQA = "measured tables: time grows with the query heads of a group, and one head a group is served as above 32"
_ALL = DecodeKernel(numbers=_FUSED, groups=(1, 10**9), per_head=False, source="no step in the measured tables")
DECODE_KERNELS: Mapping[tuple[str, bool], tuple[DecodeKernel, ...]] = MappingProxyType(
    {
        ("sglang", True): (_ALL,),
        ("sglang", False): (_ALL,),
        ("trtllm", True): (
            DecodeKernel(numbers=_FUSED, groups=(2, 32), per_head=True, source=_XQA),
            DecodeKernel(numbers=_UNFUSED, groups=(1, 1), per_head=True, source=_XQA),
            DecodeKernel(numbers=_UNFUSED, groups=(33, 10**9), per_head=True, source=_CLIFF),
        ),
        ("trtllm", False): (
            DecodeKernel(numbers=_FUSED, groups=(1, 32), per_head=False, source=_CLIFF),
            DecodeKernel(numbers=_UNFUSED, groups=(33, 10**9), per_head=True, source=_CLIFF),
        ),
    }
)
"""By engine and whether the chip is a Hopper."""


def attention_decode_s(
    n_context: ArrayLike,
    *,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike = 128,
    d_value: ArrayLike | None = None,
    n_batch: ArrayLike = 1,
    window_tokens: ArrayLike | None = None,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    bound: bool = False,
    repeated: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds of decoding attention in one layer on one GPU: a new token in each of ``n_batch`` sequences.

    The formula is this module's. ``n_context`` counts the new token; heads are those this GPU holds; ``fmt`` is the
    cache's (bf16 or fp8), queries and outputs are BF16. ``bound=True`` is the roofline. ``transfer_from`` takes another
    chip's kernels and fitted numbers (:py:func:`codesign_lib.cost.calibration.fitted`) with this chip's datasheet.
    Sizes broadcast and are whole and at least 1, heads a multiple of the key-value heads, else ValueError; so is what
    is not calibrated.

    >>> sizes = dict(n_heads=64, n_kv_heads=8, n_batch=8, chip="gb300", fmt="bf16")
    >>> t = attention_decode_s([8192, 32_768], **sizes)
    >>> bool((t > attention_decode_s([8192, 32_768], **sizes, bound=True)).all())
    True
    """
    subject = "attention_decode_s"
    sizes = dict(n_context=n_context, n_batch=n_batch, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head)
    sizes |= {name: x for name, x in dict(d_value=d_value, window_tokens=window_tokens).items() if x is not None}
    sizes = dict(zip(sizes, whole(subject, **sizes), strict=True))
    s, b, h, k, d = (sizes[name] for name in ("n_context", "n_batch", "n_heads", "n_kv_heads", "d_head"))
    v, s = sizes.get("d_value", d), np.minimum(s, sizes.get("window_tokens", np.inf))
    fmt, c = as_format(fmt), as_chip(chip)
    work = attention.decode(s, n_heads=h, n_kv_heads=k, d_head=d, d_value=v, n_batch=b, kv=fmt)
    least = roofline.time_s(work, c, fmt)
    flags(subject, repeated=repeated)
    if calibration.wants_bound(subject, _FUSED, engine, bound, transfer_from):
        return least
    calibration.needs(subject, c, "n_sms", *(("l2_bytes",) if repeated else ()))
    how = dict(engine=engine, fmt=fmt.name, transfer_from=transfer_from)
    numbers = calibration.fitted(subject, _FUSED, c, **how)
    found, groups = np.full(np.shape(least), np.nan), h / k
    for kernel in DECODE_KERNELS[engine, (transfer_from or c.name) in HOPPER]:
        of = (groups >= kernel.groups[0]) & (groups <= kernel.groups[1])
        if np.any(of):
            if kernel.numbers != _FUSED:
                numbers = calibration.fitted(subject, kernel.numbers, c, **how)
            time_s = decode_form_s(
                s, b, h, k, (d + v) / 2, chip=c, fmt=fmt, kernel=kernel, numbers=numbers, repeated=repeated
            )
            found = np.where(of, time_s, found)
    return np.maximum(found, least)[()]


def decode_form_s(
    s: ArrayLike,
    b: ArrayLike,
    h: ArrayLike,
    k: ArrayLike,
    d: ArrayLike,
    *,
    chip: Chip | str,
    fmt: Format | str,
    kernel: DecodeKernel,
    numbers: Mapping[str, float],
    repeated: bool,
) -> NDArray[np.float64]:
    """The form of decoding with any kernel and numbers: what ``attention_decode_s`` evaluates and tools fit.

    Context, batch, query heads, key-value heads and head size (the mean of key's and value's) are taken as float64 and
    not checked.
    """
    c, size = as_chip(chip), as_format(fmt).bytes_per_element
    stream = 1 / (numbers["memory_fraction"] * c.hbm_bytes_per_s)
    fixed_s, split_s, launch_s = (numbers[x] for x in ("stream_s", "split_s", "launch_s"))
    per_byte = 1 / numbers["stream_bytes_per_s"]
    kept = 1 / (L2_SHARE * c.l2_bytes) if repeated else 0.0

    def block(s: NDArray, b: NDArray, h: NDArray, k: NDArray, d: NDArray) -> NDArray:
        one = 2 * size * s * d
        alone, waves = fixed_s + per_byte * one, b * (h if kernel.per_head else k) / c.n_sms
        compute = np.minimum(alone * np.maximum(1, waves), alone * waves + split_s)
        cache = b * k * one
        ratio = (kept * cache) ** 2
        read = cache * (1 - 1 / (1 + ratio * ratio * ratio)) if repeated else cache
        memory = stream * (read + 2 * BF16.bytes_per_element * b * h * d)
        return launch_s + np.cbrt(compute * np.sqrt(compute) + memory * np.sqrt(memory)) ** 2

    return in_blocks(block, s, b, h, k, d)


def attention_prefill_s(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_heads: ArrayLike,
    n_kv_heads: ArrayLike,
    d_head: ArrayLike = 128,
    d_value: ArrayLike | None = None,
    n_batch: ArrayLike = 1,
    window_tokens: ArrayLike | None = None,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds of causal attention in one layer over ``n_new`` tokens behind ``n_prefix`` cached ones.

    The formula is this module's. ``fmt`` is that of the products and of the cache (bf16 or fp8). No table measures a
    prefix: with one, the time follows from the form and is not validated. New tokens count in blocks of 128 and no
    block is split over its keys: one token behind 131,072 takes up to thirty times what ``attention_decode_s`` says,
    which is the function for a handful of new tokens. ``bound=True`` is the roofline, with three
    roofs; ``transfer_from`` as in ``attention_decode_s``. Sizes broadcast and are whole and at least 1 (the prefix 0),
    else ValueError; so is what is not calibrated.

    >>> t = attention_prefill_s([16_384, 32_768], n_heads=64, n_kv_heads=8, chip="gb300", fmt="fp8")
    >>> bool(3.5 < t[1] / t[0] < 4)                                # causal: four times the pairs, less the launch
    True
    """
    subject = "attention_prefill_s"
    sizes = dict(n_new=n_new, n_batch=n_batch, n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head)
    sizes |= {name: x for name, x in dict(d_value=d_value, window_tokens=window_tokens).items() if x is not None}
    sizes = dict(zip(sizes, whole(subject, **sizes), strict=True))
    n, b, h, k, d = (sizes[name] for name in ("n_new", "n_batch", "n_heads", "n_kv_heads", "d_head"))
    v, window = sizes.get("d_value", d), sizes.get("window_tokens")
    p = prefix_tokens(subject, n_prefix, np.broadcast_to(0.0, common_shape(subject, **sizes)))
    fmt, c = as_format(fmt), as_chip(chip)
    how = dict(n_heads=h, n_kv_heads=k, d_head=d, d_value=v, n_batch=b)
    least = roofline.time_s(attention.prefill(n, p, **how, window_tokens=window, kv=fmt), c, fmt)
    if calibration.wants_bound(subject, "attention_prefill", engine, bound, transfer_from):
        return least
    calibration.needs(subject, c, "n_sms", "exp_per_s")
    numbers = calibration.fitted(subject, "attention_prefill", c, engine, fmt.name, transfer_from=transfer_from)
    time_s = prefill_form_s(n, p, b, h, k, d, v, window, chip=c, fmt=fmt, numbers=numbers)
    return np.maximum(time_s, least)[()]


def prefix_tokens(subject: str, n_prefix: ArrayLike, others: NDArray) -> NDArray[np.float64]:
    """Cached tokens as float64: whole, at least 0, of a shape that broadcasts with that of ``others``."""
    (p,) = not_negative(subject, n_prefix=n_prefix)
    common_shape(subject, n_prefix=p, sizes=others)
    if np.any(p != np.floor(p)):
        raise ValueError(f"{subject}: n_prefix is {p[p != np.floor(p)].flat[0]}; allowed: whole numbers of at least 0")
    return p


def prefill_form_s(
    n: ArrayLike,
    p: ArrayLike,
    b: ArrayLike,
    h: ArrayLike,
    k: ArrayLike,
    d: ArrayLike,
    v: ArrayLike,
    window: ArrayLike | None = None,
    *,
    chip: Chip | str,
    fmt: Format | str,
    numbers: Mapping[str, float],
    input_bytes: float | None = None,
) -> NDArray[np.float64]:
    """The form of prefill with any numbers: what ``attention_prefill_s`` evaluates and tools fit.

    New and cached tokens, batch, query and key-value heads, sizes of keys and values, window; not checked.
    ``input_bytes`` are moved an element of queries, keys and values; without it queries are BF16, the others ``fmt``.
    """
    c, output = as_chip(chip), BF16.bytes_per_element
    query, cached = (input_bytes,) * 2 if input_bytes else (output, as_format(fmt).bytes_per_element)
    stream = 1 / (numbers["memory_fraction"] * c.hbm_bytes_per_s)
    product = 2 * c.n_sms / c.peak_flops_per_s(as_format(fmt)) / numbers["compute_fraction"]
    softmax = c.n_sms / c.exp_per_s / numbers["compute_fraction"]
    block_s, longest, launch_s = (numbers[x] for x in ("block_s", "longest_ratio", "launch_s"))

    def block(
        n: NDArray, p: NDArray, b: NDArray, h: NDArray, k: NDArray, d: NDArray, v: NDArray, w: NDArray
    ) -> NDArray:
        pair_s = np.sqrt((product * (d + v)) ** 2 + softmax * softmax)
        count = np.ceil(n / ROWS)
        # block i sees p + 128 i keys, or the window and its own rows
        growing = np.clip(np.floor((w + ROWS - p) / ROWS), 0, count)
        most = np.minimum(w + ROWS, p + ROWS * count)
        keys = growing * p + ROWS * growing * (growing + 1) / 2 + (count - growing) * most
        blocks = b * h / c.n_sms
        compute = blocks * (ROWS * keys * pair_s + count * block_s) + longest * (ROWS * most * pair_s + block_s)
        moved = cached * (d + v) * k * (np.minimum(p, w) + n) + (query * d + output * v) * h * n
        return launch_s + compute + stream * b * moved

    return in_blocks(block, n, p, b, h, k, d, v, np.inf if window is None else window)
