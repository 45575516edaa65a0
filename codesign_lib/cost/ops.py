"""Operations of a network as work: how many FLOPs, how many bytes."""

from __future__ import annotations

from numpy.typing import ArrayLike

from codesign_lib.cost.roofline import Work
from codesign_lib.specs.formats import Format, as_format
from codesign_lib.specs.quantities import positive


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
    a, w, o = (as_format(f).bytes_per_element for f in (inputs, weights, outputs))
    return Work(2 * m * n * k, m * (a * k + o * n) + w * (k * n))
