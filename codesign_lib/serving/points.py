"""Many ways to serve, as columns by name: what a sweep gives back."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from codesign_lib.serving.layout import AXES, Layout

COLUMNS = ("interactivity_per_s", "throughput_per_s", "tpot_s", "ttft_s", "batch", "n_gpus", "precision", "mode")
"""Columns that are shown when points are printed."""
SHOWN = 8
"""Rows that are shown."""
PARTS = ("projections", "attention", "ffn", "experts", "head", "communication", "overhead", "waiting")


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Columns of equal length, one row a way to serve; ``n_tried`` ways were looked at.

    Columns: ``precision``, ``mode`` (aggregated, disaggregated, decode), ``n_draft``; the layout of the decoding
    instance ``kvp … pp``, ``n_gpus`` and ``batch`` of it; ``tpot_s``, ``ttft_s`` (no queue in it),
    ``interactivity_per_s`` (tokens a second a user sees, 1/TPOT), ``throughput_per_s`` (output tokens a second and
    GPU, all GPUs counted);
    seconds of a step by part (``attention_s`` …), ``held_up_s`` of a token by prompts; ``free_bytes`` of the fullest
    GPU; ``prefill_fraction``, the share of GPUs that read prompts, and their layout ``prefill_tp_attention …``
    (0 where prompts share the decoding GPUs). ``complete`` is False where a sweep was interrupted.

    >>> p = Points(columns={"batch": [1, 2], "mode": ["aggregated"] * 2}, n_tried=5)
    >>> len(p), p["batch"].tolist(), p[p["batch"] > 1]["batch"].tolist()
    (2, [1, 2], [2])
    """

    columns: Mapping[str, NDArray]
    n_tried: int
    complete: bool = True
    kept: str = "all"

    def __post_init__(self) -> None:
        columns = {name: np.asarray(value) for name, value in self.columns.items()}
        if len({c.shape for c in columns.values()}) > 1 or any(c.ndim != 1 for c in columns.values()):
            shapes = {name: c.shape for name, c in columns.items()}
            raise ValueError(f"Points: columns of shapes {shapes}; allowed: one axis, of equal length")
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, which: str | ArrayLike) -> NDArray | Points:
        """A column by its name, or the rows that an index or a mask picks."""
        if isinstance(which, str):
            if which not in self.columns:
                raise ValueError(f"Points has no column {which!r}; it has {', '.join(self.columns)}")
            return self.columns[which]
        rows = np.atleast_1d(np.asarray(which))
        columns = {name: c[rows] for name, c in self.columns.items()}
        return Points(columns=columns, n_tried=self.n_tried, complete=self.complete, kept=self.kept)

    def __repr__(self) -> str:
        """How many there are, and up to ``SHOWN`` of them, spread over their order, with the columns most asked for."""
        head = f"Points: {len(self):,} kept of {self.n_tried:,} tried" + ", interrupted" * (not self.complete)
        names = [name for name in COLUMNS if name in self.columns]
        at = np.unique(np.linspace(0, max(len(self) - 1, 0), SHOWN).round().astype(int))[: len(self)]
        if not names or not len(self):
            return f"{head}; columns {', '.join(self.columns)}"
        has_layout = all(axis in self.columns for axis in AXES)
        lines = [[*names, *["layout"] * has_layout]]
        for i in at.tolist():
            cells = [x if isinstance(x, str) else f"{x:,.4g}" for x in (self[name][i].item() for name in names)]
            lines.append([*cells, *([str(self.layout(i))] if has_layout else [])])
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lined = ("  ".join(x.ljust(w) for x, w in zip(line, wide, strict=True)).rstrip() for line in lines)
        rest = [name for name in self.columns if name not in (*names, *AXES)]
        return "\n".join([head, *lined, f"further columns: {', '.join(rest) or 'none'}"])

    def row(self, i: int) -> dict[str, object]:
        """One row as a dict of plain Python values."""
        return {name: column[i].item() for name, column in self.columns.items()}

    def layout(self, i: int) -> Layout:
        """The decoding layout of a row."""
        return Layout(**{axis: int(self[axis][i]) for axis in AXES})

    def binds(self, i: int) -> str:
        """The part of a row's decode step that takes longest.

        >>> Points(columns={f"{x}_s": [float(n)] for n, x in enumerate(PARTS)}, n_tried=1).binds(0)
        'waiting'
        """
        return max(PARTS, key=lambda part: self[f"{part}_s"][i])

    def to_dataframe(self):
        """The columns as a pandas ``DataFrame``; ModuleNotFoundError that says so where pandas is missing."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as missing:
            missing.msg = "to_dataframe needs pandas: pip install pandas; the columns are plain numpy arrays"
            raise
        return pandas.DataFrame(dict(self.columns))

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write every row, numbers with 9 significant digits, names that hold a comma in quotes."""
        cells = [[f"{x:.9g}" if c.dtype.kind == "f" else str(x) for x in c.tolist()] for c in self.columns.values()]
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([list(self.columns), *zip(*cells, strict=True)])


def joined(parts: Iterable[Points], *, complete: bool = True) -> Points:
    """All rows one after the other; counts of what was tried added up. ValueError where there is nothing to join."""
    parts = list(parts)
    if not parts:
        raise ValueError("joined: no points; allowed: at least one set of them")
    filled = [p for p in parts if len(p)] or parts[:1]
    columns = {name: np.concatenate([p[name] for p in filled]) for name in filled[0].columns}
    n_tried = sum(p.n_tried for p in parts)
    return Points(columns=columns, n_tried=n_tried, complete=complete, kept=parts[0].kept)
