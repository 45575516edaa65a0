r"""A mixture of experts as work: which experts a batch wakes, what reading them costs, and who is busiest.

Decoding reads *distinct* experts: charging all of them gives more bytes than the chip can move, charging one set a
token many more. Three ways to route m tokens to c of E experts each, by name:

* ``balanced``: every expert gets the same share, :math:`\min(E, mc)` are woken: how kernels are benchmarked;
* ``random``: each token picks at random, :math:`E (1 - (1 - c/E)^m)`;
* ``skewed``: the load of an expert is a draw from the density :math:`\propto x^{-\alpha}` on [1, 0.8 m] (on
  [0.01, 2] while mc ≤ E), scaled to mc in all and rounded: how the measured tables are skewed. Fewer experts are
  woken, and the GPU with the favourites makes all others wait.

Ignored: the router (a linear layer), dispatch and combine across GPUs (:py:mod:`codesign_lib.cost.collectives`),
activation functions.
"""

from __future__ import annotations

from functools import partial
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.blocks import in_blocks
from codesign_lib.cost.experts import active_experts
from codesign_lib.cost.roofline import Work
from codesign_lib.cost.tiling import whole
from codesign_lib.specs.formats import BF16, Format, as_format
from codesign_lib.specs.quantities import common_shape, positive

ROUTINGS = ("balanced", "random", "skewed")
NEAR = 8
SKEW = 1.2
"""Exponent α of ``skewed`` routing, that of the measured tables' stronger skew (the other is 1.01)."""


def woken(
    m: ArrayLike, *, n_experts: ArrayLike, n_chosen: ArrayLike, routing: str = "balanced", skew: float = SKEW
) -> NDArray[np.float64]:
    r"""Distinct experts of a layer that m tokens wake, by ``routing``.

    Skewed, with x the loads and P their chance to be at least so large: experts whose load rounds to a token or more,
    and pairs that rounding loses, which are given to experts of their own,

    .. math:: E\,P(x \ge \tfrac{1}{2}) + \left(mc - E \sum_{j \ge 1} P(x \ge j - \tfrac{1}{2})\right)^+

    at most what balanced routing wakes. The law of loads changes at mc = E, and with it the result: 117 of 256 experts
    at 32 tokens, 164 at 33 (measured times jump there too). Sizes broadcast and are whole and at least 1, ``n_chosen``
    at most ``n_experts``, 1 < ``skew`` < 2, else ValueError.

    >>> [round(float(woken(34, n_experts=256, n_chosen=8, routing=r)), 1) for r in ROUTINGS]
    [256.0, 169.0, 165.8]
    """
    m, e, c = _sizes("moe.woken", m, n_experts, n_chosen, routing, ROUTINGS)
    _check_skew("moe.woken", skew)
    if routing == "balanced":
        return np.minimum(e, m * c)
    if routing == "random":
        return active_experts(m, n_experts=e, n_chosen=c)
    return in_blocks(partial(_woken_skewed, skew=skew), m, e, c)


def _woken_skewed(m: NDArray, e: NDArray, c: NDArray, *, skew: float) -> NDArray:
    low, high, mean, _ = _power_law(m, e, c, skew)
    scale = m * c / (e * mean)
    high = high * scale
    # chances are differences of powers, which fall with the load
    first, last = (low * scale) ** (1 - skew), high ** (1 - skew)

    def chance(least: float) -> NDArray:
        return (np.clip(least ** (1 - skew), last, first) - last) / (first - last)

    # the sum's far terms are midpoints of an integral
    beyond = np.clip(float(NEAR) ** (1 - skew), last, first)
    mass = (skew - 1) * (high * last - beyond ** ((2 - skew) / (1 - skew))) / ((2 - skew) * (first - last))
    rounded = sum(chance(j - 0.5) for j in range(1, NEAR + 1)) + mass - NEAR * chance(NEAR)
    awake = e * chance(0.5) + np.maximum(m * c - e * rounded, 0)
    return np.minimum(np.maximum(awake, c), np.minimum(e, m * c))


def busiest_share(
    m: ArrayLike,
    *,
    n_experts: ArrayLike,
    n_chosen: ArrayLike,
    n_ranks: ArrayLike,
    routing: str = "balanced",
    skew: float = SKEW,
) -> NDArray[np.float64]:
    r"""Token-expert pairs on the busiest of ``n_ranks`` GPUs over the mean: 1 when balanced.

    .. math:: e^{\sigma z_R - \sigma^2 / 2}, \qquad \sigma^2 = \ln\left(1 + v^2 R / E\right)

    for ranks of E/R experts whose loads vary by v (standard deviation over mean), their sum taken as log-normal:
    :math:`z_R` is the largest of R normal draws, Blom's :math:`\Phi^{-1}\left(\frac{R - 3/8}{R + 1/4}\right)`. At most
    what the busiest of E experts has, at most R, and at most every token on every expert of the rank. Within 20 % of
    what draws from the law give, but up to 45 % above at two to four experts a rank; single draws vary by more. Where
    the law of loads changes, at mc = E, the share falls: 256 experts on 32 ranks, 2.55 at 32 tokens, 1.87 at 33. Sizes
    as in :py:func:`woken`; experts that the ranks do not divide: ValueError.

    >>> sizes = dict(n_experts=256, n_chosen=8, routing="skewed")
    >>> busiest_share(16_384, n_ranks=[1, 8, 32], **sizes).round(2)
    array([1.  , 1.81, 4.14])
    """
    subject = "moe.busiest_share"
    m, e, c = _sizes(subject, m, n_experts, n_chosen, routing, ("balanced", "skewed"))
    _check_skew(subject, skew)
    (ranks,) = whole(subject, n_ranks=n_ranks)
    common_shape(subject, m=m, n_experts=e, n_chosen=c, n_ranks=ranks)
    if np.any(e % ranks):
        bad = np.broadcast_to(e % ranks != 0, np.broadcast_shapes(e.shape, ranks.shape))
        one, n = (np.broadcast_to(x, bad.shape)[bad][0] for x in (e, ranks))
        raise ValueError(f"{subject}: n_ranks is {n:g}; allowed: a divisor of n_experts, {one:g}")
    if routing == "balanced":
        return np.ones(np.broadcast_shapes(m.shape, e.shape, c.shape, ranks.shape))[()]
    few, where = np.unique(ranks, return_inverse=True)
    z = np.array([NormalDist().inv_cdf((r - 3 / 8) / (r + 1 / 4)) if r > 1 else 0.0 for r in few])[where]
    return in_blocks(partial(_busiest_skewed, skew=skew), m, e, c, ranks, z.reshape(ranks.shape))


def _busiest_skewed(m: NDArray, e: NDArray, c: NDArray, ranks: NDArray, z: NDArray, *, skew: float) -> NDArray:
    low, high, mean, square = _power_law(m, e, c, skew)
    largest = (low ** (1 - skew) + e / (e + 1) * (high ** (1 - skew) - low ** (1 - skew))) ** (1 / (1 - skew))
    variance = np.log1p(np.maximum(square / mean**2 - 1, 0) * ranks / e)
    share = np.where(ranks > 1, np.exp(np.sqrt(variance) * z - variance / 2), 1.0)
    share = np.minimum(share, np.maximum(largest / mean, 1))
    return np.minimum(np.maximum(share, 1), np.minimum(ranks, np.maximum(e / c, 1)))


def _sizes(subject: str, m, n_experts, n_chosen, routing: str, allowed: tuple[str, ...]) -> list[NDArray]:
    if routing not in allowed:
        raise ValueError(f"{subject}: routing is {routing!r}; allowed: {', '.join(allowed)}")
    m, e, c = whole(subject, m=m, n_experts=n_experts, n_chosen=n_chosen)
    common_shape(subject, m=m, n_experts=e, n_chosen=c)
    if np.any(c > e):
        chosen, of = (x[c > e][0] for x in np.broadcast_arrays(c, e))
        raise ValueError(f"{subject}: n_chosen is {chosen:g}; allowed: at most n_experts, {of:g}")
    return [m, e, c]


def _check_skew(subject: str, skew: float) -> None:
    (number,) = positive(subject, skew=skew)
    if number.ndim or not 1 < number < 2:
        raise ValueError(f"{subject}: skew is {skew!r}; allowed: one number above 1 and below 2")


def _power_law(m: NDArray, e: NDArray, c: NDArray, skew: float) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Least and greatest load, mean and mean square of the truncated power law, before scaling."""
    few = m * c <= e
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * m, 1 + 1e-6))
    weight, mean, square = ((high**x - np.where(few, 0.01**x, 1.0)) / x for x in (1 - skew, 2 - skew, 3 - skew))
    return low, high, mean / weight, square / weight


def experts(
    n_pairs: ArrayLike,
    n_woken: ArrayLike,
    *,
    d_model: ArrayLike,
    d_expert: ArrayLike,
    gated: bool = True,
    inputs: Format | str = BF16,
    weights: Format | str = BF16,
    outputs: Format | str = BF16,
) -> Work:
    r"""``n_pairs`` token-expert pairs through ``n_woken`` experts of two (gated: three) matrices H × I.

    .. math:: \text{flops} = 2 g H I\,\text{pairs}, \quad
              \text{bytes} = b_w\,g H I\,\text{woken} + \text{pairs}\,(b_a (H + I) + b_o (H + I))

    g = 3 when gated, else 2. Up and gate are one product, so a pair reads H and writes I, then reads I and writes H.
    With experts in a latent size, ``d_model`` is that size. Sizes broadcast, finite and above 0, else ValueError.

    >>> w = experts(256, 163, d_model=7168, d_expert=2048, weights="nvfp4", inputs="nvfp4")
    >>> round(float(w.bytes) / 163 / 1e6, 2)                     # MB an expert
    24.81
    """
    sizes = dict(n_pairs=n_pairs, n_woken=n_woken, d_model=d_model, d_expert=d_expert)
    pairs, awake, h, i = positive("moe.experts", **sizes)
    matrix = (3 if gated else 2) * h * i
    a, w, o = (as_format(f).bytes_per_element for f in (inputs, weights, outputs))
    return Work(2 * matrix * pairs, w * matrix * awake + pairs * (a + o) * (h + i))
