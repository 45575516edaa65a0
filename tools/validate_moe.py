"""Hold the calibrated experts of a mixture against the full measured tables, and print every figure.

  python tools/validate_moe.py           evaluate, compare with data/validation/moe*.csv, fail on a difference
  python tools/validate_moe.py --write   evaluate and write those files

Errors are those on layers that no fit saw. A family is an engine's kernel in one format; its figure is the median over
chips, and a promise is on the median over families. Nothing is fitted here but the law of active experts on EP 1 and 8
that is then held against other EP.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import calibrate_moe as fits
import measured
import numpy as np
import pandas as pd
import validation
from validation import Check, Error

from codesign_lib.cost import calibration, moe_kernels

SKEWED = "power_law_1.2"
R1 = dict(d_model=7168, d_expert=2048, n_chosen=8, n_experts=256, tp=1)


def ours_s(t: fits.Table, rows: pd.DataFrame, **how) -> np.ndarray:
    return moe_kernels.moe_s(
        rows.n_tokens, d_model=rows.d_model, d_expert=rows.d_expert, n_experts=rows.n_experts,
        n_chosen=rows.n_chosen, ep=rows.ep, tp=rows.tp,
        **(dict(gated=t.gated, chip=t.chip, fmt=t.fmt, engine=t.engine) | how),
    )  # fmt: skip


def family(t: fits.Table) -> str:
    return f"{t.source} {t.fmt}" + ("" if t.gated or t.source.endswith("nongated") else ", not gated")


def errors_of(routing: str, bounds: list) -> Iterator[Error]:
    name = {"balanced": "balanced", SKEWED: "skewed"}[routing]
    for t in fits.tables(routing):
        held = t.rows[t.rows.held_out]
        ours = ours_s(t, held, routing=name)
        n = held.n_tokens
        regimes = {"tokens <= 256": n <= 256, "all": n > 0, "tokens >= 4096": n >= 4096}
        key = (t.chip, t.engine, family(t))
        yield from validation.judge(name, *key, ours, held.latency_s, regimes)
        if name == "balanced":
            bound = ours_s(t, held, bound=True)
            arithmetic = ours_s(t, held, bound=True, chip=validation.endless_memory(t.chip))
            bounds.append((ours, bound, held.latency_s, arithmetic))
            for source, regime in validation.sources(t.chip):
                if calibration.find(t.kernel, source, t.engine, t.fmt):
                    guess = ours_s(t, held, transfer_from=source)
                    yield from validation.judge("experts, transferred", *key, guess, held.latency_s, {regime: n > 0})
            only = {"tokens <= 256": n <= 256}
            yield from validation.judge("roofline", *key, bound, held.latency_s, only)


def grouped() -> Iterator[Error]:
    """SGLang's rows of DeepSeek's layer: routing limited to groups of experts, called balanced; no fit saw them."""
    for t in fits.tables(grouped=True):
        if calibration.find(t.kernel, t.chip, t.engine, t.fmt):
            n, alone = t.rows.n_tokens, t.rows.ep == 1
            key = ("routing by groups", t.chip, t.engine, family(t))
            shapes = {"EP 1, tokens <= 256": alone & (n <= 256), "EP 1, tokens >= 4096": alone & (n >= 4096),
                      "EP above 1, tokens <= 256": ~alone & (n <= 256), "EP above 1, tokens >= 4096": ~alone & (n >= 4096)}  # fmt: skip  # noqa: E501
            yield from validation.judge(*key, ours_s(t, t.rows), t.rows.latency_s, shapes)


def families(errors: list[Error]) -> list[Error]:
    """Of each family the median over chips, and the median over families of those."""
    out = []
    for what, regime in dict.fromkeys((e.what, e.regime) for e in errors):
        of: dict[tuple[str, str], list[Error]] = {}
        for e in errors:
            if (e.what, e.regime) == (what, regime):
                of.setdefault((e.engine, e.fmt), []).append(e)
        rows = [
            Error(
                what, "median", *key, regime, sum(e.n_rows for e in es), *map(float, np.median([e[6:] for e in es], 0))
            )
            for key, es in of.items()
        ]
        middle = map(float, np.median([e[6:] for e in rows], axis=0))
        out.append(Error(what, "median", "all", "families", regime, sum(e.n_rows for e in rows), *middle))
        out += rows
    return out


def promise(found: list[Error]) -> Check:
    e = next(x for x in found if (x.what, x.fmt, x.regime) == ("balanced", "families", "tokens <= 256"))
    holds, reached = (e.median_percent <= a and e.p90_percent <= b for a, b in ((10, 33), (8, 28)))
    verdict = ("holds" if holds else "FAILS") + f"; stretch 8/28 {'reached' if reached else 'missed'}"
    figures = f"{e.median_percent:.1f}/{e.p90_percent:.1f}"
    return Check("balanced, tokens <= 256, held out, families, median / p90", figures, "10/33", verdict)


def active_law() -> Iterator[Check]:
    """DeepSeek-R1's experts on GB300, at most 256 tokens: t₀ + a second an awake expert, from EP 1 and 8 alone."""
    table = measured.moe("gb300", "trtllm")
    table = table[(table.routing == "balanced") & (table.n_tokens <= 256)]
    layer = table[np.all([table[name] == value for name, value in R1.items()], axis=0)]
    for fmt, source in (("nvfp4", "moe_torch_flow_cutlass"), ("fp8_block", "deepgemm")):
        t = layer[(layer.fmt == fmt) & (layer.kernel == source)]
        pairs = t.n_tokens * t.n_chosen / t.ep
        awake = np.minimum(t.n_experts / t.ep, np.maximum(1, pairs))
        x, y = np.stack([np.ones(len(t)), awake], axis=1), t.latency_s.to_numpy()
        seen, told = t.ep.isin([1, 8]).to_numpy(), t.ep.isin([2, 4, 16, 32]).to_numpy()
        law = np.linalg.lstsq(x[seen] / y[seen, None], np.ones(seen.sum()), rcond=None)[0]
        error = 100 * np.abs(x[told] @ law / y[told] - 1)
        what = f"law of awake experts, gb300 trtllm {fmt}, EP 1 and 8 tell EP 2 4 16 32"
        only_told = fmt != "nvfp4"
        yield validation.at_most(f"{what}, mean |error|", float(error.mean()), 5, reported=only_told)
        yield validation.at_most(f"{what}, max |error|", float(error.max()), 20, reported=only_told)
        yield Check(f"{what}: launch µs, µs an expert", f"{1e6 * law[0]:.1f}, {1e6 * law[1]:.2f}", "", "reported")


def skew_costs() -> Iterator[Check]:
    """Skewed over balanced time at 16,384 tokens, TensorRT-LLM and SGLang, all chips and layers with tp 1."""
    tables = {x: {(t.chip, t.engine, t.source, t.fmt): t for t in fits.tables(x)} for x in ("balanced", SKEWED)}
    for ep in (8, 32):
        theirs, ours = [], []
        for key, t in tables["balanced"].items():
            names = [*fits.LAYER, "n_tokens"]
            rows = t.rows[(t.rows.ep == ep) & (t.rows.tp == 1) & (t.rows.n_tokens == 16_384)]
            both = rows.merge(tables[SKEWED][key].rows[[*names, "latency_s"]], on=names, suffixes=("", "_skewed"))
            theirs.append(both.latency_s_skewed / both.latency_s)
            ours.append(ours_s(t, both, routing="skewed") / ours_s(t, both))
        for name, x in (("measured", theirs), ("ours", ours)):
            ratio = float(np.median(np.concatenate(x)))
            yield Check(f"skewed over balanced, 16,384 tokens, EP {ep}, {name}, median", f"{ratio:.2f}", "", "reported")


def main(argv: tuple[str, ...] = ()) -> int:
    bounds: list = []
    errors = [*errors_of("balanced", bounds), *errors_of(SKEWED, bounds), *grouped()]
    summary = families(errors)
    checks = [promise(summary), *active_law(), *skew_costs()]
    checks += validation.never_below("experts", *(np.concatenate(x) for x in zip(*bounds, strict=True)))
    return validation.finish("validate_moe", "moe", "times of experts", summary + errors, checks, argv)


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:])))
