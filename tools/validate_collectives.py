"""Hold the calibrated collectives against the full measured tables, and print every figure.

  python tools/validate_collectives.py           evaluate, compare with data/validation/collectives*.csv
  python tools/validate_collectives.py --write   evaluate and write those files

Errors are those on rows that no fit saw, but for TensorRT-LLM's all-to-all: five published points an EP, all fitted,
and each left out in turn. Nothing else is fitted here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import calibrate_collectives as fits
import measured
import numpy as np
import pandas as pd
import validation
from validation import Check, Error

from codesign_lib.cost import calibration, collectives
from codesign_lib.specs import published


def errors(bounds: list) -> Iterator[Error]:
    for t in fits.tables():
        rows = t.rows[t.rows.held_out]
        how = dict(engine=t.engine) if t.operation == "all_reduce" else {}
        ours, bound = seconds(t, rows, **how), seconds(t, rows, bound=True)
        bounds.append((ours, bound, rows.latency_s))
        what = "NCCL" if t.engine == "nccl" else "engine's all-reduce"
        if t.kernel == collectives.BETWEEN_TRAYS:
            what = "engine's all-reduce, 8 and 16 ranks"
        regimes = {"all": rows.n_bytes > 0, "up to 1 MiB": rows.n_bytes <= 2**20, "above": rows.n_bytes > 2**20}
        key = (t.chip, t.engine, t.operation)
        yield from validation.judge(what, *key, ours, rows.latency_s, regimes)
        for source, name in validation.sources(t.chip):
            if calibration.find(t.kernel, source, t.engine, "any"):
                guess = seconds(t, rows, **how, transfer_from=source)
                yield from validation.judge(f"{what}, transferred", *key, guess, rows.latency_s, {name: regimes["all"]})


def seconds(t: fits.Table, rows: pd.DataFrame, **how) -> np.ndarray:
    return getattr(collectives, f"{t.operation}_s")(rows.n_bytes, n_ranks=rows.n_ranks, chip=t.chip, **how)


def rack() -> Iterator[Error]:
    """SGLang's all-reduce on 8 and 16 GPUs of a rack, which is NCCL's, by NCCL's numbers of 2 and 4."""
    t = measured.all_reduce("gb300", "sglang")
    for n_ranks, rows in t[t.n_ranks > 4].groupby("n_ranks"):
        ours = collectives.all_reduce_s(rows.n_bytes, n_ranks=rows.n_ranks, chip="gb300", engine="sglang")
        what = "NCCL on more ranks than were fitted"
        regimes = {f"{n_ranks} ranks": rows.n_bytes > 0}
        yield from validation.judge(what, "gb300", "sglang", "all_reduce", ours, rows.latency_s, regimes)


def experts() -> Iterator[Check]:
    """TensorRT-LLM's all-to-all against its published table, each EP fitted with three numbers to five points."""
    table = published.table("moe_all_to_all")
    for phase in ("dispatch", "combine"):
        for ep in (8, 16, 32, 64):
            t = table.where(ep=float(ep))
            ours = collectives.moe_all_to_all_s(t["n_tokens"], phase=phase, ep=ep)
            mean = 100 * float(np.mean(np.abs(ours / t[f"{phase}_s"] - 1)))
            what = f"{phase} EP {ep}, five points"
            yield validation.at_most(f"{what}, fitted, mean |error|", mean, 5, reported=ep == 64)
            left = 100 * float(np.mean(np.abs(fits.left_out_s(phase, ep) / t[f"{phase}_s"] - 1)))
            yield validation.at_most(f"{what}, each left out in turn, mean |error|", left, 5, reported=True)


def main(argv: tuple[str, ...] = ()) -> int:
    bounds: list = []
    found = [*errors(bounds), *rack()]
    checks = [
        validation.promise(found, "NCCL", "all", (10, 25), (7, 18)),
        validation.promise(found, "engine's all-reduce", "all", (7, 29)),
        *experts(),
        *validation.never_below("collectives", *(np.concatenate(x) for x in zip(*bounds, strict=True))),
    ]
    summary = validation.medians(found) + found
    return validation.finish("validate_collectives", "collectives", "times of collectives", summary, checks, argv)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
