"""Many layouts and batches at once: which points no other beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.quantities import as_floats


def pareto(x: ArrayLike, y: ArrayLike) -> NDArray[np.int64]:
    """Indices of the points that no other beats, more of both being better, in the order of growing ``x``.

    A point is beaten by one that is at least as good in both and better in one; of equal points the first stays. Exact:
    one sort and one running maximum. −∞ marks what does not count and is never kept. Raises ValueError for arrays that
    are not of one equal length, and for NaN.

    >>> pareto([1, 2, 3, 2], [5, 4, 1, 3]).tolist()
    [0, 1, 2]
    """
    x, y = as_floats("pareto", x=x, y=y)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"pareto: x of shape {x.shape} and y of shape {y.shape}; allowed: one axis, of equal length")
    order = np.lexsort((-y, -x))  # best x first, of equal ones the best y; a stable sort
    before = np.concatenate([[-np.inf], np.maximum.accumulate(y[order])[:-1]]) if x.size else y
    kept = order[(y[order] > before) & (x[order] > -np.inf)]
    return kept[::-1]
