r"""Small floats: the values that one stored element can take, encoded and decoded.

A code holds a sign, e exponent bits and m mantissa bits. With bias b and stored exponent E its magnitude is
:math:`2^{E-b}(1 + M/2^m)`, or :math:`2^{1-b} M/2^m` where E is 0 (a subnormal). Encoding rounds to the nearest value,
ties to the even code, and saturates at the largest. numpy has none of these types, so they are uint8 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_F32_MANTISSA_BITS, _F32_BIAS = 23, 127


@dataclass(frozen=True, kw_only=True)
class Element:
    """A float of at most eight bits. ``largest`` is the largest finite magnitude; a code above it is NaN or infinity.

    >>> E2M1.n_bits, E4M3.largest, E4M3.smallest == 2**-9
    (4, 448.0, True)
    """

    name: str
    n_exponent_bits: int
    n_mantissa_bits: int
    bias: int
    largest: float
    source: str

    @property
    def n_bits(self) -> int:
        """Bits of a code, the sign counted."""
        return 1 + self.n_exponent_bits + self.n_mantissa_bits

    @property
    def smallest(self) -> float:
        """The smallest magnitude above 0, a subnormal."""
        return 2.0 ** (1 - self.bias - self.n_mantissa_bits)

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest magnitude, 2 for E2M1 (6 = 1.5·2²), 8 for E4M3, 15 for E5M2."""
        return int(np.frexp(self.largest)[1]) - 1


_OCP = "OCP 8-bit Floating Point Specification (OFP8) v1.0, 2023"
# fmt: off
E2M1 = Element(
    name="e2m1", n_exponent_bits=2, n_mantissa_bits=1, bias=1, largest=6.0,
    source="OCP Microscaling Formats (MX) Specification v1.0, 2023, section 5.3.3",
)
E4M3 = Element(name="e4m3", n_exponent_bits=4, n_mantissa_bits=3, bias=7, largest=448.0, source=_OCP)
E5M2 = Element(name="e5m2", n_exponent_bits=5, n_mantissa_bits=2, bias=15, largest=57344.0, source=_OCP)
# fmt: on
ELEMENTS = {e.name: e for e in (E2M1, E4M3, E5M2)}


def element(name: str) -> Element:
    """The element format of that name; ValueError for one that is none of ``ELEMENTS``.

    >>> element("e3m2")
    Traceback (most recent call last):
    ValueError: unknown element 'e3m2'; known: e2m1, e4m3, e5m2
    """
    if isinstance(name, Element):
        return name
    if isinstance(name, str) and name in ELEMENTS:
        return ELEMENTS[name]
    raise ValueError(f"unknown element {name!r}; known: {', '.join(ELEMENTS)}")


@cache
def values(fmt: Element) -> NDArray[np.float32]:
    """The float32 value of every code in order, negative ones in the upper half; NaN where a code is no finite number.

    >>> values(E2M1)[:8].tolist()
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    """
    code = np.arange(2 ** (fmt.n_bits - 1))
    exponent, mantissa = code >> fmt.n_mantissa_bits, code & (2**fmt.n_mantissa_bits - 1)
    significand = np.where(exponent == 0, 0, 2**fmt.n_mantissa_bits) + mantissa
    magnitude = np.ldexp(significand, np.maximum(exponent, 1) - fmt.bias - fmt.n_mantissa_bits)
    magnitude[magnitude > fmt.largest] = np.nan
    table = np.concatenate([magnitude, -magnitude]).astype(np.float32)
    table.flags.writeable = False  # cached: nobody may change it for everybody
    return table


def decode(codes: ArrayLike, fmt: Element) -> NDArray[np.float32]:
    """The float32 value of each code (uint8). Codes beyond the format's bits raise ValueError.

    >>> decode([0x38, 0x7E, 0x7F], E4M3).tolist()
    [1.0, 448.0, nan]
    """
    codes = np.asarray(codes)
    table = values(fmt)
    if codes.dtype.kind not in "iu" or (codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < len(table)):
        raise ValueError(f"decode: codes of {fmt.name} are whole numbers from 0 to {len(table) - 1}")
    return table[codes]


def encode(x: ArrayLike, fmt: Element) -> NDArray[np.uint8]:
    """The code nearest to each float32, ties to the even code, saturating; the sign of −0 is kept. NaN is not checked.

    >>> encode([465.0, 1e9, 2**-10, 3 * 2**-11], E4M3).tolist()     # saturates; a tie to 0; up to the smallest
    [126, 126, 0, 1]
    """
    x = np.asarray(x, dtype=np.float32)
    magnitude = np.minimum(np.abs(x), np.float32(fmt.largest))
    # Normal: cut the float32's mantissa to m bits. A carry out of the mantissa moves the exponent up, as it should.
    cut = _F32_MANTISSA_BITS - fmt.n_mantissa_bits
    bits = magnitude.view(np.int32)
    code = (bits >> cut) & 1  # the last bit that stays decides a tie
    code += bits
    code += (1 << (cut - 1)) - 1
    code >>= cut
    code -= (_F32_BIAS - fmt.bias) << fmt.n_mantissa_bits
    subnormal = magnitude < np.float32(2.0 ** (1 - fmt.bias))
    if subnormal.any():
        steps = np.where(subnormal, magnitude, 0) * np.float32(1 / fmt.smallest)
        # Multiples of the smallest value; rint rounds ties to even. 2^m of them is the smallest normal's code.
        code = np.where(subnormal, np.rint(steps).astype(np.int32), code)
    code = code.astype(np.uint8)
    code |= np.signbit(x).view(np.uint8) << (fmt.n_bits - 1)
    return code
