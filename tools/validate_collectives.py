"""Hold the calibrated collectives against the full measured tables, and print every figure.

  python tools/validate_collectives.py           evaluate, compare with data/validation/collectives*.csv
  python tools/validate_collectives.py --write   evaluate and write those files

Errors are those on rows that no fit saw. Nothing is fitted here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import calibrate_collectives as fits
import numpy as np
import validation
from validation import Check, Error

from codesign_lib.cost import collectives
from codesign_lib.specs import published


def errors(bounds: list) -> Iterator[Error]:
    for t in fits.tables():
        rows = t.rows[t.rows.held_out]
        function = getattr(collectives, f"{t.operation}_s")
        how = dict(engine=t.engine) if t.operation == "all_reduce" else {}
        ours, bound = (function(rows.n_bytes, n_ranks=rows.n_ranks, chip=t.chip, **x) for x in (how, dict(bound=True)))
        bounds.append((ours, bound, rows.latency_s))
        what = "NCCL" if t.engine == "nccl" else "engine's all-reduce"
        regimes = {"all": rows.n_bytes > 0, "up to 1 MiB": rows.n_bytes <= 2**20, "above": rows.n_bytes > 2**20}
        yield from validation.judge(what, t.chip, t.engine, t.operation, ours, rows.latency_s, regimes)


def experts() -> Iterator[Check]:
    """TensorRT-LLM's all-to-all against its published table, each EP fitted with three numbers to five points."""
    table = published.table("moe_all_to_all")
    for phase in ("dispatch", "combine"):
        for ep in (8, 16, 32, 64):
            t = table.where(ep=float(ep))
            ours = collectives.moe_all_to_all_s(t["n_tokens"], phase=phase, ep=ep)
            mean = 100 * float(np.mean(np.abs(ours / t[f"{phase}_s"] - 1)))
            yield validation.at_most(f"{phase} EP {ep}, five points, mean |error|", mean, 5, reported=ep == 64)


def main(argv: tuple[str, ...] = ()) -> int:
    bounds: list = []
    found = list(errors(bounds))
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
