"""Arrays in blocks: input checked once, then handed out as float32 blocks of the last axis, a few thousand at a time.

Pieces keep the working memory at a few MB whatever the size of the input, and inside a core's cache. The input is
never changed, and copied only piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

PIECE_ELEMENTS = 1 << 17


def as_real(subject: str, x: ArrayLike, name: str = "x") -> NDArray:
    """The input as an array of float16, bfloat16, float32 or float64 with at least one axis, not copied.

    Raises ValueError for anything else. uint8 is what packed codes are stored in, so no integer is taken for a value.

    >>> as_real("quantise", np.zeros(16, np.uint8))
    Traceback (most recent call last):
    ValueError: quantise: x is of dtype uint8; allowed: float16, bfloat16, float32, float64
    """
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{subject}: {name} is a masked array; allowed: arrays without a mask")
    try:
        x = np.asarray(x)
    except ValueError:  # a ragged list
        raise ValueError(f"{subject}: {name} is not rectangular; allowed: an array") from None
    if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"{subject}: {name} is of dtype {x.dtype}; allowed: float16, bfloat16, float32, float64")
    if x.ndim == 0:
        raise ValueError(f"{subject}: {name} is a single number; allowed: an array with at least one axis")
    return x


def is_number(value: object) -> bool:
    """Whether it is one real number, and no boolean.

    >>> [is_number(x) for x in (1, np.float32(0.5), True, "1", [1.0])]
    [True, True, False, False, False]
    """
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf"


def n_blocks(subject: str, x: NDArray, block: int, *, pad: bool) -> int:
    """Blocks along the last axis. A last axis that is no multiple raises ValueError unless ``pad`` fills with zeros."""
    if not isinstance(pad, bool | np.bool_):
        raise ValueError(f"{subject}: pad is {pad!r}; allowed: True, False")
    k = x.shape[-1]
    if k % block and not pad:
        raise ValueError(
            f"{subject}: the last axis of x holds {k} elements; allowed: a multiple of {block}, or pad=True"
        )
    return -(-k // block)


def amax(subject: str, x: NDArray) -> np.float32:
    """The largest magnitude as float32, 0 for an empty array.

    Raises ValueError that names the place of a NaN, an infinity, or a float64 beyond the range of float32.
    """
    largest = np.float32(0)
    for _, piece in pieces(x, 1):
        # both pass NaN on, and read a piece twice from the cache without writing its magnitudes anywhere
        largest = np.maximum(largest, np.maximum(piece.max(), -piece.min()))
    if np.isfinite(largest):
        return np.abs(np.float32(largest))  # of zeros it may be −0
    with np.errstate(over="ignore"):
        where = np.unravel_index(int(np.argmax(~np.isfinite(x.astype(np.float32)))), x.shape)
    index = ", ".join(str(int(i)) for i in where)
    raise ValueError(f"{subject}: x is {float(x[where]):g} at index ({index}); allowed: finite float32")


def pieces(x: NDArray, block: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (index of the first block, float32 array (n, block)) over the blocks of the last axis, in C order.

    A last block that is not full is filled with zeros. A contiguous float32 array is viewed, not copied: read only.
    """
    k, n_at_once = x.shape[-1], max(1, PIECE_ELEMENTS // block)
    if x.size == 0:
        return
    if k % block == 0 and x.flags.c_contiguous:
        flat = x.reshape(-1, block)
        for first in range(0, len(flat), n_at_once):
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, which amax has refused
                yield first, flat[first : first + n_at_once].astype(np.float32, copy=False)
        return
    leading, columns = x.shape[:-1], -(-k // block)
    n_rows, rows_at_once = prod(leading), max(1, n_at_once // columns)
    for row in range(0, n_rows, rows_at_once):
        # a tuple of index arrays gathers rows of any strides; a view reshaped to rows would copy all of it
        index = np.unravel_index(np.arange(row, min(row + rows_at_once, n_rows)), leading) if leading else (None,)
        for column in range(0, columns, n_at_once):
            part = x[(*index, slice(column * block, (column + n_at_once) * block))]
            filled = np.zeros((len(part), -(-part.shape[-1] // block) * block), dtype=np.float32)
            with np.errstate(over="ignore"):
                filled[:, : part.shape[-1]] = part
            yield row * columns + column, filled.reshape(-1, block)


def planes(piece: NDArray[np.float32]) -> NDArray[np.float32]:
    """Contiguous float32 (n, block) as a new array (block/4, 4n): row j holds elements 4j to 4j + 3 of every block.

    Short inner axes cost numpy more than the arithmetic on them; four neighbours move as one 16-byte item, and what
    follows runs along whole rows.
    """
    return piece.view(np.complex128).T.copy().view(np.float32)


def planes_amax(magnitudes: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest of each block, (n,), of non-negative :py:func:`planes`.

    Bits of non-negative floats are ordered like the floats, and integers have the faster maximum.
    """
    first, second, *rest = magnitudes.view(np.int32)
    fours = np.maximum(first, second)
    for row in rest:
        np.maximum(fours, row, out=fours)
    twos = np.ascontiguousarray(fours.view(np.complex64).reshape(-1, 2).T).view(np.int32)
    ones = np.maximum(*twos)
    return np.maximum(ones[::2], ones[1::2]).view(np.float32)


def block_amax(piece: NDArray[np.float32]) -> NDArray[np.float32]:
    """The largest magnitude of each row of contiguous float32 (n, block), block a multiple of 8.

    >>> block_amax(np.array([[1, -2] * 4, [3, 0] * 4], np.float32)).tolist()
    [2.0, 3.0]
    """
    moved = planes(piece)
    return planes_amax(np.abs(moved, out=moved))
