r"""Rounding up is waste: tiles, waves, scale layouts, alignment, and what tensor parallelism leaves of a dimension.

Pure geometry, no seconds. A tensor core multiplies fixed tiles, a chip works on as many tiles at once as it has
streaming multiprocessors (SMs), and a memory descriptor takes rows of a fixed granule. Whatever is not a multiple is
rounded up, and the difference is computed, moved or reserved for nothing. Ignored: how long a tile takes, tiles that
share an SM, splitting along K (see :py:mod:`codesign_lib.cost.kernels`).

Sizes count elements; they are whole and at least 1, else ValueError. Everything broadcasts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.specs.formats import NVFP4, Format, as_format
from codesign_lib.specs.quantities import positive

SCALE_LAYOUT_ROWS = {"128x4": 128, "8x4": 8}
"""Rows to which each layout of NVFP4 block scales pads. Both pad a row's scales to 4."""
ALIGNMENTS = (16, 32, 64, 128, 256, 512)
"""Alignment classes, in elements."""
TMA_BYTES = 16
"""Row strides that a tensor memory descriptor accepts are multiples of this (CUDA C++ Programming Guide, TMA)."""


def whole(subject: str, **sizes: ArrayLike) -> list[NDArray[np.float64]]:
    """Each size as a float64 array, checked to be whole and at least 1.

    >>> whole("gemm_s", m=[1, 2.5])
    Traceback (most recent call last):
    ValueError: gemm_s: m is 2.5; allowed: whole numbers of at least 1
    """
    arrays = positive(subject, **sizes)
    for name, array in zip(sizes, arrays, strict=True):
        for part in np.nditer(array, flags=["external_loop", "buffered", "zerosize_ok"], buffersize=16_384):
            fractional = part != np.floor(part)
            if fractional.any():
                raise ValueError(f"{subject}: {name} is {part[fractional][0]}; allowed: whole numbers of at least 1")
    return arrays


def one_whole(subject: str, **value: ArrayLike) -> int:
    """A single whole number of at least 1, as an int.

    >>> one_whole("balance", n_stages=[2, 4])
    Traceback (most recent call last):
    ValueError: balance: n_stages is [2, 4]; allowed: one whole number of at least 1
    """
    ((name, given),) = value.items()
    (size,) = whole(subject, **value)
    if size.ndim:
        raise ValueError(f"{subject}: {name} is {given!r:.60}; allowed: one whole number of at least 1")
    return int(size)


def padded(size: ArrayLike, multiple: ArrayLike) -> NDArray[np.float64]:
    r"""The size rounded up: :math:`\lceil s/q \rceil\, q`.

    >>> padded([2880, 10922], 128)
    array([ 2944., 11008.])
    """
    size, multiple = whole("padded", size=size, multiple=multiple)
    return np.ceil(size / multiple) * multiple


def padding_waste(size: ArrayLike, multiple: ArrayLike) -> NDArray[np.float64]:
    r"""What rounding up adds, as a fraction of what was asked for: :math:`\lceil s/q \rceil\, q / s - 1`.

    >>> round(float(padding_waste(2880, 128)), 4)                # gpt-oss-120b's hidden size
    0.0222
    """
    return padded(size, multiple) / np.asarray(size, dtype=np.float64) - 1


def n_tiles(m: ArrayLike, n: ArrayLike, *, tile: tuple[int, int]) -> NDArray[np.float64]:
    r"""Output tiles of a×b that an m×n result takes: :math:`\lceil m/a \rceil \lceil n/b \rceil`.

    >>> float(n_tiles(1792, 1792, tile=(256, 128)))              # 98 of an A100's 108 SMs
    98.0
    """
    m, n = whole("n_tiles", m=m, n=n)
    rows, columns = _tile("n_tiles", tile)
    return np.ceil(m / rows) * np.ceil(n / columns)


def tile_efficiency(m: ArrayLike, n: ArrayLike, *, tile: tuple[int, int]) -> NDArray[np.float64]:
    r"""Share of the multiplied tiles that was asked for, 0…1.

    .. math:: \eta = \frac{m\,n}{\lceil m/a \rceil a\, \lceil n/b \rceil b}

    >>> tile_efficiency([1, 128, 129], 8192, tile=(128, 256)).round(3)
    array([0.008, 1.   , 0.504])
    """
    tiles = n_tiles(m, n, tile=tile)
    return np.asarray(m, dtype=np.float64) * np.asarray(n, dtype=np.float64) / (tiles * tile[0] * tile[1])


def n_waves(n_tiles: ArrayLike, n_sms: ArrayLike) -> NDArray[np.float64]:
    r"""Waves of one tile an SM: :math:`\lceil T/S \rceil`. The last wave lasts as long as a full one.

    >>> n_waves([108, 109], 108)                                 # A100: one tile more is one wave more
    array([1., 2.])
    """
    n_tiles, n_sms = whole("n_waves", n_tiles=n_tiles, n_sms=n_sms)
    return np.ceil(n_tiles / n_sms)


def wave_efficiency(n_tiles: ArrayLike, n_sms: ArrayLike) -> NDArray[np.float64]:
    r"""Share of the SMs' waves that holds a tile, 0…1: :math:`T / (S \lceil T/S \rceil)`.

    >>> wave_efficiency([108, 109, 216], 108).round(3)
    array([1.   , 0.505, 1.   ])
    """
    waves = n_waves(n_tiles, n_sms)
    return np.asarray(n_tiles, dtype=np.float64) / (waves * np.asarray(n_sms, dtype=np.float64))


def gemm_efficiency(m: ArrayLike, n: ArrayLike, *, tile: tuple[int, int], n_sms: ArrayLike) -> NDArray[np.float64]:
    r"""Share of the SMs' time that whole waves of one tile leave useful: tile efficiency × wave efficiency.

    .. math:: \eta = \frac{m\,n}{a\,b\,S\,\lceil \lceil m/a \rceil \lceil n/b \rceil / S \rceil}

    Against a size this is a sawtooth with its peaks at multiples of the tile.

    >>> gemm_efficiency([512, 513], 8192, tile=(128, 256), n_sms=152).round(3)
    array([0.842, 0.422])
    """
    tiles = n_tiles(m, n, tile=tile)
    return tile_efficiency(m, n, tile=tile) * wave_efficiency(tiles, n_sms)


def scale_bytes(rows: ArrayLike, k: ArrayLike, *, layout: str = "128x4") -> NDArray[np.float64]:
    r"""Bytes that the block scales of a rows×k NVFP4 matrix take, one byte a block of 16 along k, padded.

    .. math:: \lceil \text{rows}/r \rceil\, r \cdot \lceil \tfrac{k}{16}/4 \rceil\, 4

    r is 128 in layout ``128x4`` and 8 in ``8x4`` (for few tokens). ``k`` that is no multiple of 16 has no blocks:
    ValueError. Source: NVIDIA cuBLAS documentation, block scaling factors layout; TensorRT-LLM's 8x4 variant.

    >>> float(scale_bytes(1, 4096)), float(scale_bytes(1, 4096, layout="8x4"))
    (32768.0, 2048.0)
    """
    rows, k = whole("scale_bytes", rows=rows, k=k)
    if layout not in SCALE_LAYOUT_ROWS:
        raise ValueError(f"scale_bytes: layout is {layout!r}; allowed: {', '.join(SCALE_LAYOUT_ROWS)}")
    block = NVFP4.block_elements
    if np.any(k % block):
        raise ValueError(f"scale_bytes: k is {k[k % block != 0][0]:.0f}; allowed: multiples of {block}, NVFP4's block")
    return padded(rows, SCALE_LAYOUT_ROWS[layout]) * padded(k / block, 4)


def scale_waste(rows: ArrayLike, k: ArrayLike, *, layout: str = "128x4") -> NDArray[np.float64]:
    r"""What padding adds to the scales of a rows×k NVFP4 matrix, as a fraction: 0 when nothing is padded.

    .. math:: \frac{\lceil N/r \rceil\, r\, \lceil K/64 \rceil\, 64}{N K} - 1

    With layout ``128x4`` nothing is padded exactly when rows are a multiple of 128 and k is one of 64.

    >>> scale_waste([2880, 2944], 2880).round(4)
    array([0.0222, 0.    ])
    """
    padded_bytes = scale_bytes(rows, k, layout=layout)
    return padded_bytes * NVFP4.block_elements / (np.asarray(rows, np.float64) * np.asarray(k, np.float64)) - 1


def alignment(size: ArrayLike) -> NDArray[np.int64]:
    """Alignment class of a size in elements: the largest of ``ALIGNMENTS`` that divides it, 1 where not even 16 does.

    >>> alignment([8192, 2880, 464, 10922])
    array([512,  64,  16,   1])
    """
    (size,) = whole("alignment", size=size)
    found = np.ones(size.shape, dtype=np.int64)
    for q in ALIGNMENTS:
        found = np.where(size % q == 0, q, found)
    return found[()]


def row_alignment_bytes(k: ArrayLike, fmt: Format | str) -> NDArray[np.float64]:
    r"""The largest power of two, at most 1024, that divides the bytes of a row of k elements (payload, no scales).

    A row whose class is below :py:data:`TMA_BYTES` cannot be described to Hopper's and later copy engines, and
    libraries fall back to kernels of an older generation. 0.5 stands for a row that ends inside a byte.

    >>> row_alignment_bytes([588, 592, 4096, 2501], "bf16").tolist()
    [8.0, 32.0, 1024.0, 2.0]
    """
    (k,) = whole("row_alignment_bytes", k=k)
    row = k * (as_format(fmt).payload_bits / 8)
    found = np.full(k.shape, 0.5)
    for power in range(11):
        found = np.where(row % 2**power == 0, 2.0**power, found)
    return found[()]


def per_rank(size: ArrayLike, n_ranks: ArrayLike, *, multiple: ArrayLike = 1) -> NDArray[np.float64]:
    r"""What a dimension leaves each of ``n_ranks`` tensor-parallel ranks, rounded up to ``multiple``.

    .. math:: \lceil \lceil s/r \rceil / q \rceil\, q

    :py:func:`per_rank_waste` is what the rounding costs. More ranks than elements: ValueError.

    >>> per_rank(2048, [4, 6, 8], multiple=128)
    array([512., 384., 256.])
    """
    size, n_ranks, multiple = whole("per_rank", size=size, n_ranks=n_ranks, multiple=multiple)
    if np.any(n_ranks > size):
        raise ValueError(
            f"per_rank: {np.max(n_ranks):.0f} ranks for {np.min(size):.0f} elements; allowed: n_ranks ≤ size"
        )
    return padded(np.ceil(size / n_ranks), multiple)


def per_rank_waste(size: ArrayLike, n_ranks: ArrayLike, *, multiple: ArrayLike = 1) -> NDArray[np.float64]:
    """What all ranks hold together beyond the dimension, as a fraction of it.

    >>> per_rank_waste([1856, 2048], [4, 6], multiple=64).round(4)
    array([0.1034, 0.125 ])
    """
    rank = per_rank(size, n_ranks, multiple=multiple)
    return rank * np.asarray(n_ranks, np.float64) / np.asarray(size, np.float64) - 1


def draft_tokens(group: ArrayLike, *, rows: ArrayLike = 128) -> NDArray[np.float64]:
    r"""Draft tokens with which speculative decoding fills a tile of ``rows`` queries: :math:`D = \text{rows}/G - 1`.

    G (``group``) query heads share a key-value head and D + 1 tokens are verified at once, so G (D + 1) rows multiply
    one key. Not rounded; 0 where the group alone fills a tile. Source: NVIDIA, Co-designing AI models using
    speculative decoding for faster LLM inference, 2026-09-02.

    >>> draft_tokens([8, 16, 128]).tolist()
    [15.0, 7.0, 0.0]
    """
    group, rows = whole("draft_tokens", group=group, rows=rows)
    return np.maximum(rows / group - 1, 0)


def _tile(subject: str, tile: tuple[int, int]) -> tuple[float, float]:
    try:
        rows, columns = tile
    except (TypeError, ValueError):
        raise ValueError(f"{subject}: tile is {tile!r}; allowed: a pair (rows, columns)") from None
    rows, columns = whole(subject, tile_rows=rows, tile_columns=columns)
    if rows.ndim or columns.ndim:
        raise ValueError(f"{subject}: tile is {tile!r}; allowed: a pair of two single numbers")
    return float(rows), float(columns)
