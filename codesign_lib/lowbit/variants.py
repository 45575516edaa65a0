r"""The same format, written six ways: how each implementation of NVFP4 orders its arithmetic.

An NVFP4 element is :math:`x \approx v\, s\, G`: v one of the sixteen E2M1 values, s the E4M3 scale of its block of
16, G the FP32 scale of the tensor. Nobody disagrees about that; the packages differ in which products are rounded
to float32 on the way, in what a scale of 0 becomes and in the sign of zero. All arithmetic here is float32, one
rounding an operation, in the order of the implementation named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codesign_lib.lowbit.elements import E2M1, E4M3, encode, values

_F32 = np.finfo(np.float32)
_ONE, _SIX, _SIXTH = np.float32(1), np.float32(6), np.float32(1 / 6)
_MAX = _F32.max
Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Globals:
    """The numbers of the whole tensor, float32: amax, G (multiplies) and E = 1/G (divides); ``span`` = 6·scale_max."""

    amax: np.float32
    decode_scale: np.float32
    encode_scale: np.float32
    span: np.float32


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One implementation's order of operations.

    ``ideal_scale(block_amax, globals)`` is the block scale before E4M3; it is then clipped to ``[smallest_scale, 448]``
    and rounded. ``zero_code`` is the scale stored where the ideal one is 0, or (``replaces_underflow``) where the
    rounded one is. ``step(s, globals)`` is what v is multiplied by; x is divided by it before it is rounded
    to E2M1, or multiplied by ``multiplier(s, globals)``. ``divides``: E is what the implementation computes, and G is
    1/E;
    ``torch_quotient``: E is 2688·(1/amax), and 1 where that is infinite. ``negative_zero`` keeps the sign of −0;
    ``signed_zero_value`` decodes the code 8 as −0, else as +0; ``bfloat16`` rounds decoded values to bfloat16.
    """

    name: str
    title: str
    ideal_scale: Callable[[Array, Globals], Array]
    step: Callable[[Array, Globals], Array]
    multiplier: Callable[[Array, Globals], Array] | None = None
    smallest_scale: float = 0.0
    zero_code: int = 0
    replaces_underflow: bool = False
    divides: bool = False
    torch_quotient: bool = False
    negative_zero: bool = False
    signed_zero_value: bool = True
    bfloat16: bool = False
    source: str

    def globals(self, amax: float, scale_max: float = E4M3.largest) -> Globals:
        r"""G and E of a tensor: :math:`G = \text{amax}/(6 \cdot \text{scale\_max})`, both 1 for an all-zero tensor.

        Neither leaves float32: where a package's would become 0 or infinite, it is the nearest that is not.
        """
        # A quotient of float32 numbers, divided in float64 and rounded once more, equals float32 division.
        span = np.float32(6 * scale_max)
        if amax == 0:
            return Globals(amax=np.float32(0), decode_scale=_ONE, encode_scale=_ONE, span=span)
        amax, single = float(amax), float(np.clip(amax, 0, _MAX).astype(np.float32))
        with np.errstate(over="ignore", under="ignore"):
            decode = np.maximum(np.float32(amax / float(span)), _F32.smallest_subnormal)
            encode_ = np.float32(float(span) / amax)
            # torch computes a number over a tensor as the number times the reciprocal. An amax that is no float32
            # was worked out from a stored E, which must come out again.
            if self.torch_quotient and single == amax:
                encode_ = np.float32(1 / single) * span
            if np.isinf(encode_):
                encode_ = _ONE if self.torch_quotient else _MAX
            if self.divides:
                decode = _ONE / encode_
        return Globals(amax=np.float32(single), decode_scale=decode, encode_scale=encode_, span=span)

    def scale_codes(self, block_amax: Array, g: Globals, *, factor: float = 1.0) -> NDArray[np.uint8]:
        """E4M3 codes of the blocks' scales; ``factor`` widens the ideal scale (1.5 maps the largest to 4)."""
        ideal = self.ideal_scale(block_amax, g)
        if factor != 1:
            ideal = ideal * np.float32(factor)
        codes = encode(np.maximum(ideal, np.float32(self.smallest_scale)), E4M3)  # which saturates at 448
        if self.zero_code:
            np.copyto(codes, self.zero_code, where=codes == 0 if self.replaces_underflow else ideal == 0)
        return codes

    def operand(self, s: Array, g: Globals) -> Array:
        """What x is multiplied by where the variant has a ``multiplier``, and divided by where it has none."""
        return (self.multiplier or self.step)(s, g)

    def quotient(self, x: Array, s: Array, g: Globals, out: Array | None = None) -> Array:
        """What is rounded to E2M1: about x/(s·G)."""
        return (np.multiply if self.multiplier else np.divide)(x, self.operand(s, g), out=out)

    def steps(self, scales: NDArray[np.uint8], g: Globals) -> Array:
        """What each block's E2M1 values are multiplied by, float32, never infinite."""
        s = values(E4M3)[scales]
        with np.errstate(over="ignore", under="ignore"):
            steps = self.step(s, g)
            if g.amax > _MAX / E4M3.largest:  # the product s·amax overflows first
                steps = np.where(np.isinf(steps), s * g.decode_scale, steps)
        return np.minimum(steps, _MAX)  # scales that somebody chose may lie beyond

    def table(self) -> Array:
        """Value of each of the sixteen codes."""
        table = values(E2M1).copy()
        if not self.signed_zero_value:
            table[8] = 0.0
        return table


def _from_guarded_reciprocals(s: Array, g: Globals) -> Array:
    return _guarded_reciprocal(s * _guarded_reciprocal(g.encode_scale))


def _from_reciprocals(s: Array, g: Globals) -> Array:
    return np.minimum(_ONE / (s * (_ONE / g.encode_scale)), _MAX)


def _guarded_reciprocal(x: Array) -> Array:
    return _ONE / (x + (x == 0) * np.float32(1e8))


MODELOPT = Variant(
    name="modelopt",
    title="ModelOpt",
    ideal_scale=lambda block_amax, g: block_amax / (_SIX * g.decode_scale),
    step=lambda s, g: s * g.decode_scale,
    smallest_scale=E4M3.smallest,
    zero_code=0x38,  # 1.0
    signed_zero_value=False,
    source="nvidia-modelopt 0.47.0, torch/quantization/qtensor/nvfp4_tensor.py",
)
TORCHAO = Variant(
    name="torchao",
    title="torchao",
    ideal_scale=lambda block_amax, g: (block_amax / _SIX) / g.decode_scale,
    step=lambda s, g: s * g.decode_scale,
    multiplier=lambda s, g: (_ONE / g.decode_scale) / s,
    smallest_scale=2.0**-6,  # the smallest normal, not the smallest
    negative_zero=True,
    source="torchao 0.18.0, prototype/mx_formats/nvfp4_tensor.py with per_tensor_scale",
)
COMPRESSED_TENSORS = Variant(
    name="compressed_tensors",
    title="compressed-tensors",
    ideal_scale=lambda block_amax, g: g.encode_scale * (block_amax / _SIX),
    step=lambda s, g: s / g.encode_scale,
    zero_code=0x20,  # 0.125
    replaces_underflow=True,
    divides=True,
    torch_quotient=True,
    bfloat16=True,
    source="compressed-tensors 0.20.1, quantization/utils/helpers.py, compressors/nvfp4",
)
TRANSFORMER_ENGINE = Variant(
    name="transformer_engine",
    title="TransformerEngine",
    ideal_scale=lambda block_amax, g: block_amax * (g.encode_scale * _SIXTH),
    step=lambda s, g: (s * g.amax) * (_ONE / g.span),
    multiplier=_from_reciprocals,
    source="TransformerEngine d0067d0, pytorch/custom_recipes/reference_nvfp4.py, common/cast/nvfp4",
)
VLLM = Variant(
    name="vllm",
    title="vLLM",
    ideal_scale=lambda block_amax, g: g.encode_scale * (block_amax * _SIXTH),
    step=lambda s, g: s / g.encode_scale,
    multiplier=_from_guarded_reciprocals,
    divides=True,
    source="vLLM, quantization/utils/nvfp4_emulation_utils.py and tests/kernels/quantization/nvfp4_utils.py",
)
FOUROVERSIX = Variant(
    name="fouroversix",
    title="fouroversix",
    ideal_scale=lambda block_amax, g: (block_amax / _SIX) * g.encode_scale,
    step=lambda s, g: (s * g.amax) / g.span,
    multiplier=_from_reciprocals,
    source="fouroversix dadfad6, quantize/pytorch/reference.py; clipped at 6, which the reference is not",
)
VARIANTS = {v.name: v for v in (MODELOPT, TORCHAO, COMPRESSED_TENSORS, TRANSFORMER_ENGINE, VLLM, FOUROVERSIX)}


def variant(name: str) -> Variant:
    """The variant of that name; ValueError for one that is none of ``VARIANTS``.

    >>> variant("te")
    Traceback (most recent call last):
    ValueError: unknown variant 'te'; known: modelopt, torchao, compressed_tensors, transformer_engine, vllm, ...
    """
    if isinstance(name, str) and name in VARIANTS:
        return VARIANTS[name]
    raise ValueError(f"unknown variant {name!r}; known: {', '.join(VARIANTS)}")
