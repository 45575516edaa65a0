"""Fits the numbers of data/calibration.csv and data/gemm_steps.csv on the measured tables. Nothing else fits.

Run as ``python tools/calibrate.py`` in an environment with requirements-validation.txt; about two minutes.
Layers are split by a checksum of (n, k): one half is fitted, the other only judged. Whatever was chosen between
(tiles, splitting, stores, whether engines share their numbers) was chosen on the fitting half, split once more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import fitting
import gemm_steps
import measured
import numpy as np
from fitting import DATA, errors, rounded, row
from scipy.optimize import least_squares

from codesign_lib.cost import experts, kernels
from codesign_lib.specs import formats, hardware

FMTS = ("bf16", "fp8", "fp8_block", "nvfp4")
N_ROWS = 8000  # rows a table in one fit, drawn evenly over the fitting half
N_ROWS_STEPS = 2500
LOSS_SCALE = 0.1  # errors beyond 10 % count linearly, not squared
SHARE_TOLERANCE = 1.02  # engines share numbers where the mean |log error| on the second split grows by at most 2 %
LIMITS = {  # start, least, most; efficiencies are at most 1
    "launch_s": (4e-6, 1e-7, 5e-5),
    "compute_fraction": (0.7, 0.05, 1.0),
    "memory_fraction": (0.75, 0.05, 1.0),
    "quantise_fraction": (0.5, 0.02, 1.0),
    "split_s": (4e-6, 1e-7, 1e-3),
    "operand_bytes_per_s": (2e11, 1e9, 5e12),
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """Measured rows of one chip, engine and format, all floats."""

    chip: hardware.Chip
    engine: str
    fmt: formats.Format
    m: np.ndarray
    k: np.ndarray
    n: np.ndarray
    latency_s: np.ndarray
    held_out: np.ndarray
    second: np.ndarray
    own_kernel: kernels.Kernel | None = None  # another than the engine's, to compare forms

    def rows(self, which: np.ndarray) -> Table:
        cut = {name: getattr(self, name)[which] for name in ("m", "k", "n", "latency_s", "held_out", "second")}
        return replace(self, **cut)

    def draw(self, n_rows: int, seed: int) -> Table:
        if len(self.m) <= n_rows:
            return self
        return self.rows(np.sort(np.random.default_rng(seed).choice(len(self.m), n_rows, replace=False)))

    @property
    def kernel(self) -> kernels.Kernel:
        return self.own_kernel or kernels.KERNELS[self.engine, self.fmt.name]

    def form_s(self, numbers: Mapping[str, float]) -> np.ndarray:
        return kernels.form_s(self.m, self.k, self.n, chip=self.chip, fmt=self.fmt, kernel=self.kernel, numbers=numbers)

    def step_s(self, step: str, numbers: Mapping[str, float]) -> np.ndarray:
        return gemm_steps.step_s(
            step, self.m, self.k, self.n, chip=self.chip, fmt=self.fmt, kernel=self.kernel, numbers=numbers
        )


def load() -> dict[tuple[str, str, str], Table]:
    """All tables that are fitted, by (chip, engine, format)."""
    found = {}
    for chip in measured.CHIPS:
        for engine in measured.ENGINES:
            for fmt, rows in measured.gemm(chip, engine).groupby("fmt"):
                found[chip, engine, fmt] = as_table(hardware.chip(chip), engine, fmt, rows)
    return found


def as_table(chip: hardware.Chip, engine: str, fmt: str, rows) -> Table:
    sizes = {name: rows[name].to_numpy(np.float64) for name in ("m", "k", "n", "latency_s")}
    held_out, second = (measured.held_out(rows.n, rows.k, bit) for bit in (0, 1))
    return Table(chip=chip, engine=engine, fmt=formats.as_format(fmt), held_out=held_out, second=second, **sizes)


def fit(names: list[str], predict: Callable[[np.ndarray], list[np.ndarray]], seen: list[Table], kinds=None):
    """Numbers that minimise a robust loss of log(prediction / measurement), all tables weighing the same."""
    kinds = kinds or names
    start, low, high = (np.log([LIMITS[kind][i] for kind in kinds]) for i in range(3))
    measurements = [np.log(t.latency_s) for t in seen]
    weights = [len(seen[0].m) / len(t.m) for t in seen]

    def residuals(x: np.ndarray) -> np.ndarray:
        pairs = zip(predict(np.exp(x)), measurements, weights, strict=True)
        return np.concatenate([np.sqrt(w) * (np.log(p) - y) for p, y, w in pairs])

    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=LOSS_SCALE, diff_step=1e-4, xtol=1e-10, ftol=1e-10
    )
    return dict(zip(names, np.exp(found.x), strict=True))


def fit_alone(seen: Table) -> dict[str, float]:
    names = list(gemm_steps.numbers_of(gemm_steps.STEPS[-1], seen.kernel, seen.fmt))
    return fit(names, lambda x: [seen.form_s(dict(zip(names, x, strict=True)))], [seen])


def fit_shared(seen: list[Table]) -> list[dict[str, float]]:
    """One set for several engines of one kernel, ``launch_s`` an engine."""
    names = list(gemm_steps.numbers_of(gemm_steps.STEPS[-1], seen[0].kernel, seen[0].fmt))[1:]

    def sets(x: np.ndarray) -> list[dict[str, float]]:
        common = dict(zip(names, x[len(seen) :], strict=True))
        return [{"launch_s": launch_s} | common for launch_s in x[: len(seen)]]

    kinds = ["launch_s"] * len(seen) + names
    labels = [f"{i}{kind}" for i, kind in enumerate(kinds)]
    found = fit(labels, lambda x: [t.form_s(s) for t, s in zip(seen, sets(x), strict=True)], seen, kinds)
    return sets(np.array(list(found.values())))


UNIVERSAL = (
    [("bf16", "launch_s", "trtllm sglang")]
    + [(fmt, "launch_s", engine) for fmt in FMTS[1:] for engine in measured.ENGINES]
    + [(fmt, name, "trtllm sglang") for fmt in FMTS for name in ("compute_fraction", "memory_fraction")]
    + [(fmt, "quantise_fraction", "trtllm sglang") for fmt in FMTS[1:]]
    + [
        ("bf16", "operand_bytes_per_s", "trtllm sglang"),
        ("fp8 fp8_block nvfp4", "operand_bytes_per_s", "trtllm sglang"),
    ]
    + [("bf16 fp8", "split_s", "trtllm sglang")]
)
"""The 21 numbers of the universal set: formats, number, engines."""


def universal_numbers(x, engine: str, fmt: str) -> dict[str, float]:
    names = gemm_steps.numbers_of(gemm_steps.STEPS[-1], kernels.KERNELS[engine, fmt], formats.as_format(fmt))
    found = {
        name: value
        for (fmts, name, engines), value in zip(UNIVERSAL, x, strict=True)
        if fmt in fmts.split() and engine in engines.split()
    }
    return {name: found[name] for name in names}


def fit_universal(seen: list[Table]) -> np.ndarray:
    labels = [f"{fmts} {name} {engines}" for fmts, name, engines in UNIVERSAL]
    predict = lambda x: [t.form_s(universal_numbers(x, t.engine, t.fmt.name)) for t in seen]  # noqa: E731
    found = fit(labels, predict, seen, [name for _, name, _ in UNIVERSAL])
    return np.array(list(found.values()))


def log_error(t: Table, numbers: Mapping[str, float]) -> float:
    return float(np.mean(np.abs(np.log(t.form_s(numbers) / t.latency_s))))


def calibrate(tables: dict[tuple[str, str, str], Table]) -> list[dict]:
    rows = []
    for fmt in FMTS:
        for chip in measured.CHIPS:
            pair = [tables[chip, engine, fmt] for engine in measured.ENGINES if (chip, engine, fmt) in tables]
            if not pair:
                continue
            seen = [t.rows(~t.held_out).draw(N_ROWS, i) for i, t in enumerate(pair)]
            sets, shared = [fit_alone(t) for t in seen], ""
            if pair[0].kernel == pair[1].kernel:
                first = [t.rows(~t.held_out & ~t.second).draw(N_ROWS, i) for i, t in enumerate(pair)]
                second = [t.rows(~t.held_out & t.second) for t in pair]
                alone = np.mean([log_error(s, fit_alone(f)) for f, s in zip(first, second, strict=True)])
                common = np.mean([log_error(s, x) for s, x in zip(second, fit_shared(first), strict=True)])
                print(f"{chip:10s} {fmt:10s} sharing: {alone:.4f} alone, {common:.4f} shared")
                if common <= SHARE_TOLERANCE * alone:
                    sets, shared = fit_shared(seen), "shared"
            for t, numbers in zip(pair, sets, strict=True):
                held, numbers = t.rows(t.held_out), rounded(numbers)
                found = errors(held.form_s(numbers), held.latency_s)
                other = next(e for e in measured.ENGINES if e != t.engine) if shared else ""
                n_fitted = len(seen[pair.index(t)].m)
                rows.append(row("gemm", chip, t.engine, fmt, numbers, found, n_fitted, len(held.m), other))
                print(f"{chip:10s} {t.engine:7s} {fmt:10s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers)
    return rows


def calibrate_universal(tables: dict[tuple[str, str, str], Table]) -> list[dict]:
    seen = [t.rows(~t.held_out).draw(N_ROWS_STEPS, i) for i, t in enumerate(tables.values())]
    x, rows = fit_universal(seen), []
    for fmt in FMTS:
        for engine in measured.ENGINES:
            numbers = rounded(universal_numbers(x, engine, fmt))
            held = [t.rows(t.held_out) for t in tables.values() if (t.engine, t.fmt.name) == (engine, fmt)]
            found = np.median([errors(t.form_s(numbers), t.latency_s) for t in held], axis=0)
            n = sum(len(t.m) for t in held)
            rows.append(row("gemm", "universal", engine, fmt, numbers, tuple(found), N_ROWS_STEPS * len(held), n))
            print(f"universal  {engine:7s} {fmt:10s} {100 * found[0]:5.1f} / {100 * found[1]:4.1f}", numbers)
    return rows


def fit_step(step: str, seen: Table) -> dict[str, float]:
    names = list(gemm_steps.numbers_of(step, seen.kernel, seen.fmt))
    if not names:
        return {}
    return fit(names, lambda x: [seen.step_s(step, dict(zip(names, x, strict=True)))], [seen])


def calibrate_steps(tables: dict[tuple[str, str, str], Table]) -> list[dict]:
    rows = []
    for (chip, engine, fmt), t in tables.items():
        seen, held = t.rows(~t.held_out).draw(N_ROWS_STEPS, 0), t.rows(t.held_out)
        for step in gemm_steps.STEPS:
            numbers = rounded(fit_step(step, seen))
            found = errors(held.step_s(step, numbers), held.latency_s)
            rows.append(row(step, chip, engine, fmt, numbers, found, len(seen.m), len(held.m)))
    return rows


def moe_points() -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds of the published MoE layer."""
    points = np.loadtxt(DATA / "moe_dense_b200.csv", delimiter=",", skiprows=7)
    return points[:, 0], points[:, 2]


MOE_NUMBERS = ("launch_s", "expert_s", "token_s")
N_MOE_NUMBERS = 2  # the third lowers the error on fitted points and raises it on points left out


def fit_moe(m: np.ndarray, latency_s: np.ndarray, n_numbers: int = N_MOE_NUMBERS) -> dict[str, float]:
    x = np.stack([np.ones_like(m), experts.active_experts(m, n_experts=256, n_chosen=8), m], axis=1)[:, :n_numbers]
    found = np.linalg.lstsq(x / latency_s[:, None], np.ones_like(m), rcond=None)[0]
    return dict(zip(MOE_NUMBERS, found, strict=False))


def moe_left_out_s(n_numbers: int = N_MOE_NUMBERS) -> np.ndarray:
    """Each point predicted by the law fitted to the others."""
    m, latency_s = moe_points()
    others = [np.arange(len(m)) != i for i in range(len(m))]
    fits = [fit_moe(m[o], latency_s[o], n_numbers) for o in others]
    return np.array([experts.moe_law_s(x, n_experts=256, n_chosen=8, numbers=f) for x, f in zip(m, fits, strict=True)])


def calibrate_moe() -> dict:
    """One MoE layer of an engine: launch, experts that are read, tokens. Errors leave one point out at a time."""
    m, latency_s = moe_points()
    held = errors(moe_left_out_s(), latency_s)
    return row("moe_layer", "b200_sxm", "trtllm", "nvfp4", rounded(fit_moe(m, latency_s)), held, len(m), len(m))


def main() -> int:
    tables = load()
    rows = calibrate(tables) + calibrate_universal(tables) + [calibrate_moe()]
    fitting.replace_rows({"gemm", "moe_layer"}, rows)
    steps = calibrate_steps(tables)
    fitting.write(DATA / "gemm_steps.csv", "GEMM forms between roofline and calibration, fitted", steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
