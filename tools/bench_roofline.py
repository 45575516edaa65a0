"""Speed of the roofline (part of `make bench`), as a ratio to plain numpy passes in the same run.

`roofline.time_s` over 10 M shapes must cost at most 12 passes of `np.multiply` over the same arrays.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter

import numpy as np

from codesign_lib.cost import ops, roofline

N_SHAPES, N_RUNS, PASSES_MAX = 10_000_000, 7, 12.0


def seconds(call) -> float:
    times = []
    for _ in range(N_RUNS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return median(times)


def main() -> int:
    rng = np.random.default_rng(0)
    m, k, n = (rng.integers(1, 65536, N_SHAPES).astype(np.float64) for _ in range(3))
    mix = {"inputs": "nvfp4", "weights": "nvfp4", "outputs": "bf16"}
    work = ops.linear(m, k, n, **mix)
    one_pass = seconds(lambda: np.multiply(work.flops, work.bytes))
    bound = seconds(lambda: roofline.time_s(work, "gb300", "nvfp4")) / one_pass
    both = seconds(lambda: roofline.time_s(ops.linear(m, k, n, **mix), "gb300", "nvfp4")) / one_pass
    print(f"one pass of np.multiply over {N_SHAPES:,} shapes: {one_pass * 1e3:.1f} ms (median of {N_RUNS})")
    print(f"roofline.time_s:                {bound:5.1f} passes (at most {PASSES_MAX:g})")
    print(f"ops.linear and roofline.time_s: {both:5.1f} passes")
    return int(bound > PASSES_MAX)


if __name__ == "__main__":
    sys.exit(main())
