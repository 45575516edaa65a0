"""Fits the numbers of collectives in data/calibration.csv on the measured tables; some seconds.

Rows are split by a checksum of ranks and bytes: one half is fitted, the other only judged. The published table of
TensorRT-LLM's all-to-all is too small to split: its errors are those of the fitted points.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import fitting
import measured
import numpy as np
import pandas as pd

from codesign_lib.cost import collectives
from codesign_lib.specs import hardware, published

LIMITS = {
    "hop_s": (2e-6, 1e-8, 1e-4),
    "first_s": (5e-6, 1e-8, 1e-4),
    "first_fraction": (0.1, 1e-4, 1.0),
    "second_s": (2e-5, 1e-7, 1e-3),
    "second_fraction": (0.7, 0.05, 1.0),
}
ENGINE_LIMITS = LIMITS | {"hop_s": (1e-6, 1e-8, 1e-4), "first_fraction": (0.5, 1e-3, 1.0)}
MOE_LIMITS = {
    "floor_s": (2e-5, 1e-6, 1e-3),
    "offset_s": (1e-5, 1e-7, 1e-3),
    "moved_bytes_per_s": (7e11, 1e10, 1e13),
}


class Table(NamedTuple):
    operation: str
    chip: str
    engine: str
    rows: pd.DataFrame


def tables() -> Iterator[Table]:
    for chip in measured.CHIPS:
        t = measured.nccl(chip)
        for operation, rows in t.groupby("op"):
            yield Table(operation, chip, "nccl", split(rows))
        for engine in measured.ENGINES:
            rows = measured.all_reduce(chip, engine)
            if chip == "gb300":
                rows = rows[rows.n_ranks <= 4]  # between trays engines take other paths, measured here alone
            yield Table("all_reduce", chip, engine, split(rows))


def split(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(held_out=measured.hashed(rows, ["n_ranks", "n_bytes"]))


def form_s(t: Table, rows: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
    sizes = (rows.n_bytes.to_numpy(float), rows.n_ranks.to_numpy(float))
    link = hardware.chip(t.chip).link_bytes_per_s
    return collectives.form_s(t.operation, *sizes, link_bytes_per_s=link, engine=t.engine, numbers=numbers)


def moe_rows() -> Iterator[dict]:
    table = published.table("moe_all_to_all")
    for phase in ("dispatch", "combine"):
        for ep in dict.fromkeys(table["ep"].tolist()):
            t = table.where(ep=ep)
            moved, latency_s = t["n_tokens"] * min(ep, 8) * 7168 * 2, t[f"{phase}_s"]

            def law(x: Mapping[str, float], moved=moved) -> np.ndarray:
                return np.maximum(x["floor_s"], x["offset_s"] + moved / x["moved_bytes_per_s"])

            limits = MOE_LIMITS | {"floor_s": (float(latency_s.min()), 1e-6, 1e-3)}
            numbers = fitting.rounded(fitting.solve(law, latency_s, limits))
            found = fitting.errors(law(numbers), latency_s)
            yield fitting.row(f"moe_{phase}", "gb200", "trtllm", f"ep{ep:.0f}", numbers, found, len(t), len(t))


def main() -> int:
    out = []
    for t in tables():
        seen, held = t.rows[~t.rows.held_out], t.rows[t.rows.held_out]
        limits = LIMITS if t.engine == "nccl" else ENGINE_LIMITS
        numbers = fitting.solve(lambda x, t=t, seen=seen: form_s(t, seen, x), seen.latency_s.to_numpy(), limits)
        numbers = fitting.rounded(numbers)
        found = fitting.errors(form_s(t, held, numbers), held.latency_s.to_numpy())
        out.append(fitting.row(*t[:3], "any", numbers, found, len(seen), len(held)))
        print(f"{' '.join(t[:3]):40s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers)
    out.sort(key=lambda r: collectives.OPERATIONS.index(r["kernel"]))
    out += moe_rows()
    fitting.replace_rows({*collectives.OPERATIONS, "moe_dispatch", "moe_combine"}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
