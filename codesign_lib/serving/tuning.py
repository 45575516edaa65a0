"""Slicings for stages that differ: a search by the exact schedule, where no closed form helps.

:py:func:`codesign_lib.serving.slicing.best_chunks` is the best slicing when all stages are alike. With a layer more on
some of them, or long links, chunks of equal time wait for the longest stage, and slightly growing ones do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost.tiling import whole
from codesign_lib.serving.pipeline import first_token_s
from codesign_lib.specs.quantities import not_negative

STEPS = (-8, -4, -2, -1, 1, 2, 4, 8)
"""Granules by which a cut is moved."""
MOST_ROUNDS = 200


def tuned_chunks(
    cost_s: ArrayLike, begin: Iterable[ArrayLike], link_s: ArrayLike = 0.0
) -> tuple[NDArray[np.int64], float]:
    """The slicing with the earliest last chunk that a local search finds, in granules, and when that is.

    ``cost_s[stage, start, length − 1]`` are seconds of a chunk of so many granules behind so many (what would end
    behind the prompt is not looked at), ``link_s[link, length − 1]`` those of handing it on. From the best of the
    slicings ``begin`` it moves a cut, joins two chunks or halves one, whichever helps most, until nothing does. No
    proof, but never worse than any of ``begin``. Costs are finite and at least 0; slicings sum to the granules, else
    ValueError.

    >>> start, length = np.arange(12)[:, None], np.arange(1, 13)
    >>> one = length * start + length * (length + 1) / 2 + 4             # token i costs i, and a chunk 4
    >>> sizes, done_s = tuned_chunks(np.stack([one, one, one]), begin=[[12], [1] * 12])
    >>> done_s                                                           # 142 is the best there is
    142.0
    """
    (cost,), (link,) = not_negative("tuned_chunks", cost_s=cost_s), not_negative("tuned_chunks", link_s=link_s)
    if cost.ndim != 3 or cost.shape[1] != cost.shape[2]:
        raise ValueError(f"tuned_chunks: cost_s has shape {cost.shape}; allowed: [stage, start, length − 1]")
    n = cost.shape[1]
    try:
        link = np.broadcast_to(link, (len(cost) - 1, n))
    except ValueError:
        raise ValueError(
            f"tuned_chunks: link_s has shape {link.shape}; allowed: what broadcasts to {(len(cost) - 1, n)}"
        ) from None
    starts = [whole("tuned_chunks", begin=x)[0].astype(np.int64) for x in begin]
    for sizes in starts:
        if sizes.ndim != 1 or sizes.sum() != n:
            raise ValueError(
                f"tuned_chunks: begin holds {sizes.tolist()}; allowed: chunks that sum to {n}, the granules"
            )
    if not starts:
        raise ValueError("tuned_chunks: begin is empty; allowed: at least one slicing")
    took, best = min(((_finish(x[None], cost, link)[0], x) for x in starts), key=lambda found: found[0])
    for _ in range(MOST_ROUNDS):
        found = [
            (values.min(), near[values.argmin()]) for near in _near(best) for values in [_finish(near, cost, link)]
        ]
        least, sizes = min(found, key=lambda x: x[0])
        if least >= took * (1 - 1e-9):
            break
        took, best = least, sizes
    return best, float(took)


def _finish(sizes: NDArray, cost: NDArray, link: NDArray) -> NDArray[np.float64]:
    """Seconds of many slicings into equally many chunks, ``sizes[slicing, chunk]``."""
    start = np.cumsum(sizes, axis=1) - sizes
    return first_token_s(np.moveaxis(cost[:, start, sizes - 1], 0, 1), np.moveaxis(link[:, sizes - 1], 0, 1))


def _near(sizes: NDArray) -> Iterator[NDArray]:
    """Neighbours with as many chunks, one less, and one more."""
    m = sizes.size
    ends = np.cumsum(sizes)
    if m > 1:
        moved = np.repeat(ends[None], (m - 1) * len(STEPS), axis=0)
        moved[np.arange(len(moved)), np.repeat(np.arange(m - 1), len(STEPS))] += np.tile(STEPS, m - 1)
        near = np.diff(moved, axis=1, prepend=0)
        if (keep := (near > 0).all(axis=1)).any():
            yield near[keep]
        yield np.diff([np.delete(ends, i) for i in range(m - 1)], axis=1, prepend=0)
    halves = [np.insert(ends, i, ends[i] - sizes[i] // 2) for i in range(m) if sizes[i] > 1]
    if halves:
        yield np.diff(halves, axis=1, prepend=0)
