r"""How to cut a prompt into chunks for a pipeline: of equal time, or the best there is.

A chunk behind a long prefix costs more than one at the start, because attention sees the prefix. Equal lengths then
leave stages waiting for the last chunks; chunks of **equal time** shrink as the prompt goes on.

On stages that all take the same time for a chunk (t₁ … t_M) the pipeline of :py:mod:`codesign_lib.serving.pipeline`
ends at

.. math:: \sum_i t_i + (P - 1) \max_j t_j

(Li et al., *TeraPipe*, arXiv:2102.07988), which is what :py:func:`best_chunks` minimises over all slicings. Unequal
stages: evaluate ``finish_s``, of which this is a bound for the mean stage only when all are alike.

Ignored: links (a constant more), memory that a longer chunk's activations take.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import one_whole
from codesign_lib.specs.quantities import not_negative

EXACT_GRANULES = 256
"""Up to so many granules ``best_chunks`` finds the optimum; beyond, it stops at ``GAP_FRACTION``."""
GAP_FRACTION = 1e-3
GRID = 2**15
MOST_GRANULES = 8192


def equal_time_chunks(
    n_tokens: int,
    first_tokens: int,
    *,
    quadratic_s: float,
    linear_s: float,
    smoothing: float = 1.0,
    multiple: int = 1,
    least_fraction: float = 0.0,
) -> NDArray[np.int64]:
    r"""Chunk lengths that all take as long as the first, when a prompt of x tokens takes :math:`a x^2 + b x`.

    .. math:: L = \frac{-(2 a p + b) + \sqrt{(2 a p + b)^2 + 4 a T_0}}{2 a}, \qquad T_0 = a L_0^2 + b L_0

    behind p tokens; a is ``quadratic_s`` a token², b ``linear_s`` a token, L₀ ``first_tokens``. ``smoothing`` σ mixes:
    (1 − σ) L₀ + σ L, so 0 gives equal lengths. A chunk is cut down to a multiple of ``multiple``, but to no less than
    one, nor than the first multiple from ``least_fraction`` of L₀ on; the last takes what is left. SGLang's dynamic
    chunking is σ = 0.75, a quarter, and multiples of 64 or the page.

    Sizes are single whole numbers, L₀ a multiple of ``multiple``, costs finite and at least 0, one of them above 0,
    fractions from 0 to 1, else ValueError. Only the ratio of the two costs matters. Source: SGLang, pipeline
    parallelism for long contexts (docs.sglang.io), 2026.

    >>> equal_time_chunks(3072, 1024, quadratic_s=1.0, linear_s=0.0)     # a square law: 1024 (√(i + 1) − √i)
    array([1024,  424,  325,  274,  241,  218,  201,  187,  175,    3])
    >>> equal_time_chunks(3072, 1024, quadratic_s=1.0, linear_s=0.0, smoothing=0.5, multiple=64)
    array([1024,  704,  640,  576,  128])
    """
    subject = "equal_time_chunks"
    n, first, step = (
        one_whole(subject, **{name: x})
        for name, x in (("n_tokens", n_tokens), ("first_tokens", first_tokens), ("multiple", multiple))
    )
    a, b = _law(subject, quadratic_s, linear_s)
    sigma, least = (float(x) for x in not_negative(subject, smoothing=smoothing, least_fraction=least_fraction))
    for name, x in (("smoothing", sigma), ("least_fraction", least)):
        if x > 1:
            raise ValueError(f"{subject}: {name} is {x:g}; allowed: 0 to 1")
    if first % step:
        raise ValueError(f"{subject}: first_tokens is {first:,}; allowed: a multiple of multiple, {step:,}")
    floor = max(math.ceil(least * first * (1 - 1e-12) / step), 1) * step
    target, sizes, at = a * first * first + b * first, [], 0
    while at < n:
        slope = 2 * a * at + b
        equal = 2 * target / (slope + math.sqrt(slope * slope + 4 * a * target))  # the same root, a = 0 included
        length = (1 - sigma) * first + sigma * equal
        length = max(int(length * (1 + 1e-12) / step) * step, floor)
        sizes.append(min(length, n - at))
        at += sizes[-1]
    return np.array(sizes, dtype=np.int64)


def fixed_chunks(n_tokens: int, chunk_tokens: int) -> NDArray[np.int64]:
    """Chunks of ``chunk_tokens``, the last with what is left. Single whole numbers of at least 1, else ValueError.

    >>> fixed_chunks(10_000, 4096)
    array([4096, 4096, 1808])
    """
    n, size = (
        one_whole("fixed_chunks", **{name: x}) for name, x in (("n_tokens", n_tokens), ("chunk_tokens", chunk_tokens))
    )
    return np.minimum(size, n - np.arange(0, n, size))


def even_time_chunks(n_tokens: int, n_chunks: int, *, quadratic_s: float, linear_s: float) -> NDArray[np.int64]:
    r"""So many chunks of equal time, when a prompt of x tokens takes :math:`a x^2 + b x`: cuts where it is i/M of all.

    Rounded to whole tokens, at least one each. Single whole numbers, no more chunks than tokens, costs as in
    :py:func:`equal_time_chunks`, else ValueError.

    >>> even_time_chunks(1000, 4, quadratic_s=1.0, linear_s=0.0)         # 1000 √(i/4)
    array([500, 207, 159, 134])
    """
    subject = "even_time_chunks"
    n, m = one_whole(subject, n_tokens=n_tokens), one_whole(subject, n_chunks=n_chunks)
    if m > n:
        raise ValueError(f"{subject}: n_chunks is {m}; allowed: at most n_tokens, {n}")
    a, b = _law(subject, quadratic_s, linear_s)
    c = np.arange(1, m + 1) / m * (a * n * n + b * n)
    # the positive root, a = 0 included; every cut leaves at least a token for each chunk before and behind it
    ends = np.round(2 * c / (b + np.sqrt(b * b + 4 * a * c))).astype(np.int64)
    i = np.arange(1, m + 1)
    ends = np.minimum(np.maximum.accumulate(ends - i), n - m) + i
    return np.diff(ends, prepend=0)


def _law(subject: str, quadratic_s: float, linear_s: float) -> tuple[float, float]:
    a, b = (float(x) for x in not_negative(subject, quadratic_s=quadratic_s, linear_s=linear_s))
    most = max(a, b)
    if most == 0:
        raise ValueError(f"{subject}: quadratic_s and linear_s are 0; allowed: at least one above 0")
    return a / most, b / most  # only their ratio matters, and squares must neither overflow nor vanish


class Chunks(NamedTuple):
    """A slicing: lengths in granules, when the last stage is done, and what no slicing can be faster than."""

    sizes: NDArray[np.int64]
    finish_s: float
    lower_bound_s: float


def best_chunks(cost_s: Callable[[NDArray, NDArray], ArrayLike], n_granules: int, n_stages: int) -> Chunks:
    r"""The slicing with the least :math:`\sum t_i + (P-1) \max_j t_j`, and a proven lower bound.

    ``cost_s(prefix, length)`` gives a stage's seconds for a chunk, both in granules and as float64 arrays that
    broadcast; it need not be monotone. The result is the optimum to ``EXACT_GRANULES`` granules (``lower_bound_s``
    equals ``finish_s`` but for rounding), and beyond within ``GAP_FRACTION`` of the bound.

    For a limit t on chunks, a shortest path over cuts gives f(t), the least sum. f falls as t grows, so limits
    between two that were tried cannot reach less than f(the larger) + (P − 1)·(the smaller); intervals that might
    hold something better are halved, the most promising first.

    Sizes are single whole numbers of at least 1, granules at most ``MOST_GRANULES`` (memory grows with the square),
    costs finite and at least 0, else ValueError. Source of the objective: TeraPipe, arXiv:2102.07988, section 3.3.

    >>> best_chunks(lambda p, n: n * p + n * (n + 1) / 2, 12, 3).finish_s   # token i costs i
    102.0
    >>> best_chunks(lambda p, n: n * p + n * (n + 1) / 2 + 4, 12, 3)     # and 4 more for every chunk
    Chunks(sizes=array([4, 2, 1, 1, 1, 1, 1, 1]), finish_s=142.0, lower_bound_s=142.0)
    """
    subject = "best_chunks"
    n, p = one_whole(subject, n_granules=n_granules), one_whole(subject, n_stages=n_stages)
    if n > MOST_GRANULES:
        raise ValueError(f"{subject}: n_granules is {n}; allowed: at most {MOST_GRANULES}, use coarser granules")
    cost = _triangle(subject, cost_s, n)
    exact = n <= EXACT_GRANULES
    if exact:
        limits = np.unique(cost[np.isfinite(cost)])
    else:  # a grid: sorting all costs would take longer than the search
        most = cost[np.isfinite(cost)].max()
        limits = np.append(0.0, np.geomspace(max(cost.min(), 1e-9 * most), most, GRID)) if most else np.zeros(1)
    return _search(cost, limits, p - 1, exact=exact)


def _search(cost: NDArray, limits: NDArray, weight: int, *, exact: bool) -> Chunks:
    gap = 0.0 if exact else GAP_FRACTION
    best, best_sizes = np.inf, np.zeros(0, np.int64)

    def tried(index: int) -> float:
        """f at that limit; remembers the best slicing seen."""
        nonlocal best, best_sizes
        total, sizes, longest = _shortest(cost, limits[index])
        if total + weight * longest < best:
            best, best_sizes = total + weight * longest, sizes
        return total

    def reach(low: int, high: int) -> float:
        """No slicing whose longest chunk is above one limit and at most the other ends before this."""
        return sums[high] + weight * limits[low + 1 if exact else low]

    low, high = _first_feasible(cost, limits), limits.size - 1
    sums = {at: tried(at) for at in (low, high)}
    # on a grid the least feasible limit may lie up to a step below what was tried
    bound = np.inf if exact or not low else sums[low] + weight * limits[low - 1]
    waiting = [(reach(low, high), low, high)] if high > low else []
    while waiting:
        least, low, high = heapq.heappop(waiting)
        if least >= best * (1 - gap) or high - low == 1:
            bound = min(bound, least)
            break
        middle = _between(limits, low, high)
        sums[middle] = tried(middle)
        for half in ((low, middle), (middle, high)):
            # between two neighbours of all limits there is nothing left to try
            if not (exact and half[1] - half[0] == 1):
                heapq.heappush(waiting, (reach(*half), *half))
    return Chunks(best_sizes, float(best), float(min(best, bound)))


def _between(limits: NDArray, low: int, high: int) -> int:
    """The limit half-way in value, or in rank where that is an end."""
    middle = int(np.searchsorted(limits, (limits[low] + limits[high]) / 2))
    return middle if low < middle < high else (low + high) // 2


def _first_feasible(cost: NDArray, limits: NDArray) -> int:
    """Rank of the least limit with which the prompt can be cut at all."""
    low, high = -1, limits.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if np.isfinite(_shortest(cost, limits[middle])[0]) else (middle, high)
    return high


def _shortest(cost: NDArray, limit: float) -> tuple[float, NDArray[np.int64], float]:
    """Least sum of chunks of at most ``limit`` each, their lengths, and the longest of their times."""
    n = len(cost)
    allowed = cost <= limit
    first = allowed.argmax(axis=1)
    gaps = np.count_nonzero(allowed, axis=1) < np.arange(1, n + 1) - first  # not every start from the first on
    reached = np.full(n + 1, np.inf)
    reached[0] = 0.0
    start = np.zeros(n + 1, dtype=np.int64)
    for end in range(1, n + 1):
        a = first[end - 1]
        row = reached[a:end] + cost[end - 1, a:end]
        if gaps[end - 1]:
            row = np.where(allowed[end - 1, a:end], row, np.inf)
        at = row.argmin()
        reached[end], start[end] = row[at], a + at
    if not np.isfinite(reached[n]):
        return np.inf, np.zeros(0, np.int64), np.inf
    ends = [n]
    while ends[-1]:
        ends.append(start[ends[-1]])
    ends = np.array(ends[::-1])
    return float(reached[n]), np.diff(ends), float(cost[ends[1:] - 1, ends[:-1]].max())


def _triangle(subject: str, cost_s: Callable[[NDArray, NDArray], ArrayLike], n: int) -> NDArray[np.float64]:
    """Cost by [end − 1, start] of every chunk, infinite where it would end before it starts."""
    if not callable(cost_s):
        raise ValueError(f"{subject}: cost_s is {cost_s!r:.60}; allowed: a function of (prefix, length) in granules")
    cost = np.full((n, n), np.inf)
    for first in range(0, n, rows := max(1, 2**18 // n)):
        end = np.arange(first + 1, min(first + rows, n) + 1, dtype=np.float64)[:, None]
        start = np.arange(end[-1, 0])
        real = start < end
        # what would end before it starts is asked as a chunk of one, and not used
        (some,) = not_negative(
            subject, cost_s=cost_s(np.broadcast_to(start, real.shape), np.where(real, end - start, 1))
        )
        try:
            some = np.broadcast_to(some, real.shape)
        except ValueError:
            raise ValueError(
                f"{subject}: cost_s gives shape {some.shape}; allowed: what broadcasts to its arguments', {real.shape}"
            ) from None
        cost[first : first + len(end), : len(start)] = np.where(real, some, np.inf)
    return cost
