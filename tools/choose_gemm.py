"""How the kernels of codesign_lib/cost/kernels.py were chosen: alternatives, fitted on one half of the fitting layers
and judged on the other. Held-out layers are not touched. An alternative of more than five numbers was not allowed.

  python tools/choose_gemm.py           print (about a minute)
  python tools/choose_gemm.py --write   and write data/validation/gemm_choices.csv
"""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace

import calibrate
import fitting
import gemm_steps
import measured
import numpy as np

from codesign_lib.cost import kernels

OUT = calibrate.DATA / "validation" / "gemm_choices.csv"
COLUMNS = ("engine", "fmt", "alternative", "n_numbers", "median_percent", "p90_percent", "mean_log_percent")
N_ROWS = 4000
HEIGHTS = kernels.KERNELS["trtllm", "bf16"].tiles
TILES = {
    "one tile 64×128": ((64, 128),),
    "one tile 128×128": ((128, 128),),
    "one tile 128×256": ((128, 256),),
    "heights 16 to 128": HEIGHTS,
    "heights 64, 128": ((64, 128), (128, 128)),
    "widths 64 to 256": ((128, 64), (128, 128), (128, 256)),
    "heights and widths, 15 tiles": tuple((x, y) for x in (16, 32, 64, 128, 256) for y in (64, 128, 256)),
}


def alternatives(chosen: kernels.Kernel) -> dict[str, kernels.Kernel]:
    """The chosen kernel, and what differs from it in one respect."""
    found = {"chosen": chosen}
    found |= {name: replace(chosen, tiles=tiles) for name, tiles in TILES.items() if tiles != chosen.tiles}
    found["fractional waves" if chosen.whole_waves else "whole waves"] = replace(
        chosen, whole_waves=not chosen.whole_waves
    )
    found["never splits" if chosen.splits else "splits"] = replace(chosen, splits=not chosen.splits)
    found |= {f"stores of {b} B": replace(chosen, store_bytes=b) for b in (2, 3, 4, 5) if b != chosen.store_bytes}
    return found


def judge(tables: list[calibrate.Table], kernel: kernels.Kernel) -> tuple[float, float, float]:
    """Medians over chips of the median and 90th percentile of |error|, and the mean of mean |log error|; in %."""
    found = []
    for t in tables:
        t = replace(t, own_kernel=kernel)
        first, second = t.rows(~t.held_out & ~t.second).draw(N_ROWS, 0), t.rows(~t.held_out & t.second)
        numbers = calibrate.fit_alone(first)
        error = calibrate.errors(second.form_s(numbers), second.latency_s)
        found.append((*error[:2], calibrate.log_error(second, numbers)))
    of_chips = 100 * np.array(found)
    return float(np.median(of_chips[:, 0])), float(np.median(of_chips[:, 1])), float(of_chips[:, 2].mean())


def main(argv: tuple[str, ...] = ()) -> int:
    tables, rows = calibrate.load(), []
    for (engine, fmt), chosen in kernels.KERNELS.items():
        of = [t for t in tables.values() if (t.engine, t.fmt.name) == (engine, fmt)]
        for name, kernel in alternatives(chosen).items():
            n_numbers = len(gemm_steps.numbers_of(gemm_steps.STEPS[-1], kernel, of[0].fmt))
            rows.append((engine, fmt, name, n_numbers, *(f"{x:.2f}" for x in judge(of, kernel))))
            print("{:7s} {:10s} {:30s} {} numbers {:>6s} / {:>6s}  mean |log| {:>6s}".format(*rows[-1]), flush=True)
    if "--write" in argv:
        out = io.StringIO()
        out.write("# title: GEMM kernels that were tried, fitted and judged on two halves of the fitting layers\n")
        out.write(f"# source: {measured.PACKAGE}, systems/data (NVIDIA, github.com/ai-dynamo/aiconfigurator)\n")
        out.write(f"# version: {measured.package_version()}\n# date: {fitting.DATE}\n")
        out.write(f"# licence: {measured.LICENCE}\n# drawn_by: tools/choose_gemm.py --write\n")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
        OUT.write_text(out.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
