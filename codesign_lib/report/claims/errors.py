"""What formats and recipes lose on drawn numbers: the error of each method on each distribution, seeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import microscaling, nvfp4, recipes, variants
from codesign_lib.lowbit.error_law import relative_mse

N = 2048
"""Rows and columns of a sample; few outliers carry most of the sum, and a smaller one would scatter."""
OUTLIER_FRACTION = 1e-3
_Array = NDArray[np.float32]


def _nvfp4(quantise: Callable[..., nvfp4.Quantised], x: _Array) -> _Array:
    return nvfp4.dequantise(quantise(x))


def _mx(quantise: Callable[..., microscaling.Scaled], x: _Array) -> _Array:
    return microscaling.dequantise(quantise(x))


_FOUR_BITS = partial(_nvfp4, nvfp4.quantise)
_EVEN = partial(_mx, partial(microscaling.mxfp4, rule="even"))
# rotated by a size first: the error is that of the rotated numbers, which a rotation back would leave as it is
METHODS: Mapping[str, tuple[Callable[[_Array], _Array], int]] = MappingProxyType(
    {
        "NVFP4": (_FOUR_BITS, 1),
        "NVFP4, four over six": (partial(_nvfp4, recipes.four_over_six), 1),
        "NVFP4, four over six by magnitude": (partial(_nvfp4, partial(recipes.four_over_six, metric="mae")), 1),
        "NVFP4, best of all scales": (partial(_nvfp4, recipes.best_scale), 1),
        "NVFP4, a scale for 16 × 16": (partial(_nvfp4, recipes.square), 1),
        "NVFP4, stochastic": (partial(_nvfp4, partial(recipes.stochastic, seed=0)), 1),
        "NVFP4, rotated by 16": (_FOUR_BITS, 16),
        "NVFP4, rotated by 128": (_FOUR_BITS, 128),
        "MXFP4, floor": (partial(_mx, microscaling.mxfp4), 1),
        "MXFP4, rceil": (partial(_mx, partial(microscaling.mxfp4, rule="rceil")), 1),
        "MXFP4, even": (_EVEN, 1),
        "MXFP4, even, rotated by 32": (_EVEN, 32),
        "MXFP4, even, rotated by 128": (_EVEN, 128),
        "MXFP8, floor": (partial(_mx, microscaling.mxfp8), 1),
        "MXFP8, rceil": (partial(_mx, partial(microscaling.mxfp8, rule="rceil")), 1),
        "FP8 a tensor": (partial(_mx, microscaling.fp8), 1),
    }
)
DISTRIBUTIONS = ("Gaussian", "Laplace", "Student t, 5", "Gaussian, 0.1 % × 30")


@cache
def sample(distribution: str) -> _Array:
    """N × N float32 of a distribution, drawn one after the other from one seed."""
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"sample: distribution is {distribution!r}; allowed: {', '.join(DISTRIBUTIONS)}")
    rng, shape = np.random.default_rng(0), (N, N)
    draws = (rng.standard_normal, rng.laplace, partial(rng.standard_t, 5), partial(_with_outliers, rng, 30.0))
    for name, draw in zip(DISTRIBUTIONS, draws, strict=True):
        x = np.asarray(draw(size=shape), dtype=np.float32)
        if name == distribution:
            x.flags.writeable = False
            return x
    raise AssertionError


def _with_outliers(rng: np.random.Generator, times: float, size: tuple[int, int]) -> _Array:
    x = rng.standard_normal(size).astype(np.float32)
    x[rng.random(size) < OUTLIER_FRACTION] *= np.float32(times)
    return x


@cache
def relative_error(method: str, distribution: str) -> float:
    """Squared error over squared signal of a method on a sample.

    >>> f"{relative_error('NVFP4', 'Gaussian'):.3e}"
    '9.044e-03'
    """
    return _error(method, sample(distribution))


def with_outliers(method: str, times: ArrayLike) -> NDArray[np.float64]:
    """The error on a Gaussian of 1024 × 1024, one number in a thousand multiplied by each of ``times``."""
    rngs = (np.random.default_rng(0) for _ in np.atleast_1d(times))
    drawn = (_with_outliers(rng, t, (1024, 1024)) for rng, t in zip(rngs, np.atleast_1d(times), strict=True))
    return np.array([_error(method, x) for x in drawn])


def multiplied(method: str, factors: ArrayLike) -> NDArray[np.float64]:
    """The error on a Gaussian of 1024 × 1024 multiplied by each factor: what a scale's own steps cost."""
    x = sample("Gaussian")[:1024, :1024]
    return np.array([_error(method, x * np.float32(f)) for f in np.atleast_1d(factors)])


def attention_error(logit_std: float, *, keys: str | None = None, values: str | None = None) -> float:
    r"""Error of attention's output when a cache of 4,096 Gaussian keys and values of 128 is stored by a method.

    ``None`` stores exactly. With ε the method's error, values bring ε, and keys, whose errors sit in the exponents,
    about ε times the variance of the logits, while that product is small.

    >>> f"{attention_error(1.0, values='NVFP4'):.3f} {attention_error(2.0, keys='NVFP4'):.3f}"
    '0.009 0.046'
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 128)).astype(np.float32) for n in (256, 4096, 4096))
    q *= np.float32(logit_std / np.sqrt(128))
    stored = [x if method is None else METHODS[method][0](x) for x, method in ((k, keys), (v, values))]
    return relative_mse(_attention(q, k, v), _attention(q, *stored))


def _attention(q: _Array, k: _Array, v: _Array) -> NDArray[np.float64]:
    logits = q.astype(np.float64) @ k.T
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights @ v) / weights.sum(axis=-1, keepdims=True)


def shares_that_differ(x: _Array) -> dict[str, tuple[float, float]]:
    """By variant: the share of codes and of decoded values of ``x`` that are other than ModelOpt's.

    >>> shares_that_differ(sample("Gaussian")[:16])["modelopt"]
    (0.0, 0.0)
    """
    first = nvfp4.quantise(x)
    codes, values, found = nvfp4.codes(first), nvfp4.dequantise(first), {}
    for variant in variants.VARIANTS:
        q = nvfp4.quantise(x, variant=variant)
        found[variant] = (float(np.mean(nvfp4.codes(q) != codes)), float(np.mean(nvfp4.dequantise(q) != values)))
    return found


def spread(x: _Array) -> _Array:
    """The same numbers with every block of 16 smaller by √2 than the one before, over each 32 blocks of a row."""
    blocks = x.reshape(*x.shape[:-1], -1, nvfp4.BLOCK)
    shrunk = np.exp2(-(np.arange(blocks.shape[-2]) % 32) / 2)[:, None]
    return (blocks * shrunk).reshape(x.shape).astype(np.float32)


def _error(method: str, x: _Array) -> float:
    if method not in METHODS:
        raise ValueError(f"errors: method is {method!r}; allowed: {', '.join(METHODS)}")
    values, size = METHODS[method]
    x = recipes.rotate(x, size=size, seed=0) if size > 1 else x
    return relative_mse(x, values(x))
