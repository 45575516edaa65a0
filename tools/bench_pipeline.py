"""How fast schedule, slicing and balance are: rates of one core, beside np.add over the same cells."""

from __future__ import annotations

import sys
import time

import numpy as np

from codesign_lib.serving import pipeline, slicing, splitting

LEAST_CELLS_PER_S = 20e6
MOST_BALANCE_S = 20e-3
MOST_CHUNKS_S = 5.0
SHAPES = ((16, 4096), (8, 100_000), (1000, 8, 64), (100_000, 8, 16))
"""[stage, chunk], and many pipelines at once."""


def best_s(call, repeats: int = 5) -> float:
    """Least of several runs: what the machine does when nobody else asks for it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    rng, bad = np.random.default_rng(0), 0
    for shape in SHAPES:
        stage, out = rng.random(shape), np.empty(shape)
        add_s = best_s(lambda x=stage, y=out: np.add(x, x, out=y))
        ours_s = best_s(lambda x=stage: pipeline.finish_s(x))
        rate = stage.size / ours_s
        print(f"finish_s {shape!s:16} {rate / 1e6:6.1f} M cells/s, {ours_s / add_s:6.1f} × np.add")
        bad += rate < LEAST_CELLS_PER_S
    costs = rng.random(200)
    took = best_s(lambda: splitting.balance(costs, 32))
    print(f"balance of 200 layers over 32 stages: {1e3 * took:.1f} ms")
    bad += took > MOST_BALANCE_S
    for what, linear, each in (("with a cost a chunk", 0.037, 0.02), ("without", 0.037, 0.0)):
        start = time.perf_counter()
        found = slicing.best_chunks(
            lambda p, n, b=linear, c=each: 3.5e-4 * (2 * p * n + n * n) / 16 + b * n / 4 + c, 4096, 16
        )
        took = time.perf_counter() - start
        gap = 1 - found.lower_bound_s / found.finish_s
        print(f"best_chunks of 4,096 granules over 16 stages, {what}: {took:.2f} s, gap {100 * gap:.3f} %")
        bad += took > MOST_CHUNKS_S or gap > slicing.GAP_FRACTION
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
