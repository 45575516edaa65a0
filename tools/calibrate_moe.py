"""Fits the numbers of the experts of a mixture in data/calibration.csv on the measured, balanced tables; half a minute.

Layers are split by a checksum of their sizes and of tp and ep (all token counts of a layer on the same side): one half
is fitted, the other only judged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import fitting
import measured
import numpy as np
import pandas as pd

from codesign_lib.cost import moe_kernels

LAYER = [*measured.MOE_LAYER, "tp", "ep"]
N_ROWS = 4000
LIMITS = {  # start, least, most
    "launch_s": (2e-5, 1e-7, 2e-4),
    "expert_s": (1e-8, 1e-11, 1e-6),
    "pair_log_s": (1e-6, 1e-9, 1e-4),
    "compute_fraction": (0.5, 0.02, 1.0),
    "memory_fraction": (0.7, 0.05, 1.0),
    "sort_fraction": (0.5, 0.005, 1.0),
    "tile_s": (5e-7, 1e-9, 5e-5),
}
LEAST_ROWS = 500  # of the fitting half; smaller tables hold two or three layers


class Table(NamedTuple):
    kernel: str
    chip: str
    engine: str
    fmt: str
    source: str
    gated: bool
    rows: pd.DataFrame


# SGLang routes DeepSeek's layer by groups, four of eight, whatever the table's column says: 32 tokens on one GPU take a
# time in which at most 148 of 256 experts can be read, and with expert parallelism the busiest rank computes up to
# five times its share
GROUPED = dict(d_model=7168, d_expert=2048, n_experts=256, n_chosen=8)


def tables(routing: str = "balanced", *, grouped: bool = False) -> Iterator[Table]:
    """All tables that are fitted: the kernels of ``moe_kernels.SOURCES``.

    ``grouped``: SGLang's rows of DeepSeek's layer instead, which are not, as their routing is not what it is called.
    """
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            t = measured.moe(chip, engine)
            of_group = np.all([t[name] == value for name, value in GROUPED.items()], axis=0) & (engine == "sglang")
            t = t[(t.routing == routing) & (of_group == grouped)]
            t = t.assign(held_out=measured.hashed(t, LAYER), second=measured.hashed(t, LAYER, 1))
            for (who, gated), formats in moe_kernels.SOURCES.items():
                for fmt, sources in formats.items() if who == engine else ():
                    of = [(s, t[(t.kernel == s) & (t.fmt == fmt) & (t.gated == gated)]) for s in sources.split()]
                    found = next(((s, rows) for s, rows in of if len(rows)), None)
                    if found and (~found[1].held_out).sum() >= LEAST_ROWS:
                        kernel = "moe_experts" if gated else "moe_experts_ungated"
                        yield Table(kernel, chip, engine, fmt, found[0], gated, found[1])


def form_s(t: Table, rows: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
    held = rows.n_experts / rows.ep
    pairs = rows.n_tokens * rows.n_chosen / rows.ep
    awake = np.minimum(held, np.maximum(1, pairs))
    sizes = (rows.n_tokens, rows.n_tokens * rows.n_chosen, pairs, awake, held, rows.d_model, rows.d_expert / rows.tp)
    return moe_kernels.form_s(*sizes, gated=t.gated, chip=t.chip, fmt=t.fmt, numbers=numbers)


def limits_of(engine: str, fmt: str) -> dict[str, tuple[float, float, float]]:
    """Six numbers: kernels generated for TensorRT-LLM, SGLang's too, sort; others have a cost an expert held."""
    without = "expert_s" if engine == "sglang" or fmt == "mxfp4" else "pair_log_s"
    return {name: x for name, x in LIMITS.items() if name != without}


def fit(t: Table, rows: pd.DataFrame) -> dict[str, float]:
    limits = limits_of(t.engine, t.fmt)
    latency_s = rows.latency_s.to_numpy()
    return fitting.rounded(fitting.solve(lambda x: form_s(t, rows, x), latency_s, limits))


def main() -> int:
    out = []
    for t in tables():
        seen, held = t.rows[~t.rows.held_out], t.rows[t.rows.held_out]
        seen = seen.sample(min(N_ROWS, len(seen)), random_state=0)
        numbers = fit(t, seen)
        found = fitting.errors(form_s(t, held, numbers), held.latency_s.to_numpy())
        out.append(fitting.row(*t[:4], numbers, found, len(seen), len(held)))
        print(f"{' '.join(t[:5]):70s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers, flush=True)
    kernels = dict.fromkeys(("moe_experts", "moe_experts_ungated"))
    fitting.replace_rows(set(kernels), sorted(out, key=lambda r: r["kernel"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
