"""How fast gemm_s is: shapes a second on one core, and in passes of np.multiply over the same arrays.

Peers compute 0.03 to 3.2 thousand configurations a second (measured on two cores: GenZ, LLMCompass, LLM-Viewer).
"""

from __future__ import annotations

import sys
import time

import numpy as np

from codesign_lib.cost import kernels

N_SHAPES = 2_000_000
LEAST_PER_S = 10e6


def bench() -> dict[tuple[str, str], tuple[float, float]]:
    """(engine, format) → shapes a second, and how many passes of np.multiply take as long."""
    rng = np.random.default_rng(0)
    m, k, n = (rng.integers(1, high, N_SHAPES).astype(np.float64) for high in (8193, 1025, 16385))
    k *= 16  # whole blocks of NVFP4
    out = np.empty(N_SHAPES)
    multiply_s = min(_seconds(lambda: np.multiply(m, k, out=out)) for _ in range(5))
    found = {}
    for engine, fmt in kernels.KERNELS:
        ours_s = min(
            _seconds(lambda e=engine, f=fmt: kernels.gemm_s(m, k, n, chip="gb300", fmt=f, engine=e)) for _ in range(3)
        )
        found[engine, fmt] = (N_SHAPES / ours_s, ours_s / multiply_s)
    return found


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> int:
    found = bench()
    for (engine, fmt), (per_s, passes) in found.items():
        print(f"gemm_s {engine:7s} {fmt:10s} {per_s / 1e6:6.1f} M shapes/s, {passes:5.1f} × np.multiply")
    return int(min(per_s for per_s, _ in found.values()) < LEAST_PER_S)


if __name__ == "__main__":
    sys.exit(main())
