r"""The same 4.5 bits, spent better: other choices of the block scale, rotations, stochastic rounding.

Every recipe returns a :py:class:`codesign_lib.lowbit.nvfp4.Quantised`, which any consumer of NVFP4 reads as it is; only
how scales and codes are chosen differs. x, ``pad``, ``amax`` and refusals are those of ``nvfp4.quantise``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.lowbit import blocks, nvfp4
from codesign_lib.lowbit.elements import E2M1, E4M3, values
from codesign_lib.lowbit.nvfp4 import BLOCK, Quantised
from codesign_lib.lowbit.variants import Globals, Variant
from codesign_lib.lowbit.variants import variant as variant_named

_Array = NDArray[np.float32]


def four_over_six(
    x: ArrayLike,
    *,
    metric: str = "mse",
    scale_max: float = 256,
    variant: str = "transformer_engine",
    pad: bool = False,
    amax: float | None = None,
) -> Quantised:
    r"""Map a block's largest to 4 instead of 6 where that leaves the smaller error: no value lies between 4 and 6.

    Both scales, :math:`s_6 = \mathrm{E4M3}(A/(6G))` and :math:`s_4 = \mathrm{E4M3}(1.5\,A/(6G))`, are tried, and the
    error (``mse``: squares, ``mae``: magnitudes) decides; a tie keeps 6. G is amax/(6·scale_max): 256 leaves room for
    the factor 1.5 in every block, 448 clips it in the largest ones. To the bit as TransformerEngine's reference; with
    ``variant="fouroversix"`` decoded in the order of that package.

    Source: Cook et al., Four Over Six, arXiv:2512.02010.

    >>> x = np.array([[4.0, 3.0, 2.0, 1.0] * 4])
    >>> [float(np.abs(nvfp4.dequantise(q) - x).max().round(3)) for q in (nvfp4.quantise(x), four_over_six(x))]
    [0.333, 0.0]
    """
    if metric not in ("mse", "mae"):
        raise ValueError(f"four_over_six: metric is {metric!r}; allowed: mse, mae")
    if scale_max not in (256, 448):
        raise ValueError(f"four_over_six: scale_max is {scale_max!r}; allowed: 256, 448")
    allowed = ("transformer_engine", "fouroversix")
    if variant not in allowed:
        raise ValueError(f"four_over_six: variant is {variant!r}; allowed: {', '.join(allowed)}")
    policy, base = variant_named(variant), variant_named("fouroversix")

    def choose(piece: _Array, g: Globals) -> NDArray[np.uint8]:
        block_amax = blocks.block_amax(piece)
        six, four = (base.scale_codes(block_amax, g, factor=factor) for factor in (1.0, 1.5))
        return np.where(_error(piece, four, g, policy, metric) < _error(piece, six, g, policy, metric), four, six)

    return _chosen("four_over_six", x, choose, policy, scale_max, pad, amax)


def best_scale(x: ArrayLike, *, scale_max: float = 448, pad: bool = False, amax: float | None = None) -> Quantised:
    r"""For each block the E4M3 scale of the smallest squared error among all 126.

    Only scales s with :math:`A/32 \le s\,G \le A/3.5` are tried, A the block's largest. Above, where A/(sG) rounds to
    at most 3, half that scale holds the same values (unless it is a subnormal, and all of those are tried); below,
    clipping A alone costs more than the scale A/6 costs for all 16 elements. Ties keep the smaller scale. ModelOpt's
    order of operations.

    >>> x = np.random.default_rng(0).standard_normal((4, 64))
    >>> nearest, best = (((nvfp4.dequantise(q) - x) ** 2).sum() for q in (nvfp4.quantise(x), best_scale(x)))
    >>> bool(best < 0.9 * nearest)
    True
    """
    policy = variant_named("modelopt")
    nvfp4.checked_scale_max("best_scale", scale_max)
    table = values(E4M3)[:127]

    def choose(piece: _Array, g: Globals) -> NDArray[np.uint8]:
        block_amax = blocks.block_amax(piece)
        ideal = block_amax / g.decode_scale
        low = np.clip(np.searchsorted(table, ideal / 32) - 1, 1, 126)
        high = np.clip(np.searchsorted(table, ideal / np.float32(3.5), side="right"), 16, 126)
        best, least = low.astype(np.uint8), np.full(len(piece), np.inf)
        for offset in range(int((high - low).max()) + 1):
            tried = np.minimum(low + offset, high).astype(np.uint8)
            error = _squares(piece, tried, g, policy)
            better = error < least
            best[better], least[better] = tried[better], error[better]
        return np.where(block_amax == 0, policy.zero_code, best).astype(np.uint8)

    return _chosen("best_scale", x, choose, policy, scale_max, pad, amax)


def square(x: ArrayLike, *, variant: str = "transformer_engine", amax: float | None = None) -> Quantised:
    """One scale for each 16×16 tile of a matrix, so that the matrix and its transpose quantise to the same values.

    For weights in training, which are read both ways. The scale is stored in each of the tile's 16 rows. A shape that
    is not a matrix of whole tiles raises ValueError.

    >>> x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    >>> bool((nvfp4.dequantise(square(x)) == nvfp4.dequantise(square(x.T)).T).all())
    True
    """
    x = blocks.as_real("square", x)
    if x.ndim != 2 or x.shape[0] % BLOCK or x.shape[1] % BLOCK:
        raise ValueError(f"square: x has shape {x.shape}; allowed: two axes, both multiples of {BLOCK}")
    policy = variant_named(variant)
    largest = blocks.amax("square", x)
    g = policy.globals(largest if amax is None else nvfp4.checked_amax(amax, zero=largest == 0))
    block_amax = np.zeros(x.shape[0] * x.shape[1] // BLOCK, dtype=np.float32)
    for first, piece in blocks.pieces(x, BLOCK):
        block_amax[first : first + len(piece)] = blocks.block_amax(piece)
    tile_amax = block_amax.reshape(x.shape[0] // BLOCK, BLOCK, x.shape[1] // BLOCK).max(axis=1)
    with np.errstate(over="ignore", under="ignore"):
        codes = policy.scale_codes(tile_amax, g)
    return nvfp4.quantise_with(x, np.repeat(codes, BLOCK, axis=0), amax=float(g.amax), variant=variant)


def stochastic(
    x: ArrayLike, *, seed: int, headroom: float = 16 / 17, pad: bool = False, amax: float | None = None
) -> Quantised:
    r"""Round up or down at random, so that the error is zero on average: :math:`P(\text{up}) = (y - v)/(v' - v)`.

    E4M3 may round a block's scale down by 1/17 of it, which would clip the largest element and bias it. ``headroom``
    keeps 6·headroom for it; 1 leaves none. For gradients, whose errors must not add up.

    >>> x = np.full((1, 16), 0.7) + np.eye(16)[:1] * 5
    >>> means = np.mean([nvfp4.dequantise(stochastic(x, seed=i)) for i in range(400)], axis=0)
    >>> bool(np.abs(means - x).max() < 0.1)
    True
    """
    if not isinstance(headroom, float | int | np.floating) or isinstance(headroom, bool) or not 0 < headroom <= 1:
        raise ValueError(f"stochastic: headroom is {headroom!r}; allowed: above 0, at most 1")
    _check_seed("stochastic", seed)
    policy, rng, levels = variant_named("modelopt"), np.random.default_rng(seed), values(E2M1)[:8]
    scale_max = E4M3.largest * headroom

    def choose(piece: _Array, g: Globals) -> NDArray[np.uint8]:
        return policy.scale_codes(blocks.block_amax(piece), g, factor=1 / headroom)

    def draw(y: _Array) -> NDArray[np.uint8]:
        sign, y = (y < 0).astype(np.uint8) << 3, np.minimum(np.abs(y), 6)
        below = np.minimum(np.searchsorted(levels, y, side="right") - 1, 6).astype(np.uint8)
        fraction = (y - levels[below]) / (levels[below + 1] - levels[below])
        return sign | (below + (rng.random(y.shape, dtype=np.float32) < fraction))

    return _chosen("stochastic", x, choose, policy, scale_max, pad, amax, draw)


def rotate(x: ArrayLike, *, size: int = 16, seed: int | None = None) -> _Array:
    r"""Groups of ``size`` along the last axis times an orthonormal Hadamard matrix, after random signs if seeded.

    .. math:: y = \frac{1}{\sqrt n}\, (x \odot d)\, H_n, \qquad H_{2n} = \begin{pmatrix} H & H \\ H & -H \end{pmatrix}

    Spreads an outlier over its group: good for the coarse steps of MXFP4, bad for NVFP4, whose small blocks
    keep an outlier to themselves. :py:func:`rotate_back` undoes it, up to rounding of float32. NaN and infinity are
    refused, and so are numbers so large that a rotated one leaves float32.

    >>> rotate(np.eye(1, 16) * 4)[0, :3].tolist()
    [1.0, 1.0, 1.0]
    """
    x, signs, matrix = _turned("rotate", x, size, seed)
    with np.errstate(over="ignore", invalid="ignore"):
        return _within("rotate", ((x.reshape(-1, size) * signs) @ matrix).reshape(x.shape))


def rotate_back(y: ArrayLike, *, size: int = 16, seed: int | None = None) -> _Array:
    """What :py:func:`rotate` was given, with the same size and seed.

    >>> x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    >>> bool(np.abs(rotate_back(rotate(x, size=128, seed=1), size=128, seed=1) - x).max() < 1e-5)
    True
    """
    y, signs, matrix = _turned("rotate_back", y, size, seed)
    with np.errstate(over="ignore", invalid="ignore"):  # the matrix is its own inverse
        return _within("rotate_back", ((y.reshape(-1, size) @ matrix) * signs).reshape(y.shape))


def _turned(subject: str, x: ArrayLike, size: int, seed: int | None) -> tuple[_Array, _Array, _Array]:
    """Checked input in float32, the signs, and the orthonormal matrix."""
    x = blocks.as_real(subject, x)
    blocks.amax(subject, x)
    return x.astype(np.float32), *_hadamard(subject, x, size, seed)


def _within(subject: str, y: _Array) -> _Array:
    if not np.isfinite(y).all():
        raise ValueError(f"{subject}: x is so large that a rotated number leaves float32; allowed: smaller ones")
    return y


def _check_seed(subject: str, seed: object) -> None:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"{subject}: seed is {seed!r}; allowed: whole numbers of at least 0")


def _hadamard(subject: str, x: NDArray, size: int, seed: int | None) -> tuple[_Array, _Array]:
    whole = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if not whole or size < 1 or size & (size - 1) or x.shape[-1] % size:
        raise ValueError(
            f"{subject}: size is {size!r} for a last axis of {x.shape[-1]}; allowed: a power of two that divides it"
        )
    if seed is not None:
        _check_seed(subject, seed)
    matrix = np.ones((1, 1), dtype=np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = np.ones(size) if seed is None else np.random.default_rng(seed).choice([-1.0, 1.0], size)
    return signs.astype(np.float32), matrix / np.float32(np.sqrt(size))


def _chosen(subject, x, choose, policy: Variant, scale_max: float, pad: bool, amax, draw=None) -> Quantised:
    """Quantise with the scales that ``choose(piece, globals)`` picks, codes by ``draw(quotients)`` or to nearest."""
    x = blocks.as_real(subject, x)
    columns = blocks.n_blocks(subject, x, BLOCK, pad=pad)
    largest = blocks.amax(subject, x)
    g = policy.globals(largest if amax is None else nvfp4.checked_amax(amax, zero=largest == 0), scale_max)
    scales = np.empty((*x.shape[:-1], columns), dtype=np.uint8)
    packed = np.empty((*x.shape[:-1], columns * BLOCK // 2), dtype=np.uint8)
    flat_scales, flat_packed = scales.reshape(-1), packed.reshape(-1, BLOCK // 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        for first, piece in blocks.pieces(x, BLOCK):
            part = slice(first, first + len(piece))
            flat_scales[part] = choose(piece, g)
            y = policy.quotient(piece, values(E4M3)[flat_scales[part], None], g)
            flat_packed[part] = nvfp4.pack((draw or nvfp4.encode)(np.nan_to_num(y, posinf=6, neginf=-6)))
    return Quantised(
        packed=packed,
        scales=scales,
        global_scale=float(g.decode_scale),
        amax=float(g.amax),
        shape=tuple(x.shape),
        variant=policy.name,
        scale_max=scale_max,
    )


def _error(piece: _Array, scales: NDArray[np.uint8], g: Globals, policy: Variant, metric: str) -> _Array:
    """Error of each block as TransformerEngine sums it: float32, element after element, ((v·s)·amax)/span − x."""
    s = values(E4M3)[scales, None]
    v = values(E2M1)[nvfp4.encode(policy.quotient(piece, s, g))]
    difference = ((v * s) * g.amax) / g.span - piece
    terms = difference * difference if metric == "mse" else np.abs(difference)
    total = np.zeros(len(piece), dtype=np.float32)
    for column in range(BLOCK):
        total += terms[:, column]
    return total


def _squares(piece: _Array, scales: NDArray[np.uint8], g: Globals, policy: Variant) -> NDArray[np.float64]:
    """Squared error of each block, in float64: squares of float32 may leave its range."""
    v = values(E2M1)[nvfp4.encode(policy.quotient(piece, values(E4M3)[scales, None], g))]
    difference = v * policy.steps(scales, g)[:, None].astype(np.float64) - piece
    return np.einsum("ij,ij->i", difference, difference)
