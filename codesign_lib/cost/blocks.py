"""Many shapes at once: a form computed block by block, so that what it needs in between stays in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

BLOCK = 16_384
"""Shapes computed at a time."""


def in_blocks(form: Callable[..., NDArray], *sizes: ArrayLike) -> NDArray[np.float64]:
    """``form`` applied to the broadcast sizes, at most ``BLOCK`` elements at a time, float64 in and out.

    >>> in_blocks(lambda m, n: m * n, [[1], [2]], [3, 4])
    array([[3., 4.],
           [6., 8.]])
    """
    with np.nditer(
        [*sizes, None],
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=[["readonly"]] * len(sizes) + [["writeonly", "allocate"]],
        op_dtypes=[np.float64] * (len(sizes) + 1),
        buffersize=BLOCK,
    ) as blocks:
        for *given, out in blocks:
            out[...] = form(*given)
        return blocks.operands[-1][()]
