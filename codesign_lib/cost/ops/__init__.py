"""Operations of a network as work: how many FLOPs, how many bytes."""

from __future__ import annotations

from numpy.typing import ArrayLike

from codesign_lib.cost.roofline import Work
from codesign_lib.specs.formats import Format, as_format
from codesign_lib.specs.quantities import common_shape, positive


def linear(
    m: ArrayLike, k: ArrayLike, n: ArrayLike, *, inputs: Format | str, weights: Format | str, outputs: Format | str
) -> Work:
    r"""Y[m, n] = X[m, k] · W[k, n]: m tokens through a linear layer.

    .. math:: \text{flops} = 2\,m\,n\,k, \qquad \text{bytes} = b_a\,mk + b_w\,kn + b_o\,mn

    ``inputs``, ``weights`` and ``outputs`` are formats or their names; block scales are counted. Each operand crosses
    HBM once. Sizes broadcast and are finite and above 0, else ValueError. Source: NVIDIA, AI Model Co-Design:
    Hardware-Friendly LLM Design, 2026, section on the roofline.

    >>> w = linear(256, 512, 8192, inputs="nvfp4", weights="nvfp4", outputs="fp8")
    >>> float(w.flops), float(w.bytes)
    (2147483648.0, 4530176.0)
    """
    m, k, n = positive("linear", m=m, k=k, n=n)
    common_shape("linear", m=m, k=k, n=n)
    a, w, o = (as_format(f).bytes_per_element for f in (inputs, weights, outputs))
    return Work(2 * m * n * k, m * (a * k + o * n) + w * (k * n))


def output(m: ArrayLike, n: ArrayLike, *, outputs: Format | str) -> Work:
    """The part of :py:func:`linear` that writes Y[m, n]: no FLOPs, ``b_o·mn`` bytes.

    >>> float(output(256, 8192, outputs="fp8").bytes)
    2097152.0
    """
    m, n = positive("output", m=m, n=n)
    common_shape("output", m=m, n=n)
    return Work(0.0, as_format(outputs).bytes_per_element * (m * n))


def quantise(m: ArrayLike, k: ArrayLike, *, inputs: Format | str = "bf16", outputs: Format | str) -> Work:
    r"""A pass of its own that turns m×k activations from one format into another: read once, written once.

    .. math:: \text{bytes} = m\,k\,(b_i + b_o)

    Engines run it before a linear layer in FP8 or FP4 when the operation before left BF16 behind. Its arithmetic is
    not counted. Sizes broadcast and are finite and above 0, else ValueError.

    >>> float(quantise(8192, 4096, outputs="nvfp4").bytes) / (8192 * 4096)
    2.5625
    """
    m, k = positive("quantise", m=m, k=k)
    common_shape("quantise", m=m, k=k)
    return Work(0.0, m * k * (as_format(inputs).bytes_per_element + as_format(outputs).bytes_per_element))
