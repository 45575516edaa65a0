r"""What a benchmark score is worth: its standard error from the number of questions, and whether two differ.

A score p over n independent questions, answered once each, has the binomial standard error

.. math:: \sigma = \sqrt{p\,(1 - p)/n}

It holds which questions were drawn *and* the luck of one run. Two formats that answer the same questions share the
first, and a mean of several runs lowers the second, so for a difference :py:func:`difference_z` errs on the side of "no
difference seen". Where a card does not say how often it ran, once is assumed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.quantities import as_floats, common_shape, positive


def standard_error(score_fraction: ArrayLike, n_questions: ArrayLike) -> NDArray[np.float64]:
    """Binomial standard error of a score between 0 and 1, itself a fraction. 0 at a score of 0 or 1.

    >>> standard_error([0.73, 0.81], [30, 198]).round(3)                    # AIME, GPQA diamond
    array([0.081, 0.028])
    """
    p, n = _scores("standard_error", score_fraction=score_fraction), _counts("standard_error", n_questions)
    common_shape("standard_error", score_fraction=p, n_questions=n)
    return np.sqrt(p * (1 - p) / n)


def difference_z(base_fraction: ArrayLike, other_fraction: ArrayLike, n_questions: ArrayLike) -> NDArray[np.float64]:
    r"""How many standard errors ``other`` lies below ``base``, both over ``n_questions``, taken as independent.

    .. math:: z = \frac{p - p'}{\sqrt{\sigma^2 + \sigma'^2}}

    Below 2 in magnitude, chance is enough. NaN where both scores are exactly 0 or 1.

    >>> round(float(difference_z(22 / 29, 18 / 29, 29)), 2)      # "a recovery of 81.8 %": four questions of 29
    1.15
    """
    p = _scores("difference_z", base_fraction=base_fraction)
    q = _scores("difference_z", other_fraction=other_fraction)
    n = _counts("difference_z", n_questions)
    common_shape("difference_z", base_fraction=p, other_fraction=q, n_questions=n)
    spread = np.hypot(standard_error(p, n), standard_error(q, n))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(spread > 0, (p - q) / spread, np.nan)[()]


class Pooled(NamedTuple):
    """A mean of differences, its standard error, and in how many of those errors it differs from 0."""

    change: float
    error: float
    z: float
    n: int


def pooled(change: ArrayLike, error: ArrayLike) -> Pooled:
    r"""The mean of independent differences, each weighted by the inverse of its variance, and its standard error.

    .. math:: \bar\Delta = \frac{\sum_i \Delta_i/\sigma_i^2}{\sum_i 1/\sigma_i^2}, \qquad
              \bar\sigma = \Bigl(\sum_i 1/\sigma_i^2\Bigr)^{-1/2}

    An unweighted mean has the error of its smallest benchmark: 30 questions beside 12,032 hide a loss.

    >>> p = pooled([-0.008, 0.023], [0.005, 0.077])
    >>> f"{p.change:.4f} ± {p.error:.4f}"
    '-0.0079 ± 0.0050'
    """
    (change,), (error,) = as_floats("pooled", change=change), positive("pooled", error=error)
    if change.shape != error.shape or not change.size:
        raise ValueError(f"pooled: change has shape {change.shape}, error {error.shape}; allowed: equal, not empty")
    weight = error**-2.0
    mean, spread = float(np.sum(weight * change) / np.sum(weight)), float(np.sum(weight) ** -0.5)
    return Pooled(mean, spread, mean / spread, change.size)


def _scores(subject: str, **scores: ArrayLike) -> NDArray[np.float64]:
    ((name, _),) = scores.items()
    (p,) = as_floats(subject, **scores)
    if p.size and not (np.min(p) >= 0 and np.max(p) <= 1):
        raise ValueError(f"{subject}: {name} is {p[(p < 0) | (p > 1)].flat[0]}; allowed: 0 to 1")
    return p


def _counts(subject: str, n_questions: ArrayLike) -> NDArray[np.float64]:
    (n,) = positive(subject, n_questions=n_questions)
    if np.any(n != np.floor(n)):
        raise ValueError(f"{subject}: n_questions is {n[n != np.floor(n)].flat[0]}; allowed: whole numbers")
    return n
