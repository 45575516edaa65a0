r"""How large the error of a 4-bit block is, by integration instead of by drawing.

For a block of n independent values whose largest magnitude is A, scaled by the ideal A/6, the largest is exact and the
n − 1 others follow the same distribution, cut off at A. With density p and distribution F of the magnitudes

.. math:: \frac{E[\varepsilon^2]}{E[x^2]} = \frac{(n-1)}{E[x^2]} \int_0^\infty F(A)^{n-2} p(A)
          \int_0^A \left(x - \tfrac{A}{6} Q\!\left(\tfrac{6x}{A}\right)\right)^2 p(x)\,dx\,dA

Q rounds to E2M1. Left out: the rounding of the scale itself, to E4M3 (about 2 % more) or to a power of two (22–30 %).
"""

from __future__ import annotations

from math import erf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks
from codesign_lib.lowbit.elements import E2M1, values

_TAIL = {"gaussian": 12.0, "laplace": 60.0}  # beyond it lies less than 1e-25 of the probability
_SECOND_MOMENT = {"gaussian": 1.0, "laplace": 2.0}
DISTRIBUTIONS = tuple(_TAIL)


def relative_mse(x: ArrayLike, approximation: ArrayLike) -> float:
    r"""Error relative to the signal: :math:`\sum (\hat x - x)^2 / \sum x^2`, summed in float64.

    Different shapes, an x that is all zeros, and sums that are not finite raise ValueError.

    >>> relative_mse([3.0, 4.0], [3.0, 4.5])
    0.01
    """
    arrays = blocks.as_real("relative_mse", x), blocks.as_real("relative_mse", approximation, "approximation")
    x, approximation = (a.astype(np.float64, copy=False) for a in arrays)
    if x.shape != approximation.shape:
        raise ValueError(f"relative_mse: shapes are {x.shape} and {approximation.shape}; allowed: the same")
    with np.errstate(over="ignore", invalid="ignore"):
        difference = approximation - x
        signal, error = float(np.vdot(x, x)), float(np.vdot(difference, difference))
    if not (np.isfinite(signal) and np.isfinite(error)):
        raise ValueError("relative_mse: x or approximation is not finite, or its squares are not; allowed: finite")
    if signal == 0:
        raise ValueError("relative_mse: x is all zeros; allowed: at least one other value")
    return error / signal


def block_relative_mse(distribution: str, n: int = 16) -> float:
    """Relative squared error of E2M1 in blocks of ``n`` independent draws with the ideal scale (the integral above).

    ``distribution``: gaussian or laplace, of any width. Good to 1e-6 of itself. An n that is no whole number of at
    least 2 raises ValueError.

    >>> f"{block_relative_mse('gaussian'):.4e} {block_relative_mse('laplace'):.4e}"
    '8.8631e-03 8.3154e-03'
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"block_relative_mse: distribution is {distribution!r}; allowed: {', '.join(DISTRIBUTIONS)}")
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < 2:
        raise ValueError(f"block_relative_mse: n is {n!r}; allowed: whole numbers of at least 2")
    # Both integrands are smooth between the points where Q jumps, so Gauss-Legendre needs few nodes a stretch.
    largest, weight = _stretches(np.linspace(0, _TAIL[distribution], 61)[None, :], 20)
    levels = values(E2M1)[:8].astype(np.float64)
    edges = np.concatenate([[0], (levels[1:] + levels[:-1]) / 2, [6]])
    step = largest.T / 6
    x, inner = _stretches(step * edges, 12)
    rounded = np.repeat(levels, 12) * step
    error = (inner * _density(distribution, x) * (x - rounded) ** 2).sum(axis=1)
    outer = _probability(distribution, largest[0]) ** (n - 2) * _density(distribution, largest[0]) * error
    return float((n - 1) * (weight[0] * outer).sum() / _SECOND_MOMENT[distribution])


def _stretches(edges: NDArray[np.float64], n_nodes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre nodes and weights on each stretch between edges (rows, m + 1): both (rows, m·n_nodes)."""
    node, weight = np.polynomial.legendre.leggauss(n_nodes)
    left, half = edges[:, :-1, None], np.diff(edges, axis=1)[:, :, None] / 2
    nodes = left + half * (node + 1)
    return nodes.reshape(len(edges), -1), (half * weight * np.ones_like(nodes)).reshape(len(edges), -1)


def _density(distribution: str, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    if distribution == "gaussian":
        return np.sqrt(2 / np.pi) * np.exp(-(magnitude**2) / 2)
    return np.exp(-magnitude)


def _probability(distribution: str, magnitude: NDArray[np.float64]) -> NDArray[np.float64]:
    if distribution == "gaussian":
        return np.array([erf(m) for m in (magnitude / np.sqrt(2)).tolist()])
    return -np.expm1(-magnitude)
