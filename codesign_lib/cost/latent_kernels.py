r"""Seconds that kernels of multi-head latent attention (MLA) take, from few fitted numbers, and their roofline.

**Decoding**, absorbed: all heads read one latent of s·(r + ρ) elements, products 64 heads at a time.

.. math:: t = t_0 + \max\left(F,\; (C^{3/2} + M^{3/2})^{2/3}\right), \qquad
          F = \frac{2 B\,s\,(2r + \rho)\,64 \lceil H/64 \rceil}{e_c P}

C and M as in :py:mod:`codesign_lib.cost.attention_kernels`, with :math:`B \lceil H/128 \rceil` streams that cost
nothing but their bytes; e_c is ``compute_fraction``. While F is below the rest, the number of heads a GPU holds, and so
tensor parallelism, changes nothing; where it is above, more heads take longer. Which of the two is a matter of the
roofs: 128 heads have 242 FLOP a byte in BF16, above an H200's ridge of 206, below a GB300's of 312.

**Prefill** is attention whose keys are wider than its values: the form of
:py:func:`codesign_lib.cost.attention_kernels.prefill_form_s` with numbers of its own, keys and values expanded for
every head (SGLang on Hopper: absorbed, one latent for all heads). With a cache in FP8 the products are in FP8 too,
after a pass that reads queries, keys and values in BF16 and writes them in FP8 (measured rows beat the BF16 peak by up
to 9 %).

Not explained by this model: on Blackwell 32 heads a GPU take some 40 % longer than 16, in FP8 64 heads some 25 %. These
rows were kept out of the fit. Fitted from 1,024 tokens on. Ignored: the up-projections (linear layers), writing the
cache.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, roofline
from codesign_lib.cost.attention_kernels import HOPPER, L2_SHARE, prefill_form_s, prefix_tokens
from codesign_lib.cost.blocks import in_blocks
from codesign_lib.cost.ops import attention
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import flags

HEADS = 64
"""Query heads of a tile of products."""
STREAM_HEADS = 128
"""Query heads that share one reading of the latent."""


def latent_decode_s(
    n_context: ArrayLike,
    *,
    n_heads: ArrayLike,
    kv_rank: ArrayLike = 512,
    d_rope: ArrayLike = 64,
    n_batch: ArrayLike = 1,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    bound: bool = False,
    repeated: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds of absorbed latent attention in one layer on one GPU: a new token in each of ``n_batch`` sequences.

    The formula is this module's. ``n_context`` counts the new token, ``n_heads`` those this GPU holds, ``fmt`` is the
    cache's (bf16 or fp8). ``bound=True`` is the roofline; the rest as in
    :py:func:`codesign_lib.cost.attention_kernels.attention_decode_s`. Fitted on
    DeepSeek's rank 512 and rotary 64. Sizes broadcast and are whole and at least 1, else ValueError; so is what is not
    calibrated (SGLang in FP8 on Hopper, whose measured rows take 2 ms whatever the heads).

    >>> h200, gb300 = (latent_decode_s(131_072, n_heads=[16, 128], n_batch=8, chip=c, fmt="bf16") for c in ("h200_sxm", "gb300"))
    >>> bool(h200[1] > 1.4 * h200[0]), bool(gb300[1] < 1.1 * gb300[0])
    (True, True)
    """  # noqa: E501
    subject = "latent_decode_s"
    sizes = dict(n_context=n_context, n_batch=n_batch, n_heads=n_heads, kv_rank=kv_rank, d_rope=d_rope)
    s, b, h, r, rope = whole(subject, **sizes)
    fmt, c = as_format(fmt), as_chip(chip)
    work = attention.latent_decode(s, n_heads=h, kv_rank=r, d_rope=rope, n_batch=b, kv=fmt)
    least = roofline.time_s(work, c, fmt)
    flags(subject, repeated=repeated)
    if calibration.wants_bound(subject, "latent_decode", engine, bound, transfer_from):
        return least
    calibration.needs(subject, c, "n_sms", *(("l2_bytes",) if repeated else ()))
    numbers = calibration.fitted(subject, "latent_decode", c, engine, fmt.name, transfer_from=transfer_from)
    time_s = latent_decode_form_s(s, b, h, r, rope, chip=c, fmt=fmt, numbers=numbers, repeated=repeated)
    return np.maximum(time_s, least)[()]


def latent_decode_form_s(
    s: ArrayLike,
    b: ArrayLike,
    h: ArrayLike,
    r: ArrayLike,
    rope: ArrayLike,
    *,
    chip: Chip | str,
    fmt: Format | str,
    numbers: Mapping[str, float],
    repeated: bool,
) -> NDArray[np.float64]:
    """The form of decoding with any numbers: context, batch, heads, rank and rotary size as float64, not checked."""
    c, size = as_chip(chip), as_format(fmt).bytes_per_element
    stream = 1 / (numbers["memory_fraction"] * c.hbm_bytes_per_s)
    product = 2 / (numbers["compute_fraction"] * c.peak_flops_per_s(as_format(fmt)))
    split_s, launch_s = numbers["split_s"], numbers["launch_s"]
    per_byte, kept = 1 / numbers["stream_bytes_per_s"], 1 / (L2_SHARE * c.l2_bytes) if repeated else 0.0

    def block(s: NDArray, b: NDArray, h: NDArray, r: NDArray, rope: NDArray) -> NDArray:
        one, tiles = size * s * (r + rope), b * np.ceil(h / HEADS)
        alone, waves = per_byte * one, b * np.ceil(h / STREAM_HEADS) / c.n_sms
        reading = np.minimum(alone * np.maximum(1, waves), alone * waves + split_s)
        cache = b * one
        ratio = (kept * cache) ** 2
        read = cache * (1 - 1 / (1 + ratio * ratio * ratio)) if repeated else cache
        memory = stream * (read + BF16.bytes_per_element * b * h * (2 * r + rope))
        moving = np.cbrt(reading * np.sqrt(reading) + memory * np.sqrt(memory)) ** 2
        return launch_s + np.maximum(moving, product * HEADS * tiles * s * (2 * r + rope))

    return in_blocks(block, s, b, h, r, rope)


def latent_prefill_s(
    n_new: ArrayLike,
    n_prefix: ArrayLike = 0,
    *,
    n_heads: ArrayLike,
    kv_rank: ArrayLike = 512,
    d_nope: ArrayLike = 128,
    d_rope: ArrayLike = 64,
    d_value: ArrayLike = 128,
    n_batch: ArrayLike = 1,
    chip: Chip | str,
    fmt: Format | str,
    engine: str = "trtllm",
    bound: bool = False,
    transfer_from: str | None = None,
) -> NDArray[np.float64]:
    """Seconds of causal latent attention in one layer, keys and values expanded for every head and given in BF16.

    ``fmt`` is that of the cache and of the products. Expanding the latents of new tokens is a linear layer; expanding a
    prefix again is not in the calibrated time, so a prefix is refused there. Fitted from 1,024 new tokens on; fewer
    come out too slow, on most chips by some 15 % in the median, for SGLang on Hopper by 80 % and one in ten threefold.
    ``bound=True`` is the roofline, of the expanded or the absorbed form, whichever is less. Sizes and ``transfer_from``
    as in :py:func:`latent_decode_s`.

    >>> t = latent_prefill_s(8192, n_heads=128, chip="gb300", fmt="bf16")
    >>> bool(t > latent_prefill_s(8192, n_heads=128, chip="gb300", fmt="bf16", bound=True))
    True
    """
    subject = "latent_prefill_s"
    sizes = dict(n_new=n_new, n_batch=n_batch, n_heads=n_heads, kv_rank=kv_rank, d_nope=d_nope, d_rope=d_rope)
    n, b, h, r, nope, rope, v = whole(subject, **sizes, d_value=d_value)
    p = prefix_tokens(subject, n_prefix, n)
    fmt, c = as_format(fmt), as_chip(chip)
    how = dict(n_heads=h, kv_rank=r, d_nope=nope, d_rope=rope, d_value=v, n_batch=b, kv=fmt)
    expanded, absorbed = (
        roofline.time_s(attention.latent_prefill(n, p, **how, absorbed=x), c, fmt) for x in (False, True)
    )
    if calibration.wants_bound(subject, "latent_prefill", engine, bound, transfer_from):
        return np.minimum(expanded, absorbed)
    if np.any(p > 0):
        raise ValueError(f"{subject}: n_prefix is {np.max(p):g}; allowed: 0, or bound=True (the roofline)")
    calibration.needs(subject, c, "n_sms", "exp_per_s")
    numbers = calibration.fitted(subject, "latent_prefill", c, engine, fmt.name, transfer_from=transfer_from)
    one_latent = absorbs(engine, transfer_from or c.name)
    d, v = (r + rope, r) if one_latent else (nope + rope, v)
    time_s = latent_prefill_form_s(n, b, h, d, v, absorbed=one_latent, chip=c, fmt=fmt, numbers=numbers)
    return np.maximum(time_s, absorbed if one_latent else expanded)[()]


def absorbs(engine: str, chip: str) -> bool:
    """Whether that engine's prefill kernel on the chip of that name reads one latent for all heads."""
    return engine == "sglang" and chip in HOPPER


def latent_prefill_form_s(
    n: ArrayLike,
    b: ArrayLike,
    h: ArrayLike,
    d: ArrayLike,
    v: ArrayLike,
    *,
    absorbed: bool,
    chip: Chip | str,
    fmt: Format | str,
    numbers: Mapping[str, float],
    n_prefix: ArrayLike = 0,
) -> NDArray[np.float64]:
    """The form of prefill with any numbers: tokens, batch, heads, sizes of keys and values; not checked.

    A prefix is taken as expanded already (or absorbed).
    """
    fmt = as_format(fmt)
    moved = BF16.bytes_per_element + (0 if fmt == BF16 else 2 * fmt.bytes_per_element)  # read, and written and read
    streams = 1 if absorbed else h
    return prefill_form_s(n, n_prefix, b, h, streams, d, v, chip=chip, fmt=fmt, numbers=numbers, input_bytes=moved)
