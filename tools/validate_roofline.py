"""Hold the roofline against every measured linear layer of the wheel (part of `make validate`).

A bound that a measurement beats is wrong, or the data never left the cache. Prints how much of the measured time the
bound misses (gap: bound over measured minus one; p90: nine in ten are nearer), for each chip, engine and format. Fails
when a row beats the bound that the L2 cache cannot explain, or when more rows do than one in about seven thousand.
"""

from __future__ import annotations

import sys

import measured
import numpy as np

from codesign_lib.cost import ops, roofline
from codesign_lib.specs import hardware

# found: 1.2 rows in ten thousand, all of them BF16 with n of at most 128 and everything in L2
ROWS_FASTER_MAX, N_MAX = 1.5e-4, 128


def main() -> int:
    bad, n_rows, n_faster = [], 0, 0
    print(f"{'chip':10} {'engine':8} {'format':10} {'rows':>7} {'median':>8} {'p90':>6} {'best':>6}  beat the bound")
    for name in measured.CHIPS:
        chip = hardware.chip(name)
        for engine in measured.ENGINES:
            for fmt, rows in measured.gemm(name, engine).groupby("fmt"):
                m, k, n = (rows[c].to_numpy(float) for c in "mkn")
                work = ops.linear(m, k, n, inputs=fmt, weights=fmt, outputs="bf16")
                share = roofline.time_s(work, chip, fmt) / rows.latency_s.to_numpy()
                faster = share > 1
                n_rows, n_faster = n_rows + len(rows), n_faster + faster.sum()
                cached = (work.bytes < chip.l2_bytes) & (n <= N_MAX) & (fmt == "bf16")
                if (faster & ~cached).any():
                    bad.append(f"{name} {engine} {fmt}: {(faster & ~cached).sum()} rows that L2 does not explain")
                gap = np.quantile(share - 1, (0.5, 0.1, 1))
                row = f"{name:10} {engine:8} {fmt:10} {len(rows):7,}"
                print(row, f"{gap[0]:8.1%} {gap[1]:6.0%} {gap[2]:+6.0%}  {faster.sum()}")
    print(f"{n_faster} of {n_rows:,} rows are faster than the bound: {n_faster / n_rows:.1e} of them")
    if n_faster / n_rows > ROWS_FASTER_MAX:
        bad.append(f"more than {ROWS_FASTER_MAX:g} of the rows beat the bound")
    print("\n".join(bad) or "the bound holds")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
