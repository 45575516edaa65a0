"""How fast decode steps and memory are: points a second, and what a loop over single points would take."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from codesign_lib.serving.decode import decode_step_s
from codesign_lib.serving.layout import layouts
from codesign_lib.serving.memory import memory
from codesign_lib.specs.formats import Precision

N_POINTS = 100_000
LEAST_PER_S = 1e5
IN_FP4 = Precision(weights="nvfp4", activations="nvfp4", kv="fp8")
BATCHES = 2 ** np.arange(13)


def timed(call: Callable[[], object], n: int = 1) -> float:
    """Seconds of the fastest of n calls."""
    found = []
    for _ in range(n):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> int:
    least = np.inf
    for name in ("deepseek_r1", "llama_3_1_405b", "nemotron_3_super"):
        every = layouts([8, 16, 32, 64], name, precision=IN_FP4)
        n_contexts = int(np.ceil(N_POINTS / len(every) / len(BATCHES)))
        grid = dict(
            layout=every[:, None, None], batch=BATCHES[:, None], n_context=np.linspace(1000, 1e6, n_contexts) // 1
        )
        rng = np.random.default_rng(0)
        points = dict(
            layout=every[rng.integers(0, len(every), N_POINTS)],
            batch=rng.integers(1, 4097, N_POINTS),
            n_context=rng.integers(1, 10**6, N_POINTS),
        )
        alone = [{key: value[i] for key, value in points.items()} for i in range(100)]
        on = (name, "gb300")
        loop_s = timed(lambda on=on, alone=alone: [decode_step_s(*on, **x, precision=IN_FP4) for x in alone]) / len(
            alone
        )
        for what, call, given in (
            ("grid", decode_step_s, grid),
            ("points", decode_step_s, points),
            ("points, skewed", decode_step_s, points | {"routing": "skewed"}),
            ("memory", memory, points),
        ):
            seconds = timed(lambda on=on, call=call, given=given: call(*on, **given, precision=IN_FP4), n=4)
            count = len(every) * len(BATCHES) * n_contexts if what == "grid" else N_POINTS
            least = min(least, count / seconds)
            ratio = f"{loop_s * count / seconds:7,.0f} × a loop of single steps"
            print(f"{name:17s} {what:15s} {count:8,d} in {seconds:6.3f} s: {count / seconds / 1e6:5.2f} M/s, {ratio}")
    return int(least < LEAST_PER_S)


if __name__ == "__main__":
    sys.exit(main())
