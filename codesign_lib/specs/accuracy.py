r"""How many digits of a benchmark's score are real: the error that a finite number of questions leaves.

Scores of others stand in ``data/accuracy.csv``, the number of questions of each benchmark in ``data/benchmarks.csv``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs import published
from codesign_lib.specs.quantities import as_floats, common_shape, positive


def standard_error(score_fraction: ArrayLike, n_questions: ArrayLike, *, n_runs: ArrayLike = 1) -> NDArray[np.float64]:
    r"""Binomial standard error of a score: the share p of n questions answered rightly, averaged over independent runs.

    .. math:: \sigma = \sqrt{\frac{p\,(1 - p)}{n}}

    ``n_runs`` divides the part that repeating removes by its square root, as if every answer were drawn anew: the least
    error that so many runs can leave. Broadcasts. A score outside [0, 1], questions or runs below 1 raise ValueError.

    >>> [f"{100 * standard_error(p, n):.1f}" for p, n in ((0.7, 30), (0.8, 198), (0.95, 1319), (0.84, 12_032))]
    ['8.4', '2.8', '0.6', '0.3']
    """
    subject = "standard_error"
    (p,) = as_floats(subject, score_fraction=score_fraction)
    n, runs = positive(subject, n_questions=n_questions, n_runs=n_runs)
    common_shape(subject, score_fraction=p, n_questions=n, n_runs=runs)
    if p.size and not (np.min(p) >= 0 and np.max(p) <= 1):
        bad = p[(p < 0) | (p > 1)].flat[0]
        raise ValueError(f"{subject}: score_fraction is {bad:g}; allowed: 0 to 1 (a share, not percent)")
    for name, value in (("n_questions", n), ("n_runs", runs)):
        if np.any(value < 1):
            raise ValueError(f"{subject}: {name} is {np.min(value):g}; allowed: at least 1")
    return np.sqrt(p * (1 - p) / (n * runs))


def n_questions(benchmark: str) -> int:
    """Questions of a benchmark, from ``data/benchmarks.csv``; ValueError that lists them for any other.

    >>> n_questions("gpqa_diamond")
    198
    """
    table = published.table("benchmarks")
    known = dict(zip(table["benchmark"].tolist(), table["n_questions"].tolist(), strict=True))
    if benchmark not in known:
        raise ValueError(f"n_questions: unknown benchmark {benchmark!r:.40}; known: {', '.join(known)}")
    return int(known[benchmark])


def difference_sigmas(a: ArrayLike, b: ArrayLike, n: ArrayLike) -> NDArray[np.float64]:
    r"""How many standard errors apart two scores on the same n questions are, taken as independent.

    .. math:: z = \frac{a - b}{\sqrt{\sigma_a^2 + \sigma_b^2}}

    Paired answers would show smaller differences; what is published are the scores alone. Two equal scores give 0.

    >>> round(float(difference_sigmas(0.91, 0.89, 30)), 2)       # AIME: two points are nothing
    0.26
    """
    spread = np.hypot(standard_error(a, n), standard_error(b, n))
    apart = np.subtract(a, b, dtype=np.float64)
    return np.divide(apart, spread, out=np.zeros(np.broadcast_shapes(apart.shape, spread.shape)), where=spread > 0)[()]
