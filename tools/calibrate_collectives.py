"""Fits the numbers of collectives in data/calibration.csv on the measured tables; some seconds.

Rows are split by a checksum of ranks and bytes: one half is fitted, the other only judged. The published table of
TensorRT-LLM's all-to-all is too small to split: its errors are those of each point left out in turn.
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
# which protocol is which: the first is the slow one, quick to start
NCCL_LIMITS = LIMITS | {"first_fraction": (0.1, 1e-4, 0.5), "second_fraction": (0.7, 0.5, 1.0)}
NCCL_LIMITS |= {"own_fraction": (0.5, 1e-3, 1.0)}
ENGINE_LIMITS = LIMITS | {"hop_s": (1e-6, 1e-8, 1e-4), "first_fraction": (0.5, 1e-3, 1.0)}
MOE_LIMITS = {
    "floor_s": (2e-5, 1e-6, 1e-3),
    "offset_s": (1e-5, 1e-7, 1e-3),
    "moved_bytes_per_s": (7e11, 1e10, 1e13),
}


class Table(NamedTuple):
    kernel: str
    operation: str
    chip: str
    engine: str
    rows: pd.DataFrame


def tables() -> Iterator[Table]:
    for chip in measured.CHIPS:
        t = measured.nccl(chip)
        for operation, rows in t.groupby("op"):
            yield Table(operation, operation, chip, "nccl", split(rows))
        inside = collectives.node_ranks(hardware.chip(chip))
        for engine in measured.ENGINES:
            rows = measured.all_reduce(chip, engine)
            yield Table("all_reduce", "all_reduce", chip, engine, split(rows[rows.n_ranks <= inside]))
            between = rows[rows.n_ranks > inside]
            if engine == "trtllm" and len(between):  # SGLang takes NCCL there
                yield Table(collectives.BETWEEN_TRAYS, "all_reduce", chip, engine, split(between))


def split(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(held_out=measured.hashed(rows, ["n_ranks", "n_bytes"]))


def form_s(t: Table, rows: pd.DataFrame, numbers: Mapping[str, float]) -> np.ndarray:
    sizes = (rows.n_bytes.to_numpy(float), rows.n_ranks.to_numpy(float))
    link = hardware.chip(t.chip).link_bytes_per_s
    return collectives.form_s(t.operation, *sizes, link_bytes_per_s=link, engine=t.engine, numbers=numbers)


def moe_law_s(moved: np.ndarray, x: Mapping[str, float]) -> np.ndarray:
    return np.maximum(x["floor_s"], x["offset_s"] + moved / x["moved_bytes_per_s"])


def fit_moe(moved: np.ndarray, latency_s: np.ndarray) -> dict[str, float]:
    limits = MOE_LIMITS | {"floor_s": (float(latency_s.min()), 1e-6, 1e-3)}
    return fitting.rounded(fitting.solve(lambda x: moe_law_s(moved, x), latency_s, limits))


def moe_points(phase: str, ep: float) -> tuple[np.ndarray, np.ndarray]:
    t = published.table("moe_all_to_all").where(ep=float(ep))
    return t["n_tokens"] * min(ep, 8) * 7168 * 2, t[f"{phase}_s"]


def left_out_s(phase: str, ep: float) -> np.ndarray:
    """Each published point by the law fitted to the others."""
    moved, latency_s = moe_points(phase, ep)
    others = [np.arange(len(moved)) != i for i in range(len(moved))]
    return np.array([moe_law_s(m, fit_moe(moved[o], latency_s[o])) for m, o in zip(moved, others, strict=True)])


def moe_rows() -> Iterator[dict]:
    for phase in ("dispatch", "combine"):
        for ep in dict.fromkeys(published.table("moe_all_to_all")["ep"].tolist()):
            moved, latency_s = moe_points(phase, ep)
            held = fitting.errors(left_out_s(phase, ep), latency_s)
            key = (f"moe_{phase}", "gb200", "trtllm", f"ep{ep:.0f}", fit_moe(moved, latency_s))
            yield fitting.row(*key, held, len(moved), len(moved))


STARTS = (0.02, 0.1)  # of first_fraction: the fit has more than one valley


def fit(t: Table, seen: pd.DataFrame) -> dict[str, float]:
    limits, latency_s = NCCL_LIMITS if t.engine == "nccl" else ENGINE_LIMITS, seen.latency_s.to_numpy()
    starts = STARTS if t.engine == "nccl" else (ENGINE_LIMITS["first_fraction"][0],)
    found = []
    for start in starts:
        within = limits | {"first_fraction": (start, *limits["first_fraction"][1:])}
        found.append(fitting.rounded(fitting.solve(lambda x: form_s(t, seen, x), latency_s, within)))
    return min(found, key=lambda x: np.mean(np.abs(np.log(form_s(t, seen, x) / latency_s))))


def main() -> int:
    out = []
    for t in tables():
        seen, held = t.rows[~t.rows.held_out], t.rows[t.rows.held_out]
        numbers = fit(t, seen)
        found = fitting.errors(form_s(t, held, numbers), held.latency_s.to_numpy())
        out.append(fitting.row(t.kernel, t.chip, t.engine, "any", numbers, found, len(seen), len(held)))
        print(f"{t.kernel} {t.chip} {t.engine:20s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers)
    kernels = (*collectives.OPERATIONS, collectives.BETWEEN_TRAYS)
    out.sort(key=lambda r: kernels.index(r["kernel"]))
    out += moe_rows()
    fitting.replace_rows({*kernels, "moe_dispatch", "moe_combine"}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
