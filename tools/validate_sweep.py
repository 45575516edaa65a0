"""Send every real model config of the wheel aiconfigurator-core through a sweep (part of `make validate`).

On GB300 in NVFP4 and on H200 in FP8, cache in FP8, one to 72 GPUs of a domain (8 on H200), 1,024 tokens in and out.
The rest must be refused by name with a reason. Fails when fewer than 75 of the 89 come out on either chip, or when the
counts differ from the committed ``data/validation/sweep.csv`` (``--write`` writes it).
"""

from __future__ import annotations

import sys
import time
import warnings

import fitting
import measured
import numpy as np
from validate_configs import configs, name_of

from codesign_lib.serving import frontier
from codesign_lib.serving.layout import Workload
from codesign_lib.specs import models
from codesign_lib.specs.formats import Precision

N_MIN = 75
LOAD = Workload(n_input=1024, n_output=1024, n_concurrent=4 ** np.arange(6))
MIXES = {
    "gb300": Precision(weights="nvfp4", activations="nvfp4", kv="fp8"),
    "h200_sxm": Precision(weights="fp8_block", activations="fp8_block", kv="fp8"),
}
# sizes that do not divide into the format's blocks are served in BF16, experts and all
WIDE = Precision(weights="bf16", activations="bf16", kv="fp8")
SIZES = {"gb300": (1, 4, 8, 16, 72), "h200_sxm": (1, 2, 4, 8)}
COLUMNS = ("name", "chip", "format", "n_tried", "n_kept", "fastest_tokens_per_s", "most_tokens_per_s")


def swept(name: str, model: models.Model, chip: str) -> list[tuple]:
    """A row of results, or none where it is refused; the reason is printed."""
    reasons = []
    for title, mix in (("4 or 8 bit", MIXES[chip]), ("bf16", WIDE)):
        try:
            found = frontier.sweep(model, chip, n_chips=SIZES[chip], workload=LOAD, precisions=mix)
        except ValueError as refused:
            reasons.append(str(refused).splitlines()[0])
            continue
        fast, many = found["interactivity_per_s"].max(), found["throughput_per_s"].max()
        return [(name, chip, title, found.n_tried, len(found), f"{fast:.4g}", f"{many:.4g}")]
    print(f"refused on {chip}: {name}: {reasons[-1][:300]}")
    return []


def main(argv: tuple[str, ...] = ()) -> int:
    rows, start, paths = [], time.perf_counter(), configs()
    for path in paths:
        name = name_of(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = models.Model.from_config(path, name=name)
        except ValueError as refused:
            print(f"refused: {name}: {refused}")
            continue
        for chip in MIXES:
            rows += swept(name, model, chip)
    bad = []
    for chip in MIXES:
        n = sum(row[1] == chip for row in rows)
        print(f"{chip}: {n} of {len(paths)} configs swept (at least {N_MIN})")
        bad += [f"fewer than {N_MIN} on {chip}"] if n < N_MIN else []
    print(f"{sum(row[3] for row in rows):,} points in {time.perf_counter() - start:.1f} s")
    head = (
        "# title: every real model config through a sweep, 1,024 tokens in and out: points tried and kept, fastest "
        "tokens/s/user and most tokens/s/GPU, by our model\n"
        f"# source: configs of {measured.PACKAGE}, model_configs\n# version: {measured.package_version()}\n"
        f"# date: {fitting.DATE}\n# licence: {measured.LICENCE}\n# drawn_by: tools/validate_sweep.py --write\n"
    )
    text = head + ",".join(COLUMNS) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    path = fitting.DATA / "validation" / "sweep.csv"
    if "--write" in argv:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        bad.append("data/validation/sweep.csv is not what was found")
    print("\n".join(bad) or "all as committed")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
