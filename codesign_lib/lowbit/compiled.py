"""NVFP4 by compiled loops: the bits of :py:mod:`codesign_lib.lowbit.nvfp4`, faster where numba is installed.

numba makes one pass of what numpy does in a dozen. The checks, the global scale and the block scales are shared, and
so is each variant's order of operations, as a table: what the elements of a block are divided or multiplied by, for
each E4M3 code. The first call in a process compiles, which takes seconds.

numba keeps to IEEE arithmetic unless told otherwise (``fastmath``): no reciprocal for a division, no fused product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks
from codesign_lib.lowbit.elements import E4M3, values
from codesign_lib.lowbit.nvfp4 import BLOCK, Quantised, checked_amax
from codesign_lib.lowbit.variants import variant as variant_named

_F32_MAX = np.finfo(np.float32).max


def quantise(x: ArrayLike, *, variant: str = "modelopt", pad: bool = False, amax: float | None = None) -> Quantised:
    """:py:func:`codesign_lib.lowbit.nvfp4.quantise`, compiled: the same arguments, refusals and bits, every variant.

    Raises ModuleNotFoundError where numba is not installed.

    >>> quantise(np.full(16, 3.0)).scales.tolist()      # doctest: +SKIP
    [126]
    """
    largest_of_blocks, encode, _ = _kernels()
    x = blocks.as_real("quantise", x)
    shape = (*x.shape[:-1], blocks.n_blocks("quantise", x, BLOCK, pad=pad))
    policy = variant_named(variant)
    scales = np.empty(shape, dtype=np.uint8)
    packed = np.empty((*shape[:-1], shape[-1] * BLOCK // 2), dtype=np.uint8)
    by_block, flat_scales = packed.reshape(-1, BLOCK // 2), scales.reshape(-1)
    # the largest of each block, 4 bytes, waits where the block's codes, 8 bytes, will be
    block_amax = packed.reshape(-1).view(np.float32)[: scales.size]
    for first, piece in blocks.pieces(x, BLOCK):
        largest_of_blocks(piece.view(np.int32), block_amax[first : first + len(piece)].view(np.int32))
    largest = block_amax.max(initial=0)
    if not np.isfinite(largest):
        blocks.amax("quantise", x)  # says where
    g = policy.globals(largest if amax is None else checked_amax(amax, zero=largest == 0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for first in range(0, len(block_amax), blocks.PIECE_ELEMENTS // 4):
            part = slice(first, first + blocks.PIECE_ELEMENTS // 4)
            flat_scales[part] = policy.scale_codes(block_amax[part], g)
        operand, multiplies = policy.operand(values(E4M3), g), policy.multiplier is not None
        for first, piece in blocks.pieces(x, BLOCK):
            part, codes = slice(first, first + len(piece)), np.empty(piece.shape, dtype=np.uint8)
            encode(piece, flat_scales[part], operand, multiplies, policy.negative_zero, codes, by_block[part])
    return Quantised(
        packed=packed,
        scales=scales,
        global_scale=float(g.decode_scale),
        amax=float(g.amax),
        shape=tuple(x.shape),
        variant=policy.name,
    )


def dequantise(q: Quantised) -> NDArray[np.float32]:
    """:py:func:`codesign_lib.lowbit.nvfp4.dequantise`, compiled: the same values to the bit, every variant.

    Raises ModuleNotFoundError where numba is not installed.

    >>> dequantise(quantise(np.full(16, 3.0)))[:2].tolist()     # doctest: +SKIP
    [3.0, 3.0]
    """
    decode = _kernels()[2]
    policy = variant_named(q.variant)
    out = np.empty((*q.packed.shape[:-1], 2 * q.packed.shape[-1]), dtype=np.float32)
    steps = policy.steps(np.arange(0x7F, dtype=np.uint8), q.globals())  # Quantised has no scale code beyond
    with np.errstate(over="ignore", under="ignore"):
        packed, scales = q.packed.reshape(-1, BLOCK // 2), q.scales.reshape(-1)
        decode(packed, scales, steps, policy.signed_zero_value, policy.bfloat16, _F32_MAX, out.reshape(-1, BLOCK))
    return out if q.shape[-1] == out.shape[-1] else np.ascontiguousarray(out[..., : q.shape[-1]])


@cache
def _kernels() -> tuple[Callable[..., None], ...]:
    try:
        from numba import njit
    except ModuleNotFoundError as missing:
        if missing.name != "numba":
            raise
        reason = "lowbit.compiled needs numba: pip install numba; lowbit.nvfp4 has the same functions without it"
        raise ModuleNotFoundError(reason, name="numba") from None
    compiled = njit(error_model="numpy", nogil=True)  # which divides by zero as numpy does
    return compiled(_largest_of_blocks), compiled(_encode), compiled(_decode)


# Inner loops run to a width that is read from the array: LLVM unrolls a loop of 16, and finds no vectors in it then.
def _largest_of_blocks(bits, out):  # bits of non-negative floats are ordered like the floats
    n, width = bits.shape
    for i in range(n):
        largest = np.int32(0)
        for j in range(width):
            largest = max(largest, bits[i, j] & np.int32(0x7FFFFFFF))
        out[i] = largest


def _encode(x, scales, operand, multiplies, negative_zero, codes, packed):
    n, width = x.shape
    for i in range(n):
        by, row, row_codes = operand[scales[i]], x[i], codes[i]
        for j in range(width):
            y = row[j] * by if multiplies else row[j] / by
            negative = np.float32(y).view(np.int32) < 0 if negative_zero else y < np.float32(0)
            y = abs(y)
            code = np.int32(y > np.float32(0.25)) + np.int32(y >= np.float32(0.75)) + np.int32(y > np.float32(1.25))
            code += np.int32(y >= np.float32(1.75)) + np.int32(y > np.float32(2.5)) + np.int32(y >= np.float32(3.5))
            row_codes[j] = code + np.int32(y > np.float32(5)) + np.int32(8) * np.int32(negative)
    two, flat = codes.reshape(-1).view(np.uint16), packed.reshape(-1)  # even + 256·odd
    for j in range(len(two)):
        flat[j] = np.uint8(two[j] | (two[j] >> np.uint16(4)))


def _decode(packed, scales, steps, signed_zero, bfloat16, largest, out):
    n, width = out.shape
    rows = 128  # codes at once, one a byte
    two = np.empty(rows * (width // 2), np.uint16)
    codes = two.view(np.uint8).reshape(rows, width)
    for first in range(0, n, rows):
        m = min(rows, n - first)
        flat = packed[first : first + m].reshape(-1)
        for j in range(len(flat)):
            byte = np.uint16(flat[j])
            two[j] = (byte | (byte << np.uint16(4))) & np.uint16(0x0F0F)
        for i in range(m):
            step, row, row_out = steps[scales[first + i]], codes[i], out[first + i]
            for j in range(width):
                code = np.int32(row[j])
                code = code if signed_zero or code != np.int32(8) else np.int32(0)
                v = code & np.int32(7)
                # from 1 on, the code's bits are those of a float32 but for the bias; below are 0 and 0.5
                bits = (v << np.int32(22)) + np.int32(0x3F000000) if v > np.int32(1) else v * np.int32(0x3F000000)
                value = np.int32(bits | ((code & np.int32(8)) << np.int32(28))).view(np.float32) * step
                if bfloat16:
                    bits = np.float32(value).view(np.int32)
                    bits += np.int32(0x7FFF) + ((bits >> np.int32(16)) & np.int32(1))
                    value = np.int32(bits & np.int32(-0x10000)).view(np.float32)
                row_out[j] = min(max(value, -largest), largest)
