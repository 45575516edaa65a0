r"""GPTQ of one layer in NVFP4: codes that leave the layer's *output* close, not its weights.

With inputs X (tokens, K) the output error of a row is :math:`\lVert X(w - \hat w) \rVert^2 = \delta^T H \delta`, with
:math:`H = X^T X`. Columns are quantised one after the other; the error of each is carried over to the columns that
follow, by the row of the upper Cholesky factor U of :math:`H^{-1}`:

.. math:: w_{>j} \leftarrow w_{>j} - \frac{w_j - \hat w_j}{U_{jj}}\, U_{j,>j}

Scales are chosen once, before the first column (static scales), from RTN or any recipe.

Source: Frantar et al., GPTQ, arXiv:2210.17323; the scales of NVFP4 as in arXiv:2509.23202.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks, nvfp4
from codesign_lib.lowbit.elements import E4M3, values
from codesign_lib.lowbit.nvfp4 import BLOCK, Quantised
from codesign_lib.lowbit.variants import variant as variant_named
from codesign_lib.specs.quantities import as_floats

_COLUMNS_AT_ONCE = 128


def gptq(w: ArrayLike, hessian: ArrayLike, *, start: Quantised | None = None, damp_fraction: float = 0.01) -> Quantised:
    r"""Quantise weights (N, K) so that :math:`\mathrm{tr}(\delta H \delta^T)` is small, H (K, K) from calibration.

    ``start`` brings scales and their variant (default: ``nvfp4.quantise(w)``); its codes are not used.
    ``damp_fraction`` of the mean diagonal is added to H's diagonal. Inputs that were always 0 do not matter and stay.
    Arithmetic in float64.

    Raises ValueError for shapes that do not fit, an H that is not symmetric and finite, and one that damping
    leaves indefinite.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((256, 64)) @ rng.standard_normal((64, 64)); h = x.T @ x
    >>> w = rng.standard_normal((32, 64)).astype(np.float32)
    >>> output_error(w, gptq(w, h), h) < 0.7 * output_error(w, nvfp4.quantise(w), h)
    True
    """
    w, hessian = blocks.as_real("gptq", w, "w").astype(np.float64), _hessian("gptq", hessian)
    if w.ndim != 2 or w.shape[1] != len(hessian) or not np.isfinite(w).all():
        raise ValueError(f"gptq: w has shape {w.shape} for H of {len(hessian)}; allowed: finite (N, K), H (K, K)")
    start = nvfp4.quantise(w) if start is None else nvfp4.as_quantised("gptq: start", start)
    if start.shape != w.shape:
        raise ValueError(f"gptq: start is of shape {start.shape}; allowed: that of w, {w.shape}")
    if not (blocks.is_number(damp_fraction) and 0 <= damp_fraction < np.inf):
        raise ValueError(f"gptq: damp_fraction is {damp_fraction!r}; allowed: finite, at least 0")
    hessian = hessian + np.diag(np.where(np.diag(hessian) == 0, 1.0, 0.0))  # an input that never was: any factor does
    hessian += np.eye(len(hessian)) * (damp_fraction * np.mean(np.diag(hessian)))
    upper = _upper_factor_of_inverse(hessian)
    policy, g = variant_named(start.variant), start.globals()
    scales, steps, table = values(E4M3)[start.scales], policy.steps(start.scales, g), policy.table()
    codes = np.empty(w.shape, dtype=np.uint8)
    for first in range(0, w.shape[1], _COLUMNS_AT_ONCE):  # carried on within, then once to all that follow
        last = min(first + _COLUMNS_AT_ONCE, w.shape[1])
        errors = np.empty((len(w), last - first))
        for j in range(first, last):
            block = j // BLOCK
            with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
                y = policy.quotient(w[:, j].astype(np.float32), scales[:, block], g)
            codes[:, j] = nvfp4.encode(y, negative_zero=policy.negative_zero)
            error = (w[:, j] - table[codes[:, j]].astype(np.float64) * steps[:, block]) / upper[j, j]
            errors[:, j - first] = error
            w[:, j + 1 : last] -= np.outer(error, upper[j, j + 1 : last])
        w[:, last:] -= errors @ upper[first:last, last:]
    return Quantised(
        packed=nvfp4.pack(codes),
        scales=start.scales,
        global_scale=start.global_scale,
        amax=start.amax,
        shape=start.shape,
        variant=start.variant,
        scale_max=start.scale_max,
    )


def output_error(w: ArrayLike, q: Quantised, hessian: ArrayLike) -> float:
    r"""Error of the layer's output relative to it: :math:`\mathrm{tr}(\delta H \delta^T)/\mathrm{tr}(w H w^T)`.

    Raises ValueError for shapes that do not fit, an H that is not symmetric and finite, and an output that is all
    zeros.
    """
    w, hessian = blocks.as_real("output_error", w, "w").astype(np.float64), _hessian("output_error", hessian)
    shape = nvfp4.as_quantised("output_error", q).shape
    if w.ndim != 2 or w.shape[1] != len(hessian) or tuple(shape) != w.shape:
        raise ValueError(
            f"output_error: w has shape {w.shape} for q of {shape} and H of {len(hessian)}; allowed: (N, K), H (K, K)"
        )
    delta, output = nvfp4.dequantise(q) - w, float(np.vdot(w @ hessian, w))
    if not 0 < output < np.inf:
        raise ValueError(f"output_error: the output's square is {output:g}; allowed: finite, above 0")
    return float(np.vdot(delta @ hessian, delta)) / output


def _hessian(subject: str, hessian: ArrayLike) -> NDArray[np.float64]:
    (hessian,) = as_floats(subject, H=hessian)
    if hessian.ndim != 2 or hessian.shape[0] != hessian.shape[1] or not np.isfinite(hessian).all():
        raise ValueError(f"{subject}: H has shape {hessian.shape}; allowed: square and finite")
    if not np.allclose(hessian, hessian.T, rtol=1e-5, atol=1e-6 * np.abs(hessian).max(initial=0)):
        raise ValueError(f"{subject}: H is not symmetric; allowed: XᵀX of the layer's inputs")
    return (hessian + hessian.T) / 2


def _upper_factor_of_inverse(hessian: NDArray[np.float64]) -> NDArray[np.float64]:
    try:
        return np.linalg.cholesky(np.linalg.inv(hessian)).T
    except np.linalg.LinAlgError:
        raise ValueError("gptq: H is not positive definite; allowed: XᵀX, or a larger damp_fraction") from None
