r"""NVFP4 to the bit: 4-bit floats in blocks of 16 that share an 8-bit float scale, and one FP32 scale a tensor.

.. math:: x \approx v\, s\, G, \qquad G = \frac{\text{amax}}{6 \cdot 448}, \qquad
          s = \mathrm{E4M3}\!\left(\frac{\text{block amax}}{6\,G}\right), \qquad
          v = \mathrm{E2M1}\!\left(\frac{x}{s\,G}\right)

E2M1 holds ±{0, 0.5, 1, 1.5, 2, 3, 4, 6}; rounding is to the nearest, ties to the even code, and what is beyond 6
becomes 6. Blocks run along the last axis. The element is divided by the scale *as stored*, rounded to E4M3.
:py:mod:`codesign_lib.lowbit.variants` holds the implementations whose order of operations can be followed to the bit.

Policies, in every variant: NaN and infinity are refused; an all-zero tensor and an all-zero block stay zeros (G is 1
for the former); the exact −0 becomes 0 except in torchao, which keeps its sign, while a negative number that rounds to
zero becomes −0 (code 8; decoded as +0 in modelopt); decoded values are finite. float64 input is rounded to float32.

Below an amax of 7.9e-36 1/G leaves float32, and what follows is the packages': modelopt keeps its error down to 1e-41;
compressed_tensors stores zeros; transformer_engine and fouroversix lose all but the largest elements, then those too;
torchao makes every element but 0 one of ±6 steps, which is an error larger than the signal; vllm does so below 1.7e-38,
and stores zeros below 1.7e-41.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks
from codesign_lib.lowbit.elements import E4M3, values
from codesign_lib.lowbit.variants import Globals, Variant
from codesign_lib.lowbit.variants import variant as variant_named
from codesign_lib.specs.formats import NVFP4

BLOCK = NVFP4.block_elements
_F32_MAX, _F32_SMALLEST = np.finfo(np.float32).max, float(np.finfo(np.float32).smallest_subnormal)
# Halfway between neighbouring values; a tie belongs to the even code, which is above at 0.75, 1.75 and 3.5.
_ABOVE = (np.greater, np.greater_equal)
_BOUNDS = tuple((np.float32(b), _ABOVE[i % 2]) for i, b in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)))


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """A tensor in NVFP4.

    ``packed``: uint8 (…, K/2), the even element in the low half; ``scales``: E4M3 codes, uint8 (…, K/16);
    ``global_scale``: G, the number that *multiplies* (ModelOpt's ``weight_scale_2``; its reciprocal is
    compressed-tensors' ``weight_global_scale``); ``amax``: the largest magnitude G stands for; ``shape``: of the array
    that went in, before its last axis was padded; ``scale_max``: what the largest block scale was meant to be.

    Raises ValueError for parts that do not fit together (a G that is not that of ``amax`` and ``scale_max`` in the
    variant, to a few roundings), and for scale codes that are NaN or negative.
    """

    packed: NDArray[np.uint8]
    scales: NDArray[np.uint8]
    global_scale: float
    amax: float
    shape: tuple[int, ...]
    variant: str
    scale_max: float = E4M3.largest

    def __post_init__(self) -> None:
        variant_named(self.variant)
        if not isinstance(self.shape, tuple | list) or not self.shape:
            raise ValueError(f"Quantised: shape is {self.shape!r}; allowed: at least one axis")
        columns = -(-self.shape[-1] // BLOCK)
        for name, width in (("packed", columns * BLOCK // 2), ("scales", columns)):
            array, expected = np.asarray(getattr(self, name)), (*self.shape[:-1], width)
            if array.dtype != np.uint8 or array.shape != expected:
                raise ValueError(
                    f"Quantised: {name} is {array.dtype} of shape {array.shape}; "
                    f"allowed for shape {self.shape}: uint8 of shape {expected}"
                )
        if not (blocks.is_number(self.global_scale) and 0 < self.global_scale < np.inf):
            raise ValueError(f"Quantised: global_scale is {self.global_scale!r}; allowed: finite, above 0")
        if not (blocks.is_number(self.amax) and 0 <= self.amax < np.inf):
            raise ValueError(f"Quantised: amax is {self.amax!r}; allowed: finite, at least 0")
        checked_scale_max("Quantised", self.scale_max)
        meant = float(self.globals().decode_scale)
        # amax went through two float32 quotients where it came from a stored scale; subnormal ones have few digits
        if abs(meant - self.global_scale) > 1e-6 * self.global_scale + 2 * _F32_SMALLEST:
            raise ValueError(
                f"Quantised: global_scale is {self.global_scale!r}, and amax {self.amax!r} with scale_max "
                f"{self.scale_max:g} makes it {meant!r} in {self.variant}; allowed: the same"
            )
        if self.scales.size and int(self.scales.max()) >= 0x7F:
            where = np.unravel_index(int(np.argmax(self.scales >= 0x7F)), self.scales.shape)
            raise ValueError(
                f"Quantised: scales holds 0x{int(self.scales[where]):02X} at index {tuple(map(int, where))}; "
                "allowed: 0x00 to 0x7E, as 0x7F is NaN and the rest is negative"
            )

    @property
    def storage_bytes(self) -> float:
        """Bytes that the format takes for the padded elements, block scales counted, and 4 for the tensor's scale.

        >>> quantise(np.zeros((2, 32), np.float32)).storage_bytes        # 64 · 4.5 bits + 4 bytes
        40.0
        """
        return 2 * prod(self.packed.shape) * NVFP4.bytes_per_element + 4

    def globals(self) -> Globals:
        """amax, G and E in float32 as the variant computes them."""
        return variant_named(self.variant).globals(self.amax, self.scale_max)


def quantise(x: ArrayLike, *, variant: str = "modelopt", pad: bool = False, amax: float | None = None) -> Quantised:
    """Quantise an array to NVFP4 along its last axis, to the bit as the named implementation does.

    ``x``: float16, bfloat16, float32 or float64 of any shape and strides, never changed. ``amax`` is for tensors that
    share one global scale (fused layers: q, k, v, or gate and up), or a calibrated range; elements beyond it are
    clipped.

    Raises ValueError for NaN and infinity (says where), for a last axis that is no multiple of 16 unless ``pad`` fills
    it with zeros, for integers, for an unknown variant, and for an ``amax`` that is not finite and above 0 (0 is
    allowed where x is all zeros).

    >>> q = quantise(np.array([[0.5, -3.0, 6.0, 2.5] * 4]))
    >>> codes(q)[0, :4].tolist(), q.scales.tolist(), round(q.global_scale, 6)
    ([1, 13, 7, 4], [[126]], 0.002232)
    >>> dequantise(q)[0, :4].tolist()
    [0.5, -3.0, 6.0, 2.0]
    """
    x, columns = _checked(x, pad)
    policy = variant_named(variant)
    largest = blocks.amax("quantise", x)
    if amax is not None:
        largest = checked_amax(amax, zero=largest == 0)
    g = policy.globals(largest)
    return _filled(x, columns, policy, g, None)


def quantise_with(
    x: ArrayLike,
    scales: NDArray[np.uint8],
    *,
    amax: float,
    variant: str = "modelopt",
    scale_max: float = E4M3.largest,
    pad: bool = False,
) -> Quantised:
    """Quantise with block scales that somebody chose: E4M3 codes, uint8 (…, K/16), relative to G of ``amax``.

    >>> x = np.full((1, 16), 4.0)
    >>> q = quantise_with(x, np.array([[0x38]], np.uint8), amax=2688.0)      # s = 1, G = 1
    >>> codes(q)[0, :2].tolist(), float(dequantise(q)[0, 0])
    ([6, 6], 4.0)
    """
    x, columns = _checked(x, pad)
    blocks.amax("quantise_with", x)
    policy = variant_named(variant)
    g = policy.globals(checked_amax(amax, zero=True), checked_scale_max("quantise_with", scale_max))
    return _filled(x, columns, policy, g, np.asarray(scales), scale_max)


def dequantise(q: Quantised) -> NDArray[np.float32]:
    """The float32 values, in the shape that went in and the order of operations of ``q.variant``.

    compressed-tensors' are bfloat16 values. Every value is finite: what would round beyond float32 is its largest.

    >>> float(dequantise(quantise(np.full(16, 3.0e38)))[0]) <= 3.5e38
    True
    """
    policy = variant_named(as_quantised("dequantise", q).variant)
    # two values for each byte, looked up as one 8-byte item
    table = policy.table()
    byte = np.arange(256)
    pairs = np.stack([table[byte & 15], table[byte >> 4]], axis=1).view(np.float64)[:, 0]
    out = np.empty((*q.packed.shape[:-1], 2 * q.packed.shape[-1]), dtype=np.float32)
    packed, scales, g = q.packed.reshape(-1), q.scales.reshape(-1), q.globals()
    as_pairs, as_blocks = out.reshape(-1).view(np.float64), out.reshape(-1, BLOCK)
    near_the_end = 6 * E4M3.largest * float(g.decode_scale) > float(_F32_MAX) / 2  # amax, but for a scale_max chosen
    n_at_once = blocks.PIECE_ELEMENTS // BLOCK
    with np.errstate(over="ignore", under="ignore"):
        for first in range(0, len(scales), n_at_once):
            part = slice(first, first + n_at_once)
            some = slice(first * BLOCK // 2, (first + n_at_once) * BLOCK // 2)
            # every byte is a valid index; mode="clip" saves numpy a copy
            np.take(pairs, packed[some], out=as_pairs[some], mode="clip")
            np.multiply(as_blocks[part], policy.steps(scales[part], g)[:, None], out=as_blocks[part])
            if policy.bfloat16:
                _round_to_bfloat16(as_blocks[part])
            if near_the_end:
                np.clip(as_blocks[part], -_F32_MAX, _F32_MAX, out=as_blocks[part])
    return out if q.shape[-1] == out.shape[-1] else np.ascontiguousarray(out[..., : q.shape[-1]])


def codes(q: Quantised) -> NDArray[np.uint8]:
    """The 4-bit code of each element, one a byte, in the shape that went in: sign·8 + index of the magnitude.

    >>> codes(quantise(np.array([-6.0] * 16))).tolist()[:2]
    [15, 15]
    """
    as_quantised("codes", q)
    both = np.stack([q.packed & 15, q.packed >> 4], axis=-1)
    both = both.reshape(*q.packed.shape[:-1], 2 * q.packed.shape[-1])
    return np.ascontiguousarray(both[..., : q.shape[-1]])


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two codes a byte, the even element in the low half: uint8 (…, K) → (…, K/2). Raises ValueError for other codes.

    >>> pack(np.array([1, 2, 15, 0], np.uint8)).tolist()
    [33, 15]
    """
    codes = np.ascontiguousarray(codes)
    if codes.dtype != np.uint8 or codes.shape[-1] % 2 or codes.max(initial=0) > 15:
        raise ValueError(
            f"pack: codes are {codes.dtype} of shape {codes.shape}; allowed: uint8 from 0 to 15, an even number along "
            "the last axis"
        )
    both = codes.view("<u2")  # even + 256·odd
    return (both | (both >> 4)).astype(np.uint8)


def encode(y: NDArray[np.float32], *, negative_zero: bool = False) -> NDArray[np.uint8]:
    """E2M1 code of each quotient x/(s·G): nearest, ties to even, clipped at 6. ``y`` is overwritten by its magnitude.

    Seven comparisons; a search or a table costs several times as much. NaN, which is 0/0 here, becomes code 0.
    """
    code = np.signbit(y) if negative_zero else np.less(y, 0)
    code = np.multiply(code.view(np.uint8), 8, dtype=np.uint8)
    np.abs(y, out=y)
    reached = np.empty(y.shape, dtype=bool)
    for bound, above in _BOUNDS:
        above(y, bound, out=reached)
        np.add(code, reached.view(np.uint8), out=code)
    return code


def checked_amax(amax: float, *, zero: bool = False) -> np.float32:
    """The range given by a caller as float32. Raises ValueError unless finite and above 0 (or 0 where ``zero``)."""
    single = blocks.is_number(amax) and abs(float(amax)) <= float(_F32_MAX)
    value = np.float32(amax) if single else np.float32(np.nan)
    if not (value > 0 or (zero and value == 0)):
        raise ValueError(f"quantise: amax is {amax!r}; allowed: a finite float32 above 0")
    return np.abs(value)  # −0 is 0


def checked_scale_max(subject: str, scale_max: float) -> float:
    """What the largest block scale is meant to be. Raises ValueError unless above 0 and at most 448, E4M3's largest."""
    if not (blocks.is_number(scale_max) and 0 < scale_max <= E4M3.largest):
        raise ValueError(f"{subject}: scale_max is {scale_max!r}; allowed: above 0, at most {E4M3.largest:g}")
    return scale_max


def as_quantised(subject: str, q: object) -> Quantised:
    """The tensor itself. Raises ValueError for what is none."""
    if not isinstance(q, Quantised):
        raise ValueError(f"{subject}: q is of type {type(q).__name__}; allowed: a Quantised, as quantise makes it")
    return q


def _checked(x: ArrayLike, pad: bool) -> tuple[NDArray, int]:
    x = blocks.as_real("quantise", x)
    return x, blocks.n_blocks("quantise", x, BLOCK, pad=pad)


def _filled(
    x: NDArray, columns: int, policy: Variant, g: Globals, given: NDArray | None, scale_max: float = E4M3.largest
) -> Quantised:
    shape = (*x.shape[:-1], columns)
    scales = np.empty(shape, dtype=np.uint8) if given is None else given.copy()
    if given is not None and (given.shape != shape or given.dtype != np.uint8):
        raise ValueError(
            f"quantise_with: scales is {given.dtype} of shape {given.shape}; allowed: uint8 of shape {shape}"
        )
    packed = np.empty((*x.shape[:-1], columns * BLOCK // 2), dtype=np.uint8)
    as_fours, flat_scales = packed.reshape(-1).view(np.uint16).reshape(-1, BLOCK // 4), scales.reshape(-1)
    # 0/0 and x/0 are the elements of blocks too small for any scale: codes 0 and 7 of a step that is 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for first, piece in blocks.pieces(x, BLOCK):
            part, y = slice(first, first + len(piece)), blocks.planes(piece)
            if given is None:
                flat_scales[part] = policy.scale_codes(blocks.planes_amax(np.abs(y)), g)
            s = np.empty((len(piece), 4), dtype=np.float32)
            decoded = np.take(values(E4M3), flat_scales[part])
            for column in range(4):  # four loops of n are faster than n of four
                s[:, column] = decoded
            policy.quotient(y, s.reshape(-1), g, y)
            codes = encode(y, negative_zero=policy.negative_zero)
            for column, fours in enumerate(pack(codes).view(np.uint16)):  # rows of y are columns of the result
                as_fours[part, column] = fours
    return Quantised(
        packed=packed,
        scales=scales,
        global_scale=float(g.decode_scale),
        amax=float(g.amax),
        shape=tuple(x.shape),
        variant=policy.name,
        scale_max=scale_max,
    )


def _round_to_bfloat16(x: NDArray[np.float32]) -> None:
    bits = x.view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    bits &= np.uint32(0xFFFF0000)
