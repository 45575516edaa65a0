r"""The roofline: no kernel is faster than its arithmetic at peak, nor than its traffic at full bandwidth.

Everything here is a lower bound on time. Ignored: launch and drain, tiles and waves, cache hits (which could beat the
memory term for data that stays on chip), the pass that quantises activations, clocks under load. Source of the model:
Williams, Waterman and Patterson, *Roofline*, CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.formats import Format, as_format
from codesign_lib.specs.hardware import Chip
from codesign_lib.specs.hardware import chip as as_chip
from codesign_lib.specs.quantities import common_shape, not_negative, positive


@dataclass(frozen=True)
class Work:
    """What an operation asks of a chip: ``flops`` (a multiply-add is two), ``bytes`` moved to and from HBM, and
    ``exps``, exponentials (those of softmax are many enough to count).

    They broadcast against each other and are finite and at least 0, else ValueError; they are kept as read-only views,
    not copied. ``a + b`` is both one after the other, ``3 * a`` three times ``a``; an array repeats by element.

    >>> w = Work(flops=2e9, bytes=1e6)
    >>> float((w + 3 * w).flops), float(w.intensity)
    (8000000000.0, 2000.0)
    """

    flops: NDArray[np.float64]
    bytes: NDArray[np.float64]
    exps: NDArray[np.float64] = 0.0

    def __post_init__(self) -> None:
        flops, moved, exps = not_negative("Work", flops=self.flops, bytes=self.bytes, exps=self.exps)
        common_shape("Work", flops=flops, bytes=moved, **({"exps": exps} if exps.ndim else {}))
        for name, array in (("flops", flops), ("bytes", moved), ("exps", exps)):
            kept = array.view()
            kept.flags.writeable = False
            object.__setattr__(self, name, kept)

    __array_ufunc__ = None  # so that array * work asks Work, not every element

    def __add__(self, other: Work) -> Work:
        if not isinstance(other, Work):
            return NotImplemented
        for name in ("flops", "bytes", "exps"):
            common_shape("Work + Work", left=getattr(self, name), right=getattr(other, name))
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.exps + other.exps)

    def __mul__(self, times: ArrayLike) -> Work:
        (times,) = not_negative("Work", times=times)
        for name in ("flops", "bytes", "exps"):
            common_shape("Work", **{name: getattr(self, name)}, times=times)
        return Work(self.flops * times, self.bytes * times, self.exps * times)

    __rmul__ = __mul__

    @property
    def intensity(self) -> NDArray[np.float64]:
        """FLOPs a byte moved; infinite where nothing is moved, NaN where nothing is done either."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(self.flops, self.bytes)


def compute_s(work: Work, chip: Chip | str, fmt: Format | str) -> NDArray[np.float64]:
    """Seconds the arithmetic takes at the chip's dense peak in ``fmt``: ``flops / peak``."""
    return work.flops / as_chip(chip).peak_flops_per_s(fmt)


def memory_s(work: Work, chip: Chip | str) -> NDArray[np.float64]:
    """Seconds the traffic takes at the chip's full HBM bandwidth: ``bytes / bandwidth``."""
    return work.bytes / as_chip(chip).hbm_bytes_per_s


def exp_s(work: Work, chip: Chip | str) -> NDArray[np.float64]:
    """Seconds the exponentials take at the chip's rate: ``exps / exp_per_s``. A rate that is not public: ValueError.

    >>> one = Work(flops=0, bytes=0, exps=1e12)
    >>> round(float(exp_s(one, "gb200") / exp_s(one, "gb300")), 2)
    2.14
    """
    c = as_chip(chip)
    if c.exp_per_s is None:
        raise ValueError(f"{c.title} has no exp_per_s: its rate of exponentials is not public")
    return work.exps / c.exp_per_s


def time_s(work: Work, chip: Chip | str, fmt: Format | str) -> NDArray[np.float64]:
    r"""Seconds the work takes at least.

    .. math:: t = \max\left(\frac{\text{flops}}{P_\text{fmt}}, \frac{\text{bytes}}{B}, \frac{\text{exps}}{X}\right)

    ``fmt`` is the format the arithmetic runs in. The third roof is left out, and the bound stays one, where the work
    has no exponentials or the chip's rate X of them is not public. The shape is the broadcast shape of ``work``.
    Raises ValueError for an unknown chip or format and for a chip without that peak.

    >>> float(time_s(Work(flops=30e12, bytes=8e9), "gb300", "nvfp4"))
    0.002
    """
    bound = np.maximum(compute_s(work, chip, fmt), memory_s(work, chip))
    if as_chip(chip).exp_per_s is None or (work.exps.ndim == 0 and not work.exps):
        return bound
    return np.maximum(bound, exp_s(work, chip))


def fraction_of_bound(work: Work, measured_s: ArrayLike, chip: Chip | str, fmt: Format | str) -> NDArray[np.float64]:
    """Share of a measured time that the bound explains: ``time_s(work) / measured_s``, at most 1.

    A kernel faster than its bound does not exist: the count of FLOPs or bytes is wrong, the peak is another chip's or
    a sparse one, or the data never left the cache. So a share above 1 raises ValueError.

    >>> work = Work(flops=480e12, bytes=0)                    # 480 TFLOP/s reached on an H100
    >>> round(float(fraction_of_bound(work, 1.0, "h100_sxm", "bf16")), 3)
    0.485
    """
    (measured,) = positive("fraction_of_bound", measured_s=measured_s)
    bound = time_s(work, chip, fmt)
    common_shape("fraction_of_bound", work=bound, measured_s=measured)
    fraction = bound / measured
    # 1e-9: a time that equals the bound must not hang on the last bit
    if fraction.size and np.max(fraction) > 1 + 1e-9:
        raise ValueError(
            f"fraction_of_bound: {np.max(fraction):.6g} times the bound of {as_chip(chip).title} in "
            f"{as_format(fmt).title}; allowed: at most 1. Check the count of FLOPs and bytes, the peak (dense?), "
            "and whether the data stayed in cache"
        )
    return np.minimum(fraction, 1)


def ridge_flops_per_byte(chip: Chip | str, fmt: Format | str) -> float:
    """Intensity at which arithmetic and memory take equally long: ``peak / bandwidth``.

    >>> [ridge_flops_per_byte("gb300", f) for f in ("bf16", "fp8", "nvfp4")]
    [312.5, 625.0, 1875.0]
    """
    c = as_chip(chip)
    return c.peak_flops_per_s(fmt) / c.hbm_bytes_per_s


def intensity_limit(k: ArrayLike, n: ArrayLike, *, inputs: Format | str, outputs: Format | str) -> NDArray[np.float64]:
    r"""FLOP a byte of a k×n linear layer when the tokens are so many that reading the weights is free.

    .. math:: \lim_{m\to\infty} I = \frac{2\,n\,k}{b_a k + b_o n}

    The weights' format drops out. A square layer of size H with equal formats has ``H / b``.

    >>> float(intensity_limit(4096, 4096, inputs="bf16", outputs="bf16"))
    2048.0
    """
    k, n = positive("intensity_limit", k=k, n=n)
    common_shape("intensity_limit", k=k, n=n)
    return 2 * n * k / (as_format(inputs).bytes_per_element * k + as_format(outputs).bytes_per_element * n)


class MinSizes(NamedTuple):
    """Sizes below which no number of tokens makes a linear layer compute-bound. Not rounded up."""

    square: float
    k: float
    n: float


def min_sizes(chip: Chip | str, *, inputs: Format | str, outputs: Format | str, of_peak: float = 1.0) -> MinSizes:
    r"""Smallest layer that a chip can be busy with, from :py:func:`intensity_limit` at the ridge R of ``inputs``.

    .. math:: H = \tfrac{1}{2} R (b_a + b_o), \qquad K_{n\to\infty} = \tfrac{1}{2} R\, b_o,
              \qquad N_{k\to\infty} = \tfrac{1}{2} R\, b_a

    ``square``: n = k = H. ``k``: the least K however large N is, because writing the output costs ``b_o`` for every
    2K FLOP. ``n``: the least N however large K is. The arithmetic runs in ``inputs``. ``of_peak`` asks for that share
    of the peak (0 to 1), R being the lower by as much.

    >>> min_sizes("gb300", inputs="nvfp4", outputs="bf16")
    MinSizes(square=2402.34375, k=1875.0, n=527.34375)
    """
    ridge = _share("min_sizes", of_peak) * ridge_flops_per_byte(chip, inputs)
    a, o = as_format(inputs).bytes_per_element, as_format(outputs).bytes_per_element
    return MinSizes(square=ridge * (a + o) / 2, k=ridge * o / 2, n=ridge * a / 2)


def min_tokens(
    k: ArrayLike,
    n: ArrayLike,
    chip: Chip | str,
    *,
    inputs: Format | str,
    weights: Format | str,
    outputs: Format | str,
    of_peak: float = 1.0,
) -> NDArray[np.float64]:
    r"""Tokens from which a k×n linear layer is compute-bound; infinite where it never is. Not rounded up.

    .. math:: m^* = \frac{R\, b_w\, k n}{2 k n - R\,(b_a k + b_o n)} = \frac{R\, b_w}{2 - R\,(b_a / n + b_o / k)}

    R is the ridge of ``inputs``. Many tokens cannot save a layer whose :py:func:`intensity_limit` is below R. Just
    above it they are a great many; ``of_peak`` asks for that share of the peak (0 to 1), with R the lower by as much.

    >>> float(min_tokens(8192, 8192, "gb300", inputs="bf16", weights="bf16", outputs="bf16").round(1))
    338.3
    >>> float(min_tokens(512, 8192, "gb300", inputs="nvfp4", weights="nvfp4", outputs="bf16"))
    inf
    """
    k, n = positive("min_tokens", k=k, n=n)
    common_shape("min_tokens", k=k, n=n)
    ridge = _share("min_tokens", of_peak) * ridge_flops_per_byte(chip, inputs)
    a, w, o = (as_format(f).bytes_per_element for f in (inputs, weights, outputs))
    # What a token's FLOPs are worth beyond its own traffic; rounding noise is nothing, which divides to infinity.
    spare = 2 - ridge * (a / n + o / k)
    spare = np.where(spare > 4e-15, spare, 0)
    with np.errstate(divide="ignore"):
        return ridge * w / spare


def _share(subject: str, of_peak: float) -> float:
    (share,) = positive(subject, of_peak=of_peak)
    if share.ndim or share > 1:
        raise ValueError(f"{subject}: of_peak is {of_peak!r}; allowed: one number above 0, at most 1")
    return float(share)
