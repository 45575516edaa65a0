"""How much faster NVFP4 is in the full measured tables, layer by layer, and how well our gain agrees.

  python tools/validate_gain.py           evaluate, compare with data/validation/gain.csv, fail on a difference
  python tools/validate_gain.py --write   evaluate and write that file

A gain is the measured time of a layer in another format over that in NVFP4, same chip, engine and sizes. Decode is up
to 64 tokens and prefill from 1,024, both with N and K of at least 1,024; large is N·K of at least 2²⁶. Ours is
``cost.gain.gemm``'s; its error is on layers that no fit saw. Nothing is fitted here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import measured
import numpy as np
import pandas as pd
import validation

from codesign_lib.cost import kernels

CHIPS = ("b200_sxm", "b300_sxm", "gb200", "gb300")
BEFORE = ("bf16", "fp8", "fp8_block")


class Row(NamedTuple):
    """``slower_percent``: layers that are slower in NVFP4; ``above_4_percent``: layers with a gain of at least 4."""

    chip: str
    engine: str
    before: str
    regime: str
    n_rows: int
    median: str
    p90: str
    p999: str
    slower_percent: str
    above_4_percent: str
    error_median_percent: str
    error_p90_percent: str


def regimes(t: pd.DataFrame) -> dict[str, pd.Series]:
    wide = (t.n >= 1024) & (t.k >= 1024)
    return {
        "all": t.m >= 1,
        "decode": wide & (t.m <= 64),
        "decode, large": wide & (t.m <= 64) & (t.n * t.k >= 2**26),
        "prefill": wide & (t.m >= 1024),
    }


def rows_of(chip: str, engine: str) -> Iterator[Row]:
    table = measured.gemm(chip, engine)
    sizes = ["m", "k", "n"]
    table = table.pivot_table(index=sizes, columns="fmt", values="latency_s").reset_index()
    for before in BEFORE:
        t = table.dropna(subset=[before, "nvfp4"])
        gain = t[before] / t.nvfp4
        old, new = (kernels.gemm_s(t.m, t.k, t.n, chip=chip, fmt=f, engine=engine) for f in (before, "nvfp4"))
        error, held = np.abs(old / new / gain - 1), measured.held_out(t.n, t.k)
        for regime, here in regimes(t).items():
            g, e = gain[here], error[here & held]
            quantiles = (f"{g.quantile(q):.2f}" for q in (0.5, 0.9, 0.999))
            shares = (f"{100 * (g < 1).mean():.1f}", f"{100 * (g >= 4).mean():.2f}")
            errors = (f"{100 * e.quantile(q):.1f}" for q in (0.5, 0.9))
            yield Row(chip, engine, before, regime, len(g), *quantiles, *shares, *errors)


def main(argv: tuple[str, ...] = ()) -> int:
    rows = [row for chip in CHIPS for engine in measured.ENGINES for row in rows_of(chip, engine)]
    for row in rows:
        print(*row)
    title = "gain of NVFP4 over another format, measured layers, and the error of ours in percent"
    text, path = validation.as_text("validate_gain", title, Row._fields, rows), validation.FOLDER / "gain.csv"
    if "--write" in argv:
        path.write_text(text, encoding="utf-8")
        return 0
    same = path.exists() and path.read_text(encoding="utf-8") == text
    print("gain.csv: " + ("as found" if same else "FAILED: differs from what was found"))
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
