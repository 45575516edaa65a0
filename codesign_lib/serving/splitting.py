r"""How to split layers over the stages of a pipeline: evenly, or so that the last chunk is done first.

A stage holds layers that follow each other. :py:func:`balance` makes the largest stage as small as can be, for any
one cost a layer: seconds of a full pipeline, or bytes of memory, which ask for different splits.
:py:func:`best_split` minimises when the last stage is done with the last chunk
(:py:func:`codesign_lib.serving.pipeline.finish_s`), which also depends on the order of the stages: when chunks grow,
a light first stage lets the others begin earlier, and a min–max balance does not see it.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving.pipeline import first_token_s
from codesign_lib.specs.quantities import not_negative

EXACT_SPLITS = 200_000
"""Up to so many splits ``best_split`` tries them all."""
BLOCK_CELLS = 2**20
STEPS = (-1, 0, 1)
"""Layers by which the local search moves cuts; longer steps found nothing better."""


class Split(NamedTuple):
    """Layers over stages: the first layer of each stage, and each stage's cost (with chunks: ``[stage, chunk]``)."""

    starts: NDArray[np.int64]
    stage_s: NDArray[np.float64]

    def sizes(self, n_layers: int) -> NDArray[np.int64]:
        """Layers of each stage.

        >>> balance(np.ones(61), 8).sizes(61)
        array([7, 7, 7, 8, 8, 8, 8, 8])
        """
        return np.diff(np.append(self.starts, n_layers))


def balance(costs: ArrayLike, n_stages: int, *, first_s: float = 0.0, last_s: float = 0.0) -> Split:
    """The split whose largest stage costs least; ``first_s`` and ``last_s`` come on top of the outer stages.

    ``costs[layer]`` is any cost that adds up: seconds, or bytes for a balance of memory. Embedding and output head
    are ``first_s`` and ``last_s``. Exact, by dynamic programming. Of the splits with the least maximum it is the most
    even (least sum of squares), and of those one with light stages first. Every stage holds at least one layer. Costs
    are finite and at least 0, ``n_stages`` whole and at most as many as layers, else ValueError.

    >>> split = balance(np.ones(61), 8)
    >>> split.starts, float(split.stage_s.max())
    (array([ 0,  7, 14, 21, 29, 37, 45, 53]), 8.0)
    >>> balance(np.ones(64), 8, last_s=2.0).sizes(64)             # a head worth two layers
    array([8, 8, 8, 8, 8, 8, 9, 7])
    """
    subject = "balance"
    (cost,) = not_negative(subject, costs=costs)
    if cost.ndim != 1:
        raise ValueError(f"{subject}: costs has shape {cost.shape}; allowed: one number a layer")
    first, last = not_negative(subject, first_s=first_s, last_s=last_s)
    if first.ndim or last.ndim:
        raise ValueError(f"{subject}: first_s and last_s have shapes {first.shape}, {last.shape}; allowed: one number")
    p, n = _stages(subject, n_stages, cost.size), cost.size
    total = np.concatenate([[0.0], np.cumsum(cost)])
    load = total[:, None] - total  # [end, start]: a stage of layers start … end − 1
    extra = np.zeros(p)
    extra[0] += first
    extra[-1] += last
    starts = _least_most(load, extra)
    return Split(starts, np.diff(np.append(total[starts], total[n])) + extra)


def _least_most(load: NDArray, extra: NDArray) -> NDArray[np.int64]:
    """First layers of the stages with the least maximum of ``load[end, start] + extra[stage]``.

    Then with the least sum of squares, then with light stages first.
    """
    n, p = len(load) - 1, len(extra)
    load = np.where(np.arange(n + 1) < np.arange(n + 1)[:, None], load, np.inf)
    own = {x: load + x for x in extra}
    most = own[extra[0]][:, 0]
    for x in extra[1:]:
        most = np.maximum(most, own[x]).min(axis=1)
    limit = most[n] * (1 + 1e-12)
    squares_of = {x: np.where(y <= limit, (y / (limit or 1.0)) ** 2, np.inf) for x, y in own.items()}
    squares, cut = squares_of[extra[0]][:, 0], np.zeros((p, n + 1), dtype=np.int64)
    for s in range(1, p):
        found = squares + squares_of[extra[s]]
        squares = found.min(axis=1)
        # of equals the first: the longest stage at the end, so light ones come first
        cut[s] = (found <= squares[:, None] * (1 + 1e-12)).argmax(axis=1)
    starts, end = np.zeros(p, dtype=np.int64), n
    for s in range(p - 1, 0, -1):
        starts[s] = end = cut[s, end]
    return starts


def best_split(cost_s: ArrayLike, n_stages: int, link_s: ArrayLike = 0.0) -> Split:
    """The split with the earliest last chunk, for ``cost_s[layer, chunk]``: embedding and head are layers of it too.

    All splits are tried where they are at most ``EXACT_SPLITS``. Otherwise a local search, which is no proof: it moves
    any two cuts, or all cuts of a stretch together, by a layer until nothing improves. It begins at the
    balance of all chunks, and where no stage keeps the prompt long by itself (the first chunk through the stages
    before, all chunks through the stage, the last chunk through those behind). How near it comes was tried on small
    cases with all splits beside it: of 1,000 with uneven layers 0.3 % came out later, by 0.8 % at most, of 400 with
    layers that differ up to a hundredfold 0.8 %, by 2.1 % at most. Of equals the most even, then light stages
    first.

    Costs are finite and at least 0, stages at most as many as layers, else ValueError; ``link_s`` broadcasts as in
    :py:func:`codesign_lib.serving.pipeline.finish_s`.

    >>> grows = np.ones((61, 1)) * (1 + 0.2 * np.arange(12))      # 61 equal layers, chunks that grow
    >>> best_split(grows, 4).sizes(61)
    array([13, 15, 16, 17])
    """
    subject = "best_split"
    (cost,) = not_negative(subject, cost_s=cost_s)
    if cost.ndim != 2 or 0 in cost.shape:
        raise ValueError(f"{subject}: cost_s has shape {cost.shape}; allowed: [layer, chunk], at least one of each")
    n, p = len(cost), _stages(subject, n_stages, len(cost))
    total = np.concatenate([np.zeros((1, cost.shape[1])), np.cumsum(cost, axis=0)])
    if math.comb(n - 1, p - 1) <= EXACT_SPLITS:
        cuts = np.array(list(combinations(range(1, n), p - 1)), dtype=np.int64)
        best = _best_of(cuts, total, link_s)[0]
    else:
        whole_s, first_s, last_s = total.sum(axis=1), total[:, 0], total[:, -1]
        alone = whole_s[:, None] - whole_s + first_s + (last_s[-1] - last_s)[:, None]
        begin = (_least_most(alone, np.zeros(p)), balance(cost.sum(axis=1), p).starts)
        best = min((_improved(s[1:], total, link_s) for s in begin), key=lambda found: found[1])[0]
    starts = np.concatenate([[0], best])
    return Split(starts, _stage_costs(best[None], total)[0])


def _improved(cuts: NDArray, total: NDArray, link_s: ArrayLike) -> tuple[NDArray, float]:
    """The cuts after moving any two of them, again and again, as long as the last chunk is done earlier."""
    n, k = len(total) - 1, len(cuts)
    at = np.arange(k)
    pairs = [
        a * (at == i) + b * (at == j)
        for i in range(k) for j in range(i, k) for a in STEPS for b in STEPS
    ]  # fmt: skip
    runs = [a * ((at >= i) & (at <= j)) for i in range(k) for j in range(i + 2, k) for a in STEPS]
    moves = np.unique(pairs + runs, axis=0)
    best = _finish(cuts[None], total, link_s)[0]
    while True:
        near = cuts + moves
        near = near[(np.diff(near, prepend=0, append=n) > 0).all(axis=1)]
        found, value = _best_of(near, total, link_s)
        if value >= best * (1 - 1e-12):
            return cuts, best
        cuts, best = found, value


def _best_of(cuts: NDArray, total: NDArray, link_s: ArrayLike) -> tuple[NDArray, float]:
    """The best of many rows of cuts; of equals the most even, then the one with light stages first."""
    block = max(1, BLOCK_CELLS // ((cuts.shape[1] + 1) * total.shape[1]))
    value = np.concatenate([_finish(cuts[i : i + block], total, link_s) for i in range(0, len(cuts), block)])
    equal = cuts[value <= value.min() * (1 + 1e-12)]
    squares = (_stage_costs(equal, total).sum(axis=2) ** 2).sum(axis=1)
    # cuts come in ascending order, and early cuts are light first stages
    return equal[(squares <= squares.min() * (1 + 1e-12)).argmax()], float(value.min())


def _finish(cuts: NDArray, total: NDArray, link_s: ArrayLike) -> NDArray:
    return first_token_s(_stage_costs(cuts, total), link_s)


def _stage_costs(cuts: NDArray, total: NDArray) -> NDArray:
    """[split, stage, chunk] from rows of cuts."""
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=(0, len(total) - 1))
    return np.maximum(np.diff(total[edges], axis=1), 0.0)


def _stages(subject: str, n_stages: int, n_layers: int) -> int:
    (stages,) = whole(subject, n_stages=n_stages)
    if stages.ndim or stages > n_layers:
        raise ValueError(
            f"{subject}: n_stages is {n_stages!r}; allowed: one whole number from 1 to {n_layers}, the layers"
        )
    return int(stages)
