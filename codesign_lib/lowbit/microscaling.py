r"""MXFP4, MXFP8 and FP8: what NVFP4 is compared with.

A microscaling (MX) block of 32 elements shares a power of two, :math:`x \approx v\, 2^e`, stored as the byte e + 127
(E8M0). The specification leaves the choice of e open and the field has four rules, each for a block whose largest
magnitude is A and an element whose largest value is :math:`V = 1.m \cdot 2^{p}` (6 = 1.5·2² for E2M1):

``floor``
    :math:`\lfloor \log_2 A \rfloor - p`: OCP v1.0, microxcaling, torchao's default. The largest may be clipped.
``rceil``
    :math:`\lceil \log_2 (A/V) \rceil`: ModelOpt, cuDNN, torchao RCEIL. Nothing is clipped.
``even``
    A rounded to the element's mantissa bits, then ``floor``: torchao EVEN, compressed-tensors, Quark. Clips little.
``ceil``
    :math:`\lceil \log_2 A \rceil - p`: torchao CEIL.

FP8 per tensor has one float32 scale, amax/448 for E4M3. NaN and infinity are refused, −0 keeps its sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks
from codesign_lib.lowbit.elements import E2M1, Element, element, encode, values
from codesign_lib.specs.formats import FP8, MXFP4, MXFP8

BLOCK = MXFP4.block_elements
RULES = ("floor", "rceil", "even", "ceil")
_BIAS = 127
_MANTISSA = np.int32(0x7FFFFF)


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """An array in MX or FP8.

    ``codes``: uint8, one an element, in the shape that went in, the last axis padded to whole blocks; ``scales``:
    E8M0 bytes (…, K/32) for MX, a float32 of shape () for FP8; ``element``: e2m1, e4m3 or e5m2.
    """

    codes: NDArray[np.uint8]
    scales: NDArray
    shape: tuple[int, ...]
    element: str

    @property
    def storage_bytes(self) -> float:
        """Bytes that the format takes for the padded elements, scales counted."""
        if self.scales.ndim == 0:
            return prod(self.codes.shape) * FP8.bytes_per_element + 4
        fmt = MXFP4 if self.element == E2M1.name else MXFP8
        return prod(self.codes.shape) * fmt.bytes_per_element


def mxfp4(x: ArrayLike, *, rule: str = "floor", pad: bool = False) -> Scaled:
    """E2M1 elements in blocks of 32 along the last axis.

    x, pad and refusals are as in :py:func:`codesign_lib.lowbit.nvfp4.quantise`.

    >>> q = mxfp4(np.full(32, 7.0))
    >>> q.scales.tolist(), dequantise(q)[0].item()                # 7 = 1.75·2², clipped to 6·2⁰
    ([127], 6.0)
    >>> dequantise(mxfp4(np.full(32, 7.0), rule="rceil"))[0].item()
    8.0
    """
    return _microscaled("mxfp4", x, E2M1, rule, pad)


def mxfp8(x: ArrayLike, *, element: str = "e4m3", rule: str = "floor", pad: bool = False) -> Scaled:
    """E4M3 or E5M2 elements in blocks of 32 along the last axis.

    >>> dequantise(mxfp8(np.full(32, 1.0625)))[0].item()
    1.0
    """
    return _microscaled("mxfp8", x, _eight_bits("mxfp8", element), rule, pad)


def fp8(x: ArrayLike, *, element: str = "e4m3") -> Scaled:
    r"""FP8 with one scale a tensor: :math:`S = \text{amax}/V`, codes of :math:`x/S`, both float32.

    An all-zero tensor has S = 1. Where amax/V would underflow, S is the smallest float32.

    >>> q = fp8(np.array([448.0, 1.0, -3.0]))
    >>> q.scales.item(), dequantise(q).tolist()
    (1.0, [448.0, 1.0, -3.0])
    """
    fmt = _eight_bits("fp8", element)
    x = blocks.as_real("fp8", x)
    amax = blocks.amax("fp8", x)
    scale = np.maximum(amax / np.float32(fmt.largest), np.finfo(np.float32).smallest_subnormal)
    if amax == 0:
        scale = np.float32(1)
    codes = np.empty(x.shape, dtype=np.uint8)
    flat = codes.reshape(-1)
    for first, piece in blocks.pieces(x, 1):
        flat[first : first + len(piece)] = encode(piece[:, 0] / scale, fmt)
    return Scaled(codes=codes, scales=np.asarray(scale, np.float32), shape=tuple(x.shape), element=fmt.name)


def dequantise(q: Scaled) -> NDArray[np.float32]:
    """The float32 values in the shape that went in; finite, as what would leave float32 is its largest."""
    if not isinstance(q, Scaled):
        raise ValueError(
            f"dequantise: q is of type {type(q).__name__}; allowed: a Scaled, as mxfp4, mxfp8 or fp8 makes it"
        )
    table = values(element(q.element))
    out = np.empty(q.codes.shape, dtype=np.float32)
    codes, flat = q.codes.reshape(-1), out.reshape(-1)
    for first in range(0, codes.size, blocks.PIECE_ELEMENTS):
        some = slice(first, first + blocks.PIECE_ELEMENTS)
        with np.errstate(over="ignore", under="ignore"):
            if q.scales.ndim == 0:
                np.multiply(table[codes[some]], q.scales, out=flat[some])
            else:
                part = slice(first // BLOCK, (first + blocks.PIECE_ELEMENTS) // BLOCK)
                exponents = q.scales.reshape(-1)[part, None].astype(np.int32) - _BIAS
                np.ldexp(table[codes[some]].reshape(-1, BLOCK), exponents, out=flat[some].reshape(-1, BLOCK))
        largest = np.finfo(np.float32).max
        np.clip(flat[some], -largest, largest, out=flat[some])
    return out if q.shape[-1] == out.shape[-1] else np.ascontiguousarray(out[..., : q.shape[-1]])


def block_exponents(block_amax: NDArray[np.float32], fmt: Element, rule: str) -> NDArray[np.uint8]:
    """E8M0 byte of each block by the rule named, from 0 (2^−127, also for a zero block) to 254.

    >>> block_exponents(np.array([4.0, 6.0, 7.0, 7.9], np.float32), E2M1, "even").tolist()
    [127, 127, 128, 128]
    """
    _check_rule("block_exponents", rule)
    block_amax = np.asarray(block_amax, dtype=np.float32)
    if rule == "rceil":
        ideal = (block_amax / np.float32(fmt.largest)).view(np.int32)
        exponent = ideal >> 23
        # a subnormal lies below 2^-126, and below the smallest scale, 2^-127, in the lower half
        exponent = exponent + ((ideal & _MANTISSA) > np.where(exponent == 0, 1 << 22, 0))
    else:
        bits = block_amax.view(np.int32)
        if rule == "even":  # half of the last mantissa bit that the element keeps; a carry moves the exponent
            bits = bits + np.int32(1 << (22 - fmt.n_mantissa_bits))
        exponent = (bits >> 23) + ((bits & _MANTISSA > 0) if rule == "ceil" else 0) - fmt.largest_exponent
    return np.clip(exponent, 0, 254).astype(np.uint8)


def _microscaled(subject: str, x: ArrayLike, fmt: Element, rule: str, pad: bool) -> Scaled:
    _check_rule(subject, rule)
    x = blocks.as_real(subject, x)
    columns = blocks.n_blocks(subject, x, BLOCK, pad=pad)
    blocks.amax(subject, x)
    codes = np.empty((*x.shape[:-1], columns * BLOCK), dtype=np.uint8)
    scales = np.empty((*x.shape[:-1], columns), dtype=np.uint8)
    flat_codes, flat_scales = codes.reshape(-1, BLOCK), scales.reshape(-1)
    for first, piece in blocks.pieces(x, BLOCK):
        part = slice(first, first + len(piece))
        flat_scales[part] = block_exponents(blocks.block_amax(piece), fmt, rule)
        # exact: only the exponent changes
        y = np.ldexp(piece, _BIAS - flat_scales[part, None].astype(np.int32))
        flat_codes[part] = encode(y, fmt)
    return Scaled(codes=codes, scales=scales, shape=tuple(x.shape), element=fmt.name)


def _check_rule(subject: str, rule: object) -> None:
    if rule not in RULES:
        raise ValueError(f"{subject}: rule is {rule!r}; allowed: {', '.join(RULES)}")


def _eight_bits(subject: str, name: str) -> Element:
    fmt = element(name)
    if fmt.n_bits != 8:
        raise ValueError(f"{subject}: element is {name!r}; allowed: e4m3, e5m2")
    return fmt
