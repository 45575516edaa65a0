"""Number formats: what one stored element costs, and which arithmetic it is multiplied in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Format:
    r"""How one element is stored.

    .. math:: b = \frac{1}{8}\left(\text{payload bits} + \frac{\text{scale bits}}{\text{block}}\right)

    ``peak`` names the field of :py:class:`codesign_lib.specs.hardware.Chip` that holds the rate at which two such
    operands are multiplied. A scale a tensor (NVFP4's FP32, FP8's) is a few bytes a
    tensor and left out. ``fp8_block`` counts the weights' 128×128 blocks; the 1×128 groups of
    activations hold 3 % of scales, which are left out.

    >>> NVFP4.bytes_per_element, MXFP4.bytes_per_element, FP4_PAYLOAD.bytes_per_element
    (0.5625, 0.53125, 0.5)
    """

    name: str
    title: str
    payload_bits: int
    scale_bits: int = 0
    block_elements: int = 1
    peak: str
    source: str

    def __post_init__(self) -> None:
        for name, least in (("payload_bits", 1), ("scale_bits", 0), ("block_elements", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"Format {self.name!r}: {name} is {value!r}; allowed: whole numbers of at least {least}"
                )
        if not re.fullmatch(r"\w+_(flops|ops)_per_s", self.peak):
            raise ValueError(
                f"Format {self.name!r}: peak is {self.peak!r}; allowed: a rate of a chip, NAME_flops_per_s"
            )

    @property
    def bytes_per_element(self) -> float:
        """Bytes one element takes in memory, its share of the block's scale counted."""
        return (self.payload_bits + self.scale_bits / self.block_elements) / 8

    def __str__(self) -> str:
        return self.title


_OCP = "OCP Microscaling Formats (MX) Specification v1.0, 2023"

# fmt: off
BF16 = Format(
    name="bf16", title="BF16", payload_bits=16, peak="bf16_flops_per_s", source="the upper half of IEEE 754 binary32",
)
FP8 = Format(
    name="fp8", title="FP8", payload_bits=8, peak="fp8_flops_per_s",
    source="OCP 8-bit Floating Point Specification (OFP8) v1.0, 2023; one scale a tensor",
)
FP8_BLOCK = Format(
    name="fp8_block", title="FP8 block", payload_bits=8, scale_bits=32, block_elements=128 * 128,
    peak="fp8_flops_per_s",
    source="DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3: an FP32 scale a 128×128 block of weights",
)
NVFP4 = Format(
    name="nvfp4", title="NVFP4", payload_bits=4, scale_bits=8, block_elements=16, peak="nvfp4_flops_per_s",
    source="NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference, 2025",
)
MXFP4 = Format(
    name="mxfp4", title="MXFP4", payload_bits=4, scale_bits=8, block_elements=32, peak="mxfp4_flops_per_s", source=_OCP,
)
MXFP8 = Format(
    name="mxfp8", title="MXFP8", payload_bits=8, scale_bits=8, block_elements=32, peak="mxfp8_flops_per_s", source=_OCP,
)
INT8 = Format(
    name="int8", title="INT8", payload_bits=8, peak="int8_ops_per_s", source="two's complement, one scale a channel",
)
FP4_PAYLOAD = Format(
    name="fp4_payload", title="FP4 payload", payload_bits=4, peak="nvfp4_flops_per_s",
    source="half a byte an element: for papers that leave the block scales out of their byte counts",
)
# fmt: on

FORMATS = {f.name: f for f in (BF16, FP8, FP8_BLOCK, NVFP4, MXFP4, MXFP8, INT8, FP4_PAYLOAD)}


def as_format(fmt: Format | str) -> Format:
    """The format of that name; a :py:class:`Format` passes through.

    Raises ValueError for a name that is none of ``FORMATS``.

    >>> as_format("nvfp4") is NVFP4
    True
    >>> as_format("fp16")
    Traceback (most recent call last):
    ValueError: unknown format 'fp16'; known: bf16, fp8, fp8_block, nvfp4, mxfp4, mxfp8, int8, fp4_payload
    """
    if isinstance(fmt, Format):
        return fmt
    if isinstance(fmt, str) and fmt in FORMATS:
        return FORMATS[fmt]
    raise ValueError(f"unknown format {fmt!r}; known: {', '.join(FORMATS)}")


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The mix of formats a model is served in: weights, activations, KV cache and the output head.

    ``experts`` is the format of routed experts' weights where checkpoints quantise these alone; None: as ``weights``.

    Each field takes a format or its name. A matrix product runs in the format of its activations: with BF16
    activations and NVFP4 weights the weights are widened on the fly and the tensor cores work in BF16.
    Weights wider than the activations raise ValueError, because no tensor core multiplies them so.

    >>> Precision(weights="nvfp4", activations="bf16", kv="fp8").arithmetic.name
    'bf16'
    """

    weights: Format
    activations: Format
    kv: Format
    head: Format = field(default=BF16)
    experts: Format | None = None

    def __post_init__(self) -> None:
        for name in ("weights", "activations", "kv", "head"):
            object.__setattr__(self, name, as_format(getattr(self, name)))
        if self.experts is not None:
            object.__setattr__(self, "experts", as_format(self.experts))
        if self.weights.payload_bits > self.activations.payload_bits:
            raise ValueError(
                f"Precision: weights in {self.weights.name} are wider than activations in {self.activations.name}; "
                "no tensor core multiplies them; allowed: weights of at most the activations' bits"
            )

    @property
    def arithmetic(self) -> Format:
        """The format the tensor cores multiply in."""
        return self.activations


def as_precision(subject: str, precision: Precision) -> Precision:
    """The precision itself; ValueError for ``subject`` that shows how to make one for anything else.

    >>> as_precision("memory", "fp8")
    Traceback (most recent call last):
    ValueError: memory: precision is 'fp8'; allowed: Precision(weights='fp8', activations='fp8', kv='fp8') and the like
    """
    if isinstance(precision, Precision):
        return precision
    name = precision if isinstance(precision, str) and precision in FORMATS else "nvfp4"
    example = ", ".join(f"{field}={name!r}" for field in ("weights", "activations", "kv"))
    raise ValueError(f"{subject}: precision is {precision!r:.60}; allowed: Precision({example}) and the like")
