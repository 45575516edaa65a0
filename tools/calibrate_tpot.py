"""Fit what serving takes beside kernels: three constants for all models, chips, engines and formats.

  python tools/calibrate_tpot.py           fit, print errors
  python tools/calibrate_tpot.py --write   and write data/serving_overhead.csv

Fitted to the decode times of one model family alone (Llama-3.1), kernels untouched: seconds of the host a step, more of
them in vLLM, and seconds a running sequence. tools/validate_tpot.py judges them on what is held out: Qwen3-32B, whose
rows are all of H100, and, by fits of its own, each chip in turn.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import fitting
import measured
import numpy as np
import pandas as pd
import silicon

from codesign_lib.serving import end_to_end
from codesign_lib.serving.layout import Layout
from codesign_lib.serving.memory import max_batch
from codesign_lib.specs.formats import Precision

FITTED = "llama_3_1"  # the family; all others are held out
NAMES = ("step_s", "vllm_step_s", "sequence_s")
LIMITS = {"step_s": (1e-3, 1e-6, 1e-2), "vllm_step_s": (1e-3, 1e-6, 1e-2), "sequence_s": (1e-5, 1e-8, 1e-3)}
GROUP = ["model", "chip", "engine", "fmt"]
# the checkpoints' hf_quant_config.json: FP8 per tensor and NVFP4 ones quantise the cache, FP8 block ones do not
CACHE = {"fp8": "fp8", "nvfp4": "fp8", "mxfp4": "fp8"}


def precision(fmt: str) -> Precision:
    if fmt == "mxfp4":  # gpt-oss: experts alone
        return Precision(weights="bf16", activations="bf16", kv="fp8", experts="mxfp4")
    return Precision(weights=fmt, activations=fmt, kv=CACHE.get(fmt, "bf16"))


class Parts(NamedTuple):
    """Of every row: seconds without the constants, whether the engine is vLLM, running sequences of a replica."""

    base_s: np.ndarray
    vllm: np.ndarray
    sequences: np.ndarray


def layout_of(rows: pd.DataFrame) -> Layout:
    axes = ("tp_attention", "dp", "tp_ffn", "ep", "pp")
    return Layout(**{a: rows[a].to_numpy().astype(np.int64) for a in axes})


def running(model: str, chip: str, rows: pd.DataFrame, mix: Precision) -> np.ndarray:
    """Sequences at once: as many as were sent, or as fit (the others wait)."""
    n_context = np.ceil(rows.n_input + rows.n_output / 2).to_numpy()
    most = max_batch(model, chip, layout=layout_of(rows), n_context=n_context, precision=mix)
    return np.maximum(np.minimum(rows.n_concurrent.to_numpy(), most), rows.dp.to_numpy())


def served(group: tuple, rows: pd.DataFrame, **how) -> end_to_end.Served:
    model, chip, engine, fmt = group
    mix = precision(fmt)
    return end_to_end.aggregated(
        model, chip, layout=layout_of(rows), batch=running(model, chip, rows, mix), n_input=rows.n_input.to_numpy(),
        n_output=rows.n_output.to_numpy(), precision=mix, engine=engine, **how,
    )  # fmt: skip


def parts(rows: pd.DataFrame) -> Parts:
    """What the fit needs, computed once: the constants enter linearly."""
    base, sequences = pd.Series(np.nan, rows.index), pd.Series(np.nan, rows.index)
    for group, of in rows.groupby(GROUP):
        model, chip, engine, fmt = group
        found = served(group, of)
        used = end_to_end.constants(engine)
        n = np.ceil(running(model, chip, of, precision(fmt)) / of.dp.to_numpy())
        base[of.index] = found.tpot_s - used["step_s"] - used["sequence_s"] * n
        sequences[of.index] = n
    return Parts(base.to_numpy(), (rows.engine == "vllm").to_numpy(), sequences.to_numpy())


def tpot_s(x: dict[str, float], p: Parts) -> np.ndarray:
    return p.base_s + x["step_s"] + x["vllm_step_s"] * p.vllm + x["sequence_s"] * p.sequences


def fit(p: Parts, rows: pd.DataFrame) -> dict[str, float]:
    return fitting.rounded(fitting.solve(lambda x: tpot_s(x, p), rows.tpot_s.to_numpy(), LIMITS))


def subset(p: Parts, keep: np.ndarray) -> Parts:
    return Parts(*(x[keep] for x in p))


def text(x: dict[str, float], n_rows: int) -> str:
    head = (
        "# title: seconds that a decode step takes beside its kernels, and less the launches of linear layers: of the "
        "host a step, and a running sequence of a replica\n"
        f"# source: fitted to {n_rows} decode times of Llama-3.1-70B and 8B in {measured.PACKAGE}, "
        "systems/silicon_sample.csv; no other model, and no kernel, was fitted\n"
        f"# version: {measured.package_version()}\n# date: {fitting.DATE}\n# licence: {measured.LICENCE}\n"
        "# drawn_by: tools/calibrate_tpot.py --write\n"
    )
    steps = {"trtllm": x["step_s"], "sglang": x["step_s"], "vllm": x["step_s"] + x["vllm_step_s"]}
    lines = [f"{engine},{step:.4g},{x['sequence_s']:.4g}" for engine, step in steps.items()]
    return head + "engine,step_s,sequence_s\n" + "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    rows = silicon.dense()
    p, family = parts(rows), rows.model.str.startswith(FITTED).to_numpy()
    found = fit(subset(p, family), rows[family])
    print(found)
    for name, keep in (("fitted", family), ("others", ~family)):
        median, p90, bias = fitting.errors(tpot_s(found, subset(p, keep)), rows.tpot_s[keep].to_numpy())
        print(f"{name}: {keep.sum()} rows, {100 * median:.1f} / {100 * p90:.1f} (bias {100 * bias:+.1f}) %")
    if "--write" in argv:
        (fitting.DATA / "serving_overhead.csv").write_text(text(found, int(family.sum())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
