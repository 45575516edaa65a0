"""Points a second of a frontier sweep: DeepSeek-R1 on GB300, every layout of nine sizes, thirteen batches, three mixes.

Printed: how many points, seconds on one core and on two, points a second, and what peers take. No ratio is asserted;
the limits that were asked for stand beside the figures.
"""

from __future__ import annotations

import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter, process_time

import numpy as np

from codesign_lib.serving import frontier
from codesign_lib.serving.layout import Workload, layouts
from codesign_lib.specs.formats import Precision

BOTH = ("aggregated", "disaggregated")
SIZES = (1, 2, 4, 8, 16, 32, 36, 64, 72)
LOAD = Workload(n_input=8192, n_output=1024, n_concurrent=2 ** np.arange(13))
MIXES = {
    "nvfp4, KV fp8": Precision(weights="nvfp4", activations="nvfp4", kv="fp8"),
    "nvfp4, KV bf16": Precision(weights="nvfp4", activations="nvfp4", kv="bf16"),
    "fp8_block, KV fp8": Precision(weights="fp8_block", activations="fp8_block", kv="fp8"),
}
# measured on two cores by the projects' own commands
PEERS = (("AIConfigurator, DeepSeek-V3 on 64 GPUs", "28.5 s, 38 to 70 results/s"), ("LLM-Viewer", "3,200 configs/s"),
         ("llm-analysis", "1,000/s"), ("GenZ", "12/s"))  # fmt: skip


def run(executor=None, modes=BOTH) -> tuple[frontier.Points, float]:
    start, worked = perf_counter(), process_time()
    found = frontier.sweep(
        "deepseek_r1", "gb300", n_chips=SIZES, workload=LOAD, precisions=MIXES, modes=modes, executor=executor
    )
    # on a shared machine the processor's time says more than the clock's; with workers only the clock sees them
    return found, perf_counter() - start if executor else process_time() - worked


def main() -> int:
    n_layouts = len(layouts(SIZES, "deepseek_r1"))
    print(f"{n_layouts} layouts of {SIZES} GPUs, {np.size(LOAD.n_concurrent)} batches, {len(MIXES)} format mixes")
    run()  # caches of calibrations and models
    for modes in (("disaggregated",), BOTH):
        found, took = min((run(modes=modes) for _ in range(3)), key=lambda x: x[1])
        print(f"{' and '.join(modes)}, one core: {found.n_tried:,} points in {took:.2f} s, {found.n_tried / took:,.0f} "
              f"points/s (asked for: 100,000); {len(found)} kept")  # fmt: skip
    with ProcessPoolExecutor(2) as two:
        run(two)
        found, took = min((run(two) for _ in range(3)), key=lambda x: x[1])
    print(f"two cores: {took:.2f} s (asked for: 2 s)")
    tracemalloc.start()
    run()
    print(f"memory at most {tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB beside the library")
    for who, rate in PEERS:
        print(f"peer: {who}: {rate}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
