"""What all fits share: a robust loss, errors on held-out rows, and the file of fitted numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import measured
import numpy as np
from scipy.optimize import least_squares

DATA = Path(__file__).parents[1] / "codesign_lib" / "data"
DATE = "2026-11-30"
LOSS_SCALE = 0.1  # errors beyond 10 % count linearly, not squared
COLUMNS = (
    "kernel", "chip", "engine", "fmt", "shared_with", "n_fitted", "n_held_out",
    "median_error_fraction", "p90_error_fraction", "bias_fraction", "numbers",
)  # fmt: skip


def solve(
    form: Callable[[Mapping[str, float]], np.ndarray],
    latency_s: np.ndarray,
    limits: Mapping[str, tuple[float, float, float]],
) -> dict[str, float]:
    """Numbers by name that minimise a robust loss of log(form / latency); ``limits`` are start, least and most."""
    names, (start, low, high) = list(limits), np.log(np.array(list(limits.values())).T)
    measured_log = np.log(latency_s)

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(form(dict(zip(names, np.exp(x), strict=True)))) - measured_log

    found = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=LOSS_SCALE, diff_step=1e-4)
    return dict(zip(names, np.exp(found.x), strict=True))


def errors(prediction_s: np.ndarray, latency_s: np.ndarray) -> tuple[float, float, float]:
    """Median and 90th percentile of |error|, median of the signed error."""
    error = prediction_s / latency_s - 1
    return float(np.median(np.abs(error))), float(np.quantile(np.abs(error), 0.9)), float(np.median(error))


def row(kernel, chip, engine, fmt, numbers, held: tuple, n_fitted: int, n_held_out: int, shared_with="") -> dict:
    written = " ".join(f"{name}={value:.4g}" for name, value in numbers.items())
    median, p90, bias = (f"{value:.4f}" for value in held)
    values = (kernel, chip, engine, fmt, shared_with, n_fitted, n_held_out, median, p90, bias, written)
    return dict(zip(COLUMNS, values, strict=True))


def rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """As they are written: what is judged is what is used."""
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def write(path: Path, title: str, rows: list[dict]) -> None:
    out = io.StringIO()
    out.write(f"# title: {title}\n# source: fitted to tables of {measured.PACKAGE}\n")
    versions = ", ".join(f"{e} {measured.VERSIONS[e]}" for e in measured.ENGINES)
    out.write(f"# version: {measured.package_version()} ({versions})\n# date: {DATE}\n")
    out.write(f"# licence: {measured.LICENCE}\n# drawn_by: tools/calibrate*.py\n")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")


def replace_rows(kernels: set[str], rows: list[dict]) -> None:
    """Write these rows into data/calibration.csv in place of all rows of ``kernels``; others stay."""
    path = DATA / "calibration.csv"
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    kept = [r for r in csv.DictReader(lines) if r["kernel"] not in kernels]
    order = ("gemm", "moe_layer")  # linear layers first
    together = sorted(kept + rows, key=lambda r: r["kernel"] not in order)
    write(path, "Fitted numbers a chip, engine, format and kernel, with held-out errors", together)


def draw(draws: Sequence[Callable], text: Callable, *, tool: str, argv: Sequence[str]) -> int:
    """Writes ``data/NAME.csv`` for each function NAME that draws rows; with ``--check`` counts those that differ."""
    different = 0
    for one in draws:
        path, rows = DATA / f"{one.__name__}.csv", one()
        drawn = text(rows, one)
        if "--check" not in argv:
            path.write_text(drawn, encoding="utf-8")
            print(f"wrote {path.name}: {len(rows)} rows, {len(drawn) / 1e3:.0f} kB")
            continue
        same = path.exists() and path.read_text(encoding="utf-8") == drawn
        different += not same
        print(f"{path.name}: {'as drawn' if same else f'differs from what tools/{tool}.py draws'}")
    return int(different > 0)
