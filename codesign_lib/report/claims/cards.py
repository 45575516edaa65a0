"""What model cards say that NVFP4 changed, with the error that so few questions leave."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.specs import published, scores

TABLE = "card_scores"


def difference(benchmark: str, model: str = "DeepSeek-R1-0528") -> float:
    """NVFP4's score minus the base's, a fraction.

    >>> round(difference("AIME 2024"), 3)
    0.023
    """
    row = published.table(TABLE).where(model=model, benchmark=benchmark)
    return float(row["nvfp4_fraction"][0] - row["base_fraction"][0])


class Change(NamedTuple):
    """Fractions by benchmark: base, NVFP4, the standard error of each, and how many standard errors NVFP4 is lower.

    NaN where a card does not say which set of questions was asked.
    """

    benchmark: NDArray[np.str_]
    base: NDArray[np.float64]
    nvfp4: NDArray[np.float64]
    base_error: NDArray[np.float64]
    nvfp4_error: NDArray[np.float64]
    z: NDArray[np.float64]


def changes(model: str) -> Change:
    """All benchmarks of one model.

    >>> c = changes("DeepSeek-R1-0528")
    >>> bool((abs(c.z) < 2).all()), c.benchmark[0], round(float(c.base_error[0]), 4)
    (True, np.str_('MMLU-Pro'), 0.0033)
    """
    rows = published.table(TABLE).where(model=model)
    base, new, n = (rows[c] for c in ("base_fraction", "nvfp4_fraction", "n_questions"))
    known = np.isfinite(n)
    found = np.full((3, len(n)), np.nan)
    found[0, known] = scores.standard_error(base[known], n[known])
    found[1, known] = scores.standard_error(new[known], n[known])
    found[2, known] = scores.difference_z(base[known], new[known], n[known])
    return Change(rows["benchmark"], base, new, *found)


def z_range(model: str, benchmark: str, *, base_step: float = 0.01, nvfp4_step: float = 0.001) -> tuple[float, float]:
    """Least and most standard errors that NVFP4 is lower, over what the printed scores may have been rounded from.

    ``base_step`` and ``nvfp4_step``: the last printed digit of each, as fractions.

    >>> low, high = z_range("DeepSeek-R1-0528", "MMLU-Pro")
    >>> low < 1.7 < high
    True
    """
    row = published.table(TABLE).where(model=model, benchmark=benchmark)
    base, new, n = (float(row[c][0]) for c in ("base_fraction", "nvfp4_fraction", "n_questions"))
    half = (base_step + nvfp4_step) / 2
    low, high = (float(scores.difference_z(base + x, new, n)) for x in (-half, half))
    return low, high


class Mean(NamedTuple):
    """By model: total parameters (NaN where not public), mean change over benchmarks and its standard error."""

    model: tuple[str, ...]
    n_params: NDArray[np.float64]
    change: NDArray[np.float64]
    error: NDArray[np.float64]
    n_benchmarks: NDArray[np.int64]


def means() -> Mean:
    """Mean of NVFP4 − base over the benchmarks with a known number of questions, every model of the table.

    Errors of formats and benchmarks are taken as independent: the bars are wide rather than narrow.

    >>> m = means()
    >>> bool(m.n_benchmarks.min() >= 2), len(m.model) == len(m.change)
    (True, True)
    """
    rows = published.table(TABLE)
    models = tuple(dict.fromkeys(rows["model"].tolist()))
    found = []
    for model in models:
        c = changes(model)
        known = np.isfinite(c.base_error)
        spread = np.hypot(c.base_error, c.nvfp4_error)[known]
        change = np.mean((c.nvfp4 - c.base)[known])
        found.append((change, np.sqrt(np.sum(spread**2)) / known.sum(), known.sum()))
    size = [rows.where(model=model)["n_params"][0] for model in models]
    change, error, n = (np.array(x) for x in zip(*found, strict=True))
    return Mean(models, np.array(size), change, error, n)
