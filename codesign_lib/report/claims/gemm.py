"""Measured linear layers of the committed samples, looked up by size: what studies and claims hold ours against."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.cost import ops, roofline
from codesign_lib.specs import published
from codesign_lib.specs.formats import Format, as_format
from codesign_lib.specs.quantities import positive

# How most of the tables were run: this many tokens
TOKENS = 8192
ENGINES = {"trtllm": "TensorRT-LLM", "sglang": "SGLang"}
SIZES = (512, 1024, 2048, 4096, 8192, 16384)
SOURCE = "aiconfigurator-core 0.12.0, sampled in data/gemm_*.csv"
_TABLES = ("gemm_gb300", "gemm_tokens", "gemm_staircase", "gemm_sm_count")


def measured_s(
    engine: str, fmt: Format | str, k: ArrayLike, n: ArrayLike, *, m: ArrayLike = TOKENS, chip: str = "gb300"
) -> NDArray[np.float64]:
    """Measured seconds of k×n linear layers for m tokens, in one engine, format and chip. Sizes broadcast.

    The whole module's time: in FP8 and NVFP4 with the pass that quantises BF16 activations; outputs are BF16. Raises
    ValueError for a size that the committed samples do not hold.

    >>> f"{measured_s('trtllm', 'nvfp4', 4096, 4096) * 1e6:.1f} µs"
    '88.0 µs'
    """
    times = _times()
    m, k, n = np.broadcast_arrays(*positive("measured_s", m=m, k=k, n=n))
    name = as_format(fmt).name
    keys = [(chip, engine, name, *size) for size in zip(m.ravel(), k.ravel(), n.ravel(), strict=True)]
    missing = [key for key in keys if key not in times]
    if missing:
        raise ValueError(f"measured_s: no row for chip, engine, format, m, k, n = {missing[0]} in data/gemm_*.csv")
    return np.array([times[key] for key in keys]).reshape(m.shape)[()]


@cache
def _times() -> dict[tuple, float]:
    found = {}
    for name in _TABLES:
        table = published.table(name)
        keys = zip(*(table[column].tolist() for column in ("chip", "engine", "fmt", "m", "k", "n")), strict=True)
        found |= dict(zip(keys, table["latency_s"].tolist(), strict=True))
    return found


def fastest(fmt: Format | str, chip: str = "gb300") -> tuple[float, str, float, float, float]:
    """The fastest measured row of the samples in one format: FLOP/s, engine, m, k, n.

    >>> fastest("nvfp4")[1:]
    ('trtllm', 8192.0, 8192.0, 65536.0)
    """
    rows = (key for key in _times() if (key[0], key[2]) == (chip, as_format(fmt).name))
    return max((2 * m * k * n / _times()[c, e, f, m, k, n], e, m, k, n) for c, e, f, m, k, n in rows)


def measured_sizes(h: int, fmt: Format | str = "nvfp4") -> NDArray[np.float64]:
    """Every H′ up to 16,384 for which the up- and the down-projection of hidden size ``h`` were measured on GB300.

    >>> measured_sizes(4096)[:3].tolist()
    [128.0, 256.0, 512.0]
    """
    rows = published.table("gemm_gb300").where(m=float(TOKENS), fmt=as_format(fmt).name, engine="trtllm")
    both = np.intersect1d(rows.where(k=float(h))["n"], rows.where(n=float(h))["k"])
    return both[both <= SIZES[-1]]


def bound_s(m: ArrayLike, k: ArrayLike, n: ArrayLike, fmt: Format | str, chip: str = "gb300") -> NDArray[np.float64]:
    """Bound in seconds of a layer as the tables run it: inputs and weights in ``fmt``, output BF16. Any real sizes.

    >>> f"{bound_s(8192, 4096, 4096, 'nvfp4') * 1e6:.1f} µs"
    '18.3 µs'
    """
    return roofline.time_s(ops.linear(m, k, n, inputs=fmt, weights=fmt, outputs="bf16"), chip, fmt)
