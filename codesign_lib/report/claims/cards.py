"""What model cards say that NVFP4 changed, with the error that so few questions leave."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codesign_lib.specs import published, scores

TABLE = "card_scores"


class Change(NamedTuple):
    """Fractions by benchmark: base, NVFP4, the standard error of each, and how many standard errors NVFP4 is lower.

    ``error`` is that of the difference with the rounding of both printed scores, which ``z`` leaves out. NaN where a
    card does not say which set of questions was asked.
    """

    benchmark: NDArray[np.str_]
    base: NDArray[np.float64]
    nvfp4: NDArray[np.float64]
    base_error: NDArray[np.float64]
    nvfp4_error: NDArray[np.float64]
    z: NDArray[np.float64]
    error: NDArray[np.float64]


def changes(model: str) -> Change:
    """All benchmarks of one model.

    >>> c = changes("DeepSeek-R1-0528")
    >>> bool((abs(c.z) < 2).all()), c.benchmark[0], round(float(c.base_error[0]), 4)
    (True, np.str_('MMLU-Pro'), 0.0033)
    """
    rows = published.table(TABLE).where(model=model)
    base, new, n = (rows[c] for c in ("base_fraction", "nvfp4_fraction", "n_questions"))
    known = np.isfinite(n)
    found = np.full((4, len(n)), np.nan)
    found[0, known] = scores.standard_error(base[known], n[known])
    found[1, known] = scores.standard_error(new[known], n[known])
    found[2, known] = scores.difference_z(base[known], new[known], n[known])
    found[3] = np.sqrt(found[0] ** 2 + found[1] ** 2 + (printed_step(base) ** 2 + printed_step(new) ** 2) / 12)
    return Change(rows["benchmark"], base, new, *found)


def printed_step(fractions: NDArray[np.float64]) -> float:
    """What a column of scores was rounded to: the coarsest of 1, 0.1 and 0.01 percent that all of them are whole in.

    Rounding to a step has a standard deviation of the step over √12: 0.29 points where whole percents are printed.

    >>> printed_step(np.array([0.85, 0.4])), printed_step(np.array([0.842, 0.80]))
    (0.01, 0.001)
    """
    whole = (step for step in (0.01, 0.001) if np.allclose(fractions / step, np.round(fractions / step), atol=1e-6))
    return next(whole, 0.0001)


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
    """By model: total parameters (NaN where not public), pooled change over benchmarks and its standard error."""

    model: tuple[str, ...]
    n_params: NDArray[np.float64]
    change: NDArray[np.float64]
    error: NDArray[np.float64]
    n_benchmarks: NDArray[np.int64]


def means() -> Mean:
    """NVFP4 − base pooled over the benchmarks with a known number of questions, every model of the table.

    Weights are those of :py:func:`codesign_lib.specs.scores.pooled`, so large benchmarks count most. Errors of formats
    and benchmarks are taken as independent: the bars are wide rather than narrow.

    >>> m = means()
    >>> bool(m.n_benchmarks.min() >= 2), len(m.model) == len(m.change)
    (True, True)
    """
    rows = published.table(TABLE)
    models = tuple(dict.fromkeys(rows["model"].tolist()))
    found = [_pooled(changes(model)) for model in models]
    size = [rows.where(model=model)["n_params"][0] for model in models]
    return Mean(models, np.array(size), *(np.array([getattr(p, f) for p in found]) for f in ("change", "error", "n")))


def pooled(
    *, n_least: float = 0.0, n_below: float = np.inf, benchmark: str | None = None, left_out: tuple[str, ...] = ()
) -> scores.Pooled:
    """NVFP4 − base pooled over all models of ``n_least`` to below ``n_below`` parameters, of one benchmark or of all.

    Models of unknown size are left out unless both limits are the defaults. ``left_out`` names models, as a second
    checkpoint of one is held against the same base scores.

    >>> pooled(n_least=1e11, benchmark="MMLU-Pro").n
    5
    """
    m, kept = means(), []
    for model, size in zip(m.model, m.n_params, strict=True):
        anything = n_least == 0 and n_below == np.inf
        if model not in left_out and (anything or n_least <= size < n_below):
            kept.append(changes(model))
    fields = [np.concatenate([getattr(c, f) for c in kept]) for f in Change._fields]
    every = Change(*fields)
    return _pooled(every, np.ones(len(every.z), bool) if benchmark is None else every.benchmark == benchmark)


def _pooled(c: Change, chosen: NDArray[np.bool_] | bool = True) -> scores.Pooled:
    known = np.isfinite(c.error) & chosen
    return scores.pooled((c.nvfp4 - c.base)[known], c.error[known])
