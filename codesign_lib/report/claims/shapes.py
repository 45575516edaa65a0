"""What studies compare of a layer's shape: sweeps, FFNs, one token more, stacks; measured on GB300 and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import calibration, kernels
from codesign_lib.report.claims import gemm
from codesign_lib.specs import published
from codesign_lib.specs.formats import Format, as_format

CHIP = "gb300"
SWEPT = {"k": ("n", 10240), "n": ("k", 8192)}
"""What is held fixed while a size is swept. The article's Figure 4 holds n at 9,728 and k at 8,448."""
LAYER = {"qkv": (1, 1.5), "out": (1, 1), "up": (1, 2), "down": (2, 1)}
"""A transformer layer of hidden size H as (k, n) in units of H, with grouped-query attention and H′ = 2H."""
MOE = {"k": np.array([7168, 256 * 256]), "n": np.array([2 * 256 * 256, 7168])}
"""256 experts of 7168 × 256, gate and up as one, as two dense products."""
TILE = (128, 256)
"""Rows and columns of TensorRT-LLM's NVFP4 tiles on Blackwell."""


class Sweep(NamedTuple):
    """FLOP/s by size: measured, our module, and our kernel alone (inputs quantised already, no launch)."""

    size: NDArray[np.float64]
    measured: NDArray[np.float64]
    module: NDArray[np.float64]
    kernel: NDArray[np.float64]


def sweep(engine: str, fmt: Format | str, along: str) -> Sweep:
    """One size (``k`` or ``n``) swept at 8,192 tokens on GB300, the other as in ``SWEPT``; sizes up to 16,384.

    >>> s = sweep("trtllm", "nvfp4", "k")
    >>> f"{s.size[0]:.0f} to {s.size[-1]:.0f}: {s.measured.max() / 1e15:.2f} PFLOP/s at best"
    '128 to 16384: 5.07 PFLOP/s at best'
    """
    if along not in SWEPT:
        raise ValueError(f"sweep: along is {along!r}; allowed: {', '.join(SWEPT)}")
    fixed, size = SWEPT[along]
    rows = published.table("gemm_gb300").where(engine=engine, fmt=as_format(fmt).name, **{fixed: float(size)})
    rows = rows.where(m=float(gemm.TOKENS)).sorted_by(along)
    keep = rows[along] <= gemm.SIZES[-1]
    m, k, n, took = (rows[c][keep] for c in ("m", "k", "n", "latency_s"))
    parts = kernels.gemm_parts_s(m, k, n, chip=CHIP, fmt=fmt, engine=engine)
    flops = 2 * m * k * n
    bare = np.hypot(parts.compute_s, parts.memory_s)
    module = parts.launch_s + parts.quantise_s + bare
    return Sweep(rows[along][keep], flops / took, flops / module, flops / bare)


def reached(size: ArrayLike, rate: ArrayLike, share: float = 0.8) -> float:
    """The size from which on ``rate`` stays at or above ``share`` of its maximum, interpolated between sizes.

    >>> reached([1, 2, 3, 4], [10, 70, 90, 100])
    2.5
    """
    size, rate = np.asarray(size, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    least = share * rate.max()
    below = np.flatnonzero(rate < least)
    if not below.size:
        return float(size[0])
    i = below[-1]
    if i + 1 == size.size:
        raise ValueError(f"reached: the last rate is below {share:g} of the best; allowed: a sweep that ends above")
    return float(np.interp(least, rate[i : i + 2], size[i : i + 2]))


class Held(NamedTuple):
    """The same quantity measured and by our model."""

    measured: NDArray[np.float64]
    ours: NDArray[np.float64]


def layer_s(engine: str, fmt: Format | str, k: ArrayLike, n: ArrayLike, *, m: ArrayLike = gemm.TOKENS) -> Held:
    """Seconds of k×n layers on GB300, measured and ours.

    >>> [f"{t * 1e6:.0f} µs" for t in layer_s("trtllm", "nvfp4", 4096, 4096)]
    ['88 µs', '84 µs']
    """
    ours = kernels.gemm_s(m, k, n, chip=CHIP, fmt=fmt, engine=engine)
    return Held(gemm.measured_s(engine, fmt, k, n, m=m), ours)


def layer_flops_per_s(engine: str, fmt: Format | str, k: ArrayLike, n: ArrayLike) -> Held:
    """FLOP/s of k×n layers at 8,192 tokens on GB300, measured and ours."""
    flops = 2 * gemm.TOKENS * np.multiply(k, n, dtype=np.float64)
    return Held(*(flops / t for t in layer_s(engine, fmt, k, n)))


def ffn_flops_per_s(engine: str, fmt: Format | str, h: ArrayLike, width: ArrayLike) -> Held:
    """FLOP/s of up- and down-projection, one after the other, at 8,192 tokens on GB300, measured and ours.

    >>> [f"{rate / 1e12:.0f} TFLOP/s" for rate in ffn_flops_per_s("trtllm", "nvfp4", 4096, 1024)]
    ['1462 TFLOP/s', '1468 TFLOP/s']
    """
    up, down = layer_s(engine, fmt, h, width), layer_s(engine, fmt, width, h)
    flops = 4 * gemm.TOKENS * np.multiply(h, width, dtype=np.float64)
    return Held(flops / (up.measured + down.measured), flops / (up.ours + down.ours))


def one_more(engine: str, m: ArrayLike, fmt: Format | str = "nvfp4") -> Held:
    """Time of m + 1 tokens over that of m, 8192 × 8192 on GB300, measured and ours.

    >>> [f"{ratio:.2f}" for ratio in one_more("trtllm", 512)]
    ['1.48', '1.32']
    """
    before, after = (layer_s(engine, fmt, 8192, 8192, m=x) for x in (m, np.add(m, 1)))
    return Held(after.measured / before.measured, after.ours / before.ours)


def stack_s(engine: str, h: ArrayLike, n_layers: ArrayLike, *, m: ArrayLike = gemm.TOKENS) -> NDArray[np.float64]:
    """Seconds of all GEMMs of ``n_layers`` layers of hidden size ``h`` in NVFP4 on GB300, by our model.

    >>> f"{stack_s('trtllm', 8192, 32) * 1e3:.1f} ms"
    '43.1 ms'
    """
    h, n_layers = np.asarray(h, dtype=np.float64), np.asarray(n_layers, dtype=np.float64)
    return n_layers * sum(
        kernels.gemm_s(m, k * h, n * h, chip=CHIP, fmt="nvfp4", engine=engine) for k, n in LAYER.values()
    )


def measured_stack_s(engine: str, h: int, n_layers: int) -> float:
    """The same at 8,192 tokens, measured; ValueError where the committed samples lack one of the four layers."""
    return n_layers * sum(float(gemm.measured_s(engine, "nvfp4", k * h, n * h)) for k, n in LAYER.values())


def dense_moe_s(engine: str, m: ArrayLike) -> NDArray[np.float64]:
    """Seconds of all ``MOE`` experts as two dense NVFP4 products on B200, by our model.

    >>> f"{dense_moe_s('trtllm', 1) * 1e6:.0f} µs"
    '234 µs'
    """
    m = np.asarray(m, dtype=np.float64)[..., np.newaxis]
    return kernels.gemm_s(m, MOE["k"], MOE["n"], chip="b200_sxm", fmt="nvfp4", engine=engine).sum(axis=-1)


def sm_counts(chip: str, candidates: ArrayLike, **equal: float) -> Mapping[int, float]:
    """Error of the best step law for each SM count, on TensorRT-LLM's NVFP4 rows; ``equal`` narrows them (k, n).

    >>> found = sm_counts("gb300", range(148, 156))
    >>> min(found, key=found.get)
    152
    """
    rows = published.table("gemm_sm_count").where(chip=chip, **equal)
    sizes = (rows[c] for c in ("m", "k", "n", "latency_s"))
    return calibration.sm_count_errors(*sizes, tile=TILE, candidates=candidates)
